//! Worlds on a simulated network: the same programs, with delays, reordering, few credits, partitions and deaths.

mod broken;
mod exchanges;
mod islands;
mod many;
mod reductions;
mod segments;
mod survivors;

use std::time::Duration;

use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::transport::{Memory, Order};
use bellwether_runtime::{Error, Loss, Result, Simulated, Team, World};

/// Ends the test program if it is still there after twenty minutes: something hangs. Four thousand ranks take four minutes.
fn watchdog() {
    static START: std::sync::Once = std::sync::Once::new();
    START.call_once(|| {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(1200));
            eprintln!("a test of this file hangs");
            std::process::abort();
        });
    });
}

/// Whether all sizes and seeds are asked for (`ROWS_FULL`, which `ci/test full` sets), or some of each kind.
fn is_full() -> bool {
    std::env::var_os("ROWS_FULL").is_some()
}

/// A job that is not allowed to hang.
fn job(config: Config) -> Simulated {
    watchdog();
    Simulated::new(config)
}

/// Networks to run a program on, from a tame one to the worst.
fn networks(ranks: usize, seed: u64) -> Vec<(&'static str, Config)> {
    let plain = Config::new(ranks, seed);
    let mut narrow = plain.clone().wild();
    narrow.flow.slots = 1;
    narrow.flow.credits = 1;
    narrow.flow.fragment = 8;
    let unserved = Config { served_asleep: false, ..plain.clone().wild() };
    let native = Config { memory: Memory::Direct, ..plain.clone().wild() };
    vec![
        ("plain", plain.clone()),
        ("wild", plain.clone().wild()),
        ("narrow", narrow),
        ("tiny", plain.clone().tiny()),
        ("unserved", unserved),
        ("native", native),
        ("posted", Config { memory: Memory::Posted, ..plain.clone().wild() }),
        ("shared nodes", plain.clone().wild().shared_nodes(&[2])),
        ("shared nodes in turn", Config { dealt: 2, ..plain.clone().wild().shared_nodes(&[]) }),
        ("shared nodes, posted", Config { memory: Memory::Posted, ..plain.wild().shared_nodes(&[1, 3]) }),
    ]
}

/// Runs `program` on each network with each of some seeds.
fn everywhere(name: &str, ranks: &[usize], program: impl Fn(&World) -> Result<()> + Sync) {
    for ranks in ranks {
        check(name, if is_full() { 3 } else { 1 }, |seed| {
            for (network, config) in networks(*ranks, seed) {
                let results = job(config).run(&program).expect("the job runs");
                for (rank, result) in results.into_iter().enumerate() {
                    result
                        .unwrap_or_else(|error| panic!("{network}, {ranks} ranks, seed {seed}, rank {rank}: {error}"));
                }
            }
        });
    }
}

#[test]
fn who_sees_a_ring_sees_the_data() {
    everywhere("who_sees_a_ring_sees_the_data", &[1, 2, 3, 5], |world| {
        let (me, n) = (world.rank(), world.size());
        let data = world.alloc::<u64>(n * 100)?;
        let bell = world.bell()?;
        for round in 1..=5u64 {
            for to in 0..n {
                let values: Vec<u64> = (0..100).map(|i| round * 1000 + i).collect();
                data.put_slice_bell(to, me * 100, &values, &bell)?;
            }
            bell.wait(round * n as u64)?;
            for from in 0..n {
                for i in [0, 50, 99] {
                    assert_eq!(data.load(from * 100 + i), round * 1000 + i as u64);
                }
            }
            world.barrier()?;
        }
        Ok(())
    });
}

#[test]
fn who_leaves_a_barrier_sees_what_was_put_before_it() {
    everywhere("who_leaves_a_barrier_sees_what_was_put_before_it", &[2, 3, 7], |world| {
        let (me, n) = (world.rank(), world.size());
        let data = world.alloc::<u32>(n)?;
        for round in 1..=5 {
            // Not to the neighbours only: word of the barrier may come another way than the data.
            (0..n).try_for_each(|to| data.put(to, me, round))?;
            world.barrier()?;
            assert!((0..n).all(|from| data.load(from) == round), "round {round}");
            world.barrier()?;
        }
        Ok(())
    });
}

#[test]
fn a_handler_sees_what_was_put_before_the_message() {
    everywhere("a_handler_sees_what_was_put_before_the_message", &[2, 3], |world| {
        let data = std::rc::Rc::new(world.alloc::<u64>(4)?);
        world.set_state(std::rc::Rc::clone(&data));
        world.barrier()?;
        let next = (world.rank() + 1) % world.size();
        for round in 1..=5u64 {
            data.put_slice(next, 0, &[round; 4])?;
            let seen = world.call(next, (), |context, ()| {
                let data = context.state::<std::rc::Rc<bellwether_runtime::Symmetric<u64>>>().expect("set");
                (0..4).map(|i| data.load(i)).collect::<Vec<u64>>()
            })?;
            assert_eq!(seen.wait()?, [round; 4]);
        }
        world.barrier()
    });
}

/// Among ranks that share a node only atomics are for the network.
#[test]
fn what_stays_on_a_node_does_not_touch_the_network() {
    for ranks in [2, 3] {
        let job = job(Config::new(ranks, 1).wild().shared_nodes(&[ranks]));
        let network = job.network().clone();
        let results = job.run(|world| -> Result<()> {
            let (me, n) = (world.rank(), world.size());
            let (data, counter, bell) = (world.alloc::<u64>(2000)?, world.alloc::<u64>(1)?, world.bell()?);
            world.barrier()?;
            let before = network.delivered();
            for round in 1..=5 {
                data.put_slice_bell((me + 1) % n, 0, &[round; 1000], &bell)?;
                bell.wait(round)?;
                assert_eq!((data.load(999), data.get((me + 1) % n, 0)?), (round, round));
                assert_eq!(world.call((me + 1) % n, round, |_, round: u64| round + 1)?.wait()?, round + 1);
                let long = world.call((me + 1) % n, vec![round; 1000], |_, words: Vec<u64>| words.len())?;
                assert_eq!(long.wait()?, 1000);
                world.barrier()?;
            }
            // As long as any message may be, whoever it is for.
            let most = world.largest_message();
            let bytes = |len: usize| world.call((me + 1) % n, vec![1u8; len], |_, bytes: Vec<u8>| bytes.len());
            assert_eq!(bytes(most - 100)?.wait()?, most - 100);
            assert!(matches!(bytes(most + 1), Err(Error::OutOfMemory { .. })), "longer than the network's");
            world.barrier()?;
            assert_eq!(network.delivered(), before, "a rank of the node was reached over the network");
            world.barrier()?;
            counter.fetch_add(0, 0, 1)?;
            world.barrier()?;
            assert!(network.delivered() > before && counter.get(0, 0)? == n as u64);
            world.barrier()
        });
        results.expect("runs").into_iter().for_each(|result| result.expect("a rank"));
    }
}

/// Signals go over the network also to ranks of the node, who are reached faster by all else.
#[test]
fn nothing_overtakes_a_signal_to_a_node_mate() {
    check("nothing_overtakes_a_signal_to_a_node_mate", 5, |seed| {
        let job = job(Config::new(3, seed).wild().shared_nodes(&[2]));
        let results = job.run(|world| -> Result<()> {
            struct All {
                signals: bellwether_runtime::Symmetric<u64>,
                bell: bellwether_runtime::Bell,
            }
            let all = std::rc::Rc::new(All { signals: world.alloc(2)?, bell: world.bell()? });
            world.set_state(std::rc::Rc::clone(&all));
            world.barrier()?;
            for round in 1..=10 {
                match world.rank() {
                    0 => {
                        all.signals.signal(1, 0)?;
                        assert_eq!(all.signals.get(1, 0)?, round, "what this rank sees of its own signal");
                        all.bell.ring(1)?;
                    }
                    1 => {
                        all.bell.wait(2 * round - 1)?;
                        assert_eq!(all.signals.signals(0), round, "behind a bell");
                        // A handler cannot wait for the device; the bell behind the signal does.
                        let done = world.call(0, (), |context, ()| {
                            let all = context.state::<std::rc::Rc<All>>().expect("set");
                            all.signals.signal(1, 1).and_then(|()| all.bell.ring(1)).expect("rings");
                        })?;
                        all.bell.wait(2 * round)?;
                        assert_eq!(all.signals.signals(1), round, "behind a handler's bell");
                        done.wait()?;
                    }
                    _ => {}
                }
                world.barrier()?;
            }
            Ok(())
        });
        results.expect("runs").into_iter().for_each(|result| result.expect("a rank"));
    });
}

/// A rank's own signals go over the network too.
#[test]
fn nothing_overtakes_a_signal_to_oneself() {
    check("nothing_overtakes_a_signal_to_oneself", 3, |seed| {
        let wild = Config::new(3, seed).wild();
        for config in [wild.clone(), wild.shared_nodes(&[2])] {
            let results = job(config).run(|world| -> Result<()> {
                let (me, bell) = (world.rank(), world.bell()?);
                let signals = std::rc::Rc::new(world.alloc::<u64>(1)?);
                world.set_state(std::rc::Rc::clone(&signals));
                world.barrier()?;
                for round in 1..=5 {
                    signals.signal(me, 0)?;
                    bell.ring(me)?;
                    bell.wait(round)?;
                    assert_eq!(signals.signals(0), 2 * round - 1, "behind a bell");
                    signals.signal(me, 0)?;
                    let seen = world.call(me, (), |context, ()| {
                        let signals = context.state::<std::rc::Rc<bellwether_runtime::Symmetric<u64>>>().expect("set");
                        signals.signals(0)
                    })?;
                    assert_eq!(seen.wait()?, 2 * round, "behind a message");
                }
                world.barrier()
            });
            results.expect("runs").into_iter().for_each(|result| result.expect("a rank"));
        }
    });
}

/// The memory for messages may be less than the network's largest one.
#[test]
fn the_largest_message_goes_to_every_rank() {
    let mut settings = bellwether_runtime::Settings::default();
    settings.message_memory = 16 << 10;
    let results = job(Config::new(3, 1).shared_nodes(&[2])).settings(settings).run(|world| -> Result<()> {
        let most = world.largest_message();
        for to in 0..world.size() {
            let bytes = |len: usize| world.call(to, vec![1u8; len], |_, bytes: Vec<u8>| bytes.len());
            assert_eq!(bytes(most - 100)?.wait()?, most - 100);
            let longer = bytes(most + 1).map(drop);
            assert!(longer.is_err_and(|error| error.to_string().contains("BELLWETHER_MESSAGE_MEMORY")));
            let mut values = vec![if world.rank() == to { 5u8 } else { 0 }; 100_000];
            world.broadcast(to, &mut values)?;
            assert!(values.iter().all(|value| *value == 5));
        }
        world.barrier()
    });
    results.expect("runs").into_iter().for_each(|result| result.expect("a rank"));
}

#[test]
fn atomics_lose_nothing_and_gets_see_what_is_there() {
    everywhere("atomics_lose_nothing_and_gets_see_what_is_there", &[2, 3, 5], |world| {
        let n = world.size();
        let (wide, narrow) = (world.alloc::<u64>(1)?, world.alloc::<i32>(1)?);
        for _ in 0..10 {
            wide.fetch_add(0, 0, 1)?;
            narrow.fetch_add(n - 1, 0, -1)?;
        }
        world.barrier()?;
        assert_eq!(wide.get(0, 0)?, 10 * n as u64);
        assert_eq!(narrow.get(n - 1, 0)?, -10 * n as i32);
        world.barrier()?;
        // One of all wins.
        let won = wide.compare_swap(0, 0, 10 * n as u64, 7)? == 10 * n as u64;
        let mut winners = [u64::from(won)];
        world.allreduce_sum(&mut winners)?;
        assert_eq!((winners[0], wide.get(0, 0)?), (1, 7));
        world.barrier()
    });
}

#[test]
fn long_transfers_and_messages_arrive_whole() {
    everywhere("long_transfers_and_messages_arrive_whole", &[2], |world| {
        let data = world.alloc::<u8>(100_000)?;
        let next = (world.rank() + 1) % world.size();
        let bytes: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
        data.put_slice(next, 0, &bytes)?;
        let sum = world.call(next, bytes[..500].to_vec(), |_, bytes: Vec<u8>| {
            bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>()
        })?;
        assert_eq!(sum.wait()?, bytes[..500].iter().map(|byte| u64::from(*byte)).sum::<u64>());
        world.barrier()?;
        let mut back = vec![0; bytes.len()];
        data.get_slice(next, 0, &mut back)?;
        assert!(back == bytes, "all bytes");
        world.barrier()
    });
}

#[test]
fn collectives_and_memory_that_comes_again() {
    everywhere("collectives_and_memory_that_comes_again", &[1, 2, 3, 5], |world| {
        let (me, n) = (world.rank(), world.size());
        let mut offsets = Vec::new();
        for round in 0..5u64 {
            let block = world.alloc::<u64>(1000)?;
            assert_eq!(block.load(999), 0);
            world.barrier()?;
            block.put((me + 1) % n, 999, round + 1)?;
            offsets.push(block.offset());
            drop(block);
            let mut sum = vec![me as u64; 300];
            world.allreduce_sum(&mut sum)?;
            assert_eq!(sum, vec![(n * (n - 1) / 2) as u64; 300]);
            assert_eq!(world.allgather(&[me])?, (0..n).collect::<Vec<_>>());
        }
        assert!(offsets.windows(2).any(|pair| pair[0] == pair[1]), "freed memory is used again: {offsets:?}");
        Ok(())
    });
}

#[test]
fn finish_delivers_what_handlers_send() {
    for ranks in [2, 3, 5] {
        check("finish_delivers_what_handlers_send", 3, |seed| {
            for (network, config) in networks(ranks, seed) {
                let hops = std::sync::atomic::AtomicU32::new(0);
                let results = job(config).build(|builder| {
                    let world = builder.start()?;
                    let count = std::rc::Rc::new(std::cell::Cell::new(0));
                    world.set_state(std::rc::Rc::clone(&count));
                    world.invoke((world.rank() + 1) % world.size(), 6, hop)?;
                    world.finish()?;
                    hops.fetch_add(count.get(), std::sync::atomic::Ordering::Relaxed);
                    Ok::<(), Error>(())
                });
                assert!(results.expect("runs").into_iter().all(|result| result.is_ok()), "{network}, {ranks} ranks");
                assert_eq!(hops.into_inner(), 7 * ranks as u32, "{network}, {ranks} ranks");
            }
        });
    }
}

fn hop(context: &bellwether_runtime::Context<'_>, left: u32) {
    let count = context.state::<std::rc::Rc<std::cell::Cell<u32>>>().expect("set");
    count.set(count.get() + 1);
    if left > 0 {
        let next = (context.rank() + 1) % context.size();
        context.invoke(next, left - 1, hop).expect("on its way");
    }
}

/// The same program, seed and network give the same run.
fn digest(seed: u64) -> (u64, u64) {
    let job = job(Config::new(4, seed).wild());
    let ended = job.run(|world| {
        let bell = world.bell()?;
        (0..world.size()).try_for_each(|rank| bell.ring(rank))?;
        bell.wait(world.size() as u64)?;
        world.barrier()
    });
    assert!(ended.expect("runs").into_iter().all(|result| result.is_ok()));
    (job.network().digest(), job.network().now())
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(digest(5), digest(5));
    assert_ne!(digest(5), digest(6));
}

#[test]
fn a_dead_rank_is_an_error_on_all_others() {
    check("a_dead_rank_is_an_error_on_all_others", 5, |seed| {
        let job = job(Config::new(4, seed).wild());
        let results = job.run(|world| {
            world.barrier()?;
            if world.rank() == 2 {
                job.network().kill(2);
            }
            loop {
                world.barrier()?;
            }
            #[expect(unreachable_code, reason = "gives the closure its type")]
            Ok::<(), Error>(())
        });
        for (rank, result) in results.expect("runs").into_iter().enumerate() {
            match result {
                Err(Error::PeerLost { rank: 2, .. }) => {}
                other => panic!("seed {seed}, rank {rank}: {other:?}"),
            }
        }
        assert!(job.network().now() < 10_000_000, "told within 10 ms");
    });
}

#[test]
fn a_partition_only_delays() {
    let job = job(Config::new(4, 3).wild());
    let results = job.run(|world| {
        world.barrier()?;
        if world.rank() == 0 {
            job.network().partition(&[0, 1], 5_000_000);
        }
        world.barrier()?;
        assert!(world.elapsed() >= Duration::from_millis(5));
        world.barrier()
    });
    assert!(results.expect("runs").into_iter().all(|result| result.is_ok()));
}

#[test]
fn a_deadlock_is_an_error() {
    let job = job(Config::new(2, 1));
    let results = job.run(|world| {
        let bell = world.bell()?;
        bell.wait(1)
    });
    let results = results.expect("runs");
    assert!(
        matches!(results[0], Err(Error::Standstill { .. } | Error::PeerLost { cause: Loss::Left, .. })),
        "{results:?}"
    );
    assert!(results.iter().any(|result| matches!(result, Err(Error::Standstill { .. }))), "{results:?}");
}

#[test]
fn ranks_in_different_collective_calls_are_told() {
    for (ranks, config) in [2, 3, 5].map(|ranks| (ranks, Config::new(ranks, 7).wild())) {
        let outcomes = job(config).run(|world| {
            let team = Team::world(world)?;
            world.barrier()?;
            match world.rank() {
                1 => team.barrier(),
                _ => world.barrier(),
            }
        });
        for (rank, outcome) in outcomes.expect("runs").into_iter().enumerate() {
            let error = outcome.expect_err("nobody can go on");
            assert!(
                matches!(error, Error::RanksDiffer { rank: 1, reference: 0, .. }),
                "rank {rank} of {ranks}: {error}"
            );
            let text = error.to_string();
            assert!(text.matches("barrier (main.rs:").count() == 2 && text.contains(file!()), "{text}");
        }
    }
}

#[test]
fn a_wait_with_a_limit_ends_in_virtual_time() {
    let job = job(Config::new(2, 1));
    let results = job.run(|world| {
        let bell = world.bell()?;
        let ended = bell.wait_timeout(1, Duration::from_secs(3600));
        assert!(matches!(ended, Err(Error::TimedOut { .. })), "{ended:?}");
        assert!(world.elapsed() >= Duration::from_secs(3600));
        world.barrier()
    });
    assert!(results.expect("runs").into_iter().all(|result| result.is_ok()));
}

#[test]
fn messages_keep_no_order_where_the_network_keeps_none() {
    // A control of the control: on such a network, order that nobody promised is really absent.
    let disorder = (1..=20).any(|seed| {
        let config = Config { order: Order::Any, ..Config::new(2, seed).wild() };
        let results = job(config).run(|world| {
            world.set_state(std::cell::RefCell::new(Vec::<u32>::new()));
            for number in 0..10u32 {
                world.invoke(1 - world.rank(), number, |context, number| {
                    context.state::<std::cell::RefCell<Vec<u32>>>().expect("set").borrow_mut().push(number);
                })?;
            }
            let seen = world.state::<std::cell::RefCell<Vec<u32>>>().expect("set");
            world.wait_until(|| seen.borrow().len() == 10)?;
            let sorted = seen.borrow().is_sorted();
            world.barrier().map(|()| sorted)
        });
        results.expect("runs").into_iter().any(|sorted| !sorted.expect("fine"))
    });
    assert!(disorder);
}

#[test]
fn many_ranks_meet_and_all_write_to_all() {
    let ranks = if is_full() { 1000 } else { 300 };
    let job = job(Config::new(ranks, 1));
    let results = job.run(|world| {
        world.set_state(std::cell::Cell::new(0usize));
        let count = world.state::<std::cell::Cell<usize>>().expect("set");
        world.barrier()?;
        for to in 0..ranks {
            world.invoke_plain(to, (), |context, ()| {
                let count = context.state::<std::cell::Cell<usize>>().expect("set");
                count.set(count.get() + 1);
            })?;
        }
        world.wait_until(|| count.get() == ranks)?;
        world.barrier()
    });
    assert!(results.expect("runs").into_iter().all(|result| result.is_ok()));
}

#[test]
fn in_a_handler_nothing_is_asked_that_must_be_waited_for() {
    let results = job(Config::new(2, 1)).run(|world| {
        let data = std::rc::Rc::new(world.alloc::<u64>(1)?);
        world.set_state(std::rc::Rc::clone(&data));
        world.barrier()?;
        if world.rank() == 0 {
            let call = world.call(1, (), |context, ()| {
                let data = context.state::<std::rc::Rc<bellwether_runtime::Symmetric<u64>>>().expect("set");
                matches!(data.fetch_add(0, 0, 1), Err(Error::InsideHandler { .. }))
            })?;
            assert!(call.wait()?, "refused");
            world.sleep(Duration::from_millis(1));
            assert_eq!(data.load(0), 0, "what was refused was done all the same");
        }
        world.barrier()
    });
    assert!(results.expect("runs").into_iter().all(|result| result.is_ok()));
}

#[test]
fn limits_of_any_length_are_kept() {
    for limit in [Duration::MAX, Duration::from_secs(18_446_744_074)] {
        let results = job(Config::new(2, 1)).run(|world| {
            let bell = world.bell()?;
            bell.ring(1 - world.rank())?;
            bell.wait_timeout(1, limit)
        });
        assert!(results.expect("runs").into_iter().all(|result| result.is_ok()));
    }
}

#[test]
fn a_dead_rank_blames_nobody_else() {
    let job = job(Config::new(3, 1));
    let results = job.run(|world| {
        world.barrier()?;
        if world.rank() == 2 {
            job.network().kill(2);
            return world.invoke(0, (), |_, ()| {});
        }
        world.barrier()
    });
    for result in results.expect("runs") {
        assert!(matches!(result, Err(Error::PeerLost { rank: 2, .. })), "{result:?}");
    }
}

#[test]
fn a_connection_lost_concerns_its_two_ends() {
    let job = job(Config::new(3, 1));
    let results = job.run(|world| {
        world.barrier()?;
        if world.rank() == 0 {
            job.network().disconnect(0, 1);
        }
        let bell = world.bell();
        if world.rank() == 2 { bell.map(drop).or(Ok(())) } else { bell.map(drop) }
    });
    let results = results.expect("runs");
    assert!(matches!(results[0], Err(Error::PeerLost { rank: 1 | 2, .. })), "{results:?}");
    assert!(matches!(results[1], Err(Error::PeerLost { rank: 0 | 2, .. })), "{results:?}");
}

#[test]
fn ranks_in_different_collectives_are_told() {
    let results = job(Config::new(2, 1))
        .run(|world| if world.rank() == 0 { world.barrier() } else { world.allgather(&[1u8]).map(drop) });
    let results = results.expect("runs");
    assert!(matches!(results[1], Err(Error::RanksDiffer { .. })), "{results:?}");
}

#[test]
fn memory_by_address_goes_in_pieces_that_fit() {
    for (network, config) in networks(2, 1) {
        let results = job(config).run(|world| {
            let bell = std::sync::atomic::AtomicI32::new(0);
            let (there, here) = (vec![0u8; 5000], (0..5000).map(|i| (i % 251) as u8).collect::<Vec<_>>());
            let other = 1 - world.rank();
            let addresses = world.exchange_addresses(there.as_ptr())?;
            let bells = world.exchange_addresses(&bell)?;
            let rings = bellwether_runtime::RawBells { local: None, remote: Some(bells[other]) };
            // SAFETY: the other expects both, and waits for them.
            unsafe { world.put_address(other, addresses[other], &here, rings) }?;
            world.wait_until(|| bell.load(std::sync::atomic::Ordering::Acquire) == 1)?;
            assert!(std::hint::black_box(&there) == &here, "all of it");
            world.barrier()
        });
        assert!(results.expect("runs").into_iter().all(|result| result.is_ok()), "{network}");
    }
}

#[test]
fn what_was_acknowledged_arrives_though_its_sender_leaves_with_an_error() {
    let mut config = Config::new(2, 1);
    (config.flow.slots, config.flow.credits, config.flow.fragment) = (1, 1, 64);
    let results = job(config).run(|world| {
        let data = world.alloc::<u8>(200_000)?;
        let bell = world.bell()?;
        world.barrier()?;
        if world.rank() == 0 {
            // SAFETY: nothing is mapped there, which is an error that comes back later.
            unsafe { world.put_address(1, 64, &[1; 8], bellwether_runtime::RawBells::default()) }?;
            data.put_slice_bell(1, 0, &vec![7; 200_000], &bell)?;
            return Ok(0);
        }
        let rings = bell.wait(1)?;
        assert_eq!(data.load(199_999), 7);
        Ok::<u64, Error>(rings)
    });
    let results = results.expect("runs");
    assert!(matches!(results[1], Ok(1)), "{results:?}");
}

#[test]
fn what_was_kept_for_a_rank_that_left_is_told() {
    let mut config = Config::new(2, 1);
    (config.flow.slots, config.flow.credits) = (1, 1);
    let results = job(config).run(|world| {
        let data = world.alloc::<u8>(300_000)?;
        world.barrier()?;
        if world.rank() == 1 {
            return Ok(());
        }
        for _ in 0..300 {
            data.put_slice(1, 0, &[1; 1000])?;
        }
        world.sleep(Duration::from_millis(100));
        world.fence();
        (0..10).try_for_each(|_| world.poll().map(drop))
    });
    let results = results.expect("runs");
    assert!(matches!(results[0], Err(Error::PeerLost { rank: 1, .. })), "{results:?}");
}

/// Virtual time from when all have left a barrier until the last one is through `collective`.
fn time_of(ranks: usize, collective: impl Fn(&World) -> Result<()> + Sync) -> f64 {
    let results = job(Config::new(ranks, 1)).run(|world| {
        world.barrier()?;
        // Whoever is early waits for those that are late.
        let start = Duration::from_millis(1);
        world.sleep(start.saturating_sub(world.elapsed()));
        collective(world)?;
        let took = world.elapsed() - start;
        // Nobody leaves before all are through.
        world.barrier()?;
        Ok::<Duration, Error>(took)
    });
    let took = results.expect("runs").into_iter().map(|took| took.expect("fine")).max().expect("ranks");
    took.as_nanos() as f64
}

#[test]
fn barrier_and_broadcast_take_what_their_algorithms_say() {
    for ranks in [2usize, 7, 64, 100] {
        let config = Config::new(ranks, 1);
        // Dissemination: a put a round.
        let rounds = ranks.next_power_of_two().ilog2();
        // Binomial tree: to rank v go as many messages, one after the other, as v has bits.
        let depth = (0..ranks).map(usize::count_ones).max().expect("ranks");
        for (name, hops, took) in [
            ("barrier", rounds, time_of(ranks, World::barrier)),
            ("broadcast", depth, time_of(ranks, |world| world.broadcast(ranks / 2, &mut [1u64]))),
        ] {
            // The wire is busy for a few nanoseconds with each, and with those that a rank has sent before it.
            let least = f64::from(hops) * config.latency as f64;
            let most = f64::from(hops) * (config.latency + config.busy(400)) as f64;
            assert!((least..=most).contains(&took), "{name} of {ranks}: {took} ns, not {least} to {most}");
        }
    }
}

#[test]
fn a_broadcast_brings_everything_from_any_root() {
    everywhere("a_broadcast_brings_everything_from_any_root", &[1, 2, 3, 5], |world| {
        for root in 0..world.size() {
            let mut values: Vec<u64> = (0..1000).map(|i| if world.rank() == root { i * 3 } else { 0 }).collect();
            world.broadcast(root, &mut values)?;
            assert!(values.iter().enumerate().all(|(i, value)| *value == i as u64 * 3));
        }
        world.barrier()
    });
}

#[test]
fn a_call_whose_closure_panics_is_answered_before_its_rank_is_lost() {
    watchdog();
    for seed in 0..10 {
        for (network, config) in networks(3, seed) {
            let told = std::sync::atomic::AtomicBool::new(false);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                job(config).run(|world| {
                    if world.rank() != 0 {
                        return world.barrier();
                    }
                    let answer = world.call(1, 7, |_, number: u8| -> u8 { panic!("no {number} here") })?.wait();
                    let Err(Error::HandlerPanicked { rank: 1, handler, why, place }) = answer else {
                        panic!("{network}, seed {seed}: {answer:?}");
                    };
                    assert!(handler.contains("is_answered_before_its_rank_is_lost"), "{handler}");
                    assert_eq!(why, "no 7 here");
                    assert!(place.is_some_and(|place| place.starts_with(file!())));
                    told.store(true, std::sync::atomic::Ordering::Release);
                    Ok(())
                })
            }));
            let panic = outcome.expect_err("the panic comes out");
            let words = panic.downcast_ref::<String>().map(String::as_str);
            assert_eq!(words, Some("no 7 here"), "{network}, seed {seed}");
            assert!(told.into_inner());
        }
    }
}
