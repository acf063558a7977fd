//! Rank 0 stops rank 1 (SIGSTOP), puts into its static data and a segment of its heap, reads both back, and lets it go on:
//! `BELLWETHER_RANKS=2 BELLWETHER_STATIC_DATA=on stopped`. With `fork`, each rank forks children that write static data. With
//! `builder`, the program asks for symmetric static data, and ranks put to each other's.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bellwether_runtime::transport::AtomicOp;
use bellwether_runtime::vocabulary::cheetah::{Bell, Controller};
use bellwether_runtime::{Completion, Error, Result, ThreadContext, Transport, World};

const WORDS: usize = 1000;
/// One that is zero at first, one that is not, and a large one that is never used.
static BELL: Bell = Bell::new();
static DATA: [AtomicU64; WORDS] = [const { AtomicU64::new(7) }; WORDS];
static COUNT: AtomicUsize = AtomicUsize::new(3);
static NUMBERED: [AtomicU64; WORDS] = [const { AtomicU64::new(1) }; WORDS];
static UNUSED: [AtomicU64; 1 << 24] = [const { AtomicU64::new(0) }; 1 << 24];

fn main() -> ExitCode {
    // If the start hangs, the test that started this program ends it.
    let mut arguments: Vec<String> = std::env::args().collect();
    COUNT.store(5, Ordering::Relaxed);
    if arguments.get(1).is_some_and(|argument| argument == "builder") {
        return match asks() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("stopped: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let controller = match Controller::setup(&mut arguments) {
        Ok(controller) => controller,
        Err(error) => {
            eprintln!("stopped: {error}");
            return ExitCode::FAILURE;
        }
    };
    assert_eq!((COUNT.load(Ordering::Relaxed), DATA[9].load(Ordering::Relaxed)), (5, 7), "variables keep their values");
    let outcome = match arguments.get(1).map(String::as_str) {
        Some("fork") => forks(&controller),
        _ => stops(&controller),
    };
    if let Err(error) = outcome {
        eprintln!("stopped: {error}");
        return ExitCode::FAILURE;
    }
    controller.finalize().expect("all are there");
    ExitCode::SUCCESS
}

fn pattern(word: usize) -> u64 {
    word as u64 * 0x9e37_79b9 + 1
}

fn bytes() -> Vec<u8> {
    (0..WORDS).flat_map(|word| pattern(word).to_ne_bytes()).collect()
}

/// Reads bytes that are registered at `rank`, without its help.
fn read(world: &World, rank: usize, address: usize, len: usize) -> Result<Vec<u8>> {
    let mut came = vec![0; len];
    let bell = std::sync::atomic::AtomicI32::new(0);
    let bells = bellwether_runtime::RawBells { local: Some(&bell), remote: None };
    // SAFETY: valid until the bell has rung, which is at once, as is checked.
    unsafe { world.get_address(rank, address, came.as_mut_ptr(), len, bells) }?;
    assert_eq!(bell.load(Ordering::Acquire), 1, "came without a message");
    Ok(came)
}

/// Puts, gets and changes static data and the heap of rank 1 by the numbers of their segments. It does nothing for that.
fn by_number(
    world: &World,
    context: &ThreadContext,
    statics: bool,
    (offset, heap): (Option<usize>, usize),
) -> Result<()> {
    // SAFETY: all accesses are to `NUMBERED` and to an array of words, of which any bits are valid.
    let reserved = unsafe { world.reserved_segments() };
    let mut segments = vec![(0, heap)];
    segments.extend(offset.map(|offset| (1, offset)));
    assert_eq!(segments.len(), 1 + usize::from(statics));
    for (number, at) in segments {
        let (put, mut came) = (bytes(), vec![0; 8 * WORDS]);
        reserved.put(1, number, at, &put)?;
        world.fence();
        reserved.get(1, number, at, &mut came)?;
        assert_eq!(came, put, "segment {number}");
        reserved.put(1, number, at + 8, &1u64.to_ne_bytes())?;
        // Where the owner's program changes words, it would have to run.
        if world.settings().transport == Transport::Auto {
            let before: u64 = reserved.fetch(AtomicOp::Add, 1, number, at + 8, 4)?;
            assert_eq!(before, 1, "segment {number}");
            let before: u64 = reserved.compare_swap(1, number, at + 8, 5, 9)?;
            assert_eq!(before, 5, "segment {number}");
        }
        // By a context, and with events.
        // SAFETY: as above.
        let by_context = unsafe { context.reserved_segments() };
        let (again, done) = (put.iter().map(|byte| !byte).collect::<Vec<_>>(), Completion::new());
        by_context.put(1, number, at, &again)?;
        context.flush(1)?;
        by_context.get(1, number, at, &mut came)?;
        assert_eq!(came, again, "segment {number} by a context");
        world.operation().effect(&done).put_reserved(&reserved, 1, number, at, &put)?;
        world.wait_completion(&done)?;
        let (into, got) = (world.segment(8 * WORDS)?, Completion::new());
        world.operation().effect(&got).get_reserved(&reserved, (1, number, at), &into, 0, 8 * WORDS)?;
        world.wait_completion(&got)?;
        into.read(0, &mut came)?;
        assert_eq!(came, put, "segment {number} with events");
        into.close()?;
        if world.settings().transport == Transport::Auto {
            reserved.put(1, number, at + 8, &1u64.to_ne_bytes())?;
            assert_eq!(by_context.fetch(AtomicOp::Add, 1, number, at + 8, 4u64)?, 1, "segment {number}");
            let (added, add) = (Completion::new(), world.operation());
            let found = add.effect(&added).fetch_reserved(AtomicOp::Add, &reserved, (1, number, at + 8), 4u64)?;
            world.wait_completion(&added)?;
            assert_eq!(found.value(), Some(5), "segment {number}");
            reserved.put(1, number, at + 8, &9u64.to_ne_bytes())?;
            world.fence();
        }
        let beyond = reserved.put(1, number, usize::MAX - 2, &put[..8]);
        assert!(matches!(beyond, Err(Error::OutOfBounds { .. })), "{beyond:?}");
    }
    Ok(())
}

/// Puts to and changes static data of the other rank by address.
fn asks() -> Result<()> {
    let world = World::builder().static_data().start()?;
    let (other, put) = (1 - world.rank(), bytes());
    let all = world.exchange_addresses(DATA.as_ptr())?;
    let (to, context, done) = (all[other], world.context()?, Completion::new());
    world.barrier()?;
    // SAFETY: atomics, which expect this.
    unsafe {
        world.operation().effect(&done).put_address(other, to, &put[..4000])?;
        context.put_address(other, to + 4000, &put[4000..])?;
    }
    world.wait_completion(&done)?;
    context.flush(other)?;
    world.barrier()?;
    assert!((0..WORDS).all(|word| DATA[word].load(Ordering::Relaxed) == pattern(word)));
    world.barrier()?;
    // SAFETY: as above.
    let [before, then] = unsafe {
        let before = world.fetch_address(AtomicOp::Add, other, to + 16, 3u64)?;
        [before, context.compare_swap_address(other, to + 16, pattern(2) + 3, 1u64)?]
    };
    assert_eq!([before, then], [pattern(2), pattern(2) + 3]);
    world.barrier()?;
    assert_eq!(DATA[2].load(Ordering::Relaxed), 1);
    if world.rank() == 0 {
        println!("the program asked");
    }
    world.finish()
}

fn stops(controller: &Controller) -> Result<()> {
    let world = controller.as_world()?;
    let statics = world.settings().static_data;
    let heap: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    // SAFETY: atomics, which outlive the segment.
    let segment = unsafe { world.segment_at(None, heap.as_ptr().cast_mut().cast(), WORDS * 8) }?;
    let own = [
        std::process::id() as usize,
        DATA.as_ptr() as usize,
        BELL.address(),
        segment.number() as usize,
        &raw const COUNT as usize,
        segment.address(),
    ];
    let board = world.alloc::<u64>(WORDS)?;
    // Offsets are the same at all ranks.
    let heap_offset = board.segment_offset(0);
    let offset = world.static_offset(&NUMBERED);
    assert_eq!(offset.is_some(), statics);
    let all = world.allgather(&[own])?;
    let [pid, data, bell, number, count, address] = all[1];
    let context = world.context()?;
    if world.rank() == 0 {
        // Over a network the connections of a context take the target.
        // SAFETY: words of an array, of which any bits are valid.
        unsafe { context.reserved_segments() }.get(1, 0, heap_offset, &mut [0; 8])?;
    }
    world.barrier()?;
    if world.rank() == 0 {
        let signal = |signal| {
            // SAFETY: a process of this job.
            assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0, "{}", std::io::Error::last_os_error());
        };
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
            stat.rsplit_once(')').and_then(|(_, rest)| rest.trim().chars().next())
        };
        signal(libc::SIGSTOP);
        while state() != Some('T') {
            std::thread::sleep(Duration::from_millis(1));
        }
        let put = bytes();
        // Connecting may take the target; it is stopped afterwards again.
        if statics {
            // SAFETY: atomics, which expect this.
            unsafe { controller.put(1, data, &put, None, Some(bell)) }?;
            assert_eq!(read(&world, 1, data, put.len())?, put, "static data");
            if world.settings().transport == Transport::Auto {
                assert_eq!(read(&world, 1, bell, 4)?, 1i32.to_ne_bytes(), "the bell");
            }
            assert_eq!(read(&world, 1, count, 8)?, 5usize.to_ne_bytes());
        }
        // Safe code reaches only variables that it was given.
        let at = offset.unwrap_or(0);
        let refused = [
            world.put_segment(1, 1, at, &put),
            world.get_segment(1, 1, at, &mut [0; 8]),
            world.notify_segment(1, 1, at, 1u64),
            world.fetch_segment(AtomicOp::Add, 1, 1, at, 1u64).map(drop),
        ];
        assert!(refused.iter().all(|call| matches!(call, Err(Error::NoSegment { .. }))), "{refused:?}");
        by_number(&world, &context, statics, (offset, heap_offset))?;
        world.put_segment(1, number as u32, 0, &put)?;
        let mut came = vec![0; put.len()];
        world.get_segment(1, number as u32, 0, &mut came)?;
        assert_eq!(came, put, "a segment");
        // SAFETY: as above.
        unsafe { controller.put(1, address, &put[8..16], None, None) }?;
        assert_eq!(read(&world, 1, address, 8)?, put[8..16], "a segment, by address");
        assert_eq!(state(), Some('T'), "nobody woke it");
        signal(libc::SIGCONT);
    }
    if world.rank() == 1 {
        if statics {
            controller.wait(&BELL, 1)?;
            assert!((0..WORDS).all(|word| DATA[word].load(Ordering::Relaxed) == pattern(word)));
            let right = |word: usize| word == 1 || NUMBERED[word].load(Ordering::Relaxed) == pattern(word);
            assert!((0..WORDS).all(right), "segment 1");
        }
        world.wait_until(|| heap[0].load(Ordering::Acquire) == pattern(1))?;
        assert!((0..WORDS).all(|word| word == 1 || board.load(word) == pattern(word)), "segment 0");
        assert!((1..WORDS).all(|word| heap[word].load(Ordering::Relaxed) == pattern(word)));
    } else {
        assert!(DATA.iter().all(|word| word.load(Ordering::Relaxed) == 7), "one's own variables are one's own");
    }
    controller.barrier()?;
    let status = std::fs::read_to_string("/proc/self/status").expect("there is one");
    let shared =
        status.lines().find_map(|line| line.strip_prefix("RssShmem:")?.trim().strip_suffix(" kB")?.parse().ok());
    if world.settings().transport == Transport::Auto {
        let shared: usize = shared.expect("the kernel tells it");
        assert!(shared << 10 < size_of_val(&UNUSED), "{shared} KiB, though nobody touched the large variable");
    }
    segment.close()?;
    if world.rank() == 0 {
        println!("a stopped rank received");
    }
    Ok(())
}

fn forks(controller: &Controller) -> Result<()> {
    let world = controller.as_world()?;
    DATA[1].store(11, Ordering::Relaxed);
    for _ in 0..3 {
        // SAFETY: this thread alone runs, and the child only looks at memory.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "no child: {}", std::io::Error::last_os_error());
        if child == 0 {
            let right = DATA[1].load(Ordering::Relaxed) == 11
                && DATA[2].load(Ordering::Relaxed) == 7
                && COUNT.load(Ordering::Relaxed) == 5;
            DATA.iter().chain([&UNUSED[5]]).for_each(|word| word.store(99, Ordering::Relaxed));
            COUNT.store(99, Ordering::Relaxed);
            // A grandchild has no copy of its own to make.
            // SAFETY: as above.
            let grandchild = unsafe { libc::fork() };
            if grandchild == 0 {
                let right = DATA[1].load(Ordering::Relaxed) == 99;
                // SAFETY: ends this process at once.
                unsafe { libc::_exit(i32::from(!right)) };
            }
            let mut status = 1;
            // SAFETY: our own child, and a place for its status; then ends this process at once.
            unsafe {
                libc::waitpid(grandchild, &mut status, 0);
                libc::_exit(i32::from(!right || status != 0));
            }
        }
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child's copy");
        assert_eq!((DATA[1].load(Ordering::Relaxed), DATA[2].load(Ordering::Relaxed)), (11, 7), "the parent's");
        assert_eq!((COUNT.load(Ordering::Relaxed), UNUSED[5].load(Ordering::Relaxed)), (5, 0));
    }
    let done = std::process::Command::new("true").status().expect("there is `true`");
    assert!(done.success());
    world.barrier()?;
    if world.rank() == 0 {
        println!("children have copies");
    }
    Ok(())
}
