//! Aggregation where ranks map each other's memory: rounds of sorting, a barrier, and applying.
//!
//! In a round each rank sorts as many of its items as its [`Pool`] holds. After a barrier each owner walks through its
//! own buckets in all pools, straight from the others' memory: nobody copies an item a second time, and the stretch of the
//! table under a bucket stays in the owner's cache while all that goes there is applied, with plain loads and stores, as
//! nobody else writes there. A second barrier gives the pools back.

use bellwether_runtime::memory::copy;
use bellwether_runtime::{Error, Pod, Result, Symmetric, World};

use super::buckets::{Buckets, ByIndex, ByPlace, Nowhere, Table, Under};
use super::options::Options;
use super::places::Places;
use super::pool::Pool;
use super::reader::Reader;
use super::verdict::{Call, Verdict, Verdicts};

/// What rounds need, made once.
pub(super) struct Rounds<T> {
    pool: Pool<T>,
    reader: Reader<T>,
    verdicts: Verdicts,
}

/// Bytes of a table under a bucket.
const STRETCH: usize = 512 << 10;
/// Bytes of sorted indices that are read at a time.
const WINDOW: usize = 1 << 20;

/// What is done to the table: the items, and where old values go.
pub(super) struct Update<'a, T> {
    pub(super) indices: &'a [usize],
    pub(super) values: &'a [T],
    /// As long as the indices, or empty if nobody wants to know.
    pub(super) old: &'a mut [T],
}

/// Buckets of one of both kinds.
enum Sorted<'a, P> {
    Index(ByIndex),
    Place(ByPlace<'a, P>),
}

impl<T: Pod> Rounds<T> {
    pub(super) fn new(world: &World, options: &Options) -> Result<Rounds<T>> {
        let window = (options.memory / 4).min(WINDOW);
        Ok(Rounds {
            pool: Pool::new(world, options.memory - window)?,
            reader: Reader::new(window, world.size()),
            verdicts: Verdicts::new(world)?,
        })
    }

    pub(super) fn memory(&self) -> usize {
        self.pool.memory() + self.reader.memory()
    }

    /// Buckets for a table: `most` of them unless there are more ranks. The same on every rank.
    fn buckets<'a, P: Places>(
        &self,
        world: &World,
        call: Call,
        places: &'a P,
        most: usize,
    ) -> Result<Sorted<'a, P>, Verdict> {
        let len = call.table.1;
        let table = Table { ranks: world.size(), len, size: size_of::<T>(), stretch: STRETCH, most };
        match ByIndex::new(table, places) {
            Ok(Some(buckets)) => Ok(Sorted::Index(buckets)),
            Ok(None) => ByPlace::new(table, places).map(Sorted::Place).ok_or(Verdict::TooLarge(len, self.memory())),
            Err(Nowhere { index, rank, local }) => Err(Verdict::Nowhere(index, rank, local)),
        }
    }

    /// Combines the values into the table, and tells what was there before if `FETCH`.
    pub(super) fn update<P: Places, const FETCH: bool>(
        &mut self,
        world: &World,
        call: Call,
        table: &mut Symmetric<T>,
        places: &P,
        update: Update<'_, T>,
        combine: impl Fn(T, T) -> T,
    ) -> Result<()> {
        let verdict =
            Verdict::of(places, update.indices, &[Some(update.values.len()), FETCH.then_some(update.old.len())]);
        match self.buckets(world, call, places, self.pool.buckets()) {
            Ok(Sorted::Index(buckets)) => {
                self.rounds::<P, _, FETCH>(world, call, table, places, &buckets, update, verdict, &combine)
            }
            Ok(Sorted::Place(buckets)) => {
                self.rounds::<P, _, FETCH>(world, call, table, places, &buckets, update, verdict, &combine)
            }
            Err(wrong) => {
                let wrong = if verdict.is_good() { wrong } else { verdict };
                self.verdicts
                    .exchange(world, call, wrong, false)
                    .map(drop)
                    .and(Err(wrong.error(call.operation, world.rank())))
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the one place where both kinds of buckets meet")]
    fn rounds<P: Places, B: Buckets, const FETCH: bool>(
        &mut self,
        world: &World,
        call: Call,
        table: &mut Symmetric<T>,
        places: &P,
        buckets: &B,
        update: Update<'_, T>,
        mut verdict: Verdict,
        combine: &impl Fn(T, T) -> T,
    ) -> Result<()> {
        let Update { indices, values, old } = update;
        let nowhere = |index| {
            let (rank, local) = places.place(index);
            Verdict::Nowhere(index, rank, local)
        };
        let mut done = 0;
        loop {
            let mut taken = 0;
            if verdict.is_good() {
                // SAFETY: nobody looks before the exchange, and all have looked before the barrier of the last round.
                match unsafe { self.pool.fill(buckets, &indices[done..], &values[done..]) } {
                    Ok(count) => taken = count,
                    Err(index) => verdict = nowhere(index),
                }
            }
            let end = done + taken;
            let more = verdict.is_good() && end < indices.len();
            let any = self.verdicts.exchange(world, call, verdict, more)?;
            self.apply::<P, B, FETCH>(world, table, places, buckets, combine);
            world.barrier()?;
            if FETCH {
                // SAFETY: the owners are done, as the barrier says.
                let traced = unsafe { self.pool.retrace(buckets, &indices[done..end], &mut old[done..end]) };
                traced.map_err(|index| nowhere(index).error(call.operation, world.rank()))?;
            }
            done = end;
            if !any {
                return Ok(());
            }
        }
    }

    /// Applies what is in all pools for this rank's part of the table.
    fn apply<P: Places, B: Buckets, const FETCH: bool>(
        &self,
        world: &World,
        table: &mut Symmetric<T>,
        places: &P,
        buckets: &B,
        combine: &impl Fn(T, T) -> T,
    ) {
        let (own, ranks) = (world.rank(), world.size());
        let (part, len) = (table.as_ptr_range().start, table.len());
        for bucket in buckets.of_rank(own) {
            let under = buckets.under(bucket);
            for from in (0..ranks).map(|step| (own + step) % ranks) {
                let pool = self.pool.of(from);
                // All pools were filled before the exchange, by the same buckets, and are left alone until the barrier. Of
                // this part nobody else knows, as long as the table is borrowed on all ranks.
                let update = |entry: usize, at: *mut T| {
                    // SAFETY: an entry of that pool, an element of this part.
                    unsafe {
                        let before = copy::load(at);
                        copy::store(at, combine(before, pool.values.add(entry).read()));
                        if FETCH {
                            pool.values.add(entry).write(before);
                        }
                    }
                };
                // SAFETY: entries of that pool.
                let offset = |entry: usize| unsafe { pool.offsets.add(entry).read() } as usize;
                match under {
                    Under::Stretch { start, .. } => {
                        // SAFETY: the start of a stretch of this part, and offsets inside it, as `Buckets::locate` made
                        // them.
                        unsafe {
                            let stretch = part.add(start);
                            pool.walk(bucket, |first, count| {
                                (first..first + count).for_each(|entry| update(entry, stretch.add(offset(entry))));
                            });
                        }
                    }
                    Under::Several { first: base } => {
                        // SAFETY: a bucket of that pool, and elements below the length.
                        unsafe {
                            pool.walk(bucket, |first, count| {
                                for entry in first..first + count {
                                    let (rank, local) = places.place(base + offset(entry));
                                    if rank == own && local < len {
                                        update(entry, part.add(local));
                                    }
                                }
                            });
                        }
                    }
                }
            }
        }
    }

    /// Reads the elements with these indices.
    pub(super) fn gather<P: Places>(
        &mut self,
        world: &World,
        call: Call,
        table: &Symmetric<T>,
        places: &P,
        indices: &[usize],
        values: &mut [T],
    ) -> Result<()> {
        let mut verdict = Verdict::of(places, indices, &[Some(values.len())]);
        let buckets = self.buckets(world, call, places, self.reader.buckets());
        if let (Err(wrong), true) = (&buckets, verdict.is_good()) {
            verdict = *wrong;
        }
        self.verdicts.exchange(world, call, verdict, false)?;
        let mut done = 0;
        while done < indices.len() {
            let (indices, values) = (&indices[done..], &mut values[done..]);
            let read = match &buckets {
                Ok(Sorted::Index(buckets)) => self.reader.read(table, places, buckets, indices, values),
                Ok(Sorted::Place(buckets)) => self.reader.read(table, places, buckets, indices, values),
                Err(wrong) => return Err(wrong.error(call.operation, world.rank())),
            };
            done += read.map_err(|index| {
                let why = format!("the layout has no element of the table for index {index}");
                Error::InvalidArgument { operation: call.operation, why }
            })?;
        }
        Ok(())
    }
}
