//! L1 scores of straight-line interpolation, exactly and incrementally.
//!
//! Between two sampled steps `a < b` a series `X` is replaced by the straight line through its ends. The score of
//! `[a, b]` is what this loses, `L = sum over a < i < b of |X_i - X_a - (i - a)/n (X_b - X_a)|` with `n = b - a`. Its
//! *numerator* `N = n L` is an integer, so that scores are compared without a division.
//!
//! # Guarantee
//! If every value of `X` moves by at most `A`, the score of `[a, b]` moves by at most `2 A (n - 1)`, and some scores
//! do. Proof: with `t = (i - a)/n`, term `i` is the size of `u_i = X_i - (1 - t) X_a - t X_b`, which moves by at most
//! `A + (1 - t) A + t A = 2 A`; hence so does `|u_i|`, as `||u'| - |u|| <= |u' - u|`. There are `n - 1` such terms, the
//! end points contributing none. On a flat series, moving both ends up and all between them down attains the bound.

/// Up to this length scores are summed term by term, which is faster than any preparation.
const SHORT: usize = 32;

/// The scores of all segments with one left end.
///
/// With slopes `s_j = (X_j - X_a)/(j - a)`, the numerator is `sum (j - a) n |s_j - s_b|`. Given the signs it needs
/// only the sums of the rises `X_j - X_a` and of the runs `j - a` over the points whose slope is above that of `b`, and
/// over those below. A Fenwick tree over the ranks of the slopes keeps these sums. Ranks are those among the points up
/// to a capacity, which doubles when `b` reaches it.
pub struct Segment<'a> {
    /// The values from the left end on: a point is named by its distance from the left end.
    values: &'a [i64],
    left: usize,
    /// For each distance the rank of its slope, from 1; empty until the first long segment.
    ranks: Vec<usize>,
    /// The Fenwick tree: node `r` sums the ranks above `r - lowbit(r)` up to `r`.
    nodes: Vec<Sums>,
    /// The sums over the points at distances `1..=absorbed`, which are the ones in the tree.
    total: Sums,
    absorbed: usize,
}

/// Sums over some points.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    rise: i128,
    run: i128,
}

impl Sums {
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "2^31 points with rises below 2^64 and runs below 2^31")]
    fn add(&mut self, other: Self) {
        self.rise += other.rise;
        self.run += other.run;
    }
}

impl<'a> Segment<'a> {
    /// The segments of `values` that start at `left`.
    #[must_use]
    pub fn new(values: &'a [i64], left: usize) -> Self {
        let values = values.get(left..).unwrap_or_default();
        Self { values, left, ranks: Vec::new(), nodes: Vec::new(), total: Sums::default(), absorbed: 0 }
    }

    /// The left end.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.left
    }

    /// The numerator `N` of the score of `[left, right]`; 0 where nothing lies between these ends or `right` is not a
    /// step.
    ///
    /// # Guarantee
    /// Exact for all integers and all lengths up to 2^31, in any order of right ends. For right ends in increasing
    /// order all the segments up to length `n` together cost `O(n log n)`, and nothing is prepared before a length of
    /// 33. Which side a slope equal to that of `right` counts for does not matter, since its term is 0.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "rises are below 2^64, hence each product at most 2^126 in size"
    )]
    pub fn numerator(&mut self, right: usize) -> i128 {
        let length = right.saturating_sub(self.left);
        if length < 2 || length >= self.values.len() {
            return 0;
        }
        if length <= SHORT || length <= self.absorbed {
            return self.summed(length);
        }
        if length >= self.ranks.len() {
            self.rank(length);
        }
        while self.absorbed + 1 < length {
            self.absorb();
        }
        let below = self.below(length);
        let end = self.point(length);
        let rises = self.total.rise - 2 * below.rise;
        let runs = self.total.run - 2 * below.run;
        end.run * rises - end.rise * runs
    }

    /// The numerator for a length within the values, term by term.
    #[expect(clippy::arithmetic_side_effects, reason = "a term is at most n 2^64, as interpolation stays in range")]
    fn summed(&self, length: usize) -> i128 {
        let end = self.point(length);
        (1..length).map(|distance| self.point(distance)).map(|p| (end.run * p.rise - p.run * end.rise).abs()).sum()
    }

    /// The sums over the one point at a distance.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "a difference of 64-bit integers")]
    #[expect(clippy::indexing_slicing, reason = "all distances asked for lie within the values")]
    #[expect(clippy::as_conversions, reason = "widening")]
    fn point(&self, distance: usize) -> Sums {
        let rise = i128::from(self.values[distance]) - i128::from(self.values[0]);
        Sums { rise, run: distance as i128 }
    }

    /// Ranks the points up to a capacity that includes `length`, and builds the tree of the absorbed ones among them.
    #[cold]
    #[expect(clippy::arithmetic_side_effects, reason = "products of 64 and 32 bits; nodes stay within the capacity")]
    #[expect(clippy::indexing_slicing, reason = "ranks and distances run from 1 to the capacity")]
    fn rank(&mut self, length: usize) {
        let capacity = length.next_power_of_two().min(self.values.len() - 1);
        let mut order: Vec<_> = (1..=capacity).map(|distance| (self.point(distance), distance)).collect();
        order.sort_unstable_by(|(a, _), (b, _)| (a.rise * b.run).cmp(&(b.rise * a.run)));
        self.ranks = vec![0; capacity + 1];
        for (rank, (_, distance)) in (1..).zip(order) {
            self.ranks[distance] = rank;
        }
        self.nodes = vec![Sums::default(); capacity + 1];
        for distance in 1..=self.absorbed {
            self.nodes[self.ranks[distance]] = self.point(distance);
        }
        for node in 1..=capacity {
            let (sums, above) = (self.nodes[node], node + lowbit(node));
            if let Some(above) = self.nodes.get_mut(above) {
                above.add(sums);
            }
        }
    }

    /// Puts the next point into the tree.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "nodes end soon after the capacity")]
    #[expect(clippy::indexing_slicing, reason = "the caller has ranked this distance")]
    fn absorb(&mut self) {
        self.absorbed += 1;
        let point = self.point(self.absorbed);
        self.total.add(point);
        let mut node = self.ranks[self.absorbed];
        while let Some(sums) = self.nodes.get_mut(node) {
            sums.add(point);
            node += lowbit(node);
        }
    }

    /// The sums over the absorbed points whose slope ranks before that at a distance not yet absorbed.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "a node is at least its lowest bit")]
    #[expect(clippy::indexing_slicing, reason = "the caller has ranked this distance, and ranks start at 1")]
    fn below(&self, distance: usize) -> Sums {
        let mut sums = Sums::default();
        let mut node = self.ranks[distance] - 1;
        while node > 0 {
            sums.add(self.nodes[node]);
            node -= lowbit(node);
        }
        sums
    }
}

/// The lowest set bit.
#[inline]
const fn lowbit(node: usize) -> usize {
    node & node.wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigInt;
    use num_rational::BigRational;
    use num_traits::{Signed, Zero};
    use proptest::prelude::*;

    /// The score by its definition, in exact fractions.
    fn score(values: &[i64], a: usize, b: usize) -> BigRational {
        let fraction = |top: BigInt, bottom: usize| BigRational::new(top, bottom.into());
        let rise = |i: usize| BigInt::from(values[i]) - values[a];
        (a + 1..b).map(|i| (fraction(rise(i), 1) - fraction(rise(b) * (i - a), b - a)).abs()).sum()
    }

    /// All scores with left end `a`, asked for in increasing order.
    fn scores(values: &[i64], a: usize) -> Vec<BigRational> {
        let mut segment = Segment::new(values, a);
        (a + 1..values.len()).map(|b| BigRational::new(segment.numerator(b).into(), (b - a).into())).collect()
    }

    fn expected(values: &[i64], a: usize) -> Vec<BigRational> {
        (a + 1..values.len()).map(|b| score(values, a, b)).collect()
    }

    /// Series with many equal slopes, series on a few lines, and values of every size a grid or the type allows.
    fn series() -> impl Strategy<Value = Vec<i64>> {
        let lengths = 2_usize..150;
        let lines = (proptest::collection::vec(-2_i64..3, lengths.clone()), -1000_i64..1000)
            .prop_map(|(slopes, start)| (0..).zip(slopes).map(|(i, slope)| start + slope * i).collect());
        prop_oneof![
            proptest::collection::vec(-3_i64..4, lengths.clone()),
            lines,
            proptest::collection::vec(-1_000_000_i64..1_000_000, lengths.clone()),
            proptest::collection::vec(-(1_i64 << 53)..=1 << 53, lengths.clone()),
            proptest::collection::vec(prop_oneof![Just(i64::MIN), Just(i64::MAX), any::<i64>()], lengths),
        ]
    }

    proptest! {
        #[test]
        fn numerators_are_those_of_the_definition(values in series()) {
            prop_assert_eq!(scores(&values, 0), expected(&values, 0));
        }

        #[test]
        fn every_left_end_starts_afresh(values in series(), left in 0_usize..150) {
            let left = left % values.len();
            prop_assert_eq!(scores(&values, left), expected(&values, left));
        }

        #[test]
        fn right_ends_may_come_in_any_order(
            values in series(), ends in proptest::collection::vec(0_usize..160, 0..40)
        ) {
            let mut segment = Segment::new(&values, 1);
            for b in ends {
                let valid = b > 1 && b < values.len();
                let wanted = if valid { score(&values, 1, b) * BigInt::from(b - 1) } else { Zero::zero() };
                prop_assert_eq!(BigRational::from_integer(segment.numerator(b).into()), wanted);
            }
        }

        #[test]
        fn the_sensitivity_bound_holds(
            values in proptest::collection::vec((-50_i64..50, -7_i64..=7, any::<bool>()), 3..80), a in 0_usize..80
        ) {
            // Half of the changes are extreme, where the bound is nearest.
            let (before, after): (Vec<i64>, Vec<i64>) = values
                .iter()
                .map(|&(x, change, extreme)| (x, x + if extreme { 7 * change.signum() } else { change }))
                .unzip();
            let a = a % (values.len() - 2);
            for (length, (old, new)) in (1_usize..).zip(scores(&before, a).into_iter().zip(scores(&after, a))) {
                prop_assert!((new - old).abs() <= BigRational::from_integer((2 * 7 * (length - 1)).into()));
            }
        }
    }

    #[test]
    fn the_sensitivity_bound_is_attained() {
        for length in [2, 3, 10, 40, 100] {
            let mut moved = vec![-7; length + 1];
            (moved[0], moved[length]) = (7, 7);
            assert_eq!(Segment::new(&vec![0; length + 1], 0).numerator(length), 0);
            let bound = 2 * 7 * (length - 1);
            assert_eq!(Segment::new(&moved, 0).numerator(length), i128::try_from(length * bound).unwrap());
        }
    }

    #[test]
    fn the_longest_and_largest_segment_does_not_overflow() {
        // Values as far apart as a grid allows, over 2^20 steps; the sum of the last segment is known in closed form.
        let limit = 1_i64 << 53;
        let length = (1 << 20) - 1;
        let mut values = vec![-limit; length + 1];
        (values[0], values[length]) = (limit, limit);
        let mut segment = Segment::new(&values, 0);
        let last = (2..=length).map(|b| segment.numerator(b)).last().unwrap();
        let length = i128::try_from(length).unwrap();
        assert_eq!(last, length * (length - 1) * 2 * i128::from(limit));
    }
}
