//! The release of one period, in the order of the paper: sample, perturb, reconstruct, project.
//!
//! [`plan`] turns the description of a mechanism into scales, once; [`period`] is the four steps; [`many`] shares periods
//! among threads; [`steps`] releases a period step by step; [`noise`] is the noise on whole arrays, without the other steps. Everything that draws has its scale,
//! sensitivity and reach here, and whoever states a price reads them from the plan that draws.
//!
//! Sampling and perturbing are integers from [`optstream_core`]. Floats begin where noise has been added: what follows is a
//! function of private numbers alone and costs nothing.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::expect_used,
        clippy::float_arithmetic,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod error;
pub mod many;
pub mod noise;
pub mod period;
pub mod plan;
pub mod steps;

pub use error::Error;
pub use many::{Released, threads};
pub use plan::{Adaptive, Choice, Description, Plan};
