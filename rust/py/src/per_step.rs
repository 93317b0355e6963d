//! Releases step by step: conversions alone.

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use optstream_core::Error;
use optstream_core::measure::stepwise::{Ended, Noises};
use optstream_core::rng::Key;
use optstream_estimate as estimate;
use pyo3::prelude::*;

use crate::arguments::{array, entries, row_major};
use crate::errors::raise;
use crate::estimate::Filter;
use crate::noise::{Retry, derived};
use crate::release::{Arrays, Plan};

/// A radius that is kept is below this: no scale gives a larger one.
const LARGEST_RADIUS: u128 = 1 << 120;

/// What ended with a step: the sample's number and the value of every stream, the cells and theirs, pending radii.
type EndedStep<'py> =
    (Option<usize>, Bound<'py, PyArray1<f64>>, Vec<usize>, Bound<'py, PyArray2<f64>>, Vec<Option<u128>>);

/// Draws what ends with the last step that has come of a period, for one row of steps per stream; see
/// `optstream_core::measure::stepwise`. With a curator's key and a context, which must be that of the period, nothing is
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
    let (plan, measurement) = (&plan.0, plan.0.measurement());
    plan.check(&units).map_err(raise)?;
    if pending.len() != rows || steps == 0 {
        return Err(raise(Error::parameter("pending", pending.len(), format!("one for each of {rows} streams"))));
    }
    if pending.iter().flatten().any(|radius| *radius >= LARGEST_RADIUS) {
        return Err(raise(Error::parameter("radius", "larger", "below 2^120")));
    }
    let lasting = retry.is_some();
    let (values, radii) = match &retry {
        None => (Key::from_entropy().map_err(raise)?, Key::from_entropy().map_err(raise)?),
        Some(retry) => (derived(retry, b"value", &units), derived(retry, b"radius", &[])),
    };
    let width = (measurement.length() + measurement.cells()) as u64;
    let mut found = Vec::with_capacity(rows);
    for (row, (units, pending)) in units.chunks(steps).zip(&mut pending).enumerate() {
        let noises = Noises {
            values: &values,
            first_value: row as u64 * width,
            radii: &radii,
            first_radius: (row * measurement.blocks()) as u64,
            lasting,
        };
        let mut ended = Ended::default();
        measurement.measure_step(units, pending, &noises, &mut ended).map_err(raise)?;
        found.push(ended);
    }
    let first = found.first().cloned().unwrap_or_default();
    let index = first.sample.map(|sample| sample.0);
    let samples = found.iter().filter_map(|ended| ended.sample.map(|sample| sample.1)).collect();
    let samples = plan.means(index.unwrap_or_default(), samples);
    let cells: Vec<usize> = first.cells.iter().map(|cell| cell.0).collect();
    let sums = plan.grid().values(found.iter().flat_map(|ended| ended.cells.iter().map(|cell| cell.1)).collect());
    let sums = sums.into_pyarray(py).reshape([rows, cells.len()])?;
    Ok((index, samples.into_pyarray(py), cells, sums, pending))
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
    let (plan, measurement) = (&plan.0, plan.0.measurement());
    let (rows, k, width) = (samples.shape()[0], samples.shape()[1], measurement.cells());
    let knots = measurement.knots().map_err(raise)?;
    if k != knots.len() || cells.shape() != [rows, width] {
        return Err(raise(Error::parameter("samples", format!("{rows} x {k}"), format!("{} a period", knots.len()))));
    }
    let (samples, cells) = (row_major(&samples).into_owned(), row_major(&cells).into_owned());
    let mut desk = plan.desk();
    let (mut steps, mut sums) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let (samples, cells) = (&samples[row * k..(row + 1) * k], &cells[row * width..(row + 1) * width]);
        let found = plan.finish(samples, cells, &mut desk).map_err(raise)?;
        steps.extend_from_slice(found.steps);
        sums.extend_from_slice(found.cells);
    }
    Ok((
        steps.into_pyarray(py).reshape([rows, measurement.length()])?,
        sums.into_pyarray(py).reshape([rows, width])?,
        knots.into_pyarray(py).reshape([1, k])?,
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
