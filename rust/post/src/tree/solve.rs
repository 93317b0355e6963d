//! The solve itself: a Newton step in two passes, repeated until the conditions of optimality hold.
//!
//! Half the derivative of the least possible cost of a subtree by its sum is called the multiplier of the family above
//! it. For the family of an inner node `v`, whose children are free to share the sum `s`, multiplier and sum are
//! related by `l_v = (s - C_v) / K_v`: a child prefers the sum `T_j` and yields by its *compliance* `k_j` per unit of
//! the multiplier, so `x_j = T_j + k_j l_v`, and `C_v` and `K_v` are the sums of `T_j` and `k_j`. A leaf has `T = c`
//! and `k = 1/a`. With its own term the node `v` prefers `T = C + k a (c - C)` and has `k = K / (1 + a K)`. These
//! formulas run from the leaves to the roots, and back with `x` and `l` from the roots to the leaves.

use super::support::{self, Hinge};
use super::twofold::Twofold;
use super::{Bounds, Tree};

/// How far the conditions of optimality of an answer may be violated, relative to the sizes of their terms.
pub const TOLERANCE: f64 = 1e-9;
/// A violation below this is not worth a further step.
const REFINED: f64 = 1e-12;
/// Rounds of exchanges before the breakpoints are asked.
const ROUNDS: usize = 60;
/// Steps after which refinement is given up.
const MAX_STEPS: usize = 10;

/// How far each node gives way, given which leaves are free and which are held at zero.
#[derive(Debug, Clone, Default)]
pub(super) struct Gains {
    /// By position, `k`: the growth of a node's sum per unit of the multiplier of its family. Zero if no leaf is free.
    pub(super) compliance: Vec<f64>,
    /// By position, `1/K` of the family below an inner node. Zero if no leaf is free.
    stiffness: Vec<f64>,
}

impl Gains {
    /// The gains if every leaf is free.
    pub(super) fn of(tree: &Tree) -> Self {
        let compliance = tree.weight.iter().map(|weight| weight.recip()).collect();
        let mut gains = Self { compliance, stiffness: vec![0.0; tree.len() + 1] };
        gains.rise(tree);
        gains
    }

    /// Computes the gains of the inner nodes from the compliances of the leaves.
    fn rise(&mut self, tree: &Tree) {
        self.stiffness.fill(0.0);
        for at in 0..tree.len() {
            if !tree.is_leaf[at] {
                let family = self.stiffness[at];
                self.compliance[at] = family / (1.0 + tree.weight[at] * family);
                self.stiffness[at] = if family > 0.0 { family.recip() } else { 0.0 };
            }
            self.stiffness[tree.parent[at]] += self.compliance[at];
        }
    }
}

/// Scratch memory for solves. It holds nothing between two of them but its allocations.
#[derive(Debug, Clone, Default)]
pub struct Workspace {
    gains: Gains,
    hinges: Vec<Hinge<f64>>,
    state: State,
}

/// The unknowns and what a step needs to improve them, all by position.
#[derive(Debug, Clone, Default)]
struct State {
    target: Vec<f64>,
    /// The solution `x`.
    value: Vec<f64>,
    /// The multiplier `l` of the family below an inner node, and zero for leaves and above the roots.
    multiplier: Vec<f64>,
    /// The sum of the sizes of the leaves below a node.
    size: Vec<f64>,
    /// What a change of the sum of a family by its own size does to the multiplier; see [`State::violation`].
    slack: Vec<f64>,
    /// The change `T` that a node prefers.
    preferred: Vec<f64>,
    /// The change `C` that the children of a node prefer in sum, and on the way back the change of its multiplier.
    family: Vec<f64>,
    /// Where each leaf is held, if it is: at one of the bounds.
    held: Vec<f64>,
    bounds: Bounds,
}

impl Workspace {
    /// Memory that grows to what the first solve needs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The solution by position, or a position where the answer fails its check and by how much.
    ///
    /// If a leaf is out of its bounds, [`support::hold_leaves`] finds the leaves to hold at a bound, up to rounding. Then
    /// leaves that are still outside are held too and the rest is solved again until none is. With one bound that is
    /// exact from any set of free leaves that holds all that are free at the optimum: in terms of its leaves the problem
    /// has a strictly ultrametric matrix, whose inverse has no positive entry off the diagonal (Martinez, Michon and San
    /// Martin 1994), so raising one leaf never raises another, and a leaf that is below its bound with too many leaves
    /// free is at the bound at the optimum. In deep trees these rounds do all the work; each is linear, and few are
    /// needed unless targets are contrived. With two bounds a leaf that is held may become free again, so
    /// that in deep trees leaves are exchanged both ways, and only if that does not end the breakpoints decide.
    pub(super) fn solve(&mut self, tree: &Tree, targets: &[f64], bounds: Bounds) -> Result<&[f64], (usize, f64)> {
        let Self { gains, hinges, state } = self;
        state.bounds = bounds;
        state.target.clear();
        state.target.extend(tree.order.iter().map(|&node| targets[node]));
        gains.compliance.clone_from(&tree.gains.compliance);
        gains.stiffness.clone_from(&tree.gains.stiffness);
        let mut is_refined = state.refine(tree, gains);
        if state.is_outside(tree) {
            let is_two_sided = bounds.lower.is_finite() && bounds.upper.is_finite();
            if tree.is_shallow() || (is_two_sided && !state.settle(tree, gains)) {
                support::hold_leaves(tree, &state.target, bounds, hinges, &mut gains.compliance, &mut state.held);
            } else {
                state.hold_outside(tree, gains);
            }
            is_refined = state.hold_rest(tree, gains);
        }
        if is_refined || state.violation(tree, gains, TOLERANCE, true).is_none() {
            return Ok(&state.value[..tree.len()]);
        }
        // Where rounding has misplaced a breakpoint, exchanging the leaves concerned mends it, or more digits do.
        if state.settle(tree, gains) && state.violation(tree, gains, TOLERANCE, true).is_none() {
            return Ok(&state.value[..tree.len()]);
        }
        if bounds.lower.is_finite() || bounds.upper.is_finite() {
            let mut hinges: Vec<Hinge<Twofold>> = Vec::new();
            support::hold_leaves(tree, &state.target, bounds, &mut hinges, &mut gains.compliance, &mut state.held);
            state.hold_rest(tree, gains);
        }
        if let Some(violation) = state.violation(tree, gains, TOLERANCE, true) {
            return Err(violation);
        }
        Ok(&state.value[..tree.len()])
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self::NONE
    }
}

impl State {
    /// Solves from zero for given gains; true if the result is as good as rounding allows.
    fn refine(&mut self, tree: &Tree, gains: &Gains) -> bool {
        for array in [&mut self.value, &mut self.multiplier, &mut self.size, &mut self.slack, &mut self.family] {
            array.clear();
            array.resize(tree.len() + 1, 0.0);
        }
        self.preferred.resize(tree.len(), 0.0);
        self.held.resize(tree.len(), 0.0);
        let mut is_moved = false;
        for &leaf in &tree.leaves {
            if gains.compliance[leaf] == 0.0 {
                self.value[leaf] = self.held[leaf];
                is_moved |= self.held[leaf] != 0.0;
            }
        }
        if is_moved {
            self.add_up(tree);
            self.value[tree.len()] = 0.0;
        }
        (0..MAX_STEPS).any(|_| {
            self.step(tree, gains);
            self.violation(tree, gains, REFINED, false).is_none()
        })
    }

    /// Moves values and multipliers to the solution for given gains, up to rounding relative to the move.
    ///
    /// The move solves the same problem with targets `c - x` and with the multipliers that are already there as forces,
    /// so that a second step corrects the rounding of the first. Consistent targets are met exactly by the first.
    fn step(&mut self, tree: &Tree, gains: &Gains) {
        self.family.fill(0.0);
        for at in 0..tree.len() {
            let parent = tree.parent[at];
            let shortfall = self.target[at] - self.value[at];
            let compliance = gains.compliance[at];
            self.preferred[at] = if compliance == 0.0 {
                0.0
            } else if tree.is_leaf[at] {
                shortfall + compliance * self.multiplier[parent]
            } else {
                let force = self.multiplier[parent] - self.multiplier[at];
                let family = self.family[at];
                family + compliance * (tree.weight[at] * (shortfall - family) + force)
            };
            self.family[parent] += self.preferred[at];
        }
        for array in [&mut self.value, &mut self.size, &mut self.family] {
            array[tree.len()] = 0.0;
        }
        for at in (0..tree.len()).rev() {
            let parent = tree.parent[at];
            let change = self.preferred[at] + gains.compliance[at] * self.family[parent];
            if tree.is_leaf[at] {
                self.value[at] += change;
                continue;
            }
            let shortfall = self.target[at] - self.value[at];
            self.value[at] = 0.0;
            self.size[at] = 0.0;
            if gains.stiffness[at] > 0.0 {
                self.family[at] = (change - self.family[at]) * gains.stiffness[at];
                self.multiplier[at] += self.family[at];
            } else {
                self.multiplier[at] = self.multiplier[parent] + tree.weight[at] * shortfall;
            }
        }
        self.add_up(tree);
    }

    /// Sets every inner value, which must be zero, to the sum of its children's in the order of their indices.
    fn add_up(&mut self, tree: &Tree) {
        for at in 0..tree.len() {
            if tree.is_leaf[at] {
                self.size[at] = self.value[at].abs();
            }
            let parent = tree.parent[at];
            self.value[parent] += self.value[at];
            self.size[parent] += self.size[at];
        }
    }

    /// A position at which the condition of optimality is violated by more than `tolerance`, relative to the sizes of
    /// its terms, and by how much. A value that is not finite violates every tolerance.
    fn violation(&mut self, tree: &Tree, gains: &Gains, tolerance: f64, with_slack: bool) -> Option<(usize, f64)> {
        (0..tree.len()).rev().find_map(|at| {
            let (excess, scale) = self.excess(tree, gains, at, with_slack);
            let is_met = excess <= tolerance * scale && scale.is_finite();
            (!is_met).then(|| (at, excess / scale))
        })
    }

    /// By how much the condition of optimality is violated at a position, and the size of its terms. Positions come in
    /// decreasing order.
    ///
    /// The condition is `l_parent - l - a (x - c) = 0`, or `<= 0` at a leaf that is held at its lower bound and `>= 0` at
    /// one that is held at its upper bound. The multiplier of a family is known no better than its sum, times its
    /// stiffness. This *slack* adds to the sizes at held leaves, which have no part in the multiplier, and elsewhere if
    /// `with_slack`: a step mostly does better, but need not.
    fn excess(&mut self, tree: &Tree, gains: &Gains, at: usize, with_slack: bool) -> (f64, f64) {
        let parent = tree.parent[at];
        let (above, below) = (self.multiplier[parent], self.multiplier[at]);
        let (weight, target) = (tree.weight[at], self.target[at]);
        let pull = above - below - weight * (self.value[at] - target);
        let mut scale = above.abs() + below.abs() + weight * (self.size[at] + target.abs());
        let is_held = gains.compliance[at] == 0.0;
        self.slack[at] = if is_held { scale + self.slack[parent] } else { gains.stiffness[at] * self.size[at] };
        if is_held {
            scale = self.slack[at];
        } else if with_slack {
            scale += self.slack[at] + self.slack[parent];
        }
        let excess = match (is_held && tree.is_leaf[at], self.value[at] <= self.bounds.lower) {
            (true, _) if self.bounds.lower >= self.bounds.upper => 0.0,
            (true, true) => pull,
            (true, false) => -pull,
            (false, _) => pull.abs(),
        };
        (excess, scale)
    }

    /// Whether a leaf lies out of its bounds.
    fn is_outside(&self, tree: &Tree) -> bool {
        let Bounds { lower, upper } = self.bounds;
        tree.leaves.iter().any(|&leaf| self.value[leaf] < lower || self.value[leaf] > upper)
    }

    /// Marks every leaf out of its bounds as held at the one it is beyond; true if there is any.
    fn hold_outside(&mut self, tree: &Tree, gains: &mut Gains) -> bool {
        let mut any = false;
        for &leaf in &tree.leaves {
            let nearest = self.bounds.clamp(self.value[leaf]);
            if (nearest - self.value[leaf]).abs() > 0.0 {
                (self.held[leaf], gains.compliance[leaf]) = (nearest, 0.0);
                any = true;
            }
        }
        any
    }

    /// Solves, holding leaves that are out of their bounds until there is none; true if the result is as good as rounding
    /// allows.
    fn hold_rest(&mut self, tree: &Tree, gains: &mut Gains) -> bool {
        loop {
            gains.rise(tree);
            let is_refined = self.refine(tree, gains);
            if !self.hold_outside(tree, gains) {
                return is_refined;
            }
        }
    }

    /// Exchanges leaves out of their bounds, and held ones that pull away from their bound, until there are none; true
    /// if that happens within the rounds that are allowed.
    fn settle(&mut self, tree: &Tree, gains: &mut Gains) -> bool {
        for _ in 0..ROUNDS {
            let mut any = false;
            for at in (0..tree.len()).rev() {
                let is_held = gains.compliance[at] == 0.0;
                let (excess, scale) = self.excess(tree, gains, at, true);
                if tree.is_leaf[at] && is_held && excess > REFINED * scale {
                    // The gain of the leaf counts from the next round on.
                    self.preferred[at] = 1.0;
                    any = true;
                } else {
                    self.preferred[at] = 0.0;
                }
            }
            any |= self.hold_outside(tree, gains);
            for &leaf in &tree.leaves {
                if self.preferred[leaf] > 0.0 {
                    gains.compliance[leaf] = tree.weight[leaf].recip();
                }
            }
            if !any {
                return true;
            }
            gains.rise(tree);
            self.refine(tree, gains);
        }
        false
    }
}
