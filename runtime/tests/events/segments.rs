//! Segments: atomics on their words, and the events of operations on them.

#[path = "thread_segments.rs"]
mod thread_segments;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::transport::{AtomicOp, Memory};
use bellwether_runtime::{Completion, Counter, Error, Event, Result, Segment, Simulated, Transport, World};

use super::{LetsGo, Through, addresses, everywhere, threads};

const LEN: usize = 3000;

fn read(segment: &Segment, offset: usize) -> Result<u64> {
    let mut word = [0; 8];
    segment.read(offset, &mut word)?;
    Ok(u64::from_ne_bytes(word))
}

/// Every atomic, of both widths, from every rank on every rank's words.
fn atomics(world: &World) -> Result<()> {
    const ROUNDS: u64 = 20;
    let (me, n) = (world.rank(), world.size());
    let own = world.segment_all(8 * n + 64)?;
    let number = own.number();
    let mut tickets = Vec::new();
    for round in 0..ROUNDS {
        for to in 0..n {
            let was: u64 = world.fetch_segment(AtomicOp::Add, to, number, 0, 1)?;
            let narrow: i32 = world.fetch_segment(AtomicOp::Add, to, number, 12, -1)?;
            assert!(narrow <= -(round as i32), "own changes come in order");
            if to == 0 {
                tickets.push(was);
            }
        }
    }
    world.barrier()?;
    let mut all: Vec<u64> =
        world.allgather(&[<[u64; ROUNDS as usize]>::try_from(tickets).expect("one a round")])?.concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..ROUNDS * n as u64), "each adds to what the one before left");
    let total = ROUNDS * n as u64;
    assert_eq!(read(&own, 0)?, total);
    assert_eq!(read(&own, 8)?, u64::from((total as i32).wrapping_neg() as u32) << 32, "the word before is untouched");
    assert_eq!(read(&own, 16)?, 0, "the word behind");
    assert_eq!(world.fetch_segment(AtomicOp::Or, me, number, 0, 0u64)?, total, "of this rank, too");

    // A word of each pair's own.
    let next = (me + 1) % n;
    let at = 64 + 8 * me;
    let steps = [
        (AtomicOp::Swap, 0xf0f0_u64, 0),
        (AtomicOp::And, 0x0ff0, 0xf0f0),
        (AtomicOp::Or, 0xf, 0x00f0),
        (AtomicOp::Xor, u64::MAX, 0x00ff),
        (AtomicOp::Add, 0x100, !0x00ff),
    ];
    for (op, value, before) in steps {
        assert_eq!(world.fetch_segment(op, next, number, at, value)?, before, "{op:?}");
    }
    assert_eq!(world.compare_swap_segment(next, number, at, 1u64, 2)?, 0, "not what was expected");
    assert_eq!(world.compare_swap_segment(next, number, at, 0u64, 3)?, 0);
    assert_eq!(world.compare_swap_segment(next, number, at + 4, 0u32, u32::MAX)?, 0);
    // A put comes before an atomic.
    world.put_segment(next, number, at, &5u64.to_ne_bytes())?;
    world.fence();
    world.barrier()?;
    assert_eq!(world.fetch_segment(AtomicOp::Add, next, number, at, 1u64)?, 5);

    let end = own.len();
    let fetch = |rank, number, offset| world.fetch_segment(AtomicOp::Add, rank, number, offset, 1u64);
    assert!(matches!(fetch(next, number, end - 4), Err(Error::OutOfBounds { .. })));
    assert!(matches!(fetch(next, number, usize::MAX - 7), Err(Error::OutOfBounds { .. })));
    assert!(matches!(fetch(next, number, 4), Err(Error::Misaligned { alignment: 8, .. })));
    let narrow = world.fetch_segment(AtomicOp::Add, next, number, 2, 1u32);
    assert!(matches!(narrow, Err(Error::Misaligned { alignment: 4, .. })));
    assert!(matches!(fetch(n, number, 0), Err(Error::RankOutOfRange { .. })));
    for none in [0, 1, number + 1, u32::MAX] {
        assert!(matches!(fetch(next, none, 0), Err(Error::NoSegment { .. })), "{none}");
    }
    let two = world.fetch_segment(AtomicOp::CompareSwap, next, number, 0, 1u64);
    assert!(matches!(two, Err(Error::InvalidArgument { .. })));
    world.barrier()?;
    own.close()?;
    world.barrier()?;
    assert!(matches!(fetch(next, number, 0), Err(Error::NoSegment { .. })));
    world.barrier()
}

#[test]
fn atomics_change_the_words_of_any_ranks_segments() {
    everywhere("atomics on segments", || (), |world, ()| atomics(world));
    check("atomics on segments over two networks", 2, |seed| {
        for memory in [Memory::Emulated, Memory::Direct, Memory::Posted] {
            for nodes in [&[][..], &[2]] {
                let config = Config { islands: 2, memory, ..Config::new(5, seed).wild() };
                let config = if nodes.is_empty() { config } else { config.shared_nodes(nodes) };
                for result in Simulated::new(config).run(atomics).expect("the job runs") {
                    result.unwrap_or_else(|error| panic!("{memory:?}, {nodes:?}, seed {seed}: {error}"));
                }
            }
        }
    });
}

/// What is put, got and changed in segments, and each event of it. `meet` waits until all ranks have come so far, and orders nothing.
fn events(world: &World, meet: &dyn Fn(usize) -> Result<()>) -> Result<()> {
    let (me, n) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    let (own, back, bell) = (world.segment_all(LEN)?, world.segment(LEN)?, world.bell()?);
    let number = own.number();
    let mine: Vec<u8> = (0..LEN).map(|i| (i * 7 + me * 31 + 1) as u8).collect();
    let theirs: Vec<u8> = (0..LEN).map(|i| (i * 7 + before * 31 + 1) as u8).collect();
    let (source, effect, called, done) = (Counter::new(), Counter::new(), Counter::new(), Completion::new());
    for (i, part) in mine.chunks(LEN / 5).enumerate() {
        let mut part = part.to_vec();
        let count = called.clone();
        let hear = Event::call(move |outcome| outcome.map_or((), |()| count.add(1)));
        let put = world.operation().source(&source).effect(&effect).handled(&bell).effect(&done).effect(hear);
        put.put_segment(next, number, i * (LEN / 5), &part)?;
        part.fill(0);
        assert_eq!(source.value(), i as u64 + 1, "copied, so the source may be changed at once");
    }
    world.wait_counter(&effect, 5)?;
    // Nothing but the events says that it is in effect.
    meet(0)?;
    let mut came = vec![0; LEN];
    own.read(0, &mut came)?;
    assert!(came == theirs, "rank {me}: {} bytes are there", came.iter().zip(&theirs).filter(|(a, b)| a == b).count());
    world.wait_completion(&done)?;
    world.wait_counter(&called, 5)?;
    assert_eq!([source.value(), called.value(), bell.wait(5)?], [5; 3]);

    // Of the next rank, into a segment of this one, from and to odd places.
    let got = Counter::new();
    for start in (0..LEN - 10).step_by(600) {
        let len = 600.min(LEN - 10 - start);
        world.operation().effect(&got).get_segment(next, number, 3 + start, &back, 5 + start, len)?;
    }
    world.wait_counter(&got, 5)?;
    let mut came = vec![0; LEN];
    back.read(0, &mut came)?;
    assert!(came[5..LEN - 5] == mine[3..LEN - 7] && came[..5] == [0; 5] && came[LEN - 5..] == [0; 5]);
    let get = |from, at, len| world.operation().effect(&got).get_segment(next, number, from, &back, at, len);
    assert!(matches!(get(0, LEN - 4, 5), Err(Error::OutOfBounds { .. })), "of what is filled");
    assert!(matches!(get(LEN - 4, 0, 5), Err(Error::OutOfBounds { .. })), "of what is read");
    meet(1)?;

    // Each rank takes a different ticket from the next one, which this one takes from, too.
    own.write(0, &[0; 64])?;
    world.barrier()?;
    let found = Counter::new();
    let add = world.operation().effect(&found).fetch_segment(AtomicOp::Add, 0, number, 8, 1u64)?;
    let swap = world.operation().handled(&found).compare_swap_segment(next, number, 20, 0u32, me as u32 + 7)?;
    world.wait_counter(&found, 2)?;
    assert_eq!(swap.value(), Some(0));
    let was = add.value().expect("in effect");
    meet(2)?;
    assert_eq!(read(&own, 16)? >> 32, before as u64 + 7);
    if me == 0 {
        assert_eq!(read(&own, 8)?, n as u64);
    }
    let mut all = world.allgather(&[was])?;
    all.sort_unstable();
    assert!(all.into_iter().eq(0..n as u64));
    let refused = world.operation().effect(&found).fetch_segment(AtomicOp::Add, next, number, 4, 1u64);
    assert!(matches!(refused, Err(Error::Misaligned { .. })));
    let refused = world.operation().effect(&found).put_segment(next, number, LEN, &[1]);
    assert!(matches!(refused, Err(Error::OutOfBounds { .. })));
    assert_eq!((found.value(), got.value()), (2, 5), "no event of what was not done");
    world.barrier()?;
    own.close()?;
    back.close()
}

#[test]
fn operations_on_segments_tell_of_their_events() {
    let program = |world: &World, through: &Through| {
        events(world, &|step| {
            through.pass(step);
            through.await_all(world, step, world.size())
        })
    };
    everywhere("events of segments", Through::default, program);
    // Where puts go by message.
    let mut settings = bellwether_runtime::Settings::default();
    settings.cross_memory_attach = false;
    let through = Through::default();
    let results = threads(3, Transport::Auto).settings(settings).run(|world| program(world, &through));
    results.expect("ranks start").into_iter().for_each(|result| result.expect("is well"));
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn segments_over_rdma() {
    for ranks in [1, 3] {
        let through = Through::default();
        let results = threads(ranks, Transport::Verbs).run(|world| {
            atomics(world)?;
            events(world, &|step| {
                through.pass(step);
                through.await_all(world, step, ranks)
            })
        });
        results.expect("ranks start").into_iter().for_each(|result| result.expect("is well"));
    }
    // Atomics that a close cuts off, as the connection may be lost by a stale key.
    let results = threads(2, Transport::Verbs).run(|world| closed(world, 0, None)).expect("ranks start");
    results.into_iter().for_each(|result| result.expect("is well"));
}

#[test]
fn ranks_that_are_processes_use_each_others_segments() {
    for attach in ["on", "off"] {
        let program = std::env::current_exe().expect("this program");
        let ranks = std::process::Command::new(program)
            .args(["--exact", "segments::one_of_several_processes", "--ignored", "--nocapture", "--test-threads", "1"])
            .env("BELLWETHER_RANKS", "3")
            .env("BELLWETHER_CMA", attach)
            .output()
            .expect("starts");
        let told = String::from_utf8_lossy(&ranks.stderr);
        assert!(ranks.status.success(), "{told}");
        assert_eq!(String::from_utf8_lossy(&ranks.stdout).matches("all words are right").count(), 3, "{told}");
    }
}

#[test]
#[ignore = "started by ranks_that_are_processes_use_each_others_segments"]
fn one_of_several_processes() {
    let world = World::start().expect("starts");
    atomics(&world).expect("atomics");
    events(&world, &|_| world.barrier()).expect("events");
    addresses::by_world(&world, &|_| world.barrier()).expect("by address");
    println!("all words are right");
    world.finish().expect("finishes");
}

/// The device of a network does them, while the owner computes; also those of the owner's node.
#[test]
fn a_device_changes_words_while_their_owner_computes() {
    check("atomics while the owner computes", 2, |seed| {
        for nodes in [&[][..], &[2]] {
            let config = Config { memory: Memory::Direct, ..Config::new(3, seed) };
            let config = if nodes.is_empty() { config } else { config.shared_nodes(nodes) };
            let results = Simulated::new(config).run(|world| -> Result<()> {
                let own = world.segment_all(64)?;
                let (me, number) = (world.rank(), own.number());
                if me == 1 {
                    // Without progress here.
                    world.sleep(Duration::from_millis(10));
                    assert_eq!(read(&own, 8)?, 2 * 3);
                } else {
                    // By now the owner has left the call before.
                    world.sleep(Duration::from_millis(1));
                    world.fetch_segment(AtomicOp::Add, 1, number, 8, 2u64)?;
                    let effect = Counter::new();
                    let add = world.operation().effect(&effect).fetch_segment(AtomicOp::Add, 1, number, 8, 1u64)?;
                    world.wait_counter(&effect, 1)?;
                    assert!(add.value().is_some_and(|was| was >= 2));
                }
                world.barrier()?;
                own.close()
            });
            results.expect("the job runs").into_iter().for_each(|result| result.expect("runs"));
        }
    });
}

/// Nothing changes a word after the close, and each rank's atomic ends in some way. `only` this rank does atomics, and has room for all
/// of them: those that began end well.
fn closed(world: &World, owner: usize, only: Option<usize>) -> Result<()> {
    const ROUNDS: u64 = 8;
    let me = world.rank();
    let others = || (0..world.size()).filter(|rank| only.map_or(*rank != owner, |only| *rank == only));
    let board = world.alloc::<u64>(2)?;
    world.barrier()?;
    let is_refused = |error: &Error| matches!(error, Error::NoSegment { .. } | Error::InvalidArgument { .. });
    if me == owner {
        // All of it lives until the end, so that a late atomic is seen and harms nobody.
        let mut closed: Vec<Vec<AtomicU64>> = Vec::new();
        for round in 1..=ROUNDS {
            let words: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
            // SAFETY: atomics, which outlive the segment.
            let own = unsafe { world.segment_at(None, words.as_ptr().cast_mut().cast(), 64) }?;
            for rank in others() {
                board.put(rank, 0, u64::from(own.number()))?;
            }
            world.fence();
            // At different moments: some peers have yet to find the segment, others have atomics in flight.
            world.sleep(Duration::from_nanos(700 * (round - 1)));
            // In flight from here, too: nobody waits for it.
            if only.is_none() {
                let _ = world.operation().fetch_segment(AtomicOp::Add, me, own.number(), 56, 1u64)?;
            }
            own.close()?;
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            closed.push(words);
            for _ in 0..20 {
                world.sleep(Duration::from_micros(5));
                world.poll()?;
            }
            let changed = closed.iter().flatten().filter(|word| word.load(Ordering::Relaxed) != 0).count();
            assert_eq!(changed, 0, "words changed after the close, in round {round}");
            for rank in others() {
                board.put(rank, 1, round)?;
            }
            world.fence();
        }
        std::mem::forget(closed);
    } else if others().any(|rank| rank == me) {
        let ended = Counter::new();
        let mut begun = 0;
        for round in 1..=ROUNDS {
            while board.load(1) < round {
                let number = board.load(0) as u32;
                match world.fetch_segment(AtomicOp::Add, owner, number, 8, 1u64) {
                    Ok(_) => {}
                    Err(error) if is_refused(&error) => {}
                    Err(error) => return Err(error),
                }
                let count = ended.clone();
                let end = Event::call(move |outcome| {
                    assert!(
                        outcome.as_ref().err().is_none_or(|error| only.is_none() && is_refused(error)),
                        "{outcome:?}"
                    );
                    count.add(1);
                });
                match world.operation().effect(end).fetch_segment(AtomicOp::Xor, owner, number, 20, 1u32) {
                    Ok(_) => begun += 1,
                    Err(error) if is_refused(&error) => {}
                    Err(error) => return Err(error),
                }
                world.poll()?;
                std::thread::yield_now();
            }
        }
        world.wait_counter(&ended, begun)?;
    }
    world.barrier()
}

#[test]
fn nothing_changes_the_words_of_a_segment_that_was_closed() {
    let program = |world: &World, _: &()| (0..world.size()).try_for_each(|owner| closed(world, owner, None));
    everywhere("atomics on closed segments", || (), program);
    // A rank of the owner's node, whose answer to the owner overtakes what the network carries.
    check("atomics on closed segments of a node", 3, |seed| {
        for memory in [Memory::Posted, Memory::Direct] {
            let near = Config::new(3, seed).shared_nodes(&[2]);
            // What is in flight there is so for long.
            let config = Config { memory, near_latency: near.latency, ..near };
            for result in Simulated::new(config).run(|world| closed(world, 0, Some(1))).expect("the job runs") {
                result.unwrap_or_else(|error| panic!("{memory:?}, seed {seed}: {error}"));
            }
        }
    });
}

/// A rank's own atomics over the network have ended when its close returns.
#[test]
fn a_close_waits_for_what_its_own_rank_has_under_way() {
    check("own atomics on closed segments", 5, |seed| {
        for memory in [Memory::Emulated, Memory::Posted] {
            let job = Simulated::new(Config { memory, ..Config::new(1, seed).wild() });
            let results = job.run(|world| -> Result<()> {
                let words: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
                for round in 0..5 {
                    // SAFETY: atomics, which outlive the segment.
                    let own = unsafe { world.segment_at(None, words.as_ptr().cast_mut().cast(), 64) }?;
                    let number = own.number();
                    // Looks the segment up.
                    world.fetch_segment(AtomicOp::Add, 0, number, 0, 1u64)?;
                    let ended = Counter::new();
                    for i in 0..8 {
                        let add = world.operation().effect(Event::call({
                            let ended = ended.clone();
                            move |_| ended.add(1)
                        }));
                        add.fetch_segment(AtomicOp::Add, 0, number, 8 * i, 1u64)?;
                    }
                    own.close()?;
                    words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
                    // Those that found no room end now, with an error.
                    world.wait_counter(&ended, 8)?;
                    world.sleep(Duration::from_millis(1));
                    let changed = words.iter().filter(|word| word.load(Ordering::Relaxed) != 0).count();
                    assert_eq!(changed, 0, "{memory:?}, words changed after the close, in round {round}");
                }
                Ok(())
            });
            results.expect("the job runs").into_iter().for_each(|result| result.expect("runs"));
        }
    });
}

/// A get whose destination is closed before the bytes are here: the close waits for them. Short ones are copied, long ones are not.
#[test]
fn a_close_waits_for_gets_that_fill_the_segment() {
    const LONG: usize = 300 << 10;
    check("gets into closed segments", 3, |seed| {
        for memory in [Memory::Posted, Memory::Emulated, Memory::Direct] {
            let job = Simulated::new(Config { memory, ..Config::new(2, seed).wild() });
            let results = job.run(|world| -> Result<()> {
                let own = world.segment_all(LONG)?;
                own.write(0, &[9; LONG])?;
                world.barrier()?;
                let other = 1 - world.rank();
                for len in [64, LONG] {
                    let memory: Vec<AtomicU8> = (0..LONG).map(|_| AtomicU8::new(0)).collect();
                    // SAFETY: atomics, which outlive the segment.
                    let into = unsafe { world.segment_at(None, memory.as_ptr().cast_mut().cast(), LONG) }?;
                    let done = Completion::new();
                    world.operation().effect(&done).get_segment(other, own.number(), 0, &into, 0, len)?;
                    into.close()?;
                    let came = memory.iter().filter(|byte| byte.load(Ordering::Relaxed) == 9).count();
                    assert_eq!(came, len, "bytes that are here when the close returns");
                    memory.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
                    world.wait_completion(&done)?;
                    world.sleep(Duration::from_millis(1));
                    assert!(memory.iter().all(|byte| byte.load(Ordering::Relaxed) == 0), "written after the close");
                }
                world.barrier()?;
                own.close()
            });
            results.expect("the job runs").into_iter().for_each(|result| {
                result.unwrap_or_else(|error| panic!("{memory:?}, seed {seed}: {error}"));
            });
        }
    });
}

/// Where the kernel copies nothing between ranks, the target has to handle a message, and the events say when it has.
#[test]
fn a_put_by_message_is_in_effect_when_the_target_has_handled_it() {
    let mut settings = bellwether_runtime::Settings::default();
    settings.cross_memory_attach = false;
    let [away, back, checked] = [const { AtomicBool::new(false) }; 3];
    let results = threads(2, Transport::Auto).settings(settings).run(|world| -> Result<()> {
        // Not in the slot, which is mapped.
        let (memory, number) = ([const { AtomicU64::new(0) }; LEN / 8], 7);
        // SAFETY: atomics, which outlive the segment.
        let own = unsafe { world.segment_at(Some(number), memory[0].as_ptr().cast(), LEN) }?;
        world.barrier()?;
        if world.rank() == 1 {
            // It handles nothing from here on. Before, a poll in the barrier may.
            away.store(true, Ordering::SeqCst);
            while !back.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // Now it does, and does no more when the events have happened.
            while !checked.load(Ordering::SeqCst) {
                world.poll()?;
                std::thread::yield_now();
            }
        } else {
            while !away.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let (lets_go, ends) = (LetsGo(&back), LetsGo(&checked));
            let (source, effect, handled) = (Counter::new(), Counter::new(), Completion::new());
            let put = world.operation().source(&source).effect(&effect).handled(&handled);
            put.put_segment(1, number, 5, &[7; LEN - 5])?;
            let add = world.operation().effect(&effect).fetch_segment(AtomicOp::Add, 1, number, 8, 1u64)?;
            for _ in 0..1000 {
                world.poll()?;
            }
            let early = (source.value(), effect.value(), add.value(), handled.outcome().is_some());
            drop(lets_go);
            world.wait_counter(&effect, 2)?;
            world.wait_completion(&handled)?;
            assert_eq!(add.value(), Some(u64::from_ne_bytes([7; 8])), "after the put");
            drop(ends);
            assert_eq!(early, (1, 0, None, false), "the target has not polled");
        }
        world.barrier()?;
        own.close()
    });
    results.expect("ranks start").into_iter().for_each(|result| result.expect("is well"));
}

/// Neither the kernel copies between ranks, nor does the owner handle messages: what is left is a store.
#[test]
fn a_segment_of_a_rank_of_the_node_is_mapped() {
    let mut settings = bellwether_runtime::Settings::default();
    settings.cross_memory_attach = false;
    let done = AtomicU64::new(0);
    let results = threads(3, Transport::Auto).settings(settings).run(|world| -> Result<()> {
        let (me, n) = (world.rank(), world.size());
        let alone = if me == 1 { Some(world.segment(LEN)?) } else { None };
        let own = world.segment_all(n * LEN)?;
        let numbers = [world.allgather(&[alone.as_ref().map_or(0, |own| own.number())])?[1], own.number()];
        if me == 1 {
            // It handles nothing until all have read what they put.
            while done.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            let mut word = [0; 8];
            own.read(LEN + 8, &mut word)?;
            assert_eq!(u64::from_ne_bytes(word), 2);
        } else {
            let bytes: Vec<u8> = (0..LEN / 4).map(|i| (i * 3 + me) as u8).collect();
            for number in numbers {
                world.put_segment(1, number, me * 700 + 1, &bytes)?;
                let mut came = vec![0; bytes.len()];
                world.get_segment(1, number, me * 700 + 1, &mut came)?;
                assert!(came == bytes, "segment {number}");
            }
            let add = world.fetch_segment(AtomicOp::Add, 1, own.number(), LEN + 8, 1u64)?;
            assert!(add < 2);
            let back = world.segment(LEN)?;
            let effect = Counter::new();
            world.operation().effect(&effect).get_segment(1, numbers[0], me * 700 + 1, &back, 3, bytes.len())?;
            assert_eq!(effect.value(), 1);
            assert!((0..bytes.len() / 8 - 1).all(|i| {
                let word = bytes[8 * i..8 * i + 8].try_into().expect("eight bytes");
                read(&back, 3 + 8 * i).is_ok_and(|there| there == u64::from_ne_bytes(word))
            }));
            // By address, too.
            back.close()?;
            done.fetch_add(1, Ordering::SeqCst);
        }
        world.barrier()?;
        own.close()?;
        alone.map_or(Ok(()), Segment::close)
    });
    results.expect("ranks start").into_iter().for_each(|result| result.expect("is well"));
}

/// It is the system's memory then, which the kernel copies to.
#[test]
fn a_segment_for_which_a_slot_has_no_room_is_reached_too() {
    let mut settings = bellwether_runtime::Settings::default();
    settings.heap_limit = Some(1 << 20);
    for transport in [Transport::Auto, Transport::ShmContract] {
        settings.transport = transport;
        let results = threads(2, transport).settings(settings.clone()).run(|world| -> Result<()> {
            // An eighth of the least address space, and more. Nobody touches most of it.
            let large = world.segment_all((256 << 20) + 4096)?;
            let other = 1 - world.rank();
            for offset in [0, large.len() - 8] {
                world.put_segment(other, large.number(), offset, &(offset as u64 + 1).to_ne_bytes())?;
                world.fence();
            }
            world.barrier()?;
            assert_eq!([read(&large, 0)?, read(&large, large.len() - 8)?], [1, large.len() as u64 - 7]);
            world.barrier()?;
            large.close()?;
            // Segments of the slot have room again and again.
            for _ in 0..20 {
                let own = world.segment(100 << 20)?;
                own.write(own.len() - 1, &[1])?;
                own.close()?;
            }
            Ok(())
        });
        results.expect("ranks start").into_iter().for_each(|result| result.expect("is well"));
    }
}

/// The owner dies: whoever waits for its atomic is told.
#[test]
fn an_atomic_on_the_segment_of_a_rank_that_is_gone_is_an_error() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        let results = threads(2, transport).run(|world| -> Result<()> {
            let own = world.segment_all(64)?;
            if world.rank() == 1 {
                // It leaves without a look at what comes, and its segment stays.
                std::mem::forget(own);
                return Ok(());
            }
            let done = Completion::new();
            let begun = world.operation().effect(&done).fetch_segment(AtomicOp::Add, 1, own.number(), 0, 1u64);
            let told = match begun {
                Ok(_) => world.wait_completion(&done),
                Err(error) => Err(error),
            };
            let again = world.fetch_segment(AtomicOp::Add, 1, own.number(), 0, 1u64);
            std::mem::forget(own);
            for outcome in [told, again.map(drop)] {
                // It may have handled the message while it ended.
                assert!(matches!(outcome, Ok(()) | Err(Error::PeerLost { rank: 1, .. })), "{outcome:?}");
            }
            Ok(())
        });
        results.expect("ranks start").into_iter().for_each(|result| result.expect("is well"));
    }
}
