//! Futures of the library in executors of others: they wake their task when they are ready, and let the executor's thread sleep until then.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bellwether_runtime::{
    Arm, Completion, Error, Reactor, Result, Settings, Symmetric, Team, Threads, Transport, WakeUp, World,
};
use bellwether_tests::watchdog;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::LocalSet;

const LIMIT: Duration = Duration::from_secs(120);
/// Long enough for an executor that polls again and again to be told from one that sleeps.
const WHILE: Duration = Duration::from_millis(100);
/// Polls of a future that is woken when something comes. One that asks to be polled again at once has some hundred thousands.
const FEW: usize = 100;

fn on_threads(name: &str, ranks: usize, program: impl Fn(&World) -> Result<()> + Sync) {
    over(&[Transport::Auto, Transport::ShmContract], name, ranks, program);
}

fn over(transports: &[Transport], name: &str, ranks: usize, program: impl Fn(&World) -> Result<()> + Sync) {
    let _guard = watchdog::guard(name, LIMIT);
    for &transport in transports {
        watchdog::at(format!("{name}: {transport:?}"));
        let mut settings = Settings::default();
        settings.transport = transport;
        let ran = Threads::new(ranks).settings(settings).deadline(LIMIT).run(&program).expect("starts");
        for (rank, outcome) in ran.into_iter().enumerate() {
            outcome.unwrap_or_else(|error| panic!("{name}, {transport:?}, rank {rank}: {error}"));
        }
    }
}

/// The smallest executor: one future and a thread that parks.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

/// Counts the polls of a future.
struct Counted<'a, F>(Pin<Box<F>>, &'a Cell<usize>);

impl<F: Future> Future for Counted<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.1.set(self.1.get() + 1);
        self.0.as_mut().poll(context)
    }
}

/// Both, until the second is ready; the first is a driver.
async fn with<T>(
    driver: impl Future<Output = Result<std::convert::Infallible>>,
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        biased;
        outcome = future => outcome,
        broken = driver => broken.map(|never| match never {}),
    }
}

#[test]
fn a_future_that_is_not_ready_lets_any_executor_sleep() {
    on_threads("any executor", 2, |world| {
        let bell = world.bell()?;
        world.barrier()?;
        if world.rank() == 1 {
            for _ in 0..3 {
                world.sleep(WHILE);
                bell.ring(0)?;
            }
        } else {
            let driver = world.wake_up()?.reactor()?.into_driver()?;
            let (polls, begun) = (Cell::new(0), Instant::now());
            run(with(driver, async {
                for target in 1..=3 {
                    Counted(Box::pin(bell.rung(target)), &polls).await?;
                }
                Ok(())
            }))?;
            // What announces nothing is looked at each millisecond.
            let looks = 3 * begun.elapsed().as_millis() as usize;
            let few = if world.settings().transport == Transport::Auto { FEW } else { FEW + looks };
            assert!(polls.get() < few, "{} polls", polls.get());
        }
        world.barrier()
    });
}

/// Kinds of futures.
const KINDS: [&str; 9] =
    ["operation", "get", "returned", "completion", "message", "call", "allgather", "barrier", "signalled"];
/// So many of them may end without the other rank: the network does their work.
const ONE_SIDED: usize = 4;

/// The other rank does nothing until a poll of the future has left this task asleep. A future that asks to be polled again at once never
/// does; one that nothing wakes later ends in an error, since no timer makes up for it.
#[test]
fn every_kind_of_future_sleeps_while_the_other_rank_is_late() {
    for transport in [Transport::Auto, Transport::ShmContract, Transport::Tcp] {
        // Kinds for which rank 0 sleeps, that have ended, and for which rank 1 polls no more.
        let (asleep, ended, left) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        over(&[transport], "every kind", 2, |world| {
            let (words, team) = (world.alloc::<u64>(100_001)?, Team::world(world)?);
            words.store(1, world.rank() as u64);
            world.barrier()?;
            let kinds = KINDS.iter().enumerate();
            if world.rank() == 1 {
                for (kind, name) in kinds {
                    while asleep.load(Ordering::SeqCst) <= kind {
                        std::thread::yield_now();
                    }
                    match *name {
                        "allgather" => drop(team.allgather(&[1u64])?),
                        "barrier" => team.barrier()?,
                        "signalled" => words.signal(0, 0)?,
                        _ => {}
                    }
                    while ended.load(Ordering::SeqCst) <= kind {
                        world.poll()?;
                        std::thread::yield_now();
                    }
                    left.store(kind + 1, Ordering::SeqCst);
                }
            } else {
                let (reactor, wake_up) = (world.wake_up()?.reactor()?, world.wake_up()?);
                wake_up.trust_announcements();
                for (kind, name) in kinds {
                    let future = a_future(world, &words, &team, name)?;
                    let is_asleep = || asleep.store(kind + 1, Ordering::SeqCst);
                    let what = format!("{name}, {transport:?}");
                    drive(&wake_up, &reactor, future, is_asleep, &what, kind < ONE_SIDED)?;
                    ended.store(kind + 1, Ordering::SeqCst);
                    while left.load(Ordering::SeqCst) <= kind {
                        std::thread::yield_now();
                    }
                }
            }
            world.barrier()
        });
    }
}

type Boxed<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// One of [`KINDS`], which has begun.
fn a_future<'a>(world: &'a World, words: &'a Symmetric<u64>, team: &'a Team, kind: &str) -> Result<Boxed<'a>> {
    let done = Completion::new();
    Ok(match kind {
        "operation" => Box::pin(words.put_slice_async(1, 1, &[1; 1000])),
        "get" => Box::pin(async move { words.get_async(1, 1).await.map(|word| assert_eq!(word, 1)) }),
        "returned" => {
            let returned = world.operation().put_owned(words, 1, 1, vec![7; 100_000])?;
            Box::pin(async move { returned.await.map(|buffer| assert_eq!(buffer.len(), 100_000)) })
        }
        "completion" => {
            world.operation().effect(&done).put(words, 1, 1, &[5; 1000])?;
            Box::pin(done)
        }
        "message" => {
            world.operation().handled(&done).invoke(1, (), |_, ()| ())?;
            Box::pin(done)
        }
        "call" => {
            let call = world.call(1, 5, |_, number: u64| number + 1)?;
            Box::pin(async move { call.await.map(|answer| assert_eq!(answer, 6)) })
        }
        "allgather" => {
            let gathered = team.allgather_async(vec![0u64]);
            Box::pin(async move { gathered.await.map(|all| assert_eq!(all, [0, 1])) })
        }
        "barrier" => Box::pin(team.barrier_async()),
        _ => Box::pin(async move { words.signalled(0, 1).await.map(drop) }),
    })
}

/// Polls the future when it is woken, until it is ready. Calls `is_asleep` when a poll has left it asleep; it must not be ready before that
/// unless it `may_end`.
fn drive(
    wake_up: &WakeUp,
    reactor: &Reactor,
    mut future: Boxed<'_>,
    is_asleep: impl Fn(),
    name: &str,
    may_end: bool,
) -> Result<()> {
    let woken = Arc::new(Counts(AtomicUsize::new(0), false));
    let (count, waker) = (|| woken.0.load(Ordering::SeqCst), Waker::from(Arc::clone(&woken)));
    let (mut polls, mut has_slept) = (0, false);
    loop {
        let before = count();
        polls += 1;
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            assert!(has_slept || may_end, "{name}: the other rank has done nothing");
            is_asleep();
            return outcome;
        }
        // What came of earlier work may be a reason to poll again.
        assert!(has_slept || polls < FEW, "{name}: it asks to be polled again, {polls} times");
        if count() == before && !has_slept {
            has_slept = true;
            is_asleep();
        }
        if count() != before {
            reactor.turn()?;
        }
        while count() == before {
            assert!(wake_up.poll(Some(LIMIT / 2))?, "{name}: nothing is announced");
            reactor.turn()?;
        }
    }
}

#[test]
fn without_a_driver_futures_make_progress_when_they_are_polled() {
    on_threads("no driver", 2, |world| {
        let bell = world.bell()?;
        bell.ring(1 - world.rank())?;
        assert!(run(bell.rung(1))? >= 1);
        // A driver that is gone leaves the tasks to that, too.
        drop(world.wake_up()?.reactor()?.into_driver()?);
        bell.ring(1 - world.rank())?;
        assert!(run(bell.rung(2))? >= 2);
        world.barrier()
    });
}

/// Completions and lent buffers belong to no world, and what they wait for comes by its progress.
#[test]
fn without_a_driver_completions_and_buffers_make_progress_too() {
    const LEN: usize = 100_000;
    over(&[Transport::Auto, Transport::ShmContract, Transport::Tcp], "no driver, no world", 2, |world| {
        let (numbers, other) = (world.alloc::<u64>(LEN)?, 1 - world.rank());
        world.barrier()?;
        // Handled there as soon as this rank's peer awaits its own.
        let done = Completion::new();
        world.operation().handled(&done).invoke(other, (), |_, ()| ())?;
        run(done)?;
        let returned = world.operation().put_owned(&numbers, other, 0, vec![7; LEN])?;
        assert_eq!(run(returned)?.len(), LEN);
        world.barrier()?;
        assert!((0..LEN).all(|index| numbers.load(index) == 7));
        world.barrier()
    });
}

/// A runtime of tokio whose loop of events has the descriptor of this rank.
fn in_tokio<T>(world: &World, program: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let reactor = world.wake_up()?.reactor()?;
    LocalSet::new().block_on(&runtime, with(turn(reactor), program()))
}

async fn turn(reactor: Reactor) -> Result<std::convert::Infallible> {
    // SAFETY: the reactor has its descriptor as long as it lives, and always the same.
    let readable = unsafe { AsyncFd::register_with_interest(reactor, Interest::READABLE) }.expect("an epoll takes it");
    loop {
        let mut ready = readable.readable().await.expect("polls");
        // Before the turn: what comes in it is announced again.
        ready.clear_ready();
        readable.get_ref().turn()?;
    }
}

#[test]
fn tasks_of_tokio_await_everything_at_a_time() {
    on_threads("tokio", 3, |world| {
        let (bell, numbers, team) = (world.bell()?, world.alloc::<u64>(4)?, Team::world(world)?);
        let (me, n) = (world.rank(), world.size());
        world.barrier()?;
        in_tokio(world, async || {
            let next = (me + 1) % n;
            let rung = async {
                for target in 1..=50 {
                    bell.ring(next)?;
                    bell.rung(target).await?;
                }
                Ok(())
            };
            let called = async {
                for number in 0..50 {
                    assert_eq!(
                        world.call(next, number, |context, number: usize| context.rank() + number)?.await?,
                        next + number
                    );
                }
                Ok(())
            };
            let collected = async {
                for round in 0..20 {
                    assert_eq!(team.allgather_async(vec![(me * 100 + round) as u64]).await?.len(), n);
                    team.barrier_async().await?;
                }
                Ok(())
            };
            let handled = async {
                for _ in 0..50 {
                    let done = Completion::new();
                    world.operation().handled(&done).invoke(next, (), |_, ()| ())?;
                    done.await?;
                }
                Ok(())
            };
            let got = async {
                for index in 0..4 {
                    numbers.signal(next, index)?;
                    numbers.signalled(index, 1).await?;
                    assert_eq!(numbers.get_async(next, index).await? / 2, 0);
                }
                Ok(())
            };
            let slept = async {
                for _ in 0..5 {
                    tokio::time::sleep(Duration::from_millis(3)).await;
                }
                Ok(())
            };
            tokio::try_join!(rung, called, collected, handled, got, slept).map(drop)
        })?;
        world.barrier()
    });
}

#[test]
fn handlers_run_while_every_task_waits_for_something_else() {
    on_threads("something else", 2, |world| {
        world.barrier()?;
        if world.rank() == 0 {
            let heard = Tell::default();
            world.set_state(heard.clone());
            world.barrier()?;
            in_tokio(world, async || {
                assert_eq!(heard.await, 7);
                Ok(())
            })?;
        } else {
            world.barrier()?;
            world.sleep(WHILE);
            world.invoke(0, 7u64, |context, number| {
                context.state::<Tell>().expect("set before the barrier").tell(number);
            })?;
        }
        world.barrier()
    });
}

/// A value that one task waits for and another, or a handler, tells.
#[derive(Clone, Default)]
struct Tell(Rc<RefCell<(Option<u64>, Option<Waker>)>>);

impl Tell {
    fn tell(&self, value: u64) {
        let mut state = self.0.borrow_mut();
        state.0 = Some(value);
        state.1.take().into_iter().for_each(Waker::wake);
    }
}

impl Future for Tell {
    type Output = u64;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u64> {
        let mut state = self.0.borrow_mut();
        if let Some(value) = state.0 {
            return Poll::Ready(value);
        }
        state.1 = Some(context.waker().clone());
        Poll::Pending
    }
}

#[test]
fn a_limit_of_time_and_a_select_leave_the_rest_as_it_was() {
    on_threads("select", 2, |world| {
        let (bell, go) = (world.bell()?, world.bell()?);
        world.barrier()?;
        if world.rank() == 1 {
            go.wait(1)?;
            bell.ring(0)?;
        } else {
            in_tokio(world, async || {
                // Nobody rings yet.
                tokio::time::timeout(Duration::from_millis(20), bell.rung(1)).await.expect_err("times out");
                let first = tokio::select! {
                    _ = bell.rung(1) => "rung",
                    _ = tokio::time::sleep(Duration::from_millis(20)) => "slept",
                };
                assert_eq!(first, "slept");
                go.ring(1)?;
                let first = tokio::select! {
                    rung = bell.rung(1) => rung?,
                    _ = tokio::time::sleep(LIMIT) => panic!("slept through it"),
                };
                assert_eq!(first, 1);
                Ok(())
            })?;
        }
        world.barrier()
    });
}

/// A buffer that tells when it is dropped.
struct Buffer(Vec<u64>, Arc<AtomicUsize>);

impl AsRef<[u64]> for Buffer {
    fn as_ref(&self) -> &[u64] {
        &self.0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn an_operation_that_is_dropped_keeps_its_buffer_and_takes_effect() {
    const LEN: usize = 100_000;
    on_threads("dropped", 2, |world| {
        let (numbers, drops) = (world.alloc::<u64>(LEN)?, Arc::new(AtomicUsize::new(0)));
        world.barrier()?;
        if world.rank() == 0 {
            in_tokio(world, async || {
                let buffer = Buffer((0..LEN as u64).collect(), Arc::clone(&drops));
                let mut returned = Box::pin(world.operation().put_owned(&numbers, 1, 0, buffer)?);
                // Polled once, so that it has a waker, and given up.
                let _ = std::future::poll_fn(|context| Poll::Ready(returned.as_mut().poll(context).map(drop))).await;
                drop(returned);
                // A call of which nobody waits for the answer, either.
                let mut call = Box::pin(world.call(1, (), |_, ()| 5)?);
                let _ = std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context).map(drop))).await;
                drop(call);
                // What awaits another one goes on.
                assert_eq!(world.call(1, (), |_, ()| 6)?.await?, 6);
                Ok(())
            })?;
            world.fence();
        }
        world.barrier()?;
        if world.rank() == 1 {
            assert!((0..LEN).all(|index| numbers.load(index) == index as u64));
        } else {
            assert_eq!(drops.load(Ordering::SeqCst), 1, "dropped once, when it was read");
        }
        world.barrier()
    });
}

#[test]
fn a_loop_of_mio_has_the_descriptor() {
    on_threads("mio", 2, |world| {
        let bell = world.bell()?;
        world.barrier()?;
        if world.rank() == 1 {
            world.sleep(Duration::from_millis(20));
            bell.ring(0)?;
        } else {
            const TOKEN: mio::Token = mio::Token(7);
            let wake_up = world.wake_up()?;
            wake_up.trust_announcements();
            let (mut poll, mut events) = (mio::Poll::new().expect("a poll"), mio::Events::with_capacity(4));
            let descriptor = wake_up.as_raw_fd();
            let mut source = mio::unix::SourceFd(&descriptor);
            poll.registry().register(&mut source, TOKEN, mio::Interest::READABLE).expect("takes it");
            while bell.count()? == 0 {
                if wake_up.progress()? > 0 || wake_up.arm_unless(|| bell.count().is_ok_and(|n| n > 0))? == Arm::Busy {
                    continue;
                }
                poll.poll(&mut events, Some(LIMIT / 2)).expect("polls");
                let told: Vec<_> = events.iter().map(|event| (event.token(), event.is_readable())).collect();
                assert_eq!(told, [(TOKEN, true)], "the ring is not announced");
            }
        }
        world.barrier()
    });
}

/// What an epoll tells within so long: the data of its events.
fn told(epoll: &OwnedFd, limit: Duration) -> Vec<u64> {
    let mut events = Vec::with_capacity(8);
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    epoll::wait(epoll, spare_capacity(&mut events), Some(&limit)).expect("waits");
    events.iter().map(|event| event.data.u64()).collect()
}

#[test]
fn contexts_in_one_epoll_are_told_apart() {
    const LEN: usize = 1000;
    over(&[Transport::Auto, Transport::ShmContract, Transport::Tcp], "contexts in an epoll", 2, |world| {
        let (numbers, transport) = (world.alloc::<u64>(LEN)?, world.settings().transport);
        (0..LEN).for_each(|index| numbers.store(index, index as u64));
        world.barrier()?;
        if world.rank() == 0 {
            let array = numbers.for_threads();
            let contexts = [world.context()?, world.context()?];
            let wake_ups = [contexts[0].wake_up()?, contexts[1].wake_up()?];
            let outer = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
            let settle = |which: usize| -> Result<()> {
                while wake_ups[which].progress()? > 0 || wake_ups[which].arm()? == Arm::Busy {}
                Ok(())
            };
            for (data, wake_up) in wake_ups.iter().enumerate() {
                // With its timer one that hears of nothing would only be slow. There is none but for what this network does not announce.
                wake_up.trust_announcements();
                epoll::add(&outer, wake_up, epoll::EventData::new_u64(data as u64), epoll::EventFlags::IN)
                    .expect("adds");
                settle(data)?;
            }
            for round in 0..20 {
                let (one, other) = (round % 2, 1 - round % 2);
                let mut got = contexts[one].get_slice_async(&array, 1, 0, LEN);
                while !got.is_done() {
                    if wake_ups[one].progress()? > 0 || wake_ups[one].arm()? == Arm::Busy {
                        continue;
                    }
                    let told = told(&outer, LIMIT / 2);
                    assert!(!told.is_empty(), "round {round}: the get has not ended, and nothing is announced");
                    // What is left of its earlier connection may be told too.
                    if told.contains(&(other as u64)) {
                        settle(other)?;
                    }
                }
                assert!(got.wait()?.iter().enumerate().all(|(index, value)| index as u64 == *value));
                settle(one)?;
            }
            // A signal is for one of them, and told once. Where memory is mapped nothing else comes.
            let is_exact = transport == Transport::Auto;
            wake_ups[1].signaller().signal()?;
            let told_of = told(&outer, LIMIT / 2);
            assert!(told_of == [1] || (!is_exact && told_of.contains(&1)), "{told_of:?}");
            assert_eq!(wake_ups[1].arm()?, Arm::Busy);
            settle(1)?;
            assert!(!is_exact || told(&outer, Duration::ZERO).is_empty());
        }
        world.barrier()
    });
}

/// Polls a future once. One that is not ready must not have asked to be polled again.
fn poll_quietly<T>(future: Pin<&mut impl Future<Output = Result<T>>>, woken: &Arc<Counts>) -> Result<Option<T>> {
    let before = woken.0.load(Ordering::SeqCst);
    match future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken)))) {
        Poll::Ready(outcome) => outcome.map(Some),
        Poll::Pending => {
            assert_eq!(woken.0.load(Ordering::SeqCst), before, "a future asks to be polled again at once");
            Ok(None)
        }
    }
}

#[test]
fn futures_of_contexts_sleep_until_something_ends() {
    over(&[Transport::ShmContract, Transport::Tcp], "futures of contexts", 2, |world| {
        // In several requests. The contract announces none of them, and is looked at each millisecond.
        let len = if world.settings().transport == Transport::Tcp { 100_000 } else { 10_000 };
        let numbers = world.alloc::<u64>(len)?;
        world.barrier()?;
        if world.rank() == 0 {
            let (array, context) = (numbers.for_threads(), world.context()?);
            let woken = Arc::new(Counts(AtomicUsize::new(0), false));
            // With a descriptor of the context.
            let wake_up = context.wake_up()?;
            wake_up.trust_announcements();
            wake_up.turn()?;
            for round in 0..5 {
                let mut put = pin!(context.put_slice_async(&array, 1, 0, &vec![round; len / 10]));
                let mut got = pin!(context.get_slice_async(&array, 1, len / 2, len / 2));
                let (mut is_put, mut is_got) = (false, false);
                while !(is_put && is_got) {
                    is_put = is_put || poll_quietly(put.as_mut(), &woken)?.is_some();
                    is_got = is_got || poll_quietly(got.as_mut(), &woken)?.is_some();
                    if is_put && is_got {
                        break;
                    }
                    let before = woken.0.load(Ordering::SeqCst);
                    while woken.0.load(Ordering::SeqCst) == before {
                        assert!(wake_up.poll(Some(LIMIT / 2))?, "round {round}: nothing is announced");
                        wake_up.turn()?;
                    }
                }
            }
            drop(wake_up);
            // With a driver of the world, which looks at contexts.
            let reactor = world.wake_up()?.reactor()?;
            let wake_up = world.wake_up()?;
            for round in 0..5 {
                // A future that got ready in its last check has left its waker, which the next poll may wake.
                let woken = Arc::new(Counts(AtomicUsize::new(0), false));
                let mut got = pin!(context.get_slice_async(&array, 1, len / 2, len / 2));
                while poll_quietly(got.as_mut(), &woken)?.is_none() {
                    let before = woken.0.load(Ordering::SeqCst);
                    while woken.0.load(Ordering::SeqCst) == before {
                        assert!(wake_up.poll(Some(LIMIT / 2))?, "round {round}: nothing is announced");
                        reactor.turn()?;
                    }
                }
            }
        }
        world.barrier()
    });
}

#[test]
fn the_end_of_a_rank_wakes_tasks() {
    let _guard = watchdog::guard("ends", LIMIT);
    let job = Threads::new(2).deadline(LIMIT);
    let heard = AtomicUsize::new(0);
    let program = |world: &World| {
        let bell = world.bell().expect("a bell");
        world.barrier().expect("all are there");
        if world.rank() == 1 {
            std::thread::sleep(WHILE);
            panic!("on purpose");
        }
        let lost = in_tokio(world, async || bell.rung(1).await).expect_err("nobody rings");
        assert!(matches!(lost, Error::PeerLost { rank: 1, .. }), "{lost}");
        heard.fetch_add(1, Ordering::SeqCst);
    };
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.run(program)));
    assert_eq!(panicked.expect_err("goes on").downcast_ref::<&str>(), Some(&"on purpose"));
    assert_eq!(heard.load(Ordering::SeqCst), 1);
}

/// Counts how often it is woken, and may panic then.
struct Counts(AtomicUsize, bool);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        assert!(!self.1, "a waker that panics, on purpose");
    }
}

#[test]
fn a_waker_that_panics_leaves_no_task_asleep() {
    on_threads("a waker panics", 1, |world| {
        if world.settings().transport != Transport::Auto {
            // There a timer may end an arming between two polls, and the second wakes the task of the first.
            return Ok(());
        }
        let bell = world.bell()?;
        let reactor = world.wake_up()?.reactor()?;
        reactor.turn()?;
        let wakers: Vec<_> = (0..8).map(|at| Arc::new(Counts(AtomicUsize::new(0), at % 4 == 1))).collect();
        let mut futures: Vec<_> = wakers.iter().map(|_| Box::pin(bell.rung(1))).collect();
        for (future, waker) in futures.iter_mut().zip(&wakers) {
            let waker = Waker::from(Arc::clone(waker));
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        bell.ring(0)?;
        // Each turn meets one of the two at most, and the third none.
        let panics =
            (0..3).filter(|_| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reactor.turn())).is_err());
        assert!((1..=2).contains(&panics.count()));
        let woken: Vec<_> = wakers.iter().map(|waker| waker.0.load(Ordering::SeqCst)).collect();
        assert!(woken.iter().all(|times| *times > 0), "{woken:?}");
        Ok(())
    });
}

#[test]
fn wakers_of_dropped_futures_do_not_pile_up() {
    on_threads("pile up", 1, |world| {
        let bell = world.bell()?;
        let reactor = world.wake_up()?.reactor()?;
        reactor.turn()?;
        let mut wakers: Vec<Weak<Counts>> = Vec::new();
        for _ in 0..10_000 {
            let waker = Arc::new(Counts(AtomicUsize::new(0), false));
            wakers.push(Arc::downgrade(&waker));
            let waker = Waker::from(waker);
            assert!(Box::pin(bell.rung(1)).as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        let kept = wakers.iter().filter(|waker| waker.strong_count() > 0).count();
        assert!(kept < 8_000, "{kept} wakers are kept");
        drop(reactor);
        assert!(wakers.iter().all(|waker| waker.strong_count() == 0));
        Ok(())
    });
}

#[test]
fn a_turn_that_tells_of_a_loss_arms_all_the_same() {
    let _guard = watchdog::guard("arms all the same", LIMIT);
    let program = |world: &World| {
        world.barrier().expect("all are there");
        if world.rank() == 1 {
            panic!("on purpose");
        }
        let reactor = world.wake_up().expect("there is one").reactor().expect("no other");
        let wake_up = world.wake_up().expect("there is one");
        while !matches!(reactor.turn(), Err(Error::PeerLost { rank: 1, .. })) {}
        // A ring may come after its cause. Without an arming it stays readable, and this does not end.
        while wake_up.poll(Some(Duration::ZERO)).expect("polls") {
            reactor.turn().expect_err("the rank is lost");
        }
    };
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Threads::new(2).deadline(LIMIT).run(program)));
    assert_eq!(panicked.expect_err("goes on").downcast_ref::<&str>(), Some(&"on purpose"));
}
