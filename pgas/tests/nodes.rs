//! What a team's collectives send from node to node, against what they send when they do not ask for nodes.

mod worlds;

use bellwether::{
    Allgather, Allreduce, Broadcast, Collectives, Reduce, Result, Settings, Simulated, Sum, Team, TeamBarrier, sim,
};
use worlds::expect_all;

/// Sixteen ranks on four nodes.
const RANKS: usize = 16;
const NODE: usize = 4;
const TIMES: usize = 8;

type Body<'a> = &'a (dyn Fn(&Team) -> Result<()> + Sync);

/// Frames and bytes between nodes, and virtual nanoseconds, of one call of `body`.
fn cost(algorithms: Collectives, body: Body<'_>) -> [f64; 3] {
    let run = |times: usize| {
        let job = Simulated::new(sim::Config::new(RANKS, 1).nodes(&[NODE])).settings(Settings::default());
        let outcomes = job.run(|world| {
            let team = Team::world(world)?;
            team.set_algorithms(algorithms);
            (0..times).try_for_each(|_| body(&team))
        });
        expect_all(outcomes.expect("the job starts"), "sixteen ranks");
        let crossed = job.network().crossed();
        [crossed.frames, crossed.bytes, job.network().now()]
    };
    let (none, some) = (run(0), run(TIMES));
    std::array::from_fn(|at| (some[at] as f64 - none[at] as f64) / TIMES as f64)
}

#[test]
fn nodes_hear_from_each_other_less_often() {
    let plain = Collectives::default();
    let root = |team: &Team, values: &mut [f64]| team.broadcast(5, values);
    let flat: [(&str, Collectives, Body<'_>); 7] = [
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
