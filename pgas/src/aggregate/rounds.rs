//! Aggregation on ranks that map each other's memory: rounds of sort, barrier, apply, barrier.
//!
//! In a round each rank sorts as many of its items as its [`Pool`] holds into buckets. After a barrier each owner walks its
//! own buckets in all ranks' pools, directly in their memory, so no item is copied a second time. The stretch of the table
//! under a bucket stays in the owner's cache while all its items are applied. Only the owner writes its part, so it uses
//! plain loads and stores. After a second barrier the pools may be filled again.
//!
//! A gather has no rounds: after one exchange each rank reads by itself, either in the order asked for or sorted by place.
//! Which is faster depends on the machine and the data; [`Trial`] measures it.

use std::time::{Duration, Instant};

use bellwether_runtime::memory::copy;
use bellwether_runtime::{Pod, Result, Symmetric, World};

use super::buckets::{Buckets, ByIndex, ByPlace, Nowhere, Table, Under};
use super::options::Options;
use super::places::Places;
use super::pool::{ENTRIES_AHEAD, Offset, Pool, is_short};
use super::prefetch::{prefetch, prefetch_near};
use super::straight;
use super::trial::{Trial, Way};
use super::verdict::{Call, Verdict, Verdicts};

/// State that is kept from call to call.
pub(super) struct Rounds<T> {
    pool: Pool<T>,
    verdicts: Verdicts,
    trial: Trial,
}

/// Bytes of the table under one bucket: for elements of 8 bytes, the 65,536 that a 16-bit offset can name.
const STRETCH: usize = 512 << 10;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Entries between two prefetches of a pool. With values of 8 bytes these fill two cache lines.
const GROUP: usize = 16;
/// Most elements that are read between two lines prefetched.
const READ_MAX: usize = 8;

/// The items of an update, and where the old values go.
pub(super) struct Update<'a, T> {
    pub(super) indices: &'a [usize],
    pub(super) values: &'a [T],
    /// As long as `indices`, or empty if old values are not fetched.
    pub(super) old: &'a mut [T],
}

/// Buckets of either kind.
enum Sorted<'a, P> {
    Index(ByIndex),
    Place(ByPlace<'a, P>),
}

impl<T: Pod> Rounds<T> {
    pub(super) fn new(world: &World, options: &Options) -> Result<Rounds<T>> {
        Ok(Rounds {
            pool: Pool::new(world, options.memory)?,
            verdicts: Verdicts::new(world, true)?,
            trial: Trial::default(),
        })
    }

    pub(super) fn memory(&self) -> usize {
        self.pool.memory()
    }

    /// The buckets for a table. Every rank makes the same ones, or the exchange finds that they differ.
    fn buckets<'a, P: Places>(&self, world: &World, call: Call, places: &'a P) -> Result<Sorted<'a, P>, Verdict> {
        let (len, most) = (call.table.1, self.pool.buckets());
        let table = Table { ranks: world.size(), len, size: size_of::<T>(), stretch: STRETCH, most };
        match ByIndex::new(table, places) {
            Ok(Some(buckets)) => Ok(Sorted::Index(buckets)),
            Ok(None) => ByPlace::new(table, places).map(Sorted::Place).ok_or(Verdict::TooLarge(len, self.memory())),
            Err(Nowhere { index, rank, local }) => Err(Verdict::Nowhere(index, rank, local)),
        }
    }

    /// Combines the values into the table, and fetches the old values if `FETCH`. Collective.
    pub(super) fn update<P: Places, const FETCH: bool>(
        &mut self,
        world: &World,
        call: Call,
        table: &mut Symmetric<T>,
        places: &P,
        update: Update<'_, T>,
        combine: impl Fn(T, T) -> T,
    ) -> Result<()> {
        let lengths = [Some(update.values.len()), FETCH.then_some(update.old.len())];
        let verdict = Verdict::of_lengths(update.indices.len(), &lengths);
        match self.buckets(world, call, places) {
            Ok(Sorted::Index(buckets)) => {
                let call = call.sorted_by(&buckets);
                self.rounds::<P, _, FETCH>(world, call, table, places, &buckets, update, verdict, &combine)
            }
            Ok(Sorted::Place(buckets)) => {
                let call = call.sorted_by(&buckets);
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
        let mut done = 0;
        loop {
            let mut taken = 0;
            if verdict.is_good() {
                // SAFETY: other ranks read this pool only between the exchange and the barrier at the end of a round.
                match unsafe { self.pool.fill::<B, true>(buckets, &indices[done..], &values[done..]) } {
                    Ok(count) => taken = count,
                    Err(number) => verdict = Verdict::of_index(places, indices, done + number),
                }
                if done == 0 && verdict.is_good() {
                    verdict = Verdict::of_indices(places, indices, taken);
                }
            }
            let end = done + taken;
            let more = verdict.is_good() && end < indices.len();
            let any = self.verdicts.exchange(world, call, verdict, more)?;
            if is_short(buckets) {
                self.apply::<u16, P, B, FETCH>(world, table, places, buckets, combine);
            } else {
                self.apply::<u32, P, B, FETCH>(world, table, places, buckets, combine);
            }
            world.barrier()?;
            if FETCH {
                // SAFETY: all owners have entered the barrier, so they are done with this pool.
                let traced = unsafe { self.pool.retrace(buckets, &indices[done..end], &mut old[done..end]) };
                let wrong = |number| Verdict::of_index(places, indices, done + number);
                traced.map_err(|number| wrong(number).error(call.operation, world.rank()))?;
            }
            done = end;
            if !any {
                return Ok(());
            }
        }
    }

    /// Applies the entries of all pools that belong to this rank's part of the table.
    fn apply<O: Offset, P: Places, B: Buckets, const FETCH: bool>(
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
                let pool = self.pool.of::<O>(from);
                // All pools were filled before the exchange, which checked that all ranks' buckets have the same shape, and
                // stay unchanged until the barrier. No other rank accesses this part: the table is mutably borrowed on all
                // ranks.
                let update = |entry: usize, at: *mut T| {
                    // SAFETY: `entry` is in that pool, `at` in this part; only this rank accesses either now.
                    unsafe {
                        let before = copy::load(at);
                        copy::store(at, combine(before, pool.values.add(entry).read()));
                        if FETCH {
                            pool.values.add(entry).write(before);
                        }
                    }
                };
                // SAFETY: only called with entries of that pool or up to `ENTRIES_AHEAD` behind them, for which it has room.
                let offset = |entry: usize| unsafe { pool.offsets.add(entry).read() }.get();
                match under {
                    Under::Stretch { start, .. } => {
                        // SAFETY: `start` begins a stretch of this part. The sender's `Buckets::locate` made the offsets,
                        // and its buckets have the same shape as these, so they are inside the stretch. By that shape the
                        // bucket belongs to this rank alone, so only this rank accesses its entries.
                        unsafe {
                            let stretch = part.add(start);
                            pool.walk(bucket, |first, count| {
                                let end = first + count;
                                for group in (first..end).step_by(GROUP) {
                                    pool.ahead(group);
                                    for entry in group..end.min(group + GROUP) {
                                        // That offset may belong to no entry of this bucket: it is only prefetched.
                                        prefetch_near(stretch.wrapping_add(offset(entry + ENTRIES_AHEAD)));
                                        update(entry, stretch.add(offset(entry)));
                                    }
                                }
                            });
                        }
                    }
                    Under::Several { first: base } => {
                        // SAFETY: the bucket is in that pool, and `local < len` is checked. The layout decides each time
                        // which rank an entry belongs to. If it answers two ranks differently, both write the entry: hence
                        // the accesses by `copy`, which allow races.
                        unsafe {
                            pool.walk(bucket, |first, count| {
                                for entry in first..first + count {
                                    let (rank, local) = places.place(base + offset(entry));
                                    if rank == own && local < len {
                                        let (at, value) = (part.add(local), pool.values.add(entry));
                                        let before = copy::load(at);
                                        copy::store(at, combine(before, copy::load(value)));
                                        if FETCH {
                                            copy::store(value, before);
                                        }
                                    }
                                }
                            });
                        }
                    }
                }
            }
        }
    }

    /// Reads the elements with these indices. Collective.
    pub(super) fn gather<P: Places>(
        &mut self,
        world: &World,
        call: Call,
        table: &Symmetric<T>,
        places: &P,
        indices: &[usize],
        values: &mut [T],
    ) -> Result<()> {
        let verdict = Verdict::of_lengths(indices.len(), &[Some(values.len())]);
        match self.buckets(world, call, places) {
            Ok(Sorted::Index(buckets)) => {
                let call = call.sorted_by(&buckets);
                self.read(world, call, table, places, &buckets, indices, values, verdict)
            }
            Ok(Sorted::Place(buckets)) => {
                let call = call.sorted_by(&buckets);
                self.read(world, call, table, places, &buckets, indices, values, verdict)
            }
            Err(wrong) => {
                let wrong = if verdict.is_good() { wrong } else { verdict };
                let told = self.verdicts.exchange(world, call, wrong, false);
                told.map(drop).and(Err(wrong.error(call.operation, world.rank())))
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "as above")]
    fn read<P: Places, B: Buckets>(
        &mut self,
        world: &World,
        call: Call,
        table: &Symmetric<T>,
        places: &P,
        buckets: &B,
        indices: &[usize],
        values: &mut [T],
        verdict: Verdict,
    ) -> Result<()> {
        let way = self.trial.choose(table.len(), indices.len());
        let begin = Instant::now();
        let waited = match way {
            Way::Straight => self.read_straight(world, call, table, places, buckets, indices, values, verdict)?,
            Way::Sorted => self.read_sorted(world, call, table, places, buckets, indices, values, verdict)?,
        };
        self.trial.note(way, indices.len(), begin.elapsed().saturating_sub(waited));
        Ok(())
    }

    /// As [`Verdicts::exchange`]. Returns how long it took, which is mostly waiting for other ranks.
    fn meet(&mut self, world: &World, call: Call, verdict: Verdict) -> Result<Duration> {
        let begin = Instant::now();
        self.verdicts.exchange(world, call, verdict, false)?;
        Ok(begin.elapsed())
    }

    #[expect(clippy::too_many_arguments, reason = "as above")]
    fn read_straight<P: Places, B: Buckets>(
        &mut self,
        world: &World,
        call: Call,
        table: &Symmetric<T>,
        places: &P,
        buckets: &B,
        indices: &[usize],
        values: &mut [T],
        mut verdict: Verdict,
    ) -> Result<Duration> {
        if verdict.is_good() {
            verdict = Verdict::of_indices(places, indices, 0);
        }
        let wrong = |number| Verdict::of_index(places, indices, number);
        if verdict.is_good()
            && !buckets.has_all()
            && let Some(number) = indices.iter().position(|index| buckets.locate(*index).is_none())
        {
            verdict = wrong(number);
        }
        let waited = self.meet(world, call, verdict)?;
        straight::read(world, table, places, buckets, indices, values)
            .map_err(|number| wrong(number).error(call.operation, world.rank()))?;
        Ok(waited)
    }

    #[expect(clippy::too_many_arguments, reason = "as above")]
    fn read_sorted<P: Places, B: Buckets>(
        &mut self,
        world: &World,
        call: Call,
        table: &Symmetric<T>,
        places: &P,
        buckets: &B,
        indices: &[usize],
        values: &mut [T],
        mut verdict: Verdict,
    ) -> Result<Duration> {
        let mut done = 0;
        let mut is_first = true;
        let mut waited = Duration::ZERO;
        while is_first || done < indices.len() {
            let mut taken = 0;
            if verdict.is_good() {
                // SAFETY: other ranks read this pool in updates only, which end with a barrier.
                match unsafe { self.pool.fill::<B, false>(buckets, &indices[done..], &[]) } {
                    Ok(count) => taken = count,
                    Err(number) => verdict = Verdict::of_index(places, indices, done + number),
                }
            }
            if is_first {
                if verdict.is_good() {
                    verdict = Verdict::of_indices(places, indices, taken);
                }
                waited = self.meet(world, call, verdict)?;
                is_first = false;
            }
            if !verdict.is_good() {
                return Err(verdict.error(call.operation, world.rank()));
            }
            let end = done + taken;
            if is_short(buckets) {
                self.fetch::<u16, P, B>(world, table, places, buckets, taken)?;
            } else {
                self.fetch::<u32, P, B>(world, table, places, buckets, taken)?;
            }
            // SAFETY: as above.
            let traced = unsafe { self.pool.retrace(buckets, &indices[done..end], &mut values[done..end]) };
            let wrong = |number| Verdict::of_index(places, indices, done + number);
            traced.map_err(|number| wrong(number).error(call.operation, world.rank()))?;
            done = end;
        }
        Ok(waited)
    }

    /// Reads the `count` elements that this rank's pool names, stretch by stretch. If they are more than half as many as the
    /// table has cache lines, the whole next stretch is prefetched in order while this one is read: most of its lines are
    /// needed, and in order they come faster than at random.
    fn fetch<O: Offset, P: Places, B: Buckets>(
        &self,
        world: &World,
        table: &Symmetric<T>,
        places: &P,
        buckets: &B,
        count: usize,
    ) -> Result<()> {
        let own = self.pool.of::<O>(world.rank());
        let part = |rank| table.ptr(rank).expect("rounds are for ranks that are mapped");
        let lines = buckets.count() * buckets.stretch() * size_of::<T>() / LINE;
        let is_dense = 2 * count > lines;
        let group = (count / lines.max(1)).clamp(1, READ_MAX);
        for bucket in 0..buckets.count() {
            let mut ahead = match (bucket + 1 < buckets.count()).then(|| buckets.under(bucket + 1)) {
                Some(Under::Stretch { rank, start }) => part(rank).wrapping_add(start).cast::<u8>(),
                _ => std::ptr::null_mut(),
            };
            match buckets.under(bucket) {
                Under::Stretch { rank, start } => {
                    // SAFETY: these buckets filled this rank's pool, so its offsets are inside the stretch.
                    unsafe {
                        let stretch = part(rank).add(start);
                        own.walk(bucket, |first, count| {
                            let mut entry = first;
                            while entry < first + count {
                                let end = (entry + group).min(first + count);
                                if is_dense {
                                    prefetch(ahead);
                                    ahead = ahead.wrapping_add(LINE);
                                }
                                while entry < end {
                                    let at = stretch.add(own.offsets.add(entry).read().get());
                                    own.values.add(entry).write(copy::load(at));
                                    entry += 1;
                                }
                            }
                        });
                    }
                }
                Under::Several { first: base } => {
                    let mut outcome = Ok(());
                    // SAFETY: as above.
                    unsafe {
                        own.walk(bucket, |first, count| {
                            for entry in first..first + count {
                                let (rank, local) = places.place(base + own.offsets.add(entry).read().get());
                                match table.get(rank, local) {
                                    Ok(value) => own.values.add(entry).write(value),
                                    Err(error) => outcome = Err(error),
                                }
                            }
                        });
                    }
                    outcome?;
                }
            }
        }
        Ok(())
    }
}
