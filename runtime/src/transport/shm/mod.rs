//! Shared memory: messages between the ranks of one node, each sender with a lane of its own at each receiver.

mod arena;
mod atomics;
mod claim;
mod context;
mod device;
mod doorbell;
mod event;
mod lanes;
pub(super) mod line;
#[cfg(all(test, loom))]
mod models;
pub(crate) mod slot;
#[cfg(all(test, not(loom)))]
mod tests;
mod wire;

pub(crate) use self::context::{ContextArenas, ContextLanes};
pub use self::device::{Device, NodeRank};
#[cfg(all(any(test, fuzzing), not(loom)))]
pub use self::line::set_line;
pub(crate) use self::slot::Slots;
pub use self::wire::{ShmWire, decode_address};

use std::cell::{Cell, RefCell, UnsafeCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use self::arena::Arena;
use self::doorbell::Doorbell;
use self::lanes::Lanes;
use self::line::{BODY, Kind, Reader, Writer};
use super::peers::{Links, NOT_CONNECTED};
use super::{Message, Retained, Sent};
use crate::error::{Error, Result};
use crate::membership::JobMemory;
use crate::memory::layout::{CONTEXT_LANES, LINE, SlotLayout, Status};
use crate::memory::node::NodeMemory;
use crate::sleep::{Fences, SleepWord};

/// Most payload bytes of a message that travels in one cache line; the first 8 are the header.
pub const SHORT_MAX: usize = BODY;
/// Most words of a message in one cache line, behind the header.
pub const WORDS: usize = BODY / 8 - 1;
/// Bytes that an interface keeps for a peer to which it has never sent.
pub const BYTES_PER_IDLE_PEER: usize = size_of::<u32>();

/// The lanes and memory with which one rank sends and receives messages.
pub(crate) struct Interface {
    rank: usize,
    /// Its number among the senders: that of its lane at each of them.
    own: usize,
    job: Arc<JobMemory>,
    node: Arc<NodeMemory>,
    layout: SlotLayout,
    /// Index into `peers`, or [`NOT_CONNECTED`].
    links: Links,
    peers: UnsafeCell<Vec<Peer>>,
    /// Those of ranks, then those of contexts that were ever used.
    lanes: UnsafeCell<Lanes>,
    /// The sending ranks of the ranks' lanes, in ascending order. If it is empty there are no lanes of contexts either.
    senders: Box<[u32]>,
    arena: RefCell<Arena>,
    delivering: Cell<bool>,
    fences: Cell<Fences>,
    /// Ranks that were found asleep, for other code to wake. `None`: they are woken at once.
    asleep: Option<RefCell<Vec<usize>>>,
    /// Bytes that are no message, and why.
    undeliverable: RefCell<Option<Error>>,
    has_error: Cell<bool>,
    unwound: Cell<usize>,
}

struct Peer {
    writer: Writer,
    sleep: *const SleepWord,
}

/// The payload of a message in its sender's block, beyond the handler. Dropping it gives the block back to the sender.
struct Block {
    data: *const u8,
    len: usize,
    node: Arc<NodeMemory>,
}

impl std::ops::Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `node` keeps the mapping, and the sender leaves the block as it is until it is released.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // A forked child has a copy of this value, but the block was given to its parent.
        if self.node.is_own() {
            // SAFETY: a block given to us, released once.
            unsafe { arena::release(self.data) };
        }
    }
}

impl Interface {
    /// The interface of `rank`, whose slot is committed as `layout` says, with lanes from `senders`, in ascending order. This rank is
    /// one of them, and all of them have the same senders; from the others messages come another way. Without any this rank sends none
    /// through lanes either. Ranks that sleep are woken, or told by [`Interface::take_asleep`].
    pub fn new(
        NodeRank { rank, job, node, layout, message_memory, .. }: NodeRank,
        senders: impl IntoIterator<Item = usize>,
        wakes: bool,
    ) -> Interface {
        let slot = node.slot(rank);
        let depth_log2 = layout.lane_depth.ilog2();
        let senders: Box<[u32]> = senders.into_iter().map(|rank| rank as u32).collect();
        let mut lanes = Lanes::new(match senders.is_empty() {
            true => Doorbell::silent(),
            // SAFETY: this rank's own slot, committed and mapped while `node` lives.
            false => unsafe { Doorbell::of_slot(slot, &layout) },
        });
        for number in 0..senders.len() {
            // SAFETY: every rank's control area is committed before it arrives; this rank alone reads its lanes.
            let reader =
                unsafe { Reader::new(slot.add(layout.lane(number)), slot.add(layout.credit(number)), depth_log2) };
            lanes.add(number, reader);
        }
        let own = senders.binary_search(&(rank as u32)).unwrap_or(0);
        assert!(senders.len() <= layout.doorbell_lanes - CONTEXT_LANES, "{} senders", senders.len());
        Interface {
            rank,
            own,
            links: Links::idle(job.slots()),
            peers: UnsafeCell::default(),
            lanes: UnsafeCell::new(lanes),
            senders,
            arena: RefCell::new(Arena::new(Arc::clone(&node), &layout, rank, message_memory, job.ranks_here())),
            delivering: Cell::new(false),
            fences: Cell::new(if wakes { job.allowed_fences() } else { Fences::Full }),
            asleep: (!wakes).then(RefCell::default),
            undeliverable: RefCell::default(),
            has_error: Cell::new(false),
            unwound: Cell::new(0),
            job,
            node,
            layout,
        }
    }

    /// Chooses the fences anew; call when all ranks have arrived. `crowded`: they share cores. All ranks pass the same. No rank wakes
    /// another before it has called this: until then it neither polls nor sends.
    pub fn note_fence_mode(&self, crowded: bool) {
        // A rank that sleeps on a network runs no barrier for its wakers. Ranks that share cores sleep often, and a barrier interrupts
        // the other cores: `sleep/README.md` has the times.
        self.fences.set(if self.asleep.is_some() || crowded { Fences::Full } else { self.job.allowed_fences() });
    }

    /// The fences of this rank when it sleeps, and when it wakes others.
    pub fn fences(&self) -> Fences {
        self.fences.get()
    }

    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "one thread, and no two borrows at a time")]
    fn peer(&self, rank: usize) -> &mut Peer {
        let link = self.links.get(rank);
        let link = if link == NOT_CONNECTED { self.connect(rank) } else { link };
        // SAFETY: peers are only touched here and in `connect`, on one thread, and no borrow of them outlives the call
        // that took it: filling a line never calls back. A link is an index into them.
        unsafe { (&mut *self.peers.get()).get_unchecked_mut(link as usize) }
    }

    #[cold]
    fn connect(&self, rank: usize) -> u32 {
        let slot = self.node.slot(rank);
        // SAFETY: the peer committed its control area before it arrived; this rank alone writes this lane.
        let writer = unsafe {
            Writer::new(
                slot.add(self.layout.lane(self.own)),
                slot.add(self.layout.credit(self.own)),
                self.layout.lane_depth.ilog2(),
            )
        };
        // SAFETY: see `peer`.
        let peers = unsafe { &mut *self.peers.get() };
        peers.push(Peer { writer, sleep: self.job.sleep_word(rank) });
        let link = (peers.len() - 1) as u32;
        self.links.set(rank, link);
        link
    }

    /// Sends a message that fits in a line: `header`, then `payload`, at most [`SHORT_MAX`] bytes together.
    #[inline(always)]
    pub fn send_short(&self, to: usize, id: u8, header: u64, payload: &[u8]) -> Sent {
        debug_assert!(payload.len() <= SHORT_MAX - 8);
        let peer = self.peer(to);
        if !peer.writer.has_room() {
            return Sent::NoRoom;
        }
        let len = payload.len();
        peer.writer.write(id, Kind::Inline, len + 8, |body| {
            // SAFETY: header and payload fit in the body.
            unsafe {
                body.cast::<u64>().write(header);
                copy_short(body.add(8), payload.as_ptr(), len);
            }
        });
        self.announce(peer, to);
        Sent::Done
    }

    /// Sends a message of a whole line.
    #[inline(always)]
    pub fn send_words(&self, to: usize, id: u8, header: u64, payload: [u64; WORDS]) -> Sent {
        let peer = self.peer(to);
        if !peer.writer.has_room() {
            return Sent::NoRoom;
        }
        peer.writer.write(id, Kind::Inline, BODY, |body| {
            let body = body.cast::<u64>();
            // SAFETY: header and payload are the whole body.
            unsafe {
                body.write(header);
                payload.into_iter().enumerate().for_each(|(i, word)| body.add(1 + i).write(word));
            }
        });
        self.announce(peer, to);
        Sent::Done
    }

    /// Sends a message of at most [`SHORT_MAX`] bytes, header included, in a line.
    #[inline]
    pub fn send_inline(&self, to: usize, id: u8, bytes: &[u8]) -> Sent {
        assert!(bytes.len() <= SHORT_MAX, "{} bytes do not fit in a line", bytes.len());
        let peer = self.peer(to);
        if !peer.writer.has_room() {
            return Sent::NoRoom;
        }
        peer.writer.write(id, Kind::Inline, bytes.len(), |body| {
            // SAFETY: the body has SHORT_MAX bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), body, bytes.len()) };
        });
        self.announce(peer, to);
        Sent::Done
    }

    /// Most bytes of one message.
    pub fn largest_message(&self) -> usize {
        self.arena.borrow().largest()
    }

    /// Sends a message of any length: `fill` writes all `len` bytes, header included, at the address it gets.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if it can never fit.
    pub fn send_block(&self, to: usize, id: u8, len: usize, fill: impl FnOnce(*mut u8)) -> Result<Sent> {
        self.send_packed(to, id, len, |at| {
            fill(at);
            len
        })
    }

    /// As [`Interface::send_block`], for a length known only when it is written: `fill` gets room for `max` bytes and
    /// gives how many it used.
    ///
    /// # Errors
    /// As [`Interface::send_block`].
    pub fn send_packed(&self, to: usize, id: u8, max: usize, fill: impl FnOnce(*mut u8) -> usize) -> Result<Sent> {
        if !self.has_room(to) {
            return Ok(Sent::NoRoom);
        }
        let mut arena = self.arena.borrow_mut();
        let Some(block) = arena.take(max)? else { return Ok(Sent::NoRoom) };
        let payload = arena.payload(block);
        // No borrow is held while `fill` runs: it is the user's.
        drop(arena);
        let len = fill(payload);
        debug_assert!(len <= max);
        let peer = self.peer(to);
        // `fill` may have sent messages of its own and left no room.
        if !peer.writer.has_room() {
            // SAFETY: the block was just taken, and no other code has its address.
            unsafe { arena::release(payload) };
            return Ok(Sent::NoRoom);
        }
        peer.writer.write(id, Kind::Block, 16, |body| {
            // SAFETY: two words fit in the body.
            unsafe {
                body.cast::<u64>().write(block.offset as u64);
                body.cast::<u64>().add(1).write(len as u64);
            }
        });
        self.announce(peer, to);
        Ok(Sent::Done)
    }

    /// Whether a message to `to` would find a free line now.
    #[inline]
    pub fn has_room(&self, to: usize) -> bool {
        self.peer(to).writer.has_room()
    }

    /// Tells `to` of a message that was just written: it sleeps, or its polls do not check this lane.
    #[inline(always)]
    fn announce(&self, peer: &Peer, to: usize) {
        // SAFETY: the roster is mapped while `job` lives.
        let sleep = unsafe { &*peer.sleep };
        // The mark is loaded behind the barrier, so that the compiler does not load it before the message is stored.
        if sleep.must_wake(self.fences.get()) | !peer.writer.is_polled() {
            self.announce_aloud(peer.writer.is_polled(), to);
        }
    }

    #[cold]
    fn announce_aloud(&self, is_polled: bool, to: usize) {
        if !is_polled {
            // SAFETY: the control area of a mapped rank, committed before it arrived.
            unsafe { Doorbell::of_slot(self.node.slot(to), &self.layout) }.ring(self.own);
        }
        self.wake_if_asleep(to);
    }

    /// Wakes `rank` if it sleeps. The caller has stored what `rank` may wait for before.
    #[inline(always)]
    pub fn wake_if_asleep(&self, rank: usize) {
        self.wake(self.job.sleep_word(rank), rank);
    }

    /// As [`Interface::wake_if_asleep`], of several that wait for one store.
    pub fn wake_all_asleep(&self, ranks: impl Iterator<Item = usize>) {
        // One fence for all: each word is read after the store.
        self.fences.get().of_waker();
        for rank in ranks {
            if self.job.sleep_word(rank).is_announced() {
                self.wake_sleeper(rank);
            }
        }
    }

    #[inline(always)]
    fn wake(&self, sleep: &SleepWord, rank: usize) {
        if sleep.must_wake(self.fences.get()) {
            self.wake_sleeper(rank);
        }
    }

    #[cold]
    fn wake_sleeper(&self, rank: usize) {
        match &self.asleep {
            None => self.job.wake(rank),
            // The rank looks asleep until it is woken: one entry is enough.
            Some(asleep) if asleep.borrow().contains(&rank) => {}
            Some(asleep) => asleep.borrow_mut().push(rank),
        }
    }

    /// A rank that was found asleep, and is to be woken.
    #[inline]
    pub fn take_asleep(&self) -> Option<usize> {
        self.asleep.as_ref()?.borrow_mut().pop()
    }

    /// Place of the first lane with a message, among those that a poll checks. Inside a handler there is none: handlers do not
    /// nest.
    #[inline(always)]
    pub fn first_waiting(&self) -> Option<usize> {
        if self.delivering.get() {
            return None;
        }
        // SAFETY: on the one thread, outside a delivery: the only borrow.
        let lanes = unsafe { &mut *self.lanes.get() };
        if lanes.is_due() {
            self.attend(lanes);
        }
        lanes.first_waiting()
    }

    #[cold]
    fn attend(&self, lanes: &mut Lanes) {
        // A forked child would answer for its parent.
        if self.node.is_own() && lanes.attend() {
            self.add_context_lanes(lanes);
        }
    }

    /// Whether a message waits in any lane, also in one that polls do not check; the next poll finds it. Call before sleep, and before
    /// a failed peer is reported. Inside a handler there is none.
    #[cold]
    pub fn any_waiting(&self) -> bool {
        if self.delivering.get() || !self.node.is_own() {
            return false;
        }
        // SAFETY: on the one thread, outside a delivery: the only borrow.
        let lanes = unsafe { &mut *self.lanes.get() };
        self.add_context_lanes(lanes);
        lanes.any_waiting()
    }

    /// Contexts may have used further lanes: polls check them from now on.
    fn add_context_lanes(&self, lanes: &mut Lanes) {
        if self.senders.is_empty() {
            return;
        }
        let (slot, layout) = (self.node.slot(self.rank), &self.layout);
        // SAFETY: a slot begins with its `Status`, all atomics. Pairs with the Release in `ContextLanes::claim_lane`.
        let used = unsafe { &*slot.cast::<Status>() }.context_lanes.load(Ordering::Acquire) as usize;
        for lane in lanes.len() - self.senders.len()..used.min(CONTEXT_LANES) {
            // SAFETY: below the count of used lanes, so backed with memory. This rank alone reads it, from its first message on.
            let reader = unsafe {
                let (lines, credit) = (slot.add(layout.context_lane(lane)), slot.add(layout.context_credit(lane)));
                Reader::new(lines, credit, layout.context_lane_depth.ilog2())
            };
            lanes.add(layout.context_doorbell(lane), reader);
            lanes.poll_lane(lanes.len() - 1);
        }
    }

    /// Hands waiting messages to `sink`: sender, id, payload. Of the lanes that a poll checks, from the place `first` on. At most a
    /// lane's depth from each, so that a sender that floods its lane delays no other one for longer. Returns how many.
    ///
    /// # Panics
    /// Inside a handler, where `first_waiting` finds none.
    #[inline(always)]
    pub fn receive(&self, first: usize, mut sink: impl FnMut(usize, u8, &Message<'_>)) -> usize {
        let _guard = self.begin_handler();
        // SAFETY: `delivering` was false, so this is the only borrow; handlers cannot come back here.
        let lanes = unsafe { &mut *self.lanes.get() };
        let mut delivered = Delivered { count: 0, interface: self };
        for place in first..lanes.polled() {
            let (index, lane) = lanes.at(place);
            match self.senders.get(index) {
                Some(from) => self.receive_from(*from as usize, &mut lane.reader, &mut delivered.count, &mut sink),
                None => self.receive_from_contexts(&mut lane.reader, &mut delivered.count, &mut sink),
            }
        }
        let count = delivered.count;
        std::mem::forget(delivered);
        count
    }

    #[inline(always)]
    fn receive_from(
        &self,
        from: usize,
        reader: &mut Reader,
        count: &mut usize,
        sink: &mut impl FnMut(usize, u8, &Message<'_>),
    ) {
        for _ in 0..self.layout.lane_depth {
            let Some((head, body)) = reader.peek() else { break };
            let finish = Advance { reader, interface: self, from };
            self.deliver_line(from, head, body, sink);
            drop(finish);
            *count += 1;
        }
    }

    #[inline(always)]
    fn receive_from_contexts(
        &self,
        reader: &mut Reader,
        count: &mut usize,
        sink: &mut impl FnMut(usize, u8, &Message<'_>),
    ) {
        for _ in 0..self.layout.context_lane_depth {
            let Some((head, body)) = reader.peek() else { break };
            let finish = AdvanceContext(reader);
            match self.sender_of(head) {
                Some(from) => self.deliver_line(from, head.without_sender(), body, sink),
                None => self.refuse(head.sender(), "a line of a rank that has no lane here"),
            }
            drop(finish);
            *count += 1;
        }
    }

    /// The rank of the context that wrote a line, if it may write here.
    #[inline(always)]
    fn sender_of(&self, head: line::Head) -> Option<usize> {
        let from = head.sender();
        // Mostly all ranks have a lane here, and each is at its own number.
        let is_sender = self.senders.get(from) == Some(&(from as u32)) || self.is_sender(from);
        is_sender.then_some(from)
    }

    #[cold]
    fn is_sender(&self, from: usize) -> bool {
        self.senders.binary_search(&(from as u32)).is_ok()
    }

    /// Messages that were delivered in calls of [`Interface::receive`] which a handler's panic ended, since this was asked last.
    pub fn take_unwound(&self) -> usize {
        self.unwound.take()
    }

    /// Marks a handler as running, for a message that did not come through a lane, until the value is dropped.
    ///
    /// # Panics
    /// Inside a handler.
    #[inline(always)]
    pub fn begin_handler(&self) -> impl Drop + '_ {
        assert!(!self.delivering.replace(true), "handlers do not nest");
        Delivering(&self.delivering)
    }

    #[inline(always)]
    fn deliver_line(
        &self,
        from: usize,
        head: line::Head,
        body: *const u8,
        sink: &mut impl FnMut(usize, u8, &Message<'_>),
    ) {
        match head.kind() {
            Some(Kind::Inline) if head.length() <= BODY => {
                // SAFETY: the line stays as it is until it is consumed, after this.
                let data = unsafe { std::slice::from_raw_parts(body, head.length()) };
                sink(from, head.id(), &Message::new(data, None));
            }
            Some(Kind::Block) => match self.block(from, body) {
                Some((data, len)) => {
                    let taken = Cell::new(false);
                    let keep = || {
                        taken.set(true);
                        Retained::new(Block { data, len, node: Arc::clone(&self.node) })
                    };
                    // SAFETY: the block stays as it is until it is released, here or when the retained value is dropped.
                    let bytes = unsafe { std::slice::from_raw_parts(data, len) };
                    sink(from, head.id(), &Message::new(bytes, Some(&keep)));
                    if !taken.get() {
                        // SAFETY: the block was given to us and nobody kept it.
                        unsafe { arena::release(data) };
                        self.wake_if_asleep(from);
                    }
                }
                None => self.refuse(from, "a block outside the sender's message memory"),
            },
            _ => self.refuse(from, "a line that no sender of this version writes"),
        }
    }

    fn block(&self, from: usize, body: *const u8) -> Option<(*const u8, usize)> {
        // SAFETY: two words of the line's body.
        let words = unsafe { [*body.cast::<u64>(), *body.cast::<u64>().add(1)] };
        let (offset, len) = decode_block(words, &self.layout)?;
        // SAFETY: inside the sender's slot, as just checked.
        Some((unsafe { self.node.slot(from).add(offset) }, len))
    }

    #[cold]
    fn refuse(&self, from: usize, why: impl ToString) {
        self.undeliverable.borrow_mut().get_or_insert(Error::BadMessage { from, why: why.to_string() });
        self.has_error.set(true);
    }

    /// Takes the first message error since the last call.
    #[inline(always)]
    pub fn take_error(&self) -> Option<Error> {
        if self.has_error.replace(false) { self.undeliverable.take() } else { None }
    }

    /// Whether a handler is running.
    pub fn delivering(&self) -> bool {
        self.delivering.get()
    }
}

/// Offset and length of a block that a line refers to, if it lies in the sender's message memory.
pub fn decode_block(words: [u64; 2], layout: &SlotLayout) -> Option<(usize, usize)> {
    let [offset, len] = words.map(|word| word as usize);
    // The state line lies before the payload.
    let payloads = layout.arena + LINE..layout.arena + layout.arena_len;
    let inside = payloads.contains(&offset) && offset.checked_add(len)? <= payloads.end;
    (inside && offset.is_multiple_of(LINE)).then_some((offset, len))
}

/// Copies up to 48 bytes in whole words where it can; the body behind `to` has room for the last word's rest.
///
/// # Safety
/// `from` has `len` bytes; `to` is a line's body behind the header.
#[inline(always)]
unsafe fn copy_short(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller guarantees it.
    unsafe {
        match len {
            0 => {}
            8 => to.cast::<u64>().write(from.cast::<u64>().read_unaligned()),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

struct Delivering<'a>(&'a Cell<bool>);

impl Drop for Delivering<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Counts what one call has delivered; dropped only if a handler panics, whose message counts too.
struct Delivered<'a> {
    count: usize,
    interface: &'a Interface,
}

impl Drop for Delivered<'_> {
    #[cold]
    fn drop(&mut self) {
        self.interface.unwound.set(self.interface.unwound.get() + self.count + 1);
    }
}

/// Consumes the line even if the handler panics.
struct Advance<'a> {
    reader: &'a mut Reader,
    interface: &'a Interface,
    from: usize,
}

impl Drop for Advance<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.reader.advance() {
            self.interface.wake_if_asleep(self.from);
        }
    }
}

/// As [`Advance`], for a lane of contexts, which do not sleep while they wait for credit.
struct AdvanceContext<'a>(&'a mut Reader);

impl Drop for AdvanceContext<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.advance();
    }
}
