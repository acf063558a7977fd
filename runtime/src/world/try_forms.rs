//! Forms that return at once, of calls that may wait for room.

use std::ops::Range;
use std::rc::Rc;

use bytemuck::Pod;
use serde::{Serialize, de::DeserializeOwned};

use super::{Bell, PlainData, Posted, Symmetric, World};
use crate::error::{Placed, Result};
use crate::message::{Call, Context, HandlerId, LandingId};

/// # Calls that answer at once
/// Each `try_` form does what the call without `try_` does, if there is room for all of it now. If not it fails with
/// [`Error::WouldBlock`](crate::Error::WouldBlock), has sent nothing, and makes no progress: call [`World::poll`] before the next
/// attempt. In a handler, where no call waits, what finds no room is kept and sent later, up to `BELLWETHER_MESSAGE_MEMORY` bytes.
impl World {
    /// As [`World::send`], but does not wait for room.
    ///
    /// # Errors
    /// As [`World::send`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was sent.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::Error;
    /// bellwether::threads(2, |world| {
    ///     world.set_state(std::cell::Cell::new(0u32));
    ///     world.barrier()?;
    ///     let next = 1 - world.rank();
    ///     for number in 1..=1000u32 {
    ///         while let Err(error) = world.try_invoke(next, &number, |ctx, n| {
    ///             let sum = ctx.state::<std::cell::Cell<u32>>().expect("set before the barrier");
    ///             sum.set(sum.get() + n);
    ///         }) {
    ///             let Error::WouldBlock { .. } = error else { return Err(error) };
    ///             // Or something useful. The other rank may wait for room here.
    ///             world.poll()?;
    ///         }
    ///     }
    ///     let sum = world.state::<std::cell::Cell<u32>>().expect("just set");
    ///     world.wait_until(|| sum.get() == 500_500)?;
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn try_send(&self, to: usize, handler: HandlerId, payload: &[u8]) -> Result<()> {
        self.engine.outbox.at_once(|| self.messages.send_to_handler(to, handler, payload)).placed_here()
    }

    /// As [`World::invoke`], but does not wait for room. Borrows the arguments, so that they are there for another attempt.
    ///
    /// # Errors
    /// As [`World::invoke`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was sent.
    #[track_caller]
    pub fn try_invoke<A, F>(&self, to: usize, arguments: &A, function: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        self.engine.outbox.at_once(|| self.messages.invoke(to, arguments, function)).placed_here()
    }

    /// As [`World::invoke_plain`], but does not wait for room.
    ///
    /// # Errors
    /// As [`World::invoke_plain`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was sent.
    #[track_caller]
    pub fn try_invoke_plain<A, F>(&self, to: usize, arguments: A, function: F) -> Result<()>
    where
        A: PlainData,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        self.engine.outbox.at_once(|| self.messages.invoke_plain(to, arguments, function)).placed_here()
    }

    /// As [`World::call`], but does not wait for room. Borrows the arguments, so that they are there for another attempt.
    ///
    /// # Errors
    /// As [`World::call`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was sent.
    #[track_caller]
    pub fn try_call<A, R, F>(&self, to: usize, arguments: &A, function: F) -> Result<Call<R>>
    where
        A: Serialize + DeserializeOwned,
        R: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) -> R + Copy + Send + 'static,
    {
        self.engine.outbox.at_once(|| self.messages.call(to, arguments, function)).placed_here()
    }

    /// As [`World::call_plain`], but does not wait for room.
    ///
    /// # Errors
    /// As [`World::call_plain`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was sent.
    #[track_caller]
    pub fn try_call_plain<A, R, F>(&self, to: usize, arguments: A, function: F) -> Result<Call<R>>
    where
        A: PlainData,
        R: PlainData,
        F: Fn(&Context<'_>, A) -> R + Copy + Send + 'static,
    {
        self.engine.outbox.at_once(|| self.messages.call_plain(to, arguments, function)).placed_here()
    }

    /// As [`World::send_large`], but does not wait: neither for room nor, with 16 messages to that rank in flight, for one of them to
    /// land. Takes a further reference to the data only if it is sent.
    ///
    /// # Errors
    /// As [`World::send_large`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was sent.
    #[track_caller]
    pub fn try_send_large(&self, to: usize, handler: LandingId, header: &[u8], data: &Rc<Vec<u8>>) -> Result<Call<()>> {
        self.engine.outbox.at_once(|| self.messages.send_large(to, handler, header, Rc::clone(data))).placed_here()
    }
}

/// # Puts that answer at once
/// Where memory is mapped a put never waits for room. Over a network it may, once `BELLWETHER_MESSAGE_MEMORY` bytes are kept that the network
/// has not taken yet: then these forms fail with [`Error::WouldBlock`](crate::Error::WouldBlock), and have written and rung nothing. They copy
/// the data that the network does not take at once, however long it is. A ring or a signal for a mapped rank may have to come after network
/// operations to that rank that are in flight: then it is kept, in some tens of bytes, and is never refused.
impl<T: Pod> Symmetric<T> {
    /// As [`Symmetric::put`], but does not wait for room.
    ///
    /// # Errors
    /// As [`Symmetric::put`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put.
    #[track_caller]
    pub fn try_put(&self, rank: usize, index: usize, value: T) -> Result<()> {
        self.put_now("try_put", rank, 1, 0, || self.put(rank, index, value))
    }

    /// As [`Symmetric::put_slice`], but does not wait for room.
    ///
    /// # Errors
    /// As [`Symmetric::put_slice`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put.
    #[track_caller]
    pub fn try_put_slice(&self, rank: usize, start: usize, values: &[T]) -> Result<()> {
        self.put_now("try_put_slice", rank, values.len(), 0, || self.put_slice(rank, start, values))
    }

    /// As [`Symmetric::put_bell`], but does not wait for room.
    ///
    /// # Errors
    /// As [`Symmetric::put_bell`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put, and nothing rung.
    #[track_caller]
    pub fn try_put_bell(&self, rank: usize, index: usize, value: T, bell: &Bell) -> Result<()> {
        self.put_now("try_put_bell", rank, 1, size_of::<u64>(), || self.put_bell(rank, index, value, bell))
    }

    /// As [`Symmetric::put_slice_bell`], but does not wait for room.
    ///
    /// # Errors
    /// As [`Symmetric::put_slice_bell`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put, and nothing rung.
    #[track_caller]
    pub fn try_put_slice_bell(&self, rank: usize, start: usize, values: &[T], bell: &Bell) -> Result<()> {
        let put = || self.put_slice_bell(rank, start, values, bell);
        self.put_now("try_put_slice_bell", rank, values.len(), size_of::<u64>(), put)
    }

    /// As [`Symmetric::put_async`], but does not wait for room to post it.
    ///
    /// # Errors
    /// [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put. All other errors come from the returned value.
    #[track_caller]
    pub fn try_put_async(&self, rank: usize, index: usize, value: T) -> Result<Posted<()>> {
        Ok(self.put_now("try_put_async", rank, 1, 0, || Ok(self.put_async(rank, index, value)))?.of_caller())
    }

    /// As [`Symmetric::put_slice_async`], but does not wait for room to post it.
    ///
    /// # Errors
    /// [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put. All other errors come from the returned value.
    #[track_caller]
    pub fn try_put_slice_async(&self, rank: usize, start: usize, values: &[T]) -> Result<Posted<()>> {
        let post = || Ok(self.put_slice_async(rank, start, values));
        Ok(self.put_now("try_put_slice_async", rank, values.len(), 0, post)?.of_caller())
    }

    /// As [`Symmetric::put_slice_signal`], but does not wait for room.
    ///
    /// # Errors
    /// As [`Symmetric::put_slice_signal`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put, and nothing signalled.
    #[track_caller]
    pub fn try_put_slice_signal(
        &self,
        rank: usize,
        start: usize,
        values: &[T],
        signals: &Symmetric<u64>,
        index: usize,
    ) -> Result<()> {
        let put = || self.put_slice_signal(rank, start, values, signals, index);
        self.put_now("try_put_slice_signal", rank, values.len(), size_of::<u64>(), put)
    }

    /// As [`Symmetric::put_from`], but does not wait for room: what the network does not take at once is copied and kept.
    ///
    /// # Errors
    /// As [`Symmetric::put_from`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was put.
    #[track_caller]
    pub fn try_put_from(&self, rank: usize, start: usize, source: &Symmetric<T>, from: Range<usize>) -> Result<()> {
        const NAME: &str = "try_put_from";
        let count = from.len();
        self.range(NAME, rank, start, count).placed()?;
        self.put_now(NAME, rank, count, 0, || self.put_from(rank, start, source, from))
    }

    #[track_caller]
    fn put_now<R>(
        &self,
        operation: &'static str,
        rank: usize,
        count: usize,
        bell: usize,
        put: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let len = count * size_of::<T>() + bell;
        self.engine().put_at_once(operation, rank, len, put).placed_here()
    }
}

impl Bell {
    /// As [`Bell::ring`], but does not wait for room, as [`Symmetric::try_put`].
    ///
    /// # Errors
    /// As [`Bell::ring`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was rung.
    #[track_caller]
    pub fn try_ring(&self, rank: usize) -> Result<()> {
        self.engine().put_at_once("try_ring", rank, size_of::<u64>(), || self.ring(rank)).placed_here()
    }
}

impl Symmetric<u64> {
    /// As [`Symmetric::signal`], but does not wait for room, as [`Symmetric::try_put`].
    ///
    /// # Errors
    /// As [`Symmetric::signal`], and [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was signalled.
    #[track_caller]
    pub fn try_signal(&self, rank: usize, index: usize) -> Result<()> {
        self.put_now("try_signal", rank, 1, 0, || self.signal(rank, index))
    }
}
