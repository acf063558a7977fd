//! Programs of the waits for things of many types, and of the calls that answer at once. Every rank of a job runs them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bellwether_runtime::{
    Builder, Completion, Counter, Error, HandlerId, Landing, LandingId, Operation, Result, Sum, Symmetric, Team,
    ThreadContext, ThreadOperation, Waitable, World,
};

const SOON: Duration = Duration::from_millis(5);
const LATE: Duration = Duration::from_secs(100);

/// Something of each kind: in flight, and what it gives.
pub fn mix(world: &World) -> Result<()> {
    let (me, n) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    let (bell, never) = (world.bell()?, world.bell()?);
    let (words, team) = (world.alloc::<u64>(8)?, Team::world(world)?);
    words.store(0, 10 + me as u64);
    world.barrier()?;
    for round in 1..=3 {
        let all = round == 3;
        let mut quiet = never.rung(1);
        let mut call = world.call(next, round, |context, x: u64| x + context.rank() as u64)?;
        let mut get = words.get_async(next, 0);
        // Fails when it is posted: ready, like any other.
        let mut bad = words.get_async(next, 100);
        let mut sum = team.allreduce_async(vec![round], Sum);
        let mut rung = bell.rung(round);
        let mut signalled = words.signalled(1, round);
        let mut done = Completion::new();
        world.operation().handled(&done).invoke(next, (), |_, ()| ())?;
        let mut returned = world.operation().put_owned(&words, next, 2, vec![round; 2])?;
        bell.ring(next)?;
        words.signal(next, 1)?;
        let items: [&mut dyn Waitable; 8] =
            [&mut call, &mut get, &mut bad, &mut sum, &mut rung, &mut signalled, &mut done, &mut returned];
        if all {
            let mut items = items;
            match me % 2 {
                0 => world.wait_every(&mut items)?,
                _ => world.wait_every_for(LATE, &mut items)?,
            }
            let error = world.wait_every_for(SOON, &mut [&mut *items[0], &mut quiet]).expect_err("nobody rings");
            assert!(matches!(error, Error::TimedOut { .. }), "{error}");
            // All of them are ready: the first is told.
            assert_eq!(world.wait_any(&mut items)?, 0);
        } else {
            let mut left: Vec<&mut dyn Waitable> = Vec::from(items);
            while !left.is_empty() {
                // What is never ready stands first, and keeps none back.
                let mut list: Vec<&mut dyn Waitable> = vec![&mut quiet];
                list.extend(left.iter_mut().map(|item| &mut **item as &mut dyn Waitable));
                let place = match round {
                    1 => world.wait_any(&mut list)?,
                    _ => world.wait_any_for(LATE, &mut list)?,
                };
                // Asked again it gives the same: nothing was taken.
                assert_eq!(world.wait_any_for(Duration::ZERO, &mut [&mut *list[place]])?, 0);
                left.remove(place - 1);
            }
        }
        let error = world.wait_any_for(SOON, &mut [&mut quiet]).expect_err("nobody rings");
        assert!(matches!(error, Error::TimedOut { after: SOON, .. }), "{error}");
        assert_eq!(call.wait()?, round + next as u64);
        assert_eq!(get.wait()?, 10 + next as u64);
        assert!(matches!(bad.wait(), Err(Error::OutOfBounds { .. })));
        assert_eq!(sum.wait()?, [round * n as u64]);
        assert_eq!((world.block_on(rung)?, world.block_on(signalled)?), (round, round));
        world.wait_completion(&done)?;
        assert_eq!(returned.take(), Some(vec![round; 2]));
        world.barrier()?;
        assert_eq!((words.load(2), words.load(3)), (round, round), "from rank {before}");
        world.barrier()?;
    }
    for error in [world.wait_any(&mut []), world.wait_any_for(SOON, &mut [])] {
        assert!(matches!(error, Err(Error::InvalidArgument { .. })), "{error:?}");
    }
    world.wait_every(&mut [])?;
    world.barrier()
}

/// Counts the messages that came.
pub struct Heard {
    /// So many.
    pub count: Rc<Cell<usize>>,
    handler: HandlerId,
    landing: LandingId,
}

impl Heard {
    /// Registers the handlers.
    pub fn new(builder: &mut Builder) -> Heard {
        let count = Rc::new(Cell::new(0));
        let [handled, landed] = [Rc::clone(&count), Rc::clone(&count)];
        let handler = builder.handler("waiting: counts", move |_, _| handled.set(handled.get() + 1));
        let landing = builder.landing_handler(
            "waiting: lands",
            |_, _| Landing::vec(Vec::new()),
            move |_, _| landed.set(landed.get() + 1),
        );
        Heard { count, handler, landing }
    }
}

/// The ways to send at once.
pub const WAYS: usize = 14;
/// The first of those of a context, and of operations of a context.
const OF_CONTEXTS: usize = 10;
/// Bytes of a large message.
const LARGE: usize = 20_000;

/// What attempts share.
struct Attempts<'w> {
    world: &'w World,
    context: Option<&'w ThreadContext>,
    /// Adds up the events of operations.
    counted: Counter,
    done: Completion,
    /// Operations that found no room, with their events.
    operation: Option<Operation<'w>>,
    of_context: Option<ThreadOperation<'w>>,
}

/// Tries with the operation that found no room before, or with a new one.
fn with<O>(kept: &mut Option<O>, new: impl FnOnce() -> O, attempt: impl FnOnce(&mut O) -> Result<()>) -> Result<()> {
    let mut operation = kept.take().unwrap_or_else(new);
    let outcome = attempt(&mut operation);
    if let Err(Error::WouldBlock { .. }) = outcome {
        *kept = Some(operation);
    }
    outcome
}

/// One attempt, in one of the ways.
fn attempt(attempts: &mut Attempts<'_>, heard: &Heard, way: usize) -> Result<()> {
    type Count = Rc<Cell<usize>>;
    let Attempts { world, context, counted, done, operation, of_context } = attempts;
    let new = || world.operation().source(&*counted).effect(&*counted).handled(&*counted).handled(&*done);
    let context = || context.expect("made for these ways");
    let new_of_context =
        || context().operation().source(&*counted).effect(&*counted).handled(&*counted).handled(&*done);
    fn count(context: &bellwether_runtime::Context<'_>) {
        let count = context.state::<Count>().expect("set before the barrier");
        count.set(count.get() + 1);
    }
    match way {
        0 => world.try_send(1, heard.handler, b"short"),
        1 => world.try_send(1, heard.handler, &[7; 3000]),
        2 => world.try_invoke(1, &String::from("a text"), |context, _: String| count(context)),
        3 => world.try_invoke(1, &vec![1u8; 2000], |context, _: Vec<u8>| count(context)),
        4 => world.try_invoke_plain(1, 5u64, |context, _| count(context)),
        5 => world.try_call(1, &vec![3u64; 3], |context, _: Vec<u64>| count(context)).map(drop),
        6 => world.try_call_plain(1, 5u64, |context, _| count(context)).map(drop),
        7 => world.try_send_large(1, heard.landing, b"header", &Rc::new(vec![1; LARGE])).map(drop),
        8 => with(operation, new, |new| new.try_send(1, heard.handler, &[7; 300])),
        9 => with(operation, new, |new| new.try_invoke(1, &vec![1u8; 300], |context, _: Vec<u8>| count(context))),
        OF_CONTEXTS => context().try_invoke(1, &vec![1u8; 300], |context, _: Vec<u8>| count(context)),
        11 => context().try_invoke_plain(1, 5u64, |context, _| count(context)),
        12 => with(of_context, new_of_context, |new| new.try_send(1, heard.handler, &[7; 300])),
        _ => with(of_context, new_of_context, |new| {
            new.try_invoke(1, &vec![1u8; 300], |context, _: Vec<u8>| count(context))
        }),
    }
}

/// Rank 0 sends to rank 1 without waiting until there is no room, and goes on when there is some: each message that was sent is
/// delivered once, and none of those that were refused. `stay_away` keeps rank 1 from its handlers until `told` is called.
pub fn messages_at_once(
    world: &World,
    heard: &Heard,
    way: usize,
    stay_away: impl FnOnce(),
    told: impl FnOnce(),
) -> Result<()> {
    const MOST: usize = 100_000;
    const AFTER: usize = 300;
    world.set_state(Rc::clone(&heard.count));
    let total = world.alloc::<u64>(1)?;
    world.barrier()?;
    if world.rank() == 1 {
        stay_away();
        world.wait_until(|| total.load(0) > 0 && heard.count.get() as u64 >= total.load(0))?;
    } else if world.rank() == 0 {
        let (mut sent, mut refused) = (0, 0);
        let context = (way >= OF_CONTEXTS).then(|| world.context()).transpose()?;
        let counted = Counter::new();
        let mut attempts = Attempts {
            world,
            context: context.as_ref(),
            counted: counted.clone(),
            done: Completion::new(),
            operation: None,
            of_context: None,
        };
        let mut try_one = || match attempt(&mut attempts, heard, way) {
            Ok(()) => Ok(true),
            Err(Error::WouldBlock { rank: 1, place, .. }) => {
                assert!(place.to_string().contains(file!()), "{place}");
                refused += 1;
                Ok(false)
            }
            Err(error) => Err(error),
        };
        // A network learns of room.
        while !try_one()? {
            world.poll()?;
        }
        sent += 1;
        while try_one()? {
            sent += 1;
            assert!(sent < MOST, "way {way}: there is always room");
        }
        // Nothing has changed.
        assert!(!try_one()?);
        told();
        for _ in 0..AFTER {
            while !try_one()? {
                world.poll()?;
                world.sleep(Duration::from_micros(10));
            }
            sent += 1;
        }
        assert!(refused >= 2);
        total.put(1, 0, sent as u64)?;
        if [8, 9, 12, 13].contains(&way) {
            // Each event of what was sent happens once, and none of what was refused.
            world.wait_completion(&attempts.done)?;
            context.iter().try_for_each(|context| context.flush_all())?;
            let all = 3 * sent as u64;
            assert_eq!(world.wait_counter(&counted, all)?, all, "way {way}");
        }
    }
    world.barrier()?;
    world.barrier()?;
    if world.rank() == 1 {
        assert_eq!(heard.count.get() as u64, total.load(0), "way {way}: none twice, and none that was refused");
    }
    world.barrier()
}

/// Rank 0 puts to rank 1, whose interface serves nothing now, until no more is kept: what was refused has not happened, and what was
/// not has, once. `largest` bytes are kept at most.
pub fn puts_at_once(world: &World, largest: usize, way: usize, stay_away: impl FnOnce()) -> Result<()> {
    const PART: usize = 64;
    let parts = 4 * largest / (8 * PART);
    let numbers: Symmetric<u64> = world.alloc(parts * PART)?;
    let (bell, done) = (world.bell()?, world.bell()?);
    let rung = world.alloc::<u64>(1)?;
    world.barrier()?;
    let value = |part: usize| part as u64 + 1;
    if world.rank() == 1 {
        stay_away();
        done.wait(1)?;
    } else if world.rank() == 0 {
        let (mut posted, mut kept, counted) = (Vec::new(), None, Counter::new());
        let mut put = |part: usize| {
            let (start, values) = (part * PART, [value(part); PART]);
            let outcome = match way {
                0 => numbers.try_put_slice(1, start, &values),
                1 => numbers.try_put(1, start, value(part)),
                2 => numbers.try_put_slice_bell(1, start, &values, &bell),
                3 => numbers.try_put_bell(1, start, value(part), &bell),
                4 => numbers.try_put_slice_async(1, start, &values).map(|put| posted.push(put)),
                5 => numbers.try_put_async(1, start, value(part)).map(|put| posted.push(put)),
                _ => with(
                    &mut kept,
                    || world.operation().source(&counted).effect(&counted),
                    |put| put.try_put(&numbers, 1, start, &values),
                ),
            };
            match outcome {
                Ok(()) => Ok(true),
                Err(Error::WouldBlock { rank: 1, place, .. }) => {
                    assert!(place.to_string().contains(file!()), "{place}");
                    Ok(false)
                }
                Err(error) => Err(error),
            }
        };
        let mut part = 0;
        // Single elements need more of them.
        let again = if way.is_multiple_of(2) { 1 } else { PART };
        let refused = 'full: loop {
            assert!(part < parts, "way {way}: there is always room");
            for _ in 0..again {
                if !put(part)? {
                    break 'full part;
                }
            }
            part += 1;
        };
        if again == 1 {
            assert!(refused > 0 && !put(refused)?, "way {way}");
        }
        // The refused part is left out. All others find room in time.
        for part in refused + 1..parts {
            while !put(part)? {
                world.poll()?;
                world.sleep(Duration::from_micros(10));
            }
        }
        if !posted.is_empty() {
            bellwether_runtime::Posted::wait_all(posted)?;
        }
        world.fence();
        if way == 6 {
            // Of all parts but the refused one, whose operation another has used.
            let all = 2 * (parts as u64 - 1);
            assert_eq!(world.wait_counter(&counted, all)?, all);
        }
        rung.put(1, 0, refused as u64)?;
        done.ring(1)?;
    }
    world.barrier()?;
    if world.rank() == 1 {
        let refused = rung.load(0) as usize;
        for part in 0..parts {
            let came = numbers.load(part * PART);
            // With single elements the refused one may have had some that went before.
            let expected = if part == refused && way.is_multiple_of(2) { 0 } else { value(part) };
            assert!(came == expected || (part == refused && came == 0), "way {way}: part {part} is {came}");
        }
        if way == 2 {
            assert_eq!(bell.count()?, parts as u64 - 1, "one ring for each put, and none for what was refused");
        }
    }
    world.barrier()
}

/// Rank 0 puts to rank 1, whose table of segments it has not fetched yet: the puts answer while virtual time stands still, and are in
/// effect in time.
pub fn first_puts_take_no_time(world: &World) -> Result<()> {
    /// More than are put without a copy where a call may wait.
    const LONG: usize = 64 << 10;
    let numbers: Symmetric<u64> = world.alloc(LONG + 1)?;
    let done = world.bell()?;
    world.barrier()?;
    if world.rank() == 0 {
        let values = vec![7; LONG];
        let before = world.elapsed();
        // All of it is kept, since nothing else is.
        numbers.try_put_slice(1, 0, &values)?;
        assert_eq!(world.elapsed(), before, "nothing has happened meanwhile");
        numbers.put(1, LONG, 5)?;
        world.fence();
        done.ring(1)?;
    } else {
        done.wait(1)?;
        assert_eq!((numbers.load(0), numbers.load(LONG - 1), numbers.load(LONG)), (7, 7, 5));
    }
    world.barrier()
}
