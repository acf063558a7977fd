//! Puts, gets and atomics that a simulated NIC does by itself, each at its own time, independent of its rank's progress: as a
//! network device does.

use std::collections::{BTreeMap, VecDeque};

use super::network::{Event, State};
use super::pins::check_key;
use crate::memory::copy::copy;
use crate::transport::Order;
use crate::transport::atomic::{Atomic, AtomicOp};
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
    /// A put, and a notice that is delivered after this put and all earlier ones.
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
// - only `perform` touches their memory, under the network's lock; the poster keeps that memory until the ticket comes back.
unsafe impl Send for Blocks {}

#[derive(Debug)]
struct Operation {
    number: u32,
    peer: u32,
    /// A key of the peer's, and an address there; none for messages.
    at: Option<(RemoteKey, u64)>,
    post: Post,
    ticket: Option<u64>,
    /// The former value of an atomic's word, once the target's NIC has read it; the NIC writes the result back later.
    fetched: Option<u64>,
}

/// A word that a NIC has read for atomics, and the value that it will write back. Changes by the processor between the two are lost: the
/// atomics of a network device are not atomic to those of the processor.
#[derive(Debug)]
struct WordInUse {
    at: (RemoteKey, u64),
    atomic: Atomic,
    /// How many atomics on it have not ended.
    under_way: usize,
}

/// Why a word is written back.
#[derive(Debug, Clone, Copy)]
enum WriteBack {
    /// An atomic on it has ended.
    Ended,
    /// An operation is about to read or change so many bytes there, or the next operation may be ordered behind the atomics.
    Touched(usize),
}

#[derive(Debug)]
struct Ended {
    ticket: u64,
    outcome: Result<()>,
    data: Vec<u8>,
}

/// The operations of a NIC that are in flight, and those that have ended.
#[derive(Debug, Default)]
pub(super) struct Posts {
    flying: Vec<Operation>,
    ended: VecDeque<Ended>,
    posted: u32,
    /// Words of this NIC's rank that are not written back, by address.
    words: BTreeMap<u64, WordInUse>,
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

    fn abandon(&mut self, peer: u32, tickets: &[u64]) -> Vec<Operation> {
        let is_one = |of: &mut Operation| of.peer == peer && of.ticket.is_some_and(|ticket| tickets.contains(&ticket));
        self.flying.extract_if(.., is_one).collect()
    }

    /// After this the rank takes no ends. Operations that use blocks of the poster's memory are stopped; the others are still done.
    pub(super) fn close(&mut self) {
        self.flying.retain(|operation| !matches!(operation.post, Post::Pieces(..)));
        self.flying.iter_mut().for_each(|operation| operation.ticket = None);
        self.ended.clear();
    }

    fn end(&mut self, operation: &Operation, outcome: Result<()>, data: Vec<u8>) {
        self.ended.extend(operation.ticket.map(|ticket| Ended { ticket, outcome, data }));
    }

    /// Takes the operations that have ended.
    pub(super) fn take_ended(&mut self) -> Tickets {
        Tickets(std::mem::take(&mut self.ended))
    }
}

/// Operations that have ended.
pub(super) struct Tickets(VecDeque<Ended>);

impl Tickets {
    /// Hands them to `sink`. Returns how many.
    pub(super) fn tell(self, sink: &mut dyn FnMut(Completed<'_>)) -> usize {
        let count = self.0.len();
        for Ended { ticket, outcome, data } in self.0 {
            sink(Completed { ticket, outcome, data: &data });
        }
        count
    }
}

impl State {
    /// Starts an operation of `nic`. It is done some time later: after earlier operations on `peer`, if the order is
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
        posts.flying.push(Operation { number, peer, at, post, ticket, fetched: None });
        self.schedule(time, Event::Posted { nic, number });
        Ok(())
    }

    /// Does an operation, if it is still to be done. Returns the rank to which that matters.
    pub(super) fn operate(&mut self, nic: u32, number: u32) -> u32 {
        let flying = &self.nics[nic as usize].posts.flying;
        let Some(at) = flying.iter().position(|operation| operation.number == number) else {
            return self.rank_of(nic);
        };
        let peer = flying[at].peer;
        if let (Some(_), Some((_, address))) = (flying[at].fetched, flying[at].at) {
            self.write_back(peer, address, WriteBack::Ended);
        }
        if self.parted(nic, peer) {
            self.held.push(Event::Posted { nic, number });
            return self.rank_of(peer);
        }
        if !self.is_dead(nic) && self.is_cut(nic, peer) {
            // Ends when the loss is known.
            return self.rank_of(peer);
        }
        if let Some(fetched) = self.fetch(nic, at) {
            self.nics[nic as usize].posts.flying[at].fetched = Some(fetched);
            self.schedule(self.now + self.config.latency.max(self.config.jitter), Event::Posted { nic, number });
            return self.rank_of(peer);
        }
        let operation = self.nics[nic as usize].posts.flying.remove(at);
        // A fence, or the order of posting, may put these atomics before this operation.
        let halves =
            self.nics[nic as usize].posts.flying.iter().filter(|half| half.peer == peer && half.fetched.is_some());
        let words: Vec<u64> = halves.filter_map(|half| Some(half.at?.1)).collect();
        words.into_iter().for_each(|word| self.write_back(peer, word, WriteBack::Touched(1)));
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

    /// The first half of an atomic: the target's NIC reads the word. Returns the value, or `None` if the operation is not an atomic whose
    /// word is to be read now.
    fn fetch(&mut self, nic: u32, index: usize) -> Option<u64> {
        let operation = &self.nics[nic as usize].posts.flying[index];
        let (Post::Atomic(atomic), Some(at), None) = (&operation.post, operation.at, operation.fetched) else {
            return None;
        };
        let (atomic, peer) = (*atomic, operation.peer);
        // An atomic that cannot be done fails in `perform`.
        let from = resolve(self, peer, &at, atomic.width as usize).ok().filter(|_| !self.is_dead(nic))?;
        let address = at.1;
        if self.nics[peer as usize].posts.words.get(&address).is_none_or(|word| word.atomic.width != atomic.width) {
            self.write_back(peer, address, WriteBack::Touched(atomic.width as usize));
        }
        // SAFETY: an aligned word of registered memory of this process, as just resolved.
        let read = || unsafe { Atomic { op: AtomicOp::Or, value: 0, ..atomic }.perform(from) };
        let words = &mut self.nics[peer as usize].posts.words;
        let (fetched, under_way) =
            words.get(&address).map_or_else(|| (read(), 0), |word| (word.atomic.value, word.under_way));
        let atomic = Atomic { op: AtomicOp::Swap, value: atomic.apply(fetched), ..atomic };
        words.insert(address, WordInUse { at, atomic, under_way: under_way + 1 });
        Some(fetched)
    }

    /// The NIC of `peer` writes back words that it has read for atomics, as `why` says.
    fn write_back(&mut self, peer: u32, address: u64, why: WriteBack) {
        let bytes = if let WriteBack::Touched(bytes) = why { bytes as u64 } else { 1 };
        let end = address.saturating_add(bytes);
        let words = std::mem::take(&mut self.nics[peer as usize].posts.words);
        for (start, mut word) in words {
            let width = word.atomic.width as usize;
            let is_meant = start < end && address < start + width as u64;
            if is_meant && let Ok(to) = resolve(self, peer, &word.at, width) {
                // SAFETY: an aligned word of registered memory of this process, as just resolved.
                unsafe { word.atomic.perform(to) };
            }
            let is_kept = match why {
                _ if !is_meant => true,
                WriteBack::Touched(_) => false,
                WriteBack::Ended => {
                    word.under_way -= 1;
                    // The others go on with the NIC's value, even if the processor has changed the word.
                    word.under_way > 0
                }
            };
            if is_kept {
                self.nics[peer as usize].posts.words.insert(start, word);
            }
        }
    }

    /// Ends the first halves of atomics that have no second one.
    fn give_up(&mut self, dropped: &[Operation]) {
        for Operation { peer, at, fetched, .. } in dropped {
            if let (Some((_, address)), Some(_)) = (at, fetched) {
                self.write_back(*peer, *address, WriteBack::Ended);
            }
        }
    }

    /// Stops operations to `peer` with one of these tickets, which use blocks of the poster's.
    pub(super) fn abandon(&mut self, nic: u32, peer: u32, tickets: &[u64]) {
        let dropped = self.nics[nic as usize].posts.abandon(peer, tickets);
        self.give_up(&dropped);
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
        self.give_up(&lost);
    }
}

/// The address of `len` bytes of `peer`'s memory.
fn resolve(state: &State, peer: u32, (key, remote): &(RemoteKey, u64), len: usize) -> Result<*mut u8> {
    check_key(key, peer)?;
    state.nics[peer as usize].registry.resolve(key.id, *remote, len)
}

fn perform(state: &mut State, operation: &Operation, data: &mut Vec<u8>) -> Result<()> {
    let Operation { peer, at, post, .. } = operation;
    let Some(at) = at else { return Ok(()) };
    let len = post.len();
    let remote = at.1;
    let at = resolve(state, *peer, at, len)?;
    if operation.fetched.is_none() {
        // One device does all operations, one after the other.
        state.write_back(*peer, remote, WriteBack::Touched(len));
    }
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
            Post::Atomic(_) => {
                let fetched = operation.fetched.expect("an atomic that can be done was read first");
                data.extend_from_slice(&fetched.to_le_bytes());
            }
            Post::Message(_) => {}
        }
    }
    Ok(())
}
