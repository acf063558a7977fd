//! Operations with events, of a context.

mod addresses;
mod segments;

use std::ops::Range;
use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};

use super::operation::at_once::kept;
use super::operation::{apply, check_one_value, checked};
use super::returned::{Lender, Returned};
use super::{AtomicElement, Completion, Counter, Event, Fetched, PlainData, ThreadArray, ThreadContext};
use crate::engine::{Change, Events, Found, HeapRange, Step};
use crate::error::{Error, Placed, Result};
use crate::message::{Context, HandlerId, closure, closure_with_receipt};
use crate::transport::AtomicOp;

/// A put, get, atomic or message that a [`ThreadContext`] is to do, with the actions at its events. The events are those of
/// [`Operation`](super::Operation). Made by [`ThreadContext::operation`].
///
/// The world's thread learns that a handler has run, and does the actions of that event. So wait for it on a thread beside one that
/// polls or waits, or on the world's thread itself.
///
/// The context's thread learns of an event in a call that makes progress: [`ThreadContext::poll`] and every wait of the context.
/// [`ThreadContext::flush_all`] waits for all events except *handled* of messages. When the world's thread waits for operations of
/// contexts, at the end of a phase or of an allocation, it does the actions of their events itself.
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
#[must_use = "nothing is done before `put`, `get_into`, `fetch`, `send` or `invoke`"]
#[derive(Debug)]
pub struct ThreadOperation<'c> {
    pub(super) context: &'c ThreadContext,
    pub(super) events: [Vec<Event>; 3],
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
    #[track_caller]
    pub fn wait_counter(&self, counter: &Counter, target: u64) -> Result<u64> {
        (|| -> Result<u64> {
            self.stream().wait_events("waiting for a counter", || counter.value() >= target)?;
            Ok(counter.value())
        })()
        .placed_here()
    }

    /// Waits until all operations of a future have ended.
    ///
    /// # Errors
    /// The first of theirs; as [`ThreadContext::wait_counter`].
    #[track_caller]
    pub fn wait_completion(&self, completion: &Completion) -> Result<()> {
        (|| -> Result<()> {
            let mut outcome = None;
            self.stream().wait_events("waiting for operations", || {
                outcome = completion.outcome();
                outcome.is_some()
            })?;
            outcome.expect("the wait ends with an outcome")
        })()
        .placed_here()
    }
}

impl ThreadContext {
    /// Waits until a buffer of [`ThreadOperation::put_owned`] of this context comes back, and returns it. It comes back also if the put
    /// fails, or a rank dies: the put's events tell of that.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if it was taken before, if another context or the world has lent it and it
    /// is not back, or if the world has ended; [`Error::InsideHandler`](crate::Error::InsideHandler);
    /// [`Error::MemoryLost`](crate::Error::MemoryLost).
    #[track_caller]
    pub fn wait_returned<B>(&self, lent: &Returned<B>) -> Result<B> {
        const DOING: &str = "waiting for a buffer";
        (|| -> Result<B> {
            let (stream, mut buffer) = (self.stream(), None);
            stream.wait_in_flight(DOING, || {
                buffer = lent.take_lent(DOING, stream)?;
                Ok(buffer.is_some())
            })?;
            Ok(buffer.expect("the wait ends with the buffer"))
        })()
        .placed_here()
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

    /// At the event that the target's program has handled it: of a message when its handler has run; else with the effect, since the
    /// program has no part in it.
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
    #[track_caller]
    pub fn put<T: PlainData>(self, array: &ThreadArray<'_, T>, rank: usize, start: usize, values: &[T]) -> Result<()> {
        const DOING: &str = "put";
        let stream = self.context.stream();
        array.range(stream, DOING, rank, start, values.len()).placed()?;
        let events = checked(self.events, stream.identity()).placed()?;
        self.context.put_slice(array, rank, start, values).placed()?;
        stream.track_put(rank, DOING, events);
        Ok(())
    }

    /// Writes all that `values` hold, a vector, a box or an `Arc`, at `rank`, from element `start`. The operation owns the buffer until
    /// the source event, and what it returns gives it back: [`ThreadContext::wait_returned`] waits for that. Over a network 256 KiB and more
    /// are not copied: the memory is registered until the network has read it. Else the bytes are copied, and the buffer is there on
    /// return. Waits while the network has no room; inside a handler it copies.
    ///
    /// # Errors
    /// As [`ThreadOperation::put`]. The buffer is dropped then.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// bellwether::threads(2, |world| {
    ///     let plate = world.alloc::<f64>(100_000)?;
    ///     let (context, array, other) = (world.context()?, plate.for_threads(), 1 - world.rank());
    ///     std::thread::scope(|scope| {
    ///         scope.spawn(move || -> bellwether::Result<()> {
    ///             let mut row = vec![1.5; 100_000];
    ///             for _ in 0..3 {
    ///                 let lent = context.operation().put_owned(&array, other, 0, row)?;
    ///                 // What needs no row runs here.
    ///                 row = context.wait_returned(&lent)?;
    ///                 row.iter_mut().for_each(|x| *x += 1.0);
    ///             }
    ///             context.flush(other)
    ///         }).join().expect("does not panic")
    ///     })?;
    ///     world.barrier()?;
    ///     assert_eq!(plate.load(99_999), 3.5);
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    /// A buffer that the caller has only borrowed cannot be lent, since the network may read it after the borrow has ended:
    /// ```compile_fail,E0597
    /// # use bellwether_runtime as bellwether;
    /// bellwether::threads(2, |world| {
    ///     let plate = world.alloc::<f64>(4)?;
    ///     let context = world.context()?;
    ///     let row = vec![1.5; 4];
    ///     let lent = context.operation().put_owned(&plate.for_threads(), 1, 0, row.as_slice())?;
    ///     context.wait_returned(&lent).map(drop)
    /// })?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn put_owned<T: PlainData, B>(
        self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        start: usize,
        values: B,
    ) -> Result<Returned<B>>
    where
        B: AsRef<[T]> + Send + 'static,
    {
        (|| -> Result<Returned<B>> {
            const DOING: &str = "put";
            let stream = self.context.stream();
            let (lender, returned) = Lender::new(values, Some(stream));
            let elements = lender.elements::<T>();
            let offset = array.range(stream, DOING, rank, start, elements.len())?;
            let mut events = checked(self.events, stream.identity())?;
            if stream.is_mapped(rank) {
                stream.put(DOING, rank, offset, bytemuck::cast_slice(elements))?;
                drop(lender);
            } else {
                let (from, len) = (elements.as_ptr().cast(), size_of_val(elements));
                let (to, hold, source) = (HeapRange { rank, offset, len }, Box::new(lender), &mut events.source);
                // SAFETY: the lender keeps the buffer where it is, and nobody else reaches it before the lender is dropped.
                unsafe { stream.post_put(DOING, to, from, hold, source) }?;
            }
            stream.track_put(rank, DOING, events);
            Ok(returned)
        })()
        .placed_here()
    }

    /// Writes elements `from` of this rank's part of `source` at `rank`, from element `start`. Over a network 256 KiB and more are not
    /// copied: if they are changed before the source event, bytes from before or after the change arrive.
    ///
    /// # Errors
    /// As [`ThreadOperation::put`], also for `source`.
    #[track_caller]
    pub fn put_from<T: PlainData>(
        self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        start: usize,
        source: &ThreadArray<'_, T>,
        from: Range<usize>,
    ) -> Result<()> {
        (|| -> Result<()> {
            const DOING: &str = "put";
            let stream = self.context.stream();
            let own = source.range(stream, DOING, stream.rank, from.start, from.len())?;
            let offset = array.range(stream, DOING, rank, start, from.len())?;
            let mut events = checked(self.events, stream.identity())?;
            stream.put_own(DOING, [rank, offset, own, from.len() * size_of::<T>()], &mut events.source)?;
            stream.track_put(rank, DOING, events);
            Ok(())
        })()
        .placed_here()
    }

    /// Reads elements of `rank`, from `start`, into elements `to` of this rank's part of `into`. They are there at the effect event.
    ///
    /// # Errors
    /// As [`ThreadContext::get_slice`]; as [`ThreadOperation::put`].
    #[track_caller]
    pub fn get_into<T: PlainData>(
        self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        start: usize,
        into: &ThreadArray<'_, T>,
        to: Range<usize>,
    ) -> Result<()> {
        (|| -> Result<()> {
            const DOING: &str = "get";
            let stream = self.context.stream();
            let own = into.range(stream, DOING, stream.rank, to.start, to.len())?;
            let offset = array.range(stream, DOING, rank, start, to.len())?;
            let Events { source, effect, handled } = checked(self.events, stream.identity())?;
            let all = [source, effect, handled].into_iter().flatten().collect();
            stream.get_into(DOING, [rank, offset, own, to.len() * size_of::<T>()], all)
        })()
        .placed_here()
    }

    /// Sends `payload` to a registered handler of `rank`. Blocks until there is room.
    ///
    /// # Errors
    /// As [`ThreadContext::send`]; as [`ThreadOperation::put`], but if the target was lost while this waited for room, the *handled* event may
    /// have happened, with that error.
    #[track_caller]
    pub fn send(mut self, rank: usize, handler: HandlerId, payload: &[u8]) -> Result<()> {
        let context = self.context;
        self.message(
            rank,
            || context.send(rank, handler, payload),
            |receipt| {
                let heading = context.table.handler_with_receipt(handler)?;
                context.send_message(rank, heading, &[&receipt.to_ne_bytes(), payload].concat())
            },
        )
        .placed_here()
    }

    /// Runs a closure that captures nothing at `rank`. `arguments` travel in serde's form. Blocks until there is room.
    ///
    /// # Errors
    /// As [`ThreadContext::invoke`]; as [`ThreadOperation::send`].
    #[track_caller]
    pub fn invoke<A, F>(mut self, rank: usize, arguments: A, function: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        let context = self.context;
        let arguments = &arguments;
        self.message(
            rank,
            || context.invoke_by(rank, arguments, function),
            |receipt| {
                let (heading, bytes) = closure_with_receipt(receipt, arguments, function)?;
                context.send_message(rank, heading, &bytes)
            },
        )
        .placed_here()
    }

    /// As [`ThreadOperation::send`], but does not wait. Without room the operation keeps its events, for another attempt; else they are
    /// gone with it, and what follows has those that are added to it then.
    ///
    /// # Errors
    /// As [`ThreadOperation::send`], and without room [`Error::WouldBlock`]: nothing was sent.
    #[track_caller]
    pub fn try_send(&mut self, rank: usize, handler: HandlerId, payload: &[u8]) -> Result<()> {
        let context = self.context;
        self.message(
            rank,
            || context.try_message(rank, context.heading(rank, handler)?, payload),
            |receipt| {
                let heading = context.table.handler_with_receipt(handler)?;
                context.try_message(rank, heading, &[&receipt.to_ne_bytes(), payload].concat())
            },
        )
        .placed_here()
    }

    /// As [`ThreadOperation::invoke`], but does not wait, as [`ThreadOperation::try_send`]. Borrows the arguments, so that they are there
    /// for another attempt.
    ///
    /// # Errors
    /// As [`ThreadOperation::invoke`], and without room [`Error::WouldBlock`]: nothing was sent.
    #[track_caller]
    pub fn try_invoke<A, F>(&mut self, rank: usize, arguments: &A, function: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        let context = self.context;
        self.message(
            rank,
            || {
                let (heading, bytes) = closure(arguments, function)?;
                context.try_message(rank, heading, &bytes)
            },
            |receipt| {
                let (heading, bytes) = closure_with_receipt(receipt, arguments, function)?;
                context.try_message(rank, heading, &bytes)
            },
        )
        .placed_here()
    }

    /// A message by `plain`, or, if somebody wants to know when it was handled, by `with_receipt`, which gets its number. Where that finds no
    /// room the operation has its events back.
    fn message(
        &mut self,
        rank: usize,
        plain: impl FnOnce() -> Result<()>,
        with_receipt: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        let stream = self.context.stream();
        stream.check_rank("sending a message", rank)?;
        let mut events = checked(std::mem::take(&mut self.events), stream.identity())?;
        let sent = if events.handled.is_empty() {
            plain()
        } else {
            // Open before it can come.
            let receipt = stream.open_receipt(rank, std::mem::take(&mut events.handled))?;
            with_receipt(receipt).inspect_err(|error| match error {
                Error::WouldBlock { .. } => events.handled = stream.close_receipt(rank, receipt),
                error => stream.refuse_receipt(rank, receipt, error),
            })
        };
        match sent {
            Ok(()) => stream.track_message(rank, events.source, events.effect),
            Err(error) => {
                if let Error::WouldBlock { .. } = error {
                    self.events = kept(events);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Does an atomic with `value` on element `index` of `rank`; any but [`AtomicOp::CompareSwap`]. The effect event says that the result
    /// holds the former value.
    ///
    /// # Errors
    /// As [`ThreadContext::fetch_add`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a compare-and-swap; as
    /// [`ThreadOperation::put`].
    #[track_caller]
    pub fn fetch<T: AtomicElement>(
        self,
        op: AtomicOp,
        array: &ThreadArray<'_, T>,
        rank: usize,
        index: usize,
        value: T,
    ) -> Result<Fetched<T>> {
        (|| -> Result<Fetched<T>> {
            check_one_value(op)?;
            self.change(op, array, rank, index, [value, T::zeroed()])
        })()
        .placed_here()
    }

    /// Stores `new` in element `index` of `rank` if it is `expected`; as [`ThreadOperation::fetch`].
    ///
    /// # Errors
    /// As [`ThreadOperation::fetch`].
    #[track_caller]
    pub fn compare_swap<T: AtomicElement>(
        self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        index: usize,
        expected: T,
        new: T,
    ) -> Result<Fetched<T>> {
        self.change(AtomicOp::CompareSwap, array, rank, index, [new, expected]).placed_here()
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
