//! How often elements that are apart go over the network and back: seen in the simulator's own time, which is the same each
//! time a test runs.

use bellwether::array::{Distribution, GlobalArray, Layout};
use bellwether::{GlobalPtr, Posted, Result, Simulated, Symmetric, World, sim::Config};
use bellwether_tests::watchdog;

/// Runs `body` on two ranks of an orderly network. What it gets tells how long something takes.
fn timed(name: &str, body: impl Fn(&World, &dyn Fn() -> u64) -> Result<()> + Sync) {
    let _guard = watchdog::guard(name, std::time::Duration::from_secs(600));
    let mut config = Config::new(2, 5);
    // Far more than anything else takes.
    config.latency = 100_000;
    let job = Simulated::new(config);
    for outcome in job.run(|world| body(world, &|| job.network().now())).expect("the job runs") {
        outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Times `work` against one get.
struct Clock<'a> {
    now: &'a dyn Fn() -> u64,
    memory: &'a Symmetric<u64>,
}

impl Clock<'_> {
    fn time<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<(u64, R)> {
        let before = (self.now)();
        let result = work()?;
        Ok(((self.now)() - before, result))
    }

    /// As many ways there and back as `work` takes, rounded.
    fn round_trips<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<(u64, R)> {
        // The first one learns where that memory is.
        self.memory.get(1, 0)?;
        let (one, _) = self.time(|| self.memory.get(1, 0))?;
        let (all, result) = self.time(work)?;
        Ok(((all + one / 2) / one, result))
    }
}

const N: usize = 48;

/// More than one, where there are more requests than the network has room for; far fewer than one for each element.
#[track_caller]
fn few<R: PartialEq + std::fmt::Debug>((trips, result): (u64, R), expected: &R) {
    assert!(trips <= 3, "{trips} round trips");
    assert_eq!(result, *expected);
}

#[test]
fn elements_apart_are_asked_for_together() {
    timed("elements apart", |world, now| {
        let memory = world.alloc::<u64>(3 * N)?;
        (0..3 * N).for_each(|i| memory.store(i, (1000 * world.rank() + i) as u64));
        world.barrier()?;
        if world.rank() == 0 {
            let clock = Clock { now, memory: &memory };
            let all = GlobalPtr::to(&memory, 1, 0)?.slice(3 * N);
            let indices: Vec<usize> = (0..N).map(|i| i * 7 % (3 * N)).collect();
            let one_by_one = |numbers: &mut dyn Iterator<Item = usize>| {
                numbers.map(|number| all.at(number)?.get(world)).collect::<Result<Vec<u64>>>()
            };
            let (trips, strided) = clock.round_trips(|| one_by_one(&mut (0..N).map(|i| 3 * i)))?;
            assert_eq!(trips, N as u64, "what the others are measured by");
            let gathered = one_by_one(&mut indices.iter().copied())?;
            few(clock.round_trips(|| all.get_strided(world, 0, 3, N))?, &strided);
            few(clock.round_trips(|| all.get_strided_async(world, 0, 3, N)?.wait())?, &strided);
            few(clock.round_trips(|| all.gather(world, &indices))?, &gathered);
            few(clock.round_trips(|| all.gather_async(world, &indices)?.wait())?, &gathered);
            let values: Vec<u64> = (0..N as u64).collect();
            few(clock.round_trips(|| all.put_strided(world, 1, 3, &values))?, &());
            few(clock.round_trips(|| all.scatter(world, &indices, &values))?, &());
            world.fence();
            few(clock.round_trips(|| all.put_strided_async(world, 2, 3, &values)?.wait())?, &());
            few(clock.round_trips(|| all.scatter_async(world, &indices, &values)?.wait())?, &());
        }
        world.barrier()
    });
}

#[test]
fn rows_of_a_box_are_under_way_together() {
    timed("rows", |world, now| {
        let memory = world.alloc::<u64>(1)?;
        for kind in [Distribution::Block, Distribution::Cyclic] {
            let layout = Layout::on_grid([N, 8], [Distribution::Block, kind], [1, 2], 2)?;
            let value = |[i, j]: [usize; 2]| (100 * i + j) as u64;
            let array = GlobalArray::from_fn(world, layout, value)?.share(world)?;
            world.barrier()?;
            if world.rank() == 0 {
                let clock = Clock { now, memory: &memory };
                let expected: Vec<u64> = (0..N).flat_map(|i| (3..8).map(move |j| value([i, j]))).collect();
                let region = [0..N, 3..8];
                array.get([0, 7])?;
                few(clock.round_trips(|| array.get_patch(region.clone()))?, &expected);
                few(clock.round_trips(|| array.get_patch_async(region.clone())?.wait())?, &expected);
                few(clock.round_trips(|| array.put_patch(region.clone(), &expected))?, &());
                world.fence();
                few(clock.round_trips(|| array.put_patch_async(region.clone(), &expected)?.wait())?, &());
            }
            world.barrier()?;
        }
        Ok(())
    });
}

#[test]
fn updates_that_are_polled_in_turn_overlap() {
    timed("updates", |world, now| {
        let memory = world.alloc::<u64>(1)?;
        let layout = Layout::block([2 * N], 2)?;
        let array = GlobalArray::<f64, 1>::new(world, layout)?.share(world)?;
        world.barrier()?;
        if world.rank() == 0 {
            let clock = Clock { now, memory: &memory };
            let post = || (N..2 * N).map(|i| array.accumulate_async(i, 0.5)).collect::<Result<Vec<Posted<f64>>>>();
            array.get(N)?;
            let (trips, before) = clock.round_trips(|| Posted::wait_all(post()?))?;
            assert!(before == [0.0; N] && (2..=4).contains(&trips), "{trips} round trips: {before:?}");
            // As it says: their first steps are made together, each second one by itself.
            let one_by_one = || post()?.into_iter().map(|one| one.wait()).collect::<Result<Vec<f64>>>();
            let (trips, before) = clock.round_trips(one_by_one)?;
            assert!(before == [0.5; N] && trips >= N as u64, "{trips} round trips: {before:?}");
        }
        world.barrier()
    });
}
