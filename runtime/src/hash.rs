//! The hash of this crate: ranks compare digests of data that must be equal on all of them. The same on all ranks, which run
//! one executable. Not for data that an attacker may have chosen to collide.

/// One step of a digest: multiply and shift, as in the finaliser of splitmix64.
#[inline]
pub(crate) fn mix(digest: u64, word: u64) -> u64 {
    let word = (digest.rotate_left(25) ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word ^ word >> 29
}

/// A digest, and after it `bytes`, of which the last word is filled up with zeros.
pub(crate) fn and_bytes(digest: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(digest, |digest, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(digest, u64::from_ne_bytes(word))
    })
}

/// The digest of `bytes` and of their number.
pub(crate) fn of(bytes: &[u8]) -> u64 {
    and_bytes(bytes.len() as u64, bytes)
}

/// Hashes keys that are a few numbers, for tables of this process.
#[derive(Debug, Default)]
pub(crate) struct Mixer(u64);

impl std::hash::Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = and_bytes(self.0, bytes);
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0, word);
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.0 = mix(self.0, word.into());
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_their_order_and_their_number_count() {
        let all: [&[u8]; 7] = [b"", b"a", b"a\0", b"ab", b"ba", b"12345678a", b"a12345678"];
        let digests: std::collections::BTreeSet<u64> = all.iter().map(|bytes| super::of(bytes)).collect();
        assert_eq!(digests.len(), all.len());
    }
}
