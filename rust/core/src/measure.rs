//! The measurements of one period: which steps are looked at, with what noise, and the noisy sums of its features.

use crate::Error;
use crate::laplace;
use crate::rng::Source;
use crate::scale::Scale;
use crate::svt::L1Sampler;

/// How the measured steps are chosen.
#[derive(Debug, Clone)]
pub enum Sampling {
    /// The same steps in every period, chosen without looking at the data.
    Fixed(Vec<usize>),
    /// Chosen from the data by the sparse vector technique.
    Adaptive(L1Sampler),
}

/// A partition of the period whose cell sums are measured.
#[derive(Debug, Clone)]
pub struct Feature {
    /// The cell of each step.
    pub labels: Vec<usize>,
    /// The scale of the noise on every sum.
    pub scale: Scale,
}

/// Everything that determines how a period is measured; built and checked once, used for every period.
#[derive(Debug, Clone)]
pub struct Plan {
    length: usize,
    sampling: Sampling,
    scale: Scale,
    features: Vec<Feature>,
    cells: usize,
}

/// The noisy measurements of a period, in grid units.
#[derive(Debug, Clone, Default)]
pub struct Period {
    /// The measured steps, in order.
    pub knots: Vec<usize>,
    /// The noisy value of each measured step.
    pub samples: Vec<i64>,
    /// The noisy sum of each cell, feature after feature.
    pub cells: Vec<i64>,
}

impl Plan {
    /// A plan for periods of `length` steps whose values are at most `largest` in size.
    ///
    /// # Errors
    /// [`Error::Parameter`] if a period is empty or so long that a sum of its values could exceed 2^61, if fixed steps do
    /// not increase within the period, or if a feature does not label every step. An overflow is thus excluded by public
    /// parameters and can never depend on the data.
    pub fn new(
        length: usize,
        largest: u64,
        sampling: Sampling,
        scale: Scale,
        features: Vec<Feature>,
    ) -> Result<Self, Error> {
        let wide = u128::try_from(length).unwrap_or(u128::MAX);
        if length == 0 || wide.saturating_mul(u128::from(largest)) > 1 << 61 {
            let bound = format!("from 1 to 2^61 grid steps divided by the largest bound, {largest} grid steps");
            return Err(Error::parameter("w", length, bound));
        }
        // A sampler refuses larger values, which must not depend on the data.
        if matches!(sampling, Sampling::Adaptive(_)) && largest > 1 << 53 {
            let bound = "at most 2^53 grid steps for adaptive sampling (or use a coarser grid)";
            return Err(Error::parameter("largest value", format!("{largest} grid steps"), bound));
        }
        if let Sampling::Fixed(steps) = &sampling
            && (steps.is_empty()
                || !steps.is_sorted_by(|a, b| a < b)
                || steps.last().is_none_or(|&last| last >= length))
        {
            return Err(Error::parameter("steps", format!("{steps:?}"), format!("increasing and below w = {length}")));
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
        Ok(Self { length, sampling, scale, features, cells })
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

    /// The scale of the noise on the measured steps.
    #[must_use]
    pub const fn scale(&self) -> &Scale {
        &self.scale
    }

    /// Measures one period into `out`.
    ///
    /// # Guarantee
    /// With `a` the sensitivity of a step: choosing the steps costs what [`L1Sampler`] states for a period that is touched
    /// at all, or nothing if they are fixed; each measured step costs `a/b` if it changes; each changed step costs `a/b_f`
    /// for every feature `f`, since it moves one of its sums by at most `a`. The costs add up (adaptive composition).
    ///
    /// # Errors
    /// [`Error::Parameter`] if the period has another length.
    pub fn measure<S: Source>(&self, units: &[i64], source: &mut S, out: &mut Period) -> Result<(), Error> {
        if units.len() != self.length {
            return Err(Error::parameter("length of a period", units.len(), self.length));
        }
        out.knots.clear();
        match &self.sampling {
            Sampling::Fixed(steps) => out.knots.extend(steps),
            Sampling::Adaptive(sampler) => out.knots.extend(sampler.sample(units, source)?),
        }
        out.samples.clear();
        out.samples.extend(out.knots.iter().filter_map(|&step| units.get(step)));
        laplace::perturb(&mut out.samples, &self.scale, source);
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
                laplace::perturb(sums, &feature.scale, source);
            }
        }
        Ok(())
    }
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
        Feature { labels: labels.to_vec(), scale: silent() }
    }

    #[test]
    fn steps_and_sums_are_measured_in_order() {
        let features = vec![feature(&[0, 1, 0, 1]), feature(&[0, 0, 0, 0])];
        let plan = Plan::new(4, 100, Sampling::Fixed(vec![0, 3]), silent(), features).unwrap();
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
    fn wrong_plans_are_refused() {
        let plan = |length, largest, steps: &[usize], features| {
            Plan::new(length, largest, Sampling::Fixed(steps.to_vec()), silent(), features)
        };
        assert!(plan(4, 1 << 59, &[0, 3], vec![]).is_ok());
        assert!(plan(5, 1 << 59, &[0, 3], vec![]).is_err());
        assert!(plan(0, 1, &[0], vec![]).is_err());
        assert!(plan(4, 1, &[], vec![]).is_err());
        assert!(plan(4, 1, &[3, 0], vec![]).is_err());
        assert!(plan(4, 1, &[0, 4], vec![]).is_err());
        assert!(plan(4, 1, &[0, 3], vec![feature(&[0, 0, 0])]).is_err());
        let vector = SparseVector::new(silent(), silent(), 1);
        let sampler = L1Sampler::new(4, 3, 0, vector, Unit::Common).unwrap();
        assert!(Plan::new(4, 1 << 53, Sampling::Adaptive(sampler), silent(), vec![]).is_ok());
        assert!(Plan::new(4, (1 << 53) + 1, Sampling::Adaptive(sampler), silent(), vec![]).is_err());
        let fine = plan(4, 1, &[0, 3], vec![]).unwrap();
        assert!(fine.measure(&[1, 2, 3], &mut Key::from_entropy().unwrap().stream(0), &mut Period::default()).is_err());
    }
}
