//! What is measured of a period: means over sets of steps, which need not be disjoint.

use crate::error::Error;
use crate::geometry::Geometry;
use crate::matrix::Matrix;

/// The sets of steps whose means are measured, and what they see of the directions.
#[derive(Debug)]
pub struct Layout {
    pub cells: Vec<Vec<usize>>,
    /// The order in which a view takes the measurements: that of time where they are runs of steps.
    pub order: Vec<usize>,
    /// What each measurement sees of the directions, in that order: measurements x directions.
    pub paths: Matrix,
    pub kind: Kind,
}

/// How the measurements of a period lie.
#[derive(Debug)]
pub enum Kind {
    /// Runs of steps one after the other, each from its first step to the one after its last.
    Runs(Vec<(usize, usize)>),
    /// Any sets: covariances of the processes of unit variance and of the white part with the means, and of the means.
    Any { carried: Box<[Matrix; 3]>, between: Box<[Matrix; 3]> },
}

#[expect(clippy::cast_precision_loss, reason = "numbers of steps are far below 2^52")]
pub fn share(cell: &[usize]) -> f64 {
    1.0 / cell.len() as f64
}

impl Layout {
    /// The layout of some sets of steps.
    pub fn new(geometry: &Geometry, cells: Vec<Vec<usize>>) -> Result<Self, Error> {
        if cells.is_empty() {
            return Err(Error::parameter("cells", "empty", "at least one"));
        }
        for cell in &cells {
            if cell.is_empty() || cell.iter().any(|step| *step >= geometry.w) {
                return Err(Error::parameter("cells", "a set of steps", format!("of steps below {}", geometry.w)));
            }
        }
        let mut order: Vec<usize> = (0..cells.len()).collect();
        order.sort_by_key(|index| cells[*index][0]);
        let runs = runs(&cells, &order);
        if runs.is_none() {
            order.sort_unstable();
        }
        let mut paths = Matrix::zeros(cells.len(), geometry.directions());
        for (row, index) in order.iter().enumerate() {
            let cell = &cells[*index];
            for direction in 0..geometry.directions() {
                let path = geometry.paths.row(direction);
                *paths.at_mut(row, direction) = cell.iter().fold(0.0, |sum, step| sum + path[*step]) * share(cell);
            }
        }
        let kind = runs.map_or_else(|| any(geometry, &cells), Kind::Runs);
        Ok(Self { cells, order, paths, kind })
    }

    /// Number of measurements.
    pub fn len(&self) -> usize {
        self.cells.len()
    }
}

/// The measurements as runs of steps one after the other, if they are.
fn runs(cells: &[Vec<usize>], order: &[usize]) -> Option<Vec<(usize, usize)>> {
    let mut runs: Vec<(usize, usize)> = Vec::with_capacity(order.len());
    for index in order {
        let cell = &cells[*index];
        let consecutive = cell.windows(2).all(|pair| pair[1] == pair[0] + 1);
        if !consecutive || runs.last().is_some_and(|run| run.1 > cell[0]) {
            return None;
        }
        runs.push((cell[0], cell[0] + cell.len()));
    }
    Some(runs)
}

pub(crate) fn any(geometry: &Geometry, cells: &[Vec<usize>]) -> Kind {
    let (m, w) = (cells.len(), geometry.w);
    let mut carried = [Matrix::zeros(m, w), Matrix::zeros(m, w), Matrix::zeros(m, w)];
    for (row, cell) in cells.iter().enumerate() {
        for (carried, powers) in carried.iter_mut().zip(&geometry.powers) {
            for (step, entry) in carried.row_mut(row).iter_mut().enumerate() {
                let sum = cell.iter().fold(0.0, |sum, other| {
                    sum + (powers[step.abs_diff(*other)] - powers[step + 1] * powers[other + 1])
                });
                *entry = sum * share(cell);
            }
        }
        for step in cell {
            *carried[2].at_mut(row, *step) = share(cell);
        }
    }
    let between = [0, 1, 2].map(|part: usize| {
        let mut between = Matrix::zeros(m, m);
        for row in 0..m {
            let with_steps = carried[part].row(row);
            for (entry, cell) in between.row_mut(row).iter_mut().zip(cells) {
                *entry = cell.iter().fold(0.0, |sum, step| sum + with_steps[*step]) * share(cell);
            }
        }
        between
    });
    Kind::Any { carried: Box::new(carried), between: Box::new(between) }
}
