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

use super::{Bounds, Tree};

/// No multiplier reaches this: each is a sum of terms `a (c - x)` along a path, and `a` and `c` are at most 1e100. A
/// leaf whose threshold does stays at its bound, however many terms are still to be added.
const CEILING: f64 = 1e250;

/// The term `slope * max(0, l - threshold)` of a sum, which a leaf contributes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hinge {
    threshold: f64,
    slope: f64,
    leaf: usize,
}

/// Sets the compliance of every leaf to zero that is at a bound at the optimum, with the bound in `held`, and of every
/// other leaf to its own. At least one bound must be finite.
///
/// Takes `O(d log d)` for each measured inner node with `d` leaves below.
pub(super) fn hold_leaves(
    tree: &Tree,
    target: &[f64],
    bounds: Bounds,
    hinges: &mut Vec<Hinge>,
    compliance: &mut [f64],
    held: &mut [f64],
) {
    // Without a lower bound the problem is turned around.
    let sign = if bounds.lower.is_finite() { 1.0 } else { -1.0 };
    let (lower, upper) = if sign > 0.0 { (bounds.lower, bounds.upper) } else { (-bounds.upper, -bounds.lower) };
    let stride = if upper.is_finite() { 2 } else { 1 };
    hinges.clear();
    for &leaf in &tree.leaves {
        let (weight, target) = (tree.weight[leaf], sign * target[leaf]);
        hinges.push(Hinge { threshold: weight * (lower - target), slope: weight.recip(), leaf });
        if stride == 2 {
            hinges.push(Hinge { threshold: weight * (upper - target), slope: -weight.recip(), leaf });
        }
    }
    for (at, leaves) in &tree.measured {
        let family = &mut hinges[leaves.start * stride..leaves.end * stride];
        // Of equal thresholds the hinge that opens comes first, so that no slope is negative.
        family.sort_unstable_by(|a, b| a.threshold.total_cmp(&b.threshold).then(b.slope.total_cmp(&a.slope)));
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53 leaves")]
        let least = lower * leaves.len() as f64;
        add_term(family, tree.weight[*at], sign * target[*at], least);
    }
    for &leaf in &tree.leaves {
        compliance[leaf] = tree.weight[leaf].recip();
    }
    for hinge in hinges {
        if hinge.slope > 0.0 && hinge.threshold >= 0.0 {
            (compliance[hinge.leaf], held[hinge.leaf]) = (0.0, sign * lower);
        } else if hinge.slope < 0.0 && hinge.threshold <= 0.0 {
            (compliance[hinge.leaf], held[hinge.leaf]) = (0.0, sign * upper);
        }
    }
}

/// Turns the sorted hinges of a family into those of the node above it, whose own term is `weight (s - target)^2`. Below
/// all hinges the sum is `least`.
fn add_term(family: &mut [Hinge], weight: f64, target: f64, least: f64) {
    let (mut sum, mut slope, mut before) = (least, 0.0_f64, 0.0);
    let mut open = 0_usize;
    for hinge in family.iter_mut().take_while(|hinge| hinge.threshold < CEILING) {
        // No slope precedes the first hinge, so there the value of `before` is of no matter.
        sum += slope * (hinge.threshold - before);
        before = hinge.threshold;
        open = if hinge.slope > 0.0 { open + 1 } else { open.saturating_sub(1) };
        // Where every leaf is at a bound the slope is zero, whatever rounding has left of it.
        let changed = if open == 0 { 0.0 } else { (slope + hinge.slope).max(0.0) };
        hinge.threshold += weight * (sum - target);
        hinge.slope = hinge.slope / (1.0 + weight * slope) / (1.0 + weight * changed);
        slope = changed;
    }
}
