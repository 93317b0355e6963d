//! The one conversion from the core's errors to the Python hierarchy, which is written in `optstream/errors.py`.

use optstream_core::Error;
use pyo3::PyErr;
use pyo3::import_exception;

import_exception!(optstream.errors, DataError);
import_exception!(optstream.errors, EntropyError);
import_exception!(optstream.errors, ParameterError);
import_exception!(optstream.errors, ParameterTypeError);
import_exception!(optstream.errors, SolverError);

/// The Python exception of an error.
#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err takes")]
pub fn raise(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Parameter { .. } => ParameterError::new_err(message),
        Error::NotFinite { .. } | Error::Empty => DataError::new_err(message),
        Error::Entropy(_) => EntropyError::new_err(message),
    }
}

/// The Python exception of an error in post-processing.
#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err takes")]
pub fn raise_post(error: optstream_post::Error) -> PyErr {
    let message = error.to_string();
    match error {
        optstream_post::Error::Parameter { .. } | optstream_post::Error::Entry { .. } => {
            ParameterError::new_err(message)
        }
        optstream_post::Error::NotOptimal { .. } => SolverError::new_err(message),
    }
}

/// The Python exception of an error in an estimate.
#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err takes")]
pub fn raise_estimate(error: optstream_estimate::Error) -> PyErr {
    let message = error.to_string();
    match error {
        optstream_estimate::Error::NotFinite { .. } => DataError::new_err(message),
        optstream_estimate::Error::Parameter { .. } | optstream_estimate::Error::State { .. } => {
            ParameterError::new_err(message)
        }
    }
}

/// An argument of the wrong type.
pub fn wrong_type(name: &str, given: &str, wanted: &str) -> PyErr {
    ParameterTypeError::new_err(format!("{name} is {given}, but must be {wanted}"))
}
