//! Filters of one geometry that run side by side, each with its own amplitudes.

use std::f64::consts::PI;
use std::sync::Arc;

use crate::geometry::Geometry;
use crate::layout::Layout;
use crate::matrix::{
    BLOCK, Columns, Matrix, add, dot, eliminate, root, scale, squared_lengths, take_square, triangle_product,
};
use crate::view::{Seen, View};

/// Variances of the parts, `evolution` being the variance that the shape gains in one period.
pub type Amplitudes = [f64; 6];
pub const SHAPE: usize = 0;
pub const DRIFT: usize = 1;
pub const INTRADAY: usize = 2;
pub const WHITE: usize = 3;
pub const WEEKDAY: usize = 4;
pub const EVOLUTION: usize = 5;
/// Variance that the level gains in one period, as a share of the variance of the drift.
const LEVEL_SHARE: f64 = 0.01;
/// Variance that a weekday's deviation renews in one period, as a share of its variance.
const WEEKDAY_SHARE: f64 = 0.0004;

/// What was measured of a period, relative to the origin, and how it was understood.
#[derive(Debug, Clone, Copy)]
pub struct Sight<'a> {
    pub period: i64,
    pub layout: &'a Arc<Layout>,
    pub values: &'a [f64],
    pub variances: &'a [f64],
    pub excess: f64,
}

/// What a model knows of one period after its measurements.
#[derive(Debug, Clone)]
pub struct Posterior {
    /// Logarithm of the density of the measured values given all earlier ones.
    pub density: f64,
    /// Of the steps; empty if they were not wanted.
    pub means: Vec<f64>,
    pub variances: Vec<f64>,
}

/// One model: the level, the coefficients of the curves and the two values at the last step, as a Gaussian vector.
#[derive(Debug, Clone)]
pub struct Model {
    pub amplitudes: Amplitudes,
    pub mean: Vec<f64>,
    pub covariance: Matrix,
    view: Option<Kept>,
}

/// A view, and what it is of.
#[derive(Debug, Clone)]
struct Kept {
    layout: Arc<Layout>,
    variances: Vec<f64>,
    excess: f64,
    view: Arc<View>,
}

impl Model {
    /// A model before anything is measured, with the mean and variance of its level.
    pub fn new(geometry: &Geometry, amplitudes: Amplitudes, level: (f64, f64)) -> Self {
        let mut model = Self {
            amplitudes,
            mean: vec![0.0; geometry.size],
            covariance: Matrix::zeros(geometry.size, geometry.size),
            view: None,
        };
        model.forget(geometry, level);
        model
    }

    /// Return to the state before anything was measured.
    pub fn forget(&mut self, geometry: &Geometry, level: (f64, f64)) {
        self.mean.fill(0.0);
        self.mean[0] = level.0;
        self.covariance.data.fill(0.0);
        for (state, variance) in self.stationary(geometry).into_iter().enumerate() {
            *self.covariance.at_mut(state, state) = variance;
        }
        self.covariance.data[0] = level.1;
    }

    /// Take other amplitudes, in the same state.
    #[expect(clippy::float_cmp, reason = "a view is kept for the very same amplitudes only")]
    pub fn with(&self, amplitudes: Amplitudes) -> Self {
        let view = if amplitudes == self.amplitudes { self.view.clone() } else { None };
        Self { amplitudes, mean: self.mean.clone(), covariance: self.covariance.clone(), view }
    }

    /// Variances of the states before anything is measured, but that of the level as zero.
    fn stationary(&self, geometry: &Geometry) -> Vec<f64> {
        let mut variances: Vec<f64> = geometry.spectrum.iter().map(|part| self.amplitudes[SHAPE] * part).collect();
        for _ in 0..geometry.season {
            variances.extend(geometry.weekday_spectrum.iter().map(|part| self.amplitudes[WEEKDAY] * part));
        }
        variances.extend([self.amplitudes[DRIFT], self.amplitudes[INTRADAY]]);
        variances
    }

    /// What the states are multiplied by on the way to a period that is `gap` periods after the last.
    pub fn factors(&self, geometry: &Geometry, gap: i64) -> Vec<f64> {
        let mut factors = vec![1.0; geometry.size];
        if gap > 0 {
            let gap = real(gap);
            let kept = libm::pow((1.0 - self.amplitudes[EVOLUTION] / self.amplitudes[SHAPE]).max(0.0), gap / 2.0);
            let (curves, last) = factors.split_at_mut(geometry.size - 2);
            curves[1..geometry.curve].fill(kept);
            curves[geometry.curve..].fill(libm::pow(1.0 - WEEKDAY_SHARE, gap / 2.0));
            for (factor, decay) in last.iter_mut().zip(geometry.decay) {
                *factor = libm::pow(decay, gap - 1.0);
            }
        }
        factors
    }

    /// Predict the state at the start of a later period, but for the last values of the processes.
    ///
    /// The level may have broken: it is moved by `shift`, and `jump` is the variance of where to.
    pub fn advance(&mut self, geometry: &Geometry, gap: i64, shift: f64, jump: f64) {
        if gap > 0 {
            // What the states lose of their stationary variance is renewed.
            let factors = self.factors(geometry, gap);
            let stationary = self.stationary(geometry);
            let stride = self.covariance.stride;
            for (state, factor) in factors.iter().enumerate() {
                self.mean[state] *= factor;
                let row = &mut self.covariance.data[state * stride..(state + 1) * stride];
                scale(row, *factor, &factors);
                row[state] += stationary[state] * (1.0 - factor * factor);
            }
            self.covariance.data[0] += real(gap) * LEVEL_SHARE * self.amplitudes[DRIFT];
        }
        self.mean[0] += shift;
        self.covariance.data[0] += jump;
    }

    /// The view that this model has of measurements; made again only when something of it has changed.
    pub fn view(&mut self, geometry: &Geometry, sight: &Sight<'_>, steps: bool) -> Arc<View> {
        if let Some(kept) = &self.view
            && (Arc::ptr_eq(&kept.layout, sight.layout) || kept.layout.cells == sight.layout.cells)
            && kept.variances == sight.variances
            && kept.excess.to_bits() == sight.excess.to_bits()
            && (kept.view.steps.is_some() || !steps)
        {
            return Arc::clone(&kept.view);
        }
        let view = Arc::new(self.fresh_view(geometry, sight, sight.excess, steps));
        self.view = Some(Kept {
            layout: Arc::clone(sight.layout),
            variances: sight.variances.to_vec(),
            excess: sight.excess,
            view: Arc::clone(&view),
        });
        view
    }

    /// The view with a factor on the variances of what happens within the period.
    pub fn fresh_view(&self, geometry: &Geometry, sight: &Sight<'_>, excess: f64, steps: bool) -> View {
        let within = [DRIFT, INTRADAY, WHITE].map(|part: usize| excess * self.amplitudes[part]);
        View::new(geometry, sight.layout, sight.variances, within, steps)
    }

    /// Mean and covariance of the directions of a period.
    pub fn directions(&self, geometry: &Geometry, period: i64) -> (Vec<f64>, Matrix) {
        (geometry.seen(period, &self.mean), geometry.seen_square(period, &self.covariance))
    }

    /// The logarithm of the density of measurements, to whose period the model was advanced.
    pub fn density(&self, geometry: &Geometry, sight: &Sight<'_>, view: &View) -> f64 {
        let seen = view.see(sight.layout, sight.values, false);
        let (mean, covariance) = self.directions(geometry, sight.period);
        let innovation = Innovation::new(view, &seen, &mean, &covariance);
        innovation.density(view, &seen, sight.values.len(), 0.0, 0.0).0
    }

    /// Condition the states at the start of a period on its measurements; return the density and what they are.
    pub fn condition(&mut self, geometry: &Geometry, sight: &Sight<'_>, view: &View, steps: bool) -> (f64, Seen) {
        let seen = view.see(sight.layout, sight.values, steps);
        let rows = geometry.seen_rows(sight.period, &self.covariance);
        let mut gains = triangle_product(&view.transposed, &rows, Columns::All);
        let with_directions = geometry.seen_columns(sight.period, &gains).transposed();
        let mut square = triangle_product(&view.transposed, &with_directions, Columns::Upper);
        for row in 0..square.rows {
            *square.at_mut(row, row) += 1.0;
        }
        // All eigenvalues are at least one, whatever was rounded.
        eliminate(&mut square, &mut gains, 1.0);
        let mut surprise = deviations(view, &seen, &geometry.seen(sight.period, &self.mean));
        let logarithm = whiten(&square, &mut surprise);
        for (row, value) in surprise.iter().enumerate() {
            add(&mut self.mean, *value, gains.row(row));
        }
        take_square(&mut self.covariance, &gains);
        for state in 0..geometry.size {
            let entry = self.covariance.at_mut(state, state);
            *entry = entry.max(0.0);
        }
        (log_density(dot(&surprise, &surprise) + seen.rest, sight.values.len()) - logarithm - view.logarithm, seen)
    }

    /// Means and variances of the steps, after conditioning and before the end.
    pub fn steps(&self, geometry: &Geometry, period: i64, view: &View, seen: &Seen) -> (Vec<f64>, Vec<f64>) {
        let Some(steps) = &view.steps else { return (Vec::new(), Vec::new()) };
        let (mean, covariance) = self.directions(geometry, period);
        let mut means = steps.paths.transposed_times(&mean);
        for (entry, own) in means.iter_mut().zip(&seen.path) {
            *entry += own;
        }
        let mut variances = squared_lengths(&steps.paths, &root(&covariance));
        for (entry, own) in variances.iter_mut().zip(&steps.residual) {
            *entry += own;
        }
        (means, variances)
    }

    /// Move the two last values from the end of the period before to the end of this one.
    pub fn end(&mut self, geometry: &Geometry, period: i64, view: &View, seen: &Seen) {
        let directions = geometry.seen(period, &self.mean);
        let mut crossed = Matrix::zeros(2, geometry.size);
        for end in 0..2 {
            for (state, factor) in geometry.seeing(period, view.ends.row(end)) {
                add(crossed.row_mut(end), factor, self.covariance.row(state));
            }
        }
        let within = geometry.seen_columns(period, &crossed);
        let [first, both, second] = view.end_covariance;
        let last = geometry.size - 2;
        let moved = |row: usize, column: usize| dot(within.row(row), view.ends.row(column));
        let own = [moved(0, 0) + first, moved(1, 0) + both, moved(1, 1) + second];
        for end in 0..2 {
            self.mean[last + end] = dot(view.ends.row(end), &directions) + seen.ends[end];
            self.covariance.row_mut(last + end)[..last].copy_from_slice(&crossed.row(end)[..last]);
        }
        *self.covariance.at_mut(last, last) = own[0].max(0.0);
        *self.covariance.at_mut(last + 1, last) = own[1];
        *self.covariance.at_mut(last + 1, last + 1) = own[2].max(0.0);
        for state in 0..=last {
            for end in last..geometry.size {
                *self.covariance.at_mut(state, end) = self.covariance.at(end, state);
            }
        }
    }

    /// Condition on the measurements of a period, to which the model was advanced, and move to its end.
    pub fn observe(&mut self, geometry: &Geometry, sight: &Sight<'_>, steps: bool) -> Posterior {
        let view = self.view(geometry, sight, steps);
        let mut usual = None;
        if sight.excess > 1.0 {
            // An odd period counts as what it is when amplitudes are compared: else they stay too small for ever.
            let plain = self.fresh_view(geometry, sight, 1.0, false);
            usual = Some(self.density(geometry, sight, &plain));
        }
        let (density, seen) = self.condition(geometry, sight, &view, steps);
        let (means, variances) =
            if steps { self.steps(geometry, sight.period, &view, &seen) } else { (Vec::new(), Vec::new()) };
        self.end(geometry, sight.period, &view, &seen);
        Posterior { density: usual.unwrap_or(density), means, variances }
    }
}

/// What was measured and not expected, and its covariance, both compressed.
pub struct Innovation {
    square: Matrix,
    deviations: Vec<f64>,
    /// What a common shift of all values is.
    common: Vec<f64>,
}

impl Innovation {
    pub fn new(view: &View, seen: &Seen, mean: &[f64], covariance: &Matrix) -> Self {
        let half = triangle_product(&view.transposed, covariance, Columns::All).transposed();
        let mut square = triangle_product(&view.transposed, &half, Columns::Upper);
        for row in 0..square.rows {
            *square.at_mut(row, row) += 1.0;
        }
        Self { square, deviations: deviations(view, seen, mean), common: view.transposed.row(0).to_vec() }
    }

    /// The likeliest common shift of all values, and its precision.
    pub fn shift(&self) -> (f64, f64) {
        let mut square = self.square.clone();
        eliminate(&mut square, &mut Matrix::zeros(self.square.rows, 0), 1.0);
        let (mut surprise, mut direction) = (self.deviations.clone(), self.common.clone());
        whiten(&square, &mut surprise);
        whiten(&square, &mut direction);
        let precision = dot(&direction, &direction);
        (dot(&direction, &surprise) / precision, precision)
    }

    /// The logarithm of the density and the squared length, if the level has broken.
    pub fn density(&self, view: &View, seen: &Seen, count: usize, shift: f64, jump: f64) -> (f64, f64) {
        let (mut square, mut surprise) = (self.square.clone(), self.deviations.clone());
        for (row, one) in self.common.iter().enumerate() {
            for (entry, other) in square.row_mut(row).iter_mut().zip(&self.common) {
                *entry += jump * one * other;
            }
            surprise[row] -= shift * one;
        }
        eliminate(&mut square, &mut Matrix::zeros(self.square.rows, 0), 1.0);
        let logarithm = whiten(&square, &mut surprise);
        let length = dot(&surprise, &surprise) + seen.rest;
        (log_density(length, count) - logarithm - view.logarithm, length)
    }
}

fn deviations(view: &View, seen: &Seen, mean: &[f64]) -> Vec<f64> {
    let expected = view.transposed.transposed_times(mean);
    seen.values.iter().zip(expected).map(|(value, expected)| value - expected).collect()
}

/// Solve `U' x = b` in place; return the sum of the logarithms of the pivots.
fn whiten(upper: &Matrix, vector: &mut [f64]) -> f64 {
    let mut logarithm = 0.0;
    for row in 0..upper.rows {
        let pivot = upper.at(row, row);
        logarithm += libm::log(pivot);
        vector[row] /= pivot;
        let value = vector[row];
        add(&mut vector[row + 1..], -value, &upper.row(row)[row + 1..]);
    }
    logarithm
}

#[expect(clippy::cast_precision_loss, reason = "numbers of measurements are far below 2^52")]
fn log_density(length: f64, count: usize) -> f64 {
    -0.5 * (length + count as f64 * libm::log(2.0 * PI))
}

#[expect(clippy::cast_precision_loss, reason = "numbers of periods are far below 2^52")]
fn real(gap: i64) -> f64 {
    gap as f64
}

const _: () = assert!(BLOCK == 4, "sizes of saved matrices do not depend on it, but speed does");
