//! Operations with events, of a context.

use std::sync::Arc;

use super::operation::{apply, check_one_value, checked};
use super::{AtomicElement, Completion, Counter, Event, Fetched, PlainData, ThreadArray, ThreadContext};
use crate::engine::{Change, Found, Step};
use crate::error::Result;
use crate::transport::AtomicOp;

/// A put or atomic of a [`ThreadContext`] to be, with what is done at its events: as [`Operation`](super::Operation), whose events these
/// are. Made by [`ThreadContext::operation`].
///
/// The context's thread learns of an event in a call that makes progress: [`ThreadContext::poll`] and every wait of the context, of which
/// [`ThreadContext::flush_all`] lets all of them happen. Where the world's thread waits for what contexts have in flight, at the end of
/// a phase or of an allocation, it does what is to be done itself.
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// use bellwether::Counter;
/// bellwether::threads(2, |world| {
///     let numbers = world.alloc::<u64>(1)?;
///     let (context, array) = (world.context()?, numbers.for_threads());
///     let (other, arrived) = (1 - world.rank(), Counter::new());
///     std::thread::scope(|scope| {
///         let arrived = &arrived;
///         scope.spawn(move || {
///             context.operation().effect(arrived).put(&array, other, 0, &[7])?;
///             context.wait_counter(arrived, 1)
///         }).join().expect("does not panic")
///     })?;
///     world.barrier()?;
///     assert_eq!(numbers.load(0), 7);
///     world.barrier()
/// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
#[must_use = "nothing is done before `put`, `fetch` or `compare_swap`"]
#[derive(Debug)]
pub struct ThreadOperation<'c> {
    context: &'c ThreadContext,
    events: [Vec<Event>; 3],
}

impl ThreadContext {
    /// An operation with events; see [`ThreadOperation`].
    pub fn operation(&self) -> ThreadOperation<'_> {
        ThreadOperation { context: self, events: Default::default() }
    }

    /// Waits until `counter` has counted `target` events at least, and tells how many it has.
    ///
    /// # Errors
    /// [`Error::PeerLost`](crate::Error::PeerLost) if a rank died; that of an operation of this context that failed;
    /// [`Error::InsideHandler`](crate::Error::InsideHandler).
    pub fn wait_counter(&self, counter: &Counter, target: u64) -> Result<u64> {
        self.stream().wait_events("waiting for a counter", || counter.value() >= target)?;
        Ok(counter.value())
    }

    /// Waits until all operations of a future have ended.
    ///
    /// # Errors
    /// The first of theirs; as [`ThreadContext::wait_counter`].
    pub fn wait_completion(&self, completion: &Completion) -> Result<()> {
        let mut outcome = None;
        self.stream().wait_events("waiting for operations", || {
            outcome = completion.outcome();
            outcome.is_some()
        })?;
        outcome.expect("the wait ends with an outcome")
    }
}

impl ThreadOperation<'_> {
    /// At the event that the source may be changed.
    pub fn source(self, event: impl Into<Event>) -> Self {
        self.at(0, event.into())
    }

    /// At the event that it is in effect.
    pub fn effect(self, event: impl Into<Event>) -> Self {
        self.at(1, event.into())
    }

    /// At the event that the target's program has handled it: of a put or an atomic with the effect, since the program has no part in it.
    pub fn handled(self, event: impl Into<Event>) -> Self {
        self.at(2, event.into())
    }

    fn at(mut self, which: usize, event: Event) -> Self {
        self.events[which].push(event);
        self
    }

    /// Writes `values` at `rank`, from element `start`.
    ///
    /// # Errors
    /// As [`ThreadContext::put_slice`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) if a bell is of another world or
    /// rank. Then no event happens.
    pub fn put<T: PlainData>(self, array: &ThreadArray<'_, T>, rank: usize, start: usize, values: &[T]) -> Result<()> {
        const DOING: &str = "put";
        let stream = self.context.stream();
        array.range(stream, DOING, rank, start, values.len())?;
        let events = checked(self.events, stream.identity())?;
        self.context.put_slice(array, rank, start, values)?;
        stream.track_put(rank, DOING, events);
        Ok(())
    }

    /// Does an atomic with `value` on element `index` of `rank`; not [`AtomicOp::CompareSwap`]. What was there before is in the result at
    /// the effect event.
    ///
    /// # Errors
    /// As [`ThreadContext::fetch_add`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a compare-and-swap; as
    /// [`ThreadOperation::put`].
    pub fn fetch<T: AtomicElement>(
        self,
        op: AtomicOp,
        array: &ThreadArray<'_, T>,
        rank: usize,
        index: usize,
        value: T,
    ) -> Result<Fetched<T>> {
        check_one_value(op)?;
        self.change(op, array, rank, index, [value, T::zeroed()])
    }

    /// Stores `new` in element `index` of `rank` if it is `expected`; as [`ThreadOperation::fetch`].
    ///
    /// # Errors
    /// As [`ThreadOperation::fetch`].
    pub fn compare_swap<T: AtomicElement>(
        self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        index: usize,
        expected: T,
        new: T,
    ) -> Result<Fetched<T>> {
        self.change(AtomicOp::CompareSwap, array, rank, index, [new, expected])
    }

    fn change<T: AtomicElement>(
        self,
        op: AtomicOp,
        array: &ThreadArray<'_, T>,
        rank: usize,
        index: usize,
        [value, compare]: [T; 2],
    ) -> Result<Fetched<T>> {
        const DOING: &str = "an atomic";
        let stream = self.context.stream();
        let offset = array.range(stream, DOING, rank, index, 1)?;
        let mut events = checked(self.events, stream.identity())?;
        let mut effect = std::mem::take(&mut events.effect);
        effect.append(&mut events.handled);
        let found: Arc<Found> = Arc::default();
        let fetched = Fetched { found: Arc::clone(&found), narrow: T::narrow };
        match array.element(rank, index) {
            Some(at) => {
                // SAFETY: an element in mapped memory, only touched atomically.
                found.set(unsafe { apply(op, at, value, compare) }.widen());
                events.source.append(&mut effect);
            }
            None => {
                let change = Change { op, width: T::WIDTH, value: value.widen(), compare: compare.widen() };
                let atomic = stream.post_atomic(DOING, rank, offset, change)?;
                stream.track(rank, DOING, Step::Atomic { atomic, found }, effect);
            }
        }
        stream.happened(events.source);
        Ok(fetched)
    }
}
