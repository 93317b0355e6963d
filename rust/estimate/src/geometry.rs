//! What all models of a stream share: its curves and the processes on the steps of a period.

use std::f64::consts::PI;

use crate::error::Error;
use crate::matrix::Matrix;

/// Most cosines of a shape, and of a weekday's deviation from it.
const CURVE: usize = 48;
const WEEKDAY_CURVE: usize = 8;
/// Frequency, in half waves of a period, from which the variance of a curve's cosines falls, and the power.
const KNEE: f64 = 3.5;
const FALL: f64 = 1.75;
/// Memory of the two processes in continuous time, in periods.
const DRIFT_PERIODS: f64 = 4.0;
const INTRADAY_PERIODS: f64 = 0.25;
/// The memory, in steps, of what does not inform its neighbours.
const NO_MEMORY: f64 = 1e-2;

/// The curves and processes of a stream.
///
/// What is measured of a period depends on its states only through the *directions*: the cosines of the shape, those of
/// the weekday added (they are the first ones of the shape), and the two values at the last step of the period before.
#[derive(Debug, Clone)]
pub struct Geometry {
    /// Number of steps of a period.
    pub w: usize,
    /// Number of periods after which weekdays repeat.
    pub season: usize,
    /// Whether neighbouring steps inform each other.
    pub smooth: bool,
    pub(crate) curve: usize,
    pub(crate) weekday: usize,
    /// Number of states.
    pub(crate) size: usize,
    /// What a direction adds to each step: directions x steps.
    pub(crate) paths: Matrix,
    pub(crate) spectrum: Vec<f64>,
    pub(crate) weekday_spectrum: Vec<f64>,
    /// What the processes are multiplied by in one step, and in one period.
    pub(crate) step_decay: [f64; 2],
    pub(crate) decay: [f64; 2],
    /// The powers of the decay, from the first to that of two periods.
    pub(crate) powers: [Vec<f64>; 2],
}

#[expect(clippy::cast_precision_loss, reason = "numbers of steps are far below 2^52")]
fn real(number: usize) -> f64 {
    number as f64
}

impl Geometry {
    /// The geometry of periods of w steps.
    ///
    /// # Errors
    ///
    /// If a number is zero.
    pub fn new(w: usize, season: usize, smooth: bool) -> Result<Self, Error> {
        for (name, value) in [("w", w), ("season", season)] {
            if value == 0 {
                return Err(Error::parameter(name, value, "positive"));
            }
        }
        let curve = w.min(CURVE);
        let weekday = if season > 1 { w.min(WEEKDAY_CURVE) } else { 0 };
        let falling = |frequency: usize| {
            if smooth { libm::pow(1.0 + (real(frequency) / KNEE) * (real(frequency) / KNEE), -FALL) } else { 1.0 }
        };
        let mut spectrum: Vec<f64> = (0..curve).map(falling).collect();
        spectrum[0] = 0.0;
        let mut weekday_spectrum: Vec<f64> = (0..weekday).map(falling).collect();
        for part in [&mut spectrum, &mut weekday_spectrum] {
            let total = part.iter().fold(0.0, |sum, value| sum + value).max(f64::MIN_POSITIVE);
            for value in part.iter_mut() {
                *value /= total;
            }
        }
        let memories = [DRIFT_PERIODS * real(w), if smooth { INTRADAY_PERIODS * real(w) } else { NO_MEMORY }];
        let powers = memories.map(|memory| (0..=2 * w).map(|lag| libm::exp(-real(lag) / memory)).collect::<Vec<f64>>());
        let mut paths = Matrix::zeros(curve + 2, w);
        for frequency in 0..curve {
            let height = if frequency == 0 { 1.0 } else { 2.0_f64.sqrt() };
            for (step, entry) in paths.row_mut(frequency).iter_mut().enumerate() {
                *entry = libm::cos(PI * real(frequency) * ((real(step) + 0.5) / real(w))) * height;
            }
        }
        for (process, powers) in powers.iter().enumerate() {
            paths.row_mut(curve + process).copy_from_slice(&powers[1..=w]);
        }
        Ok(Self {
            w,
            season,
            smooth,
            curve,
            weekday,
            size: curve + season * weekday + 2,
            paths,
            spectrum,
            weekday_spectrum,
            step_decay: [powers[0][1], powers[1][1]],
            decay: [powers[0][w], powers[1][w]],
            powers,
        })
    }

    /// Number of directions.
    pub(crate) fn directions(&self) -> usize {
        self.curve + 2
    }

    /// The first state of the weekday of a period.
    pub(crate) fn weekday_of(&self, period: i64) -> usize {
        let season = i64::try_from(self.season).unwrap_or(i64::MAX);
        self.curve + usize::try_from(period.rem_euclid(season)).expect("not negative") * self.weekday
    }

    /// What the directions are of a vector of states.
    pub(crate) fn seen(&self, period: i64, states: &[f64]) -> Vec<f64> {
        let first = self.weekday_of(period);
        let mut seen = states[..self.curve].to_vec();
        for (sum, value) in seen.iter_mut().zip(&states[first..first + self.weekday]) {
            *sum += value;
        }
        seen.extend_from_slice(&states[self.size - 2..]);
        seen
    }

    /// The states that some directions are sums of, with the factors of these.
    pub(crate) fn seeing<'a>(&self, period: i64, factors: &'a [f64]) -> impl Iterator<Item = (usize, f64)> + use<'a> {
        let curve = (0..self.curve).zip(factors);
        let weekday = (self.weekday_of(period)..).zip(&factors[..self.weekday]);
        let last = (self.size - 2..).zip(&factors[self.curve..]);
        curve.chain(weekday).chain(last).map(|(state, factor)| (state, *factor))
    }

    /// The directions of a symmetric matrix of states.
    pub(crate) fn seen_square(&self, period: i64, states: &Matrix) -> Matrix {
        let first = self.weekday_of(period);
        let mut seen = Matrix::zeros(self.directions(), self.directions());
        for row in 0..self.directions() {
            let state = if row < self.curve { row } else { self.size - 2 + (row - self.curve) };
            let others = [Some(state), (row < self.weekday).then_some(first + row)];
            let to = seen.row_mut(row);
            for from in others.into_iter().flatten().map(|state| states.row(state)) {
                for (sum, value) in to[..self.curve].iter_mut().zip(from) {
                    *sum += value;
                }
                for (sum, value) in to.iter_mut().zip(&from[first..first + self.weekday]) {
                    *sum += value;
                }
                for (sum, value) in to[self.curve..].iter_mut().zip(&from[self.size - 2..]) {
                    *sum += value;
                }
            }
        }
        seen
    }

    /// The rows of directions of a matrix with one row for each state.
    pub(crate) fn seen_rows(&self, period: i64, states: &Matrix) -> Matrix {
        let (first, stride) = (self.weekday_of(period), states.stride);
        let mut seen = Matrix::zeros(self.directions(), states.columns);
        seen.data[..self.curve * stride].copy_from_slice(&states.data[..self.curve * stride]);
        let weekday = &states.data[first * stride..(first + self.weekday) * stride];
        for (sum, value) in seen.data.iter_mut().zip(weekday) {
            *sum += value;
        }
        let last = (self.size - 2) * stride;
        seen.data[self.curve * stride..(self.curve + 2) * stride]
            .copy_from_slice(&states.data[last..last + 2 * stride]);
        seen
    }

    /// The columns of directions of a matrix with one column for each state.
    pub(crate) fn seen_columns(&self, period: i64, states: &Matrix) -> Matrix {
        let mut seen = Matrix::zeros(states.rows, self.directions());
        let first = self.weekday_of(period);
        for row in 0..states.rows {
            let (from, to) = (states.row(row), seen.row_mut(row));
            to[..self.curve].copy_from_slice(&from[..self.curve]);
            for (sum, value) in to.iter_mut().zip(&from[first..first + self.weekday]) {
                *sum += value;
            }
            to[self.curve..].copy_from_slice(&from[self.size - 2..]);
        }
        seen
    }
}
