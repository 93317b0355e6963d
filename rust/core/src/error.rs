//! What can be wrong with a request, as one type.

use std::fmt;

/// Why a request was refused or abandoned. Each message names the parameter, the value and the bound.
///
/// All are found before anything is drawn, and none but the two about the data depends on it.
#[derive(Debug, Clone, PartialEq)]
pub enum Error {
    /// A parameter lies outside its bound.
    Parameter {
        /// The parameter's name, as the caller knows it.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// What it must be.
        bound: String,
    },
    /// An entry of the data is NaN or infinite.
    NotFinite {
        /// Position of the first such entry.
        index: usize,
        /// The entry itself, which carries no information about anyone.
        value: f64,
    },
    /// The data holds no value at all.
    Empty,
    /// The operating system gave no entropy.
    Entropy(String),
}

impl Error {
    /// An [`Error::Parameter`] from anything printable.
    pub fn parameter(name: &'static str, value: impl fmt::Display, bound: impl fmt::Display) -> Self {
        Self::Parameter { name, value: value.to_string(), bound: bound.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter { name, value, bound } => write!(f, "{name} is {value}, but must be {bound}"),
            Self::NotFinite { index, value } => write!(f, "values[{index}] is {value}, but must be finite"),
            Self::Empty => f.write_str("values is empty, but must hold at least one value"),
            Self::Entropy(reason) => write!(f, "the operating system gave no entropy: {reason}"),
        }
    }
}

impl std::error::Error for Error {}
