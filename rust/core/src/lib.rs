//! Exact noise on an integer grid: the part of optstream whose correctness *is* the privacy guarantee.
//!
//! Data enters through [`grid`], which turns floats into integers without widening their sensitivity. Noise is drawn by
//! [`laplace`], [`cube`] and [`gaussian`], all built on [`geometric`], from the bits of a [`rng::Source`]. Nothing in between is a
//! float, a rounded probability or a generator that outlives the call that made it.
//!
//! The crate knows nothing of Python. It holds no `unsafe` code of its own, and apart from the two commented doors in
//! [`grid`] and the one in [`ratio`] it does no floating-point arithmetic.

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

pub mod batch;
pub mod choice;
pub mod cube;
mod digits;
pub mod error;
pub mod gaussian;
pub mod geometric;
pub mod grid;
pub mod laplace;
pub mod measure;
pub mod ratio;
pub mod rng;
pub mod scale;
pub mod scores;
pub mod svt;

pub use error::Error;
