//! Cases whose answers are found with pencil and paper.

use optstream_post::tree::Tree;

use crate::{project, shapes};

const PAIR: [Option<usize>; 3] = [Some(2), Some(2), None];

/// Solves with every number exactly representable, so the answer must be exact.
fn check(parents: &[Option<usize>], weights: &[f64], targets: &[f64], free: &[f64], nonnegative: &[f64]) {
    let tree = Tree::new(parents, weights).unwrap();
    assert_eq!(project(&tree, targets, false), free);
    assert_eq!(project(&tree, targets, true), nonnegative);
}

#[test]
fn a_single_node_keeps_its_target() {
    check(&[None], &[0.3], &[5.1], &[5.1], &[5.1]);
    check(&[None], &[0.3], &[-5.1], &[-5.1], &[0.0]);
}

#[test]
fn a_gap_is_shared_in_inverse_proportion_to_the_weights() {
    // The parts miss the total by 3; each of the three terms takes one.
    check(&PAIR, &[1.0, 1.0, 1.0], &[1.0, 2.0, 6.0], &[2.0, 3.0, 5.0], &[2.0, 3.0, 5.0]);
    // Compliances 1, 4 and 1/2 share a gap of 11.
    check(&PAIR, &[1.0, 0.25, 2.0], &[1.0, 2.0, 14.0], &[3.0, 10.0, 13.0], &[3.0, 10.0, 13.0]);
}

#[test]
fn a_leaf_that_would_be_negative_is_zero_and_the_others_give_way_again() {
    // Free, the gap is -6. With the first leaf at zero, the second and the total share a gap of -8.
    check(&PAIR, &[1.0; 3], &[-2.0, 10.0, 2.0], &[-4.0, 8.0, 4.0], &[0.0, 6.0, 6.0]);
}

#[test]
fn an_unmeasured_total_changes_nothing() {
    check(&PAIR, &[1.0, 3.0, 0.0], &[-1.0, 2.0, 1e9], &[-1.0, 2.0, 1.0], &[0.0, 2.0, 2.0]);
}

#[test]
fn negative_targets_all_become_zero() {
    let tree = Tree::new(&shapes::day(), &[0.7; 53]).unwrap();
    let out = project(&tree, &[-3.0; 53], true);
    assert!(out.iter().all(|value| value.to_bits() == 0), "{out:?}");
}

#[test]
fn ties_are_shared_evenly() {
    // Four equal leaves and a total of zero: the unconstrained answer touches zero nowhere, the other is all zeros.
    check(&shapes::star(4), &[1.0; 5], &[-5.0, 1.0, 1.0, 1.0, 1.0], &[-3.2, -0.8, -0.8, -0.8, -0.8], &[0.0; 5]);
    check(
        &shapes::star(4),
        &[1.0; 5],
        &[6.5, 1.0, 1.0, 1.0, 1.0],
        &[6.0, 1.5, 1.5, 1.5, 1.5],
        &[6.0, 1.5, 1.5, 1.5, 1.5],
    );
}

#[test]
fn a_path_is_the_weighted_mean_of_its_targets() {
    check(&[None, Some(0), Some(1)], &[1.0, 0.0, 3.0], &[8.0, 99.0, 4.0], &[5.0; 3], &[5.0; 3]);
    check(&[None, Some(0), Some(1)], &[1.0, 0.0, 3.0], &[8.0, 99.0, -4.0], &[-1.0; 3], &[0.0; 3]);
}

#[test]
fn trees_of_a_forest_do_not_know_each_other() {
    let parents = [None, Some(0), Some(0), None, Some(3), Some(3)];
    let targets = [6.0, 1.0, 2.0, 2.0, -2.0, 10.0];
    check(&parents, &[1.0; 6], &targets, &[5.0, 2.0, 3.0, 4.0, -4.0, 8.0], &[5.0, 2.0, 3.0, 6.0, 0.0, 6.0]);
}

#[test]
fn targets_that_add_up_are_returned_unchanged() {
    let parents = shapes::day();
    let mut targets: Vec<f64> = (0..53).map(|step| f64::from(step).sqrt() / 3.0).collect();
    targets[48..].fill(0.0);
    for node in 0..52 {
        targets[parents[node].unwrap()] += targets[node];
    }
    let weights: Vec<f64> = (0..53).map(|node| 0.1 + f64::from(node)).collect();
    let tree = Tree::new(&parents, &weights).unwrap();
    assert_eq!(project(&tree, &targets, true), targets);
}
