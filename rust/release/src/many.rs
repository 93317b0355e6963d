//! Many periods: each with a keystream of its own, on as many threads as are worth it.
//!
//! The keystream of a period depends on its position alone, so the result does not depend on the number of threads.

use std::num::NonZero;
use std::thread;

use optstream_core::Error as CoreError;
use optstream_core::batch::WORTH_THREADS;
use optstream_core::grid::check;
use optstream_core::rng::Key;

use crate::{Error, Plan};

/// Periods that are quantised at a time, so that memory beyond input and output does not grow with their number.
const AT_ONCE: usize = 2048;
/// A thread has at least so many periods.
const WORTH_A_THREAD: usize = 64;

/// Threads for a batch: what the machine gives this process, or fewer if `OPTSTREAM_MAX_THREADS` says so.
#[must_use]
pub fn threads(length: usize) -> usize {
    if length < WORTH_THREADS {
        return 1;
    }
    let available = thread::available_parallelism().map_or(1, NonZero::get);
    let limit = std::env::var("OPTSTREAM_MAX_THREADS").ok().and_then(|text| text.parse().ok());
    limit.unwrap_or(available).clamp(1, available)
}

/// Released periods, one after the other.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Released {
    /// The values of all steps.
    pub steps: Vec<f64>,
    /// The sums of all cells.
    pub cells: Vec<f64>,
    /// The measured steps of every period.
    pub knots: Vec<usize>,
}

impl Released {
    fn append(&mut self, mut other: Self) {
        self.steps.append(&mut other.steps);
        self.cells.append(&mut other.cells);
        self.knots.append(&mut other.knots);
    }
}

impl Plan {
    /// The number of periods in an array with one period per row.
    ///
    /// # Errors
    /// [`Error::Core`] if there is none or a row is not a period.
    pub fn periods(&self, shape: &[usize]) -> Result<usize, Error> {
        let w = self.measurement.length();
        match *shape {
            [0, _] => Err(CoreError::Empty.into()),
            [rows, width] if width == w => Ok(rows),
            _ => Err(CoreError::parameter("shape", format!("{shape:?}"), format!("one with w = {w} columns")).into()),
        }
    }

    /// Quantises and releases periods that stand one after the other, with fresh noise. Everything is looked at before
    /// anything is drawn.
    ///
    /// # Errors
    /// [`Error::Core`] if a value is not finite or there is no entropy, [`Error::Post`] if a projection fails its check.
    pub fn release_values(&self, values: &[f64]) -> Result<Released, Error> {
        check(values)?;
        let key = Key::from_entropy()?;
        let mut released = Released::default();
        let chunks = values.chunks(AT_ONCE.saturating_mul(self.measurement.length()));
        for (first, periods) in (0_u64..).step_by(AT_ONCE).zip(chunks) {
            let units = self.grid.quantise(periods)?;
            released.append(self.release_units(&units, first, &key, threads(units.len()))?);
        }
        Ok(released)
    }

    /// Releases quantised periods that stand one after the other, of which the first has the given number, on at most so
    /// many threads.
    ///
    /// # Errors
    /// As [`Plan::release`]; also [`Error::Core`] if a value is too large ([`Plan::check`]), before anything is drawn.
    pub fn release_units(&self, units: &[i64], first: u64, key: &Key, threads: usize) -> Result<Released, Error> {
        self.check(units)?;
        let w = self.measurement.length();
        let periods = units.len().div_ceil(w);
        let part = |from: usize, part: &[i64]| {
            let from = u64::try_from(from).unwrap_or(u64::MAX);
            self.release_part(part, first.saturating_add(from), key)
        };
        spread(periods, w, units, threads, &part)
    }

    /// Releases quantised blocks of so many periods, each with a key of its own, on at most so many threads.
    ///
    /// What a block becomes depends on its key and its periods alone, not on what stands beside it.
    ///
    /// # Errors
    /// As [`Plan::release_units`], of which nothing is drawn if a value is too large.
    pub fn release_blocks(
        &self,
        units: &[i64],
        periods: usize,
        threads: usize,
        key: &(impl Fn(usize, &[i64]) -> Key + Sync),
    ) -> Result<Released, Error> {
        self.check(units)?;
        let size = self.measurement.length().saturating_mul(periods);
        let part = |from: usize, part: &[i64]| {
            let mut released = Released::default();
            for (index, block) in (from..).zip(part.chunks(size)) {
                released.append(self.release_part(block, 0, &key(index, block))?);
            }
            Ok(released)
        };
        spread(units.len().div_ceil(size), size, units, threads, &part)
    }

    fn release_part(&self, units: &[i64], first: u64, key: &Key) -> Result<Released, Error> {
        let (w, cells) = (self.measurement.length(), self.measurement.cells());
        let periods = units.len().div_ceil(w);
        let mut released = Released {
            steps: Vec::with_capacity(units.len()),
            cells: Vec::with_capacity(periods.saturating_mul(cells)),
            knots: Vec::new(),
        };
        let mut desk = self.desk();
        for (index, units) in (first..).zip(units.chunks(w)) {
            let view = self.release(units, &mut key.stream(index), &mut desk)?;
            released.steps.extend_from_slice(view.steps);
            released.cells.extend_from_slice(view.cells);
            released.knots.extend_from_slice(view.knots);
        }
        Ok(released)
    }
}

/// Gives every thread a share of blocks of the same size, and puts what they return one after the other.
fn spread(
    blocks: usize,
    size: usize,
    units: &[i64],
    threads: usize,
    work: &(impl Fn(usize, &[i64]) -> Result<Released, Error> + Sync),
) -> Result<Released, Error> {
    let threads = threads.clamp(1, blocks.div_ceil(WORTH_A_THREAD).max(1));
    if threads == 1 {
        return work(0, units);
    }
    let share = blocks.div_ceil(threads);
    thread::scope(|scope| {
        let parts = (0..).step_by(share).zip(units.chunks(share.saturating_mul(size)));
        let workers: Vec<_> = parts.map(|(first, part)| scope.spawn(move || work(first, part))).collect();
        let mut released = Released::default();
        for worker in workers {
            released.append(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(released)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::{description, ratio, runs};
    use crate::{Adaptive, Choice, Description};
    use optstream_core::rng::Secret;

    fn key() -> Key {
        Key::derive(&Secret::new([5; 32]), &[b"many"], &[])
    }

    fn plan() -> Plan {
        let features = vec![(vec![0, 0, 1, 1], ratio(1, 3))];
        Plan::new(Description { features, ..description(4, runs(&[(0, 1, 1), (3, 4, 1)])) }).unwrap()
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let units: Vec<i64> = (0..4 * 1000).map(|step| step % 7777).collect();
        let epsilons = (ratio(1, 2), ratio(1, 2));
        let adaptive = Adaptive { k: 3, threshold: 3.0, printed: false, epsilons, constant_time: true };
        for plan in [plan(), Plan::new(description(4, Choice::Adaptive(adaptive))).unwrap()] {
            let alone = plan.release_units(&units, 9, &key(), 1).unwrap();
            assert_eq!(alone.steps.len(), 4000);
            for threads in [0, 2, 3, 8, 5000] {
                assert_eq!(plan.release_units(&units, 9, &key(), threads).unwrap(), alone, "{threads} threads");
            }
        }
    }

    #[test]
    fn a_period_has_the_noise_of_its_number() {
        let (plan, units) = (plan(), [100; 8]);
        let both = plan.release_units(&units, 3, &key(), 1).unwrap();
        let second = plan.release_units(&units[4..], 4, &key(), 1).unwrap();
        assert_eq!(both.steps[4..], second.steps);
        assert_eq!(both.cells[2..], second.cells);
        assert_eq!(both.knots, [0, 3, 0, 3]);
        assert_ne!(both.steps[..4], both.steps[4..]);
    }

    #[test]
    fn a_block_has_the_noise_of_its_key_alone() {
        let (plan, units) = (plan(), (0..8 * 500).map(|step| step % 7777).collect::<Vec<i64>>());
        let secret = Secret::new([6; 32]);
        let key = |index: usize, block: &[i64]| Key::derive(&secret, &[&index.to_le_bytes()], block);
        let all = plan.release_blocks(&units, 2, 1, &key).unwrap();
        assert_eq!(all.steps.len(), 4000);
        for threads in [2, 3, 8] {
            assert_eq!(plan.release_blocks(&units, 2, threads, &key).unwrap(), all, "{threads} threads");
        }
        let alone = plan.release_units(&units[8 * 7..8 * 8], 0, &key(7, &units[8 * 7..8 * 8]), 1).unwrap();
        assert_eq!(all.steps[8 * 7..8 * 8], alone.steps);
        assert_eq!(all.cells[4 * 7..4 * 8], alone.cells);
    }

    #[test]
    fn values_are_quantised_chunk_by_chunk_and_have_fresh_noise() {
        let plan = plan();
        let values = vec![500.0; 4 * (AT_ONCE + 2)];
        let released = plan.release_values(&values).unwrap();
        assert_eq!((released.steps.len(), released.cells.len()), (values.len(), 2 * (AT_ONCE + 2)));
        assert_ne!(released.steps[..8], released.steps[4 * AT_ONCE..]);
        assert_ne!(released, plan.release_values(&values).unwrap());
        // Noise of scale 20 is rarely beyond 400, and never for 4,100 periods together.
        assert!(released.steps.iter().all(|step| (step - 500.0).abs() < 1000.0));
        let loud = plan.release_values(&[f64::NAN, 0.0, 0.0, 0.0]).unwrap_err().to_string();
        assert_eq!(loud, "values[0] is NaN, but must be finite");
    }

    #[test]
    fn rows_are_periods() {
        let plan = plan();
        assert_eq!(plan.periods(&[3, 4]), Ok(3));
        assert_eq!(plan.periods(&[0, 4]), Err(CoreError::Empty.into()));
        assert!(plan.periods(&[3, 5]).is_err() && plan.periods(&[12]).is_err());
        assert!(plan.release_units(&[8001, 0, 0, 0], 0, &key(), 1).is_err());
        assert!(plan.release_units(&[8000, 0, 0], 0, &key(), 1).is_err());
    }

    #[test]
    fn short_batches_have_one_thread() {
        assert_eq!(threads(WORTH_THREADS - 1), 1);
        let available = thread::available_parallelism().map_or(1, NonZero::get);
        if std::env::var("OPTSTREAM_MAX_THREADS").is_err() {
            assert_eq!(threads(WORTH_THREADS), available);
        }
    }
}
