//! Discrete Laplace noise: `P(z) ~ exp(-|z|/b)` on the integers.

use crate::Error;
use crate::geometric::magnitude;
use crate::rng::Source;
use crate::scale::Scale;

/// One draw of discrete Laplace noise.
///
/// # Guarantee
/// `P(z) = (1 - q)/(1 + q) q^|z|` with `q = exp(-1/b)`, exactly, for `|z| < 2^62`: a geometric magnitude with a fair
/// sign, where minus zero is drawn again so that zero is not counted twice. Hence adding it to an integer that moves by
/// at most `a` costs at most `a/b` (Ghosh, Roughgarden and Sundararajan 2009).
///
/// # Errors
/// [`Error::NoiseTooLarge`], see [`magnitude`].
#[inline]
pub fn draw<S: Source>(scale: &Scale, source: &mut S) -> Result<i64, Error> {
    loop {
        if let (noise, false) = attempt(scale, source)? {
            return Ok(noise);
        }
    }
}

/// A magnitude with a sign, and whether it is minus zero.
#[inline]
fn attempt<S: Source>(scale: &Scale, source: &mut S) -> Result<(i64, bool), Error> {
    let (magnitude, negative) = magnitude(scale, source)?;
    let magnitude = i64::try_from(magnitude).map_err(|_| Error::NoiseTooLarge)?;
    let noise = if negative { magnitude.wrapping_neg() } else { magnitude };
    Ok((noise, negative && magnitude == 0))
}

/// Adds independent noise to every value, whose size must be at most 2^62.
///
/// # Guarantee
/// A change of any one value by at most `a` costs at most `a/b`; changes of several values add up.
///
/// # Errors
/// [`Error::NoiseTooLarge`], see [`magnitude`]; the values are then partly noisy and must be dropped.
pub fn perturb<S: Source>(values: &mut [i64], scale: &Scale, source: &mut S) -> Result<(), Error> {
    let mut index = 0_usize;
    while let Some(value) = values.get_mut(index) {
        let (noise, again) = attempt(scale, source)?;
        *value = value.checked_add(noise).ok_or(Error::SumTooLarge)?;
        // Minus zero has added nothing and stays at the same value: a branch here would often be mispredicted.
        index = index.wrapping_add(usize::from(!again));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratio::Ratio;
    use crate::rng::scripted::Script;

    /// Lanes that keep the draw: positive and negative, with the smallest and with a larger unit geometric.
    const PLUS_ZERO: u32 = 0b10;
    const MINUS_ZERO: u32 = 0b11;
    const PLUS: u32 = 1 << 31 | 0b10;
    const MINUS: u32 = 1 << 31 | 0b11;

    fn scale() -> Scale {
        Scale::new(1 << 20, &Ratio::new("epsilon", 1, 1).unwrap()).unwrap()
    }

    #[test]
    fn minus_zero_is_drawn_again_and_plus_zero_is_not() {
        let mut script = Script::new(&[MINUS_ZERO, MINUS_ZERO, PLUS_ZERO], &[0, 0, 0]);
        assert_eq!(draw(&scale(), &mut script), Ok(0));
        assert!(script.is_spent());
        let mut values = [5, 5, 5];
        let mut script = Script::new(&[MINUS_ZERO, MINUS, PLUS_ZERO, MINUS_ZERO, PLUS], &[0; 5]);
        perturb(&mut values, &scale(), &mut script).unwrap();
        assert!(script.is_spent());
        // F(44) < 1/2 < F(45), so the lane that starts with a one finds v = 44.
        assert_eq!(values, [5 - (44 << 14), 5, 5 + (44 << 14)]);
    }
}
