//! Programs of the waits for things of many types, and of the calls that answer at once. Every rank of a job runs them.

mod room;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::AtomicI32;
use std::time::Duration;

use bellwether_runtime::{
    Bell, Builder, Completion, Counter, Error, HandlerId, Landing, LandingId, Operation, Piece, Posted, RawBells,
    Result, Sum, Symmetric, Team, ThreadContext, ThreadOperation, ThreadPosted, Waitable, World,
};

pub use self::room::{first_puts_take_no_time, room_is_announced, takers};

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
            // All items are ready: the call names the first.
            assert_eq!(world.wait_any(&mut items)?, 0);
        } else {
            let mut left: Vec<&mut dyn Waitable> = Vec::from(items);
            while !left.is_empty() {
                // An item that is never ready stands first, and delays none of the others.
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

/// State that all attempts share.
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
    let (total, away) = (world.alloc::<u64>(1)?, world.alloc::<u64>(1)?);
    world.barrier()?;
    if world.rank() == 1 {
        // Out of the barrier, which would deliver.
        away.put(0, 0, 1)?;
        world.fence();
        stay_away();
        world.wait_until(|| total.load(0) > 0 && heard.count.get() as u64 >= total.load(0))?;
    } else if world.rank() == 0 {
        world.wait_until(|| away.load(0) == 1)?;
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
            // Each event of the messages that were sent happens once, and none of those that were refused.
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

/// The ways to put at once.
pub const PUT_WAYS: usize = 36;
/// Elements of a part.
const PART: usize = 64;

/// Targets and state of puts in `try_` forms.
struct Puts<'w> {
    world: &'w World,
    numbers: &'w Symmetric<u64>,
    bell: &'w Bell,
    signals: &'w Symmetric<u64>,
    /// The number of rank 1's.
    segment: u32,
    /// Where `numbers` begins at rank 1.
    address: usize,
    context: &'w ThreadContext,
    counted: Counter,
    posted: Vec<Posted<()>>,
    of_context: Vec<ThreadPosted<'w, ()>>,
    /// Operations that found no room, with their events.
    kept: Option<Operation<'w>>,
    kept_of_context: Option<ThreadOperation<'w>>,
}

impl Puts<'_> {
    /// Puts one element at a time.
    fn is_single(way: usize) -> bool {
        [1, 3, 5, 16, 17, 32].contains(&way)
    }

    fn of_context(way: usize) -> bool {
        (12..=20).contains(&way) || (26..=32).contains(&way)
    }

    /// Puts a part to rank 1, in one of the ways: the whole part, or one element.
    fn put(&mut self, way: usize, part: usize) -> Result<()> {
        let Puts { world, numbers, bell, signals, segment, context, counted, .. } = self;
        let (start, value, values) = (part * PART, part as u64 + 1, [part as u64 + 1; PART]);
        let (array, of_threads) = (numbers.for_threads(), bell.for_threads());
        let (bytes, at) = (values.map(u64::to_ne_bytes), start * size_of::<u64>());
        let half = PART / 2;
        // Not one piece: the second half comes first.
        let pieces = [half, 0].map(|from| Piece { rank: 1, start: start + from, count: half });
        match way {
            0 => numbers.try_put_slice(1, start, &values),
            1 => numbers.try_put(1, start, value),
            2 => numbers.try_put_slice_bell(1, start, &values, bell),
            3 => numbers.try_put_bell(1, start, value, bell),
            4 => numbers.try_put_slice_async(1, start, &values).map(|put| self.posted.push(put)),
            5 => numbers.try_put_async(1, start, value).map(|put| self.posted.push(put)),
            6 => with(
                &mut self.kept,
                || world.operation().source(&*counted).effect(&*counted),
                |put| put.try_put(numbers, 1, start, &values),
            ),
            7 => world.try_put_segment(1, *segment, at, bytes.as_flattened()),
            8 => world.try_put_segment_bell(1, *segment, at, bytes.as_flattened(), bell),
            9 => numbers.try_put_pieces(&pieces, &values),
            10 => numbers.try_put_pieces_async(&pieces, &values).map(|put| self.posted.push(put)),
            11 => numbers.try_put_slice_signal(1, start, &values, signals, 0),
            12 => context.try_put_slice(&array, 1, start, &values),
            13 => context.try_put_slice_bell(&array, 1, start, &values, &of_threads),
            14 => context.try_put_slice_async(&array, 1, start, &values).map(|put| self.of_context.push(put)),
            15 => with(
                &mut self.kept_of_context,
                || context.operation().source(&*counted).effect(&*counted),
                |put| put.try_put(&array, 1, start, &values),
            ),
            16 => context.try_put(&array, 1, start, value),
            17 => context.try_put_bell(&array, 1, start, value, &of_threads),
            18 => context.try_put_segment(1, *segment, at, bytes.as_flattened()),
            19 => context.try_put_segment_bell(1, *segment, at, bytes.as_flattened(), &of_threads),
            20 => with(
                &mut self.kept_of_context,
                || context.operation().source(&*counted).effect(&*counted),
                |put| put.try_put_segment(1, *segment, at, bytes.as_flattened()),
            ),
            // The source is this rank's part.
            21 => numbers.try_put_from(1, start, numbers, start..start + PART),
            22 => with(
                &mut self.kept,
                || world.operation().source(&*counted).effect(&*counted),
                |put| put.try_put_from(numbers, 1, start, numbers, start..start + PART),
            ),
            23 => with(
                &mut self.kept,
                || world.operation().source(&*counted).effect(&*counted),
                |put| {
                    let mut buffer = Some(values.to_vec());
                    let outcome = put.try_put_owned(numbers, 1, start, &mut buffer);
                    assert_eq!(buffer.is_some(), outcome.is_err(), "a buffer that is not put is left");
                    outcome.map(drop)
                },
            ),
            24 => {
                // SAFETY: an array of words.
                unsafe { world.reserved_segments() }.try_put(1, 0, numbers.segment_offset(start), bytes.as_flattened())
            }
            25 => {
                // SAFETY: as above.
                let reserved = unsafe { world.reserved_segments() };
                with(
                    &mut self.kept,
                    || world.operation().source(&*counted).effect(&*counted),
                    |put| put.try_put_reserved(&reserved, 1, 0, numbers.segment_offset(start), bytes.as_flattened()),
                )
            }
            26 => with(
                &mut self.kept_of_context,
                || context.operation().source(&*counted).effect(&*counted),
                |put| {
                    let mut buffer = Some(values.to_vec());
                    let outcome = put.try_put_owned(&array, 1, start, &mut buffer);
                    assert_eq!(buffer.is_some(), outcome.is_err(), "a buffer that is not put is left");
                    assert_eq!(buffer.as_deref().unwrap_or(&values), values);
                    outcome.map(drop)
                },
            ),
            27 => with(
                &mut self.kept_of_context,
                || context.operation().source(&*counted).effect(&*counted),
                |put| put.try_put_from(&array, 1, start, &array, start..start + PART),
            ),
            28 => {
                // SAFETY: an array of words.
                let reserved = unsafe { context.reserved_segments() };
                reserved.try_put(1, 0, numbers.segment_offset(start), bytes.as_flattened())
            }
            29 => {
                // SAFETY: as above.
                let reserved = unsafe { context.reserved_segments() };
                with(
                    &mut self.kept_of_context,
                    || context.operation().source(&*counted).effect(&*counted),
                    |put| put.try_put_reserved(&reserved, 1, 0, numbers.segment_offset(start), bytes.as_flattened()),
                )
            }
            // SAFETY: the other rank's part of an array of words.
            30 => unsafe { context.try_put_address(1, self.address + at, bytes.as_flattened()) },
            31 => with(
                &mut self.kept_of_context,
                || context.operation().source(&*counted).effect(&*counted),
                // SAFETY: as above.
                |put| unsafe { put.try_put_address(1, self.address + at, bytes.as_flattened()) },
            ),
            32 => context.try_notify_segment(1, *segment, at, value),
            33 => with(
                &mut self.kept,
                || world.operation().source(&*counted).effect(&*counted),
                |put| put.try_put_segment(1, *segment, at, bytes.as_flattened()),
            ),
            34 => with(
                &mut self.kept,
                || world.operation().source(&*counted).effect(&*counted),
                // SAFETY: as above.
                |put| unsafe { put.try_put_address(1, self.address + at, bytes.as_flattened()) },
            ),
            _ => {
                let arrived = AtomicI32::new(0);
                let bells = RawBells { local: Some(&arrived), remote: None };
                // SAFETY: the other rank's part of an array of words.
                let outcome = unsafe { world.try_put_address(1, self.address + at, bytes.as_flattened(), bells) };
                assert_eq!(arrived.into_inner() == 1, outcome.is_ok(), "the source may be changed, or nothing was put");
                outcome
            }
        }
    }
}

/// Whether there was room.
fn had_room(outcome: Result<()>) -> Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(Error::WouldBlock { rank: 1, place, .. }) => {
            // This file or one of its modules.
            assert!(place.to_string().contains(file!().trim_end_matches(".rs")), "{place}");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Rank 0 puts to rank 1, whose interface serves nothing now, until no more is kept: what was refused has not happened, and what was
/// not has, once. `largest` bytes are kept at most.
pub fn puts_at_once(world: &World, largest: usize, way: usize, stay_away: impl FnOnce()) -> Result<()> {
    let parts = 4 * largest / (8 * PART);
    let numbers: Symmetric<u64> = world.alloc(parts * PART)?;
    let (bell, done) = (world.bell()?, world.bell()?);
    let (refusals, signals) = (world.alloc::<u64>(1)?, world.alloc::<u64>(1)?);
    let segment = world.segment(parts * PART * size_of::<u64>())?;
    let context = world.context()?;
    let number = world.allgather(&[segment.number()])?[1];
    let address = world.allgather(&[numbers.as_ptr_range().start as usize])?[1];
    (0..parts * PART).filter(|_| world.rank() == 0).for_each(|at| numbers.store(at, (at / PART) as u64 + 1));
    if world.rank() == 0 {
        // The network has made its connections, and knows the memory of rank 1, before that stays away.
        world.put_segment(1, number, 0, &[0; 8])?;
        context.put(&numbers.for_threads(), 1, 0, 0)?;
        context.put_segment(1, number, 0, &[0; 8])?;
        context.flush(1)?;
    }
    world.barrier()?;
    let value = |part: usize| part as u64 + 1;
    let single = Puts::is_single(way);
    if world.rank() == 1 {
        stay_away();
        done.wait(1)?;
    } else if world.rank() == 0 {
        let mut puts = Puts {
            world,
            numbers: &numbers,
            bell: &bell,
            signals: &signals,
            segment: number,
            address,
            context: &context,
            counted: Counter::new(),
            posted: Vec::new(),
            of_context: Vec::new(),
            kept: None,
            kept_of_context: None,
        };
        let mut part = 0;
        // A way that puts single elements needs more puts.
        let again = if single { PART } else { 1 };
        let refused = 'full: loop {
            assert!(part < parts, "way {way}: there is always room");
            for _ in 0..again {
                if !had_room(puts.put(way, part))? {
                    break 'full part;
                }
            }
            part += 1;
        };
        if !single {
            assert!(refused > 0 && !had_room(puts.put(way, refused))?, "way {way}");
        }
        // The refused part is left out. All others find room in time.
        for part in refused + 1..parts {
            while !had_room(puts.put(way, part))? {
                world.poll()?;
                world.sleep(Duration::from_micros(10));
            }
        }
        Posted::wait_all(puts.posted)?;
        puts.of_context.into_iter().try_for_each(|put| put.wait())?;
        world.fence();
        if Puts::of_context(way) {
            context.flush_all()?;
        }
        if [6, 15, 20, 22, 23, 25, 26, 27, 29, 31, 33, 34].contains(&way) {
            // Two events for each part except the refused one, whose operation another put has used.
            let all = 2 * (parts as u64 - 1);
            assert_eq!(world.wait_counter(&puts.counted, all)?, all);
        }
        refusals.put(1, 0, refused as u64)?;
        done.ring(1)?;
    }
    world.barrier()?;
    if world.rank() == 1 {
        let refused = refusals.load(0) as usize;
        let came = |at: usize| -> Result<u64> {
            let mut bytes = [0; 8];
            if [7, 8, 18, 19, 20, 32, 33].contains(&way) {
                segment.read(8 * at, &mut bytes)?;
                return Ok(u64::from_ne_bytes(bytes));
            }
            Ok(numbers.load(at))
        };
        for part in 0..parts {
            for at in if single { 0..1 } else { 0..PART } {
                let came = came(part * PART + at)?;
                // With single elements the refused one may have had some that went before.
                let expected = if part == refused && !single { 0 } else { value(part) };
                assert!(came == expected || (part == refused && came == 0), "way {way}: part {part} is {came}");
            }
        }
        let rings = match way {
            11 => signals.signals(0),
            _ => bell.count()?,
        };
        if [2, 8, 11, 13, 19].contains(&way) {
            assert_eq!(rings, parts as u64 - 1, "way {way}: one ring for each put, and none for what was refused");
        }
    }
    world.barrier()?;
    drop(context);
    segment.close()?;
    world.barrier()
}

/// The ways to ring at once.
pub const RING_WAYS: usize = 4;

/// Rank 0 rings at rank 1, whose interface serves nothing now, until there is no room: each ring that was not refused counts, once.
pub fn rings_at_once(world: &World, way: usize, stay_away: impl FnOnce()) -> Result<()> {
    const MOST: u64 = 10_000;
    const AFTER: u64 = 50;
    let (bell, done) = (world.bell()?, world.bell()?);
    let (rings, signals) = (world.alloc::<u64>(1)?, world.alloc::<u64>(1)?);
    let (segment, context) = (world.segment(16)?, world.context()?);
    let number = world.allgather(&[segment.number()])?[1];
    if world.rank() == 0 {
        world.put_segment(1, number, 0, &[0; 16])?;
        context.put(&rings.for_threads(), 1, 0, 0)?;
        context.flush(1)?;
    }
    world.barrier()?;
    if world.rank() == 1 {
        stay_away();
        done.wait(1)?;
    } else if world.rank() == 0 {
        let ring = |count: u64| {
            had_room(match way {
                0 => bell.try_ring(1),
                1 => signals.try_signal(1, 0),
                2 => context.try_ring(&bell.for_threads(), 1),
                _ => world.try_notify_segment(1, number, 0, count),
            })
        };
        let mut count = 0;
        while ring(count + 1)? {
            count += 1;
            assert!(count < MOST, "way {way}: there is always room");
        }
        assert!(count > 0 && !ring(MOST)?, "way {way}");
        // Later stores replace the value at the word of the counts.
        assert!(
            way != 3 || !had_room(world.try_notify_segment(1, number, 8, MOST))?,
            "another word has no room either"
        );
        for _ in 0..AFTER {
            while !ring(count + 1)? {
                world.poll()?;
                world.sleep(Duration::from_micros(10));
            }
            count += 1;
        }
        world.fence();
        context.flush_all()?;
        rings.put(1, 0, count)?;
        done.ring(1)?;
    }
    world.barrier()?;
    if world.rank() == 1 {
        let (mut word, mut refused) = ([0; 8], [0; 8]);
        segment.read(0, &mut word)?;
        segment.read(8, &mut refused)?;
        assert_eq!(refused, [0; 8], "way {way}: what was refused");
        let came = [bell.count()?, signals.signals(0), bell.count()?, u64::from_ne_bytes(word)][way];
        assert_eq!(came, rings.load(0), "way {way}: one for each, and none for what was refused");
    }
    world.barrier()?;
    drop(context);
    segment.close()?;
    world.barrier()
}

/// More elements than the network takes in one part.
const LONG: usize = 32 << 10;

/// The ways to put at once what is long enough to be read in place.
pub const LONG_WAYS: usize = 3;

/// Rank 0 fills the network to rank 1, whose interface serves nothing now. A long put is refused whole then, and another that finds room
/// later arrives whole.
pub fn long_puts_at_once(world: &World, way: usize) -> Result<()> {
    let (numbers, done) = (world.alloc::<u64>(2 * LONG + 1)?, world.bell()?);
    if world.rank() == 0 {
        (0..LONG).for_each(|at| numbers.store(at, at as u64 + 1));
        numbers.put(1, 2 * LONG, 0)?;
    }
    world.barrier()?;
    if world.rank() == 1 {
        world.sleep(Duration::from_millis(10));
        done.wait(1)?;
        assert!((0..LONG).all(|at| numbers.load(at) == 0), "way {way}: a put that was refused");
        assert!((0..LONG).all(|at| numbers.load(LONG + at) == at as u64 + 1), "way {way}: a put that found room");
    } else {
        let counted = Counter::new();
        let new = || world.operation().source(&counted).effect(&counted);
        let (mut kept, mut buffer) = (None, Some((1..=LONG as u64).collect::<Vec<_>>()));
        let mut returned = None;
        let mut put = |to: usize| {
            had_room(match way {
                0 => numbers.try_put_from(1, to, &numbers, 0..LONG),
                1 => with(&mut kept, new, |put| put.try_put_from(&numbers, 1, to, &numbers, 0..LONG)),
                _ => with(&mut kept, new, |put| {
                    put.try_put_owned(&numbers, 1, to, &mut buffer).map(|lent| returned = Some(lent))
                }),
            })
        };
        while had_room(numbers.try_put(1, 2 * LONG, 7))? {}
        assert!(!put(0)?, "way {way}: there is always room");
        while !put(LONG)? {
            world.poll()?;
            world.sleep(Duration::from_micros(10));
        }
        if let Some(lent) = returned {
            assert!(buffer.is_none());
            assert_eq!(world.block_on(lent)?, (1..=LONG as u64).collect::<Vec<_>>());
        }
        if way > 0 {
            assert_eq!(world.wait_counter(&counted, 2)?, 2, "way {way}");
        }
        world.fence();
        done.ring(1)?;
    }
    world.barrier()
}

/// Puts a 7 to all of `numbers` of rank 1 at once, so that a part of it is kept.
fn keep_a_part(context: &ThreadContext, numbers: &Symmetric<u64>) -> Result<()> {
    let array = numbers.for_threads();
    // No virtual time passes between two puts that find room.
    let mut most = 0;
    while had_room(context.try_put(&array, 1, 0, 7))? {
        most += 1;
    }
    context.flush(1)?;
    for _ in 1..most {
        context.try_put(&array, 1, 0, 7)?;
    }
    // There is room for its first part.
    context.try_put_slice(&array, 1, 0, &vec![7; LONG])?;
    assert!(!had_room(context.try_put(&array, 1, 0, 8))?, "the network took all of it");
    Ok(())
}

/// A context puts in a `try_` form more than the network takes in one part. Its later operations at the same rank take effect after
/// the whole put.
pub fn what_is_kept_comes_first(world: &World, after: usize) -> Result<()> {
    let (numbers, bell, context) = (world.alloc::<u64>(LONG)?, world.bell()?, world.context()?);
    if world.rank() == 0 {
        context.put(&numbers.for_threads(), 1, 0, 0)?;
        context.flush(1)?;
    }
    world.barrier()?;
    let array = numbers.for_threads();
    if world.rank() == 0 {
        keep_a_part(&context, &numbers)?;
        match after {
            0 => context.ring(&bell.for_threads(), 1)?,
            1 => {
                while !had_room(context.try_ring(&bell.for_threads(), 1))? {
                    world.sleep(Duration::from_micros(10));
                }
            }
            2 => {
                context.flush(1)?;
                bell.ring(1)?;
            }
            3 => {
                context.put(&array, 1, 0, 9)?;
                context.fence()?;
                context.ring(&bell.for_threads(), 1)?;
            }
            4 => {
                assert_eq!(context.get(&array, 1, LONG - 1)?, 7);
                bell.ring(1)?;
            }
            5 => {
                assert_eq!(context.fetch_add(&array, 1, LONG - 1, 0)?, 7);
                bell.ring(1)?;
            }
            6 => {
                let arrived = Counter::new();
                context.operation().effect(&arrived).put(&array, 1, 1, &[7])?;
                context.wait_counter(&arrived, 1)?;
                bell.ring(1)?;
            }
            _ => {
                drop(context);
                bell.ring(1)?;
            }
        }
    } else {
        // Its interface serves nothing meanwhile.
        world.sleep(Duration::from_millis(10));
        bell.wait(1)?;
        assert_eq!(numbers.load(0), if after == 3 { 9 } else { 7 }, "after {after}");
        assert!((1..LONG).all(|at| numbers.load(at) == 7), "after {after}");
    }
    world.barrier()
}

/// Rank 0 puts at once by a context what the network takes in many parts, so that some of it is kept when `lose` is called. Returns what
/// the flushes that follow do.
fn flush_after_loss(
    world: &World,
    flushes: &[bool],
    lose: impl FnOnce(&Bell) -> Result<()>,
) -> Result<Vec<Result<()>>> {
    let (numbers, leave, context) = (world.alloc::<u64>(LONG)?, world.bell()?, world.context()?);
    if world.rank() == 0 {
        context.put(&numbers.for_threads(), 1, 0, 0)?;
        context.flush(1)?;
    }
    world.barrier()?;
    if world.rank() != 0 {
        // It serves what comes meanwhile.
        leave.wait(1)?;
        return Ok(Vec::new());
    }
    keep_a_part(&context, &numbers)?;
    lose(&leave)?;
    Ok(flushes.iter().map(|one| if *one { context.flush(1) } else { context.flush_all() }).collect())
}

/// Rank 1 is killed while a context of rank 0 keeps a part of a put. Each of two flushes fails, of rank 1 (`true`) or of all: one
/// for the parts that the network had begun to transfer, one for those that the context still kept.
pub fn kept_for_a_dead_rank(world: &World, flushes: [bool; 2], kill: impl FnOnce()) -> Result<()> {
    let outcomes = flush_after_loss(world, &flushes, |_| {
        kill();
        Ok(())
    })?;
    for (n, outcome) in outcomes.into_iter().enumerate() {
        assert!(matches!(outcome, Err(Error::PeerLost { rank: 1, .. })), "flush {n} of {flushes:?}: {outcome:?}");
    }
    Ok(())
}

/// Rank 1 leaves while a context of rank 0 keeps a part of a put: what was put there need not complete, and is no error.
pub fn kept_for_a_rank_that_left(world: &World) -> Result<()> {
    let away = Duration::from_millis(10);
    let outcomes = flush_after_loss(world, &[false], |leave| {
        leave.ring(1)?;
        world.sleep(away);
        Ok(())
    })?;
    outcomes.into_iter().collect()
}
