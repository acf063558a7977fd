//! Segments: memory of one rank, outside the symmetric heap, that peers reach by (rank, number, offset) or by address.

use std::alloc::Layout;
use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicI32, Ordering};

pub(super) use super::located::{Access, Located};
use super::{AtomicElement, Bell, Event, OneThread, ThreadSegment, World, differ};
use crate::engine::{BY_ADDRESS, Engine, Filled, Local};
use crate::error::{CalledAt, Error, Placed, Result, check_range};
use crate::memory::copy;
use crate::memory::outside::Direction;
use crate::memory::own_segments::PAGE;
use crate::message::{Landing, Messages};
use crate::transport::Sent;

/// A segment of this rank: memory that peers put to and get from, until this is closed or dropped.
///
/// Made by one rank alone ([`World::segment`], [`World::segment_at`]) or by all together ([`World::segment_all`]). A rank has
/// at most 65,536 at a time. Peers name it by its [number](Segment::number), which its owner gives out; numbers of segments that
/// were closed are used again. Over a network the memory is registered, which pins it: puts and gets are done by the network's
/// device, and need no progress here.
///
/// # Closing
/// [`Segment::close`], and dropping it, waits until the ranks that have used segments of this rank have polled or waited: each
/// finishes what it has in flight to it, and says so. After that a peer's put or get is an error there, and nothing writes the
/// memory any more. Ranks that died or left are not waited for.
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// bellwether::threads(2, |world| {
///     // Rank 1 alone makes a segment, and tells its number.
///     let own = if world.rank() == 1 { Some(world.segment(4096)?) } else { None };
///     let number = world.allgather(&[own.as_ref().map_or(0, |own| own.number())])?[1];
///     if world.rank() == 0 {
///         world.put_segment(1, number, 100, b"hello")?;
///         world.fence();
///     }
///     world.barrier()?;
///     if let Some(own) = &own {
///         let mut came = [0; 5];
///         own.read(100, &mut came)?;
///         assert_eq!(&came, b"hello");
///     }
///     own.map_or(Ok(()), |own| own.close())?;
///     world.barrier()
/// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
pub struct Segment {
    engine: OneThread<Rc<Engine>, Segment>,
    messages: OneThread<Rc<Messages>, Segment>,
    number: u32,
    generation: u64,
    start: OneThread<*mut u8, Segment>,
    len: usize,
    memory: Memory,
    open: bool,
    /// Peers were asked to use it no more.
    closing: bool,
    /// Contexts may get into it.
    is_lent: Cell<bool>,
}

/// The owner of a segment's memory.
#[derive(Debug, Clone, Copy)]
enum Memory {
    Program,
    /// A part of this rank's slot.
    Slot,
    /// The system's allocator gave it.
    System(Layout),
}

/// How a put goes to its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carried {
    /// It is there.
    Copied,
    Network,
    /// The target handles the message, before any later message of this rank.
    Message,
}

impl Segment {
    /// Its number, from 2 on. Number 0 is the symmetric heap and 1 the static data; [`World::reserved_segments`] reaches these two.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a segment has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its first address, for peers that name it by address.
    pub fn address(&self) -> usize {
        *self.start as usize
    }

    /// The same as a pointer. Peers may write there at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        *self.start
    }

    /// Copies the bytes at `offset` out. Of bytes that a peer writes meanwhile, a part may be copied.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    #[track_caller]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let from = self.at("reading a segment", offset, into.len()).placed_here()?;
        // SAFETY: in bounds; only copies and peers touch it.
        unsafe { copy::get(into.as_mut_ptr(), from, into.len()) };
        Ok(())
    }

    /// Copies bytes to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    #[track_caller]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let to = self.at("writing a segment", offset, bytes.len()).placed_here()?;
        // SAFETY: in bounds; only copies and peers touch it.
        unsafe { copy::put(to, bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// The bytes from `offset` on as the place where a large message lands ([`World::send_large`]), as if its sender put them there.
    /// Data that is longer than the rest of the segment is refused. The segment stays open until the data has landed, so keep a
    /// handle until then: a segment whose last handle goes with a message cannot wait for its peers, and is not freed. A handler is
    /// part of the world: take the segment out of it before the world ends.
    pub fn landing(self: &Rc<Self>, offset: usize) -> Landing {
        let left = self.len.saturating_sub(offset);
        let start = self.start.wrapping_add(offset.min(self.len));
        let keep: Rc<dyn Any> = Rc::<Segment>::clone(self);
        // SAFETY: in bounds of the segment, which is open as long as it lives, and which peers may write at any time.
        unsafe { Landing::memory(start, left, keep) }
    }

    /// The bytes from `offset` on as the destination of a get of the rank of `engine`.
    pub(super) fn destination(
        &self,
        operation: &'static str,
        engine: &Engine,
        offset: usize,
        len: usize,
    ) -> Result<(*mut u8, Filled)> {
        let (number, generation) = (self.number, self.generation);
        if self.engine.identity() != engine.identity() {
            return Err(Error::NoSegment { operation, rank: engine.rank, number, place: CalledAt::default() });
        }
        Ok((self.at(operation, offset, len)?, Filled { number, generation }))
    }

    /// The segment for threads with a [`ThreadContext`](super::ThreadContext). A close then waits for the operations that contexts of this rank
    /// have in flight.
    pub fn for_threads(&self) -> ThreadSegment<'_> {
        self.is_lent.set(true);
        ThreadSegment::new(self.address(), self.len, self.engine.rank, self.engine.identity())
    }

    fn at(&self, operation: &'static str, offset: usize, count: usize) -> Result<*mut u8> {
        check_range(operation, self.engine.rank, offset, count, self.len)?;
        // SAFETY: in bounds, as just checked.
        Ok(unsafe { self.start.add(offset) })
    }

    /// Takes the segment back; see above. The memory of [`World::segment`] is freed.
    ///
    /// # Errors
    /// [`Error::InsideHandler`], [`Error::Forked`]; [`Error::PeerLost`] if a rank was lost, and another one that lives does not
    /// answer. After an error the memory stays registered and is never freed: memory given to [`World::segment_at`]
    /// must stay as well.
    #[track_caller]
    pub fn close(mut self) -> Result<()> {
        let engine = Rc::clone(&self.engine);
        engine.at(|| self.end())
    }

    fn end(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.open, false) {
            return Ok(());
        }
        if self.is_lent.get() {
            self.engine.end_in_flight("closing a segment")?;
        }
        match self.closing {
            false => self.messages.close_segment(self.number, self.generation),
            true => self.messages.end_close_segment(self.number, self.generation),
        }?;
        self.give_memory_back();
        Ok(())
    }

    /// Begins the close, and does not wait: peers are asked to stop using the segment, and their later puts fail. Operations that contexts
    /// of this rank have in flight to or from its memory, or keep, continue.
    ///
    /// # Errors
    /// [`Error::InsideHandler`].
    pub(crate) fn begin_close(&mut self) -> Result<()> {
        if self.open && !self.closing {
            self.messages.begin_close_segment(self.number, self.generation)?;
            self.closing = true;
        }
        Ok(())
    }

    /// Ends a close that was begun, if nobody uses the memory any more. Whether it has ended; progress is the caller's.
    pub(crate) fn try_close(&mut self) -> bool {
        if !self.open {
            return true;
        }
        // Each for itself: the contexts' part makes progress.
        let is_left = !self.is_lent.get() || self.engine.contexts_leave(*self.start, self.len);
        if !is_left || !self.closing || !self.engine.is_unused(self.number, self.generation) {
            return false;
        }
        self.engine.segments.end_close(self.number, self.generation);
        self.open = false;
        self.give_memory_back();
        true
    }

    fn give_memory_back(&mut self) {
        match self.memory {
            Memory::Program => {}
            Memory::Slot => self.engine.segments.give_memory_back(*self.start, self.len),
            // SAFETY: allocated with this layout; nobody reaches it any more, and this is the last use.
            Memory::System(layout) => unsafe { std::alloc::dealloc(*self.start, layout) },
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // In a forked child it is the parent's.
        if !self.engine.is_own() {
            return;
        }
        if std::thread::panicking() {
            // Peers find no segment from now on. They are told why.
            self.engine.unwind();
        }
        if let Err(error) = self.end() {
            tracing::warn!(rank = self.engine.rank, number = self.number, %error, "a segment was not closed: its memory stays");
        }
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment({} of rank {}: {} bytes at {:p})", self.number, self.engine.rank, self.len, *self.start)
    }
}

impl World {
    /// A segment of `bytes` zeroed bytes of this rank. Not collective; peers do nothing. It lies in memory that the ranks of this node have
    /// mapped; beyond an eighth of a rank's address space (`bellwether info`) it is the system's, which ranks of the node reach by
    /// system calls.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no bytes, or if this rank has 65,536 segments; [`Error::OutOfMemory`] if the system, or the
    /// limit on memory that the network may pin, has not so much; [`Error::InsideHandler`].
    #[track_caller]
    pub fn segment(&self, bytes: usize) -> Result<Segment> {
        self.allocate_segment(None, bytes, 1).placed_here()
    }

    /// Makes memory that this rank has a segment: of the heap or the stack, static, or a mapped file. Under `number`, which is
    /// from 2 to 65,537 and free, or under the lowest free one. Not collective; peers do nothing.
    ///
    /// # Errors
    /// As [`World::segment`].
    ///
    /// # Safety
    /// All `len` bytes are valid for reads and writes until the segment is closed without an error. Peers read and write them
    /// at any time: this rank reaches them by atomics or [`Segment::read`] and [`Segment::write`], or keeps peers' accesses
    /// apart from its own by its synchronisation, and holds no reference to them meanwhile.
    #[track_caller]
    pub unsafe fn segment_at(&self, number: Option<u32>, start: *mut u8, len: usize) -> Result<Segment> {
        (|| -> Result<Segment> {
            // SAFETY: the caller's.
            let (number, generation) = unsafe { self.engine.open_segment(number, start, len) }?;
            let engine = OneThread::new(Rc::clone(&self.engine));
            let (messages, start) = (OneThread::new(Rc::clone(&self.messages)), OneThread::new(start));
            let memory = Memory::Program;
            Ok(Segment {
                engine,
                messages,
                number,
                generation,
                start,
                len,
                memory,
                open: true,
                closing: false,
                is_lent: Cell::new(false),
            })
        })()
        .placed_here()
    }

    /// A segment of `bytes` zeroed bytes at each rank, with the same number at all. Collective; on return every rank may
    /// reach every other's.
    ///
    /// # Errors
    /// As [`World::segment`], on all ranks if one fails; [`Error::RanksDiffer`] on all ranks for other sizes; as [`World::barrier`].
    #[track_caller]
    pub fn segment_all(&self, bytes: usize) -> Result<Segment> {
        self.engine.within("segment_all", || self.segment_together(bytes))
    }

    fn segment_together(&self, bytes: usize) -> Result<Segment> {
        // The lowest number that is free at all ranks.
        let mut from = 0;
        let number = loop {
            let all = self.allgather(&[[u64::from(self.engine.segments.free_number(from)), bytes as u64]])?;
            if let Some(rank) = all.iter().position(|[_, theirs]| *theirs != all[0][1]) {
                let advice = "every rank must ask for a segment of the same size, in the same order";
                return Err(differ("the size in bytes of a segment", rank, all[rank][1], all[0][1], advice));
            }
            let free = || all.iter().map(|[number, _]| *number as u32);
            let highest = free().max().unwrap_or(from);
            if free().all(|number| number == highest) {
                break highest;
            }
            from = highest;
        };
        let made = self.allocate_segment(Some(number), bytes, self.engine.job.ranks_here());
        let (made, outcome) = match made {
            Ok(segment) => (Some(segment), Ok(())),
            Err(error) => (None, Err(error.to_string())),
        };
        self.agree(outcome)?;
        Ok(made.expect("all ranks have made theirs"))
    }

    /// As [`World::segment`], under this number if there is one. `sharers` ranks of this node are about to do the same.
    ///
    /// # Errors
    /// As [`World::segment`].
    pub(crate) fn allocate_segment(&self, number: Option<u32>, bytes: usize, sharers: usize) -> Result<Segment> {
        // The memory that a forked child would take is the parent's.
        self.engine.check_own("making a segment")?;
        if bytes > 0
            && let Some(start) = self.engine.segments.take_memory(bytes, sharers)?
        {
            // SAFETY: the segment's own, given back when it is closed; only copies touch it.
            return match unsafe { self.segment_at(number, start, bytes) } {
                Ok(mut segment) => {
                    segment.memory = Memory::Slot;
                    Ok(segment)
                }
                Err(error) => {
                    self.engine.segments.give_memory_back(start, bytes);
                    Err(error)
                }
            };
        }
        let full = || Error::OutOfMemory {
            what: "memory for a segment",
            asked: bytes,
            free: crate::memory::limits::available(),
            limit: 0,
            setting: "the memory of this machine",
            place: CalledAt::default(),
        };
        let layout = Layout::from_size_align(bytes.max(1), PAGE).map_err(|_| full())?;
        // SAFETY: not of size zero.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        if start.is_null() {
            return Err(full());
        }
        // SAFETY: the segment's own, freed when it is closed; only copies touch it.
        match unsafe { self.segment_at(number, start, bytes) } {
            Ok(mut segment) => {
                segment.memory = Memory::System(layout);
                Ok(segment)
            }
            Err(error) => {
                // SAFETY: allocated above with this layout; no segment owns the memory.
                unsafe { std::alloc::dealloc(start, layout) };
                Err(error)
            }
        }
    }

    /// Copies `source` to `offset` of segment `number` of `rank`. `source` may be changed on return; the bytes are visible
    /// there when a bell, a message, a barrier or a fence that follows is. Over a network it needs no progress at `rank`, and
    /// on the same node neither, unless the kernel allows no cross-memory attach: there the bytes go by message, and are visible
    /// when a message that follows is.
    ///
    /// On the same node a put to a segment of [`World::segment`] or [`World::segment_all`] is a look-up in the owner's table, a bounds check
    /// and a store, and does not poll: a loop of such puts that also waits for messages calls [`World::poll`]. To other memory of a
    /// segment ([`World::segment_at`]) it is a system call.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`]; [`Error::NoSegment`]; [`Error::OutOfBounds`]; [`Error::PeerLost`]; inside a handler
    /// [`Error::InsideHandler`] for a segment that this rank has not used before, and [`Error::WouldBlock`]. If the segment
    /// is closed while this put waits for room, that is an error of a later call.
    #[track_caller]
    pub fn put_segment(&self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<()> {
        match self.put_reached(rank, number, offset, source) {
            true => Ok(()),
            false => self.put_segment_by(rank, number, offset, source).map(drop).placed_here(),
        }
    }

    /// Puts by a store, if that reaches the segment. Whether it did.
    #[inline(always)]
    fn put_reached(&self, rank: usize, number: u32, offset: usize, source: &[u8]) -> bool {
        if self.engine.is_own()
            && let Some(to) = self.engine.segments.mapped().reach(rank, number, offset, source.len())
        {
            // SAFETY: inside an open segment, whose owner means it to be written. It stays open until this rank, if it is not
            // the owner, has handled a message.
            unsafe { copy::put(to, source.as_ptr(), source.len()) };
            return true;
        }
        false
    }

    /// As [`World::put_segment`]. Tells how the bytes go.
    pub(super) fn put_segment_by(&self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<Carried> {
        const NAME: &str = "put to a segment";
        self.engine.poll()?;
        let located = self.locate_segment(NAME, rank, number, offset, source.len())?;
        match self.access(rank, located, source.len()) {
            // Each request looks the key up anew, so that none uses it after this rank has forgotten it.
            Access::Network(remote) => self.put_registered(NAME, rank, remote, source).map(|()| Carried::Network),
            Access::Here(to) => {
                // SAFETY: as in `put_segment`.
                unsafe { copy::put(to, source.as_ptr(), source.len()) };
                self.engine.stored(rank);
                Ok(Carried::Copied)
            }
            Access::Elsewhere => {
                let start = source.as_ptr().cast_mut();
                // SAFETY: only read when putting; and as above.
                match unsafe { self.attach(NAME, Direction::Put, rank, start, located.address, source.len()) }? {
                    true => Ok(Carried::Copied),
                    false => self.put_by_message(NAME, rank, number, offset, source).map(|()| Carried::Message),
                }
            }
        }
    }

    /// Stores `word` at byte `offset`, which must be aligned, of segment `number` of `rank`, after all earlier puts of this rank to `rank`: a
    /// thread that loads the word with Acquire sees these puts. Wakes `rank` if it sleeps. Progress as for [`World::put_segment`].
    ///
    /// # Errors
    /// As [`World::put_segment`]; [`Error::Misaligned`].
    #[track_caller]
    pub fn notify_segment<T: AtomicElement>(&self, rank: usize, number: u32, offset: usize, word: T) -> Result<()> {
        (|| -> Result<()> {
            const NAME: &str = "a notification in a segment";
            let word = bytemuck::bytes_of(&word);
            let located = self.locate_segment(NAME, rank, number, offset, word.len())?;
            located.check_aligned(NAME, rank, word.len())?;
            if !self.engine.routes.is_mapped(rank) {
                return self.engine.remote_put_after(rank, located.remote, word);
            }
            // Earlier puts may have gone by message.
            if rank != self.rank() && self.engine.segments.mapped().are_by_message() {
                return self.put_by_message(NAME, rank, number, offset, word);
            }
            if self.put_segment_by(rank, number, offset, word)? == Carried::Copied {
                self.engine.wake_if_asleep(rank);
            }
            Ok(())
        })()
        .placed_here()
    }

    /// As [`World::put_segment`], then rings `bell` at `rank`: a rank that sees the ring sees the bytes.
    ///
    /// Where both ranks are on one node, the segment is outside the memory of the job ([`World::segment_at`]) and the kernel allows no
    /// cross-memory attach, the bytes go by message. There the bell rings when `rank` has handled it and this rank learns of that, so both
    /// have to make progress.
    ///
    /// # Errors
    /// As [`World::put_segment`]: the bell is not rung. As [`Bell::ring`]: the bytes were put.
    #[track_caller]
    pub fn put_segment_bell(&self, rank: usize, number: u32, offset: usize, source: &[u8], bell: &Bell) -> Result<()> {
        if !self.put_reached(rank, number, offset, source)
            && self.put_segment_by(rank, number, offset, source).placed()? == Carried::Message
        {
            return self.ring_handled(rank, bell).placed();
        }
        bell.ring(rank)
    }

    /// Rings `bell` at `rank` when that has handled the messages of this rank so far.
    pub(super) fn ring_handled(&self, rank: usize, bell: &Bell) -> Result<()> {
        let ring = Event::ring(bell, rank).check(self.engine.identity())?;
        self.messages.ask_owner(rank, (BY_ADDRESS, 0), None, None, vec![ring])
    }

    /// Puts over the network: a long source without a copy.
    pub(super) fn put_registered(
        &self,
        operation: &'static str,
        rank: usize,
        offset: usize,
        source: &[u8],
    ) -> Result<()> {
        let local = Local::From(source.as_ptr());
        // SAFETY: borrowed until this returns.
        if unsafe { self.engine.remote_straight(operation, rank, offset, local, source.len()) }? {
            return Ok(());
        }
        self.engine.remote_put(rank, offset, source)
    }

    /// Gets over the network: into a long buffer without a copy.
    pub(super) fn get_registered(
        &self,
        operation: &'static str,
        rank: usize,
        offset: usize,
        into: &mut [u8],
    ) -> Result<()> {
        let local = Local::Into(into.as_mut_ptr());
        // SAFETY: borrowed until this returns.
        if unsafe { self.engine.remote_straight(operation, rank, offset, local, into.len()) }? {
            return Ok(());
        }
        self.engine.remote_get(operation, rank, offset, into)
    }

    /// Sends pieces, each while the segment is open: the owner gets it before this rank says that it uses the segment no more.
    fn put_by_message(
        &self,
        operation: &'static str,
        rank: usize,
        number: u32,
        offset: usize,
        source: &[u8],
    ) -> Result<()> {
        self.engine.segments.mapped().note_message();
        for (n, piece) in source.chunks(self.messages.piece_len()).enumerate() {
            self.send_piece(operation, rank, || {
                let at = offset + n * self.messages.piece_len();
                let address = self.find_segment(operation, rank, number, at, piece.len())?;
                self.messages.write_piece(rank, address, piece)
            })?;
        }
        Ok(())
    }

    /// Sends a message when there is room.
    fn send_piece(&self, operation: &'static str, rank: usize, mut send: impl FnMut() -> Result<Sent>) -> Result<()> {
        let mut sent = send();
        if matches!(sent, Ok(Sent::NoRoom)) {
            if self.engine.interface.delivering() {
                return Err(Error::WouldBlock { operation, rank, place: CalledAt::default() });
            }
            self.engine.wait_until("waiting for room to send a message", None, || {
                sent = send();
                !matches!(sent, Ok(Sent::NoRoom))
            })?;
        }
        sent.map(drop)
    }

    /// Copies bytes from `offset` of segment `number` of `rank` to `into`. Blocks until the bytes have arrived.
    ///
    /// # Errors
    /// As [`World::put_segment`]; [`Error::InsideHandler`].
    #[track_caller]
    pub fn get_segment(&self, rank: usize, number: u32, offset: usize, into: &mut [u8]) -> Result<()> {
        const NAME: &str = "get from a segment";
        // SAFETY: borrowed until this returns.
        let copied = unsafe { self.get_mapped::<false>(rank, number, offset, into.as_mut_ptr(), into.len()) };
        match copied.placed_here()? {
            Some(remote) => self.get_registered(NAME, rank, remote, into).placed_here(),
            None => Ok(()),
        }
    }

    /// As [`World::get_segment`], if `rank` is mapped. Else the result is where the network finds the bytes, and nothing was copied. `SHARED`:
    /// peers may touch `into`, too, and it may overlap the bytes that are read.
    ///
    /// # Safety
    /// `into` is valid for writing `len` bytes until this returns; only this touches them, or if they are `SHARED` this, peers and copies of
    /// the runtime.
    pub(super) unsafe fn get_mapped<const SHARED: bool>(
        &self,
        rank: usize,
        number: u32,
        offset: usize,
        into: *mut u8,
        len: usize,
    ) -> Result<Option<usize>> {
        const NAME: &str = "get from a segment";
        // SAFETY: `from` is inside an open segment, whose owner means it to be read. It stays open until this rank, if it is not the owner,
        // has handled a message. The caller's for `into`.
        let copy_from =
            |from| unsafe { if SHARED { copy::between(into, from, len) } else { copy::get(into, from, len) } };
        self.engine.check_outside_handler(NAME)?;
        if let Some(from) = self.engine.segments.mapped().reach(rank, number, offset, len) {
            copy_from(from);
            return Ok(None);
        }
        self.engine.poll()?;
        let located = self.locate_segment(NAME, rank, number, offset, len)?;
        match self.access(rank, located, len) {
            Access::Network(remote) => return Ok(Some(remote)),
            Access::Here(from) => copy_from(from),
            Access::Elsewhere => {
                // SAFETY: the kernel writes `into`, which is valid by the caller's guarantees.
                if !unsafe { self.attach(NAME, Direction::Get, rank, into, located.address, len) }? {
                    // SAFETY: the caller's.
                    unsafe { self.get_by_message(NAME, rank, number, offset, into, len) }?;
                }
            }
        }
        Ok(None)
    }

    /// Asks for pieces one after the other, each while the segment is open.
    ///
    /// # Safety
    /// As [`World::get_mapped`].
    unsafe fn get_by_message(
        &self,
        operation: &'static str,
        rank: usize,
        number: u32,
        offset: usize,
        into: *mut u8,
        len: usize,
    ) -> Result<()> {
        let step = self.messages.piece_len();
        for done in (0..len).step_by(step) {
            let count = step.min(len - done);
            // A handler writes them. Where the wait fails that may happen later, so they are then nobody's.
            let came: Box<(AtomicI32, Vec<u8>)> = Box::new((AtomicI32::new(0), vec![0; count]));
            let came = Box::into_raw(came);
            // SAFETY: just made, and only freed below, when the bell has rung.
            let (bell, bytes) = unsafe { (&(*came).0, (*came).1.as_mut_ptr() as usize) };
            self.send_piece(operation, rank, || {
                let address = self.find_segment(operation, rank, number, offset + done, count)?;
                // SAFETY: they stay until the bell has rung.
                unsafe { self.messages.read_piece(rank, address, count, bytes, std::ptr::from_ref(bell) as usize) }
            })?;
            // Acquire pairs with the Release of the handler that rings it.
            self.engine.wait_until(operation, None, || bell.load(Ordering::Acquire) > 0)?;
            // SAFETY: it has rung: nobody else uses them any more. The caller's for `into`, of which these bytes are a part.
            unsafe { copy::put(into.add(done), Box::from_raw(came).1.as_ptr(), count) };
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use crate::error::{Error, Result};
    use crate::settings::{Settings, Transport};
    use crate::{Threads, World};

    /// The device would end the connection at the first stale key, and with it both ranks.
    #[test]
    #[ignore = "needs an RDMA device: ci/softroce"]
    fn a_segment_is_closed_while_a_peer_puts_to_it_and_the_connection_stays() {
        let settings = Settings { transport: Transport::Verbs, ..Settings::default() };
        let program = |world: &World| -> Result<()> {
            const ROUNDS: u64 = 20;
            let board = world.alloc::<u64>(2)?;
            let mut refused = 0;
            world.barrier()?;
            if world.rank() == 1 {
                for round in 1..=ROUNDS {
                    let own = world.segment(64 << 10)?;
                    board.put(0, 0, u64::from(own.number()))?;
                    world.fence();
                    let mut came = [0];
                    while came == [0] {
                        own.read(4999, &mut came)?;
                        world.poll()?;
                    }
                    own.close()?;
                    board.put(0, 1, round)?;
                    world.fence();
                }
            } else {
                while board.load(1) < ROUNDS {
                    let put = world.put_segment(1, board.load(0) as u32, 0, &[1; 5000]);
                    match put.and(world.poll().map(drop)) {
                        Ok(()) => {}
                        Err(Error::NoSegment { .. } | Error::InvalidArgument { .. }) => refused += 1,
                        Err(error) => return Err(error),
                    }
                }
                assert!(refused > 0, "no put came late");
            }
            world.barrier()?;
            board.put(1 - world.rank(), 0, 9)?;
            world.barrier()?;
            assert_eq!(board.load(0), 9, "the connection carries more");
            world.barrier()
        };
        let ranks = Threads::new(2).deadline(Duration::from_secs(60)).settings(settings).run(program);
        ranks.expect("starts").into_iter().collect::<Result<()>>().expect("runs");
    }
}
