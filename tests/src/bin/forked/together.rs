//! Calls of all ranks, on the world, teams, arrays, plans, maps and queues, each an error in a child.

use std::rc::Rc;
use std::time::Duration;

use bellwether::array::{GatherPlan, Ghosts, Shared};
use bellwether::{
    DistHashMap, DistQueue, GlobalArray, LandingId, Layout, Pending, Result, Sum, Team, Transport, World,
};

/// Elements at each rank.
const HERE: usize = 8;

/// What a rank makes before it forks. A child has a copy of it.
pub struct Together<'w> {
    team: Team,
    /// Started before the fork, and finished after it.
    under: Pending<Vec<u64>>,
    plan: GatherPlan<u64>,
    shared: GlobalArray<u64, 1, Shared>,
    ghosts: GlobalArray<u64, 1>,
    map: DistHashMap<'w, u64, u64>,
    queue: DistQueue<'w, u64>,
}

fn lines(world: &World) -> Layout<1> {
    Layout::block([HERE * world.size()], world.size()).expect("as many lines as ranks, or more")
}

/// The elements of this rank, and those that its plan asks for: the first of each rank.
fn own(world: &World) -> (Vec<u64>, Vec<u64>) {
    let first = |rank: usize| (100 * rank) as u64;
    ((0..HERE as u64).map(|i| first(world.rank()) + i).collect(), (0..world.size()).map(first).collect())
}

impl<'w> Together<'w> {
    /// Collective.
    pub fn new(world: &'w World) -> Result<Together<'w>> {
        let team = Team::world(world)?.split(Some(7), 0)?.expect("a colour");
        let firsts: Vec<usize> = (0..world.size()).map(|rank| HERE * rank).collect();
        let shared = GlobalArray::from_fn(world, lines(world), |[i]| i as u64)?.share(world)?;
        Ok(Together {
            under: team.allreduce_async(vec![1u64], Sum),
            team,
            plan: GatherPlan::new(world, &lines(world), &firsts)?,
            shared,
            ghosts: GlobalArray::with_ghosts(world, lines(world), Ghosts::new([1]).periodic([true]))?,
            map: DistHashMap::new(world)?,
            queue: DistQueue::new(world)?,
        })
    }

    /// Nothing has happened at the parent. Collective.
    pub fn end(mut self, world: &World) -> Result<()> {
        let (n, rank) = (world.size(), world.rank());
        assert_eq!(self.under.wait()?, [n as u64]);
        let (own, wanted) = own(world);
        for _ in 0..3 {
            let mut got = vec![0; n];
            self.plan.gather(&own, &mut got)?;
            assert_eq!(got, wanted, "a child has taken part in a gather");
        }
        self.ghosts.local_mut().fill(rank as u64);
        self.ghosts.exchange()?;
        assert!(self.map.is_empty()?, "a child has inserted");
        self.map.insert(rank as u64, 1)?;
        world.barrier()?;
        assert_eq!(self.map.len()?, n);
        self.queue.push(rank as u64)?;
        let mut popped = [0];
        while self.queue.pop()?.is_some() {
            popped[0] += 1;
        }
        world.allreduce_sum(&mut popped)?;
        assert_eq!(popped, [n as u64], "a child has pushed");
        let (first, second) = (world.barrier_async()?, world.allgather_async(vec![rank])?);
        assert_eq!(second.wait()?, Vec::from_iter(0..n));
        first.wait()?;
        let here = self.shared.localize(world)?;
        let kept = here.local().iter().zip((HERE * rank) as u64..).all(|(is, was)| *is == was);
        assert!(kept, "a child has written to an array");
        self.team.barrier()
    }

    /// Makes the calls in a child.
    pub fn in_child(self, world: &World, (next, large): (usize, LandingId), check: &dyn Fn(&str, Result<()>)) {
        let Together { team, mut under, mut plan, shared, mut ghosts, mut map, mut queue } = self;
        let second = Duration::from_secs(1);
        let add = |a: u64, b: u64| a + b;
        check("barrier_async", world.barrier_async().and_then(Pending::wait));
        check("broadcast_async", world.broadcast_async(0, vec![1]).and_then(Pending::wait).map(drop));
        check("allgather_async", world.allgather_async(vec![1]).and_then(Pending::wait).map(drop));
        check("allreduce_async", world.allreduce_async(vec![1], add).and_then(Pending::wait).map(drop));
        check("barrier_for", world.barrier_for(second));
        check("broadcast_value", world.broadcast_value(0, Some(1)).map(drop));
        check("gather_values", world.gather_values(0, &1).map(drop));
        check("allgather_values", world.allgather_values(&1).map(drop));
        check("scatter_values", world.scatter_values(0, Some(&vec![1; world.size()])).map(drop));
        check("allreduce", world.allreduce(&mut [1; 1000], add));
        check("larger broadcast", world.broadcast(0, &mut [1; 100_000]));
        check("exchange_addresses", world.exchange_addresses(&raw const *world).map(drop));
        check("alloc_aligned", world.alloc_aligned::<u8>(64, 4096).map(drop));
        check("survivors", world.survivors().map(drop));
        check("agree_surviving", world.agree_surviving(1).map(drop));
        check("wait_until_for", world.wait_until_for(second, || false));
        check("wait_any", world.wait_any(&mut [&mut under]).map(drop));
        check("wait_every", world.wait_every(&mut [&mut under]));
        check("block_on", world.block_on(std::future::pending::<Result<()>>()));
        check("select", world.select(&mut vec![std::future::pending::<Result<()>>()]).map(drop));
        check("wait_all", world.wait_all([std::future::pending::<Result<()>>()]).map(drop));

        let data = Rc::new(vec![1; 300_000]);
        check("try_invoke", world.try_invoke(next, &1u64, |_, _: u64| ()));
        check("try_invoke_plain", world.try_invoke_plain(next, 1u64, |_, _: u64| ()));
        check("invoke_plain", world.invoke_plain(next, 1u64, |_, _: u64| ()));
        check("try_call", world.try_call(next, &1u64, |_, x: u64| x).map(drop));
        check("try_call_plain", world.try_call_plain(next, 1u64, |_, x: u64| x).map(drop));
        check("try_send_large", world.try_send_large(next, large, b"", &data).map(drop));
        check("send_large of an operation", world.operation().send_large(next, large, b"", Rc::clone(&data)));
        check("try_send_large of an operation", world.operation().try_send_large(next, large, b"", &data));

        check("broadcast of a team", team.broadcast(0, &mut [1]));
        check("reduce", team.reduce(0, &mut [1u64], Sum));
        check("gather", team.gather(0, &[1]).map(drop));
        check("allgather of a team", team.allgather(&[1]).map(drop));
        let ones = vec![1; team.size()];
        check("scatter", team.scatter(0, &ones, &mut [1]));
        check("alltoall", team.alltoall(&ones).map(drop));
        check("alltoallv", team.alltoallv(&ones, &ones.iter().map(|_| 1).collect::<Vec<_>>()).map(drop));
        check("scan", team.scan(&mut [1u64], Sum));
        check("exclusive_scan", team.exclusive_scan(&mut [1u64], 0, Sum));
        check("broadcast_value of a team", team.broadcast_value(0, Some(1)).map(drop));
        check("gather_values of a team", team.gather_values(0, &1).map(drop));
        check("allgather_values of a team", team.allgather_values(&1).map(drop));
        check("scatter_values of a team", team.scatter_values(0, Some(&ones)).map(drop));
        check("split_by_node", team.split_by_node().map(drop));
        check("subset", team.subset(&[0]).map(drop));
        let counts = vec![1; team.size()];
        check("barrier_async of a team", team.barrier_async().wait());
        check("broadcast_async of a team", team.broadcast_async(0, vec![1]).wait().map(drop));
        check("reduce_async", team.reduce_async(0, vec![1u64], Sum).wait().map(drop));
        check("gather_async", team.gather_async(0, vec![1]).wait().map(drop));
        check("allgather_async of a team", team.allgather_async(vec![1]).wait().map(drop));
        check("scatter_async", team.scatter_async(0, ones.clone(), 1).wait().map(drop));
        check("alltoall_async", team.alltoall_async(ones.clone()).wait().map(drop));
        check("alltoallv_async", team.alltoallv_async(ones, counts).wait().map(drop));
        check("scan_async", team.scan_async(vec![1u64], Sum).wait().map(drop));
        check("exclusive_scan_async", team.exclusive_scan_async(vec![1u64], 0, Sum).wait().map(drop));
        check("wait_for", under.wait_for(second).map(drop));
        check("wait for what the parent has started", under.wait().map(drop));

        let (own, _) = own(world);
        check("GatherPlan", GatherPlan::<u64>::new(world, &lines(world), &[0]).map(drop));
        check("gather of a plan", plan.gather(&own, &mut vec![0; world.size()]));
        check("start of a plan", plan.start(&own).map(drop));
        check("with_ghosts", GlobalArray::<u64, 1>::with_ghosts(world, lines(world), Ghosts::new([1])).map(drop));
        check("start_exchange", ghosts.start_exchange().map(drop));
        check("exchange", ghosts.exchange());
        check("sum", ghosts.sum(world).map(drop));
        check("relayout", ghosts.relayout(world, lines(world)).map(drop));
        check("sort", ghosts.sort(world).map(drop));
        check("prefix_sum", ghosts.prefix_sum(world).map(drop));
        check("to_root", ghosts.to_root(world, 0).map(drop));
        check("share", ghosts.share(world).map(drop));
        if world.settings().transport != Transport::Auto && world.size() > 1 {
            let at = [HERE * next];
            check("get of an array", shared.get(at).map(drop));
            check("put of an array", shared.put(at, 1));
            check("get_async of an array", shared.get_async(at).and_then(|get| get.wait()).map(drop));
            check("put_async of an array", shared.put_async(at, 1).and_then(|put| put.wait()));
            check("fetch_add of an array", shared.fetch_add(at, 1).map(drop));
            check("fetch_add_async of an array", shared.fetch_add_async(at, 1).and_then(|add| add.wait()).map(drop));
            check("fetch_update", shared.fetch_update(at, |x| x + 1).map(drop));
            let part = at[0]..at[0] + 2;
            check("get_patch", shared.get_patch([part.clone()]).map(drop));
            check("put_patch", shared.put_patch([part], &[1, 1]));
        }
        check("localize", shared.localize(world).map(drop));

        check("len", map.len().map(drop));
        check("pop", queue.pop().map(drop));
        check("restart", queue.restart());
        // A rank that is alone has all entries in memory of its own, which a child has a copy of.
        if world.size() == 1 {
            return;
        }
        let elsewhere = (0..).find(|key| map.owner(key) == next).expect("each rank has keys");
        check("insert", map.insert(elsewhere, 1).map(drop));
        check("get of a map", map.get(&elsewhere).map(drop));
        check("remove", map.remove(&elsewhere).map(drop));
        check("get_many", map.get_many(&[elsewhere]).map(drop));
        check("insert_many", map.insert_many([(elsewhere, 1)]));
        check("push_to and flush", queue.push_to(next, 1).and_then(|()| queue.flush()));
    }
}
