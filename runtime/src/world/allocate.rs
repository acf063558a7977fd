//! Collective allocation of symmetric memory. Rank 0 keeps the books; every rank backs its own part.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{OneThread, World};
use crate::engine::{Engine, Running};
use crate::error::{CalledAt, Error, Result};
use crate::memory::blocks::{Entry, Numbers};
use crate::memory::heap::Heap;
use crate::memory::layout::LINE;
use crate::team::see::Wanted;
use crate::team::title::{Asked, Kind};

const SETTING: &str = "BELLWETHER_HEAP_LIMIT";
const WHAT: &str = "symmetric heap";
/// Without a network, an allocation of up to so many bytes takes two exchanges in place of three, and may not yet find the room of
/// blocks that other ranks have dropped just before. Chosen: as much is zeroed in less time than an exchange takes.
const SMALL: usize = 64 << 10;
/// The offset in rank 0's answer where there is no room.
const NO_ROOM: u64 = u64::MAX;

/// A rank's state of the symmetric heap.
#[derive(Debug)]
pub(super) struct Allocator {
    /// Only at rank 0.
    books: Option<Books>,
    limit: usize,
    committed: usize,
}

/// The parts of the heap that are in use, and the numbers of their blocks.
#[derive(Debug)]
struct Books {
    heap: Heap,
    numbers: Numbers,
    /// Where blocks begin that rank 0 has taken and not yet zeroed: the line before each still counts the drops of an earlier block.
    unzeroed: Vec<usize>,
}

impl Books {
    fn give_back(&mut self, start: usize) {
        self.heap.give_back(start);
        self.numbers.take_back(start);
        self.note_zeroed(start);
    }

    fn note_zeroed(&mut self, start: usize) {
        self.unzeroed.retain(|other| *other != start);
    }
}

impl Allocator {
    pub(super) fn new(engine: &Engine) -> Allocator {
        let room = engine.layout.heap_len;
        let limit = engine.settings.heap_limit.unwrap_or(room).min(room) / LINE * LINE;
        let books = || Books { heap: Heap::new(limit), numbers: Numbers::default(), unzeroed: Vec::new() };
        Allocator { books: (engine.rank == 0).then(books), limit, committed: 0 }
    }
}

impl Allocator {
    /// Bytes the heap of one rank may grow to.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Rank 0 reclaims the blocks that, as far as it knows, every rank has dropped, and takes `bytes` bytes and room for [`drops`].
    pub(super) fn take(&mut self, engine: &Engine, bytes: usize, align: usize) -> Answer {
        let mut answer = Answer { offset: NO_ROOM, ..Answer::default() };
        let Some(books) = &mut self.books else { return answer };
        reclaim(engine, books);
        answer.free = books.heap.largest_free() as u64;
        let place = |total| books.heap.take_before(total, LINE, LINE, align);
        if let Some(offset) = bytes.checked_add(LINE).and_then(place) {
            let (number, allocation) = books.numbers.give(offset);
            books.unzeroed.push(offset);
            answer = Answer { offset: offset as u64, number: number as u64, allocation, ..answer };
        }
        answer
    }

    /// Rank 0 gives back a block that no rank has.
    pub(super) fn give_back(&mut self, start: usize) {
        if let Some(books) = &mut self.books {
            books.give_back(start);
        }
    }

    /// Backs bytes `from..to` of this rank's heap with memory, and zeroes them.
    pub(super) fn back(&mut self, engine: &Engine, from: usize, to: usize) -> Result<()> {
        let heap = engine.layout.heap;
        let used = self.committed;
        if to > used {
            let commit = |to: usize| {
                let granule = engine.node.granule(to - used);
                let end = to.next_multiple_of(granule).min(engine.layout.heap_len);
                engine
                    .node
                    .commit(engine.rank, heap + used, heap + end, engine.job.ranks_here(), WHAT, SETTING)
                    .map(|()| end)
            };
            let end = match engine.routes.all_mapped() {
                // Each growth is a registration of its own, of which there are to be few.
                false => commit(to.max((used + used / 8).min(self.limit))).or_else(|_| commit(to))?,
                true => commit(to)?,
            };
            engine.grew(heap + used, heap + end)?;
            self.committed = end;
            engine.node.status(engine.rank).heap_committed.store(end as u64, Ordering::Release);
        }
        // Memory that was committed just now is zero already.
        if from < used {
            // SAFETY: committed memory of our own slot, in a block to which no handle exists yet.
            unsafe { libc::memset(engine.node.slot(engine.rank).add(heap + from).cast(), 0, to.min(used) - from) };
        }
        if let Some(books) = &mut self.books {
            books.note_zeroed(from);
        }
        Ok(())
    }
}

/// The answer of rank 0 to all ranks.
#[derive(Debug, Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Answer {
    /// Offset, in the heap, of the line before the block; or [`NO_ROOM`].
    offset: u64,
    /// Bytes of the largest free range before.
    free: u64,
    number: u64,
    pub(super) allocation: u64,
}

impl Answer {
    /// Offset, in the heap, of the line before the block, if there is room.
    pub(super) fn start(&self) -> Option<usize> {
        (self.offset != NO_ROOM).then_some(self.offset as usize)
    }

    /// Where a block of `bytes` bytes is, and its number.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(super) fn placed(&self, bytes: usize, limit: usize) -> Result<(usize, usize)> {
        let start = self.start().ok_or_else(|| Error::OutOfMemory {
            what: WHAT,
            asked: bytes,
            free: (self.free as usize).saturating_sub(LINE),
            limit,
            setting: SETTING,
            place: CalledAt::default(),
        })?;
        Ok((start, self.number as usize))
    }
}

/// The error where `rank` has no memory for its part.
#[cold]
pub(super) fn no_memory_at(rank: usize, bytes: usize, operation: &str) -> Error {
    Error::Agreed { rank, why: format!("{operation}: no memory for {bytes} bytes") }
}

/// A block of symmetric memory: the same offset in every rank's slot. Given back when every rank has dropped it.
///
/// Nothing in it may change through `&`: handles hold it, and what cannot change stays in registers in a loop of puts.
#[derive(Debug)]
pub(crate) struct Block {
    engine: OneThread<Rc<Engine>, World>,
    /// Offset of the first byte in every slot.
    pub(crate) offset: usize,
    /// Its number in the table of blocks, the same on all ranks.
    pub(super) number: usize,
    bytes: usize,
    /// How many were given out before it or with it.
    allocation: u64,
}

impl Block {
    /// The block that begins behind the line at `start` of the heap. Every rank has backed it.
    pub(super) fn made(engine: &Rc<Engine>, start: usize, number: usize, bytes: usize, allocation: u64) -> Block {
        let offset = engine.layout.heap + start + LINE;
        Block { engine: OneThread::new(Rc::clone(engine)), offset, number, bytes, allocation }
    }

    /// A block that another handle holds; not to be dropped.
    #[inline(always)]
    pub(super) fn lent(engine: Rc<Engine>, entry: Entry, number: usize) -> Block {
        Block { engine: OneThread::new(engine), offset: entry.offset, number, bytes: entry.bytes, allocation: 0 }
    }

    /// Lets pointers reach it, new ones only.
    pub(super) fn show(&self) {
        self.engine.blocks.show(self.number, self.allocation, self.offset, self.bytes);
    }

    /// Lets no pointer reach it.
    pub(super) fn hide(&self) {
        self.engine.blocks.hide(self.number);
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine(rank {} of {})", self.rank, self.size)
    }
}

/// The line before a block at rank 0 counts the ranks that have dropped it.
fn drops(engine: &Engine, offset: usize) -> &AtomicU64 {
    // SAFETY: the line before a live block is part of the heap and only touched as this atomic.
    unsafe { AtomicU64::from_ptr(engine.node.slot(0).add(offset - LINE).cast()) }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.hide();
        // The parent's handle still holds the block, and is counted when that drops it.
        if !self.engine.is_own() {
            return;
        }
        // One agent counts: over a network that is the network, for rank 0 too. The memory is not needed before the next allocation,
        // in which all ranks take part, so the network hears of it there. A ring here could wait for room, and a rank 0 that has
        // left would count as missed.
        if !self.engine.routes.all_mapped() {
            return self.engine.blocks.release(self.offset - LINE);
        }
        // Release pairs with the Acquire load in `reclaim`: the memory is not reused before this rank is done.
        drops(&self.engine, self.offset).fetch_add(1, Ordering::Release);
    }
}

impl World {
    /// Takes `bytes` zeroed bytes, aligned to a cache line, at the same offset in every slot. Collective. No global pointer
    /// reaches them before [`Block::show`].
    #[track_caller]
    pub(crate) fn allocate(&self, bytes: usize, operation: &'static str) -> Result<Block> {
        self.allocate_aligned(Asked::data::<u8>(Kind::Allocate, bytes), bytes, LINE, operation)
    }

    /// The same for the call `asked`, aligned to `align` bytes: a multiple of a cache line, at most a page.
    #[track_caller]
    pub(super) fn allocate_aligned(
        &self,
        asked: Asked,
        bytes: usize,
        align: usize,
        operation: &'static str,
    ) -> Result<Block> {
        self.engine.at(|| self.allocate_together(asked, bytes, align, operation))
    }

    fn allocate_together(&self, asked: Asked, bytes: usize, align: usize, operation: &'static str) -> Result<Block> {
        let running = self.begin(operation)?;
        self.allocate_within(&running, asked, bytes, align)
    }

    /// As [`World::allocate_aligned`], as a part of the collective call `running`. Not before that is begun: a call that is refused
    /// gives nothing to rank 0.
    pub(super) fn allocate_within(
        &self,
        running: &Running<'_>,
        asked: Asked,
        bytes: usize,
        align: usize,
    ) -> Result<Block> {
        self.engine.hand_back()?;
        let asked = asked.aligned(align);
        let mut answer = Answer { offset: NO_ROOM, ..Answer::default() };
        // Without a network nothing is in flight to a block that its rank has dropped.
        if bytes <= SMALL && self.engine.networks.is_empty() {
            answer = self.answered(running, asked, bytes, align)?;
        }
        if answer.offset == NO_ROOM {
            // A rank enters an exchange when all that it has in flight is complete: its rings of `hand_back`, and what it posted to
            // the blocks that these give back.
            self.exchange_within(running, (asked, Wanted::Equal), &[], |_, _: &[u8]| {})?;
            answer = self.answered(running, asked, bytes, align)?;
        }
        let limit = self.allocator.borrow().limit;
        let (start, number) = answer.placed(bytes, limit)?;
        if !self.engine.routes.all_mapped() {
            // The last rings of a bell that lay there have come, but may not have been counted.
            self.engine.turn();
        }
        // No borrow is held over an exchange: handlers run in it.
        let backed = self.allocator.borrow_mut().back(&self.engine, start, start + LINE + bytes);
        let mut failed = None;
        self.exchange_within(
            running,
            (Kind::Allocate, Wanted::First),
            &[u8::from(backed.is_err())],
            |rank, theirs: &[u8]| {
                if theirs[0] != 0 && failed.is_none() {
                    failed = Some(rank);
                }
            },
        )?;
        if let Some(rank) = failed {
            self.allocator.borrow_mut().give_back(start);
            backed?;
            let operation = self.engine.calls.current().and_then(|call| call.name).unwrap_or("an allocation");
            return Err(no_memory_at(rank, bytes, operation));
        }
        // Every rank has backed as much, as all have just said.
        self.heaps.note_backed()(start + LINE + bytes);
        Ok(Block::made(&self.engine, start, number, bytes, answer.allocation))
    }

    /// Rank 0 takes the bytes, and tells all ranks where they are.
    fn answered(&self, running: &Running<'_>, asked: Asked, bytes: usize, align: usize) -> Result<Answer> {
        let mine = self.allocator.borrow_mut().take(&self.engine, bytes, align);
        let mut answer = mine;
        let told = self.exchange_within(
            running,
            (asked, Wanted::From(0)),
            bytemuck::bytes_of(&mine),
            |rank, theirs: &[u8]| {
                if rank == 0 {
                    answer = bytemuck::pod_read_unaligned(theirs);
                }
            },
        );
        if let (Err(Error::RanksDiffer { .. }), Some(start)) = (&told, mine.start()) {
            // No rank has it.
            self.allocator.borrow_mut().give_back(start);
        }
        told.map(|()| answer)
    }
}

/// Gives back the blocks that every rank has dropped.
fn reclaim(engine: &Engine, books: &mut Books) {
    let heap = engine.layout.heap;
    let dropped: Vec<usize> = books
        .heap
        .taken()
        .filter(|start| !books.unzeroed.contains(start))
        // Pairs with the Release in `Block::drop`.
        .filter(|start| drops(engine, heap + start + LINE).load(Ordering::Acquire) == engine.size as u64)
        .collect();
    dropped.into_iter().for_each(|start| books.give_back(start));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use crate::error::Loss;
    use crate::settings::{Settings, Transport};

    #[test]
    fn a_drop_does_not_miss_a_rank_that_has_left() {
        let contract = Settings { transport: Transport::ShmContract, ..Settings::default() };
        let ranks = crate::Threads::new(2).settings(contract).deadline(Duration::from_secs(20));
        let missed = ranks.run(|world| {
            let memory = world.alloc::<u64>(1).expect("fits");
            let job = std::sync::Arc::clone(&world.engine().job);
            if world.rank() == 1 {
                while job.loss(0) != Some(Loss::Left) {
                    std::thread::yield_now();
                }
            }
            drop(memory);
            job.first_missed()
        });
        assert_eq!(
            missed.expect("runs"),
            [None, None],
            "a rank that needed nothing more of rank 0 is said to have missed it"
        );
    }

    #[test]
    fn a_block_is_not_given_twice_while_ranks_back_it() {
        let places = crate::Threads::new(1).run(|world| {
            // Its one rank has dropped it: so says the line before the block, until that is zeroed.
            drop(world.alloc::<u64>(8).expect("fits"));
            let mut allocator = world.allocator.borrow_mut();
            let taken =
                [(); 3].map(|()| allocator.take(world.engine(), 64, super::LINE).start().expect("there is room"));
            allocator.back(world.engine(), taken[1], taken[1] + 2 * super::LINE).expect("there is memory");
            taken.into_iter().for_each(|start| allocator.give_back(start));
            assert!(allocator.books.as_ref().is_some_and(|books| books.unzeroed.is_empty()));
            taken
        });
        let [first, second, third] = places.expect("runs")[0];
        assert!(first != second && second != third && third != first, "{first}, {second}, {third}");
    }

    #[test]
    fn a_small_allocation_takes_two_exchanges() {
        let settings = Settings { heap_limit: Some(192 << 10), ..Settings::default() };
        let barriers = crate::Threads::new(2).settings(settings).run(|world| {
            let entered =
                || world.engine().node.status(world.rank()).entered.load(std::sync::atomic::Ordering::Relaxed);
            let count = |bytes| {
                let before = entered();
                let memory = world.alloc::<u8>(bytes).map(drop);
                world.barrier().expect("no rank dies");
                (entered() - before - 1, memory.is_ok())
            };
            let [small, large] = [super::SMALL, super::SMALL + 1].map(count);
            let _kept = world.alloc::<u8>(2 * super::SMALL).expect("fits");
            // Asked again when all ranks have reported the blocks that they have dropped.
            [small, large, count(super::SMALL)]
        });
        assert_eq!(barriers.expect("runs"), [[(2, true), (3, true), (3, false)]; 2]);
    }
}
