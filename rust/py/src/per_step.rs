//! Releases step by step: conversions alone.

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use optstream_core::Error;
use optstream_core::rng::Key;
use optstream_estimate as estimate;
use optstream_release::steps::Keys;
use pyo3::prelude::*;

use crate::arguments::{array, entries, row_major};
use crate::errors::raise;
use crate::estimate::Filter;
use crate::noise::{Retry, derived};
use crate::release::{Arrays, Plan};

/// What ended with a step: the sample's number and the value of every stream, the cells and theirs, pending radii.
type EndedStep<'py> =
    (Option<usize>, Bound<'py, PyArray1<f64>>, Vec<usize>, Bound<'py, PyArray2<f64>>, Vec<Option<u128>>);

/// Draws what ends with the last step that has come of a period, for one row of steps per stream; see
/// `optstream_release::steps`. With a curator's key and a context, which must be that of the period, nothing is
/// pending.
#[pyfunction]
#[pyo3(signature = (plan, units, pending, retry=None))]
#[expect(clippy::needless_pass_by_value, reason = "extracted from Python")]
pub fn measure_step<'py>(
    py: Python<'py>,
    plan: PyRef<'py, Plan>,
    units: &Bound<'py, PyArray2<i64>>,
    mut pending: Vec<Option<u128>>,
    retry: Retry<'py>,
) -> PyResult<EndedStep<'py>> {
    let (rows, steps) = (units.shape()[0], units.shape()[1]);
    let units = entries(units)?;
    plan.0.check(&units).map_err(raise)?;
    if pending.len() != rows {
        return Err(raise(Error::parameter("pending", pending.len(), format!("one for each of {rows} streams"))));
    }
    let lasting = retry.is_some();
    let (values, radii) = match &retry {
        None => (Key::from_entropy().map_err(raise)?, Key::from_entropy().map_err(raise)?),
        Some(retry) => (derived(retry, b"value", &units), derived(retry, b"radius", &[])),
    };
    let ended = plan.0.measure_step(&units, steps, &mut pending, &Keys { values, radii, lasting }).map_err(raise)?;
    let sums = ended.sums.into_pyarray(py).reshape([rows, ended.cells.len()])?;
    Ok((ended.run, ended.samples.into_pyarray(py), ended.cells, sums, pending))
}

/// The steps and cells of a period from all that was measured of it, as `Plan.measure` gives them; one row per stream.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "extracted from Python")]
pub fn finish_steps<'py>(
    py: Python<'py>,
    plan: PyRef<'py, Plan>,
    samples: &Bound<'py, PyAny>,
    cells: &Bound<'py, PyAny>,
) -> PyResult<Arrays<'py>> {
    let (samples, cells) = (array("samples", samples, &[2])?, array("cells", cells, &[2])?);
    let (rows, k, width) = (samples.shape()[0], samples.shape()[1], cells.shape()[1]);
    if cells.shape()[0] != rows {
        return Err(raise(Error::parameter("cells", format!("of {} rows", cells.shape()[0]), format!("of {rows}"))));
    }
    let found = plan.0.finish_steps(rows, &row_major(&samples), &row_major(&cells)).map_err(raise)?;
    Ok((
        found.steps.into_pyarray(py).reshape([rows, plan.0.measurement().length()])?,
        found.cells.into_pyarray(py).reshape([rows, width])?,
        found.knots.into_pyarray(py).reshape([1, k])?,
    ))
}

/// A period on its way; see `optstream_estimate::Track`.
#[pyclass(module = "optstream._core")]
pub struct Track(estimate::Track);

#[pymethods]
impl Track {
    #[new]
    fn new(known: &Filter, period: i64, cells: Vec<Vec<usize>>, variances: &Bound<'_, PyAny>) -> PyResult<Self> {
        let variances = row_major(&array("variances", variances, &[1])?).into_owned();
        let made = estimate::Track::new(&known.held(), period, cells, variances).map_err(raise)?;
        Ok(Self(made))
    }

    /// Takes what ended with the next step; returns its mean and variance.
    #[expect(clippy::needless_pass_by_value, reason = "extracted from Python")]
    fn push(&mut self, values: Vec<f64>) -> PyResult<(f64, f64)> {
        self.0.push(&values).map_err(raise)
    }
}
