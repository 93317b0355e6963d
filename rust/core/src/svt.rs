//! The sparse vector technique, with integers only, and the adaptive sampler built on it.
//!
//! Many questions of the kind "is this score above the threshold?" are answered, and only the positive answers are paid
//! for. Thresholds, scores and noise are integers or exact fractions; nothing is divided or rounded before a
//! comparison.

use crate::Error;
use crate::laplace;
use crate::rng::Source;
use crate::scale::Scale;
use crate::scores::Segment;

#[cfg(test)]
mod tests;

/// Longest period of a sampler.
const MAX_LENGTH: usize = 1 << 20;
/// Largest value, in size: what a [`Grid`](crate::grid::Grid) gives at most.
const MAX_VALUE: u64 = 1 << 53;
/// Largest resolution. Numerators are below 2^54 w^2 <= 2^94, so that their product with it is below 2^126.
const MAX_RESOLUTION: u64 = 1 << 32;

/// The noise of the sparse vector technique and the number of positive answers it is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SparseVector {
    threshold_scale: Scale,
    query_scale: Scale,
    limit: usize,
}

impl SparseVector {
    /// Noise of `threshold_scale` on the threshold and of `query_scale` on every score, for `limit` positive answers.
    #[must_use]
    pub const fn new(threshold_scale: Scale, query_scale: Scale, limit: usize) -> Self {
        Self { threshold_scale, query_scale, limit }
    }

    /// Answers whether `score + nu >= threshold + rho` for one score after the other, with one `rho` for the whole call
    /// and a fresh `nu` for each score. Ends with the last score or with positive answer number `limit`, if that is
    /// earlier; a limit of 0 gives no answer and draws nothing.
    ///
    /// # Guarantee
    /// If every score moves by at most the integer `D`, the answers cost at most `D/b1 + c 2 D/b2`, where `b1` and `b2`
    /// are the scales of threshold and scores and `c` is the limit. So `b1 = D/e1` and `b2 = 2 c D/e2` cost `e1 + e2`
    /// (Lyu, Su and Li 2017, Algorithm 1).
    ///
    /// Proof: fix the answers, and send each `(rho, nu_1, nu_2, ..)` that leads to them from scores `q` to the same
    /// with `rho + D` and, at the positive answers alone, `nu_i + 2 D`. It leads to the same answers from scores `q'`:
    /// where `q_i + nu_i < threshold + rho`, there `q'_i + nu_i < threshold + rho + D`; where
    /// `q_i + nu_i >= threshold + rho`, there `q'_i + nu_i + 2 D >= threshold + rho + D`. The map is injective and, as
    /// `D` is an integer, stays on the integers, where a shift by `s` lowers the probability of a draw at most by the
    /// factor `exp(-s/b)`. There is one shift by `D` and there are at most `c` by `2 D`. Each score may depend on the
    /// answers before it: given these it is the same query on both sides.
    pub fn above_threshold<S: Source>(&self, scores: &[i64], threshold: i64, source: &mut S) -> Vec<bool> {
        let mut answers = Vec::new();
        let mut left = self.limit;
        if left == 0 {
            return answers;
        }
        let bound = sum(threshold, laplace::draw(&self.threshold_scale, source));
        for &score in scores {
            let positive = sum(score, laplace::draw(&self.query_scale, source)) >= bound;
            answers.push(positive);
            left = left.saturating_sub(usize::from(positive));
            if left == 0 {
                break;
            }
        }
        answers
    }
}

/// A sum that cannot overflow.
#[expect(clippy::arithmetic_side_effects, reason = "noise has at most 117 bits: a scale of 52 and a count of 64")]
fn sum(value: i64, noise: i128) -> i128 {
    i128::from(value) + noise
}

/// What one unit of a sampler's noise is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A grid unit: the test is `L + nu >= theta + rho` for the score `L`, whatever the length of the segment.
    Common,
    /// `1/resolution` of the sensitivity of the very score that is tested, which is `2 A (n - 1)` for a segment of
    /// length `n`: the test is `L/(2 A (n - 1)) + nu/resolution >= theta/(2 A (n - 1)) + rho/resolution`.
    Normalised {
        /// `A`: by how many grid units a value can move.
        sensitivity: u64,
        /// Noise units per unit of normalised sensitivity.
        resolution: u64,
    },
}

/// The adaptive choice of steps to sample: a step is taken when the straight line from the last one taken misses too
/// much of the series. The first and the last step of the period are always taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct L1Sampler {
    length: usize,
    count: usize,
    threshold: i64,
    vector: SparseVector,
    unit: Unit,
    constant_time: bool,
}

impl L1Sampler {
    /// A sampler of `count` steps of a period of `length` steps, with a threshold in grid units.
    ///
    /// # Errors
    /// [`Error::Parameter`] unless `2 <= count <= length <= 2^20`, the threshold is not negative and the limit of
    /// positive answers is `count - 2`; for normalised scores also unless `1 <= sensitivity <= 2^62/length^2` and
    /// `1 <= resolution <= 2^32`. Within these bounds no comparison can overflow, whatever the data.
    pub fn new(length: usize, count: usize, threshold: i64, vector: SparseVector, unit: Unit) -> Result<Self, Error> {
        if !(2..=MAX_LENGTH).contains(&length) {
            return Err(Error::parameter("length of a period", length, "from 2 to 2^20"));
        }
        if !(2..=length).contains(&count) {
            return Err(Error::parameter("k", count, format!("from 2 to the length of a period, {length}")));
        }
        if threshold < 0 {
            return Err(Error::parameter("theta", threshold, "at least 0"));
        }
        let free = count.saturating_sub(2);
        if vector.limit != free {
            return Err(Error::parameter("limit of positive answers", vector.limit, format!("k - 2 = {free}")));
        }
        if let Unit::Normalised { sensitivity, resolution } = unit {
            let steps = u64::try_from(length).unwrap_or(u64::MAX);
            let largest = (1_u64 << 62).checked_div(steps.saturating_mul(steps)).unwrap_or(0);
            if !(1..=largest).contains(&sensitivity) {
                let bound = format!("from 1 to 2^62/length^2 = {largest} grid units (or use a coarser grid)");
                return Err(Error::parameter("sensitivity", sensitivity, bound));
            }
            if !(1..=MAX_RESOLUTION).contains(&resolution) {
                return Err(Error::parameter("resolution", resolution, "from 1 to 2^32"));
            }
        }
        Ok(Self { length, count, threshold, vector, unit, constant_time: false })
    }

    /// The same sampler with work that does not depend on the data, see [`L1Sampler::sample`].
    #[must_use]
    pub const fn constant_time(self, constant_time: bool) -> Self {
        Self { constant_time, ..self }
    }

    /// The number of steps that are sampled.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The steps to sample: `count` different ones in increasing order, the first and the last step among them.
    ///
    /// With `a` the last step taken, step `i` is taken if the score of `[a, i]` passes the test of the [`Unit`], until
    /// `count - 2` steps are taken. When as many candidates are left as steps to take, all are taken. Step `a + 1` is
    /// passed over: its score is always 0.
    ///
    /// # Guarantee
    /// A change of the whole period, each value by at most `A`, costs at most `D/b1 + c 2 D/b2` as in
    /// [`SparseVector::above_threshold`], with `c = count - 2` and
    /// - [`Unit::Common`]: `D = 2 A (length - count - 1)`, where `length - count` is the longest segment asked about;
    /// - [`Unit::Normalised`]: `D = resolution`, with the sensitivity `A` given there.
    ///
    /// Proof: the score of a segment of length `n` moves by at most `2 A (n - 1)` ([`crate::scores`]), hence each query
    /// by at most `D` noise units. Which query comes next is a function of the answers before it, and so is everything
    /// else: passing over `a + 1` and taking all that is left read no data. When `j` steps are taken the last of them
    /// is at least `j - 1`, and `i <= length - 1 - count + j` as long as more candidates than steps are left, so that
    /// `n <= length - count`. `count = 2` and `count = length` leave no choice: nothing is read, drawn or paid.
    ///
    /// # Time
    /// In constant time every candidate has a draw and a score that is summed term by term from the first step of the
    /// period on, where terms that do not belong to the segment are multiplied by zero; what is not asked is drawn and
    /// thrown away, which costs nothing. Work is `length^2 / 2` terms whatever the data and whatever is chosen, without a
    /// branch, an exit or a sort that depends on either. Otherwise it is `O(length log length)`, in a time that tells of the
    /// data. The number of draws differs, and with it what a key chooses.
    ///
    /// # Errors
    /// [`Error::Parameter`] if the number of values is not the length of the period or a value exceeds 2^53 grid units
    /// in size, before anything is drawn.
    pub fn sample<S: Source>(&self, values: &[i64], source: &mut S) -> Result<Vec<usize>, Error> {
        if values.len() != self.length {
            return Err(Error::parameter("number of values", values.len(), self.length));
        }
        if self.vector.limit == 0 || self.count == self.length {
            return Ok(self.walk(|_, _| false));
        }
        // All values are looked at: where one is too large is not told by time either.
        if values.iter().fold(0, |most, value| value.unsigned_abs().max(most)) > MAX_VALUE {
            return Err(Error::parameter("size of a value", "larger", "at most 2^53 grid units"));
        }
        let rho = laplace::draw(&self.vector.threshold_scale, source);
        if self.constant_time {
            return Ok(self.even_walk(values, rho, source));
        }
        let mut segment = Segment::new(values, 0);
        Ok(self.walk(|last, step| {
            if segment.left() != last {
                segment = Segment::new(values, last);
            }
            let nu = laplace::draw(&self.vector.query_scale, source);
            self.passes(segment.numerator(step), step.saturating_sub(last), rho, nu)
        }))
    }

    /// Walks the candidates, asking of some whether the segment from the last step taken to it is positive.
    #[expect(clippy::arithmetic_side_effects, reason = "2 <= count <= length, and at most count - 2 steps are taken")]
    fn walk(&self, mut positive: impl FnMut(usize, usize) -> bool) -> Vec<usize> {
        let end = self.length - 1;
        let mut free = self.count - 2;
        let mut last = 0;
        let mut steps = Vec::with_capacity(self.count);
        steps.push(0);
        for step in 1..end {
            if free == 0 {
                break;
            }
            if end - step == free {
                steps.extend(step..end);
                break;
            }
            if step > last + 1 && positive(last, step) {
                steps.push(step);
                last = step;
                free -= 1;
            }
        }
        steps.push(end);
        steps
    }

    /// The walk in constant time: what [`L1Sampler::walk`] does by branches is done by masks.
    #[expect(clippy::arithmetic_side_effects, reason = "2 <= count <= length, and at most count - 2 steps are taken")]
    #[expect(clippy::needless_bitwise_bool, reason = "a lazy operator would be a branch")]
    fn even_walk<S: Source>(&self, values: &[i64], rho: i128, source: &mut S) -> Vec<usize> {
        let end = self.length - 1;
        let (mut free, mut last) = (self.count - 2, 0_usize);
        let mut steps = vec![0; self.count];
        let mut taken = 1_usize;
        for step in 1..end {
            let nu = laplace::draw(&self.vector.query_scale, source);
            let numerator = even_numerator(values, last, step);
            let passes = self.passes(numerator, step - last, rho, nu);
            let asked = (free > 0) & (step > last + 1);
            let take = usize::from((end - step == free) | (asked & passes));
            // A step that is not taken is written where the next one that is will be written over it.
            if let Some(slot) = steps.get_mut(taken) {
                *slot = step;
            }
            taken += take;
            free -= take;
            last = select(take, step, last);
        }
        if let Some(slot) = steps.last_mut() {
            *slot = end;
        }
        steps
    }

    /// The test of the unit, multiplied by all its denominators, for a segment of at least two steps.
    ///
    /// Where a product with the noise leaves 128 bits, the noise outweighs numerator and threshold, which have at most 126
    /// bits together, and decides alone.
    fn passes(&self, numerator: i128, length: usize, rho: i128, nu: i128) -> bool {
        let length = i128::try_from(length).unwrap_or(i128::MAX);
        let (resolution, width) = match self.unit {
            Unit::Common => (1, 1),
            Unit::Normalised { sensitivity, resolution } => {
                let width = length.saturating_sub(1).saturating_mul(2).saturating_mul(i128::from(sensitivity));
                (i128::from(resolution), width)
            }
        };
        // Nothing here but the last product and its comparison reads data, and these do not branch.
        let bound = || {
            let noise = rho.checked_sub(nu)?.checked_mul(width)?;
            i128::from(self.threshold).checked_mul(resolution)?.checked_add(noise)?.checked_mul(length)
        };
        bound().map_or(nu > rho, |bound| numerator.wrapping_mul(resolution) >= bound)
    }
}

/// One of two numbers, by a condition of 1 or 0.
#[inline]
fn select(condition: usize, one: usize, zero: usize) -> usize {
    let mask = std::hint::black_box(condition).wrapping_neg();
    (one & mask) | (zero & !mask)
}

/// The numerator of the score of `[left, right]` as in [`crate::scores`], by the same work for every left end.
///
/// Values are at most [`MAX_VALUE`] in size and steps at most [`MAX_LENGTH`], so that rises have 55 bits, products 75 and
/// sums 95.
fn even_numerator(values: &[i64], left: usize, right: usize) -> i128 {
    let signed = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let at = |step: usize| values.get(step).copied().unwrap_or(0);
    let (start, length) = (at(left), signed(right.wrapping_sub(left)));
    let rise = at(right).wrapping_sub(start);
    let mut sum = 0_i128;
    for (step, value) in (1..right).zip(values.iter().skip(1)) {
        // Steps up to the left end have no run, and no rise to speak of.
        let inside = i64::from(step > left).wrapping_neg();
        let run = signed(step).wrapping_sub(signed(left)) & inside;
        let risen = value.wrapping_sub(start) & inside;
        let term = i128::from(length)
            .wrapping_mul(i128::from(risen))
            .wrapping_sub(i128::from(run).wrapping_mul(i128::from(rise)));
        let sign = term >> 127;
        sum = sum.wrapping_add((term ^ sign).wrapping_sub(sign));
    }
    sum
}
