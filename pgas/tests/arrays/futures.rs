//! Futures that are still there when their phase or their array ends: they change nothing and read nothing from then on,
//! whether they are waited for, dropped or forgotten.

mod plain;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use bellwether::aggregate::{Aggregator, Blocks, Options};
use bellwether::array::{GlobalArray, Layout, Local, Shared};
use bellwether::sim::{self, Config};
use bellwether::{Error, GlobalPtr, Piece, Posted, Result, Settings, Simulated, Symmetric, Threads, World};
use bellwether_runtime::Transport;
use bellwether_runtime::transport::Memory;
use bellwether_tests::watchdog;

use super::support::{LIMIT, SIMULATES, seeds};

/// Elements of the arrays here: more at a rank than there are requests of one get under way at a time.
pub const ELEMENTS: usize = 600;
/// What an owner adds to its elements when they are its own: no future may see it.
pub const OWNERS: u64 = 1_000_000;

pub type Late = Pin<Box<dyn Future<Output = Result<Vec<u64>>>>>;
type Array = GlobalArray<u64, 1, Shared>;
type Maker = fn(&World, &Array) -> Result<Vec<Late>>;

pub fn late<R: 'static>(posted: Posted<R>, values: fn(R) -> Vec<u64>) -> Late {
    Box::pin(async move { posted.await.map(values) })
}

pub fn one(value: u64) -> Vec<u64> {
    vec![value]
}

pub fn none((): ()) -> Vec<u64> {
    Vec::new()
}

/// The elements of the last rank, which another one reaches for.
fn last(world: &World) -> Vec<usize> {
    (0..ELEMENTS).filter(|i| i % world.size() == world.size() - 1).collect()
}

fn pointer(world: &World, array: &Array) -> Result<GlobalPtr<u64>> {
    array.pointer(world.size() - 1)
}

/// Attempts until there is room.
pub fn tried<R>(world: &World, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
    loop {
        match attempt() {
            Err(Error::WouldBlock { .. }) => drop(world.poll()?),
            outcome => return outcome,
        }
    }
}

/// Every way to post something to an array.
#[expect(clippy::single_range_in_vec_init, reason = "a box of one dimension")]
const MAKERS: [(&str, Maker); 21] = [
    ("fetch_update", |world, array| {
        last(world).iter().map(|i| Ok(late(array.fetch_update_async(*i, |x| x + 1000)?, one))).collect()
    }),
    ("accumulate", |world, array| {
        last(world).iter().map(|i| Ok(late(array.accumulate_async(*i, 1000)?, one))).collect()
    }),
    ("fetch_add", |world, array| last(world).iter().map(|i| Ok(late(array.fetch_add_async(*i, 1000)?, one))).collect()),
    ("swap", |world, array| last(world).iter().map(|i| Ok(late(array.swap_async(*i, 1000)?, one))).collect()),
    ("compare_swap", |world, array| {
        last(world).iter().map(|i| Ok(late(array.compare_swap_async(*i, *i as u64, 1000)?, one))).collect()
    }),
    ("get", |world, array| last(world).iter().map(|i| Ok(late(array.get_async(*i)?, one))).collect()),
    ("put", |world, array| last(world).iter().map(|i| Ok(late(array.put_async(*i, 1000)?, none))).collect()),
    ("get_patch", |_, array| Ok(vec![late(array.get_patch_async([0..ELEMENTS])?, |values| values)])),
    ("put_patch", |_, array| Ok(vec![late(array.put_patch_async([0..ELEMENTS], &[1000; ELEMENTS])?, none)])),
    ("get of a view", |_, array| Ok(vec![late(array.view([1..ELEMENTS])?.get_patch_async()?, |values| values)])),
    ("get of a pointer", |world, array| Ok(vec![late(pointer(world, array)?.get_async(world)?, one)])),
    ("put of a pointer", |world, array| Ok(vec![late(pointer(world, array)?.put_async(world, 1000)?, none)])),
    ("atomics of pointers", |world, array| {
        let at = pointer(world, array)?;
        Ok(vec![
            late(at.fetch_add_async(world, 1000)?, one),
            late(at.add(1).swap_async(world, 1000)?, one),
            late(at.add(2).compare_swap_async(world, (3 * world.size() - 1) as u64, 1000)?, one),
            late(at.add(3).fetch_and_async(world, 1000)?, one),
            late(at.add(4).fetch_or_async(world, 1000)?, one),
            late(at.add(5).fetch_xor_async(world, 1000)?, one),
        ])
    }),
    ("get of a slice", |world, array| {
        Ok(vec![late(pointer(world, array)?.slice(ELEMENTS / world.size()).get_async(world)?, |values| values)])
    }),
    ("put of a slice", |world, array| {
        let count = ELEMENTS / world.size();
        Ok(vec![late(pointer(world, array)?.slice(count).put_async(world, &vec![1000; count])?, none)])
    }),
    ("try_put", |world, array| {
        last(world).iter().map(|i| Ok(late(tried(world, || array.try_put_async(*i, 1000))?, none))).collect()
    }),
    ("put of a view", |_, array| {
        Ok(vec![late(array.view([1..ELEMENTS])?.put_patch_async(&[1000; ELEMENTS - 1])?, none)])
    }),
    ("strided put", |world, array| {
        let count = ELEMENTS / world.size() / 2;
        let slice = pointer(world, array)?.slice(2 * count);
        Ok(vec![late(slice.put_strided_async(world, 0, 2, &vec![1000; count])?, none)])
    }),
    ("strided get", |world, array| {
        let count = ELEMENTS / world.size() / 2;
        Ok(vec![late(pointer(world, array)?.slice(2 * count).get_strided_async(world, 0, 2, count)?, |values| values)])
    }),
    ("gather", |world, array| {
        let numbers: Vec<usize> = (0..ELEMENTS / world.size()).rev().collect();
        Ok(vec![late(pointer(world, array)?.slice(numbers.len()).gather_async(world, &numbers)?, |values| values)])
    }),
    ("scatter", |world, array| {
        let numbers: Vec<usize> = (0..ELEMENTS / world.size()).rev().collect();
        let values = vec![1000; numbers.len()];
        Ok(vec![late(pointer(world, array)?.slice(numbers.len()).scatter_async(world, &numbers, &values)?, none)])
    }),
];

/// What becomes of the futures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// They are waited for when all is over.
    Kept,
    Dropped,
    Forgotten,
}

impl Fate {
    pub fn befalls(self, futures: &mut Vec<Late>) {
        match self {
            Fate::Kept => {}
            Fate::Dropped => futures.clear(),
            Fate::Forgotten => futures.drain(..).for_each(std::mem::forget),
        }
    }
}

/// What becomes of the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Localized,
    /// In its second shared phase, between which its owners had it.
    SharedAgain,
    /// Another array gets the memory.
    Dropped,
}

/// Runs `body` where futures are done at once, and where they are not: over the contract, over TCP, over a device if there is one,
/// and on simulated networks that are
/// orderly, late and without order, next to without room, with devices that do the work themselves, of nodes, and with stragglers.
/// With `BELLWETHER_TRANSPORT=verbs` in the environment over a device only: in an emulated machine the others would take long.
#[track_caller]
pub fn on_all(name: &str, seeds: u64, body: impl Fn(&World) -> Result<()> + Sync) {
    let check = |on: &str, outcomes: Result<Vec<Result<()>>>| {
        for (rank, outcome) in outcomes.expect("the job runs").into_iter().enumerate() {
            outcome.unwrap_or_else(|error| panic!("{name}: {on}: rank {rank}: {error}"));
        }
    };
    let by_device = std::env::var_os("BELLWETHER_TRANSPORT").is_some_and(|transport| transport == "verbs");
    for ranks in [2, 3] {
        let _guard = watchdog::guard(format!("{name} on {ranks} threads"), LIMIT);
        if !by_device {
            check("mapped memory", Threads::new(ranks).settings(small()).run(&body));
        }
        for (on, transport) in
            [("verbs", Transport::Verbs), ("the contract", Transport::ShmContract), ("TCP", Transport::Tcp)]
        {
            if by_device && transport != Transport::Verbs {
                continue;
            }
            let mut settings = small();
            settings.transport = transport;
            match Threads::new(ranks).settings(settings).deadline(LIMIT).run(&body) {
                // There is no device.
                Err(Error::Start(_)) if transport == Transport::Verbs && !by_device => {}
                outcomes => check(on, outcomes),
            }
        }
    }
    let seeds = if SIMULATES && !by_device { seeds } else { 0 };
    sim::check(name, seeds, |seed| {
        let _guard = watchdog::guard(format!("{name} on simulated ranks, seed {seed}"), LIMIT);
        let plain = Config::new(2, seed);
        let by_devices = Config { memory: Memory::Posted, ..Config::new(2, seed).wild() };
        let few = Config { flow: sim::FlowLimits { slots: 1, credits: 1, ..plain.flow }, ..plain.clone().wild() };
        let nodes = Config::new(3, seed).wild().shared_nodes(&[2]);
        // Rank 0 is no partner of rank 3 in a barrier: no flag of it comes behind what it has posted there, or has no room for.
        let late = Config {
            flow: sim::FlowLimits { slots: 4, credits: 4, ..plain.flow },
            ..Config::new(4, seed).straggling()
        };
        for (on, config) in [
            ("an orderly network", plain.clone()),
            ("a wild network", plain.wild()),
            ("a network of devices", by_devices),
            ("a network without room", few),
            ("a network of nodes", nodes),
            ("a network with stragglers", late),
        ] {
            check(&format!("{on}, seed {seed}"), Simulated::new(config).settings(small()).run(&body));
        }
    });
}

/// A forgotten future keeps its job's address space, and under a sanitizer there is little of it.
fn small() -> Settings {
    let mut settings = Settings::default();
    settings.heap_limit = Some(256 << 20);
    settings
}

/// All futures of one kind, at rank 0, then the end of the phase.
fn outlives(world: &World, (name, maker): (&str, Maker), fate: Fate, next: Next) -> Result<()> {
    let what = format!("{name}, {fate:?}, {next:?}, rank {}", world.rank());
    let layout = Layout::cyclic([ELEMENTS], world.size())?;
    let array = GlobalArray::from_fn(world, layout.clone(), |[i]| i as u64)?.share(world)?;
    let mut futures = if world.rank() == 0 { maker(world, &array)? } else { Vec::new() };
    fate.befalls(&mut futures);
    let mut array = match next {
        Next::Localized | Next::SharedAgain => array.localize(world)?,
        Next::Dropped => {
            drop(array);
            GlobalArray::new(world, layout)?
        }
    };
    // What only put or changed the elements at once happens nevertheless, also where there was no room for it yet.
    let happens = matches!(name, "fetch_add" | "swap" | "compare_swap" | "put" | "try_put");
    if happens && fate == Fate::Dropped && next == Next::Localized && world.rank() == world.size() - 1 {
        let wanted = |i: usize| if name == "fetch_add" { i as u64 + 1000 } else { 1000 };
        assert!(array.iter().all(|([i], x)| *x == wanted(i)), "{what}: something that was let go did not happen");
    }
    let own = array.local_mut().iter_mut();
    let held: Vec<u64> = own
        .map(|x| {
            *x += OWNERS;
            *x
        })
        .collect();
    let mut array = Some(array);
    if next == Next::SharedAgain {
        array = Some(array.take().expect("it is there").share(world)?.localize(world)?);
        let shared = array.take().expect("it is there").share(world)?;
        finish(world, &what, &mut futures)?;
        world.barrier()?;
        array = Some(shared.localize(world)?);
    }
    world.barrier()?;
    finish(world, &what, &mut futures)?;
    world.barrier()?;
    world.barrier()?;
    let now = std::hint::black_box(array.as_ref().expect("it is there").local());
    let changed = held.iter().zip(now).position(|(before, now)| before != now);
    assert!(changed.is_none(), "{what}: element {changed:?} of this rank's own was changed by another rank's future");
    world.barrier()
}

/// What is left gives what was there in its phase, or says that the phase is over.
pub fn finish(world: &World, what: &str, futures: &mut Vec<Late>) -> Result<()> {
    for future in futures.drain(..) {
        match world.block_on(future) {
            Ok(values) => assert!(values.iter().all(|value| *value < OWNERS), "{what}: it read what its owner wrote"),
            Err(Error::PhaseOver { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[test]
fn no_future_of_an_array_outlives_its_phase() {
    on_all("futures outlive their phase", seeds(), |world| {
        for maker in MAKERS {
            for fate in [Fate::Kept, Fate::Dropped, Fate::Forgotten] {
                outlives(world, maker, fate, Next::Localized)?;
            }
            outlives(world, maker, Fate::Kept, Next::SharedAgain)?;
        }
        Ok(())
    });
}

#[test]
fn no_future_of_an_array_outlives_its_memory() {
    on_all("futures outlive their array", seeds(), |world| {
        for maker in MAKERS {
            for fate in [Fate::Kept, Fate::Dropped, Fate::Forgotten] {
                outlives(world, maker, fate, Next::Dropped)?;
            }
        }
        Ok(())
    });
}

/// Nobody changes this rank's own elements from outside while all ranks wait for each other.
pub fn is_left_alone(world: &World, what: &str, array: &GlobalArray<u64, 1, Local>) -> Result<()> {
    let before = array.local().to_vec();
    for _ in 0..3 {
        world.barrier()?;
        // Time passes.
        for _ in 0..100 {
            world.poll()?;
        }
    }
    assert_eq!(std::hint::black_box(array.local()), before, "{what}: rank {}", world.rank());
    world.barrier()
}

/// An array in memory that was given back, where the network has no other.
pub fn in_place_of<T>(world: &World, old: T) -> Result<GlobalArray<u64, 1, Local>> {
    drop(old);
    GlobalArray::from_fn(world, Layout::cyclic([ELEMENTS], world.size())?, |[i]| i as u64 + OWNERS)
}

#[test]
fn the_rest_of_a_long_get_is_not_read_from_what_is_another_arrays() {
    /// Requests that an endpoint has room for. Twice as many are as many as a get has in flight.
    const WINDOW: usize = 64;
    let program = |world: &World| -> Result<()> {
        for _ in 0..3 {
            let plain = world.alloc::<u64>(ELEMENTS)?;
            // The network learns of the memory at either rank.
            (2..4).try_for_each(|rank| plain.get(rank, 0).map(drop))?;
            // In flight when the memory is given back, and only behind them elements of a rank of this node.
            let pieces: Vec<Piece> = [2, 3, 1]
                .into_iter()
                .flat_map(|rank| (0..WINDOW).map(move |i| Piece { rank, start: 2 * i, count: 1 }))
                .collect();
            let get = (world.rank() == 0).then(|| plain.get_pieces_async(&pieces));
            let array = in_place_of(world, plain)?;
            if let Some(get) = get {
                match get.wait() {
                    Ok(values) => assert!(values.iter().all(|value| *value == 0), "it read what is another array's"),
                    Err(error) => drop(over(error)?),
                }
            }
            is_left_alone(world, "a long get", &array)?;
        }
        Ok(())
    };
    let _guard = watchdog::guard("a long get of memory that is gone", LIMIT);
    sim::check("the_rest_of_a_long_get_is_not_read_from_what_is_another_arrays", 5, |seed| {
        for config in [Config::new(4, seed), Config::new(4, seed).wild()] {
            let outcomes = Simulated::new(config.shared_nodes(&[2])).run(program).expect("runs");
            outcomes.into_iter().collect::<Result<()>>().expect("runs");
        }
    });
}

#[test]
fn a_barrier_waits_for_what_nobody_waits_for() {
    on_all("a barrier after what nobody waits for", 5, |world| {
        let (rank, last) = (world.rank(), world.size() - 1);
        let plain = world.alloc::<u64>(100)?;
        for round in 1..20u64 {
            for i in (0..100).filter(|_| rank == 0) {
                // Apart: to wait for the puts to a rank is to wait for the atomics there.
                match round % 2 {
                    0 => plain.put(last, i, round)?,
                    _ => drop(plain.swap_async(last, i, round)),
                }
            }
            world.barrier()?;
            if rank == last {
                let mut here = vec![0; 100];
                plain.read(0, &mut here);
                assert!(here.iter().all(|x| *x == round), "round {round}: {here:?}");
            }
            world.barrier()?;
        }
        Ok(())
    });
}

#[test]
fn elements_without_bytes_come_in_their_number() {
    on_all("elements without bytes", 1, |world| {
        let (array, last) = (world.alloc::<()>(5)?, world.size() - 1);
        let pieces = [Piece { rank: last, start: 0, count: 2 }, Piece { rank: 0, start: 1, count: 4 }];
        assert_eq!(array.get_slice_async(last, 0, 5).wait()?.len(), 5);
        assert_eq!(array.get_slice_async(last, 1, 0).wait()?.len(), 0);
        assert_eq!(array.get_pieces_async(&pieces).wait()?.len(), 6);
        assert!(array.get_slice_async(last, 1, 5).wait().is_err());
        array.put_slice_async(last, 0, &[(); 5]).wait()?;
        array.get_async(last, 4).wait()?;
        world.barrier()
    });
}

/// A phase that is over is as good as a value.
fn over(error: Error) -> Result<u64> {
    match error {
        Error::PhaseOver { .. } => Ok(0),
        other => Err(other),
    }
}

#[test]
fn the_end_of_a_phase_is_told_in_words() {
    let job = Simulated::new(Config::new(2, 7));
    let outcomes = job.run(|world| {
        let array = GlobalArray::<u64, 1>::new(world, Layout::block([100], 2)?)?.share(world)?;
        let update = array.fetch_update_async(99, |x| x + 1000)?;
        let array = array.localize(world)?;
        world.barrier()?;
        let told = update.wait().expect_err("a step was left").to_string();
        for part in ["fetch_update_async at rank 1", "has ended", "before `localize`", "dropped"] {
            assert!(told.contains(part), "{told:?} does not say {part:?}");
        }
        assert!(array.local().iter().all(|x| *x == 0));
        world.barrier()
    });
    outcomes.expect("runs").into_iter().collect::<Result<()>>().expect("runs");
}

#[test]
fn a_handler_that_polls_a_future_does_not_reach_the_next_phase() {
    type Kept = RefCell<Option<Posted<u64>>>;
    on_all("a future in a handler", 5, |world| {
        let last = world.size() - 1;
        for step in 0..4 {
            let array = GlobalArray::<u64, 1>::new(world, Layout::cyclic([ELEMENTS], world.size())?)?.share(world)?;
            if world.rank() == 0 {
                let update = array.fetch_update_async(last, |x| x + 1)?;
                world.set_state(Kept::new(Some(update)));
            }
            // Comes while rank 0 waits for the others to end the phase, or after.
            let poll = |world: &World| {
                world.invoke(0, (), |context, ()| {
                    let Some(kept) = context.state::<Kept>() else { return };
                    let mut kept = kept.borrow_mut();
                    let waker = &mut Context::from_waker(Waker::noop());
                    if kept.as_mut().is_some_and(|update| Pin::new(update).poll(waker).is_ready()) {
                        *kept = None;
                    }
                })
            };
            if world.rank() == last {
                for _ in 0..step {
                    poll(world)?;
                }
            }
            let mut array = array.localize(world)?;
            array.local_mut().fill(OWNERS);
            if world.rank() == last {
                poll(world)?;
            }
            is_left_alone(world, "polled in a handler", &array)?;
        }
        Ok(())
    });
}

#[test]
fn memory_that_a_handler_drops_within_an_allocation() {
    type Kept = RefCell<Option<Symmetric<u64>>>;
    on_all("memory that a handler drops", 5, |world| {
        let last = world.size() - 1;
        for _ in 0..10 {
            let plain = world.alloc::<u64>(ELEMENTS)?;
            if world.rank() == 0 {
                world.set_state(Kept::new(Some(plain)));
            } else {
                drop(plain);
            }
            world.barrier()?;
            if world.rank() == last {
                // Comes while rank 0 waits for the others to allocate: what it begins there is under way when it is back.
                world.invoke(0, (), |context, ()| {
                    let Some(plain) = context.state::<Kept>().and_then(|kept| kept.take()) else { return };
                    for i in 0..20 {
                        drop(plain.fetch_add_async(context.size() - 1, i, 1));
                        drop(plain.put_async(context.size() - 1, 20 + i, 1));
                    }
                })?;
            }
            let arrays = [in_place_of(world, ())?, in_place_of(world, ())?];
            for array in arrays {
                assert!(array.iter().all(|([i], x)| *x == i as u64 + OWNERS));
                is_left_alone(world, "memory that a handler dropped", &array)?;
            }
        }
        Ok(())
    });
}

#[test]
fn an_update_that_panics_reaches_nothing() {
    on_all("updates that panic", 3, |world| {
        let last = world.size() - 1;
        let array = GlobalArray::<u64, 1>::new(world, Layout::cyclic([ELEMENTS], world.size())?)?.share(world)?;
        if world.rank() == 0 {
            // Where memory is mapped it is called at once.
            let broken = catch_unwind(AssertUnwindSafe(|| {
                array.fetch_update_async(last, |_| panic!("an update that fails, as it should"))?.wait()
            }));
            assert!(broken.is_err(), "it panics");
        }
        let array = array.localize(world)?;
        assert!(array.local().iter().all(|x| *x == 0), "the update was not made");
        is_left_alone(world, "a phase with an update that panicked", &array)
    });
}

#[test]
fn an_update_that_ends_its_own_phase_makes_no_further_step() {
    let program = |world: Rc<World>| -> Result<()> {
        let last = world.size() - 1;
        let array = GlobalArray::<u64, 1>::new(&world, Layout::cyclic([ELEMENTS], world.size())?)?.share(&world)?;
        let mut array = if world.rank() == 0 {
            let shared: Rc<RefCell<Option<GlobalArray<u64, 1, Shared>>>> = Rc::default();
            let local: Rc<RefCell<Option<GlobalArray<u64, 1, Local>>>> = Rc::default();
            let (taken, left, own) = (Rc::clone(&shared), Rc::clone(&local), Rc::clone(&world));
            let update = array.fetch_update_async(last, move |x| {
                if let Some(array) = taken.take() {
                    *left.borrow_mut() = Some(array.localize(&own).expect("the phase ends"));
                }
                x + 1
            })?;
            *shared.borrow_mut() = Some(array);
            let outcome = update.wait();
            assert!(matches!(outcome, Err(Error::PhaseOver { rank, .. }) if rank == last), "{outcome:?}");
            local.take().expect("the update localized it")
        } else {
            array.localize(&world)?
        };
        assert!(array.local().iter().all(|x| *x == 0), "the update was not made");
        array.local_mut().fill(OWNERS);
        is_left_alone(&world, "a phase that an update ended", &array)
    };
    let _guard = watchdog::guard("updates that end their phase", LIMIT);
    sim::check("an_update_that_ends_its_own_phase_makes_no_further_step", 5, |seed| {
        for config in [Config::new(2, seed), Config::new(3, seed).wild()] {
            let outcomes = Simulated::new(config).build(|builder| program(Rc::new(builder.start()?))).expect("runs");
            outcomes.into_iter().collect::<Result<()>>().expect("runs");
        }
    });
}

thread_local! {
    static LEFT: RefCell<Vec<Posted<u64>>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn futures_outlive_their_world_without_harm() {
    let program = |world: World| -> Result<()> {
        let array = GlobalArray::<u64, 1>::new(&world, Layout::cyclic([ELEMENTS], world.size())?)?.share(&world)?;
        let last = world.size() - 1;
        if world.rank() == 0 {
            for i in 0..50 {
                LEFT.with_borrow_mut(|left| {
                    left.push(array.fetch_update_async(i * 2 + last, |x| x + 1).expect("inside"))
                });
                LEFT.with_borrow_mut(|left| left.push(array.fetch_add_async(i * 2 + last, 1).expect("inside")));
            }
        }
        drop(array);
        world.finish()?;
        // Half of them are polled after their world, and half are dropped with the thread.
        let left: Vec<_> = LEFT.with_borrow_mut(|left| left.drain(..left.len() / 2).collect());
        for update in left {
            assert!(matches!(update.wait(), Ok(_) | Err(Error::PhaseOver { .. } | Error::PeerLost { .. })));
        }
        Ok(())
    };
    let _guard = watchdog::guard("futures that outlive their world", LIMIT);
    sim::check("futures_outlive_their_world_without_harm", 5, |seed| {
        for config in
            [Config::new(2, seed), Config::new(2, seed).wild(), Config::new(3, seed).wild().shared_nodes(&[2])]
        {
            let outcomes = Simulated::new(config).build(|builder| program(builder.start()?)).expect("runs");
            outcomes.into_iter().collect::<Result<()>>().expect("runs");
        }
    });
}

#[test]
fn no_pointer_reaches_a_table_while_it_is_updated() {
    on_all("pointers in an aggregated update", 2, |world| {
        let (n, own) = (world.size(), world.rank());
        let mut by = Aggregator::new(world, &Options::new(world))?;
        let mut table = world.alloc::<u64>(10)?;
        let pointer = GlobalPtr::to(&table, own, 3)?;
        assert_eq!(pointer.get(world)?, 0);
        world.barrier()?;
        let (calls, reached) = (Cell::new(0), Cell::new(0));
        let indices: Vec<usize> = (0..10 * n).collect();
        by.scatter_with(&mut table, &Blocks::new(10 * n, n), &indices, &vec![1; 10 * n], |there, value| {
            calls.set(calls.get() + 1);
            reached.set(reached.get() + usize::from(!matches!(pointer.get(world), Err(Error::Stale { .. }))));
            there + value
        })?;
        assert_eq!((calls.get() > 0, reached.get()), (true, 0), "calls that reached the table");
        assert!(matches!(pointer.get(world), Err(Error::Stale { .. })));
        assert_eq!(GlobalPtr::to(&table, own, 3)?.get(world)?, n as u64);
        world.barrier()
    });
}

#[test]
fn an_aggregated_update_begins_when_futures_are_done_or_over() {
    on_all("aggregated updates after futures", 5, |world| {
        let (n, last) = (world.size(), world.size() - 1);
        let places = Blocks::new(100 * n, n);
        let mut by = Aggregator::new(world, &Options::new(world))?;
        let mut table = world.alloc::<u64>(100)?;
        let adds: Vec<Posted<u64>> = (0..100).map(|i| table.fetch_add_async(last, i, 1000)).collect();
        let updates: Vec<Posted<u64>> =
            (0..100).map(|i| table.fetch_update_async(last, i, |x| x + 1_000_000)).collect();
        let indices: Vec<usize> = (0..100).map(|i| 100 * last + i).collect();
        // The target adds without atomics: what is under way beside it would be lost, or lose some.
        by.scatter_add(&mut table, &places, &indices, &[1; 100])?;
        let mut made = [0, 0];
        for (kind, futures) in [adds, updates].into_iter().enumerate() {
            for future in futures {
                match future.wait() {
                    Ok(_) => made[kind] += 1,
                    Err(error) => drop(over(error)?),
                }
            }
        }
        world.allreduce_sum(&mut made)?;
        if world.rank() == last {
            let sums = [1, 1000, 1_000_000].map(|unit| (0..100).map(|i| table.load(i) / unit % 1000).sum::<u64>());
            assert_eq!(sums, [100 * n as u64, made[0], made[1]], "additions, adds and updates that were made");
        }
        world.barrier()
    });
}
