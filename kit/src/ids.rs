//! Where object UIDs and name suffixes come from.

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kubernetes' alphabet for generated names: no vowels, no digits that read as letters.
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// A source of identifiers. Deterministic in tests and simulations, unpredictable elsewhere.
pub trait IdSource: Debug + Send + Sync + 'static {
    /// 64 bits, not to be used for secrets.
    fn next(&self) -> u64;

    /// A UUID of version 4 in its usual form.
    fn uid(&self) -> String {
        uuid_v4(self.next(), self.next())
    }

    /// `length` characters that Kubernetes would append to a `generateName`.
    fn suffix(&self, length: usize) -> String {
        (0..length).map(|_| char::from(SUFFIX_ALPHABET[(self.next() % 27) as usize])).collect()
    }
}

/// A UUID in its usual form from 128 bits, of which six are overwritten: those that tell version 4.
pub fn uuid_v4(high: u64, low: u64) -> String {
    let high = (high & !0xf000) | 0x4000;
    let low = (low & !(0b11 << 62)) | (0b10 << 62);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// `text` in the letters of generated names, byte by byte (`SafeEncodeString` of Kubernetes).
pub fn suffix_letters(text: &str) -> String {
    text.bytes().map(|byte| char::from(SUFFIX_ALPHABET[usize::from(byte) % 27])).collect()
}

/// A source that components can keep and pass on.
pub type SharedIds = Arc<dyn IdSource>;

/// The same identifiers in the same order for the same seed (SplitMix64).
#[derive(Debug)]
pub struct SeededIds(AtomicU64);

impl SeededIds {
    /// A source that is a pure function of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl IdSource for SeededIds {
    fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Identifiers that differ from process to process, seeded from the operating system's entropy.
#[derive(Debug)]
pub struct RandomIds(SeededIds);

impl Default for RandomIds {
    fn default() -> Self {
        // The standard library seeds `RandomState` from the operating system: enough for identifiers.
        Self(SeededIds::new(RandomState::new().hash_one(std::process::id())))
    }
}

impl IdSource for RandomIds {
    fn next(&self) -> u64 {
        self.0.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_fixes_every_identifier() {
        let (a, b) = (SeededIds::new(7), SeededIds::new(7));
        assert_eq!((a.uid(), a.suffix(5)), (b.uid(), b.suffix(5)));
    }

    #[test]
    fn a_uid_is_a_version_4_uuid() {
        let uid = SeededIds::new(1).uid();
        assert_eq!(uid.len(), 36);
        assert_eq!(&uid[14..15], "4");
        assert!(matches!(&uid[19..20], "8" | "9" | "a" | "b"));
        assert_eq!(uuid_v4(0, u64::MAX), "00000000-0000-4000-bfff-ffffffffffff");
    }

    #[test]
    fn letters_are_those_of_kubernetes() {
        // `SafeEncodeString(fmt.Sprint(1234567890))` in k8s.io/apimachinery.
        assert_eq!(suffix_letters("1234567890"), "56789bcdf4");
    }
}
