//! `optstream._core`: the binding and nothing else.
//!
//! Every function copies and quantises its input while attached to the interpreter, detaches, computes on owned
//! integers, and moves the result out.

use pyo3::prelude::*;

mod arguments;
mod errors;
mod estimate;
mod noise;
mod per_step;
mod release;

#[pymodule]
mod _core {
    #[pymodule_export]
    use crate::estimate::{Filter, combined, principal, update_filters};
    #[pymodule_export]
    use crate::noise::{CuratorKey, above_threshold, cube, default_grid, gaussian, laplace, sensitivity};
    #[pymodule_export]
    use crate::per_step::{Track, finish_steps, measure_step};
    #[pymodule_export]
    use crate::release::{Forest, Plan, Product, choice_hashes, quantise};
}
