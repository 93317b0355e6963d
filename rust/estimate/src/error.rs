//! What a filter refuses.

use std::fmt;

/// Why an argument was refused, without any raw data.
#[derive(Debug, Clone, PartialEq)]
pub enum Error {
    /// An argument is outside its bounds.
    Parameter {
        /// Its name.
        name: &'static str,
        /// The value given.
        value: String,
        /// What it must be.
        bound: String,
    },
    /// A measured value or variance cannot be squared.
    NotFinite {
        /// The largest that can.
        largest: f64,
    },
    /// A saved state is not one, or of another version.
    State {
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl Error {
    pub(crate) fn parameter(name: &'static str, value: impl fmt::Display, bound: impl Into<String>) -> Self {
        Self::Parameter { name, value: value.to_string(), bound: bound.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter { name, value, bound } => write!(formatter, "{name} is {value}, but must be {bound}"),
            Self::NotFinite { largest } => {
                write!(formatter, "measured values hold an entry that is not finite or exceeds {largest:e}")
            }
            Self::State { reason } => write!(formatter, "format of the state is {reason}, but must be that of state()"),
        }
    }
}

impl std::error::Error for Error {}
