//! Agreement with a slow reference that shares no idea with the solver: every set of leaves is tried as the set of
//! those that are not zero, with a dense solve in terms of the leaves.

use optstream_post::tree::Tree;
use proptest::prelude::*;

use crate::shapes::{self, any_forest};
use crate::{assert_adds_up, project};

/// The problem in terms of its leaves: minimise `x' matrix x - 2 vector' x`.
struct Dense {
    leaves: Vec<usize>,
    matrix: Vec<Vec<f64>>,
    vector: Vec<f64>,
}

impl Dense {
    fn new(parents: &[Option<usize>], weights: &[f64], targets: &[f64]) -> Self {
        let is_leaf = shapes::leaves(parents);
        let leaves: Vec<usize> = (0..parents.len()).filter(|&node| is_leaf[node]).collect();
        let path = |leaf: usize| std::iter::successors(Some(leaf), |&node| parents[node]);
        let shared =
            |leaf, other| path(leaf).filter(|&node| path(other).any(|also| also == node)).map(|v| weights[v]).sum();
        let matrix = leaves.iter().map(|&leaf| leaves.iter().map(|&other| shared(leaf, other)).collect()).collect();
        let vector = leaves.iter().map(|&leaf| path(leaf).map(|node| weights[node] * targets[node]).sum()).collect();
        Self { leaves, matrix, vector }
    }

    /// The minimiser among those that vanish outside `support`.
    fn minimiser(&self, support: &[usize]) -> Vec<f64> {
        let mut rows: Vec<Vec<f64>> = support
            .iter()
            .map(|&i| support.iter().map(|&j| self.matrix[i][j]).chain([self.vector[i]]).collect())
            .collect();
        for pivot in 0..rows.len() {
            let head = rows[pivot].clone();
            for row in rows.iter_mut().skip(pivot + 1) {
                let factor = row[pivot] / head[pivot];
                row.iter_mut().zip(&head).for_each(|(entry, above)| *entry -= factor * above);
            }
        }
        let mut values = vec![0.0; self.leaves.len()];
        for (place, row) in rows.iter().enumerate().rev() {
            let known: f64 = (place + 1..support.len()).map(|later| row[later] * values[support[later]]).sum();
            values[support[place]] = (row[support.len()] - known) / row[place];
        }
        values
    }

    fn cost(&self, values: &[f64]) -> f64 {
        let product = |row: &Vec<f64>| row.iter().zip(values).map(|(entry, value)| entry * value).sum::<f64>();
        (0..values.len()).map(|i| values[i] * (product(&self.matrix[i]) - 2.0 * self.vector[i])).sum()
    }

    /// The best of the minimisers over all supports that are not negative.
    fn nonnegative(&self) -> Vec<f64> {
        let count = self.leaves.len();
        let supports =
            (0_u32..1 << count).map(|set| (0..count).filter(|&leaf| set >> leaf & 1 == 1).collect::<Vec<_>>());
        let candidates =
            supports.map(|support| self.minimiser(&support)).filter(|x| x.iter().all(|&value| value >= 0.0));
        candidates.min_by(|a, b| self.cost(a).total_cmp(&self.cost(b))).unwrap()
    }
}

/// A forest of at most eight leaves with weights and targets; small integers make exact ties frequent.
fn problem() -> impl Strategy<Value = (Vec<Option<usize>>, Vec<f64>, Vec<f64>)> {
    any_forest(13)
        .prop_filter("at most eight leaves", |parents| {
            shapes::leaves(parents).iter().filter(|&&leaf| leaf).count() <= 8
        })
        .prop_flat_map(|parents| {
            let weight = |is_leaf| {
                if is_leaf {
                    prop_oneof![Just(1.0), 0.01..100.0].boxed()
                } else {
                    prop_oneof![Just(0.0), Just(1.0), 0.01..100.0].boxed()
                }
            };
            let weights: Vec<_> = shapes::leaves(&parents).into_iter().map(weight).collect();
            let targets = prop::collection::vec(prop_oneof![(-4..6).prop_map(f64::from), -100.0..150.0], parents.len());
            (Just(parents), weights, targets)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Both solves find the same leaves as the reference, up to the accuracy of the reference.
    #[test]
    fn the_reference_agrees((parents, weights, targets) in problem()) {
        let tree = Tree::new(&parents, &weights).unwrap();
        let dense = Dense::new(&parents, &weights, &targets);
        let everything: Vec<usize> = (0..dense.leaves.len()).collect();
        for (nonnegative, expected) in [(false, dense.minimiser(&everything)), (true, dense.nonnegative())] {
            let out = project(&tree, &targets, nonnegative);
            for (&leaf, expected) in dense.leaves.iter().zip(expected) {
                prop_assert!((out[leaf] - expected).abs() < 1e-7, "leaf {leaf}: {} instead of {expected}", out[leaf]);
            }
            assert_adds_up(&parents, &out);
        }
    }
}
