//! Revised history: what each period looks like in the light of later ones (Rauch, Tung and Striebel 1965).
//!
//! One pass of the filter forward, with the likeliest amplitudes at the end, and one backward. All that comes later depends
//! on a period only through the states at the start of the next. So what later periods say of these states corrects the
//! states at the start of the period itself, and its steps.

use std::sync::Arc;

use crate::error::Error;
use crate::filter::{Estimate, Filter, Measured, finite, relative, sight};
use crate::matrix::{Matrix, eliminate, product, solve};
use crate::view::View;

/// Least pivot, as a share of the variance in its place, that is told from rounding errors.
const ROUNDING: f64 = 1e-12;

/// What the pass forward left of a period.
struct Passed {
    view: Arc<View>,
    estimate: Estimate,
    /// What the states at the end of the period before were multiplied by.
    factors: Vec<f64>,
    /// Covariance of the states at the start of the period, given all periods before.
    before: Matrix,
    /// The same given this period too, and what the mean gained.
    after: Matrix,
    gained: Vec<f64>,
    period: i64,
}

/// The means and variances of the steps of all measured periods, given all of them.
///
/// # Errors
///
/// If the filter has not seen anything.
pub fn revised(filter: &Filter, history: &[Measured]) -> Result<Vec<Estimate>, Error> {
    let Some(first) = history.first() else { return Ok(Vec::new()) };
    let geometry = &filter.geometry;
    let mut model = filter.fresh_model(first)?;
    let mut last: Option<i64> = None;
    let mut passed = Vec::with_capacity(history.len());
    for measured in history {
        let gap = last.map_or(0, |last| measured.period - last);
        let factors = model.factors(geometry, gap);
        model.advance(geometry, gap, measured.shift, measured.jump);
        let (before, mean) = (model.covariance.clone(), model.mean.clone());
        let values = relative(&measured.values, filter.origin);
        let sight = sight(measured, &values);
        let view = model.view(geometry, &sight, true);
        let (_, seen) = model.condition(geometry, &sight, &view, true);
        let (means, variances) = model.steps(geometry, measured.period, &view, &seen);
        let gained = model.mean.iter().zip(&mean).map(|(now, then)| now - then).collect();
        let after = model.covariance.clone();
        model.end(geometry, measured.period, &view, &seen);
        last = Some(measured.period);
        let estimate = Estimate { means, variances };
        passed.push(Passed { view, estimate, factors, before, after, gained, period: measured.period });
    }
    let estimates = backward(filter, passed);
    for estimate in &estimates {
        finite(&estimate.means)?;
        finite(&estimate.variances)?;
    }
    Ok(estimates)
}

fn backward(filter: &Filter, passed: Vec<Passed>) -> Vec<Estimate> {
    let geometry = &filter.geometry;
    let (size, w) = (geometry.size, geometry.w);
    let mut estimates = Vec::with_capacity(passed.len());
    // What later periods add to the mean and to the covariance of the states at the start of the next.
    let mut later: Option<(Vec<f64>, Matrix, Passed)> = None;
    for period in passed.into_iter().rev() {
        let mut estimate = period.estimate.clone();
        let mut change = period.gained.clone();
        let mut spread = period.after.clone();
        for (entry, before) in spread.data.iter_mut().zip(&period.before.data) {
            *entry -= before;
        }
        if let Some((mean, covariance, next)) = &later {
            // Covariances of the states at the start and of the steps with the states at the end: states x both.
            let rows = geometry.seen_rows(period.period, &period.after);
            let ends = product(&period.view.ends.transposed(), &rows);
            let mut with_ends = Matrix::zeros(size, size + w);
            for state in 0..size {
                let own = if state < size - 2 { period.after.row(state) } else { ends.row(state + 2 - size) };
                with_ends.row_mut(state)[..size].copy_from_slice(own);
            }
            if let Some(steps) = &period.view.steps {
                let with_states = product(&rows, &steps.paths);
                let seen = geometry.seen_columns(period.period, &ends);
                let with_last = product(&seen.transposed(), &steps.paths);
                for state in 0..size {
                    let row = &mut with_ends.row_mut(state)[size..];
                    if let Some(end) = (state + 2).checked_sub(size) {
                        for ((entry, one), own) in row.iter_mut().zip(with_last.row(end)).zip(&steps.crossed[end]) {
                            *entry = one + own;
                        }
                    } else {
                        row.copy_from_slice(with_states.row(state));
                    }
                }
            }
            let gains = to_next(next, with_ends);
            let moved = gains.transposed_times(mean);
            for (entry, more) in change.iter_mut().zip(&moved) {
                *entry += more;
            }
            for (entry, more) in estimate.means.iter_mut().zip(&moved[size..]) {
                *entry += more;
            }
            let half = product(covariance, &gains);
            for step in 0..w {
                let column = size + step;
                let sum = (0..size).fold(0.0, |sum, state| sum + gains.at(state, column) * half.at(state, column));
                estimate.variances[step] = (estimate.variances[step] + sum).max(0.0);
            }
            let both = product(&gains, &half);
            for state in 0..size {
                for (entry, more) in spread.row_mut(state).iter_mut().zip(both.row(state)) {
                    *entry += more;
                }
            }
        }
        for mean in &mut estimate.means {
            *mean += filter.origin;
        }
        estimates.push(estimate);
        later = Some((change, spread, period));
    }
    estimates.reverse();
    estimates
}

/// What a unit of the states at the start of the next period adds to what has given covariances with those at the end.
fn to_next(next: &Passed, mut with_ends: Matrix) -> Matrix {
    for (state, factor) in next.factors.iter().enumerate() {
        for entry in with_ends.row_mut(state) {
            *entry *= factor;
        }
    }
    // In units of their standard deviations, so that states of all sizes are told from rounding errors.
    let size = next.before.rows;
    let scales: Vec<f64> = (0..size)
        .map(|state| next.before.at(state, state))
        .map(|variance| if variance > 0.0 { 1.0 / variance.sqrt() } else { 0.0 })
        .collect();
    let mut upper = next.before.clone();
    for (state, scale) in scales.iter().enumerate() {
        for (entry, other) in upper.row_mut(state).iter_mut().zip(&scales) {
            *entry *= scale * other;
        }
        for entry in with_ends.row_mut(state) {
            *entry *= scale;
        }
    }
    eliminate(&mut upper, &mut with_ends, ROUNDING);
    // The second substitution, from the last row to the first, is the first one of the matrix turned around.
    let mut turned = Matrix::zeros(size, size);
    for row in 0..size {
        for column in row..size {
            *turned.at_mut(size - 1 - column, size - 1 - row) = upper.at(row, column);
        }
    }
    let mut solved = reversed(&with_ends);
    solve(&turned, &mut solved);
    let mut gains = reversed(&solved);
    for (state, scale) in scales.iter().enumerate() {
        for entry in gains.row_mut(state) {
            *entry *= scale;
        }
    }
    gains
}

fn reversed(matrix: &Matrix) -> Matrix {
    let mut turned = Matrix::zeros(matrix.rows, matrix.columns);
    for row in 0..matrix.rows {
        turned.row_mut(matrix.rows - 1 - row).copy_from_slice(matrix.row(row));
    }
    turned
}
