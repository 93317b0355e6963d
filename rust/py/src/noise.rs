//! Keys, and noise on arrays: conversions alone.

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use optstream_core::Error;
use optstream_core::grid::{Grid, default_step};
use optstream_core::rng::{Key, Secret};
use optstream_release::noise::{Law, Request};
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
    pub(crate) secret: Secret,
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

    /// The keyed digests of many blocks of data, each in the context of its stream and period, as rows of 32 bytes.
    #[expect(clippy::needless_pass_by_value, reason = "extracted from Python")]
    fn digest_many<'py>(
        &self,
        py: Python<'py>,
        streams: Vec<PyBackedBytes>,
        periods: Vec<u64>,
        units: &Bound<'py, PyArray2<i64>>,
    ) -> PyResult<Bound<'py, PyArray2<u8>>> {
        let count = units.shape()[0];
        if streams.len() != count || periods.len() != count {
            return Err(raise(Error::parameter("streams", streams.len(), format!("one for each of {count} rows"))));
        }
        let units = entries(units)?;
        let size = (units.len() / count.max(1)).max(1);
        let digests: Vec<u8> = py.detach(|| {
            let named = streams.iter().zip(&periods).zip(units.chunks(size));
            named
                .flat_map(|((stream, period), block)| self.secret.digest(&[stream, &period.to_le_bytes()], block))
                .collect()
        });
        digests.into_pyarray(py).reshape([count, 32])
    }

    #[expect(clippy::unused_self, reason = "a method of the Python class")]
    fn __repr__(&self) -> &'static str {
        "CuratorKey(<secret>)"
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

fn request(
    values: &Bound<'_, PyAny>,
    dimensions: &[usize],
    sensitivity: &Bound<'_, PyAny>,
    epsilon: &Bound<'_, PyAny>,
    bounds: &Bound<'_, PyAny>,
    grid: Option<&Bound<'_, PyAny>>,
) -> PyResult<(Request, Vec<usize>)> {
    let values = array("values", values, dimensions)?;
    let sensitivity = number("sensitivity", sensitivity)?;
    let epsilon = budget("epsilon", epsilon)?;
    let bounds = pair("bounds", bounds)?;
    let step = grid.map(|step| number("grid", step)).transpose()?;
    let made = Request::new(&row_major(&values), sensitivity, &epsilon, bounds, step).map_err(raise)?;
    Ok((made, values.shape().to_vec()))
}

/// A function of `optstream.noise`, which says what it does.
macro_rules! noise {
    ($name:ident, $dimensions:expr, $shape:ident => $law:expr) => {
        #[pyfunction]
        #[pyo3(signature = (values, sensitivity, epsilon, bounds, grid=None, retry=None))]
        pub fn $name<'py>(
            py: Python<'py>,
            values: &Bound<'py, PyAny>,
            sensitivity: &Bound<'py, PyAny>,
            epsilon: &Bound<'py, PyAny>,
            bounds: &Bound<'py, PyAny>,
            grid: Option<&Bound<'py, PyAny>>,
            retry: Retry<'py>,
        ) -> PyResult<Bound<'py, PyArrayDyn<f64>>> {
            let (request, $shape) = request(values, $dimensions, sensitivity, epsilon, bounds, grid)?;
            let (law, key) = ($law, key(retry, request.units())?);
            py.detach(|| request.noisy(law, &key)).map_err(raise)?.into_pyarray(py).reshape($shape)
        }
    };
}
noise!(laplace, &[1], shape => Law::Laplace);
noise!(gaussian, &[1], shape => Law::Gaussian);
noise!(cube, &[1, 2], shape => Law::Cube(shape.last().copied().unwrap_or(0)));

/// Which scores are above a threshold; see `optstream.above_threshold`.
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
    let (request, _) = request(scores, &[1], sensitivity, threshold_epsilon, bounds, grid)?;
    let (threshold, epsilon) = (number("threshold", threshold)?, budget("epsilon", query_epsilon)?);
    let key = Key::from_entropy().map_err(raise)?;
    let answers = py.detach(|| request.above(threshold, &epsilon, max_positive, &key)).map_err(raise)?;
    Ok(answers.into_pyarray(py))
}

/// The largest power of two that is at most `sensitivity / 1024`.
#[pyfunction]
pub fn default_grid(sensitivity: &Bound<'_, PyAny>) -> PyResult<f64> {
    default_step(number("sensitivity", sensitivity)?).map_err(raise)
}

/// How far a quantised value can move: the ceiling of alpha / grid.
#[pyfunction]
pub fn sensitivity(alpha: &Bound<'_, PyAny>, grid: &Bound<'_, PyAny>) -> PyResult<u64> {
    let grid = Grid::new(number("grid", grid)?, 0.0, number("grid", grid)?).map_err(raise)?;
    grid.sensitivity(number("sensitivity", alpha)?).map_err(raise)
}
