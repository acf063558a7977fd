//! Operations with events, and forms that answer at once, on plain memory; messages too.

use std::sync::{Arc, Mutex};

use bellwether::{
    AtomicElement, AtomicOp, Bell, Completion, Counter, Error, Event, GlobalPtr, Operation, Pod, Result, Symmetric,
    World,
};

use crate::memory::{Aim, Memory, PART, added, aim, listed, numbers, pieces};
use crate::plan::{Plan, many, nothing, one};

/// All atomics of one value, and one that has two.
pub const OPS: [AtomicOp; 6] =
    [AtomicOp::Add, AtomicOp::And, AtomicOp::Or, AtomicOp::Xor, AtomicOp::Swap, AtomicOp::CompareSwap];

pub fn script(world: &World, plan: &mut Plan) -> Result<()> {
    on::<[u8; 3]>(world, plan, "operations on 3 bytes", |_, _, _, _| Ok(()))?;
    on::<u64>(world, plan, "operations on u64", atomic)?;
    if plan.effort > 1 {
        on::<i32>(world, plan, "operations on i32", atomic)?;
        on::<[u64; 5]>(world, plan, "operations on 40 bytes", |_, _, _, _| Ok(()))?;
    }
    messages(world, plan)
}

/// What is done with elements that have atomics.
type Further<T> = fn(&World, &mut Plan, &Memory<T>, &Watched) -> Result<()>;

fn on<T: Pod + Send + Sync>(world: &World, plan: &mut Plan, about: &str, further: Further<T>) -> Result<()> {
    plan.about(about);
    let memory = Memory::<T>::new(world, plan)?;
    let into = world.alloc::<T>(memory.data.len())?;
    into.write(0, &plan.values(into.len()));
    let watched = Watched::new(world)?;
    for _ in 0..6 * plan.effort {
        with_events(world, plan, &memory, &into, &watched)?;
        at_once(world, plan, &memory)?;
        further(world, plan, &memory, &watched)?;
    }
    let mut here: Vec<T> = plan.values(into.len());
    into.read(0, &mut here);
    plan.note("what came", Ok(many(here)));
    memory.tell(world, plan)?;
    plan.note("rings of events", watched.bell.count().map(one));
    world.barrier()
}

/// What events act on.
pub struct Watched {
    pub bell: Bell,
}

impl Watched {
    pub fn new(world: &World) -> Result<Watched> {
        Ok(Watched { bell: world.bell()? })
    }

    /// Starts an operation with an action for each of its events, waits until all have happened, and notes what they told.
    pub fn operate<R>(
        &self,
        world: &World,
        plan: &mut Plan,
        what: impl std::fmt::Display,
        start: impl FnOnce(Operation<'_>) -> Result<R>,
        show: impl FnOnce(R) -> String,
    ) -> Result<()> {
        let (source, effect, done) = (Counter::new(), Counter::new(), Completion::new());
        let told: Arc<Mutex<Option<String>>> = Arc::default();
        let tell = Arc::clone(&told);
        let call = Event::call(move |outcome| {
            *tell.lock().expect("nobody panics with it") = Some(format!("{outcome:?}"));
        });
        let operation = world.operation().source(&source).source(&done).effect(&effect).effect(&done);
        let outcome = start(operation.handled(&done).handled(&self.bell).effect(call));
        match outcome {
            Ok(came) => {
                let ended = world.wait_completion(&done);
                world.wait_until(|| told.lock().expect("nobody panics with it").is_some())?;
                let counts = (world.wait_counter(&source, 1)?, world.wait_counter(&effect, 1)?);
                let told = told.lock().expect("nobody panics with it").take();
                plan.note(what, ended.map(|()| format!("{} {counts:?} {told:?}", show(came))));
            }
            Err(error) => {
                let counts = (source.value(), effect.value(), done.outcome().is_some_and(|outcome| outcome.is_err()));
                let told = told.lock().expect("nobody panics with it").take();
                plan.note(what, Err(error));
                plan.note("its events", Ok(format!("{counts:?} {told:?}")));
            }
        }
        Ok(())
    }
}

fn with_events<T: Pod + Send + Sync>(
    world: &World,
    plan: &mut Plan,
    memory: &Memory<T>,
    into: &Symmetric<T>,
    watched: &Watched,
) -> Result<()> {
    let Memory { data, source, .. } = memory;
    let at = aim(world, plan, PART * world.rank(), PART);
    let Aim { rank, start, count } = at;
    let values: Vec<T> = plan.values(count);
    let first = plan.own.below(PART);
    let range = first..first + count;
    match plan.own.below(6) {
        0 => {
            let put = |operation: Operation<'_>| operation.put(data, rank, start, &values);
            watched.operate(world, plan, format!("put with events {at:?}"), put, nothing)
        }
        1 => {
            let put = |operation: Operation<'_>| operation.put_owned(data, rank, start, values);
            watched.operate(world, plan, format!("put_owned {at:?}"), put, |lent| {
                world.block_on(lent).map_or_else(|error| error.to_string(), many)
            })
        }
        2 => {
            let name = format!("put_from with events {range:?} {at:?}");
            let put = |operation: Operation<'_>| operation.put_from(data, rank, start, source, range);
            watched.operate(world, plan, name, put, nothing)
        }
        3 => {
            let name = format!("get_into {range:?} {at:?}");
            let get = |operation: Operation<'_>| operation.get_into(data, rank, start, into, range);
            watched.operate(world, plan, name, get, nothing)
        }
        4 => {
            let put = |mut operation: Operation<'_>| tried(world, || operation.try_put(data, rank, start, &values));
            watched.operate(world, plan, format!("an operation's try_put {at:?}"), put, nothing)
        }
        _ => {
            let mut values = Some(values);
            let put =
                |mut operation: Operation<'_>| tried(world, || operation.try_put_owned(data, rank, start, &mut values));
            watched.operate(world, plan, format!("try_put_owned {at:?}"), put, |lent| {
                world.block_on(lent).map_or_else(|error| error.to_string(), many)
            })
        }
    }?;
    world.fence();
    Ok(())
}

fn atomic<T: AtomicElement + Pod>(world: &World, plan: &mut Plan, memory: &Memory<T>, watched: &Watched) -> Result<()> {
    let Aim { rank, start, .. } = aim(world, plan, PART * world.rank(), PART);
    let (op, value, expected) = (OPS[plan.own.below(6)], plan.value::<T>(), plan.value::<T>());
    let data = &memory.data;
    let show = |fetched: bellwether::Fetched<T>| fetched.value().map_or("nothing".into(), one);
    match plan.own.below(3) {
        0 => {
            // Half of them with what is there.
            let expected = if plan.own.below(2) == 0 { expected } else { data.get(rank, start).unwrap_or(expected) };
            let change = |operation: Operation<'_>| operation.compare_swap(data, rank, start, expected, value);
            watched.operate(world, plan, format!("compare_swap at {rank}, {start}"), change, show)
        }
        _ => {
            let change = |operation: Operation<'_>| operation.fetch(op, data, rank, start, value);
            watched.operate(world, plan, format!("{op:?} with events at {rank}, {start}"), change, show)
        }
    }
}

/// Attempts until there is room.
pub fn tried<R>(world: &World, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
    loop {
        match attempt() {
            Err(Error::WouldBlock { .. }) => drop(world.poll()?),
            outcome => return outcome,
        }
    }
}

fn at_once<T: Pod>(world: &World, plan: &mut Plan, memory: &Memory<T>) -> Result<()> {
    let Memory { data, source, signals, bell } = memory;
    let at = aim(world, plan, PART * world.rank(), PART);
    let Aim { rank, start, count } = at;
    let (value, values): (T, Vec<T>) = (plan.value(), plan.values(count));
    let word = plan.own.below(2) + usize::from(plan.own.below(20) == 0);
    let (name, outcome): (String, Result<()>) = match plan.own.below(16) {
        0 => ("try_put".into(), tried(world, || data.try_put(rank, start, value))),
        1 => ("try_put_slice".into(), tried(world, || data.try_put_slice(rank, start, &values))),
        2 => ("try_put_bell".into(), tried(world, || data.try_put_bell(rank, start, value, bell))),
        3 => ("try_put_slice_bell".into(), tried(world, || data.try_put_slice_bell(rank, start, &values, bell))),
        4 => {
            let put = || data.try_put_slice_signal(rank, start, &values, signals, word);
            (format!("try_put_slice_signal, word {word}"), tried(world, put))
        }
        5 => {
            let first = plan.own.below(PART);
            let from = first..first + count;
            (format!("try_put_from {from:?}"), tried(world, || data.try_put_from(rank, start, source, from.clone())))
        }
        6 => ("try_ring".into(), tried(world, || bell.try_ring(rank))),
        7 => (format!("try_signal {word}"), tried(world, || signals.try_signal(rank, word))),
        8 | 9 => {
            let pieces = pieces(world, plan, PART * world.rank(), PART);
            let values: Vec<T> = plan.values(listed(&pieces));
            (format!("try_put_pieces {pieces:?}"), tried(world, || data.try_put_pieces(&pieces, &values)))
        }
        10 => {
            let mut under = Vec::new();
            let posted = tried(world, || data.try_put_async(rank, start, value));
            added(plan, &mut under, format!("try_put_async {at:?}"), posted, nothing);
            return plan.wait_for(world, under);
        }
        11 => {
            let mut under = Vec::new();
            let posted = tried(world, || data.try_put_slice_async(rank, start, &values));
            added(plan, &mut under, format!("try_put_slice_async {at:?}"), posted, nothing);
            return plan.wait_for(world, under);
        }
        12 => {
            let pieces = pieces(world, plan, PART * world.rank(), PART);
            let values: Vec<T> = plan.values(listed(&pieces));
            let mut under = Vec::new();
            let posted = tried(world, || data.try_put_pieces_async(&pieces, &values));
            added(plan, &mut under, format!("try_put_pieces_async {pieces:?}"), posted, nothing);
            return plan.wait_for(world, under);
        }
        way => {
            let slice = GlobalPtr::to(data, rank, PART * world.rank())?.slice(PART);
            let values: Vec<T> = plan.values(PART / 2);
            match way {
                13 => ("try_put of a slice".into(), tried(world, || slice.try_put(world, &values))),
                14 => ("try_put_strided".into(), tried(world, || slice.try_put_strided(world, 1, 2, &values))),
                _ => {
                    let numbers = numbers(plan, PART);
                    let values: Vec<T> = plan.values(numbers.len());
                    let scattered = tried(world, || slice.try_scatter(world, &numbers, &values));
                    (format!("try_scatter {numbers:?}"), scattered)
                }
            }
        }
    };
    plan.note_put(world, format!("{name} {at:?}"), outcome);
    Ok(())
}

/// Messages that a rank has taken, by their sender.
type Taken = std::cell::RefCell<Vec<u64>>;

/// Calls with events, and at once.
fn messages(world: &World, plan: &mut Plan) -> Result<()> {
    plan.about("messages");
    let watched = Watched::new(world)?;
    world.set_state(Taken::new(vec![0; world.size()]));
    world.barrier()?;
    for _ in 0..6 * plan.effort {
        let (to, value) = (plan.rank(world), plan.own.next());
        let take = |context: &bellwether::Context<'_>, value: u64| {
            let taken = context.state::<Taken>().expect("set before the barrier");
            let sum = &mut taken.borrow_mut()[context.from()];
            *sum = sum.wrapping_add(value);
        };
        match plan.own.below(5) {
            0 => {
                let name = format!("invoke with events at {to}");
                watched.operate(world, plan, name, |operation| operation.invoke(to, value, take), nothing)?;
            }
            1 => {
                let send = |mut operation: Operation<'_>| tried(world, || operation.try_invoke(to, &value, take));
                watched.operate(world, plan, format!("try_invoke with events at {to}"), send, nothing)?;
            }
            2 => {
                let sent = tried(world, || world.try_invoke_plain(to, value, take));
                plan.note(format!("try_invoke_plain at {to}"), sent.map(nothing));
            }
            3 => {
                let text = "text".repeat(plan.own.below(100));
                let call = tried(world, || world.try_call(to, &text, |_, text: String| text.len() as u64));
                plan.note(format!("try_call at {to}"), call.and_then(|call| call.wait()).map(one));
            }
            _ => {
                let call = tried(world, || {
                    world.try_call_plain(to, value, |context, value: u64| value ^ context.from() as u64)
                });
                plan.note(format!("try_call_plain at {to}"), call.and_then(|call| call.wait()).map(one));
            }
        }
    }
    // An answer comes after all messages to that rank were handled.
    for to in 0..world.size() {
        world.call(to, (), |_, ()| ())?.wait()?;
    }
    world.barrier()?;
    let taken = world.state::<Taken>().expect("just set").borrow().clone();
    plan.note("taken", Ok(many(taken)));
    plan.note("rings of events", watched.bell.count().map(one));
    world.barrier()
}
