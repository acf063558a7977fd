//! Waits for the first or for all of things of many types, and calls that answer at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bellwether_runtime::transport::sim::Config;
use bellwether_runtime::{Error, Result, Settings, Simulated, Sum, Team, Threads, Transport, Waitable, World};
use bellwether_tests::process::{command, run};
use bellwether_tests::waiting::{self, Heard};
use bellwether_tests::watchdog;

const LIMIT: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_millis(5);

fn over(transport: Transport) -> Settings {
    let mut settings = Settings::default();
    settings.transport = transport;
    settings
}

fn expect_all(what: &str, outcomes: Vec<Result<()>>) {
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        outcome.unwrap_or_else(|error| panic!("{what}, rank {rank}: {error}"));
    }
}

#[test]
fn calls_operations_bells_and_collectives_are_waited_for_in_one_list() {
    for ranks in [1, 2, 3, 5] {
        for transport in [Transport::Auto, Transport::ShmContract] {
            let what = format!("{ranks} threads, {transport:?}");
            let _guard = watchdog::guard(what.clone(), LIMIT);
            let job = Threads::new(ranks).settings(over(transport)).deadline(LIMIT);
            expect_all(&what, job.run(waiting::mix).expect("starts"));
        }
        for seed in 0..3 {
            for (kind, config) in
                [("wild", Config::new(ranks, seed).wild()), ("nodes", Config::new(ranks, seed).shared_nodes(&[2]))]
            {
                let what = format!("{ranks} simulated ranks, {kind}, seed {seed}");
                let _guard = watchdog::guard(what.clone(), LIMIT);
                expect_all(&what, Simulated::new(config).run(waiting::mix).expect("starts"));
            }
        }
    }
}

#[test]
fn processes_wait_for_calls_operations_bells_and_collectives_in_one_list() {
    for (ranks, transport) in [(2, "auto"), (3, "auto"), (3, "shm-contract")] {
        let mut program = command(env!("CARGO_BIN_EXE_waiting"));
        program.env("BELLWETHER_RANKS", ranks.to_string()).env("BELLWETHER_TRANSPORT", transport);
        assert_eq!(run(&mut program, LIMIT).expect_success().stdout, "waited\n");
    }
}

#[test]
fn what_another_world_drives_is_refused() {
    let outcomes = Threads::new(1).deadline(LIMIT).run(|world| {
        // A process that nobody launched is a job of one rank.
        let alone = World::start()?;
        let (bell, other) = (world.bell()?, alone.bell()?);
        let (mut rung, mut elsewhere) = (bell.rung(1), other.rung(1));
        bell.ring(0)?;
        for refused in [
            world.wait_any_for(SOON, &mut [&mut rung, &mut elsewhere]).map(drop),
            world.wait_every_for(SOON, &mut [&mut rung, &mut elsewhere]),
        ] {
            let Err(Error::InvalidArgument { why, .. }) = refused else { panic!("{refused:?}") };
            assert!(why.contains("item 1"), "{why}");
        }
        Ok(())
    });
    expect_all("two worlds", outcomes.expect("starts"));
}

#[test]
fn what_has_given_its_result_is_refused() {
    let program = |world: &World| {
        let (words, team) = (world.alloc::<u64>(8)?, Team::world(world)?);
        let next = (world.rank() + 1) % world.size();
        let mut call = world.call(next, (), |_, ()| 7u8)?;
        let (mut get, mut swap) = (words.get_async(next, 0), words.compare_swap_async(next, 1, 0, 1));
        let mut sum = team.allreduce_async(vec![1u64], Sum);
        let mut returned = world.operation().put_owned(&words, next, 2, vec![1; 2])?;
        // All of them are in flight, or ready.
        world.wait_every(&mut [&mut call, &mut get, &mut swap, &mut sum, &mut returned])?;
        world.block_on(&mut call)?;
        world.block_on(&mut get)?;
        world.block_on(&mut swap)?;
        world.block_on(&mut sum)?;
        world.block_on(&mut returned)?;
        let items: [&mut dyn Waitable; 5] = [&mut call, &mut get, &mut swap, &mut sum, &mut returned];
        for item in items {
            for refused in
                [world.wait_any_for(SOON, &mut [&mut *item]).map(drop), world.wait_every_for(SOON, &mut [&mut *item])]
            {
                let Err(Error::InvalidArgument { why, .. }) = refused else { panic!("{refused:?}") };
                assert!(why.contains("given its result"), "{why}");
            }
        }
        world.barrier()
    };
    for transport in [Transport::Auto, Transport::ShmContract] {
        let _guard = watchdog::guard(format!("{transport:?}"), LIMIT);
        let job = Threads::new(2).settings(over(transport)).deadline(LIMIT);
        expect_all("taken", job.run(program).expect("starts"));
    }
    for seed in 0..3 {
        let _guard = watchdog::guard(format!("seed {seed}"), LIMIT);
        expect_all("taken", Simulated::new(Config::new(2, seed).wild()).run(program).expect("starts"));
    }
}

#[test]
fn messages_that_find_no_room_are_refused_and_sent_once_when_there_is_some() {
    for transport in [Transport::Auto, Transport::ShmContract] {
        for way in 0..waiting::WAYS {
            let what = format!("{transport:?}, way {way}");
            let _guard = watchdog::guard(what.clone(), LIMIT);
            let told = AtomicBool::new(false);
            let job = Threads::new(2).settings(over(transport)).deadline(LIMIT);
            let outcomes = job.build(|mut builder| {
                let heard = Heard::new(&mut builder);
                let world = builder.start()?;
                let stay_away = || {
                    // Acquire pairs with the store of rank 0.
                    while !told.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                };
                waiting::messages_at_once(&world, &heard, way, stay_away, || told.store(true, Ordering::Release))?;
                world.finish()
            });
            expect_all(&what, outcomes.expect("starts"));
        }
    }
    for seed in 0..2 {
        for way in 0..waiting::WAYS {
            let what = format!("simulated, seed {seed}, way {way}");
            let _guard = watchdog::guard(what.clone(), LIMIT);
            let outcomes = Simulated::new(Config::new(2, seed).wild()).build(|mut builder| {
                let heard = Heard::new(&mut builder);
                let world = builder.start()?;
                waiting::messages_at_once(&world, &heard, way, || world.sleep(Duration::from_millis(10)), || ())?;
                world.finish()
            });
            expect_all(&what, outcomes.expect("starts"));
        }
    }
}

/// A network that takes little, and a target that serves nothing while it is away; `kept` bytes are kept at most.
fn narrow(seed: u64, kept: usize) -> (Config, Settings) {
    let mut config = Config::new(2, seed).wild();
    (config.flow.slots, config.flow.credits) = (1, 1);
    config.served_asleep = false;
    let mut settings = Settings::default();
    settings.message_memory = kept;
    (config, settings)
}

#[test]
fn rings_that_find_no_room_are_refused() {
    for seed in 0..2 {
        for way in 0..waiting::RING_WAYS {
            let what = format!("seed {seed}, way {way}");
            let _guard = watchdog::guard(what.clone(), LIMIT);
            let (config, settings) = narrow(seed, 4 << 10);
            let program = |world: &World| waiting::rings_at_once(world, way, || world.sleep(Duration::from_millis(10)));
            expect_all(&what, Simulated::new(config).settings(settings).run(program).expect("starts"));
        }
    }
}

#[test]
fn what_a_context_keeps_of_a_put_comes_before_all_that_follows() {
    for seed in 0..3 {
        for after in 0..8 {
            let what = format!("seed {seed}, then {after}");
            let _guard = watchdog::guard(what.clone(), LIMIT);
            let (config, settings) = narrow(seed, 4 << 10);
            let program = |world: &World| waiting::what_is_kept_comes_first(world, after);
            expect_all(&what, Simulated::new(config).settings(settings).run(program).expect("starts"));
        }
    }
}

#[test]
fn what_a_context_keeps_for_a_rank_that_dies_fails_the_next_flush() {
    for seed in 0..4 {
        for flushes in [[true, true], [true, false], [false, true], [false, false]] {
            let what = format!("seed {seed}, {flushes:?}");
            let _guard = watchdog::guard(what.clone(), LIMIT);
            let (config, settings) = narrow(seed, 4 << 10);
            let job = Simulated::new(config).settings(settings);
            let program = |world: &World| waiting::kept_for_a_dead_rank(world, flushes, || job.network().kill(1));
            let [by_contexts, killed] = &job.run(program).expect("starts")[..] else { panic!("two ranks") };
            assert!(by_contexts.is_ok() && killed.is_err(), "{what}: {by_contexts:?}, {killed:?}");
        }
    }
}

#[test]
fn what_a_context_keeps_for_a_rank_that_leaves_is_no_error() {
    for seed in 0..4 {
        let what = format!("seed {seed}");
        let _guard = watchdog::guard(what.clone(), LIMIT);
        let (mut config, settings) = narrow(seed, 4 << 10);
        // Transfers that the network had begun before the rank left are completed.
        config.served_asleep = true;
        let job = Simulated::new(config).settings(settings);
        expect_all(&what, job.run(waiting::kept_for_a_rank_that_left).expect("starts"));
    }
}

#[test]
fn puts_that_find_no_room_are_refused_whole() {
    const KEPT: usize = 16 << 10;
    for seed in 0..2 {
        for way in 0..waiting::PUT_WAYS {
            let what = format!("seed {seed}, way {way}");
            let _guard = watchdog::guard(what.clone(), LIMIT);
            let (config, settings) = narrow(seed, KEPT);
            let program =
                |world: &World| waiting::puts_at_once(world, KEPT, way, || world.sleep(Duration::from_millis(10)));
            expect_all(&what, Simulated::new(config).settings(settings).run(program).expect("starts"));
        }
    }
}

#[test]
fn long_puts_that_find_no_room_are_refused_whole() {
    for seed in 0..2 {
        for way in 0..waiting::LONG_WAYS {
            let what = format!("seed {seed}, way {way}");
            let _guard = watchdog::guard(what.clone(), LIMIT);
            let (config, settings) = narrow(seed, 4 << 10);
            let program = |world: &World| waiting::long_puts_at_once(world, way);
            expect_all(&what, Simulated::new(config).settings(settings).run(program).expect("starts"));
        }
    }
}

#[test]
fn puts_that_answer_at_once_take_no_virtual_time() {
    for slots in [1, 64] {
        let what = format!("{slots} slots");
        let _guard = watchdog::guard(what.clone(), LIMIT);
        let mut config = Config::new(2, 0);
        config.flow.slots = slots;
        let outcomes = Simulated::new(config).run(waiting::first_puts_take_no_time);
        expect_all(&what, outcomes.expect("starts"));
    }
}

#[test]
fn w19_room_for_what_was_refused_is_an_event() {
    const KEPT: usize = 16 << 10;
    // In a line of a lane, and in message memory.
    for len in [8, 1000] {
        for transport in [Transport::Auto, Transport::Tcp] {
            let what = format!("{transport:?}, {len} bytes");
            let _guard = watchdog::guard(what.clone(), LIMIT);
            let mut settings = over(transport);
            settings.message_memory = KEPT;
            let back = AtomicBool::new(false);
            let stays_away = || {
                while !back.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            let outcomes = Threads::new(2).settings(settings).deadline(LIMIT).build(|mut builder| {
                let handlers = waiting::takers(&mut builder);
                let world = builder.start()?;
                let comes_back = || back.store(true, Ordering::Release);
                waiting::room_is_announced(&world, handlers, (len, true), stays_away, comes_back)
            });
            expect_all(&what, outcomes.expect("starts"));
        }
        let _guard = watchdog::guard(format!("simulated, {len} bytes"), LIMIT);
        let (config, settings) = narrow(1, KEPT);
        let outcomes = Simulated::new(config).settings(settings).build(|mut builder| {
            let handlers = waiting::takers(&mut builder);
            let world = builder.start()?;
            let stays_away = || world.sleep(Duration::from_millis(10));
            waiting::room_is_announced(&world, handlers, (len, false), stays_away, || {})
        });
        expect_all("simulated", outcomes.expect("starts"));
    }
}
