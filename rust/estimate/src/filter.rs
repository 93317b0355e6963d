//! A filter with memory that learns its own scales.

use std::sync::Arc;

use crate::bank::{Amplitudes, Innovation, Model, Posterior, SHAPE, Sight};
use crate::error::Error;
use crate::geometry::Geometry;
use crate::layout::{Layout, share};
use crate::matrix::dot;

/// Amplitudes that are expected before anything is measured, as shares of the variance of the shape. They matter where
/// the measurements say nothing, such as for what happens within buckets that are always the same.
const SHARES: Amplitudes = [1.0, 0.15, 0.05, 0.03, 0.2, 0.002];
/// Standard deviation of the logarithm of an amplitude around what is expected: a factor of 7 is nothing unusual.
const WIDTH: f64 = 2.0;
/// The same for the variance of the shape, as a share of the mean square of deviations from the level.
const SHAPE_SHARE: f64 = 0.5;
const SHAPE_WIDTH: f64 = 4.0;
/// Distance between neighbouring models in the logarithm of an amplitude: that of a factor of four.
const STEP: f64 = 2.0 * std::f64::consts::LN_2;
/// Least and largest amplitude, as a share of the mean square of deviations.
const FLOOR: f64 = 1e-9;
const CEILING: f64 = 1e3;
/// Variance of a level of which nothing is known, as a share of the mean square of deviations. It is centred on the first
/// measurements, so it need not be larger, and rounding is small beside it however wide the bounds are.
const DIFFUSE: f64 = 1e3;
/// Numbers of measured periods at which all amplitudes are fitted again to everything so far.
const REFITS: [u64; 7] = [1, 2, 3, 5, 8, 13, 21];
/// Number of periods that are kept to fit amplitudes to.
const LOGGED: usize = 21;
/// Most rounds of such a fit.
const ROUNDS: usize = 6;
/// Evidence below which a further round is not worth its time.
const FITTED: f64 = 0.5;
/// Growth of the mean square of deviations from which a fit looks at amplitudes of all sizes again.
const GROWTH: f64 = 16.0;
/// Number of sizes that it looks at.
const SIZES: u8 = 20;
/// Factor by which the evidence of a period counts less in the next.
const FORGETTING: f64 = 0.98;
/// Most evidence for or against a challenger that one period may give, so that one odd period decides nothing.
const MOST: f64 = 5.0;
/// Evidence by which a challenger must lead before it becomes the centre.
const MARGIN: f64 = 1.0;
/// Evidence by which a challenger must be behind before its opposite is tried.
const REJECTED: f64 = 4.0;
/// Evidence that a new challenger starts behind the centre.
const HANDICAP: f64 = 2.0;
/// Evidence that a level must have before it is taken to have broken: about five standard deviations.
const BREAK: f64 = 10.0;
/// Numbers of consecutive periods over which a break may show.
const BREAK_PERIODS: [u8; 4] = [1, 2, 3, 5];
/// Evidence that a period must have before its own variance is taken to be larger than usual.
const ODD: f64 = 5.0;
/// Factors by which it may be larger: powers of four.
const EXCESSES: u32 = 10;
/// Numbers of periods over which a stream that has become another one may show, little by little.
const STALE_PERIODS: [usize; 3] = [5, 8, 13];
/// Evidence by which a filter that learns such periods anew must lead before it takes over.
const STALE: f64 = 10.0;
/// Least number of periods between two such comparisons, since they take time.
const PATIENCE: u64 = 3;
/// Number of sizes of amplitudes that are compared, from the largest.
const ANEW_SIZES: u8 = 10;
/// Most of a variance that single steps do not show, in its standard errors: it is less in nine cases of ten.
const HIDDEN: f64 = 1.28;
/// The part of it that counts for measured steps: models of other amplitudes are weighed there already.
const SEEN: f64 = 0.6;
/// The same as a multiple of the variance of independent steps that the centre expects, where no single step was measured.
const HIDDEN_MOST: f64 = 4.0;
/// Number of periods before deviations are judged, since nothing is known yet of what is usual.
const UNTESTED: u64 = 3;
/// Number of periods after which the precision of the filter is taken to be steady.
const HORIZON: i64 = 56;
/// Largest value, and root of the largest variance, whose squares are computed.
const LARGEST: f64 = 1e100;
/// Least mean square that is told from zero, and as a share of the square of the level.
const TINY: f64 = 1e-150;
const PRECISION: f64 = 1e-14;
/// Layouts that are kept ready.
const LAYOUTS: usize = 8;
/// Number of models: a centre and a challenger for each amplitude but that of the shape.
pub(crate) const MODELS: usize = 6;

/// The measurements of one period, and how they were understood.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The period.
    pub period: i64,
    pub(crate) layout: Arc<Layout>,
    /// Noisy means.
    pub values: Vec<f64>,
    /// Variances of their noise.
    pub variances: Vec<f64>,
    /// Variance by which the level may have broken before this period.
    pub jump: f64,
    /// Factor on the variances of what is new within this period.
    pub excess: f64,
    /// By how much the level was moved when it broke.
    pub shift: f64,
    /// Squared length of what was not expected, in units of its standard deviations; zero if it was not compared.
    pub(crate) length: f64,
    /// Evidence of the likeliest model for the period, understood like this.
    pub(crate) density: f64,
}

/// Posterior means and variances of the steps of a period.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// The means.
    pub means: Vec<f64>,
    /// The variances.
    pub variances: Vec<f64>,
}

/// Models side by side, and the last period that was measured.
#[derive(Debug, Clone)]
pub(crate) struct Bank {
    pub models: Vec<Model>,
    pub last: Option<i64>,
}

/// The filter of one stream.
#[derive(Debug, Clone)]
pub struct Filter {
    pub(crate) geometry: Arc<Geometry>,
    pub(crate) season: usize,
    pub(crate) memory: bool,
    /// Mean and standard deviation of the level, if something public is known.
    pub(crate) level: Option<(f64, f64)>,
    pub(crate) log: Vec<Measured>,
    pub(crate) count: u64,
    /// The level of the first period: everything is computed relative to it.
    pub(crate) origin: f64,
    /// Running mean of the values, relative to the origin, and mean square of deviations from it.
    pub(crate) centre: f64,
    pub(crate) spread: f64,
    /// The scale of everything: the mean square, or the noise where that is larger.
    pub(crate) scale: f64,
    /// The scale at which amplitudes of all sizes were looked at.
    pub(crate) scanned: f64,
    pub(crate) bank: Option<Bank>,
    pub(crate) evidence: [f64; MODELS],
    /// The logarithm of the density that the centre gave to the last period's measurements.
    pub(crate) density: f64,
    pub(crate) signs: [f64; MODELS - 1],
    pub(crate) surprises: Vec<f64>,
    /// Number of periods measured since everything was learnt anew.
    pub(crate) since: u64,
    /// The number of measured periods when it was last asked whether the stream has become another one.
    pub(crate) asked: u64,
    /// The number of measured periods when everything was last learnt anew; zero if it never was.
    pub(crate) renewed: u64,
    /// The number of measured periods when something last deviated, and by how much its means did.
    pub(crate) alarmed: u64,
    pub(crate) alarm: f64,
    /// What the means say of the variance of independent steps: one over the square of its standard error.
    pub(crate) information: f64,
    pub(crate) layouts: Vec<Arc<Layout>>,
}

impl Filter {
    /// The filter of a stream before anything is measured.
    ///
    /// # Errors
    ///
    /// If a number is zero or the level is not finite.
    pub fn new(w: usize, season: usize, memory: bool, smooth: bool, level: Option<(f64, f64)>) -> Result<Self, Error> {
        if let Some((mean, deviation)) = level
            && !(mean.abs() <= LARGEST && (0.0..=LARGEST).contains(&deviation))
        {
            return Err(Error::parameter("level", "not finite or too large", format!("at most {LARGEST:e}")));
        }
        Ok(Self {
            geometry: Arc::new(Geometry::new(w, if memory { season } else { 1 }, smooth)?),
            season,
            memory,
            level,
            log: Vec::new(),
            count: 0,
            origin: 0.0,
            centre: 0.0,
            spread: 0.0,
            scale: 0.0,
            scanned: 0.0,
            bank: None,
            evidence: [0.0; MODELS],
            density: 0.0,
            signs: [1.0; MODELS - 1],
            surprises: Vec::new(),
            since: 0,
            asked: 0,
            renewed: 0,
            alarmed: 0,
            alarm: 0.0,
            information: 0.0,
            layouts: Vec::new(),
        })
    }

    /// How many periods have been measured.
    #[must_use]
    pub fn measured(&self) -> u64 {
        self.count
    }

    /// The last period that was measured.
    #[must_use]
    pub fn last(&self) -> Option<i64> {
        self.bank.as_ref().and_then(|bank| bank.last)
    }

    /// How many periods ago measured means last deviated from what was expected, and by how much.
    #[must_use]
    pub fn alarm(&self) -> Option<(u64, f64)> {
        (self.alarmed > 0).then(|| (self.count - self.alarmed, self.alarm))
    }

    /// How many periods ago everything was learnt anew, if it ever was.
    #[must_use]
    pub fn renewed(&self) -> Option<u64> {
        (self.renewed > 0).then(|| self.count - self.renewed)
    }

    /// The logarithm of the density that the likeliest model gave to what was measured last; zero if that is not known.
    #[must_use]
    pub fn density(&self) -> f64 {
        self.density
    }

    /// How far the level is from the nearer end of where it may be: what hides within means is at most twice as large.
    #[must_use]
    pub fn room(&self) -> f64 {
        self.level
            .map_or(f64::INFINITY, |(mean, deviation)| (deviation - (self.origin + self.centre - mean).abs()).max(0.0))
    }

    /// What does not change: w, season, memory and smooth.
    #[must_use]
    pub fn kind(&self) -> (usize, usize, bool, bool) {
        (self.geometry.w, self.season, self.memory, self.geometry.smooth)
    }

    /// Mean and standard deviation of the level before anything is measured.
    #[must_use]
    pub fn level(&self) -> Option<(f64, f64)> {
        self.level
    }

    /// Measurements as this filter takes them.
    ///
    /// # Errors
    ///
    /// If there are not as many of each, or steps are outside of a period, or a value cannot be squared.
    pub fn measurement(
        &mut self,
        period: i64,
        cells: Vec<Vec<usize>>,
        values: Vec<f64>,
        variances: Vec<f64>,
    ) -> Result<Measured, Error> {
        for (name, given) in [("values", values.len()), ("variances", variances.len())] {
            if given != cells.len() {
                return Err(Error::parameter(name, format!("of length {given}"), format!("of length {}", cells.len())));
            }
        }
        let small = |value: &f64| value.abs() <= LARGEST;
        let usable = |variance: &f64| (0.0..=LARGEST * LARGEST).contains(variance);
        if !(values.iter().all(small) && variances.iter().all(usable)) {
            return Err(Error::NotFinite { largest: LARGEST });
        }
        let layout = self.layout(cells)?;
        Ok(Measured {
            period,
            layout,
            values,
            variances,
            jump: 0.0,
            excess: 1.0,
            shift: 0.0,
            length: 0.0,
            density: 0.0,
        })
    }

    /// Refuse a period that is not later than the last.
    ///
    /// # Errors
    ///
    /// If it is not.
    pub fn check(&self, period: i64) -> Result<(), Error> {
        match self.last() {
            Some(last) if period <= last => Err(Error::parameter("period", period, format!("later than {last}"))),
            _ => Ok(()),
        }
    }

    pub(crate) fn layout(&mut self, cells: Vec<Vec<usize>>) -> Result<Arc<Layout>, Error> {
        if let Some(known) = self.layouts.iter().rev().find(|layout| layout.cells == cells) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(Layout::new(&self.geometry, cells)?);
        if self.layouts.len() == LAYOUTS {
            self.layouts.remove(0);
        }
        self.layouts.push(Arc::clone(&made));
        Ok(made)
    }

    /// Take the noisy means of one period; return the posterior of its steps, and how the means were understood.
    ///
    /// # Errors
    ///
    /// If the period is not later than the last.
    pub fn update(&mut self, mut measured: Measured) -> Result<(Estimate, Measured), Error> {
        self.check(measured.period)?;
        self.count += 1;
        self.since += 1;
        self.learn_scale(&measured);
        let mut bank = self.bank.take();
        let white = bank.as_ref().map_or(0.0, |bank| bank.models[0].amplitudes[crate::bank::WHITE]);
        self.information = FORGETTING * self.information + information(&measured, white);
        if let Some(bank) = &bank {
            self.interpret(bank, &mut measured);
        }
        self.log.push(measured.clone());
        if self.log.len() > LOGGED {
            self.log.remove(0);
        }
        if let Some(periods) = self.stale() {
            // What was learnt is of another stream: the amplitudes, the shape and the level are learnt anew.
            self.begin_anew(periods);
            bank = None;
        }
        let mut estimate = match bank {
            Some(bank) if !REFITS.contains(&self.since) => self.follow(bank, &measured),
            known => self.refit(known),
        };
        self.widen(&measured, &mut estimate);
        for mean in &mut estimate.means {
            *mean += self.origin;
        }
        Ok((estimate, measured))
    }

    /// Forget everything but the last periods, and learn from these as if they were the first.
    fn begin_anew(&mut self, periods: usize) {
        self.keep_last(periods);
        (self.since, self.asked) = (periods as u64, self.count);
        self.renewed = self.count;
        self.surprises.clear();
    }

    /// Keep the last logged periods, as they were measured, and the scale that they have.
    fn keep_last(&mut self, periods: usize) {
        self.log.drain(..self.log.len() - periods);
        let (mut centre, mut spread) = (0.0, 0.0);
        for logged in &mut self.log {
            (logged.shift, logged.jump, logged.excess, logged.length, logged.density) = (0.0, 0.0, 1.0, 0.0, 0.0);
            let (mean, square, _) = moments(logged);
            centre += mean - self.origin;
            spread += square;
        }
        let count = real(periods as u64);
        (self.centre, self.spread) = (centre / count, spread / count);
        if let Some(last) = self.log.last().cloned() {
            self.settle_scale(&last);
        }
    }

    /// The number of periods for which the stream has been another one, if a filter that learns them anew explains them
    /// better.
    ///
    /// What deviates a little, but always, is nothing odd in any one period. So the squared lengths of the last periods
    /// are summed; where a sum is too long, filters that have seen nothing else are compared with the one that has.
    fn stale(&mut self) -> Option<usize> {
        if self.count < self.asked + PATIENCE {
            return None;
        }
        let tested = self.log.iter().rev().take_while(|logged| logged.length > 0.0).count();
        let (mut length, mut size, mut long) = (0.0, 0.0, false);
        for (index, logged) in self.log.iter().rev().take(tested).enumerate() {
            length += logged.length;
            size += real(logged.values.len() as u64);
            long |= STALE_PERIODS.contains(&(index + 1)) && length > size + 3.0 * (5.0 * size).sqrt();
        }
        if !long {
            return None;
        }
        self.asked = self.count;
        let mut best = (None, STALE);
        for periods in STALE_PERIODS.into_iter().filter(|periods| *periods <= tested) {
            let usual =
                self.log[self.log.len() - periods..].iter().fold(0.0, |sum, logged| FORGETTING * sum + logged.density);
            let mut anew = self.without_models();
            anew.log.clone_from(&self.log);
            anew.keep_last(periods);
            let lead = anew.fresh_score() - usual;
            if lead > best.1 {
                best = (Some(periods), lead);
            }
        }
        best.0
    }

    /// The evidence for what is logged of the best amplitudes in the proportions that are expected.
    fn fresh_score(&self) -> f64 {
        let largest = libm::log(self.scale) + 2.0 * STEP;
        (0..ANEW_SIZES)
            .map(|size| self.score(&self.clip(expected(largest - STEP * f64::from(size)))))
            .fold(f64::NEG_INFINITY, f64::max)
    }

    /// Follow the level, and the mean square of what deviates from it.
    fn learn_scale(&mut self, measured: &Measured) {
        let (mean, square, _) = moments(measured);
        if self.count == 1 {
            self.origin = mean;
            (self.centre, self.spread) = (0.0, square);
        } else {
            let weight = (1.0 - FORGETTING).max(1.0 / real(self.count));
            let apart = mean - self.origin - self.centre;
            self.centre += weight * apart;
            self.spread = (1.0 - weight) * (self.spread + weight * (apart * apart)) + weight * square;
        }
        self.settle_scale(measured);
    }

    /// Add to the variances of the steps what the measured means cannot know of independent steps.
    ///
    /// Means say nothing of what differs within them: that is known as well as single steps were measured. Where none
    /// was, it is taken to be of the size that the model expects, or a few times that.
    fn widen(&self, measured: &Measured, estimate: &mut Estimate) {
        let white = self.bank.as_ref().map_or(0.0, |bank| bank.models[0].amplitudes[crate::bank::WHITE]);
        let unknown = if self.information > 0.0 { HIDDEN / self.information.sqrt() } else { HIDDEN_MOST * white };
        let hidden = unknown.min(self.room() * self.room());
        let mut extra = vec![hidden; estimate.variances.len()];
        for (cell, noise) in measured.layout.cells.iter().zip(&measured.variances) {
            let share = share(cell);
            // What a measured mean itself tells of its steps.
            let blurred = noise / (noise + share * white).max(TINY);
            let kept = hidden * (1.0 - share * (1.0 - SEEN * blurred * blurred));
            for step in cell {
                extra[*step] = extra[*step].min(kept);
            }
        }
        for (variance, more) in estimate.variances.iter_mut().zip(extra) {
            *variance += more;
        }
    }

    fn settle_scale(&mut self, measured: &Measured) {
        let (level, noise) = (self.origin + self.centre, moments(measured).2);
        self.scale = self.spread.max(noise).max(PRECISION * (level * level)).max(TINY);
    }

    /// Mean and variance of the level before a period is measured, relative to the origin.
    ///
    /// Bounds far wider than what is measured say nothing; the first measurements then say where it is.
    pub(crate) fn start(&self, measured: &Measured) -> (f64, f64) {
        let diffuse = DIFFUSE * self.scale;
        match self.level {
            Some((mean, deviation)) if deviation * deviation <= diffuse => (mean - self.origin, deviation * deviation),
            _ => (moments(measured).0 - self.origin, diffuse),
        }
    }

    fn prior(&self, logs: &Amplitudes) -> f64 {
        let expected = expected(logs[SHAPE]);
        let mut sum = 0.0;
        for (log, expected) in logs.iter().zip(expected) {
            let distance = (log - expected) / WIDTH;
            sum += distance * distance;
        }
        let scale = (logs[SHAPE] - libm::log(SHAPE_SHARE * self.scale)) / SHAPE_WIDTH;
        -0.5 * (sum + scale * scale)
    }

    fn clip(&self, logs: Amplitudes) -> Amplitudes {
        let (low, high) = (libm::log(FLOOR * self.scale), libm::log(CEILING * self.scale));
        logs.map(|log| log.clamp(low, high))
    }

    /// Move a model to the start of a period.
    fn reach(&self, model: &mut Model, last: Option<i64>, measured: &Measured) {
        if self.memory {
            let gap = last.map_or(0, |last| measured.period - last);
            model.advance(&self.geometry, gap, measured.shift, measured.jump);
        } else {
            model.forget(&self.geometry, self.start(measured));
        }
    }

    fn step(&self, model: &mut Model, last: Option<i64>, measured: &Measured, steps: bool) -> Posterior {
        self.reach(model, last, measured);
        let values = relative(&measured.values, self.origin);
        model.observe(&self.geometry, &sight(measured, &values), steps)
    }

    /// Run a model over everything logged; return it, its last estimate and the evidence.
    fn replay(&self, logs: &Amplitudes) -> (Model, Posterior, f64) {
        let mut model = Model::new(&self.geometry, logs.map(libm::exp), self.start(&self.log[0]));
        let (mut last, mut evidence) = (None, 0.0);
        let mut found = Posterior { density: 0.0, means: Vec::new(), variances: Vec::new() };
        for (index, measured) in self.log.iter().enumerate() {
            found = self.step(&mut model, last, measured, index + 1 == self.log.len());
            evidence = FORGETTING * evidence + found.density;
            last = Some(measured.period);
        }
        (model, found, evidence)
    }

    fn score(&self, logs: &Amplitudes) -> f64 {
        let mut model = Model::new(&self.geometry, logs.map(libm::exp), self.start(&self.log[0]));
        let (mut last, mut evidence) = (None, 0.0);
        for (index, measured) in self.log.iter().enumerate() {
            let density = if index + 1 < self.log.len() {
                self.step(&mut model, last, measured, false).density
            } else {
                // Nothing comes after it that its measurements would have to be known for.
                self.reach(&mut model, last, measured);
                let values = relative(&measured.values, self.origin);
                let sight = Sight { excess: 1.0, ..sight(measured, &values) };
                let view = model.view(&self.geometry, &sight, false);
                model.density(&self.geometry, &sight, &view)
            };
            evidence = FORGETTING * evidence + density;
            last = Some(measured.period);
        }
        evidence + self.prior(logs)
    }

    /// The best of amplitudes of all sizes in the proportions that are expected.
    fn scan(&mut self) -> Amplitudes {
        self.scanned = self.scale;
        let largest = libm::log(CEILING * self.scale);
        let candidates = (0..SIZES).map(|size| self.clip(expected(largest - STEP * f64::from(size))));
        let scored: Vec<(f64, Amplitudes)> = candidates.map(|logs| (self.score(&logs), logs)).collect();
        scored[first_largest(scored.iter().map(|row| row.0))].1
    }

    /// Fit the amplitudes to everything logged, and start the models from there.
    fn refit(&mut self, known: Option<Bank>) -> Estimate {
        let mut centre = match known {
            Some(bank) if self.scale <= GROWTH * self.scanned => self.clip(bank.models[0].amplitudes.map(libm::log)),
            _ => self.scan(),
        };
        let mut step = STEP;
        for _ in 0..ROUNDS {
            let (best, gain) = self.round(centre, step);
            match best {
                Some(best) => centre = best,
                None => step /= 2.0,
            }
            if gain < FITTED && step < STEP {
                break;
            }
        }
        let logs = self.around(centre);
        let replayed = logs.map(|logs| self.replay(&logs));
        self.evidence = replayed.each_ref().map(|row| row.2);
        self.density = replayed[0].1.density;
        let last = self.log.last().map(|measured| measured.period);
        let (models, found): (Vec<Model>, Vec<Posterior>) = replayed.into_iter().map(|row| (row.0, row.1)).unzip();
        self.bank = Some(Bank { models, last });
        self.average(&found, &logs)
    }

    /// The best amplitudes around some, if they are better, and by how much.
    fn round(&self, centre: Amplitudes, step: f64) -> (Option<Amplitudes>, f64) {
        let mut near = vec![self.clip(centre)];
        for sign in [1.0, -1.0] {
            for part in 0..centre.len() {
                let mut moved = centre;
                moved[part] += step * sign;
                near.push(self.clip(moved));
            }
        }
        let scores: Vec<f64> = near.iter().map(|logs| self.score(logs)).collect();
        let mut jointly = centre;
        for (part, log) in jointly.iter_mut().enumerate() {
            let (up, down) = (scores[1 + part] - scores[0], scores[1 + centre.len() + part] - scores[0]);
            let (curvature, slope) = (up + down, (up - down) / 2.0);
            let sign = if slope > 0.0 {
                1.0
            } else if slope < 0.0 {
                -1.0
            } else {
                0.0
            };
            let newton = if curvature < 0.0 { -slope / curvature } else { sign };
            *log += step * newton.clamp(-1.5, 1.5);
        }
        let jointly = self.clip(jointly);
        let score = self.score(&jointly);
        let best = first_largest(scores.iter().copied());
        let gain = score.max(scores[best]) - scores[0];
        if score > scores[best] {
            (Some(jointly), gain)
        } else if best > 0 {
            (Some(near[best]), gain)
        } else {
            (None, gain)
        }
    }

    /// Amplitudes and those of its challengers.
    fn around(&self, centre: Amplitudes) -> [Amplitudes; MODELS] {
        let mut logs = [centre; MODELS];
        for (challenger, sign) in self.signs.iter().enumerate() {
            logs[challenger + 1][challenger + 1] += STEP * sign;
            logs[challenger + 1] = self.clip(logs[challenger + 1]);
        }
        logs
    }

    fn scores(&self, logs: &[Amplitudes; MODELS]) -> [f64; MODELS] {
        let mut scores = self.evidence;
        for (score, logs) in scores.iter_mut().zip(logs) {
            *score += self.prior(logs);
        }
        scores
    }

    /// How much each model counts, from the evidence for it and from what is expected of its amplitudes.
    pub(crate) fn weights(&self, evidence: &[f64; MODELS], logs: &[Amplitudes; MODELS]) -> [f64; MODELS] {
        let mut scores = *evidence;
        for (score, logs) in scores.iter_mut().zip(logs) {
            *score += self.prior(logs);
        }
        let largest = scores.iter().fold(f64::NEG_INFINITY, |most, score| most.max(*score));
        let weights = scores.map(|score| libm::exp(score - largest));
        let total = weights.iter().fold(0.0, |sum, weight| sum + weight);
        weights.map(|weight| weight / total)
    }

    /// Evidence after a period that gave some more.
    pub(crate) fn followed(evidence: f64, gained: f64) -> f64 {
        FORGETTING * evidence + gained.clamp(-MOST, MOST)
    }

    fn average(&self, found: &[Posterior], logs: &[Amplitudes; MODELS]) -> Estimate {
        let weights = self.weights(&self.evidence, logs);
        let w = self.geometry.w;
        let (mut means, mut variances) = (vec![0.0; w], vec![0.0; w]);
        for (weight, one) in weights.iter().zip(found) {
            for (mean, own) in means.iter_mut().zip(&one.means) {
                *mean += weight * own;
            }
        }
        for (weight, one) in weights.iter().zip(found) {
            for ((variance, mean), (own, spread)) in
                variances.iter_mut().zip(&means).zip(one.means.iter().zip(&one.variances))
            {
                *variance += weight * (spread + (own - mean) * (own - mean));
            }
        }
        Estimate { means, variances }
    }

    /// Take one period after another, and let the challengers compete.
    fn follow(&mut self, mut bank: Bank, measured: &Measured) -> Estimate {
        let last = bank.last;
        let found: Vec<Posterior> =
            bank.models.iter_mut().map(|model| self.step(model, last, measured, true)).collect();
        bank.last = Some(measured.period);
        self.density = found[0].density;
        for (evidence, one) in self.evidence.iter_mut().zip(&found) {
            *evidence = Self::followed(*evidence, one.density - found[0].density);
        }
        let logs: [Amplitudes; MODELS] = std::array::from_fn(|model| bank.models[model].amplitudes.map(libm::log));
        let estimate = self.average(&found, &logs);
        self.compete(&mut bank, &logs);
        self.bank = Some(bank);
        estimate
    }

    /// Let a challenger that leads become the centre, and replace those that fall behind by their opposites.
    fn compete(&mut self, bank: &mut Bank, logs: &[Amplitudes; MODELS]) {
        let scores = self.scores(logs);
        let lead = scores.map(|score| score - scores[0]);
        let best = first_largest(lead.iter().copied());
        let mut sources: [usize; MODELS] = std::array::from_fn(|model| model);
        let mut evidence = self.evidence;
        let mut centre = logs[0];
        if lead[best] > MARGIN {
            // The others stay where they are relative to the centre, and so does their evidence.
            centre = logs[best];
            let ahead = self.evidence[best] - self.evidence[0];
            evidence = evidence.map(|one| one + ahead);
            evidence[0] = self.evidence[best];
            evidence[best] = evidence[0] - HANDICAP;
            sources[0] = best;
        }
        for challenger in 1..MODELS {
            if lead[challenger] < -REJECTED {
                self.signs[challenger - 1] *= -1.0;
                sources[challenger] = sources[0];
                evidence[challenger] = evidence[0] - HANDICAP;
            }
        }
        self.evidence = evidence.map(|one| one - evidence[0]);
        if sources.iter().enumerate().any(|(model, source)| model != *source) {
            let logs = self.around(centre);
            bank.models =
                sources.iter().zip(logs).map(|(source, logs)| bank.models[*source].with(logs.map(libm::exp))).collect();
        }
    }

    /// Decide from the evidence whether the level broke before this period, and whether the period is odd.
    fn interpret(&mut self, bank: &Bank, measured: &mut Measured) {
        if !self.memory || self.count <= UNTESTED {
            return;
        }
        let geometry = Arc::clone(&self.geometry);
        let mut ahead = bank.models[self.best(bank)].clone();
        ahead.advance(&geometry, bank.last.map_or(0, |last| measured.period - last), 0.0, 0.0);
        let values = relative(&measured.values, self.origin);
        let sight = sight(measured, &values);
        let view = ahead.view(&geometry, &sight, false);
        let seen = view.see(&measured.layout, &values, false);
        let (mean, covariance) = ahead.directions(&geometry, measured.period);
        let innovation = Innovation::new(&view, &seen, &mean, &covariance);
        // The likeliest common shift of all values, in units of its standard deviation, is the evidence of a break.
        let (shift, precision) = innovation.shift();
        self.surprises.push(shift * precision.sqrt());
        let longest = usize::from(BREAK_PERIODS[BREAK_PERIODS.len() - 1]);
        if self.surprises.len() > longest {
            self.surprises.remove(0);
        }
        let square = self.broken();
        let (mut moved, mut jump) = (0.0, 0.0);
        if square > 1.0 && (square - 1.0 - libm::log(square)) / 2.0 > BREAK {
            jump = (shift * shift).max(square / precision);
            if jump > DIFFUSE / precision {
                // Beside a larger variance that of the measurements would be lost to rounding.
                (moved, jump) = (shift, DIFFUSE / precision);
            }
            self.surprises.clear();
            self.centre = moments(measured).0 - self.origin;
        }
        let count = values.len();
        let (usual, length) = innovation.density(&view, &seen, count, moved, jump);
        let size = real(count as u64);
        let (mut excess, mut best_density) = (1.0, usual);
        if length > size + 3.0 * (5.0 * size).sqrt() {
            let factors: Vec<f64> = (1..=EXCESSES).map(|power| f64::from(1_u32 << (2 * power))).collect();
            let odd: Vec<f64> = factors
                .iter()
                .map(|factor| {
                    let view = ahead.fresh_view(&geometry, &sight, *factor, false);
                    let seen = view.see(&measured.layout, &values, false);
                    Innovation::new(&view, &seen, &mean, &covariance).density(&view, &seen, count, moved, jump).0
                })
                .collect();
            let best = first_largest(odd.iter().copied());
            if odd[best] - ODD > usual {
                (excess, best_density) = (factors[best], odd[best] - ODD);
            }
        }
        (measured.shift, measured.jump, measured.excess) = (moved, jump, excess);
        measured.length = length.max(f64::MIN_POSITIVE);
        measured.density = best_density - if jump > 0.0 { BREAK } else { 0.0 };
        if jump > 0.0 || excess > 1.0 {
            let expected = measured.layout.paths.times(&mean);
            let square = measured.layout.order.iter().zip(&expected).fold(0.0, |sum, (index, expected)| {
                let apart = values[*index] - expected;
                sum + apart * apart
            });
            (self.alarmed, self.alarm) = (self.count, (square / size).sqrt());
        }
    }

    /// The largest square of a mean of the last surprises, in units of its variance.
    fn broken(&self) -> f64 {
        let mut most = 0.0_f64;
        for number in BREAK_PERIODS {
            if let Some(first) = self.surprises.len().checked_sub(usize::from(number)) {
                let sum = self.surprises[first..].iter().fold(0.0, |sum, surprise| sum + surprise);
                most = most.max(sum * sum / f64::from(number));
            }
        }
        most
    }

    fn best(&self, bank: &Bank) -> usize {
        let logs: [Amplitudes; MODELS] = std::array::from_fn(|model| bank.models[model].amplitudes.map(libm::log));
        first_largest(self.scores(&logs).into_iter())
    }

    /// The likeliest model in its present state, the last period and the level it starts from, or else what is expected
    /// of a stream of a scale.
    pub(crate) fn ahead(&self, scale: Option<f64>) -> Result<(Model, Option<i64>), Error> {
        if let Some(bank) = &self.bank {
            return Ok((bank.models[self.best(bank)].clone(), bank.last));
        }
        let Some(scale) = scale else {
            return Err(Error::parameter("scale", "None", "given while nothing was measured"));
        };
        let square = scale * scale;
        let amplitudes = SHARES.map(|share| (share * square).max(TINY * FLOOR));
        Ok((Model::new(&self.geometry, amplitudes, (0.0, DIFFUSE * square)), None))
    }

    /// Variance of a level that was forgotten.
    fn forgotten(&self, scale: Option<f64>) -> f64 {
        let diffuse =
            DIFFUSE * if self.bank.is_some() { self.scale } else { scale.unwrap_or(0.0) * scale.unwrap_or(0.0) };
        match self.level {
            Some((_, deviation)) if self.bank.is_some() => diffuse.min(deviation * deviation),
            _ => diffuse,
        }
    }

    /// The mean absolute error that the filter expects of itself some weeks from now.
    ///
    /// No data is needed beyond what was learnt: the precision of a linear filter depends on what is measured and its
    /// variances alone. Without anything learnt it stands on `scale`, a guess of the standard deviation of values within
    /// a period.
    ///
    /// # Errors
    ///
    /// If nothing was learnt and no scale is given, or an argument does not fit.
    pub fn expected_error(
        &self,
        cells: Vec<Vec<usize>>,
        variances: Vec<f64>,
        scale: Option<f64>,
        memory: bool,
    ) -> Result<f64, Error> {
        let (mut total, mut count) = (0.0, 0.0);
        let geometry = &self.geometry;
        let values = vec![0.0; cells.len()];
        let mut measured = self.without_models().measurement(0, cells.clone(), values.clone(), variances.clone())?;
        self.foresee(cells, variances, scale, memory, |model, period| {
            measured.period = period;
            let found = model.clone().observe(geometry, &sight(&measured, &values), true);
            for variance in &found.variances {
                total += (2.0 / std::f64::consts::PI * variance).sqrt();
                count += 1.0;
            }
        })?;
        Ok(total / count)
    }

    /// Show what the likeliest model knows before each period of a season, some weeks from now, if periods are measured
    /// alike; what is measured does not matter to it.
    pub(crate) fn foresee(
        &self,
        cells: Vec<Vec<usize>>,
        variances: Vec<f64>,
        scale: Option<f64>,
        memory: bool,
        mut show: impl FnMut(&Model, i64),
    ) -> Result<(), Error> {
        let (mut model, mut last) = self.ahead(scale)?;
        let geometry = &self.geometry;
        let values = vec![0.0; cells.len()];
        let mut measured = self.without_models().measurement(0, cells, values.clone(), variances)?;
        let season = i64::try_from(geometry.season).unwrap_or(i64::MAX);
        let periods = if memory && self.memory { HORIZON.max(2 * season) } else { season };
        let first = last.map_or(0, |last| last + 1);
        for period in first..first + periods {
            measured.period = period;
            if memory && self.memory {
                model.advance(geometry, last.map_or(0, |last| period - last), 0.0, 0.0);
            } else {
                model.forget(geometry, (0.0, self.forgotten(scale)));
            }
            if period >= first + periods - season {
                show(&model, period);
            }
            model.observe(geometry, &sight(&measured, &values), false);
            last = Some(period);
        }
        Ok(())
    }

    /// An update by the models as they are: amplitudes are not fitted again, and no break is looked for.
    #[cfg(test)]
    pub(crate) fn plain(&mut self, measured: Measured) -> Result<(Estimate, Measured), Error> {
        self.check(measured.period)?;
        let bank = self.bank.take().expect("something was measured");
        let mut estimate = self.follow(bank, &measured);
        for mean in &mut estimate.means {
            *mean += self.origin;
        }
        Ok((estimate, measured))
    }

    /// A filter that knows the same layouts, to make measurements with.
    fn without_models(&self) -> Self {
        Self {
            geometry: Arc::clone(&self.geometry),
            log: Vec::new(),
            bank: None,
            surprises: Vec::new(),
            layouts: self.layouts.clone(),
            ..*self
        }
    }

    /// The mean square of linear transforms of the steps of a period, given by rows, over a season from now on.
    ///
    /// # Errors
    ///
    /// If nothing was learnt and no scale is given, or a row is not as long as a period.
    pub fn deviation(&self, rows: &[Vec<f64>], scale: Option<f64>) -> Result<Vec<f64>, Error> {
        let geometry = &self.geometry;
        if let Some(row) = rows.iter().find(|row| row.len() != geometry.w) {
            return Err(Error::parameter("transform", format!("of {} columns", row.len()), geometry.w.to_string()));
        }
        let season = i64::try_from(geometry.season).unwrap_or(i64::MAX);
        let mut sums = vec![0.0; rows.len()];
        let seen: Vec<Vec<f64>> = rows.iter().map(|row| geometry.paths.times(row)).collect();
        for gap in 1..=season {
            let (mut model, last) = self.ahead(scale)?;
            let period = last.map_or(gap, |last| last + gap);
            model.advance(geometry, last.map_or(0, |_| gap), 0.0, 0.0);
            let (mut mean, covariance) = model.directions(geometry, period);
            mean[0] += self.origin;
            for ((sum, row), seen) in sums.iter_mut().zip(rows).zip(&seen) {
                let value = dot(seen, &mean);
                *sum += value * value + dot(&covariance.times(seen), seen) + self.fresh(&model, row);
            }
        }
        let count = real(season.unsigned_abs());
        let means: Vec<f64> = sums.into_iter().map(|sum| sum / count).collect();
        finite(&means)?;
        Ok(means)
    }

    /// The variance that what happens within a period gives a linear transform of its steps.
    fn fresh(&self, model: &Model, row: &[f64]) -> f64 {
        let mut total = model.amplitudes[crate::bank::WHITE] * dot(row, row);
        for (process, part) in [crate::bank::DRIFT, crate::bank::INTRADAY].into_iter().enumerate() {
            let decay = self.geometry.step_decay[process];
            let (mut before, mut sum, mut started) = (0.0, 0.0, 0.0);
            for (value, power) in row.iter().zip(&self.geometry.powers[process][1..]) {
                sum += value * value + 2.0 * value * before;
                before = decay * (before + value);
                started += value * power;
            }
            total += model.amplitudes[part] * (sum - started * started);
        }
        total
    }

    /// The model that smoothing starts with: the likeliest one, before anything is measured.
    pub(crate) fn fresh_model(&self, first: &Measured) -> Result<Model, Error> {
        let (mut model, _) = self.ahead(None)?;
        model.forget(&self.geometry, self.start(first));
        Ok(model)
    }

    /// A measurement as an earlier update understood it.
    ///
    /// # Errors
    ///
    /// As [`Filter::measurement`].
    pub fn understood(
        &mut self,
        period: i64,
        cells: Vec<Vec<usize>>,
        values: Vec<f64>,
        variances: Vec<f64>,
        made_of_it: [f64; 3],
    ) -> Result<Measured, Error> {
        let [jump, excess, shift] = made_of_it;
        Ok(Measured { jump, excess, shift, ..self.measurement(period, cells, values, variances)? })
    }
}

/// Weighted mean of the values, mean square of what deviates from it, and a typical variance of noise.
///
/// Values of least noise count most.
pub(crate) fn moments(measured: &Measured) -> (f64, f64, f64) {
    let least = measured.variances.iter().fold(f64::INFINITY, |least, variance| least.min(*variance)) + TINY;
    let weights: Vec<f64> = measured.variances.iter().map(|variance| least / (variance + least)).collect();
    let total = weights.iter().fold(0.0, |sum, weight| sum + weight);
    let mean = dot(&weights, &measured.values) / total;
    let square = weights
        .iter()
        .zip(&measured.values)
        .fold(0.0, |sum, (weight, value)| sum + weight * ((value - mean) * (value - mean)));
    (mean, square / total, dot(&weights, &measured.variances) / total)
}

/// What single steps of a period say of the variance of independent steps, of which something is expected: one over the
/// square of its standard error.
fn information(measured: &Measured, white: f64) -> f64 {
    measured.layout.cells.iter().zip(&measured.variances).filter(|(cell, _)| cell.len() == 1).fold(
        0.0,
        |sum, (_, variance)| {
            let ratio = 1.0 / (variance + white).max(TINY);
            sum + 0.5 * (ratio * ratio).min(LARGEST)
        },
    )
}

/// Update the filters of many streams, on some threads; results do not depend on how many.
///
/// # Errors
///
/// That of the first filter that refuses.
pub fn update_all(
    filters: &mut [&mut Filter],
    measured: Vec<Measured>,
    threads: usize,
) -> Result<Vec<(Estimate, Measured)>, Error> {
    let share = filters.len().div_ceil(threads.max(1)).max(1);
    if share >= filters.len() {
        return filters.iter_mut().zip(measured).map(|(filter, measured)| filter.update(measured)).collect();
    }
    let mut given = measured.into_iter();
    std::thread::scope(|scope| {
        let workers: Vec<_> = filters
            .chunks_mut(share)
            .map(|part| {
                let own: Vec<Measured> = given.by_ref().take(part.len()).collect();
                scope.spawn(move || -> Vec<_> {
                    part.iter_mut().zip(own).map(|(filter, measured)| filter.update(measured)).collect()
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Refuse results that are no numbers: what was given was too large, or said that noise has no variance.
pub(crate) fn finite(values: &[f64]) -> Result<(), Error> {
    if values.iter().all(|value| value.is_finite()) { Ok(()) } else { Err(Error::NotFinite { largest: LARGEST }) }
}

pub(crate) fn relative(values: &[f64], origin: f64) -> Vec<f64> {
    values.iter().map(|value| value - origin).collect()
}

pub(crate) fn sight<'a>(measured: &'a Measured, values: &'a [f64]) -> Sight<'a> {
    Sight {
        period: measured.period,
        layout: &measured.layout,
        values,
        variances: &measured.variances,
        excess: measured.excess,
    }
}

fn expected(shape: f64) -> Amplitudes {
    SHARES.map(|share| shape + libm::log(share))
}

/// The place of the largest value, the first one of several.
fn first_largest(values: impl Iterator<Item = f64>) -> usize {
    let mut best = (0, f64::NEG_INFINITY);
    for (index, value) in values.enumerate() {
        if value > best.1 {
            best = (index, value);
        }
    }
    best.0
}

#[expect(clippy::cast_precision_loss, reason = "numbers of periods are far below 2^52")]
fn real(number: u64) -> f64 {
    number as f64
}
