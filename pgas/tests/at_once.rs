//! Puts of arrays that answer at once.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bellwether::aggregate::{Options, Push};
use bellwether::array::{GlobalArray, Layout, Shared};
use bellwether::sim::Config;
use bellwether::{DistQueue, Error, Pool, Posted, Result, Settings, Simulated, ThreadContext, Threads, World};
use bellwether_tests::watchdog;

const LIMIT: Duration = Duration::from_secs(600);

/// Bytes that a rank keeps for a network that takes no more.
const KEPT: usize = 16 << 10;
/// Pairs of elements of a rank: four times what is kept of single elements.
const EACH: usize = 4 * KEPT / size_of::<u64>();
/// Puts after the one that was refused.
const AFTER: usize = 50;
/// More pushes than find room.
const MOST: u64 = 1_000_000;

/// The ways to put a pair of elements of an array.
const WAYS: usize = 10;

/// Puts pair `number` of rank 1, in one of the ways.
#[expect(clippy::single_range_in_vec_init, reason = "a box of one dimension")]
fn put_pair(
    world: &World,
    array: &GlobalArray<u64, 1, Shared>,
    context: &ThreadContext,
    posted: &mut Vec<Posted<()>>,
    (way, number): (usize, usize),
) -> Result<bool> {
    let (start, values) = (number.saturating_mul(2), [number as u64; 2]);
    let slice = || Ok::<_, Error>(array.pointer(start)?.slice(2));
    // Where each element is put by itself, the second one is all that is put.
    let second = start.saturating_add(1);
    let outcome = match way {
        0 => array.try_put(second, values[1]),
        1 => array.try_put_async(second, values[1]).map(|put| posted.push(put)),
        2 => array.pointer(second).and_then(|pointer| pointer.try_put(world, values[1])),
        3 => array.view([0..4 * EACH])?.try_put(second, values[1]),
        4 => array.for_threads().try_put(context, second, values[1]),
        5 => slice().and_then(|slice| slice.try_put(world, &values)),
        6 => slice().and_then(|slice| slice.try_put_strided(world, 0, 1, &values)),
        7 => slice().and_then(|slice| slice.try_scatter(world, &[1, 0], &values)),
        8 => array.try_put_patch([start..start.saturating_add(2)], &values),
        _ => array.view([start..start.saturating_add(2)]).and_then(|view| view.try_put_patch(&values)),
    };
    had_room(outcome)
}

/// Whether there was room.
fn had_room(outcome: Result<()>) -> Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(Error::WouldBlock { rank: 1, place, .. }) => {
            assert!(place.to_string().contains(file!()), "{place}");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// A network that takes little, and whose targets serve nothing while they sleep.
fn narrow(seed: u64) -> (Config, Settings) {
    let mut config = Config::new(2, seed).wild();
    (config.flow.slots, config.flow.credits) = (1, 1);
    config.served_asleep = false;
    let mut settings = Settings::default();
    settings.message_memory = KEPT;
    (config, settings)
}

/// Rank 0 puts to pairs of rank 1, whose interface serves nothing at first, until one is refused, which it leaves out.
fn puts(world: &World, way: usize) -> Result<()> {
    let array = GlobalArray::<u64, 1>::new(world, Layout::block([4 * EACH], 2)?)?.share(world)?;
    let (done, skipped, context) = (world.bell()?, world.alloc::<u64>(1)?, world.context()?);
    if world.rank() == 0 {
        // The connections are made.
        array.put(2 * EACH, 0)?;
        array.for_threads().put(&context, 2 * EACH, 0)?;
        context.flush_all()?;
    }
    world.barrier()?;
    if world.rank() == 1 {
        world.sleep(Duration::from_millis(10));
        done.wait(1)?;
    } else {
        let mut posted = Vec::new();
        let mut put = |number: usize| put_pair(world, &array, &context, &mut posted, (way, number));
        let mut refused = EACH;
        while put(refused)? {
            refused += 1;
            assert!(refused < 2 * EACH - AFTER, "way {way}: there is always room");
        }
        for number in refused + 1..=refused + AFTER {
            while !put(number)? {
                world.poll()?;
                world.sleep(Duration::from_micros(10));
            }
        }
        for outside in [2 * EACH, usize::MAX] {
            assert!(matches!(put(outside), Err(Error::InvalidArgument { .. })), "way {way}: {outside}");
        }
        Posted::wait_all(posted)?;
        world.fence();
        context.flush_all()?;
        skipped.put(1, 0, refused as u64)?;
        done.ring(1)?;
    }
    world.barrier()?;
    if world.rank() == 1 {
        let refused = skipped.load(0) as usize;
        for number in EACH..=refused + AFTER {
            let expected = if number == refused { 0 } else { number as u64 };
            let first = if way < 5 { 0 } else { expected };
            assert_eq!((array.get(2 * number)?, array.get(2 * number + 1)?), (first, expected), "way {way}: {number}");
        }
    }
    world.barrier()
}

/// As [`puts`], by the handle of a pool.
fn pooled_puts(world: &World) -> Result<()> {
    let numbers = world.alloc::<u64>(2 * EACH)?;
    let (done, skipped) = (world.bell()?, world.alloc::<u64>(1)?);
    let pool = Pool::with_threads(world, 1)?;
    let pooled = pool.share(&numbers);
    if world.rank() == 0 {
        // The connection is made.
        pooled.put(1, 0, 0)?;
    }
    world.barrier()?;
    if world.rank() == 1 {
        world.sleep(Duration::from_millis(10));
        done.wait(1)?;
    } else {
        let mut posted = Vec::new();
        let mut put = |number: usize| match number.is_multiple_of(2) {
            true => had_room(pooled.try_put_slice(1, 2 * number, &[number as u64; 2]).map(|put| posted.push(put))),
            false => had_room(pooled.try_put(1, 2 * number, number as u64).map(|put| posted.push(put))),
        };
        let mut refused = 1;
        while put(refused)? {
            refused += 1;
            assert!(refused < EACH - AFTER, "there is always room");
        }
        for number in refused + 1..=refused + AFTER {
            while !put(number)? {
                world.poll()?;
                world.sleep(Duration::from_micros(10));
            }
        }
        for mut put in posted {
            put.is_done();
            put.wait()?;
        }
        skipped.put(1, 0, refused as u64)?;
        done.ring(1)?;
    }
    world.barrier()?;
    if world.rank() == 1 {
        let refused = skipped.load(0) as usize;
        for number in 1..=refused + AFTER {
            let expected = if number == refused { 0 } else { number as u64 };
            let second = if number.is_multiple_of(2) { expected } else { 0 };
            assert_eq!([numbers.load(2 * number), numbers.load(2 * number + 1)], [expected, second], "{number}");
        }
    }
    world.barrier()
}

#[test]
fn puts_of_pools_that_find_no_room_are_refused() {
    for seed in 0..2 {
        let _guard = watchdog::guard(format!("seed {seed}"), LIMIT);
        let (config, settings) = narrow(seed);
        let outcomes = Simulated::new(config).settings(settings).run(pooled_puts).expect("starts");
        outcomes.into_iter().for_each(|outcome| outcome.expect("runs"));
    }
}

#[test]
fn puts_of_arrays_that_find_no_room_are_refused() {
    for seed in 0..2 {
        for way in 0..WAYS {
            let _guard = watchdog::guard(format!("seed {seed}, way {way}"), LIMIT);
            let (config, settings) = narrow(seed);
            let outcomes = Simulated::new(config).settings(settings).run(|world| puts(world, way)).expect("starts");
            for outcome in outcomes {
                outcome.unwrap_or_else(|error| panic!("seed {seed}, way {way}: {error}"));
            }
        }
    }
}

/// Rank 0 pushes items to rank 1, which takes none until `told` is called: what was refused never comes, all else does once. The second
/// is of a queue.
fn pushes(world: &World, stay_away: impl FnOnce(), told: impl FnOnce()) -> Result<()> {
    let options = Options { memory: 4 << 10, ..Options::new(world) };
    let came = Rc::new(RefCell::new(Vec::new()));
    let taken = Rc::clone(&came);
    let mut push = Push::new(world, &options, move |item: u64| taken.borrow_mut().push(item))?;
    let sent = world.alloc::<u64>(1)?;
    world.barrier()?;
    if world.rank() == 1 {
        stay_away();
    } else {
        let mut next = 0;
        while had_room(push.try_push(1, next))? {
            next += 1;
            assert!(next < MOST, "there is always room");
        }
        assert!(!had_room(push.try_push(1, MOST))?);
        told();
        for _ in 0..AFTER {
            while !had_room(push.try_push(1, next))? {
                push.progress()?;
                world.sleep(Duration::from_micros(10));
            }
            next += 1;
        }
        assert!(matches!(push.try_push(2, 0), Err(Error::RankOutOfRange { rank: 2, .. })));
        sent.put(1, 0, next)?;
    }
    push.finish()?;
    if world.rank() == 1 {
        let mut came = came.take();
        came.sort_unstable();
        assert_eq!(came, (0..sent.load(0)).collect::<Vec<_>>());
    }
    world.barrier()
}

/// As [`pushes`], to a queue: short items, and some that are longer than a buffer.
fn pushes_to_a_queue(world: &World, stay_away: impl FnOnce(), told: impl FnOnce()) -> Result<()> {
    let options = Options { memory: 4 << 10, ..Options::new(world) };
    let mut queue = DistQueue::<Vec<u8>>::with_options(world, &options)?;
    let sent = world.alloc::<u64>(2)?;
    world.barrier()?;
    if world.rank() == 1 {
        stay_away();
    } else {
        let mut counts = [0; 2];
        for (count, len) in counts.iter_mut().zip([9, 2000]) {
            let mut item = Some(vec![7; len]);
            while had_room(queue.try_push_to(1, &mut item))? {
                assert!(item.is_none());
                assert!(matches!(queue.try_push_to(1, &mut item), Err(Error::InvalidArgument { .. })));
                *count += 1;
                assert!(*count < MOST, "there is always room");
                item = Some(vec![7; len]);
            }
            assert!(!had_room(queue.try_push_to(1, &mut item))? && item.is_some(), "an item that is refused is left");
        }
        told();
        for _ in 0..AFTER {
            let mut item = Some(vec![7; 9]);
            while !had_room(queue.try_push_to(1, &mut item))? {
                queue.progress()?;
                world.sleep(Duration::from_micros(10));
            }
            counts[0] += 1;
        }
        queue.try_push_to(0, &mut Some(vec![7; 9]))?;
        counts[0] += 1;
        sent.put_slice(1, 0, &counts)?;
        sent.put_slice(0, 0, &counts)?;
    }
    world.barrier()?;
    let mut popped = [0, 0];
    while let Some(item) = queue.pop()? {
        popped[usize::from(item.len() > 9)] += 1;
    }
    world.allreduce(&mut popped, |a, b| a + b)?;
    assert_eq!(popped, [sent.load(0), sent.load(1)], "short and long items");
    world.barrier()
}

#[test]
fn pushes_that_find_no_room_are_refused() {
    type Program = fn(&World, &dyn Fn(), &dyn Fn()) -> Result<()>;
    let programs: [(&str, Program); 2] = [
        ("a stream", |world, stay_away, told| pushes(world, stay_away, told)),
        ("a queue", |world, stay_away, told| pushes_to_a_queue(world, stay_away, told)),
    ];
    for (name, program) in programs {
        let _guard = watchdog::guard(name, LIMIT);
        let is_told = AtomicBool::new(false);
        let threads = Threads::new(2).deadline(LIMIT).run(|world| {
            let stay_away = || {
                // Acquire pairs with the store of rank 0.
                while !is_told.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            };
            program(world, &stay_away, &|| is_told.store(true, Ordering::Release))
        });
        let simulated = Simulated::new(Config::new(2, 0).wild())
            .run(|world| program(world, &|| world.sleep(Duration::from_millis(10)), &|| ()));
        for outcome in threads.expect("starts").into_iter().chain(simulated.expect("starts")) {
            outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}
