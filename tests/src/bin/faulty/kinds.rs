//! The kinds of calls that a world's ranks repeat.

use std::cell::Cell;
use std::rc::Rc;

use bellwether::aggregate::{Aggregator, Blocks, Options, Push};
use bellwether::array::{GatherPlan, Ghosts, Layout};
use bellwether::{
    Arm, AtomicOp, Completion, Counter, DistHashMap, DistQueue, GlobalArray, Posted, Result, Sum, Team, World,
};

use super::APART;

/// Elements at each rank.
const ELEMENTS: usize = 4096;
/// Elements in a row of an array; one at least for each rank.
const ROW: usize = 16;

/// One round of a kind: all that it needs, and the call that repeats it.
pub type Step<'w> = Box<dyn FnMut(u64) -> Result<()> + 'w>;

/// Makes what the kind needs. Collective.
///
/// # Panics
/// If there is no such kind.
pub fn step<'w>(kind: &str, world: &'w World) -> Result<Step<'w>> {
    match kind {
        "put" | "slice" | "get" | "bell" | "atomic" | "alloc" | "future" | "signal" => memory(kind, world),
        "reduce" | "broadcast" | "gather" | "values" | "team" | "split" | "pending" => collective(kind, world),
        "patch" | "exchange" | "plan" | "phase" | "sort" => array(kind, world),
        "queue" | "map" | "many" | "push" | "aggregate" => irregular(kind, world),
        "context" | "segment" | "operation" | "wakeup" => engine(kind, world),
        _ => message(kind, world),
    }
}

/// The rank that is accessed in a round: another one, if there is one.
fn target(world: &World, round: u64) -> usize {
    (world.rank() + 1 + round as usize % (world.size().max(2) - 1)) % world.size()
}

fn message<'w>(kind: &str, world: &'w World) -> Result<Step<'w>> {
    let to = move |round| target(world, round);
    Ok(match kind {
        "call" => Box::new(move |round| {
            assert_eq!(world.call(to(round), round, |_, round| round + 1)?.wait()?, round + 1);
            Ok(())
        }),
        "plain" => Box::new(move |round| {
            assert_eq!(world.call_plain(to(round), round, |_, round: u64| round + 1)?.wait()?, round + 1);
            Ok(())
        }),
        "message" => Box::new(move |round| (0..20).try_for_each(|i| world.invoke(to(round), i, |_, _: u64| {}))),
        "large" => Box::new(move |round| world.invoke(to(round), vec![round; ELEMENTS], |_, _| {})),
        "barrier" => Box::new(move |_| world.barrier()),
        "wait" => Box::new(move |_| {
            if world.rank() == 0 {
                std::thread::sleep(std::time::Duration::from_micros(500));
            }
            world.barrier()
        }),
        kind => panic!("{kind}: no such kind of call"),
    })
}

fn memory<'w>(kind: &str, world: &'w World) -> Result<Step<'w>> {
    let (rank, size) = (world.rank(), world.size());
    let (next, to) = ((rank + 1) % size, move |round| target(world, round));
    let memory = world.alloc::<u64>(ELEMENTS)?;
    let bell = world.bell()?;
    Ok(match kind {
        "put" => Box::new(move |round| (0..50).try_for_each(|i| memory.put(to(round), i, round))),
        "slice" => Box::new(move |round| memory.put_slice(to(round), 0, &[round; ELEMENTS])),
        "get" => Box::new(move |round| (0..50).try_for_each(|i| memory.get(to(round), i).map(drop))),
        "bell" => Box::new(move |round| {
            memory.put_bell(next, rank, round, &bell)?;
            bell.wait(round + 1).map(drop)
        }),
        "signal" => {
            let signals = world.alloc::<u64>(1)?;
            Box::new(move |round| {
                memory.put_slice_signal(next, 0, &[round; 64], &signals, 0)?;
                signals.wait_signal(0, round + 1).map(drop)
            })
        }
        "atomic" => Box::new(move |round| (0..20).try_for_each(|_| memory.fetch_add(to(round), 0, 1).map(drop))),
        "future" => Box::new(move |round| {
            let to = to(round);
            Posted::wait_all((0..8).map(|i| memory.put_async(to, i, round)))?;
            let (put, got) =
                (memory.put_slice_async(to, 0, &[round; ELEMENTS]), memory.get_slice_async(to, 0, ELEMENTS));
            let (one, added) = (memory.get_async(to, 1), memory.fetch_add_async(to, 0, 1));
            drop(memory.fetch_update_async(to, 2, |x| x + 1));
            assert_eq!(got.wait()?.len(), ELEMENTS);
            put.wait()?;
            one.wait()?;
            added.wait().map(drop)
        }),
        "alloc" => Box::new(move |round| world.alloc::<u64>(1 + round as usize * 100).map(drop)),
        kind => panic!("{kind}: no such kind of call"),
    })
}

fn collective<'w>(kind: &str, world: &'w World) -> Result<Step<'w>> {
    let (rank, size) = (world.rank(), world.size());
    let team = Team::world(world)?;
    Ok(match kind {
        "reduce" => Box::new(move |round| world.allreduce_sum(&mut [round, 1])),
        "broadcast" => Box::new(move |round| world.broadcast(round as usize % size, &mut [round; 100])),
        "gather" => Box::new(move |round| world.allgather(&[round; 10]).map(drop)),
        "values" => Box::new(move |round| {
            let all = world.allgather_values(&vec![round; rank + 1])?;
            assert!(all.iter().enumerate().all(|(rank, values)| values.len() == rank + 1));
            Ok(())
        }),
        "team" => Box::new(move |round| team.allreduce(&mut [round; 64], Sum)),
        "split" => Box::new(move |round| {
            let part = team.split(Some((rank as u64 + round) % 2), 0)?.expect("every rank has a colour");
            let mut count = [1u64];
            part.allreduce(&mut count, Sum)?;
            assert_eq!(count, [part.size() as u64]);
            Ok(())
        }),
        "pending" => Box::new(move |round| {
            let mut sum = team.allreduce_async(vec![round; 64], Sum);
            let mut all = team.alltoall_async(vec![round; 8 * size]);
            let mut call = world.call(target(world, round), round, |_, round: u64| round + 1)?;
            world.wait_every(&mut [&mut sum, &mut call, &mut all])?;
            assert_eq!((sum.wait()?.len(), all.wait()?.len(), call.wait()?), (64, 8 * size, round + 1));
            Ok(())
        }),
        kind => panic!("{kind}: no such kind of call"),
    })
}

fn array<'w>(kind: &str, world: &'w World) -> Result<Step<'w>> {
    let (rank, size) = (world.rank(), world.size());
    let layout = Layout::rows([4 * size, ROW], size)?;
    Ok(match kind {
        "patch" => {
            let array = GlobalArray::<u64, 2>::new(world, layout)?.share(world)?;
            // A column of each rank's own, with a part at every rank.
            let column = [0..4 * size, rank..rank + 1];
            Box::new(move |round| {
                array.put_patch_async(column.clone(), &vec![round; 4 * size])?.wait()?;
                assert_eq!(array.get_patch(column.clone())?, vec![round; 4 * size]);
                array.put_patch(column.clone(), &vec![round + 1; 4 * size])?;
                array.get_patch_async([0..4 * size, 0..ROW])?.wait().map(drop)
            })
        }
        "exchange" => {
            let ghosts = Ghosts::new([1, 0]).periodic([true, false]);
            let mut array = GlobalArray::<u64, 2>::with_ghosts(world, layout, ghosts)?;
            Box::new(move |round| {
                array.local_mut().fill(round);
                if round % 3 == 0 {
                    let pending = array.start_exchange()?;
                    pending.finish()?;
                } else {
                    array.exchange()?;
                }
                let ghosts = [array.local()[0], array.local()[5 * ROW]];
                assert_eq!(ghosts, [round; 2], "ghost layers of rank {rank}");
                Ok(())
            })
        }
        "plan" => {
            let layout = Layout::block([8 * size], size)?;
            let asked: Vec<usize> = (0..size).flat_map(|rank| [8 * rank, 8 * rank + 3]).collect();
            let mut plan = GatherPlan::<u64>::new(world, &layout, &asked)?;
            let mut came = vec![0; asked.len()];
            Box::new(move |round| {
                plan.gather(&[round; 8], &mut came)?;
                assert!(came.iter().all(|x| *x == round), "{came:?} in round {round}");
                Ok(())
            })
        }
        "phase" => {
            let mut array = Some(GlobalArray::<u64, 2>::new(world, layout)?);
            Box::new(move |round| {
                let shared = array.take().expect("put back below").share(world)?;
                let row = 4 * target(world, round);
                shared.put([row, rank], round)?;
                shared.fetch_add([row, ROW - 1], 1)?;
                array = Some(shared.localize(world)?);
                Ok(())
            })
        }
        "sort" => Box::new(move |round| {
            let layout = Layout::block([50 * size], size)?;
            let mixed = |[i]: [usize; 1]| (i as u64 + round).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let sorted = GlobalArray::from_fn(world, layout, mixed)?.sort(world)?;
            assert!(sorted.local().is_sorted());
            Ok(())
        }),
        kind => panic!("{kind}: no such kind of call"),
    })
}

fn irregular<'w>(kind: &str, world: &'w World) -> Result<Step<'w>> {
    let (rank, size) = (world.rank(), world.size());
    Ok(match kind {
        "queue" => {
            let mut queue = DistQueue::<u64>::new(world)?;
            Box::new(move |_| {
                (0..20).try_for_each(|i| queue.push(i))?;
                while queue.pop()?.is_some() {}
                queue.restart()
            })
        }
        "map" => {
            let mut map = DistHashMap::<u64, u64>::new(world)?;
            Box::new(move |round| {
                map.insert(round * size as u64 + rank as u64, round)?;
                map.get(&(round * size as u64 + (rank as u64 + 1) % size as u64)).map(drop)
            })
        }
        "many" => {
            let mut map = DistHashMap::<u64, u64>::new(world)?;
            Box::new(move |round| {
                let keys: Vec<u64> = (0..50).map(|i| 50 * rank as u64 + i).collect();
                map.insert_many(keys.iter().map(|key| (*key, round)))?;
                map.update_many(keys.iter().map(|key| (*key, 1)), |value, more: u64| {
                    *value = Some(value.unwrap_or(0) + more);
                })?;
                let got = map.get_many(&keys)?;
                assert!(got.iter().all(|value| *value == Some(round + 1)), "{got:?} in round {round}");
                Ok(())
            })
        }
        "push" => {
            let sum = Rc::new(Cell::new(0));
            let taken = Rc::clone(&sum);
            let mut push = Push::new(world, &Options::new(world), move |item: u64| taken.set(taken.get() + item))?;
            Box::new(move |round| {
                (0..20).try_for_each(|i| push.push((rank + i) % size, 1))?;
                match round % APART {
                    0 => push.finish(),
                    4 => push.flush(),
                    _ => push.progress(),
                }
            })
        }
        "aggregate" => {
            let mut aggregator = Aggregator::<u64>::new(world, &Options::new(world))?;
            let places = Blocks::new(100 * size, size);
            let mut table = world.alloc::<u64>(places.block())?;
            let indices: Vec<usize> = (0..200).map(|i| (i * 37 + rank) % (100 * size)).collect();
            Box::new(move |round| {
                aggregator.scatter_add(&mut table, &places, &indices, &[1; 200])?;
                if round % 4 == 0 {
                    aggregator.fetch_add(&mut table, &places, &indices, &[1; 200])?;
                }
                assert!(aggregator.gather(&table, &places, &indices)?.iter().all(|count| *count > round));
                Ok(())
            })
        }
        kind => panic!("{kind}: no such kind of call"),
    })
}

fn engine<'w>(kind: &str, world: &'w World) -> Result<Step<'w>> {
    let (rank, size) = (world.rank(), world.size());
    let (next, to) = ((rank + 1) % size, move |round| target(world, round));
    let memory = world.alloc::<u64>(ELEMENTS)?;
    let bell = world.bell()?;
    Ok(match kind {
        "context" => {
            let mut contexts = [world.context()?, world.context()?];
            Box::new(move |round| {
                let (to, array, bell) = (to(round), memory.for_threads(), bell.for_threads());
                let work = |context: &mut bellwether::ThreadContext| {
                    context.put_slice(&array, to, 8, &[round; 100])?;
                    context.fetch_add(&array, to, 0, 1)?;
                    context.put_bell(&array, to, 1, round, &bell)?;
                    context.flush(to)?;
                    context.get(&array, to, 1)?;
                    context.invoke(to, round, |_, _: u64| {})
                };
                let mut run = || {
                    std::thread::scope(|scope| {
                        let threads = contexts.each_mut().map(|context| scope.spawn(|| work(context)));
                        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
                    })
                };
                let all: Result<()> = if round % 2 == 0 { world.serve_while(&mut run)? } else { run() };
                all
            })
        }
        "segment" => {
            let own = world.segment_all(4096)?;
            Box::new(move |round| {
                let (to, bytes, mut came) = (to(round), [round as u8; 256], [0; 256]);
                world.put_segment_bell(next, own.number(), 0, &bytes, &bell)?;
                bell.wait(round + 1)?;
                world.get_segment(to, own.number(), 0, &mut came)?;
                if round % APART == 0 {
                    let part = world.segment(512)?;
                    let number = world.allgather(&[part.number()])?[to];
                    if round % (2 * APART) == 0 {
                        world.put_segment(to, number, 0, &bytes)?;
                        world.get_segment(to, number, 0, &mut came)?;
                    } else {
                        // Not for longer: as long as there is a context, no rank knows that nobody will ring.
                        let context = world.context()?;
                        context.put_segment(to, number, 0, &bytes)?;
                        context.get_segment(to, number, 0, &mut came)?;
                        context.flush(to)?;
                    }
                    world.barrier()?;
                    part.close()?;
                }
                Ok(())
            })
        }
        "operation" => {
            let counter = Counter::new();
            Box::new(move |round| {
                let to = to(round);
                for i in 0..4 {
                    world.operation().effect(&counter).put(&memory, to, i, &[round])?;
                }
                world.wait_counter(&counter, 4 * (round + 1))?;
                let done = Completion::new();
                let found = world.operation().effect(&done).fetch(AtomicOp::Add, &memory, to, 8, 1)?;
                world.operation().handled(&done).handled(&bell).invoke(to, round, |_, _: u64| {})?;
                world.wait_completion(&done)?;
                assert!(found.value().is_some());
                bell.wait(round + 1).map(drop)
            })
        }
        "wakeup" => {
            let wake_up = world.wake_up()?;
            Box::new(move |round| {
                memory.put_bell(next, 0, round, &bell)?;
                while bell.count()? <= round {
                    if wake_up.progress()? > 0 {
                        continue;
                    }
                    if wake_up.arm_unless(|| bell.count().is_ok_and(|count| count > round))? == Arm::Armed {
                        wake_up.poll(None)?;
                    }
                }
                Ok(())
            })
        }
        kind => panic!("{kind}: no such kind of call"),
    })
}
