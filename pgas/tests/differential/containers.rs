//! Maps, queues, streams, gather plans and large messages.

use std::cell::RefCell;
use std::rc::Rc;

use bellwether::aggregate::{Options, Push};
use bellwether::array::{GatherPlan, Layout};
use bellwether::{DistHashMap, DistQueue, Operation, Pod, Result, World};

use crate::operations::{Watched, tried};
use crate::plan::{Plan, many, nothing, one};

pub fn script(world: &World, plan: &mut Plan) -> Result<()> {
    map(world, plan)?;
    queue(world, plan)?;
    stream(world, plan)?;
    gather::<u64>(world, plan, "a gather plan of u64")?;
    if plan.effort > 1 {
        gather::<[u8; 3]>(world, plan, "a gather plan of 3 bytes")?;
    }
    large(world, plan)
}

fn map(world: &World, plan: &mut Plan) -> Result<()> {
    plan.about("a map");
    let n = world.size() as u64;
    let mut map = DistHashMap::<u64, String>::new(world)?;
    // Each rank has keys of its own, at any rank.
    let key = |plan: &mut Plan| plan.own.below(8) as u64 * n + world.rank() as u64;
    let text = |plan: &mut Plan| "value".repeat(plan.own.below(30));
    for _ in 0..10 * plan.effort {
        let (at, value) = (key(plan), text(plan));
        match plan.own.below(7) {
            0 => plan.note(format!("insert {at}"), map.insert(at, value).map(|old| format!("{old:?}"))),
            1 => plan.note(format!("get {at}"), map.get(&at).map(|value| format!("{value:?}"))),
            2 => plan.note(format!("remove {at}"), map.remove(&at).map(|old| format!("{old:?}"))),
            3 => {
                let change = map.update(at, value, |entry, more: String| {
                    *entry = (!more.len().is_multiple_of(3)).then(|| entry.take().unwrap_or_default() + &more);
                });
                plan.note(format!("update {at}"), change.map(nothing));
            }
            4 => {
                let first = plan.own.below(6) as u64;
                let items = (first..first + 4).map(|i| (i * n + world.rank() as u64, value.clone()));
                plan.note(format!("insert_many from {first}"), map.insert_many(items).map(nothing));
            }
            5 => {
                let first = plan.own.below(6) as u64;
                let items = (first..first + 4).map(|i| (i * n + world.rank() as u64, i));
                let changed = map.update_many(items, |entry, more: u64| {
                    *entry = Some(entry.take().unwrap_or_default() + &more.to_string());
                });
                plan.note(format!("update_many from {first}"), changed.map(nothing));
            }
            _ => {
                let keys: Vec<u64> = (0..5).map(|_| key(plan)).collect();
                plan.note(format!("get_many {keys:?}"), map.get_many(&keys).map(|values| format!("{values:?}")));
            }
        }
    }
    world.barrier()?;
    plan.note("entries", map.len().map(|len| len.to_string()));
    let mut here = map.local();
    here.sort();
    plan.note("here", Ok(format!("{here:?}")));
    world.barrier()
}

/// Which rank takes an item nobody says, so all are added up.
fn queue(world: &World, plan: &mut Plan) -> Result<()> {
    plan.about("a queue");
    let mut queue = DistQueue::<(u64, String)>::new(world)?;
    for _ in 0..2 {
        for _ in 0..4 * plan.effort {
            let (to, item) = (plan.rank(world), (plan.own.next(), "text".repeat(plan.own.below(20))));
            match plan.own.below(3) {
                0 => plan.note("push", queue.push(item).map(nothing)),
                1 => plan.note(format!("push_to {to}"), queue.push_to(to, item).map(nothing)),
                _ => {
                    let mut item = Some(item);
                    let pushed = tried(world, || {
                        let pushed = queue.try_push_to(to, &mut item);
                        queue.progress()?;
                        pushed
                    });
                    plan.note(format!("try_push_to {to}"), pushed.map(nothing));
                }
            }
        }
        let mut sums = [0u64; 3];
        while let Some((number, text)) = queue.pop()? {
            let more = [1, number, text.len() as u64];
            sums = [0, 1, 2].map(|i| sums[i].wrapping_add(more[i]));
            // Some items make others.
            if number % 3 == 0 {
                queue.push((number / 3, text))?;
            }
        }
        world.allreduce(&mut sums, u64::wrapping_add)?;
        plan.note("items, their numbers and texts", Ok(format!("{sums:?}")));
        queue.restart()?;
    }
    world.barrier()
}

fn stream(world: &World, plan: &mut Plan) -> Result<()> {
    plan.about("a stream");
    let taken: Rc<RefCell<Vec<u64>>> = Rc::new(RefCell::new(vec![0; world.size()]));
    let sums = Rc::clone(&taken);
    let take = move |[from, number]: [u64; 2]| {
        let sum = &mut sums.borrow_mut()[from as usize];
        *sum = sum.wrapping_add(number);
    };
    let mut push = Push::new(world, &Options::new(world), take)?;
    for _ in 0..2 {
        for _ in 0..20 * plan.effort {
            let (to, item) = (plan.rank(world), [world.rank() as u64, plan.own.next()]);
            if plan.own.below(2) == 0 {
                plan.note(format!("push {to}"), push.push(to, item).map(nothing));
            } else {
                let pushed = tried(world, || {
                    let pushed = push.try_push(to, item);
                    push.progress()?;
                    pushed
                });
                plan.note(format!("try_push {to}"), pushed.map(nothing));
            }
        }
        plan.note("finish", push.finish().map(nothing));
        plan.note("taken", Ok(many(taken.borrow().clone())));
        world.barrier()?;
    }
    Ok(())
}

fn gather<T: Pod>(world: &World, plan: &mut Plan, about: &str) -> Result<()> {
    plan.about(about);
    let n = world.size();
    for _ in 0..2 * plan.effort {
        let extent = 1 + plan.all.below(90);
        let layout = if plan.all.below(2) == 0 { Layout::block([extent], n)? } else { Layout::cyclic([extent], n)? };
        // Now and then a rank asks for one that there is not, and all are told.
        let wrong = (plan.all.below(8) == 0).then(|| plan.all.below(n));
        let mut numbers: Vec<usize> = (0..plan.own.below(40)).map(|_| plan.own.below(extent)).collect();
        if wrong == Some(world.rank()) {
            numbers.push(extent);
        }
        let made = GatherPlan::<T>::new(world, &layout, &numbers);
        let mut by = match made {
            Ok(by) => by,
            Err(error) => {
                plan.note("a plan", Err(error));
                continue;
            }
        };
        plan.note("a plan", Ok(format!("{} {} {:?}", by.len(), by.remote_len(), by.sources())));
        let own = layout.extents_at(world.rank()).iter().product();
        for _ in 0..3 {
            let (own, mut into): (Vec<T>, Vec<T>) = (plan.values(own), plan.values(numbers.len()));
            let outcome = match plan.all.below(2) {
                0 => by.gather(&own, &mut into),
                _ => by.start(&own).and_then(|gathering| gathering.finish(&mut into)),
            };
            plan.note("gather", outcome.map(nothing));
            plan.note("they", Ok(many(into)));
        }
        world.barrier()?;
    }
    Ok(())
}

/// What of large messages has landed, by sender, and the handler of those.
pub struct Landings {
    pub handler: bellwether::LandingId,
    pub sums: Rc<RefCell<Vec<u64>>>,
}

/// Tells messages apart by their headers and data.
pub fn digest(header: &[u8], data: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
    header.iter().chain(data).fold(1, step)
}

/// Small data and none, data of some thousand bytes, which travels with its header or not, and more than a ring holds.
fn length(plan: &mut Plan) -> usize {
    match plan.own.below(5) {
        0 => [0, 1, 64, 65][plan.own.below(4)],
        1 => plan.own.below(65),
        // Fragments of a byte are slow.
        _ if plan.effort == 1 => 65 + plan.own.below(136),
        2 | 3 => 1000 + plan.own.below(9000),
        _ => [35_000, 70_000][plan.own.below(2)],
    }
}

fn large(world: &World, plan: &mut Plan) -> Result<()> {
    plan.about("large messages");
    let n = world.size();
    let landings = world.state::<Landings>().expect("set at the start");
    let (handler, watched) = (landings.handler, Watched::new(world)?);
    let mut sums = vec![0u64; n];
    world.barrier()?;
    for _ in 0..5 * plan.effort {
        let (to, len) = (plan.rank(world), length(plan));
        let header = &b"header"[..plan.own.below(7)];
        let data = Rc::new(plan.values::<u8>(len));
        let name = format!("{len} bytes with a header of {} to {to}", header.len());
        match plan.own.below(4) {
            0 => {
                let sent = world.send_large(to, handler, header, Rc::clone(&data));
                plan.note(format!("send_large of {name}"), sent.and_then(|call| call.wait()).map(nothing));
            }
            1 => {
                let sent = tried(world, || world.try_send_large(to, handler, header, &data));
                plan.note(format!("try_send_large of {name}"), sent.and_then(|call| call.wait()).map(nothing));
            }
            2 => {
                let send = |operation: Operation<'_>| operation.send_large(to, handler, header, Rc::clone(&data));
                watched.operate(world, plan, format!("send_large with events of {name}"), send, nothing)?;
                assert_eq!(Rc::strong_count(&data), 1, "the operation of {len} bytes to {to} holds its data");
            }
            _ => {
                let send = |mut operation: Operation<'_>| {
                    tried(world, || operation.try_send_large(to, handler, header, &data))
                };
                watched.operate(world, plan, format!("try_send_large with events of {name}"), send, nothing)?;
                assert_eq!(Rc::strong_count(&data), 1, "the operation of {len} bytes to {to} holds its data");
            }
        }
        if let Some(sum) = sums.get_mut(to) {
            *sum = sum.wrapping_add(digest(header, &data));
        }
    }
    world.barrier()?;
    let mut landed = landings.sums.borrow().clone();
    landed.resize(n, 0);
    let sent: Vec<u64> = world.allgather(&sums)?.into_iter().skip(world.rank()).step_by(n).collect();
    assert_eq!(landed, sent, "what has landed at rank {} is what was sent, by sender", world.rank());
    plan.note("landed", Ok(many(landed)));
    plan.note("rings of events", watched.bell.count().map(one));
    world.barrier()
}
