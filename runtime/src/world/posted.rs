//! Gets, puts and atomics in future form: posted when called, awaited later, many at a time.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytemuck::Pod;

use super::Symmetric;
use super::atomics::AtomicElement;
use crate::engine::{Asked, Engine, FarAtomic, FarGet};
use crate::error::Result;

/// An operation that is under way: a future, or [`wait`](Self::wait) for it.
///
/// It was posted when it was made, and goes on while others are made. Where memory is mapped it is done at once. It owns
/// its buffers, so dropping it is safe at any time: a get is forgotten then, a put or an atomic still happens.
/// It is driven by whoever polls it, on the thread of its world: [`super::World::block_on`], any wait of this rank, or an
/// executor of one thread.
///
/// # Examples
/// ```
/// bellwether_runtime::threads(3, |world| {
///     let numbers = world.alloc::<u64>(1)?;
///     numbers.store(0, 10 * world.rank() as u64);
///     world.barrier()?;
///     let all: Vec<_> = (0..world.size()).map(|rank| numbers.get_async(rank, 0)).collect();
///     let all: Result<Vec<u64>, _> = all.into_iter().map(|number| number.wait()).collect();
///     assert_eq!(all?, [0, 10, 20]);
///     world.barrier()
/// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
/// # Ok::<(), bellwether_runtime::Error>(())
/// ```
#[must_use = "what it gives, and its errors, come from `wait` or `.await`"]
pub struct Posted<R> {
    engine: Rc<Engine>,
    doing: &'static str,
    stage: Stage<R>,
}

enum Stage<R> {
    Done(Result<R>),
    Get(FarGet, fn(Vec<u8>) -> R),
    Atomic(FarAtomic, fn(u64) -> R),
    /// On its way to this rank.
    Put(usize, fn() -> R),
    Taken,
}

impl<R> Posted<R> {
    fn new(engine: &Rc<Engine>, doing: &'static str, stage: Result<Stage<R>>) -> Posted<R> {
        let mut posted =
            Posted { engine: Rc::clone(engine), doing, stage: stage.unwrap_or_else(|error| Stage::Done(Err(error))) };
        // On its way now, if there is room.
        if let Some(outcome) = posted.advance().transpose() {
            posted.stage = Stage::Done(outcome);
        }
        posted
    }

    fn advance(&mut self) -> Result<Option<R>> {
        match &mut self.stage {
            Stage::Done(_) | Stage::Taken => match std::mem::replace(&mut self.stage, Stage::Taken) {
                Stage::Done(outcome) => outcome.map(Some),
                _ => panic!("a future was polled after it was ready"),
            },
            Stage::Get(get, convert) => Ok(get.advance(&self.engine, self.doing)?.map(*convert)),
            Stage::Atomic(atomic, convert) => Ok(atomic.advance(&self.engine, self.doing)?.map(*convert)),
            Stage::Put(rank, convert) => Ok(self.engine.is_settled(self.doing, *rank)?.then(*convert)),
        }
    }

    /// Waits until it is done. Delivers messages meanwhile.
    ///
    /// # Errors
    /// What was wrong with its arguments; over a network [`crate::Error::PeerLost`], [`crate::Error::InsideHandler`].
    pub fn wait(self) -> Result<R> {
        let engine = Rc::clone(&self.engine);
        engine.block_on(self.doing, self)
    }

    /// Whether it is done, so that [`Posted::wait`] does not wait. Polls.
    pub fn is_done(&mut self) -> bool {
        if !matches!(self.stage, Stage::Done(_)) {
            self.engine.turn();
            if let Some(outcome) = self.advance().transpose() {
                self.stage = Stage::Done(outcome);
            }
        }
        matches!(self.stage, Stage::Done(_))
    }
}

/// Nothing in it is pinned.
impl<R> Unpin for Posted<R> {}

impl<R> Future for Posted<R> {
    type Output = Result<R>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<R>> {
        let engine = Rc::clone(&self.engine);
        engine.look(self.doing, context, || self.advance())
    }
}

impl<R> std::fmt::Debug for Posted<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Posted({}, {})", self.doing, if matches!(self.stage, Stage::Done(_)) { "done" } else { "under way" })
    }
}

/// Bytes as the elements they are.
fn collect<T: Pod>(bytes: Vec<u8>) -> Vec<T> {
    let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>().max(1)];
    bytemuck::cast_slice_mut(&mut values).copy_from_slice(&bytes);
    values
}

impl<T: Pod> Symmetric<T> {
    /// The future form of [`Symmetric::get`].
    pub fn get_async(&self, rank: usize, index: usize) -> Posted<T> {
        const DOING: &str = "get_async";
        let stage = match self.element(rank, index) {
            Some(_) => Ok(Stage::Done(self.get(rank, index))),
            None => self.far_get(DOING, rank, index, 1, |bytes| bytemuck::pod_read_unaligned(&bytes)),
        };
        Posted::new(self.engine(), DOING, stage)
    }

    /// The future form of [`Symmetric::get_slice`]: reads `count` elements.
    pub fn get_slice_async(&self, rank: usize, start: usize, count: usize) -> Posted<Vec<T>> {
        const DOING: &str = "get_slice_async";
        let stage = if self.near(rank, start, count) {
            let mut values = vec![T::zeroed(); count];
            Ok(Stage::Done(self.get_slice(rank, start, &mut values).map(|()| values)))
        } else {
            self.far_get(DOING, rank, start, count, collect)
        };
        Posted::new(self.engine(), DOING, stage)
    }

    fn far_get<R>(
        &self,
        doing: &'static str,
        rank: usize,
        start: usize,
        count: usize,
        convert: fn(Vec<u8>) -> R,
    ) -> Result<Stage<R>> {
        let offset = self.range(doing, rank, start, count)?;
        if rank == self.engine().rank {
            let mut values = vec![T::zeroed(); count];
            self.get_slice(rank, start, &mut values)?;
            return Ok(Stage::Done(Ok(convert(bytemuck::cast_slice(&values).to_vec()))));
        }
        Ok(Stage::Get(FarGet::new(rank, offset, count * size_of::<T>()), convert))
    }

    /// The future form of [`Symmetric::put`]: ready when the element is visible at the target. It is on its way when this
    /// returns.
    pub fn put_async(&self, rank: usize, index: usize, value: T) -> Posted<()> {
        self.put_slice_async(rank, index, &[value])
    }

    /// The future form of [`Symmetric::put_slice`]: ready when the elements are visible at the target. `values` may be
    /// changed when this returns.
    pub fn put_slice_async(&self, rank: usize, start: usize, values: &[T]) -> Posted<()> {
        let near = self.near(rank, start, values.len());
        let stage = self.put_slice(rank, start, values).map(|()| match near {
            true => Stage::Done(Ok(())),
            false => Stage::Put(rank, || ()),
        });
        Posted::new(self.engine(), "put_async", stage)
    }
}

impl<T: AtomicElement> Symmetric<T> {
    pub(super) fn post_atomic(&self, doing: &'static str, rank: usize, index: usize, asked: Asked) -> Posted<T> {
        let stage = self
            .range(doing, rank, index, 1)
            .map(|offset| Stage::Atomic(FarAtomic::new(rank, offset, asked), T::narrow as fn(u64) -> T));
        Posted::new(self.engine(), doing, stage)
    }

    pub(super) fn posted_already(&self, doing: &'static str, value: T) -> Posted<T> {
        Posted { engine: Rc::clone(self.engine()), doing, stage: Stage::Done(Ok(value)) }
    }
}
