//! Discrete Gaussian noise: `P(z) ~ exp(-z^2/(2 sigma^2))` on the integers.

#![expect(clippy::inline_always, reason = "see geometric")]

use crate::cube::below;
use crate::geometric::{keeps, magnitude};
use crate::laplace::LIMIT;
use crate::rng::Source;
use crate::scale::Scale;

/// Bits after the binary point of a deviation in units of sigma.
const POINT: u32 = 28;
/// Bits to the left of which `32 (deviation)^2` is whole, where the deviation has [`POINT`] bits after its point.
const WHOLE: u32 = 51;

/// A standard deviation `sigma = numerator / denominator` in grid units, with what makes drawing fast.
///
/// # Guarantee
/// The standard deviation is exactly that of the scale. What is rounded here decides how a draw is found, never with what
/// probability.
#[derive(Debug, Clone, Copy)]
pub struct Deviation {
    scale: Scale,
    /// Brings the numerator to 52 bits.
    shift: u32,
    /// `floor(2^(64 + POINT) / (numerator << shift))`.
    reciprocal: u64,
}

impl Deviation {
    /// Takes a scale, which is exact, as the standard deviation.
    #[must_use]
    pub fn new(scale: Scale) -> Self {
        let shift = scale.numerator().leading_zeros().saturating_sub(12);
        let numerator = u128::from(scale.numerator() << shift);
        let reciprocal = (1_u128 << (64 + POINT)).checked_div(numerator).unwrap_or(0);
        // A numerator of 2^51 or more leaves at most 41 bits.
        Self { scale, shift, reciprocal: u64::try_from(reciprocal).unwrap_or(u64::MAX) }
    }

    /// The standard deviation in grid units.
    #[must_use]
    pub const fn scale(&self) -> &Scale {
        &self.scale
    }
}

/// One draw of discrete Gaussian noise.
///
/// # Guarantee
/// `P(z) ~ exp(-z^2/(2 sigma^2))`, exactly. Proof: a Laplace draw of scale `sigma` and magnitude `m` is kept with
/// probability `exp(-(m/sigma - 1)^2 / 2)`, see `accepts`, so that `z` is kept with a probability in proportion to
/// `exp(-|z|/sigma - (|z|/sigma - 1)^2 / 2) = exp(-z^2/(2 sigma^2) - 1/2)`. About 0.76 of the draws are kept (Canonne,
/// Kamath and Steinke 2020, with the scale that keeps most).
pub fn draw<S: Source>(deviation: &Deviation, source: &mut S) -> i128 {
    loop {
        if let Some(noise) = attempt(deviation, source) {
            return noise;
        }
    }
}

/// One attempt at a draw; none if it is not kept.
#[inline(always)]
fn attempt<S: Source>(deviation: &Deviation, source: &mut S) -> Option<i128> {
    let (magnitude, negative) = magnitude(&deviation.scale, source);
    let kept = match u64::try_from(magnitude) {
        Ok(magnitude) => accepts(magnitude, deviation, source),
        Err(_) => slowly(magnitude, deviation, source),
    };
    let magnitude = i128::try_from(magnitude).unwrap_or(i128::MAX);
    // Minus zero is drawn again, so that zero is not counted twice.
    (kept && !(negative && magnitude == 0)).then(|| if negative { magnitude.wrapping_neg() } else { magnitude })
}

/// Adds independent noise to every value, whose size must be at most [`LIMIT`], and clamps the result to it.
///
/// # Guarantee
/// With `sigma^2 = s > 8` the noise is that of [`draw`], and a change of the values by a vector of length `d` is no easier
/// to see than under continuous Gaussian noise of variance `s - 8`, up to factors `1 + 10^-67` of probabilities
/// (`docs/privacy.md`, theorem 15). Clamping what has its noise already is free.
pub fn perturb<S: Source>(values: &mut [i64], deviation: &Deviation, source: &mut S) {
    let limit = i128::from(LIMIT);
    for value in values {
        let noisy = draw(deviation, source).saturating_add(i128::from(*value));
        *value = i64::try_from(noisy.clamp(limit.wrapping_neg(), limit)).unwrap_or(LIMIT);
    }
}

/// True with probability `exp(-(m/sigma - 1)^2 / 2)` for a magnitude `m`.
///
/// # Guarantee
/// Exact. With `sigma = n/d` and `e = |m d - n|` the exponent is `32 (e/n)^2` times `1/64`. Its whole part comes from an
/// estimate `u <= 2^28 e/n < u + 2`: where `u^2` and `(u + 2)^2` have the same whole part after division by 2^51, it is
/// that of `2^56 (e/n)^2` too. Where they have not, exact integers tell it; where `e/n` is large, see [`slowly`].
#[inline(always)]
#[expect(clippy::arithmetic_side_effects, reason = "u < 2^31 and the difference is taken from the larger")]
fn accepts<S: Source>(magnitude: u64, deviation: &Deviation, source: &mut S) -> bool {
    let n = deviation.scale.numerator();
    let wide = u128::from(magnitude) * u128::from(deviation.scale.denominator());
    if let Ok(scaled) = u64::try_from(wide) {
        let distance = scaled.abs_diff(n);
        // Below 8 sigma the shifted distance has less than 55 bits: the reciprocal takes less than 2^-9 from the product,
        // and rounding down less than 1.
        if distance < 8 * n {
            let estimate = high_product(distance << deviation.shift, deviation.reciprocal);
            let mut whole = (estimate * estimate) >> WHOLE;
            if whole != ((estimate + 2) * (estimate + 2)) >> WHOLE {
                whole = exactly(distance, n);
            }
            return keeps(whole, source, |source| survives(distance, n, source));
        }
    }
    slowly(u128::from(magnitude), deviation, source)
}

/// The upper 64 bits of a product.
#[inline(always)]
#[expect(clippy::as_conversions, reason = "the shifted product has 64 bits")]
fn high_product(a: u64, b: u64) -> u64 {
    (u128::from(a).wrapping_mul(u128::from(b)) >> 64) as u64
}

/// The whole part of `32 (e/n)^2`, for `e < 8 n`; often asked for where sigma is small, and then all numbers are short.
#[inline(never)]
#[expect(clippy::arithmetic_side_effects, reason = "e < 2^55 and 0 < n <= 2^52; in the short case 2^29 and 2^26")]
fn exactly(distance: u64, n: u64) -> u64 {
    if n < 1 << 26 {
        return 32 * distance * distance / (n * n);
    }
    let (distance, n) = (u128::from(distance), u128::from(n));
    u64::try_from(32 * distance * distance / (n * n)).unwrap_or(u64::MAX)
}

/// True with probability `exp(-f/64)`, where `f` is the fraction of `32 (e/n)^2`, given that the first coin's factor 1/64
/// has come up. Needs `e < 8 n`.
#[cold]
#[expect(clippy::arithmetic_side_effects, reason = "e < 2^55 and 0 < n <= 2^52")]
fn survives<S: Source>(distance: u64, n: u64, source: &mut S) -> bool {
    let (distance, square) = (u128::from(distance), u128::from(n) * u128::from(n));
    alternating(32 * distance * distance % square, square, source)
}

/// The same as [`accepts`] for any magnitude, in exact integers.
///
/// # Guarantee
/// With `e = i n + r` and `0 <= r < n` the exponent `(e/n)^2 / 2` is `i^2/2 + i r/n + (r/n)^2/2`, so that the draw is kept
/// if `i^2` coins of `exp(-1/2)`, `i` of `exp(-r/n)` and one of `exp(-(r/n)^2 / 2)` all say so.
#[cold]
#[expect(clippy::arithmetic_side_effects, reason = "r < n <= 2^52, and a divisor of at least 1")]
fn slowly<S: Source>(magnitude: u128, deviation: &Deviation, source: &mut S) -> bool {
    let n = u128::from(deviation.scale.numerator());
    let distance = magnitude.saturating_mul(u128::from(deviation.scale.denominator())).abs_diff(n);
    let (whole, rest) = (distance / n, distance % n);
    // A coin of exp(-1/2) fails soon, so that the number of rounds does not matter.
    (0..whole).all(|_| (0..whole).all(|_| keeps(32, source, |_| true)))
        && (0..whole).all(|_| exponential(64 * rest, n, source))
        && exponential(32 * rest * rest, n * n, source)
}

/// True with probability `exp(-(a/b)/64)`, for `a < 64 b`.
#[expect(clippy::arithmetic_side_effects, reason = "b > 0")]
fn exponential<S: Source>(a: u128, b: u128, source: &mut S) -> bool {
    let whole = u64::try_from(a / b).unwrap_or(u64::MAX);
    keeps(whole, source, |source| alternating(a % b, b, source))
}

/// True with probability `exp(-(a/b)/64)` for `a < b`, given that the first coin's factor 1/64 has come up; as
/// `geometric::survives`, for wide integers.
fn alternating<S: Source>(a: u128, b: u128, source: &mut S) -> bool {
    let mut coin = 1_u64;
    while below(b, source) < a && (coin == 1 || (source.below(coin) == 0 && source.below(64) == 0)) {
        coin = coin.saturating_add(1);
    }
    coin % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratio::Ratio;
    use crate::rng::Key;
    use crate::rng::scripted::{Paths, Script, Weight};
    use num_bigint::BigInt;
    use num_traits::{One, Zero};

    fn deviation(numerator: u64, denominator: u64) -> Deviation {
        Deviation::new(Scale::new(1, &Ratio::new("epsilon", denominator.into(), numerator.into()).unwrap()).unwrap())
    }

    /// `exp(-a/b)` to 2^-300, from its series after division by a power of two that is undone by squaring.
    fn exp(exponent: &Weight) -> Weight {
        let halvings = 24_usize;
        let small = exponent / (BigInt::one() << halvings);
        let (mut sum, mut term) = (Weight::one(), Weight::one());
        for j in 1..40 {
            term = shortened(&(-(term * &small) / BigInt::from(j)));
            sum += &term;
        }
        for _ in 0..halvings {
            sum = shortened(&(&sum * &sum));
        }
        sum
    }

    fn shortened(value: &Weight) -> Weight {
        let unit = BigInt::one() << 400;
        let scaled: Weight = value * &unit;
        Weight::new(scaled.to_integer(), unit)
    }

    /// Answers the only questions of an acceptance by their probabilities: whether the unit geometric reaches what is
    /// asked (the largest lane always does, the smallest only reaches 0), and the coin of the rest.
    struct Steered {
        lanes: Vec<u32>,
        asked: usize,
    }

    impl Source for Steered {
        fn lane(&mut self) -> u32 {
            self.asked += 1;
            self.lanes.pop().expect("a lane for every question")
        }

        fn word(&mut self) -> u64 {
            unreachable!("no tie is steered to")
        }

        fn below(&mut self, bound: u64) -> u64 {
            bound - 1
        }
    }

    /// The smallest choice that is kept, which must be the threshold of the whole part of the exact exponent.
    fn smallest_kept(magnitude: u64, deviation: &Deviation) -> u32 {
        let (mut low, mut high) = (0_u32, 1 << 25);
        while low < high {
            let middle = u32::midpoint(low, high);
            // The coin's bits are not all zero. Ties are avoided by looking at odd places only: see below.
            let kept = accepts(magnitude, deviation, &mut Tied { choice: middle });
            if kept { high = middle } else { low = middle + 1 }
        }
        low
    }

    /// One choice, whose ties are all reached.
    struct Tied {
        choice: u32,
    }

    impl Source for Tied {
        fn lane(&mut self) -> u32 {
            self.choice << 7 | 0b10
        }

        fn word(&mut self) -> u64 {
            u64::MAX
        }
    }

    #[test]
    fn the_whole_part_of_the_exponent_is_that_of_exact_fractions() {
        let mut source = Key::from_entropy().unwrap().stream(0);
        for (numerator, denominator) in [
            (1, 1),
            (3, 2),
            (1, 3),
            (20, 7),
            (1000, 1),
            ((1 << 30) + 7, 3),
            ((1 << 52) - 1, 1),
            ((1 << 52) - 1, 1 << 50),
        ] {
            let deviation = deviation(numerator, denominator);
            let most = 4 * numerator / denominator + 2;
            for _ in 0..40 {
                let magnitude = source.below(most);
                let ratio = Weight::new(magnitude.into(), 1.into()) * BigInt::from(denominator)
                    / BigInt::from(numerator)
                    - Weight::one();
                let whole = (&ratio * &ratio * BigInt::from(32)).to_integer();
                if whole > BigInt::from(500) {
                    continue;
                }
                let exponent = Weight::new(whole.clone(), 64.into());
                let threshold: Weight = (Weight::one() - exp(&exponent)) * (BigInt::one() << 25);
                let found = smallest_kept(magnitude, &deviation);
                assert_eq!(BigInt::from(found), threshold.to_integer(), "{magnitude} at {numerator}/{denominator}");
            }
        }
    }

    /// Plays every path of [`alternating`] whose probability exceeds 2^-48. What matters of a number is whether it is below
    /// what it is compared with: `below` for the square of the numerator, 1 for all others.
    struct Coins<'a> {
        paths: &'a mut Paths,
        cut: bool,
        square: u64,
        below: u64,
    }

    impl Source for Coins<'_> {
        fn word(&mut self) -> u64 {
            unreachable!("coins of small numbers need no word")
        }

        fn lane(&mut self) -> u32 {
            unreachable!("coins need no lane")
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.cut |= self.paths.weight < Weight::new(1.into(), BigInt::one() << 48);
            let odds = if bound == self.square { self.below } else { 1 };
            let heads = !self.cut && self.paths.flip(&Weight::new(odds.into(), bound.into()));
            if heads { 0 } else { bound - 1 }
        }
    }

    /// The whole decision tree of an acceptance: its lane reaches the whole part with the probability that `geometric`
    /// proves, and the rest survives with the probability that is enumerated here; together they are the exponential.
    #[test]
    fn an_acceptance_has_the_exact_probability() {
        let part = |numerator: u64, denominator: u64| Weight::new(numerator.into(), denominator.into());
        for (numerator, denominator) in [(3_u64, 1_u64), (3, 2), (4, 3), (5, 2), (7, 3)] {
            for magnitude in 0..6 * numerator / denominator + 2 {
                let distance = (magnitude * denominator).abs_diff(numerator);
                if distance >= 8 * numerator {
                    continue;
                }
                let square = numerator * numerator;
                let (mut found, mut cut) = (Weight::zero(), Weight::zero());
                Paths::all(|paths| {
                    let mut coins = Coins { paths, cut: false, square, below: 32 * distance * distance % square };
                    let kept = survives(distance, numerator, &mut coins);
                    if coins.cut {
                        cut += &paths.weight;
                    } else if kept {
                        found += &paths.weight;
                    }
                });
                let exponent = part(distance * distance * 32, numerator * numerator);
                let whole = exp(&(exponent.trunc() / BigInt::from(64)));
                // The coin of six bits keeps 63 of 64; the last is settled by what survives.
                let survival = |found: &Weight| (found + BigInt::from(63)) / BigInt::from(64) * &whole;
                let expected = exp(&(exponent / BigInt::from(64)));
                let tiny = part(1, 1 << 60);
                assert!(cut < part(1, 1 << 40));
                assert!(survival(&found) <= expected.clone() + &tiny, "{magnitude} at {numerator}/{denominator}");
                assert!(expected <= survival(&(found + cut)) + tiny, "{magnitude} at {numerator}/{denominator}");
            }
        }
    }

    /// The slow way multiplies three kinds of coins; their exponents add up to that of the fast way.
    #[test]
    fn the_slow_way_has_the_same_exponent() {
        for (numerator, denominator) in [(1_u64, 1_u64), (3, 2), (7, 3), (1000, 1), ((1 << 52) - 1, 3)] {
            for sigmas in [0_u64, 1, 2, 5, 9, 30] {
                let magnitude = sigmas * numerator / denominator + sigmas;
                let distance = u128::from(magnitude * denominator).abs_diff(u128::from(numerator));
                let (n, wide) = (BigInt::from(numerator), BigInt::from(distance));
                let (whole, rest) = (&wide / &n, &wide % &n);
                let coins = Weight::new(&whole * &whole, 2.into())
                    + Weight::new(&whole * &rest, n.clone())
                    + Weight::new(&rest * &rest, BigInt::from(2) * &n * &n);
                assert_eq!(coins, Weight::new(&wide * &wide, BigInt::from(2) * &n * &n));
                // With lanes that reach everything and coins that keep, all of them are tossed, and the draw is kept.
                let count = usize::try_from(&whole * &whole + &whole + 1_u8).unwrap();
                let mut source = Steered { lanes: vec![u32::MAX; count], asked: 0 };
                assert!(slowly(magnitude.into(), &deviation(numerator, denominator), &mut source));
                assert_eq!(source.asked, count);
                // The first one that does not reach drops it, unless its exponent is 0.
                let mut source = Steered { lanes: vec![0b10; count], asked: 0 };
                assert_eq!(
                    slowly(magnitude.into(), &deviation(numerator, denominator), &mut source),
                    distance * 8 < n.clone().try_into().unwrap_or(0)
                );
            }
        }
    }

    #[test]
    fn exponents_beyond_the_table_take_a_coin_for_every_eighth() {
        // exp(-(1100 + f)/64) = exp(-8) exp(-8) exp(-(76 + f)/64).
        for count in 0..3 {
            let mut lanes = vec![u32::MAX; count];
            lanes.insert(0, 0b10);
            assert!(!keeps(1100, &mut Steered { lanes, asked: 0 }, |_| true));
        }
        let mut source = Steered { lanes: vec![u32::MAX; 3], asked: 0 };
        assert!(keeps(1100, &mut source, |_| unreachable!("the coin's bits are not all zero")));
        assert_eq!(source.asked, 3);
        assert!(!keeps(0, &mut Steered { lanes: vec![0], asked: 0 }, |_| false));
    }

    #[test]
    fn minus_zero_and_what_is_not_kept_are_drawn_again() {
        let unit = deviation(1 << 20, 1);
        // Minus zero, kept; plus zero, not kept; plus zero, kept with its exponent 32/64.
        let lanes = [0b11, u32::MAX, 0b10, 0b10, 0b10, u32::MAX];
        let mut script = Script::new(&lanes, &[0, 0, 0]);
        assert_eq!(draw(&unit, &mut script), 0);
        assert!(script.is_spent());
    }

    #[test]
    fn values_at_the_limit_stay_within_it() {
        let wide = deviation(1 << 52, 1);
        let mut values = [LIMIT, -LIMIT, LIMIT, -LIMIT];
        for _ in 0..100 {
            perturb(&mut values, &wide, &mut Key::from_entropy().unwrap().stream(0));
            assert!(values.iter().all(|value| value.abs() <= LIMIT));
        }
    }
}
