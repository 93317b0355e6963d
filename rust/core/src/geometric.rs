//! Geometric variables, exactly: `P(m) ~ exp(-m/b)` on the integers `m >= 0`.
//!
//! A *unit* geometric `v` of ratio `exp(-1/64)` is the same for every scale and comes from a table. Refined by a uniform
//! `u` below the numerator `n` of the scale `b = n/d`, kept with probability `exp(-u/(64 n))`, it gives `v n + u`, which
//! is geometric of ratio `exp(-1/(64 n))`; the quotient of that by `64 d` is geometric of ratio `exp(-d/n)`.

#![expect(
    clippy::inline_always,
    reason = "a call per draw costs a sixth of the time, and the inliner shies from many callers"
)]

use crate::digits;
use crate::rng::Source;
use crate::scale::Scale;

/// Bits of a lane that choose the unit geometric.
const CHOICE_BITS: u32 = 25;
/// Bits of a lane for the first factor 1/64 of the coin that keeps or drops a draw. The last bit is a sign.
const COIN_MASK: u32 = 0b111_1110;
/// The table covers the unit geometrics below this; the law has no memory, so what lies beyond starts again from here.
const SPAN: u32 = 512;
const SPAN_LENGTH: usize = 512;
/// Lanes that share their first 12 bits start their search at the same place.
const GUIDE_BITS: u32 = 12;
const GUIDE_LENGTH: usize = 1 << 12;

/// `floor(2^25 * (1 - exp(-v/64)))` for v from 0 to 512.
static THRESHOLDS: [u32; SPAN_LENGTH + 1] = thresholds();
/// For each prefix of 12 bits, the largest v whose threshold lies below all its lanes.
static GUIDE: [u16; GUIDE_LENGTH] = guide();

/// A magnitude of ratio `exp(-1/b)` and an independent uniform sign bit.
///
/// # Guarantee
/// `P(magnitude = m) = (1 - q) q^m` with `q = exp(-1/b)`, for every `m`, given ideal bits; no probability is rounded on
/// any path. Proof: the module's first paragraph, `unit` and `survives`.
#[inline(always)]
pub fn magnitude<S: Source>(scale: &Scale, source: &mut S) -> (u128, bool) {
    let (v, u, sign) = parts(scale.numerator(), source);
    (near(v, u, scale).map_or_else(|| far(v, u, scale), u128::from), sign)
}

/// The same, cut to `limit`, which is faster; `limit` must be at least 2^57.
#[inline(always)]
pub(crate) fn cut_magnitude<S: Source>(scale: &Scale, limit: u64, source: &mut S) -> (u64, bool) {
    let (v, u, sign) = parts(scale.numerator(), source);
    let magnitude = near(v, u, scale)
        .unwrap_or_else(|| u64::try_from(far(v, u, scale)).map_or(limit, |magnitude| magnitude.min(limit)));
    (magnitude, sign)
}

/// A unit geometric, a refinement below `n` that has survived, and a sign.
#[inline(always)]
fn parts<S: Source>(n: u64, source: &mut S) -> (u64, u64, bool) {
    loop {
        let (lane, u) = source.lane_and_below(n);
        let v = unit(lane >> (32 - CHOICE_BITS), source);
        if lane & COIN_MASK != 0 || survives(u, n, source) {
            return (v, u, lane & 1 == 1);
        }
    }
}

/// The quotient of a draw that 64 bits hold.
#[inline(always)]
#[expect(clippy::arithmetic_side_effects, reason = "v < 2^11 and n <= 2^52, so v n + u < 2^63")]
fn near(v: u64, u: u64, scale: &Scale) -> Option<u64> {
    (v < 1 << 11).then(|| scale.quotient(v * scale.numerator() + u))
}

/// The quotient of a draw so far out that 64 bits may not hold it.
#[cold]
#[expect(clippy::arithmetic_side_effects, reason = "a product of 64 and 52 bits, and a divisor of at least 64")]
fn far(v: u64, u: u64, scale: &Scale) -> u128 {
    (u128::from(v) * u128::from(scale.numerator()) + u128::from(u)) / scale.divisor()
}

/// A unit geometric, by inversion: the `v` with `F(v) <= U < F(v+1)`, where `F(v) = 1 - exp(-v/64)` and the uniform real
/// `U` starts with the 25 bits of `choice`.
///
/// # Guarantee
/// `P(v) = F(v+1) - F(v)` exactly. Where the 25 bits leave a comparison open, further bits of `U` are drawn and compared
/// with further digits of the threshold. Neighbouring thresholds differ by more than 2^-25 below 512, so at most one
/// comparison is open. `U >= F(512)` adds 512 to a fresh draw, since `P(v - 512 | v >= 512)` is the law of `v`.
#[inline(always)]
#[expect(clippy::arithmetic_side_effects, reason = "each round adds 512, and 2^54 rounds cannot happen")]
fn unit<S: Source>(mut choice: u32, source: &mut S) -> u64 {
    let mut beyond = 0;
    loop {
        let v = search(choice, source);
        if v < SPAN {
            return beyond + u64::from(v);
        }
        beyond += u64::from(SPAN);
        choice = source.lane() >> (32 - CHOICE_BITS);
    }
}

/// The largest `v <= 512` with `F(v) <= U`.
#[inline(always)]
#[expect(clippy::arithmetic_side_effects, reason = "v stays at or below 512")]
#[expect(clippy::indexing_slicing, reason = "choice has 25 bits and v + 1 is at most 512")]
#[expect(clippy::as_conversions, reason = "widening to usize")]
fn search<S: Source>(choice: u32, source: &mut S) -> u32 {
    let mut v = usize::from(GUIDE[(choice >> (CHOICE_BITS - GUIDE_BITS)) as usize]);
    // Most prefixes hold at most one threshold: the first step is branch-free, the loop is for the few others.
    v += usize::from(choice > THRESHOLDS[v + 1]);
    while v < SPAN_LENGTH && choice > THRESHOLDS[v + 1] {
        v += 1;
    }
    if v < SPAN_LENGTH && choice == THRESHOLDS[v + 1] {
        v += usize::from(reaches(v + 1, source));
    }
    u32::try_from(v).unwrap_or(SPAN)
}

/// Whether `U >= F(v)`, given that the first 25 bits of both agree.
#[cold]
fn reaches<S: Source>(v: usize, source: &mut S) -> bool {
    let v = u32::try_from(v).unwrap_or(SPAN);
    let mut index = 0_usize;
    loop {
        let (drawn, digits) = (source.word(), digits::word(v, CHOICE_BITS, index));
        if drawn != digits {
            return drawn > digits;
        }
        index = index.saturating_add(1);
    }
}

/// True with probability `exp(-u/(64 n))`, given that the first coin's factor 1/64 has come up.
///
/// # Guarantee
/// Von Neumann's alternating coins: with `x = u/(64 n)`, coin `j` shows heads with probability `x/j`, so the first `j`
/// all do with probability `x^j/j!`, and the number of heads before the first tail is even with probability
/// `sum (-x)^j/j! = exp(-x)`. Each coin is a conjunction of coins with integer odds.
#[cold]
fn survives<S: Source>(u: u64, n: u64, source: &mut S) -> bool {
    let mut coin = 1_u64;
    while source.below(n) < u && (coin == 1 || (source.below(coin) == 0 && source.below(64) == 0)) {
        coin = coin.saturating_add(1);
    }
    coin % 2 == 1
}

/// True with probability `exp(-(whole + f)/64)`, where `survives` is true with probability `exp(-f/64)` given that its
/// first coin's factor 1/64 has come up.
///
/// # Guarantee
/// A unit geometric reaches `whole` with probability `exp(-whole/64)`: `U >= F(whole)` with the uniform `U` of `unit`,
/// settled like there by further digits. What exceeds the table is a product of probabilities, so that it takes coins of
/// its own.
#[inline(always)]
pub(crate) fn keeps<S: Source>(mut whole: u64, source: &mut S, survives: impl FnOnce(&mut S) -> bool) -> bool {
    loop {
        let lane = source.lane();
        if !reaches_unit(whole.min(u64::from(SPAN)), lane >> (32 - CHOICE_BITS), source) {
            return false;
        }
        if whole <= u64::from(SPAN) {
            return lane & COIN_MASK != 0 || survives(source);
        }
        whole = whole.saturating_sub(u64::from(SPAN));
    }
}

/// Whether `U >= F(v)`, where `U` starts with the 25 bits of `choice`; needs `v <= 512`.
#[inline(always)]
#[expect(clippy::indexing_slicing, reason = "v is at most 512")]
fn reaches_unit<S: Source>(v: u64, choice: u32, source: &mut S) -> bool {
    let v = usize::try_from(v).unwrap_or(SPAN_LENGTH);
    choice > THRESHOLDS[v] || (choice == THRESHOLDS[v] && (v == 0 || reaches(v, source)))
}

#[expect(clippy::arithmetic_side_effects, reason = "evaluated by the compiler, which refuses overflow")]
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler, which refuses a wrong index")]
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "evaluated by the compiler, from 25 bits")]
const fn thresholds() -> [u32; SPAN_LENGTH + 1] {
    // exp(-1/64) in units of 2^-62, short by less than one, from its alternating series in units of 2^-120.
    let (mut sum, mut term, mut j) = (0_u128, 1_u128 << 120, 1);
    while term > 0 {
        sum = if j % 2 == 1 { sum + term } else { sum - term };
        term /= 64 * j;
        j += 1;
    }
    let ratio = sum >> 58;
    let mut table = [0; SPAN_LENGTH + 1];
    let mut power = 1_u128 << 62;
    let mut v = 1;
    while v <= SPAN_LENGTH {
        // Each product loses less than two units, so the true power lies within 2 v + 1 units above.
        power = (power * ratio) >> 62;
        let low = ((1 << 62) - power - 2 * (v as u128) - 2) >> (62 - CHOICE_BITS);
        let high = ((1 << 62) - power) >> (62 - CHOICE_BITS);
        assert!(low == high, "a threshold needs more digits than it was computed with");
        table[v] = low as u32;
        assert!(table[v] > table[v - 1], "two thresholds share their first 25 bits");
        v += 1;
    }
    table
}

#[expect(clippy::arithmetic_side_effects, reason = "evaluated by the compiler, which refuses overflow")]
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler, which refuses a wrong index")]
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "evaluated by the compiler, below 2^25")]
const fn guide() -> [u16; GUIDE_LENGTH] {
    let thresholds = thresholds();
    let mut table = [0; GUIDE_LENGTH];
    let (mut prefix, mut v) = (0, 0);
    while prefix < GUIDE_LENGTH {
        let first = (prefix as u32) << (CHOICE_BITS - GUIDE_BITS);
        while v + 1 < SPAN_LENGTH && thresholds[v + 1] < first {
            v += 1;
        }
        table[prefix] = v as u16;
        prefix += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digits::tests::exp_minus;
    use crate::ratio::Ratio;
    use crate::rng::scripted::{Paths, Script, Weight};
    use num_bigint::BigInt;
    use num_rational::BigRational;
    use num_traits::{One, Zero};
    use std::collections::BTreeMap;

    fn scale(numerator: u128, denominator: u128) -> Scale {
        Scale::new(1, &Ratio::new("epsilon", denominator, numerator).unwrap()).unwrap()
    }

    /// A lane whose choice is `choice`, with a coin that keeps the draw and a positive sign.
    fn lane(choice: u32) -> u32 {
        choice << 7 | 0b10
    }

    /// `exp(-numerator/denominator)` to 2^-300.
    fn exp(numerator: u32, denominator: u32) -> BigRational {
        BigRational::new(exp_minus(numerator, denominator, 300).into(), BigInt::one() << 300)
    }

    fn close(a: &BigRational, b: &BigRational) -> bool {
        let gap = a - b;
        gap.clone() * gap < BigRational::new(1.into(), BigInt::one() << 500)
    }

    #[test]
    fn thresholds_are_those_of_an_independent_series() {
        for (v, &threshold) in (0..).zip(&THRESHOLDS) {
            // floor(2^25 (1 - e)) = 2^25 - floor(2^25 e) - 1 for irrational e, and 0 for v = 0.
            let expected = (BigInt::one() << 25) - BigInt::from(exp_minus(v, 64, 25)) - i32::from(v > 0);
            assert_eq!(BigInt::from(threshold), expected, "v = {v}");
        }
    }

    /// The same word for ever.
    struct Constant(u64);

    impl Source for Constant {
        fn word(&mut self) -> u64 {
            self.0
        }

        fn lane(&mut self) -> u32 {
            unreachable!("a search needs no lane")
        }
    }

    #[test]
    fn every_choice_finds_its_unit_geometric() {
        // All 2^25 choices, with the open ones settled both ways: the decision tree of the table, whole.
        let mut above = 0;
        for choice in 0..1_u32 << CHOICE_BITS {
            while above < SPAN_LENGTH && THRESHOLDS[above + 1] < choice {
                above += 1;
            }
            let open = above < SPAN_LENGTH && THRESHOLDS[above + 1] == choice;
            assert_eq!(search(choice, &mut Constant(0)) as usize, above, "choice {choice}");
            assert_eq!(search(choice, &mut Constant(u64::MAX)) as usize, above + usize::from(open), "choice {choice}");
        }
        assert_eq!(above, SPAN_LENGTH);
    }

    #[test]
    fn a_tie_reads_on_until_the_digits_differ() {
        for v in [1_u32, 100, 512] {
            let digit = |index| digits::word(v, CHOICE_BITS, index);
            let ends = [(digit(2) - 1, false), (digit(2) + 1, true)];
            for (last, reached) in ends {
                let mut script = Script::new(&[], &[digit(0), digit(1), last]);
                let found = search(THRESHOLDS[v as usize], &mut script);
                assert_eq!(found, v - 1 + u32::from(reached), "v = {v}");
                assert!(script.is_spent());
            }
        }
    }

    #[test]
    fn the_tail_starts_again_where_the_table_ends() {
        let top = (1 << CHOICE_BITS) - 1;
        // Three choices beyond the table, then v = 0; the numerator 2^20 draws its refinement as a word.
        let mut script = Script::new(&[lane(top), lane(top), lane(top), lane(0)], &[0]);
        assert_eq!(magnitude(&scale(1 << 20, 1), &mut script), ((3 * 512) << 14, false));
        assert!(script.is_spent());
    }

    #[test]
    fn the_far_tail_is_exact() {
        let top = (1 << CHOICE_BITS) - 1;
        let far = |rounds: usize| {
            let lanes: Vec<u32> = std::iter::repeat_n(lane(top), rounds).chain([lane(0)]).collect();
            magnitude(&scale(1 << 52, 1), &mut Script::new(&lanes, &[u64::MAX]))
        };
        for rounds in [3, 4, 127, 128, 1000, 100_000] {
            let expected = (rounds as u128 * 512 * (1 << 52) + (1 << 52) - 1) / 64;
            assert_eq!(far(rounds), (expected, false), "{rounds} rounds");
        }
    }

    /// Plays every path of [`survives`] whose probability exceeds 2^-48.
    struct Coins<'a> {
        paths: &'a mut Paths,
        cut: bool,
    }

    impl Source for Coins<'_> {
        fn word(&mut self) -> u64 {
            unreachable!("coins need no word")
        }

        fn lane(&mut self) -> u32 {
            unreachable!("coins need no lane")
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.cut |= self.paths.weight < Weight::new(1.into(), BigInt::one() << 48);
            if self.cut { bound - 1 } else { self.paths.uniform(bound) }
        }
    }

    /// The probability that [`survives`] must have: of exp(-u/(64 n)), the part after a first factor 1/64.
    fn survival(u: u64, n: u64) -> Weight {
        let exp = exp(u32::try_from(u).unwrap(), u32::try_from(64 * n).unwrap());
        (exp * BigInt::from(64)) - BigInt::from(63)
    }

    #[test]
    fn the_coins_survive_with_the_exact_probability() {
        for (u, n) in [(0, 1), (1, 2), (1, 3), (2, 3), (4, 5)] {
            let (mut found, mut cut) = (Weight::zero(), Weight::zero());
            Paths::all(|paths| {
                let mut coins = Coins { paths, cut: false };
                let kept = survives(u, n, &mut coins);
                if coins.cut {
                    cut += &paths.weight;
                } else if kept {
                    found += &paths.weight;
                }
            });
            let expected = survival(u, n);
            let tiny = Weight::new(1.into(), BigInt::one() << 250);
            assert!(cut < Weight::new(1.into(), BigInt::one() << 32));
            assert!(found <= expected.clone() + &tiny && expected <= found + cut + tiny, "u = {u}, n = {n}");
        }
    }

    /// Plays every path of one attempt of [`magnitude`]. The coins of [`survives`] are steered to either end, with the
    /// probability that the test above confirms.
    struct Attempt<'a> {
        paths: &'a mut Paths,
        choices: &'a [(u32, Weight, Weight)],
        tie: Weight,
        heads: bool,
        attempts: usize,
        beyond: bool,
    }

    impl Source for Attempt<'_> {
        fn lane(&mut self) -> u32 {
            self.beyond = true;
            lane(0)
        }

        fn word(&mut self) -> u64 {
            if self.paths.flip(&self.tie) { u64::MAX } else { 0 }
        }

        fn below(&mut self, bound: u64) -> u64 {
            if std::mem::take(&mut self.heads) { 0 } else { bound - 1 }
        }

        fn lane_and_below(&mut self, bound: u64) -> (u32, u64) {
            self.attempts += 1;
            if self.attempts > 1 {
                return (lane(0), 0);
            }
            let u = self.paths.uniform(bound);
            let (choice, weight, tie) = self.choices[self.paths.decide(self.choices.len())].clone();
            self.paths.weight *= weight;
            self.tie = tie;
            if self.paths.flip(&Weight::new(63.into(), 64.into())) {
                return (lane(choice), u);
            }
            self.heads = !self.paths.flip(&survival(u, bound));
            (lane(choice) & !COIN_MASK, u)
        }
    }

    /// The law of one attempt, against exact fractions. Paths beyond the table are left out; they have probability
    /// exp(-8) and concern magnitudes from 8b - 1 on only.
    #[test]
    fn the_whole_decision_tree_has_the_geometric_law() {
        let choices = choices();
        for (numerator, denominator) in [(1, 1), (3, 2), (2, 1), (2, 3), (5, 1)] {
            let scale = scale(numerator.into(), denominator.into());
            let mut law: BTreeMap<u128, Weight> = BTreeMap::new();
            let (mut beyond, mut again) = (Weight::zero(), Weight::zero());
            Paths::all(|paths| {
                let mut source =
                    Attempt { paths, choices: &choices, tie: Weight::zero(), heads: false, attempts: 0, beyond: false };
                let (drawn, _) = magnitude(&scale, &mut source);
                let (attempts, is_beyond) = (source.attempts, source.beyond);
                if attempts > 1 {
                    again += &paths.weight;
                } else if is_beyond {
                    beyond += &paths.weight;
                } else {
                    *law.entry(drawn).or_default() += &paths.weight;
                }
            });
            let kept = Weight::one() - again;
            assert!(close(&(beyond / &kept), &exp(8, 1)));
            let q = exp(denominator, numerator);
            let mut expected = Weight::one() - &q;
            for m in 0..u128::from(8 * numerator / denominator - 1) {
                assert!(close(&(&law[&m] / &kept), &expected), "P({m}) at scale {numerator}/{denominator}");
                expected *= &q;
            }
        }
    }

    /// One choice for every run of choices that lead to the same result, with the probability of the run.
    fn choices() -> Vec<(u32, Weight, Weight)> {
        let unit = |count: u32| Weight::new(count.into(), BigInt::one() << CHOICE_BITS);
        let mut choices = Vec::new();
        for v in 0..SPAN_LENGTH {
            // Choice 0 is F(0) = 0 itself and open for nobody.
            let first = if v == 0 { 0 } else { THRESHOLDS[v] + 1 };
            choices.push((first, unit(THRESHOLDS[v + 1] - first), Weight::zero()));
            // The open choice reaches F(v+1) with the probability that the fraction of the threshold leaves above it.
            let v = u32::try_from(v).unwrap();
            let scaled = (Weight::one() - exp(v + 1, 64)) * (BigInt::one() << CHOICE_BITS);
            choices.push((THRESHOLDS[v as usize + 1], unit(1), Weight::one() - scaled.fract()));
        }
        let last = THRESHOLDS[SPAN_LENGTH] + 1;
        choices.push((last, unit((1 << CHOICE_BITS) - last), Weight::zero()));
        choices
    }

    #[test]
    fn the_independent_exponential_is_right() {
        // e^-1 to 30 digits, from a printed table.
        let known: BigRational = "367879441171442321595523770161/1000000000000000000000000000000".parse().unwrap();
        let gap = exp(1, 1) - known;
        assert!(gap >= Weight::zero() && gap < Weight::new(1.into(), BigInt::from(10).pow(30)));
        assert!(close(&(exp(1, 64) * exp(63, 64)), &exp(1, 1)));
    }
}
