//! What a team's collectives send from node to node, against what they send when they do not ask for nodes.

mod worlds;

use bellwether::{
    Allgather, Allreduce, Alltoall, Broadcast, Collectives, Gather, Reduce, Result, Scan, Scatter, Settings, Simulated,
    Sum, Team, TeamBarrier, sim,
};
use worlds::{expect_all, is_full};

/// Sixteen ranks on four nodes.
const RANKS: usize = 16;
const NODE: usize = 4;

type Body<'a> = &'a (dyn Fn(&Team) -> Result<()> + Sync);

/// Frames and bytes between nodes, virtual nanoseconds, and frames in all, of one call of `body`.
fn cost(algorithms: Collectives, body: Body<'_>) -> [f64; 4] {
    let run = |times: usize| {
        let job = Simulated::new(sim::Config::new(RANKS, 1).nodes(&[NODE])).settings(Settings::default());
        let outcomes = job.run(|world| {
            let team = Team::world(world)?;
            team.set_algorithms(algorithms);
            (0..times).try_for_each(|_| body(&team))
        });
        expect_all(outcomes.expect("the job starts"), "sixteen ranks");
        let crossed = job.network().crossed();
        [crossed.frames, crossed.bytes, job.network().now(), job.network().delivered()]
    };
    let times = if is_full() { 8 } else { 2 };
    let (none, some) = (run(0), run(times));
    std::array::from_fn(|at| (some[at] as f64 - none[at] as f64) / times as f64)
}

#[test]
fn nodes_hear_from_each_other_less_often() {
    let plain = Collectives::default();
    let root = |team: &Team, values: &mut [f64]| team.broadcast(5, values);
    let flat: [(&str, Collectives, Body<'_>); 14] = [
        ("barrier", Collectives { barrier: TeamBarrier::Dissemination, ..plain }, &|team| team.barrier()),
        ("broadcast of 8 B", Collectives { broadcast: Broadcast::Tree, ..plain }, &|team| root(team, &mut [1.0])),
        ("broadcast of 64 KiB", Collectives { broadcast: Broadcast::Tree, ..plain }, &|team| {
            root(team, &mut [1.0; 8192])
        }),
        ("reduce of 8 B", Collectives { reduce: Reduce::Flat, ..plain }, &|team| team.reduce(5, &mut [1.0], Sum)),
        ("allreduce of 8 B", Collectives { allreduce: Allreduce::Doubling, ..plain }, &|team| {
            team.allreduce(&mut [1.0], Sum)
        }),
        ("allreduce of 4 KiB", Collectives { allreduce: Allreduce::Doubling, ..plain }, &|team| {
            team.allreduce(&mut [1.0; 512], Sum)
        }),
        ("allgather of 8 B", Collectives { allgather: Allgather::Bruck, ..plain }, &|team| {
            team.allgather(&[1.0]).map(drop)
        }),
        ("gather of 8 B", Collectives { gather: Gather::Direct, ..plain }, &|team| team.gather(5, &[1.0]).map(drop)),
        ("scatter of 8 B", Collectives { scatter: Scatter::Direct, ..plain }, &|team| {
            team.scatter(5, &[1.0; RANKS][..if team.rank() == 5 { RANKS } else { 0 }], &mut [0.0])
        }),
        ("all-to-all of 8 B", Collectives { alltoall: Alltoall::Direct, ..plain }, &|team| {
            team.alltoall(&[1.0; RANKS]).map(drop)
        }),
        ("all-to-all of 128 B", Collectives { alltoall: Alltoall::Direct, ..plain }, &|team| {
            team.alltoall(&[1.0; RANKS * 16]).map(drop)
        }),
        ("all-to-allv of 0-32 B", Collectives { alltoall: Alltoall::Direct, ..plain }, &|team| {
            let counts: Vec<usize> = (0..RANKS).map(|to| (team.rank() * 7 + to * 3) % 5).collect();
            team.alltoallv(&vec![1.0; counts.iter().sum()], &counts).map(drop)
        }),
        ("scan of 8 B", Collectives { scan: Scan::Gather, ..plain }, &|team| team.scan(&mut [1.0], Sum)),
        ("exclusive scan of 8 B", Collectives { scan: Scan::Gather, ..plain }, &|team| {
            team.exclusive_scan(&mut [1.0], 0.0, Sum)
        }),
    ];
    println!("{:22}{:>26}{:>26}{:>22}", "", "frames between nodes", "bytes", "virtual µs");
    for (name, forced, body) in flat {
        let (without, with) = (cost(forced, body), cost(plain, body));
        print!("{name:22}");
        for at in 0..3 {
            let unit = if at == 2 { 1000.0 } else { 1.0 };
            print!("{:>12.1} -> {:>8.1}", without[at] / unit, with[at] / unit);
        }
        println!();
        assert!(with[0] < without[0] && with[1] < without[1], "{name}: {without:?} without nodes, {with:?} by nodes");
    }
}

/// An algorithm that is forced is the one that runs, also where no rank would choose it: each sends otherwise than the others.
#[test]
fn a_forced_allreduce_is_the_one_that_runs() {
    for ranks in [5, 7, 8] {
        let frames = |allreduce, times: usize| {
            let job = Simulated::new(sim::Config::new(ranks, 1));
            let outcomes = job.run(|world| {
                let team = Team::world(world)?;
                team.set_algorithms(Collectives { allreduce, ..Collectives::default() });
                (0..times).try_for_each(|_| team.allreduce(&mut [1.0; 8], Sum))
            });
            expect_all(outcomes.expect("the job starts"), "a forced allreduce");
            job.network().delivered()
        };
        let all = [Allreduce::Gather, Allreduce::Doubling, Allreduce::Tree, Allreduce::Pieces];
        let sent = all.map(|allreduce| (frames(allreduce, 40) - frames(allreduce, 0), allreduce.name()));
        println!("{ranks} ranks: {sent:?}");
        let different: std::collections::BTreeSet<u64> = sent.iter().map(|(frames, _)| *frames).collect();
        assert_eq!(different.len(), all.len(), "{ranks} ranks: {sent:?}");
    }
}

/// The same for all that can be forced, on two nodes of other sizes: frames between them, bytes, and frames in all. What needs
/// mapped memory is left out.
#[test]
fn every_forced_algorithm_is_the_one_that_runs() {
    const RANKS: usize = 8;
    const ROOT: usize = 1;
    let plain = Collectives::default();
    let sent = |algorithms: Collectives, len: usize, body: &(dyn Fn(&Team, &mut [f64]) -> Result<()> + Sync)| {
        let run = |times: usize| {
            let job = Simulated::new(sim::Config::new(RANKS, 1).nodes(&[3, 5]));
            let outcomes = job.run(|world| {
                let team = Team::world(world)?;
                team.set_algorithms(algorithms);
                (0..times).try_for_each(|_| body(&team, &mut vec![1.0; len]))
            });
            expect_all(outcomes.expect("the job starts"), "a forced algorithm");
            let crossed = job.network().crossed();
            [crossed.frames, crossed.bytes, job.network().delivered()]
        };
        let (none, some) = (run(0), run(if is_full() { 20 } else { 4 }));
        std::array::from_fn::<u64, 3, _>(|at| some[at] - none[at])
    };
    macro_rules! each_sends_otherwise {
        ($field:ident: $of:ident { $($algorithm:ident)* }, $body:expr) => {
            for len in [1, 600] {
                let all = [$(($of::$algorithm, sent(Collectives { $field: $of::$algorithm, ..plain }, len, &$body))),*];
                println!("{len}: {all:?}");
                for (at, (algorithm, own)) in all.iter().enumerate() {
                    let same = all[..at].iter().find(|(_, other)| other == own);
                    assert!(same.is_none(), "{len}: {algorithm:?} sends {own:?}, as does {same:?}");
                }
            }
        };
    }
    each_sends_otherwise!(barrier: TeamBarrier { Dissemination Nodes }, |team, _| team.barrier());
    each_sends_otherwise!(broadcast: Broadcast { Tree Flat Nodes }, |team, values| team.broadcast(ROOT, values));
    each_sends_otherwise!(reduce: Reduce { Tree Flat Nodes }, |team, values| team.reduce(ROOT, values, Sum));
    each_sends_otherwise!(allreduce: Allreduce { Gather Doubling Tree Pieces Nodes }, |team, values| {
        team.allreduce(values, Sum)
    });
    each_sends_otherwise!(gather: Gather { Direct Nodes }, |team, values| team.gather(ROOT, values).map(drop));
    each_sends_otherwise!(allgather: Allgather { Direct Bruck Ring Nodes }, |team, values| {
        team.allgather(values).map(drop)
    });
    each_sends_otherwise!(scatter: Scatter { Direct Nodes }, |team, values| {
        let all = if team.rank() == ROOT { RANKS } else { 0 };
        team.scatter(ROOT, &values.repeat(all), values)
    });
    each_sends_otherwise!(alltoall: Alltoall { Direct Pairwise Nodes }, |team, values| {
        team.alltoall(&values.repeat(RANKS)).map(drop)
    });
    each_sends_otherwise!(scan: Scan { Gather Chain Nodes }, |team, values| team.scan(values, Sum));
}

/// On its node a barrier goes up once and down once, which is less than rounds of everyone.
#[test]
fn a_barrier_by_nodes_says_less_on_nodes_too() {
    let of = |barrier| cost(Collectives { barrier, ..Collectives::default() }, &|team| team.barrier())[3];
    let (rounds, nodes) = (of(TeamBarrier::Dissemination), of(TeamBarrier::Nodes));
    println!("{rounds} frames in rounds, {nodes} by nodes");
    assert!(nodes < rounds, "{nodes} frames by nodes, {rounds} in rounds");
}

/// Also where all parts of the array are mapped: in virtual time a store wakes nobody.
#[test]
fn who_waits_for_an_element_alone_sees_it() {
    use bellwether::array::{GlobalArray, Layout};
    for sizes in [&[2][..], &[1]] {
        let outcomes = Simulated::new(sim::Config::new(2, 1).shared_nodes(sizes)).run(|world| -> Result<()> {
            let line = GlobalArray::<u64, 1>::new(world, Layout::block([8], 2)?)?.share(world)?;
            let plane = GlobalArray::<u64, 2>::new(world, Layout::block([8, 2], 2)?)?.share(world)?;
            for round in 1..=5 {
                let [mine, theirs] = [1, 5].map(|index| (index + 4 * world.rank()) % 8);
                if world.rank() == 0 {
                    line.put(theirs, round)?;
                    world.wait_until(|| plane.get([mine, 1]).is_ok_and(|value| value == round))?;
                } else {
                    world.wait_until(|| line.get(mine).is_ok_and(|value| value == round))?;
                    plane.put([theirs, 1], round)?;
                }
            }
            world.barrier()
        });
        expect_all(outcomes.expect("the job starts"), "two ranks");
    }
}
