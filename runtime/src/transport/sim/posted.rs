//! Puts, gets and atomics that a simulated NIC does by itself, each at its own time, whatever its rank does meanwhile: as a
//! network device does.

use std::collections::VecDeque;

use super::network::{Event, State};
use super::pins::check_key;
use crate::memory::copy::copy;
use crate::transport::Order;
use crate::transport::atomic::Atomic;
use crate::transport::error::{Error, Result};
use crate::transport::iov::Piece;
use crate::transport::key::RemoteKey;
use crate::transport::wire::{Completed, Direction};

/// Operations in flight at a NIC, with those whose end its rank has not taken yet.
const DEPTH: usize = 8;
/// Notices that a NIC takes before its rank has.
const NOTICES: usize = 4;
/// Most blocks of one operation.
pub(super) const MAX_PIECES: usize = 2;

#[derive(Debug)]
pub(super) enum Post {
    Put(Vec<u8>),
    /// A put, and a notice after it and all before it.
    Notify(Vec<u8>, u32),
    Pieces(Direction, Blocks),
    Fetch(usize),
    Atomic(Atomic),
    /// A message of so many bytes, which the network carries by itself.
    Message(usize),
}

impl Post {
    fn len(&self) -> usize {
        match self {
            Post::Put(bytes) | Post::Notify(bytes, _) => bytes.len(),
            Post::Pieces(_, blocks) => blocks.0.iter().map(|piece| piece.len).sum(),
            Post::Fetch(len) | Post::Message(len) => *len,
            Post::Atomic(atomic) => atomic.width as usize,
        }
    }
}

/// Memory of the poster's.
#[derive(Debug)]
pub(super) struct Blocks(pub(super) Vec<Piece>);

// SAFETY:
// - a block is an address, a length and a number, which mean the same to every thread of this process;
// - only `perform` touches what they name, under the network's lock; the poster keeps it until the ticket comes back.
unsafe impl Send for Blocks {}

#[derive(Debug)]
struct Operation {
    number: u32,
    peer: u32,
    /// A key of the peer's, and an address there; none for messages.
    at: Option<(RemoteKey, u64)>,
    post: Post,
    ticket: Option<u64>,
}

#[derive(Debug)]
struct Ended {
    ticket: u64,
    outcome: Result<()>,
    data: Vec<u8>,
}

/// What a NIC has in flight, and what of it has ended.
#[derive(Debug, Default)]
pub(super) struct Posts {
    flying: Vec<Operation>,
    ended: VecDeque<Ended>,
    posted: u32,
    /// Notices on their way to this NIC, and those that its rank has not taken.
    pub(super) notices_due: usize,
}

impl Posts {
    pub(super) fn has_room(&self) -> bool {
        self.flying.len() + self.ended.len() < DEPTH
    }

    /// Whether its rank has yet to take the end of something.
    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.flying.is_empty()
    }

    /// Operations posted so far.
    pub(super) fn posted(&self) -> u32 {
        self.posted
    }

    /// Whether none of the first `count` that went to `peer` is in flight.
    pub(super) fn done(&self, peer: u32, count: u32) -> bool {
        !self.flying.iter().any(|operation| operation.peer == peer && operation.number < count)
    }

    /// Stops what uses blocks of the poster's: with one of these tickets to `peer`.
    pub(super) fn abandon(&mut self, peer: u32, tickets: &[u64]) {
        let is_one = |of: &Operation| of.peer == peer && of.ticket.is_some_and(|ticket| tickets.contains(&ticket));
        self.flying.retain(|operation| !is_one(operation));
    }

    /// Nobody takes the ends any more. What uses blocks of the poster's is stopped; the rest is still done.
    pub(super) fn close(&mut self) {
        self.flying.retain(|operation| !matches!(operation.post, Post::Pieces(..)));
        self.flying.iter_mut().for_each(|operation| operation.ticket = None);
        self.ended.clear();
    }

    fn end(&mut self, operation: &Operation, outcome: Result<()>, data: Vec<u8>) {
        self.ended.extend(operation.ticket.map(|ticket| Ended { ticket, outcome, data }));
    }

    /// Takes what has ended.
    pub(super) fn take_ended(&mut self) -> Tickets {
        Tickets(std::mem::take(&mut self.ended))
    }
}

/// Operations that have ended.
pub(super) struct Tickets(VecDeque<Ended>);

impl Tickets {
    /// Hands them to `sink`; tells how many.
    pub(super) fn tell(self, sink: &mut dyn FnMut(Completed<'_>)) -> usize {
        let count = self.0.len();
        for Ended { ticket, outcome, data } in self.0 {
            sink(Completed { ticket, outcome, data: &data });
        }
        count
    }
}

impl State {
    /// Starts an operation of `nic`. It is done some time later: after what was posted to `peer` before, if the order is
    /// that of posting or a fence is between them.
    pub(super) fn start(
        &mut self,
        (nic, peer): (u32, u32),
        at: Option<(&RemoteKey, u64)>,
        post: Post,
        ticket: Option<u64>,
    ) -> Result<()> {
        self.check(nic, peer)?;
        let notifies = matches!(post, Post::Notify(..));
        let is_full = notifies && self.nics[peer as usize].posts.notices_due >= NOTICES;
        if is_full || !self.nics[nic as usize].posts.has_room() {
            return Err(Error::NoResource);
        }
        let arrives = self.arrival(nic, peer, post.len());
        let in_order = notifies || self.config.order == Order::Posted;
        let link = self.nics[nic as usize].links.entry(peer).or_default();
        let time = arrives.max(if in_order { link.latest } else { link.fenced });
        link.latest = link.latest.max(time);
        self.nics[peer as usize].posts.notices_due += usize::from(notifies);
        let posts = &mut self.nics[nic as usize].posts;
        let number = posts.posted;
        posts.posted += 1;
        let at = at.map(|(key, remote)| (*key, remote));
        posts.flying.push(Operation { number, peer, at, post, ticket });
        self.schedule(time, Event::Posted { nic, number });
        Ok(())
    }

    /// Does an operation, if it is still to be done; tells which rank that matters to.
    pub(super) fn operate(&mut self, nic: u32, number: u32) -> u32 {
        let flying = &self.nics[nic as usize].posts.flying;
        let Some(at) = flying.iter().position(|operation| operation.number == number) else {
            return self.rank_of(nic);
        };
        let peer = flying[at].peer;
        if self.parted(nic, peer) {
            self.held.push(Event::Posted { nic, number });
            return self.rank_of(peer);
        }
        if !self.is_dead(nic) && self.is_cut(nic, peer) {
            // Ends when the loss is known.
            return self.rank_of(peer);
        }
        let operation = self.nics[nic as usize].posts.flying.remove(at);
        let mut data = Vec::new();
        let outcome =
            if self.is_dead(nic) { Err(Error::ConnectionReset) } else { perform(self, &operation, &mut data) };
        match operation.post {
            Post::Notify(_, notice) if outcome.is_ok() => self.nics[peer as usize].notices.push_back(notice),
            Post::Notify(..) => self.nics[peer as usize].posts.notices_due -= 1,
            _ => {}
        }
        self.nics[nic as usize].posts.end(&operation, outcome, data);
        self.announce(peer);
        self.announce(nic);
        self.signalled.push(self.rank_of(nic));
        self.rank_of(peer)
    }

    /// Ends what `nic` has in flight to a `peer` that it has lost.
    pub(super) fn end_posted(&mut self, nic: u32, peer: u32, error: Error) {
        let flying = std::mem::take(&mut self.nics[nic as usize].posts.flying);
        let (lost, others): (Vec<_>, Vec<_>) = flying.into_iter().partition(|operation| operation.peer == peer);
        let notices = lost.iter().filter(|operation| matches!(operation.post, Post::Notify(..))).count();
        self.nics[peer as usize].posts.notices_due -= notices;
        let posts = &mut self.nics[nic as usize].posts;
        posts.flying = others;
        lost.iter().for_each(|operation| posts.end(operation, Err(error), Vec::new()));
    }
}

fn perform(state: &State, operation: &Operation, data: &mut Vec<u8>) -> Result<()> {
    let Operation { peer, at, post, .. } = operation;
    let Some((key, remote)) = at else { return Ok(()) };
    check_key(key, *peer)?;
    let len = post.len();
    let at = state.nics[*peer as usize].registry.resolve(key.id, *remote, len)?;
    let mut offset = 0;
    // SAFETY: registered memory of this process, as just resolved; the poster guarantees the blocks until its ticket is back.
    unsafe {
        match post {
            Post::Put(bytes) | Post::Notify(bytes, _) => copy(at, bytes.as_ptr(), len),
            Post::Fetch(_) => {
                data.resize(len, 0);
                copy(data.as_mut_ptr(), at, len);
            }
            Post::Pieces(direction, blocks) => {
                for piece in &blocks.0 {
                    match direction {
                        Direction::Put => copy(at.add(offset), piece.pointer, piece.len),
                        Direction::Get => copy(piece.pointer, at.add(offset), piece.len),
                    }
                    offset += piece.len;
                }
            }
            Post::Atomic(atomic) => data.extend_from_slice(&atomic.perform(at).to_le_bytes()),
            Post::Message(_) => {}
        }
    }
    Ok(())
}
