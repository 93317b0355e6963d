//! Whole releases and projections: conversions alone.

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use optstream_core::Error;
use optstream_core::choice::hashes;
use optstream_core::grid::Grid;
use optstream_core::measure::Run;
use optstream_core::rng::Key;
use optstream_core::scale::Scale;
use optstream_post::product::Product as ProductProblem;
use optstream_post::tree::{Bounds, Tree};
use optstream_release::{Adaptive, Choice, Description, Plan as Mechanism, Released, threads};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::arguments::{array, budget, entries, number, pair, row_major};
use crate::errors::{raise, wrong_type};
use crate::noise::{CuratorKey, Retry, key};

type Any<'a, 'py> = &'a Bound<'py, PyAny>;
pub type Arrays<'py> = (Bound<'py, PyArray2<f64>>, Bound<'py, PyArray2<f64>>, Bound<'py, PyArray2<usize>>);
type Fraction = (u64, u64);

/// A mechanism as it draws; see `optstream_release::Plan`.
#[pyclass(frozen, module = "optstream._core")]
pub struct Plan(pub(crate) Mechanism);

#[pymethods]
impl Plan {
    #[new]
    #[pyo3(signature = (*, w, alpha, bounds, grid, sampling, cost, blocks, features, tree, streams=1, leaves=1, gaussian=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a constructor that one Python class calls")]
    fn new(
        w: usize,
        alpha: Any<'_, '_>,
        bounds: Any<'_, '_>,
        grid: Any<'_, '_>,
        sampling: Any<'_, '_>,
        cost: Any<'_, '_>,
        blocks: Option<Vec<usize>>,
        features: Any<'_, '_>,
        tree: Any<'_, '_>,
        streams: u64,
        leaves: u64,
        gaussian: bool,
    ) -> PyResult<Self> {
        let features = features
            .extract::<Vec<(Vec<usize>, Bound<'_, PyAny>)>>()
            .map_err(|_| wrong_type("features", "something else", "pairs of labels and a budget"))?;
        let description = Description {
            w,
            alpha: number("alpha", alpha)?,
            bounds: pair("bounds", bounds)?,
            grid: number("grid", grid)?,
            sampling: choice(sampling)?,
            cost: budget("epsilon", cost)?,
            blocks,
            features: features
                .into_iter()
                .map(|(labels, cost)| Ok((labels, budget("epsilon", &cost)?)))
                .collect::<PyResult<_>>()?,
            tree: tree.extract().map_err(|_| wrong_type("tree", "something else", "None or parents and weights"))?,
            streams,
            leaves,
            gaussian,
        };
        Ok(Self(Mechanism::new(description).map_err(raise)?))
    }

    /// How far one step can move, in grid units.
    #[getter]
    fn sensitivity(&self) -> u64 {
        self.0.sensitivity()
    }

    /// By how many units a measured value whose block shares its noise moves per unit of sensitivity.
    #[getter]
    fn reach(&self) -> u64 {
        self.0.reach()
    }

    /// The scale of the noise on the measured steps, for Gaussian noise its standard deviation, in grid units.
    #[getter]
    fn sample_scale(&self) -> Fraction {
        fraction(&self.0.scale())
    }

    /// The scale of the noise on the sums of each feature.
    #[getter]
    fn feature_scales(&self) -> Vec<Fraction> {
        self.0.feature_scales().iter().map(fraction).collect()
    }

    /// The scales of the noise on threshold and scores, if the data chooses the steps.
    #[getter]
    fn selection_scales(&self) -> Option<(Fraction, Fraction)> {
        self.0.selection_scales().map(|(threshold, scores)| (fraction(&threshold), fraction(&scores)))
    }

    /// Releases periods that are quantised already, one per row. With a curator's key and a context the noise is derived
    /// from them and from the periods, so that a retry repeats it bit for bit.
    #[pyo3(signature = (units, retry=None))]
    fn measure<'py>(
        &self,
        py: Python<'py>,
        units: &Bound<'py, PyArray2<i64>>,
        retry: Retry<'py>,
    ) -> PyResult<Arrays<'py>> {
        let rows = self.0.periods(units.shape()).map_err(raise)?;
        let units = entries(units)?;
        self.0.check(&units).map_err(raise)?;
        let (key, threads) = (key(retry, &units)?, threads(units.len()));
        let released = py.detach(|| self.0.release_units(&units, 0, &key, threads)).map_err(raise)?;
        self.arrays(py, rows, released)
    }

    /// Releases many blocks of quantised periods, each with noise derived from its own stream, period and digest.
    ///
    /// A block gets the bits that [`Plan::measure`] gives it with the context of stream, period, plan, digest and `rest`.
    #[expect(clippy::needless_pass_by_value, reason = "extracted from Python")]
    #[expect(clippy::too_many_arguments, reason = "called by one Python function, which names them")]
    fn measure_many<'py>(
        &self,
        py: Python<'py>,
        units: &Bound<'py, PyArray2<i64>>,
        key: PyRef<'py, CuratorKey>,
        streams: Vec<PyBackedBytes>,
        periods: Vec<u64>,
        digests: &Bound<'py, PyArray2<u8>>,
        plan: PyBackedBytes,
        rest: Vec<PyBackedBytes>,
        most: Option<usize>,
    ) -> PyResult<Arrays<'py>> {
        let rows = self.0.periods(units.shape()).map_err(raise)?;
        let blocks = streams.len();
        if blocks == 0 || rows % blocks != 0 || periods.len() != blocks || digests.shape() != [blocks, 32] {
            return Err(raise(Error::parameter("streams", blocks, format!("one for each block of {rows} rows"))));
        }
        let (units, digests) = (entries(units)?, entries(digests)?);
        self.0.check(&units).map_err(raise)?;
        let threads = most.unwrap_or(usize::MAX).clamp(1, threads(units.len()));
        let secret = &key.secret;
        let derived = |index: usize, block: &[i64]| {
            let period = periods[index].to_le_bytes();
            let digest = &digests[32 * index..32 * (index + 1)];
            let mut context: Vec<&[u8]> = vec![&streams[index], &period, &plan, digest];
            context.extend(rest.iter().map(|field| &**field));
            Key::derive(secret, &context, block)
        };
        let released = py.detach(|| self.0.release_blocks(&units, rows / blocks, threads, &derived)).map_err(raise)?;
        self.arrays(py, rows, released)
    }

    /// Releases periods, one per row: their steps, their cells, and the measured steps (one row if they are fixed).
    fn release<'py>(&self, py: Python<'py>, values: Any<'_, 'py>) -> PyResult<Arrays<'py>> {
        let values = array("values", values, &[2])?;
        let rows = self.0.periods(values.shape()).map_err(raise)?;
        // Another thread may write to the array, so what is checked and released is a copy.
        let values = row_major(&values).into_owned();
        let released = py.detach(|| self.0.release_values(&values)).map_err(raise)?;
        self.arrays(py, rows, released)
    }
}

impl Plan {
    fn arrays<'py>(&self, py: Python<'py>, rows: usize, released: Released) -> PyResult<Arrays<'py>> {
        let measurement = self.0.measurement();
        let Released { steps, cells, mut knots } = released;
        let count = knots.len() / rows;
        if measurement.is_fixed() {
            knots.truncate(count);
        }
        let knot_rows = knots.len() / count;
        Ok((
            steps.into_pyarray(py).reshape([rows, measurement.length()])?,
            cells.into_pyarray(py).reshape([rows, measurement.cells()])?,
            knots.into_pyarray(py).reshape([knot_rows, count])?,
        ))
    }
}

/// What is measured, as Python describes it.
fn choice(sampling: Any<'_, '_>) -> PyResult<Choice> {
    type Sampler<'py> = (usize, f64, bool, (Bound<'py, PyAny>, Bound<'py, PyAny>), bool);
    if let Ok((k, threshold, printed, (first, second), constant_time)) = sampling.extract::<Sampler<'_>>() {
        let epsilons = (budget("epsilon", &first)?, budget("epsilon", &second)?);
        return Ok(Choice::Adaptive(Adaptive { k, threshold, printed, epsilons, constant_time }));
    }
    let wanted = "runs (start, stop, times), or a sampler (k, threshold, printed, epsilons, constant_time)";
    let runs: Vec<(usize, usize, u64)> =
        sampling.extract().map_err(|_| wrong_type("sampling", "something else", wanted))?;
    Ok(Choice::Runs(runs.into_iter().map(|(start, stop, times)| Run { start, stop, times }).collect()))
}

fn fraction(scale: &Scale) -> Fraction {
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
        Ok(Self { tree: Tree::new(&parents, &weights).map_err(raise)? })
    }

    /// Projects each row of targets, one target per node, with all leaves between the bounds that are given.
    #[pyo3(signature = (targets, lower=None, upper=None))]
    fn project<'py>(
        &self,
        py: Python<'py>,
        targets: &Bound<'py, PyArray2<f64>>,
        lower: Option<f64>,
        upper: Option<f64>,
    ) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let bounds = Bounds::new(lower.unwrap_or(f64::NEG_INFINITY), upper.unwrap_or(f64::INFINITY));
        let rows = targets.shape()[0];
        unless_shape("targets", targets.shape(), &[rows, self.tree.len()])?;
        let targets = entries(targets)?;
        let mut out = vec![0.0; targets.len()];
        let threads = threads(targets.len());
        py.detach(|| self.tree.project_many(&targets, bounds, threads, &mut out)).map_err(raise)?;
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
        Ok(Self { problem: problem.map_err(raise)? })
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
        let found = py.detach(|| self.problem.project(&steps, &cells, Bounds::new(lower, upper))).map_err(raise)?;
        found.into_pyarray(py).reshape([self.problem.leaves(), width])
    }
}
