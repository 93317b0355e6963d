//! Discrete Laplace noise: `P(z) ~ exp(-|z|/b)` on the integers.

use crate::geometric::{cut_magnitude, magnitude};
use crate::rng::Source;
use crate::scale::Scale;

/// Values and noisy values are at most this in size.
pub const LIMIT: i64 = 1 << 61;

/// One draw of discrete Laplace noise.
///
/// # Guarantee
/// `P(z) = (1 - q)/(1 + q) q^|z|` with `q = exp(-1/b)`, exactly: a geometric magnitude with a fair sign, where minus zero
/// is drawn again so that zero is not counted twice. Hence adding it to an integer that moves by at most `a` costs at most
/// `a/b` (Ghosh, Roughgarden and Sundararajan 2009).
#[inline]
pub fn draw<S: Source>(scale: &Scale, source: &mut S) -> i128 {
    loop {
        let (magnitude, negative) = magnitude(scale, source);
        let magnitude = i128::try_from(magnitude).unwrap_or(i128::MAX);
        if !negative {
            return magnitude;
        }
        if magnitude != 0 {
            return magnitude.wrapping_neg();
        }
    }
}

/// Adds independent noise to every value, whose size must be at most [`LIMIT`], and clamps the result to it.
///
/// # Guarantee
/// A change of any one value by at most `a` costs at most `a/b`; changes of several values add up. Clamping what has its
/// noise already is free. A magnitude that is cut to twice the limit leads to the same result as the whole one.
pub fn perturb<S: Source>(values: &mut [i64], scale: &Scale, source: &mut S) {
    let mut index = 0_usize;
    while let Some(value) = values.get_mut(index) {
        let (magnitude, negative) = cut_magnitude(scale, 1 << 62, source);
        let magnitude = i64::try_from(magnitude).unwrap_or(i64::MAX);
        let noise = if negative { magnitude.wrapping_neg() } else { magnitude };
        *value = value.saturating_add(noise).clamp(LIMIT.wrapping_neg(), LIMIT);
        // Minus zero has added nothing and stays at the same value: a branch here would often be mispredicted.
        let again = negative && magnitude == 0;
        index = index.wrapping_add(usize::from(!again));
    }
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
        assert_eq!(draw(&scale(), &mut script), 0);
        assert!(script.is_spent());
        let mut values = [5, 5, 5];
        let mut script = Script::new(&[MINUS_ZERO, MINUS, PLUS_ZERO, MINUS_ZERO, PLUS], &[0; 5]);
        perturb(&mut values, &scale(), &mut script);
        assert!(script.is_spent());
        // F(44) < 1/2 < F(45), so the lane that starts with a one finds v = 44.
        assert_eq!(values, [5 - (44 << 14), 5, 5 + (44 << 14)]);
    }

    #[test]
    fn a_draw_beyond_the_limit_ends_at_the_limit_whatever_the_value() {
        let wide = Scale::new(1 << 52, &Ratio::new("epsilon", 1, 1).unwrap()).unwrap();
        for value in [-LIMIT, -5, 0, LIMIT] {
            for (sign, end) in [(0, LIMIT), (1, -LIMIT)] {
                // 300 lanes beyond the table: a magnitude of 300 * 512 * 2^46 > 2^63.
                let lanes: Vec<u32> = std::iter::repeat_n(u32::MAX - 1 + sign, 300).chain([PLUS_ZERO]).collect();
                let mut values = [value];
                perturb(&mut values, &wide, &mut Script::new(&lanes, &[0]));
                assert_eq!(values, [end]);
            }
        }
    }
}
