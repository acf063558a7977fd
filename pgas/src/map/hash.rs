//! The hash of keys.

use std::hash::Hasher;

/// A hash that is the same everywhere: words multiplied and mixed (the finalizer of MurmurHash3). `SEED` keeps the hash that
/// chooses the rank apart from the one that orders a rank's own table.
pub(super) struct Stable<const SEED: u64>(u64);

impl<const SEED: u64> Default for Stable<SEED> {
    fn default() -> Self {
        Stable(SEED.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

impl<const SEED: u64> Hasher for Stable<SEED> {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0.rotate_left(5) ^ word);
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        mix(self.0.wrapping_add(SEED))
    }
}

fn mix(mut word: u64) -> u64 {
    word ^= word >> 33;
    word = word.wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^= word >> 33;
    word = word.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ (word >> 33)
}
