//! Collectives of the world and of teams, and remote calls, with plain data of 0 to 64 bytes.

use bellwether::{Max, Pod, Result, Sum, Team, World};

use crate::plan::{Plan, many, nothing, one};

type Part = (&'static str, fn(&World, &Team, &mut Plan) -> Result<()>);

pub fn script(world: &World, plan: &mut Plan) -> Result<()> {
    let all = Team::world(world)?;
    let mut parts: Vec<Part> = vec![
        ("()", data::<()>),
        ("1 byte", combined::<u8>),
        ("3 bytes", combined::<[u8; 3]>),
        ("4 bytes", combined::<u32>),
        ("7 bytes", combined::<[u8; 7]>),
        ("8 bytes", combined::<u64>),
        ("12 bytes", combined::<[u32; 3]>),
        ("24 bytes", combined::<[u64; 3]>),
        ("33 bytes", combined::<[u8; 33]>),
        ("47 bytes", combined::<[u8; 47]>),
        ("48 bytes", combined::<[u64; 6]>),
        ("49 bytes", combined::<[u8; 49]>),
        ("64 bytes", combined::<[u64; 8]>),
    ];
    while plan.effort == 1 && parts.len() > 3 {
        parts.swap_remove(plan.all.below(parts.len()));
    }
    for (name, part) in parts {
        plan.about(name);
        part(world, &all, plan)?;
    }
    plan.about("numbers");
    numbers(world, &all, plan)
}

/// One of the counts that are worth it: none, one, few, more than a board or a buffer holds.
fn count(plan: &mut Plan) -> usize {
    let most = if plan.effort == 1 { 40 } else { 700 };
    [0, 1, 2, 3, 7, 64, most][plan.all.below(7)].min(most)
}

/// A rank that all mean; now and then one that there is not.
fn root(world: &World, plan: &mut Plan) -> usize {
    if plan.all.below(25) == 0 { world.size() } else { plan.all.below(world.size()) }
}

/// What data of any size can do, also of none.
fn data<T: Pod>(world: &World, all: &Team, plan: &mut Plan) -> Result<()> {
    for _ in 0..2 * plan.effort {
        let (n, count, root) = (world.size(), count(plan), root(world, plan));
        let mine: Vec<T> = plan.values(count);
        let name = |call: &str| format!("{call} of {count}, root {root}");
        let mut values = mine.clone();
        let to = plan.rank(world);
        match plan.all.below(12) {
            0 | 1 if root < n => {
                let outcome = all.broadcast(root, &mut values).map(nothing);
                plan.note(name("broadcast"), outcome);
                plan.note("it", Ok(many(values)));
            }
            2 if root < n => {
                let outcome = all.gather(root, &mine).map(|all| all.map_or("none".into(), many));
                plan.note(name("gather"), outcome);
            }
            3 => plan.note(name("allgather"), all.allgather(&mine).map(many)),
            4 if root < n => {
                let values: Vec<T> = plan.values(if world.rank() == root { count * n } else { 0 });
                let mut mine = mine;
                let outcome = all.scatter(root, &values, &mut mine).map(nothing);
                plan.note(name("scatter"), outcome);
                plan.note("it", Ok(many(mine)));
            }
            5 => {
                let values: Vec<T> = plan.values(count.min(64) * n);
                plan.note(name("alltoall"), all.alltoall(&values).map(many));
            }
            6 => {
                let counts: Vec<usize> = (0..n).map(|_| plan.own.below(count.min(64) + 1)).collect();
                let values: Vec<T> = plan.values(counts.iter().sum());
                let outcome = all.alltoallv(&values, &counts);
                plan.note(name("alltoallv"), outcome.map(|(values, counts)| format!("{} {counts:?}", many(values))));
            }
            7 => {
                let value: T = plan.value();
                let call = world.call_plain(to, value, |context, value: T| (context.rank() as u64, value).1);
                plan.note(format!("call_plain at {to}"), call.and_then(|call| call.wait()).map(one));
            }
            8 => {
                let value: T = plan.value();
                let call = world.call_plain(to, value, |context, _: T| context.from() as u64);
                plan.note(format!("call_plain back from {to}"), call.and_then(|call| call.wait()).map(one));
            }
            9 => {
                let value: T = plan.value();
                plan.note(format!("invoke_plain at {to}"), world.invoke_plain(to, value, |_, _: T| {}).map(nothing));
            }
            10 => {
                let text = "text".repeat(count.min(100));
                let call = world.call(to, (text, 5u8), |_, (text, five): (String, u8)| (text.len(), five));
                plan.note(format!("call at {to}"), call.and_then(|call| call.wait()).map(|told| format!("{told:?}")));
            }
            _ => {
                let first = all.allgather_async(mine);
                let second = all.barrier_async();
                plan.note(name("allgather_async"), first.wait().map(many));
                plan.note("barrier_async", second.wait().map(nothing));
            }
        }
    }
    world.barrier()
}

/// What combines or shows elements, which then have bytes.
fn combined<T: Pod>(world: &World, all: &Team, plan: &mut Plan) -> Result<()> {
    data::<T>(world, all, plan)?;
    for _ in 0..plan.effort {
        let (count, root) = (count(plan), root(world, plan));
        let mut values: Vec<T> = plan.values(count);
        let name = |call: &str| format!("{call} of {count}, root {root}");
        let mine = values.clone();
        match plan.all.below(5) {
            0 => plan.note(name("world's allgather"), world.allgather(&mine).map(many)),
            4 => {
                let outcome = world.broadcast(root, &mut values).map(nothing);
                plan.note(name("world's broadcast"), outcome);
                plan.note("it", Ok(many(values)));
            }
            1 => {
                let outcome = world.allreduce(&mut values, |_, b| b).map(nothing);
                plan.note(name("world's allreduce"), outcome);
                plan.note("it", Ok(many(values)));
            }
            2 => {
                let outcome = all.allreduce(&mut values, |a: T, _: T| a).map(nothing);
                plan.note(name("allreduce"), outcome);
                plan.note("it", Ok(many(values)));
            }
            _ => {
                let outcome = all.scan(&mut values, |_: T, b: T| b).map(nothing);
                plan.note(name("scan"), outcome);
                plan.note("it", Ok(many(values)));
            }
        }
    }
    world.barrier()
}

fn numbers(world: &World, all: &Team, plan: &mut Plan) -> Result<()> {
    for _ in 0..2 * plan.effort {
        let (count, root) = (count(plan), plan.all.below(world.size()));
        let mut values: Vec<u64> = plan.values::<u32>(count).into_iter().map(u64::from).collect();
        let way = plan.all.below(5);
        let outcome = match way {
            0 => all.allreduce(&mut values, Sum),
            1 => all.reduce(root, &mut values, Max),
            2 => all.scan(&mut values, Sum),
            3 => all.exclusive_scan(&mut values, 17, Sum),
            _ => world.allreduce_sum(&mut values),
        };
        plan.note(format!("numbers, {count}, root {root}"), outcome.map(nothing));
        // What others than the root have then is not said.
        if way != 1 || world.rank() == root {
            plan.note("them", Ok(many(values)));
        }
    }
    Ok(())
}
