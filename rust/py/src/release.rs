//! Whole releases: sample, perturb, reconstruct and project many periods in one call.

use std::thread;

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use optstream_core::Error;
use optstream_core::choice::hashes;
use optstream_core::cube::CubeScale;
use optstream_core::gaussian::Deviation;
use optstream_core::grid::{Grid, check};
use optstream_core::measure::{Feature, FeatureNoise, Noise, Period, Plan as Measurement, Run, Sampling};
use optstream_core::rng::Key;
use optstream_core::scale::Scale;
use optstream_core::svt::{L1Sampler, SparseVector, Unit};
use optstream_post::interpolate;
use optstream_post::product::Product as ProductProblem;
use optstream_post::tree::{Bounds, Tree, Workspace};
use pyo3::prelude::*;

use crate::arguments::{array, budget, entries, number, pair, row_major};
use crate::errors::{raise, raise_post, wrong_type};
use crate::noise::{Retry, key, threads};

/// Periods that are quantised at a time, so that memory beyond input and output does not grow with their number.
const PERIODS: usize = 2048;

/// The most steps of a period.
const LONGEST: usize = 1 << 20;

/// An adaptive sampler as Python describes it: k, threshold, noise units per normalised sensitivity (none if the noise is
/// in grid units), and for the noise on the threshold and on the queries the pair of sensitivity and epsilon.
type SamplerArgument<'py> = (usize, f64, Option<u64>, (u64, Bound<'py, PyAny>), (u64, Bound<'py, PyAny>));

/// A mechanism as the core sees it: checked and built once, used for every period.
#[pyclass(frozen, module = "optstream._core")]
pub struct Plan {
    pub(crate) grid: Grid,
    sensitivity: u64,
    /// The largest size of a quantised value, of sums of streams.
    pub(crate) largest: u64,
    pub(crate) measurement: Measurement,
    scale: Scale,
    feature_scales: Vec<Scale>,
    projection: Option<Tree>,
    /// What a measured value is divided by to be a mean, run by run; none if single steps are measured.
    pub(crate) divisors: Option<Vec<f64>>,
}

#[pymethods]
impl Plan {
    #[new]
    #[pyo3(signature = (*, w, alpha, bounds, grid, sampling, cost, blocks, features, tree, streams=1, gaussian=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a constructor that one Python class calls")]
    fn new(
        w: usize,
        alpha: &Bound<'_, PyAny>,
        bounds: &Bound<'_, PyAny>,
        grid: &Bound<'_, PyAny>,
        sampling: &Bound<'_, PyAny>,
        cost: &Bound<'_, PyAny>,
        blocks: Option<Vec<usize>>,
        features: &Bound<'_, PyAny>,
        tree: &Bound<'_, PyAny>,
        streams: u64,
        gaussian: bool,
    ) -> PyResult<Self> {
        if w > LONGEST {
            return Err(raise(Error::parameter("w", w, format!("at most {LONGEST}"))));
        }
        let (lower, upper) = pair("bounds", bounds)?;
        let grid = Grid::new(number("grid", grid)?, lower, upper).map_err(raise)?;
        let sensitivity = grid.sensitivity(number("alpha", alpha)?).map_err(raise)?;
        let scale =
            |sensitivity, cost: &Bound<'_, PyAny>| Scale::new(sensitivity, &budget("epsilon", cost)?).map_err(raise);
        let sampling = match sampling.extract::<SamplerArgument<'_>>() {
            Ok((k, threshold, resolution, rho, nu)) => {
                let unit = resolution.map_or(Unit::Common, |resolution| Unit::Normalised { sensitivity, resolution });
                let noise = SparseVector::new(scale(rho.0, &rho.1)?, scale(nu.0, &nu.1)?, k.saturating_sub(2));
                let threshold = grid.nearest(threshold).map_err(raise)?;
                Sampling::Adaptive(L1Sampler::new(w, k, threshold, noise, unit).map_err(raise)?)
            }
            Err(_) => Sampling::Fixed(runs(sampling)?),
        };
        let divisors = divisors(&sampling);
        let features = features
            .extract::<Vec<(Vec<usize>, Bound<'_, PyAny>)>>()
            .map_err(|_| wrong_type("features", "something else", "pairs of labels and a budget"))?
            .into_iter()
            .map(|(labels, cost)| Ok((labels, scale(sensitivity, &cost)?)))
            .collect::<PyResult<Vec<_>>>()?;
        let feature_scales = features.iter().map(|(_, scale)| *scale).collect();
        let noise =
            |scale| if gaussian { FeatureNoise::Gaussian(Deviation::new(scale)) } else { FeatureNoise::Laplace(scale) };
        let features = features.into_iter().map(|(labels, scale)| Feature { labels, noise: noise(scale) }).collect();
        // A block is moved by all of its steps: every value by `times (stop - start)`, which is the same for all.
        let reach = if blocks.is_some() { reach(&sampling) } else { 1 };
        let scale = scale(sensitivity.saturating_mul(reach), cost)?;
        let noise = match blocks {
            None if gaussian => Noise::Gaussian(Deviation::new(scale)),
            None => Noise::Laplace(scale),
            Some(lengths) => {
                let blocks = lengths.into_iter().map(|length| CubeScale::new(scale, length).map_err(raise));
                Noise::Cube(blocks.collect::<PyResult<Vec<_>>>()?)
            }
        };
        let largest = grid.largest().saturating_mul(streams);
        let measurement = Measurement::new(w, largest, sampling, noise, features).map_err(raise)?;
        let tree: Option<(Vec<Option<usize>>, Vec<f64>)> =
            tree.extract().map_err(|_| wrong_type("tree", "something else", "None or parents and weights"))?;
        let projection =
            tree.map(|(parents, weights)| Tree::new(&parents, &weights)).transpose().map_err(raise_post)?;
        Ok(Self { grid, sensitivity, largest, measurement, scale, feature_scales, projection, divisors })
    }

    /// How far one step can move, in grid units.
    #[getter]
    fn sensitivity(&self) -> u64 {
        self.sensitivity
    }

    /// The scale of the noise on the measured steps, for Gaussian noise its standard deviation, in grid units, as
    /// numerator and denominator.
    #[getter]
    fn sample_scale(&self) -> (u64, u64) {
        fraction(&self.scale)
    }

    /// The scale of the noise on the sums of each feature.
    #[getter]
    fn feature_scales(&self) -> Vec<(u64, u64)> {
        self.feature_scales.iter().map(fraction).collect()
    }

    /// Measures periods that are quantised already, one per row: see `release`. With a curator's key and a context the
    /// noise is derived from them and from the periods, so that a retry repeats it bit for bit.
    #[pyo3(signature = (units, retry=None))]
    fn measure<'py>(
        &self,
        py: Python<'py>,
        units: &Bound<'py, PyArray2<i64>>,
        retry: Retry<'py>,
    ) -> PyResult<Arrays<'py>> {
        let rows = self.periods(units.shape())?;
        let units = entries(units)?;
        if units.iter().any(|unit| unit.unsigned_abs() > self.largest) {
            return Err(raise(Error::parameter("size of units", "larger", format!("at most {}", self.largest))));
        }
        let key = key(retry, &units)?;
        let released = py.detach(|| self.release_chunk(&units, 0, &key))?;
        self.arrays(py, rows, released)
    }

    /// Releases periods, one per row: their steps, their cells, and the measured steps (one row if they are fixed). Steps
    /// and cells are projected if the plan has a tree.
    fn release<'py>(&self, py: Python<'py>, values: &Bound<'py, PyAny>) -> PyResult<Arrays<'py>> {
        let values = array("values", values, &[2])?;
        let rows = self.periods(values.shape())?;
        let slice = row_major(&values);
        // Everything is looked at before anything is drawn.
        check(&slice).map_err(raise)?;
        let key = Key::from_entropy().map_err(raise)?;
        let (w, cells) = (self.measurement.length(), self.measurement.cells());
        let mut released = Released::with_capacity(rows, w, cells);
        for (chunk, periods) in slice.chunks(PERIODS * w).enumerate() {
            let units = self.grid.quantise(periods).map_err(raise)?;
            released.append(py.detach(|| self.release_chunk(&units, chunk * PERIODS, &key))?);
        }
        self.arrays(py, rows, released)
    }
}

impl Plan {
    /// The number of periods in an array with one period per row.
    fn periods(&self, shape: &[usize]) -> PyResult<usize> {
        let w = self.measurement.length();
        match *shape {
            [0, _] => Err(raise(Error::Empty)),
            [rows, width] if width == w => Ok(rows),
            _ => Err(raise(Error::parameter("shape", format!("{shape:?}"), format!("one with w = {w} columns")))),
        }
    }

    fn arrays<'py>(&self, py: Python<'py>, rows: usize, released: Released) -> PyResult<Arrays<'py>> {
        let (w, cells) = (self.measurement.length(), self.measurement.cells());
        let Released { steps, cells: sums, mut knots } = released;
        let count = knots.len() / rows;
        if self.measurement.is_fixed() {
            knots.truncate(count);
        }
        let knot_rows = knots.len() / count;
        Ok((
            steps.into_pyarray(py).reshape([rows, w])?,
            sums.into_pyarray(py).reshape([rows, cells])?,
            knots.into_pyarray(py).reshape([knot_rows, count])?,
        ))
    }

    /// Shares the periods of a chunk among threads. The keystream of a period depends on its position alone.
    fn release_chunk(&self, units: &[i64], first: usize, key: &Key) -> PyResult<Released> {
        let w = self.measurement.length();
        let periods = units.len() / w;
        let threads = threads(units.len()).min(periods.div_ceil(64));
        if threads == 1 {
            return self.release_periods(units, first, key);
        }
        let share = periods.div_ceil(threads);
        thread::scope(|scope| {
            let parts = units.chunks(share * w).enumerate();
            let workers: Vec<_> = parts
                .map(|(turn, part)| scope.spawn(move || self.release_periods(part, first + turn * share, key)))
                .collect();
            let mut released = Released::default();
            for worker in workers {
                released.append(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok(released)
        })
    }

    /// Measures, reconstructs and projects periods one after the other.
    fn release_periods(&self, units: &[i64], first: usize, key: &Key) -> PyResult<Released> {
        let (w, cells) = (self.measurement.length(), self.measurement.cells());
        let mut released = Released::with_capacity(units.len() / w, w, cells);
        let (mut period, mut row) = (Period::default(), Row::new(w, cells));
        for (index, units) in (first..).zip(units.chunks(w)) {
            self.measurement.measure(units, &mut key.stream(index as u64), &mut period).map_err(raise)?;
            let mut samples = self.grid.values(std::mem::take(&mut period.samples));
            if let Some(divisors) = &self.divisors {
                for (sample, divisor) in samples.iter_mut().zip(divisors) {
                    *sample /= divisor;
                }
            }
            let sums = self.grid.values(std::mem::take(&mut period.cells));
            let (steps, sums) = self.finish(&period.knots, &samples, &sums, &mut row)?;
            released.steps.extend_from_slice(steps);
            released.cells.extend_from_slice(sums);
            released.knots.extend_from_slice(&period.knots);
        }
        Ok(released)
    }
}

impl Plan {
    /// Reconstructs and projects what was measured of a period.
    pub(crate) fn finish<'row>(
        &self,
        knots: &[usize],
        samples: &[f64],
        sums: &[f64],
        row: &'row mut Row,
    ) -> PyResult<(&'row [f64], &'row [f64])> {
        let w = self.measurement.length();
        let (steps, cells) = row.answers.split_at_mut(w);
        if self.divisors.is_some() {
            interpolate::constant(knots, samples, steps).map_err(raise_post)?;
        } else {
            interpolate::linear(knots, samples, steps).map_err(raise_post)?;
        }
        cells.copy_from_slice(sums);
        if let Some(tree) = &self.projection {
            let (lower, upper) = self.grid.bounds();
            tree.project(&row.answers, Bounds::new(lower, upper), &mut row.workspace, &mut row.projected)
                .map_err(raise_post)?;
        } else {
            row.projected.copy_from_slice(&row.answers);
        }
        Ok(row.projected.split_at(w))
    }
}

/// Room for one period on its way through reconstruction and projection.
pub struct Row {
    answers: Vec<f64>,
    projected: Vec<f64>,
    workspace: Workspace,
}

impl Row {
    pub fn new(w: usize, cells: usize) -> Self {
        Self { answers: vec![0.0; w + cells], projected: vec![0.0; w + cells], workspace: Workspace::new() }
    }
}

/// Runs of steps as Python describes them: start, stop, and what their sum is multiplied by.
fn runs(sampling: &Bound<'_, PyAny>) -> PyResult<Vec<Run>> {
    let runs: Vec<(usize, usize, u64)> = sampling.extract().map_err(|_| {
        wrong_type(
            "sampling",
            "something else",
            "runs (start, stop, times), or a sampler (k, threshold, unit, rho, nu)",
        )
    })?;
    Ok(runs.into_iter().map(|(start, stop, times)| Run { start, stop, times }).collect())
}

/// What makes means of measured sums, unless all runs are single steps.
#[expect(clippy::cast_precision_loss, reason = "a run has far fewer than 2^53 steps, and times is checked with them")]
fn divisors(sampling: &Sampling) -> Option<Vec<f64>> {
    let Sampling::Fixed(runs) = sampling else { return None };
    let single = runs.iter().all(|run| run.stop.saturating_sub(run.start) == 1 && run.times == 1);
    (!single).then(|| runs.iter().map(|run| run.stop.saturating_sub(run.start) as f64 * run.times as f64).collect())
}

/// How far a change of every step by one unit moves the measured value that it moves most.
fn reach(sampling: &Sampling) -> u64 {
    let Sampling::Fixed(runs) = sampling else { return 1 };
    let moved = runs.iter().map(|run| (run.stop.saturating_sub(run.start) as u64).saturating_mul(run.times));
    moved.max().unwrap_or(1)
}

type Arrays<'py> = (Bound<'py, PyArray2<f64>>, Bound<'py, PyArray2<f64>>, Bound<'py, PyArray2<usize>>);

/// Released periods, one after the other.
#[derive(Default)]
struct Released {
    steps: Vec<f64>,
    cells: Vec<f64>,
    knots: Vec<usize>,
}

impl Released {
    fn with_capacity(periods: usize, steps: usize, cells: usize) -> Self {
        Self {
            steps: Vec::with_capacity(periods * steps),
            cells: Vec::with_capacity(periods * cells),
            knots: Vec::new(),
        }
    }

    fn append(&mut self, mut other: Self) {
        self.steps.append(&mut other.steps);
        self.cells.append(&mut other.cells);
        self.knots.append(&mut other.knots);
    }
}

fn fraction(scale: &Scale) -> (u64, u64) {
    (scale.numerator(), scale.denominator())
}

/// Public values, or raw ones on their way into a sum, as integers of the grid; see `optstream_core::grid`.
#[pyfunction]
pub fn quantise<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    bounds: &Bound<'py, PyAny>,
    grid: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray2<i64>>> {
    let values = array("values", values, &[2])?;
    let (lower, upper) = pair("bounds", bounds)?;
    let grid = Grid::new(number("grid", grid)?, lower, upper).map_err(raise)?;
    let units = grid.quantise(&row_major(&values)).map_err(raise)?;
    units.into_pyarray(py).reshape([values.shape()[0], values.shape()[1]])
}

/// Hashes of messages that stand one after the other; see `optstream_core::choice`.
#[pyfunction]
pub fn choice_hashes<'py>(
    py: Python<'py>,
    text: &str,
    lengths: &Bound<'py, PyArray1<u64>>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let lengths: Vec<u64> = lengths.readonly().as_array().iter().copied().collect();
    let found = py.detach(|| hashes(text.as_bytes(), &lengths));
    let refused = || raise(Error::parameter("sum of lengths", "another", "the length of text in bytes"));
    Ok(found.ok_or_else(refused)?.into_pyarray(py))
}

fn unless_shape(name: &'static str, shape: &[usize], wanted: &[usize]) -> PyResult<()> {
    if shape == wanted {
        return Ok(());
    }
    Err(raise(Error::parameter(name, format!("of shape {shape:?}"), format!("of shape {wanted:?}"))))
}

/// A forest on which values are projected; see `optstream_post::tree`.
#[pyclass(frozen, module = "optstream._core")]
pub struct Forest {
    tree: Tree,
}

#[pymethods]
impl Forest {
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "extracted from Python")]
    fn new(parents: Vec<Option<usize>>, weights: Vec<f64>) -> PyResult<Self> {
        Ok(Self { tree: Tree::new(&parents, &weights).map_err(raise_post)? })
    }

    /// Projects each row of targets, one target per node, with all leaves between the bounds that are given.
    #[pyo3(signature = (targets, nonnegative=false, lower=None, upper=None))]
    fn project<'py>(
        &self,
        py: Python<'py>,
        targets: &Bound<'py, PyArray2<f64>>,
        nonnegative: bool,
        lower: Option<f64>,
        upper: Option<f64>,
    ) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let lower = lower.unwrap_or(if nonnegative { 0.0 } else { f64::NEG_INFINITY });
        let bounds = Bounds::new(lower, upper.unwrap_or(f64::INFINITY));
        let rows = targets.shape()[0];
        unless_shape("targets", targets.shape(), &[rows, self.tree.len()])?;
        let targets = entries(targets)?;
        let mut out = vec![0.0; targets.len()];
        let threads = threads(targets.len());
        py.detach(|| self.tree.project_many(&targets, bounds, threads, &mut out)).map_err(raise_post)?;
        out.into_pyarray(py).reshape([rows, self.tree.len()])
    }
}

/// A problem over a tree and over time; see `optstream_post::product`.
#[pyclass(frozen, module = "optstream._core")]
pub struct Product {
    problem: ProductProblem,
}

#[pymethods]
impl Product {
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "extracted from Python")]
    fn new(
        parents: Vec<Option<usize>>,
        node_weights: Vec<f64>,
        step_weights: Vec<f64>,
        features: Vec<(Vec<usize>, f64)>,
        time_inverse: &Bound<'_, PyArray2<f64>>,
    ) -> PyResult<Self> {
        let inverse = entries(time_inverse)?;
        let problem = ProductProblem::new(&parents, &node_weights, &step_weights, &features, &inverse);
        Ok(Self { problem: problem.map_err(raise_post)? })
    }

    /// Finds the values of the leaves from the answers, one row per node.
    fn project<'py>(
        &self,
        py: Python<'py>,
        steps: &Bound<'py, PyArray2<f64>>,
        cells: &Bound<'py, PyArray2<f64>>,
        lower: f64,
        upper: f64,
    ) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let (nodes, width) = self.problem.shape();
        unless_shape("steps", steps.shape(), &[nodes, width])?;
        unless_shape("cells", cells.shape(), &[nodes, self.problem.cells()])?;
        let (steps, cells) = (entries(steps)?, entries(cells)?);
        let found =
            py.detach(|| self.problem.project(&steps, &cells, Bounds::new(lower, upper))).map_err(raise_post)?;
        found.into_pyarray(py).reshape([self.problem.leaves(), width])
    }
}
