//! What a rank keeps for every other rank of the job, talked to or not. This is all that grows with the job, so each
//! byte here is a megabyte at a million ranks.

use std::cell::Cell;

/// One small value for each rank.
#[derive(Debug)]
pub struct PeerTable<T: Copy>(Box<[Cell<T>]>);

impl<T: Copy> PeerTable<T> {
    /// A table of `ranks` entries, all `idle`.
    pub fn new(ranks: usize, idle: T) -> PeerTable<T> {
        PeerTable(vec![Cell::new(idle); ranks].into())
    }

    /// The entry of `rank`.
    ///
    /// # Panics
    /// If there is no such rank.
    #[inline(always)]
    pub fn get(&self, rank: usize) -> T {
        self.0[rank].get()
    }

    /// Changes the entry of `rank`.
    ///
    /// # Panics
    /// If there is no such rank.
    #[inline(always)]
    pub fn set(&self, rank: usize, value: T) {
        self.0[rank].set(value);
    }
}

/// Where the state of a peer that was talked to lies: 4 bytes a rank.
pub type Links = PeerTable<u32>;
/// Whether the handler table of a peer was found equal to ours: 1 byte a rank.
pub type Verified = PeerTable<bool>;

/// The link to a peer that was never talked to.
pub const NOT_CONNECTED: u32 = u32::MAX;

impl Links {
    /// Nobody has been talked to.
    pub fn idle(ranks: usize) -> Links {
        PeerTable::new(ranks, NOT_CONNECTED)
    }
}

impl Verified {
    /// Nobody's table has been looked at.
    pub fn idle(ranks: usize) -> Verified {
        PeerTable::new(ranks, false)
    }
}

/// Every table of this kind that a rank makes when it starts, for measuring them.
#[derive(Debug)]
pub struct PeerTables {
    /// In the transport.
    pub links: Links,
    /// With the messages.
    pub verified: Verified,
}

impl PeerTables {
    /// Makes them as a rank of a job of `ranks` ranks does.
    pub fn idle(ranks: usize) -> PeerTables {
        PeerTables { links: Links::idle(ranks), verified: Verified::idle(ranks) }
    }
}
