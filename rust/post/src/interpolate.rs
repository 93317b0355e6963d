//! Piecewise-linear reconstruction of a period from samples at some of its steps.

use crate::Error;

/// Samples beyond this size are scaled down before they are multiplied by a number of steps.
const LARGE: f64 = f64::MAX * SHRINK;
/// A power of two, so that scaling is exact, and below the inverse of any number of steps.
const SHRINK: f64 = f64::EPSILON * f64::EPSILON;

/// Fills `out` with the straight lines through the points `(knots[i], samples[i])`.
///
/// The knots increase strictly from 0 to `out.len() - 1`. At a knot the sample is reproduced bit for bit. Between two
/// knots `p < q` the value at `t` is `(samples_p (q - t) + samples_q (t - p)) / (q - p)`, which is exact wherever these
/// three operations are, and never lies outside the two samples. Finite samples of any size give finite values.
///
/// # Errors
/// [`Error::Parameter`] if the lengths do not fit, [`Error::Entry`] if the knots are not as above or a sample is not
/// finite. `out` is then left as it was.
pub fn linear(knots: &[usize], samples: &[f64], out: &mut [f64]) -> Result<(), Error> {
    check(knots, samples, out.len())?;
    for (ends, values) in knots.windows(2).zip(samples.windows(2)) {
        segment(values[0], values[1], &mut out[ends[0]..ends[1]]);
    }
    if let (Some(end), Some(&value)) = (out.last_mut(), samples.last()) {
        *end = value;
    }
    Ok(())
}

/// Fills `out` with each sample from its start to the next one, and the last sample to the end.
///
/// # Errors
/// [`Error::Parameter`] if the lengths do not fit, [`Error::Entry`] if the starts do not increase from 0 to below
/// `out.len()`. `out` is then left as it was.
pub fn constant(starts: &[usize], samples: &[f64], out: &mut [f64]) -> Result<(), Error> {
    Error::unless_length("length of samples", samples.len(), starts.len())?;
    let stops: Vec<usize> = starts.iter().skip(1).copied().chain(std::iter::once(out.len())).collect();
    if starts.first() != Some(&0) {
        return Err(Error::parameter("starts", format!("{starts:?}"), "beginning with 0"));
    }
    if let Some(index) = (0..starts.len()).find(|&index| stops[index] <= starts[index]) {
        return Err(Error::entry("starts", index, starts[index], format!("below {}", stops[index])));
    }
    for ((&start, &stop), &sample) in starts.iter().zip(&stops).zip(samples) {
        out[start..stop].fill(sample);
    }
    Ok(())
}

/// Fills the steps from one knot up to, but without, the next.
#[expect(clippy::cast_precision_loss, reason = "a period has far fewer than 2^53 steps")]
fn segment(from: f64, to: f64, out: &mut [f64]) {
    let steps = out.len() as f64;
    let scale = if from.abs().max(to.abs()) > LARGE { SHRINK } else { 1.0 };
    let (low, high) = (from.min(to), from.max(to));
    for (done, value) in out.iter_mut().enumerate() {
        let done = done as f64;
        let mean = (from * scale * (steps - done) + to * scale * done) / steps;
        *value = (mean / scale).clamp(low, high);
    }
    out[0] = from;
}

fn check(knots: &[usize], samples: &[f64], width: usize) -> Result<(), Error> {
    let Some(last) = knots.len().checked_sub(1) else {
        return Err(Error::parameter("length of knots", 0, "at least 1"));
    };
    Error::unless_length("length of samples", samples.len(), knots.len())?;
    if knots[0] != 0 {
        return Err(Error::entry("knots", 0, knots[0], 0));
    }
    if let Some(index) = (1..knots.len()).find(|&index| knots[index] <= knots[index - 1]) {
        let bound = format!("above knots[{}] = {}", index - 1, knots[index - 1]);
        return Err(Error::entry("knots", index, knots[index], bound));
    }
    if knots[last].checked_add(1) != Some(width) {
        return Err(Error::entry(
            "knots",
            last,
            knots[last],
            format!("the last index of out, whose length is {width}"),
        ));
    }
    if let Some(index) = samples.iter().position(|sample| !sample.is_finite()) {
        return Err(Error::entry("samples", index, samples[index], "finite"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(knots: &[usize], samples: &[f64]) -> Vec<f64> {
        let mut out = vec![f64::NAN; knots.last().unwrap() + 1];
        linear(knots, samples, &mut out).unwrap();
        out
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "samples are copied")]
    fn constant_runs_reach_to_the_next_start() {
        let mut out = [9.0; 5];
        constant(&[0, 2, 3], &[1.0, 2.0, 3.0], &mut out).unwrap();
        assert_eq!(out, [1.0, 1.0, 2.0, 3.0, 3.0]);
        for starts in [&[1, 2, 3], &[0, 2, 2], &[0, 3, 2], &[0, 2, 5]] {
            assert!(constant(starts, &[1.0, 2.0, 3.0], &mut out).is_err(), "{starts:?}");
        }
        assert!(constant(&[0], &[1.0, 2.0], &mut out).is_err());
        assert!(constant(&[], &[], &mut out).is_err());
        assert_eq!(out, [1.0, 1.0, 2.0, 3.0, 3.0]);
    }

    #[test]
    fn lines_through_small_integers_are_exact() {
        assert_eq!(filled(&[0, 3, 10], &[3.0, 0.0, 7.0]), [3.0, 2.0, 1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    }

    #[test]
    fn a_single_step_is_its_sample() {
        assert_eq!(filled(&[0], &[2.5]), [2.5]);
    }

    #[test]
    fn the_largest_floats_do_not_overflow() {
        assert_eq!(filled(&[0, 2], &[f64::MAX, -f64::MAX]), [f64::MAX, 0.0, -f64::MAX]);
        assert_eq!(filled(&[0, 7], &[f64::MAX; 2]), [f64::MAX; 8]);
    }

    #[test]
    fn misuse_is_refused_by_name() {
        let refused = |knots: &[usize], samples: &[f64], width: usize| {
            linear(knots, samples, &mut vec![0.0; width]).unwrap_err().to_string()
        };
        assert_eq!(refused(&[], &[], 0), "length of knots is 0, but must be at least 1");
        assert_eq!(refused(&[0, 1], &[1.0], 2), "length of samples is 1, but must be 2");
        assert_eq!(refused(&[1, 2], &[1.0; 2], 3), "knots[0] is 1, but must be 0");
        assert_eq!(refused(&[0, 2, 2], &[1.0; 3], 3), "knots[2] is 2, but must be above knots[1] = 2");
        assert_eq!(
            refused(&[0, 2], &[1.0; 2], 2),
            "knots[1] is 2, but must be the last index of out, whose length is 2"
        );
        assert_eq!(refused(&[0], &[1.0], 0), "knots[0] is 0, but must be the last index of out, whose length is 0");
        assert_eq!(refused(&[0, 1], &[1.0, f64::NAN], 2), "samples[1] is NaN, but must be finite");
    }

    proptest! {
        /// Knots come back bit for bit, and every value is finite and lies between its two neighbouring samples.
        #[test]
        fn knots_are_kept_and_values_lie_between(
            gaps in prop::collection::vec(1_usize..9, 0..12),
            samples in prop::collection::vec(-f64::MAX..f64::MAX, 12),
            exponent in -300..1,
        ) {
            let ends = gaps.iter().scan(0, |end, gap| { *end += gap; Some(*end) });
            let knots: Vec<usize> = std::iter::once(0).chain(ends).collect();
            let samples: Vec<f64> = samples.iter().map(|sample| sample * 10_f64.powi(exponent)).collect();
            let samples = &samples[..knots.len()];
            let out = filled(&knots, samples);
            for (&knot, &sample) in knots.iter().zip(samples) {
                prop_assert_eq!(out[knot].to_bits(), sample.to_bits());
            }
            for (ends, values) in knots.windows(2).zip(samples.windows(2)) {
                for &value in &out[ends[0]..ends[1]] {
                    prop_assert!(values[0].min(values[1]) <= value && value <= values[0].max(values[1]));
                }
            }
        }
    }
}
