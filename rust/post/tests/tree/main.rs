//! Tests of the projection on trees: by hand, against a slow reference, by its optimality conditions, at size.

mod by_hand;
mod conditions;
mod large;
mod misuse;
mod reference;
mod shapes;

use optstream_post::tree::{Bounds, Tree, Workspace};

/// The bounds that most tests use.
fn bounds(nonnegative: bool) -> Bounds {
    if nonnegative { Bounds::NONNEGATIVE } else { Bounds::NONE }
}

fn project(tree: &Tree, targets: &[f64], nonnegative: bool) -> Vec<f64> {
    project_between(tree, targets, bounds(nonnegative))
}

/// One projection with fresh memory.
fn project_between(tree: &Tree, targets: &[f64], bounds: Bounds) -> Vec<f64> {
    let mut out = vec![f64::NAN; tree.len()];
    tree.project(targets, bounds, &mut Workspace::new(), &mut out).unwrap();
    out
}

/// Asserts that every parent is, bit for bit, the sum of its children from left to right.
fn assert_adds_up(parents: &[Option<usize>], values: &[f64]) {
    let mut sums = vec![None; parents.len()];
    for (parent, value) in parents.iter().zip(values) {
        if let Some(parent) = *parent {
            sums[parent] = Some(sums[parent].unwrap_or(0.0) + value);
        }
    }
    for (node, sum) in sums.into_iter().enumerate() {
        assert!(sum.is_none_or(|sum: f64| sum.to_bits() == values[node].to_bits()), "node {node} is not the sum");
    }
}
