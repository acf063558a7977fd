//! Messages of a context.

use bytemuck::bytes_of;
use serde::{Serialize, de::DeserializeOwned};

use super::{PlainData, ThreadContext};
use crate::error::{CalledAt, Error, Placed, Result};
use crate::message::{Context, HandlerId, closure, plain_closure};
use crate::transport::Sent;

/// Active messages, as those of the [world](super::World::send). The handler runs when the target's own thread polls or waits.
/// Messages that it sends back come to this rank, whose own thread runs their handlers.
///
/// Messages of one context to one rank are delivered in order. A message is delivered after earlier puts of this context to the same rank
/// are in effect there. Between messages of two contexts, or of a context and the world, there is no order.
///
/// # Backpressure
/// Room comes back when the target has run handlers. Without room [`ThreadContext::send`] blocks until there is some, and on the
/// world's thread delivers messages meanwhile; [`ThreadContext::try_send`] returns, and delivers none: poll the world between two
/// attempts. Any other thread leaves that to the world's thread: a target that waits for an answer of this rank needs it to poll or
/// wait.
///
/// Over a network the contexts of a rank share the room at a target.
///
/// On mapped memory a message up to 48 bytes is one cache line in a lane that the context claims at the target when it sends there
/// first, and gives back when it is dropped. 63 contexts can have a lane at one target; further ones share one lane there and take
/// turns. Larger messages are copied into message memory of the contexts, beside that of the world.
///
/// Large messages ([`World::send_large`](super::World::send_large)) are the world's: its thread answers the receivers that fetch their data.
impl ThreadContext {
    /// Sends `payload` to a handler of `rank` that was registered with [`Builder::handler`](super::Builder::handler). The payload may be
    /// changed when this returns. Blocks until there is room.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`](crate::Error::RankOutOfRange); [`Error::OutOfMemory`](crate::Error::OutOfMemory) for a message that
    /// can never fit; [`Error::PeerLost`](crate::Error::PeerLost) if the target is gone, or, while this waits for room, any rank has
    /// failed; [`Error::InsideHandler`](crate::Error::InsideHandler) in a handler, if it has to wait;
    /// [`Error::Forked`](crate::Error::Forked). If the handler tables differ, the target gets the error.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use std::cell::Cell;
    /// use std::rc::Rc;
    /// let sums = bellwether::Threads::new(2).build(|mut builder| {
    ///     let sum = Rc::new(Cell::new(0));
    ///     let to = Rc::clone(&sum);
    ///     let add = builder.handler("add", move |_, bytes| to.set(to.get() + bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>()));
    ///     let world = builder.start()?;
    ///     let (context, other) = (world.context()?, 1 - world.rank());
    ///     let thread = std::thread::spawn(move || (1..=10).try_for_each(|n| context.send(other, add, &[n])));
    ///     world.wait_until(|| sum.get() == 55)?;
    ///     thread.join().expect("does not panic")?;
    ///     world.finish()?;
    ///     Ok::<u32, bellwether::Error>(sum.get())
    /// })?;
    /// assert!(sums.into_iter().all(|sum| sum.is_ok_and(|sum| sum == 55)));
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[inline]
    #[track_caller]
    pub fn send(&self, rank: usize, handler: HandlerId, payload: &[u8]) -> Result<()> {
        (|| -> Result<()> {
            let (id, header) = self.heading(rank, handler)?;
            self.stream().send(&self.outlet, rank, id, header, payload)
        })()
        .placed_here()
    }

    /// As [`ThreadContext::send`], but does not wait.
    ///
    /// # Errors
    /// As [`ThreadContext::send`], and without room [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was sent.
    #[inline]
    #[track_caller]
    pub fn try_send(&self, rank: usize, handler: HandlerId, payload: &[u8]) -> Result<()> {
        (|| -> Result<()> {
            let heading = self.heading(rank, handler)?;
            self.try_message(rank, heading, payload)
        })()
        .placed_here()
    }

    #[inline]
    pub(super) fn try_message(&self, rank: usize, (id, header): (u8, u64), payload: &[u8]) -> Result<()> {
        match self.stream().try_send(&self.outlet, rank, id, header, payload)? {
            Sent::Done => Ok(()),
            Sent::NoRoom => Err(Error::WouldBlock { operation: "sending a message", rank, place: CalledAt::default() }),
        }
    }

    #[inline(always)]
    pub(super) fn heading(&self, rank: usize, handler: HandlerId) -> Result<(u8, u64)> {
        let stream = self.stream();
        stream.check_rank("sending a message", rank)?;
        Ok(self.table.handler(handler, || stream.is_here(rank)))
    }

    /// Runs a closure that captures nothing at `rank`, as [`World::invoke`](super::World::invoke). There is no answer.
    ///
    /// # Errors
    /// As [`ThreadContext::send`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the arguments cannot be serialised.
    #[track_caller]
    pub fn invoke<A, F>(&self, rank: usize, arguments: A, function: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        self.invoke_by(rank, &arguments, function).placed_here()
    }

    pub(super) fn invoke_by<A, F>(&self, rank: usize, arguments: &A, function: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        self.stream().check_rank("remote call", rank)?;
        let (heading, bytes) = closure(arguments, function)?;
        self.send_message(rank, heading, &bytes)
    }

    /// Sends a message to `rank`, which exists.
    pub(super) fn send_message(&self, rank: usize, (id, header): (u8, u64), payload: &[u8]) -> Result<()> {
        self.stream().send(&self.outlet, rank, id, header, payload)
    }

    /// As [`ThreadContext::invoke`], with plain-old-data arguments: up to 48 bytes travel in one cache line.
    ///
    /// # Errors
    /// As [`ThreadContext::send`].
    #[track_caller]
    pub fn invoke_plain<A, F>(&self, rank: usize, arguments: A, function: F) -> Result<()>
    where
        A: PlainData,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        (|| -> Result<()> {
            self.stream().check_rank("remote call", rank)?;
            let (id, header) = plain_closure::<A, F>(function)?;
            self.stream().send(&self.outlet, rank, id, header, bytes_of(&arguments))
        })()
        .placed_here()
    }

    /// As [`ThreadContext::invoke`], but does not wait. Borrows the arguments, so that they are there for another attempt.
    ///
    /// # Errors
    /// As [`ThreadContext::invoke`], and without room [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was sent.
    #[track_caller]
    pub fn try_invoke<A, F>(&self, rank: usize, arguments: &A, function: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        (|| -> Result<()> {
            self.stream().check_rank("remote call", rank)?;
            let (heading, bytes) = closure(arguments, function)?;
            self.try_message(rank, heading, &bytes)
        })()
        .placed_here()
    }

    /// As [`ThreadContext::invoke_plain`], but does not wait.
    ///
    /// # Errors
    /// As [`ThreadContext::invoke_plain`], and without room [`Error::WouldBlock`](crate::Error::WouldBlock): nothing was sent.
    #[track_caller]
    pub fn try_invoke_plain<A, F>(&self, rank: usize, arguments: A, function: F) -> Result<()>
    where
        A: PlainData,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        (|| -> Result<()> {
            self.stream().check_rank("remote call", rank)?;
            let heading = plain_closure::<A, F>(function)?;
            self.try_message(rank, heading, bytes_of(&arguments))
        })()
        .placed_here()
    }
}
