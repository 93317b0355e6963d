//! A period step by step: what ends with a step is drawn as soon as it has come, and the period is finished at its end.

use optstream_core::Error as Core;
use optstream_core::measure::stepwise::{Ended as Drawn, Noises};
use optstream_core::rng::Key;

use crate::{Error, Plan, Released};

/// A radius that is kept is below this: no scale gives a larger one.
const LARGEST_RADIUS: u128 = 1 << 120;

/// The keys of the noise of one step of a period.
pub struct Keys {
    /// Of the values: a new one for every step, or one that depends on all values up to it.
    pub values: Key,
    /// Of the radii of blocks.
    pub radii: Key,
    /// Whether the key of radii is the period's, so that nothing is pending.
    pub lasting: bool,
}

/// What ended with a step, in the units of the data.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The number of the measured run, if one ended.
    pub run: Option<usize>,
    /// Its noisy value for every stream.
    pub samples: Vec<f64>,
    /// The numbers of the cells of features.
    pub cells: Vec<usize>,
    /// Their noisy sums, stream after stream.
    pub sums: Vec<f64>,
}

impl Plan {
    /// Draws what ends with the last of the steps that have come of a period, given a row of so many `steps` for each stream.
    ///
    /// `pending` is the radius of the block of cube noise that has begun and not ended, for each stream, and is brought up
    /// to date.
    ///
    /// # Guarantee
    /// That of [`optstream_core::measure::Plan::measure_step`] for every stream: no two of them share a keystream.
    ///
    /// # Errors
    /// [`Error::Core`] if rows are empty or as many as radii are not given, a radius is out of its bound, or steps are
    /// chosen from the data.
    pub fn measure_step(
        &self,
        units: &[i64],
        steps: usize,
        pending: &mut [Option<u128>],
        keys: &Keys,
    ) -> Result<Ended, Error> {
        let (measurement, rows) = (self.measurement(), pending.len());
        if steps == 0 || steps.saturating_mul(rows) != units.len() {
            let wanted = format!("one for each of {} streams", units.len().checked_div(steps).unwrap_or(0));
            return Err(Core::parameter("pending", rows, wanted).into());
        }
        if pending.iter().flatten().any(|radius| *radius >= LARGEST_RADIUS) {
            return Err(Core::parameter("radius", "larger", "below 2^120").into());
        }
        let width = measurement.length().saturating_add(measurement.cells());
        let mut found = Vec::with_capacity(rows);
        for (row, (units, pending)) in units.chunks(steps).zip(pending).enumerate() {
            let noises = Noises {
                values: &keys.values,
                first_value: place(row, width),
                radii: &keys.radii,
                first_radius: place(row, measurement.blocks()),
                lasting: keys.lasting,
            };
            let mut drawn = Drawn::default();
            measurement.measure_step(units, pending, &noises, &mut drawn)?;
            found.push(drawn);
        }
        let first = found.first().cloned().unwrap_or_default();
        let run = first.sample.map(|sample| sample.0);
        let samples = found.iter().filter_map(|drawn| drawn.sample.map(|sample| sample.1)).collect();
        let sums = found.iter().flat_map(|drawn| drawn.cells.iter().map(|cell| cell.1)).collect();
        Ok(Ended {
            run,
            samples: self.means(run.unwrap_or_default(), samples),
            cells: first.cells.iter().map(|cell| cell.0).collect(),
            sums: self.grid().values(sums),
        })
    }

    /// The steps and cells of a period from all that was measured of it, with one row of samples and one of cells for each
    /// of some streams.
    ///
    /// # Errors
    /// [`Error::Core`] if there are not as many of each or steps are chosen from the data, [`Error::Post`] if a projection
    /// fails its check.
    pub fn finish_steps(&self, rows: usize, samples: &[f64], cells: &[f64]) -> Result<Released, Error> {
        let knots = self.measurement().knots()?;
        let (k, width) = (knots.len(), self.measurement().cells());
        if samples.len() != rows.saturating_mul(k) || cells.len() != rows.saturating_mul(width) {
            let given = format!("{} and {} values", samples.len(), cells.len());
            return Err(Core::parameter("samples", given, format!("{rows} rows of {k} and {width}")).into());
        }
        let (mut desk, mut steps, mut sums) = (self.desk(), Vec::new(), Vec::new());
        // There may be no cells, but there are samples.
        let mut cells = cells.chunks(width.max(1));
        for samples in samples.chunks(k.max(1)) {
            let found = self.finish(samples, cells.next().unwrap_or_default(), &mut desk)?;
            steps.extend_from_slice(found.steps);
            sums.extend_from_slice(found.cells);
        }
        Ok(Released { steps, cells: sums, knots })
    }
}

/// The first keystream of a row.
fn place(row: usize, width: usize) -> u64 {
    u64::try_from(row.saturating_mul(width)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Description;
    use crate::plan::tests::{description, ratio, runs};
    use optstream_core::rng::Secret;

    fn keys(step: u8) -> Keys {
        let key = |purpose: &[u8]| Key::derive(&Secret::new([3; 32]), &[purpose], &[]);
        Keys { values: key(&[step]), radii: key(b"radius"), lasting: false }
    }

    fn plan(blocks: Option<Vec<usize>>, budget: u128) -> Plan {
        let features = vec![(vec![0, 0, 1, 1], ratio(budget, 1))];
        let made = description(4, runs(&[(0, 2, 1), (2, 4, 1)]));
        Plan::new(Description { cost: ratio(budget, 1), blocks, features, ..made }).unwrap()
    }

    /// What is measured of two streams, step by step, and what becomes of it.
    fn followed(plan: &Plan, units: [[i64; 4]; 2]) -> Released {
        let mut pending = vec![None; 2];
        let (mut samples, mut cells) = (vec![vec![]; 2], vec![vec![]; 2]);
        for step in 0..4 {
            let so_far: Vec<i64> = units.iter().flat_map(|row| row[..=step].to_vec()).collect();
            let key = keys(u8::try_from(step).unwrap());
            let ended = plan.measure_step(&so_far, step + 1, &mut pending, &key).unwrap();
            for (row, samples) in samples.iter_mut().enumerate().filter(|_| ended.run.is_some()) {
                samples.push(ended.samples[row]);
            }
            for (row, cells) in cells.iter_mut().enumerate() {
                cells.extend_from_slice(&ended.sums[row * ended.cells.len()..(row + 1) * ended.cells.len()]);
            }
        }
        plan.finish_steps(2, &samples.concat(), &cells.concat()).unwrap()
    }

    #[test]
    fn steps_become_what_a_period_becomes() {
        let units = [[8, 24, 16, 32], [0, 16, 80, 80]];
        let released = followed(&plan(None, 1 << 59), units);
        assert_eq!(released.steps, [2.0, 2.0, 3.0, 3.0, 1.0, 1.0, 10.0, 10.0]);
        assert_eq!(released.cells, [4.0, 6.0, 2.0, 20.0]);
        assert_eq!(released.knots, [0, 2]);
    }

    #[test]
    fn streams_share_no_noise() {
        for blocks in [None, Some(vec![2])] {
            let released = followed(&plan(blocks, 1), [[800; 4]; 2]);
            assert_ne!(released.steps[..4], released.steps[4..]);
            assert_ne!(released.cells[..2], released.cells[2..]);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let plan = plan(Some(vec![2]), 1);
        let refused = |units: &[i64], steps, pending: &mut [Option<u128>]| {
            plan.measure_step(units, steps, pending, &keys(0)).unwrap_err().to_string()
        };
        assert!(refused(&[1, 1], 1, &mut [None]).contains("must be one for each of 2 streams"));
        assert!(refused(&[], 0, &mut [None]).contains("pending"));
        assert!(refused(&[1], 1, &mut [Some(LARGEST_RADIUS)]).contains("must be below 2^120"));
        assert!(refused(&[1; 5], 5, &mut [None]).contains("must be from 1 to 4"));
        assert!(plan.finish_steps(1, &[1.0], &[1.0, 1.0]).is_err());
    }
}
