//! Gather plans.

use bellwether::array::{Distribution, GatherPlan, GlobalArray, Layout};
use bellwether::{Error, Result, Settings, Threads, World};
use bellwether_tests::watchdog;

use super::support::{LIMIT, distributions, everywhere, lines, on_threads, planes, says};

/// Numbers that look like chance, the same each time (xorshift, Marsaglia 2003).
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

/// Lists of every kind: none, all, one over and over, whole stretches, elements of one rank alone, any.
fn list(chance: &mut Chance, kind: usize, extent: usize) -> Vec<usize> {
    match kind {
        0 => Vec::new(),
        1 => (0..extent).rev().collect(),
        2 => vec![chance.below(extent); 5],
        3 => {
            let (a, b) = (chance.below(extent), chance.below(extent));
            (a.min(b)..=a.max(b)).chain(a.min(b)..a.max(b)).collect()
        }
        4 => vec![0, extent - 1, 0],
        _ => (0..chance.below(3 * extent)).map(|_| chance.below(extent)).collect(),
    }
}

/// Over the contract of a network, as `everywhere` does not.
fn by_contract(name: &str, body: impl Fn(&World) -> Result<()> + Sync) {
    let mut settings = Settings::default();
    settings.transport = bellwether_runtime::Transport::ShmContract;
    for ranks in [2, 3, 7] {
        let _guard = watchdog::guard(format!("{name} on {ranks} threads by contract"), LIMIT);
        let ends = Threads::new(ranks).settings(settings.clone()).run(&body).expect("the job starts");
        ends.into_iter().for_each(|end| end.expect("it goes as elsewhere"));
    }
}

/// Executions of plans for random lists give what single gets give, whatever the program does between the halves.
fn as_single_gets_do<const D: usize>(world: &World, layout: Layout<D>, seed: u64) -> Result<()> {
    let (rank, extents) = (world.rank(), layout.extents());
    let position = |number: usize| {
        let (mut index, mut rest) = ([0; D], number);
        for d in (0..D).rev() {
            (index[d], rest) = (rest % extents[d], rest / extents[d]);
        }
        index
    };
    let mut chance = Chance(0x9e37_79b9 + seed * 1000 + rank as u64);
    // Some ranks want much of others that want nothing of them.
    let kind = (seed as usize + rank * chance.below(4)) % 8;
    let numbers = list(&mut chance, kind, layout.len());
    let mut plan = GatherPlan::<u64>::new(world, &layout, &numbers)?;
    assert_eq!((plan.len(), plan.is_empty()), (numbers.len(), numbers.is_empty()));
    let mut owners: Vec<usize> = numbers.iter().map(|number| layout.rank_of(position(*number)).unwrap()).collect();
    owners.sort_unstable();
    owners.dedup();
    owners.retain(|owner| *owner != rank);
    assert_eq!(plan.sources(), owners);
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    distinct.retain(|number| layout.rank_of(position(*number)).unwrap() != rank);
    assert_eq!(plan.remote_len(), distinct.len());

    let mut array = GlobalArray::<u64, D>::new(world, layout)?;
    for round in 1..8 {
        array.iter_mut().for_each(|(index, element)| {
            *element = index.iter().fold(round, |all, i| all * 1000 + *i as u64);
        });
        let mut own = array.local().to_vec();
        let gathering = plan.start(&own)?;
        // What was sent is what was there.
        own.fill(0);
        let mut found = vec![0; numbers.len()];
        // One that is not finished goes out of scope: the next start finishes it. Nothing is done when it is dropped, so to forget it is
        // the same.
        if ![3, 4].contains(&round) {
            gathering.finish(&mut found)?;
        }
        // No meeting between executions, but now and then.
        if round % 3 != 0 {
            continue;
        }
        let shared = array.share(world)?;
        for (number, found) in numbers.iter().zip(found).filter(|_| round != 3) {
            assert_eq!(found, shared.get(position(*number))?, "element {number}, round {round}, rank {rank}");
        }
        array = shared.localize(world)?;
    }
    // Often, so that a rank that runs ahead would be seen; the last one is never finished.
    let mut own = array.local().to_vec();
    let last = world.rank() as u64;
    for round in 0..40 {
        own.fill(round * 100 + last);
        let mut found = vec![0; numbers.len()];
        plan.gather(&own, &mut found)?;
        for (number, found) in numbers.iter().zip(found) {
            let owner = array.layout().rank_of(position(*number)).expect("inside") as u64;
            assert_eq!(found, round * 100 + owner, "element {number}, rank {rank}");
        }
    }
    let _ = plan.start(&own)?;
    // A rank that has left cannot be sent to.
    world.barrier()
}

#[test]
fn plans_give_what_single_gets_give() {
    let body = |world: &World| {
        let n = world.size();
        for (number, layout) in lines(2 * n + 5, n).into_iter().enumerate() {
            as_single_gets_do(world, layout, number as u64)?;
        }
        let mut sizes = vec![0; n];
        (sizes[0], sizes[n - 1]) = (3, 7);
        as_single_gets_do(world, Layout::new([sizes.iter().sum()], [Distribution::Sizes(sizes.clone())], n)?, 5)?;
        as_single_gets_do(world, planes([7, 5], n).swap_remove(0), 11)
    };
    everywhere("plans", body);
    by_contract("plans", body);
}

#[test]
fn random_plans_give_what_single_gets_give() {
    on_threads("random plans", &[2, 3, 5, 7], |world| {
        for seed in 0..40 {
            let n = world.size();
            let kinds = distributions(n);
            let kind = kinds[seed as usize % kinds.len()].clone();
            as_single_gets_do(world, Layout::new([n * 9 + seed as usize], [kind], n)?, seed)?;
        }
        Ok(())
    });
}

/// A rank that only sends must not overwrite what a slow one has not copied: the pattern where nothing comes back.
#[test]
fn a_source_that_wants_nothing_does_not_run_ahead() {
    let body = |world: &World| {
        let (rank, n) = (world.rank(), world.size());
        let layout = Layout::block([64 * n], n)?;
        // All want rank 0's elements, and it wants nobody's.
        let numbers: Vec<usize> = if rank == 0 { Vec::new() } else { (0..64).rev().collect() };
        let mut plan = GatherPlan::<u64>::new(world, &layout, &numbers)?;
        let mut found = vec![0; numbers.len()];
        for round in 0..50u64 {
            let gathering = plan.start(&[round; 64])?;
            if rank > 0 && round.is_multiple_of(8 + rank as u64) {
                std::thread::yield_now();
                world.poll()?;
            }
            gathering.finish(&mut found)?;
            assert!(found.iter().all(|element| *element == round), "round {round}: {found:?}");
        }
        world.barrier()
    };
    everywhere("a source that wants nothing", body);
    by_contract("a source that wants nothing", body);
}

#[test]
fn lists_and_lengths_that_are_wrong_are_told() {
    everywhere("wrong lists", |world| {
        let (rank, n) = (world.rank(), world.size());
        let layout = Layout::block([10 * n], n)?;
        // One rank's list is wrong: all are told.
        let numbers = if rank == n / 2 { vec![3, 10 * n] } else { vec![0] };
        let made = GatherPlan::<u8>::new(world, &layout, &numbers);
        match rank == n / 2 {
            true => says(made, &["entry 1 of the list is element", "but the layout has"]),
            false => {
                assert!(matches!(&made, Err(Error::Agreed { rank, .. }) if *rank == n / 2));
                says(made, &["an element that the layout does not have"]);
            }
        }
        if n > 1 {
            let other = Layout::block([10 * n + usize::from(rank == 0)], n)?;
            says(GatherPlan::<u8>::new(world, &other, &[]), &["the layout of a gather plan"]);
            let fewer = Layout::block([10 * n], n - 1)?;
            says(GatherPlan::<u8>::new(world, &fewer, &[]), &["the layout is for", "ranks"]);
        }
        let mut plan = GatherPlan::<u8>::new(world, &layout, &[0, 10 * n - 1])?;
        says(plan.start(&[1; 11]), &["11 elements", "this rank has 10"]);
        says(plan.gather(&[1; 10], &mut [0; 3]), &["room for 3 elements", "has 2"]);
        // Refused before anything was sent: all go on as before. And a half that is refused is discarded by the next start.
        says(plan.start(&[1; 10])?.finish(&mut [0; 1]), &["room for 1 elements"]);
        let mut found = [0; 2];
        plan.gather(&[7 + rank as u8; 10], &mut found)?;
        assert_eq!(found, [7, 6 + n as u8]);
        world.barrier()
    });
}
