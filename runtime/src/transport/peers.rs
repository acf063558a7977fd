//! What a rank keeps for other ranks, talked to or not. Each byte here is a megabyte in a job of a million ranks. Beside it there is
//! a byte a rank that tells the route (`engine/routes.rs`); `bellwether bench footprint` measures them all.

use std::cell::Cell;
use std::ops::Range;

/// One small value for each of some ranks in a row.
#[derive(Debug)]
pub struct PeerTable<T: Copy> {
    first: usize,
    values: Box<[Cell<T>]>,
}

impl<T: Copy> PeerTable<T> {
    /// A table with an entry for each of `ranks`, all `idle`.
    pub fn new(ranks: Range<usize>, idle: T) -> PeerTable<T> {
        PeerTable { first: ranks.start, values: vec![Cell::new(idle); ranks.len()].into() }
    }

    /// The entry of `rank`.
    ///
    /// # Panics
    /// If it is not one of them.
    #[inline(always)]
    pub fn get(&self, rank: usize) -> T {
        self.values[rank.wrapping_sub(self.first)].get()
    }

    /// Changes the entry of `rank`.
    ///
    /// # Panics
    /// If it is not one of them.
    #[inline(always)]
    pub fn set(&self, rank: usize, value: T) {
        self.values[rank.wrapping_sub(self.first)].set(value);
    }
}

/// Where the state of a peer that was talked to lies: 4 bytes a rank that has a slot on this host.
pub type Links = PeerTable<u32>;
/// Whether the handler table of a peer was found equal to ours: 1 byte a rank.
pub type Verified = PeerTable<bool>;

/// The link to a peer that was never talked to.
pub const NOT_CONNECTED: u32 = u32::MAX;

impl Links {
    /// Nobody has been talked to.
    pub fn idle(ranks: Range<usize>) -> Links {
        PeerTable::new(ranks, NOT_CONNECTED)
    }
}

impl Verified {
    /// Nobody's table has been looked at.
    pub fn idle(ranks: Range<usize>) -> Verified {
        PeerTable::new(ranks, false)
    }
}
