//! The filters of estimates: conversions alone.

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use optstream_estimate as estimate;
use optstream_release::threads;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::{array, row_major};
use crate::errors::{raise, wrong_type};

type Cells = Vec<Vec<usize>>;
type Pair<'py> = (Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<f64>>);
type Understood = (f64, f64, f64);

/// The filter of one stream.
#[pyclass(module = "optstream._core", frozen)]
pub struct Filter(std::sync::Mutex<estimate::Filter>);

impl Filter {
    pub(crate) fn held(&self) -> std::sync::MutexGuard<'_, estimate::Filter> {
        // A filter whose update failed half-way is not used again: the exception has reached its owner.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn vector(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<f64>> {
    Ok(row_major(&array(name, value, &[1])?).into_owned())
}

fn moments(py: Python<'_>, found: estimate::Estimate) -> Pair<'_> {
    (PyArray1::from_vec(py, found.means), PyArray1::from_vec(py, found.variances))
}

#[pymethods]
impl Filter {
    #[new]
    fn new(w: usize, season: usize, memory: bool, smooth: bool, level: Option<(f64, f64)>) -> PyResult<Self> {
        let made = estimate::Filter::new(w, season, memory, smooth, level).map_err(raise)?;
        Ok(Self(made.into()))
    }

    #[staticmethod]
    fn from_bytes(data: &[u8]) -> PyResult<Self> {
        Ok(Self(estimate::Filter::from_bytes(data).map_err(raise)?.into()))
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.held().to_bytes())
    }

    #[getter]
    fn measured(&self) -> u64 {
        self.held().measured()
    }

    #[getter]
    fn last(&self) -> Option<i64> {
        self.held().last()
    }

    #[getter]
    fn alarm(&self) -> Option<(u64, f64)> {
        self.held().alarm()
    }

    #[getter]
    fn renewed(&self) -> Option<u64> {
        self.held().renewed()
    }

    #[getter]
    fn density(&self) -> f64 {
        self.held().density()
    }

    #[getter]
    fn level(&self) -> Option<(f64, f64)> {
        self.held().level()
    }

    #[getter]
    fn room(&self) -> f64 {
        self.held().room()
    }

    #[getter]
    fn kind(&self) -> (usize, usize, bool, bool) {
        self.held().kind()
    }

    fn expected_error(
        &self,
        py: Python<'_>,
        cells: Cells,
        variances: &Bound<'_, PyAny>,
        scale: Option<f64>,
        memory: bool,
    ) -> PyResult<f64> {
        let variances = vector("variances", variances)?;
        py.detach(|| self.held().expected_error(cells, variances, scale, memory)).map_err(raise)
    }

    fn expected_step_error(
        &self,
        py: Python<'_>,
        cells: Cells,
        variances: &Bound<'_, PyAny>,
        scale: Option<f64>,
        memory: bool,
    ) -> PyResult<f64> {
        let variances = vector("variances", variances)?;
        py.detach(|| self.held().expected_step_error(cells, variances, scale, memory)).map_err(raise)
    }

    fn deviation<'py>(
        &self,
        py: Python<'py>,
        transform: &Bound<'py, PyAny>,
        scale: Option<f64>,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let given = array("transform", transform, &[2])?;
        let (columns, entries) = (given.shape()[1].max(1), row_major(&given).into_owned());
        let rows: Vec<Vec<f64>> = entries.chunks(columns).map(<[f64]>::to_vec).collect();
        let found = py.detach(|| self.held().deviation(&rows, scale)).map_err(raise)?;
        Ok(PyArray1::from_vec(py, found))
    }

    /// What was measured of some periods, with what was made of it, in the light of each other.
    #[expect(clippy::type_complexity, reason = "one row for each period, as Python has them")]
    fn revised<'py>(
        &self,
        py: Python<'py>,
        history: Vec<(i64, Cells, Bound<'py, PyAny>, Bound<'py, PyAny>, Understood)>,
    ) -> PyResult<(Bound<'py, PyArray2<f64>>, Bound<'py, PyArray2<f64>>)> {
        let mut rows = Vec::with_capacity(history.len());
        for (period, cells, values, variances, (jump, excess, shift)) in history {
            rows.push((
                period,
                cells,
                vector("values", &values)?,
                vector("variances", &variances)?,
                [jump, excess, shift],
            ));
        }
        let w = self.kind().0;
        let found = py
            .detach(|| {
                let mut filter = self.held();
                let history: Result<Vec<estimate::Measured>, estimate::Error> = rows
                    .into_iter()
                    .map(|(period, cells, values, variances, made)| {
                        filter.understood(period, cells, values, variances, made)
                    })
                    .collect();
                estimate::revised(&filter, &history?)
            })
            .map_err(raise)?;
        let shape = [found.len(), w];
        let (means, variances): (Vec<_>, Vec<_>) = found.into_iter().map(|one| (one.means, one.variances)).unzip();
        Ok((
            PyArray1::from_vec(py, means.concat()).reshape(shape)?,
            PyArray1::from_vec(py, variances.concat()).reshape(shape)?,
        ))
    }
}

fn rows(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<f64>>> {
    let given = array(name, value, &[2])?;
    let (count, columns) = (given.shape()[0], given.shape()[1]);
    let entries = row_major(&given);
    Ok((0..count).map(|row| entries[row * columns..(row + 1) * columns].to_vec()).collect())
}

/// The product of two matrices, with sums in the order of the inner index.
#[pyfunction]
pub fn combined<'py>(
    py: Python<'py>,
    left: &Bound<'py, PyAny>,
    right: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let (left, right) = (rows("left", left)?, rows("right", right)?);
    let shape = [left.len(), right.first().map_or(0, Vec::len)];
    PyArray1::from_vec(py, estimate::combined(&left, &right).map_err(raise)?.concat()).reshape(shape)
}

/// The orthonormal directions of a symmetric matrix of second moments, the largest first.
#[pyfunction]
pub fn principal<'py>(py: Python<'py>, moments: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let found = estimate::principal(&rows("moments", moments)?).map_err(raise)?;
    let shape = [found.len(), found.len()];
    PyArray1::from_vec(py, found.concat()).reshape(shape)
}

/// Update the filters of some streams, on several threads; all arguments are checked before anything changes.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "extracted from Python")]
pub fn update_filters<'py>(
    py: Python<'py>,
    filters: Vec<PyRef<'py, Filter>>,
    period: i64,
    cells: Vec<Cells>,
    values: Vec<Bound<'py, PyAny>>,
    variances: Vec<Bound<'py, PyAny>>,
) -> PyResult<Vec<(Pair<'py>, Understood)>> {
    let values = values.iter().map(|row| vector("values", row)).collect::<PyResult<Vec<_>>>()?;
    let variances = variances.iter().map(|row| vector("variances", row)).collect::<PyResult<Vec<_>>>()?;
    let filters: Vec<&Filter> = filters.iter().map(|filter| &**filter).collect();
    let mut places: Vec<*const Filter> = filters.iter().map(|filter| std::ptr::from_ref(*filter)).collect();
    places.sort_unstable();
    places.dedup();
    if places.len() < filters.len() {
        return Err(wrong_type("filters", "a list with one of them twice", "a list of different filters"));
    }
    let found = py
        .detach(|| -> Result<Vec<_>, estimate::Error> {
            let mut held: Vec<_> = filters.iter().map(|filter| filter.held()).collect();
            let mut measured = Vec::with_capacity(held.len());
            // One layout or one for each stream.
            let layouts = cells.iter().cycle();
            for (((filter, cells), values), variances) in held.iter_mut().zip(layouts).zip(values).zip(variances) {
                filter.check(period)?;
                measured.push(filter.measurement(period, cells.clone(), values, variances)?);
            }
            let mut borrowed: Vec<&mut estimate::Filter> = held.iter_mut().map(|filter| &mut **filter).collect();
            estimate::update_all(&mut borrowed, measured, threads(usize::MAX))
        })
        .map_err(raise)?;
    Ok(found.into_iter().map(|(found, seen)| (moments(py, found), (seen.jump, seen.excess, seen.shift))).collect())
}
