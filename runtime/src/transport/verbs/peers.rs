//! The peers of an interface: their addresses, the state of those that were used, and the queue pairs that lead to them.

use std::cell::{Cell, RefCell};

use super::address::Address;
use super::link::{Link, Numbered};
use super::links::Links;

/// All peers that an interface knows of.
#[derive(Debug, Default)]
pub struct Peers {
    // First field: queue pairs are dropped before the objects that they use.
    links: Links,
    /// The peer that each queue pair leads to.
    leads: RefCell<Numbered<u32>>,
    /// Addresses of peers, for their first use.
    addresses: RefCell<Numbered<Address>>,
    /// Changes of connections that were taken over.
    seen: Cell<u64>,
}

impl Peers {
    /// The state of `peer`, if the peer was used.
    #[inline(always)]
    pub fn get(&self, peer: u32) -> Option<&Link> {
        self.links.get(peer)
    }

    /// Adds a peer that was not used before.
    pub fn add(&self, peer: u32, link: Link) -> &Link {
        self.links.add(peer, link)
    }

    /// All that were used, also those that are added meanwhile.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Link)> {
        self.links.iter()
    }

    /// Notes where `peer` is. Returns whether it was elsewhere before: then it is another interface with the same number.
    pub fn know(&self, peer: u32, address: Address) -> bool {
        self.addresses.borrow_mut().insert(peer, address).is_some_and(|known| known != address)
    }

    /// Where `peer` is.
    pub fn address(&self, peer: u32) -> Option<Address> {
        self.addresses.borrow().get(&peer).copied()
    }

    /// The peer that the queue pair of this number leads to.
    #[inline]
    pub fn behind(&self, pair: u32) -> Option<u32> {
        self.leads.borrow().get(&pair).copied()
    }

    /// These queue pairs lead to `peer`, and no others.
    pub fn lead(&self, peer: u32, pairs: impl Iterator<Item = u32>) {
        let mut leads = self.leads.borrow_mut();
        leads.retain(|_, to| *to != peer);
        leads.extend(pairs.map(|pair| (pair, peer)));
    }

    /// Whether the connections have changed since this was asked last; `changes` counts the changes.
    #[inline(always)]
    pub fn have_changed(&self, changes: u64) -> bool {
        let have_changed = changes != self.seen.get();
        if have_changed {
            self.seen.set(changes);
        }
        have_changed
    }

    /// How many were used.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.links.len()
    }

    /// The numbers of all queue pairs.
    #[cfg(test)]
    pub fn pairs(&self) -> Vec<u32> {
        self.leads.borrow().keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::link::ReadFence;
    use super::super::wire::FLOW;
    use super::*;

    #[test]
    fn queue_pairs_lead_to_the_peer_that_was_connected_last() {
        let peers = Peers::default();
        peers.add(3, Link::new(&FLOW, ReadFence::ByDevice));
        peers.lead(3, [10, 11].into_iter());
        peers.lead(4, [12].into_iter());
        assert_eq!([10, 11, 12, 13].map(|pair| peers.behind(pair)), [Some(3), Some(3), Some(4), None]);
        peers.lead(3, [13].into_iter());
        assert_eq!([10, 11, 12, 13].map(|pair| peers.behind(pair)), [None, None, Some(4), Some(3)]);
        peers.lead(3, std::iter::empty());
        assert_eq!(peers.pairs(), [12]);
        assert!(peers.get(3).is_some() && peers.get(4).is_none(), "a peer that has no connection is still kept");
    }

    #[test]
    fn another_interface_with_a_number_is_noticed() {
        let peers = Peers::default();
        let (gid, mtu) = ([9; 16], 3);
        let first = Address { rank: 3, interface: 0, datagrams: 17, nonce: 5, gid, lid: 0, mtu, link_layer: 2 };
        let second = Address { nonce: 6, ..first };
        assert!(peers.address(3).is_none() && !peers.know(3, first));
        assert!(!peers.know(3, first) && peers.know(3, second));
        assert!(!peers.know(4, first) && peers.address(3) == Some(second));
    }

    #[test]
    fn each_change_is_taken_over_once() {
        let peers = Peers::default();
        assert_eq!([0, 1, 1, 3, 3].map(|changes| peers.have_changed(changes)), [false, true, false, true, false]);
    }
}
