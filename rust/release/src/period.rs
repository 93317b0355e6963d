//! One period: sample, perturb, reconstruct, project.

use optstream_core::measure::Period;
use optstream_core::rng::Source;
use optstream_post::interpolate;
use optstream_post::tree::{Bounds, Workspace};

use crate::{Error, Plan};

/// Where one period after the other is worked on.
#[derive(Debug)]
pub struct Desk {
    measured: Period,
    answers: Vec<f64>,
    projected: Vec<f64>,
    workspace: Workspace,
}

/// A released period, on the desk it was made on.
#[derive(Debug)]
pub struct View<'a> {
    /// The value of every step.
    pub steps: &'a [f64],
    /// The sum of every cell, feature after feature.
    pub cells: &'a [f64],
    /// The measured steps, or the first steps of measured runs.
    pub knots: &'a [usize],
}

impl Plan {
    /// An empty desk.
    #[must_use]
    pub fn desk(&self) -> Desk {
        let width = self.measurement.length().saturating_add(self.measurement.cells());
        Desk {
            measured: Period::default(),
            answers: vec![0.0; width],
            projected: vec![0.0; width],
            workspace: Workspace::new(),
        }
    }

    /// Releases one quantised period with the bits of a source.
    ///
    /// # Guarantee
    /// What is measured, and at what price, is said at [`optstream_core::measure::Plan::measure`]. All that follows is a
    /// function of the noisy numbers and of public parameters.
    ///
    /// # Errors
    /// [`Error::Core`] if the period has another length, [`Error::Post`] if a projection fails its check.
    pub fn release<'a, S: Source>(&self, units: &[i64], source: &mut S, desk: &'a mut Desk) -> Result<View<'a>, Error> {
        self.measurement.measure(units, source, &mut desk.measured)?;
        self.reconstruct(desk)?;
        self.project(desk)?;
        let (steps, cells) = desk.projected.split_at_checked(self.measurement.length()).unwrap_or_default();
        Ok(View { steps, cells, knots: &desk.measured.knots })
    }

    /// The noisy values of one measured run, in the units of the data: means, or steps.
    #[must_use]
    pub fn means(&self, run: usize, units: Vec<i64>) -> Vec<f64> {
        let mut values = self.grid.values(units);
        if let Some(divisor) = self.divisors.as_ref().and_then(|divisors| divisors.get(run)) {
            for value in values.chunks_mut(1) {
                divide(value, &[*divisor]);
            }
        }
        values
    }

    /// Reconstructs and projects what was measured of a period step by step, as means and sums.
    ///
    /// # Errors
    /// [`Error::Core`] if steps are chosen from the data, [`Error::Post`] if a projection fails its check.
    pub fn finish<'a>(&self, samples: &[f64], sums: &[f64], desk: &'a mut Desk) -> Result<View<'a>, Error> {
        desk.measured.knots = self.measurement.knots()?;
        self.fill_in(samples, sums, desk)?;
        self.project(desk)?;
        let (steps, cells) = desk.projected.split_at_checked(self.measurement.length()).unwrap_or_default();
        Ok(View { steps, cells, knots: &desk.measured.knots })
    }

    /// Turns noisy sums into means, and fills in the steps between measured ones.
    fn reconstruct(&self, desk: &mut Desk) -> Result<(), Error> {
        let mut samples = self.grid.values(std::mem::take(&mut desk.measured.samples));
        let sums = self.grid.values(std::mem::take(&mut desk.measured.cells));
        if let Some(divisors) = &self.divisors {
            divide(&mut samples, divisors);
        }
        self.fill_in(&samples, &sums, desk)
    }

    /// Fills in the steps between measured ones: straight lines through steps, or means of runs.
    fn fill_in(&self, samples: &[f64], sums: &[f64], desk: &mut Desk) -> Result<(), Error> {
        let width = self.measurement.length();
        let (steps, cells) = desk.answers.split_at_mut_checked(width).unwrap_or_default();
        if self.divisors.is_some() {
            interpolate::constant(&desk.measured.knots, samples, steps)?;
        } else {
            interpolate::linear(&desk.measured.knots, samples, steps)?;
        }
        for (cell, sum) in cells.iter_mut().zip(sums) {
            *cell = *sum;
        }
        Ok(())
    }

    /// Makes steps and cells fit each other, if the plan has a tree.
    fn project(&self, desk: &mut Desk) -> Result<(), Error> {
        let Some(tree) = &self.projection else {
            desk.projected.copy_from_slice(&desk.answers);
            return Ok(());
        };
        let (lower, upper) = self.grid.bounds();
        tree.project(&desk.answers, Bounds::new(lower, upper), &mut desk.workspace, &mut desk.projected)?;
        Ok(())
    }
}

#[expect(clippy::float_arithmetic, reason = "these sums have their noise already")]
fn divide(sums: &mut [f64], divisors: &[f64]) {
    for (sum, divisor) in sums.iter_mut().zip(divisors) {
        *sum /= divisor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Description;
    use crate::plan::tests::{description, ratio, runs};
    use optstream_core::rng::{Key, Keystream, Secret};
    use proptest::prelude::*;

    fn stream(index: u64) -> Keystream {
        Key::derive(&Secret::new([7; 32]), &[b"period"], &[]).stream(index)
    }

    /// So much budget that all noise is zero: what is made of the measurements shows.
    fn silent(w: usize, cuts: &[(usize, usize, u64)]) -> Description {
        let cost = ratio(1 << 59, 1);
        Description { cost, ..description(w, runs(cuts)) }
    }

    fn released(plan: &Plan, units: &[i64]) -> (Vec<f64>, Vec<f64>, Vec<usize>) {
        let mut desk = plan.desk();
        let view = plan.release(units, &mut stream(0), &mut desk).unwrap();
        (view.steps.to_vec(), view.cells.to_vec(), view.knots.to_vec())
    }

    #[test]
    fn steps_between_measured_ones_lie_on_straight_lines() {
        let plan = Plan::new(silent(5, &[(0, 1, 1), (4, 5, 1)])).unwrap();
        assert_eq!(released(&plan, &[8, 99, 99, 99, 40]), (vec![1.0, 2.0, 3.0, 4.0, 5.0], vec![], vec![0, 4]));
    }

    #[test]
    fn runs_become_means_whatever_they_are_multiplied_by() {
        let plan = Plan::new(silent(5, &[(0, 2, 3), (2, 5, 2)])).unwrap();
        assert_eq!(released(&plan, &[8, 24, 8, 16, 24]), (vec![2.0, 2.0, 2.0, 2.0, 2.0], vec![], vec![0, 2]));
    }

    #[test]
    fn a_tree_makes_steps_add_up_to_their_cells() {
        let features = vec![(vec![0, 0], ratio(1 << 59, 1))];
        let tree = Some((vec![Some(2), Some(2), None], vec![1.0; 3]));
        let plan = |tree| {
            let made = silent(2, &[(0, 1, 1), (1, 2, 1)]);
            Plan::new(Description { features: features.clone(), tree, ..made }).unwrap()
        };
        // The sum is measured without noise too, so that both agree; with noise only one of them adds up.
        assert_eq!(released(&plan(tree.clone()), &[8, 16]), (vec![1.0, 2.0], vec![3.0], vec![0, 1]));
        let noisy = |tree| {
            let made = Description { cost: ratio(1, 10), tree, ..silent(2, &[(0, 1, 1), (1, 2, 1)]) };
            let features = vec![(vec![0, 0], ratio(1, 10))];
            let plan = Plan::new(Description { bounds: (-1e6, 1e6), features, ..made }).unwrap();
            let (steps, cells, _) = released(&plan, &[8, 16]);
            (steps.iter().sum::<f64>() - cells[0]).abs()
        };
        assert!(noisy(tree) < 1e-9);
        assert!(noisy(None) > 1e-3);
    }

    #[test]
    fn another_length_is_refused() {
        let plan = Plan::new(silent(2, &[(0, 1, 1), (1, 2, 1)])).unwrap();
        assert!(plan.release(&[1, 2, 3], &mut stream(0), &mut plan.desk()).is_err());
    }

    proptest! {
        /// A desk has no memory: what was released on it before changes nothing.
        #[test]
        fn a_desk_remembers_nothing(
            first in proptest::collection::vec(0_i64..8000, 6), second in proptest::collection::vec(0_i64..8000, 6)
        ) {
            let features = vec![(vec![0, 0, 0, 1, 1, 1], ratio(1, 3))];
            let plan = Plan::new(Description { features, ..description(6, runs(&[(0, 1, 1), (2, 3, 1), (5, 6, 1)])) });
            let plan = plan.unwrap();
            let mut desk = plan.desk();
            plan.release(&first, &mut stream(1), &mut desk).unwrap();
            let view = plan.release(&second, &mut stream(0), &mut desk).unwrap();
            let (steps, cells, knots) = released(&plan, &second);
            prop_assert_eq!((view.steps, view.cells, view.knots), (&*steps, &*cells, &*knots));
        }

        /// Noise is added to what was measured, so a shift of all values shifts the release by as much.
        #[test]
        fn noise_does_not_depend_on_the_data(units in proptest::collection::vec(0_i64..4000, 6), shift in 0_i32..4000) {
            let plan = Plan::new(description(6, runs(&[(0, 2, 1), (2, 4, 1), (4, 6, 1)]))).unwrap();
            let moved: Vec<i64> = units.iter().map(|unit| unit + i64::from(shift)).collect();
            let (before, after) = (released(&plan, &units).0, released(&plan, &moved).0);
            for (before, after) in before.iter().zip(after) {
                prop_assert!((after - before - f64::from(shift) / 8.0).abs() < 1e-9);
            }
        }
    }
}
