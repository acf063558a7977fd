//! Collectives in flight: those of a team run in the order of their start, independent of the task that polls.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{self, Poll, Waker};
use std::time::Duration;

use bytemuck::Pod;

use crate::engine::{Background, Ready, Running, inside_collective};
use crate::error::{Error, Result};
use crate::settings::{Allreduce, TeamBarrier};

use super::context::Context;
use super::head::Kind;
use super::operator::OnSlices;
use super::{allreduce, barrier, checked};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The outcome of a collective: its result, or the panic of something that it called.
type Outcome<R> = std::result::Result<Result<R>, Box<dyn Any + Send>>;

/// A team's context, and its collectives that are not done yet.
pub(super) struct Shared {
    pub(super) context: Rc<Context>,
    tasks: RefCell<VecDeque<Task>>,
    /// Tasks begun and done so far.
    begun: Cell<u64>,
    done: Cell<u64>,
    /// One of them is being polled.
    running: Cell<bool>,
    /// They go on whenever this rank polls or waits.
    in_background: Cell<bool>,
}

impl Background for Shared {
    fn advance(&self) -> bool {
        let goes_on = self.goes_on();
        self.in_background.set(goes_on);
        goes_on
    }

    fn notes_steps(&self) -> bool {
        true
    }
}

impl Shared {
    pub(super) fn new(context: Rc<Context>) -> Shared {
        Shared {
            context,
            tasks: RefCell::default(),
            begun: Cell::new(0),
            done: Cell::new(0),
            running: Cell::new(false),
            in_background: Cell::new(false),
        }
    }

    /// Goes on as far as it can. Whether there is more to do.
    pub(super) fn goes_on(&self) -> bool {
        !self.advance(self.begun.get(), &mut task::Context::from_waker(Waker::noop()))
    }

    /// Goes on with the oldest collective, and the next when it is done. Whether all that were begun before `until` are.
    fn advance(&self, until: u64, cx: &mut task::Context<'_>) -> bool {
        while self.done.get() < until {
            // The code that it runs may re-enter this function by a poll.
            if self.running.replace(true) {
                return false;
            }
            let mut task = self.tasks.borrow_mut().pop_front().expect("as many as begun and not done");
            let pending = task.as_mut().poll(cx).is_pending();
            self.running.set(false);
            if pending {
                self.tasks.borrow_mut().push_front(task);
                return false;
            }
            self.done.set(self.done.get() + 1);
            // The task that waits for the collective may be another one than the task that polls.
            self.context.hub.engine.wakeup.wake_tasks();
        }
        true
    }

    /// Marks this rank as in a blocking collective of this team.
    ///
    /// # Errors
    /// As [`Engine::begin_collective`], also inside a collective of this team that goes on in
    /// the background: a wait here would keep it from its end.
    fn begin_collective(&self, doing: &'static str) -> Result<Running<'_>> {
        if self.running.get() {
            return Err(inside_collective(doing));
        }
        self.context.hub.engine.begin_collective(doing)
    }

    /// Waits for `body`, after all collectives that were begun before. Its errors name the place of the caller.
    #[track_caller]
    pub(super) fn run<R>(&self, doing: &'static str, body: impl Future<Output = Result<R>>) -> Result<R> {
        let engine = &self.context.hub.engine;
        engine.within(doing, || {
            let _running = self.begin_collective(doing)?;
            self.run_here(doing, body)
        })
    }

    /// As [`Shared::run`], where this rank is marked.
    pub(super) fn run_here<R>(&self, doing: &'static str, body: impl Future<Output = Result<R>>) -> Result<R> {
        let (result, place) = (Cell::new(None), self.context.hub.engine.calls.current().map(|call| call.place));
        let mut body = pin!(Some(async { result.set(Some(caught(&*self.context, doing, place, body).await)) }));
        let outcome = self.run_any(doing, body.as_mut().as_pin_mut().expect("it is not dropped"));
        if let Err(error) = &outcome {
            self.context.give_up(error, || body.set(None));
        }
        flatten(outcome.map(|()| result.take().expect("the body has ended")))
    }

    /// A barrier, after all collectives that were begun before.
    #[track_caller]
    pub(super) fn barrier(&self) -> Result<()> {
        let (context, doing) = (&*self.context, Kind::Barrier.doing());
        // Most often nothing is in flight, and a future would take longer than the barrier does.
        match barrier::choose(context) {
            TeamBarrier::Nodes => self.run(doing, checked::barrier(context)),
            _ if self.done.get() < self.begun.get() || !context.is_mapped() => {
                self.run(doing, checked::barrier(context))
            }
            by => context.hub.engine.within(doing, || {
                let _running = self.begin_collective(doing)?;
                context.barrier_now(by == TeamBarrier::Central)
            }),
        }
    }

    /// An allreduce, after all collectives that were begun before.
    #[track_caller]
    pub(super) fn allreduce<T: Pod>(&self, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
        let (context, doing) = (&*self.context, Kind::Allreduce.doing());
        let is_free = self.done.get() == self.begun.get() && context.size() > 1;
        // As in `barrier`.
        match allreduce::choose::<T>(context, values.len()) {
            Allreduce::Lines if is_free => {
                let engine = &context.hub.engine;
                engine.within(doing, || {
                    let _running = self.begin_collective(doing)?;
                    checked::allreduce_by_lines(context, values, op)
                })
            }
            _ => self.run(doing, checked::allreduce(context, values, op)),
        }
    }

    /// Waits for `body`, after all collectives that were begun before. Once for all of them, whatever their elements.
    fn run_any(&self, doing: &'static str, body: Pin<&mut dyn Future<Output = ()>>) -> Result<()> {
        self.context.hub.engine.block_on(doing, async {
            let earlier = self.begun.get();
            if self.done.get() < earlier {
                std::future::poll_fn(|cx| if self.advance(earlier, cx) { Poll::Ready(()) } else { Poll::Pending })
                    .await;
            }
            body.await;
            Ok(())
        })
    }

    /// Begins `body`, which goes on whenever this rank polls or waits, whatever for. Its errors name the place of the caller.
    #[track_caller]
    pub(super) fn post<R: 'static>(
        self: &Rc<Self>,
        doing: &'static str,
        body: impl Future<Output = Result<R>> + 'static,
    ) -> Pending<R> {
        let engine = &self.context.hub.engine;
        let place = engine.calls.current().map_or(Location::caller(), |call| call.place);
        if engine.is_in_collective() || engine.check_outside_handler(doing).is_err() {
            let refused = engine.begin_collective(doing).map(drop).expect_err("this rank is in another");
            let refused = Ok(Err(refused.within(None, place, engine.rank)));
            return Pending { shared: Rc::clone(self), doing, number: 0, result: Rc::new(RefCell::new(Some(refused))) };
        }
        let result = Rc::new(RefCell::new(None));
        let told = Rc::clone(&result);
        let body = caught(Rc::clone(&self.context), doing, Some(place), body);
        self.tasks.borrow_mut().push_back(Box::pin(async move {
            let outcome = body.await;
            *told.borrow_mut() = Some(outcome);
        }));
        let number = self.begun.get() + 1;
        self.begun.set(number);
        let pending = Pending { shared: Rc::clone(self), doing, number, result };
        // Its first messages are sent now.
        let done = self.advance(number, &mut task::Context::from_waker(Waker::noop()));
        if !done && !self.in_background.replace(true) {
            let shared = Rc::clone(self) as Rc<dyn Background>;
            self.context.hub.engine.tasks.add(Rc::downgrade(&shared));
        }
        pending
    }
}

/// The last clone of a team here: collectives that are not done go on in the background, as other members wait for this one.
impl Drop for Shared {
    fn drop(&mut self) {
        let tasks = self.tasks.take();
        let context = Rc::clone(&self.context);
        if let Some(left) = context.hub.left().filter(|_| !tasks.is_empty()) {
            let rest = Shared {
                context: Rc::clone(&context),
                tasks: RefCell::new(tasks),
                begun: self.begun.clone(),
                done: self.done.clone(),
                running: Cell::new(false),
                in_background: Cell::new(true),
            };
            left.keep(&context.hub, rest);
        }
    }
}

/// A collective in flight: a future, or block in [`wait`](Self::wait).
///
/// Collectives of one team are done in the order of their start; those of different teams are independent of each other.
/// All go on in every poll and wait of this rank. It owns its buffers. Dropping it is safe and gives up nothing: the
/// collective goes on, also when the team is dropped as well; the team has its slot until it is done, or this rank leaves.
///
/// Where a [`Driver`](crate::Driver) or a [`Reactor`](crate::Reactor) wakes its task, the future may also fail with the errors of
/// [`WakeUp::arm`](crate::WakeUp::arm); the collective goes on.
#[must_use = "what it gives, and its errors, come from `wait` or `.await`"]
pub struct Pending<R> {
    shared: Rc<Shared>,
    doing: &'static str,
    number: u64,
    result: Rc<RefCell<Option<Outcome<R>>>>,
}

impl<R> Pending<R> {
    /// Waits until it is done. Delivers messages meanwhile.
    ///
    /// # Errors
    /// Those of the blocking form.
    ///
    /// # Panics
    /// If code that the collective called has panicked, such as its operator, also if another task drove the collective then.
    #[track_caller]
    pub fn wait(self) -> Result<R> {
        let engine = &self.shared.context.hub.engine;
        let outcome = std::future::poll_fn(|cx| self.outcome(cx).map(Ok));
        engine.within(self.doing, || flatten(engine.waiting.for_collective(|| engine.block_on(self.doing, outcome))))
    }

    /// As [`Pending::wait`], for at most `limit`. Without a result in time the collective goes on as before, and this may be called
    /// again, or [`Pending::wait`].
    ///
    /// # Errors
    /// Those of the blocking form; [`Error::TimedOut`]; [`Error::InvalidArgument`] after an earlier call has given the result.
    ///
    /// # Panics
    /// As [`Pending::wait`].
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::{Error, Team};
    /// # bellwether::threads(3, |world| {
    /// let team = Team::world(world)?;
    /// let mut sums = team.allreduce_async(vec![1.0, world.rank() as f64], |a, b| a + b);
    /// let sums = loop {
    ///     match sums.wait_for(Duration::from_millis(10)) {
    ///         Err(Error::TimedOut { .. }) => eprintln!("rank {} waits for the sums", world.rank()),
    ///         outcome => break outcome?,
    ///     }
    /// };
    /// assert_eq!(sums, [3.0, 3.0]);
    /// # Ok(())
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn wait_for(&mut self, limit: Duration) -> Result<R> {
        let engine = &self.shared.context.hub.engine;
        engine.within(self.doing, || {
            if self.is_done() && self.result.borrow().is_none() {
                let why = "an earlier wait has given its result".into();
                return Err(Error::InvalidArgument { operation: self.doing, why });
            }
            let outcome = std::future::poll_fn(|cx| self.outcome(cx).map(Ok));
            flatten(engine.block_on_for(self.doing, Some(limit), outcome))
        })
    }

    fn outcome(&self, cx: &mut task::Context<'_>) -> Poll<Outcome<R>> {
        if !self.shared.advance(self.number, cx) {
            let engine = &self.shared.context.hub.engine;
            // Whoever polls may have woken another's task: polled again, this one goes on.
            match engine.sleep_or_again(cx, &mut || Ok(self.is_done().then_some(()))) {
                Poll::Pending => return Poll::Pending,
                // The collective is not done. The error is about this rank.
                Poll::Ready(Err(error)) => return Poll::Ready(Ok(Err(error))),
                Poll::Ready(Ok(())) => {}
            }
        }
        Poll::Ready(self.result.borrow_mut().take().expect("a future is not polled after it was ready"))
    }

    /// Whether it is done, so that [`Pending::wait`] does not wait. Goes on with it.
    pub fn is_done(&self) -> bool {
        self.shared.advance(self.number, &mut task::Context::from_waker(Waker::noop()))
    }
}

impl<R> Future for Pending<R> {
    type Output = Result<R>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Result<R>> {
        self.outcome(cx).map(|outcome| flatten(Ok(outcome)))
    }
}

impl<R> Ready for Pending<R> {
    fn is_ready(&mut self) -> bool {
        self.is_done()
    }

    fn driver(&self) -> Option<*const ()> {
        Some(Rc::as_ptr(&self.shared.context.hub.engine).cast())
    }

    fn is_taken(&self) -> bool {
        self.is_done() && self.result.borrow().is_none()
    }
}

/// Runs `body`. A panic of it is reported to the team, and then raised in the caller. It does not unwind through the code
/// that drives the future: that may be a wait for something else.
async fn caught<R>(
    context: impl Deref<Target = Context>,
    doing: &'static str,
    place: Option<&'static Location<'static>>,
    body: impl Future<Output = Result<R>>,
) -> Outcome<R> {
    let mut body = pin!(body);
    let named = |error: Error| match place {
        Some(place) => error.within(None, place, context.hub.engine.rank),
        None => error,
    };
    std::future::poll_fn(|cx| {
        context.called_at.set(place);
        match catch_unwind(AssertUnwindSafe(|| body.as_mut().poll(cx))) {
            Ok(polled) => polled.map(|outcome| Ok(outcome.map_err(named))),
            Err(panic) => {
                context.panicked(doing, &*panic);
                Poll::Ready(Err(panic))
            }
        }
    })
    .await
}

/// The result of a wait for a collective. Goes on with its panic.
fn flatten<R>(waited: Result<Outcome<R>>) -> Result<R> {
    waited?.unwrap_or_else(|panic| resume_unwind(panic))
}

impl<R> std::fmt::Debug for Pending<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pending({})", self.doing)
    }
}
