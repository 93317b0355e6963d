//! Which leaves are zero when none may be negative, from the breakpoints of piecewise linear functions.
//!
//! Let `s(l)` be the sum of a subtree that is optimal for the multiplier `l` of the family it belongs to. A leaf has
//! `s(l) = max(0, c + l/a)`: a hinge that leaves zero at the threshold `-a c` with slope `1/a`. Children add up, so the
//! `s` of a family is a sum of hinges, one per leaf below. The node's own term `a (s - c)^2` then moves the point
//! `(l, s)` of that function to `(l + a (s - c), s)`, which makes of every hinge another one: where the slope of the
//! family rises from `k` to `k + d`, that of the node rises by `d / ((1 + a k)(1 + a (k + d)))`. Above a root the
//! multiplier is zero, so the leaves that are not zero are those whose threshold ends up below zero.

use super::Tree;

/// No multiplier reaches this: each is a sum of terms `a (c - x)` along a path, and `a` and `c` are at most 1e100. A
/// leaf whose threshold does stays at zero, however many terms are still to be added.
const CEILING: f64 = 1e250;

/// The term `slope * max(0, l - threshold)` of a sum, which a leaf contributes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hinge {
    threshold: f64,
    slope: f64,
    leaf: usize,
}

/// Sets the compliance of every leaf to zero that is zero at the optimum, and of every other leaf to its own.
///
/// Takes `O(d log d)` for each measured inner node with `d` leaves below.
pub(super) fn hold_leaves(tree: &Tree, target: &[f64], hinges: &mut Vec<Hinge>, compliance: &mut [f64]) {
    hinges.clear();
    hinges.extend(tree.leaves.iter().map(|&leaf| {
        let weight = tree.weight[leaf];
        Hinge { threshold: -weight * target[leaf], slope: weight.recip(), leaf }
    }));
    for (at, leaves) in &tree.measured {
        let family = &mut hinges[leaves.clone()];
        family.sort_unstable_by(|a, b| a.threshold.total_cmp(&b.threshold));
        add_term(family, tree.weight[*at], target[*at]);
    }
    for hinge in hinges {
        compliance[hinge.leaf] = if hinge.threshold < 0.0 { tree.weight[hinge.leaf].recip() } else { 0.0 };
    }
}

/// Turns the sorted hinges of a family into those of the node above it, whose own term is `weight (s - target)^2`.
fn add_term(family: &mut [Hinge], weight: f64, target: f64) {
    let (mut sum, mut slope, mut last) = (0.0, 0.0, 0.0);
    for hinge in family.iter_mut().take_while(|hinge| hinge.threshold < CEILING) {
        // No slope precedes the first hinge, so there the value of `last` is of no matter.
        sum += slope * (hinge.threshold - last);
        last = hinge.threshold;
        let steeper = slope + hinge.slope;
        hinge.threshold += weight * (sum - target);
        hinge.slope = hinge.slope / (1.0 + weight * slope) / (1.0 + weight * steeper);
        slope = steeper;
    }
}
