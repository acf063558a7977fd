//! Segments: made by one rank or by all, reached by number and by address, closed while others use them.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use bellwether_runtime::{Error, RawBells, Result, Segment, ThreadContext, Threads, World};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::{everywhere, is_mapped, settings, watchdog};

/// Everyone's number, or 0, and address.
fn shown(world: &World, own: Option<&Segment>) -> Result<Vec<[u64; 2]>> {
    world.allgather(&[own.map_or([0; 2], |own| [u64::from(own.number()), own.address() as u64])])
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7 + i / 251) as u8).collect()
}

pub fn one_rank_alone_makes_a_segment_and_all_reach_it() {
    everywhere(|world| {
        const LEN: usize = 100_000;
        let (me, n) = (world.rank(), world.size());
        let owner = n - 1;
        let own = if me == owner { Some(world.segment(LEN * n)?) } else { None };
        let [number, address] = shown(world, own.as_ref())?[owner];
        let (number, address) = (number as u32, address as usize);
        world.put_segment(owner, number, me * LEN, &pattern(me, LEN / 2))?;
        // SAFETY: this rank's part of the segment, which its owner keeps.
        unsafe { world.put_address(owner, address + me * LEN + LEN / 2, &pattern(me + 1, 64), RawBells::default()) }?;
        // What went by message may come later than this barrier.
        let mut came = vec![0; 64];
        world.wait_until(|| {
            world.get_segment(owner, number, me * LEN + LEN / 2, &mut came).expect("a get");
            came == pattern(me + 1, 64)
        })?;
        world.fence();
        world.barrier()?;
        let other = (me + 1) % n;
        let mut came = vec![0; LEN / 2];
        world.get_segment(owner, number, other * LEN, &mut came)?;
        assert!(came == pattern(other, LEN / 2));
        let bell = AtomicI32::new(0);
        let (bells, mut came) = (RawBells { local: Some(&bell), remote: None }, vec![0; 1000]);
        // SAFETY: valid until the bell has rung, which is waited for.
        unsafe { world.get_address(owner, address + other * LEN + 3, came.as_mut_ptr(), 1000, bells) }?;
        world.wait_until(|| bell.load(Ordering::Acquire) == 1)?;
        assert!(came == pattern(other, LEN / 2)[3..1003]);
        // Bounds, numbers and ranks.
        let outside = [(LEN * n, 1), (0, LEN * n + 1), (usize::MAX, 2)];
        for (offset, len) in outside {
            let error = world.get_segment(owner, number, offset, &mut vec![0; len]).expect_err("out of bounds");
            assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
        }
        for number in [0, 1, number + 1, 70_000, u32::MAX] {
            let error = world.put_segment(owner, number, 0, &[1]).expect_err("no such segment");
            assert!(matches!(error, Error::NoSegment { .. }), "{number}: {error}");
        }
        assert!(matches!(world.put_segment(n, number, 0, &[1]), Err(Error::RankOutOfRange { .. })));
        world.barrier()?;
        if let Some(own) = own {
            let mut came = [0; 64];
            own.read(LEN / 2, &mut came)?;
            assert!(came[..] == pattern(1, 64));
            assert!(matches!(own.write(LEN * n, &[1]), Err(Error::OutOfBounds { .. })));
            own.close()?;
        }
        world.barrier()?;
        let error = world.put_segment(owner, number, 0, &[1]).expect_err("closed");
        assert!(matches!(error, Error::NoSegment { .. }), "{error}");
        world.barrier()
    });
}

pub fn all_make_a_segment_under_one_number() {
    everywhere(|world| {
        let (me, n) = (world.rank(), world.size());
        // Each has taken other numbers before, and rank 0 those that are free at others: all but its first.
        let many = if me == 0 { n + 1 } else { me };
        let mut before: Vec<Segment> = (0..many).map(|_| world.segment(8)).collect::<Result<_>>()?;
        if me == 0 {
            before.remove(0).close()?;
        }
        let own = world.segment_all(n * 8)?;
        let numbers = shown(world, Some(&own))?;
        assert!(numbers.iter().all(|[number, _]| *number == u64::from(own.number())), "{numbers:?}");
        for rank in 0..n {
            world.put_segment(rank, own.number(), me * 8, &(me as u64 + 1).to_ne_bytes())?;
        }
        world.fence();
        world.barrier()?;
        let mut came = vec![0; n * 8];
        world.wait_until(|| {
            own.read(0, &mut came).expect("in bounds");
            came.chunks(8).zip(1u64..).all(|(word, rank)| word == rank.to_ne_bytes())
        })?;
        world.barrier()?;
        drop(before);
        own.close()?;
        assert!(world.segment_all(0).is_err());
        world.barrier()
    });
}

pub fn segments_come_and_go_while_others_put_to_them() {
    everywhere(|world| {
        let (me, n) = (world.rank(), world.size());
        let full = std::env::var_os("ROWS_FULL").is_some();
        let rounds = if n > 3 || !full { 2 } else { 12 };
        let owner = 0;
        // Which number is open; told by the symmetric heap, so that the others race with the close.
        let board = world.alloc::<u64>(2)?;
        world.barrier()?;
        if me == owner {
            for round in 0..rounds {
                let own = world.segment(1 << 16)?;
                for rank in 0..n {
                    board.put(rank, 0, u64::from(own.number()))?;
                }
                for _ in 0..10 {
                    world.poll()?;
                    std::thread::yield_now();
                }
                let (start, len) = (own.address(), own.len());
                own.close()?;
                // Nobody writes there from here on: memory of the same size takes its place.
                let next = vec![round as u8; len];
                for _ in 0..20 {
                    world.poll()?;
                    std::thread::yield_now();
                }
                assert!(next.iter().all(|byte| *byte == round as u8), "{start:#x}, {:p}", next.as_ptr());
            }
            for rank in 0..n {
                board.put(rank, 1, 1)?;
            }
            world.fence();
        } else {
            let (bytes, mut tries) = (vec![0xa5; 3900], 0);
            while board.load(1) == 0 {
                let number = board.load(0) as u32;
                // Each to a place of its own.
                match world.put_segment(owner, number, 3917 * me, &bytes) {
                    Ok(()) | Err(Error::NoSegment { .. } | Error::InvalidArgument { .. }) => {}
                    Err(error) => return Err(error),
                }
                match world.poll() {
                    // What waited for room when the segment was closed.
                    Ok(_) | Err(Error::InvalidArgument { .. }) => {}
                    Err(error) => return Err(error),
                }
                // So that the owner runs: where ranks share cores a putter would keep one for a time slice.
                tries += 1;
                if tries % 16 == 0 {
                    std::thread::yield_now();
                }
            }
        }
        // As above.
        let _ = world.barrier();
        world.barrier()
    });
}

pub fn many_segments_have_numbers_of_their_own_and_give_them_back() {
    let ranks = Threads::new(2).settings(settings());
    let program = |world: &World| -> Result<()> {
        const MANY: usize = 1 << 16;
        let memory: Vec<AtomicU64> = (0..MANY as u64).map(AtomicU64::new).collect();
        world.barrier()?;
        let owner = world.rank() == 1;
        // SAFETY: atomics, which outlive the segments.
        let open = |n: usize| unsafe { world.segment_at(None, memory[n].as_ptr().cast(), 8) };
        let mut own: Vec<Option<Segment>> =
            if owner { (0..MANY).map(|n| open(n).map(Some)).collect::<Result<_>>()? } else { Vec::new() };
        if owner {
            let error = open(0).expect_err("no more than that");
            assert!(error.to_string().contains("65536 segments"), "{error}");
            let numbers: Vec<u32> = own.iter().flatten().map(Segment::number).collect();
            assert!(numbers.iter().copied().eq(2..2 + MANY as u32));
        }
        world.barrier()?;
        let places = [0, 1, 63, 64, 1000, MANY - 1];
        if !owner {
            for n in places {
                let mut came = [0; 8];
                world.get_segment(1, n as u32 + 2, 0, &mut came)?;
                assert_eq!(u64::from_ne_bytes(came), n as u64);
                world.put_segment(1, n as u32 + 2, 0, &(n as u64 * 3).to_ne_bytes())?;
            }
            world.fence();
        }
        world.barrier()?;
        if owner {
            world.wait_until(|| places.iter().all(|n| memory[*n].load(Ordering::Acquire) == *n as u64 * 3))?;
            own[1000].take().expect("open").close()?;
            // SAFETY: as above.
            own[1000] = Some(unsafe { world.segment_at(None, memory[7].as_ptr().cast(), 8) }?);
            assert_eq!(own[1000].as_ref().map(Segment::number), Some(1002), "the one that is free");
            // SAFETY: as above.
            let taken = unsafe { world.segment_at(Some(1002), memory[7].as_ptr().cast(), 8) };
            assert!(taken.expect_err("taken").to_string().contains("number 1002 is in use"));
        }
        world.barrier()?;
        if !owner {
            let mut came = [0; 8];
            world.get_segment(1, 1002, 0, &mut came)?;
            assert_eq!(u64::from_ne_bytes(came), 7, "the entry that is there now");
        }
        world.barrier()?;
        // One by one takes long: the rest stays, as does its memory.
        own.drain(..own.len().min(100)).flatten().try_for_each(Segment::close)?;
        std::mem::forget((own, memory));
        world.barrier()
    };
    ranks.run(program).expect("starts").into_iter().collect::<Result<()>>().expect("runs");
}

/// Memory that a program can have: of the stack, static, and a mapped file.
pub fn memory_of_each_kind_is_a_segment() {
    const WORDS: usize = 1000;
    const LEN: usize = 8 * WORDS;
    static STATIC: [[[AtomicU64; WORDS]; 3]; 2] = [const { [const { [const { AtomicU64::new(0) }; WORDS] }; 3] }; 2];
    watchdog();
    // Tests over both transports may run at a time.
    let (statics, transport) = (&STATIC[usize::from(is_mapped())], settings().transport);
    let program = |world: &World| -> Result<()> {
        let (me, n) = (world.rank(), world.size());
        let (next, before) = ((me + 1) % n, (me + n - 1) % n);
        let stack = [const { AtomicU64::new(0) }; WORDS];
        let path = format!("{}/segment-{transport:?}-{me}-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.expect("a file");
        file.set_len(LEN as u64).expect("grows");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a range that the kernel chooses.
        let mapped = unsafe { mmap(std::ptr::null_mut(), LEN, access, MapFlags::SHARED, &file, 0) }.expect("maps");
        let starts = [stack.as_ptr().cast_mut().cast(), statics[me].as_ptr().cast_mut().cast(), mapped.cast::<u8>()];
        // SAFETY: valid until the segments are closed, below; looked at by `Segment::read` only, until then.
        let own = starts.map(|start| unsafe { world.segment_at(None, start, LEN) });
        let own = own.into_iter().collect::<Result<Vec<_>>>()?;
        for (kind, own) in own.iter().enumerate() {
            let numbers = world.allgather(&[own.number()])?;
            world.put_segment(next, numbers[next], 0, &pattern(10 * me + kind, LEN))?;
            world.fence();
            world.barrier()?;
            let mut came = vec![0; LEN];
            own.read(0, &mut came)?;
            assert!(came == pattern(10 * before + kind, LEN), "kind {kind}: put");
            came.fill(0);
            world.get_segment(next, numbers[next], 5, &mut came[5..])?;
            assert!(came[5..] == pattern(10 * me + kind, LEN)[5..], "kind {kind}: got");
            world.barrier()?;
        }
        own.into_iter().try_for_each(Segment::close)?;
        assert!(std::fs::read(&path).expect("a file") == pattern(10 * before + 2, LEN), "the file itself");
        std::fs::remove_file(&path).expect("is there");
        // SAFETY: mapped above, and no segment any more.
        unsafe { munmap(mapped, LEN) }.expect("unmaps");
        world.barrier()
    };
    let outcomes = Threads::new(3).settings(settings()).run(program);
    outcomes.expect("starts").into_iter().collect::<Result<()>>().expect("runs");
}

/// Address space in which a small file is mapped again and again, except at some windows with pages of their own: gibibytes to
/// copy, in few pages of memory.
struct Vast {
    start: *mut u8,
    len: usize,
}

impl Vast {
    /// Bytes of the file.
    const FILE: usize = 16 << 20;
    /// Bytes of a window: one around each place where a count of bytes does not fit a smaller integer, and the last one.
    const WINDOW: usize = 1 << 20;
    const LEN: usize = (4 << 30) + 3 * Vast::FILE;
    const WINDOWS: [usize; 5] = [
        0,
        (1 << 30) - Vast::WINDOW / 2,
        (2 << 30) - Vast::WINDOW / 2,
        (4 << 30) - Vast::WINDOW / 2,
        Vast::LEN - Vast::WINDOW,
    ];

    fn new() -> Vast {
        let (len, access) = (Vast::LEN, ProtFlags::READ | ProtFlags::WRITE);
        let file = memfd_create("vast", MemfdFlags::CLOEXEC).expect("a file in memory");
        ftruncate(&file, Vast::FILE as u64).expect("grows");
        // SAFETY: a range that the kernel chooses.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        let start = start.expect("address space").cast::<u8>();
        for at in (0..len).step_by(Vast::FILE) {
            // SAFETY: inside the range that was just reserved.
            let mapped =
                unsafe { mmap(start.add(at).cast(), Vast::FILE, access, MapFlags::SHARED | MapFlags::FIXED, &file, 0) };
            mapped.expect("maps");
        }
        for at in Vast::WINDOWS {
            // SAFETY: as above.
            let mapped = unsafe {
                mmap_anonymous(start.add(at).cast(), Vast::WINDOW, access, MapFlags::PRIVATE | MapFlags::FIXED)
            };
            mapped.expect("maps");
        }
        Vast { start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: all mapped, and this process's own; the file's pages are written and read by copies only.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// Each window's bytes are its own.
    fn fill(&mut self, seed: usize) {
        for at in Vast::WINDOWS {
            self.bytes()[at..at + Vast::WINDOW].copy_from_slice(&pattern(seed + at / Vast::WINDOW, Vast::WINDOW));
        }
    }

    /// Bytes of windows, but for the first and the last one, that differ from those of `fill`.
    fn differing(&mut self, seed: usize) -> usize {
        let differs = |at: usize| {
            let expected = pattern(seed + at / Vast::WINDOW, Vast::WINDOW);
            let (there, end) = (&self.bytes()[at..at + Vast::WINDOW], Vast::LEN - 1);
            there.iter().zip(&expected).zip(at..).filter(|((a, b), at)| *at != 0 && *at != end && a != b).count()
        };
        Vast::WINDOWS.map(differs).iter().sum()
    }
}

impl Drop for Vast {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; nobody uses it any more.
        unsafe { munmap(self.start.cast(), self.len) }.expect("unmaps");
    }
}

pub fn more_than_four_gibibytes_go_in_one_call() {
    if std::env::var_os("ROWS_FULL").is_none() {
        return eprintln!("skipped: set ROWS_FULL to run it");
    }
    watchdog();
    let pass = |world: &World, context: Option<&ThreadContext>| -> Result<()> {
        let mut memory = Vast::new();
        let owner = world.rank() == 1;
        // SAFETY: mapped until the segment is closed; looked at only between barriers, while the other puts and gets nothing.
        let own = if owner { Some(unsafe { world.segment_at(None, memory.start, memory.len) }?) } else { None };
        let number = shown(world, own.as_ref())?[1][0] as u32;
        // All but the first and the last byte.
        let all = 1..Vast::LEN - 1;
        if !owner {
            memory.fill(3);
            match context {
                None => world.put_segment(1, number, 1, &memory.bytes()[all.clone()])?,
                Some(context) => context.put_segment(1, number, 1, &memory.bytes()[all.clone()])?,
            }
            world.fence();
            context.map_or(Ok(()), |context| context.flush(1))?;
        }
        world.barrier()?;
        if owner {
            assert_eq!(memory.differing(3), 0, "what was put");
            assert_eq!([memory.bytes()[0], memory.bytes()[Vast::LEN - 1]], [0, 0], "beyond what was put");
            memory.fill(90);
        }
        world.barrier()?;
        if !owner {
            let ends = [memory.bytes()[0], memory.bytes()[Vast::LEN - 1]];
            match context {
                None => world.get_segment(1, number, 1, &mut memory.bytes()[all])?,
                Some(context) => context.get_segment(1, number, 1, &mut memory.bytes()[all])?,
            }
            assert_eq!(memory.differing(90), 0, "what was got");
            assert_eq!([memory.bytes()[0], memory.bytes()[Vast::LEN - 1]], ends, "beyond what was got");
        }
        world.barrier()?;
        own.map_or(Ok(()), Segment::close)?;
        world.barrier()
    };
    let program = |world: &World| {
        pass(world, None)?;
        pass(world, Some(&world.context()?))
    };
    let outcomes = Threads::new(2).settings(settings()).run(program);
    outcomes.expect("starts").into_iter().collect::<Result<()>>().expect("runs");
}
