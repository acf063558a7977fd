//! Tables that a rank keeps with an entry for each peer, whether it communicates with the peer or not. In a job of a million ranks each
//! byte of an entry costs a rank a megabyte. The route to each peer (`engine/routes.rs`) takes one more byte; `bellwether bench footprint`
//! measures all of these.

use std::cell::Cell;
use std::ops::Range;

/// One small value for each rank of a contiguous range.
#[derive(Debug)]
pub struct PeerTable<T: Copy> {
    first: usize,
    values: Box<[Cell<T>]>,
}

impl<T: Copy> PeerTable<T> {
    /// A table with an entry for each of `ranks`; each entry is `idle`.
    pub fn new(ranks: Range<usize>, idle: T) -> PeerTable<T> {
        PeerTable { first: ranks.start, values: vec![Cell::new(idle); ranks.len()].into() }
    }

    /// The entry of `rank`.
    ///
    /// # Panics
    /// If `rank` is outside the range of the table.
    #[inline(always)]
    pub fn get(&self, rank: usize) -> T {
        self.values[rank.wrapping_sub(self.first)].get()
    }

    /// Changes the entry of `rank`.
    ///
    /// # Panics
    /// If `rank` is outside the range of the table.
    #[inline(always)]
    pub fn set(&self, rank: usize, value: T) {
        self.values[rank.wrapping_sub(self.first)].set(value);
    }
}

/// Index of the state of each peer that was sent to: 4 bytes for each rank that has a slot on this host.
pub type Links = PeerTable<u32>;
/// Whether the handler table of each peer was found equal to ours: 1 byte for each rank.
pub type Verified = PeerTable<bool>;

/// The entry in [`Links`] of a peer without state, since nothing was sent to it.
pub const NOT_CONNECTED: u32 = u32::MAX;

impl Links {
    /// A table in which no peer has state.
    pub fn idle(ranks: Range<usize>) -> Links {
        PeerTable::new(ranks, NOT_CONNECTED)
    }
}

impl Verified {
    /// A table in which no peer's handler table has been compared.
    pub fn idle(ranks: Range<usize>) -> Verified {
        PeerTable::new(ranks, false)
    }
}
