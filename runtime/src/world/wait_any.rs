//! Waits for the first, or for all, of things of different types.

use std::rc::Rc;
use std::time::Duration;

use super::World;
use crate::engine::Ready;
use crate::error::{Error, Placed, Result};

/// The things that [`World::wait_any`] can wait for: a remote [`Call`](crate::Call), a put, get or atomic in flight
/// ([`Posted`](crate::Posted)), a collective of a team ([`Pending`](crate::Pending)), a count of a bell ([`Rung`](crate::Rung)) or
/// of a word ([`Signalled`](crate::Signalled)), the end of operations ([`Completion`](crate::Completion)), and a buffer on its way
/// back ([`Returned`](crate::Returned)). No other type can be one.
pub trait Waitable: Ready {}

impl<W: Ready> Waitable for W {}

impl World {
    /// Waits until one of `items` is ready, and returns its place in the list; if several are ready, the first place. Delivers
    /// messages meanwhile, and all items make progress.
    ///
    /// Nothing is taken: the item at that place gives its result, or its error, when it is waited for or awaited, at once. The others
    /// stay in flight. So the same list may be waited for again, without the item that was ready. [`World::select`] is for futures of
    /// one type; it takes the result.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an empty list, for an item of another world, and for one that has given its result before;
    /// [`Error::PeerLost`] if a rank died before one was ready; [`Error::InsideHandler`].
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::{Sum, Team};
    /// bellwether::threads(3, |world| {
    ///     let (bell, team) = (world.bell()?, Team::world(world)?);
    ///     let mut call = world.call((world.rank() + 1) % 3, 5u64, |ctx, x| x + ctx.rank() as u64)?;
    ///     let mut sum = team.allreduce_async(vec![1u64], Sum);
    ///     let mut rung = bell.rung(1);
    ///     // Nobody rings.
    ///     let first = world.wait_any(&mut [&mut rung, &mut sum, &mut call])?;
    ///     assert!(first == 1 || first == 2);
    ///     assert_eq!(sum.wait()?, [3]);
    ///     assert!(call.wait()? >= 5);
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    ///
    /// The list borrows its items, and ends before one of them is waited for:
    ///
    /// ```compile_fail,E0505
    /// # use bellwether_runtime as bellwether;
    /// # fn f(world: &bellwether::World, mut call: bellwether::Call<u64>) -> bellwether::Result<()> {
    /// let mut items: [&mut dyn bellwether::Waitable; 1] = [&mut call];
    /// world.wait_any(&mut items)?;
    /// call.wait()?; // moves the call out of the list
    /// world.wait_any(&mut items)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// An item that borrows keeps what it borrows: the bell of a [`Rung`](crate::Rung) lives as long as that.
    ///
    /// ```compile_fail,E0597
    /// # use bellwether_runtime as bellwether;
    /// # fn f(world: &bellwether::World) -> bellwether::Result<()> {
    /// let mut rung = {
    ///     let bell = world.bell()?;
    ///     bell.rung(1)
    /// };
    /// world.wait_any(&mut [&mut rung])?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn wait_any(&self, items: &mut [&mut dyn Waitable]) -> Result<usize> {
        self.wait_first("wait_any", None, items)
    }

    /// As [`World::wait_any`], for at most `limit`. After [`Error::TimedOut`] all items may be waited for as before. A limit of zero
    /// polls for a moment, and delivers messages, but does not sleep. In a handler it works only where an item is ready already.
    ///
    /// # Errors
    /// As [`World::wait_any`], and [`Error::TimedOut`].
    #[track_caller]
    pub fn wait_any_for(&self, limit: Duration, items: &mut [&mut dyn Waitable]) -> Result<usize> {
        self.wait_first("wait_any_for", Some(limit), items)
    }

    /// Waits until every one of `items` has been ready. An item is not asked again after that. As with [`World::wait_any`] nothing is
    /// taken: each gives its result at once then. [`World::wait_all`] is for futures of one type; it takes the results.
    ///
    /// # Errors
    /// As [`World::wait_any`], except that an empty list is ready.
    #[track_caller]
    pub fn wait_every(&self, items: &mut [&mut dyn Waitable]) -> Result<()> {
        self.wait_each("wait_every", None, items)
    }

    /// As [`World::wait_every`], for at most `limit`. After [`Error::TimedOut`] all items may be waited for as before.
    ///
    /// # Errors
    /// As [`World::wait_every`], and [`Error::TimedOut`].
    #[track_caller]
    pub fn wait_every_for(&self, limit: Duration, items: &mut [&mut dyn Waitable]) -> Result<()> {
        self.wait_each("wait_every_for", Some(limit), items)
    }

    #[track_caller]
    fn wait_first(
        &self,
        operation: &'static str,
        limit: Option<Duration>,
        items: &mut [&mut dyn Waitable],
    ) -> Result<usize> {
        if items.is_empty() {
            let why = "the list is empty: there is nothing to wait for".into();
            return Err(Error::InvalidArgument { operation, why }).placed();
        }
        self.check_items(operation, items).placed()?;
        let mut find = || items.iter_mut().position(|item| item.is_ready());
        self.engine().at(|| self.engine().wait_ready(operation, limit, &mut find))
    }

    #[track_caller]
    fn wait_each(
        &self,
        operation: &'static str,
        limit: Option<Duration>,
        items: &mut [&mut dyn Waitable],
    ) -> Result<()> {
        self.check_items(operation, items).placed()?;
        let mut left: Vec<usize> = (0..items.len()).collect();
        // Each goes on in every round until it is ready, also behind one that is not.
        let mut find = || {
            left.retain(|at| !items[*at].is_ready());
            left.is_empty().then_some(0)
        };
        self.engine().at(|| self.engine().wait_ready(operation, limit, &mut find)).map(drop)
    }

    /// # Errors
    /// [`Error::InvalidArgument`] if one is driven by another world, or has given its result.
    fn check_items(&self, operation: &'static str, items: &[&mut dyn Waitable]) -> Result<()> {
        let own = Rc::as_ptr(self.engine()).cast();
        for (at, item) in items.iter().enumerate() {
            let why = if item.driver().is_some_and(|driver| driver != own) {
                "is of another world, which this wait does not drive"
            } else if item.is_taken() {
                "has given its result before; leave it out"
            } else {
                continue;
            };
            return Err(Error::InvalidArgument { operation, why: format!("item {at} of the list {why}") });
        }
        Ok(())
    }
}
