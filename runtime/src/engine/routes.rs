//! Routes: how this rank reaches each peer. Decided once.
//!
//! A peer whose memory is mapped is reached by loads and stores, any other peer over one of the job's networks. If only some
//! peers are mapped, the mapped ones have a network too, for atomics: ranks of other nodes change the same words through a
//! network device, and the atomics of a device and of the processor are not atomic to each other.
//!
//! Which peers are mapped is known when the engine is made. The network of a peer is known when all ranks have arrived and have
//! published the addresses of their interfaces: it is the first network that reaches the peer. An engine and its contexts share
//! the table.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::membership::nodes::Nodes;

/// How a rank is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// The peer is this rank itself.
    Own,
    /// By loads and stores.
    Mapped,
    /// Over the network with this place in this rank's order.
    Network(usize),
}

/// Which ranks are reached by loads and stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// All.
    All,
    /// The ranks of this rank's node.
    Node,
    /// This rank only.
    Own,
}

/// Bit of a code: the rank is mapped. The other bits are the place of its network.
const MAPPED: u8 = 0x80;

/// The routes of one rank. Clones share the table.
#[derive(Debug, Clone)]
pub(crate) struct Routes {
    rank: usize,
    ranks: usize,
    mapping: Mapping,
    /// Time is virtual: the simulator has to be notified of a store to another rank's memory.
    is_virtual: bool,
    /// A code for each rank; none where all are mapped.
    codes: Arc<[AtomicU8]>,
    stores: Range<usize>,
}

impl Routes {
    /// The routes of `rank`, one of `ranks`.
    pub(crate) fn new(rank: usize, ranks: usize, mapping: Mapping, nodes: &Nodes, is_virtual: bool) -> Routes {
        let is_mapped = |other: usize| match mapping {
            Mapping::All => true,
            Mapping::Node => nodes.of(other) == nodes.of(rank),
            Mapping::Own => other == rank,
        };
        let code = |other| AtomicU8::new(if is_mapped(other) { MAPPED } else { 0 });
        let codes = if mapping == Mapping::All { Arc::default() } else { (0..ranks).map(code).collect() };
        let stores = match is_virtual {
            true => rank..rank + 1,
            false => {
                let before = (0..rank).rev().take_while(|other| is_mapped(*other)).count();
                let after = (rank + 1..ranks).take_while(|other| is_mapped(*other)).count();
                rank - before..rank + 1 + after
            }
        };
        Routes { rank, ranks, mapping, is_virtual, codes, stores }
    }

    /// How `rank` is reached.
    #[inline]
    pub(crate) fn to(&self, rank: usize) -> Route {
        match self.codes.get(rank).map(|code| code.load(Ordering::Relaxed)) {
            _ if rank == self.rank => Route::Own,
            None => Route::Mapped,
            Some(code) if code & MAPPED != 0 => Route::Mapped,
            Some(code) => Route::Network(usize::from(code)),
        }
    }

    /// The rank whose routes these are.
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// The other ranks.
    pub(super) fn peers(&self) -> impl Iterator<Item = usize> {
        let own = self.rank;
        (0..self.ranks).filter(move |rank| *rank != own)
    }

    /// The place, in this rank's order, of the network for `rank`. If the rank is mapped, it carries only what loads and stores cannot do.
    #[inline]
    pub(crate) fn network(&self, rank: usize) -> usize {
        usize::from(self.codes[rank].load(Ordering::Relaxed) & !MAPPED)
    }

    /// Whether the memory of `rank` is mapped here, its own included.
    #[inline]
    pub(crate) fn is_mapped(&self, rank: usize) -> bool {
        !matches!(self.to(rank), Route::Network(_))
    }

    /// Whether all ranks' memory is mapped here. There is no network then.
    #[inline(always)]
    pub(crate) fn all_mapped(&self) -> bool {
        self.mapping == Mapping::All
    }

    /// Whether the ranks of this node are mapped and those of other nodes are not.
    #[inline(always)]
    pub(crate) fn is_mixed(&self) -> bool {
        self.mapping == Mapping::Node
    }

    /// Whether messages may come through lanes.
    #[inline(always)]
    pub(crate) fn has_lanes(&self) -> bool {
        self.mapping != Mapping::Own
    }

    /// Whether messages to `rank` go through a lane. In virtual time messages of a rank to itself do not: a loop of them would
    /// take no time.
    pub(crate) fn has_lane(&self, rank: usize) -> bool {
        self.has_lanes() && self.is_mapped(rank) && !(self.is_virtual && rank == self.rank)
    }

    /// The ranks that have a lane to this rank.
    pub(super) fn senders(&self) -> Vec<usize> {
        (0..self.ranks).filter(|rank| self.has_lanes() && self.is_mapped(*rank)).collect()
    }

    /// The contiguous range of ranks around this one at which a put is a plain store.
    #[inline]
    pub(crate) fn stores(&self) -> Range<usize> {
        self.stores.clone()
    }

    /// How many ranks, from 0 on, have words that the processor's atomics may change: all or none.
    pub(crate) fn processor_atomics(&self) -> usize {
        if self.all_mapped() { self.ranks } else { 0 }
    }

    /// Sets the network of each rank: the first of `count` networks for which `reaches(network, rank)` holds.
    ///
    /// # Errors
    /// The first rank that no network reaches.
    pub(super) fn decide(&self, count: usize, reaches: impl Fn(usize, usize) -> bool) -> Result<(), usize> {
        for (rank, code) in self.codes.iter().enumerate() {
            let network = (0..count).find(|network| reaches(*network, rank)).ok_or(rank)?;
            let mapped = code.load(Ordering::Relaxed) & MAPPED;
            // Relaxed: contexts, which other threads read this in, are made later.
            code.store(mapped | network as u8, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn routes(mapping: Mapping, is_virtual: bool) -> Routes {
        Routes::new(2, 6, mapping, &Nodes::of_each(&[0, 1, 1, 1, 0, 1]), is_virtual)
    }

    #[test]
    fn ranks_of_the_node_are_mapped_and_the_others_have_a_network() {
        use Route::{Mapped, Network, Own};
        let mixed = routes(Mapping::Node, false);
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|rank| mixed.to(rank)),
            [Network(0), Mapped, Own, Mapped, Network(0), Mapped]
        );
        assert_eq!((mixed.stores(), mixed.senders()), (1..4, vec![1, 2, 3, 5]));
        assert!(mixed.has_lane(2) && mixed.has_lane(5) && !mixed.has_lane(4));
        assert_eq!((mixed.processor_atomics(), mixed.all_mapped(), mixed.is_mixed()), (0, false, true));

        let paced = routes(Mapping::Node, true);
        assert_eq!((paced.stores(), paced.has_lane(2), paced.has_lane(3)), (2..3, false, true));

        let own = routes(Mapping::Own, false);
        assert_eq!([0, 1, 2, 3].map(|rank| own.to(rank)), [Network(0), Network(0), Own, Network(0)]);
        assert_eq!((own.stores(), own.senders(), own.has_lane(2)), (2..3, vec![], false));

        let all = routes(Mapping::All, false);
        assert_eq!([1, 2, 4].map(|rank| all.to(rank)), [Mapped, Own, Mapped]);
        assert_eq!((all.stores(), all.senders().len(), all.processor_atomics()), (0..6, 6, 6));
    }

    #[test]
    fn each_rank_gets_the_first_network_that_reaches_it() {
        let routes = routes(Mapping::Node, false);
        let shared = routes.clone();
        // The first network ends at rank 3, the second at rank 5.
        assert_eq!(routes.decide(2, |network, rank| rank < [3, 5][network]), Err(5));
        assert_eq!(routes.decide(2, |network, rank| network == 1 || rank < 3), Ok(()));
        assert_eq!((routes.to(0), routes.to(4), routes.to(5)), (Route::Network(0), Route::Network(1), Route::Mapped));
        assert_eq!([1, 2, 3, 4, 5].map(|rank| shared.network(rank)), [0, 0, 1, 1, 1], "also of those that are mapped");
    }
}
