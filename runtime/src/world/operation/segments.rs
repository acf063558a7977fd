//! Operations with events on segments.

use std::sync::Arc;

use super::{Fetched, Operation, check_one_value};
use crate::engine::{Atomic, BY_ADDRESS, Engine, Events, Found, HeapRange, Step};
use crate::error::{Placed, Result};
use crate::memory::copy;
use crate::transport::AtomicOp;
use crate::world::reserved_segments::Reserved;
use crate::world::segment_atomics::{ATOMIC, Begun, Locate};
use crate::world::segments::Carried;
use crate::world::{AtomicElement, ReservedSegments, Segment, World};

impl Operation<'_> {
    /// Copies `source` to byte `offset` of segment `number` of `rank`, as [`World::put_segment`]. On the same node
    /// it is in effect on return, unless the kernel allows no cross-memory attach: then when the target has handled a message.
    ///
    /// # Errors
    /// As [`World::put_segment`]; as [`Operation::put`].
    #[track_caller]
    pub fn put_segment(self, rank: usize, number: u32, offset: usize, source: &[u8]) -> Result<()> {
        (|| -> Result<()> {
            let world = self.world;
            let engine = world.engine();
            let events = self.events(engine.identity())?;
            let carried = world.put_segment_by(rank, number, offset, source)?;
            world.track_carried(rank, "put to a segment", carried, events)
        })()
        .placed_here()
    }

    /// Copies `len` bytes from byte `offset` of segment `number` of `rank` to byte `at` of `into`, a segment of this rank, where they are at
    /// the effect event. Over a network it does not wait for them, unless it has to look the segment up; on the same node they are
    /// here on return, as of [`World::get_segment`]. Closing `into` waits for them. Over a network 256 KiB and more
    /// are not copied, and fewer bytes once, from memory of the network's.
    ///
    /// # Errors
    /// As [`World::get_segment`]; [`Error::OutOfBounds`](crate::Error::OutOfBounds) and [`Error::NoSegment`](crate::Error::NoSegment) of `into`, the latter if it is
    /// of another world; as [`Operation::put`].
    #[track_caller]
    pub fn get_segment(
        self,
        rank: usize,
        number: u32,
        offset: usize,
        into: &Segment,
        at: usize,
        len: usize,
    ) -> Result<()> {
        (|| -> Result<()> {
            const NAME: &str = "get from a segment";
            let world = self.world;
            let engine = world.engine();
            let (to, filled) = into.destination(NAME, engine, at, len)?;
            let Events { source, effect, handled } = self.events(engine.identity())?;
            let all = source.into_iter().chain(effect).chain(handled).collect();
            if engine.routes.is_mapped(rank) {
                // SAFETY: bytes of an open segment of this rank.
                unsafe { world.get_mapped::<true>(rank, number, offset, to, len) }?;
                engine.happened(all, Ok(()));
                return Ok(());
            }
            let located = world.locate_segment(NAME, rank, number, offset, len)?;
            // Each request looks the key up anew, so that none uses it after this rank has forgotten it.
            let range = HeapRange { rank, offset: located.remote, len };
            // SAFETY: in bounds of an open segment, whose close waits for this.
            unsafe { engine.get_into(NAME, range, to, [None; 2], Some(filled), all) };
            Ok(())
        })()
        .placed_here()
    }

    /// Does an atomic with `value`, not [`AtomicOp::CompareSwap`], on the word at byte `offset` of segment `number` of `rank`, as
    /// [`World::fetch_segment`]. At the effect event the result has the former value.
    ///
    /// # Errors
    /// As [`World::fetch_segment`], and inside a handler [`Error::InsideHandler`](crate::Error::InsideHandler) only for a segment that this rank
    /// has not used before; as [`Operation::put`].
    #[track_caller]
    pub fn fetch_segment<T: AtomicElement>(
        self,
        op: AtomicOp,
        rank: usize,
        number: u32,
        offset: usize,
        value: T,
    ) -> Result<Fetched<T>> {
        (|| -> Result<Fetched<T>> {
            check_one_value(op)?;
            self.change_segment(World::locate_segment_by, op, (rank, number, offset), [value, T::zeroed()])
        })()
        .placed_here()
    }

    /// Stores `new` in the word at byte `offset` of segment `number` of `rank` if that is `expected`. As [`Operation::fetch_segment`].
    ///
    /// # Errors
    /// As [`Operation::fetch_segment`].
    #[track_caller]
    pub fn compare_swap_segment<T: AtomicElement>(
        self,
        rank: usize,
        number: u32,
        offset: usize,
        expected: T,
        new: T,
    ) -> Result<Fetched<T>> {
        let (at, values) = ((rank, number, offset), [new, expected]);
        self.change_segment(World::locate_segment_by, AtomicOp::CompareSwap, at, values).placed_here()
    }

    /// Copies `source` to byte `offset` of segment 0 or 1 of `rank`, as [`ReservedSegments::put`].
    ///
    /// # Errors
    /// As [`ReservedSegments::put`]; as [`Operation::put`].
    #[track_caller]
    pub fn put_reserved(
        self,
        reserved: &ReservedSegments<'_>,
        rank: usize,
        number: u32,
        offset: usize,
        source: &[u8],
    ) -> Result<()> {
        (|| -> Result<()> {
            let engine = self.world.engine();
            reserved.check_of(engine)?;
            let events = self.events(engine.identity())?;
            reserved.put(rank, number, offset, source)?;
            engine.track_put(rank, "put to a reserved segment", events);
            Ok(())
        })()
        .placed_here()
    }

    /// Copies `len` bytes from byte `offset` of segment 0 or 1 of `rank` to byte `at` of `into`, a segment of this rank, as
    /// [`Operation::get_segment`].
    ///
    /// # Errors
    /// As [`ReservedSegments::get`]; as [`Operation::get_segment`].
    #[track_caller]
    pub fn get_reserved(
        self,
        reserved: &ReservedSegments<'_>,
        (rank, number, offset): (usize, u32, usize),
        into: &Segment,
        at: usize,
        len: usize,
    ) -> Result<()> {
        (|| -> Result<()> {
            const NAME: &str = "get from a reserved segment";
            let world = self.world;
            let engine = world.engine();
            reserved.check_of(engine)?;
            let (to, filled) = into.destination(NAME, engine, at, len)?;
            let Events { source, effect, handled } = self.events(engine.identity())?;
            let all = source.into_iter().chain(effect).chain(handled).collect();
            engine.check_outside_handler(NAME)?;
            engine.poll()?;
            let located = world.locate_reserved(NAME, (rank, number), offset, len, Engine::find_segment)?;
            match world.access_reserved(NAME, (rank, number), located, len)? {
                Reserved::Here(from) => {
                    // SAFETY: bytes of a reserved segment that may be read, and of an open segment of this rank. The two may overlap.
                    unsafe { copy::between(to, from, len) };
                    engine.happened(all, Ok(()));
                }
                Reserved::Network(offset) => {
                    // SAFETY: in bounds of an open segment, whose close waits for this.
                    unsafe { engine.get_into(NAME, HeapRange { rank, offset, len }, to, [None; 2], Some(filled), all) };
                }
            }
            Ok(())
        })()
        .placed_here()
    }

    /// Does an atomic with `value`, not [`AtomicOp::CompareSwap`], on the word at byte `offset` of segment 0 or 1 of `rank`, as
    /// [`ReservedSegments::fetch`]. At the effect event the result has the former value.
    ///
    /// # Errors
    /// As [`ReservedSegments::fetch`]; as [`Operation::put`].
    #[track_caller]
    pub fn fetch_reserved<T: AtomicElement>(
        self,
        op: AtomicOp,
        reserved: &ReservedSegments<'_>,
        (rank, number, offset): (usize, u32, usize),
        value: T,
    ) -> Result<Fetched<T>> {
        (|| -> Result<Fetched<T>> {
            check_one_value(op)?;
            reserved.check_of(self.world.engine())?;
            self.change_segment(World::locate_reserved, op, (rank, number, offset), [value, T::zeroed()])
        })()
        .placed_here()
    }

    /// Stores `new` in the word at byte `offset` of segment 0 or 1 of `rank` if that is `expected`. As [`Operation::fetch_reserved`].
    ///
    /// # Errors
    /// As [`Operation::fetch_reserved`].
    #[track_caller]
    pub fn compare_swap_reserved<T: AtomicElement>(
        self,
        reserved: &ReservedSegments<'_>,
        at: (usize, u32, usize),
        expected: T,
        new: T,
    ) -> Result<Fetched<T>> {
        (|| -> Result<Fetched<T>> {
            reserved.check_of(self.world.engine())?;
            self.change_segment(World::locate_reserved, AtomicOp::CompareSwap, at, [new, expected])
        })()
        .placed_here()
    }

    fn change_segment<T: AtomicElement>(
        self,
        locate: Locate,
        op: AtomicOp,
        at: (usize, u32, usize),
        values: [T; 2],
    ) -> Result<Fetched<T>> {
        self.change_word(ATOMIC, at, |world| world.begin_change(locate, op, at, values))
    }

    /// Does an atomic that `begin` begins on the word that `at` names.
    pub(super) fn change_word<T: AtomicElement>(
        self,
        doing: &'static str,
        (rank, number, offset): (usize, u32, usize),
        begin: impl FnOnce(&World) -> Result<Begun<T>>,
    ) -> Result<Fetched<T>> {
        let world = self.world;
        let engine = world.engine();
        let Events { mut source, mut effect, mut handled } = self.events(engine.identity())?;
        effect.append(&mut handled);
        let found: Arc<Found> = Arc::default();
        let fetched = Fetched { found: Arc::clone(&found), narrow: T::narrow };
        match begin(world)? {
            Begun::Done(before) => {
                found.set(before.widen());
                source.append(&mut effect);
                engine.happened(source, Ok(()));
            }
            Begun::Network(remote, change) => {
                let atomic = Atomic::unclaimed(rank, remote, change);
                engine.tasks.track(rank, doing, Step::Atomic { atomic, found }, effect);
                engine.happened(source, Ok(()));
                engine.begin_tracked();
            }
            Begun::Owner(change) => {
                world.messages().ask_owner(rank, (number, offset), Some(change), Some(found), effect)?;
                engine.happened(source, Ok(()));
            }
        }
        Ok(fetched)
    }
}

impl World {
    /// The events of a put that was carried so.
    pub(super) fn track_carried(
        &self,
        rank: usize,
        doing: &'static str,
        carried: Carried,
        mut events: Events,
    ) -> Result<()> {
        let engine = self.engine();
        if carried != Carried::Message {
            engine.track_put(rank, doing, events);
            return Ok(());
        }
        let mut effect = std::mem::take(&mut events.effect);
        effect.append(&mut events.handled);
        if !effect.is_empty() {
            self.messages().ask_owner(rank, (BY_ADDRESS, 0), None, None, effect)?;
        }
        engine.happened(events.source, Ok(()));
        Ok(())
    }
}
