//! Every misuse is refused by a message that names the parameter, the index, the value and the bound.

use optstream_post::Error;
use optstream_post::tree::{Bounds, Tree, Workspace};

fn refused(parents: &[Option<usize>], weights: &[f64]) -> String {
    Tree::new(parents, weights).unwrap_err().to_string()
}

#[test]
fn forests_that_are_none() {
    assert_eq!(refused(&[], &[]), "length of parents is 0, but must be at least 1");
    assert_eq!(refused(&[None, None], &[1.0]), "length of weights is 1, but must be 2");
    assert_eq!(refused(&[None, Some(2)], &[1.0; 2]), "parents[1] is 2, but must be below the number of nodes, 2");
    assert_eq!(refused(&[None, Some(1)], &[1.0; 2]), "parents[1] is 1, but must be no descendant of the node itself");
}

#[test]
fn a_cycle_is_named_even_if_seen_from_below() {
    // 0 -> 1 -> {2, 3, 2, ...}
    let error = Tree::new(&[Some(1), Some(2), Some(3), Some(2), None], &[1.0; 5]).unwrap_err();
    assert!(matches!(error, Error::Entry { name: "parents", index: 2 | 3, .. }), "{error}");
}

#[test]
fn weights_out_of_bounds() {
    let pair = [Some(1), None];
    let leaf = "from 1e-100 to 1e100, since the node is a leaf";
    assert_eq!(refused(&pair, &[0.0, 1.0]), format!("weights[0] is 0, but must be {leaf}"));
    assert_eq!(refused(&pair, &[f64::NAN, 1.0]), format!("weights[0] is NaN, but must be {leaf}"));
    assert_eq!(refused(&pair, &[1.0, -1.0]), "weights[1] is -1, but must be 0 or from 1e-100 to 1e100");
    assert_eq!(refused(&pair, &[1.0, f64::INFINITY]), "weights[1] is inf, but must be 0 or from 1e-100 to 1e100");
}

#[test]
fn targets_and_lengths_that_do_not_fit() {
    let tree = Tree::new(&[Some(1), None], &[1.0; 2]).unwrap();
    let mut out = [7.0; 2];
    let mut refusal = |targets: &[f64]| {
        tree.project(targets, Bounds::NONNEGATIVE, &mut Workspace::new(), &mut out).unwrap_err().to_string()
    };
    assert_eq!(refusal(&[1.0]), "length of targets is 1, but must be 2");
    assert_eq!(refusal(&[1.0, f64::NAN]), "targets[1] is NaN, but must be finite and at most 1e100 in size");
    assert_eq!(refusal(&[f64::NEG_INFINITY, 1.0]), "targets[0] is -inf, but must be finite and at most 1e100 in size");
    assert!(
        out.iter().all(|&value| value.to_bits() == 7.0_f64.to_bits()),
        "a refused request leaves the output as it was"
    );

    let many = |targets: &[f64], threads, out: &mut [f64]| {
        tree.project_many(targets, Bounds::NONNEGATIVE, threads, out).unwrap_err().to_string()
    };
    assert_eq!(many(&[1.0; 4], 0, &mut [0.0; 4]), "threads is 0, but must be at least 1");
    assert_eq!(
        many(&[1.0; 3], 1, &mut [0.0; 3]),
        "length of targets is 3, but must be a multiple of the number of nodes, 2"
    );
    assert_eq!(many(&[1.0; 4], 1, &mut [0.0; 2]), "length of out is 2, but must be 4");
    let message = many(&[1.0, 1.0, 1.0, f64::NAN], 2, &mut [0.0; 4]);
    assert_eq!(message, "targets[3] is NaN, but must be finite and at most 1e100 in size");
}
