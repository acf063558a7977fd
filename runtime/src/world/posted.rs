//! Gets, puts and atomics in future form: posted when called, awaited later, many at a time.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytemuck::Pod;

use super::atomics::AtomicElement;
use super::{OneThread, Symmetric, World};
use crate::engine::{Atomic, Change, Engine, Get, HeapRange, Ready};
use crate::error::Result;

/// An operation in flight: a future, or block in [`wait`](Self::wait), or in [`wait_all`](Self::wait_all) for several.
///
/// It was posted when it was made, and goes on while others are made. Where memory is mapped it is done at once, but for
/// an atomic at a rank of the same node in a job over several nodes. It owns
/// its buffers, so dropping it is safe at any time: a get is forgotten then, a put or an atomic still happens.
///
/// Wait for the operation before the phase of its array changes, and before its array is dropped. These wait for requests
/// that the operation has posted by then, and it still gives their result. If some requests were not posted yet (no room for
/// all of a long get or for an atomic, or a further step of [`Symmetric::fetch_update_async`]), the operation ends with
/// [`crate::Error::PhaseOver`] and posts nothing more. The operation is driven on the thread of its world: by
/// [`super::World::block_on`], by any wait of this rank, or by a single-threaded executor. Its errors name the place where
/// the program made it.
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// bellwether::threads(3, |world| {
///     let numbers = world.alloc::<u64>(1)?;
///     numbers.store(0, 10 * world.rank() as u64);
///     world.barrier()?;
///     let all: Vec<_> = (0..world.size()).map(|rank| numbers.get_async(rank, 0)).collect();
///     assert_eq!(bellwether::Posted::wait_all(all)?, [0, 10, 20]);
///     world.barrier()
/// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
#[must_use = "what it gives, and its errors, come from `wait` or `.await`"]
pub struct Posted<R> {
    engine: OneThread<Rc<Engine>, World>,
    doing: &'static str,
    /// Where the program made it.
    place: &'static Location<'static>,
    stage: OneThread<Stage<R>, World>,
}

pub(super) enum Stage<R> {
    Done(Result<R>),
    /// The get, the number of elements, their bytes as far as they have come, and the function that makes the result from the bytes.
    Get(Get, usize, Vec<u8>, fn(Vec<u8>, usize) -> R),
    Atomic(Atomic, fn(u64) -> R),
    Steps(Box<dyn Steps<R>>),
    /// On its way to this rank.
    Put(usize, fn() -> R),
    /// On its way to these.
    Puts(Vec<usize>, fn() -> R),
    Taken,
}

/// Requests one after the other; each depends on the result of the one before.
pub(super) trait Steps<R> {
    /// Goes on as far as it can, and gives the result when that was all.
    fn advance(&mut self, engine: &Engine, doing: &'static str) -> Result<Option<R>>;
}

impl<R> Posted<R> {
    #[track_caller]
    pub(super) fn new(engine: &Rc<Engine>, doing: &'static str, stage: Result<Stage<R>>) -> Posted<R> {
        let stage = stage.unwrap_or_else(|error| Stage::Done(Err(error)));
        let mut posted = Posted::of(engine, doing, stage);
        // On its way now, if there is room.
        posted.try_advance();
        posted
    }

    #[track_caller]
    fn of(engine: &Rc<Engine>, doing: &'static str, stage: Stage<R>) -> Posted<R> {
        let place = engine.place();
        let stage = match stage {
            // The error of the inner call names a line of the library.
            Stage::Done(outcome) => Stage::Done(outcome.map_err(|error| error.only_at(place))),
            stage => stage,
        };
        Posted { engine: OneThread::new(Rc::clone(engine)), doing, place, stage: OneThread::new(stage) }
    }

    /// The same, as if the caller had made it: a future that another call of the library has posted.
    #[track_caller]
    pub(super) fn of_caller(mut self) -> Posted<R> {
        self.place = self.engine.place();
        match std::mem::replace(&mut *self.stage, Stage::Taken) {
            Stage::Done(outcome) => *self.stage = Stage::Done(outcome.map_err(|error| error.only_at(self.place))),
            stage => *self.stage = stage,
        }
        self
    }

    fn advance(&mut self) -> Result<Option<R>> {
        match &mut *self.stage {
            Stage::Done(_) | Stage::Taken => match std::mem::replace(&mut *self.stage, Stage::Taken) {
                Stage::Done(outcome) => outcome.map(Some),
                _ => panic!("a future was polled after it was ready"),
            },
            Stage::Get(get, count, bytes, convert) => {
                Ok(get.advance(&mut &**self.engine, self.doing, bytes)?.then(|| convert(std::mem::take(bytes), *count)))
            }
            Stage::Atomic(atomic, convert) => Ok(atomic.advance(&mut &**self.engine, self.doing)?.map(*convert)),
            Stage::Steps(steps) => steps.advance(&self.engine, self.doing),
            Stage::Puts(ranks, convert) => {
                while let Some(rank) = ranks.last()
                    && self.engine.is_settled(self.doing, *rank)?
                {
                    ranks.pop();
                }
                Ok(ranks.is_empty().then(*convert))
            }
            Stage::Put(rank, convert) => Ok(self.engine.is_settled(self.doing, *rank)?.then(*convert)),
        }
    }

    /// Waits until it is done. Delivers messages meanwhile.
    ///
    /// # Errors
    /// What was wrong with its arguments; over a network [`crate::Error::PeerLost`], [`crate::Error::InsideHandler`],
    /// [`crate::Error::PhaseOver`].
    #[track_caller]
    pub fn wait(self) -> Result<R> {
        let (engine, place) = (Rc::clone(&self.engine), self.place);
        engine.at(|| engine.block_on(self.doing, self).map_err(|error| error.at(place)))
    }

    /// Whether it is done, so that [`Posted::wait`] does not wait. Polls.
    pub fn is_done(&mut self) -> bool {
        if !matches!(*self.stage, Stage::Done(_)) {
            // Where time is virtual, a loop of polls lets it pass.
            if self.engine.turn() == 0 && self.engine.check_outside_handler(self.doing).is_ok() {
                self.engine.idle_poll();
            }
        }
        self.try_advance()
    }

    /// Waits until all operations are done, and returns their results, in their order. Operations that take several steps
    /// ([`Symmetric::fetch_update_async`]) proceed side by side, about a hundred at a time.
    ///
    /// # Errors
    /// The first of theirs, as [`Posted::wait`].
    #[track_caller]
    pub fn wait_all(all: impl IntoIterator<Item = Posted<R>>) -> Result<Vec<R>> {
        let all: Vec<Posted<R>> = all.into_iter().collect();
        let Some((engine, doing)) = all.first().map(|one| (Rc::clone(&one.engine), one.doing)) else {
            return Ok(Vec::new());
        };
        if !all.iter().all(|one| Rc::ptr_eq(&one.engine, &engine)) {
            // The operations are of several worlds, and each world's own wait drives them.
            return all.into_iter().map(Posted::wait).collect();
        }
        engine.at(|| engine.wait_all(doing, all))?.into_iter().collect()
    }

    /// Whether it is done.
    fn try_advance(&mut self) -> bool {
        if !matches!(*self.stage, Stage::Done(_))
            && let Some(outcome) = self.advance().transpose()
        {
            let place = self.place;
            *self.stage = Stage::Done(outcome.map_err(|error| error.at(place)));
        }
        matches!(*self.stage, Stage::Done(_))
    }
}

/// An atomic that found no room yet happens nevertheless.
impl<R> Drop for Posted<R> {
    fn drop(&mut self) {
        if let Stage::Atomic(atomic, _) = &*self.stage {
            atomic.let_go(&self.engine);
        }
    }
}

/// Nothing in it is pinned.
impl<R> Unpin for Posted<R> {}

impl<R> Future for Posted<R> {
    type Output = Result<R>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<R>> {
        let engine = Rc::clone(&self.engine);
        let (doing, place) = (self.doing, self.place);
        let advance = || {
            let outcome = self.advance();
            if matches!(outcome, Ok(Some(_))) {
                *self.stage = Stage::Taken;
            }
            outcome
        };
        engine.poll_ready(doing, context, advance).map_err(|error| error.at(place))
    }
}

impl<R> Ready for Posted<R> {
    fn is_ready(&mut self) -> bool {
        self.try_advance()
    }

    fn driver(&self) -> Option<*const ()> {
        Some(Rc::as_ptr(&self.engine).cast())
    }

    fn is_taken(&self) -> bool {
        matches!(*self.stage, Stage::Taken)
    }
}

impl<R> std::fmt::Debug for Posted<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Posted({}, {})",
            self.doing,
            if matches!(*self.stage, Stage::Done(_)) { "done" } else { "under way" }
        )
    }
}

/// So many elements, from their bytes.
pub(super) fn collect<T: Pod>(bytes: Vec<u8>, count: usize) -> Vec<T> {
    let mut values = vec![T::zeroed(); count];
    bytemuck::cast_slice_mut(&mut values).copy_from_slice(&bytes);
    values
}

impl<T: Pod> Symmetric<T> {
    /// The future form of [`Symmetric::get`].
    #[track_caller]
    pub fn get_async(&self, rank: usize, index: usize) -> Posted<T> {
        const DOING: &str = "get_async";
        let stage = match self.is_mapped_range(rank, index, 1) {
            true => Ok(Stage::Done(self.get(rank, index))),
            false => self.remote_get(DOING, rank, index, 1, |bytes, _| bytemuck::pod_read_unaligned(&bytes)),
        };
        Posted::new(self.engine(), DOING, stage)
    }

    /// The future form of [`Symmetric::get_slice`]: reads `count` elements.
    #[track_caller]
    pub fn get_slice_async(&self, rank: usize, start: usize, count: usize) -> Posted<Vec<T>> {
        const DOING: &str = "get_slice_async";
        let stage = if self.is_mapped_range(rank, start, count) {
            let mut values = vec![T::zeroed(); count];
            Ok(Stage::Done(self.get_slice(rank, start, &mut values).map(|()| values)))
        } else {
            self.remote_get(DOING, rank, start, count, collect)
        };
        Posted::new(self.engine(), DOING, stage)
    }

    fn remote_get<R>(
        &self,
        doing: &'static str,
        rank: usize,
        start: usize,
        count: usize,
        convert: fn(Vec<u8>, usize) -> R,
    ) -> Result<Stage<R>> {
        let place = HeapRange { rank, offset: self.range(doing, rank, start, count)?, len: count * size_of::<T>() };
        Ok(Stage::Get(
            Get::new(self.engine().networks.largest_get(), Some(self.claim()), [place]),
            count,
            vec![0; place.len],
            convert,
        ))
    }

    /// The future form of [`Symmetric::put`]: ready when the element is visible at the target. It is on its way when this
    /// returns.
    #[track_caller]
    pub fn put_async(&self, rank: usize, index: usize, value: T) -> Posted<()> {
        self.put_slice_async(rank, index, &[value])
    }

    /// The future form of [`Symmetric::put_slice`]: ready when the elements are visible at the target. `values` may be
    /// changed when this returns.
    #[track_caller]
    pub fn put_slice_async(&self, rank: usize, start: usize, values: &[T]) -> Posted<()> {
        let mapped = self.is_mapped_range(rank, start, values.len());
        let stage = self.put_slice(rank, start, values).map(|()| match mapped {
            true => Stage::Done(Ok(())),
            false => Stage::Put(rank, || ()),
        });
        Posted::new(self.engine(), "put_async", stage)
    }
}

impl<T: AtomicElement> Symmetric<T> {
    #[track_caller]
    pub(super) fn post_atomic(&self, doing: &'static str, rank: usize, index: usize, change: Change) -> Posted<T> {
        let stage = self
            .range(doing, rank, index, 1)
            .map(|offset| Stage::Atomic(Atomic::new(self.claim(), rank, offset, change), T::narrow as fn(u64) -> T));
        Posted::new(self.engine(), doing, stage)
    }

    #[track_caller]
    pub(super) fn posted_already(&self, doing: &'static str, value: T) -> Posted<T> {
        Posted::of(self.engine(), doing, Stage::Done(Ok(value)))
    }
}
