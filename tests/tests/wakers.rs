//! Futures of the library in executors of others: they wake their task when they are ready, and let the executor's thread sleep until then.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bellwether_runtime::{Completion, Error, Reactor, Result, Settings, Team, Threads, Transport, World};
use bellwether_tests::watchdog;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::LocalSet;

const LIMIT: Duration = Duration::from_secs(120);
/// Long enough for an executor that polls again and again to be told from one that sleeps.
const WHILE: Duration = Duration::from_millis(100);
/// Polls of a future that is woken when something comes. One that asks to be polled again at once has some hundred thousands.
const FEW: usize = 100;

fn on_threads(name: &str, ranks: usize, program: impl Fn(&World) -> Result<()> + Sync) {
    let _guard = watchdog::guard(name, LIMIT);
    for transport in [Transport::Auto, Transport::ShmContract] {
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
