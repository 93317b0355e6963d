//! What can go wrong with a release, as one type.

use std::fmt;

/// Why a release was refused or withheld: what the core refuses, or what post-processing does.
#[derive(Debug, Clone, PartialEq)]
pub enum Error {
    /// A parameter or the data, found before anything is drawn.
    Core(optstream_core::Error),
    /// A parameter of post-processing, or a solution that failed its check.
    Post(optstream_post::Error),
}

impl From<optstream_core::Error> for Error {
    fn from(error: optstream_core::Error) -> Self {
        Self::Core(error)
    }
}

impl From<optstream_post::Error> for Error {
    fn from(error: optstream_post::Error) -> Self {
        Self::Post(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Core(error) => error.fmt(f),
            Self::Post(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}
