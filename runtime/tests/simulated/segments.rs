//! Segments on simulated networks: reached by number and by address, closed while others use them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bellwether_runtime::transport::Memory;
use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::{Error, RawBells, Result, World};

use super::{everywhere, job};

#[test]
fn segments_are_reached_over_any_network_and_closed_while_others_put_to_them() {
    everywhere("segments", &[2, 3], |world| {
        const LEN: usize = 700;
        let (me, n) = (world.rank(), world.size());
        let owner = n - 1;
        let board = world.alloc::<u64>(2)?;
        world.barrier()?;
        for round in 0..3u8 {
            let own = if me == owner { Some(world.segment(LEN * n)?) } else { None };
            let shown = own.as_ref().map_or([0; 2], |own| [u64::from(own.number()), own.address() as u64]);
            let [number, address] = world.allgather(&[shown])?[owner];
            let number = number as u32;
            world.put_segment(owner, number, me * LEN, &vec![10 * round + me as u8 + 1; LEN])?;
            world.fence();
            world.barrier()?;
            let other = (me + 1) % n;
            let mut came = vec![0; LEN];
            let wanted = vec![10 * round + other as u8 + 1; LEN];
            // Between ranks of a node that go without cross-memory attach, a put is a message.
            while came != wanted {
                world.get_segment(owner, number, other * LEN, &mut came)?;
                world.poll()?;
            }
            // All have seen what was put first.
            world.barrier()?;
            let address = address as usize + me * LEN;
            // SAFETY: this rank's part of an open segment.
            unsafe { world.put_address(owner, address + 5, &[200], RawBells::default()) }?;
            let mut byte = [0];
            while byte != [200] {
                world.get_segment(owner, number, me * LEN + 5, &mut byte)?;
                world.poll()?;
            }
            world.barrier()?;
            if let Some(own) = own {
                for rank in 0..n {
                    board.put(rank, 0, u64::from(round) + 1)?;
                }
                own.close()?;
                for rank in 0..n {
                    board.put(rank, 1, u64::from(round) + 1)?;
                }
                world.fence();
            } else {
                world.wait_until(|| board.load(0) > u64::from(round))?;
                let mut refused = 0;
                while board.load(1) <= u64::from(round) || refused == 0 {
                    let put = world.put_segment(owner, number, me * LEN, &[9; 100]);
                    refused += u32::from(is_refused(world, put)?);
                }
                // Each poll tells of one.
                for _ in 0..200 {
                    let told = world.poll();
                    assert!(matches!(told, Ok(_) | Err(Error::InvalidArgument { .. })), "{told:?}");
                }
            }
            world.barrier()?;
        }
        world.barrier()
    });
}

/// Makes progress after a put to a segment that may be closed. Tells whether a put was refused.
fn is_refused(world: &World, outcome: Result<()>) -> Result<bool> {
    match outcome.and(world.poll().map(drop)) {
        Ok(()) => Ok(false),
        Err(Error::NoSegment { .. }) => Ok(true),
        // A put that waited for room when the segment was closed.
        Err(Error::InvalidArgument { why, .. }) if why.contains("does not hold memory") => Ok(true),
        Err(error) => Err(error),
    }
}

#[test]
fn nothing_writes_the_memory_of_a_segment_that_was_closed() {
    const WORDS: usize = 60;
    const ROUNDS: u64 = 8;
    everywhere("closed segments", &[2, 3], |world| {
        let (me, n) = (world.rank(), world.size());
        let owner = n - 1;
        let board = world.alloc::<u64>(2)?;
        world.barrier()?;
        if me == owner {
            // All of it lives until the end, so that a late put is seen and harms nobody.
            let mut closed: Vec<Vec<AtomicU64>> = Vec::new();
            for round in 1..=ROUNDS {
                let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
                // SAFETY: atomics, which outlive the segment; this rank touches them when it is closed.
                let own = unsafe { world.segment_at(None, words.as_ptr().cast_mut().cast(), 8 * WORDS) }?;
                for rank in 0..owner {
                    board.put(rank, 0, u64::from(own.number()))?;
                }
                world.fence();
                // At different moments: some peers have yet to find the segment, others have puts in flight.
                world.sleep(Duration::from_nanos(700 * (round - 1)));
                own.close()?;
                words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
                closed.push(words);
                for _ in 0..20 {
                    world.sleep(Duration::from_micros(5));
                    world.poll()?;
                }
                let written = closed.iter().flatten().filter(|word| word.load(Ordering::Relaxed) != 0).count();
                assert_eq!(written, 0, "words written after the close, in round {round}");
                for rank in 0..owner {
                    board.put(rank, 1, round)?;
                }
                world.fence();
            }
            std::mem::forget(closed);
        } else {
            for round in 1..=ROUNDS {
                while board.load(1) < round {
                    let put = world.put_segment(owner, board.load(0) as u32, 8 * me, &[0xa5; 8 * (WORDS - 5)]);
                    is_refused(world, put)?;
                }
            }
        }
        // Each poll returns one error of a put that was kept.
        for _ in 0..200 {
            let told = world.poll();
            assert!(matches!(told, Ok(_) | Err(Error::InvalidArgument { .. })), "{told:?}");
        }
        world.barrier()
    });
}

#[test]
fn a_get_that_was_posted_brings_the_bytes_though_the_segment_is_closed() {
    const LEN: usize = 200;
    everywhere("gets from closed segments", &[2, 3], |world| {
        let (me, n) = (world.rank(), world.size());
        let owner = n - 1;
        let board = world.alloc::<u64>(2)?;
        world.barrier()?;
        for round in 1..=6u64 {
            if me == owner {
                let own = world.segment(LEN)?;
                own.write(0, &[round as u8; LEN])?;
                for rank in 0..owner {
                    board.put(rank, 0, u64::from(own.number()))?;
                }
                world.fence();
                world.sleep(Duration::from_nanos(4_000 + 3_300 * round));
                own.close()?;
                for rank in 0..owner {
                    board.put(rank, 1, round)?;
                }
                world.fence();
            } else {
                while board.load(1) < round {
                    let mut came = [0; LEN];
                    match world.get_segment(owner, board.load(0) as u32, 0, &mut came) {
                        Ok(()) => assert_eq!(came, [round as u8; LEN]),
                        Err(Error::NoSegment { .. }) => {}
                        // One request, for which there is room: it is posted while the segment is open, or not at all.
                        Err(error) => return Err(error),
                    }
                    world.poll()?;
                }
            }
            world.barrier()?;
        }
        world.barrier()
    });
}

#[test]
fn a_segment_opened_later_is_reached_while_its_owner_computes() {
    check("a_segment_opened_later_is_reached_while_its_owner_computes", 3, |seed| {
        let of = |memory| Config { memory, ..Config::new(2, seed) };
        for (network, config) in [("direct", of(Memory::Direct)), ("posted", of(Memory::Posted))] {
            let results = job(config).run(|world| {
                let owner = world.rank() == 1;
                let first = if owner { Some(world.segment(64)?) } else { None };
                let shown = world.allgather(&[first.as_ref().map_or(0, |own| own.address())])?[1];
                let to = world.alloc::<u64>(1)?;
                if !owner {
                    // Copies the table, which has one entry.
                    // SAFETY: an open segment.
                    unsafe { world.put_address(1, shown, &[1], RawBells::default()) }?;
                    world.fence();
                }
                world.barrier()?;
                if owner {
                    let second = world.segment(64)?;
                    to.put(0, 0, second.address() as u64)?;
                    world.fence();
                    // Without progress here.
                    world.sleep(Duration::from_millis(10));
                    let mut came = [0; 3];
                    second.read(5, &mut came)?;
                    assert_eq!(came, [7, 8, 9], "{network}");
                    world.barrier()?;
                    second.close()?;
                } else {
                    world.wait_until(|| to.load(0) != 0)?;
                    let address = to.load(0) as usize + 5;
                    // SAFETY: an open segment.
                    unsafe { world.put_address(1, address, &[7, 8, 9], RawBells::default()) }?;
                    world.fence();
                    world.barrier()?;
                }
                first.map_or(Ok(()), |own| own.close())?;
                world.barrier()
            });
            results.expect("the job runs").into_iter().for_each(|result: Result<()>| result.expect("runs"));
        }
    });
}

#[test]
fn a_close_does_not_wait_for_a_rank_that_died() {
    check("a_close_does_not_wait_for_a_rank_that_died", 3, |seed| {
        for memory in [Memory::Emulated, Memory::Direct, Memory::Posted] {
            // It dies before the close, or instead of answering it.
            for early in [true, false] {
                let job = job(Config { memory, ..Config::new(3, seed) });
                let results = job.run(|world: &World| -> Result<()> {
                    let owner = world.rank() == 2;
                    let own = if owner { Some(world.segment(64)?) } else { None };
                    let number = world.allgather(&[own.as_ref().map_or(0, |own| own.number())])?[2];
                    world.put_segment(2, number, world.rank(), &[1])?;
                    world.fence();
                    world.barrier()?;
                    match world.rank() {
                        0 => {
                            if early {
                                job.network().kill(0);
                            }
                            // Answers nothing.
                            world.sleep(Duration::from_millis(1));
                            job.network().kill(0);
                        }
                        1 => {
                            // Answers, whatever its polls tell of rank 0.
                            for _ in 0..2000 {
                                let _ = world.poll();
                                world.sleep(Duration::from_micros(5));
                            }
                        }
                        _ => {
                            if early {
                                world.sleep(Duration::from_micros(100));
                            }
                            own.expect("made above").close()?;
                        }
                    }
                    Ok(())
                });
                let results = results.expect("the job runs");
                assert!(results[2].is_ok(), "{memory:?}, early: {early}, seed {seed}: {:?}", results[2]);
            }
        }
    });
}

/// Buffers of this length are not copied on their way.
#[test]
fn long_buffers_come_and_go_whole() {
    check("long_buffers_come_and_go_whole", 2, |seed| {
        let of = |memory| Config { memory, ..Config::new(2, seed).wild() };
        for config in [of(Memory::Posted), of(Memory::Direct), of(Memory::Emulated)] {
            let results = job(config).run(|world| {
                const LEN: usize = 300_000;
                let own = world.segment_all(LEN + 100)?;
                let heap = world.alloc::<u8>(LEN)?;
                let all = world.allgather(&[heap.as_ptr_range().start as usize])?;
                let (me, other) = (world.rank(), 1 - world.rank());
                let bytes = |seed: usize| (0..LEN).map(|i| (i * 7 + i / 1000 + seed) as u8).collect::<Vec<_>>();
                world.put_segment(other, own.number(), 99, &bytes(me))?;
                // SAFETY: the other's symmetric memory, of which nothing is borrowed.
                unsafe { world.put_address(other, all[other], &bytes(me + 5), RawBells::default()) }?;
                world.fence();
                world.barrier()?;
                let (mut came, mut here) = (vec![0; LEN], vec![0; LEN]);
                own.read(99, &mut here)?;
                assert!(here == bytes(other), "what was put");
                world.get_segment(other, own.number(), 99, &mut came)?;
                assert!(came == bytes(me), "what was got");
                heap.read(0, &mut here);
                assert!(here == bytes(other + 5), "what was put by address");
                world.barrier()?;
                own.close()
            });
            results.expect("the job runs").into_iter().for_each(|result| result.expect("runs"));
        }
    });
}

#[test]
fn contexts_go_on_with_ranks_that_live_when_another_has_died() {
    const LEN: usize = 1000;
    const TIMES: usize = 500;
    check("contexts_go_on_with_ranks_that_live_when_another_has_died", 3, |seed| {
        for memory in [Memory::Emulated, Memory::Direct, Memory::Posted] {
            let job = job(Config { memory, ..Config::new(3, seed).wild() });
            let over = AtomicBool::new(false);
            let results = job.run(|world: &World| -> Result<()> {
                let own = world.segment(LEN)?;
                let numbers = world.allgather(&[own.number()])?;
                world.barrier()?;
                match world.rank() {
                    0 => {
                        let context = world.context()?;
                        while context.put_segment(2, numbers[2], 0, &[1]).is_ok() {
                            world.sleep(Duration::from_micros(10));
                        }
                        // More than there is room for.
                        for _ in 0..TIMES {
                            context.put_segment(1, numbers[1], 0, &[6; LEN])?;
                        }
                        let _ = own.for_threads();
                        own.close()?;
                        for _ in 0..TIMES {
                            context.put_segment(1, numbers[1], 0, &[7; LEN])?;
                        }
                        // Waits for them.
                        drop(context);
                        over.store(true, Ordering::Relaxed);
                    }
                    1 => {
                        for _ in 0..20_000 {
                            let _ = world.poll();
                            world.sleep(Duration::from_micros(5));
                            if over.load(Ordering::Relaxed) {
                                break;
                            }
                        }
                        let mut bytes = [0; LEN];
                        own.read(0, &mut bytes)?;
                        assert_eq!(bytes, [7; LEN]);
                    }
                    _ => {
                        // The barrier is over for all.
                        world.sleep(Duration::from_millis(1));
                        job.network().kill(2);
                    }
                }
                Ok(())
            });
            let results = results.expect("the job runs");
            assert!(results[..2].iter().all(Result::is_ok), "{memory:?}, seed {seed}: {results:?}");
        }
    });
}
