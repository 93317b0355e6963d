//! Weighted least squares over a tree and over time at once: values that add up over nodes and over features.
//!
//! Unknown is one value `z` per leaf and step. The answers are sums of them: of every node at every step, and of every
//! node over every cell of some partitions of the steps. An answer weighs `a_n b_t` or `a_n c_f`, a weight of its node
//! times one of its step or feature, so that the matrix of the problem is a Kronecker product `H x T`:
//! `H = sum_n a_n s_n s_n'` over the nodes, with `s_n` marking the leaves below `n`, and `T = diag(b) + sum_f c_f F_f`,
//! with `F_f` marking pairs of steps in one cell. Neither matrix is ever formed.
//!
//! With `z` between bounds the conditions of optimality are a linear complementarity problem with a positive definite matrix. Block
//! principal pivoting (Portugal, Judice and Vicente 1994) ends at its solution: solve for the values taken as between,
//! exchange those beyond a bound or pulled away from one (Judice and Pires 1992), and fall back to exchanging one at a time when that does not help. Each solve is one
//! of conjugate gradients, preconditioned by the exact inverse of `H x diag(T)` on the free values, which two passes
//! over the tree apply. What is left for the iteration is `diag(T)^-1 T`, whose eigenvalues are few, whatever the tree.

use crate::Error;
use crate::tree::Bounds;

/// Largest violation of the conditions of optimality, relative to the largest entry of the right-hand side.
pub const TOLERANCE: f64 = 1e-9;
/// How exactly the equations are solved while the signs are still changing, and once they have settled.
const ROUGH: f64 = 1e-7;
const FINE: f64 = 1e-10;
/// Rounds of exchanges before the solution is given up.
const ROUNDS: usize = 1000;
/// Rounds of full exchanges without progress before single ones.
const PATIENCE: usize = 3;
/// Iterations of one solve before it is given up.
const ITERATIONS: usize = 1000;

/// A tree of nodes, partitions of the steps and weights, ready to be solved for many answers.
#[derive(Debug, Clone)]
pub struct Product {
    /// For each node the parent, which comes before it; the first node is the root.
    parent: Vec<Option<usize>>,
    node_weight: Vec<f64>,
    /// The nodes that are leaves, in order, and those that are not.
    leaves: Vec<usize>,
    inner: Vec<usize>,
    step_weight: Vec<f64>,
    /// For each feature the cell of each step, the number of cells and the weight.
    features: Vec<(Vec<usize>, usize, f64)>,
    /// The diagonal of `T`.
    diagonal: Vec<f64>,
    /// The inverse of `T`, row after row.
    time_inverse: Vec<f64>,
}

impl Product {
    /// Prepares the problem. Nodes are in an order in which parents come before their children. `time_inverse` holds the
    /// rows of the inverse of `T`, with which a problem in which nothing is held at a bound is solved at once; it decides how
    /// fast the optimum is found, not what it is.
    ///
    /// # Errors
    /// [`Error::Parameter`] if there is no node or no step, or lengths differ; [`Error::Entry`] if a parent does not come
    /// before its child, or a weight is not positive and finite.
    pub fn new(
        parents: &[Option<usize>],
        node_weights: &[f64],
        step_weights: &[f64],
        features: &[(Vec<usize>, f64)],
        time_inverse: &[f64],
    ) -> Result<Self, Error> {
        if parents.is_empty() || step_weights.is_empty() {
            return Err(Error::parameter("number of nodes and steps", 0, "at least 1"));
        }
        Error::unless_length("length of node_weights", node_weights.len(), parents.len())?;
        let mut is_leaf = vec![true; parents.len()];
        for (node, &parent) in parents.iter().enumerate() {
            match parent {
                Some(parent) if parent < node => is_leaf[parent] = false,
                None if node == 0 => {}
                _ => {
                    return Err(Error::entry(
                        "parents",
                        node,
                        format!("{parent:?}"),
                        "a node before it, or none for 0",
                    ));
                }
            }
        }
        let feature_weights: Vec<f64> = features.iter().map(|&(_, weight)| weight).collect();
        for (name, weights) in
            [("node_weights", node_weights), ("step_weights", step_weights), ("feature weights", &feature_weights)]
        {
            if let Some(index) = weights.iter().position(|weight| !(weight.is_finite() && *weight > 0.0)) {
                return Err(Error::entry(name, index, weights[index], "positive and finite"));
            }
        }
        Error::unless_length("length of time_inverse", time_inverse.len(), step_weights.len() * step_weights.len())?;
        for (labels, _) in features {
            Error::unless_length("length of labels", labels.len(), step_weights.len())?;
            if let Some(index) = labels.iter().position(|&label| label >= step_weights.len()) {
                return Err(Error::entry("labels", index, labels[index], "less than the number of steps"));
            }
        }
        let (leaves, inner) = (0..parents.len()).partition(|&node| is_leaf[node]);
        let total: f64 = feature_weights.iter().sum();
        let cells = |labels: &[usize]| labels.iter().max().map_or(0, |last| last + 1);
        Ok(Self {
            parent: parents.to_vec(),
            node_weight: node_weights.to_vec(),
            leaves,
            inner,
            step_weight: step_weights.to_vec(),
            features: features.iter().map(|(labels, weight)| (labels.clone(), cells(labels), *weight)).collect(),
            diagonal: step_weights.iter().map(|weight| weight + total).collect(),
            time_inverse: time_inverse.to_vec(),
        })
    }

    /// The number of nodes and the number of steps.
    #[must_use]
    pub const fn shape(&self) -> (usize, usize) {
        (self.parent.len(), self.step_weight.len())
    }

    /// The number of leaves.
    #[must_use]
    pub const fn leaves(&self) -> usize {
        self.leaves.len()
    }

    /// The number of cells of all features together.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.features.iter().map(|&(_, size, _)| size).sum()
    }

    /// Finds the values of the leaves, a row of steps per leaf, from the answers: a row of steps and a row of cells per
    /// node.
    ///
    /// # Guarantee
    /// With `g = (H x T) z - r` and `r` the right-hand side of the normal equations, `z` lies between the bounds,
    /// `g >= -e` where it is not at the upper one and `g <= e` where it is not at the lower one, for `e` of
    /// [`TOLERANCE`] times the largest entry of `r`, or of the image of the bound next to zero if that is larger.
    ///
    /// # Errors
    /// [`Error::Parameter`] if a length is wrong, [`Error::Entry`] if an answer is not finite, [`Error::NotOptimal`] if
    /// the conditions are not met.
    pub fn project(&self, steps: &[f64], cells: &[f64], bounds: Bounds) -> Result<Vec<f64>, Error> {
        bounds.check()?;
        Error::unless_length("length of steps", steps.len(), self.parent.len() * self.step_weight.len())?;
        Error::unless_length("length of cells", cells.len(), self.parent.len() * self.cells())?;
        for (name, values) in [("steps", steps), ("cells", cells)] {
            if let Some(index) = values.iter().position(|value| !value.is_finite()) {
                return Err(Error::entry(name, index, values[index], "finite"));
            }
        }
        let right = self.right_hand_side(steps, cells);
        let mut work = Work::new(self, right, bounds);
        work.start(self);
        work.pivot(self)?;
        Ok(work.found)
    }

    /// The sum over each leaf's path of the weighted answers.
    fn right_hand_side(&self, steps: &[f64], cells: &[f64]) -> Vec<f64> {
        let w = self.step_weight.len();
        let mut gathered = steps.to_vec();
        for row in gathered.chunks_mut(w) {
            row.iter_mut().zip(&self.step_weight).for_each(|(value, weight)| *value *= weight);
        }
        let width = self.cells();
        if width > 0 {
            for (row, cells) in gathered.chunks_mut(w).zip(cells.chunks(width)) {
                let mut rest = cells;
                for (labels, size, weight) in &self.features {
                    let (own, others) = rest.split_at(*size);
                    row.iter_mut().zip(labels).for_each(|(value, &label)| *value += weight * own[label]);
                    rest = others;
                }
            }
        }
        let mut right = vec![0.0; self.leaves.len() * w];
        self.path_sums(&mut gathered, &mut right);
        right
    }

    /// Multiplies the rows of the nodes by their weights and sums them along the path to each leaf.
    fn path_sums(&self, nodes: &mut [f64], leaves: &mut [f64]) {
        let w = self.step_weight.len();
        for &node in &self.inner {
            let (before, row) = nodes.split_at_mut(node * w);
            weigh(&mut row[..w], self.node_weight[node], self.parent[node].map(|parent| &before[parent * w..]));
        }
        for (out, &node) in leaves.chunks_mut(w).zip(&self.leaves) {
            out.copy_from_slice(&nodes[node * w..(node + 1) * w]);
            weigh(out, self.node_weight[node], self.parent[node].map(|parent| &nodes[parent * w..]));
        }
    }

    /// Adds the row of every inner node to that of its parent, children first, after `visit` has seen it.
    fn add_upwards(&self, nodes: &mut [f64], visit: impl Fn(usize, &mut [f64])) {
        let w = self.step_weight.len();
        for &node in self.inner.iter().rev() {
            let (before, row) = nodes.split_at_mut(node * w);
            visit(node, &mut row[..w]);
            if let Some(parent) = self.parent[node] {
                add(&mut before[parent * w..], &row[..w]);
            }
        }
    }

    /// Sets the rows of the inner nodes to zero.
    fn clear_inner(&self, nodes: &mut [f64]) {
        let w = self.step_weight.len();
        for &node in &self.inner {
            nodes[node * w..(node + 1) * w].fill(0.0);
        }
    }

    /// `(H x T) z`, with `nodes` as scratch memory of a row per node.
    fn multiply(&self, leaves: &[f64], nodes: &mut [f64], out: &mut [f64]) {
        let w = self.step_weight.len();
        self.clear_inner(nodes);
        let mut sums = Vec::new();
        for (row, &node) in leaves.chunks(w).zip(&self.leaves) {
            let along = &mut nodes[node * w..(node + 1) * w];
            along
                .iter_mut()
                .zip(row.iter().zip(&self.step_weight))
                .for_each(|(out, (value, weight))| *out = value * weight);
            for (labels, size, weight) in &self.features {
                sums.clear();
                sums.resize(*size, 0.0);
                row.iter().zip(labels).for_each(|(value, &label)| sums[label] += value);
                along.iter_mut().zip(labels).for_each(|(value, &label)| *value += weight * sums[label]);
            }
            if let Some(parent) = self.parent[node] {
                let (before, along) = nodes.split_at_mut(node * w);
                add(&mut before[parent * w..], &along[..w]);
            }
        }
        self.add_upwards(nodes, |_, _| {});
        self.path_sums(nodes, out);
    }
}

/// One solution on its way.
struct Work {
    right: Vec<f64>,
    scale: f64,
    bounds: Bounds,
    found: Vec<f64>,
    /// Whether each value is taken as between the bounds, as 1 or 0. What is not is at one of them.
    free: Vec<f64>,
    /// The smallest entry on the diagonal of the matrix: a value times this is of the size of the right-hand side.
    unit: f64,
    /// The image of the values under the matrix.
    image: Vec<f64>,
    /// Scratch memory: a row per node, twice.
    nodes: [Vec<f64>; 2],
}

impl Work {
    fn new(problem: &Product, right: Vec<f64>, bounds: Bounds) -> Self {
        let size = problem.leaves() * problem.step_weight.len();
        let smallest = |weights: &[f64]| weights.iter().copied().fold(f64::INFINITY, f64::min);
        let unit = smallest(&problem.node_weight) * smallest(&problem.diagonal);
        let nodes = || vec![0.0; problem.parent.len() * problem.step_weight.len()];
        let (mut nodes, mut image) = ([nodes(), nodes()], vec![0.0; size]);
        // Bounds that are far from zero make what is compared larger than the right-hand side.
        problem.multiply(&vec![bounds.clamp(0.0); size], &mut nodes[0], &mut image);
        let scale = largest(&right).max(largest(&image));
        Self { right, scale, bounds, found: vec![0.0; size], free: vec![1.0; size], unit, image, nodes }
    }

    /// The optimum without signs, `H^-1 x T^-1` times the right-hand side; what is beyond a bound there is first held at it.
    fn start(&mut self, problem: &Product) {
        let w = problem.step_weight.len();
        let mut along_time = vec![0.0; self.right.len()];
        for (row, out) in self.right.chunks(w).zip(along_time.chunks_mut(w)) {
            for (&value, inverse) in row.iter().zip(problem.time_inverse.chunks(w)) {
                out.iter_mut().zip(inverse).for_each(|(sum, entry)| *sum += value * entry);
            }
            // The inverse below divides by the diagonal of `T`, which has been dealt with.
            out.iter_mut().zip(&problem.diagonal).for_each(|(value, diagonal)| *value *= diagonal);
        }
        let inverse = Inverse::of(problem, &self.free);
        inverse.multiply(problem, &along_time, &mut self.nodes, &mut self.found);
        for (value, free) in self.found.iter_mut().zip(&mut self.free) {
            let nearest = self.bounds.clamp(*value);
            if (nearest - *value).abs() > 0.0 {
                (*value, *free) = (nearest, 0.0);
            }
        }
    }

    /// How far a value is between its bounds, or its gradient on the right side of zero, in the unit of the gradient.
    fn margin(&self, at: usize) -> f64 {
        let (value, Bounds { lower, upper }) = (self.found[at], self.bounds);
        if self.free[at] > 0.0 {
            return (value - lower).min(upper - value) * self.unit;
        }
        let gradient = self.image[at] - self.right[at];
        match (value <= lower, value >= upper) {
            (true, true) => 0.0,
            (true, false) => gradient,
            _ => -gradient,
        }
    }

    /// Block principal pivoting until every value is between its bounds and every gradient has its sign.
    fn pivot(&mut self, problem: &Product) -> Result<(), Error> {
        let (mut fewest, mut patience, mut accuracy) = (usize::MAX, PATIENCE, ROUGH);
        for _ in 0..ROUNDS {
            self.solve(problem, accuracy)?;
            problem.multiply(&self.found, &mut self.nodes[0], &mut self.image);
            // What the accuracy of the solution cannot tell from zero counts as zero.
            let slack = -2.0 * accuracy * self.scale;
            let wrong: Vec<usize> = (0..self.found.len()).filter(|&at| slack > self.margin(at)).collect();
            if wrong.is_empty() {
                if accuracy <= FINE {
                    return self.check(problem);
                }
                (fewest, patience, accuracy) = (usize::MAX, PATIENCE, FINE);
                continue;
            }
            let exchanged = if wrong.len() < fewest {
                (fewest, patience) = (wrong.len(), PATIENCE);
                &wrong[..]
            } else if patience > 0 {
                patience -= 1;
                &wrong[..]
            } else {
                &wrong[wrong.len() - 1..]
            };
            for &at in exchanged {
                self.free[at] = 1.0 - self.free[at];
                self.found[at] = self.bounds.clamp(self.found[at]);
            }
        }
        Err(self.not_optimal(f64::INFINITY))
    }

    /// Solves the equations of the free values by conjugate gradients, from where the last solution stands.
    fn solve(&mut self, problem: &Product, accuracy: f64) -> Result<(), Error> {
        let inverse = Inverse::of(problem, &self.free);
        problem.multiply(&self.found, &mut self.nodes[0], &mut self.image);
        let image = &self.image;
        let mut residual: Vec<f64> =
            self.right.iter().zip(image).zip(&self.free).map(|((right, image), free)| free * (right - image)).collect();
        let mut direction = vec![0.0; residual.len()];
        let mut conditioned = vec![0.0; residual.len()];
        let mut last = 1.0;
        for _ in 0..ITERATIONS {
            if largest(&residual) <= accuracy * self.scale {
                return Ok(());
            }
            inverse.multiply(problem, &residual, &mut self.nodes, &mut conditioned);
            let slope = dot(&residual, &conditioned);
            let ratio = slope / last;
            direction.iter_mut().zip(&conditioned).for_each(|(old, new)| *old = new + ratio * *old);
            problem.multiply(&direction, &mut self.nodes[0], &mut self.image);
            self.image.iter_mut().zip(&self.free).for_each(|(value, free)| *value *= free);
            let length = slope / dot(&direction, &self.image);
            self.found.iter_mut().zip(&direction).for_each(|(value, step)| *value += length * step);
            residual.iter_mut().zip(&self.image).for_each(|(value, step)| *value -= length * step);
            last = slope;
        }
        Err(self.not_optimal(accuracy))
    }

    /// Moves values that are within the accuracy of a bound but beyond it there and checks the conditions of optimality.
    fn check(&mut self, problem: &Product) -> Result<(), Error> {
        let bounds = self.bounds;
        self.found.iter_mut().for_each(|value| *value = bounds.clamp(*value));
        problem.multiply(&self.found, &mut self.nodes[0], &mut self.image);
        let worst = (0..self.found.len()).fold(0.0_f64, |worst, at| {
            let gradient = self.image[at] - self.right[at];
            let (above, below) = (self.found[at] > bounds.lower, self.found[at] < bounds.upper);
            worst.max(if above { gradient } else { 0.0 }).max(if below { -gradient } else { 0.0 })
        });
        if worst <= TOLERANCE * self.scale { Ok(()) } else { Err(self.not_optimal(worst / self.scale)) }
    }

    fn not_optimal(&self, violation: f64) -> Error {
        let node = self.free.iter().position(|&free| free > 0.0).unwrap_or(0);
        Error::NotOptimal { row: 0, node, violation, tolerance: TOLERANCE }
    }
}

/// The inverse of `H x diag(T)` on the free values, as factors for two passes over the tree.
///
/// At one step, with `r` the right-hand side over `T_tt`, the sum of a subtree is affine in what lies above it: if the
/// ancestors' `a_n S_n` add up to `m`, then `S = p - g m`. A leaf has `p = r/a` and `g = 1/a`, or both zero if it is held; a node with children's sums `P` and `G` has `p = P/(1 + a G)` and `g = G/(1 + a G)`.
struct Inverse {
    /// `g` of every node and step.
    gain: Vec<f64>,
    /// `1/(1 + a G)` of every inner node and step, `1/(a T_tt)` of every leaf.
    factor: Vec<f64>,
}

impl Inverse {
    fn of(problem: &Product, free: &[f64]) -> Self {
        let w = problem.step_weight.len();
        let mut gain = vec![0.0; problem.parent.len() * w];
        let mut factor = vec![0.0; gain.len()];
        for (free, &node) in free.chunks(w).zip(&problem.leaves) {
            let (before, row) = gain.split_at_mut(node * w);
            let factor = &mut factor[node * w..];
            for (step, free) in free.iter().enumerate() {
                row[step] = free / problem.node_weight[node];
                factor[step] = row[step] / problem.diagonal[step];
            }
            if let Some(parent) = problem.parent[node] {
                add(&mut before[parent * w..], &row[..w]);
            }
        }
        for &node in problem.inner.iter().rev() {
            let (before, row) = gain.split_at_mut(node * w);
            let factor = &mut factor[node * w..];
            for (gain, factor) in row[..w].iter_mut().zip(factor) {
                *factor = 1.0 / (1.0 + problem.node_weight[node] * *gain);
                *gain *= *factor;
            }
            if let Some(parent) = problem.parent[node] {
                add(&mut before[parent * w..], &row[..w]);
            }
        }
        Self { gain, factor }
    }

    fn multiply(&self, problem: &Product, right: &[f64], nodes: &mut [Vec<f64>; 2], out: &mut [f64]) {
        let w = problem.step_weight.len();
        let [sums, above] = nodes;
        // Upwards: `p` of every node.
        problem.clear_inner(sums);
        for (right, &node) in right.chunks(w).zip(&problem.leaves) {
            let (before, row) = sums.split_at_mut(node * w);
            let factors = &self.factor[node * w..];
            row.iter_mut().zip(right.iter().zip(factors)).for_each(|(value, (right, factor))| *value = right * factor);
            if let Some(parent) = problem.parent[node] {
                add(&mut before[parent * w..], &row[..w]);
            }
        }
        problem.add_upwards(sums, |node, row| {
            row.iter_mut().zip(&self.factor[node * w..]).for_each(|(value, factor)| *value *= factor);
        });
        // Downwards: the sums themselves, and for inner nodes what lies above their children.
        for &node in &problem.inner {
            let (before, below) = above.split_at_mut(node * w);
            let higher = problem.parent[node].map(|parent| &before[parent * w..]);
            let sums = &mut sums[node * w..(node + 1) * w];
            lower(sums, &self.gain[node * w..], higher);
            below[..w].copy_from_slice(sums);
            weigh(&mut below[..w], problem.node_weight[node], higher);
        }
        for (out, &node) in out.chunks_mut(w).zip(&problem.leaves) {
            out.copy_from_slice(&sums[node * w..(node + 1) * w]);
            lower(out, &self.gain[node * w..], problem.parent[node].map(|parent| &above[parent * w..]));
        }
    }
}

/// Adds a row to another, which may go on after it.
fn add(sums: &mut [f64], row: &[f64]) {
    sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
}

/// Multiplies a row by a weight and adds what lies above, if anything does.
fn weigh(row: &mut [f64], weight: f64, above: Option<&[f64]>) {
    for value in row.iter_mut() {
        *value *= weight;
    }
    if let Some(above) = above {
        add(row, above);
    }
}

/// Takes gain times what lies above off a row, if anything does.
fn lower(row: &mut [f64], gain: &[f64], above: Option<&[f64]>) {
    if let Some(above) = above {
        row.iter_mut().zip(gain.iter().zip(above)).for_each(|(value, (gain, above))| *value -= gain * above);
    }
}

/// A dot product in eight interleaved sums, which the processor adds side by side.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f64 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f64>() + rest
}

/// The largest size of an entry, found side by side likewise.
fn largest(values: &[f64]) -> f64 {
    let mut found = [0.0; 8];
    for chunk in values.chunks(8) {
        for (largest, value) in found.iter_mut().zip(chunk) {
            *largest = if value.abs() > *largest { value.abs() } else { *largest };
        }
    }
    found.into_iter().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root with two leaves, two steps and their total; all weights one. `T = [[2, 1], [1, 2]]`.
    fn small() -> Product {
        let inverse = [2.0 / 3.0, -1.0 / 3.0, -1.0 / 3.0, 2.0 / 3.0];
        Product::new(&[None, Some(0), Some(0)], &[1.0; 3], &[1.0; 2], &[(vec![0, 0], 1.0)], &inverse).unwrap()
    }

    #[test]
    fn answers_that_add_up_are_returned_unchanged() {
        let (steps, cells) = ([4.0, 6.0, 1.0, 2.0, 3.0, 4.0], [10.0, 3.0, 7.0]);
        let found = small().project(&steps, &cells, Bounds::NONNEGATIVE).unwrap();
        for (found, expected) in found.iter().zip([1.0, 2.0, 3.0, 4.0]) {
            assert!((found - expected).abs() < 1e-9, "{found} for {expected}");
        }
    }

    #[test]
    fn negative_answers_end_at_zero() {
        let found = small().project(&[-5.0; 6], &[-5.0; 3], Bounds::NONNEGATIVE).unwrap();
        assert_eq!(found, [0.0; 4]);
    }

    #[test]
    fn values_stay_between_bounds_on_both_sides_of_zero() {
        let found = small().project(&[-50.0; 6], &[-50.0; 3], Bounds::new(-3.0, 5.0)).unwrap();
        assert_eq!(found, [-3.0; 4]);
        let found = small().project(&[50.0; 6], &[50.0; 3], Bounds::new(-3.0, 5.0)).unwrap();
        assert_eq!(found, [5.0; 4]);
        let found = small().project(&[0.0; 6], &[0.0; 3], Bounds::new(900.0, 1100.0)).unwrap();
        assert_eq!(found, [900.0; 4]);
    }

    #[test]
    fn the_inverse_of_time_decides_speed_and_not_the_optimum() {
        let wrong = Product { time_inverse: vec![5.0, 0.0, 0.0, 0.1], ..small() };
        let (steps, cells) = ([4.0, -6.0, 1.0, 2.0, -3.0, 4.0], [9.0, -3.0, 7.0]);
        let expected = small().project(&steps, &cells, Bounds::NONNEGATIVE).unwrap();
        for (found, expected) in wrong.project(&steps, &cells, Bounds::NONNEGATIVE).unwrap().iter().zip(expected) {
            assert!((found - expected).abs() < 1e-8, "{found} for {expected}");
        }
    }

    #[test]
    fn what_is_no_problem_is_refused() {
        let make = |parents: &[Option<usize>], nodes: &[f64], steps: &[f64], labels: Vec<usize>, inverse: &[f64]| {
            Product::new(parents, nodes, steps, &[(labels, 1.0)], inverse)
        };
        assert!(make(&[None], &[1.0], &[1.0], vec![0], &[1.0]).is_ok());
        assert!(make(&[], &[], &[1.0], vec![0], &[1.0]).is_err());
        assert!(make(&[None], &[1.0], &[], vec![], &[]).is_err());
        assert!(make(&[None, None], &[1.0; 2], &[1.0], vec![0], &[1.0]).is_err());
        assert!(make(&[Some(0)], &[1.0], &[1.0], vec![0], &[1.0]).is_err());
        assert!(make(&[None, Some(1)], &[1.0; 2], &[1.0], vec![0], &[1.0]).is_err());
        assert!(make(&[None], &[0.0], &[1.0], vec![0], &[1.0]).is_err());
        assert!(make(&[None], &[1.0], &[f64::NAN], vec![0], &[1.0]).is_err());
        assert!(make(&[None], &[1.0], &[1.0], vec![0, 0], &[1.0]).is_err());
        assert!(make(&[None], &[1.0], &[1.0], vec![0], &[]).is_err());
        assert!(small().project(&[0.0; 5], &[0.0; 3], Bounds::NONNEGATIVE).is_err());
        assert!(small().project(&[0.0; 6], &[0.0, f64::NAN, 0.0], Bounds::NONNEGATIVE).is_err());
    }
}
