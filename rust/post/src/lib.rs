//! Post-processing: what may be done to numbers that are already private.
//!
//! [`interpolate`] fills a period from its noisy samples, [`tree`] makes noisy totals and noisy parts agree. Both are
//! functions of released values alone, so they cost no privacy, and floats are as good here as anywhere else.
//!
//! The crate knows nothing of Python and holds no `unsafe` code.

#![forbid(unsafe_code)]

pub mod error;
pub mod interpolate;
pub mod product;
pub mod tree;

pub use error::Error;
