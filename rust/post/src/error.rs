//! What can be wrong with a request, as one type.

use std::fmt;

/// Why a request was refused or its answer withheld. Each message names the parameter, the value and the bound.
#[derive(Debug, Clone, PartialEq)]
pub enum Error {
    /// A parameter as a whole lies outside its bound.
    Parameter {
        /// The parameter's name, as the caller knows it.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// What it must be.
        bound: String,
    },
    /// An entry of a parameter lies outside its bound.
    Entry {
        /// The parameter's name, as the caller knows it.
        name: &'static str,
        /// Position of the first such entry.
        index: usize,
        /// The entry that was given.
        value: String,
        /// What it must be.
        bound: String,
    },
    /// A solution failed the check of its optimality conditions, so it is withheld.
    NotOptimal {
        /// The row of the targets that was being solved.
        row: usize,
        /// A node whose condition is violated.
        node: usize,
        /// By how much, relative to the size of the terms of the condition.
        violation: f64,
        /// By how much it may be.
        tolerance: f64,
    },
}

impl Error {
    /// An [`Error::Parameter`] from anything printable.
    pub fn parameter(name: &'static str, value: impl fmt::Display, bound: impl fmt::Display) -> Self {
        Self::Parameter { name, value: value.to_string(), bound: bound.to_string() }
    }

    /// An [`Error::Entry`] from anything printable.
    pub fn entry(name: &'static str, index: usize, value: impl fmt::Display, bound: impl fmt::Display) -> Self {
        Self::Entry { name, index, value: value.to_string(), bound: bound.to_string() }
    }

    /// An [`Error::Parameter`] unless `length` is as `expected`.
    pub(crate) fn unless_length(name: &'static str, length: usize, expected: usize) -> Result<(), Self> {
        if length == expected { Ok(()) } else { Err(Self::parameter(name, length, expected)) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter { name, value, bound } => write!(f, "{name} is {value}, but must be {bound}"),
            Self::Entry { name, index, value, bound } => write!(f, "{name}[{index}] is {value}, but must be {bound}"),
            Self::NotOptimal { row, node, violation, tolerance } => write!(
                f,
                "the optimality condition of node {node} in row {row} is violated by {violation:e}, \
                 but at most by {tolerance:e} is accepted; nothing was returned"
            ),
        }
    }
}

impl std::error::Error for Error {}
