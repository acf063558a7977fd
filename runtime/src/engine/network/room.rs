//! The messages about room for messages (see [`super::window`]): those that return room, and those that ask for room.

use std::rc::Rc;

use super::window::Load;
use super::{EndpointOf, Network, Peer, ROOM};
use crate::transport::{Confined, Domain, Endpoint, Error as NotNow, Result};

impl<D: Domain + Send + Sync> Network<D>
where
    Rc<D::Interface>: Confined,
    EndpointOf<D>: Confined,
{
    /// Notes room that peers have returned.
    pub(super) fn take_room(&self) {
        if self.returned.borrow().is_empty() {
            return;
        }
        let peers = self.peers.borrow();
        for (from, load) in self.returned.borrow_mut().drain(..) {
            if load == Load::QUESTION {
                self.handled.ask(from);
            } else if let Some(peer) = peers.get(&from) {
                peer.load.set(peer.load.get().without(load));
                peer.asked.set(false);
            }
        }
    }

    /// Called when there is no room for a message to `peer`. Asks the peer for room if it may return none unasked.
    #[cold]
    pub(super) fn ask_for_room(&self, peer: &Peer<EndpointOf<D>>) {
        if !peer.load.get().is_due() && !peer.asked.get() {
            peer.asked.set(self.tell_room(peer, Load::QUESTION).is_ok());
        }
    }

    fn tell_room(&self, peer: &Peer<EndpointOf<D>>, load: Load) -> Result<usize> {
        peer.endpoint.am_bcopy(ROOM, 16, |room| {
            room[..8].copy_from_slice(&(self.rank as u64).to_ne_bytes());
            room[8..16].copy_from_slice(&load.to_word().to_ne_bytes());
            16
        })
    }

    /// Returns room to a sender. `false`: the network takes no message now.
    pub(super) fn return_room(&self, to: usize, load: Load) -> bool {
        let sent = self.with(to, |peer| self.tell_room(peer, load));
        // A peer that counts as lost needs no room. After any other error the return is tried again: the sender may be waiting for this room.
        matches!(sent, Ok(_) | Err(NotNow::ConnectionReset | NotNow::Canceled))
    }
}
