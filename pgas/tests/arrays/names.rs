//! Errors of a call that is made of others name the call.

use bellwether::aggregate::{Aggregator, Blocks, Options, Push};
use bellwether::array::{GatherPlan, Ghosts, GlobalArray, Layout};
use bellwether::{DistHashMap, DistQueue, Error, Result, Simulated, Symmetric, Team, World, sim, threads};
use bellwether_tests::watchdog;

use crate::support::LIMIT;

const RANKS: usize = 3;

/// What a rank needs, made while all are there.
struct Things<'w> {
    world: &'w World,
    numbers: GlobalArray<u64, 1>,
    dealt: GlobalArray<u64, 1>,
    plane: GlobalArray<u64, 2>,
    ghosts: GlobalArray<u64, 1>,
    by: Aggregator<'w, u64>,
    map: DistHashMap<'w, u64, u64>,
    table: Symmetric<u64>,
    push: Push<'w, u64>,
    plan: GatherPlan<u64>,
    /// Made for the call that needs it: others make their own, and differ there.
    all: Option<Team>,
}

impl<'w> Things<'w> {
    fn new(world: &'w World, name: &str) -> Result<Things<'w>> {
        let line = Layout::block([30], RANKS)?;
        Ok(Things {
            world,
            numbers: GlobalArray::from_fn(world, line.clone(), |[i]| i as u64 * 7 % 30)?,
            dealt: GlobalArray::new(world, Layout::cyclic([30], RANKS)?)?,
            plane: GlobalArray::new(world, Layout::rows([6, 4], RANKS)?)?,
            ghosts: GlobalArray::with_ghosts(world, line, Ghosts::new([1]).periodic([true]))?,
            by: Aggregator::new(world, &Options::new(world))?,
            map: DistHashMap::new(world)?,
            table: world.alloc(10)?,
            push: Push::new(world, &Options::new(world), drop::<u64>)?,
            plan: GatherPlan::new(world, &Layout::block([30], RANKS)?, &[0, 15, 29])?,
            all: (name == "team_along").then(|| Team::world(world)).transpose()?,
        })
    }

    fn call(mut self, name: &str) -> Result<()> {
        let (world, line) = (self.world, self.dealt.layout().clone());
        match name {
            "GlobalArray::new" => GlobalArray::<u64, 1>::new(world, line).map(drop),
            "from_fn" => GlobalArray::from_fn(world, line, |[i]| i).map(drop),
            "from_root" => GlobalArray::<u64, 1>::from_root(world, line, 0, Some(&[0; 30])).map(drop),
            "to_root" => self.numbers.to_root(world, 0).map(drop),
            "map" => self.numbers.map(world, |n| n + 1).map(drop),
            "sum" => self.numbers.sum(world).map(drop),
            "dot" => self.numbers.dot(world, &self.numbers).map(drop),
            "reduce" => self.numbers.reduce(world, 0, |a, b| a + b, |a, b| a + b).map(drop),
            "sort" => self.numbers.sort(world).map(drop),
            "scan" => self.numbers.scan(world, |a, b| a + b).map(drop),
            "prefix_sum" => self.numbers.prefix_sum(world).map(drop),
            "relayout" => self.numbers.relayout(world, line).map(drop),
            "copy_into" => self.numbers.copy_into(world, self.dealt).map(drop),
            "transpose" => self.plane.transpose(world, Layout::rows([4, 6], RANKS)?).map(drop),
            "share" => self.numbers.share(world).map(drop),
            "exchange" => self.ghosts.exchange(),
            "gather" => self.numbers.gather(&mut self.by, &[0, 15, 29]).map(drop),
            "scatter_add" => self.numbers.scatter_add(&mut self.by, &[0, 15, 29], &[1, 1, 1]),
            "fetch_add_all" => self.numbers.fetch_add_all(&mut self.by, &[29], &[1]).map(drop),
            "fetch_add" => self.by.fetch_add(&mut self.table, &Blocks::new(30, RANKS), &[29], &[1]).map(drop),
            "Aggregator::new" => Aggregator::<u64>::new(world, &Options::new(world)).map(drop),
            "Push::new" => Push::new(world, &Options::new(world), drop::<u64>).map(drop),
            "Push::finish" => self.push.finish(),
            "save_npy" => self.numbers.save_npy(world, std::env::temp_dir().join("never-written.npy")),
            "DistHashMap::len" => self.map.len().map(drop),
            "DistQueue::new" => DistQueue::<u64>::new(world).map(drop),
            "Team::world" => Team::world(world).map(drop),
            "Aggregator::gather" => self.by.gather(&self.table, &Blocks::new(30, RANKS), &[29]).map(drop),
            "team_along" => {
                let all = self.all.as_ref().expect("made for it");
                Layout::rows([6, 4], RANKS)?.team_along(all, 0).map(drop)
            }
            "Pending::finish" => self.ghosts.start_exchange()?.finish(),
            "GatherPlan::gather" => self.plan.gather(&[0; 10], &mut [0; 3]),
            other => panic!("no call {other}"),
        }
    }
}

const CALLS: [&str; 27] = [
    "GlobalArray::new",
    "from_fn",
    "from_root",
    "to_root",
    "map",
    "sum",
    "dot",
    "reduce",
    "sort",
    "scan",
    "prefix_sum",
    "relayout",
    "copy_into",
    "transpose",
    "share",
    "exchange",
    "gather",
    "scatter_add",
    "fetch_add_all",
    "fetch_add",
    "Aggregator::new",
    "Push::new",
    "Push::finish",
    "save_npy",
    "DistHashMap::len",
    "DistQueue::new",
    "Team::world",
];

/// The errors of ranks 0 and 2, as threads and on a network, where rank 1 does something else.
fn told(name: &str, other: fn(Things<'_>) -> Result<()>) -> Vec<(Error, &'static str)> {
    let _guard = watchdog::guard(name, LIMIT);
    let program = |world: &World| {
        let things = Things::new(world, name)?;
        if world.rank() == 1 { other(things) } else { things.call(name) }
    };
    let mut all = Vec::new();
    for kind in ["threads", "a network"] {
        let outcomes = match kind {
            "threads" => threads(RANKS, program),
            _ => Simulated::new(sim::Config::new(RANKS, 1)).run(program),
        };
        let outcomes = outcomes.expect("the job starts").into_iter().enumerate();
        all.extend(outcomes.filter(|(rank, _)| *rank != 1).map(|(rank, outcome)| {
            (outcome.expect_err(&format!("{name}, {kind}, rank {rank}: nobody can do it without rank 1")), kind)
        }));
    }
    all
}

#[test]
fn a_rank_that_is_lost_is_told_with_the_call() {
    for name in CALLS {
        for (error, kind) in told(name, |_| Ok(())) {
            let said = error.to_string();
            assert!(said.contains(&format!("in `{name}`: ")), "{name}, {kind}: {said}");
            let Error::PeerLost { doing, .. } = error else { panic!("{name}, {kind}: {said}") };
            assert_eq!(doing.call(), name, "{kind}: {said}");
            assert_eq!(doing.place().map(|place| place.file()), Some(file!()), "{name}, {kind}: {said}");
        }
    }
}

/// Of calls that are told by the name of a step, too.
#[test]
fn a_rank_that_is_lost_is_told_with_the_place() {
    for name in ["Aggregator::gather", "team_along", "Pending::finish", "GatherPlan::gather"] {
        for (error, kind) in told(name, |_| Ok(())) {
            let said = error.to_string();
            let Error::PeerLost { doing, .. } = error else { panic!("{name}, {kind}: {said}") };
            assert_eq!(doing.place().map(|place| place.file()), Some(file!()), "{name}, {kind}: {said}");
        }
    }
}

#[test]
fn a_rank_in_another_call_is_told_with_both() {
    for name in ["sort", "map", "relayout", "from_root", "to_root", "GlobalArray::new"] {
        for (error, kind) in told(name, |things| things.call("sum")) {
            let said = error.to_string();
            assert!(said.contains(&format!("in `{name}`")), "{name}, {kind}: {said}");
            // Over a network the first to find out leaves, and may be missed before its call is looked at.
            let differ = matches!(error, Error::RanksDiffer { .. });
            assert!(differ || kind != "threads", "{name}, {kind}: {said}");
        }
    }
    // Both sides in full, where the difference shows in what they exchange.
    for (error, kind) in told("dot", |things| things.world.allreduce_sum(&mut [1.5f32; 4])) {
        let said = error.to_string();
        let both = [
            "rank 1 has an allreduce of 4 elements of type f32 by Sum, called at ",
            "rank 0 has an allreduce of 1 elements of type u64 by Sum in `dot`, called at ",
            "names.rs:",
        ];
        assert!(both.iter().all(|side| said.contains(side)), "{kind}: {said}");
    }
}

/// The name goes with the call, also where that fails.
#[test]
fn a_name_ends_with_its_call() {
    let outcomes = threads(2, |world| {
        let wrong = GlobalArray::<u64, 1>::new(world, Layout::block([4], 5)?).expect_err("5 is not 2").to_string();
        assert!(wrong.starts_with("GlobalArray::new: "), "{wrong}");
        if world.rank() == 1 { Ok(()) } else { world.barrier() }
    });
    let said = outcomes.expect("the job starts")[0].as_ref().expect_err("rank 1 has left").to_string();
    assert!(said.starts_with("barrier: rank 1"), "{said}");
}
