//! Memory by the number of its segment, by its offset in the symmetric heap, and by its address: puts, gets and atomics, with events
//! and without, and puts that answer at once.

use std::sync::atomic::{AtomicI32, Ordering};

use bellwether::{Bell, Fetched, Operation, Pod, RawBells, Result, Segment, Symmetric, World};
use bytemuck::pod_read_unaligned;

use crate::operations::{OPS, Watched, tried};
use crate::plan::{Plan, many, nothing, one};

/// Bytes at each rank that one rank acts on.
const PART: usize = 64;
/// The number of the segment of memory that the program gave.
const GIVEN: u32 = 40;

pub fn script(world: &World, plan: &mut Plan) -> Result<()> {
    let memory = Memory::new(world, plan)?;
    let watched = Watched::new(world)?;
    for _ in 0..12 * plan.effort {
        plan.about("by number");
        by_number(world, plan, &memory)?;
        plan.about("by number, with events");
        number_with_events(world, plan, &memory, &watched)?;
        plan.about("in the heap");
        in_the_heap(world, plan, &memory, &watched)?;
        plan.about("by address");
        by_address(world, plan, &memory, &watched)?;
    }
    plan.about("segments");
    memory.end(world, plan)?;
    plan.note("rings of events", watched.bell.count().map(one));
    world.barrier()
}

/// Memory of each kind, as long at all ranks, each with what reaches it.
struct Memory {
    made: Segment,
    /// Of memory of the program's.
    given: Segment,
    heap: Symmetric<u64>,
    /// Where gets with events go.
    back: Segment,
    bell: Bell,
    /// The numbers of `made` and `given`.
    numbers: [u32; 2],
    /// Addresses of `made`, `given`, the heap and memory that is no segment, at each rank.
    addresses: [Vec<usize>; 4],
    /// What lies behind `given`, and no segment.
    owned: [*mut [u64]; 2],
}

fn random_words(plan: &mut Plan, len: usize) -> *mut [u64] {
    Box::into_raw(plan.values::<u64>(len / 8).into_boxed_slice())
}

impl Memory {
    fn new(world: &World, plan: &mut Plan) -> Result<Memory> {
        let len = PART * world.size();
        let owned = [random_words(plan, len), random_words(plan, len)];
        let made = world.segment_all(len)?;
        made.write(0, &plan.values::<u8>(len))?;
        // SAFETY: the words are freed after the segment is closed, and nobody refers to them meanwhile.
        let given = unsafe { world.segment_at(Some(GIVEN), owned[0].cast(), len) }?;
        let heap = world.alloc::<u64>(len / 8)?;
        heap.write(0, &plan.values(len / 8));
        let back = world.segment(len)?;
        let starts = [made.as_ptr(), given.as_ptr(), heap.as_ptr_range().start.cast(), owned[1].cast()];
        let mut addresses = Vec::new();
        for start in starts {
            addresses.push(world.exchange_addresses(start)?);
        }
        let addresses = addresses.try_into().expect("four kinds of memory");
        let numbers = [made.number(), GIVEN];
        let memory = Memory { made, given, heap, back, bell: world.bell()?, numbers, addresses, owned };
        world.barrier()?;
        Ok(memory)
    }

    /// What came of it all, once it is in effect everywhere.
    fn end(self, world: &World, plan: &mut Plan) -> Result<()> {
        let len = PART * world.size();
        // A get by this rank comes after its puts, however these went.
        for rank in 0..world.size() {
            let mut mine = [0; PART];
            // SAFETY: bytes that only this rank changes.
            unsafe { get_address(world, rank, self.addresses[3][rank] + PART * world.rank(), &mut mine) }?;
            plan.note(format!("at rank {rank}"), Ok(many(mine.to_vec())));
        }
        world.barrier()?;
        for (name, segment) in [("made", &self.made), ("given", &self.given), ("back", &self.back)] {
            let mut here = vec![0u8; len];
            let read = segment.read(0, &mut here);
            plan.note(name, read.map(|()| many(here)));
        }
        let mut here = vec![0; len / 8];
        self.heap.read(0, &mut here);
        plan.note("heap", Ok(many(here)));
        plan.note("rings", self.bell.count().map(one));
        world.barrier()?;
        let Memory { made, given, back, owned, .. } = self;
        for (name, segment) in [("made", made), ("given", given), ("back", back)] {
            plan.note(format!("close of {name}"), segment.close().map(nothing));
        }
        world.barrier()?;
        for words in owned {
            // SAFETY: from a box, and no rank reaches them any more.
            let words = unsafe { Box::from_raw(words) };
            plan.note("words", Ok(many(words.to_vec())));
        }
        Ok(())
    }
}

/// Where a call goes: nearly always inside what this rank acts on.
#[derive(Debug, Clone, Copy)]
struct Aim {
    rank: usize,
    number: u32,
    offset: usize,
    len: usize,
}

fn aim(world: &World, plan: &mut Plan, memory: &Memory) -> Aim {
    let rank = plan.rank(world);
    let number = match plan.own.below(20) {
        0 => [0, 1, 7, 70_000][plan.own.below(4)],
        way => memory.numbers[way % 2],
    };
    let within = plan.own.below(PART);
    let offset = PART * world.rank() + within;
    let len = plan.own.below(PART - within + 1);
    match plan.own.below(20) {
        // It leaves the segment.
        0 => Aim { rank, number, offset, len: PART * world.size() - offset + 1 + plan.own.below(3) },
        1 => Aim { rank, number, offset: usize::MAX - plan.own.below(2), len: plan.own.below(3) },
        _ => Aim { rank, number, offset, len },
    }
}

/// A word of what this rank acts on; now and then one that is not aligned.
fn word_aim(world: &World, plan: &mut Plan, memory: &Memory) -> Aim {
    let aim = aim(world, plan, memory);
    let astray = usize::from(plan.own.below(8) == 0);
    Aim {
        offset: if aim.offset > PART * world.size() { aim.offset } else { aim.offset / 8 * 8 + astray },
        len: 8,
        ..aim
    }
}

/// What is to be in a word: half of the time what is.
fn expected<T: Pod>(plan: &mut Plan, read: impl FnOnce(&mut [u8]) -> Result<()>) -> T {
    let (mut bytes, other) = (vec![0; size_of::<T>()], plan.value());
    if plan.own.below(2) == 0 && read(&mut bytes).is_ok() { pod_read_unaligned(&bytes) } else { other }
}

fn by_number(world: &World, plan: &mut Plan, memory: &Memory) -> Result<()> {
    let bell = &memory.bell;
    let at = aim(world, plan, memory);
    let Aim { rank, number, offset, len } = at;
    let bytes: Vec<u8> = plan.values(len.min(PART * world.size() + 8));
    match plan.own.below(9) {
        0 => plan.note_put(world, format!("put {at:?}"), world.put_segment(rank, number, offset, &bytes)),
        1 => {
            let mut bytes = bytes;
            let got = world.get_segment(rank, number, offset, &mut bytes);
            plan.note(format!("get {at:?}"), got.map(|()| many(bytes)));
        }
        2 => {
            let put = world.put_segment_bell(rank, number, offset, &bytes, bell);
            plan.note_put(world, format!("put and bell {at:?}"), put);
        }
        3 => {
            let put = tried(world, || world.try_put_segment(rank, number, offset, &bytes));
            plan.note_put(world, format!("try_put {at:?}"), put);
        }
        4 => {
            let put = tried(world, || world.try_put_segment_bell(rank, number, offset, &bytes, bell));
            plan.note_put(world, format!("try_put and bell {at:?}"), put);
        }
        way => {
            let at = word_aim(world, plan, memory);
            let Aim { rank, number, offset, .. } = at;
            let (op, value) = (OPS[plan.own.below(6)], plan.own.next());
            match way {
                5 => {
                    let put = world.notify_segment(rank, number, offset, value);
                    plan.note_put(world, format!("notification {at:?}"), put);
                }
                6 => {
                    let put = tried(world, || world.try_notify_segment(rank, number, offset, value as u32));
                    plan.note_put(world, format!("try_notify {at:?}"), put);
                }
                7 => {
                    let expected: u64 = expected(plan, |bytes| world.get_segment(rank, number, offset, bytes));
                    let found = world.compare_swap_segment(rank, number, offset, expected, value);
                    plan.note(format!("compare_swap {at:?}"), found.map(one));
                }
                _ => {
                    let found = world.fetch_segment(op, rank, number, offset, value as u32);
                    plan.note(format!("{op:?} {at:?}"), found.map(one));
                }
            }
        }
    }
    Ok(())
}

fn fetched<T: Pod>(fetched: Fetched<T>) -> String {
    fetched.value().map_or("nothing".into(), one)
}

fn number_with_events(world: &World, plan: &mut Plan, memory: &Memory, watched: &Watched) -> Result<()> {
    let at = aim(world, plan, memory);
    let Aim { rank, number, offset, len } = at;
    let bytes: Vec<u8> = plan.values(len.min(PART * world.size() + 8));
    match plan.own.below(4) {
        0 => {
            let put = |operation: Operation<'_>| operation.put_segment(rank, number, offset, &bytes);
            watched.operate(world, plan, format!("put {at:?}"), put, nothing)
        }
        1 => {
            let into = plan.own.below(PART);
            let get = |operation: Operation<'_>| operation.get_segment(rank, number, offset, &memory.back, into, len);
            watched.operate(world, plan, format!("get to {into} {at:?}"), get, nothing)
        }
        way => {
            let at = word_aim(world, plan, memory);
            let Aim { rank, number, offset, .. } = at;
            let (op, value) = (OPS[plan.own.below(6)], plan.own.next());
            if way == 2 {
                let change = |operation: Operation<'_>| operation.fetch_segment(op, rank, number, offset, value);
                watched.operate(world, plan, format!("{op:?} {at:?}"), change, fetched)
            } else {
                let expected: i32 = expected(plan, |bytes| world.get_segment(rank, number, offset, bytes));
                let value = value as i32;
                let change =
                    |operation: Operation<'_>| operation.compare_swap_segment(rank, number, offset, expected, value);
                watched.operate(world, plan, format!("compare_swap {at:?}"), change, fetched)
            }
        }
    }?;
    world.fence();
    Ok(())
}

fn in_the_heap(world: &World, plan: &mut Plan, memory: &Memory, watched: &Watched) -> Result<()> {
    // SAFETY: all accesses are to the array `heap`, of which any bits are valid; other numbers than 0 have no memory here.
    let reserved = unsafe { world.reserved_segments() };
    let rank = plan.rank(world);
    let number = if plan.own.below(20) == 0 { 1 + plan.own.below(2) as u32 } else { 0 };
    let word = plan.own.below(PART / 8);
    let offset = memory.heap.segment_offset(PART / 8 * world.rank() + word);
    let len = plan.own.below(PART - 8 * word + 1);
    let bytes: Vec<u8> = plan.values(len);
    let (op, value) = (OPS[plan.own.below(6)], plan.own.next());
    let at = format!("rank {rank}, number {number}, word {word}");
    match plan.own.below(9) {
        0 => plan.note_put(world, format!("put {at}"), reserved.put(rank, number, offset, &bytes)),
        1 => {
            let mut bytes = bytes;
            let got = reserved.get(rank, number, offset, &mut bytes);
            plan.note(format!("get {at}"), got.map(|()| many(bytes)));
        }
        2 => {
            let put = tried(world, || reserved.try_put(rank, number, offset, &bytes));
            plan.note_put(world, format!("try_put {at}"), put);
        }
        3 => plan.note(format!("{op:?} {at}"), reserved.fetch(op, rank, number, offset, value).map(one)),
        4 => {
            let expected: u32 = expected(plan, |bytes| reserved.get(rank, number, offset, bytes));
            let found = reserved.compare_swap(rank, number, offset, expected, value as u32);
            plan.note(format!("compare_swap {at}"), found.map(one));
        }
        5 => {
            let put = |operation: Operation<'_>| operation.put_reserved(&reserved, rank, number, offset, &bytes);
            watched.operate(world, plan, format!("put with events {at}"), put, nothing)?;
        }
        6 => {
            let (back, len) = (&memory.back, bytes.len());
            let get = |operation: Operation<'_>| {
                operation.get_reserved(&reserved, (rank, number, offset), back, PART * world.rank(), len)
            };
            watched.operate(world, plan, format!("get with events {at}"), get, nothing)?;
        }
        7 => {
            let change =
                |operation: Operation<'_>| operation.fetch_reserved(op, &reserved, (rank, number, offset), value);
            watched.operate(world, plan, format!("{op:?} with events {at}"), change, fetched)?;
        }
        _ => {
            let expected: u64 = expected(plan, |bytes| reserved.get(rank, number, offset, bytes));
            let change = |operation: Operation<'_>| {
                operation.compare_swap_reserved(&reserved, (rank, number, offset), expected, value)
            };
            watched.operate(world, plan, format!("compare_swap with events {at}"), change, fetched)?;
        }
    }
    world.fence();
    Ok(())
}

/// Copies bytes at an address, and waits for them, however they come.
///
/// # Safety
/// As of [`World::get_address`].
unsafe fn get_address(world: &World, rank: usize, from: usize, into: &mut [u8]) -> Result<()> {
    let bell = AtomicI32::new(0);
    let bells = RawBells { local: Some(&bell), remote: None };
    // SAFETY: the caller's; `into` and the bell live until it has rung.
    unsafe { world.get_address(rank, from, into.as_mut_ptr(), into.len(), bells) }?;
    world.wait_until(|| bell.load(Ordering::Acquire) > 0)
}

/// Memory that only this rank changes meanwhile: of segments, of the heap, and puts and gets also of other memory.
fn by_address(world: &World, plan: &mut Plan, memory: &Memory, watched: &Watched) -> Result<()> {
    let rank = plan.rank(world);
    let (kind, way) = (plan.own.below(4), plan.own.below(9));
    // Bytes for other memory than the heap and what the library has made may go by message. Only the effect event tells that they are there.
    let kind = match way {
        0 | 2 => kind / 2 * 2,
        // Atomics need registered memory.
        5.. => kind % 3,
        _ => kind,
    };
    let word = plan.own.below(PART / 8);
    // Of a rank that there is not, any.
    let start = memory.addresses[kind].get(rank).copied().unwrap_or(memory.addresses[kind][0]);
    let address = start + PART * world.rank() + 8 * word;
    let len = plan.own.below(PART - 8 * word + 1);
    let bytes: Vec<u8> = plan.values(len);
    let (op, value) = (OPS[plan.own.below(6)], plan.own.next());
    let at = format!("rank {rank}, memory {kind}, word {word}");
    match way {
        0 => {
            // SAFETY: words of the program that only this rank changes.
            let put = unsafe { world.put_address(rank, address, &bytes, RawBells::default()) };
            plan.note_put(world, format!("put {at}"), put);
        }
        1 => {
            let mut bytes = bytes;
            // SAFETY: as above.
            let got = unsafe { get_address(world, rank, address, &mut bytes) };
            plan.note(format!("get {at}"), got.map(|()| many(bytes)));
        }
        2 => {
            // SAFETY: as above.
            let put = tried(world, || unsafe { world.try_put_address(rank, address, &bytes, RawBells::default()) });
            plan.note_put(world, format!("try_put {at}"), put);
        }
        3 => {
            // SAFETY: as above.
            let put = |operation: Operation<'_>| unsafe { operation.put_address(rank, address, &bytes) };
            watched.operate(world, plan, format!("put with events {at}"), put, nothing)?;
        }
        4 => {
            let (back, to, len) = (&memory.back, PART * world.rank(), bytes.len());
            // SAFETY: as above.
            let get = |operation: Operation<'_>| unsafe { operation.get_address(rank, address, back, to, len) };
            watched.operate(world, plan, format!("get with events {at}"), get, nothing)?;
        }
        5 => {
            // SAFETY: as above; no rank has a reference to these words.
            let found = unsafe { world.fetch_address(op, rank, address, value) };
            plan.note(format!("{op:?} {at}"), found.map(one));
        }
        6 => {
            // SAFETY: as above.
            let expected: u32 = expected(plan, |bytes| unsafe { get_address(world, rank, address, bytes) });
            // SAFETY: as above.
            let found = unsafe { world.compare_swap_address(rank, address, expected, value as u32) };
            plan.note(format!("compare_swap {at}"), found.map(one));
        }
        7 => {
            // SAFETY: as above.
            let change = |operation: Operation<'_>| unsafe { operation.fetch_address(op, rank, address, value) };
            watched.operate(world, plan, format!("{op:?} with events {at}"), change, fetched)?;
        }
        _ => {
            // SAFETY: as above.
            let expected: u64 = expected(plan, |bytes| unsafe { get_address(world, rank, address, bytes) });
            // SAFETY: as above.
            let change =
                |operation: Operation<'_>| unsafe { operation.compare_swap_address(rank, address, expected, value) };
            watched.operate(world, plan, format!("compare_swap with events {at}"), change, fetched)?;
        }
    }
    world.fence();
    Ok(())
}
