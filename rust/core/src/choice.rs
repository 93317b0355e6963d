//! The hash that decides which of an entity's groups count.

/// Names the purpose, so that the hash is that of nothing else.
const CONTEXT: &str = "optstream 2026-11 groups of an entity that count at a step";

/// The first eight bytes of the BLAKE3 hash, keyed by the purpose, of every message. They stand one after the other in
/// `text`, with the given lengths in bytes; `None` if the lengths do not add up to that of the text.
///
/// # Guarantee
/// A message's hash depends on that message alone.
#[must_use]
pub fn hashes(text: &[u8], lengths: &[u64]) -> Option<Vec<u64>> {
    let keyed = blake3::Hasher::new_derive_key(CONTEXT);
    let mut rest = text;
    let mut found = Vec::with_capacity(lengths.len());
    for &length in lengths {
        let (message, others) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        let mut bytes = [0; 8];
        keyed.clone().update(message).finalize_xof().fill(&mut bytes);
        found.push(u64::from_le_bytes(bytes));
        rest = others;
    }
    rest.is_empty().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_hashed_one_by_one() {
        let together = hashes(b"onetwothree", &[3, 3, 5]).unwrap();
        let alone: Vec<u64> = [&b"one"[..], b"two", b"three"]
            .iter()
            .flat_map(|message| hashes(message, &[message.len() as u64]).unwrap())
            .collect();
        assert_eq!(together, alone);
        assert_ne!(together[0], together[1]);
        assert_eq!(hashes(b"", &[]), Some(vec![]));
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        assert_eq!(hashes(b"one", &[2]), None);
        assert_eq!(hashes(b"one", &[4]), None);
        assert_eq!(hashes(b"one", &[u64::MAX, 4]), None);
    }
}
