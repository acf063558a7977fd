//! Operations with events: puts, gets, atomics and messages with actions for when they are complete.

mod addresses;
pub(super) mod at_once;
mod segments;

use std::future::Future;
use std::ops::Range;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll};

use bytemuck::Pod;
use serde::{Serialize, de::DeserializeOwned};

use super::returned::{Lender, Returned};
use super::{AtomicElement, Bell, PlainData, Symmetric, ThreadBell, World};
use crate::engine::{self, Atomic, Change, Events, Found, Group, HeapRange, Identity, Member, Ready, Ring, Step};
use crate::error::{Error, Placed, Result};
use crate::memory::copy;
use crate::message::{Context, HandlerId, LandingId};
use crate::transport::AtomicOp;

/// The action for an event of an [`Operation`]: what is done when the event happens. Made from a reference to a [`Counter`], a
/// [`Bell`] or a [`Completion`], by [`Event::ring`], or from a function by [`Event::call`].
#[derive(Debug)]
pub struct Event {
    kind: engine::Event,
    /// Of a bell: identifies the rank and world that it belongs to.
    of: Option<Identity>,
}

impl Event {
    /// Calls `function` with the outcome, in a call of this rank that makes progress or before the operation returns. Functions and
    /// [`Completion`]s get the error of an operation; counters and bells do not. If a function panics, the actions that are due
    /// after it run at the next poll. A function whose world or context ends before its operation is dropped and not called.
    ///
    /// For an operation of the world it never runs inside a handler. With a [`ThreadContext`](super::ThreadContext) it runs on the
    /// thread that makes progress for the context, its own or the world's, and inside a handler if that handler uses the context.
    ///
    /// The function may start operations. While its rank is in a collective call it can make no other one: that is
    /// [`Error::InvalidArgument`].
    pub fn call(function: impl FnOnce(Result<()>) + Send + 'static) -> Event {
        Event { kind: engine::Event::Call(Box::new(function)), of: None }
    }

    /// Rings `bell` at `rank`, which is this rank or another one. If this rank has dropped the bell by then, nothing is rung.
    ///
    /// # Panics
    /// If the world has no such rank.
    #[track_caller]
    pub fn ring(bell: &Bell, rank: usize) -> Event {
        assert!(rank < bell.engine().size, "a bell is rung at rank {rank} of {}", bell.engine().size);
        let ring = Ring { rank, words: bell.words.for_contexts(bell.engine()), claim: bell.claim() };
        Event { kind: engine::Event::Ring(ring), of: Some(bell.engine().identity()) }
    }

    /// Gives a function or a future the outcome of something that is not an operation of a world. Does nothing for counters and bells.
    pub(crate) fn tell(self, outcome: Result<()>) {
        if let engine::Event::Call(_) | engine::Event::End(_) = &self.kind {
            // A function and a future take any outcome, so this cannot fail.
            let _ = self.kind.happen(outcome, |_| Ok(()));
        }
    }

    /// The engine's form of the event, if it may be used for an operation of this rank.
    pub(super) fn check(self, identity: Identity) -> Result<engine::Event> {
        match self.of {
            Some(of) if of != identity => {
                let why = "the bell of an event is of another world, or of another rank".into();
                Err(Error::InvalidArgument { operation: "an operation with events", why })
            }
            _ => Ok(self.kind),
        }
    }
}

/// Counts the operations at which the event has happened without an error.
impl From<&Counter> for Event {
    fn from(counter: &Counter) -> Event {
        Event { kind: engine::Event::Count(Arc::clone(&counter.count)), of: None }
    }
}

/// Rings the bell at this rank.
impl From<&Bell> for Event {
    fn from(bell: &Bell) -> Event {
        Event::ring(bell, bell.engine().rank)
    }
}

/// Rings the bell at this rank.
impl From<&ThreadBell<'_>> for Event {
    fn from(bell: &ThreadBell<'_>) -> Event {
        let (ring, of) = bell.for_event();
        Event { kind: engine::Event::Ring(ring), of: Some(of) }
    }
}

/// Makes the future wait for this operation too.
impl From<&Completion> for Event {
    fn from(completion: &Completion) -> Event {
        Event { kind: completion.event(), of: None }
    }
}

/// A counter in this process that events add to, those of one operation or of many. Clones are the same counter.
///
/// [`World::wait_counter`] waits until it has a value. Any thread may read it.
#[derive(Debug, Clone, Default)]
pub struct Counter {
    count: Arc<AtomicU64>,
}

impl Counter {
    /// A counter of 0.
    pub fn new() -> Counter {
        Counter::default()
    }

    /// Adds to it, as events do.
    pub fn add(&self, more: u64) {
        // Pairs with the Acquire load in `value`.
        self.count.fetch_add(more, Ordering::Release);
    }

    /// How many events it has counted. Makes no progress. A caller that sees an effect counted also sees the data of that get
    /// or atomic.
    pub fn value(&self) -> u64 {
        // Pairs with the Release of `Event::happen`.
        self.count.load(Ordering::Acquire)
    }
}

/// A future of operations: ready when the event has happened for every operation that it was given to, with the first of their
/// errors. If it was given to none, it is ready at once. If the call of an operation failed, or was never made, or if its world or its
/// context ended before it, that is an error too: [`Error::InvalidArgument`], or the call's own for a message with a *handled* event.
///
/// Await it in [`World::block_on`] or in an executor on the thread of its world, or wait by [`World::wait_completion`]. In an executor each
/// poll makes progress for the worlds of the thread, unless a [`Reactor`](super::Reactor) makes it. Operations of a context end in calls of
/// that context: wait by [`ThreadContext::wait_completion`](super::ThreadContext::wait_completion). Dropping it cancels nothing.
/// Its errors name the place where it was made.
#[derive(Debug)]
pub struct Completion {
    group: Arc<Group>,
    /// Where the program made it.
    place: &'static Location<'static>,
}

impl Default for Completion {
    #[track_caller]
    fn default() -> Completion {
        Completion::new()
    }
}

impl Completion {
    /// A future that was given to no operation so far.
    #[track_caller]
    pub fn new() -> Completion {
        Completion { group: Arc::default(), place: Location::caller() }
    }

    /// The engine's form of its event.
    pub(super) fn event(&self) -> engine::Event {
        engine::Event::End(Member::new(&self.group))
    }

    /// The outcome, if all operations have ended. An error is returned once.
    pub fn outcome(&self) -> Option<Result<()>> {
        Some(self.group.outcome()?.map_err(|error| error.at(self.place)))
    }
}

impl Future for Completion {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Result<()>> {
        if let Some(outcome) = self.outcome() {
            return Poll::Ready(outcome);
        }
        if !engine::Engine::has_drivers() {
            engine::Engine::turn_thread();
            return match self.outcome() {
                Some(outcome) => Poll::Ready(outcome),
                None => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            };
        }
        // An operation may also end by a context, in another thread.
        self.group.wake_at_end(context.waker());
        let sleeps = engine::Engine::sleep_on_thread(context);
        match self.outcome() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                if !sleeps {
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }
}

impl Ready for Completion {
    fn is_ready(&mut self) -> bool {
        self.group.has_ended()
    }

    /// Its operations may be of several worlds and contexts.
    fn driver(&self) -> Option<*const ()> {
        None
    }
}

/// The result of an atomic of an [`Operation`], once it is here.
#[derive(Debug)]
pub struct Fetched<T> {
    pub(super) found: Arc<Found>,
    pub(super) narrow: fn(u64) -> T,
}

impl<T> Fetched<T> {
    /// The element's former value, if the atomic is in effect and its result is here. Makes no progress.
    pub fn value(&self) -> Option<T> {
        self.found.get().map(self.narrow)
    }
}

/// Builds a put, get, atomic or message with actions for its events. Made by [`World::operation`]; the last call (`put`,
/// `get_into`, `fetch`, `send` and so on) starts the operation.
///
/// # Events
/// Each event can have no action, which costs nothing, or any number of them: counters, bells, functions and futures. To wait
/// for a group of operations, give the same counter or future to each operation.
///
/// | event | of a put | of a get | of an atomic | of a message |
/// | --- | --- | --- | --- | --- |
/// | [source](Operation::source) | the source may be changed | – (with effect) | at once | the payload may be changed |
/// | [effect](Operation::effect) | it is visible at the target | the elements are here | its result is here | it is in the target's memory, or the network has delivered it to the target |
/// | [handled](Operation::handled) | with effect | with effect | with effect | its handler has run |
///
/// Of a large message ([`Operation::send_large`]) effect and handled happen together, when its data has landed and the second function of
/// its handler has run. So does source, except that data which travels with its header is copied before the call returns.
///
/// On mapped memory source and effect happen before the call returns, except that the effect of a message comes later if the
/// message was queued. Over a network the source event of `put`, `send`, `invoke` and of atomics happens before the call
/// returns too, since these copy; the source event of `put_from` and of a long `put_owned` and all effect events happen when the network has acknowledged
/// the operation. Over verbs the device at the target acknowledges, without progress of the target's program. Where a network
/// has no puts, gets and atomics of its own (`bellwether info`), and on a simulated network without such devices, the target
/// has to make progress. Handlers always need the target's progress.
///
/// This rank's actions run in a call that makes progress: [`World::poll`], and every wait. If an operation fails because its
/// target died, functions and futures get the error; for counters and bells the next [`World::poll`] returns it.
///
/// # Buffers
/// `put`, `send` and `invoke` copy data that is not delivered at once, so they borrow their slices only during the call. `put_from` and `get_into`
/// use this rank's part of an array until the event, `put_owned` owns its buffer, and atomics a cell of their own ([`Fetched`]). So no memory of
/// the caller is in flight, and forgetting any of these values is safe.
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// use bellwether::{Completion, Counter, Event};
/// bellwether::threads(2, |world| {
///     let (numbers, bell) = (world.alloc::<u64>(4)?, world.bell()?);
///     let other = 1 - world.rank();
///     // A group of puts, by a counter.
///     let arrived = Counter::new();
///     for i in 0..4 {
///         world.operation().effect(&arrived).put(&numbers, other, i, &[i as u64])?;
///     }
///     world.wait_counter(&arrived, 4)?;
///     // A message: its handler's end rings a bell here, and ends a future.
///     let done = Completion::new();
///     world.operation().handled(&bell).handled(&done).invoke(other, 5u64, |_, x| assert_eq!(x, 5))?;
///     bell.wait(1)?;
///     world.block_on(done)?;
///     world.barrier()
/// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
#[must_use = "nothing is done before `put`, `get_into`, `fetch`, `send` or `invoke`"]
#[derive(Debug)]
pub struct Operation<'w> {
    world: &'w World,
    source: Vec<Event>,
    effect: Vec<Event>,
    handled: Vec<Event>,
}

/// The events of an operation, checked.
pub(super) fn checked(lists: [Vec<Event>; 3], identity: Identity) -> Result<Events> {
    let check = |list: Vec<Event>| list.into_iter().map(|event| event.check(identity)).collect::<Result<Vec<_>>>();
    let [source, effect, handled] = lists.map(check);
    Ok(Events { source: source?, effect: effect?, handled: handled? })
}

impl World {
    /// An operation with events; see [`Operation`].
    pub fn operation(&self) -> Operation<'_> {
        Operation { world: self, source: Vec::new(), effect: Vec::new(), handled: Vec::new() }
    }

    /// Blocks until `counter` has counted at least `target` events, and returns its value. Delivers messages meanwhile.
    ///
    /// # Errors
    /// As [`World::wait_for_peers`]; also the error of an operation that the counter was to count.
    #[track_caller]
    pub fn wait_counter(&self, counter: &Counter, target: u64) -> Result<u64> {
        let ready = || counter.value() >= target;
        self.engine().at(|| self.engine().wait_until("waiting for a counter", None, ready))?;
        Ok(counter.value())
    }

    /// Blocks until all operations of a future have ended. Delivers messages meanwhile.
    ///
    /// # Errors
    /// The first error of these operations; as [`World::wait_for_peers`].
    #[track_caller]
    pub fn wait_completion(&self, completion: &Completion) -> Result<()> {
        let mut outcome = None;
        let ready = || {
            outcome = completion.outcome();
            outcome.is_some()
        };
        self.engine().at(|| self.engine().wait_until("waiting for operations", None, ready))?;
        outcome.expect("the wait ends with an outcome")
    }
}

impl Operation<'_> {
    /// Adds an action for the source event: the source may be changed.
    pub fn source(mut self, event: impl Into<Event>) -> Self {
        self.source.push(event.into());
        self
    }

    /// Adds an action for the effect event: the operation is in effect.
    pub fn effect(mut self, event: impl Into<Event>) -> Self {
        self.effect.push(event.into());
        self
    }

    /// Adds an action for the event that the target's program has handled the operation.
    pub fn handled(mut self, event: impl Into<Event>) -> Self {
        self.handled.push(event.into());
        self
    }

    fn events(self, identity: Identity) -> Result<Events> {
        checked([self.source, self.effect, self.handled], identity)
    }

    /// Writes `values` at `rank`, from element `start`.
    ///
    /// # Errors
    /// As [`Symmetric::put_slice`]; [`Error::InvalidArgument`] if the array or a bell is of another world. Then no event happens, and a
    /// [`Completion`] that was given to it gets an error.
    #[track_caller]
    pub fn put<T: PlainData>(self, array: &Symmetric<T>, rank: usize, start: usize, values: &[T]) -> Result<()> {
        let engine = self.world.engine();
        array.check_of(engine).placed()?;
        let events = self.events(engine.identity()).placed()?;
        array.put_slice(rank, start, values).placed()?;
        engine.track_put(rank, "put", events);
        Ok(())
    }

    /// Writes all that `values` hold, a vector, a box or an `Arc`, at `rank`, from element `start`. The operation owns the buffer until
    /// the source event, and the future that it returns gives it back. Over a network 256 KiB and more are not copied: the memory is
    /// registered until the network has read it. Else the bytes are copied, and the buffer is there on return. Waits while the network
    /// has no room; inside a handler it copies.
    ///
    /// # Errors
    /// As [`Operation::put`]. The buffer is dropped then.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// bellwether::threads(2, |world| {
    ///     let plate = world.alloc::<f64>(100_000)?;
    ///     let mut row = vec![1.5; 100_000];
    ///     for _ in 0..3 {
    ///         let lent = world.operation().put_owned(&plate, 1 - world.rank(), 0, row)?;
    ///         // What needs no row runs here.
    ///         row = world.block_on(lent)?;
    ///         row.iter_mut().for_each(|x| *x += 1.0);
    ///     }
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn put_owned<T: PlainData, B>(
        self,
        array: &Symmetric<T>,
        rank: usize,
        start: usize,
        values: B,
    ) -> Result<Returned<B>>
    where
        B: AsRef<[T]> + Send + 'static,
    {
        let engine = self.world.engine();
        array.check_of(engine).placed()?;
        let (lender, returned) = Lender::new(values, None);
        let elements = lender.elements::<T>();
        let offset = array.range("put", rank, start, elements.len()).placed()?;
        let mut events = self.events(engine.identity()).placed()?;
        // SAFETY: the lender keeps the buffer where it is, and is dropped after the region.
        match unsafe { engine.register_buffer(rank, elements.as_ptr().cast(), size_of_val(elements)) } {
            Some(region) => {
                let source = std::mem::take(&mut events.source);
                // SAFETY: as above; nobody else reaches the buffer before the lender is dropped.
                unsafe { engine.put_buffer(rank, offset, region, Box::new(lender), source) }?;
            }
            None => {
                array.put_slice(rank, start, elements).placed()?;
                drop(lender);
            }
        }
        engine.track_put(rank, "put", events);
        Ok(returned)
    }

    /// Writes elements `from` of this rank's part of `source` at `rank`, from element `start`. Over a network long ranges are not
    /// copied: if they are changed before the source event, bytes from before or after the change arrive.
    ///
    /// # Errors
    /// As [`Symmetric::put_from`]; as [`Operation::put`].
    #[track_caller]
    pub fn put_from<T: PlainData>(
        self,
        array: &Symmetric<T>,
        rank: usize,
        start: usize,
        source: &Symmetric<T>,
        from: Range<usize>,
    ) -> Result<()> {
        (|| -> Result<()> {
            let engine = self.world.engine();
            array.check_of(engine)?;
            let events = self.events(engine.identity())?;
            array.put_from(rank, start, source, from)?;
            engine.track_put_from(rank, "put", events);
            Ok(())
        })()
        .placed_here()
    }

    /// Reads elements of `rank`, from `start`, into elements `to` of this rank's part of `into`. They are there at the effect event. On
    /// mapped memory they are copied once. Over a network 256 KiB and more are not copied, and fewer bytes once.
    ///
    /// # Errors
    /// As [`Symmetric::get_slice`]; as [`Operation::put`].
    #[track_caller]
    pub fn get_into<T: PlainData>(
        self,
        array: &Symmetric<T>,
        rank: usize,
        start: usize,
        into: &Symmetric<T>,
        to: Range<usize>,
    ) -> Result<()> {
        (|| -> Result<()> {
            const DOING: &str = "get";
            let engine = self.world.engine();
            array.check_of(engine)?;
            into.check_of(engine)?;
            let (count, len) = (to.len(), to.len() * size_of::<T>());
            let own = into.range(DOING, engine.rank, to.start, count)?;
            let offset = array.range(DOING, rank, start, count)?;
            let events = self.events(engine.identity())?;
            let mut all = events.source;
            all.extend(events.effect);
            all.extend(events.handled);
            // SAFETY: in bounds of this rank's slot, as just checked.
            let to = unsafe { engine.node.slot(engine.rank).add(own) };
            if let Some(slot) = engine.mapped_slot(rank) {
                // SAFETY: in bounds of a mapped slot, as just checked.
                let from = unsafe { slot.add(offset) };
                // SAFETY: both ranges are mapped, and only touched by copies and atomics.
                unsafe { copy::between(to, from, len) };
                engine.happened(all, Ok(()));
                return Ok(());
            }
            let claims = [Some(array.claim()), Some(into.claim())];
            // SAFETY: this rank's slot is mapped as long as the engine lives. The call that ends the phase or the allocation of these elements
            // first waits until no operation of this rank is in flight.
            unsafe { engine.get_into(DOING, HeapRange { rank, offset, len }, to, claims, None, all) };
            Ok(())
        })()
        .placed_here()
    }

    /// Does an atomic with `value` on element `index` of `rank`; not [`AtomicOp::CompareSwap`]. At the effect event the result
    /// has the former value.
    ///
    /// # Errors
    /// As [`Symmetric::fetch_add`]; [`Error::InvalidArgument`] for a compare-and-swap; as [`Operation::put`].
    #[track_caller]
    pub fn fetch<T: AtomicElement>(
        self,
        op: AtomicOp,
        array: &Symmetric<T>,
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

    /// Stores `new` in element `index` of `rank` if the element is `expected`. The result is that of [`Operation::fetch`].
    ///
    /// # Errors
    /// As [`Operation::fetch`].
    #[track_caller]
    pub fn compare_swap<T: AtomicElement>(
        self,
        array: &Symmetric<T>,
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
        array: &Symmetric<T>,
        rank: usize,
        index: usize,
        [value, compare]: [T; 2],
    ) -> Result<Fetched<T>> {
        const DOING: &str = "an atomic";
        let engine = self.world.engine();
        array.check_of(engine)?;
        let offset = array.range(DOING, rank, index, 1)?;
        let mut events = self.events(engine.identity())?;
        let mut effect = std::mem::take(&mut events.effect);
        effect.append(&mut events.handled);
        let found: Arc<Found> = Arc::default();
        let fetched = Fetched { found: Arc::clone(&found), narrow: T::narrow };
        match array.element(rank, index) {
            Some(at) => {
                // SAFETY: an element in mapped memory, only touched atomically.
                let before = unsafe { apply(op, at, value, compare) };
                found.set(before.widen());
                events.source.append(&mut effect);
                engine.happened(events.source, Ok(()));
            }
            None => {
                let change = Change { op, width: T::WIDTH, value: value.widen(), compare: compare.widen() };
                let atomic = Atomic::new(array.claim(), rank, offset, change);
                engine.tasks.track(rank, DOING, Step::Atomic { atomic, found }, effect);
                engine.happened(events.source, Ok(()));
                engine.begin_tracked();
            }
        }
        Ok(fetched)
    }

    /// Sends `payload` to a registered handler of `rank`.
    ///
    /// # Errors
    /// As [`World::send`]; as [`Operation::put`].
    #[track_caller]
    pub fn send(self, rank: usize, handler: HandlerId, payload: &[u8]) -> Result<()> {
        (|| -> Result<()> {
            let (engine, messages) = (self.world.engine(), self.world.messages());
            let Events { source, effect, mut handled } = self.events(engine.identity())?;
            messages
                .send_to_handler_with(rank, handler, payload, &mut handled)
                .inspect_err(|error| engine::refuse(handled, error))?;
            engine.happened(source, Ok(()));
            engine.track_message(rank, effect);
            Ok(())
        })()
        .placed_here()
    }

    /// Runs a closure that captures nothing at `rank`. `arguments` travel in serde's form.
    ///
    /// # Errors
    /// As [`World::invoke`]; as [`Operation::put`].
    #[track_caller]
    pub fn invoke<A, F>(self, rank: usize, arguments: A, function: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        (|| -> Result<()> {
            let (engine, messages) = (self.world.engine(), self.world.messages());
            let Events { source, effect, mut handled } = self.events(engine.identity())?;
            messages
                .invoke_with(rank, &arguments, function, &mut handled)
                .inspect_err(|error| engine::refuse(handled, error))?;
            engine.happened(source, Ok(()));
            engine.track_message(rank, effect);
            Ok(())
        })()
        .placed_here()
    }

    /// Sends `header` and `data` to a handler of large messages of `rank`, as [`World::send_large`]. After the source event, also one with
    /// an error, the operation no longer holds the data: a program that has shared the vector may change it ([`Rc::get_mut`]).
    ///
    /// # Errors
    /// As [`World::send_large`], those of its call for functions and futures; as [`Operation::put`]. If `rank` is lost while this call waits
    /// for room, the call fails and the events end with [`Error::PeerLost`].
    ///
    /// # Examples
    /// ```
    /// use std::rc::Rc;
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::{Counter, Landing, Threads};
    ///
    /// let ranks = Threads::new(2).build(|mut builder| {
    ///     let deposit = builder.landing_handler(
    ///         "deposit",
    ///         |_, _| Landing::vec(Vec::new()),
    ///         |_, landed| assert_eq!(landed.len(), 100_000),
    ///     );
    ///     let world = builder.start()?;
    ///     let (mut data, landed) = (Rc::new(vec![0; 100_000]), Counter::new());
    ///     for round in 1..=3u8 {
    ///         // The data of the round before has landed: the same memory is used again.
    ///         Rc::get_mut(&mut data).expect("the operation has dropped its reference").fill(round);
    ///         let next = (world.rank() + 1) % world.size();
    ///         world.operation().source(&landed).send_large(next, deposit, b"", Rc::clone(&data))?;
    ///         world.wait_counter(&landed, round.into())?;
    ///     }
    ///     world.finish()
    /// })?;
    /// ranks.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn send_large(
        self,
        rank: usize,
        handler: LandingId,
        header: &[u8],
        data: impl Into<Rc<Vec<u8>>>,
    ) -> Result<()> {
        (|| -> Result<()> {
            let (engine, messages) = (self.world.engine(), self.world.messages());
            let mut events = self.events(engine.identity())?;
            if let Err(error) = messages.send_large_with(rank, handler, header, data.into(), &mut events) {
                engine::refuse(events.handled, &error);
                return Err(error);
            }
            engine.happened(events.source, Ok(()));
            Ok(())
        })()
        .placed_here()
    }
}

/// Does `op` at `at` and returns the former value.
///
/// # Errors
/// [`Error::InvalidArgument`] for an atomic that takes two values.
pub(super) fn check_one_value(op: AtomicOp) -> Result<()> {
    if op == AtomicOp::CompareSwap {
        let why = "a compare-and-swap has two values: use `compare_swap`".into();
        return Err(Error::InvalidArgument { operation: "an atomic", why });
    }
    Ok(())
}

/// # Safety
/// `at` is valid, aligned and only touched atomically.
pub(super) unsafe fn apply<T: AtomicElement>(op: AtomicOp, at: *mut T, value: T, compare: T) -> T {
    // SAFETY: the caller's.
    unsafe {
        match op {
            AtomicOp::Add => T::fetch_add(at, value),
            AtomicOp::And => T::fetch_and(at, value),
            AtomicOp::Or => T::fetch_or(at, value),
            AtomicOp::Xor => T::fetch_xor(at, value),
            AtomicOp::Swap => T::swap(at, value),
            AtomicOp::CompareSwap => T::compare_swap(at, compare, value),
        }
    }
}

impl<T: Pod> Symmetric<T> {
    /// # Errors
    /// [`Error::InvalidArgument`] if it is another world's or rank's.
    fn check_of(&self, engine: &engine::Engine) -> Result<()> {
        if self.engine().identity() == engine.identity() {
            return Ok(());
        }
        let why = "the array is of another world".into();
        Err(Error::InvalidArgument { operation: "an operation with events", why })
    }
}
