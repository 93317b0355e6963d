//! Noise for whole arrays: fixed chunks, each with its own keystream, on as many threads as are given.
//!
//! The keystream of a chunk depends on its position alone, so the result does not depend on the number of threads.
//! Threads live for one call: a pool would not survive a fork.

use std::thread;

use crate::Error;
use crate::cube::{self, CubeScale};
use crate::gaussian::{self, Deviation};
use crate::laplace;
use crate::rng::{Key, Keystream};
use crate::scale::Scale;

/// Values per keystream.
const CHUNK: usize = 4096;
/// Arrays below this length are not worth a thread.
pub const WORTH_THREADS: usize = 1 << 16;

/// Adds independent Laplace noise to every value, as [`laplace::perturb`].
pub fn laplace(values: &mut [i64], scale: &Scale, key: &Key, threads: usize) {
    for_each_chunk(values, CHUNK, threads, key, |chunk, stream| laplace::perturb(chunk, scale, stream));
}

/// Adds independent Gaussian noise to every value, as [`gaussian::perturb`].
pub fn gaussian(values: &mut [i64], deviation: &Deviation, key: &Key, threads: usize) {
    for_each_chunk(values, CHUNK, threads, key, |chunk, stream| gaussian::perturb(chunk, deviation, stream));
}

/// Adds cube noise to every block of `scale.length()` consecutive values, with the guarantee that `cube::perturb` states.
///
/// # Errors
/// [`Error::Parameter`] if the values are not a whole number of blocks.
pub fn cube(values: &mut [i64], scale: &CubeScale, key: &Key, threads: usize) -> Result<(), Error> {
    let length = scale.length();
    if !values.len().is_multiple_of(length) {
        return Err(Error::parameter("number of values", values.len(), format!("a multiple of {length}")));
    }
    let chunk = CHUNK.next_multiple_of(length);
    for_each_chunk(values, chunk, threads, key, |chunk, stream| {
        for block in chunk.chunks_mut(length) {
            cube::perturb(block, scale, stream);
        }
    });
    Ok(())
}

fn for_each_chunk<F>(values: &mut [i64], size: usize, threads: usize, key: &Key, perturb: F)
where
    F: Fn(&mut [i64], &mut Keystream) + Sync,
{
    let work = |first: u64, part: &mut [i64]| {
        for (index, chunk) in (first..).zip(part.chunks_mut(size)) {
            perturb(chunk, &mut key.stream(index));
        }
    };
    let chunks = values.len().div_ceil(size);
    let threads = if values.len() < WORTH_THREADS { 1 } else { threads.clamp(1, chunks) };
    if threads == 1 {
        return work(0, values);
    }
    let share = chunks.div_ceil(threads);
    let parts = values.chunks_mut(share.saturating_mul(size));
    // A panic in a thread goes on in the caller when the scope ends.
    thread::scope(|scope| {
        for (first, part) in (0..).step_by(share).zip(parts) {
            scope.spawn(move || work(first, part));
        }
    });
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
                laplace(&mut values, &scale(), &key(), threads);
                values
            };
            let alone = noise(1);
            assert!(alone.iter().filter(|&&z| z != 0).count() > length * 9 / 10);
            for threads in [0, 2, 3, 7, 1000] {
                assert_eq!(alone, noise(threads), "{threads} threads");
            }
        }
        let noise = |threads| {
            let mut values = vec![0; 3 * WORTH_THREADS + 777];
            gaussian(&mut values, &Deviation::new(scale()), &key(), threads);
            values
        };
        assert!(noise(1).iter().filter(|&&z| z != 0).count() > WORTH_THREADS);
        assert_eq!(noise(1), noise(7));
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
        laplace(&mut values, &scale(), &key(), 1);
        assert_ne!(values[..CHUNK], values[CHUNK..]);
    }
}
