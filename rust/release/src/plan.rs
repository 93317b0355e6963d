//! A mechanism as it draws: the one home of its sensitivity, its reach and its scales.

use optstream_core::Error as CoreError;
use optstream_core::cube::CubeScale;
use optstream_core::gaussian::Deviation;
use optstream_core::grid::Grid;
use optstream_core::measure::{Feature, FeatureNoise, Noise, Plan as Measurement, Run, Sampling};
use optstream_core::ratio::Ratio;
use optstream_core::scale::Scale;
use optstream_core::svt::{L1Sampler, SparseVector, Unit};
use optstream_post::tree::Tree;

use crate::Error;

/// The most steps of a period.
const LONGEST: usize = 1 << 20;

/// Noise units per unit of sensitivity in the normalised queries of the sparse vector technique.
const RESOLUTION: u64 = 1024;

/// How the measured steps are chosen, with budgets in place of scales.
#[derive(Debug, Clone)]
pub enum Choice {
    /// The same runs in every period.
    Runs(Vec<Run>),
    /// Steps chosen from the data.
    Adaptive(Adaptive),
}

/// A choice of steps by the sparse vector technique.
#[derive(Debug, Clone, Copy)]
pub struct Adaptive {
    /// The number of steps.
    pub k: usize,
    /// The threshold of a score, in the units of the data.
    pub threshold: f64,
    /// Whether noise has the scales that the paper prints, in grid units and the same for segments of all lengths.
    pub printed: bool,
    /// What the noise on the threshold and on the scores may cost, if the scales are not the printed ones; printed scales
    /// take the first for both.
    pub epsilons: (Ratio, Ratio),
    /// Whether choosing takes the same time whatever the data.
    pub constant_time: bool,
}

/// The parameters of a mechanism for one stream or for one level of a hierarchy.
#[derive(Debug, Clone)]
pub struct Description {
    /// The steps of a period.
    pub w: usize,
    /// By how much one step can move, in the units of the data.
    pub alpha: f64,
    /// The public bounds of a value.
    pub bounds: (f64, f64),
    /// The step of the grid, a power of two.
    pub grid: f64,
    /// What is measured.
    pub sampling: Choice,
    /// What a change by alpha of a measured value costs; for Gaussian noise the ratio of alpha to the deviation.
    pub cost: Ratio,
    /// The lengths of blocks of measured values that share cube noise, if they do.
    pub blocks: Option<Vec<usize>>,
    /// Labels of steps and the cost of a change by alpha, for every feature.
    pub features: Vec<(Vec<usize>, Ratio)>,
    /// Parents and weights of steps and cells, if they are projected.
    pub tree: Option<(Vec<Option<usize>>, Vec<f64>)>,
    /// Of how many streams values may be sums.
    pub streams: u64,
    /// Over how many leaves, each rounded by itself, one entity may scatter a change of alpha.
    pub leaves: u64,
    /// Whether noise is Gaussian.
    pub gaussian: bool,
}

/// A mechanism, checked and built once, used for every period.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) grid: Grid,
    pub(crate) measurement: Measurement,
    pub(crate) projection: Option<Tree>,
    /// What a measured value is divided by to be a mean, run by run; none if single steps are measured.
    pub(crate) divisors: Option<Vec<f64>>,
    sensitivity: u64,
    largest: u64,
    reach: u64,
    scale: Scale,
    feature_scales: Vec<Scale>,
    selection_scales: Option<(Scale, Scale)>,
}

impl Plan {
    /// The plan of a description.
    ///
    /// # Guarantee
    /// With `a` the sensitivity in grid units, a change of every step of a period by at most `a` moves no measured value by
    /// more than `reach a` where blocks share their noise, and a change of one step moves one measured value by at most
    /// `times a` otherwise. Scales are at least what the costs ask for ([`Scale::new`]), so a price computed from
    /// [`Plan::sensitivity`], [`Plan::reach`] and the scales is that of the noise that is drawn.
    ///
    /// # Errors
    /// [`Error::Core`] or [`Error::Post`] if a parameter lies outside its bound.
    pub fn new(description: Description) -> Result<Self, Error> {
        let Description { w, alpha, bounds, grid, sampling, cost, blocks, features, tree, streams, leaves, gaussian } =
            description;
        if w > LONGEST {
            return Err(CoreError::parameter("w", w, format!("at most {LONGEST}")).into());
        }
        let grid = Grid::new(grid, bounds.0, bounds.1)?;
        // Whole units of the changes of leaves that together change by alpha: each may round up a part of a unit.
        let sensitivity = grid.sensitivity(alpha)?.saturating_add(leaves.saturating_sub(1));
        let mut selection_scales = None;
        let sampling = match sampling {
            Choice::Runs(runs) => Sampling::Fixed(runs),
            Choice::Adaptive(adaptive) => {
                let scales = adaptive.scales(w, sensitivity)?;
                selection_scales = Some(scales);
                Sampling::Adaptive(adaptive.sampler(w, sensitivity, &grid, scales)?)
            }
        };
        let divisors = divisors(&sampling);
        let reach = if blocks.is_some() { reach(&sampling) } else { 1 };
        let scale = Scale::new(sensitivity.saturating_mul(reach), &cost)?;
        let noise = noise(scale, blocks, gaussian)?;
        let feature_scales =
            features.iter().map(|(_, cost)| Scale::new(sensitivity, cost)).collect::<Result<Vec<_>, _>>()?;
        let features = features.into_iter().zip(&feature_scales);
        let features = features.map(|((labels, _), &scale)| Feature { labels, noise: feature_noise(scale, gaussian) });
        let largest = grid.largest().saturating_mul(streams);
        let measurement = Measurement::new(w, largest, sampling, noise, features.collect())?;
        let projection = tree.map(|(parents, weights)| Tree::new(&parents, &weights)).transpose()?;
        Ok(Self {
            grid,
            measurement,
            projection,
            divisors,
            sensitivity,
            largest,
            reach,
            scale,
            feature_scales,
            selection_scales,
        })
    }

    /// How far one step can move, in grid units.
    #[must_use]
    pub const fn sensitivity(&self) -> u64 {
        self.sensitivity
    }

    /// By how many units a change of every step by one unit moves a measured value whose block shares its noise; 1 where
    /// values have noise of their own.
    #[must_use]
    pub const fn reach(&self) -> u64 {
        self.reach
    }

    /// The scale of the noise on measured values, for Gaussian noise its standard deviation, in grid units.
    #[must_use]
    pub const fn scale(&self) -> Scale {
        self.scale
    }

    /// The scale of the noise on the sums of each feature.
    #[must_use]
    pub fn feature_scales(&self) -> &[Scale] {
        &self.feature_scales
    }

    /// The scales of the noise on the threshold and on the scores, in noise units, if the data chooses the steps.
    #[must_use]
    pub const fn selection_scales(&self) -> Option<(Scale, Scale)> {
        self.selection_scales
    }

    /// The grid.
    #[must_use]
    pub const fn grid(&self) -> &Grid {
        &self.grid
    }

    /// What is measured, with what noise.
    #[must_use]
    pub const fn measurement(&self) -> &Measurement {
        &self.measurement
    }

    /// Whether quantised values, or sums of them, are as small as the plan has been checked for.
    ///
    /// # Errors
    /// [`Error::Core`], which names no value.
    pub fn check(&self, units: &[i64]) -> Result<(), Error> {
        if units.iter().any(|unit| unit.unsigned_abs() > self.largest) {
            return Err(CoreError::parameter("size of units", "larger", format!("at most {}", self.largest)).into());
        }
        Ok(())
    }
}

impl Adaptive {
    /// The scales of the noise on the threshold and on the scores.
    ///
    /// # Guarantee
    /// Scores are normalised so that each moves by at most [`RESOLUTION`] noise units, and `D/e1` and `2 c D/e2` with
    /// `c = k - 2` cost `e1 + e2` ([`SparseVector::above_threshold`]). Printed scales are `2 D/e` and `4 k D/e` with
    /// `D = 2 (w - k) a`; what they cost is stated elsewhere.
    fn scales(&self, w: usize, sensitivity: u64) -> Result<(Scale, Scale), Error> {
        let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let (moved, k, positives) = if self.printed {
            let steps = wide(w.saturating_sub(self.k));
            (steps.saturating_mul(4).saturating_mul(sensitivity), wide(self.k), 0)
        } else {
            (RESOLUTION, 0, wide(self.k.saturating_sub(2)))
        };
        let factor = k.saturating_add(positives).saturating_mul(2);
        let second = if self.printed { &self.epsilons.0 } else { &self.epsilons.1 };
        Ok((Scale::new(moved, &self.epsilons.0)?, Scale::new(moved.saturating_mul(factor), second)?))
    }

    fn sampler(&self, w: usize, sensitivity: u64, grid: &Grid, scales: (Scale, Scale)) -> Result<L1Sampler, Error> {
        let unit = if self.printed { Unit::Common } else { Unit::Normalised { sensitivity, resolution: RESOLUTION } };
        let vector = SparseVector::new(scales.0, scales.1, self.k.saturating_sub(2));
        Ok(L1Sampler::new(w, self.k, grid.nearest(self.threshold)?, vector, unit)?.constant_time(self.constant_time))
    }
}

fn noise(scale: Scale, blocks: Option<Vec<usize>>, gaussian: bool) -> Result<Noise, CoreError> {
    match blocks {
        Some(lengths) => {
            let blocks = lengths.into_iter().map(|length| CubeScale::new(scale, length));
            Ok(Noise::Cube(blocks.collect::<Result<_, _>>()?))
        }
        None if gaussian => Ok(Noise::Gaussian(Deviation::new(scale))),
        None => Ok(Noise::Laplace(scale)),
    }
}

fn feature_noise(scale: Scale, gaussian: bool) -> FeatureNoise {
    if gaussian { FeatureNoise::Gaussian(Deviation::new(scale)) } else { FeatureNoise::Laplace(scale) }
}

/// By how many units a change of every step by one unit moves the measured value that it moves most.
fn reach(sampling: &Sampling) -> u64 {
    let Sampling::Fixed(runs) = sampling else { return 1 };
    runs.iter().map(moved).max().unwrap_or(1)
}

fn moved(run: &Run) -> u64 {
    u64::try_from(run.stop.saturating_sub(run.start)).unwrap_or(u64::MAX).saturating_mul(run.times)
}

/// What makes means of measured sums, unless all runs are single steps.
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "a measured sum is at most 2^61, and so are these"
)]
fn divisors(sampling: &Sampling) -> Option<Vec<f64>> {
    let Sampling::Fixed(runs) = sampling else { return None };
    (!runs.iter().all(|run| moved(run) == 1)).then(|| runs.iter().map(|run| moved(run) as f64).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn ratio(numerator: u128, denominator: u128) -> Ratio {
        Ratio::new("epsilon", numerator, denominator).unwrap()
    }

    pub(crate) fn runs(cuts: &[(usize, usize, u64)]) -> Choice {
        Choice::Runs(cuts.iter().map(|&(start, stop, times)| Run { start, stop, times }).collect())
    }

    pub(crate) fn description(w: usize, sampling: Choice) -> Description {
        Description {
            w,
            alpha: 10.0,
            bounds: (0.0, 1000.0),
            grid: 0.125,
            sampling,
            cost: ratio(1, 2),
            blocks: None,
            features: vec![],
            tree: None,
            streams: 1,
            leaves: 1,
            gaussian: false,
        }
    }

    fn fraction(scale: Scale) -> (u64, u64) {
        (scale.numerator(), scale.denominator())
    }

    #[test]
    fn a_step_moves_by_the_ceiling_of_alpha_and_has_the_scale_that_costs() {
        let plan = Plan::new(Description { alpha: 10.01, ..description(3, runs(&[(0, 1, 1), (2, 3, 1)])) }).unwrap();
        assert_eq!((plan.sensitivity(), plan.reach(), fraction(plan.scale())), (81, 1, (162, 1)));
        assert_eq!((plan.feature_scales().len(), plan.selection_scales()), (0, None));
        assert_eq!((plan.grid().step(), plan.measurement().length()), (0.125, 3));
    }

    /// Changes that add up to alpha move leaves by at most that many units together, and by as many where each is rounded
    /// up by as much as can be.
    #[test]
    fn leaves_that_are_rounded_apart_move_together_by_the_sensitivity() {
        for leaves in [1_u32, 2, 5] {
            let made = Description { leaves: leaves.into(), ..description(3, runs(&[(0, 1, 1), (2, 3, 1)])) };
            let plan = Plan::new(made).unwrap();
            assert_eq!(plan.sensitivity(), 80 + u64::from(leaves) - 1);
            // Just below the middle between two units, a little more than whole units.
            let (low, little) = (0.124_999 / 2.0, 1e-5);
            let before = plan.grid().quantise(&vec![low; leaves as usize]).unwrap();
            let rest = 10.0 - f64::from(leaves - 1) * little;
            let after: Vec<f64> = (0..leaves).map(|leaf| low + if leaf == 0 { rest } else { little }).collect();
            let after = plan.grid().quantise(&after).unwrap();
            let moved: u64 = before.iter().zip(&after).map(|(a, b)| a.abs_diff(*b)).sum();
            assert_eq!(moved, plan.sensitivity());
        }
    }

    #[test]
    fn a_feature_has_a_scale_of_its_own() {
        let features = vec![(vec![0, 0, 1], ratio(1, 4)), (vec![0, 0, 0], ratio(1, 8))];
        let plan = Plan::new(Description { features, ..description(3, runs(&[(0, 1, 1), (2, 3, 1)])) }).unwrap();
        assert_eq!(plan.feature_scales().iter().copied().map(fraction).collect::<Vec<_>>(), [(320, 1), (640, 1)]);
    }

    #[test]
    fn scales_of_the_sparse_vector_technique_are_those_of_its_guarantee() {
        let adaptive = |printed, k| {
            let epsilons = (ratio(1, 2), ratio(1, 4));
            let choice = Choice::Adaptive(Adaptive { k, threshold: 20.0, printed, epsilons, constant_time: true });
            let (threshold, scores) = Plan::new(description(9, choice)).unwrap().selection_scales().unwrap();
            (fraction(threshold), fraction(scores))
        };
        // D = 1024 units: D/e1 and 2 c D/e2.
        assert_eq!(adaptive(false, 5), ((2048, 1), (2 * 3 * 1024 * 4, 1)));
        // D = 2 (9 - 5) 80 units: 2 D/e and 4 k D/e.
        assert_eq!(adaptive(true, 5), ((4 * 640, 1), (8 * 5 * 640, 1)));
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        let fine = || description(3, runs(&[(0, 1, 1), (2, 3, 1)]));
        assert!(Plan::new(fine()).is_ok());
        assert!(
            Plan::new(Description { w: LONGEST + 1, ..fine() }).unwrap_err().to_string().contains("at most 1048576")
        );
        assert!(Plan::new(description(LONGEST, runs(&[(0, LONGEST, 1)]))).is_ok());
        assert!(Plan::new(Description { alpha: 0.0, ..fine() }).is_err());
        assert!(Plan::new(Description { grid: 0.3, ..fine() }).is_err());
        assert!(Plan::new(Description { blocks: Some(vec![3]), ..fine() }).is_err());
        assert!(Plan::new(Description { blocks: Some(vec![0]), ..fine() }).is_err());
        let tree = Some((vec![None], vec![0.0]));
        assert!(matches!(Plan::new(Description { tree, ..fine() }), Err(Error::Post(_))));
        let plan = Plan::new(Description { streams: 2, ..fine() }).unwrap();
        assert!(plan.check(&[16_000, -16_000]).is_ok());
        assert_eq!(
            plan.check(&[16_001]).unwrap_err().to_string(),
            "size of units is larger, but must be at most 16000"
        );
    }

    proptest! {
        /// A change of all steps by the sensitivity moves every measured value by at most `reach` of it, and one by as much.
        #[test]
        fn reach_is_what_a_change_of_the_whole_period_moves(
            lengths in proptest::collection::vec((1_usize..6, 1_u64..4), 1..6)
        ) {
            let mut start = 0;
            let cuts: Vec<_> = lengths.iter().map(|&(length, times)| {
                start += length;
                (start - length, start, times)
            }).collect();
            let made = Description { blocks: Some(vec![cuts.len()]), ..description(start, runs(&cuts)) };
            let plan = Plan::new(made).unwrap();
            let most = cuts.iter().map(|&(start, stop, times)| (stop - start) as u64 * times).max().unwrap();
            prop_assert_eq!(plan.reach(), most);
            // Cost 1/2 per sensitivity and reach.
            prop_assert_eq!(fraction(plan.scale()), (2 * 80 * most, 1));
        }
    }
}
