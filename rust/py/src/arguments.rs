//! How Python arguments are read: strictly, and with messages that name them.

use std::borrow::Cow;

use numpy::{
    Element, PyArray2, PyArrayDescrMethods, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods,
};
use optstream_core::Error;
use optstream_core::ratio::Ratio;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

use crate::errors::{raise, wrong_type};

/// A float64 array of one of the given dimensions.
pub fn array<'py>(
    name: &str,
    value: &Bound<'py, PyAny>,
    dimensions: &[usize],
) -> PyResult<PyReadonlyArrayDyn<'py, f64>> {
    let wanted = match dimensions {
        [1] => "a 1-D numpy array of float64",
        [2] => "a 2-D numpy array of float64",
        _ => "a 1-D or 2-D numpy array of float64",
    };
    if let Ok(mut array) = value.extract::<PyReadonlyArrayDyn<'py, f64>>() {
        if !is_aligned(value)? {
            array = value.call_method0("copy")?.extract()?;
        }
        if dimensions.contains(&array.ndim()) {
            return Ok(array);
        }
        let given = format!("an array with {} dimensions", array.ndim());
        return Err(raise(Error::Parameter { name: "values", value: given, bound: wanted.into() }));
    }
    let given = match value.cast::<PyUntypedArray>() {
        Ok(array) => format!("an array of {}", array.dtype().typeobj()),
        Err(_) => format!("of type {}", value.get_type().name()?),
    };
    Err(wrong_type(name, &given, wanted))
}

/// Whether entries lie where Rust looks for them.
///
/// Those of a packed record do not: their distances are no multiples of their size, and counted in entries they would be
/// other ones.
fn is_aligned(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    array.getattr("flags")?.getattr("aligned")?.extract()
}

/// The entries of a matrix row by row, wherever they lie.
pub fn entries<T: Element + Copy>(matrix: &Bound<'_, PyArray2<T>>) -> PyResult<Vec<T>> {
    if is_aligned(matrix.as_any())? {
        return Ok(matrix.readonly().as_array().iter().copied().collect());
    }
    let copy = matrix.call_method0("copy")?;
    Ok(copy.cast::<PyArray2<T>>()?.readonly().as_array().iter().copied().collect())
}

/// The values of an array row by row.
///
/// numpy's column-major arrays are slices too, but in an order that would mix the rows, that is blocks or periods.
pub fn row_major<'a>(array: &'a PyReadonlyArrayDyn<'_, f64>) -> Cow<'a, [f64]> {
    match array.as_slice() {
        Ok(slice) if array.is_c_contiguous() => Cow::Borrowed(slice),
        _ => Cow::Owned(array.as_array().iter().copied().collect()),
    }
}

/// A real number, not a bool.
pub fn number(name: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    if !value.is_instance_of::<PyBool>()
        && let Ok(number) = value.extract::<f64>()
    {
        return Ok(number);
    }
    Err(wrong_type(name, &format!("of type {}", value.get_type().name()?), "a real number"))
}

/// A pair of real numbers.
pub fn pair(name: &str, value: &Bound<'_, PyAny>) -> PyResult<(f64, f64)> {
    match value.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() {
        Ok((first, second)) => Ok((number(&format!("{name}[0]"), &first)?, number(&format!("{name}[1]"), &second)?)),
        Err(_) => Err(wrong_type(name, &format!("{}", value.repr()?), "a pair (lower, upper)")),
    }
}

/// A positive budget: an int, a fraction, a decimal, or a float read as the decimal that it shows.
pub fn budget(name: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Ratio> {
    if let Ok(float) = value.cast::<PyFloat>() {
        return Ratio::from_shortest_decimal(name, float.value()).map_err(raise);
    }
    let refused = |bound: &str| -> PyResult<PyErr> {
        Ok(raise(Error::Parameter { name, value: value.str()?.to_string(), bound: bound.into() }))
    };
    if value.is_instance_of::<PyBool>() || !value.hasattr("as_integer_ratio")? {
        let given = format!("of type {}", value.get_type().name()?);
        return Err(wrong_type(name, &given, "a number (int, float, Fraction or Decimal)"));
    }
    // A Decimal that is not finite has no integer ratio.
    let Ok(ratio) = value.call_method0("as_integer_ratio") else {
        return Err(refused("positive and finite")?);
    };
    let (numerator, denominator) = ratio.extract::<(Bound<'_, PyInt>, Bound<'_, PyInt>)>()?;
    if numerator.le(0)? {
        return Err(refused("positive and finite")?);
    }
    match (numerator.extract::<u128>(), denominator.extract::<u128>()) {
        (Ok(numerator), Ok(denominator)) => Ratio::new(name, numerator, denominator).map_err(raise),
        _ => Err(refused("a fraction of integers below 2^128")?),
    }
}
