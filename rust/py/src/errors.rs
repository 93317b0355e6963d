//! The one map from the errors of the crates to the Python hierarchy, which is written in `optstream/errors.py`.

use optstream_core::Error as Core;
use optstream_estimate::Error as Estimate;
use optstream_post::Error as Post;
use optstream_release::Error as Release;
use pyo3::{PyErr, import_exception};

import_exception!(optstream.errors, DataError);
import_exception!(optstream.errors, EntropyError);
import_exception!(optstream.errors, ParameterError);
import_exception!(optstream.errors, ParameterTypeError);
import_exception!(optstream.errors, SolverError);

/// The Python exception of an error of any crate.
pub fn raise(error: impl Into<Raised>) -> PyErr {
    let Raised(error) = error.into();
    error
}

/// An error on its way to Python.
pub struct Raised(PyErr);

impl From<Core> for Raised {
    fn from(error: Core) -> Self {
        let message = error.to_string();
        Self(match error {
            Core::Parameter { .. } => ParameterError::new_err(message),
            Core::NotFinite { .. } | Core::Empty => DataError::new_err(message),
            Core::Entropy(_) => EntropyError::new_err(message),
        })
    }
}

impl From<Post> for Raised {
    fn from(error: Post) -> Self {
        let message = error.to_string();
        Self(match error {
            Post::Parameter { .. } | Post::Entry { .. } => ParameterError::new_err(message),
            Post::NotOptimal { .. } => SolverError::new_err(message),
        })
    }
}

impl From<Release> for Raised {
    fn from(error: Release) -> Self {
        match error {
            Release::Core(error) => error.into(),
            Release::Post(error) => error.into(),
        }
    }
}

impl From<Estimate> for Raised {
    fn from(error: Estimate) -> Self {
        let message = error.to_string();
        Self(match error {
            Estimate::NotFinite { .. } => DataError::new_err(message),
            Estimate::Parameter { .. } | Estimate::State { .. } => ParameterError::new_err(message),
        })
    }
}

/// An argument of the wrong type.
pub fn wrong_type(name: &str, given: &str, wanted: &str) -> PyErr {
    ParameterTypeError::new_err(format!("{name} is {given}, but must be {wanted}"))
}
