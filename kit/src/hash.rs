//! FNV-1a: short, the same everywhere and for ever, and no defence against anybody.
//!
//! Format: <http://www.isthe.com/chongo/tech/comp/fnv/>.

/// The hash in 32 bits.
pub fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The hash in 64 bits. Each salt makes another function of it; 0 is FNV-1a itself.
pub fn fnv1a_64(bytes: &[u8], salt: u64) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325 ^ salt, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_authors() {
        assert_eq!(
            [fnv1a_32(b""), fnv1a_32(b"a"), fnv1a_32(b"foobar")],
            [0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968]
        );
        assert_eq!(
            [fnv1a_64(b"", 0), fnv1a_64(b"a", 0), fnv1a_64(b"foobar", 0)],
            [0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c, 0x8594_4171_f739_67e8]
        );
        assert_ne!(fnv1a_64(b"a", 0), fnv1a_64(b"a", 1));
    }
}
