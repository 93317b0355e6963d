//! Which leaves are at a bound, from the breakpoints of piecewise linear functions.
//!
//! Let `s(l)` be the sum of a subtree that is optimal for the multiplier `l` of the family it belongs to. A leaf between
//! `lower` and `upper` has `s(l) = clamp(c + l/a)`: a hinge that leaves the lower bound at the threshold `a (lower - c)`
//! with slope `1/a`, and one that takes the slope away again at `a (upper - c)`. Children add up, so the `s` of a family
//! is the sum of its leaves' lower bounds and of hinges, two per leaf below. The node's own term `a (s - c)^2` then moves
//! the point `(l, s)` of that function to `(l + a (s - c), s)`, which makes of every hinge another one: where the slope of
//! the family changes from `k` to `k + d`, that of the node changes by `d / ((1 + a k)(1 + a (k + d)))`. Above a root the
//! multiplier is zero, so a leaf is above its lower bound if the threshold of its first hinge ends up below zero, and
//! below its upper bound if that of its second does not.

use std::cmp::Ordering;

use super::twofold::Number;
use super::{Bounds, Tree};

/// No multiplier reaches this: each is a sum of terms `a (c - x)` along a path, and `a` and `c` are at most 1e100. A
/// leaf whose threshold does stays at its bound, however many terms are still to be added.
const CEILING: f64 = 1e250;

/// The term `slope * max(0, l - threshold)` of a sum, which a leaf contributes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hinge<N> {
    threshold: N,
    slope: N,
    leaf: usize,
}

/// Sets the compliance of every leaf to zero that is at a bound at the optimum, with the bound in `held`, and of every
/// other leaf to its own. At least one bound must be finite.
///
/// Takes `O(d log d)` for each measured inner node with `d` leaves below. Slopes are added and taken away again, so that
/// among weights that differ by more than the digits of `N` can hold, leaves may end on the wrong side.
pub(super) fn hold_leaves<N: Number>(
    tree: &Tree,
    target: &[f64],
    bounds: Bounds,
    hinges: &mut Vec<Hinge<N>>,
    compliance: &mut [f64],
    held: &mut [f64],
) {
    // Without a lower bound the problem is turned around.
    let sign = if bounds.lower.is_finite() { 1.0 } else { -1.0 };
    let (lower, upper) = if sign > 0.0 { (bounds.lower, bounds.upper) } else { (-bounds.upper, -bounds.lower) };
    let stride = if upper.is_finite() { 2 } else { 1 };
    hinges.clear();
    for &leaf in &tree.leaves {
        let (weight, target) = (N::from(tree.weight[leaf]), N::from(sign * target[leaf]));
        let mut push = |bound: f64, sign: f64| {
            let threshold = weight * (N::from(bound) - target);
            hinges.push(Hinge { threshold, slope: N::from(sign) / weight, leaf });
        };
        push(lower, 1.0);
        if stride == 2 {
            push(upper, -1.0);
        }
    }
    for (at, leaves) in &tree.measured {
        let family = &mut hinges[leaves.start * stride..leaves.end * stride];
        // Of equal thresholds the hinge that opens comes first, so that no slope is negative.
        family.sort_unstable_by(|a, b| compare(a.threshold, b.threshold).then_with(|| compare(b.slope, a.slope)));
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53 leaves")]
        let least = N::from(lower) * N::from(leaves.len() as f64);
        add_term(family, N::from(tree.weight[*at]), N::from(sign * target[*at]), least);
    }
    for &leaf in &tree.leaves {
        compliance[leaf] = tree.weight[leaf].recip();
    }
    let zero = N::from(0.0);
    for hinge in hinges {
        if hinge.slope > zero && hinge.threshold >= zero {
            (compliance[hinge.leaf], held[hinge.leaf]) = (0.0, sign * lower);
        } else if hinge.slope < zero && hinge.threshold <= zero {
            (compliance[hinge.leaf], held[hinge.leaf]) = (0.0, sign * upper);
        }
    }
}

/// The order of two numbers, with what is no number last.
fn compare<N: Number>(one: N, other: N) -> Ordering {
    one.partial_cmp(&other).unwrap_or_else(|| one.rounded().total_cmp(&other.rounded()))
}

/// Turns the sorted hinges of a family into those of the node above it, whose own term is `weight (s - target)^2`. Below
/// all hinges the sum is `least`.
fn add_term<N: Number>(family: &mut [Hinge<N>], weight: N, target: N, least: N) {
    let (zero, one) = (N::from(0.0), N::from(1.0));
    let (mut sum, mut slope, mut before) = (least, zero, zero);
    let mut open = 0_usize;
    for hinge in family.iter_mut().take_while(|hinge| hinge.threshold.rounded() < CEILING) {
        // No slope precedes the first hinge, so there the value of `before` is of no matter.
        sum = sum + slope * (hinge.threshold - before);
        before = hinge.threshold;
        open = if hinge.slope > zero { open + 1 } else { open.saturating_sub(1) };
        // Where every leaf is at a bound the slope is zero, whatever rounding has left of it.
        let changed = slope + hinge.slope;
        let changed = if open == 0 || changed < zero { zero } else { changed };
        hinge.threshold = hinge.threshold + weight * (sum - target);
        hinge.slope = hinge.slope / (one + weight * slope) / (one + weight * changed);
        slope = changed;
    }
}
