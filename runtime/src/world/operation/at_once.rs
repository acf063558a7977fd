//! Operations with events that answer at once.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use serde::{Serialize, de::DeserializeOwned};

use super::{Event, Operation, checked};
use crate::engine::{self, Events};
use crate::error::{Error, Placed, Result};
use crate::message::{Context, HandlerId, LandingId};
use crate::world::returned::Lender;
use crate::world::segments::Carried;
use crate::world::{PlainData, RawBells, ReservedSegments, Returned, Symmetric};

/// # Operations that answer at once
/// Each `try_` form does what the call without `try_` does, if there is room for all of it now. If not it fails with
/// [`Error::WouldBlock`], and nothing has been done: the operation keeps its events, so that it can be tried again after a
/// [`World::poll`](crate::World::poll). Else its events are gone with it, and what follows has those that are added to it then. Gets and
/// atomics do not wait for room: [`Operation::get_into`] and [`Operation::fetch`] are posted when there is some.
impl Operation<'_> {
    /// As [`Operation::put`], but does not wait for room, as [`Symmetric::try_put_slice`].
    ///
    /// # Errors
    /// As [`Operation::put`], and [`Error::WouldBlock`]: nothing was put.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::{Completion, Error};
    /// bellwether::threads(2, |world| {
    ///     let numbers = world.alloc::<u64>(100)?;
    ///     let done = Completion::new();
    ///     for i in 0..100 {
    ///         let mut put = world.operation().effect(&done);
    ///         while let Err(error) = put.try_put(&numbers, 1 - world.rank(), i, &[7]) {
    ///             let Error::WouldBlock { .. } = error else { return Err(error) };
    ///             // Or something useful.
    ///             world.poll()?;
    ///         }
    ///     }
    ///     world.wait_completion(&done)?;
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn try_put<T: PlainData>(
        &mut self,
        array: &Symmetric<T>,
        rank: usize,
        start: usize,
        values: &[T],
    ) -> Result<()> {
        const DOING: &str = "try_put";
        let engine = self.world.engine();
        let put = |_: &mut Events| {
            array.check_of(engine)?;
            engine.put_at_once(DOING, rank, size_of_val(values), || array.put_slice(rank, start, values))
        };
        self.at_once(put, |events| engine.track_put(rank, "put", events)).placed_here()
    }

    /// As [`Operation::put_from`], but does not wait for room, as [`Symmetric::try_put_from`].
    ///
    /// # Errors
    /// As [`Operation::put_from`], and [`Error::WouldBlock`]: nothing was put.
    #[track_caller]
    pub fn try_put_from<T: PlainData>(
        &mut self,
        array: &Symmetric<T>,
        rank: usize,
        start: usize,
        source: &Symmetric<T>,
        from: Range<usize>,
    ) -> Result<()> {
        let engine = self.world.engine();
        let put = |_: &mut Events| {
            array.check_of(engine)?;
            array.try_put_from(rank, start, source, from)
        };
        self.at_once(put, |events| engine.track_put_from(rank, "put", events)).placed_here()
    }

    /// As [`Operation::put_owned`], but does not wait for room: what the network does not take at once is copied and kept. Takes the buffer
    /// out of `values` if it is put, and leaves it there where there is no room; an error of a lost rank may take it, too.
    ///
    /// # Errors
    /// As [`Operation::put`], and [`Error::WouldBlock`]: nothing was put. [`Error::InvalidArgument`] if `values` is `None`.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::Error;
    /// bellwether::threads(2, |world| {
    ///     let plate = world.alloc::<f64>(1000)?;
    ///     let (mut row, mut put) = (Some(vec![1.5; 1000]), world.operation());
    ///     let lent = loop {
    ///         match put.try_put_owned(&plate, 1 - world.rank(), 0, &mut row) {
    ///             Err(Error::WouldBlock { .. }) => drop(world.poll()?),
    ///             lent => break lent?,
    ///         }
    ///     };
    ///     assert!(row.is_none());
    ///     assert_eq!(world.block_on(lent)?.len(), 1000);
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn try_put_owned<T: PlainData, B>(
        &mut self,
        array: &Symmetric<T>,
        rank: usize,
        start: usize,
        values: &mut Option<B>,
    ) -> Result<Returned<B>>
    where
        B: AsRef<[T]> + Send + 'static,
    {
        const DOING: &str = "try_put_owned";
        let engine = self.world.engine();
        let Some(buffer) = values.take() else {
            let why = "there is no buffer: an attempt that put it has taken it".into();
            return Err(Error::InvalidArgument { operation: DOING, why });
        };
        let (lender, returned) = Lender::new(buffer, None);
        let put = |events: &mut Events| -> Result<()> {
            array.check_of(engine)?;
            let elements = lender.elements::<T>();
            let (offset, len) = (array.range(DOING, rank, start, elements.len())?, size_of_val(elements));
            engine.check_put_room(DOING, rank, len)?;
            // SAFETY: the lender keeps the buffer where it is, and is dropped after the region.
            match unsafe { engine.register_in_place(rank, elements.as_ptr().cast(), len) } {
                Some(region) => {
                    let source = std::mem::take(&mut events.source);
                    // SAFETY: as above; nobody else reaches the buffer before the lender is dropped.
                    unsafe { engine.put_buffer_now(rank, offset, region, Box::new(lender), source) }
                }
                None => {
                    let put = engine.outbox.at_once(|| array.put_slice(rank, start, elements));
                    drop(lender);
                    put
                }
            }
        };
        match self.at_once(put, |events| engine.track_put(rank, "put", events)) {
            Ok(()) => Ok(returned),
            Err(error) => {
                *values = returned.take();
                Err(error).placed_here()
            }
        }
    }

    /// As [`Operation::put_reserved`], but does not wait for room, as [`ReservedSegments::try_put`].
    ///
    /// # Errors
    /// As [`Operation::put_reserved`], and [`Error::WouldBlock`]: nothing was put.
    #[track_caller]
    pub fn try_put_reserved(
        &mut self,
        reserved: &ReservedSegments<'_>,
        rank: usize,
        number: u32,
        offset: usize,
        source: &[u8],
    ) -> Result<()> {
        let engine = self.world.engine();
        let put = |_: &mut Events| {
            reserved.check_of(engine)?;
            reserved.try_put(rank, number, offset, source)
        };
        self.at_once(put, |events| engine.track_put(rank, "put to a reserved segment", events)).placed_here()
    }

    /// As [`Operation::put_segment`], but does not wait for room, as [`World::try_put_segment`](crate::World::try_put_segment).
    ///
    /// # Errors
    /// As [`Operation::put_segment`] and [`World::try_put_segment`](crate::World::try_put_segment), and [`Error::WouldBlock`]: nothing was put.
    #[track_caller]
    pub fn try_put_segment(&mut self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<()> {
        let world = self.world;
        self.carry(rank, "put to a segment", || world.try_put_segment_by(rank, number, offset, source)).placed_here()
    }

    /// As [`Operation::put_address`], but does not wait for room, as [`World::try_put_address`](crate::World::try_put_address).
    ///
    /// # Safety
    /// As of [`World::put_address`](crate::World::put_address).
    ///
    /// # Errors
    /// As [`Operation::put_address`] and [`World::try_put_address`](crate::World::try_put_address), and [`Error::WouldBlock`]: nothing was put.
    #[track_caller]
    pub unsafe fn try_put_address(&mut self, rank: usize, to: usize, source: &[u8]) -> Result<()> {
        let world = self.world;
        // SAFETY: the caller's.
        let put = || unsafe { world.try_put_address_by(rank, to, source, RawBells::default()) };
        self.carry(rank, "put to an address", put).placed_here()
    }

    /// Puts with `put`, which tells how the bytes go.
    fn carry(&mut self, rank: usize, doing: &'static str, put: impl FnOnce() -> Result<Carried>) -> Result<()> {
        let world = self.world;
        let (carried, mut tracked) = (Cell::new(Carried::Copied), Ok(()));
        self.at_once(
            |_| put().map(|how| carried.set(how)),
            // A message with the events is kept where there is no room.
            |events| tracked = world.track_carried(rank, doing, carried.get(), events),
        )?;
        tracked
    }

    /// As [`Operation::send`], but does not wait for room.
    ///
    /// # Errors
    /// As [`Operation::send`], and [`Error::WouldBlock`]: nothing was sent.
    #[track_caller]
    pub fn try_send(&mut self, rank: usize, handler: HandlerId, payload: &[u8]) -> Result<()> {
        let (engine, messages) = (self.world.engine(), self.world.messages());
        let send = |events: &mut Events| {
            engine.outbox.at_once(|| messages.send_to_handler_with(rank, handler, payload, &mut events.handled))
        };
        self.try_message(rank, send).placed_here()
    }

    /// As [`Operation::invoke`], but does not wait for room. Borrows the arguments, so that they are there for another attempt.
    ///
    /// # Errors
    /// As [`Operation::invoke`], and [`Error::WouldBlock`]: nothing was sent.
    #[track_caller]
    pub fn try_invoke<A, F>(&mut self, rank: usize, arguments: &A, function: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        let (engine, messages) = (self.world.engine(), self.world.messages());
        let send = |events: &mut Events| {
            engine.outbox.at_once(|| messages.invoke_with(rank, arguments, function, &mut events.handled))
        };
        self.try_message(rank, send).placed_here()
    }

    /// As [`Operation::send_large`], but does not wait, as [`World::try_send_large`](crate::World::try_send_large).
    ///
    /// # Errors
    /// As [`Operation::send_large`], and [`Error::WouldBlock`]: nothing was sent.
    #[track_caller]
    pub fn try_send_large(&mut self, rank: usize, handler: LandingId, header: &[u8], data: &Rc<Vec<u8>>) -> Result<()> {
        let (engine, messages) = (self.world.engine(), self.world.messages());
        let send = |events: &mut Events| {
            let data = Rc::clone(data);
            engine.outbox.at_once(|| messages.send_large_with(rank, handler, header, data, events))
        };
        self.at_once(send, |events| engine.happened(events.source, Ok(()))).placed_here()
    }

    fn try_message(&mut self, rank: usize, send: impl FnOnce(&mut Events) -> Result<()>) -> Result<()> {
        let engine = self.world.engine();
        self.at_once(send, |Events { source, effect, .. }| {
            engine.happened(source, Ok(()));
            engine.track_message(rank, effect);
        })
    }

    /// Does what `attempt` does, and then what `begun` does with the events, of which `attempt` may have taken those for handled.
    fn at_once(&mut self, attempt: impl FnOnce(&mut Events) -> Result<()>, begun: impl FnOnce(Events)) -> Result<()> {
        let lists = [&mut self.source, &mut self.effect, &mut self.handled].map(std::mem::take);
        let mut events = checked(lists, self.world.engine().identity())?;
        match attempt(&mut events) {
            Ok(()) => begun(events),
            Err(error @ Error::WouldBlock { .. }) => {
                [self.source, self.effect, self.handled] = kept(events);
                return Err(error);
            }
            Err(error) => {
                engine::refuse(events.handled, &error);
                return Err(error);
            }
        }
        Ok(())
    }
}

/// The events of an operation that found no room.
pub(in crate::world) fn kept(events: Events) -> [Vec<Event>; 3] {
    let keep = |list: Vec<engine::Event>| list.into_iter().map(|kind| Event { kind, of: None }).collect();
    [events.source, events.effect, events.handled].map(keep)
}
