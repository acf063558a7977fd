//! A rank's progress as a handle of its own, for values that are built upon a world and outlive a borrow of the world.

use std::future::Future;
use std::rc::{Rc, Weak};

use super::{OneThread, World};
use crate::engine::{Background, Engine};
use crate::error::{Error, Loss, Placed, Result};
use crate::settings::Settings;

/// Makes progress for one rank. Cheap to copy; belongs to the thread of its world, and works as long as that lives.
#[derive(Clone)]
pub struct Progress {
    engine: OneThread<Rc<Engine>, World>,
}

impl World {
    /// This rank's progress.
    pub fn progress(&self) -> Progress {
        Progress::of(self.engine())
    }

    /// Whether every rank is still there, but for those that this one goes on without. For a request to a rank that does no longer
    /// know what it is about: it may have given that up because another is gone.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`].
    #[doc(hidden)]
    #[cold]
    pub fn check_none_gone(&self, doing: &'static str) -> Result<()> {
        self.engine.check_none_gone(doing)
    }

    /// Notes that `rank` has ended what this rank still needs: it may be about to leave. If both leave, the launcher names `rank`.
    #[doc(hidden)]
    #[cold]
    pub fn suspect(&self, rank: usize) {
        self.engine.suspect(rank);
    }

    /// Runs `body`, whose waits and errors then name this call: the name of a collective that is made of others. The
    /// outermost name counts.
    ///
    /// # Errors
    /// Those of `body`.
    #[doc(hidden)]
    #[inline]
    #[track_caller]
    pub fn within<R>(&self, call: &'static str, body: impl FnOnce() -> Result<R>) -> Result<R> {
        self.engine().within(call, body)
    }

    /// Drives a future of this library, or one made of such, until it is ready; delivers messages meanwhile and waits as
    /// every other wait does. Futures of other sources may be polled rarely, while this rank sleeps.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`] if a rank died; [`crate::Error::InsideHandler`]; what the future gives.
    #[track_caller]
    pub fn block_on<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.engine().at(|| self.engine().block_on("waiting for a future", future))
    }

    /// Waits until all of `futures` are ready, and returns their outputs, in their order: of [`Posted`](super::Posted),
    /// [`Call`](crate::Call), a team's collectives, or any other future of this library. All make progress meanwhile, not one
    /// after the other. `Box::pin` makes an `async` block fit, and futures of different types into one list.
    ///
    /// # Errors
    /// The first of theirs, in their order, when all are ready. [`crate::Error::PeerLost`] if a rank died;
    /// [`crate::Error::InsideHandler`].
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// bellwether::threads(3, |world| {
    ///     let calls = (0..world.size()).map(|to| world.call(to, 1, |ctx, x: usize| ctx.rank() + x));
    ///     let calls = calls.collect::<bellwether::Result<Vec<_>>>()?;
    ///     assert_eq!(world.wait_all(calls)?, [1, 2, 3]);
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn wait_all<T, F>(&self, futures: impl IntoIterator<Item = F>) -> Result<Vec<T>>
    where
        F: Future<Output = Result<T>> + Unpin,
    {
        let futures = futures.into_iter().collect();
        let outcomes = self.engine().at(|| self.engine().wait_all("waiting for several futures", futures))?;
        outcomes.into_iter().collect()
    }

    /// Waits until one of `futures` is ready, takes it out, and returns its place and what it gave. Those after it move up
    /// by one. Of several that are ready, the first in the list. The others make progress meanwhile, and stay in flight.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] for an empty list; [`crate::Error::PeerLost`] if a rank died;
    /// [`crate::Error::InsideHandler`]: then no future was taken out. The error of the future itself is in its output.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// bellwether::threads(3, |world| {
    ///     let mut ranks: Vec<usize> = (0..world.size()).collect();
    ///     let mut calls = Vec::new();
    ///     for to in &ranks {
    ///         calls.push(world.call(*to, 10, |ctx, x: usize| x * ctx.rank())?);
    ///     }
    ///     // In the order in which the answers come.
    ///     while !calls.is_empty() {
    ///         let (place, answer) = world.select(&mut calls)?;
    ///         assert_eq!(answer?, 10 * ranks.remove(place));
    ///     }
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn select<T, F>(&self, futures: &mut Vec<F>) -> Result<(usize, Result<T>)>
    where
        F: Future<Output = Result<T>> + Unpin,
    {
        if futures.is_empty() {
            let why = "the list of futures is empty: there is nothing to wait for".into();
            return Err(Error::InvalidArgument { operation: "select", why }).placed();
        }
        let first =
            self.engine().at(|| self.engine().wait_first("waiting for the first of several futures", futures))?;
        drop(futures.remove(first.0));
        Ok(first)
    }
}

impl Progress {
    pub(super) fn engine(&self) -> &Rc<Engine> {
        &self.engine
    }

    pub(super) fn of(engine: &Rc<Engine>) -> Progress {
        Progress { engine: OneThread::new(Rc::clone(engine)) }
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.engine.rank
    }

    /// Ranks of the world.
    pub fn size(&self) -> usize {
        self.engine.size
    }

    /// As [`World::block_on`]; `doing` is what errors call it.
    ///
    /// # Errors
    /// As [`World::block_on`].
    #[inline]
    #[track_caller]
    pub fn block_on<T>(&self, doing: &'static str, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.engine.at(|| self.engine.block_on(doing, future))
    }

    /// Whether this process is the rank.
    ///
    /// # Errors
    /// [`crate::Error::Forked`] in a forked child.
    #[doc(hidden)]
    #[inline]
    pub fn check_own(&self, operation: &'static str) -> Result<()> {
        self.engine.check_own(operation)
    }

    /// Called in a panic before this rank ends what other ranks may need: they are told why.
    #[doc(hidden)]
    #[cold]
    pub fn unwind(&self) {
        self.engine.unwind();
    }

    /// As [`World::within`].
    ///
    /// # Errors
    /// As [`World::within`].
    #[doc(hidden)]
    #[inline]
    #[track_caller]
    pub fn within<R>(&self, call: &'static str, body: impl FnOnce() -> Result<R>) -> Result<R> {
        self.engine.within(call, body)
    }

    /// As [`World::poll`].
    ///
    /// # Errors
    /// As [`World::poll`].
    #[track_caller]
    pub fn poll(&self) -> Result<usize> {
        self.engine.placed(self.engine.poll_alive("polling"))
    }

    /// Until the value is dropped other threads may use contexts in virtual time too. The caller polls meanwhile.
    #[doc(hidden)]
    pub fn lend_contexts(&self) -> impl Sized + '_ {
        self.engine.lend_contexts()
    }

    /// Lets `task` go on at every poll and in every wait of this rank, until it has nothing more to do or is dropped.
    pub fn add_background(&self, task: Weak<dyn Background>) {
        self.engine.tasks.add(task);
    }

    /// Ready when all that this rank has put and signalled is in effect everywhere: the future form of
    /// [`World::fence`], with its error.
    pub fn quiet(&self, doing: &'static str) -> impl Future<Output = Result<()>> + use<> {
        let engine = Rc::clone(&self.engine);
        std::future::poll_fn(move |context| {
            engine.poll_ready(doing, context, || Ok(engine.try_quiet(doing)?.then_some(())))
        })
    }

    /// As [`World::node_of`]; 0 for a rank that there is not.
    pub fn node_of(&self, rank: usize) -> usize {
        self.engine.nodes.of(rank)
    }

    /// As [`World::nodes`].
    pub fn nodes(&self) -> usize {
        self.engine.nodes.count()
    }

    /// Whether every rank's memory is a pointer away.
    pub fn is_mapped(&self) -> bool {
        self.engine.routes.all_mapped()
    }

    /// Whether there are more ranks than cores.
    pub fn is_crowded(&self) -> bool {
        self.engine.waiting.patience().crowded
    }

    /// Whether a rank of this host is known to have ended, so that it reads and writes nothing more. Looks for that where nobody else does.
    #[doc(hidden)]
    #[cold]
    pub fn has_ended(&self, rank: usize) -> bool {
        self.engine.look_for_dead_peers();
        let loss = self.engine.job.loss(rank);
        loss.is_some_and(|loss| !matches!(loss, Loss::Overdue | Loss::Disconnected))
    }

    /// Whether this rank has left, or counts as gone: its world was dropped.
    #[doc(hidden)]
    pub fn has_left(&self) -> bool {
        self.engine.job.loss(self.engine.rank).is_some()
    }

    /// The settings of this rank.
    pub fn settings(&self) -> &Settings {
        &self.engine.settings
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Progress(rank {} of {})", self.rank(), self.size())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use crate::engine::Background;

    /// Comes to its end when it is asked for the second time: the first is on the way into a sleep.
    #[derive(Default)]
    struct Second(Cell<u32>);

    impl Background for Second {
        fn advance(&self) -> bool {
            self.0.set(self.0.get() + 1);
            self.0.get() < 2
        }
    }

    #[test]
    fn a_wait_that_has_slept_looks_for_long_again_when_something_came() {
        let polls = crate::Threads::new(1).deadline(Duration::from_secs(20)).run(|world| {
            let engine = world.engine();
            let sleeps = || engine.node.status(0).wakes.load(Ordering::Relaxed);
            let (before, task, mut began) = (sleeps(), Rc::new(Second::default()), None);
            let mut polls = 0;
            let ready = || {
                if sleeps() > before && task.0.get() == 0 && Rc::weak_count(&task) == 0 {
                    engine.tasks.add(Rc::downgrade(&(Rc::clone(&task) as Rc<dyn Background>)));
                }
                if task.0.get() < 2 {
                    return false;
                }
                polls += 1;
                sleeps() > *began.get_or_insert_with(sleeps)
            };
            engine.wait_until("until the second sleep", None, ready).expect("waits");
            (polls, engine.waiting.patience().spins)
        });
        let (polls, spins) = polls.expect("runs")[0];
        assert!(polls > spins, "slept again after {polls} polls, not {spins}");
    }
}
