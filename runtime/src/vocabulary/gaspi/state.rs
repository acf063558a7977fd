//! The state of a process between two calls.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use super::codes;
use super::collective::{Inbox, Kind, Name};
use super::config::Config;
use super::groups::Group;
use super::monitor::Partner;
use super::passive::Passive;
use super::print::Printer;
use super::queues::Queue;
use super::segments::number_of;
use super::shared::Shared;
use super::types::{Code, GroupId, QueueId, Rank, Result, SegmentId};
use crate::error::Loss;
use crate::message::id;
use crate::world::{Completion, Fetched, Reading, Segment, World};

/// The kinds of messages, in the low byte of their header. [`header`] sets the higher bytes.
pub(super) mod kind {
    /// A message of a collective: group, kind, number and member of its name, 8 bytes each, and the value.
    pub(in super::super) const COLLECTIVE: u64 = 1;
    /// A part of a passive message: its number, the length of the message, the offset of the part, and the part.
    pub(in super::super) const PASSIVE: u64 = 2;
    /// A passive message was received: its number.
    pub(in super::super) const RECEIVED: u64 = 3;
    /// The receiver is to end.
    pub(in super::super) const KILL: u64 = 4;
    /// The receiver is to print a text: its bytes.
    pub(in super::super) const PRINT: u64 = 5;
    /// The receiver may reach the segment of the sender that the byte names: the number of the request.
    pub(in super::super) const REGISTER: u64 = 6;
    /// The receiver's request with this number is done.
    pub(in super::super) const REGISTERED: u64 = 7;
}

/// The header of a message: its kind, a byte, and the life cycle of the sender.
pub(super) fn header(kind: u64, byte: u8, life: u64) -> u64 {
    kind | u64::from(byte) << 8 | life << 16
}

/// The first `N` words of a message, and the rest.
pub(super) fn words<const N: usize>(bytes: &[u8]) -> Option<([u64; N], &[u8])> {
    let (head, rest) = bytes.split_at_checked(8 * N)?;
    let word = |i: usize| u64::from_ne_bytes(head[8 * i..8 * i + 8].try_into().expect("eight bytes"));
    Some((std::array::from_fn(word), rest))
}

/// A segment of this process.
pub(super) struct Owned {
    pub(super) memory: Segment,
    /// Its notifications.
    pub(super) notes: Segment,
    pub(super) size: u64,
    /// Its creation waits for the barrier of this group.
    pub(super) pending: Option<GroupId>,
    /// The requests to register it, by rank: their numbers, `None` when done.
    pub(super) registered: BTreeMap<usize, Option<u64>>,
}

/// An atomic operation: rank, segment, offset, and what is done.
pub(super) type AtomicKey = (Rank, SegmentId, u64, [u64; 3]);

/// The messages and answers that have come for this process, written by handlers.
#[derive(Default)]
pub(super) struct Arrivals {
    pub(super) life: Cell<u64>,
    pub(super) collectives: RefCell<Inbox>,
    pub(super) passive: RefCell<Passive>,
    /// Prints texts that came.
    printer: RefCell<Printer>,
    /// Numbers of requests to register a segment that are done, and that no call has heard of yet.
    pub(super) registered: RefCell<BTreeSet<u64>>,
    /// The number of the next of these requests.
    pub(super) requests: Cell<u64>,
}

/// All that a process knows.
pub(super) struct State {
    pub(super) config: Config,
    /// In the working phase.
    pub(super) works: bool,
    /// Between the first call of `proc_init` and its end.
    pub(super) starts: bool,
    pub(super) segments: BTreeMap<SegmentId, Owned>,
    /// Segments that are deleted, and that peers may still use.
    pub(super) closing: BTreeMap<SegmentId, Owned>,
    /// Queues that are gone, and what they have in flight: by their numbers.
    pub(super) retired: Vec<(Option<QueueId>, Queue)>,
    /// Between the first call of `proc_term` and its end.
    pub(super) ends: bool,
    pub(super) groups: BTreeMap<GroupId, Group>,
    /// Groups of the same ranks so far, by the digest of the ranks.
    pub(super) commits: BTreeMap<u64, u64>,
    pub(super) shared: Arc<Shared>,
    /// Atomic operations whose calls ran into their time limits.
    pub(super) atomics: BTreeMap<AtomicKey, VecDeque<(Completion, Fetched<u64>)>>,
    /// Pieces that calls had asked for when their time was over: they stay until the answers have come.
    pub(super) unread: Vec<Reading>,
    /// Look-ups of segments for the world's own operations, by rank and number, whose calls ran into their time limits.
    pub(super) look_ups: BTreeMap<(usize, u32), Option<u64>>,
    /// Passive messages whose calls ran into their time limits: rank, segment, offset, size; their numbers.
    pub(super) sends: BTreeMap<(Rank, SegmentId, u64, u64), VecDeque<u64>>,
    pub(super) arrivals: Rc<Arrivals>,
}

impl State {
    pub(super) fn new(world: &World, shared: Arc<Shared>) -> State {
        let arrivals = Rc::new(Arrivals::default());
        let (own, known, engine) = (Rc::clone(&arrivals), Arc::clone(&shared), Rc::downgrade(world.engine()));
        world.messages().set_handler(id::GASPI, move |_, message| {
            let from = message.from;
            match own.take(from, message.data(), &known) {
                Some(None) => {}
                Some(Some((header, number))) => {
                    if let Some(engine) = engine.upgrade() {
                        engine.send_unasked(from, id::GASPI, header, &number.to_ne_bytes());
                    }
                }
                None => tracing::warn!(from, "a GASPI message that no process sends was dropped"),
            }
        });
        State {
            config: Config::default(),
            works: false,
            starts: false,
            segments: BTreeMap::new(),
            closing: BTreeMap::new(),
            retired: Vec::new(),
            ends: false,
            groups: BTreeMap::new(),
            commits: BTreeMap::new(),
            shared,
            atomics: BTreeMap::new(),
            unread: Vec::new(),
            look_ups: BTreeMap::new(),
            sends: BTreeMap::new(),
            arrivals,
        }
    }

    /// # Errors
    /// [`codes::NOINIT`].
    pub(super) fn check_works(&self) -> Result<()> {
        if self.works { Ok(()) } else { Err(Code(codes::NOINIT)) }
    }

    /// Goes on with the end of queues that are gone. Whether no queue of this number, or of any, is left.
    pub(super) fn retire(&mut self, of: Option<QueueId>) -> bool {
        self.retired.retain(|(_, queue)| !queue.is_over());
        !self.retired.iter().any(|(id, _)| of.is_none_or(|of| Some(of) == *id))
    }

    /// Notes which process of `partner` is lost, if one is.
    pub(super) fn lose(&mut self, world: &World, partner: &Partner<'_>) -> Option<()> {
        let loss = |rank: &usize| world.engine().job.loss(*rank);
        let lost = match *partner {
            Partner::Ranks(ranks) => *ranks.iter().find(|rank| loss(rank).is_some())?,
            Partner::Members(ranks, group, kind) => {
                let died = ranks.iter().find(|rank| loss(rank).is_some_and(|loss| loss != Loss::Left));
                if died.is_none() {
                    let left = ranks.iter().filter(|rank| loss(rank).is_some());
                    if let Some(group) = self.groups.get_mut(&group) {
                        left.for_each(|rank| group.note_left(kind, *rank));
                    }
                }
                *died?
            }
            Partner::Any | Partner::None => return None,
        };
        self.shared.corrupt(lost);
        Some(())
    }

    /// # Errors
    /// [`codes::INV_RANK`]; [`codes::ERROR`] if it is lost.
    pub(super) fn check_partner(&mut self, world: &World, rank: Rank) -> Result<usize> {
        let rank = usize::from(rank);
        if rank >= world.size() {
            return Err(Code(codes::INV_RANK));
        }
        match self.lose(world, &Partner::Ranks(&[rank])) {
            None => Ok(rank),
            Some(()) => Err(Code(codes::ERROR)),
        }
    }

    /// Goes on with the look-up of a segment of another process, without waiting: whether there is one; `None` while it is in flight.
    pub(super) fn look_up(
        &mut self,
        world: &World,
        doing: &'static str,
        (rank, segment): (usize, SegmentId),
    ) -> Option<Result<bool>> {
        let place = (rank, number_of(segment));
        let mut ticket = self.look_ups.remove(&place).flatten();
        let found = world.engine().begin_find(doing, rank, place.1, &mut ticket);
        // A copy of the table has ended: other look-ups there that waited for it may come after a segment was made.
        if ticket.is_some() && !matches!(found, Ok(None)) {
            self.look_ups.retain(|(other, _), _| *other != rank);
        }
        match found {
            Ok(None) => {
                self.look_ups.insert(place, ticket);
                None
            }
            Ok(Some(found)) => Some(Ok(found)),
            Err(error) => Some(Err(self.failed(&error, rank))),
        }
    }

    /// Ends a process, unless it is gone.
    ///
    /// # Errors
    /// [`codes::ERROR`].
    pub(super) fn kill(&self, world: &World, rank: usize) -> Result<()> {
        let job = &world.engine().job;
        if job.loss(rank).is_some() {
            return Ok(());
        }
        if !job.is_here(rank) {
            self.tell(world, rank, kind::KILL, 0, &[]);
            return Ok(());
        }
        let pid = job.pid(rank);
        if pid == std::process::id() {
            tracing::warn!(rank, "proc_kill: that rank is a thread of this process, which cannot be ended alone");
            return Err(Code(codes::ERROR));
        }
        let pid = rustix::process::Pid::from_raw(pid as i32).ok_or(Code(codes::ERROR))?;
        // Gone meanwhile is as good.
        match rustix::process::kill_process(pid, rustix::process::Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => {
                tracing::warn!(rank, %error, "proc_kill: the system does not let this process end that one");
                Err(Code(codes::ERROR))
            }
        }
    }

    /// The code of an error of an operation with this rank.
    #[cold]
    pub(super) fn failed(&mut self, error: &crate::Error, rank: usize) -> Code {
        if let crate::Error::PeerLost { rank: lost, .. } = error
            && *lost == rank
        {
            self.shared.corrupt(rank);
        }
        Code(codes::of_error(error))
    }

    /// As [`State::tell`], unless `message_memory` bytes wait to be sent already.
    ///
    /// # Errors
    /// [`codes::QUEUE_FULL`].
    pub(super) fn tell_if_room(&self, world: &World, to: usize, kind: u64, payload: &[u8]) -> Result<()> {
        let engine = world.engine();
        if engine.outbox.keeps_for(to) {
            engine.turn();
            if engine.outbox.keeps_for(to)
                && engine.outbox.check_room("a text for another process", to, payload.len()).is_err()
            {
                return Err(Code(codes::QUEUE_FULL));
            }
        }
        self.tell(world, to, kind, 0, payload);
        Ok(())
    }

    /// Sends a message of a kind, now or in a later poll, after all that was sent and put there before.
    pub(super) fn tell(&self, world: &World, to: usize, kind: u64, byte: u8, payload: &[u8]) {
        world.engine().send_unasked(to, id::GASPI, header(kind, byte, self.arrivals.life.get()), payload);
    }
}

impl Arrivals {
    /// Waits until all texts that have come are printed.
    pub(super) fn print_all(&self) {
        drop(self.printer.take());
    }

    /// Takes a message; `None` if it is none of ours. The header and the number of an answer, if there is one.
    fn take(&self, from: usize, bytes: &[u8], shared: &Shared) -> Option<Option<(u64, u64)>> {
        let ([header], rest) = words::<1>(bytes)?;
        let (byte, life) = ((header >> 8) as u8, header >> 16);
        match header & 0xFF {
            kind::COLLECTIVE => {
                let ([group, kind, number, member], value) = words::<4>(rest)?;
                let kind = Kind::from_number(kind)?;
                let name = Name { group, kind, number, from: member, is_up: byte != 0 };
                self.collectives.borrow_mut().insert(name, value.to_vec());
            }
            // Not here: the standard output may take its time, and the lock of the process is held.
            kind::PRINT => self.printer.borrow_mut().print(rest),
            // Of an earlier life cycle.
            _ if life != self.life.get() => {}
            kind::PASSIVE => {
                let ([number, len, offset], part) = words::<3>(rest)?;
                self.passive.borrow_mut().arrive(from, number, len, offset, part)?;
            }
            kind::RECEIVED => {
                let ([number], _) = words::<1>(rest)?;
                self.passive.borrow_mut().received(number);
            }
            kind::REGISTER => {
                let ([number], _) = words::<1>(rest)?;
                shared.register(from, byte);
                return Some(Some((self::header(kind::REGISTERED, 0, life), number)));
            }
            kind::REGISTERED => {
                let ([number], _) = words::<1>(rest)?;
                self.registered.borrow_mut().insert(number);
            }
            kind::KILL => {
                tracing::error!(from, "another process ends this one");
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
            _ => return None,
        }
        Some(None)
    }
}
