//! Atomics on words of segments.
//!
//! All changes of one word are done by one agent, since the processor's atomics and those of network devices are not atomic to each
//! other: in a job over one node by the owner's processor, else by the network, also for ranks of the owner's node and for the
//! owner itself.

use std::sync::Arc;

use super::located::{Located, LookUp};
use super::operation::{apply, check_one_value};
use super::{AtomicElement, Completion, World};
use crate::engine::{Change, Engine, Found, HEAP};
use crate::error::{CalledAt, Error, Result};
use crate::transport::AtomicOp;

/// The name of the operation in errors.
pub(super) const ATOMIC: &str = "an atomic on a segment";

/// An atomic on a word of a segment.
pub(super) enum Begun<T> {
    /// It was done here; the former value.
    Done(T),
    /// The network is to do it at this offset.
    Network(usize, Change),
    /// A message must ask the owner to do it.
    Owner(Change),
}

/// How a word is found: [`World::locate_segment_by`], or, of a reserved segment, `World::locate_reserved`.
pub(super) type Locate = fn(&World, &'static str, (usize, u32), usize, usize, LookUp) -> Result<Located>;

/// Where an atomic on a word of a segment is done.
pub(super) enum Home {
    /// The processor, here.
    Here(*mut u8),
    /// The network, which takes this offset.
    Network(usize),
    /// The owner's processor, which a message asks.
    Owner,
}

impl Home {
    /// Does an atomic, if this processor can. Otherwise tells what has to do it.
    ///
    /// # Safety
    /// A word that is here is valid, aligned and only touched atomically.
    pub(super) unsafe fn begin<T: AtomicElement>(self, op: AtomicOp, [value, compare]: [T; 2]) -> Begun<T> {
        let change = Change { op, width: T::WIDTH, value: value.widen(), compare: compare.widen() };
        match self {
            // SAFETY: the caller's.
            Home::Here(at) => Begun::Done(unsafe { apply(op, at.cast(), value, compare) }),
            Home::Network(remote) => Begun::Network(remote, change),
            Home::Owner => Begun::Owner(change),
        }
    }
}

impl World {
    /// Does an atomic with `value`, not [`AtomicOp::CompareSwap`], on the word at byte `offset` of segment `number` of `rank`, and returns
    /// what it held before. The word has 4 or 8 bytes, as `T` has, and its address in the owner is a multiple of that. Atomic to all
    /// ranks' atomics of that width on the word.
    ///
    /// In a job over one node the owner's processor does it: at once if the word is this rank's own or lies in the symmetric heap or
    /// symmetric static data; else a message asks the owner, which must make progress. The owner itself may then use the
    /// processor's atomics beside these. In a job over several nodes, and on a simulated network, the network does it, also for ranks of
    /// the owner's node, and the owner changes the word by this call only. That takes no progress at the owner if the network has
    /// atomics of that width (`bellwether info`); else the owner must make progress.
    ///
    /// It is in effect on return, after the puts of this rank to `rank`, except that a put which goes by message
    /// ([`World::put_segment`]) may come later in a job over several nodes.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`]; [`Error::NoSegment`]; [`Error::OutOfBounds`]; [`Error::Misaligned`]; [`Error::InvalidArgument`] for a
    /// compare-and-swap, and if the segment is closed meanwhile; [`Error::PeerLost`]; [`Error::InsideHandler`] unless the word is
    /// changed at once.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::AtomicOp;
    /// bellwether::threads(3, |world| {
    ///     let own = world.segment_all(64)?;
    ///     // A ticket from rank 0, and all others' words are different.
    ///     let ticket: u64 = world.fetch_segment(AtomicOp::Add, 0, own.number(), 8, 1)?;
    ///     let mut all = world.allgather(&[ticket])?;
    ///     all.sort();
    ///     assert_eq!(all, [0, 1, 2]);
    ///     own.close()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn fetch_segment<T: AtomicElement>(
        &self,
        op: AtomicOp,
        rank: usize,
        number: u32,
        offset: usize,
        value: T,
    ) -> Result<T> {
        self.engine.at(|| {
            check_one_value(op)?;
            self.change_segment(World::locate_segment_by, op, (rank, number, offset), [value, T::zeroed()])
        })
    }

    /// Stores `new` in the word at byte `offset` of segment `number` of `rank` if that is `expected`, and returns what it held before. As
    /// [`World::fetch_segment`].
    ///
    /// # Errors
    /// As [`World::fetch_segment`].
    #[track_caller]
    pub fn compare_swap_segment<T: AtomicElement>(
        &self,
        rank: usize,
        number: u32,
        offset: usize,
        expected: T,
        new: T,
    ) -> Result<T> {
        let (at, values) = ((rank, number, offset), [new, expected]);
        self.engine.at(|| self.change_segment(World::locate_segment_by, AtomicOp::CompareSwap, at, values))
    }

    /// Does an atomic on a word that `locate` finds, and waits for its result.
    ///
    /// # Errors
    /// As [`World::fetch_segment`].
    pub(super) fn change_segment<T: AtomicElement>(
        &self,
        locate: Locate,
        op: AtomicOp,
        at: (usize, u32, usize),
        values: [T; 2],
    ) -> Result<T> {
        self.end_change(ATOMIC, at, self.begin_change(locate, op, at, values)?)
    }

    /// Waits for the result of an atomic on the word that `at` names.
    ///
    /// # Errors
    /// As [`World::fetch_segment`].
    pub(super) fn end_change<T: AtomicElement>(
        &self,
        doing: &'static str,
        (rank, number, offset): (usize, u32, usize),
        begun: Begun<T>,
    ) -> Result<T> {
        match begun {
            Begun::Done(before) => Ok(before),
            Begun::Network(remote, change) => self.engine.remote_atomic(doing, rank, remote, change).map(T::narrow),
            Begun::Owner(change) => {
                self.engine.check_outside_handler(doing)?;
                let (done, found) = (Completion::new(), Arc::<Found>::default());
                let events = vec![done.event()];
                self.messages.ask_owner(rank, (number, offset), Some(change), Some(Arc::clone(&found)), events)?;
                let mut outcome = None;
                self.engine.wait_until("waiting for an atomic", None, || {
                    outcome = done.outcome();
                    outcome.is_some()
                })?;
                outcome.expect("the wait ends with an outcome")?;
                Ok(T::narrow(found.get().expect("the result comes with the receipt")))
            }
        }
    }

    /// Does an atomic on a word of a segment, if this processor can. Otherwise tells what has to do it.
    ///
    /// # Errors
    /// As [`World::fetch_segment`].
    pub(super) fn begin_change<T: AtomicElement>(
        &self,
        locate: Locate,
        op: AtomicOp,
        (rank, number, offset): (usize, u32, usize),
        values: [T; 2],
    ) -> Result<Begun<T>> {
        let home = self.home_of_word(locate, (rank, number), offset, size_of::<T>())?;
        // SAFETY: an aligned word of an open segment, which stays open until this rank, if it is not the owner, has handled a message.
        Ok(unsafe { home.begin(op, values) })
    }

    /// Finds where an atomic on the word of `width` bytes at `offset` of a segment of `rank` is done.
    fn home_of_word(&self, locate: Locate, (rank, number): (usize, u32), offset: usize, width: usize) -> Result<Home> {
        let operation = ATOMIC;
        self.engine.check_rank(rank, operation)?;
        let by_network = match number {
            HEAP => !self.engine.routes.all_mapped(),
            _ => self.engine.networks.change_segments_of(rank),
        };
        let find = if by_network { Engine::find_over_network } else { Engine::find_segment };
        let Located { address, remote } = locate(self, operation, (rank, number), offset, width, find)?;
        if !address.is_multiple_of(width) {
            return Err(Error::Misaligned { operation, rank, address, alignment: width, place: CalledAt::default() });
        }
        if by_network {
            return Ok(Home::Network(remote));
        }
        let here = if self.engine.node.has_slot(rank) { self.mapped_here(rank, address, width) } else { None };
        Ok(here.map_or(Home::Owner, Home::Here))
    }
}
