//! What a peer takes once it was talked to. Before, nothing is kept of it but its address.

use super::connect::{Connection, DEPTH, PIECES};
use super::link::Link;
use super::queue::Pair;
use super::ring::RING;

/// Bytes of a request in the device's queue, without what it carries: soft-RoCE's `rxe_send_wqe` (rdma_user_rxe.h).
const REQUEST: usize = 208;
/// Bytes of a block in a request.
const BLOCK: usize = 16;
/// What libibverbs and the kernel keep of a queue pair and of an address, about.
const HANDLES: usize = 4096;
/// Bytes of entries in tables by peer or queue pair, about.
const ENTRIES: usize = 512;

/// Bytes for a peer whose requests carry as many as `inline` bytes inside, the ring of one that is busy included.
pub fn per_peer(inline: usize) -> usize {
    // A ring that is full has a free place.
    let places = (DEPTH + 1).next_power_of_two();
    let queue = places * (REQUEST + inline.max(PIECES * BLOCK)).next_power_of_two();
    let state = size_of::<Link>() + size_of::<Connection>() + size_of::<Pair>();
    queue.next_multiple_of(4096) + state + HANDLES + ENTRIES + RING
}

#[cfg(test)]
mod tests {
    use super::super::connect::INLINE;
    use super::*;

    #[test]
    fn a_peer_takes_at_most_64_kib() {
        assert!(per_peer(INLINE) <= 64 << 10, "{}", per_peer(INLINE));
    }
}
