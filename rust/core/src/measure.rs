//! The measurements of one period: what is looked at, with what noise, and the noisy sums of its features.

pub mod stepwise;

use crate::Error;
use crate::cube::{self, CubeScale};
use crate::gaussian::{self, Deviation};
use crate::laplace;
use crate::rng::Source;
use crate::scale::Scale;
use crate::svt::L1Sampler;

/// A run of steps whose sum is measured, multiplied by a whole number. A single step is the shortest run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The first step.
    pub start: usize,
    /// The step after the last.
    pub stop: usize,
    /// What the sum is multiplied by. With `times = L / length` for a common multiple `L` of all lengths, a change of
    /// every step by `a` moves every measurement by `L a`, so that means of runs of different lengths form a cube.
    pub times: u64,
}

/// How the measured steps are chosen.
#[derive(Debug, Clone)]
pub enum Sampling {
    /// The same runs in every period, chosen without looking at the data.
    Fixed(Vec<Run>),
    /// Steps chosen from the data by the sparse vector technique.
    Adaptive(L1Sampler),
}

/// The noise on the measured values.
#[derive(Debug, Clone)]
pub enum Noise {
    /// Independent Laplace noise on every value.
    Laplace(Scale),
    /// Cube noise on blocks of consecutive values, whose lengths the scales tell.
    Cube(Vec<CubeScale>),
    /// Independent Gaussian noise on every value.
    Gaussian(Deviation),
}

/// The noise on the sums of a feature.
#[derive(Debug, Clone, Copy)]
pub enum FeatureNoise {
    /// Laplace noise of a scale.
    Laplace(Scale),
    /// Gaussian noise of a standard deviation.
    Gaussian(Deviation),
}

/// A partition of the period whose cell sums are measured.
#[derive(Debug, Clone)]
pub struct Feature {
    /// The cell of each step.
    pub labels: Vec<usize>,
    /// The noise on every sum.
    pub noise: FeatureNoise,
}

/// Everything that determines how a period is measured; built and checked once, used for every period.
#[derive(Debug, Clone)]
pub struct Plan {
    length: usize,
    sampling: Sampling,
    noise: Noise,
    features: Vec<Feature>,
    cells: usize,
}

/// The noisy measurements of a period, in grid units.
#[derive(Debug, Clone, Default)]
pub struct Period {
    /// The measured steps, or the first steps of measured runs, in order.
    pub knots: Vec<usize>,
    /// The noisy value of each measured step or run.
    pub samples: Vec<i64>,
    /// The noisy sum of each cell, feature after feature.
    pub cells: Vec<i64>,
}

impl Plan {
    /// A plan for periods of `length` steps whose values are at most `largest` in size.
    ///
    /// # Errors
    /// [`Error::Parameter`] if a period is empty or so long that a sum of its values could exceed 2^61, if fixed runs do
    /// not follow each other within the period, if blocks do not hold all measured values, or if a feature does not label
    /// every step. An overflow is thus excluded by public parameters and can never depend on the data.
    pub fn new(
        length: usize,
        largest: u64,
        sampling: Sampling,
        noise: Noise,
        features: Vec<Feature>,
    ) -> Result<Self, Error> {
        let wide = u128::try_from(length).unwrap_or(u128::MAX);
        if length == 0 || wide.saturating_mul(u128::from(largest)) > 1 << 61 {
            let bound = format!("from 1 to 2^61 grid steps divided by the largest bound, {largest} grid steps");
            return Err(Error::parameter("w", length, bound));
        }
        let measured = match &sampling {
            Sampling::Fixed(runs) => {
                check_runs(runs, length, largest)?;
                runs.len()
            }
            Sampling::Adaptive(sampler) => {
                // A sampler refuses larger values, which must not depend on the data.
                if largest > 1 << 53 {
                    let bound = "at most 2^53 grid steps for adaptive sampling (or use a coarser grid)";
                    return Err(Error::parameter("largest value", format!("{largest} grid steps"), bound));
                }
                sampler.count()
            }
        };
        if let Noise::Cube(blocks) = &noise {
            let held: usize = blocks.iter().map(CubeScale::length).sum();
            if held != measured {
                return Err(Error::parameter("blocks", held, format!("the number of measured values, {measured}")));
            }
        }
        let mut cells = 0_usize;
        for feature in &features {
            let largest = feature.labels.iter().max().copied().unwrap_or(0);
            if feature.labels.len() != length || largest >= length {
                return Err(Error::parameter(
                    "feature",
                    feature.labels.len(),
                    format!("a partition of w = {length} steps"),
                ));
            }
            cells = cells.saturating_add(largest).saturating_add(1);
        }
        Ok(Self { length, sampling, noise, features, cells })
    }

    /// The number of steps of a period.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// The number of cells of all features together.
    #[must_use]
    pub const fn cells(&self) -> usize {
        self.cells
    }

    /// Whether every period is measured at the same steps.
    #[must_use]
    pub const fn is_fixed(&self) -> bool {
        matches!(self.sampling, Sampling::Fixed(_))
    }

    /// Measures one period into `out`.
    ///
    /// # Guarantee
    /// With `a` the sensitivity of a step: choosing the steps costs what [`L1Sampler`] states for a period that is touched
    /// at all, or nothing if they are fixed. With Laplace noise each changed step of a measured run costs `times a/b`. With
    /// cube noise a block costs `L a/b` as soon as a step of it changes, with `L` the largest `times (stop - start)` of its
    /// runs, since no value of it moves by more than `L a`. Each changed step costs `a/b_f` for every feature `f`, since it
    /// moves one of its sums by at most `a`. The costs add up (adaptive composition). Gaussian noise has no such cost: what
    /// it is worth follows from by how much each of its values moves, see [`gaussian::perturb`].
    ///
    /// # Errors
    /// [`Error::Parameter`] if the period has another length.
    pub fn measure<S: Source>(&self, units: &[i64], source: &mut S, out: &mut Period) -> Result<(), Error> {
        if units.len() != self.length {
            return Err(Error::parameter("length of a period", units.len(), self.length));
        }
        out.knots.clear();
        out.samples.clear();
        match &self.sampling {
            Sampling::Fixed(runs) => {
                out.knots.extend(runs.iter().map(|run| run.start));
                out.samples.extend(runs.iter().map(|run| run.measured(units)));
            }
            Sampling::Adaptive(sampler) => {
                out.knots.extend(sampler.sample(units, source)?);
                out.samples.extend(out.knots.iter().filter_map(|&step| units.get(step)));
            }
        }
        match &self.noise {
            Noise::Laplace(scale) => laplace::perturb(&mut out.samples, scale, source),
            Noise::Cube(blocks) => {
                let mut rest = out.samples.as_mut_slice();
                for scale in blocks {
                    let (block, after) = rest.split_at_mut_checked(scale.length()).unwrap_or_default();
                    cube::perturb(block, scale, source);
                    rest = after;
                }
            }
            Noise::Gaussian(deviation) => gaussian::perturb(&mut out.samples, deviation, source),
        }
        out.cells.clear();
        for feature in &self.features {
            let first = out.cells.len();
            for (&label, &value) in feature.labels.iter().zip(units) {
                let cell = first.saturating_add(label);
                if cell >= out.cells.len() {
                    out.cells.resize(cell.saturating_add(1), 0);
                }
                if let Some(sum) = out.cells.get_mut(cell) {
                    *sum = sum.saturating_add(value);
                }
            }
            if let Some(sums) = out.cells.get_mut(first..) {
                match &feature.noise {
                    FeatureNoise::Laplace(scale) => laplace::perturb(sums, scale, source),
                    FeatureNoise::Gaussian(deviation) => gaussian::perturb(sums, deviation, source),
                }
            }
        }
        Ok(())
    }
}

impl Run {
    /// The sum of the run's steps, multiplied; checked for size when the plan is made.
    fn measured(&self, units: &[i64]) -> i64 {
        let sum: i64 = units.get(self.start..self.stop).unwrap_or_default().iter().sum();
        sum.saturating_mul(i64::try_from(self.times).unwrap_or(i64::MAX))
    }
}

fn check_runs(runs: &[Run], length: usize, largest: u64) -> Result<(), Error> {
    let apart = runs.is_sorted_by(|a, b| a.stop <= b.start);
    let inside = runs.iter().all(|run| run.start < run.stop && run.stop <= length);
    if runs.is_empty() || !apart || !inside {
        return Err(Error::parameter("runs", format!("{runs:?}"), format!("one after the other within w = {length}")));
    }
    for run in runs {
        let steps = u128::try_from(run.stop.saturating_sub(run.start)).unwrap_or(u128::MAX);
        if steps.saturating_mul(run.times.into()).saturating_mul(largest.into()) > 1 << 61 || run.times == 0 {
            let bound = format!("from 1 so that {steps} steps of {largest} grid steps stay below 2^61");
            return Err(Error::parameter("times", run.times, bound));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratio::Ratio;
    use crate::rng::Key;
    use crate::svt::{SparseVector, Unit};

    /// A scale so small that all noise is zero: the measurements themselves show.
    fn silent() -> Scale {
        Scale::new(1, &Ratio::new("epsilon", 1_000_000, 1).unwrap()).unwrap()
    }

    fn feature(labels: &[usize]) -> Feature {
        Feature { labels: labels.to_vec(), noise: FeatureNoise::Laplace(silent()) }
    }

    fn steps(steps: &[usize]) -> Sampling {
        Sampling::Fixed(steps.iter().map(|&start| Run { start, stop: start + 1, times: 1 }).collect())
    }

    fn runs(cuts: &[(usize, usize, u64)]) -> Sampling {
        Sampling::Fixed(cuts.iter().map(|&(start, stop, times)| Run { start, stop, times }).collect())
    }

    #[test]
    fn steps_and_sums_are_measured_in_order() {
        let features = vec![feature(&[0, 1, 0, 1]), feature(&[0, 0, 0, 0])];
        let plan = Plan::new(4, 100, steps(&[0, 3]), Noise::Laplace(silent()), features).unwrap();
        let mut period = Period::default();
        for _ in 0..2 {
            plan.measure(&[1, 20, 3, 40], &mut Key::from_entropy().unwrap().stream(0), &mut period).unwrap();
            assert_eq!(period.knots, [0, 3]);
            assert_eq!(period.samples, [1, 40]);
            assert_eq!(period.cells, [4, 60, 64]);
        }
        assert_eq!(plan.cells(), 3);
    }

    #[test]
    fn runs_are_summed_and_multiplied() {
        let plan = Plan::new(5, 100, runs(&[(0, 2, 3), (2, 5, 2)]), Noise::Laplace(silent()), vec![]).unwrap();
        let mut period = Period::default();
        plan.measure(&[1, 2, 3, 4, 5], &mut Key::from_entropy().unwrap().stream(0), &mut period).unwrap();
        assert_eq!(period.knots, [0, 2]);
        assert_eq!(period.samples, [9, 24]);
    }

    /// Cube noise is a whole block's: what is drawn is what `cube::perturb` draws for it, block after block.
    #[test]
    fn blocks_have_cube_noise() {
        let scale = |length| CubeScale::new(Scale::new(50, &Ratio::new("epsilon", 1, 1).unwrap()).unwrap(), length);
        let blocks = vec![scale(2).unwrap(), scale(1).unwrap()];
        let plan = Plan::new(4, 100, steps(&[0, 1, 3]), Noise::Cube(blocks.clone()), vec![]).unwrap();
        let key = Key::from_entropy().unwrap();
        let mut period = Period::default();
        plan.measure(&[1, 2, 3, 4], &mut key.stream(7), &mut period).unwrap();
        let (mut first, mut second, mut source) = ([1, 2], [4], key.stream(7));
        cube::perturb(&mut first, &blocks[0], &mut source);
        cube::perturb(&mut second, &blocks[1], &mut source);
        assert_eq!(period.samples, [first[0], first[1], second[0]]);
        assert!(Plan::new(4, 100, steps(&[0, 3]), Noise::Cube(blocks), vec![]).is_err());
    }

    /// Gaussian noise is drawn for the samples and then for the cells of each feature.
    #[test]
    fn samples_and_sums_have_gaussian_noise() {
        let deviation = Deviation::new(Scale::new(50, &Ratio::new("epsilon", 1, 1).unwrap()).unwrap());
        let features = vec![Feature { labels: vec![0, 0, 1, 1], noise: FeatureNoise::Gaussian(deviation) }];
        let plan = Plan::new(4, 100, steps(&[0, 3]), Noise::Gaussian(deviation), features).unwrap();
        let key = Key::from_entropy().unwrap();
        let mut period = Period::default();
        plan.measure(&[1, 2, 3, 4], &mut key.stream(7), &mut period).unwrap();
        let (mut samples, mut cells, mut source) = ([1, 4], [3, 7], key.stream(7));
        gaussian::perturb(&mut samples, &deviation, &mut source);
        gaussian::perturb(&mut cells, &deviation, &mut source);
        assert_eq!((period.samples, period.cells), (samples.to_vec(), cells.to_vec()));
    }

    #[test]
    fn wrong_plans_are_refused() {
        let plan = |length, largest, sampling, features| {
            Plan::new(length, largest, sampling, Noise::Laplace(silent()), features)
        };
        assert!(plan(4, 1 << 59, steps(&[0, 3]), vec![]).is_ok());
        assert!(plan(5, 1 << 59, steps(&[0, 3]), vec![]).is_err());
        assert!(plan(0, 1, steps(&[0]), vec![]).is_err());
        assert!(plan(4, 1, steps(&[]), vec![]).is_err());
        assert!(plan(4, 1, steps(&[3, 0]), vec![]).is_err());
        assert!(plan(4, 1, steps(&[0, 4]), vec![]).is_err());
        assert!(plan(4, 1, runs(&[(0, 2, 1), (1, 4, 1)]), vec![]).is_err());
        assert!(plan(4, 1, runs(&[(2, 2, 1)]), vec![]).is_err());
        assert!(plan(4, 1, runs(&[(0, 2, 0)]), vec![]).is_err());
        assert!(plan(4, 1 << 50, runs(&[(0, 2, 1 << 10)]), vec![]).is_ok());
        assert!(plan(4, 1 << 50, runs(&[(0, 2, 1 << 11)]), vec![]).is_err());
        assert!(plan(4, 1, steps(&[0, 3]), vec![feature(&[0, 0, 0])]).is_err());
        let vector = SparseVector::new(silent(), silent(), 1);
        let sampler = L1Sampler::new(4, 3, 0, vector, Unit::Common).unwrap();
        assert!(plan(4, 1 << 53, Sampling::Adaptive(sampler), vec![]).is_ok());
        assert!(plan(4, (1 << 53) + 1, Sampling::Adaptive(sampler), vec![]).is_err());
        let fine = plan(4, 1, steps(&[0, 3]), vec![]).unwrap();
        assert!(fine.measure(&[1, 2, 3], &mut Key::from_entropy().unwrap().stream(0), &mut Period::default()).is_err());
    }
}
