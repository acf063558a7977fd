//! Contexts: what lets several threads of one rank communicate, each by itself.

use std::cell::RefCell;
use std::future::Future;
use std::hint::cold_path;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::{AtomicElement, PlainData, ThreadArray, ThreadBell, World};
use crate::bounds::OneAtATime;
use crate::engine::{Atomic, Change, Engine, Get, OpenStream, Outlet, Stream};
use crate::error::{Placed, Result};
use crate::memory::copy;
use crate::message::SealedTable;
use crate::transport::AtomicOp;

/// An independent stream of puts, gets, atomics and messages of one rank, for one thread at a time. Made by [`World::context`].
///
/// It may be sent to another thread; several threads of a rank have a context each. The operations that a context has in flight, flushes
/// and waits for are its own: the world and other contexts neither delay nor await them, except that over a network the messages of all
/// contexts of a rank to one peer share one window (64 messages, 512 KiB). Where memory is mapped an operation is a bounds check and a
/// store, load or atomic, without a lock, as by the world. Over a network a context has an interface of its own; over RDMA that is a
/// completion queue and, for each rank that it writes to, a queue pair, 8 MB of buffers and a thread that makes connections; over TCP a
/// listening socket, a thread, and a connection for each rank that it reaches. [`World::context`] tells how many contexts a rank can have
/// at a time.
///
/// Over a network an operation may need further progress after its call has returned. Each poll and each wait of the rank, by the
/// world or by any context, makes progress for the rank's other contexts too, so no wait depends on a context that its thread leaves
/// alone. Events of operations are done by the context's own calls, but for *handled* of messages.
///
/// Delivering messages, collectives, and waiting for bells are the world's: its thread runs the handlers of all messages that
/// arrive, also of answers to messages of contexts. Operations of a context need the target's progress in the same cases as the
/// world's own operations.
///
/// # Order and completion
/// A put returns when its source may be changed. It is in effect at the target when [`ThreadContext::flush`] returns, or for a
/// thread that sees a bell that the same context has rung after it. [`World::fence`] and [`World::barrier`] complete the puts of the
/// world, not those of contexts: flush a context before the barrier that tells others of its puts. Where memory is freed or an array
/// changes its phase, the world's thread waits for all operations that contexts have in flight, so none of them arrives later.
///
/// Puts, rings and messages wait while the network has no room. Their `try_` forms do not.
///
/// # Failures
/// The death of a rank ends the waits of every context, with [`Error::PeerLost`](crate::Error::PeerLost).
///
/// Dropping a context waits until its puts are in effect, or cannot be any more. If futures of the context live, dropping the
/// last of them waits instead. A drop in a handler does not wait: the world's thread waits when a phase or an allocation ends.
///
/// A rank that has contexts is not found hopeless in a wait: a thread of it may end that.
///
/// # On a simulated network
/// Ranks take turns there, and only a rank's own thread knows when it has to wait for its next one. So a context stays on the
/// thread of its world; elsewhere calls are [`Error::InvalidArgument`](crate::Error::InvalidArgument), except while the world's thread
/// lets time pass for others, as in `Pool::install`, and in `World::serve_while` where that runs its work on another thread.
///
/// # Examples
/// Two threads of each rank write to the next rank at the same time.
/// ```
/// # use bellwether_runtime as bellwether;
/// bellwether::threads(3, |world| {
///     let numbers = world.alloc::<u64>(2)?;
///     let next = (world.rank() + 1) % world.size();
///     let contexts = [world.context()?, world.context()?];
///     let array = numbers.for_threads();
///     std::thread::scope(|scope| {
///         let threads = contexts.into_iter().enumerate().map(|(i, context)| {
///             scope.spawn(move || {
///                 context.put(&array, next, i, 10 + i as u64)?;
///                 context.flush(next)
///             })
///         });
///         let threads: Vec<_> = threads.collect();
///         threads.into_iter().try_for_each(|thread| thread.join().expect("does not panic"))
///     })?;
///     world.barrier()?;
///     assert_eq!([numbers.load(0), numbers.load(1)], [10, 11]);
///     world.barrier()
/// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
#[derive(Debug)]
pub struct ThreadContext {
    stream: Arc<OpenStream>,
    /// The part that sends messages.
    pub(super) outlet: OneAtATime<RefCell<Outlet>, ThreadContext>,
    pub(super) table: SealedTable,
}

impl World {
    /// Makes a context. Local: other ranks need not know of it, and may have other numbers of them. It closes the registration of
    /// handlers, as the first message of this rank does.
    ///
    /// # How many
    /// Any number may be made and dropped one after the other. At a time a rank can have:
    ///
    /// | ranks reach each other by | contexts of a rank at a time |
    /// | --- | --- |
    /// | mapped memory, or a simulated network | as many as memory holds. A receiver of messages has 63 lanes for the contexts of all ranks; contexts that send there beyond these share one more, which takes a lock |
    /// | RDMA | 127, since a rank has 128 interfaces of a network, and one is the world's own |
    /// | TCP | 127 too, within the limit of open files of the process (`ulimit -n`): each takes five, and one for each rank that it reaches |
    ///
    /// # Errors
    /// [`Error::NoContext`](crate::Error::NoContext) if that many live; [`Error::OutOfMemory`](crate::Error::OutOfMemory);
    /// [`Error::Os`](crate::Error::Os) if the system refuses a resource that a further interface needs, for example beyond the
    /// limit of open files; [`Error::Forked`](crate::Error::Forked).
    #[track_caller]
    pub fn context(&self) -> Result<ThreadContext> {
        (|| -> Result<ThreadContext> {
            let stream = self.engine().open_context()?;
            let outlet = OneAtATime::new(RefCell::new(self.engine().open_outlet()));
            Ok(ThreadContext { stream, outlet, table: self.messages().sealed_table() })
        })()
        .placed_here()
    }
}

impl ThreadContext {
    /// The rank that it is a context of.
    pub fn rank(&self) -> usize {
        self.stream.rank
    }

    /// Ranks of its world.
    pub fn size(&self) -> usize {
        self.stream.size
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn open_stream(&self) -> &Arc<OpenStream> {
        &self.stream
    }

    /// For code that keeps contexts: notes whether a thread uses this one. A standstill is found only while no thread uses a context. A
    /// new context counts as used, and so does a dropped one.
    #[doc(hidden)]
    pub fn note_used(&self, used: bool) {
        self.stream.note_used(used);
    }

    /// Makes progress without waiting; tells how much was done. Nothing needs it to be called: every wait of the rank makes
    /// progress. Where memory is mapped there is nothing to do.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    #[track_caller]
    pub fn poll(&self) -> Result<usize> {
        self.stream.poll("polling").placed_here()
    }

    /// Writes one element at `rank`.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`](crate::Error::RankOutOfRange), [`Error::OutOfBounds`](crate::Error::OutOfBounds);
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the array is of another world or rank. Over a network
    /// [`Error::PeerLost`](crate::Error::PeerLost), and [`Error::InsideHandler`](crate::Error::InsideHandler) in a handler, if it has
    /// to wait for room.
    #[inline(always)]
    #[track_caller]
    pub fn put<T: PlainData>(&self, array: &ThreadArray<'_, T>, rank: usize, index: usize, value: T) -> Result<()> {
        match array.mapped(rank, index, 1) {
            Some(at) => {
                // SAFETY: one element of mapped memory, only touched through `copy` and atomics.
                unsafe { copy::store(at, value) };
                Ok(())
            }
            None => {
                cold_path();
                self.put_apart("put", array, rank, index, &[value])
            }
        }
    }

    /// Reads one element of `rank`.
    ///
    /// # Errors
    /// As [`ThreadContext::put`].
    #[inline(always)]
    #[track_caller]
    pub fn get<T: PlainData>(&self, array: &ThreadArray<'_, T>, rank: usize, index: usize) -> Result<T> {
        match array.mapped(rank, index, 1) {
            // SAFETY: as in `put`.
            Some(at) => Ok(unsafe { copy::load(at) }),
            None => {
                cold_path();
                let mut value = [T::zeroed()];
                self.get_apart("get", array, rank, index, &mut value)?;
                Ok(value[0])
            }
        }
    }

    /// Writes `values` at `rank`, from element `start`. Over a network 256 KiB and more are not copied: their memory is registered, and this
    /// waits until the network has acknowledged the put. A thread that has more to do meanwhile splits the slice into shorter ones, which
    /// are copied, and whose puts are in flight on return.
    ///
    /// # Errors
    /// As [`ThreadContext::put`]; if the range is wrong nothing was written.
    #[inline]
    #[track_caller]
    pub fn put_slice<T: PlainData>(
        &self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        start: usize,
        values: &[T],
    ) -> Result<()> {
        match array.mapped(rank, start, values.len()) {
            Some(at) => {
                // SAFETY: so many elements of mapped memory; `values` is private memory, so nothing overlaps.
                unsafe { copy::copy(at.cast(), values.as_ptr().cast(), size_of_val(values)) };
                Ok(())
            }
            None => self.put_apart("put_slice", array, rank, start, values),
        }
    }

    /// Reads elements of `rank`, from `start`, into `values`.
    ///
    /// # Errors
    /// As [`ThreadContext::put`]; if the range is wrong `values` is as before.
    #[inline]
    #[track_caller]
    pub fn get_slice<T: PlainData>(
        &self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        start: usize,
        values: &mut [T],
    ) -> Result<()> {
        match array.mapped(rank, start, values.len()) {
            Some(at) => {
                // SAFETY: as in `put_slice`.
                unsafe { copy::copy(values.as_mut_ptr().cast(), at.cast(), size_of_val(values)) };
                Ok(())
            }
            None => self.get_apart("get_slice", array, rank, start, values),
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn put_apart<T: PlainData>(
        &self,
        operation: &'static str,
        array: &ThreadArray<'_, T>,
        rank: usize,
        start: usize,
        values: &[T],
    ) -> Result<()> {
        (|| -> Result<()> {
            let offset = array.range(&self.stream, operation, rank, start, values.len())?;
            self.stream.put(operation, rank, offset, bytemuck::cast_slice(values))
        })()
        .placed_here()
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn get_apart<T: PlainData>(
        &self,
        operation: &'static str,
        array: &ThreadArray<'_, T>,
        rank: usize,
        start: usize,
        values: &mut [T],
    ) -> Result<()> {
        (|| -> Result<()> {
            let offset = array.range(&self.stream, operation, rank, start, values.len())?;
            self.stream.get(operation, rank, offset, bytemuck::cast_slice_mut(values))
        })()
        .placed_here()
    }

    /// Adds one to the count of `bell` at `rank`. A rank that sees the ring sees everything that this context has put there before.
    ///
    /// # Errors
    /// As [`ThreadContext::put`].
    #[inline]
    #[track_caller]
    pub fn ring(&self, bell: &ThreadBell<'_>, rank: usize) -> Result<()> {
        bell.ring(&self.stream, "ring", rank).placed_here()
    }

    /// Writes one element at `rank`, then rings `bell` there.
    ///
    /// # Errors
    /// As [`ThreadContext::put`].
    #[inline]
    #[track_caller]
    pub fn put_bell<T: PlainData>(
        &self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        index: usize,
        value: T,
        bell: &ThreadBell<'_>,
    ) -> Result<()> {
        self.put(array, rank, index, value).placed()?;
        self.ring(bell, rank)
    }

    /// Writes `values` at `rank`, from element `start`, then rings `bell` there.
    ///
    /// # Errors
    /// As [`ThreadContext::put_slice`]; then the bell is not rung.
    #[inline]
    #[track_caller]
    pub fn put_slice_bell<T: PlainData>(
        &self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        start: usize,
        values: &[T],
        bell: &ThreadBell<'_>,
    ) -> Result<()> {
        self.put_slice(array, rank, start, values).placed()?;
        self.ring(bell, rank)
    }

    /// The future form of [`ThreadContext::put_slice`]: done when the elements are in effect at `rank`. `values` may be changed when
    /// this returns.
    #[track_caller]
    pub fn put_slice_async<'a, T: PlainData>(
        &self,
        array: &ThreadArray<'a, T>,
        rank: usize,
        start: usize,
        values: &[T],
    ) -> ThreadPosted<'a, ()> {
        let put = self.put_slice(array, rank, start, values);
        self.posted("put_slice_async", put.map(|()| Stage::Put(rank, || ())))
    }

    /// The future form of [`ThreadContext::get_slice`], of `count` elements.
    #[track_caller]
    pub fn get_slice_async<'a, T: PlainData>(
        &self,
        array: &ThreadArray<'a, T>,
        rank: usize,
        start: usize,
        count: usize,
    ) -> ThreadPosted<'a, Vec<T>> {
        const DOING: &str = "get_slice_async";
        let begin = || {
            let offset = array.range(&self.stream, DOING, rank, start, count)?;
            if self.stream.is_mapped(rank) {
                let mut values = vec![T::zeroed(); count];
                self.get_slice(array, rank, start, &mut values)?;
                return Ok(Stage::Done(Ok(values)));
            }
            let bytes = vec![0; count * size_of::<T>()];
            let convert = |bytes: Vec<u8>, count| {
                let mut values = vec![T::zeroed(); count];
                bytemuck::cast_slice_mut(&mut values).copy_from_slice(&bytes);
                values
            };
            Ok(Stage::Get(self.stream.begin_get(rank, offset, bytes.len()), bytes, count, convert))
        };
        self.posted(DOING, begin())
    }

    #[track_caller]
    pub(super) fn posted<'a, R>(&self, doing: &'static str, stage: Result<Stage<R>>) -> ThreadPosted<'a, R> {
        let stage = stage.unwrap_or_else(|error| Stage::Done(Err(error)));
        let (stream, place) = (Arc::clone(&self.stream), Location::caller());
        let stage = match stage {
            // The error of the inner call names a line of the library.
            Stage::Done(outcome) => Stage::Done(outcome.map_err(|error| error.only_at(place))),
            stage => stage,
        };
        let mut posted = ThreadPosted { stream, doing, place, stage, array: PhantomData };
        // On its way now, if there is room.
        posted.try_advance();
        posted
    }

    /// Waits until all that this context has put and rung at `rank` is in effect there.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`](crate::Error::RankOutOfRange), [`Error::PeerLost`](crate::Error::PeerLost),
    /// [`Error::InsideHandler`](crate::Error::InsideHandler).
    #[track_caller]
    pub fn flush(&self, rank: usize) -> Result<()> {
        (|| -> Result<()> {
            self.stream.check_rank("flush", rank)?;
            self.stream.flush("flush", rank)
        })()
        .placed_here()
    }

    /// Waits until nothing of this context is in flight: all that it has put and rung is in effect everywhere, and its gets and
    /// atomics are answered, also those whose future was dropped.
    ///
    /// # Errors
    /// As [`ThreadContext::flush`].
    #[track_caller]
    pub fn flush_all(&self) -> Result<()> {
        self.stream.flush_all("flush_all").placed_here()
    }

    /// Orders this context's puts at each rank: those before are visible there before those after. It does not wait.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    #[track_caller]
    pub fn fence(&self) -> Result<()> {
        self.stream.order("fence").placed_here()
    }
}

macro_rules! operations {
    ($($(#[$doc:meta])* $operation:ident, $op:ident, $future:ident;)*) => {
        /// Atomic operations, as [those of arrays](crate::Symmetric::fetch_add). All ranks' and contexts' operations on one element are
        /// atomic to each other.
        impl ThreadContext {
            $($(#[$doc])*
            ///
            /// # Errors
            /// As [`ThreadContext::put`].
            #[inline(always)]
            #[track_caller]
            pub fn $operation<T: AtomicElement>(
                &self,
                array: &ThreadArray<'_, T>,
                rank: usize,
                index: usize,
                value: T,
            ) -> Result<T> {
                match array.element(rank, index) {
                    // SAFETY: an element in mapped memory, only touched atomically.
                    Some(at) => Ok(unsafe { T::$operation(at, value) }),
                    None => self.atomic_apart(stringify!($operation), AtomicOp::$op, array, rank, index, value, value),
                }
            }

            #[doc = concat!("The future form of [`ThreadContext::", stringify!($operation), "`].")]
            #[track_caller]
            pub fn $future<'a, T: AtomicElement>(
                &self,
                array: &ThreadArray<'a, T>,
                rank: usize,
                index: usize,
                value: T,
            ) -> ThreadPosted<'a, T> {
                match array.element(rank, index) {
                    // SAFETY: as above.
                    Some(at) => self.posted(stringify!($future), Ok(Stage::Done(Ok(unsafe { T::$operation(at, value) })))),
                    None => self.post_atomic(stringify!($future), AtomicOp::$op, array, rank, index, value, value),
                }
            })*
        }
    };
}

operations! {
    /// Adds `value` to an element of `rank`; returns what it was before.
    fetch_add, Add, fetch_add_async;
    /// Ands `value` into an element of `rank`; returns what it was before.
    fetch_and, And, fetch_and_async;
    /// Ors `value` into an element of `rank`; returns what it was before.
    fetch_or, Or, fetch_or_async;
    /// Xors `value` into an element of `rank`; returns what it was before.
    fetch_xor, Xor, fetch_xor_async;
    /// Stores `value` in an element of `rank`; returns what it was before.
    swap, Swap, swap_async;
}

impl ThreadContext {
    /// Stores `new` if the element is `expected`; returns what it was before.
    ///
    /// # Errors
    /// As [`ThreadContext::put`].
    #[inline(always)]
    #[track_caller]
    pub fn compare_swap<T: AtomicElement>(
        &self,
        array: &ThreadArray<'_, T>,
        rank: usize,
        index: usize,
        expected: T,
        new: T,
    ) -> Result<T> {
        match array.element(rank, index) {
            // SAFETY: an element in mapped memory, only touched atomically.
            Some(at) => Ok(unsafe { T::compare_swap(at, expected, new) }),
            None => self.atomic_apart("compare_swap", AtomicOp::CompareSwap, array, rank, index, new, expected),
        }
    }

    /// The future form of [`ThreadContext::compare_swap`].
    #[track_caller]
    pub fn compare_swap_async<'a, T: AtomicElement>(
        &self,
        array: &ThreadArray<'a, T>,
        rank: usize,
        index: usize,
        expected: T,
        new: T,
    ) -> ThreadPosted<'a, T> {
        const DOING: &str = "compare_swap_async";
        match array.element(rank, index) {
            // SAFETY: as above.
            Some(at) => self.posted(DOING, Ok(Stage::Done(Ok(unsafe { T::compare_swap(at, expected, new) })))),
            None => self.post_atomic(DOING, AtomicOp::CompareSwap, array, rank, index, new, expected),
        }
    }

    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "what an atomic takes")]
    #[track_caller]
    fn atomic_apart<T: AtomicElement>(
        &self,
        operation: &'static str,
        op: AtomicOp,
        array: &ThreadArray<'_, T>,
        rank: usize,
        index: usize,
        value: T,
        compare: T,
    ) -> Result<T> {
        (|| -> Result<T> {
            let offset = array.range(&self.stream, operation, rank, index, 1)?;
            let change = Change { op, width: T::WIDTH, value: value.widen(), compare: compare.widen() };
            self.stream.atomic(operation, rank, offset, change).map(T::narrow)
        })()
        .placed_here()
    }

    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "what an atomic takes")]
    #[track_caller]
    fn post_atomic<'a, T: AtomicElement>(
        &self,
        doing: &'static str,
        op: AtomicOp,
        array: &ThreadArray<'a, T>,
        rank: usize,
        index: usize,
        value: T,
        compare: T,
    ) -> ThreadPosted<'a, T> {
        let begin = || {
            let offset = array.range(&self.stream, doing, rank, index, 1)?;
            let change = Change { op, width: T::WIDTH, value: value.widen(), compare: compare.widen() };
            let atomic = self.stream.post_atomic(doing, rank, offset, change)?;
            Ok(Stage::Atomic(atomic, T::narrow as fn(u64) -> T))
        };
        self.posted(doing, begin())
    }
}

/// An operation of a [`ThreadContext`] that is in flight: a future, or block in [`wait`](Self::wait).
///
/// It was posted when it was made. Where memory is mapped it is done at once. It owns its buffers, so dropping it is safe at any
/// time: a get is forgotten then, a put or an atomic still happens.
///
/// Any executor can poll it. A poll makes progress for its context alone. With a [`ContextWakeUp`](super::ContextWakeUp) of the context the
/// future waits until [`ContextWakeUp::turn`](super::ContextWakeUp::turn) wakes it. With a [`Reactor`](super::Reactor) of the world on this
/// thread it is polled each millisecond. Without either it asks to be polled again at once.
#[must_use = "what it gives, and its errors, come from `wait` or `.await`"]
#[derive(Debug)]
pub struct ThreadPosted<'a, R> {
    stream: Arc<OpenStream>,
    doing: &'static str,
    /// Where the program made it.
    place: &'static Location<'static>,
    stage: Stage<R>,
    array: PhantomData<&'a ()>,
}

#[derive(Debug)]
pub(super) enum Stage<R> {
    Done(Result<R>),
    /// In flight to this rank.
    Put(usize, fn() -> R),
    /// The bytes that have come, and what becomes of so many elements.
    Get(Get, Vec<u8>, usize, fn(Vec<u8>, usize) -> R),
    Atomic(Atomic, fn(u64) -> R),
    Taken,
}

impl<R> ThreadPosted<'_, R> {
    /// Whether it is done, so that [`ThreadPosted::wait`] does not wait. Makes progress.
    pub fn is_done(&mut self) -> bool {
        let done = self.try_advance();
        if !done {
            self.stream.idle_poll();
        }
        done
    }

    fn try_advance(&mut self) -> bool {
        if matches!(self.stage, Stage::Done(_)) {
            return true;
        }
        let outcome = match self.advance() {
            Ok(None) => return false,
            Ok(Some(value)) => Ok(value),
            Err(error) => Err(error.at(self.place)),
        };
        self.stage = Stage::Done(outcome);
        true
    }

    /// Goes on as far as it can, and gives the result when that was all.
    fn advance(&mut self) -> Result<Option<R>> {
        let (stream, doing) = (&self.stream, self.doing);
        match &mut self.stage {
            Stage::Put(rank, convert) => Ok(stream.is_flushed(doing, *rank)?.then(*convert)),
            Stage::Get(get, bytes, count, convert) => {
                let done = stream.go_on(doing, get, bytes)?;
                Ok(done.then(|| convert(std::mem::take(bytes), *count)))
            }
            Stage::Atomic(atomic, convert) => Ok(stream.found(doing, atomic)?.map(*convert)),
            Stage::Done(_) | Stage::Taken => panic!("a future was polled after it was ready"),
        }
    }

    /// Waits until it is done.
    ///
    /// # Errors
    /// What was wrong with its arguments; over a network [`Error::PeerLost`](crate::Error::PeerLost),
    /// [`Error::InsideHandler`](crate::Error::InsideHandler).
    #[track_caller]
    pub fn wait(mut self) -> Result<R> {
        let stream = Arc::clone(&self.stream);
        if !self.try_advance() {
            stream.wait_for(self.doing, || self.try_advance()).map_err(|error| error.at(self.place))?;
        }
        self.take()
    }

    fn take(&mut self) -> Result<R> {
        match std::mem::replace(&mut self.stage, Stage::Taken) {
            Stage::Done(outcome) => outcome,
            _ => panic!("a future was polled after it was ready"),
        }
    }
}

// Nothing in it is pinned.
impl<R> Unpin for ThreadPosted<'_, R> {}

impl<R> Future for ThreadPosted<'_, R> {
    type Output = Result<R>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<R>> {
        let stream = Arc::clone(&self.stream);
        if let Some(found) = stream.poll_or_sleep(context.waker(), || self.try_advance().then_some(())) {
            return found.map_or(Poll::Pending, |()| Poll::Ready(self.take()));
        }
        // A driver of the world polls contexts each millisecond.
        let sleeps = !self.is_done() && Engine::has_drivers() && Engine::sleep_on_thread(context);
        if self.try_advance() {
            return Poll::Ready(self.take());
        }
        if !sleeps {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
