//! The estimate of a stream from noisy means over sets of steps: memory, smoothness and true variances.
//!
//! The values of period d are, at step t, `level(d) + shape(d, t) + weekday(d mod season, t) + drift(d w + t) +
//! intraday(d w + t) + white(d, t)` with independent parts: a random walk, two kinds of smooth curves that change slowly,
//! two Ornstein-Uhlenbeck processes that run through the end of a period, and what is independent from step to step.
//! Six variances, the *amplitudes*, are learnt from what is measured.
//!
//! Everything here reads private values only, so nothing here costs budget. The same bits come out on every machine: one
//! accumulator for each element, in a fixed order; vectors run across elements; nothing is contracted; exponentials and
//! logarithms come from `libm`, not from the system.

#![deny(unsafe_code)]

mod bank;
mod error;
mod filter;
mod geometry;
mod layout;
mod matrix;
mod rotation;
mod smoother;
mod state;
mod track;
mod view;
mod wide;

pub use error::Error;
pub use filter::{Estimate, Filter, Measured, update_all};
pub use geometry::Geometry;
pub use rotation::{combined, principal};
pub use smoother::revised;
pub use track::Track;
