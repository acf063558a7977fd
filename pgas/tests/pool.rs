//! Threads of a rank: what they iterate over, and puts and gets from them while the world's thread waits.

mod worlds;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bellwether::array::{Distribution, Ghosts, GlobalArray, Layout};
use bellwether::rayon::{self, prelude::*};
use bellwether::{Pool, Result, Settings, Threads, Transport, World};
use bellwether_tests::serving::is_set;
use bellwether_tests::watchdog;
use worlds::everywhere;

/// Joins within joins, as far as single elements.
fn sum(range: std::ops::Range<usize>, element: &(impl Fn(usize) -> Result<u64> + Sync)) -> Result<u64> {
    if range.len() == 1 {
        return element(range.start);
    }
    let middle = (range.start + range.end) / 2;
    let (low, high) = rayon::join(|| sum(range.start..middle, element), || sum(middle..range.end, element));
    Ok(low? + high?)
}

fn reach_everyone(world: &World) -> Result<()> {
    const LEN: usize = 9;
    let numbers = world.alloc::<u64>(LEN)?;
    let marks = world.alloc::<u32>(world.size() * LEN)?;
    (0..LEN).for_each(|at| numbers.store(at, (world.rank() * 1000 + at) as u64));
    world.barrier()?;
    for pool in [Pool::new(world)?, Pool::with_threads(world, 3)?] {
        assert!(pool.threads() >= 1);
        let (numbers, marks) = (pool.share(&numbers), pool.share(&marks));
        let (rank, size) = (world.rank(), world.size());
        let total = pool.install(|| {
            sum(0..size * LEN, &|at| {
                marks.put(at / LEN, rank * LEN + at % LEN, 1 + rank as u32)?;
                numbers.get(at / LEN, at % LEN)
            })
        })?;
        let expected: usize = (0..size).map(|rank| (0..LEN).map(|at| rank * 1000 + at).sum::<usize>()).sum();
        assert_eq!(total, expected as u64);
        let error = pool.install(|| numbers.get(size, 0)).expect_err("no such rank").to_string();
        assert!(error.contains(&format!("rank {size} does not exist")), "{error}");
        world.barrier()?;
    }
    for from in 0..world.size() {
        assert!((0..LEN).all(|at| marks.load(from * LEN + at) == 1 + from as u32));
    }
    Ok(())
}

#[test]
fn threads_of_a_rank_reach_other_ranks() {
    everywhere(reach_everyone);
}

/// A parallel iterator gives what the one without threads gives, from whichever end.
fn as_without_threads<const D: usize>(world: &World, pool: &Pool, layout: Layout<D>, ghost: [usize; D]) -> Result<()> {
    let value = |index: [usize; D]| index.iter().fold(7, |all, i| all * 31 + *i as u64);
    let mut array = GlobalArray::with_ghosts(world, layout, Ghosts::new(ghost))?;
    array.local_mut().fill(1);
    let all = array.par_iter_mut();
    pool.install(|| all.for_each(|(index, x)| *x = value(index)));
    assert!(array.iter().all(|(index, x)| *x == value(index)));
    let own: usize = array.own_extents().iter().product();
    assert_eq!(array.local().iter().filter(|x| **x == 1).count(), array.local().len() - own, "no ghost was touched");

    let expected: Vec<_> = array.iter().map(|(index, x)| (index, *x)).collect();
    for most in [1, 3, usize::MAX] {
        let copied = array.par_iter().with_max_len(most).map(|(index, x)| (index, *x));
        assert_eq!(pool.install(|| copied.collect::<Vec<_>>()), expected);
        let backwards = array.par_iter().with_max_len(most).rev().map(|(index, x)| (index, *x));
        assert!(pool.install(|| backwards.collect::<Vec<_>>()).iter().eq(expected.iter().rev()));
    }
    let twice = array.map(world, |x| 2 * x)?;
    assert!(array.zip(&twice)?.map(|(index, x, y)| (index, *x, *y)).eq(expected.iter().map(|(i, x)| (*i, *x, 2 * x))));
    let pairs = array.par_zip(&twice)?.map(|(index, x, y)| (index, *x, *y));
    let pairs = pool.install(|| pairs.collect::<Vec<_>>());
    assert!(pairs.into_iter().eq(expected.iter().map(|(i, x)| (*i, *x, 2 * x))));
    let pairs = array.par_zip_mut(&twice)?;
    pool.install(|| {
        pairs.for_each(|(index, x, y)| {
            assert_eq!(*x, value(index));
            *x += y;
        });
    });
    assert!(array.iter().all(|(index, x)| *x == 3 * value(index)));
    array.zip_mut(&twice)?.for_each(|(_, x, y)| *x -= y);
    assert!(array.iter().all(|(index, x)| *x == value(index)));
    Ok(())
}

#[test]
fn what_is_here_in_parallel() {
    everywhere(|world| {
        let (n, pool) = (world.size(), Pool::with_threads(world, 2)?);
        use Distribution::*;
        for kind in
            [Block, Cyclic, BlockCyclic(3), Sizes((0..n).map(|rank| if rank == n - 1 { 13 } else { 0 }).collect())]
        {
            as_without_threads(world, &pool, Layout::new([13], [kind], n)?, [0])?;
        }
        as_without_threads(world, &pool, Layout::block([4 * n + 1], n)?, [3])?;
        as_without_threads(world, &pool, Layout::cyclic([5, 7], n)?, [0, 0])?;
        as_without_threads(world, &pool, Layout::block([2 * n, 15], n)?, [1, 2])?;
        as_without_threads(world, &pool, Layout::block([2 * n, 8, 9], n)?, [1, 2, 1])
    });
}

#[test]
fn any_element_from_threads_within_threads() {
    everywhere(|world| {
        let (n, pool) = (world.size(), Pool::with_threads(world, 2)?);
        let layout = Layout::block([4 * n, 6], n)?;
        let numbers = GlobalArray::from_fn(world, layout.clone(), |[i, j]| (10 * i + j) as u64)?.share(world)?;
        let mirror = GlobalArray::<u64, 2>::new(world, layout)?.share(world)?;
        let turns = GlobalArray::<u64, 1>::new(world, Layout::cyclic([4 * n], n)?)?;
        let (from, to, rows) = (numbers.pooled(&pool), mirror.pooled(&pool), turns.par_iter());
        // Rows in parallel, elements of a row in parallel, and in an `install` of its own.
        pool.install(|| {
            rows.try_for_each(|([i], _)| {
                let row = (0..6).into_par_iter();
                row.try_for_each(|j| to.put([i, j], from.get([4 * n - 1 - i, 5 - j])?))
            })
        })?;
        let outside = pool.install(|| from.get([4 * n, 0])).expect_err("outside").to_string();
        assert!(outside.contains(&format!("index [{}, 0] is outside", 4 * n)), "{outside}");
        drop((from, to));
        let mirror = mirror.localize(world)?;
        assert!(mirror.iter().all(|([i, j], x)| *x == (10 * (4 * n - 1 - i) + 5 - j) as u64));
        Ok(())
    });
}

#[test]
fn many_requests_that_wait_do_not_pile_up() {
    worlds::simulated(&bellwether::Settings::default(), &[2], 1, |world| {
        let numbers = world.alloc::<u64>(1)?;
        numbers.store(0, 1);
        world.barrier()?;
        let (pool, next) = (Pool::with_threads(world, 1)?, 1 - world.rank());
        let there = pool.share(&numbers);
        // Each would take a piece of the stack until it is answered, and the others above it theirs.
        let large = |_| {
            let piece = std::hint::black_box([1_u8; 16 << 10]);
            Ok(there.get(next, 0)? * u64::from(piece[9]))
        };
        assert_eq!(pool.install(|| sum(0..1000, &large))?, 1000);
        world.barrier()
    });
}

#[test]
fn a_panic_of_a_task_is_the_callers() {
    worlds::on_threads(&bellwether::Settings::default(), &[1, 2], |world| {
        let pool = Pool::new(world)?;
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.install(|| (0..100).into_par_iter().for_each(|i| assert!(i != 57, "fifty-seven")))
        }));
        assert!(caught.is_err());
        assert_eq!(pool.install(|| 3), 3);
        world.barrier()
    });
}

#[test]
fn arrays_of_different_layouts_are_not_zipped() {
    everywhere(|world| {
        let n = world.size();
        // Equal numbers of elements on each rank, of other indices where there is more than one.
        let mut a = GlobalArray::<u32, 1>::new(world, Layout::block([4 * n], n)?)?;
        let other = GlobalArray::<f64, 1>::new(world, Layout::new([4 * n], [Distribution::BlockCyclic(2)], n)?)?;
        assert_eq!(a.local().len(), other.local().len());
        let refused = [
            a.zip(&other).err(),
            a.par_zip(&other).err(),
            a.zip_mut(&other).err(),
            a.par_zip_mut(&other).err(),
            a.zip_update(&other, |_, _| ()).err(),
        ];
        for (error, call) in refused.into_iter().zip(["zip", "par_zip", "zip_mut", "par_zip_mut", "zip_update"]) {
            if n == 1 {
                assert!(error.is_none(), "one rank has all elements in their order");
                continue;
            }
            let error = error.expect("the layouts differ").to_string();
            for fact in [call, "different layouts", "block", "blocks of 2 in turn"] {
                assert!(error.contains(fact), "{error:?} does not say {fact:?}");
            }
        }
        // What is told apart by the grid of ranks alone.
        let plane = |grid| Layout::on_grid([n, n], [const { Distribution::Block }; 2], grid, n);
        let rows = GlobalArray::<u8, 2>::new(world, plane([n, 1])?)?;
        let columns = GlobalArray::<u8, 2>::new(world, plane([1, n])?)?;
        assert_eq!((rows.par_zip(&columns).is_ok(), rows.par_zip(&rows).is_ok()), (n == 1, true));
        world.barrier()
    });
}

/// A handle is good on any thread. In virtual time it needs an `install` on a thread that is not the world's.
fn ask_from_each_kind_of_thread(world: &World, is_simulated: bool) -> Result<()> {
    let numbers = world.alloc::<u64>(3)?;
    numbers.store(1, 40 + world.rank() as u64);
    world.barrier()?;
    let next = (world.rank() + 1) % world.size();
    let (one, two) = (Pool::with_threads(world, 2)?, Pool::with_threads(world, 2)?);
    let of_one = one.share(&numbers);
    let expected = 40 + next as u64;
    assert_eq!(of_one.get(next, 1)?, expected, "the world's thread");
    assert_eq!(two.install(|| of_one.get(next, 1))?, expected, "another pool");
    two.install(|| of_one.put(next, 0, 1))?;
    let outside = || std::thread::scope(|scope| scope.spawn(|| of_one.get(next, 1)).join().expect("does not panic"));
    for what in ["a thread of the program", "after an install that has panicked"] {
        match outside() {
            Err(error) if is_simulated => {
                assert!(error.to_string().contains("while that thread is in Pool::install"), "{error}")
            }
            outcome => assert_eq!(outcome?, expected, "{what}"),
        }
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one.install(|| panic!("on purpose"))));
        assert!(caught.is_err());
    }
    assert_eq!(one.install(outside)?, expected, "a thread of the program, inside an install");
    // Another pool of rayon's, for which a thread of this one waits.
    let inner = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads start");
    let sum = one.install(|| inner.install(|| sum(0..50, &|_| of_one.get(next, 1))))?;
    assert_eq!(sum, 50 * expected);
    world.barrier()
}

#[test]
fn a_handle_of_a_pool_is_good_on_any_thread() {
    let settings = bellwether::Settings::default();
    worlds::on_threads(&settings, &[1, 2], |world| ask_from_each_kind_of_thread(world, false));
    let mut contract = settings.clone();
    contract.transport = bellwether_runtime::Transport::ShmContract;
    worlds::on_threads(&contract, &[1, 2, 3], |world| ask_from_each_kind_of_thread(world, false));
    worlds::simulated(&settings, &[1, 2, 3], 1, |world| ask_from_each_kind_of_thread(world, true));
}

#[test]
fn a_pool_that_nobody_uses_keeps_no_wait_from_its_end() {
    let _guard = watchdog::guard("a rank leaves ranks with pools", worlds::LIMIT);
    let mut settings = bellwether::Settings::default();
    settings.transport = bellwether_runtime::Transport::ShmContract;
    let outcomes = Threads::new(3).settings(settings).run(|world| {
        let (array, bell) = (world.alloc::<u64>(1)?, world.bell()?);
        let pool = Pool::new(world)?;
        let handle = pool.share(&array);
        pool.install(|| handle.put(0, 0, 1))?;
        drop(handle);
        world.barrier()?;
        // Rank 0 leaves.
        if world.rank() == 0 { Ok(()) } else { bell.wait(1).map(drop) }
    });
    for outcome in &outcomes.expect("threads start")[1..] {
        assert!(matches!(outcome, Err(bellwether::Error::PeerLost { rank: 0, .. })), "{outcome:?}");
    }
}

/// The cores that the calling thread may run on.
fn cores_of_this_thread() -> BTreeSet<usize> {
    let set = rustix::thread::sched_getaffinity(None).expect("the system tells");
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

#[test]
fn each_thread_of_the_ranks_pools_has_a_core_of_its_own() {
    let allowed = cores_of_this_thread();
    for ranks in [1, 2] {
        if allowed.len() < ranks {
            println!("skipped with {ranks} ranks: {} cores", allowed.len());
            continue;
        }
        let _guard = watchdog::guard(format!("{ranks} ranks with pinned threads"), worlds::LIMIT);
        let outcomes = Threads::new(ranks).run(|world| {
            let pool = Pool::new(world)?;
            assert!(pool.is_pinned(), "rank {} of {ranks}, {} cores", world.rank(), allowed.len());
            assert!(format!("{pool:?}").contains("threads, pinned"));
            let cores = pool.install(|| rayon::broadcast(|_| cores_of_this_thread()));
            assert_eq!(cores.len(), pool.threads());
            world.barrier()?;
            Ok(cores)
        });
        let cores = outcomes.expect("threads start").into_iter().collect::<Result<Vec<_>>>().expect("runs").concat();
        let mut taken = BTreeSet::new();
        for core in &cores {
            assert!(core.len() == 1 && core.is_subset(&allowed), "{cores:?} of {allowed:?}");
            assert!(taken.is_disjoint(core), "{cores:?}");
            taken.extend(core);
        }
        assert_eq!(taken, allowed, "none is left idle");
    }
}

#[test]
fn a_rank_that_waits_for_its_pool_sleeps_while_nothing_comes() {
    const IDLE: Duration = Duration::from_millis(500);
    let cpu_time = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    worlds::on_threads(&bellwether::Settings::default(), &[2], |world| {
        let pool = Pool::with_threads(world, 1)?;
        world.barrier()?;
        if world.rank() == 1 {
            let once = || {
                let before = cpu_time();
                pool.install(|| std::thread::sleep(IDLE));
                cpu_time() - before
            };
            // Of this thread alone, however busy the machine is. What a host takes from a virtual machine may count too.
            let used = (0..3).map(|_| once()).min().expect("three");
            assert!(used < IDLE / 20, "{used:?} of {IDLE:?}");
        }
        world.barrier()
    });
}

/// Rank 1 delivers calls while its pool works, as `began` tells. One of them panics, and the work ends by a later one.
fn is_served(world: &World, began: &AtomicBool) -> Result<()> {
    let over = Arc::new(AtomicBool::new(false));
    world.set_state(Arc::clone(&over));
    let pool = Pool::with_threads(world, 1)?;
    world.barrier()?;
    if world.rank() == 1 {
        let ended = AtomicBool::new(false);
        let work = || {
            began.store(true, Ordering::Release);
            ended.store(is_set(&over), Ordering::Relaxed);
        };
        let caught = catch_unwind(AssertUnwindSafe(|| pool.install(work)));
        assert_eq!(caught.expect_err("panics").downcast_ref(), Some(&"of a handler"));
        assert!(ended.load(Ordering::Relaxed), "the rank serves until the work ends");
    } else {
        // Else the handler might run in the barrier, and its panic come out of that.
        while !began.load(Ordering::Acquire) {
            // Messages of the barrier may still wait to be sent.
            world.poll()?;
            std::thread::yield_now();
        }
        for round in 0..5 {
            // Long enough that rank 1 may have fallen asleep.
            world.sleep(Duration::from_millis(3));
            assert_eq!(world.call(1, round, |_, x: u32| x + 1)?.wait()?, round + 1);
        }
        world.invoke(1, (), |_, ()| panic!("of a handler"))?;
        world.invoke(1, (), |context, ()| {
            let over = context.state::<Arc<AtomicBool>>().expect("set before the barrier");
            over.store(true, Ordering::Release);
        })?;
    }
    // Rank 0 hears of the panic, here or in a later call, and may leave.
    let _ = world.barrier();
    Ok(())
}

#[test]
fn a_rank_serves_while_its_pool_works() {
    for transport in [Transport::Auto, Transport::ShmContract, Transport::Tcp] {
        let mut settings = Settings::default();
        settings.transport = transport;
        let began = AtomicBool::new(false);
        worlds::on_threads(&settings, &[2], |world| is_served(world, &began));
    }
}
