//! Peers for which something waits to be sent: messages, credits, frames about rings.

use std::cell::RefCell;

/// Peers to serve in the next poll, each once, first come first.
#[derive(Debug, Default)]
pub struct Backlog(RefCell<Vec<u32>>);

impl Backlog {
    pub fn note(&self, peer: u32) {
        let mut peers = self.0.borrow_mut();
        if !peers.contains(&peer) {
            peers.push(peer);
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Takes all noted peers. A peer that is noted after this is served in the next poll.
    pub fn take(&self) -> Vec<u32> {
        self.0.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_is_served_once_a_poll() {
        let backlog = Backlog::default();
        [3, 1, 3, 2, 1].into_iter().for_each(|peer| backlog.note(peer));
        let peers = backlog.take();
        assert!(backlog.is_empty());
        // One of them still has something to send.
        backlog.note(3);
        assert_eq!((peers, backlog.take()), (vec![3, 1, 2], vec![3]));
    }
}
