//! Random bits: one `ChaCha20` key per release call, from the operating system or from a curator's secret.
//!
//! No generator outlives the call that made it, so a fork, a thread, a pickle or a restored snapshot has no state to
//! replay. Keys and buffered bits are wiped when they are dropped.

#![expect(clippy::inline_always, reason = "see geometric")]

use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use zeroize::{Zeroize, Zeroizing};

use crate::Error;

/// A source of independent uniform bits.
pub trait Source {
    /// 64 uniform bits.
    fn word(&mut self) -> u64;

    /// 32 uniform bits.
    fn lane(&mut self) -> u32;

    /// A uniform integer below `bound`, which must be positive (Lemire 2019, "Fast random integer generation").
    ///
    /// # Guarantee
    /// Exactly uniform: of the 2^64 words, `floor(2^64 / bound)` lead to each result and the others are drawn again.
    #[inline(always)]
    fn below(&mut self, bound: u64) -> u64 {
        loop {
            let (high, low) = multiply(self.word(), bound);
            // The second comparison costs a division and is needed only after the first, which is rare.
            if low >= bound || low >= bound.wrapping_neg().checked_rem(bound).unwrap_or(0) {
                return high;
            }
        }
    }

    /// A lane and a uniform integer below `bound`, from one word if the bound is small.
    ///
    /// # Guarantee
    /// Both are exactly uniform and independent. For `bound < 2^16` the integer is Lemire's from the upper half of the
    /// word; in the rare case that this half must be dropped, it comes from [`Source::below`].
    #[inline(always)]
    #[expect(clippy::arithmetic_side_effects, reason = "a product of 32 and 16 bits, and a remainder by bound > 0")]
    #[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "takes the lower half of a word")]
    fn lane_and_below(&mut self, bound: u64) -> (u32, u64) {
        if bound == 1 {
            return (self.lane(), 0);
        }
        if bound >= 1 << 16 {
            return (self.lane(), self.below(bound));
        }
        let word = self.word();
        let product = (word >> 32) * bound;
        let low = product & 0xffff_ffff;
        let kept = low >= bound || low >= (1 << 32) % bound;
        (word as u32, if kept { product >> 32 } else { self.below(bound) })
    }
}

#[inline(always)]
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "splits 128 bits into two halves")]
fn multiply(a: u64, b: u64) -> (u64, u64) {
    let product = u128::from(a).wrapping_mul(u128::from(b));
    ((product >> 64) as u64, product as u64)
}

/// A curator's secret, from which the keys of retry-safe releases are derived. Wiped on drop, never printed.
pub struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    /// Takes 32 bytes that must be uniformly random and known to the curator alone.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// What stands for data in a ledger: equal for equal data, and without the secret unrelated to it.
    ///
    /// # Guarantee
    /// A pseudorandom function of the context and the data under the secret, and unrelated to every noise key. Whoever
    /// lacks the secret cannot test a guess of the data against it.
    #[must_use]
    pub fn digest(&self, context: &[&[u8]], data: &[i64]) -> [u8; 32] {
        self.hash(b"optstream data digest 1", context, data)
    }

    /// A keyed hash. Fields are preceded by their length, so that different lists of fields are different inputs.
    fn hash(&self, purpose: &[u8], context: &[&[u8]], data: &[i64]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        let mut field = |bytes: &[u8]| {
            hasher.update(&length(bytes));
            hasher.update(bytes);
        };
        field(purpose);
        field(&length(context));
        for part in context {
            field(part);
        }
        field(&length(data));
        for chunk in data.chunks(512) {
            let bytes: Zeroizing<Vec<u8>> =
                Zeroizing::new(chunk.iter().flat_map(|value| value.to_le_bytes()).collect());
            hasher.update(&bytes);
        }
        let hash = *hasher.finalize().as_bytes();
        hasher.zeroize();
        hash
    }
}

/// The key of one release call. Wiped on drop, never printed.
pub struct Key(Zeroizing<[u8; 32]>);

impl Key {
    /// A fresh key from the operating system.
    ///
    /// # Errors
    /// [`Error::Entropy`] if the operating system has none to give; there is no fallback.
    pub fn from_entropy() -> Result<Self, Error> {
        let mut key = Zeroizing::new([0; 32]);
        getrandom::fill(key.as_mut()).map_err(|error| Error::Entropy(error.to_string()))?;
        Ok(Self(key))
    }

    /// The key of a retry-safe release: a keyed hash of everything that determines the release.
    ///
    /// # Guarantee
    /// The same secret, context and data give the same key, hence bit for bit the same noise, wherever and however
    /// often it is computed. Any change in the context or in the data gives a key that, without the secret, cannot be
    /// told from an independent one (BLAKE3 as a pseudorandom function), so no noise is ever used for two data sets.
    #[must_use]
    pub fn derive(secret: &Secret, context: &[&[u8]], data: &[i64]) -> Self {
        Self(Zeroizing::new(secret.hash(b"optstream noise key 1", context, data)))
    }

    /// The keystream number `index`. Streams of different indices are independent.
    #[must_use]
    pub fn stream(&self, index: u64) -> Keystream {
        let mut nonce = [0; 12];
        for (slot, byte) in nonce.iter_mut().zip(index.to_le_bytes()) {
            *slot = byte;
        }
        Keystream {
            cipher: ChaCha20::new((&*self.0).into(), &nonce.into()),
            buffer: [0; Keystream::CAPACITY],
            position: Keystream::CAPACITY,
        }
    }
}

fn length<T>(items: &[T]) -> [u8; 8] {
    u64::try_from(items.len()).unwrap_or(u64::MAX).to_le_bytes()
}

/// The `ChaCha20` keystream (RFC 8439) of one key and one index, as a [`Source`].
pub struct Keystream {
    cipher: ChaCha20,
    buffer: [u8; Self::CAPACITY],
    position: usize,
}

impl Keystream {
    /// Bytes generated at a time: a multiple of what the vectorised cipher makes in one go, and enough for 48 draws.
    const CAPACITY: usize = 1024;

    /// The next `N` bytes. Bytes left at the end of the buffer that are fewer than `N` are passed over.
    #[inline(always)]
    #[expect(clippy::arithmetic_side_effects, reason = "the position never exceeds the capacity")]
    fn take<const N: usize>(&mut self) -> [u8; N] {
        loop {
            if let Some(bytes) = self.buffer.get(self.position..self.position + N).and_then(|b| b.first_chunk()) {
                self.position += N;
                return *bytes;
            }
            self.refill();
        }
    }

    #[inline(never)]
    fn refill(&mut self) {
        self.buffer.fill(0);
        self.cipher.apply_keystream(&mut self.buffer);
        self.position = 0;
    }
}

impl Source for Keystream {
    #[inline(always)]
    fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    #[inline(always)]
    fn lane(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}

impl Drop for Keystream {
    fn drop(&mut self) {
        // The cipher wipes itself.
        self.buffer.zeroize();
    }
}

/// Scripted bits, for tests only.
#[cfg(test)]
pub(crate) mod scripted {
    use super::Source;
    use num_bigint::BigInt;
    use num_rational::BigRational;
    use num_traits::One;
    use std::collections::VecDeque;

    /// An exact probability.
    pub(crate) type Weight = BigRational;

    /// Plays back prepared lanes and words, and fails the test when it is asked for more.
    #[derive(Default)]
    pub(crate) struct Script {
        pub lanes: VecDeque<u32>,
        pub words: VecDeque<u64>,
    }

    impl Script {
        pub(crate) fn new(lanes: &[u32], words: &[u64]) -> Self {
            Self { lanes: lanes.iter().copied().collect(), words: words.iter().copied().collect() }
        }

        pub(crate) fn is_spent(&self) -> bool {
            self.lanes.is_empty() && self.words.is_empty()
        }
    }

    impl Source for Script {
        fn word(&mut self) -> u64 {
            self.words.pop_front().expect("the script has no word left")
        }

        fn lane(&mut self) -> u32 {
            self.lanes.pop_front().expect("the script has no lane left")
        }
    }

    /// Walks every path of one attempt of a sampler, with the exact probability of each.
    ///
    /// A path is the list of its decisions so far. When it is asked for one more, it takes the first alternative and the
    /// others wait their turn.
    pub(crate) struct Paths {
        path: Vec<(usize, usize)>,
        step: usize,
        /// The probability of the path taken.
        pub weight: Weight,
    }

    impl Paths {
        /// Runs `visit` on every path.
        pub(crate) fn all(mut visit: impl FnMut(&mut Self)) {
            let mut path: Vec<(usize, usize)> = Vec::new();
            loop {
                let mut paths = Self { path, step: 0, weight: Weight::one() };
                visit(&mut paths);
                path = paths.path;
                while path.last().is_some_and(|&(taken, count)| taken + 1 == count) {
                    path.pop();
                }
                match path.last_mut() {
                    Some((taken, _)) => *taken += 1,
                    None => return,
                }
            }
        }

        /// Takes one of `count` alternatives; its probability is for the caller to multiply in.
        pub(crate) fn decide(&mut self, count: usize) -> usize {
            if self.step == self.path.len() {
                self.path.push((0, count));
            }
            self.step += 1;
            self.path[self.step - 1].0
        }

        /// Takes one of two alternatives, the second with the given probability.
        pub(crate) fn flip(&mut self, probability: &Weight) -> bool {
            let second = self.decide(2) == 1;
            self.weight *= if second { probability.clone() } else { Weight::one() - probability };
            second
        }

        /// Takes one of `count` equally likely alternatives.
        pub(crate) fn uniform(&mut self, count: u64) -> u64 {
            self.weight /= BigInt::from(count);
            u64::try_from(self.decide(usize::try_from(count).unwrap())).unwrap()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::scripted::Script;
    use super::*;
    use proptest::prelude::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: String = hex.split_whitespace().collect();
        (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
    }

    fn raw(key: [u8; 32]) -> Key {
        Key(Zeroizing::new(key))
    }

    fn head(key: &Key, index: u64, count: usize) -> Vec<u8> {
        let mut stream = key.stream(index);
        (0..count / 8).flat_map(|_| stream.word().to_le_bytes()).collect()
    }

    #[test]
    fn the_keystream_is_that_of_rfc_8439() {
        // RFC 8439, appendix A.1: test vectors 1 and 2 (key and nonce zero, blocks 0 and 1).
        let expected = bytes(
            "76b8e0ada0f13d90405d6ae55386bd28 bdd219b8a08ded1aa836efcc8b770dc7
             da41597c5157488d7724e03fb8d84a37 6a43b8f41518a11cc387b669b2ee6586
             9f07e7be5551387a98ba977c732d080d cb0f29a048e3656912c6533e32ee7aed
             29b721769ce64e43d57133b074d839d5 31ed1f28510afb45ace10a1f4b794d6f",
        );
        assert_eq!(head(&raw([0; 32]), 0, 128), expected);
        // Appendix A.1, test vector 4: key 00ff00.., block 2.
        let mut key = [0; 32];
        key[1] = 0xff;
        let expected = bytes(
            "72d54dfbf12ec44b362692df94137f32 8fea8da73990265ec1bbbea1ae9af0ca
             13b25aa26cb4a648cb9b9d1be65b2c09 24a66c54d545ec1b7374f4872e99f096",
        );
        assert_eq!(head(&raw(key), 0, 192)[128..], expected);
        // Appendix A.1, test vector 5 has the nonce 00..02, which no stream index reaches; the nonce of a stream is its
        // index in little-endian order, checked here against the cipher itself.
        let mut direct = [0; 64];
        let nonce = [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        ChaCha20::new(&key.into(), &nonce.into()).apply_keystream(&mut direct);
        assert_eq!(head(&raw(key), 5, 64), direct);
    }

    #[test]
    fn two_calls_never_share_a_key() {
        let draw = || head(&Key::from_entropy().unwrap(), 0, 32);
        assert_ne!(draw(), draw());
    }

    #[test]
    fn bits_are_taken_in_order_across_refills() {
        let key = raw([7; 32]);
        let whole = head(&key, 0, 4096);
        let mut stream = key.stream(0);
        let mut at = 0;
        for turn in 0..300 {
            let needed = if turn % 3 == 0 { 4 } else { 8 };
            if at % Keystream::CAPACITY + needed > Keystream::CAPACITY {
                at = at.next_multiple_of(Keystream::CAPACITY);
            }
            let taken = if needed == 4 { u64::from(stream.lane()) } else { stream.word() };
            assert_eq!(taken.to_le_bytes()[..needed], whole[at..at + needed]);
            at += needed;
        }
    }

    #[test]
    fn every_result_below_a_bound_has_the_same_number_of_words() {
        // Word * bound grows with the word, so the words that lead to a result form a run. The script shows the run's
        // ends and that the words beside it are drawn again or lead to the next result.
        for bound in [1_u64, 2, 3, 5, 6, 7, 10, 48, 1000, (1 << 20) + 7] {
            let each = (1_u128 << 64) / u128::from(bound);
            for result in [0, bound / 2, bound - 1] {
                let outcome = |word: u128| {
                    let mut script = Script::new(&[], &[u64::try_from(word).unwrap(), u64::MAX]);
                    let value = script.below(bound);
                    script.words.len().eq(&1).then_some(value)
                };
                // The last word of the run, found from the next result's first multiple of 2^64.
                let end = ((u128::from(result) + 1) << 64).div_ceil(u128::from(bound)) - 1;
                let start = end + 1 - each;
                assert_eq!(outcome(start), Some(result), "bound {bound}, first word of {result}");
                assert_eq!(outcome(end), Some(result), "bound {bound}, last word of {result}");
                if start > 0 {
                    assert_ne!(outcome(start - 1), Some(result), "bound {bound}, before {result}");
                }
                if end < u128::from(u64::MAX) {
                    assert_ne!(outcome(end + 1), Some(result), "bound {bound}, after {result}");
                }
            }
        }
    }

    #[test]
    fn half_a_word_is_as_uniform_as_a_whole_one() {
        for bound in [2_u64, 3, 5, 48, 1000, (1 << 16) - 1] {
            let each = (1_u64 << 32) / bound;
            for result in [0, bound / 2, bound - 1] {
                // Whether the upper half leads to the result by itself; otherwise a second word is drawn.
                let leads = |half: u64| {
                    let mut script = Script::new(&[], &[(half << 32) | 0x4d, u64::MAX]);
                    let (lane, value) = script.lane_and_below(bound);
                    assert_eq!(lane, 0x4d);
                    script.words.len() == 1 && value == result
                };
                let end = ((result + 1) << 32).div_ceil(bound) - 1;
                let start = end + 1 - each;
                assert!(leads(start) && leads(end), "bound {bound}, ends of {result}");
                assert!(start == 0 || !leads(start - 1), "bound {bound}, before {result}");
                assert!(end == (1 << 32) - 1 || !leads(end + 1), "bound {bound}, after {result}");
            }
        }
    }

    proptest! {
        #[test]
        fn derived_keys_repeat_and_differ(
            secret: [u8; 32],
            context in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..8), 0..4),
            data in prop::collection::vec(any::<i64>(), 0..2000),
            flip in any::<prop::sample::Index>(),
        ) {
            let key = |secret: [u8; 32], context: &[Vec<u8>], data: &[i64]| {
                let fields: Vec<&[u8]> = context.iter().map(Vec::as_slice).collect();
                Key::derive(&Secret::new(secret), &fields, data).0.to_vec()
            };
            let original = key(secret, &context, &data);
            prop_assert_eq!(&original, &key(secret, &context, &data));

            let mut other = secret;
            other[flip.index(32)] ^= 1;
            prop_assert_ne!(&original, &key(other, &context, &data));
            if !data.is_empty() {
                let mut other = data.clone();
                let at = flip.index(other.len());
                other[at] ^= 1;
                prop_assert_ne!(&original, &key(secret, &context, &other));
            }
            let mut longer = context.clone();
            longer.push(Vec::new());
            prop_assert_ne!(&original, &key(secret, &longer, &data));
            for at in 0..context.len() {
                let mut other = context.clone();
                other[at].push(0);
                prop_assert_ne!(&original, &key(secret, &other, &data));
            }
        }
    }

    #[test]
    fn a_digest_tells_data_apart_and_is_no_key() {
        let digest = |secret, context: &[&[u8]], data: &[i64]| Secret::new([secret; 32]).digest(context, data);
        assert_eq!(digest(1, &[b"a"], &[1, 2]), digest(1, &[b"a"], &[1, 2]));
        for other in [digest(2, &[b"a"], &[1, 2]), digest(1, &[b"b"], &[1, 2]), digest(1, &[b"a"], &[1, 3])] {
            assert_ne!(digest(1, &[b"a"], &[1, 2]), other);
        }
        let key = Key::derive(&Secret::new([1; 32]), &[b"a"], &[1, 2]);
        assert_ne!(digest(1, &[b"a"], &[1, 2]).as_slice(), key.0.as_slice());
    }

    #[test]
    fn fields_cannot_slide_into_each_other() {
        let key = |context: &[&[u8]]| Key::derive(&Secret::new([1; 32]), context, &[]).0.to_vec();
        assert_ne!(key(&[b"ab", b"c"]), key(&[b"a", b"bc"]));
        assert_ne!(key(&[b"abc"]), key(&[b"ab", b"c"]));
    }
}
