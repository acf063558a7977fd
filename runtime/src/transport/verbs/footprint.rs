//! Memory for a peer once this rank has communicated with it. Before, only the peer's address is kept.

use super::connect::{Connection, DEPTH, PIECES};
use super::link::Link;
use super::queue::Pair;

/// Bytes in front of the requests in the device's queue: soft-RoCE's `rxe_queue_buf` (rxe_queue.h).
const HEAD: usize = 384;
/// Bytes of a request in the device's queue, without what it carries: soft-RoCE's `rxe_send_wqe` (rdma_user_rxe.h).
const REQUEST: usize = 208;
/// Bytes of a block in a request.
const BLOCK: usize = 16;
/// Bytes of a page: the device's queue has pages of its own.
const PAGE: usize = 4096;
/// Bytes that libibverbs keeps of a queue pair and of an address, and those of entries in tables by peer or queue pair, about.
const ENTRIES: usize = 1024;

/// Bytes for a peer whose requests carry up to `inline` bytes. Not included: the kernel's memory beside the queue (the README of this
/// folder says how much), and rings, of which an interface lends at most eight.
pub fn per_peer(inline: usize) -> usize {
    // A ring that is full has a free place.
    let places = (DEPTH + 1).next_power_of_two();
    let queue = HEAD + places * (REQUEST + inline.max(PIECES * BLOCK)).next_power_of_two();
    let state = size_of::<Link>() + size_of::<Connection>() + size_of::<Pair>();
    queue.next_multiple_of(PAGE) + state + ENTRIES
}

#[cfg(test)]
mod tests {
    use super::super::connect::INLINE;
    use super::*;

    #[test]
    fn a_peer_takes_at_most_16_kib() {
        assert!(per_peer(INLINE) <= 16 << 10, "{}", per_peer(INLINE));
    }
}
