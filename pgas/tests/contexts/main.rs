//! Contexts: several threads of a rank that communicate, each by itself.

mod messages;
#[path = "../worlds/mod.rs"]
mod worlds;

use std::cell::Cell;
use std::time::Duration;

use bellwether::sim::{self, Config};
use bellwether::{
    Context, Counter, Error, GlobalArray, Layout, Loss, Result, Settings, Simulated, ThreadArray, ThreadContext,
    ThreadPosted, Threads, World,
};
use bellwether_runtime::Transport;
use bellwether_runtime::transport::Memory;
use bellwether_tests::watchdog;
use worlds::{LIMIT, expect_all, on_threads};

/// Whether a context may leave the thread of its world here.
fn travels(world: &World) -> bool {
    world.settings().lane_depth != Some(1)
}

/// Runs `work` with each of two contexts: on a thread for each, or, in virtual time, one after the other.
fn by_two(world: &World, work: impl Fn(usize, &ThreadContext) -> Result<()> + Sync) -> Result<()> {
    let contexts = [world.context()?, world.context()?];
    if !travels(world) {
        return contexts.iter().enumerate().try_for_each(|(i, context)| work(i, context));
    }
    std::thread::scope(|scope| {
        let work = &work;
        let threads = contexts.into_iter().enumerate().map(|(i, context)| scope.spawn(move || work(i, &context)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })
}

/// Simulated networks of every kind.
fn networks(ranks: usize, seed: u64) -> Vec<(&'static str, Config)> {
    let plain = Config::new(ranks, seed);
    let wild = plain.clone().wild();
    vec![
        ("plain", plain.clone()),
        ("wild", wild.clone()),
        ("tiny", plain.clone().tiny()),
        ("unserved", Config { served_asleep: false, ..wild.clone() }),
        ("at once", Config { memory: Memory::Direct, ..wild.clone() }),
        ("posted", Config { memory: Memory::Posted, ..wild.clone() }),
        ("shared nodes", wild.clone().shared_nodes(&[2])),
        ("shared nodes, posted", Config { memory: Memory::Posted, ..wild.shared_nodes(&[2]) }),
    ]
}

fn on_networks(ranks: &[usize], body: impl Fn(&World) -> Result<()> + Sync) {
    for &ranks in ranks {
        sim::check("contexts", if std::env::var_os("ROWS_FULL").is_some() { 2 } else { 1 }, |seed| {
            for (network, config) in networks(ranks, seed) {
                let what = format!("{network}, {ranks} simulated ranks, seed {seed}");
                let _guard = watchdog::guard(what.clone(), LIMIT);
                expect_all(Simulated::new(config).run(&body).expect("the job starts"), &what);
            }
        });
    }
}

fn over(transport: Transport) -> Settings {
    let mut settings = Settings::default();
    settings.transport = transport;
    settings
}

/// With `BELLWETHER_TRANSPORT=verbs` in the environment a device only: in an emulated machine the others would take long.
fn transports() -> &'static [Transport] {
    let by_device = std::env::var_os("BELLWETHER_TRANSPORT").is_some_and(|transport| transport == "verbs");
    if by_device { &[Transport::Verbs] } else { &[Transport::Auto, Transport::ShmContract] }
}

fn everywhere(body: impl Fn(&World) -> Result<()> + Sync) {
    for transport in transports() {
        on_threads(&over(*transport), &[1, 2, 3], &body);
    }
    if transports() == [Transport::Verbs] {
        return;
    }
    on_networks(&[1, 2, 3], &body);
}

/// Words of one context at each rank.
const WORDS: usize = 24;

/// Every operation, by two contexts at once, of each rank at each.
fn every_operation(world: &World) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let words = world.alloc::<u64>(2 * size * WORDS)?;
    let small = world.alloc::<i32>(4)?;
    let counts = world.alloc::<u64>(2)?;
    let bell = world.bell()?;
    world.barrier()?;
    let (array, narrow, shared, gong) =
        (words.for_threads(), small.for_threads(), counts.for_threads(), bell.for_threads());
    by_two(world, |i, context| {
        assert_eq!((context.rank(), context.size(), array.len()), (rank, size, 2 * size * WORDS));
        let first = (2 * rank + i) * WORDS;
        let value = |at: usize| (1000 * (first + at)) as u64;
        for to in 0..size {
            context.put(&array, to, first, value(0))?;
            context.put_slice(&array, to, first + 1, &[value(1), value(2), value(3)])?;
            context.fence()?;
            let put = context.put_slice_async(&array, to, first + 4, &[value(4), value(5)]);
            context.put_bell(&array, to, first + 6, value(6), &gong)?;
            context.put_slice_bell(&array, to, first + 7, &[value(7)], &gong)?;
            context.ring(&gong, to)?;
            put.wait()?;
            context.flush(to)?;
            assert_eq!(context.get(&array, to, first + 6)?, value(6));
            let mut read = [0; 8];
            context.get_slice(&array, to, first, &mut read)?;
            assert_eq!(read, std::array::from_fn(value));
            let later = context.get_slice_async(&array, to, first, 8);
            assert_eq!(later.wait()?, read);
            atomics(context, &array, to, first + 8)?;
            context.fetch_add(&shared, to, 0, 3)?;
            context.fetch_add(&narrow, to, 1, -2)?;
            let adds: Vec<_> = (0..9).map(|_| context.fetch_add_async(&shared, to, 1, 1)).collect();
            drop(context.fetch_add_async(&shared, to, 0, 1));
            adds.into_iter().try_for_each(|add| add.wait().map(drop))?;
            loop {
                let before = context.get(&narrow, to, 2)?;
                if context.compare_swap(&narrow, to, 2, before, before + 5)? == before {
                    break;
                }
            }
        }
        wrong_arguments(context, &array);
        context.flush_all()?;
        context.poll().map(drop)
    })?;
    // The world's own rings count, too.
    (0..size).try_for_each(|to| bell.ring(to))?;
    assert_eq!(bell.wait(7 * size as u64)?, 7 * size as u64);
    world.barrier()?;
    for first in (0..2 * size * WORDS).step_by(WORDS) {
        assert!((0..8).all(|at| words.load(first + at) == 1000 * (first + at) as u64), "from {first}");
    }
    assert_eq!([counts.load(0), counts.load(1)], [8 * size as u64, 18 * size as u64]);
    assert_eq!([small.load(1), small.load(2), small.load(3)], [-4 * size as i32, 10 * size as i32, 0]);
    world.barrier()
}

fn atomics(context: &ThreadContext, array: &ThreadArray<'_, u64>, to: usize, at: usize) -> Result<()> {
    assert_eq!(context.fetch_add(array, to, at, 0b1100)?, 0);
    assert_eq!(context.fetch_and(array, to, at, 0b0110)?, 0b1100);
    assert_eq!(context.fetch_or(array, to, at, 0b0011)?, 0b0100);
    assert_eq!(context.fetch_xor(array, to, at, 0b0101)?, 0b0111);
    assert_eq!(context.swap(array, to, at, 9)?, 0b0010);
    assert_eq!(context.compare_swap(array, to, at, 8, 1)?, 9);
    assert_eq!(context.compare_swap_async(array, to, at, 9, 1).wait()?, 9);
    let mut swap = context.swap_async(array, to, at, 2);
    while !swap.is_done() {}
    assert_eq!(swap.wait()?, 1);
    assert_eq!(context.fetch_and_async(array, to, at, 3).wait()?, 2);
    assert_eq!(context.fetch_or_async(array, to, at, 4).wait()?, 2);
    assert_eq!(context.fetch_xor_async(array, to, at, 6).wait()?, 6);
    assert_eq!(context.get(array, to, at)?, 0);
    Ok(())
}

fn wrong_arguments(context: &ThreadContext, array: &ThreadArray<'_, u64>) {
    let (size, len) = (context.size(), array.len());
    let errors = [
        context.put(array, size, 0, 1).map(drop),
        context.get(array, usize::MAX, 0).map(drop),
        context.fetch_add(array, size, 0, 1).map(drop),
        context.get_slice_async(array, size, 0, 1).wait().map(drop),
        context.swap_async(array, size, 0, 1).wait().map(drop),
        context.flush(size),
    ];
    assert!(errors.iter().all(|error| matches!(error, Err(Error::RankOutOfRange { .. }))), "{errors:?}");
    let errors = [
        context.put(array, 0, len, 1).map(drop),
        context.put_slice(array, 0, len - 1, &[1, 2]),
        context.get_slice(array, 0, usize::MAX, &mut [0, 0]),
        context.put_slice_async(array, 0, len, &[1]).wait(),
        context.compare_swap(array, 0, len, 0, 1).map(drop),
    ];
    assert!(errors.iter().all(|error| matches!(error, Err(Error::OutOfBounds { .. }))), "{errors:?}");
}

#[test]
fn two_threads_of_each_rank_do_every_operation() {
    everywhere(every_operation);
}

#[bellwether::test(ranks = [1, 2, 3], launch = "processes", deadline = "60s")]
fn two_threads_of_each_process_do_every_operation(world: &World) -> Result<()> {
    every_operation(world)
}

/// Long transfers go in many requests.
fn long_transfers(world: &World) -> Result<()> {
    const LONG: usize = 40_000;
    let words = world.alloc::<u32>(2 * LONG)?;
    let array = words.for_threads();
    let next = (world.rank() + 1) % world.size();
    by_two(world, |i, context| {
        let values: Vec<u32> = (0..LONG as u32).map(|at| at * 7 + i as u32).collect();
        context.put_slice(&array, next, i * LONG, &values)?;
        context.flush(next)?;
        let mut read = vec![0; LONG];
        context.get_slice(&array, next, i * LONG, &mut read)?;
        assert!(read == values);
        assert!(context.get_slice_async(&array, next, i * LONG, LONG).wait()? == values);
        Ok(())
    })?;
    world.barrier()
}

#[test]
fn long_transfers_go_in_many_requests() {
    for transport in transports() {
        on_threads(&over(*transport), &[2], long_transfers);
    }
    for memory in [Memory::Emulated, Memory::Direct, Memory::Posted] {
        let _guard = watchdog::guard("long transfers", LIMIT);
        let config = Config { memory, ..Config::new(2, 5) };
        expect_all(Simulated::new(config).run(long_transfers).expect("the job starts"), "simulated");
    }
}

/// Open descriptors, bytes of memory, and mappings.
fn footprint() -> (usize, usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("Linux").count();
    let mappings = std::fs::read_to_string("/proc/self/maps").expect("Linux").lines().count();
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    (descriptors, pages * 4096, mappings)
}

/// Makes and drops so many contexts, each of which puts, and sends a short message and a longer one.
fn come_and_go(world: &World, contexts: usize) -> Result<()> {
    let numbers = world.alloc::<u64>(world.size())?;
    let array = numbers.for_threads();
    world.set_state(Cell::new(0u64));
    world.barrier()?;
    for number in 1..=contexts as u64 {
        let context = world.context()?;
        for to in 0..world.size() {
            context.put(&array, to, world.rank(), number)?;
            context.invoke_plain(to, number, |at, _| add(at, 1))?;
            context.invoke(to, (number, [0u64; 16]), |at, _| add(at, 1))?;
        }
    }
    let sum = world.state::<Cell<u64>>().expect("set above");
    world.wait_until(|| sum.get() == 2 * (world.size() * contexts) as u64)?;
    world.barrier()?;
    assert!((0..world.size()).all(|from| numbers.load(from) == contexts as u64));
    world.barrier()
}

/// In a handler.
fn add(at: &Context<'_>, count: u64) {
    let sum = at.state::<Cell<u64>>().expect("set before the barrier");
    sum.set(sum.get() + count);
}

#[test]
fn ten_thousand_contexts_leave_nothing_behind() {
    // In a process of its own, so that what other tests do is not counted.
    const ALONE: (&str, &str) = ("BELLWETHER_TEST_FOOTPRINT", "1");
    if std::env::var_os(ALONE.0).is_none() {
        let again = ["--exact", "ten_thousand_contexts_leave_nothing_behind", "--test-threads", "1"];
        let mut test = std::process::Command::new(std::env::current_exe().expect("a running test has a file"));
        let outcome = test.args(again).env(ALONE.0, ALONE.1).output().expect("it starts");
        assert!(outcome.status.success(), "{outcome:?}");
        return;
    }
    for transport in [Transport::Auto, Transport::ShmContract] {
        on_threads(&over(transport), &[2], |world| {
            // Peers make none: nothing is agreed.
            come_and_go(world, 1000)?;
            let before = footprint();
            come_and_go(world, 10_000)?;
            let after = footprint();
            // The ranks are threads of one process, and each has its look.
            assert!(after.0 <= before.0 + 4, "{} descriptors, then {}", before.0, after.0);
            assert!(after.1 < before.1 + (4 << 20), "{} bytes, then {}", before.1, after.1);
            // The allocator may map a few more.
            assert!(after.2 <= before.2 + 16, "{} mappings, then {}", before.2, after.2);
            world.barrier()
        });
    }
    on_networks(&[2], |world| come_and_go(world, 200));
}

/// Also over a device, where a context has queue pairs of its own.
#[test]
fn fifty_contexts_come_and_go() {
    for transport in transports() {
        on_threads(&over(*transport), &[2], |world| come_and_go(world, 50));
    }
}

#[test]
fn one_rank_alone_makes_contexts() {
    everywhere(|world| {
        let numbers = world.alloc::<u64>(1)?;
        if world.rank() == 0 {
            let context = world.context()?;
            context.put(&numbers.for_threads(), world.size() - 1, 0, 7)?;
            context.flush_all()?;
        }
        world.barrier()?;
        assert_eq!(numbers.load(0), if world.rank() + 1 == world.size() { 7 } else { 0 });
        world.barrier()
    });
}

#[test]
fn a_context_does_not_wait_for_another() {
    let _guard = watchdog::guard("a slow peer", LIMIT);
    const APART: u64 = 50_000_000;
    let job = Simulated::new(Config::new(3, 3));
    let outcomes = job.run(|world| {
        let numbers = world.alloc::<u64>(1)?;
        let array = numbers.for_threads();
        world.barrier()?;
        if world.rank() == 0 {
            let (slow, quick) = (world.context()?, world.context()?);
            // The first operation at a rank learns where its memory is.
            slow.put_slice_async(&array, 2, 0, &[4]).wait()?;
            quick.put_slice_async(&array, 1, 0, &[4]).wait()?;
            job.network().partition(&[2], APART);
            let begin = world.elapsed();
            let mut stuck = slow.put_slice_async(&array, 2, 0, &[5]);
            quick.put(&array, 1, 0, 6)?;
            quick.flush_all()?;
            assert_eq!(quick.get(&array, 1, 0)?, 6);
            assert!(world.elapsed() - begin < Duration::from_nanos(APART), "{:?}", world.elapsed() - begin);
            assert!(!stuck.is_done());
            stuck.wait()?;
            assert!(world.elapsed() - begin >= Duration::from_nanos(APART));
        }
        world.barrier()?;
        assert_eq!(numbers.load(0), [0, 6, 5][world.rank()]);
        world.barrier()
    });
    expect_all(outcomes.expect("the job starts"), "a slow peer");
}

#[test]
fn a_death_ends_the_wait_of_every_context() {
    for memory in [Memory::Emulated, Memory::Posted] {
        let _guard = watchdog::guard("a death", LIMIT);
        let job = Simulated::new(Config { memory, ..Config::new(3, 4) });
        let outcomes = job.run(|world: &World| -> Result<()> {
            let numbers = world.alloc::<u64>(1)?;
            let array = numbers.for_threads();
            world.barrier()?;
            if world.rank() != 0 {
                let gone = world.wait_until(|| false);
                assert!(matches!(gone, Err(Error::PeerLost { .. })), "{gone:?}");
                return Ok(());
            }
            let contexts = [world.context()?, world.context()?];
            // One waits for the rank that dies, if it can still be asked, and one for another rank that never answers.
            job.network().partition(&[2], u64::MAX / 4);
            job.network().kill(1);
            for (to, context) in [1, 2].into_iter().zip(&contexts) {
                let lost = (0..).find_map(|value| {
                    world.sleep(Duration::from_nanos(100));
                    context.put(&array, to, 0, value).and_then(|()| context.flush(to)).err()
                });
                assert!(matches!(lost, Some(Error::PeerLost { rank: 1, .. })), "to {to}: {lost:?}");
                let lost = context.get_slice_async(&array, to, 0, 1).wait();
                assert!(matches!(lost, Err(Error::PeerLost { .. })), "from {to}: {lost:?}");
            }
            Ok(())
        });
        let outcomes = outcomes.expect("the job starts");
        assert!(outcomes[0].is_ok(), "{outcomes:?}");
    }
}

#[test]
fn a_rank_that_is_gone_is_an_error_of_a_put_by_the_contract() {
    let _guard = watchdog::guard("a rank that leaves", LIMIT);
    let job = Threads::new(2).settings(over(Transport::ShmContract)).deadline(LIMIT);
    let outcomes = job.run(|world| {
        let numbers = world.alloc::<u64>(1)?;
        world.barrier()?;
        if world.rank() == 1 {
            return Ok(());
        }
        let context = world.context()?;
        let array = numbers.for_threads();
        std::thread::scope(|scope| {
            let lost = scope.spawn(move || (0..).find_map(|value| context.put(&array, 1, 0, value).err()));
            let lost = lost.join().expect("does not panic");
            assert!(matches!(lost, Some(Error::PeerLost { rank: 1, cause: Loss::Left, .. })), "{lost:?}");
        });
        Ok(())
    });
    expect_all(outcomes.expect("the job starts"), "a rank that leaves");
}

/// What a rank waits for happens only when a context of it that nobody uses now has sent all of a put.
#[test]
fn waits_make_progress_for_idle_contexts() {
    everywhere(|world| {
        let (rank, size) = (world.rank(), world.size());
        let len = if world.largest_message() < 1000 { 200 } else { 50_000 };
        let numbers = world.alloc::<u64>(len)?;
        let bells = [world.bell()?, world.bell()?];
        let (array, gongs) = (numbers.for_threads(), [bells[0].for_threads(), bells[1].for_threads()]);
        world.set_state(Counter::new());
        let answers = world.state::<Counter>().expect("just set");
        let (idle, waiting) = (world.context()?, world.context()?);
        world.barrier()?;
        for round in 0..2 {
            if rank == 0 {
                idle.put_slice(&array, 1 % size, 0, &vec![round + 1; len])?;
                idle.ring(&gongs[round as usize], 1 % size)?;
            }
            if rank == 1 % size {
                bells[round as usize].wait(1)?;
                assert!((0..len).all(|at| numbers.load(at) == round + 1), "a bell overtook a put");
                world.invoke(0, (), |at, ()| at.state::<Counter>().expect("set before the barrier").add(1))?;
            }
            if rank == 0 && round == 0 {
                world.wait_until(|| answers.value() == 1)?;
            } else if rank == 0 {
                waiting.wait_counter(&answers, 2)?;
            }
        }
        world.barrier()
    });
}

#[test]
fn what_is_in_flight_does_not_reach_memory_that_was_freed() {
    on_networks(&[2, 3], |world| {
        let next = (world.rank() + 1) % world.size();
        let context = world.context()?;
        for round in 0..4 {
            let old = world.alloc::<u64>(64)?;
            let place = old.offset();
            context.put_slice(&old.for_threads(), next, 0, &[u64::MAX; 64])?;
            let add = context.fetch_add_async(&old.for_threads(), next, 0, 1);
            drop(add);
            drop(old);
            // One that is dropped with something in flight, too.
            let new = world.alloc::<u64>(64)?;
            assert_eq!(new.offset(), place, "the freed memory is not used again, in round {round}");
            let mut read = [1; 64];
            new.read(0, &mut read);
            assert_eq!(read, [0; 64]);
            world.sleep(Duration::from_millis(1));
            world.poll()?;
            new.read(0, &mut read);
            assert_eq!(read, [0; 64], "what came late, in round {round}");
            world.barrier()?;
        }
        Ok(())
    });
}

#[test]
fn what_is_in_flight_is_there_when_a_phase_has_changed() {
    on_networks(&[2, 3], |world| {
        let size = world.size();
        let mut array = GlobalArray::<u64, 1>::new(world, Layout::block([8 * size], size)?)?;
        let context = world.context()?;
        for round in 1..4 {
            let shared = array.share(world)?;
            let handle = shared.for_threads();
            let next = (world.rank() + 1) % size;
            for i in 0..8 {
                handle.put(&context, 8 * next + i, round)?;
            }
            handle.fetch_add(&context, 8 * next, 100)?;
            array = shared.localize(world)?;
            let mut expected = [round; 8];
            expected[0] += 100;
            assert_eq!(array.local(), expected);
        }
        world.barrier()
    });
}

#[test]
fn a_global_array_is_written_by_two_threads() {
    everywhere(|world| {
        let size = world.size();
        let layout = Layout::block([4 * size, 6], size)?;
        let shared = GlobalArray::<u64, 2>::new(world, layout)?.share(world)?;
        let array = shared.for_threads();
        by_two(world, |i, context| {
            for row in (0..4 * size).filter(|row| (row + world_of(context)) % 2 == i) {
                for column in 0..6 {
                    array.fetch_add(context, [row, column], (row * 10 + column) as u64)?;
                }
                assert!(array.get(context, [row, 0])? >= 10 * row as u64);
            }
            assert!(matches!(array.get(context, [4 * size, 0]), Err(Error::InvalidArgument { .. })));
            context.flush_all()
        })?;
        let array = shared.localize(world)?;
        assert!(array.iter().all(|([row, column], x)| *x == (size * (row * 10 + column)) as u64));
        world.barrier()
    });

    fn world_of(context: &ThreadContext) -> usize {
        context.rank()
    }
}

#[test]
fn a_fence_of_a_context_orders_its_puts() {
    const ROUNDS: u64 = 60;
    let program = |world: &World| {
        let words = world.alloc::<u64>(2)?;
        let (array, context, next) = (words.for_threads(), world.context()?, (world.rank() + 1) % world.size());
        world.barrier()?;
        let check = || {
            let later = words.load(1);
            assert!(words.load(0) >= later, "round {later} came before what was put before it");
            later
        };
        for round in 1..=ROUNDS {
            context.put(&array, next, 0, round)?;
            context.fence()?;
            context.put(&array, next, 1, round)?;
            check();
        }
        while check() < ROUNDS {
            context.poll()?;
            world.poll()?;
        }
        world.barrier()
    };
    if transports() == [Transport::Verbs] {
        return on_threads(&over(Transport::Verbs), &[2], program);
    }
    on_threads(&over(Transport::Tcp), &[2], program);
    on_networks(&[2, 3], program);
}

#[test]
fn a_put_of_a_context_ends_a_wait() {
    on_networks(&[2, 3], |world| {
        let words = world.alloc::<u64>(1)?;
        let (array, context, next) = (words.for_threads(), world.context()?, (world.rank() + 1) % world.size());
        world.barrier()?;
        // From rank to rank: while one puts, all others wait, and nothing else comes there.
        for round in 1..=6 {
            if world.rank() != 0 {
                world.wait_until(|| words.load(0) == round)?;
            }
            context.put(&array, next, 0, round)?;
            if world.rank() == 0 {
                world.wait_until(|| words.load(0) == round)?;
            }
        }
        world.barrier()
    });
}

#[test]
fn in_virtual_time_a_context_stays_on_its_thread() {
    let _guard = watchdog::guard("another thread", LIMIT);
    let outcomes = Simulated::new(Config::new(2, 1)).run(|world| {
        let numbers = world.alloc::<u64>(1)?;
        let array = numbers.for_threads();
        let context = world.context()?;
        context.put(&array, 1 - world.rank(), 0, 5)?;
        // Dropped there with something in flight: the world's thread waits for that.
        let refused = std::thread::scope(|scope| {
            let put = scope.spawn(move || context.put(&array, 1 - context.rank(), 0, 6));
            put.join().expect("does not panic")
        });
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
        drop(numbers);
        let fresh = world.alloc::<u64>(1)?;
        world.sleep(Duration::from_millis(1));
        world.poll()?;
        assert_eq!(fresh.load(0), 0);
        world.barrier()
    });
    expect_all(outcomes.expect("the job starts"), "another thread");
}

#[test]
fn handles_belong_to_their_rank() {
    let _guard = watchdog::guard("two worlds", LIMIT);
    on_threads(&over(Transport::ShmContract), &[2], |world| {
        let numbers = world.alloc::<u64>(1)?;
        let bell = world.bell()?;
        let other = std::thread::scope(|scope| {
            let (array, bell) = (numbers.for_threads(), bell.for_threads());
            let alone = scope.spawn(move || {
                bellwether::threads(1, move |stranger| {
                    let context = stranger.context()?;
                    Ok([context.ring(&bell, 0), context.put(&array, 0, 0, 1)])
                })
            });
            alone.join().expect("does not panic").expect("starts").remove(0)
        });
        let [ring, put] = other?;
        assert!(matches!(ring, Err(Error::InvalidArgument { .. })), "{ring:?}");
        // Where memory is mapped a put needs no context: it is the same memory.
        assert!(world.rank() == 0 || matches!(put, Err(Error::InvalidArgument { .. })), "{put:?}");
        world.barrier()
    });
}

#[test]
fn a_handler_may_not_wait_with_a_context() {
    let _guard = watchdog::guard("a handler", LIMIT);
    let outcomes = Simulated::new(Config::new(2, 9)).build(|mut builder| {
        let told = std::rc::Rc::new(std::cell::RefCell::new(None));
        let (tell, context) =
            (std::rc::Rc::clone(&told), std::rc::Rc::new(std::cell::OnceCell::<ThreadContext>::new()));
        let lent = std::rc::Rc::clone(&context);
        let handler = builder.handler("waits", move |_, _| {
            let context = lent.get().expect("set before the barrier");
            *tell.borrow_mut() = Some(context.flush_all());
        });
        let world = builder.start()?;
        let numbers = world.alloc::<u64>(1)?;
        assert!(context.set(world.context()?).is_ok());
        world.barrier()?;
        world.send(1 - world.rank(), handler, &[])?;
        world.wait_until(|| {
            // In flight when the message is delivered.
            let put = context.get().expect("set").put(&numbers.for_threads(), 1 - world.rank(), 0, 1);
            put.is_err() || told.borrow().is_some()
        })?;
        let refused = told.take();
        assert!(matches!(refused, Some(Err(Error::InsideHandler { .. }) | Ok(()))), "{refused:?}");
        world.barrier()
    });
    expect_all(outcomes.expect("the job starts"), "a handler");
}

#[test]
fn a_thread_with_a_context_ends_a_wait_that_no_other_rank_could() {
    on_threads(&Settings::default(), &[2], |world| {
        let bell = world.bell()?;
        if world.rank() == 1 {
            return Ok(());
        }
        let (context, ring) = (world.context()?, bell.for_threads());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // The other rank has left, and this one has looked for what could end its wait.
                std::thread::sleep(Duration::from_millis(700));
                context.ring(&ring, 0).expect("rings");
            });
            bell.wait(1).map(drop)
        })
    });
}

#[test]
fn a_handler_finds_the_context_free_that_its_rank_waits_with() {
    let _guard = watchdog::guard("a handler within a wait", LIMIT);
    let outcomes = Simulated::new(Config::new(2, 9)).build(|mut builder| {
        let context = std::rc::Rc::new(std::cell::OnceCell::<ThreadContext>::new());
        let (lent, ran) = (std::rc::Rc::clone(&context), std::rc::Rc::new(std::cell::Cell::new(0)));
        let count = std::rc::Rc::clone(&ran);
        let handler = builder.handler("uses it", move |_, _| {
            let context = lent.get().expect("set before the barrier");
            let _ = context.fence();
            count.set(count.get() + 1);
        });
        let world = builder.start()?;
        let numbers = world.alloc::<u64>(8)?;
        assert!(context.set(world.context()?).is_ok());
        world.barrier()?;
        let (other, array) = (1 - world.rank(), numbers.for_threads());
        for _ in 0..20 {
            world.send(other, handler, &[])?;
            let values = context.get().expect("set").get_slice_async(&array, other, 0, 8).wait()?;
            assert_eq!(values, [0; 8]);
        }
        world.wait_until(|| ran.get() == 20)?;
        world.barrier()
    });
    expect_all(outcomes.expect("the job starts"), "a handler");
}

#[test]
fn contexts_and_futures_go_to_other_threads() {
    fn sends<T: Send>() {}
    fn shares<T: Sync>() {}
    sends::<ThreadContext>();
    sends::<ThreadPosted<'_, u64>>();
    sends::<ThreadArray<'_, u64>>();
    shares::<ThreadArray<'_, u64>>();
    sends::<bellwether::ThreadBell<'_>>();
    shares::<bellwether::array::ThreadGlobalArray<'_, u64, 2>>();
}
