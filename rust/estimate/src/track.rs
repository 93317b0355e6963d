//! What is known of a step at the moment when it has come: the posterior given the measurements that have ended by then.
//!
//! Within a period the directions, the two processes and the sums of the sets of steps that are open are one Gaussian
//! vector. A step moves the processes and adds its value to the open sums; a measurement that ends conditions the vector on
//! one number. So the means and variances of a step are those of the whole period's posterior with all measurements left out
//! that have not ended, at a cost that does not grow with what was measured before.

use std::f64::consts::PI;
use std::sync::Arc;

use crate::bank::{Amplitudes, DRIFT, INTRADAY, Model, WHITE};
use crate::error::Error;
use crate::filter::{Filter, MODELS, Measured};
use crate::geometry::Geometry;
use crate::layout::share;
use crate::matrix::{Matrix, add};

/// A period on its way: pushed to step by step.
#[derive(Debug, Clone)]
pub struct Track {
    filter: Filter,
    period: i64,
    cells: Vec<Vec<usize>>,
    variances: Vec<f64>,
    /// For every step the places of sums that begin with it, are added to, and end with it.
    schedule: Vec<Scheduled>,
    places: usize,
    models: Vec<Tracked>,
    base: [f64; MODELS],
    logs: [Amplitudes; MODELS],
    step: usize,
    /// What was measured so far: cells and values.
    seen: Vec<(usize, f64)>,
}

#[derive(Debug, Clone, Default)]
struct Scheduled {
    begins: Vec<usize>,
    adds: Vec<usize>,
    /// Cell and place.
    ends: Vec<(usize, usize)>,
}

/// One model within a period: directions, drift, intraday part and open sums.
#[derive(Debug, Clone)]
struct Tracked {
    within: [f64; 3],
    mean: Vec<f64>,
    covariance: Matrix,
    density: f64,
}

impl Track {
    /// The period after what a filter knows, of which means of some sets of steps will be measured.
    ///
    /// # Errors
    ///
    /// If the period is not later than the last, or the sets do not fit.
    pub fn new(filter: &Filter, period: i64, cells: Vec<Vec<usize>>, variances: Vec<f64>) -> Result<Self, Error> {
        filter.check(period)?;
        let mut filter = filter.clone();
        filter.measurement(period, cells.clone(), vec![0.0; cells.len()], variances.clone())?;
        let (schedule, places) = scheduled(&cells, filter.geometry.w);
        let mut made = Self {
            filter,
            period,
            cells,
            variances,
            schedule,
            places,
            models: Vec::new(),
            base: [0.0; MODELS],
            logs: [[0.0; 6]; MODELS],
            step: 0,
            seen: Vec::new(),
        };
        made.begin(None);
        Ok(made)
    }

    /// The number of measurements that end with the next step.
    #[must_use]
    pub fn ending(&self) -> usize {
        self.schedule.get(self.step).map_or(0, |scheduled| scheduled.ends.len())
    }

    /// Take the values of the measurements that end with the next step, in the order of their sets; return its mean and
    /// variance.
    ///
    /// # Errors
    ///
    /// If the period is over, or there are not as many values as end, or one is not finite.
    pub fn push(&mut self, values: &[f64]) -> Result<(f64, f64), Error> {
        let Some(scheduled) = self.schedule.get(self.step) else {
            return Err(Error::parameter("step", self.step, format!("less than {}", self.filter.geometry.w)));
        };
        if values.len() != scheduled.ends.len() {
            let wanted = format!("of length {}", scheduled.ends.len());
            return Err(Error::parameter("values", format!("of length {}", values.len()), wanted));
        }
        if !values.iter().all(|value| value.abs() <= 1e100) {
            return Err(Error::NotFinite { largest: 1e100 });
        }
        let ends: Vec<(usize, f64)> =
            scheduled.ends.iter().zip(values).map(|((cell, _), value)| (*cell, *value)).collect();
        let before = self.seen.len();
        self.seen.extend(ends);
        self.step += 1;
        if self.fits_again(before) {
            return Ok(self.replayed());
        }
        Ok(self.advance(self.step - 1))
    }

    /// Whether what has just been measured is the first, or while nothing else is known has doubled what was.
    fn fits_again(&self, before: usize) -> bool {
        let now = self.seen.len();
        if now == before {
            return false;
        }
        let doubled = before == 0 || before.ilog2() < now.ilog2();
        if self.filter.bank.is_none() { doubled } else { !self.filter.memory && before == 0 }
    }

    /// Begin again with what has been measured so far, and return to the present step.
    fn replayed(&mut self) -> (f64, f64) {
        let cells: Vec<Vec<usize>> = self.seen.iter().map(|(cell, _)| self.cells[*cell].clone()).collect();
        let variances = self.seen.iter().map(|(cell, _)| self.variances[*cell]).collect();
        let values = self.seen.iter().map(|(_, value)| *value).collect();
        let partial = self.filter.clone().measurement(self.period, cells, values, variances).ok();
        self.begin(partial.as_ref());
        let mut found = (0.0, 0.0);
        for step in 0..self.step {
            found = self.advance(step);
        }
        found
    }

    /// Start the models at the beginning of the period.
    fn begin(&mut self, partial: Option<&Measured>) {
        let mut filter = self.filter.clone();
        let known = filter.bank.is_some();
        if let (false, Some(partial)) = (known, partial) {
            // Amplitudes are fitted to what there is of the first period; it is then seen again step by step.
            let _ = filter.update(partial.clone());
            self.filter.origin = filter.origin;
            self.filter.scale = filter.scale;
        }
        let mut models: Vec<Model> = if let Some(bank) = &filter.bank {
            bank.models.clone()
        } else {
            let scale = filter.level.map_or(1.0, |(_, deviation)| deviation / 5.0);
            vec![filter.ahead(Some(scale)).map(|(model, _)| model).expect("a scale is given"); MODELS]
        };
        let last = self.filter.bank.as_ref().and_then(|bank| bank.last);
        let level = match partial {
            Some(partial) => self.filter.start(partial),
            None => self
                .filter
                .level
                .map_or((0.0, 1.0), |(mean, deviation)| (mean - self.filter.origin, deviation * deviation)),
        };
        for model in &mut models {
            if known && self.filter.memory {
                model.advance(&filter.geometry, last.map_or(0, |last| self.period - last), 0.0, 0.0);
            } else {
                model.forget(&filter.geometry, level);
            }
        }
        self.base = if known { self.filter.evidence } else { [0.0; MODELS] };
        self.logs = std::array::from_fn(|model| models[model].amplitudes.map(libm::log));
        let (geometry, period, places) = (&self.filter.geometry, self.period, self.places);
        self.models = models.iter().map(|model| Tracked::new(geometry, model, period, places)).collect();
    }

    /// Go through one step that has come, with what ended with it.
    fn advance(&mut self, step: usize) -> (f64, f64) {
        let geometry = Arc::clone(&self.filter.geometry);
        let first: usize = self.schedule[..step].iter().map(|scheduled| scheduled.ends.len()).sum();
        let scheduled = &self.schedule[step];
        let ends: Vec<(usize, f64, f64, f64)> = scheduled
            .ends
            .iter()
            .zip(&self.seen[first..])
            .map(|((cell, place), (_, value))| {
                (*place, share(&self.cells[*cell]), value - self.filter.origin, self.variances[*cell])
            })
            .collect();
        let found: Vec<(f64, f64)> =
            self.models.iter_mut().map(|model| model.step(&geometry, step, scheduled, &ends)).collect();
        let known = self.filter.bank.is_some();
        let usual = self.models[0].density;
        let evidence: [f64; MODELS] = std::array::from_fn(|model| {
            let gained = self.models[model].density - usual;
            if known { Filter::followed(self.base[model], gained) } else { gained }
        });
        // Before anything is measured all models are the same.
        let weights = if self.filter.scale > 0.0 {
            self.filter.weights(&evidence, &self.logs)
        } else {
            std::array::from_fn(|model| if model == 0 { 1.0 } else { 0.0 })
        };
        let mean = weights.iter().zip(&found).fold(0.0, |sum, (weight, one)| sum + weight * one.0);
        let spread = weights
            .iter()
            .zip(&found)
            .fold(0.0, |sum, (weight, one)| sum + weight * (one.1 + (one.0 - mean) * (one.0 - mean)));
        (mean + self.filter.origin, spread)
    }
}

impl Tracked {
    fn new(geometry: &Geometry, model: &Model, period: i64, places: usize) -> Self {
        let (directions, known) = model.directions(geometry, period);
        let size = geometry.directions() + 2 + places;
        let mut mean = directions;
        mean.resize(size, 0.0);
        let mut covariance = Matrix::zeros(size, size);
        for row in 0..known.rows {
            covariance.row_mut(row)[..known.columns].copy_from_slice(known.row(row));
        }
        Self { within: [DRIFT, INTRADAY, WHITE].map(|part| model.amplitudes[part]), mean, covariance, density: 0.0 }
    }

    fn step(
        &mut self,
        geometry: &Geometry,
        step: usize,
        scheduled: &Scheduled,
        ends: &[(usize, f64, f64, f64)],
    ) -> (f64, f64) {
        let directions = geometry.directions();
        let sums = directions + 2;
        for (process, decay) in geometry.step_decay.into_iter().enumerate() {
            let place = directions + process;
            self.mean[place] *= decay;
            for entry in self.covariance.row_mut(place) {
                *entry *= decay;
            }
            for row in 0..self.mean.len() {
                *self.covariance.at_mut(row, place) *= decay;
            }
            *self.covariance.at_mut(place, place) += self.within[process] * (1.0 - decay * decay);
        }
        for place in &scheduled.begins {
            self.mean[sums + place] = 0.0;
            self.covariance.row_mut(sums + place).fill(0.0);
            for row in 0..self.mean.len() {
                *self.covariance.at_mut(row, sums + place) = 0.0;
            }
        }
        // The value of the step, and its covariance with everything.
        let mut with = vec![0.0; self.mean.len()];
        let mut mean = 0.0;
        for place in 0..sums {
            let factor = if place < directions { geometry.paths.at(place, step) } else { 1.0 };
            add(&mut with, factor, self.covariance.row(place));
            mean += factor * self.mean[place];
        }
        let mut variance = self.within[2];
        for (place, value) in with.iter().enumerate().take(sums) {
            variance += if place < directions { geometry.paths.at(place, step) * value } else { *value };
        }
        let added = with.clone();
        for place in &scheduled.adds {
            self.mean[sums + place] += mean;
            add(self.covariance.row_mut(sums + place), 1.0, &added);
            for (row, value) in added.iter().enumerate() {
                *self.covariance.at_mut(row, sums + place) += value;
            }
            for other in &scheduled.adds {
                *self.covariance.at_mut(sums + place, sums + other) += variance;
            }
            with[sums + place] += variance;
        }
        for (place, share, value, noise) in ends {
            let column: Vec<f64> = self.covariance.row(sums + place).iter().map(|entry| entry * share).collect();
            let whole = (column[sums + place] * share + noise).max(f64::MIN_POSITIVE);
            let surprise = value - self.mean[sums + place] * share;
            let own = with[sums + place] * share;
            self.density -= 0.5 * (surprise * surprise / whole + libm::log(2.0 * PI * whole));
            add(&mut self.mean, surprise / whole, &column);
            mean += own / whole * surprise;
            variance -= own * own / whole;
            add(&mut with, -own / whole, &column);
            for (row, entry) in column.iter().enumerate() {
                add(self.covariance.row_mut(row), -entry / whole, &column);
            }
        }
        (mean, variance.max(0.0))
    }
}

impl Filter {
    /// The mean absolute error of the value of a step at the moment when it has come, some weeks from now.
    ///
    /// As [`Filter::expected_error`], with the measurements of a period left out that have not ended.
    ///
    /// # Errors
    ///
    /// If nothing was learnt and no scale is given, or an argument does not fit.
    pub fn expected_step_error(
        &self,
        cells: Vec<Vec<usize>>,
        variances: Vec<f64>,
        scale: Option<f64>,
        memory: bool,
    ) -> Result<f64, Error> {
        let geometry = &self.geometry;
        let (schedule, places) = scheduled(&cells, geometry.w);
        let (mut total, mut count) = (0.0, 0.0);
        let sizes: Vec<f64> = cells.iter().map(|cell| share(cell)).collect();
        let noises = variances.clone();
        self.foresee(cells, variances, scale, memory, |model, period| {
            let mut tracked = Tracked::new(geometry, model, period, places);
            for (step, scheduled) in schedule.iter().enumerate() {
                let ends: Vec<_> =
                    scheduled.ends.iter().map(|(cell, place)| (*place, sizes[*cell], 0.0, noises[*cell])).collect();
                let (_, variance) = tracked.step(geometry, step, scheduled, &ends);
                total += (2.0 / PI * variance).sqrt();
                count += 1.0;
            }
        })?;
        Ok(total / count)
    }
}

/// For every step what happens to the sums of sets of steps, and how many of them are open at a time.
fn scheduled(cells: &[Vec<usize>], w: usize) -> (Vec<Scheduled>, usize) {
    let mut schedule = vec![Scheduled::default(); w];
    let mut free: Vec<usize> = Vec::new();
    let mut open: Vec<Option<usize>> = vec![None; cells.len()];
    let mut places = 0;
    for (step, now) in schedule.iter_mut().enumerate() {
        for (cell, steps) in cells.iter().enumerate() {
            if !steps.contains(&step) {
                continue;
            }
            let place = open[cell].unwrap_or_else(|| {
                let place = free.pop().unwrap_or_else(|| {
                    places += 1;
                    places - 1
                });
                open[cell] = Some(place);
                now.begins.push(place);
                place
            });
            now.adds.push(place);
            if steps.iter().all(|other| *other <= step) {
                now.ends.push((cell, place));
            }
        }
        free.extend(now.ends.iter().rev().map(|(_, place)| *place));
    }
    (schedule, places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: &mut u64) -> f64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(*seed >> 32).expect("32 bits")) / f64::from(u32::MAX) - 0.5
    }

    /// A filter that has seen some periods, of any sets of steps.
    fn learnt(cells: &[Vec<usize>], memory: bool, periods: i64) -> (Filter, u64) {
        let mut filter = Filter::new(12, 3, memory, true, Some((50.0, 50.0))).expect("valid");
        let mut seed = 7;
        for period in 0..periods {
            let values = cells.iter().map(|cell| 40.0 + 9.0 * noise(&mut seed) + 1.0 / share(cell)).collect();
            let measured = filter.measurement(period, cells.to_vec(), values, vec![2.0; cells.len()]).expect("valid");
            filter.update(measured).expect("valid");
        }
        (filter, seed)
    }

    /// When the last step has come nothing is left out, so that its estimate is that of the whole period; before, it is
    /// that of the whole period with what has not ended measured without any precision.
    #[test]
    fn it_is_the_posterior_without_what_has_not_ended() {
        let runs = vec![vec![0], vec![1, 2, 3], vec![5, 6], vec![9, 10, 11]];
        let overlapping = vec![vec![0], vec![4], vec![11], (0..12).collect::<Vec<_>>(), vec![2, 3, 7, 8]];
        for (cells, memory) in [(&runs, true), (&overlapping, true), (&runs, false)] {
            let (filter, mut seed) = learnt(cells, memory, 7);
            let values: Vec<f64> = cells.iter().map(|_| 45.0 + 9.0 * noise(&mut seed)).collect();
            let mut track = Track::new(&filter, 8, cells.clone(), vec![2.0; cells.len()]).expect("valid");
            for step in 0..12 {
                let last = |cell: &Vec<usize>| cell.iter().copied().max();
                let ended: Vec<f64> = cells
                    .iter()
                    .zip(&values)
                    .filter(|(cell, _)| last(cell) == Some(step))
                    .map(|(_, value)| *value)
                    .collect();
                let found = track.push(&ended).expect("valid");
                let known: Vec<usize> = (0..cells.len()).filter(|cell| last(&cells[*cell]) <= Some(step)).collect();
                if known.is_empty() {
                    continue;
                }
                let pick = |from: &[f64]| known.iter().map(|cell| from[*cell]).collect::<Vec<_>>();
                let mut whole = filter.clone();
                let some: Vec<Vec<usize>> = known.iter().map(|cell| cells[*cell].clone()).collect();
                let measured = whole.measurement(8, some, pick(&values), pick(&vec![2.0; cells.len()])).expect("valid");
                let (expected, understood) = whole.plain(measured).expect("valid");
                assert!(understood.excess <= 1.0 && understood.jump <= 0.0);
                assert!((found.0 - expected.means[step]).abs() < 1e-6, "{step} {found:?} {}", expected.means[step]);
                assert!((found.1 - expected.variances[step]).abs() < 1e-6 * (1.0 + found.1));
            }
        }
    }

    #[test]
    fn before_anything_is_measured_the_bounds_say_what_is_known() {
        let filter = Filter::new(12, 3, true, true, Some((50.0, 50.0))).expect("valid");
        let mut track = Track::new(&filter, 0, vec![(0..12).collect()], vec![2.0]).expect("valid");
        let (mean, variance) = track.push(&[]).expect("valid");
        assert!((mean - 50.0).abs() < 1e-9 && variance > 2500.0, "{mean} {variance}");
    }

    #[test]
    fn the_first_period_can_be_followed_too() {
        let cells: Vec<Vec<usize>> = (0..12).map(|step| vec![step]).collect();
        let filter = Filter::new(12, 3, true, true, Some((50.0, 50.0))).expect("valid");
        let mut track = Track::new(&filter, 0, cells, vec![2.0; 12]).expect("valid");
        for step in 0..12_u8 {
            let (mean, variance) = track.push(&[40.0 + f64::from(step)]).expect("valid");
            assert!((mean - 40.0 - f64::from(step)).abs() < 4.0, "{step} {mean}");
            assert!(variance > 0.0 && variance < 4.0, "{step} {variance}");
        }
        assert!(track.push(&[1.0]).is_err());
    }
}
