//! Collectives under way: each team's in order of their start, whoever polls.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{self, Poll, Waker};

use bellwether_runtime::Result;

use super::context::Context;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A team's context, and its collectives that are not done yet.
pub(super) struct Shared {
    pub(super) context: Rc<Context>,
    tasks: RefCell<VecDeque<Task>>,
    /// Tasks begun and done so far.
    begun: Cell<u64>,
    done: Cell<u64>,
}

impl Shared {
    pub(super) fn new(context: Context) -> Shared {
        let context = Rc::new(context);
        Shared { context, tasks: RefCell::default(), begun: Cell::new(0), done: Cell::new(0) }
    }

    /// Goes on with the oldest collective, and the next when it is done. Whether all that were begun before `until` are.
    fn advance(&self, until: u64, cx: &mut task::Context<'_>) -> bool {
        while self.done.get() < until {
            // Out of its queue meanwhile: what it runs may come back here, and then finds nothing to do.
            let Some(mut task) = self.tasks.borrow_mut().pop_front() else { return false };
            if task.as_mut().poll(cx).is_pending() {
                self.tasks.borrow_mut().push_front(task);
                return false;
            }
            self.done.set(self.done.get() + 1);
        }
        true
    }

    /// Waits for `body`, after all collectives that were begun before.
    pub(super) fn run<R>(&self, doing: &'static str, body: impl Future<Output = Result<R>>) -> Result<R> {
        self.context.hub.progress.block_on(doing, async {
            let earlier = self.begun.get();
            if self.done.get() < earlier {
                std::future::poll_fn(|cx| if self.advance(earlier, cx) { Poll::Ready(()) } else { Poll::Pending })
                    .await;
            }
            body.await
        })
    }

    /// Begins `body`, which goes on whenever this rank waits for a collective of this team.
    pub(super) fn post<R: 'static>(
        self: &Rc<Self>,
        doing: &'static str,
        body: impl Future<Output = Result<R>> + 'static,
    ) -> Pending<R> {
        let result = Rc::new(RefCell::new(None));
        let place = Rc::clone(&result);
        self.tasks.borrow_mut().push_back(Box::pin(async move {
            let outcome = body.await;
            *place.borrow_mut() = Some(outcome);
        }));
        let number = self.begun.get() + 1;
        self.begun.set(number);
        let pending = Pending { shared: Rc::clone(self), doing, number, result };
        // What it sends first is on its way now.
        self.advance(number, &mut task::Context::from_waker(Waker::noop()));
        pending
    }
}

/// A collective that is under way: a future, or [`wait`](Self::wait) for it.
///
/// Collectives of one team are done in the order of their start, and whoever waits for one, in either form, drives those
/// before it. Collectives of different teams are independent of each other. It owns its buffers. Dropping it is safe and
/// gives up nothing: the collective goes on with the next call of its team.
#[must_use = "what it gives, and its errors, come from `wait` or `.await`"]
pub struct Pending<R> {
    shared: Rc<Shared>,
    doing: &'static str,
    number: u64,
    result: Rc<RefCell<Option<Result<R>>>>,
}

impl<R> Pending<R> {
    /// Waits until it is done. Delivers messages meanwhile.
    ///
    /// # Errors
    /// Those of the blocking form.
    pub fn wait(self) -> Result<R> {
        let (shared, doing) = (Rc::clone(&self.shared), self.doing);
        shared.context.hub.progress.block_on(doing, self)
    }

    /// Whether it is done, so that [`Pending::wait`] does not wait. Goes on with it.
    pub fn is_done(&self) -> bool {
        self.shared.advance(self.number, &mut task::Context::from_waker(Waker::noop()))
    }
}

impl<R> Future for Pending<R> {
    type Output = Result<R>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Result<R>> {
        if !self.shared.advance(self.number, cx) {
            return Poll::Pending;
        }
        Poll::Ready(self.result.borrow_mut().take().expect("a future is not polled after it was ready"))
    }
}

impl<R> std::fmt::Debug for Pending<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pending({})", self.doing)
    }
}
