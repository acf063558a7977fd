//! The address of an interface: its identity, where its datagrams go, and the MTU of its path.

use crate::transport::error::{Error, Result};

const MAGIC: u32 = u32::from_le_bytes(*b"bwib");
/// Bits of a rank in a peer's number. The interface's number stands above them. One bit stays free for code that numbers
/// requests by peers.
const RANK_BITS: u32 = 24;
/// Ranks that can be told apart.
pub const RANKS: usize = 1 << RANK_BITS;
/// Interfaces of a rank that can be told apart.
pub const INTERFACES: usize = 1 << (u32::BITS - 1 - RANK_BITS);
/// Bytes of an address.
pub const LEN: usize = 40;

/// Where an interface can be asked for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The rank.
    pub rank: u32,
    /// Which of the rank's interfaces, below [`INTERFACES`].
    pub interface: u32,
    /// Its queue pair for datagrams.
    pub datagrams: u32,
    /// Tells an interface from the next that has its number.
    pub nonce: u64,
    /// The port's global id.
    pub gid: [u8; 16],
    /// The port's local id; 0 on Ethernet.
    pub lid: u16,
    /// The port's largest packet, as verbs number it.
    pub mtu: u8,
    /// InfiniBand (1) or Ethernet (2).
    pub link_layer: u8,
}

/// The rank in a peer's number.
pub fn rank_of(peer: u32) -> u32 {
    peer % RANKS as u32
}

/// The number of the rank's interface in a peer's number.
pub fn interface_of(peer: u32) -> u32 {
    peer >> RANK_BITS
}

impl Address {
    /// The number of the peer: one for each interface of a rank. Its first interface has the rank's.
    pub fn peer(&self) -> u32 {
        self.interface << RANK_BITS | self.rank
    }

    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.peer().to_le_bytes());
        bytes[8..12].copy_from_slice(&self.datagrams.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.lid.to_le_bytes());
        bytes[14] = self.mtu;
        bytes[15] = self.link_layer;
        bytes[16..32].copy_from_slice(&self.gid);
        bytes[32..40].copy_from_slice(&self.nonce.to_le_bytes());
        bytes
    }

    /// # Errors
    /// [`Error::Unreachable`] for bytes that are no address.
    pub fn decode(bytes: &[u8]) -> Result<Address> {
        let bytes: &[u8; LEN] = bytes.try_into().map_err(|_| Error::Unreachable)?;
        let half = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let address = Address {
            rank: rank_of(half(4)),
            interface: interface_of(half(4)),
            datagrams: half(8),
            nonce: u64::from(half(32)) | u64::from(half(36)) << 32,
            gid: *bytes[16..32].first_chunk().ok_or(Error::Unreachable)?,
            lid: u16::from_le_bytes([bytes[12], bytes[13]]),
            mtu: bytes[14],
            link_layer: bytes[15],
        };
        let sound = half(0) == MAGIC
            && (address.interface as usize) < INTERFACES
            && (1..=5).contains(&address.mtu)
            && (1..=2).contains(&address.link_layer);
        if sound { Ok(address) } else { Err(Error::Unreachable) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_and_other_bytes_are_refused() {
        let last = Address {
            rank: RANKS as u32 - 1,
            interface: INTERFACES as u32 - 1,
            datagrams: 17,
            nonce: u64::MAX - 3,
            gid: [9; 16],
            lid: 0xabcd,
            mtu: 3,
            link_layer: 2,
        };
        let address = Address { rank: 7, interface: 5, ..last };
        for address in [address, last, Address { interface: 0, ..address }, Address { rank: 0, ..address }] {
            assert_eq!(Address::decode(&address.encode()), Ok(address));
            assert_eq!((rank_of(address.peer()), interface_of(address.peer())), (address.rank, address.interface));
        }
        let bytes = address.encode();
        assert_eq!(Address::decode(&bytes[..LEN - 1]), Err(Error::Unreachable));
        for (at, bit) in [(0, 0x40), (7, 0x80), (14, 0x40), (15, 0x40)] {
            let mut wrong = bytes;
            wrong[at] ^= bit;
            assert_eq!(Address::decode(&wrong), Err(Error::Unreachable));
        }
    }
}
