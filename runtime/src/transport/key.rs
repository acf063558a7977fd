//! Remote keys: the right to reach registered memory, as bytes that travel out of band.

use super::error::{Error, Result};

/// Bytes of a packed key.
pub const PACKED_KEY_LEN: usize = 48;
/// The key of nothing, as UCT numbers it.
pub const INVALID_KEY: u64 = u64::MAX;

const MAGIC: u32 = u32::from_le_bytes(*b"bwk2");

/// A device's name for registered memory: a number, or the address of a descriptor. Only the transport that made the name reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opaque(u64);

impl Opaque {
    /// The name of memory that no device has to know.
    pub const NONE: Opaque = Opaque(0);

    /// From a number of the device's.
    pub const fn number(number: u64) -> Opaque {
        Opaque(number)
    }

    /// From the address of a descriptor, which means something in this process only.
    pub fn pointer<T>(descriptor: *const T) -> Opaque {
        Opaque(descriptor.expose_provenance() as u64)
    }

    /// The number.
    #[inline(always)]
    pub const fn as_number(self) -> u64 {
        self.0
    }

    /// The address of the descriptor; null for [`Opaque::NONE`].
    pub fn as_pointer<T>(self) -> *const T {
        std::ptr::with_exposed_provenance(self.0 as usize)
    }
}

/// Where the memory of a key lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MemoryKind {
    /// In memory that the domain gave out, at this offset of the owner's slot where there are slots.
    Allocated = 1,
    /// Anywhere else in the owner's address space.
    Outside = 2,
}

/// The right to reach one registered region of one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteKey {
    /// The owner's number in its transport.
    pub(crate) owner: u32,
    /// Where the memory lies.
    pub(crate) memory: MemoryKind,
    /// The registration's number at its owner; never used twice.
    pub(crate) id: u64,
    /// The region's first address, in the owner's address space.
    pub(crate) address: u64,
    /// The region's bytes.
    pub(crate) len: u64,
    /// The owner's device's name for the region.
    pub(crate) device: Opaque,
}

impl RemoteKey {
    /// The region's first address, in the owner's address space.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The bytes to send.
    pub fn pack(&self) -> [u8; PACKED_KEY_LEN] {
        let mut bytes = [0; PACKED_KEY_LEN];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.owner.to_le_bytes());
        bytes[8] = self.memory as u8;
        bytes[16..24].copy_from_slice(&self.id.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.address.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.len.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.device.as_number().to_le_bytes());
        let check = checksum(&bytes);
        bytes[CHECK].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads a packed key.
    ///
    /// # Errors
    /// [`Error::InvalidParam`] for bytes that no [`RemoteKey::pack`] made.
    pub(crate) fn decode(bytes: &[u8]) -> Result<RemoteKey> {
        const WRONG: Error = Error::InvalidParam("these bytes are not a packed key");
        let Some(bytes) = bytes.first_chunk::<PACKED_KEY_LEN>() else { return Err(WRONG) };
        let half = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        let memory = match bytes[8] {
            1 => MemoryKind::Allocated,
            2 => MemoryKind::Outside,
            _ => return Err(WRONG),
        };
        let device = Opaque::number(word(40));
        let key = RemoteKey { owner: half(4), memory, id: word(16), address: word(24), len: word(32), device };
        if half(0) != MAGIC
            || half(CHECK.start) != checksum(bytes)
            || bytes[9..12] != [0; 3]
            || key.id == INVALID_KEY
            || key.len == 0
            || key.address.checked_add(key.len).is_none()
        {
            return Err(WRONG);
        }
        Ok(key)
    }

    /// Offset of `address` in the region, if all `len` bytes there are inside.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    #[inline(always)]
    pub fn offset(&self, address: u64, len: usize) -> Result<u64> {
        let offset = address.wrapping_sub(self.address);
        if offset <= self.len && len as u64 <= self.len - offset { Ok(offset) } else { Err(Error::OutOfRange) }
    }
}

/// Where the checksum is, which does not cover itself.
const CHECK: std::ops::Range<usize> = 12..16;

/// FNV-1a: tells a mistake from a key; no protection against malice.
fn checksum(bytes: &[u8; PACKED_KEY_LEN]) -> u32 {
    let add = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes[..CHECK.start].iter().chain(&bytes[CHECK.end..]).fold(0x811c_9dc5, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_back_and_ranges_are_exact() {
        let device = Opaque::number(0xfedc_ba98_7654_3210);
        let key = RemoteKey { owner: 3, memory: MemoryKind::Outside, id: 9, address: 1000, len: 16, device };
        assert_eq!(RemoteKey::decode(&key.pack()), Ok(key));
        for at in 0..PACKED_KEY_LEN {
            let mut bytes = key.pack();
            bytes[at] ^= 4;
            assert!(RemoteKey::decode(&bytes).is_err(), "byte {at} was changed");
        }
        assert_eq!(key.offset(1000, 16), Ok(0));
        assert_eq!(key.offset(1016, 0), Ok(16));
        for (address, len) in [(999, 1), (1000, 17), (1016, 1), (0, usize::MAX), (u64::MAX, 1), (1001, usize::MAX)] {
            assert_eq!(key.offset(address, len), Err(Error::OutOfRange));
        }
    }
}
