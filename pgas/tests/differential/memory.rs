//! Plain memory of elements of 0 to 64 bytes: puts, gets and atomics, at once and as futures, of one element, of slices, of pieces,
//! with bells and signals, and by pointers.

use std::collections::BTreeSet;

use bellwether::{Bell, GlobalPtr, GlobalSlice, Piece, Pod, Posted, Result, Symmetric, Word, World};

use crate::common::is_full;
use crate::plan::{Plan, Under, many, nothing, one};
use crate::{TURNS, ranks, turn};

/// Elements at each rank that one rank acts on.
pub const PART: usize = 24;
/// Parts of these, of which each future of a batch has one.
const CELL: usize = 6;

/// Seeds that are always tried. All parts come with more than one rank among them.
pub const SEEDS: u64 = 6;
/// Bytes of an element: all sizes up to this.
const LARGEST: usize = 64;

/// What one type of elements does.
struct Part {
    name: String,
    /// The size of elements whose puts and gets it makes.
    bytes: Option<usize>,
    run: fn(&World, &mut Plan) -> Result<()>,
}

impl Part {
    fn of<T>(run: fn(&World, &mut Plan) -> Result<()>) -> Part {
        let bytes = size_of::<T>();
        Part { name: format!("{bytes} bytes"), bytes: Some(bytes), run }
    }

    fn named(name: &str, run: fn(&World, &mut Plan) -> Result<()>) -> Part {
        Part { name: name.into(), bytes: None, run }
    }
}

/// A part for each of these types, and for arrays of so many bytes.
macro_rules! sizes {
    ($($type:ty),*; $($bytes:literal)*) => {
        vec![
            Part::of::<()>(plain::<()>),
            $(Part::of::<$type>(sized::<$type>),)*
            $(Part::of::<[u8; $bytes]>(sized::<[u8; $bytes]>),)*
        ]
    };
}

/// Atomics at once and as futures, and updates.
macro_rules! atomics {
    ($type:ty, $world:expr, $plan:expr) => {{
        let (world, plan) = ($world, $plan);
        let memory = Memory::<$type>::new(world, plan)?;
        let data = &memory.data;
        let first = PART * world.rank();
        for _ in 0..4 * plan.effort {
            let Aim { rank, start, .. } = aim(world, plan, first, PART);
            let (value, way): ($type, _) = (plan.value(), plan.own.below(7));
            let outcome = match way {
                0 => data.fetch_add(rank, start, value),
                1 => data.fetch_and(rank, start, value),
                2 => data.fetch_or(rank, start, value),
                3 => data.fetch_xor(rank, start, value),
                4 => data.swap(rank, start, value),
                // The second is what is there.
                5 => data.compare_swap(rank, start, 5, value),
                _ => data.get(rank, start).and_then(|there| data.compare_swap(rank, start, there, value)),
            };
            plan.note(format!("atomic {way} at {rank}, {start}"), outcome.map(one));
        }
        let mut under = Vec::new();
        for cell in cells(world) {
            let Aim { rank, start, .. } = aim(world, plan, cell, CELL);
            let (value, way): ($type, _) = (plan.value(), plan.own.below(6));
            let posted = match way {
                0 => data.fetch_add_async(rank, start, value),
                1 => data.fetch_and_async(rank, start, value),
                2 => data.fetch_or_async(rank, start, value),
                3 => data.fetch_xor_async(rank, start, value),
                4 => data.swap_async(rank, start, value),
                _ => data.compare_swap_async(rank, start, 5, value),
            };
            under.push(plan.under(format!("atomic {way} at {rank}, {start}, as a future"), posted, one));
        }
        plan.wait_for(world, under)?;
        memory.tell(world, plan)?;
        updates(world, plan, <$type>::wrapping_mul, |bits| bits as $type)
    }};
}

fn parts() -> Vec<Part> {
    let mut parts: Vec<Part> = sizes![
        u8, u16, u32, u64, [u32; 3], [u64; 2], [u64; 3], [u64; 4], [u64; 6], [u64; 8];
        3 5 6 7 9 10 11 13 14 15 17 18 19 20 21 22 23 25 26 27 28 29 30 31 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47
        49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
    ];
    parts.extend([
        Part::named("atomics of u32", |world, plan| atomics!(u32, world, plan)),
        Part::named("atomics of i64", |world, plan| atomics!(i64, world, plan)),
        Part::named("atomics of u64", |world, plan| atomics!(u64, world, plan)),
        Part::named("updates of f32", |world, plan| {
            updates(world, plan, |a: f32, b| a.max(b), |bits| (bits % 1000) as f32)
        }),
        Part::named("updates of f64", |world, plan| {
            updates(world, plan, |a: f64, b| a.min(b), |bits| (bits % 1000) as f64)
        }),
    ]);
    parts
}

/// The parts of a seed: seeds in a row with more than one rank share them out. Of those that take long, without `ROWS_FULL`, two.
fn chosen(seed: u64, effort: usize, is_full: bool) -> Vec<Part> {
    let mut parts: Vec<Part> = parts().into_iter().skip(turn(seed)).step_by(TURNS).collect();
    if effort == 1 && !is_full {
        let shift = seed as usize % parts.len();
        parts.rotate_left(shift);
        parts.truncate(2);
    }
    parts
}

pub fn script(world: &World, plan: &mut Plan) -> Result<()> {
    for part in chosen(plan.seed, plan.effort, is_full()) {
        plan.about(part.name);
        (part.run)(world, plan)?;
    }
    Ok(())
}

#[test]
fn every_size_is_compared_between_ranks() {
    let sizes: BTreeSet<usize> = parts().iter().filter_map(|part| part.bytes).collect();
    assert_eq!(sizes, (0..=LARGEST).collect());
    // Whole runs, with and without `ROWS_FULL`, and with it those of fragments of a byte.
    for (effort, is_full) in [(3, true), (2, false), (1, true)] {
        let come: BTreeSet<String> = (1..=SEEDS)
            .filter(|seed| ranks(*seed) > 1)
            .flat_map(|seed| chosen(seed, effort, is_full).into_iter().map(|part| part.name))
            .collect();
        let missing: Vec<String> =
            parts().into_iter().map(|part| part.name).filter(|name| !come.contains(name)).collect();
        assert!(missing.is_empty(), "never compared between ranks: {missing:?}");
    }
}

/// Where a call goes, and how far: nearly always inside what this rank acts on.
#[derive(Debug, Clone, Copy)]
pub struct Aim {
    pub rank: usize,
    pub start: usize,
    pub count: usize,
}

pub fn aim(world: &World, plan: &mut Plan, first: usize, most: usize) -> Aim {
    let rank = plan.rank(world);
    let len = PART * world.size();
    match plan.own.below(30) {
        // Too many, from an element that is this rank's to act on.
        0 => Aim { rank, start: first, count: len - first + 1 + plan.own.below(3) },
        1 => Aim { rank, start: usize::MAX - plan.own.below(2), count: plan.own.below(4) },
        2 => Aim { rank, start: len + plan.own.below(2), count: plan.own.below(2) },
        _ => {
            let within = plan.own.below(most);
            Aim { rank, start: first + within, count: plan.own.below(most - within + 1) }
        }
    }
}

/// What there is of one type.
pub struct Memory<T> {
    pub data: Symmetric<T>,
    /// As long, and only read.
    pub source: Symmetric<T>,
    pub signals: Symmetric<u64>,
    pub bell: Bell,
}

impl<T: Pod> Memory<T> {
    pub fn new(world: &World, plan: &mut Plan) -> Result<Memory<T>> {
        let len = PART * world.size();
        let (data, source) = (world.alloc::<T>(len)?, world.alloc::<T>(len)?);
        source.write(0, &plan.values(len));
        data.write(0, &plan.values(len));
        let memory = Memory { data, source, signals: world.alloc(2)?, bell: world.bell()? };
        world.barrier()?;
        Ok(memory)
    }

    /// What came of it all, once it is in effect everywhere.
    pub fn tell(&self, world: &World, plan: &mut Plan) -> Result<()> {
        world.barrier()?;
        let mut here: Vec<T> = plan.values(self.data.len());
        self.data.read(0, &mut here);
        plan.note("what is here", Ok(many(here)));
        plan.note("rings", self.bell.count().map(one));
        plan.note("signals", Ok(many(vec![self.signals.signals(0), self.signals.signals(1)])));
        world.barrier()
    }
}

/// What memory of any elements can do, also of none.
fn plain<T: Pod>(world: &World, plan: &mut Plan) -> Result<()> {
    let memory = Memory::<T>::new(world, plan)?;
    by_rank(world, plan, &memory)?;
    memory.tell(world, plan)
}

fn by_rank<T: Pod>(world: &World, plan: &mut Plan, memory: &Memory<T>) -> Result<()> {
    for _ in 0..6 * plan.effort {
        at_once(world, plan, memory);
    }
    for _ in 0..plan.effort {
        let under = cells(world).map(|cell| future(world, plan, &memory.data, cell)).collect();
        plan.wait_for(world, under)?;
    }
    Ok(())
}

fn cells(world: &World) -> impl Iterator<Item = usize> + use<> {
    let first = PART * world.rank();
    (first..first + PART).step_by(CELL)
}

fn at_once<T: Pod>(world: &World, plan: &mut Plan, memory: &Memory<T>) {
    let Memory { data, source, signals, bell } = memory;
    let at = aim(world, plan, PART * world.rank(), PART);
    let Aim { rank, start, count } = at;
    let values: Vec<T> = plan.values(count);
    let value: T = plan.value();
    match plan.own.below(11) {
        0 => plan.note_put(world, format!("put {at:?}"), data.put(rank, start, value)),
        1 => plan.note(format!("get {at:?}"), data.get(rank, start).map(one)),
        2 => plan.note_put(world, format!("put_slice {at:?}"), data.put_slice(rank, start, &values)),
        3 => {
            let mut values = values;
            let outcome = data.get_slice(rank, start, &mut values);
            plan.note(format!("get_slice {at:?}"), outcome.map(nothing));
            plan.note("it", Ok(many(values)));
        }
        4 => {
            // As many as are meant, also if there are fewer.
            let end = (count + plan.own.below(PART)).min(source.len() + plan.own.below(2)).max(count);
            let from = end - count..end;
            let outcome = data.put_from(rank, start, source, from.clone());
            plan.note_put(world, format!("put_from {from:?} {at:?}"), outcome);
        }
        5 => plan.note_put(world, format!("put_bell {at:?}"), data.put_bell(rank, start, value, bell)),
        6 => {
            plan.note_put(world, format!("put_slice_bell {at:?}"), data.put_slice_bell(rank, start, &values, bell));
        }
        7 => {
            let word = plan.own.below(2) + usize::from(plan.own.below(20) == 0);
            let outcome = data.put_slice_signal(rank, start, &values, signals, word);
            plan.note_put(world, format!("put_slice_signal {at:?}, word {word}"), outcome);
        }
        8 => plan.note_put(world, format!("ring {rank}"), bell.ring(rank)),
        9 => {
            let pieces = pieces(world, plan, PART * world.rank(), PART);
            let mut values: Vec<T> = wrong_now_and_then(plan, listed(&pieces));
            plan.note(format!("get_pieces {pieces:?}"), data.get_pieces(&pieces, &mut values).map(nothing));
            plan.note("them", Ok(many(values)));
        }
        _ => {
            let pieces = pieces(world, plan, PART * world.rank(), PART);
            let values: Vec<T> = wrong_now_and_then(plan, listed(&pieces));
            plan.note_put(world, format!("put_pieces {pieces:?}"), data.put_pieces(&pieces, &values));
        }
    }
}

/// Pieces that do not overlap: nobody says which of two puts to one place comes last.
pub fn pieces(world: &World, plan: &mut Plan, first: usize, most: usize) -> Vec<Piece> {
    let mut start = first;
    let mut pieces = Vec::new();
    while start < first + most && pieces.len() < 5 {
        let count = plan.own.below(first + most - start + 1).min(4);
        let rank = plan.rank(world);
        let far = plan.own.below(40) == 0;
        pieces.push(Piece { rank, start: if far { usize::MAX } else { start }, count });
        start += count + plan.own.below(2) * plan.own.below(3);
    }
    pieces
}

/// So many values; now and then one too many.
fn wrong_now_and_then<T: Pod>(plan: &mut Plan, count: usize) -> Vec<T> {
    let more = usize::from(plan.own.below(20) == 0);
    plan.values(count + more)
}

pub fn listed(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.count).sum()
}

/// Of the elements of this cell, which no other future has.
fn future<T: Pod>(world: &World, plan: &mut Plan, data: &Symmetric<T>, cell: usize) -> Under {
    let at = aim(world, plan, cell, CELL);
    let Aim { rank, start, count } = at;
    let values: Vec<T> = plan.values(count);
    let value: T = plan.value();
    match plan.own.below(7) {
        0 => plan.under(format!("get_async {at:?}"), data.get_async(rank, start), one),
        1 => plan.under(format!("put_async {at:?}"), data.put_async(rank, start, value), nothing),
        2 => plan.under(format!("put_slice_async {at:?}"), data.put_slice_async(rank, start, &values), nothing),
        3 => {
            let pieces = pieces(world, plan, cell, CELL);
            plan.under(format!("get_pieces_async {pieces:?}"), data.get_pieces_async(&pieces), many)
        }
        4 => {
            let pieces = pieces(world, plan, cell, CELL);
            let values: Vec<T> = plan.values(listed(&pieces));
            plan.under(format!("put_pieces_async {pieces:?}"), data.put_pieces_async(&pieces, &values), nothing)
        }
        5 => {
            // More than there is, also where elements have no bytes.
            let count = usize::MAX - plan.own.below(2);
            plan.under(format!("get_slice_async {at:?} of {count}"), data.get_slice_async(rank, start, count), many)
        }
        _ => plan.under(format!("get_slice_async {at:?}"), data.get_slice_async(rank, start, count), many),
    }
}

/// As [`plain`], and by pointers, which only elements with bytes have.
fn sized<T: Pod>(world: &World, plan: &mut Plan) -> Result<()> {
    let memory = Memory::<T>::new(world, plan)?;
    by_rank(world, plan, &memory)?;
    for _ in 0..4 * plan.effort {
        by_pointer(world, plan, &memory.data)?;
    }
    let mut under = Vec::new();
    for cell in cells(world) {
        by_future(world, plan, &memory.data, cell, &mut under)?;
    }
    plan.wait_for(world, under)?;
    memory.tell(world, plan)
}

/// Start, stride and count; now and then far too large ones.
fn steps(plan: &mut Plan, len: usize) -> [usize; 3] {
    let (start, stride) = (plan.own.below(len + 1), plan.own.below(4));
    match plan.own.below(12) {
        0 => [start, usize::MAX - plan.own.below(2), plan.own.below(4)],
        1 => [start, stride, usize::MAX / 2 + plan.own.below(3)],
        2 => [usize::MAX, stride, plan.own.below(3)],
        3 => [0, 0, usize::MAX],
        4 => [start, usize::MAX / 3 + 1, 4],
        _ => [start, stride, (len - start).div_ceil(stride.max(1))],
    }
}

fn slice<T: Pod>(
    world: &World,
    plan: &mut Plan,
    data: &Symmetric<T>,
    first: usize,
    len: usize,
) -> Result<GlobalSlice<T>> {
    let rank = plan.rank(world);
    let start = GlobalPtr::to(data, rank, first)?;
    Ok(match plan.own.below(20) {
        // They end behind the memory.
        0 => start.add(PART * world.size()).slice(len),
        1 => start.slice(usize::MAX - plan.own.below(2)),
        _ => start.slice(len),
    })
}

fn by_pointer<T: Pod>(world: &World, plan: &mut Plan, data: &Symmetric<T>) -> Result<()> {
    let slice = slice(world, plan, data, PART * world.rank(), PART)?;
    // A value for each of the elements that are meant, not for those of a slice that is too long.
    let count = slice.len().min(PART) - plan.own.below(2) * plan.own.below(2);
    let values: Vec<T> = plan.values(count);
    let name = |call: &str| {
        format!("{call} at rank {}, element {}, of {}", slice.start().rank(), slice.start().index(), slice.len())
    };
    match plan.own.below(8) {
        0 => plan.note(name("slice get"), slice.get(world).map(many)),
        1 => plan.note_put(world, name("slice put"), slice.put(world, &values)),
        2 => {
            let mut values = values;
            plan.note(name("get_into"), slice.get_into(world, &mut values).map(nothing));
            plan.note("it", Ok(many(values)));
        }
        3 => {
            let [start, stride, count] = steps(plan, PART);
            let outcome = slice.get_strided(world, start, stride, count).map(many);
            plan.note(format!("{} [{start}, {stride}, {count}]", name("get_strided")), outcome);
        }
        4 => {
            let [start, stride, count] = steps(plan, PART);
            // With a stride of 0 any of the values stays.
            let values: Vec<T> = plan.values(if stride == 0 { count.min(1) } else { count.min(PART) });
            let outcome = slice.put_strided(world, start, stride, &values);
            plan.note_put(world, format!("{} [{start}, {stride}, {}]", name("put_strided"), values.len()), outcome);
        }
        5 => {
            let numbers = numbers(plan, PART);
            plan.note(format!("{} {numbers:?}", name("gather")), slice.gather(world, &numbers).map(many));
        }
        6 => {
            let numbers = numbers(plan, PART);
            let values: Vec<T> = wrong_now_and_then(plan, numbers.len());
            plan.note_put(world, format!("{} {numbers:?}", name("scatter")), slice.scatter(world, &numbers, &values));
        }
        _ => {
            let at = slice.start();
            plan.note(name("pointer get"), at.get(world).map(one));
            plan.note_put(world, name("pointer put"), at.put(world, plan_value(&values)));
        }
    }
    Ok(())
}

/// Some value: the first, or zeros.
fn plan_value<T: Pod>(values: &[T]) -> T {
    values.first().copied().unwrap_or_else(T::zeroed)
}

/// Numbers of elements, each once; now and then one that there is not.
pub fn numbers(plan: &mut Plan, len: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..len).collect();
    for _ in 0..plan.own.below(len) {
        numbers.swap_remove(plan.own.below(numbers.len()));
    }
    if plan.own.below(15) == 0 {
        numbers.push([len, usize::MAX][plan.own.below(2)]);
    }
    numbers
}

fn by_future<T: Pod>(
    world: &World,
    plan: &mut Plan,
    data: &Symmetric<T>,
    cell: usize,
    under: &mut Vec<Under>,
) -> Result<()> {
    let slice = slice(world, plan, data, cell, CELL)?;
    let at = format!("at rank {}, element {}, of {}", slice.start().rank(), slice.start().index(), slice.len());
    let [start, stride, count] = steps(plan, CELL);
    let steps = format!("[{start}, {stride}, {count}] {at}");
    let numbers = numbers(plan, CELL);
    match plan.own.below(6) {
        0 => added(plan, under, format!("slice get_async {at}"), slice.get_async(world), many),
        1 => {
            let values: Vec<T> = plan.values(slice.len().min(CELL));
            added(plan, under, format!("slice put_async {at}"), slice.put_async(world, &values), nothing);
        }
        2 => {
            let posted = slice.get_strided_async(world, start, stride, count);
            added(plan, under, format!("get_strided_async {steps}"), posted, many);
        }
        3 => {
            let values: Vec<T> = plan.values(if stride == 0 { count.min(1) } else { count.min(CELL) });
            let posted = slice.put_strided_async(world, start, stride, &values);
            added(plan, under, format!("put_strided_async {steps}"), posted, nothing);
        }
        4 => {
            let posted = slice.gather_async(world, &numbers);
            added(plan, under, format!("gather_async {numbers:?} {at}"), posted, many);
        }
        _ => {
            let values: Vec<T> = plan.values(numbers.len());
            let posted = slice.scatter_async(world, &numbers, &values);
            added(plan, under, format!("scatter_async {numbers:?} {at}"), posted, nothing);
        }
    }
    Ok(())
}

/// A future, or the error that came in its place.
pub fn added<R: 'static>(
    plan: &mut Plan,
    under: &mut Vec<Under>,
    what: String,
    posted: Result<Posted<R>>,
    show: fn(R) -> String,
) {
    match posted {
        Ok(posted) => under.push(plan.under(what, posted, show)),
        Err(error) => plan.note(what, Err(error)),
    }
}

/// Updates by any function, at once and as futures.
fn updates<T: Word>(world: &World, plan: &mut Plan, combine: fn(T, T) -> T, value: fn(u64) -> T) -> Result<()> {
    let data = world.alloc::<T>(PART * world.size())?;
    data.write(0, &(0..data.len() as u64).map(value).collect::<Vec<T>>());
    world.barrier()?;
    for _ in 0..2 * plan.effort {
        let Aim { rank, start, .. } = aim(world, plan, PART * world.rank(), PART);
        let new = value(plan.own.next());
        let outcome = data.fetch_update(rank, start, |old| combine(old, new));
        plan.note(format!("fetch_update at {rank}, {start}"), outcome.map(one));
    }
    let mut under = Vec::new();
    for cell in cells(world) {
        let Aim { rank, start, .. } = aim(world, plan, cell, CELL);
        let new = value(plan.own.next());
        let posted = data.fetch_update_async(rank, start, move |old| combine(old, new));
        under.push(plan.update(format!("fetch_update_async at {rank}, {start}"), posted, one));
    }
    plan.wait_for(world, under)?;
    world.barrier()?;
    let mut here: Vec<T> = vec![value(0); data.len()];
    data.read(0, &mut here);
    plan.note("what is here", Ok(many(here)));
    world.barrier()
}
