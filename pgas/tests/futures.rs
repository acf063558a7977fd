//! Remote calls, posted operations and collectives as futures: one kind of wait for all of them.

mod worlds;

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bellwether::{Error, Loss, Result, Settings, Sum, Team, Threads, World};
use bellwether_runtime::Transport;
use bellwether_tests::watchdog;

type Boxed<T> = Pin<Box<dyn Future<Output = Result<T>>>>;

/// On mapped memory, over the transport contract, and on a simulated network.
fn everywhere(body: impl Fn(&World) -> Result<()> + Sync) {
    worlds::everywhere(&body);
    let mut contract = Settings::default();
    contract.transport = Transport::ShmContract;
    worlds::on_threads(&contract, &[1, 2, 3, 5], &body);
}

/// Whether somebody asked to be polled again.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release); // pairs with the swap in `Join`
    }
}

/// A future, whether it was woken, and what it gave.
type Child<T> = (Boxed<T>, Arc<Woken>, Option<Result<T>>);

/// All of several futures, each polled when it was woken and not else, as the larger joins of other crates do.
struct Join<T> {
    futures: Vec<Child<T>>,
}

impl<T> Join<T> {
    fn new(futures: impl IntoIterator<Item = Boxed<T>>) -> Join<T> {
        let woken = || Arc::new(Woken(AtomicBool::new(true)));
        Join { futures: futures.into_iter().map(|future| (future, woken(), None)).collect() }
    }
}

impl<T: Unpin> Future for Join<T> {
    type Output = Result<Vec<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        for (future, woken, outcome) in &mut self.futures {
            // Acquire pairs with the store in `Woken::wake`.
            if outcome.is_none() && woken.0.swap(false, Ordering::AcqRel) {
                let waker = Waker::from(Arc::clone(woken));
                if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    *outcome = Some(value);
                }
            }
        }
        if self.futures.iter().any(|(_, _, outcome)| outcome.is_none()) {
            let asleep = |(_, woken, outcome): &Child<T>| outcome.is_none() && !woken.0.load(Ordering::Acquire);
            assert!(!self.futures.iter().any(asleep), "a future that is not ready has not asked to be polled again");
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let outcomes = std::mem::take(&mut self.futures).into_iter();
        Poll::Ready(outcomes.map(|(_, _, outcome)| outcome.expect("all are ready")).collect())
    }
}

/// Drives a future by polls alone, as an executor of one thread that knows nothing of the library.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
}

/// A call, a put and a get, an atomic and a collective, each of which gives a number.
fn mixed(world: &World, words: &Rc<bellwether::Symmetric<u64>>, team: &Team, round: u64) -> Result<Vec<Boxed<u64>>> {
    let next = (world.rank() + 1) % world.size();
    let call = world.call(next, round, |ctx, x| 1000 * ctx.rank() as u64 + x)?;
    let add = words.fetch_add_async(next, 0, 1);
    let sum = team.allreduce_async(vec![round], Sum);
    let (put, there) = (words.put_async(next, 1, round), Rc::clone(words));
    let chain = async move {
        put.await?;
        there.get_async(next, 1).await
    };
    Ok(vec![Box::pin(call), Box::pin(add), Box::pin(async move { Ok(sum.await?[0]) }), Box::pin(chain)])
}

fn expected(world: &World, round: u64) -> Vec<u64> {
    let next = (world.rank() + 1) % world.size();
    vec![1000 * next as u64 + round, round, round * world.size() as u64, round]
}

#[test]
fn calls_puts_atomics_and_collectives_are_waited_for_together() {
    everywhere(|world| {
        let words = Rc::new(world.alloc::<u64>(2)?);
        let team = Team::world(world)?;
        for round in 0..4 {
            let futures = mixed(world, &words, &team, round)?;
            let values = match round {
                0 => world.wait_all(futures)?,
                1 => world.block_on(Join::new(futures))?,
                2 => run(Join::new(futures))?,
                _ => {
                    let (mut futures, mut left, mut values) = (futures, vec![0, 1, 2, 3], vec![0; 4]);
                    while !futures.is_empty() {
                        let (place, value) = world.select(&mut futures)?;
                        values[left.remove(place)] = value?;
                    }
                    values
                }
            };
            assert_eq!(values, expected(world, round), "round {round}");
            world.barrier()?;
        }
        Ok(())
    });
}

#[test]
fn a_collective_that_ran_out_of_time_goes_on() {
    everywhere(|world| {
        let (n, patience) = (world.size() as u64, Duration::from_secs(60));
        let (team, told) = (Team::world(world)?, world.bell()?);
        for round in 1..=2 {
            if world.rank() > 0 {
                told.wait(round)?;
            }
            let mut sum = team.allreduce_async(vec![1 + world.rank() as u64], Sum);
            if world.rank() == 0 && n > 1 {
                for _ in 0..3 {
                    let limit = Duration::from_millis(1);
                    let error = sum.wait_for(limit).expect_err("the others wait for this rank");
                    let Error::TimedOut { doing, after } = error else { panic!("{error}") };
                    let place = doing.place().expect("a public call").file();
                    assert_eq!((doing.step(), place, after), ("allreduce", file!(), limit));
                }
                (1..world.size()).try_for_each(|rank| told.ring(rank))?;
            }
            let expected = [n * (n + 1) / 2];
            if round == 1 {
                assert_eq!(sum.wait()?, expected);
            } else {
                assert_eq!(sum.wait_for(patience)?, expected);
                let again = sum.wait_for(patience).expect_err("it has given its result").to_string();
                assert!(again.contains("an earlier wait has given its result"), "{again}");
            }
        }
        world.barrier()
    });
}

#[test]
fn many_calls_are_waited_for_in_every_way() {
    everywhere(|world| {
        let size = world.size();
        let call = |i: usize| world.call(i % size, i, |ctx, i: usize| (ctx.rank(), i * i));
        let right = |i: usize| (i % size, i * i);
        // More than are polled in a round, in one list.
        let calls = (0..300).map(call).collect::<Result<Vec<_>>>()?;
        assert_eq!(world.wait_all(calls)?, (0..300).map(right).collect::<Vec<_>>());
        let calls = (0..40).map(call).collect::<Result<Vec<_>>>()?;
        let boxed = calls.into_iter().map(|call| Box::pin(call) as Boxed<_>);
        assert_eq!(world.block_on(Join::new(boxed))?, (0..40).map(right).collect::<Vec<_>>());
        assert_eq!(world.block_on(call(7)?)?, right(7));
        assert_eq!(run(call(8)?)?, right(8));
        assert_eq!(world.wait_all(Vec::<bellwether::Call<u8>>::new())?, []);
        world.barrier()
    });
}

#[test]
fn select_takes_out_what_is_ready_and_leaves_the_rest() {
    everywhere(|world| {
        let next = (world.rank() + 1) % world.size();
        let never = || Box::pin(std::future::pending()) as Boxed<u32>;
        let call = world.call(next, 5u32, |_, x| x + 1)?;
        let mut futures = vec![never(), never(), Box::pin(call) as Boxed<u32>, never()];
        let (place, value) = world.select(&mut futures)?;
        assert_eq!((place, value?, futures.len()), (2, 6, 3));
        // Of several, the first; the error of one is that one's.
        futures.insert(1, Box::pin(std::future::ready(Ok(1))));
        let why = String::from("on purpose");
        futures.insert(1, Box::pin(std::future::ready(Err(Error::BadMessage { from: 0, why }))));
        let (place, value) = world.select(&mut futures)?;
        assert!(place == 1 && matches!(value, Err(Error::BadMessage { from: 0, .. })));
        let (place, value) = world.select(&mut futures)?;
        assert_eq!((place, value?, futures.len()), (1, 1, 3));
        match world.select(&mut Vec::<Boxed<u32>>::new()) {
            Err(Error::InvalidArgument { operation: "select", .. }) => {}
            other => panic!("{other:?}"),
        }
        world.barrier()
    });
}

/// Cannot be made of the bytes that it becomes.
#[derive(Debug, PartialEq)]
struct Broken;

impl serde::Serialize for Broken {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> serde::Deserialize<'de> for Broken {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> std::result::Result<Broken, D::Error> {
        Err(serde::de::Error::custom("broken on purpose"))
    }
}

#[test]
fn the_error_of_a_call_comes_from_its_future_and_disturbs_no_other() {
    everywhere(|world| {
        let next = (world.rank() + 1) % world.size();
        let bad = || world.call(next, (), |_, ()| Broken);
        let is_told = |outcome: Result<Broken>| match outcome {
            Err(Error::BadMessage { from, why }) => assert!(from == next && why.contains("Broken expected"), "{why}"),
            other => panic!("{other:?}"),
        };
        is_told(world.block_on(bad()?));
        is_told(run(bad()?));
        is_told(bad()?.wait());
        let good = world.call(next, 3u8, |_, x| x)?;
        let good: Boxed<u8> = Box::pin(good);
        let bad = bad()?;
        let bad: Boxed<u8> = Box::pin(async move { bad.await.map(|_| 0) });
        let seen = Rc::new(Cell::new(false));
        let told = Rc::clone(&seen);
        let good: Boxed<u8> = Box::pin(async move {
            let value = good.await?;
            told.set(true);
            Ok(value)
        });
        // All are waited for, also when the first has failed.
        let error = world.wait_all([bad, good]).expect_err("one failed");
        assert!(matches!(error, Error::BadMessage { .. }) && seen.get(), "{error}");
        world.barrier()
    });
}

#[test]
fn calls_are_dropped_and_forgotten_at_any_time() {
    everywhere(|world| {
        let call = |i: usize| world.call(i % world.size(), i, |_, i: usize| vec![i as u8; i]);
        let mut context = Context::from_waker(Waker::noop());
        for i in 0..100 {
            drop(call(i)?);
            let mut polled = call(i)?;
            let _ = Pin::new(&mut polled).poll(&mut context);
            if i % 10 == 0 {
                std::mem::forget(polled);
            }
            let mut unlucky = vec![call(i)?, call(i)?];
            let (_, answer) = world.select(&mut unlucky)?;
            assert_eq!(answer?, vec![i as u8; i]);
        }
        assert_eq!(world.block_on(call(5)?)?, [5; 5]);
        world.barrier()
    });
}

#[test]
fn a_future_that_panics_leaves_the_world_usable() {
    everywhere(|world| {
        let next = (world.rank() + 1) % world.size();
        let call = world.call(next, 1u8, |_, x| x)?;
        let panics: Boxed<u8> = Box::pin(async { panic!("on purpose") });
        let outcome = catch_unwind(AssertUnwindSafe(|| world.wait_all([Box::pin(call) as Boxed<u8>, panics])));
        assert_eq!(outcome.expect_err("a panic").downcast_ref::<&str>(), Some(&"on purpose"));
        let mut call = world.call(next, 2u8, |_, x| x)?;
        assert_eq!(world.block_on(&mut call)?, 2);
        let again = catch_unwind(AssertUnwindSafe(|| world.block_on(&mut call)));
        let why = again.expect_err("polled again");
        let text = why.downcast_ref::<&str>().copied().or_else(|| why.downcast_ref::<String>().map(String::as_str));
        assert_eq!(text, Some("a future was polled after it was ready"));
        world.barrier()
    });
}

/// Sets its flag when the world that has it is gone.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release); // pairs with the load in `wait_for`
    }
}

/// Without a poll.
fn wait_for(flag: &AtomicBool) {
    while !flag.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

#[test]
fn a_target_that_leaves_is_told_by_the_future_after_what_it_answered() {
    let _guard = watchdog::guard("a_target_that_leaves", worlds::LIMIT);
    for transport in [Transport::Auto, Transport::ShmContract] {
        let mut settings = Settings::default();
        settings.transport = transport;
        for way in 0..4 {
            let gone = Arc::new(AtomicBool::new(false));
            let outcomes = Threads::new(2).settings(settings.clone()).run(|world| -> Result<()> {
                world.set_state(Cell::new(0));
                world.barrier()?;
                if world.rank() == 1 {
                    let answered = world.state::<Cell<i32>>().expect("just set");
                    world.wait_until(|| answered.get() == 1)?;
                    world.set_state(Gone(Arc::clone(&gone)));
                    return Ok(());
                }
                let early = world.call(1, 5, |ctx, x: i32| {
                    ctx.state::<Cell<i32>>().expect("set before the barrier").set(1);
                    x
                })?;
                wait_for(&gone);
                if transport == Transport::Auto {
                    // Its answer lies here, unread.
                    match way {
                        0 => assert_eq!(early.wait()?, 5),
                        1 => assert_eq!(world.block_on(early)?, 5),
                        2 => assert_eq!(world.wait_all([early])?, [5]),
                        _ => assert_eq!(world.select(&mut vec![early])?.1?, 5),
                    }
                }
                let lost = world.call(1, 5, |_, x: i32| x);
                let never: Boxed<i32> = Box::pin(std::future::pending());
                let outcome = lost.and_then(|lost| match way {
                    0 => lost.wait(),
                    1 => run(lost),
                    2 => world.block_on(lost),
                    _ => world.select(&mut vec![never, Box::pin(lost)])?.1,
                });
                match outcome {
                    Err(Error::PeerLost { rank: 1, cause: Loss::Left, .. }) => Ok(()),
                    other => panic!("{transport:?}, way {way}: {other:?}"),
                }
            });
            worlds::expect_all(outcomes.expect("threads start"), &format!("{transport:?}, way {way}"));
        }
    }
}

#[test]
fn a_target_that_leaves_without_an_answer_ends_the_wait() {
    let _guard = watchdog::guard("a_target_that_leaves_without_an_answer", worlds::LIMIT);
    for transport in [Transport::Auto, Transport::ShmContract] {
        let mut settings = Settings::default();
        settings.transport = transport;
        for way in 0..5 {
            let called = AtomicBool::new(false);
            let outcomes = Threads::new(2).settings(settings.clone()).run(|world| -> Result<()> {
                let never_rung = world.bell()?;
                if world.rank() == 1 {
                    wait_for(&called);
                    return Ok(());
                }
                let call = world.call(1, 5, |_, x: i32| x)?;
                called.store(true, Ordering::Release); // pairs with the load in `wait_for`
                let never: Boxed<i32> = Box::pin(std::future::pending());
                let outcome = match way {
                    0 => call.wait(),
                    1 => run(call),
                    2 => world.wait_all([call]).map(|values| values[0]),
                    3 => {
                        let (mut call, mut bell) = (call, never_rung.rung(1));
                        assert_eq!(world.wait_any(&mut [&mut bell, &mut call])?, 1);
                        call.wait()
                    }
                    _ => world.select(&mut vec![never, Box::pin(call)])?.1,
                };
                match outcome {
                    // It had not polled, or it polled while it left and answered.
                    Err(Error::PeerLost { rank: 1, cause: Loss::Left, .. }) | Ok(5) => Ok(()),
                    other => panic!("{transport:?}, way {way}: {other:?}"),
                }
            });
            worlds::expect_all(outcomes.expect("threads start"), &format!("{transport:?}, way {way}"));
        }
    }
}
