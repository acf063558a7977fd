//! Segments through contexts.
//!
//! Each context has a copy of remote tables of its own, as it has an interface of its own. Where memory is mapped it reads its owner's table.
//! When an owner closes a segment, the rank's own thread answers for all contexts: those with an interface forget the segment, and a
//! flush of each comes before the answer. A context that reads a mapped table says so by its [`Using`]: a count that is odd meanwhile.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{Arc, Weak};

use super::super::addresses::BY_ADDRESS;
use super::super::mapped_segments::{Attached, MappedSegments, Memo};
use super::super::operation::{Change, Event, HeapRange, Operation};
use super::super::remote_access::Answer;
use super::super::reserved_segments::HEAP;
use super::super::segments::{ADDRESS, Answering, Found};
use super::wait::Ends;
use super::{Engine, Shared, Stream};
use crate::error::{CalledAt, Error, Result};
use crate::memory::copy;
use crate::memory::layout::SEGMENTS_FIRST;
use crate::memory::outside::Direction;
use crate::sleep;
use crate::transport::lock::Mutex;

/// Whether a context is between a look-up in a mapped table and the end of the access that the look-up was for.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Using {
    /// Odd while it is. One thread at a time writes the count.
    count: AtomicU64,
    /// The thread that asks runs a barrier on this process's cores, so no fence is needed here.
    asymmetric: bool,
}

/// A use that lasts until this is dropped.
pub(crate) struct InUse<'a>(&'a Using, u64);

impl Using {
    #[inline(always)]
    pub(super) fn begin(&self) -> InUse<'_> {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
        // Pairs with the barrier or the fence in `Users::wait`: this thread finds the entry cleared, or is found.
        if self.asymmetric {
            compiler_fence(Ordering::SeqCst)
        } else {
            fence(Ordering::SeqCst)
        }
        InUse(self, count + 2)
    }
}

impl Drop for InUse<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Pairs with the Acquire load in `Users::wait`.
        self.0.count.store(self.1, Ordering::Release);
    }
}

/// The contexts of a rank that may use mapped segments.
#[derive(Debug, Default)]
pub(super) struct Users(Mutex<Vec<Weak<Using>>>);

impl Users {
    pub(super) fn add(&self) -> Arc<Using> {
        let using = Arc::new(Using { count: AtomicU64::new(0), asymmetric: sleep::has_barrier() });
        let mut all = self.0.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&using));
        using
    }

    /// Waits until each use that was under way has ended. A use lasts for one copy at most, and does not wait for other threads or ranks.
    pub(super) fn wait(&self) {
        let all: Vec<Arc<Using>> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        if all.is_empty() {
            return;
        }
        // Pairs with the fence in `Using::begin`.
        if all.iter().all(|using| using.asymmetric) {
            sleep::run_barrier()
        } else {
            fence(Ordering::SeqCst)
        }
        for using in all {
            let count = using.count.load(Ordering::Acquire);
            while count % 2 == 1 && using.count.load(Ordering::Acquire) == count {
                rustix::thread::sched_yield();
            }
        }
    }
}

/// A close by an owner that waits for operations of this rank's contexts, or, if the answer goes through a lane, of this rank itself.
#[derive(Debug)]
pub(in super::super) struct Leaving {
    pub(in super::super) answer: Answering,
    /// The flush of the rank's own interface, if one is needed.
    pub(in super::super) own: Option<Flush>,
    streams: Vec<(Arc<Stream>, Flush)>,
}

/// A flush that is to be posted, or is.
pub(in super::super) type Flush = Option<Arc<Answer>>;

impl Leaving {
    pub(in super::super) fn is_done(&self) -> bool {
        self.own.is_none() && self.streams.is_empty()
    }

    /// Advances the flushes of the contexts. Returns whether all is done.
    pub(in super::super) fn go_on(&mut self) -> bool {
        let Answering { owner, number, generation, .. } = self.answer;
        self.streams.retain_mut(|(stream, flush)| {
            let Some(mut driven) = stream.try_driven() else { return true };
            // The context was dropped meanwhile.
            if driven.networks.is_empty() {
                return false;
            }
            if flush.is_none() {
                // Puts that wait for room were accepted before.
                if driven.kept.contains_key(&owner) {
                    driven.turn(stream);
                    return true;
                }
                let network = driven.networks.to(owner);
                network.forget(owner, number, generation);
                if !network.holds_of(owner) {
                    return false;
                }
                match network.flush_connection(owner, true) {
                    Ok(posted) => *flush = posted,
                    // Nothing reaches that rank any more.
                    Err(_) => return false,
                }
            }
            driven.turn(stream);
            flush.as_ref().is_none_or(|answer| answer.outcome().is_none())
        });
        self.is_done()
    }
}

impl Shared {
    /// The flushes that have to end before an owner is told that this rank no longer uses a segment.
    pub(super) fn leave(&self, answer: Answering, own: Option<Flush>) -> Leaving {
        self.users.wait();
        let streams = self.siblings.all().into_iter().map(|stream| (stream, None)).collect();
        Leaving { answer, own, streams }
    }
}

/// How bytes of a segment are found: [`Stream::locate_segment`] or [`Stream::locate_plainly`], or, of a reserved segment, [`Stream::locate_reserved`], or, by their
/// address, [`Stream::locate_address`]. Takes the name of the operation for errors; rank and number of the segment; offset and length; and whether the network is to reach the bytes also where they
/// are mapped.
pub(crate) type Locate = for<'a> fn(&'a Stream, &'static str, (usize, u32), usize, usize, bool) -> Result<Access<'a>>;

/// How bytes of a segment are reached.
pub(crate) enum Access<'a> {
    /// Here, as long as the use lasts.
    Here(*mut u8, InUse<'a>),
    /// At this address of a rank whose memory is mapped, but not this part: by the kernel, as long as the use lasts.
    Attached(usize, InUse<'a>),
    /// Over the network, which takes this offset.
    Network(usize),
}

/// The agent that does an atomic on a word of a segment.
pub(super) enum WordAccess<'a> {
    /// The processor, at this address, which is valid while the use lasts.
    Here(*mut u8, InUse<'a>),
    /// The network, at this offset.
    Network(usize),
}

/// The segments of a rank whose memory is mapped, in use until this is dropped: none is taken back meanwhile.
pub(crate) struct Reached<'a> {
    segments: &'a MappedSegments,
    rank: usize,
    /// They are this rank's.
    is_own: bool,
    _using: InUse<'a>,
}

impl Reached<'_> {
    /// Where bytes of a segment are, if a plain store or load reaches them. `None` says nothing more.
    #[inline]
    pub(crate) fn place(&self, number: u32, offset: usize, len: usize) -> Option<*mut u8> {
        self.segments.reach(self.rank, number, offset, len)
    }

    /// As [`Reached::place`], for a caller that mostly asks for the same segment. `memo` is used with this context only.
    #[inline(always)]
    pub(crate) fn place_again(&self, memo: &mut Memo, number: u32, offset: usize, len: usize) -> Option<*mut u8> {
        // SAFETY: the context keeps the slots mapped.
        match unsafe { memo.reach(self.rank, number, offset, len) } {
            None => self.segments.remember(memo, self.rank, number, offset, len),
            place => place,
        }
    }

    /// As [`Reached::place_again`], if `memo` has the segment.
    #[inline(always)]
    pub(crate) fn place_known(&self, memo: &Memo, number: u32, offset: usize, len: usize) -> Option<*mut u8> {
        // SAFETY: the context keeps the slots mapped.
        unsafe { memo.reach(self.rank, number, offset, len) }
    }

    /// Whether they are this rank's.
    pub(crate) fn is_own(&self) -> bool {
        self.is_own
    }

    /// Copies to a place of these segments.
    ///
    /// # Safety
    /// `to` is of [`Reached::place`], with so many bytes; `from` is valid for as many, and nobody changes them.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's. Other ranks may touch both words.
        unsafe {
            match is_word(to, from, len) {
                true => copy::between(to, from, size_of::<u64>()),
                false => put_any(to, from, len, self.is_own),
            }
        }
    }

    /// Copies from a place of these segments.
    ///
    /// # Safety
    /// As [`Reached::put`], the other way round.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, into: *mut u8, from: *const u8, len: usize) {
        // SAFETY: as in `put`.
        unsafe {
            match is_word(into, from, len) {
                true => copy::between(into, from, size_of::<u64>()),
                false => get_any(into, from, len, self.is_own),
            }
        }
    }
}

/// Whether a copy is of one aligned word.
#[inline(always)]
fn is_word(to: *mut u8, from: *const u8, len: usize) -> bool {
    len == size_of::<u64>() && (to.addr() | from.addr()).is_multiple_of(size_of::<u64>())
}

/// [`Reached::put`] of any length. Not inlined: its loops would take registers from the call that posts a word.
#[inline(never)]
unsafe fn put_any(to: *mut u8, from: *const u8, len: usize, is_own: bool) {
    // SAFETY: the caller's. Two ranges of this rank may overlap.
    unsafe { if is_own { copy::between(to, from, len) } else { copy::put(to, from, len) } }
}

/// [`Reached::get`] of any length.
#[inline(never)]
unsafe fn get_any(into: *mut u8, from: *const u8, len: usize, is_own: bool) {
    // SAFETY: as in `put_any`.
    unsafe { if is_own { copy::between(into, from, len) } else { copy::get(into, from, len) } }
}

impl Stream {
    /// The segments of `rank`, for a few stores or loads: it never waits while this lives. `None` where [`Stream::check_own`] returns an error,
    /// and if the rank is not there or is lost.
    #[inline(always)]
    pub(crate) fn reach(&self, rank: usize) -> Option<Reached<'_>> {
        let is_plain = self.network.is_none() && self.node.is_own() && !self.job.any_gone();
        if rank >= self.size || !is_plain && !self.is_reachable(rank) {
            return None;
        }
        Some(Reached { segments: &self.mapped_segments, rank, is_own: rank == self.rank, _using: self.using.begin() })
    }

    /// Whether this thread of this process may use the context, and this rank is not lost.
    #[inline(never)]
    fn is_reachable(&self, rank: usize) -> bool {
        let is_paced = self.network.as_ref().is_some_and(|network| network.paced);
        let is_usable = !is_paced && self.node.is_own() || self.check_own("reaching a segment").is_ok();
        is_usable && !self.is_lost(rank)
    }

    /// Whether a put to a segment of a rank of this node may wait in a message.
    #[inline]
    pub(crate) fn are_by_message(&self) -> bool {
        self.mapped_segments.are_by_message()
    }

    /// Whether `rank` has failed or has left, or cannot be reached.
    #[inline]
    pub(crate) fn is_lost(&self, rank: usize) -> bool {
        let is_gone = self.job.any_gone() && self.job.loss(rank).is_some();
        is_gone || (self.network.is_some() && self.cuts.contains(rank))
    }

    /// Segment `number` of `rank`, in the network's copy of its table.
    pub(super) fn find_over_network(&self, doing: &'static str, rank: usize, number: u32) -> Result<Option<Found>> {
        let known = |stream: &Stream| stream.driven().networks.to(rank).known(rank, number);
        if let Some(found) = known(self) {
            return Ok(Some(found));
        }
        self.check_reachable(rank, doing)?;
        self.copy_table(doing, rank, Ends::Of(rank))?;
        Ok(known(self))
    }

    /// Copies the table of `rank` anew, for the network.
    pub(super) fn copy_table(&self, doing: &'static str, rank: usize, ends: Ends) -> Result<()> {
        let mut ticket = None;
        self.wait_unless(doing, ends, |driven| {
            let copied = driven.networks.to(rank).refresh(rank, 0, &mut ticket);
            copied.map_err(|error| self.failed(driven, error, rank, doing))
        })
    }

    /// Writes `bytes` to `offset` of a segment of `rank`, which `locate` finds. They may be changed when it returns.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`], [`Error::NoSegment`], [`Error::OutOfBounds`]; as [`Stream::put`].
    // Inlined, so that `locate` is called directly.
    #[inline(always)]
    pub(crate) fn put_segment(
        &self,
        locate: Locate,
        doing: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        bytes: &[u8],
    ) -> Result<()> {
        match locate(self, doing, (rank, number), offset, bytes.len(), false)? {
            Access::Here(to, _using) => {
                // SAFETY: inside an open segment, which stays open as long as it is in use.
                unsafe { copy::put(to, bytes.as_ptr(), bytes.len()) };
                Ok(())
            }
            Access::Attached(address, _using) => {
                let (start, len) = (bytes.as_ptr().cast_mut(), bytes.len());
                // SAFETY: only read; the rest as above.
                unsafe { self.attach(doing, Direction::Put, rank, start, address, len) }
            }
            Access::Network(at) => {
                let outcome = self.put(doing, rank, at, bytes);
                self.unless_closed(doing, rank, number, outcome)
            }
        }
    }

    /// As [`Stream::put_segment`], then rings a bell there, if there is room for the first part now. `bell`: its words, as for
    /// [`Stream::ring`].
    ///
    /// # Errors
    /// As [`Stream::put_segment`]; [`Error::WouldBlock`]: nothing was put or rung, and the context has made progress.
    pub(crate) fn try_put_segment(
        &self,
        locate: Locate,
        doing: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        bytes: &[u8],
        bell: Option<[usize; 2]>,
    ) -> Result<()> {
        if let Access::Network(at) = locate(self, doing, (rank, number), offset, bytes.len(), false)? {
            let outcome = self.try_put(doing, rank, Some((at, bytes)), bell);
            return self.unless_closed(doing, rank, number, outcome);
        }
        // Operations over the network to `rank` must be in effect before the ring. Checked before the put.
        if bell.is_some()
            && self.network.is_some()
            && !self.driven().at_once(|driven| driven.is_settled(self, doing, rank))?
        {
            self.poll(doing)?;
            return Err(Error::WouldBlock { operation: doing, rank, place: CalledAt::default() });
        }
        self.put_segment(locate, doing, (rank, number), offset, bytes)?;
        match bell {
            Some(_) => self.try_put(doing, rank, None, bell),
            None => Ok(()),
        }
    }

    /// As [`Stream::put_segment`], but a long source is in flight on return. It may be changed when `events` happen, and when nothing of this
    /// context is in flight; after an error only then.
    ///
    /// # Errors
    /// As [`Stream::put_segment`]; then no event happens.
    ///
    /// # Safety
    /// `len` bytes at `from` are readable, and nobody changes them, until `events` happen; and until nothing of this context is in flight, if
    /// there is an error.
    #[expect(clippy::too_many_arguments, reason = "what a put between two segments takes")]
    pub(crate) unsafe fn post_put_segment(
        &self,
        doing: &'static str,
        rank: usize,
        number: u32,
        offset: usize,
        from: *const u8,
        len: usize,
        mut events: Vec<Event>,
    ) -> Result<()> {
        match self.locate_plainly(doing, (rank, number), offset, len, false)? {
            Access::Here(to, using) => {
                // SAFETY: as in `put_segment`; the caller's. The two may overlap.
                unsafe { copy::between(to, from, len) };
                drop(using);
            }
            Access::Attached(address, using) => {
                // SAFETY: only read; the rest as above.
                unsafe { self.attach(doing, Direction::Put, rank, from.cast_mut(), address, len) }?;
                drop(using);
            }
            Access::Network(at) => {
                let remote = HeapRange { rank, offset: at, len };
                // SAFETY: the caller's. The hold is dropped when the flight ends: before `events` happen, and before this context is quiet.
                let outcome = unsafe { self.post_put(doing, remote, from, Box::new(()), &mut events) };
                self.unless_closed_plainly(doing, rank, number, outcome)?;
            }
        }
        self.happened(events);
        Ok(())
    }

    /// Stores a word of 4 or 8 bytes in an aligned place of a segment, which `locate` finds, after all that this context has put to `rank` before.
    ///
    /// # Errors
    /// As [`Stream::put_segment`], [`Error::Misaligned`].
    // Inlined, so that `locate` is called directly.
    #[inline(always)]
    pub(crate) fn put_segment_after(
        &self,
        locate: Locate,
        doing: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        word: &[u8],
    ) -> Result<()> {
        let misaligned = |address: usize| Error::Misaligned {
            operation: doing,
            rank,
            address,
            alignment: word.len(),
            place: CalledAt::default(),
        };
        match locate(self, doing, (rank, number), offset, word.len(), false)? {
            Access::Here(to, using) => {
                if !to.addr().is_multiple_of(word.len()) {
                    return Err(misaligned(to.addr()));
                }
                // SAFETY: as in `put_segment`. An aligned word goes in one store with Release.
                unsafe { copy::put(to, word.as_ptr(), word.len()) };
                drop(using);
                if self.sleeps(rank) {
                    self.wake(rank);
                }
                self.announce(rank);
                Ok(())
            }
            Access::Attached(address, _) if !address.is_multiple_of(word.len()) => Err(misaligned(address)),
            Access::Attached(address, using) => {
                fence(Ordering::SeqCst);
                // SAFETY: only read; the rest as above.
                unsafe { self.attach(doing, Direction::Put, rank, word.as_ptr().cast_mut(), address, word.len()) }?;
                drop(using);
                if self.sleeps(rank) {
                    self.wake(rank);
                }
                Ok(())
            }
            Access::Network(at) if !(at & !ADDRESS).is_multiple_of(word.len()) => Err(misaligned(at & !ADDRESS)),
            Access::Network(at) => {
                self.check_reachable(rank, doing)?;
                let put = Operation::Put { offset: at, bytes: word, done: 0, after: true, tell: true };
                let outcome = self.perform(doing, rank, put);
                self.unless_closed(doing, rank, number, outcome)?;
                self.nudge_after_ring(rank);
                Ok(())
            }
        }
    }

    /// As [`Stream::put_segment_after`], if there is room now.
    ///
    /// # Errors
    /// As [`Stream::put_segment_after`]; [`Error::WouldBlock`]: nothing was stored, and the context has made progress.
    pub(crate) fn try_put_segment_after(
        &self,
        locate: Locate,
        doing: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        word: &[u8],
    ) -> Result<()> {
        match locate(self, doing, (rank, number), offset, word.len(), false)? {
            Access::Network(at) if (at & !ADDRESS).is_multiple_of(word.len()) => {
                let outcome = self.try_notify(doing, rank, (at, word));
                self.unless_closed(doing, rank, number, outcome)
            }
            // Needs no room.
            _ => self.put_segment_after(locate, doing, (rank, number), offset, word),
        }
    }

    /// As [`Stream::put_segment_after`], for GASPI: see [`Stream::locate_plainly`].
    ///
    /// # Errors
    /// As [`Stream::put_segment_after`].
    pub(crate) fn post_word(&self, doing: &'static str, place: (usize, u32), offset: usize, word: &[u8]) -> Result<()> {
        self.put_segment_after(Stream::locate_plainly, doing, place, offset, word)
    }

    /// Reads bytes at `offset` of a segment of `rank`, which `locate` finds. Waits for them.
    ///
    /// # Errors
    /// As [`Stream::put_segment`].
    #[inline(always)]
    pub(crate) fn get_segment(
        &self,
        locate: Locate,
        doing: &'static str,
        (rank, number): (usize, u32),
        offset: usize,
        into: &mut [u8],
    ) -> Result<()> {
        match locate(self, doing, (rank, number), offset, into.len(), false)? {
            Access::Here(from, _using) => {
                // SAFETY: as in `put_segment`.
                unsafe { copy::get(into.as_mut_ptr(), from, into.len()) };
                Ok(())
            }
            Access::Attached(address, _using) => {
                let (start, len) = (into.as_mut_ptr(), into.len());
                // SAFETY: as in `put_segment`; `into` is ours.
                unsafe { self.attach(doing, Direction::Get, rank, start, address, len) }
            }
            Access::Network(at) => {
                let outcome = self.get(doing, rank, at, into);
                self.unless_closed(doing, rank, number, outcome)
            }
        }
    }

    /// As [`Stream::get_segment`], but does not wait for them: they are at `into` when `events` happen, and when nothing of this context is in
    /// flight.
    ///
    /// # Errors
    /// As [`Stream::put_segment`].
    ///
    /// # Safety
    /// `into` is valid for writing `len` bytes until then; only this, peers and copies write there.
    pub(crate) unsafe fn post_get_located(
        &self,
        locate: Locate,
        doing: &'static str,
        (rank, number, offset): (usize, u32, usize),
        into: *mut u8,
        len: usize,
        events: Vec<Event>,
    ) -> Result<()> {
        match locate(self, doing, (rank, number), offset, len, false)? {
            Access::Here(from, using) => {
                // SAFETY: as in `put_segment`; the caller's. The two may overlap.
                unsafe { copy::between(into, from, len) };
                drop(using);
                self.happened(events);
                Ok(())
            }
            Access::Attached(address, using) => {
                // SAFETY: as above.
                unsafe { self.attach(doing, Direction::Get, rank, into, address, len) }?;
                drop(using);
                self.happened(events);
                Ok(())
            }
            Access::Network(at) => {
                self.check_reachable(rank, doing)?;
                // SAFETY: the caller's.
                unsafe { self.track_get(doing, HeapRange { rank, offset: at, len }, into, events) };
                Ok(())
            }
        }
    }

    /// As [`Stream::post_get_located`], from a segment that is not reserved.
    ///
    /// # Errors
    /// As [`Stream::put_segment`].
    ///
    /// # Safety
    /// As [`Stream::post_get_located`].
    #[expect(clippy::too_many_arguments, reason = "what a get between two segments takes")]
    pub(crate) unsafe fn post_get_segment(
        &self,
        doing: &'static str,
        rank: usize,
        number: u32,
        offset: usize,
        into: *mut u8,
        len: usize,
        events: Vec<Event>,
    ) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.post_get_located(Stream::locate_plainly, doing, (rank, number, offset), into, len, events) }
    }

    /// Does an atomic on a word of a segment of `rank`, which `locate` finds; `at_once` does it where the processor does. Returns the
    /// former value. A word of the heap is changed by the same agent as for arrays.
    ///
    /// # Errors
    /// As [`Stream::put_segment`]; [`Error::Misaligned`]; [`Error::InvalidArgument`] if only the owner's program can change the word.
    pub(crate) fn change_segment(
        &self,
        locate: Locate,
        doing: &'static str,
        place: (usize, u32, usize),
        change: Change,
        at_once: impl FnOnce(*mut u8) -> u64,
    ) -> Result<u64> {
        self.change_word(locate, doing, place, change, at_once, |at| self.atomic(doing, place.0, at, change))
    }

    /// Finds a word of a segment by `locate`, and the agent that does atomics on it.
    ///
    /// # Errors
    /// As [`Stream::change_segment`].
    pub(super) fn locate_word(
        &self,
        locate: Locate,
        doing: &'static str,
        (rank, number, offset): (usize, u32, usize),
        width: usize,
    ) -> Result<WordAccess<'_>> {
        let misaligned = |address| Error::Misaligned {
            operation: doing,
            rank,
            address,
            alignment: width,
            place: CalledAt::default(),
        };
        self.check_own(doing)?;
        self.check_rank(doing, rank)?;
        let segments = &*self.mapped_segments;
        let of_heap = match number {
            BY_ADDRESS => segments.in_heaps(rank, offset, width).is_some(),
            number => number == HEAP,
        };
        let by_network = self.network.is_some() && (of_heap || self.driven().networks.to(rank).changes_segments());
        match locate(self, doing, (rank, number), offset, width, by_network)? {
            Access::Here(at, _) if !at.addr().is_multiple_of(width) => Err(misaligned(at.addr())),
            Access::Here(at, using) => Ok(WordAccess::Here(at, using)),
            // Slots begin at a page, and so do heaps.
            Access::Network(at) if by_network && !(at & !ADDRESS).is_multiple_of(width) => {
                Err(misaligned(at & !ADDRESS))
            }
            Access::Network(at) if by_network => Ok(WordAccess::Network(at)),
            // The owner's own processor does it, as for peers that ask for it by message.
            Access::Attached(at, using) if rank == self.rank && segments.owns(at, width) => match at % width {
                0 => Ok(WordAccess::Here(at as *mut u8, using)),
                _ => Err(misaligned(at)),
            },
            Access::Attached(..) | Access::Network(_) => {
                let instead = match number {
                    BY_ADDRESS => "World::fetch_address, or a segment of World::segment",
                    number if (number as usize) < SEGMENTS_FIRST => "World::reserved_segments",
                    _ => "World::fetch_segment, or a segment of World::segment",
                };
                let why = format!(
                    "only the program of rank {rank} changes that word, which the thread of this world asks by a message: use {instead}"
                );
                Err(Error::InvalidArgument { operation: doing, why })
            }
        }
    }

    /// Moves bytes by cross-memory attach.
    ///
    /// # Safety
    /// As [`crate::memory::outside::transfer`].
    unsafe fn attach(
        &self,
        doing: &'static str,
        direction: Direction,
        rank: usize,
        here: *mut u8,
        address: usize,
        len: usize,
    ) -> Result<()> {
        // SAFETY: the caller's.
        match unsafe { self.mapped_segments.attach(doing, direction, rank, here, (address, len), || true) }? {
            Attached::Done => Ok(()),
            Attached::NotAllowed => {
                let why = format!(
                    "that memory of rank {rank} is not mapped here, and the kernel allows no cross-memory attach: use the calls of World, \
                     which send a message, or a segment of World::segment"
                );
                Err(Error::InvalidArgument { operation: doing, why })
            }
        }
    }
}

impl Engine {
    /// Goes on with answers to owners that close segments. Returns how many were given.
    pub(in super::super) fn advance_leaving(&self) -> usize {
        let mut answers = Vec::new();
        let done = self.segments.retain_leaving(|leaving| {
            if let Some(flush) = &mut leaving.own {
                let owner = leaving.answer.owner;
                let posted = match flush {
                    // Queued writes to that rank go first.
                    None if self.outbox.keeps_for(owner) => Ok(None),
                    None => self.networks.to(owner).flush_connection(owner, true),
                    Some(answer) => Ok(Some(Arc::clone(answer))),
                };
                match posted {
                    Ok(posted) => *flush = posted,
                    Err(_) => leaving.own = None,
                }
            }
            if leaving.own.as_ref().is_some_and(|flush| flush.as_ref().is_some_and(|answer| answer.outcome().is_some()))
            {
                leaving.own = None;
            }
            let is_over = leaving.go_on();
            if is_over {
                answers.push(leaving.answer);
            }
            !is_over
        });
        answers.into_iter().for_each(|answer| self.answer_close(answer));
        done
    }
}
