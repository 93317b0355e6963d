//! What can be wrong with a request, as one type.

use std::fmt;

/// Why a request was refused or abandoned. Each message names the parameter, the value and the bound.
///
/// Every variant but the last two is found before anything is drawn. [`Error::Entropy`] and [`Error::NoiseTooLarge`]
/// arise while drawing, but depend on the noise alone and never on the data, so that they reveal nothing.
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
    /// An exact sum left the range of 64-bit integers.
    SumTooLarge,
    /// The operating system gave no entropy.
    Entropy(String),
    /// A draw exceeded 2^62 grid units.
    NoiseTooLarge,
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
            Self::SumTooLarge => f.write_str("a sum of values exceeds 2^62 grid units: use a coarser grid"),
            Self::Entropy(reason) => write!(f, "the operating system gave no entropy: {reason}"),
            Self::NoiseTooLarge => f.write_str("a noise draw exceeded 2^62 grid units; nothing was released"),
        }
    }
}

impl std::error::Error for Error {}
