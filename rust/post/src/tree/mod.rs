//! Weighted least squares on a forest: the closest values that add up, with leaves between bounds.
//!
//! Every node `i` has a target `c_i`, a noisy measurement, and a weight `a_i`, the inverse of its variance. Of all `x`
//! with `x_parent = sum of x_children` at every inner node, a projection finds the one that minimises
//! `sum_i a_i (x_i - c_i)^2` among those whose leaves lie in [`Bounds`]; what that bounds at inner nodes are sums. The structure of the forest and its weights are
//! prepared once, as a [`Tree`]; any number of targets is then projected with the memory of one [`Workspace`].
//!
//! ```
//! use optstream_post::tree::{Bounds, Tree, Workspace};
//!
//! // Two parts, measured as 1 and 2, of a total that was measured as 6.
//! let tree = Tree::new(&[Some(2), Some(2), None], &[1.0, 1.0, 1.0])?;
//! let mut out = [0.0; 3];
//! tree.project(&[1.0, 2.0, 6.0], Bounds::new(0.0, 10.0), &mut Workspace::new(), &mut out)?;
//! assert_eq!(out, [2.0, 3.0, 5.0]);
//! # Ok::<(), optstream_post::Error>(())
//! ```

mod order;
mod solve;
mod support;
mod twofold;

use std::ops::Range;
use std::thread;

use crate::Error;
use solve::Gains;
pub use solve::{TOLERANCE, Workspace};

/// Targets and weights are at most this in size, and weights that are not zero at least its inverse, so that no product
/// of them overflows or vanishes.
pub const LIMIT: f64 = 1e100;

/// Between which values every leaf lies; infinite where there is no bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    pub(crate) lower: f64,
    pub(crate) upper: f64,
}

impl Bounds {
    /// No bounds.
    pub const NONE: Self = Self { lower: f64::NEG_INFINITY, upper: f64::INFINITY };
    /// Not below zero.
    pub const NONNEGATIVE: Self = Self { lower: 0.0, upper: f64::INFINITY };

    /// The bounds `lower <= x <= upper`. One that is beyond [`LIMIT`] in size is none.
    #[must_use]
    pub const fn new(lower: f64, upper: f64) -> Self {
        let lower = if lower < -LIMIT { f64::NEG_INFINITY } else { lower };
        let upper = if upper > LIMIT { f64::INFINITY } else { upper };
        Self { lower, upper }
    }

    /// The nearest value between the bounds.
    pub(crate) const fn clamp(self, value: f64) -> f64 {
        if value < self.lower {
            self.lower
        } else if value > self.upper {
            self.upper
        } else {
            value
        }
    }

    pub(crate) fn check(self) -> Result<(), Error> {
        if self.lower <= self.upper && self.lower <= LIMIT && self.upper >= -LIMIT {
            return Ok(());
        }
        let given = format!("{:?} to {:?}", self.lower, self.upper);
        Err(Error::parameter("bounds", given, "in order and at most 1e100 in size"))
    }
}

/// Mean number of measured nodes above a node up to which a tree counts as shallow.
const MAX_DEPTH: usize = 64;

/// A forest and the weights of its nodes, ready to be solved for many targets.
///
/// Internally the nodes are numbered in postorder: a node follows its subtree, and the children of a node come in the
/// order of their indices. The roots are children of one further node, at the last position, that is not measured; it
/// couples nothing, since a node that is not measured and has no parent takes whatever sum its children prefer.
#[derive(Debug, Clone)]
pub struct Tree {
    /// The caller's index of the node at each position.
    order: Vec<usize>,
    /// The position of each node's parent.
    parent: Vec<usize>,
    /// The weight of each node, by position.
    weight: Vec<f64>,
    /// The positions of the leaves.
    leaves: Vec<usize>,
    /// Whether the node at each position is a leaf.
    is_leaf: Vec<bool>,
    /// The inner nodes with a positive weight, children first, each with its leaves as a range of `leaves`.
    measured: Vec<(usize, Range<usize>)>,
    /// The gains of the solve in which every leaf is free.
    gains: Gains,
}

impl Tree {
    /// Prepares the forest in which `parents[i]` is the parent of node `i`, or `None` if `i` is a root.
    ///
    /// Inner nodes of weight zero are not measured: their targets have no influence.
    ///
    /// # Errors
    /// [`Error::Parameter`] if there is no node or the lengths differ; [`Error::Entry`] if a parent is out of range or
    /// its links form a cycle, if the weight of a leaf is not from 1e-100 to 1e100, or if the weight of an inner node
    /// is neither zero nor in that range.
    pub fn new(parents: &[Option<usize>], weights: &[f64]) -> Result<Self, Error> {
        if parents.is_empty() {
            return Err(Error::parameter("length of parents", 0, "at least 1"));
        }
        Error::unless_length("length of weights", weights.len(), parents.len())?;
        let order = order::postorder(parents)?;

        let mut position = vec![0; parents.len()];
        for (at, &node) in order.iter().enumerate() {
            position[node] = at;
        }
        let parent: Vec<usize> =
            order.iter().map(|&node| parents[node].map_or(parents.len(), |parent| position[parent])).collect();
        let mut is_leaf = vec![true; parents.len()];
        for &parent in parents.iter().flatten() {
            is_leaf[position[parent]] = false;
        }
        for (node, &weight) in weights.iter().enumerate() {
            check_weight(node, weight, is_leaf[position[node]])?;
        }
        let weight: Vec<f64> = order.iter().map(|&node| weights[node]).collect();
        let leaves: Vec<usize> = (0..order.len()).filter(|&at| is_leaf[at]).collect();
        let measured = order::leaf_ranges(&parent, &is_leaf).filter(|&(at, _)| weight[at] > 0.0).collect();

        let mut tree = Self { order, parent, weight, leaves, is_leaf, measured, gains: Gains::default() };
        tree.gains = Gains::of(&tree);
        Ok(tree)
    }

    /// The number of nodes, which is at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a tree is never empty")]
    pub const fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether sorting the leaves below every measured node is affordable, unlike in a tree about as deep as it is
    /// large.
    fn is_shallow(&self) -> bool {
        let leaves: usize = self.measured.iter().map(|(_, leaves)| leaves.len()).sum();
        leaves <= MAX_DEPTH * self.len()
    }

    /// Projects one target per node and writes one value per node.
    ///
    /// # Guarantee
    /// The value of an inner node is, bit for bit, the float sum of its children's values, added from zero in the order
    /// of their indices. No leaf is out of its bounds. Targets that already satisfy all this are returned unchanged.
    ///
    /// The values satisfy the conditions of optimality, which are checked on every answer: with one multiplier `l_v`
    /// per family of an inner node `v`, and zero above the roots and below the leaves, every node `i` with parent `v`
    /// has `a_i (x_i - c_i) + l_i = l_v`, where at a leaf that is held at its lower bound the left side may be the
    /// larger, and at its upper bound the smaller. This holds up to [`TOLERANCE`], relative to the sizes of the terms and to what a change of `x` by its own size does
    /// to `l`.
    ///
    /// # Errors
    /// [`Error::Parameter`] if a length is not that of the tree, [`Error::Entry`] if a target is not finite or exceeds
    /// 1e100 in size, [`Error::NotOptimal`] if the answer fails its check. `out` is then left as it was.
    pub fn project(
        &self,
        targets: &[f64],
        bounds: Bounds,
        workspace: &mut Workspace,
        out: &mut [f64],
    ) -> Result<(), Error> {
        Error::unless_length("length of targets", targets.len(), self.len())?;
        Error::unless_length("length of out", out.len(), self.len())?;
        check_targets(targets)?;
        bounds.check()?;
        self.solve(0, targets, bounds, workspace, out)
    }

    /// Projects many rows of targets, one after the other in `targets`, and writes as many rows of values.
    ///
    /// Each thread takes a contiguous share of the rows. The values are those of [`Tree::project`] and do not depend on
    /// the number of threads; one thread is the calling one.
    ///
    /// # Errors
    /// As [`Tree::project`], with the index of a target counted over all rows, and [`Error::Parameter`] if `threads` is
    /// zero or the length of `targets` is not a multiple of that of the tree. What `out` holds after
    /// [`Error::NotOptimal`] must be dropped.
    pub fn project_many(&self, targets: &[f64], bounds: Bounds, threads: usize, out: &mut [f64]) -> Result<(), Error> {
        if threads == 0 {
            return Err(Error::parameter("threads", 0, "at least 1"));
        }
        if !targets.len().is_multiple_of(self.len()) {
            let bound = format!("a multiple of the number of nodes, {}", self.len());
            return Err(Error::parameter("length of targets", targets.len(), bound));
        }
        Error::unless_length("length of out", out.len(), targets.len())?;
        check_targets(targets)?;
        bounds.check()?;

        let work = |first: usize, targets: &[f64], out: &mut [f64]| {
            let mut workspace = Workspace::new();
            let rows = targets.chunks(self.len()).zip(out.chunks_mut(self.len()));
            (first..)
                .zip(rows)
                .try_for_each(|(row, (targets, out))| self.solve(row, targets, bounds, &mut workspace, out))
        };
        let rows = targets.len() / self.len();
        if threads == 1 || rows <= 1 {
            return work(0, targets, out);
        }
        let share = rows.div_ceil(threads);
        thread::scope(|scope| {
            let parts = targets.chunks(share * self.len()).zip(out.chunks_mut(share * self.len()));
            let workers: Vec<_> = parts
                .enumerate()
                .map(|(turn, (targets, out))| scope.spawn(move || work(turn * share, targets, out)))
                .collect();
            workers.into_iter().try_for_each(|worker| match worker.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    /// Solves one row whose targets and lengths have been checked.
    fn solve(
        &self,
        row: usize,
        targets: &[f64],
        bounds: Bounds,
        workspace: &mut Workspace,
        out: &mut [f64],
    ) -> Result<(), Error> {
        let values = workspace.solve(self, targets, bounds).map_err(|(position, violation)| Error::NotOptimal {
            row,
            node: self.order[position],
            violation,
            tolerance: TOLERANCE,
        })?;
        for (&node, &value) in self.order.iter().zip(values) {
            out[node] = value;
        }
        Ok(())
    }
}

fn check_weight(node: usize, weight: f64, is_leaf: bool) -> Result<(), Error> {
    let fits = (LIMIT.recip()..=LIMIT).contains(&weight);
    match (is_leaf, fits) {
        (true, false) => Err(Error::entry("weights", node, weight, "from 1e-100 to 1e100, since the node is a leaf")),
        (false, false) if weight != 0.0 => Err(Error::entry("weights", node, weight, "0 or from 1e-100 to 1e100")),
        _ => Ok(()),
    }
}

fn check_targets(targets: &[f64]) -> Result<(), Error> {
    match targets.iter().position(|target| target.is_nan() || target.abs() > LIMIT) {
        Some(index) => Err(Error::entry("targets", index, targets[index], "finite and at most 1e100 in size")),
        None => Ok(()),
    }
}
