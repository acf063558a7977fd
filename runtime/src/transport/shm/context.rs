//! The lanes and memory with which contexts send messages: a lane at each receiver, and blocks for larger messages.
//!
//! A receiver's slot has [`CONTEXT_LANES`] lanes for contexts of all ranks. A context claims one when it sends there first, and gives
//! it back when it is dropped; the next owner goes on where this one ended. So receivers need not know of contexts, each lane has
//! one writer at a time, and a message of up to 48 bytes takes no lock. A line names its sender's rank, since owners change. A count in
//! the slot's first line tells how many lanes were ever used. A process that dies leaves its lanes claimed, since no other process knows
//! how much it wrote there. Its death ends every wait of the job, so such lanes are lost only to ranks that go on without that process.
//!
//! If all lanes are claimed, a context claims the first lane, which no context keeps, for each message anew. It then sends there through
//! that lane until it is dropped: two lanes have no order between them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use super::arena::{self, Arena, CONTEXT_ARENAS};
use super::claim::Claim;
use super::doorbell::Doorbell;
use super::line::{Kind, SENDERS_MAX, Writer};
use super::{NodeRank, SHORT_MAX};
use crate::error::{CalledAt, Error, Result};
use crate::memory::copy;
use crate::memory::layout::{CONTEXT_LANES, SlotLayout, Status};
use crate::memory::node::NodeMemory;
use crate::transport::Sent;
use crate::transport::lock::Mutex;
use crate::transport::peers::{Links, NOT_CONNECTED};

/// The lane that no context keeps.
const SHARED: usize = 0;

/// The message memory of a rank's contexts.
#[derive(Debug)]
pub(crate) struct ContextArenas {
    list: [Mutex<Option<Arena>>; CONTEXT_ARENAS],
    /// Contexts that use each of them.
    users: Mutex<[u32; CONTEXT_ARENAS]>,
}

impl Default for ContextArenas {
    fn default() -> ContextArenas {
        ContextArenas { list: [const { Mutex::new(None) }; CONTEXT_ARENAS], users: Mutex::new([0; CONTEXT_ARENAS]) }
    }
}

impl ContextArenas {
    /// The one with the fewest users.
    fn join(&self) -> usize {
        let mut users = self.users.lock();
        let (number, count) = users.iter_mut().enumerate().min_by_key(|(_, count)| **count).expect("there are some");
        *count += 1;
        number
    }

    fn leave(&self, number: usize) {
        self.users.lock()[number] -= 1;
    }
}

/// The sending end of one context, for ranks whose memory is mapped.
#[derive(Debug)]
pub(crate) struct ContextLanes {
    rank: usize,
    node: Arc<NodeMemory>,
    layout: SlotLayout,
    /// Ranks that have a slot on this host.
    slots: Range<usize>,
    /// Ranks of this host, among which its free memory is divided.
    sharers: usize,
    message_memory: usize,
    /// Index into `lanes`, made when the first message is sent.
    links: Option<Links>,
    lanes: Vec<Lane>,
    arenas: Arc<ContextArenas>,
    /// Which of them is used, since the first larger message.
    arena: Option<usize>,
}

#[derive(Debug)]
struct Lane {
    claim: *const Claim,
    writer: Writer,
    doorbell: Doorbell,
    /// Its bit there.
    number: usize,
    is_shared: bool,
}

// SAFETY:
// - the pointers are to mapped memory, which `node` keeps and any thread may access: claims and credits are atomics, and the lines of
//   a claimed lane are written by its one owner;
// - `Links` and `Vec` are reached through this value only.
unsafe impl Send for ContextLanes {}

impl ContextLanes {
    /// Those of a new context of the rank at `place`. Claims nothing yet.
    pub(crate) fn new(
        NodeRank { rank, job, node, layout, message_memory, .. }: NodeRank,
        arenas: Arc<ContextArenas>,
    ) -> ContextLanes {
        let (slots, sharers) = (job.slots(), job.ranks_here());
        ContextLanes {
            rank,
            node,
            layout,
            slots,
            sharers,
            message_memory,
            links: None,
            lanes: Vec::new(),
            arenas,
            arena: None,
        }
    }

    /// Most bytes of one message, header included.
    pub(crate) fn largest_message(&self) -> usize {
        let part = Arena::of_context_len(&self.layout, self.message_memory);
        part.saturating_sub(crate::memory::layout::LINE).max(SHORT_MAX)
    }

    /// Whether a message to `to` may find room now.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where there is no memory for the lane.
    pub(super) fn may_have_room(&mut self, to: usize) -> Result<bool> {
        let link = self.link(to)?;
        Ok(self.lanes[link as usize].may_have_room())
    }

    #[inline(always)]
    fn link(&mut self, to: usize) -> Result<u32> {
        let link = self.links.as_ref().map_or(NOT_CONNECTED, |links| links.get(to));
        if link == NOT_CONNECTED { self.connect(to) } else { Ok(link) }
    }

    /// Sends `header`, then `payload`, to `to`, whose memory is mapped. The caller wakes `to` if it sleeps.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] for a message that can never fit, and where there is no memory for the lane.
    #[inline]
    pub(crate) fn send(&mut self, to: usize, id: u8, header: u64, payload: &[u8]) -> Result<Sent> {
        let link = self.link(to)?;
        let (rank, len) = (self.rank, payload.len());
        if len > SHORT_MAX - 8 {
            return self.send_block(link, id, len + 8, |at| {
                // SAFETY: the block holds header and payload.
                unsafe {
                    at.cast::<u64>().write(header);
                    copy::copy(at.add(8), payload.as_ptr(), len);
                }
            });
        }
        let sent = self.lanes[link as usize].write(rank, |writer| {
            writer.write_from(rank, id, Kind::Inline, len + 8, |body| {
                // SAFETY: header and payload fit in the body.
                unsafe {
                    body.cast::<u64>().write(header);
                    super::copy_short(body.add(8), payload.as_ptr(), len);
                }
            });
        });
        Ok(sent)
    }

    /// As [`ContextLanes::send`], of header and payload together.
    ///
    /// # Errors
    /// As [`ContextLanes::send`].
    pub(super) fn send_bytes(&mut self, to: usize, id: u8, bytes: &[u8]) -> Result<Sent> {
        let link = self.link(to)?;
        let (rank, len) = (self.rank, bytes.len());
        // SAFETY: the line or the block holds so many bytes.
        let fill = |at: *mut u8| unsafe { copy::copy(at, bytes.as_ptr(), len) };
        if len > SHORT_MAX {
            return self.send_block(link, id, len, fill);
        }
        let lane = &mut self.lanes[link as usize];
        Ok(lane.write(rank, |writer| writer.write_from(rank, id, Kind::Inline, len, fill)))
    }

    #[cold]
    fn connect(&mut self, to: usize) -> Result<u32> {
        let lane = self.claim_lane(to)?;
        self.lanes.push(lane);
        let link = (self.lanes.len() - 1) as u32;
        self.links.get_or_insert_with(|| Links::idle(self.slots.clone())).set(to, link);
        Ok(link)
    }

    /// The first lane of `to` that is free; else the shared one.
    ///
    /// # Errors
    /// As [`check_sender`]; [`Error::OutOfMemory`].
    fn claim_lane(&self, to: usize) -> Result<Lane> {
        check_sender(self.rank)?;
        let slot = self.node.slot(to);
        // SAFETY: every slot begins with its `Status`, all atomics, committed before the rank arrived.
        let used = &unsafe { &*slot.cast::<Status>() }.context_lanes;
        // Pairs with the Release below.
        let before = used.load(Ordering::Acquire) as usize;
        if before == 0 {
            self.commit(to, self.layout.context_claim(0), self.layout.context_lane(SHARED + 1))?;
        }
        let lane = |number: usize, written, is_shared| {
            // SAFETY:
            // - claims, credits and lane `number` are inside the slot and backed with memory;
            // - a lane's claim has one owner, which is its only writer; the shared lane is written under a claim for each message.
            unsafe {
                Lane {
                    claim: slot.add(self.layout.context_claim(number)).cast(),
                    writer: Writer::resume(
                        slot.add(self.layout.context_lane(number)),
                        slot.add(self.layout.context_credit(number)),
                        self.layout.context_lane_depth.ilog2(),
                        written,
                    ),
                    doorbell: Doorbell::of_slot(slot, &self.layout),
                    number: self.layout.context_doorbell(number),
                    is_shared,
                }
            }
        };
        for number in SHARED + 1..CONTEXT_LANES {
            if number >= before {
                self.commit(to, self.layout.context_lane(number), self.layout.context_lane(number + 1))?;
            }
            // SAFETY: inside the slot, and backed with memory: another context of this rank or of others has done it, or this one.
            let claim = unsafe { &*slot.add(self.layout.context_claim(number)).cast::<Claim>() };
            if let Some(written) = claim.take(self.rank) {
                if number >= before {
                    // Pairs with the Acquire load in `Interface::add_context_lanes`: the lanes below are backed with memory.
                    // Not `fetch_max`, which the thread sanitizer takes for no synchronization.
                    let lanes = number as u64 + 1;
                    let _ =
                        used.fetch_update(Ordering::Release, Ordering::Relaxed, |now| (now < lanes).then_some(lanes));
                }
                return Ok(lane(number, written, false));
            }
        }
        Ok(lane(SHARED, 0, true))
    }

    fn commit(&self, to: usize, from: usize, end: usize) -> Result<()> {
        self.node.commit(to, from, end, 1, "lanes of contexts", "the memory of the machine")
    }

    #[inline(never)]
    fn send_block(&mut self, link: u32, id: u8, len: usize, fill: impl FnOnce(*mut u8)) -> Result<Sent> {
        let rank = self.rank;
        if !self.lanes[link as usize].may_have_room() {
            return Ok(Sent::NoRoom);
        }
        let number = *self.arena.get_or_insert_with(|| self.arenas.join());
        let Some((offset, at)) = self.take_block(number, len)? else { return Ok(Sent::NoRoom) };
        fill(at);
        let sent = self.lanes[link as usize].write(rank, |writer| {
            writer.write_from(rank, id, Kind::Block, 16, |body| {
                // SAFETY: two words fit in the body.
                unsafe {
                    body.cast::<u64>().write(offset as u64);
                    body.cast::<u64>().add(1).write(len as u64);
                }
            });
        });
        if sent == Sent::NoRoom {
            // SAFETY: the block was just taken, and no other code has its address.
            unsafe { arena::release(at) };
        }
        Ok(sent)
    }

    /// A block for `len` bytes: its offset in the slot, and its address.
    fn take_block(&self, number: usize, len: usize) -> Result<Option<(usize, *mut u8)>> {
        let mut arena = self.arenas.list[number].lock();
        if arena.is_none() {
            let node = Arc::clone(&self.node);
            *arena = Arena::of_context(node, &self.layout, self.rank, self.message_memory, self.sharers, number);
        }
        let arena = arena.as_mut().ok_or(Error::OutOfMemory {
            what: "message memory of contexts",
            asked: len,
            free: 0,
            limit: self.layout.arena_len,
            setting: "BELLWETHER_MESSAGE_MEMORY (lower), which leaves more of a slot to contexts",
            place: CalledAt::default(),
        })?;
        Ok(arena.take(len)?.map(|block| (block.offset, arena.payload(block))))
    }
}

impl Lane {
    /// Whether a message may find room. For the shared lane only an attempt can tell.
    fn may_have_room(&mut self) -> bool {
        self.is_shared || self.writer.has_room()
    }

    /// Writes one message, if there is room.
    #[inline(always)]
    fn write(&mut self, rank: usize, write: impl FnOnce(&mut Writer)) -> Sent {
        if self.is_shared {
            return self.write_shared(rank, write);
        }
        if !self.writer.has_room() {
            return Sent::NoRoom;
        }
        write(&mut self.writer);
        self.announce();
        Sent::Done
    }

    /// Tells the receiver of a message that was just written, if its polls do not check the lane.
    #[inline(always)]
    fn announce(&self) {
        // The compiler does not load the mark before the message is stored.
        compiler_fence(Ordering::SeqCst);
        if !self.writer.is_polled() {
            self.doorbell.ring(self.number);
        }
    }

    #[cold]
    fn write_shared(&mut self, rank: usize, write: impl FnOnce(&mut Writer)) -> Sent {
        // SAFETY: as `ContextLanes::claim_lane` says, of a slot that `node` keeps mapped.
        let claim = unsafe { &*self.claim };
        let Some(written) = claim.take(rank) else { return Sent::NoRoom };
        self.writer.go_on(written);
        let has_room = self.writer.has_room();
        if has_room {
            write(&mut self.writer);
            self.announce();
        }
        claim.give_back(self.writer.written());
        if has_room { Sent::Done } else { Sent::NoRoom }
    }
}

impl Drop for ContextLanes {
    fn drop(&mut self) {
        // A forked child has a copy, but the lanes are its parent's.
        if !self.node.is_own() {
            return;
        }
        for lane in self.lanes.iter().filter(|lane| !lane.is_shared) {
            // SAFETY: as in `Lane::write_shared`. This context owns the claim.
            unsafe { &*lane.claim }.give_back(lane.writer.written());
        }
        if let Some(number) = self.arena {
            self.arenas.leave(number);
        }
    }
}

/// # Errors
/// [`Error::InvalidArgument`] if a line cannot name this rank.
fn check_sender(rank: usize) -> Result<()> {
    if rank < SENDERS_MAX {
        return Ok(());
    }
    let why = format!(
        "rank {rank} sends no messages by contexts to ranks of its node: lanes of contexts name senders below {SENDERS_MAX}; send by \
         the world"
    );
    Err(Error::InvalidArgument { operation: "sending a message", why })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_no_line_can_name_is_refused() {
        check_sender(SENDERS_MAX - 1).expect("the last one that 24 bits name");
        let refused = check_sender(SENDERS_MAX);
        assert!(matches!(&refused, Err(Error::InvalidArgument { why, .. }) if why.contains("16777216")), "{refused:?}");
    }

    #[test]
    fn a_part_of_the_message_memory_that_was_left_is_taken_next() {
        let arenas = ContextArenas::default();
        let mut joined: Vec<usize> = (0..CONTEXT_ARENAS).map(|_| arenas.join()).collect();
        joined.sort_unstable();
        assert!(joined.into_iter().eq(0..CONTEXT_ARENAS), "two contexts share a part while others are free");
        for number in [5, 0, CONTEXT_ARENAS - 1] {
            arenas.leave(number);
            assert_eq!(arenas.join(), number);
        }
    }
}
