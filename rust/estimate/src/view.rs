//! What the measurements of a period say of the directions, of its steps and of its end, for given amplitudes.
//!
//! Given the directions, a period's measurements are their means plus what the processes and the white part do within the
//! period plus noise. Whitened and compressed by reflections they are at most as many values as there are directions,
//! `T g + unit noise`, whatever was measured. Given directions and measurements, steps are `A g + f(y)` with known
//! variances, and so are the two values at the end. None of this depends on what was measured, so it is computed once for
//! a layout, its variances and the amplitudes. Runs of steps are whitened by a small state-space recursion, in time
//! linear in the steps; other sets by a dense factor.

use crate::geometry::Geometry;
use crate::layout::{Kind, Layout};
use crate::matrix::{BLOCK, Matrix, Reflections, dot, eliminate, product, solve};

/// Least pivot that is told from rounding errors, as a share of the largest.
const ROUNDING: f64 = 1e-12;
/// What counts as the size of a matrix of zeros.
const SMALLEST: f64 = 1e-200;

/// Variances of drift, intraday and white part within a period.
pub type Within = [f64; 3];

#[derive(Debug)]
pub struct View {
    /// The transpose of T, which is zero below its diagonal: directions x compressed values.
    pub transposed: Matrix,
    /// What the two values at the end are of the directions, but for what the measurements add.
    pub ends: Matrix,
    /// Variance of the first end value given directions and measurements, covariance, and variance of the second.
    pub end_covariance: [f64; 3],
    /// Sum of the logarithms of the standard deviations of what is whitened.
    pub logarithm: f64,
    pub steps: Option<Steps>,
    reflections: Reflections,
    whitener: Whitener,
}

/// The same of the steps.
#[derive(Debug)]
pub struct Steps {
    /// The transpose of A: directions x steps.
    pub paths: Matrix,
    /// Variances given directions and measurements.
    pub residual: Vec<f64>,
    /// Covariances with the two end values, given both.
    pub crossed: [Vec<f64>; 2],
}

/// What given measurements are to a view.
#[derive(Debug)]
pub struct Seen {
    /// Compressed values.
    pub values: Vec<f64>,
    /// Sum of squares of what the compression left out, which says nothing of the directions.
    pub rest: f64,
    /// What the measurements add to the two values at the end.
    pub ends: [f64; 2],
    /// What they add to the steps; empty if steps are not wanted.
    pub path: Vec<f64>,
}

impl View {
    pub fn new(geometry: &Geometry, layout: &Layout, variances: &[f64], within: Within, steps: bool) -> Self {
        let ordered: Vec<f64> = layout.order.iter().map(|index| variances[*index]).collect();
        let whitener = match &layout.kind {
            Kind::Runs(runs) => Whitener::Runs(Recursion::new(geometry, runs, &ordered, within)),
            Kind::Any { carried, between } => {
                Whitener::Any(Factor::new(geometry, layout, [carried, between], &ordered, within))
            }
        };
        let (mut white, ends, path) = whitener.pass(&layout.paths, steps);
        let steps = steps.then(|| {
            let mut paths = path.transposed();
            for (entry, all) in paths.data.iter_mut().zip(&geometry.paths.data) {
                *entry = all - *entry;
            }
            let (residual, crossed) = whitener.residual(geometry, within);
            Steps { paths, residual, crossed }
        });
        let mut moved = Matrix::zeros(2, geometry.directions());
        for end in 0..2 {
            for (entry, found) in moved.row_mut(end).iter_mut().zip(ends.row(end)) {
                *entry = -found;
            }
            *moved.at_mut(end, geometry.curve + end) += geometry.decay[end];
        }
        let reflections = Reflections::of(&mut white);
        white.rows = white.rows.min(white.columns);
        let padded = white.rows.next_multiple_of(BLOCK);
        white.data.truncate(padded * white.stride);
        for row in white.rows..padded {
            white.data[row * white.stride..(row + 1) * white.stride].fill(0.0);
        }
        Self {
            transposed: white.transposed(),
            ends: moved,
            end_covariance: whitener.end_covariance(),
            logarithm: whitener.logarithm(),
            steps,
            reflections,
            whitener,
        }
    }

    /// What given values are to this view.
    pub fn see(&self, layout: &Layout, values: &[f64], steps: bool) -> Seen {
        let mut column = Matrix::zeros(values.len(), 1);
        for (row, index) in layout.order.iter().enumerate() {
            *column.at_mut(row, 0) = values[*index];
        }
        let (white, ends, path) = self.whitener.pass(&column, steps);
        let mut whitened: Vec<f64> = (0..white.rows).map(|row| white.at(row, 0)).collect();
        self.reflections.apply(&mut whitened);
        let left = whitened.split_off(self.transposed.columns);
        let rest = dot(&left, &left);
        Seen {
            values: whitened,
            rest,
            ends: [ends.at(0, 0), ends.at(1, 0)],
            path: (0..path.rows).map(|row| path.at(row, 0)).collect(),
        }
    }
}

#[derive(Debug)]
enum Whitener {
    Runs(Recursion),
    Any(Factor),
}

impl Whitener {
    /// Whiten columns of measurements; what these say of the two values at the end, and of the steps if wanted.
    fn pass(&self, columns: &Matrix, steps: bool) -> (Matrix, Matrix, Matrix) {
        match self {
            Self::Runs(recursion) => recursion.pass(columns, steps),
            Self::Any(factor) => factor.pass(columns, steps),
        }
    }

    fn residual(&self, geometry: &Geometry, within: Within) -> (Vec<f64>, [Vec<f64>; 2]) {
        match self {
            Self::Runs(recursion) => recursion.residual(),
            Self::Any(factor) => factor.residual(geometry, within),
        }
    }

    fn end_covariance(&self) -> [f64; 3] {
        match self {
            Self::Runs(recursion) => recursion.last,
            Self::Any(factor) => factor.last,
        }
    }

    fn logarithm(&self) -> f64 {
        match self {
            Self::Runs(recursion) => {
                0.5 * recursion
                    .steps
                    .iter()
                    .filter_map(|step| step.end.as_ref())
                    .fold(0.0, |sum, end| sum + libm::log(end.variance))
            }
            Self::Any(factor) => {
                (0..factor.upper.rows).fold(0.0, |sum, row| sum + libm::log(factor.upper.at(row, row)))
            }
        }
    }
}

/// A filter over the steps of one period, whose state is drift, intraday part and the sum of the run so far.
#[derive(Debug)]
struct Recursion {
    decay: [f64; 2],
    steps: Vec<Step>,
    /// Covariance of drift and intraday part after the last step.
    last: [f64; 3],
}

#[derive(Debug)]
struct Step {
    /// Whether the step before belongs to the same run.
    keep: bool,
    /// Covariance of the step's value with drift, intraday part and sum, before this step's measurement, if any.
    with: [f64; 3],
    variance: f64,
    /// The measurement of the run that ends here.
    end: Option<End>,
}

#[derive(Debug)]
struct End {
    index: usize,
    share: f64,
    variance: f64,
    /// One over the standard deviation.
    scale: f64,
    /// What a unit of surprise adds to drift, intraday part and sum.
    gain: [f64; 3],
}

impl Recursion {
    fn new(geometry: &Geometry, runs: &[(usize, usize)], variances: &[f64], within: Within) -> Self {
        let decay = geometry.step_decay;
        let [first, second] = decay;
        let fresh = [within[0] * (1.0 - first * first), within[1] * (1.0 - second * second)];
        let (mut drift, mut both, mut intraday) = (0.0, 0.0, 0.0);
        let mut sum = [0.0; 3];
        let mut steps = Vec::with_capacity(geometry.w);
        let mut run = 0;
        for step in 0..geometry.w {
            while run < runs.len() && runs[run].1 <= step {
                run += 1;
            }
            let inside = run < runs.len() && runs[run].0 <= step;
            let keep = inside && runs[run].0 < step;
            drift = first * first * drift + fresh[0];
            both *= first * second;
            intraday = second * second * intraday + fresh[1];
            let old = if keep { [first * sum[0], second * sum[1], sum[2]] } else { [0.0; 3] };
            let value = [drift + both, both + intraday];
            let variance = value[0] + value[1] + within[2];
            let with_sum = old[0] + old[1] + variance;
            sum = [old[0] + value[0], old[1] + value[1], old[2] + (old[0] + old[1]) + with_sum];
            let mut end = None;
            if inside && runs[run].1 == step + 1 {
                let share = share_of(runs[run]);
                let whole = sum[2] * share * share + variances[run];
                let gain = sum.map(|entry| entry * share / whole);
                drift -= gain[0] * gain[0] * whole;
                both -= gain[0] * gain[1] * whole;
                intraday -= gain[1] * gain[1] * whole;
                end = Some(End { index: run, share, variance: whole, scale: 1.0 / whole.sqrt(), gain });
            }
            steps.push(Step { keep, with: [value[0], value[1], with_sum], variance, end });
        }
        Self { decay, steps, last: [drift, both, intraday] }
    }

    fn pass(&self, columns: &Matrix, steps: bool) -> (Matrix, Matrix, Matrix) {
        let [first, second] = self.decay;
        let stride = columns.stride;
        let mut white = Matrix::zeros(columns.rows, columns.columns);
        let mut ends = Matrix::zeros(2, columns.columns);
        let mut path = Matrix::zeros(if steps { self.steps.len() } else { 0 }, columns.columns);
        let (mut drift, mut intraday, mut sum) = (vec![0.0; stride], vec![0.0; stride], vec![0.0; stride]);
        for (index, step) in self.steps.iter().enumerate() {
            let kept = if step.keep { 1.0 } else { 0.0 };
            for ((drift, intraday), sum) in drift.iter_mut().zip(&mut intraday).zip(&mut sum) {
                *drift *= first;
                *intraday *= second;
                *sum = kept * *sum + (*drift + *intraday);
            }
            if steps {
                let line = &mut path.data[index * stride..(index + 1) * stride];
                for ((entry, drift), intraday) in line.iter_mut().zip(&drift).zip(&intraday) {
                    *entry = drift + intraday;
                }
            }
            if let Some(end) = &step.end {
                let range = end.index * stride..(end.index + 1) * stride;
                let (given, found) = (&columns.data[range.clone()], &mut white.data[range]);
                for ((((given, found), drift), intraday), sum) in
                    given.iter().zip(found).zip(&mut drift).zip(&mut intraday).zip(&sum)
                {
                    let surprise = given - sum * end.share;
                    *found = surprise * end.scale;
                    *drift += end.gain[0] * surprise;
                    *intraday += end.gain[1] * surprise;
                }
            }
        }
        ends.data[..stride].copy_from_slice(&drift);
        ends.data[stride..2 * stride].copy_from_slice(&intraday);
        if steps {
            self.smooth(&white, &mut path);
        }
        (white, ends, path)
    }

    /// Add to the steps what later measurements say of them.
    fn smooth(&self, white: &Matrix, path: &mut Matrix) {
        let [first, second] = self.decay;
        let stride = white.stride;
        let (mut drift, mut intraday, mut sum) = (vec![0.0; stride], vec![0.0; stride], vec![0.0; stride]);
        for (index, step) in self.steps.iter().enumerate().rev() {
            if let Some(end) = &step.end {
                let line = &white.data[end.index * stride..(end.index + 1) * stride];
                for (((white, drift), intraday), sum) in line.iter().zip(&drift).zip(&intraday).zip(&mut sum) {
                    let known = end.gain[0] * drift + end.gain[1] * intraday + end.gain[2] * *sum;
                    *sum += (white * end.scale - known) * end.share;
                }
            }
            let kept = if step.keep { 1.0 } else { 0.0 };
            let line = &mut path.data[index * stride..(index + 1) * stride];
            for (((entry, drift), intraday), sum) in line.iter_mut().zip(&mut drift).zip(&mut intraday).zip(&mut sum) {
                *entry += step.with[0] * *drift + step.with[1] * *intraday + step.with[2] * *sum;
                *drift = first * (*drift + *sum);
                *intraday = second * (*intraday + *sum);
                *sum *= kept;
            }
        }
    }

    /// Variances of the steps given all measurements, and covariances with the two values at the end.
    fn residual(&self) -> (Vec<f64>, [Vec<f64>; 2]) {
        let [first, second] = self.decay;
        let mut residual = vec![0.0; self.steps.len()];
        let mut crossed = [residual.clone(), residual.clone()];
        // Second moments of what later measurements add: of drift, intraday part and sum with each other.
        let mut square = [[0.0; 3]; 3];
        let mut last = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]];
        for (index, step) in self.steps.iter().enumerate().rev() {
            if let Some(end) = &step.end {
                let with_gain = square.map(|row| dot(&row, &end.gain));
                let twice = dot(&with_gain, &end.gain);
                for part in 0..2 {
                    square[part][2] -= with_gain[part] * end.share;
                    square[2][part] = square[part][2];
                }
                square[2][2] +=
                    (twice * end.share - 2.0 * with_gain[2]) * end.share + end.share * end.share / end.variance;
                for one in &mut last {
                    one[2] -= dot(one, &end.gain) * end.share;
                }
            }
            let with_square = square.map(|row| dot(&row, &step.with));
            residual[index] = (step.variance - dot(&with_square, &step.with)).max(0.0);
            for (crossed, one) in crossed.iter_mut().zip(&last) {
                crossed[index] = dot(one, &step.with);
            }
            let kept = if step.keep { 1.0 } else { 0.0 };
            let moved = |one: [f64; 3]| [first * (one[0] + one[2]), second * (one[1] + one[2]), kept * one[2]];
            let half = square.map(moved);
            for column in 0..3 {
                let turned = moved([half[0][column], half[1][column], half[2][column]]);
                for (row, entry) in square.iter_mut().zip(turned) {
                    row[column] = entry;
                }
            }
            last = last.map(moved);
        }
        (residual, crossed)
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers of steps are far below 2^52")]
fn share_of(run: (usize, usize)) -> f64 {
    1.0 / (run.1 - run.0) as f64
}

/// A dense factor of the covariance of any sets of steps.
#[derive(Debug)]
struct Factor {
    upper: Matrix,
    /// What whitened measurements say of the steps, and of the two values at the end.
    steps: Matrix,
    ends: Matrix,
    last: [f64; 3],
}

impl Factor {
    fn new(
        geometry: &Geometry,
        layout: &Layout,
        kernels: [&[Matrix; 3]; 2],
        variances: &[f64],
        within: Within,
    ) -> Self {
        let [carried, between] = kernels;
        let mixed = |parts: &[Matrix; 3]| {
            let mut sum = Matrix::zeros(parts[0].rows, parts[0].columns);
            for (part, factor) in parts.iter().zip(within) {
                for (entry, value) in sum.data.iter_mut().zip(&part.data) {
                    *entry += factor * value;
                }
            }
            sum
        };
        let mut upper = mixed(between);
        let mut largest = SMALLEST / ROUNDING;
        for (row, variance) in variances.iter().enumerate() {
            *upper.at_mut(row, row) += variance;
            largest = upper.at(row, row).max(largest);
        }
        let mut steps = mixed(carried);
        eliminate(&mut upper, &mut steps, ROUNDING * largest);
        let mut ends = Matrix::zeros(layout.len(), 2);
        for row in 0..layout.len() {
            for end in 0..2 {
                *ends.at_mut(row, end) = within[end] * carried[end].at(row, geometry.w - 1);
            }
        }
        solve(&upper, &mut ends);
        let known = product(&ends, &ends);
        let fresh = |end: usize| within[end] * (1.0 - geometry.decay[end] * geometry.decay[end]);
        let last = [(fresh(0) - known.at(0, 0)).max(0.0), -known.at(0, 1), (fresh(1) - known.at(1, 1)).max(0.0)];
        Self { upper, steps, ends, last }
    }

    fn pass(&self, columns: &Matrix, steps: bool) -> (Matrix, Matrix, Matrix) {
        let mut white = columns.clone();
        solve(&self.upper, &mut white);
        let ends = product(&self.ends, &white);
        let path = if steps { product(&self.steps, &white) } else { Matrix::zeros(0, 0) };
        (white, ends, path)
    }

    fn residual(&self, geometry: &Geometry, within: Within) -> (Vec<f64>, [Vec<f64>; 2]) {
        let w = geometry.w;
        let known = product(&self.steps, &self.ends);
        let mut residual = vec![within[2]; w];
        for (step, entry) in residual.iter_mut().enumerate() {
            for (variance, powers) in within.iter().zip(&geometry.powers) {
                *entry += variance * (1.0 - powers[2 * (step + 1)]);
            }
        }
        for row in 0..self.steps.rows {
            for (entry, value) in residual.iter_mut().zip(self.steps.row(row)) {
                *entry -= value * value;
            }
        }
        for entry in &mut residual {
            *entry = entry.max(0.0);
        }
        let crossed = [0, 1].map(|end: usize| {
            let powers = &geometry.powers[end];
            (0..w)
                .map(|step| within[end] * (powers[w - 1 - step] - powers[step + 1] * powers[w]) - known.at(step, end))
                .collect()
        });
        (residual, crossed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_any_sets_see_the_same() {
        let geometry = Geometry::new(12, 3, true).expect("valid");
        let cells = vec![vec![1, 2, 3], vec![4], vec![6, 7], vec![9, 10, 11]];
        let runs = Layout::new(&geometry, cells.clone()).expect("valid");
        let mut any = Layout::new(&geometry, cells.clone()).expect("valid");
        any.kind = crate::layout::any(&geometry, &cells);
        let (variances, within) = ([0.1, 0.5, 0.01, 2.0], [1.5, 0.7, 0.2]);
        let views = [&runs, &any].map(|layout| View::new(&geometry, layout, &variances, within, true));
        let near = |one: &[f64], other: &[f64]| {
            for (left, right) in one.iter().zip(other) {
                assert!((left - right).abs() < 1e-12 * (1.0 + left.abs()), "{left} {right}");
            }
        };
        near(&views[0].end_covariance, &views[1].end_covariance);
        near(&views[0].ends.data, &views[1].ends.data);
        assert!((views[0].logarithm - views[1].logarithm).abs() < 1e-12);
        let steps = [0, 1].map(|index: usize| views[index].steps.as_ref().expect("wanted"));
        near(&steps[0].paths.data, &steps[1].paths.data);
        near(&steps[0].residual, &steps[1].residual);
        near(&steps[0].crossed[0], &steps[1].crossed[0]);
        near(&steps[0].crossed[1], &steps[1].crossed[1]);
        let values = [3.0, -1.0, 4.0, 1.5];
        let seen = [(&views[0], &runs), (&views[1], &any)].map(|(view, layout)| view.see(layout, &values, true));
        near(&seen[0].path, &seen[1].path);
        near(&seen[0].ends, &seen[1].ends);
    }
}
