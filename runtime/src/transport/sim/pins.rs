//! Registrations of a simulated NIC: keys of 64 bits, and descriptors that are pointers, as some networks have them.

use crate::transport::error::{Error, Result};
use crate::transport::iov::Piece;
use crate::transport::key::{Opaque, RemoteKey};
use crate::transport::memory::{Pinned, Pinner};

/// The memory that a descriptor stands for.
#[derive(Debug)]
struct Descriptor {
    start: usize,
    len: usize,
}

/// Makes memory known to the NIC with this number.
#[derive(Debug)]
pub(super) struct Pins(pub(super) u32);

impl Pinner for Pins {
    unsafe fn pin(&self, address: *mut u8, len: usize) -> Result<Pinned> {
        let descriptor = Box::new(Descriptor { start: address as usize, len });
        let remote = Opaque::number(number(self.0, address as u64, len as u64));
        Ok(Pinned { local: Opaque::pointer(&raw const *descriptor), remote, hold: descriptor })
    }
}

/// The number of a registration with a NIC: all of its bits count.
fn number(nic: u32, address: u64, len: u64) -> u64 {
    (address ^ len.rotate_left(32) ^ u64::from(nic).rotate_left(48)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63 | 1
}

/// As a device does before it touches memory that is registered with `nic`.
///
/// # Errors
/// [`Error::Rejected`] for a key that this NIC did not give out.
pub(super) fn check_key(key: &RemoteKey, nic: u32) -> Result<()> {
    if key.device.as_number() == number(nic, key.address, key.len) { Ok(()) } else { Err(Error::Rejected) }
}

/// As a device does before it touches memory of the user's. A block without a descriptor is not looked at: whether it needs one is
/// the contract's to check.
///
/// # Errors
/// [`Error::InvalidParam`] for blocks that lie outside the memory of their descriptors.
///
/// # Safety
/// The registrations of the blocks live.
pub(super) unsafe fn check_pieces(pieces: &[Piece]) -> Result<()> {
    let covers = |piece: &Piece| {
        let descriptor = piece.descriptor.as_pointer::<Descriptor>();
        // SAFETY: null, or the descriptor of a registration, which lives.
        let Some(Descriptor { start, len }) = (unsafe { descriptor.as_ref() }) else { return true };
        (piece.pointer as usize).checked_sub(*start).is_some_and(|at| at <= *len && piece.len <= *len - at)
    };
    if pieces.iter().all(covers) { Ok(()) } else { Err(Error::InvalidParam("a block outside of its registration")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::memory::Registry;
    use crate::transport::{Iov, iov, key::MemoryKind};
    use std::sync::Arc;

    #[test]
    fn keys_of_64_bits_and_descriptors_that_are_pointers_pass_through_the_contract() {
        let registry = Arc::new(Registry::with(Pins(7)));
        let mut memory = [0u8; 64];
        // SAFETY: the memory outlives the region.
        let region = unsafe { registry.register(3, MemoryKind::Outside, memory.as_mut_ptr(), 64) }.expect("registers");
        let key = RemoteKey::decode(&region.key().pack()).expect("a key");
        assert_eq!((check_key(&key, 7), check_key(&key, 8)), (Ok(()), Err(Error::Rejected)));
        let cut = RemoteKey { device: Opaque::number(key.device.as_number() & u64::from(u32::MAX)), ..key };
        assert_eq!(check_key(&cut, 7), Err(Error::Rejected), "half of a key is none");

        let entry = Iov { pointer: memory.as_mut_ptr(), length: 16, stride: 24, count: 2, region: Some(&region) };
        let blocks: Vec<Piece> = iov::pieces(&[entry]).collect();
        assert!(blocks.len() == 2 && blocks.iter().all(|block| block.descriptor != Opaque::NONE));
        // SAFETY: the region lives.
        assert_eq!(unsafe { check_pieces(&blocks) }, Ok(()));
        let beyond = Piece { len: 65, ..blocks[0] };
        // SAFETY: as above.
        assert!(matches!(unsafe { check_pieces(&[beyond]) }, Err(Error::InvalidParam(_))));
    }
}
