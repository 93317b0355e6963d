//! Noise on arrays.

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use optstream_core::batch::{self, WORTH_THREADS};
use optstream_core::cube::CubeScale;
use optstream_core::gaussian::Deviation;
use optstream_core::grid::{Grid, default_step};
use optstream_core::rng::{Key, Secret};
use optstream_core::scale::Scale;
use optstream_core::svt::SparseVector;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::arguments::{array, budget, entries, number, pair, row_major};
use crate::errors::{raise, wrong_type};

/// A curator's secret of 32 random bytes, for noise that a retry repeats bit for bit.
///
/// The bytes cannot be read back: neither `repr`, `pickle` nor any attribute shows them.
#[pyclass(frozen, module = "optstream._core")]
pub struct CuratorKey {
    secret: Secret,
}

#[pymethods]
impl CuratorKey {
    #[new]
    fn new(secret: &[u8]) -> PyResult<Self> {
        let secret: [u8; 32] = secret
            .try_into()
            .map_err(|_| wrong_type("secret", &format!("{} bytes long", secret.len()), "32 random bytes"))?;
        Ok(Self { secret: Secret::new(secret) })
    }

    /// A keyed digest of quantised data in a context; see `optstream_core::rng::Secret::digest`.
    #[expect(clippy::needless_pass_by_value, reason = "extracted from Python")]
    fn digest<'py>(
        &self,
        py: Python<'py>,
        context: Vec<PyBackedBytes>,
        units: &Bound<'py, PyArray2<i64>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.secret.digest(&fields(&context), &entries(units)?)))
    }

    #[expect(clippy::unused_self, reason = "a method of the Python class")]
    fn __repr__(&self) -> &'static str {
        "CuratorKey(<secret>)"
    }
}

/// What the samplers need to know of a request, checked in full before anything is drawn.
struct Request {
    grid: Grid,
    scale: Scale,
    units: Vec<i64>,
    shape: Vec<usize>,
}

impl Request {
    fn read(
        values: &Bound<'_, PyAny>,
        dimensions: &[usize],
        sensitivity: &Bound<'_, PyAny>,
        epsilon: &Bound<'_, PyAny>,
        bounds: &Bound<'_, PyAny>,
        grid: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let values = array("values", values, dimensions)?;
        let sensitivity = number("sensitivity", sensitivity)?;
        let epsilon = budget("epsilon", epsilon)?;
        let (lower, upper) = pair("bounds", bounds)?;
        let step = match grid {
            Some(step) => number("grid", step)?,
            None => default_step(sensitivity).map_err(raise)?,
        };
        let grid = Grid::new(step, lower, upper).map_err(raise)?;
        let scale = Scale::new(grid.sensitivity(sensitivity).map_err(raise)?, &epsilon).map_err(raise)?;
        let units = grid.quantise(&row_major(&values)).map_err(raise)?;
        Ok(Self { grid, scale, units, shape: values.shape().to_vec() })
    }
}

/// What makes a release repeatable: a curator's key and the context of the release.
pub type Retry<'py> = Option<(PyRef<'py, CuratorKey>, Vec<PyBackedBytes>)>;

fn fields(context: &[PyBackedBytes]) -> Vec<&[u8]> {
    context.iter().map(|field| &**field).collect()
}

/// The key of a call: fresh from the operating system, or derived from a curator's key, a context and the data.
pub fn key(retry: Retry<'_>, units: &[i64]) -> PyResult<Key> {
    match retry {
        None => Key::from_entropy().map_err(raise),
        Some((curator, context)) => Ok(Key::derive(&curator.secret, &fields(&context), units)),
    }
}

/// A key for one purpose of a repeatable release.
pub fn derived((curator, context): &(PyRef<'_, CuratorKey>, Vec<PyBackedBytes>), purpose: &[u8], units: &[i64]) -> Key {
    let mut fields = fields(context);
    fields.push(purpose);
    Key::derive(&curator.secret, &fields, units)
}

/// Threads for a batch: what the machine gives this process, or fewer if `OPTSTREAM_MAX_THREADS` says so.
pub fn threads(length: usize) -> usize {
    if length < WORTH_THREADS {
        return 1;
    }
    let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let limit = std::env::var("OPTSTREAM_MAX_THREADS").ok().and_then(|text| text.parse().ok());
    limit.unwrap_or(available).clamp(1, available)
}

/// Discrete Laplace noise on every value; see `optstream.noise.laplace`.
#[pyfunction]
#[pyo3(signature = (values, sensitivity, epsilon, bounds, grid=None, retry=None))]
pub fn laplace<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    sensitivity: &Bound<'py, PyAny>,
    epsilon: &Bound<'py, PyAny>,
    bounds: &Bound<'py, PyAny>,
    grid: Option<&Bound<'py, PyAny>>,
    retry: Retry<'py>,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let Request { grid, scale, mut units, .. } = Request::read(values, &[1], sensitivity, epsilon, bounds, grid)?;
    let key = key(retry, &units)?;
    let noisy = py.detach(|| {
        let threads = threads(units.len());
        batch::laplace(&mut units, &scale, &key, threads);
        grid.values(units)
    });
    Ok(noisy.into_pyarray(py))
}

/// Discrete Gaussian noise on every value; see `optstream.noise.gaussian`. `ratio` is the sensitivity divided by sigma.
#[pyfunction]
#[pyo3(signature = (values, sensitivity, ratio, bounds, grid=None, retry=None))]
pub fn gaussian<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    sensitivity: &Bound<'py, PyAny>,
    ratio: &Bound<'py, PyAny>,
    bounds: &Bound<'py, PyAny>,
    grid: Option<&Bound<'py, PyAny>>,
    retry: Retry<'py>,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let Request { grid, scale, mut units, .. } = Request::read(values, &[1], sensitivity, ratio, bounds, grid)?;
    let key = key(retry, &units)?;
    let deviation = Deviation::new(scale);
    let noisy = py.detach(|| {
        let threads = threads(units.len());
        batch::gaussian(&mut units, &deviation, &key, threads);
        grid.values(units)
    });
    Ok(noisy.into_pyarray(py))
}

/// Cube noise on every row; see `optstream.noise.cube`.
#[pyfunction]
#[pyo3(signature = (values, sensitivity, epsilon, bounds, grid=None, retry=None))]
pub fn cube<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    sensitivity: &Bound<'py, PyAny>,
    epsilon: &Bound<'py, PyAny>,
    bounds: &Bound<'py, PyAny>,
    grid: Option<&Bound<'py, PyAny>>,
    retry: Retry<'py>,
) -> PyResult<Bound<'py, PyArrayDyn<f64>>> {
    let Request { grid, scale, mut units, shape } = Request::read(values, &[1, 2], sensitivity, epsilon, bounds, grid)?;
    let scale = CubeScale::new(scale, shape.last().copied().unwrap_or(0)).map_err(raise)?;
    let key = key(retry, &units)?;
    let noisy = py.detach(|| {
        let threads = threads(units.len());
        batch::cube(&mut units, &scale, &key, threads).map(|()| grid.values(units))
    });
    noisy.map_err(raise)?.into_pyarray(py).reshape(shape)
}

/// Which scores are above a threshold; see `optstream.above_threshold`. `threshold_epsilon` and `query_epsilon` are the
/// parts of the budget for the noise on the threshold and on the scores.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "called by one Python function, which names them")]
pub fn above_threshold<'py>(
    py: Python<'py>,
    scores: &Bound<'py, PyAny>,
    threshold: &Bound<'py, PyAny>,
    sensitivity: &Bound<'py, PyAny>,
    threshold_epsilon: &Bound<'py, PyAny>,
    query_epsilon: &Bound<'py, PyAny>,
    max_positive: usize,
    bounds: &Bound<'py, PyAny>,
    grid: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let Request { grid, scale, units, .. } = Request::read(scores, &[1], sensitivity, threshold_epsilon, bounds, grid)?;
    let threshold = grid.nearest(number("threshold", threshold)?).map_err(raise)?;
    let moved = grid.sensitivity(number("sensitivity", sensitivity)?).map_err(raise)?;
    let positives = u64::try_from(max_positive).unwrap_or(u64::MAX);
    let twice = moved.saturating_mul(positives.saturating_mul(2));
    let queries = Scale::new(twice, &budget("epsilon", query_epsilon)?).map_err(raise)?;
    let vector = SparseVector::new(scale, queries, max_positive);
    let key = Key::from_entropy().map_err(raise)?;
    let answers = py.detach(|| vector.above_threshold(&units, threshold, &mut key.stream(0)));
    Ok(answers.into_pyarray(py))
}

/// The largest power of two that is at most `sensitivity / 1024`.
#[pyfunction]
pub fn default_grid(sensitivity: &Bound<'_, PyAny>) -> PyResult<f64> {
    default_step(number("sensitivity", sensitivity)?).map_err(raise)
}
