//! The same measurements, each drawn as soon as its last step has come.
//!
//! What a period measures is known before it begins, and so is the step with which each measurement ends. Drawn one by one
//! in that order, the measurements have the law of the whole period drawn at once.

use super::{Feature, FeatureNoise, Noise, Plan, Run, Sampling};
use crate::Error;
use crate::cube;
use crate::gaussian;
use crate::laplace;
use crate::rng::Key;

/// The measurements that end with one step, in grid units.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// The number of the measured run that ends, and its noisy value.
    pub sample: Option<(usize, i64)>,
    /// The cells of features that end, counted over all features, and their noisy sums.
    pub cells: Vec<(usize, i64)>,
}

/// Where the noise of a step comes from.
#[derive(Clone, Copy)]
pub struct Noises<'a> {
    /// The key of the values of this step: a new one for every step, or one that depends on all values up to it.
    pub values: &'a Key,
    /// The keystream of the first measurement; the others follow.
    pub first_value: u64,
    /// The key of radii of blocks that begin; if it is the period's, also of those that have begun.
    pub radii: &'a Key,
    /// The keystream of the first block; the others follow.
    pub first_radius: u64,
    /// Whether the key of radii is the period's, so that nothing is pending.
    pub lasting: bool,
}

impl Plan {
    /// The fixed runs that are measured.
    ///
    /// # Errors
    /// [`Error::Parameter`] if steps are chosen from the data.
    fn runs(&self) -> Result<&[Run], Error> {
        match &self.sampling {
            Sampling::Fixed(runs) => Ok(runs),
            Sampling::Adaptive(_) => Err(Error::parameter("sampling", "adaptive", "fixed to be released step by step")),
        }
    }

    /// The first steps of the fixed runs that are measured.
    ///
    /// # Errors
    /// [`Error::Parameter`] if steps are chosen from the data.
    pub fn knots(&self) -> Result<Vec<usize>, Error> {
        Ok(self.runs()?.iter().map(|run| run.start).collect())
    }

    /// The number of blocks that share their noise.
    #[must_use]
    pub fn blocks(&self) -> usize {
        if let Noise::Cube(blocks) = &self.noise { blocks.len() } else { 0 }
    }

    /// Draws the measurements that end with the last of the steps of a period that have come.
    ///
    /// `pending` is the radius of the block of cube noise that has begun and not ended, if any, and is brought up to date.
    ///
    /// # Guarantee
    /// Whatever decides the values of later steps, also if it has seen the measurements of earlier ones, all measurements
    /// of a period together cost what [`Plan::measure`] states. Laplace and Gaussian noises are independent, so each
    /// measurement is a mechanism of its own and costs add up adaptively. A block of cube noise with values `x` gives `y`
    /// with probability proportional to the sum over `R` of `q^R` times `[max|y_i - x_i| <= R]`, which is `q^max|y_i -
    /// x_i|` as in [`cube`], since given `R` the coordinates are independent and uniform: a transcript determines its
    /// noise, so that the ratio of its probabilities under `x` and `x'` is at most `exp(max|x_i - x'_i| / b)`, also if `x_i`
    /// depends on the `y` before it.
    ///
    /// # Errors
    /// [`Error::Parameter`] if steps are chosen from the data, if there are more or fewer steps than a period has, or if a
    /// block has begun and its radius is not given.
    pub fn measure_step(
        &self,
        units: &[i64],
        pending: &mut Option<u128>,
        noises: &Noises<'_>,
        out: &mut Ended,
    ) -> Result<(), Error> {
        let runs = self.runs()?;
        let Some(step) = units.len().checked_sub(1).filter(|step| *step < self.length) else {
            return Err(Error::parameter("number of steps", units.len(), format!("from 1 to {}", self.length)));
        };
        out.sample = None;
        out.cells.clear();
        if let Some(index) = runs.iter().position(|run| run.stop.checked_sub(1) == Some(step)) {
            let mut value = [runs.get(index).map_or(0, |run| run.measured(units))];
            self.perturb_one(&mut value, index, pending, noises)?;
            out.sample = value.first().map(|value| (index, *value));
        }
        let mut first = 0_usize;
        for feature in &self.features {
            if let Some((label, sum)) = feature.ended(units) {
                let cell = first.saturating_add(label);
                let mut source = noises.values.stream(numbered(noises.first_value, runs.len().saturating_add(cell)));
                let mut sum = [sum];
                match &feature.noise {
                    FeatureNoise::Laplace(scale) => laplace::perturb(&mut sum, scale, &mut source),
                    FeatureNoise::Gaussian(deviation) => gaussian::perturb(&mut sum, deviation, &mut source),
                }
                out.cells.extend(sum.map(|sum| (cell, sum)));
            }
            first = first.saturating_add(feature.size());
        }
        Ok(())
    }

    fn perturb_one(
        &self,
        value: &mut [i64; 1],
        index: usize,
        pending: &mut Option<u128>,
        noises: &Noises<'_>,
    ) -> Result<(), Error> {
        let mut source = noises.values.stream(numbered(noises.first_value, index));
        match &self.noise {
            Noise::Laplace(scale) => laplace::perturb(value, scale, &mut source),
            Noise::Gaussian(deviation) => gaussian::perturb(value, deviation, &mut source),
            Noise::Cube(blocks) => {
                let (mut block, mut begin) = (0_usize, 0_usize);
                for scale in blocks {
                    let end = begin.saturating_add(scale.length());
                    if index < end {
                        break;
                    }
                    (block, begin) = (block.saturating_add(1), end);
                }
                let Some(scale) = blocks.get(block) else { return Ok(()) };
                let radius = if index == begin || noises.lasting {
                    cube::radius(scale, &mut noises.radii.stream(numbered(noises.first_radius, block)))
                } else {
                    pending.ok_or_else(|| Error::parameter("radius", "missing", "that of the block that has begun"))?
                };
                cube::perturb_within(value, radius, &mut source);
                let ended = index.saturating_add(1) == begin.saturating_add(scale.length());
                *pending = (!ended && !noises.lasting).then_some(radius);
            }
        }
        Ok(())
    }
}

impl Feature {
    /// The number of cells.
    fn size(&self) -> usize {
        self.labels.iter().max().map_or(0, |largest| largest.saturating_add(1))
    }

    /// The cell that ends with the last of some steps, and its sum, if one does.
    fn ended(&self, units: &[i64]) -> Option<(usize, i64)> {
        let step = units.len().checked_sub(1)?;
        let label = *self.labels.get(step)?;
        let later = self.labels.get(units.len()..)?;
        if later.contains(&label) {
            return None;
        }
        let own = self.labels.iter().zip(units).filter(|(other, _)| **other == label);
        Some((label, own.fold(0_i64, |sum, (_, value)| sum.saturating_add(*value))))
    }
}

fn numbered(first: u64, index: usize) -> u64 {
    first.saturating_add(u64::try_from(index).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cube::CubeScale;
    use crate::ratio::Ratio;
    use crate::scale::Scale;

    fn scale(width: u64) -> Scale {
        Scale::new(width, &Ratio::new("epsilon", 1, 1).unwrap()).unwrap()
    }

    fn runs(cuts: &[(usize, usize)]) -> Sampling {
        Sampling::Fixed(cuts.iter().map(|&(start, stop)| Run { start, stop, times: 1 }).collect())
    }

    fn walk(plan: &Plan, units: &[i64], key: &Key, lasting: bool) -> Vec<Ended> {
        let noises = Noises { values: key, first_value: 0, radii: key, first_radius: 1 << 32, lasting };
        let mut pending = None;
        (1..=units.len())
            .map(|count| {
                let mut ended = Ended::default();
                plan.measure_step(&units[..count], &mut pending, &noises, &mut ended).unwrap();
                ended
            })
            .collect()
    }

    #[test]
    fn a_measurement_is_drawn_with_its_last_step_and_no_later_value_changes_it() {
        let feature = Feature { labels: vec![0, 1, 0, 1, 1, 1], noise: FeatureNoise::Laplace(scale(50)) };
        let blocks = [2, 1].map(|length| CubeScale::new(scale(50), length).unwrap()).to_vec();
        let key = Key::from_entropy().unwrap();
        for noise in [Noise::Laplace(scale(50)), Noise::Cube(blocks)] {
            let plan = Plan::new(6, 100, runs(&[(0, 2), (2, 3), (4, 6)]), noise, vec![feature.clone()]).unwrap();
            for lasting in [false, true] {
                let first = walk(&plan, &[1, 2, 3, 4, 5, 6], &key, lasting);
                let other = walk(&plan, &[1, 2, 3, 90, 90, 90], &key, lasting);
                assert_eq!(first[..3], other[..3]);
                assert_ne!(first[3..], other[3..]);
                let samples: Vec<_> = first.iter().map(|ended| ended.sample.map(|sample| sample.0)).collect();
                assert_eq!(samples, [None, Some(0), Some(1), None, None, Some(2)]);
                let cells: Vec<Vec<_>> =
                    first.iter().map(|ended| ended.cells.iter().map(|cell| cell.0).collect()).collect();
                assert_eq!(cells, [vec![], vec![], vec![0], vec![], vec![], vec![1]]);
            }
        }
    }

    /// The radius that is kept between steps, and the one that a key gives again, lead to the same values.
    #[test]
    fn a_block_keeps_its_radius() {
        let blocks = vec![CubeScale::new(scale(5000), 3).unwrap()];
        let plan = Plan::new(3, 100, runs(&[(0, 1), (1, 2), (2, 3)]), Noise::Cube(blocks), vec![]).unwrap();
        let key = Key::from_entropy().unwrap();
        assert_eq!(walk(&plan, &[1, 2, 3], &key, false), walk(&plan, &[1, 2, 3], &key, true));
        let noises = Noises { values: &key, first_value: 0, radii: &key, first_radius: 9, lasting: false };
        let mut lost = None;
        assert!(plan.measure_step(&[1, 2], &mut lost, &noises, &mut Ended::default()).is_err());
        let mut kept = None;
        plan.measure_step(&[1], &mut kept, &noises, &mut Ended::default()).unwrap();
        assert!(kept.is_some());
        plan.measure_step(&[1, 2], &mut kept, &noises, &mut Ended::default()).unwrap();
        plan.measure_step(&[1, 2, 3], &mut kept, &noises, &mut Ended::default()).unwrap();
        assert_eq!(kept, None, "the radius goes with its block");
    }

    #[test]
    fn what_is_no_step_of_the_period_is_refused() {
        let plan = Plan::new(2, 100, runs(&[(0, 1)]), Noise::Laplace(scale(5)), vec![]).unwrap();
        let key = Key::from_entropy().unwrap();
        let noises = Noises { values: &key, first_value: 0, radii: &key, first_radius: 9, lasting: false };
        for units in [vec![], vec![1, 2, 3]] {
            assert!(plan.measure_step(&units, &mut None, &noises, &mut Ended::default()).is_err());
        }
    }
}
