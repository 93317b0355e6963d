//! Trees of 100,000 nodes and more: deep ones do not exhaust the stack, wide ones stay accurate, none takes long.

use optstream_post::tree::{Bounds, Tree};

use crate::conditions::assert_optimal;
use crate::shapes::{self, Parents};
use crate::{assert_adds_up, project, project_between};

const SIZE: usize = 100_000;

/// Repeatable numbers from -1 to 1, since a failure at this size is not worth shrinking.
fn noise(seed: u64) -> impl Iterator<Item = f64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(state >> 32).unwrap()) / f64::from(u32::MAX) * 2.0 - 1.0
    })
}

/// Solves for noisy targets and weights over many orders of magnitude, with constraints that bind.
fn check(parents: &Parents, orders: f64, offset: f64) {
    // Between two bounds a tree as deep as it is large may take quadratic time.
    let is_wide = shapes::leaves(parents).iter().filter(|&&leaf| leaf).count() > parents.len() * 3 / 4;
    let weights: Vec<f64> = noise(1).map(|draw| 10_f64.powf(orders * draw)).take(parents.len()).collect();
    let targets: Vec<f64> = noise(2).map(|draw| 1e3 * (draw + offset)).take(parents.len()).collect();
    let tree = Tree::new(parents, &weights).unwrap();
    let two_sided = (parents.len() < SIZE || is_wide).then_some((-100.0, 50.0));
    let one_sided = [(f64::NEG_INFINITY, f64::INFINITY), (0.0, f64::INFINITY)];
    for bounds in one_sided.into_iter().chain(two_sided) {
        let out = project_between(&tree, &targets, Bounds::new(bounds.0, bounds.1));
        assert_optimal(parents, &weights, &targets, bounds, &out);
        assert_adds_up(parents, &out);
        assert!(bounds.0 >= -100.0 || out.iter().any(|&value| value < 0.0), "the constraints do not bind");
    }
}

#[test]
fn a_path() {
    check(&(0..SIZE).map(|node: usize| node.checked_sub(1)).collect(), 3.0, -0.1);
}

#[test]
fn a_star() {
    check(&shapes::star(SIZE), 0.0, 0.1);
    check(&shapes::star(SIZE), 6.0, 0.1);
}

#[test]
fn a_caterpillar() {
    check(&shapes::caterpillar(SIZE / 2), 0.0, 0.0);
    check(&shapes::caterpillar(SIZE / 2), 6.0, 0.2);
    check(&shapes::caterpillar(1000), 0.0, 0.0);
    check(&shapes::caterpillar(1000), 3.0, 0.2);
}

#[test]
fn a_path_above_a_star() {
    let mut parents: Parents = (0..SIZE / 2).map(|node: usize| node.checked_sub(1)).collect();
    parents.resize(SIZE, Some(SIZE / 2 - 1));
    check(&parents, 2.0, 0.0);
}

#[test]
fn a_hierarchy() {
    check(&shapes::levels(&[50, 40, 50]), 0.0, 0.1);
    check(&shapes::levels(&[50, 40, 50]), 6.0, 0.1);
    check(&shapes::levels(&[2; 16]), 6.0, 0.1);
}

/// Light leaves of size 1e6 below a heavy total of 1: every value is a tiny difference of large numbers.
#[test]
fn a_total_far_below_its_parts() {
    let parents = shapes::star(SIZE);
    for total in [1.0, 1e-7, -1.0] {
        let weights: Vec<f64> = std::iter::once(1e3).chain(std::iter::repeat_n(1e-12, SIZE)).collect();
        let targets: Vec<f64> = std::iter::once(total).chain(noise(3).map(|draw| 1e6 + draw).take(SIZE)).collect();
        let tree = Tree::new(&parents, &weights).unwrap();
        for lower in [f64::NEG_INFINITY, 0.0] {
            let out = project_between(&tree, &targets, Bounds::new(lower, f64::INFINITY));
            assert_optimal(&parents, &weights, &targets, (lower, f64::INFINITY), &out);
        }
    }
}

/// Light leaves below fifty heavy totals: the price at which the last of them would leave zero exceeds every float.
#[test]
fn thresholds_beyond_all_floats() {
    let parents = shapes::caterpillar(50);
    let weights: Vec<f64> =
        shapes::leaves(&parents).into_iter().map(|is_leaf| if is_leaf { 1e-12 } else { 1e3 }).collect();
    let targets: Vec<f64> = noise(4).map(|draw| 1e6 * (draw + 0.3)).take(parents.len()).collect();
    let tree = Tree::new(&parents, &weights).unwrap();
    assert_optimal(&parents, &weights, &targets, (0.0, f64::INFINITY), &project(&tree, &targets, true));
}
