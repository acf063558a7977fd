//! The address of an interface: its identity, and the hosts and port at which it is reached.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::transport::error::{Error, Result};

const MAGIC: u32 = u32::from_le_bytes(*b"bwtc");
/// Bits of a rank in a peer's number. The interface's number stands above them.
const RANK_BITS: u32 = 24;
/// Ranks that can be told apart.
pub const RANKS: usize = 1 << RANK_BITS;
/// Interfaces of a rank that can be told apart.
pub const INTERFACES: usize = 1 << (u32::BITS - 1 - RANK_BITS);
/// Most addresses of a host in an interface's address. Chosen: as many as fit into `ADDRESS_MAX`.
pub const HOST_ADDRESSES: usize = 6;
const HEAD: usize = 28;
/// Bytes of an address.
pub const LEN: usize = HEAD + HOST_ADDRESSES * 16;
const _: () = assert!(LEN <= crate::memory::layout::ADDRESS_MAX);

/// Where an interface listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The rank.
    pub rank: u32,
    /// Which of the rank's interfaces, below [`INTERFACES`].
    pub interface: u32,
    /// Tells an interface from the next that has its number.
    pub nonce: u64,
    /// The network stack that it is in: peers in the same one reach it by the loopback address.
    pub stack: u64,
    /// The port.
    pub port: u16,
    /// Addresses of the host, IPv4 as IPv6 has them; zeros behind the last.
    pub hosts: [[u8; 16]; HOST_ADDRESSES],
}

/// The rank in a peer's number.
pub fn rank_of(peer: u32) -> u32 {
    peer % RANKS as u32
}

/// As IPv6 has it.
pub fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Address {
    /// The number of the peer: one for each interface of a rank. Its first interface has the rank's.
    pub fn peer(&self) -> u32 {
        self.interface << RANK_BITS | self.rank
    }

    /// Where to call, in the order in which it is tried, from a process in the network stack `stack`.
    pub fn targets(&self, stack: u64) -> Vec<SocketAddr> {
        let target = |ip: &[u8; 16]| SocketAddr::new(Ipv6Addr::from(*ip).to_canonical(), self.port);
        let mut targets: Vec<SocketAddr> = self.hosts.iter().filter(|ip| **ip != [0; 16]).map(target).collect();
        // The loopback address leads to another host elsewhere; in the same stack it is the shortest way.
        targets.retain(|target| !target.ip().is_loopback() || self.stack == stack);
        targets.sort_by_key(|target| !target.ip().is_loopback());
        targets
    }

    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.peer().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.nonce.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.stack.to_le_bytes());
        bytes[24..26].copy_from_slice(&self.port.to_le_bytes());
        bytes[HEAD..].copy_from_slice(self.hosts.as_flattened());
        bytes
    }

    /// # Errors
    /// [`Error::Unreachable`] for bytes that are no address.
    pub fn decode(bytes: &[u8]) -> Result<Address> {
        let bytes: &[u8; LEN] = bytes.try_into().map_err(|_| Error::Unreachable)?;
        let half = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        let mut hosts = [[0; 16]; HOST_ADDRESSES];
        hosts.as_flattened_mut().copy_from_slice(&bytes[HEAD..]);
        let (peer, port) = (half(4), u16::from_le_bytes([bytes[24], bytes[25]]));
        let address =
            Address { rank: rank_of(peer), interface: peer >> RANK_BITS, nonce: word(8), stack: word(16), port, hosts };
        let is_sound =
            half(0) == MAGIC && (address.interface as usize) < INTERFACES && port != 0 && bytes[26..28] == [0; 2];
        if is_sound { Ok(address) } else { Err(Error::Unreachable) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_and_other_bytes_are_refused() {
        let mut hosts = [[0; 16]; HOST_ADDRESSES];
        for (host, ip) in hosts.iter_mut().zip(["192.0.2.7", "2001:db8::1", "127.0.0.1"]) {
            *host = octets(ip.parse().expect("an address"));
        }
        let (rank, interface) = (RANKS as u32 - 1, INTERFACES as u32 - 1);
        let address = Address { rank, interface, nonce: u64::MAX - 3, stack: 5, port: 7000, hosts };
        for address in [address, Address { interface: 0, ..address }, Address { rank: 0, ..address }] {
            assert_eq!(Address::decode(&address.encode()), Ok(address));
            assert_eq!(rank_of(address.peer()), address.rank);
        }
        let bytes = address.encode();
        assert_eq!(Address::decode(&bytes[1..]), Err(Error::Unreachable));
        for (at, bit) in [(0, 0x40), (7, 0x80), (26, 1)] {
            let mut wrong = bytes;
            wrong[at] ^= bit;
            assert_eq!(Address::decode(&wrong), Err(Error::Unreachable));
        }
        let told = |stack| address.targets(stack).iter().map(SocketAddr::to_string).collect::<Vec<_>>();
        assert_eq!(told(5), ["127.0.0.1:7000", "192.0.2.7:7000", "[2001:db8::1]:7000"]);
        assert_eq!(told(6), ["192.0.2.7:7000", "[2001:db8::1]:7000"]);
    }
}
