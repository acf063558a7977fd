//! Whole programs on ranks that are threads: memory, bells, barriers, collectives, and ranks that go wrong. Each is compiled once,
//! and runs as one test for each transport.

pub mod deadlock;
pub mod differ;
pub mod each_kind;
pub mod memory;
pub mod panics;
pub mod segments;
pub mod under_way;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use bellwether_runtime::{
    Barrier, Context, Error, HugePages, Loss, Piece, Posted, Result, Settings, Threads, Transport, World,
};

const RANKS: [usize; 6] = [1, 2, 3, 5, 7, 16];

thread_local! {
    /// How the ranks of the test that runs on this thread reach each other.
    static TRANSPORT: Cell<Option<Transport>> = const { Cell::new(None) };
}

/// Runs a program as a test, on ranks that reach each other by `transport`.
pub fn over(transport: Transport, program: fn()) {
    TRANSPORT.set(Some(transport));
    program();
}

fn transport() -> Transport {
    TRANSPORT.get().expect("called on the thread of a test")
}

fn is_mapped() -> bool {
    transport() == Transport::Auto
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.transport = transport();
    settings
}

fn threads<R: Send>(ranks: usize, program: impl Fn(&World) -> R + Sync) -> Result<Vec<R>> {
    Threads::new(ranks).settings(settings()).run(program)
}

/// Ends the test program if it is still there after this time, in which all of its tests run even under a sanitizer on a busy machine:
/// something hangs.
fn watchdog() {
    static START: Once = Once::new();
    START.call_once(|| {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(1200));
            eprintln!("a test of this file hangs");
            std::process::abort();
        });
    });
}

/// Runs a program on every number of ranks, with every barrier and with lanes of one message.
fn everywhere(program: impl Fn(&World) -> Result<()> + Sync) {
    watchdog();
    for ranks in RANKS {
        let barriers = [
            (Barrier::Auto, None),
            (Barrier::Dissemination, Some(1)),
            (Barrier::Central, Some(2)),
            (Barrier::Direct, Some(3)),
        ];
        for (barrier, depth) in barriers {
            let mut settings = settings();
            settings.barrier = barrier;
            settings.lane_depth = depth;
            let results = Threads::new(ranks).settings(settings).run(&program).expect("ranks start");
            for (rank, result) in results.into_iter().enumerate() {
                result.unwrap_or_else(|error| panic!("rank {rank} of {ranks}, {barrier:?}, {depth:?}: {error}"));
            }
        }
    }
}

pub fn a_bell_is_seen_after_the_data() {
    everywhere(|world| {
        let (next, rounds) = ((world.rank() + 1) % world.size(), 300u64);
        let data = world.alloc::<u64>(1000)?;
        let (bell, taken) = (world.bell()?, world.bell()?);
        for round in 1..=rounds {
            let values: Vec<u64> = (0..1000).map(|i| round * 1000 + i).collect();
            data.put_slice_bell(next, 0, &values, &bell)?;
            assert!(bell.wait(round)? >= round);
            let mut seen = vec![0; 1000];
            data.read(0, &mut seen);
            assert!(seen.iter().zip(0..).all(|(value, i)| *value == round * 1000 + i), "round {round}");
            taken.ring((world.rank() + world.size() - 1) % world.size())?;
            taken.wait(round)?;
        }
        world.barrier()
    });
}

pub fn what_lies_in_ones_own_part_is_put_from_there() {
    everywhere(|world| {
        const LEN: usize = 100_000;
        let (rank, size) = (world.rank(), world.size());
        let (source, target) = (world.alloc::<u32>(LEN)?, world.alloc::<u32>(LEN + 2)?);
        let bell = world.bell()?;
        let number = |rank: usize, round: usize, at: usize| (rank * 10 + round) as u32 ^ (at as u32).wrapping_mul(31);
        // Few and many, and all; the last to oneself.
        for (round, (from, to)) in [(0..1, 7), (100..90_001, 3), (0..LEN, 2), (5..5, LEN + 2)].into_iter().enumerate() {
            let mine: Vec<u32> = (0..LEN).map(|at| number(rank, round, at)).collect();
            source.write(0, &mine);
            let next = (rank + 1) % size;
            target.put_from(next, to, &source, from.clone())?;
            bell.ring(next)?;
            bell.wait(round as u64 + 1)?;
            let mut came = vec![0; from.len()];
            target.read(to, &mut came);
            let before = (rank + size - 1) % size;
            assert!(came.iter().copied().eq(from.map(|at| number(before, round, at))), "round {round}");
            world.barrier()?;
        }
        // Within one part, over itself.
        source.put_from(rank, 1, &source, 0..LEN - 1)?;
        assert_eq!(source.load(LEN - 1), number(rank, 3, LEN - 2));
        let wrong = [(size, 0, 0..1), (0, 0, LEN..LEN + 1), (0, LEN + 2, 0..1), (0, 3, 0..LEN)];
        for (rank, to, from) in wrong {
            let error = target.put_from(rank, to, &source, from).expect_err("out of range");
            assert!(matches!(error, Error::RankOutOfRange { .. } | Error::OutOfBounds { .. }), "{error}");
        }
        world.barrier()
    });
}

pub fn a_bell_counts_the_rings_of_all() {
    everywhere(|world| {
        let bell = world.bell()?;
        for _ in 0..1000 {
            (0..world.size()).try_for_each(|rank| bell.ring(rank))?;
        }
        assert_eq!(bell.wait(1000 * world.size() as u64)?, 1000 * world.size() as u64);
        world.barrier()?;
        assert_eq!(bell.count()?, 1000 * world.size() as u64);
        world.barrier()
    });
}

pub fn nobody_leaves_a_barrier_before_all_have_entered() {
    watchdog();
    for ranks in RANKS {
        for barrier in [Barrier::Dissemination, Barrier::Central, Barrier::Direct] {
            let mut settings = settings();
            settings.barrier = barrier;
            let entered = AtomicUsize::new(0);
            let program = |world: &World| {
                for round in 1..=200 {
                    entered.fetch_add(1, Ordering::SeqCst);
                    world.barrier()?;
                    assert!(entered.load(Ordering::SeqCst) >= round * ranks);
                }
                Ok(())
            };
            Threads::new(ranks).settings(settings).run(program).expect("starts").into_iter().for_each(
                |r: Result<()>| {
                    r.expect("no rank is lost");
                },
            );
        }
    }
}

pub fn pieces_come_from_and_go_to_many_ranks() {
    everywhere(|world| {
        let (rank, size) = (world.rank(), world.size());
        let len = 300;
        let (numbers, marks) = (world.alloc::<u32>(len)?, world.alloc::<f64>(size * len)?);
        let number = |rank: usize, i: usize| (1000 * rank + i) as u32;
        (0..len).for_each(|i| numbers.store(i, number(rank, i)));
        world.barrier()?;
        // Single ones, neighbours, none at all, and the same ones twice.
        let piece = |k: usize| Piece { rank: (rank + k) % size, start: 7 * k % (len - 6), count: k % 6 };
        let pieces: Vec<Piece> =
            (0..200).map(piece).chain((0..size).map(|rank| Piece { rank, start: 0, count: len })).collect();
        let whole =
            pieces.iter().flat_map(|piece| (piece.start..piece.start + piece.count).map(|i| number(piece.rank, i)));
        let expected: Vec<u32> = whole.collect();
        let posted = numbers.get_pieces_async(&pieces);
        let mut values = vec![0; expected.len()];
        numbers.get_pieces(&pieces, &mut values)?;
        assert!(values == expected && posted.wait()? == expected);
        // Each rank has a part of its own at every other.
        let to = |k: usize| Piece { rank: k % size, start: rank * len + k / size, count: 1 };
        let (all, values): (Vec<_>, Vec<_>) = (0..size * len).map(|k| (to(k), (rank + k) as f64)).unzip();
        let put = marks.put_pieces_async(&all[..size], &values[..size]);
        marks.put_pieces(&all[size..], &values[size..])?;
        put.wait()?;
        world.barrier()?;
        for (from, i) in (0..size).flat_map(|from| (0..len).map(move |i| (from, i))) {
            assert_eq!(marks.load(from * len + i), (from + i * size + rank) as f64);
        }
        // Nothing is moved where anything is wrong.
        let good = Piece { rank, start: 0, count: 1 };
        let mut values = [77; 2];
        for (bad, says) in [
            (Piece { rank: size, ..good }, format!("rank {size} does not exist")),
            (Piece { start: len, ..good }, format!("which has {len}")),
            (Piece { count: usize::MAX, ..good }, format!("which has {len}")),
            (Piece { count: 3, ..good }, "2 values for 2 pieces of 4 elements".to_string()),
        ] {
            let get = numbers.get_pieces(&[good, bad], &mut values).expect_err("a bad piece").to_string();
            let put = numbers.put_pieces_async(&[good, bad], &[1, 2]).wait().expect_err("a bad piece").to_string();
            assert!(get.contains(&says) && put.contains(&says), "{get}, {put}");
        }
        assert_eq!((values, numbers.load(0)), ([77; 2], number(rank, 0)));
        assert!(numbers.get_pieces_async(&[Piece { start: len, ..good }]).wait().is_err());
        assert!(Posted::wait_all(std::iter::empty::<Posted<u8>>())?.is_empty());
        let mut several = vec![numbers.get_async(size - 1, 5), numbers.get_async(0, 9)];
        assert_eq!(Posted::wait_all(several.drain(..))?, [number(size - 1, 5), number(0, 9)]);
        several.extend([numbers.get_async(0, 1), numbers.get_async(size, 1)]);
        assert!(matches!(Posted::wait_all(several), Err(Error::RankOutOfRange { .. })));
        world.barrier()
    });
}

pub fn ranges_are_checked() {
    watchdog();
    threads(2, |world| {
        let array = world.alloc::<u16>(10).expect("fits");
        let mut out = [0; 4];
        assert!(matches!(array.put(2, 0, 1), Err(Error::RankOutOfRange { rank: 2, size: 2, .. })));
        assert!(matches!(array.get(0, 10), Err(Error::OutOfBounds { start: 10, available: 10, .. })));
        assert!(array.put_slice(1, 8, &[1, 2, 3]).is_err());
        assert!(array.get_slice(1, usize::MAX, &mut out).is_err());
        assert!(array.put_slice(1, 10, &[]).is_ok());
        world.barrier().expect("all here");
        assert_eq!((0..10).map(|i| array.load(i)).sum::<u16>(), 0, "nothing was written");
    })
    .expect("starts");
}

pub fn atomics_lose_nothing() {
    everywhere(|world| {
        let words = world.alloc::<u64>(2)?;
        let small = world.alloc::<i32>(1)?;
        let mut seen = Vec::new();
        for _ in 0..500 {
            seen.push(words.fetch_add(0, 0, 1)?);
            small.fetch_add(0, 0, -1)?;
        }
        assert!(seen.is_sorted());
        world.barrier()?;
        // A lock by compare-and-swap around a plain counter.
        for _ in 0..50 {
            while words.compare_swap(0, 1, 0, 1)? != 0 {
                world.poll()?;
                std::thread::yield_now();
            }
            let value = small.get(0, 0)?;
            small.put(0, 0, value - 1)?;
            words.swap(0, 1, 0)?;
        }
        world.barrier()?;
        assert_eq!(words.get(0, 0)?, 500 * world.size() as u64);
        assert_eq!(small.get(0, 0)?, -550 * world.size() as i32);
        world.barrier()
    });
}

pub fn collectives_agree_bit_for_bit() {
    everywhere(|world| {
        let mut values: Vec<f64> = (0..1000).map(|i| 0.1 * (world.rank() * 1000 + i) as f64).collect();
        world.allreduce_sum(&mut values)?;
        let all = world.allgather(&values.iter().map(|v| v.to_bits()).collect::<Vec<_>>())?;
        assert!(all.chunks(1000).all(|theirs| theirs == &all[..1000]));
        let mut from_last = [world.rank() as u64; 700];
        world.broadcast(world.size() - 1, &mut from_last)?;
        assert_eq!(from_last, [world.size() as u64 - 1; 700]);
        let nothing: [u8; 0] = [];
        assert!(world.allgather(&nothing)?.is_empty());
        Ok(())
    });
    let errors = threads(2, |world| world.allgather(&vec![0u8; 5 + world.rank()]).map(drop)).expect("starts");
    assert!(errors.iter().all(|e| matches!(e, Err(Error::RanksDiffer { rank: 1, .. }))), "{errors:?}");
}

pub fn calls_run_there_and_answer_here() {
    everywhere(|world| {
        world.set_state(Cell::new(0u64));
        world.barrier()?;
        let next = (world.rank() + 1) % world.size();
        let call = world.call(next, (3u8, String::from("x")), |ctx, (n, s)| (ctx.from(), s.repeat(n.into())))?;
        assert_eq!(call.wait()?, (world.rank(), "xxx".into()));
        assert_eq!(world.call_plain(next, 20u64, |_, x: u64| x + 1)?.wait()?, 21);
        let long: Vec<u64> = (0..50_000).collect();
        let sum = world.call(next, long, |_, long: Vec<u64>| long.iter().sum::<u64>())?;
        assert_eq!(sum.wait()?, 50_000 * 49_999 / 2);
        for i in 0..2000u64 {
            world.invoke_plain(next, i, |ctx, i: u64| {
                let seen = ctx.state::<Cell<u64>>().expect("set before the barrier");
                assert_eq!(seen.replace(i + 1), i, "messages between two ranks keep their order");
            })?;
        }
        let seen = world.state::<Cell<u64>>().expect("set above");
        world.wait_until(|| seen.get() == 2000)?;
        world.barrier()
    });
}

pub fn a_panic_is_told_to_all() {
    watchdog();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        threads(4, |world| {
            if world.rank() == 2 {
                panic!("on purpose");
            }
            match world.barrier() {
                Err(Error::PeerLost { rank: 2, cause: Loss::Panicked, .. }) => {}
                other => panic!("{other:?}"),
            }
        })
    }));
    let panic = outcome.expect_err("the panic comes out");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
}

pub fn a_rank_that_leaves_early_is_named_wherever_others_wait() {
    /// Ends with its thread, after the world of the rank that ran there.
    struct Gone(Arc<AtomicBool>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    thread_local! {
        static GONE: RefCell<Option<Gone>> = const { RefCell::new(None) };
    }
    watchdog();
    for way in 0..4 {
        let gone = Arc::new(AtomicBool::new(false));
        let errors = threads(3, |world| {
            let bell = world.bell()?;
            if world.rank() == 1 {
                GONE.set(Some(Gone(Arc::clone(&gone))));
                return Ok(());
            }
            // As long as rank 1 is there it may answer a call.
            while !gone.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            match way {
                0 => world.barrier(),
                1 => bell.wait(1).map(drop),
                2 => world.call(1, (), |_, ()| ())?.wait(),
                _ => world.alloc::<u8>(1).map(drop),
            }
        })
        .expect("starts");
        for rank in [0, 2] {
            assert!(
                matches!(errors[rank], Err(Error::PeerLost { rank: 1, cause: Loss::Left, .. })),
                "way {way}, rank {rank}: {:?}",
                errors[rank]
            );
        }
    }
}

pub fn a_rank_that_left_does_not_disturb_those_who_work() {
    watchdog();
    let results = threads(3, |world| {
        let bell = world.bell()?;
        if world.rank() == 0 {
            return Ok(());
        }
        // Far longer than a standstill takes to be seen, and one of the two is always awake.
        for round in 1..=4 {
            if world.rank() == 1 {
                std::thread::sleep(Duration::from_millis(200));
                bell.ring(2)?;
            } else {
                bell.wait(round)?;
            }
        }
        Ok::<_, Error>(())
    })
    .expect("starts");
    assert!(results.iter().all(|result| result.is_ok()), "{results:?}");
}

pub fn a_wait_ends_with_its_time() {
    watchdog();
    threads(2, |world| {
        let bell = world.bell().expect("fits");
        let limit = Duration::from_millis(30);
        assert!(matches!(bell.wait_timeout(1, limit), Err(Error::TimedOut { after, .. }) if after == limit));
        assert!(matches!(world.wait_until_for(limit, || false), Err(Error::TimedOut { .. })));
        world.barrier().expect("both here");
    })
    .expect("starts");
    // Messages come all the time, and the wait does not sleep between two of them.
    let over = AtomicBool::new(false);
    let mut awake = settings();
    awake.spin = Some(u32::MAX);
    let flooded = Threads::new(2).deadline(Duration::from_secs(20)).settings(awake).run(|world| {
        if world.rank() == 1 {
            while !over.load(Ordering::Acquire) {
                world.call(0, (), |_, ()| ()).expect("goes out").wait().expect("answers");
            }
        } else {
            let waited = world.wait_until_for(Duration::from_millis(30), || false);
            assert!(matches!(waited, Err(Error::TimedOut { .. })), "{waited:?}");
            over.store(true, Ordering::Release);
        }
        world.barrier().expect("both here");
    });
    flooded.expect("starts");
}

pub fn waiting_inside_a_handler_is_refused() {
    watchdog();
    threads(2, |world| {
        world.set_state(Cell::new(false));
        world.barrier().expect("both here");
        let inner = world.call(1 - world.rank(), (), |ctx, ()| ctx.size()).expect("goes out");
        assert_eq!(inner.wait().expect("answers"), 2);
        world.barrier().expect("both here");
    })
    .expect("starts");
    let world = std::rc::Rc::new(std::cell::OnceCell::<std::rc::Weak<World>>::new());
    let found = std::rc::Rc::new(Cell::new(None));
    let (inside, result) = (world.clone(), found.clone());
    let mut builder = World::builder();
    let handler = builder.handler("waits", move |_, _| {
        let world = inside.get().and_then(|weak| weak.upgrade()).expect("set before the message");
        result.set(Some(world.barrier()));
    });
    let started = std::rc::Rc::new(builder.start().expect("one rank"));
    world.set(std::rc::Rc::downgrade(&started)).expect("once");
    started.send(0, handler, &[]).expect("goes out");
    started
        .wait_until(|| false.max(found.replace(None).is_some_and(|r| matches!(r, Err(Error::InsideHandler { .. })))))
        .expect("the handler ran and was refused");
}

pub fn worlds_in_one_process_do_not_meet() {
    watchdog();
    let transport = transport();
    let many = |ranks: usize| {
        move || {
            TRANSPORT.set(Some(transport));
            for _ in 0..20 {
                let sums = threads(ranks, |world| {
                    let mut sum = [world.rank() as u64];
                    world.allreduce_sum(&mut sum).map(|()| sum[0])
                });
                let right = |sum: Result<u64>| sum.expect("sums") as usize == ranks * (ranks - 1) / 2;
                assert!(sums.expect("starts").into_iter().all(right));
            }
        }
    };
    // By handle: the thread sanitizer sees no other way of joining.
    let running = [2, 3, 4].map(|ranks| std::thread::spawn(many(ranks)));
    running.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert!(threads(0, |_| ()).is_err());
}

pub fn ranks_in_different_collectives_are_told() {
    watchdog();
    let errors = threads(2, |world| match world.rank() {
        0 => world.allgather(&[1u64]).map(drop),
        _ => world.alloc::<u8>(17).map(drop),
    });
    for error in errors.expect("starts") {
        let text = error.expect_err("told to both").to_string();
        assert!(text.contains("allgather") && text.contains("an allocation"), "{text}");
    }
}

pub fn what_is_wrong_with_a_message_does_not_break_a_collective() {
    watchdog();
    let told = Threads::new(2).settings(settings()).build(|builder| {
        let world = builder.start().expect("starts");
        if world.rank() == 0 {
            world.send(1, bellwether_runtime::HandlerId::from_number(7), &[]).expect("goes out");
        }
        let mut sum = [world.rank() as u64 + 1];
        let mut told = 0;
        let mut tell = |result: Result<()>| match result {
            Ok(()) => {}
            Err(Error::UnknownHandler { id: 7, .. }) => told += 1,
            Err(other) => panic!("{other}"),
        };
        // A barrier tells when it is done; an allreduce keeps it for later.
        for _ in 0..3 {
            tell(world.barrier());
            world.allreduce_sum(&mut sum).expect("sums");
        }
        assert_eq!(sum, [12]);
        // A rank that is the last in each barrier waits in none, and has delivered nothing.
        tell(world.poll().map(drop));
        tell(world.barrier());
        told
    });
    assert_eq!(told.expect("starts"), [0, 1]);
}

pub fn a_rank_that_only_polls_hears_of_a_death() {
    watchdog();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        threads(2, |world| {
            let bell = world.bell().expect("fits");
            if world.rank() == 1 {
                panic!("on purpose");
            }
            loop {
                match bell.count() {
                    Ok(count) => assert_eq!(count, 0),
                    Err(error) => break assert!(matches!(error, Error::PeerLost { rank: 1, .. }), "{error}"),
                }
            }
        })
    }));
    assert!(outcome.is_err());
}

pub fn a_wait_for_something_outside_is_not_a_standstill() {
    watchdog();
    let results = threads(2, |world| {
        if world.rank() == 0 {
            let start = std::time::Instant::now();
            world.wait_until(|| start.elapsed() > Duration::from_millis(700))?;
        }
        world.barrier()
    });
    results.expect("starts").into_iter().for_each(|result| result.expect("nobody is lost"));
}

pub fn finishing_loses_no_reply() {
    watchdog();
    for _ in 0..50 {
        let replies = Threads::new(3).settings(settings()).build(|builder| {
            let world = builder.start()?;
            world.set_state(Cell::new(0));
            let state = world.state::<Cell<i32>>().expect("just set");
            world.barrier()?;
            for to in 0..3 {
                world.invoke(to, (), |ctx, ()| {
                    ctx.invoke(ctx.from(), (), |ctx, ()| {
                        let heard = ctx.state::<Cell<i32>>().expect("set before the barrier");
                        heard.set(heard.get() + 1);
                    })
                    .expect("the caller is still there");
                })?;
            }
            world.finish()?;
            Ok::<_, Error>(state.get())
        });
        for heard in replies.expect("starts") {
            assert_eq!(heard.expect("nobody is lost"), 3);
        }
    }
}

pub fn a_read_in_a_loop_sees_a_put() {
    watchdog();
    threads(2, |world| {
        let array = world.alloc::<u64>(20).expect("fits");
        world.barrier().expect("both here");
        if world.rank() == 1 {
            std::thread::sleep(Duration::from_millis(50));
            array.put_slice(0, 0, &[7; 20]).expect("in range");
        } else {
            let mut values = [0u64; 20];
            while values[19] != 7 {
                array.get_slice(0, 0, &mut values).expect("in range");
            }
            let mut two = [0u64; 2];
            while two != [7, 7] {
                array.read(4, &mut two);
            }
        }
        world.barrier().expect("both here");
    })
    .expect("starts");
}

pub fn who_sleeps_is_woken() {
    watchdog();
    const ROUNDS: u64 = 60;
    let mut settings = settings();
    settings.spin = Some(0);
    let program = |world: &World| -> Result<Vec<Duration>> {
        let (bell, other) = (world.bell()?, 1 - world.rank());
        let mut waits = Vec::new();
        let mut wait = |round| {
            let start = Instant::now();
            bell.wait(round)?;
            waits.push(start.elapsed());
            Ok::<_, Error>(())
        };
        world.barrier()?;
        for round in 1..=ROUNDS {
            // Long enough for the other to fall asleep.
            if world.rank() == 0 {
                std::thread::sleep(Duration::from_millis(2));
                bell.ring(other)?;
                wait(round)?;
            } else {
                wait(round)?;
                std::thread::sleep(Duration::from_millis(2));
                bell.ring(other)?;
            }
            if round % 4 == 0 {
                std::thread::sleep(Duration::from_millis(2 * world.rank() as u64));
                world.barrier()?;
            }
        }
        Ok(waits)
    };
    for waits in Threads::new(2).settings(settings).run(program).expect("starts") {
        let waits = waits.expect("no rank is lost");
        // A sleeper looks up by itself after 50 ms. On a busy machine some waits take as long though it is woken.
        let short = waits.iter().filter(|took| **took < Duration::from_millis(40)).count();
        assert!(short >= waits.len() / 4, "{waits:?}");
    }
}

pub fn ranks_that_would_reach_each_other_in_different_ways_are_told() {
    watchdog();
    let (settings, arrived) = (settings(), AtomicUsize::new(0));
    let started = Threads::new(2).build(|builder| {
        let mut settings = settings.clone();
        let ways = [Transport::Auto, Transport::ShmContract];
        settings.transport = ways[arrived.fetch_add(1, Ordering::SeqCst)];
        builder.settings(settings).start().map(drop)
    });
    for outcome in started.expect("threads start") {
        let error = outcome.expect_err("they differ").to_string();
        assert!(error.contains("BELLWETHER_TRANSPORT"), "{error}");
    }
}

/// How ranks wait that may each run on the cores given for them.
fn waiting_on(cores: [&[usize]; 2]) -> Vec<String> {
    let waiting = Threads::new(2).settings(settings()).build(|builder| {
        // Which rank this is shows only later; the thread's name has it.
        let rank = usize::from(std::thread::current().name() == Some("rank 1"));
        let mut set = rustix::thread::CpuSet::new();
        cores[rank].iter().for_each(|core| set.set(*core));
        rustix::thread::sched_setaffinity(None, &set).expect("cores there are");
        let world = builder.start().expect("starts");
        let line = world.receipt().into_iter().find(|(name, _)| *name == "waiting").expect("told");
        world.barrier().expect("all enter");
        line.1
    });
    waiting.expect("runs")
}

pub fn ranks_that_are_bound_to_a_core_each_are_not_crowded() {
    let allowed = rustix::thread::sched_getaffinity(None).expect("told");
    let cores: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).take(2).collect();
    if let [first, second] = cores[..] {
        assert!(waiting_on([&[first], &[second]]).iter().all(|line| line.contains("one core for each rank")));
        let crowded = waiting_on([&[first], &[first]]);
        // They sleep often, and then a membarrier would interrupt the others.
        let words = ["more ranks than cores", "a waker uses a fence"];
        assert!(crowded.iter().all(|line| words.iter().all(|words| line.contains(words))), "{crowded:?}");
        assert!(waiting_on([&cores, &[first]]).iter().all(|line| line.contains("one core for each rank")));
    }
}

pub fn two_functions_of_one_type_are_two_handlers() {
    fn add(_: &Context<'_>, _: &[u8]) {}
    fn subtract(_: &Context<'_>, bytes: &[u8]) {
        assert!(bytes.is_empty());
    }
    let started = Threads::new(2).settings(settings()).build(|mut builder| {
        let first = std::thread::current().name() == Some("rank 0");
        let handler: fn(&Context<'_>, &[u8]) = if first { add } else { subtract };
        builder.handler("the same name", handler);
        builder.start().err()
    });
    for error in started.expect("runs") {
        assert!(matches!(error, Some(Error::RanksDiffer { what: "the handler table", .. })), "{error:?}");
    }
}
