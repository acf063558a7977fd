//! Items pushed to the ranks that own them.

use bellwether_runtime::{Placed, PlainData, Pod, Result, World};

use super::agreed;
use super::options::Options;
use super::port::{Eager, Form, Port};

/// A stream of small items from every rank to every other, each handed to a function of the rank it was sent to.
///
/// Items that go the same way travel together in messages of up to 64 KiB. An item leaves when its buffer is full, when it
/// has waited for [`Options::age`] and this rank pushes or calls [`Push::progress`], or with [`Push::flush`]. It is taken when
/// its target polls, waits, pushes, or enters a collective. Nothing is promised about the order of two items. [`Push::finish`]
/// promises that all have been taken.
///
/// A target that is slower than its senders makes them wait in [`Push::push`]: no rank holds more than [`Push::memory`] bytes
/// of items, however many push to it.
///
/// # Examples
/// Every rank counts the words that begin with its letter.
/// ```
/// use std::{cell::Cell, rc::Rc};
/// use bellwether::aggregate::{Options, Push};
/// # bellwether::threads(3, |world| {
/// let count = Rc::new(Cell::new(0));
/// let counter = Rc::clone(&count);
/// let mut push = Push::new(world, &Options::new(world), move |item: u64| counter.set(counter.get() + item))?;
/// for item in 0..100 {
///     push.push(item as usize % world.size(), item)?;
/// }
/// push.finish()?;
/// let sum = (0..100).filter(|item| item % 3 == world.rank() as u64).sum::<u64>();
/// assert_eq!(count.get(), 3 * sum);
/// # Ok(())
/// # })?.into_iter().collect::<bellwether::Result<()>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
pub struct Push<'w, I> {
    world: &'w World,
    port: Port<'w>,
    items: std::marker::PhantomData<I>,
}

impl<'w, I> Push<'w, I> {
    /// A stream whose items for this rank are given to `take`, one at a time, in handlers and in this stream's own calls.
    /// Collective, with the same type of items and, except for [`Options::age`], the same options on every rank.
    ///
    /// # Errors
    /// [`crate::Error::RanksDiffer`] on all ranks if these differ; [`crate::Error::InvalidArgument`] if an item has no
    /// bytes, or more than a message has room for, with both numbers; as [`World::allgather`].
    #[track_caller]
    pub fn new(world: &'w World, options: &Options, mut take: impl FnMut(I) + 'static) -> Result<Push<'w, I>>
    where
        I: PlainData,
    {
        let width = size_of::<I>();
        let plan = options.plan(Form::Fixed(width), 1, Eager::Nobody);
        let sink = move |items: &[u8]| {
            items.chunks_exact(width).for_each(|item| take(bytemuck::pod_read_unaligned(item)));
            items.len()
        };
        world.within("Push::new", || {
            let port = match width {
                0 => {
                    Port::skip(world);
                    Err(agreed::no_bytes::<I>("push"))
                }
                _ => Port::new(world, "push", plan, Box::new(sink)),
            };
            // All have made theirs when this returns.
            agreed::check::<I>(world, "what is pushed", options)?;
            Ok(Push { world, port: port?, items: std::marker::PhantomData })
        })
    }
}

impl<I: Pod> Push<'_, I> {
    /// Hands `item` to rank `to`, now or later. Waits while as much is under way there as it may hold.
    ///
    /// # Errors
    /// [`crate::Error::RankOutOfRange`]; [`crate::Error::PeerLost`]; [`crate::Error::InsideHandler`].
    #[inline]
    #[track_caller]
    pub fn push(&mut self, to: usize, item: I) -> Result<()> {
        self.port.push(to, bytemuck::bytes_of(&item)).placed_here()
    }

    /// As [`Push::push`], but does not wait for room. Makes no progress: call [`Push::progress`] before the next attempt.
    ///
    /// # Errors
    /// As [`Push::push`], and [`crate::Error::WouldBlock`]: the item was not pushed.
    #[track_caller]
    pub fn try_push(&mut self, to: usize, item: I) -> Result<()> {
        self.port.push_now("try_push", to, bytemuck::bytes_of(&item)).placed_here()
    }

    /// Takes items that have come, and sends those that have waited for [`Options::age`].
    ///
    /// # Errors
    /// As [`World::poll`].
    #[track_caller]
    pub fn progress(&mut self) -> Result<()> {
        self.port.progress().placed_here()
    }

    /// Sends what waits in buffers, each as soon as its target has taken what came before. Does not wait for that.
    ///
    /// # Errors
    /// [`crate::Error::PeerLost`].
    #[track_caller]
    pub fn flush(&mut self) -> Result<()> {
        self.port.flush_all().placed_here()
    }

    /// Waits until every item that any rank has pushed before has been taken. Collective. More may be pushed afterwards.
    ///
    /// # Errors
    /// As [`World::barrier`].
    #[track_caller]
    pub fn finish(&mut self) -> Result<()> {
        self.world.within("Push::finish", || self.port.finish())
    }

    /// Most bytes of items at this rank: in buffers, in messages on their way out, and in arrived messages that it has not taken
    /// yet. The setting `BELLWETHER_MESSAGE_MEMORY` bounds what the transport holds on the way.
    pub fn memory(&self) -> usize {
        self.port.memory()
    }
}
