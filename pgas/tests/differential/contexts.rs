//! Contexts: what one can do of puts, gets and atomics on plain memory, segments and addresses.

use bellwether::{
    AtomicElement, Completion, Counter, Error, Event, Pod, Result, Segment, Symmetric, ThreadArray, ThreadBell,
    ThreadContext, ThreadOperation, ThreadPosted, World,
};

use crate::memory::{Aim, Memory, PART, aim};
use crate::operations::OPS;
use crate::plan::{Plan, many, nothing, one};

pub fn script(world: &World, plan: &mut Plan) -> Result<()> {
    on::<u64>(world, plan, "a context on u64", atomic)?;
    if plan.effort > 1 {
        on::<i32>(world, plan, "a context on i32", atomic)?;
        on::<[u8; 5]>(world, plan, "a context on 5 bytes", |_, _, _, _| Ok(()))?;
    }
    segments(world, plan)
}

type Further<T> = fn(&World, &ThreadContext, &mut Plan, &ThreadArray<'_, T>) -> Result<()>;

fn on<T: Pod + Send + Sync>(world: &World, plan: &mut Plan, about: &str, further: Further<T>) -> Result<()> {
    plan.about(about);
    let memory = Memory::<T>::new(world, plan)?;
    let into = world.alloc::<T>(memory.data.len())?;
    into.write(0, &plan.values(into.len()));
    let context = world.context()?;
    let bell = memory.bell.for_threads();
    for _ in 0..8 * plan.effort {
        at_once(&context, plan, &memory, &bell)?;
        with_events(world, &context, plan, &memory, &into)?;
        further(world, &context, plan, &memory.data.for_threads())?;
        context.flush_all()?;
    }
    drop(context);
    let mut here: Vec<T> = plan.values(into.len());
    into.read(0, &mut here);
    plan.note("what came", Ok(many(here)));
    memory.tell(world, plan)
}

/// Attempts until there is room.
fn tried<R>(context: &ThreadContext, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
    loop {
        match attempt() {
            Err(Error::WouldBlock { .. }) => drop(context.poll()?),
            outcome => return outcome,
        }
    }
}

/// Waits for a future in one of the ways there are, or lets it go.
fn wait<R>(plan: &mut Plan, what: String, mut posted: ThreadPosted<'_, R>, show: fn(R) -> String) {
    match plan.own.below(4) {
        0 => drop(posted),
        1 => {
            while !posted.is_done() {}
            plan.note(what, posted.wait().map(show));
        }
        _ => plan.note(what, posted.wait().map(show)),
    }
}

fn at_once<T: Pod>(context: &ThreadContext, plan: &mut Plan, memory: &Memory<T>, bell: &ThreadBell<'_>) -> Result<()> {
    let array = memory.data.for_threads();
    let at = wrong_rank_or(context, plan, |plan| own_aim(context, plan));
    let Aim { rank, start, count } = at;
    let (value, values): (T, Vec<T>) = (plan.value(), plan.values(count));
    let (name, outcome) = match plan.own.below(14) {
        0 => ("put", context.put(&array, rank, start, value)),
        1 => return noted(plan, format!("get {at:?}"), context.get(&array, rank, start).map(one)),
        2 => ("put_slice", context.put_slice(&array, rank, start, &values)),
        3 => {
            let mut values = values;
            let got = context.get_slice(&array, rank, start, &mut values);
            return noted(plan, format!("get_slice {at:?}"), got.map(|()| many(values)));
        }
        4 => ("put_bell", context.put_bell(&array, rank, start, value, bell)),
        5 => ("put_slice_bell", context.put_slice_bell(&array, rank, start, &values, bell)),
        6 => ("ring", context.ring(bell, rank)),
        7 => ("try_put", tried(context, || context.try_put(&array, rank, start, value))),
        8 => ("try_put_slice", tried(context, || context.try_put_slice(&array, rank, start, &values))),
        9 => ("try_put_bell", tried(context, || context.try_put_bell(&array, rank, start, value, bell))),
        10 => {
            let put = || context.try_put_slice_bell(&array, rank, start, &values, bell);
            ("try_put_slice_bell", tried(context, put))
        }
        11 => ("try_ring", tried(context, || context.try_ring(bell, rank))),
        12 => {
            let get = context.get_slice_async(&array, rank, start, count);
            wait(plan, format!("get_slice_async {at:?}"), get, many);
            return Ok(());
        }
        _ => {
            wait(
                plan,
                format!("put_slice_async {at:?}"),
                context.put_slice_async(&array, rank, start, &values),
                nothing,
            );
            return context.flush_all();
        }
    };
    plan.note(format!("{name} {at:?}"), outcome.map(nothing));
    context.flush_all()
}

fn noted(plan: &mut Plan, what: String, outcome: Result<String>) -> Result<()> {
    plan.note(what, outcome);
    Ok(())
}

/// What this rank acts on.
fn own_aim(context: &ThreadContext, plan: &mut Plan) -> Aim {
    let within = plan.own.below(PART);
    let count = plan.own.below(PART - within + 1);
    Aim { rank: plan.own.below(context.size()), start: PART * context.rank() + within, count }
}

/// Now and then one that is not there.
fn wrong_rank_or(context: &ThreadContext, plan: &mut Plan, right: impl FnOnce(&mut Plan) -> Aim) -> Aim {
    let len = PART * context.size();
    match plan.own.below(25) {
        0 => Aim { rank: context.size() + plan.own.below(2), start: PART * context.rank(), count: plan.own.below(3) },
        1 => Aim { rank: 0, start: len + plan.own.below(2), count: plan.own.below(2) },
        2 => Aim { rank: 0, start: PART * context.rank(), count: len + 1 },
        _ => right(plan),
    }
}

/// Starts an operation with events, waits for them, and notes what they told. The target's program may have to make progress.
fn operate<'c, R>(
    world: &World,
    context: &'c ThreadContext,
    plan: &mut Plan,
    what: String,
    start: impl FnOnce(ThreadOperation<'c>) -> Result<R>,
    show: impl FnOnce(R) -> String,
) -> Result<()> {
    let (source, effect, done) = (Counter::new(), Counter::new(), Completion::new());
    let called = Counter::new();
    let count = called.clone();
    let call = Event::call(move |outcome| count.add(1 + u64::from(outcome.is_err())));
    let operation = context.operation().source(&source).effect(&effect).effect(call).handled(&done);
    match start(operation) {
        Ok(came) => {
            // Peers' messages are for the world.
            let ended = loop {
                context.poll()?;
                world.poll()?;
                if source.value() > 0
                    && effect.value() > 0
                    && called.value() > 0
                    && let Some(outcome) = done.outcome()
                {
                    break outcome;
                }
            };
            let counts = [source.value(), effect.value(), called.value()];
            plan.note(what, ended.map(|()| format!("{} {counts:?}", show(came))));
        }
        Err(error) => plan.note(what, Err(error)),
    }
    Ok(())
}

fn with_events<T: Pod + Send + Sync>(
    world: &World,
    context: &ThreadContext,
    plan: &mut Plan,
    memory: &Memory<T>,
    into: &Symmetric<T>,
) -> Result<()> {
    let (array, source, into) = (memory.data.for_threads(), memory.source.for_threads(), into.for_threads());
    let at = aim(world, plan, PART * world.rank(), PART);
    let Aim { rank, start, count } = at;
    let values: Vec<T> = plan.values(count);
    let first = plan.own.below(PART);
    let range = first..first + count;
    match plan.own.below(5) {
        0 => {
            let what = format!("put with events {at:?}");
            operate(world, context, plan, what, |operation| operation.put(&array, rank, start, &values), nothing)
        }
        1 => {
            let what = format!("put_owned {at:?}");
            operate(
                world,
                context,
                plan,
                what,
                |operation| operation.put_owned(&array, rank, start, values),
                |lent| context.wait_returned(&lent).map_or_else(|error| error.to_string(), many),
            )
        }
        2 => {
            let what = format!("put_from {range:?} {at:?}");
            let put = |operation: ThreadOperation<'_>| operation.put_from(&array, rank, start, &source, range);
            operate(world, context, plan, what, put, nothing)
        }
        3 => {
            let what = format!("get_into {range:?} {at:?}");
            let get = |operation: ThreadOperation<'_>| operation.get_into(&array, rank, start, &into, range);
            operate(world, context, plan, what, get, nothing)
        }
        _ => {
            let what = format!("invoke at {rank}");
            let invoke = |operation: ThreadOperation<'_>| operation.invoke(rank, 5u64, |_, five| assert_eq!(five, 5));
            operate(world, context, plan, what, invoke, nothing)
        }
    }?;
    context.flush_all()
}

fn atomic<T: AtomicElement>(
    world: &World,
    context: &ThreadContext,
    plan: &mut Plan,
    array: &ThreadArray<'_, T>,
) -> Result<()> {
    let Aim { rank, start, .. } = wrong_rank_or(context, plan, |plan| own_aim(context, plan));
    let (value, expected): (T, T) = (plan.value(), plan.value());
    let way = plan.own.below(14);
    let what = format!("atomic {way} at {rank}, {start}");
    let outcome = match way {
        0 => context.fetch_add(array, rank, start, value),
        1 => context.fetch_and(array, rank, start, value),
        2 => context.fetch_or(array, rank, start, value),
        3 => context.fetch_xor(array, rank, start, value),
        4 => context.swap(array, rank, start, value),
        5 => context.compare_swap(array, rank, start, expected, value),
        6 => context.get(array, rank, start).and_then(|there| context.compare_swap(array, rank, start, there, value)),
        7..=11 => {
            let posted = match way {
                7 => context.fetch_add_async(array, rank, start, value),
                8 => context.fetch_or_async(array, rank, start, value),
                9 => context.fetch_xor_async(array, rank, start, value),
                10 => context.swap_async(array, rank, start, value),
                _ => context.compare_swap_async(array, rank, start, expected, value),
            };
            wait(plan, what, posted, one);
            return Ok(());
        }
        12 => {
            let change = |operation: ThreadOperation<'_>| operation.compare_swap(array, rank, start, expected, value);
            let show = |fetched: bellwether::Fetched<T>| fetched.value().map_or("nothing".into(), one);
            return operate(world, context, plan, what, change, show);
        }
        _ => {
            let op = OPS[plan.own.below(6)];
            let change = |operation: ThreadOperation<'_>| operation.fetch(op, array, rank, start, value);
            let show = |fetched: bellwether::Fetched<T>| fetched.value().map_or("nothing".into(), one);
            return operate(world, context, plan, format!("{what}, {op:?}"), change, show);
        }
    };
    plan.note(what, outcome.map(one));
    Ok(())
}

/// Bytes of a segment at each rank that one rank acts on.
const BYTES: usize = 64;

/// Segments that the library has made: by their number, by the address, and the heap as the reserved one. A context does no atomics on
/// those where only a message reaches them.
fn segments(world: &World, plan: &mut Plan) -> Result<()> {
    plan.about("a context on segments");
    let (made, back) = (world.segment_all(BYTES * world.size())?, world.segment(BYTES)?);
    let heap = world.alloc::<u64>(BYTES / 8 * world.size())?;
    let addresses = world.exchange_addresses(made.as_ptr())?;
    let bell = world.bell()?;
    world.barrier()?;
    let context = world.context()?;
    for _ in 0..12 * plan.effort {
        on_segment(world, &context, plan, [&made, &back], &addresses, &heap, &bell.for_threads())?;
        context.flush_all()?;
    }
    drop(context);
    world.barrier()?;
    for (name, segment) in [("made", &made), ("back", &back)] {
        let mut here = vec![0u8; segment.len()];
        let read = segment.read(0, &mut here);
        plan.note(name, read.map(|()| many(here)));
    }
    let mut here = vec![0; heap.len()];
    heap.read(0, &mut here);
    plan.note("heap", Ok(many(here)));
    plan.note("rings", bell.count().map(one));
    world.barrier()?;
    made.close()?;
    back.close()?;
    world.barrier()
}

fn on_segment(
    world: &World,
    context: &ThreadContext,
    plan: &mut Plan,
    [made, back]: [&Segment; 2],
    addresses: &[usize],
    heap: &Symmetric<u64>,
    bell: &ThreadBell<'_>,
) -> Result<()> {
    let rank = plan.rank(world);
    let number = if plan.own.below(25) == 0 { [0, 7, 70_000][plan.own.below(3)] } else { made.number() };
    let word = plan.own.below(BYTES / 8);
    let far = if plan.own.below(25) == 0 { BYTES * world.size() } else { 0 };
    let offset = BYTES * world.rank() + 8 * word + far;
    let len = plan.own.below(BYTES - 8 * word + 1);
    let bytes: Vec<u8> = plan.values(len);
    let (op, value, expected) = (OPS[plan.own.below(6)], plan.own.next(), plan.own.next());
    let way = plan.own.below(17);
    let what = format!("call {way} at rank {rank}, segment {number}, offset {offset}, {} bytes, {op:?}", bytes.len());
    let address = addresses[rank.min(world.size() - 1)] + offset - far;
    let in_heap = heap.segment_offset(BYTES / 8 * world.rank() + word);
    let (to, len, into) = (8 * word, bytes.len(), back.for_threads());
    // SAFETY: all accesses are to the array `heap`, of which any bits are valid.
    let reserved = unsafe { context.reserved_segments() };
    let place = (rank, number, offset);
    let fetched = |fetched: bellwether::Fetched<u64>| fetched.value().map_or("nothing".into(), one);
    let mut came = bytes.clone();
    let outcome = match way {
        0 => context.put_segment(rank, number, offset, &bytes).map(nothing),
        1 => context.get_segment(rank, number, offset, &mut came).map(|()| many(came)),
        2 => context.put_segment_bell(rank, number, offset, &bytes, bell).map(nothing),
        3 => context.notify_segment(rank, number, offset, value).map(nothing),
        4 => reserved.fetch(op, rank, 0, in_heap, value).map(one),
        5 => reserved.compare_swap(rank, 0, in_heap, expected as u32, value as u32).map(one),
        6 => context.get_segment_into(place, &into, to, len).map(nothing),
        7 => tried(context, || context.try_put_segment(rank, number, offset, &bytes)).map(nothing),
        8 => tried(context, || context.try_put_segment_bell(rank, number, offset, &bytes, bell)).map(nothing),
        // SAFETY: bytes of a segment, which only this rank changes.
        9 => unsafe { context.put_address(rank, address, &bytes) }.map(nothing),
        // SAFETY: as above.
        10 => unsafe { context.get_address(rank, address, &mut came) }.map(|()| many(came)),
        11 => reserved.put(rank, 0, in_heap, &bytes).map(nothing),
        12 => reserved.get(rank, 0, in_heap, &mut came).map(|()| many(came)),
        13 => {
            let put = |operation: ThreadOperation<'_>| operation.put_segment(rank, number, offset, &bytes);
            return operate(world, context, plan, what, put, nothing);
        }
        14 => {
            let get = |operation: ThreadOperation<'_>| operation.get_segment(place, &into, to, len);
            return operate(world, context, plan, what, get, nothing);
        }
        15 => {
            let put = |operation: ThreadOperation<'_>| operation.put_reserved(&reserved, rank, 0, in_heap, &bytes);
            return operate(world, context, plan, what, put, nothing);
        }
        _ => {
            let change =
                |operation: ThreadOperation<'_>| operation.fetch_reserved(op, &reserved, (rank, 0, in_heap), value);
            return operate(world, context, plan, what, change, fetched);
        }
    };
    plan.note(what, outcome);
    Ok(())
}
