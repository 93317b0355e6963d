//! Noise for whole arrays: fixed chunks, each with its own keystream, on as many threads as are given.
//!
//! The keystream of a chunk depends on its position alone, so the result does not depend on the number of threads.
//! Threads live for one call: a pool would not survive a fork.

use std::thread;

use crate::Error;
use crate::cube::{self, CubeScale};
use crate::laplace;
use crate::rng::{Key, Keystream};
use crate::scale::Scale;

/// Values per keystream.
const CHUNK: usize = 4096;
/// Arrays below this length are not worth a thread.
pub const WORTH_THREADS: usize = 1 << 16;

/// Adds independent Laplace noise to every value.
///
/// # Errors
/// As [`laplace::perturb`]; the values must then be dropped.
pub fn laplace(values: &mut [i64], scale: &Scale, key: &Key, threads: usize) -> Result<(), Error> {
    for_each_chunk(values, CHUNK, threads, key, |chunk, stream| laplace::perturb(chunk, scale, stream))
}

/// Adds cube noise to every block of `scale.length()` consecutive values.
///
/// # Errors
/// As [`cube::perturb`]; the values must then be dropped.
pub fn cube(values: &mut [i64], scale: &CubeScale, key: &Key, threads: usize) -> Result<(), Error> {
    let length = scale.length();
    let chunk = CHUNK.next_multiple_of(length);
    for_each_chunk(values, chunk, threads, key, |chunk, stream| {
        chunk.chunks_mut(length).try_for_each(|block| cube::perturb(block, scale, stream))
    })
}

fn for_each_chunk<F>(values: &mut [i64], size: usize, threads: usize, key: &Key, perturb: F) -> Result<(), Error>
where
    F: Fn(&mut [i64], &mut Keystream) -> Result<(), Error> + Sync,
{
    let work = |first: usize, part: &mut [i64]| {
        for (index, chunk) in (first..).zip(part.chunks_mut(size)) {
            let stream = u64::try_from(index).map_err(|_| Error::SumTooLarge)?;
            perturb(chunk, &mut key.stream(stream))?;
        }
        Ok(())
    };
    let chunks = values.len().div_ceil(size);
    let threads = if values.len() < WORTH_THREADS { 1 } else { threads.clamp(1, chunks) };
    if threads == 1 {
        return work(0, values);
    }
    let share = chunks.div_ceil(threads);
    thread::scope(|scope| {
        let parts = values.chunks_mut(share.saturating_mul(size)).enumerate();
        let workers: Vec<_> =
            parts.map(|(turn, part)| scope.spawn(move || work(turn.saturating_mul(share), part))).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratio::Ratio;
    use crate::rng::Secret;

    fn key() -> Key {
        Key::derive(&Secret::new([3; 32]), &[b"batch"], &[])
    }

    fn scale() -> Scale {
        Scale::new(1000, &Ratio::new("epsilon", 1, 1).unwrap()).unwrap()
    }

    #[test]
    fn results_do_not_depend_on_the_number_of_threads() {
        let lengths = [WORTH_THREADS, WORTH_THREADS + 1, 3 * WORTH_THREADS + 777];
        for length in lengths {
            let noise = |threads| {
                let mut values = vec![0; length];
                laplace(&mut values, &scale(), &key(), threads).unwrap();
                values
            };
            let alone = noise(1);
            assert!(alone.iter().filter(|&&z| z != 0).count() > length * 9 / 10);
            for threads in [0, 2, 3, 7, 1000] {
                assert_eq!(alone, noise(threads), "{threads} threads");
            }
        }
        for length in [5, 48, 5000] {
            let noise = |threads| {
                let mut values = vec![0; length * (WORTH_THREADS / length + 3)];
                cube(&mut values, &CubeScale::new(scale(), length).unwrap(), &key(), threads).unwrap();
                values
            };
            assert_eq!(noise(1), noise(2), "blocks of {length}");
        }
    }

    #[test]
    fn chunks_have_noise_of_their_own() {
        let mut values = vec![0; 2 * CHUNK];
        laplace(&mut values, &scale(), &key(), 1).unwrap();
        assert_ne!(values[..CHUNK], values[CHUNK..]);
    }
}
