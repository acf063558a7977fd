//! Segments through contexts, and notifications in segments.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bellwether_runtime::transport::AtomicOp;
use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::{Completion, Counter, Error, Event, Result, Simulated, Transport, World};

use super::super::{Through, everywhere, threads};

const LEN: usize = 3000;

fn pattern(seed: usize) -> Vec<u8> {
    (0..LEN).map(|i| (i * 7 + seed * 31 + i / 251 + 1) as u8).collect()
}

/// Puts, gets and atomics of two contexts of each rank.
fn reach(world: &World) -> Result<()> {
    let (me, n) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    let (own, back) = (world.segment_all(2 * LEN + 64)?, world.segment(LEN)?);
    let number = own.number();
    let contexts = [world.context()?, world.context()?];
    for (i, context) in contexts.iter().enumerate() {
        let mut bytes = pattern(2 * me + i);
        context.put_segment(next, number, i * LEN, &bytes)?;
        bytes.fill(0);
        context.flush(next)?;
    }
    world.barrier()?;
    for (i, context) in contexts.iter().enumerate() {
        let mut came = vec![0; LEN];
        own.read(i * LEN, &mut came)?;
        assert!(came == pattern(2 * before + i), "part {i} of rank {before} is here");
        let mut got = vec![0; LEN - 5];
        context.get_segment(next, number, i * LEN + 3, &mut got)?;
        assert!(got == pattern(2 * me + i)[3..LEN - 2]);
    }
    let lent = back.for_threads();
    contexts[0].get_segment_into((next, number, LEN + 1), &lent, 2, LEN - 2)?;
    contexts[0].flush_all()?;
    assert!(contexts[0].is_complete()?);
    let mut got = vec![0; LEN];
    back.read(0, &mut got)?;
    assert!(got[2..] == pattern(2 * me + 1)[1..LEN - 1] && got[..2] == [0; 2]);

    // Each takes a different ticket, where the network or the processor changes words.
    let mut tickets = Vec::new();
    for context in &contexts {
        match context.fetch_segment(AtomicOp::Add, 0, number, 2 * LEN, 1u64) {
            Err(Error::InvalidArgument { why, .. }) => assert!(why.contains("World::fetch_segment"), "{why}"),
            ticket => tickets.push(ticket?),
        }
    }
    let all = world.allgather(&[<[u64; 2]>::try_from(tickets).unwrap_or([u64::MAX; 2])])?.concat();
    let mut taken: Vec<u64> = all.into_iter().filter(|ticket| *ticket != u64::MAX).collect();
    taken.sort_unstable();
    assert!(taken.iter().copied().eq(0..taken.len() as u64), "{taken:?}");

    let put = |number, offset, len: usize| contexts[1].put_segment(next, number, offset, &vec![1; len]);
    assert!(matches!(put(number, own.len() - 3, 4), Err(Error::OutOfBounds { .. })));
    assert!(matches!(put(number, usize::MAX, 4), Err(Error::OutOfBounds { .. })));
    assert!(matches!(contexts[1].put_segment(n, number, 0, &[1]), Err(Error::RankOutOfRange { .. })));
    for none in [0, 1, number + 9, u32::MAX] {
        assert!(matches!(put(none, 0, 1), Err(Error::NoSegment { .. })), "{none}");
    }
    let odd = contexts[1].notify_segment(next, number, 4, 1u64);
    assert!(matches!(odd, Err(Error::Misaligned { alignment: 8, .. })), "{odd:?}");
    let far = back.for_threads();
    let outside = contexts[1].get_segment_into((next, number, 0), &far, LEN - 1, 2);
    assert!(matches!(outside, Err(Error::OutOfBounds { .. })), "{outside:?}");
    contexts.iter().try_for_each(|context| context.flush_all())?;
    world.barrier()?;
    own.close()?;
    world.barrier()?;
    assert!(matches!(put(number, 0, 1), Err(Error::NoSegment { .. })), "closed");
    world.barrier()
}

/// What a context puts, gets and changes in segments, and each event of it.
fn events(world: &World, through: &Through) -> Result<()> {
    let (me, n) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    let (own, back, bell) = (world.segment_all(LEN)?, world.segment(LEN)?, world.bell()?);
    let (context, number, into) = (world.context()?, own.number(), back.for_threads());
    let (source, effect, called, done) = (Counter::new(), Counter::new(), Counter::new(), Completion::new());
    for (i, part) in pattern(me).chunks(LEN / 5).enumerate() {
        let mut part = part.to_vec();
        let count = called.clone();
        let hear = Event::call(move |outcome| outcome.map_or((), |()| count.add(1)));
        let put = context.operation().source(&source).effect(&effect).handled(&bell).effect(&done).effect(hear);
        put.put_segment(next, number, i * (LEN / 5), &part)?;
        part.fill(0);
        assert_eq!(source.value(), i as u64 + 1, "copied, so the source may be changed at once");
    }
    context.wait_counter(&effect, 5)?;
    // Nothing but the events says that it is in effect.
    through.pass(0);
    through.await_all(world, 0, n)?;
    let mut came = vec![0; LEN];
    own.read(0, &mut came)?;
    assert!(came == pattern(before));
    context.wait_completion(&done)?;
    context.wait_counter(&called, 5)?;
    assert_eq!([source.value(), called.value(), bell.wait(5)?], [5; 3]);

    let got = Counter::new();
    context.operation().effect(&got).get_segment((next, number, 3), &into, 5, LEN - 10)?;
    context.wait_counter(&got, 1)?;
    back.read(0, &mut came)?;
    assert!(came[5..LEN - 5] == pattern(me)[3..LEN - 7] && came[..5] == [0; 5] && came[LEN - 5..] == [0; 5]);
    let get = |from, at, len| context.operation().effect(&got).get_segment((next, number, from), &into, at, len);
    assert!(matches!(get(0, LEN - 4, 5), Err(Error::OutOfBounds { .. })), "of what is filled");
    assert!(matches!(get(LEN - 4, 0, 5), Err(Error::OutOfBounds { .. })), "of what is read");
    through.pass(1);
    through.await_all(world, 1, n)?;

    own.write(0, &[0; 64])?;
    world.barrier()?;
    let found = Counter::new();
    let add = || context.operation().effect(&found).fetch_segment(AtomicOp::Add, next, number, 8, 1u64);
    match add() {
        Err(Error::InvalidArgument { why, .. }) => assert!(why.contains("World::fetch_segment"), "{why}"),
        ticket => {
            let ticket = ticket?;
            let swap =
                context.operation().handled(&found).compare_swap_segment(next, number, 20, 0u32, me as u32 + 7)?;
            context.wait_counter(&found, 2)?;
            assert_eq!(swap.value(), Some(0));
            assert_eq!(ticket.value(), Some(0));
            through.pass(2);
            through.await_all(world, 2, n)?;
            let mut word = [0; 4];
            own.read(20, &mut word)?;
            assert_eq!(u32::from_ne_bytes(word), before as u32 + 7);
        }
    }
    let counted = found.value();
    let two = context.operation().effect(&found).fetch_segment(AtomicOp::CompareSwap, next, number, 8, 1u64);
    assert!(matches!(two, Err(Error::InvalidArgument { .. })), "{two:?}");
    let refused = context.operation().effect(&found).put_segment(next, number, LEN, &[1]);
    assert!(matches!(refused, Err(Error::OutOfBounds { .. })), "{refused:?}");
    assert_eq!([found.value(), got.value()], [counted, 1], "no event of what was not done");

    // The heap, by its number.
    let words = world.alloc::<u64>(4)?;
    let at = words.segment_offset(0);
    // SAFETY: all accesses are to `words`, of which any bits are valid.
    let reserved = unsafe { context.reserved_segments() };
    let (there, changed) = (Counter::new(), Counter::new());
    context.operation().effect(&there).put_reserved(&reserved, next, 0, at, &[(me + 1) as u8; 8])?;
    context.wait_counter(&there, 1)?;
    through.pass(3);
    through.await_all(world, 3, n)?;
    assert_eq!(words.load(0).to_ne_bytes(), [(before + 1) as u8; 8]);
    context.operation().effect(&there).get_reserved(&reserved, (next, 0, at), &into, 8, 8)?;
    context.wait_counter(&there, 2)?;
    back.read(0, &mut came)?;
    assert_eq!(came[8..16], [(me + 1) as u8; 8]);
    let (ticket, swapped) = (context.operation().effect(&changed), context.operation().effect(&changed));
    let ticket = ticket.fetch_reserved(AtomicOp::Add, &reserved, (0, 0, at + 8), 1u64)?;
    let swapped = swapped.compare_swap_reserved(&reserved, (next, 0, at + 16), 0u64, 9)?;
    context.wait_counter(&changed, 2)?;
    assert_eq!(swapped.value(), Some(0));
    assert!(ticket.value().is_some_and(|ticket| ticket < n as u64));
    through.pass(4);
    through.await_all(world, 4, n)?;
    assert_eq!(words.load(2), 9);
    let missing = context.operation().effect(&there).put_reserved(&reserved, next, 2, 0, &[1]);
    assert!(matches!(missing, Err(Error::NoSegment { .. })), "{missing:?}");
    assert_eq!(there.value(), 2);
    world.barrier()?;
    own.close()?;
    back.close()
}

#[test]
fn operations_of_a_context_on_segments_tell_of_their_events() {
    everywhere("events of segments through contexts", Through::default, events);
}

#[test]
fn contexts_reach_segments() {
    everywhere("segments through contexts", || (), |world, ()| reach(world));
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn contexts_reach_segments_over_rdma() {
    for program in [reach, notify] {
        let results = threads(2, Transport::Verbs).run(program).expect("ranks start");
        results.into_iter().for_each(|result| result.expect("is well"));
    }
    let through = Through::default();
    let results = threads(2, Transport::Verbs).run(|world| events(world, &through)).expect("ranks start");
    results.into_iter().for_each(|result| result.expect("is well"));
}

/// Data, then a word: who sees the word sees the data. By the world, and by a context.
fn notify(world: &World) -> Result<()> {
    const ROUNDS: u64 = 6;
    let (me, n) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    let (data, words, bell) = (world.segment_all(LEN)?, world.segment_all(64)?, world.bell()?);
    let context = world.context()?;
    let read = |at: usize| {
        let mut word = [0; 8];
        words.read(at, &mut word).map(|()| u64::from_ne_bytes(word))
    };
    for round in 1..=ROUNDS {
        let bytes = pattern(me + 10 * round as usize);
        if round % 2 == 0 {
            world.put_segment(next, data.number(), 0, &bytes)?;
            world.notify_segment(next, words.number(), 8, round)?;
        } else {
            context.put_segment(next, data.number(), 0, &bytes)?;
            context.notify_segment(next, words.number(), 8, round)?;
        }
        world.wait_until(|| read(8).expect("in bounds") == round)?;
        let mut came = vec![0; LEN];
        data.read(0, &mut came)?;
        let expected = pattern(before + 10 * round as usize);
        let there = came.iter().zip(&expected).filter(|(a, b)| a == b).count();
        assert!(came == expected, "round {round}: {there} bytes came before the word");
        // It may be overwritten.
        world.notify_segment(before, words.number(), 24, round as u32)?;
        world.wait_until(|| read(24).expect("in bounds") == round)?;
    }
    // With a bell instead.
    world.put_segment_bell(next, data.number(), 5, &pattern(me)[..100], &bell)?;
    bell.wait(1)?;
    let mut came = [0; 100];
    data.read(5, &mut came)?;
    assert!(came[..] == pattern(before)[..100]);
    world.barrier()?;
    context.put_segment_bell(next, data.number(), 7, &pattern(me + 1)[..100], &bell.for_threads())?;
    bell.wait(2)?;
    data.read(7, &mut came)?;
    assert!(came[..] == pattern(before + 1)[..100]);
    let odd = world.notify_segment(next, words.number(), 2, 1u32);
    assert!(matches!(odd, Err(Error::Misaligned { alignment: 4, .. })), "{odd:?}");
    context.flush_all()?;
    world.barrier()
}

#[test]
fn a_notification_in_a_segment_comes_after_the_data() {
    everywhere("notifications in segments", || (), |world, ()| notify(world));
    // Where the kernel copies nothing, what is not mapped goes by message.
    let mut settings = bellwether_runtime::Settings::default();
    settings.cross_memory_attach = false;
    let results = threads(2, Transport::Auto).settings(settings).run(|world| -> Result<()> {
        let (memory, other) = ([const { AtomicU64::new(0) }; 64], 1 - world.rank());
        // SAFETY: atomics, which outlive the segment.
        let data = unsafe { world.segment_at(Some(70), memory[0].as_ptr().cast(), 512) }?;
        let words = world.segment_all(64)?;
        for round in 1..=50u64 {
            world.put_segment(other, 70, 0, &round.to_ne_bytes().repeat(64))?;
            world.notify_segment(other, words.number(), 0, round)?;
            world.wait_until(|| {
                let mut word = [0; 8];
                words.read(0, &mut word).expect("in bounds");
                u64::from_ne_bytes(word) == round
            })?;
            let came = memory.iter().filter(|word| word.load(Ordering::Relaxed) == round).count();
            assert_eq!(came, 64, "round {round}");
            world.barrier()?;
        }
        data.close()
    });
    results.expect("ranks start").into_iter().for_each(|result| result.expect("is well"));
}

/// Where the kernel copies nothing, bytes for what is not mapped wait in a message until their target handles it.
#[test]
fn a_bell_of_a_put_by_message_comes_after_the_bytes() {
    let mut settings = bellwether_runtime::Settings::default();
    settings.cross_memory_attach = false;
    let is_sent = [const { AtomicBool::new(false) }; 2];
    let results = threads(2, Transport::Auto).settings(settings).run(|world| -> Result<()> {
        let (memory, bell) = ([const { AtomicU64::new(0) }; 64], world.bell()?);
        // SAFETY: atomics, which outlive the segment.
        let data = unsafe { world.segment_at(Some(70), memory[0].as_ptr().cast(), 512) }?;
        world.barrier()?;
        for (round, is_sent) in (1..=2u64).zip(&is_sent) {
            if world.rank() == 0 {
                let bytes = round.to_ne_bytes().repeat(64);
                match round {
                    1 => world.put_segment_bell(1, 70, 0, &bytes, &bell)?,
                    _ => world.try_put_segment_bell(1, 70, 0, &bytes, &bell)?,
                }
                is_sent.store(true, Ordering::SeqCst);
            } else {
                // Polls nothing meanwhile: a bell that was rung is seen before any message.
                while !is_sent.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                bell.wait(round)?;
                let came = memory.iter().filter(|word| word.load(Ordering::Relaxed) == round).count();
                assert_eq!(came, 64, "round {round}");
            }
            world.barrier()?;
        }
        data.close()
    });
    results.expect("ranks start").into_iter().for_each(|result| result.expect("is well"));
}

/// Threads put without a pause to whatever segment is open. What an owner has closed nobody writes.
#[test]
fn nothing_of_a_context_reaches_a_segment_that_was_closed() {
    for (transport, attach) in [(Transport::Auto, false), (Transport::Auto, true), (Transport::ShmContract, true)] {
        // `ci/test full` sets the variable.
        let rounds = if std::env::var_os("ROWS_FULL").is_some() { 40 } else { 10 };
        let (open, over) = (AtomicU32::new(0), AtomicBool::new(false));
        let (done, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        let results = threads(2, transport).run(|world| -> Result<()> {
            const BYTES: usize = 64 << 10;
            // First taken by nobody.
            let memory: Vec<AtomicU64> = (0..BYTES / 8).map(|_| AtomicU64::new(0)).collect();
            world.barrier()?;
            if world.rank() == 1 {
                let mut spacers = Vec::new();
                for round in 0..rounds {
                    let own = match attach {
                        // SAFETY: atomics, which outlive the segment.
                        true => unsafe { world.segment_at(None, memory[0].as_ptr().cast(), BYTES) }?,
                        false => world.segment(BYTES)?,
                    };
                    open.store(own.number(), Ordering::SeqCst);
                    let seen = done.load(Ordering::SeqCst);
                    while done.load(Ordering::SeqCst) < seen + 10 {
                        world.poll()?;
                        std::thread::yield_now();
                    }
                    own.close()?;
                    // Its number is taken by a short segment, and its memory by another one.
                    spacers.push(world.segment(8)?);
                    let probe = if attach { None } else { Some(world.segment(BYTES)?) };
                    memory.iter().for_each(|word| word.store(0, Ordering::Relaxed));
                    let mut there = vec![0; BYTES];
                    for _ in 0..50 {
                        std::thread::yield_now();
                        if let Some(probe) = &probe {
                            probe.read(0, &mut there)?;
                        }
                        let late = memory.iter().filter(|word| word.load(Ordering::Relaxed) != 0).count();
                        assert!(late == 0 && there.iter().all(|byte| *byte == 0), "{transport:?}, round {round}");
                    }
                    probe.map_or(Ok(()), |probe| probe.close())?;
                }
                over.store(true, Ordering::SeqCst);
            } else {
                let contexts = [world.context()?, world.context()?];
                std::thread::scope(|scope| -> Result<()> {
                    let threads = contexts.map(|context| {
                        let (open, over, done, refused) = (&open, &over, &done, &refused);
                        scope.spawn(move || -> Result<()> {
                            while !over.load(Ordering::SeqCst) {
                                match context.put_segment(1, open.load(Ordering::SeqCst), 8, &[0xa5; 5000]) {
                                    Ok(()) => done.fetch_add(1, Ordering::SeqCst),
                                    Err(Error::NoSegment { .. } | Error::OutOfBounds { .. }) => {
                                        refused.fetch_add(1, Ordering::SeqCst)
                                    }
                                    Err(error) => return Err(error),
                                };
                            }
                            context.flush_all()
                        })
                    });
                    while !over.load(Ordering::SeqCst) && !threads.iter().any(|thread| thread.is_finished()) {
                        world.poll()?;
                        std::thread::yield_now();
                    }
                    threads.into_iter().try_for_each(|thread| thread.join().expect("does not panic"))
                })?;
            }
            world.barrier()
        });
        results.expect("ranks start").into_iter().for_each(|result| result.expect("is well"));
        assert!(refused.load(Ordering::SeqCst) > 0, "no put came late");
    }
}

/// A wait with a limit ends, and the next one goes on.
#[test]
fn a_wait_for_all_of_a_context_has_a_limit() {
    check("waits with a limit", 3, |seed| {
        let results = Simulated::new(Config::new(2, seed)).run(|world| -> Result<()> {
            let own = world.segment_all(LEN)?;
            let (context, other) = (world.context()?, 1 - world.rank());
            context.put_segment(other, own.number(), 0, &[1])?;
            context.flush_all()?;
            context.put_segment(other, own.number(), 0, &pattern(world.rank()))?;
            let early = context.flush_all_for(Duration::from_nanos(1));
            assert!(matches!(early, Err(Error::TimedOut { .. })), "{early:?}");
            context.flush_all_for(Duration::from_secs(5))?;
            assert!(context.is_complete()?);
            world.barrier()?;
            let mut came = vec![0; LEN];
            own.read(0, &mut came)?;
            assert!(came == pattern(other));
            world.barrier()
        });
        results.expect("the job runs").into_iter().for_each(|result| result.expect("runs"));
    });
}
