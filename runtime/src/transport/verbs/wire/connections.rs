//! Peers: their connections come, break, and are looked after.

use std::sync::Arc;
use std::time::Instant;

use super::outcomes::Data;
use super::{PARTING, VerbsWire};
use crate::transport::error::{Error, Result};
use crate::transport::verbs::address::{interface_of, rank_of};
use crate::transport::verbs::connect::Stage;
use crate::transport::verbs::link::{Link, State, Then};

impl VerbsWire {
    #[inline(always)]
    pub(super) fn link(&self, peer: u32) -> &Link {
        match self.link_or_none(peer) {
            Some(link) => link,
            None => self.add_link(peer),
        }
    }

    #[cold]
    fn add_link(&self, peer: u32) -> &Link {
        let link = self.peers.add(peer, Link::new(&self.flow, self.connector.board.nic.fences()));
        self.refresh(peer, link);
        link
    }

    /// The peer, connected and with room for `requests` more. Its connection is asked for if it has none.
    #[inline(always)]
    pub(super) fn ready(&self, peer: u32, requests: usize) -> Result<&Link> {
        let link = self.link(peer);
        match link.state() {
            State::Connected(_) => {}
            State::Ending(_, error) | State::Lost(error) => return Err(error),
            State::Unconnected => {
                self.ask(peer)?;
                // One to this interface itself is there at once.
                self.refresh(peer, link);
                match link.state() {
                    State::Connected(_) => {}
                    State::Unconnected => {
                        self.room.refuse();
                        return Err(Error::NoResource);
                    }
                    State::Ending(_, error) | State::Lost(error) => return Err(error),
                }
            }
        }
        if link.requests.is_held_back() {
            self.try_release(peer, link)?;
        }
        if !link.requests.has_room(requests) {
            self.read_completions();
            if !self.has_room_for(link, requests) {
                return Err(Error::NoResource);
            }
        }
        Ok(link)
    }

    /// Called when a request waits here after a fence: checks whether the operations that it waits for have ended.
    #[cold]
    fn try_release(&self, peer: u32, link: &Link) -> Result<()> {
        // An atomic without a result reports nothing by itself.
        self.ask_for_report(peer, link);
        self.read_completions();
        match link.error() {
            Some(error) => Err(error),
            None if link.requests.is_held_back() => {
                self.room.refuse();
                Err(Error::NoResource)
            }
            None => Ok(()),
        }
    }

    #[cold]
    pub(super) fn ask(&self, peer: u32) -> Result<()> {
        let address = self.peers.address(peer);
        let Some(address) = address else { return Err(Error::NotConnected) };
        if let Err(error) = self.connector.board.ask(&address) {
            tracing::error!(%error, rank = rank_of(peer), interface = interface_of(peer), "a connection cannot be made");
            self.lose(peer, "making a connection");
            return Err(Error::ConnectionReset);
        }
        Ok(())
    }

    /// Takes over the connections that the connecting thread has changed.
    #[cold]
    pub(super) fn take_over_changes(&self) {
        let links = self.peers.iter();
        for (peer, link) in links {
            self.refresh(peer, link);
        }
    }

    pub(super) fn refresh(&self, peer: u32, link: &Link) {
        let board = &self.connector.board;
        if board.is_broken() {
            return self.lose(peer, "using the network device, which failed or was removed");
        }
        let known = board.with_connection(peer, |connection| {
            connection.map(|connection| (connection.stage, Arc::clone(&connection.pair), connection.mirror.clone()))
        });
        let Some((stage, pair, mirror)) = known else { return };
        match stage {
            Stage::Asking => {}
            Stage::Failed if link.error().is_none() => self.lose(peer, "asking for a connection"),
            Stage::Failed => {}
            Stage::Ready if link.raw() == pair.raw => {}
            // It counts as lost here, and is told. The numbers of a rank's other interfaces go round: if one of them comes again
            // whose connection has ended here, it is another interface.
            Stage::Ready if matches!(link.state(), State::Ending(..)) || is_final(peer, link) => {
                pair.break_off();
                board.forget(peer);
            }
            Stage::Ready => {
                link.forget_loss();
                if !self.losses.are_being_read() {
                    // Reads the frames that came by the connection before.
                    self.read_completions();
                    if link.raw() == pair.raw || link.error().is_some() {
                        return;
                    }
                }
                // Requests in flight on a connection that the peer has given up will not be done.
                if !link.requests.holds(|then| then != Then::Idle) {
                    self.keep_what_came(peer, link);
                    if link.error().is_some() {
                        // The peer sent bytes that no rank sends.
                        return;
                    }
                    link.requests.drain();
                    let pairs = [Some(&pair), mirror.as_ref()].into_iter().flatten();
                    self.peers.lead(peer, pairs.map(|pair| pair.number()));
                    self.take_back(peer, link);
                    link.renew(Some(pair), &self.flow);
                    self.room.gain();
                } else {
                    self.lose(peer, "a connection that the peer gave up");
                }
            }
        }
    }

    /// The peer cannot be reached any more: ends all that is in flight.
    pub(super) fn lose(&self, peer: u32, why: &str) {
        let link = self.link_or_none(peer);
        let Some(link) = link else { return };
        if link.error().is_some() {
            return;
        }
        link.fail(Error::ConnectionReset);
        let host = self.peers.address(peer).map(|address| std::net::Ipv6Addr::from(address.gid));
        let (rank, interface) = (rank_of(peer), interface_of(peer));
        tracing::error!(rank, interface, ?host, why, "the connection to a rank is lost");
        if self.losses.note(peer) {
            self.end(peer, link, Error::ConnectionReset);
        }
    }

    #[inline(always)]
    pub(super) fn link_or_none(&self, peer: u32) -> Option<&Link> {
        self.peers.get(peer)
    }

    /// Takes the connection apart. Requests in flight end with `error`.
    pub(super) fn end(&self, peer: u32, link: &Link, error: Error) {
        link.fail(error);
        link.break_off();
        if !self.losses.are_being_read() {
            self.read_completions();
        }
        self.keep_what_came(peer, link);
        self.connector.board.forget(peer);
        self.peers.lead(peer, std::iter::empty());
        for record in link.requests.drain() {
            self.finish(link, record.then, Err(error));
        }
        self.attempts.forget(peer, |ticket| self.outcomes.push(ticket, Err(error), Data::Word(0)));
        self.take_back(peer, link);
        link.renew(None, &self.flow);
    }

    /// Waits until the device is done with the blocks of `tickets`, which their owner wants back. Breaking the connection
    /// would end that at once, but other endpoints have operations on it: the connection is broken only if the peer does not answer.
    #[cold]
    pub(super) fn await_blocks(&self, peer: u32, tickets: &[u64]) {
        let Some(link) = self.link_or_none(peer) else { return };
        let is_theirs = |then| match then {
            Then::Ticket(ticket) | Then::Read(ticket) | Then::Message { ticket, .. } => tickets.contains(&ticket),
            _ => false,
        };
        let begin = Instant::now();
        while link.requests.holds(is_theirs) {
            if begin.elapsed() > PARTING {
                return self.lose(peer, "it did not end operations whose memory is wanted back");
            }
            if self.read_completions() == 0 {
                rustix::thread::sched_yield();
            }
        }
    }

    /// Lets the device ask peers that nothing is asked of, now and then.
    #[cold]
    pub(super) fn look_after_peers(&self) {
        if !self.care.is_due(Instant::now()) {
            return;
        }
        let links = self.peers.iter();
        for (peer, link) in links {
            if !link.raw().is_null() && link.requests.probe_if_silent() {
                self.ask_for_report(peer, link);
            }
        }
    }

    pub(super) fn peer_of(&self, number: u32) -> Option<u32> {
        if let Some(peer) = self.peers.behind(number) {
            return Some(peer);
        }
        // The peer has asked for a connection, and no code here has looked since.
        let peer = self.connector.board.peer_of(number)?;
        let link = self.link(peer);
        self.refresh(peer, link);
        self.peers.behind(number)
    }
}

/// Whether the peer was lost, and stays so: a rank has its first interface as long as it lives.
fn is_final(peer: u32, link: &Link) -> bool {
    interface_of(peer) == 0 && link.error().is_some()
}
