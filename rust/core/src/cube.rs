//! Cube noise: `P(z) ~ exp(-max|z_i|/b)` on blocks of integers.
//!
//! The differences that one entity can cause in a block form a cube, every value by at most its sensitivity. Noise with
//! the shape of that cube pays for the block once, where independent noise pays once per value.

use crate::Error;
use crate::geometric::magnitude;
use crate::laplace::LIMIT;
use crate::rng::Source;
use crate::scale::Scale;

/// A scale that suits blocks of one length.
#[derive(Debug, Clone, Copy)]
pub struct CubeScale {
    scale: Scale,
    length: usize,
}

impl CubeScale {
    /// Pairs a scale with the length of the blocks it is for.
    ///
    /// # Errors
    /// [`Error::Parameter`] unless `1 <= length <= 8 b`, where a radius is accepted about once in `exp(4)` tries or more
    /// often, and `length * b` is below 2^53, so that noise hardly ever meets the limit.
    pub fn new(scale: Scale, length: usize) -> Result<Self, Error> {
        let wide = u128::try_from(length).unwrap_or(u128::MAX);
        let (numerator, denominator) = (u128::from(scale.numerator()), u128::from(scale.denominator()));
        let weighted = wide.saturating_mul(denominator);
        if length == 0 || weighted > numerator.saturating_mul(8) {
            let bound =
                format!("from 1 to 8 sensitivity/(grid epsilon) = 8 * {numerator}/{denominator} (or use a finer grid)");
            return Err(Error::parameter("length of a block", length, bound));
        }
        if wide.saturating_mul(numerator) >= denominator.saturating_mul(1 << 53) {
            let bound = "at most 2^53 epsilon grid/sensitivity (or use a coarser grid)";
            return Err(Error::parameter("length of a block", length, bound));
        }
        Ok(Self { scale, length })
    }

    /// The length of the blocks.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }
}

/// Adds cube noise to one block, which must have the length of the scale and values of at most [`LIMIT`] in size, and
/// clamps the result to it.
///
/// # Guarantee
/// `P(z) ~ q^max|z_i|` with `q = exp(-1/b)`, exactly. Hence a change of the whole block, each value by at most `a`, costs
/// at most `a/b` in all: by the triangle inequality the largest entry of `z` moves by at most `a` (Hardt and Talwar 2010).
/// Proof of exactness: the radius has law `~ (2R+1)^d q^R`; given `R` each of the `(2R+1)^d` points of the cube is
/// equally likely, so `P(z) ~ sum over R >= max|z_i| of q^R = q^max|z_i| / (1 - q)`. Clamping what has its noise already
/// is free.
pub(crate) fn perturb<S: Source>(block: &mut [i64], scale: &CubeScale, source: &mut S) {
    let radius = radius(scale, source);
    perturb_within(block, radius, source);
}

/// Adds independent uniform noise of at most a radius in size to values: what cube noise is, given its radius.
#[expect(clippy::arithmetic_side_effects, reason = "a radius is far below 2^126")]
pub(crate) fn perturb_within<S: Source>(block: &mut [i64], radius: u128, source: &mut S) {
    let width = 2 * radius + 1;
    let offset = i128::try_from(radius).unwrap_or(i128::MAX);
    for value in block {
        let drawn = i128::try_from(below(width, source)).unwrap_or(i128::MAX);
        let noisy = i128::from(*value) + (drawn - offset);
        *value = i64::try_from(noisy.clamp((-LIMIT).into(), LIMIT.into())).unwrap_or(LIMIT);
    }
}

/// A radius of law `P(R) ~ (2R+1)^d q^R`.
///
/// The sum of `d + 1` geometric variables has law `~ (R+1)(R+2)...(R+d) q^R`, and is kept with probability
/// `prod_{j=1..d} (2R+1)/(2R+2j)`.
pub(crate) fn radius<S: Source>(scale: &CubeScale, source: &mut S) -> u128 {
    loop {
        let radius = (0..=scale.length).map(|_| magnitude(&scale.scale, source).0).sum();
        if kept(radius, scale.length, source) {
            return radius;
        }
    }
}

/// True with probability `prod_{j=1..d} (2R+1)/(2R+2j)`: no coin of `d` with odds `(2j-1)/(2R+2j)` shows heads.
///
/// Where all those odds are at most 1/256, each coin is the conjunction of a zero byte and a coin with 256-fold odds, so
/// that one word decides eight coins and almost none needs a second draw.
#[expect(clippy::arithmetic_side_effects, reason = "a radius is far below 2^126, and j <= d < 2^64")]
fn kept<S: Source>(radius: u128, length: usize, source: &mut S) -> bool {
    let length = u128::try_from(length).unwrap_or(u128::MAX);
    let heads = |source: &mut S, j: u128, factor: u128| below(2 * radius + 2 * j, source) < factor * (2 * j - 1);
    if length > radius / 256 {
        return !(1..=length).any(|j| heads(source, j, 1));
    }
    let mut first = 1;
    while first <= length {
        for (j, byte) in (first..=length).zip(source.word().to_le_bytes()) {
            if byte == 0 && heads(source, j, 256) {
                return false;
            }
        }
        first += 8;
    }
    true
}

/// A uniform integer below `bound`, as [`Source::below`] but for any bound.
///
/// Beyond 64 bits, words are drawn until as many bits as the bound has lie below it.
#[inline]
pub(crate) fn below<S: Source>(bound: u128, source: &mut S) -> u128 {
    if let Ok(bound) = u64::try_from(bound) {
        return u128::from(source.below(bound));
    }
    loop {
        let bits = (u128::from(source.word()) << 64) | u128::from(source.word());
        let drawn = bits >> bound.leading_zeros();
        if drawn < bound {
            return drawn;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratio::Ratio;
    use crate::rng::scripted::{Paths, Script, Weight};
    use num_traits::{One, Zero};

    /// Answers `below` and `word` with every alternative in turn; a word's bytes are zero or not.
    struct Coins<'a> {
        paths: &'a mut Paths,
        length: usize,
    }

    impl Source for Coins<'_> {
        fn lane(&mut self) -> u32 {
            unreachable!("coins need no lane")
        }

        fn word(&mut self) -> u64 {
            let mut bytes = [1; 8];
            for byte in &mut bytes[..self.length] {
                *byte = u8::from(!self.paths.flip(&Weight::new(1.into(), 256.into())));
            }
            u64::from_le_bytes(bytes)
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.paths.uniform(bound)
        }
    }

    #[test]
    fn a_radius_is_kept_with_the_exact_product_of_odds() {
        // Both ways of tossing the coins: one by one for small radii, eight to a word for large ones.
        for (radius, length) in [(0_u128, 1_usize), (0, 3), (2, 1), (2, 3), (5, 2), (7, 3), (256, 1), (512, 2)] {
            let mut found = Weight::zero();
            Paths::all(|paths| {
                if kept(radius, length, &mut Coins { paths, length }) {
                    found += &paths.weight;
                }
            });
            let expected = (1..=length as u128)
                .map(|j| Weight::new((2 * radius + 1).into(), (2 * radius + 2 * j).into()))
                .fold(Weight::one(), |product, odds| product * odds);
            assert_eq!(found, expected, "radius {radius}, length {length}");
        }
    }

    #[test]
    fn blocks_that_would_take_forever_or_overflow_are_refused() {
        let scale =
            |numerator, denominator| Scale::new(1, &Ratio::new("epsilon", denominator, numerator).unwrap()).unwrap();
        assert!(CubeScale::new(scale(10, 1), 80).is_ok());
        assert!(CubeScale::new(scale(10, 1), 81).is_err());
        assert!(CubeScale::new(scale(10, 1), 0).is_err());
        assert!(CubeScale::new(scale(1 << 52, 1), 1).is_ok());
        assert!(CubeScale::new(scale(1 << 52, 1), 2).is_err());
    }

    #[test]
    fn bounds_beyond_a_word_are_uniform_and_noise_beyond_the_limit_ends_there() {
        let bound = (1_u128 << 64) + 5;
        // 65 bits are needed, so the upper 65 of 128 are taken: the first pair lies above the bound and is drawn again.
        let words = [u64::MAX, u64::MAX, 1 << 63, 0, 3, 1 << 63];
        let mut script = Script::new(&[], &words);
        assert_eq!(below(bound, &mut script), 1 << 64);
        assert_eq!(below(bound, &mut script), 7);
        assert!(script.is_spent());

        let wide = CubeScale::new(Scale::new(1 << 52, &Ratio::new("epsilon", 1, 1).unwrap()).unwrap(), 1).unwrap();
        // Two geometric variables of 100,000 rounds beyond the table, a word without a zero byte, then the coordinate.
        let rounds = || std::iter::repeat_n(u32::MAX - 1, 100_000).chain([0b10]);
        let lanes: Vec<u32> = rounds().chain(rounds()).collect();
        for (word, end) in [(0, -LIMIT), (u64::MAX >> 1, LIMIT)] {
            let mut values = [17];
            let mut script = Script::new(&lanes, &[0, 0, u64::MAX, word, word]);
            perturb(&mut values, &wide, &mut script);
            assert_eq!(values, [end]);
        }
    }
}
