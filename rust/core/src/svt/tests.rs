use super::*;
use crate::ratio::Ratio;
use crate::rng::scripted::Script;
use crate::rng::{Key, Keystream};
use num_bigint::BigInt;
use num_rational::BigRational;
use proptest::prelude::*;
use std::collections::HashMap;

fn scale(sensitivity: u64, numerator: u128, denominator: u128) -> Scale {
    Scale::new(sensitivity, &Ratio::new("epsilon", numerator, denominator).unwrap()).unwrap()
}

/// Noise that differs from 0 with probability below exp(-999), so that the answers are those without noise.
fn silent(limit: usize) -> SparseVector {
    SparseVector::new(scale(1, 1000, 1), scale(1, 1000, 1), limit)
}

fn stream() -> Keystream {
    Key::from_entropy().unwrap().stream(0)
}

fn sampler(length: usize, count: usize, threshold: i64, unit: Unit) -> L1Sampler {
    L1Sampler::new(length, count, threshold, silent(count - 2), unit).unwrap()
}

/// A random bit source that fails the test when it is asked.
fn nothing() -> Script {
    Script::default()
}

proptest! {
    #[test]
    fn answers_are_those_of_a_plain_loop(
        scores in proptest::collection::vec(-4_000_000_i64..4_000_000, 0..20),
        threshold in -4_000_000_i64..4_000_000,
        limit in 0_usize..8,
        lanes in proptest::collection::vec(any::<u32>(), 400),
        words in proptest::collection::vec(any::<u64>(), 400),
    ) {
        let (rho_scale, nu_scale) = (scale(1 << 20, 1, 1), scale(1 << 21, 1, 1));
        let mut script = Script::new(&lanes, &words);
        let vector = SparseVector::new(rho_scale, nu_scale, limit);
        let answers = vector.above_threshold(&scores, threshold, &mut script);
        // The same bits, played to a loop that looks at all scores first and cuts the answers afterwards.
        let mut again = Script::new(&lanes, &words);
        let mut expected = Vec::new();
        if limit > 0 {
            let rho = laplace::draw(&rho_scale, &mut again);
            for &score in &scores {
                if expected.iter().filter(|&&positive| positive).count() < limit {
                    expected.push(i128::from(score - threshold) + laplace::draw(&nu_scale, &mut again) >= rho);
                }
            }
        }
        prop_assert_eq!(answers, expected);
        prop_assert_eq!((script.lanes, script.words), (again.lanes, again.words));
    }

    #[test]
    fn the_integer_test_is_the_test_of_fractions(
        numerator in 0_i128..1 << 60, length in 2_usize..=1 << 20, threshold in 0..=i64::MAX,
        rho in -(1_i64 << 40)..1 << 40, nu in -(1_i64 << 40)..1 << 40,
        sensitivity in 1_u64..1 << 22, resolution in 1_u64..=1 << 32, small: bool,
    ) {
        // Small numbers meet the bound from both sides and sometimes exactly.
        let cut = |value: i64| if small { value % 4 } else { value };
        let (threshold, rho, nu) = (cut(threshold), cut(rho), cut(nu));
        let (numerator, length) = if small { (numerator % 40, 2 + length % 3) } else { (numerator, length) };
        let integer = |value: i128| BigRational::from_integer(value.into());
        let (rho, nu) = (i128::from(rho), i128::from(nu));
        let (noise, score) = (integer(rho - nu), BigRational::new(numerator.into(), length.into()));
        let common = sampler(1 << 20, 2, threshold, Unit::Common);
        prop_assert_eq!(
            common.passes(numerator, length, rho, nu), score >= integer(threshold.into()) + &noise
        );
        let normalised = sampler(1 << 20, 2, threshold, Unit::Normalised { sensitivity, resolution });
        let width = integer(2 * i128::from(sensitivity)) * BigInt::from(length - 1);
        let expected = score / &width >= integer(threshold.into()) / width + noise / BigInt::from(resolution);
        prop_assert_eq!(normalised.passes(numerator, length, rho, nu), expected);
    }

    #[test]
    fn without_noise_the_choice_is_greedy(
        values in proptest::collection::vec(-20_i64..20, 4..90), count in 3_usize..12, threshold in 0_i64..60
    ) {
        let count = count.min(values.len() - 1);
        let expected = greedy(&values, count, threshold);
        for unit in [Unit::Common, Unit::Normalised { sensitivity: 3, resolution: 1024 }] {
            let chosen = sampler(values.len(), count, threshold, unit).sample(&values, &mut stream()).unwrap();
            prop_assert_eq!(&chosen, &expected);
        }
    }
}

/// The choice without noise, from the definition: candidates in order, as many as still fit before the forced ones.
fn greedy(values: &[i64], count: usize, threshold: i64) -> Vec<usize> {
    let end = values.len() - 1;
    let mut chosen = vec![0];
    for b in 1..end {
        let a = *chosen.last().unwrap();
        let rise = |i: usize| values[i] - values[a];
        let signed = |i: usize| i64::try_from(i).unwrap();
        let numerator: i64 = (a..b).map(|i| (signed(b - a) * rise(i) - signed(i - a) * rise(b)).abs()).sum();
        let forced = chosen.len() + (end - b) < count;
        let positive = b > a + 1 && numerator >= signed(b - a) * threshold;
        if chosen.len() + 1 < count && (forced || positive) {
            chosen.push(b);
        }
    }
    chosen.push(end);
    chosen
}

#[test]
fn every_choice_has_k_steps_with_both_ends() {
    let mut source = stream();
    for (length, count) in (2..=8).flat_map(|w| (2..=w).map(move |k| (w, k))) {
        for turn in 0..300 {
            let units = [Unit::Common, Unit::Normalised { sensitivity: 5, resolution: 10 }];
            let vector = SparseVector::new(scale(10, 1, 1), scale(10, 1, 2), count - 2);
            let sampler = L1Sampler::new(length, count, turn % 30, vector, units[usize::from(turn % 2 == 0)]).unwrap();
            let values: Vec<i64> = (0..length).map(|_| i64::try_from(source.below(40)).unwrap() - 20).collect();
            let steps = sampler.sample(&values, &mut source).unwrap();
            assert_eq!((steps.len(), steps[0], steps[count - 1]), (count, 0, length - 1));
            assert!(steps.is_sorted_by(|a, b| a < b), "{steps:?}");
        }
    }
}

#[test]
fn where_there_is_no_choice_nothing_is_drawn() {
    let values = [i64::MAX; 6];
    assert_eq!(sampler(6, 2, 0, Unit::Common).sample(&values, &mut nothing()), Ok(vec![0, 5]));
    assert_eq!(sampler(6, 6, 0, Unit::Common).sample(&values, &mut nothing()), Ok((0..6).collect()));
    assert_eq!(sampler(2, 2, 0, Unit::Common).sample(&values[..2], &mut nothing()), Ok(vec![0, 1]));
    assert_eq!(silent(0).above_threshold(&[1, 2], 0, &mut nothing()), Vec::<bool>::new());
}

#[test]
fn no_segment_is_longer_than_the_guarantee_says() {
    for (length, count) in (3..=11).flat_map(|w| (3..w).map(move |k| (w, k))) {
        let (mut longest, sampler) = (0, sampler(length, count, 0, Unit::Common));
        for answers in 0..1_u32 << length {
            let mut asked = 0;
            let walk = sampler.walk(|a, b| {
                assert!(b > a + 1, "a score that is always 0 is asked for");
                longest = longest.max(b - a);
                asked += 1;
                answers >> asked & 1 == 1
            });
            assert_eq!(walk.len(), count);
        }
        // Segments of one step are never asked about, so that w - k = 1 leaves no question at all.
        assert_eq!(longest, if length - count > 1 { length - count } else { 0 }, "w {length}, k {count}");
    }
}

#[test]
fn parameters_out_of_bounds_are_refused() {
    let normalised = |sensitivity, resolution| Unit::Normalised { sensitivity, resolution };
    let make = |length, count, threshold, unit| L1Sampler::new(length, count, threshold, silent(1), unit);
    assert!(make(1 << 20, 3, i64::MAX, normalised(1 << 22, 1 << 32)).is_ok());
    for (length, count, threshold, unit) in [
        ((1 << 20) + 1, 3, 0, Unit::Common),
        (1, 3, 0, Unit::Common),
        (2, 3, 0, Unit::Common),
        (8, 1, 0, Unit::Common),
        (8, 4, 0, Unit::Common),
        (8, 3, -1, Unit::Common),
        (1 << 20, 3, 0, normalised((1 << 22) + 1, 1)),
        (8, 3, 0, normalised(0, 1)),
        (8, 3, 0, normalised(1, 0)),
        (8, 3, 0, normalised(1, (1 << 32) + 1)),
    ] {
        assert!(
            matches!(make(length, count, threshold, unit), Err(Error::Parameter { .. })),
            "{length} {count} {unit:?}"
        );
    }
    let sampler = make(5, 3, 0, Unit::Common).unwrap();
    assert!(matches!(sampler.sample(&[0; 4], &mut nothing()), Err(Error::Parameter { .. })));
    assert!(matches!(sampler.sample(&[0, 0, (1 << 53) + 1, 0, 0], &mut nothing()), Err(Error::Parameter { .. })));
}

#[test]
fn extreme_noise_is_compared_exactly() {
    // The largest numerator and the largest parameters, with noise up to the largest that can be drawn.
    let length = 1_usize << 20;
    let largest = i128::try_from(length * (length - 1)).unwrap() << 54;
    for (unit, width, resolution) in [
        (Unit::Common, BigInt::from(1), 1),
        (
            Unit::Normalised { sensitivity: 1 << 22, resolution: 1 << 32 },
            BigInt::from(2 * (length - 1)) << 22,
            1_i64 << 32,
        ),
    ] {
        for (threshold, numerator, bits) in [0, i64::MAX]
            .into_iter()
            .flat_map(|t| [0, largest].into_iter().flat_map(move |n| (0..117).map(move |b| (t, n, b))))
        {
            for rho in [1_i128 << bits, -(1_i128 << bits)] {
                for nu in [-rho, rho - 1, 0] {
                    let bound = (BigInt::from(threshold) * resolution + BigInt::from(rho - nu) * &width) * length;
                    let found = sampler(length, 2, threshold, unit).passes(numerator, length, rho, nu);
                    assert_eq!(
                        found,
                        BigInt::from(numerator) * resolution >= bound,
                        "{unit:?}, {threshold}, {rho}, {nu}"
                    );
                }
            }
        }
    }
}

/// The largest log-ratio between two inputs that is certain from this many runs on each, over all choices of steps.
///
/// A count `c` shows that its expectation is at least `c - 5 sqrt(c)` and at most `c + 5 sqrt(c) + 25`. Each statement
/// is wrong with probability below exp(-12.5) = 4e-6 (Chernoff), so that a sampler whose loss is exactly epsilon is
/// accused with probability below 8e-6 per choice and direction.
fn certain_loss(sampler: &L1Sampler, inputs: [&[i64]; 2], runs: usize) -> f64 {
    let mut source = stream();
    let mut counts: HashMap<Vec<usize>, [f64; 2]> = HashMap::new();
    for (side, values) in inputs.iter().enumerate() {
        for _ in 0..runs {
            let steps = sampler.sample(values, &mut source).unwrap();
            counts.entry(steps).or_default()[side] += 1.0;
        }
    }
    let certain = |more: f64, fewer: f64| {
        let (least, most) = (more - 5.0 * more.sqrt(), fewer + 5.0 * fewer.sqrt() + 25.0);
        if least > 0.0 { (least / most).ln() } else { f64::NEG_INFINITY }
    };
    counts.values().map(|&[x, y]| certain(x, y).max(certain(y, x))).fold(f64::NEG_INFINITY, f64::max)
}

#[test]
fn the_choice_between_two_samples_stays_within_epsilon() {
    // w = 5 and k = 3 leave one question, about [0, 2]; its score moves from 0 to the full 2 A = D.
    let (low, high) = ([0; 5], [4, -4, 4, 0, 0]);
    let half = |sensitivity| scale(sensitivity, 1, 2);
    let vector = SparseVector::new(half(8), half(16), 1);
    for threshold in [0, 8, 40] {
        let sampler = L1Sampler::new(5, 3, threshold, vector, Unit::Common).unwrap();
        let loss = certain_loss(&sampler, [&low, &high], 1_000_000);
        assert!(loss <= 1.0, "n = 10^6, false alarm rate below 4e-5: loss {loss} for epsilon 1, threshold {threshold}");
    }
}

#[test]
fn losses_stay_within_epsilon_and_wrong_noise_is_caught() {
    // Four segments of two steps whose scores fall by their full sensitivity, then one that grows and whose scores rise
    // by half of theirs: neither a shift of the threshold alone nor one of the scores alone explains the difference.
    let (pairs, length, count, resolution) = (4, 15, 7, 16);
    let before: Vec<i64> = (0..length).map(|i| if i % 2 == 1 && i < 2 * pairs { 4 } else { -4 }).collect();
    let after: Vec<i64> = (0..length).map(|i| if i <= 2 * pairs { 0 } else { -8 }).collect();
    assert!(before.iter().zip(&after).all(|(x, y)| x.abs_diff(*y) <= 4));
    let loss = |rho: Scale, nu: Scale| {
        let vector = SparseVector::new(rho, nu, count - 2);
        let sampler =
            L1Sampler::new(length, count, 4, vector, Unit::Normalised { sensitivity: 4, resolution }).unwrap();
        certain_loss(&sampler, [&before, &after], 1_000_000)
    };
    // epsilon = 1 + 2, with c = 5 positive answers.
    let (rho, nu, silence) = (scale(resolution, 1, 1), scale(2 * 5 * resolution, 2, 1), scale(1, 1000, 1));
    let sound = loss(rho, nu);
    assert!(sound <= 3.0, "n = 10^6, false alarm rate below 8e-6 per choice: loss {sound} for epsilon 3");
    // Lyu, Su and Li 2017, Algorithm 4: the noise of the scores does not grow with the number of positive answers.
    let unscaled = loss(rho, scale(2 * resolution, 2, 1));
    assert!(unscaled > 3.2, "noise not scaled with c shows a loss of {unscaled} only");
    // Algorithm 5 there: no noise on the scores.
    let bare = loss(rho, silence);
    assert!(bare > 6.0, "scores without noise show a loss of {bare} only");
}

proptest! {
    /// In constant time the choice is that of a plain walk over scores by their definition, with a draw for every candidate.
    #[test]
    fn constant_time_chooses_what_a_plain_walk_chooses(
        values in proptest::collection::vec(prop_oneof![-40_i64..40, -(1_i64 << 53)..=1 << 53], 3..70),
        count in 3_usize..20,
        threshold in prop_oneof![0_i64..500, 0_i64..1 << 58],
        normalised in any::<bool>(),
    ) {
        let length = values.len();
        let count = count.min(length - 1).max(2);
        let unit = if normalised { Unit::Normalised { sensitivity: 7, resolution: 1024 } } else { Unit::Common };
        let scales = (scale(1 << 12, 1, 1), scale(1 << 13, 1, 1));
        let vector = SparseVector::new(scales.0, scales.1, count - 2);
        let sampler = L1Sampler::new(length, count, threshold, vector, unit).unwrap().constant_time(true);
        let key = Key::from_entropy().unwrap();
        let found = sampler.sample(&values, &mut key.stream(0)).unwrap();
        let mut source = key.stream(0);
        let expected = if count == 2 { vec![0, length - 1] } else {
            let rho = laplace::draw(&scales.0, &mut source);
            let noise: Vec<i128> = (1..length - 1).map(|_| laplace::draw(&scales.1, &mut source)).collect();
            sampler.walk(|last, step| {
                let numerator = Segment::new(&values, last).numerator(step);
                sampler.passes(numerator, step - last, rho, noise[step - 1])
            })
        };
        prop_assert_eq!(found, expected);
    }

    /// The score of constant work is that of the definition, wherever the segment starts.
    #[test]
    fn constant_work_gives_the_same_numerators(
        values in proptest::collection::vec(prop_oneof![-9_i64..9, -(1_i64 << 53)..=1 << 53], 2..80),
        left in 0_usize..80,
    ) {
        let left = left % values.len();
        for right in left + 1..values.len() {
            prop_assert_eq!(even_numerator(&values, left, right), Segment::new(&values, left).numerator(right));
        }
    }
}

#[test]
fn constant_time_refuses_what_is_too_large() {
    let sampler = sampler(4, 3, 0, Unit::Common).constant_time(true);
    assert!(sampler.sample(&[0, 0, 0, (1 << 53) + 1], &mut nothing()).is_err());
    assert!(sampler.sample(&[0, 0, 0], &mut nothing()).is_err());
}
