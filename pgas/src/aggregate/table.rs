//! Aggregated access to a table that is spread over all ranks.

use bellwether_runtime::{PlainData, Pod, Result, Symmetric, World};

use super::agreed;
use super::element::Addend;
use super::options::Options;
use super::places::Places;
use super::remote::{self, Ask};
use super::rounds::{Rounds, Update};
use super::shape::Shape;
use super::verdict::{Call, Verdicts};

/// Buffers for aggregated access to tables of `T`.
///
/// All calls are collective: every rank makes them, with the same table and layout, each with as many indices as it likes, also
/// none. They return when everything that any rank brought has been done. An index out of range, on whichever rank, is the
/// same error on all, before anything is changed.
///
/// # Atomicity
/// An update takes the table exclusively, on all ranks, for as long as the call lasts: the owner of an element is the
/// only one that writes it then, with plain loads and stores, and no update is lost. Other access at the same time,
/// such as [`Symmetric::fetch_add`], cannot be written in safe code, and pointers to the table are stale from then on.
/// Reading takes the table shared: what others put meanwhile is seen or not.
///
/// # Memory
/// An aggregator takes about [`Options::memory`] bytes at each rank, and tells how much at most
/// ([`Aggregator::memory`]). Calls with more items than that holds take several rounds. Where ranks are not mapped,
/// what comes back waits in as many bytes again as the call's own result.
///
/// # Examples
/// A histogram over all ranks, and then a look at some of its bins.
/// ```
/// use bellwether::aggregate::{Aggregator, Blocks, Options};
/// # bellwether::threads(3, |world| {
/// let bins = Blocks::new(1000, world.size());
/// let mut table = world.alloc::<u64>(bins.block())?;
/// let mut aggregator = Aggregator::new(world, &Options::new(world))?;
/// let samples: Vec<usize> = (0..5000).map(|i| i * i % 1000).collect();
/// aggregator.scatter_add(&mut table, &bins, &samples, &vec![1; samples.len()])?;
/// let seen = aggregator.gather(&table, &bins, &[0, 1, 2])?;
/// assert_eq!(seen, [150, 120, 0]);
/// # Ok(())
/// # })?.into_iter().collect::<bellwether::Result<()>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
pub struct Aggregator<'w, T> {
    world: &'w World,
    options: Options,
    way: Way<T>,
}

/// By mapped memory, or by messages.
enum Way<T> {
    Mapped(Box<Rounds<T>>),
    Remote(Verdicts),
}

impl<'w, T> Aggregator<'w, T> {
    /// Buffers as `options` say. Collective, with the same elements and options on every rank.
    ///
    /// # Errors
    /// [`crate::Error::RanksDiffer`] on all ranks if these differ; [`crate::Error::InvalidArgument`] for elements
    /// without bytes; as [`World::alloc`].
    #[track_caller]
    pub fn new(world: &'w World, options: &Options) -> Result<Aggregator<'w, T>>
    where
        T: PlainData,
    {
        world.within("Aggregator::new", || {
            agreed::check::<T>(world, "what is aggregated", options)?;
            if size_of::<T>() == 0 {
                return Err(agreed::no_bytes::<T>("aggregation"));
            }
            let way = match world.progress().is_mapped() {
                true => Way::Mapped(Box::new(Rounds::new(world, options)?)),
                false => Way::Remote(Verdicts::new(world, false)?),
            };
            Ok(Aggregator { world, options: options.clone(), way })
        })
    }
}

impl<T: Pod> Aggregator<'_, T> {
    /// Most bytes of buffers at each rank. Where ranks are mapped the buffers are allocated as long as this lives. Elsewhere each
    /// call allocates as many as it needs: for items that gather, for messages on their way out, and for messages that came and were
    /// not taken yet. The number is larger than [`Options::memory`] if that has no room for an item in each buffer. It is smaller if
    /// messages of 64 KiB, or of the network's limit, do not fill it. The setting `BELLWETHER_MESSAGE_MEMORY` bounds what the
    /// transport holds on the way.
    pub fn memory(&self) -> usize {
        match &self.way {
            Way::Mapped(rounds) => rounds.memory(),
            Way::Remote(_) => remote::memory::<T>(self.world, &self.options),
        }
    }

    /// Adds `values[i]` to the element `indices[i]`, for all `i` of all ranks. Integers wrap around; sums of floating-point
    /// numbers depend on the order, which is not defined. Collective. In messages, values for one element are added up on the way
    /// if they meet in a buffer: at this rank, and with two hops at the rank between.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] on all ranks, before anything is changed, if an index is out of range or the
    /// lists differ in length; [`crate::Error::RanksDiffer`], likewise, if ranks are in different calls, or describe
    /// different layouts; [`crate::Error::PeerLost`].
    #[track_caller]
    pub fn scatter_add<P: Places>(
        &mut self,
        table: &mut Symmetric<T>,
        places: &P,
        indices: &[usize],
        values: &[T],
    ) -> Result<()>
    where
        T: Addend,
    {
        self.update("scatter_add", table, places, indices, values, None, T::plus, Some(T::plus))
    }

    /// As [`Aggregator::scatter_add`], with another way to combine what is there with a value: smallest, largest, or. It
    /// should not matter in which order values come.
    ///
    /// # Errors
    /// As [`Aggregator::scatter_add`].
    #[track_caller]
    pub fn scatter_with<P: Places>(
        &mut self,
        table: &mut Symmetric<T>,
        places: &P,
        indices: &[usize],
        values: &[T],
        combine: impl Fn(T, T) -> T,
    ) -> Result<()> {
        self.update("scatter_with", table, places, indices, values, None, combine, None)
    }

    /// As [`Aggregator::scatter_add`], and returns what each element was just before its value was added. Additions to one
    /// element, by whichever ranks, happen one after the other in some order. Collective.
    ///
    /// # Errors
    /// As [`Aggregator::scatter_add`].
    #[track_caller]
    pub fn fetch_add<P: Places>(
        &mut self,
        table: &mut Symmetric<T>,
        places: &P,
        indices: &[usize],
        values: &[T],
    ) -> Result<Vec<T>>
    where
        T: Addend,
    {
        let mut old = vec![T::zeroed(); indices.len()];
        self.update("fetch_add", table, places, indices, values, Some(&mut old), T::plus, None)?;
        Ok(old)
    }

    /// Reads the elements with these indices, in their order. Collective.
    ///
    /// # Errors
    /// As [`Aggregator::scatter_add`].
    #[track_caller]
    pub fn gather<P: Places>(&mut self, table: &Symmetric<T>, places: &P, indices: &[usize]) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); indices.len()];
        self.gather_into(table, places, indices, &mut values)?;
        Ok(values)
    }

    /// As [`Aggregator::gather`], into memory that is there.
    ///
    /// # Errors
    /// As [`Aggregator::scatter_add`]; an error of arguments leaves `values` as they were.
    #[track_caller]
    pub fn gather_into<P: Places>(
        &mut self,
        table: &Symmetric<T>,
        places: &P,
        indices: &[usize],
        values: &mut [T],
    ) -> Result<()> {
        let table_is = (table.offset(), table.len());
        let call = Call { operation: "gather", table: table_is, layout: Shape::new(places) };
        self.world.within(call.operation, || match &mut self.way {
            Way::Mapped(rounds) => rounds.gather(self.world, call, table, places, indices, values),
            Way::Remote(verdicts) => {
                let ask = Ask { indices, values: None, old: Some(values), join: None };
                // SAFETY: the table is borrowed; others' puts come as the network's writes, which `copy` allows for.
                unsafe { remote::ask(self.world, verdicts, &self.options, call, table, places, ask, |old, _| old) }
            }
        })
    }

    #[expect(clippy::too_many_arguments, reason = "the one place where all updates meet")]
    #[track_caller]
    fn update<P: Places>(
        &mut self,
        operation: &'static str,
        table: &mut Symmetric<T>,
        places: &P,
        indices: &[usize],
        values: &[T],
        old: Option<&mut [T]>,
        combine: impl Fn(T, T) -> T,
        join: Option<fn(T, T) -> T>,
    ) -> Result<()> {
        self.world.check_own(table, operation)?;
        let call = Call { operation, table: (table.offset(), table.len()), layout: Shape::new(places) };
        self.world.within(operation, || {
            // All ranks meet before the first element is changed: from then on no global pointer reaches the table.
            let reachable = table.identity().1 != 0;
            self.world.withhold(table)?;
            let outcome = match &mut self.way {
                Way::Mapped(rounds) => match old {
                    None => {
                        let update = Update { indices, values, old: &mut [] };
                        rounds.update::<P, false>(self.world, call, table, places, update, combine)
                    }
                    Some(old) => {
                        let update = Update { indices, values, old };
                        rounds.update::<P, true>(self.world, call, table, places, update, combine)
                    }
                },
                Way::Remote(verdicts) => {
                    let ask = Ask { indices, values: Some(values), old, join };
                    // SAFETY: the table is borrowed exclusively.
                    unsafe { remote::ask(self.world, verdicts, &self.options, call, table, places, ask, combine) }
                }
            };
            if reachable {
                self.world.offer(table);
            }
            outcome
        })
    }
}
