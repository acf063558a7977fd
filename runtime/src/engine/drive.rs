//! Futures: operations posted now and polled later, and the wait that polls them.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Weak;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::Engine;
use super::remote_access::Answer;
use super::tasks::Background;
use crate::error::{CalledAt, Error, Result};
use crate::transport;

/// Futures of one `wait_all` that are polled in each round. Each has a request or a few in flight, and more of them would make
/// a round long. Chosen: eight times the requests that a connection over verbs takes.
const TOGETHER: usize = 128;

/// Tasks that are being advanced. The drop puts them back, also when one of them panics.
struct Running<'a> {
    engine: &'a Engine,
    list: Vec<Weak<dyn Background>>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.engine.tasks.put_back(std::mem::take(&mut self.list), || self.engine.has_tracked());
    }
}

impl Engine {
    /// Advances the background work. Returns how many tasks and operations ended.
    #[cold]
    pub(super) fn turn_background(&self) -> usize {
        if self.interface.delivering() {
            return 0;
        }
        let tracked = self.advance_tracked();
        let within = self.tasks.is_driving();
        // The list is taken out meanwhile, since tasks that run may add to it.
        let mut tasks = Running { engine: self, list: self.tasks.take() };
        let before = tasks.list.len();
        let _driving = self.tasks.begin_driving();
        let _polling = self.failures.begin_polling();
        tasks.list.retain(|task| task.upgrade().is_some_and(|task| within && !task.is_owed() || task.advance()));
        before - tasks.list.len() + tracked
    }

    /// Polls `future` until it is ready, with this rank's progress and waiting.
    ///
    /// # Errors
    /// As [`Engine::wait_together`]; the error of the future.
    #[inline]
    pub(crate) fn block_on<T>(&self, doing: &'static str, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.block_on_for(doing, None, future)
    }

    /// As [`Engine::block_on`], for at most `limit`.
    ///
    /// # Errors
    /// As [`Engine::block_on`], and [`crate::error::Error::TimedOut`].
    #[inline]
    pub(crate) fn block_on_for<T>(
        &self,
        doing: &'static str,
        limit: Option<Duration>,
        future: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut future = pin!(future);
        let mut output = None;
        self.drive(doing, limit, &mut |context| {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                output = Some(value);
            }
            output.is_some()
        })?;
        output.expect("the wait ends with an output")
    }

    /// Calls `poll` with a context for futures until it tells that they are ready. Not generic: test programs had a copy of the
    /// wait for each of hundreds of futures.
    ///
    /// # Errors
    /// As [`Engine::wait_together`], and with a limit as [`Engine::wait_together_for`].
    fn drive(
        &self,
        doing: &'static str,
        limit: Option<Duration>,
        poll: &mut dyn FnMut(&mut Context<'_>) -> bool,
    ) -> Result<()> {
        // The first poll may send.
        self.check_own(doing)?;
        let mut context = Context::from_waker(Waker::noop());
        let ready = || {
            let _driving = self.tasks.begin_driving();
            poll(&mut context)
        };
        match limit {
            None => self.wait_together(doing, ready),
            Some(limit) => self.wait_together_for(doing, limit, ready),
        }
    }

    /// Polls `futures` until all are ready, and returns their outcomes in the same order. An error of one does not end the wait.
    ///
    /// # Errors
    /// As [`Engine::wait_together`].
    pub(crate) fn wait_all<T, F>(&self, doing: &'static str, mut futures: Vec<F>) -> Result<Vec<Result<T>>>
    where
        F: Future<Output = Result<T>> + Unpin,
    {
        let mut outcomes: Vec<Option<Result<T>>> = futures.iter().map(|_| None).collect();
        // All before `done` are ready.
        let mut done = 0;
        self.drive(doing, None, &mut |context| {
            let mut polled = 0;
            let waiting = futures.iter_mut().zip(&mut outcomes).skip(done).filter(|(_, outcome)| outcome.is_none());
            for (future, outcome) in waiting {
                match Pin::new(future).poll(context) {
                    Poll::Ready(value) => *outcome = Some(value),
                    Poll::Pending => polled += 1,
                }
                if polled == TOGETHER {
                    break;
                }
            }
            done += outcomes[done..].iter().take_while(|outcome| outcome.is_some()).count();
            done == outcomes.len()
        })?;
        Ok(outcomes.into_iter().map(|outcome| outcome.expect("the wait ends when all are ready")).collect())
    }

    /// Polls `futures` until one is ready: its place among them, and its outcome. Of several that are ready, the first.
    ///
    /// # Errors
    /// As [`Engine::wait_together`].
    pub(crate) fn wait_first<T, F>(&self, doing: &'static str, futures: &mut [F]) -> Result<(usize, Result<T>)>
    where
        F: Future<Output = Result<T>> + Unpin,
    {
        let mut first = None;
        self.drive(doing, None, &mut |context| {
            first = futures.iter_mut().enumerate().find_map(|(at, future)| match Pin::new(future).poll(context) {
                Poll::Ready(outcome) => Some((at, outcome)),
                Poll::Pending => None,
            });
            first.is_some()
        })?;
        Ok(first.expect("the wait ends when one is ready"))
    }

    /// Waits until `find` finds something, for at most `limit`. It may go on with futures, as if it polled them.
    ///
    /// # Errors
    /// As [`Engine::wait_together`], and with a limit as [`Engine::wait_together_for`].
    pub(crate) fn wait_ready(
        &self,
        doing: &'static str,
        limit: Option<Duration>,
        find: &mut dyn FnMut() -> Option<usize>,
    ) -> Result<usize> {
        let mut found = None;
        self.drive(doing, limit, &mut |_| {
            found = find();
            found.is_some()
        })?;
        Ok(found.expect("the wait ends when something is found"))
    }

    /// Checks whether `ready` gives something. Where no wait of this engine drives the future, it makes progress itself. Then it waits for
    /// the rank's driver to wake it, if there is one. Otherwise, and in a wait of this engine, it asks to be polled again at once: that
    /// suits any executor of one thread, and any join that polls only what was woken.
    ///
    /// # Errors
    /// As [`Engine::poll_alive`], from `ready` too.
    #[inline]
    pub(crate) fn poll_ready<T>(
        &self,
        doing: &'static str,
        context: &Context<'_>,
        mut ready: impl FnMut() -> Result<Option<T>>,
    ) -> Poll<Result<T>> {
        match ready() {
            Ok(Some(value)) => {
                self.waiting.note_step();
                return Poll::Ready(Ok(value));
            }
            Err(error) => return Poll::Ready(Err(error)),
            Ok(None) if self.tasks.is_driving() => {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Ok(None) => {}
        }
        if self.interface.delivering() {
            return Poll::Ready(Err(Error::InsideHandler { operation: doing, place: CalledAt::default() }));
        }
        let polled = self.poll_alive(doing);
        match ready() {
            Ok(Some(value)) => {
                self.waiting.note_step();
                Poll::Ready(Ok(value))
            }
            Err(error) => Poll::Ready(Err(error)),
            Ok(None) => match polled {
                Err(error) => Poll::Ready(Err(error)),
                Ok(_) => self.sleep_or_again(context, &mut ready),
            },
        }
    }

    /// One attempt to post a request, ordered after all earlier puts there. `None` is backpressure.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(super) fn try_ask<T>(
        &self,
        doing: &'static str,
        rank: usize,
        post: impl FnOnce() -> transport::Result<Option<T>>,
    ) -> Result<Option<T>> {
        self.check_own(doing)?;
        if self.job.any_lost() || self.job.any_left() {
            self.check_alive(rank, doing)?;
        }
        if self.outbox.keeps_write_for(rank) {
            return Ok(None);
        }
        post().map_err(|error| self.remote_error(error, rank, doing))
    }

    /// Whether an answer of `rank` has come.
    ///
    /// # Errors
    /// [`Error::PeerLost`], if it never will.
    pub(super) fn answered(&self, doing: &'static str, rank: usize, answer: &Answer) -> Result<bool> {
        match answer.outcome() {
            None => Ok(false),
            Some(outcome) => outcome.map(|()| true).map_err(|error| self.remote_error(error, rank, doing)),
        }
    }

    /// Whether all that this rank has put to `rank` is in effect there.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    pub(crate) fn is_settled(&self, doing: &'static str, rank: usize) -> Result<bool> {
        if self.networks.is_empty() || rank == self.rank {
            return Ok(true);
        }
        self.check_own(doing)?;
        if self.outbox.keeps_write_for(rank) {
            return Ok(false);
        }
        self.networks.to(rank).settled(rank).map_err(|error| self.remote_error(error, rank, doing))
    }
}
