//! The conditions of optimality, which are sufficient since the problem is convex, on trees of every shape.

use optstream_post::tree::{Bounds, Tree};
use proptest::prelude::*;

use crate::shapes::{self, Parents};
use crate::{assert_adds_up, project, project_between};

/// Asserts that no leaf can be moved to lower the cost, to 1e-9 of the sizes of the terms.
///
/// Half the derivative of the cost by a leaf is the sum of `a (x - c)` along its path to the root. It must vanish, or
/// may be positive if the leaf is at its lower bound and negative at its upper one. The size of a term is `a (|c| + m)`, where `m` sums the sizes of the leaves
/// below.
pub fn assert_optimal(
    parents: &[Option<usize>],
    weights: &[f64],
    targets: &[f64],
    (lower, upper): (f64, f64),
    out: &[f64],
) {
    let order = shapes::top_down(parents);
    let is_leaf = shapes::leaves(parents);
    let mut size: Vec<f64> = (0..out.len()).map(|node| if is_leaf[node] { out[node].abs() } else { 0.0 }).collect();
    for &node in order.iter().rev() {
        if let Some(parent) = parents[node] {
            size[parent] += size[node];
        }
    }
    let mut slope = vec![0.0; out.len()];
    let mut scale = vec![0.0; out.len()];
    for &node in &order {
        let (above, above_scale) = parents[node].map_or((0.0, 0.0), |parent| (slope[parent], scale[parent]));
        slope[node] = above + weights[node] * (out[node] - targets[node]);
        scale[node] = above_scale + weights[node] * (targets[node].abs() + size[node]);
        if is_leaf[node] {
            let tolerance = 1e-9 * scale[node];
            assert!(out[node].is_finite() && lower <= out[node] && out[node] <= upper, "out[{node}] = {}", out[node]);
            assert!(
                (out[node] - upper).abs() <= 0.0 || slope[node] >= -tolerance,
                "raising leaf {node} from {}: {:e}, {tolerance:e}",
                out[node],
                slope[node]
            );
            assert!(
                (out[node] - lower).abs() <= 0.0 || slope[node] <= tolerance,
                "lowering leaf {node}: {:e}, {tolerance:e}",
                slope[node]
            );
        }
    }
}

fn shape() -> impl Strategy<Value = Parents> {
    prop_oneof![
        Just(shapes::day()),
        (1_usize..80).prop_map(shapes::star),
        (1_usize..127).prop_map(shapes::binary),
        (1_usize..60).prop_map(shapes::caterpillar),
        shapes::any_forest(100),
    ]
}

/// Targets of size up to 1e6, some of them small, tied or zero.
fn target() -> impl Strategy<Value = f64> {
    let wide = (-6.0..6.0, prop::bool::weighted(0.4))
        .prop_map(|(exponent, minus): (f64, bool)| if minus { -10_f64.powf(exponent) } else { 10_f64.powf(exponent) });
    prop_oneof![wide, -1e6..1e6, (-3..4).prop_map(f64::from), Just(1e6), Just(-1e6)]
}

/// Weights from 1e-12 to 1e3, or few different ones.
fn weight(is_leaf: bool) -> BoxedStrategy<f64> {
    let measured =
        prop_oneof![(-12.0..3.0).prop_map(|exponent: f64| 10_f64.powf(exponent)), Just(1.0), Just(1e-12), Just(1e3)];
    if is_leaf { measured.boxed() } else { prop_oneof![4 => measured, 1 => Just(0.0)].boxed() }
}

fn bounds() -> impl Strategy<Value = (f64, f64)> {
    let width = prop_oneof![Just(f64::INFINITY), Just(1.0), 1e-3..1e6];
    prop_oneof![
        (prop_oneof![Just(0.0), -1e3..1e3, Just(-1e6), Just(1e4)], width)
            .prop_map(|(lower, width)| (lower, lower + width)),
        (-1e3..1e3).prop_map(|upper| (f64::NEG_INFINITY, upper)),
        (-5.0..5.0).prop_map(|value| (value, value)),
    ]
}

fn problem() -> impl Strategy<Value = (Parents, Vec<f64>, Vec<f64>)> {
    shape().prop_flat_map(|parents| {
        let weights: Vec<_> = shapes::leaves(&parents).into_iter().map(weight).collect();
        let targets = prop::collection::vec(target(), parents.len());
        (Just(parents), weights, targets)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Weights over fifteen orders of magnitude, exact ties and zero weights leave no solve short of its optimum.
    #[test]
    fn no_leaf_can_be_improved((parents, weights, targets) in problem()) {
        let tree = Tree::new(&parents, &weights).unwrap();
        for lower in [f64::NEG_INFINITY, 0.0] {
            let out = project_between(&tree, &targets, Bounds::new(lower, f64::INFINITY));
            assert_optimal(&parents, &weights, &targets, (lower, f64::INFINITY), &out);
            assert_adds_up(&parents, &out);
        }
    }

    /// The same between any bounds, on one side or on both, near zero or far from it.
    #[test]
    fn no_leaf_can_be_improved_between_bounds((parents, weights, targets) in problem(), bounds in bounds()) {
        let tree = Tree::new(&parents, &weights).unwrap();
        let out = project_between(&tree, &targets, Bounds::new(bounds.0, bounds.1));
        assert_optimal(&parents, &weights, &targets, bounds, &out);
        assert_adds_up(&parents, &out);
    }

    /// Where most leaves are at one of two bounds and weights differ by fifteen orders, floats misplace breakpoints.
    #[test]
    fn slopes_that_differ_by_all_digits_misplace_no_leaf(
        (parents, weights, targets) in prop_oneof![(20_usize..80).prop_map(shapes::star), Just(shapes::day())]
            .prop_flat_map(|parents| {
                let weight = || prop::sample::select(vec![1e-12, 1.0, 1e3, 0.01]);
                let weights = prop::collection::vec(weight(), parents.len());
                let targets = prop::collection::vec(target(), parents.len());
                (Just(parents), weights, targets)
            }),
        upper in 1e2..1e6_f64,
    ) {
        let tree = Tree::new(&parents, &weights).unwrap();
        for (lower, upper) in [(0.0, upper), (-upper, 0.0)] {
            // Every answer is checked by the solve itself, up to what rounding of such weights allows.
            let out = project_between(&tree, &targets, Bounds::new(lower, upper));
            assert_adds_up(&parents, &out);
        }
    }

    /// A stream and its negative are projected alike.
    #[test]
    fn reflections_are_projected_to_reflections((parents, weights, targets) in problem(), bounds in bounds()) {
        let tree = Tree::new(&parents, &weights).unwrap();
        let out = project_between(&tree, &targets, Bounds::new(bounds.0, bounds.1));
        let mirrored: Vec<f64> = targets.iter().map(|target| -target).collect();
        let other = project_between(&tree, &mirrored, Bounds::new(-bounds.1, -bounds.0));
        let size = targets.iter().fold(1.0_f64, |size, target| size.max(target.abs()));
        let moderate = weights.iter().all(|&weight| weight == 0.0 || weight >= 1e-3);
        for (one, other) in out.iter().zip(other) {
            prop_assert!(!moderate || (one + other).abs() <= 1e-6 * size, "{one} and {other}");
        }
    }

    /// Memory that has served another tree does not change an answer.
    #[test]
    fn a_workspace_remembers_nothing(first in problem(), second in problem()) {
        let mut workspace = optstream_post::tree::Workspace::new();
        for (parents, weights, targets) in [first, second] {
            let tree = Tree::new(&parents, &weights).unwrap();
            let mut out = vec![0.0; tree.len()];
            tree.project(&targets, Bounds::NONNEGATIVE, &mut workspace, &mut out).unwrap();
            prop_assert_eq!(out, project(&tree, &targets, true));
        }
    }

    /// Any number of threads gives the rows that single solves give.
    #[test]
    fn many_rows_are_single_solves(
        (parents, weights, _) in problem(), seed in prop::collection::vec(target(), 700), threads in 1_usize..6
    ) {
        let tree = Tree::new(&parents, &weights).unwrap();
        let targets = &seed[..seed.len() / tree.len() * tree.len()];
        let mut out = vec![f64::NAN; targets.len()];
        tree.project_many(targets, Bounds::NONNEGATIVE, threads, &mut out).unwrap();
        let single: Vec<f64> = targets.chunks(tree.len()).flat_map(|row| project(&tree, row, true)).collect();
        prop_assert_eq!(out, single);
    }
}
