//! Elements of one-dimensional arrays in mapped memory: by one multiplication, or by none.

use std::ptr::NonNull;

use bellwether_runtime::memory::joined::Joined;
use bellwether_runtime::memory::limits::page_size;
use bellwether_runtime::{Pod, Symmetric};

use super::layout::{Axis, Stretch};
use super::tables;

/// Where the elements are.
///
/// Elements are contiguous if there is one part, or if all parts are mapped one after the other ([`Flat::join`]). Otherwise the
/// address is a linear function of the index and of its quotient by a fixed number. With blocks of `b` elements whose parts are
/// `stride` bytes apart, element `i` is at `base + i * size + i / b * (stride - b * size)`. Dealt out one by one to `p` parts it is at
/// `base + i * stride + i / p * (size - p * stride)`. A block layout may have two kinds of blocks, one after the other. If
/// `p` parts get blocks of `b` in turn, `i / (b * p)` times `b * size - p * stride` is added. Parts of any sizes are found in a table.
#[derive(Debug)]
pub(super) struct Flat {
    /// Elements with indices below this are contiguous from `start` on. This needs no division and no branch: a put is as short as
    /// one to symmetric memory.
    straight: usize,
    start: *mut u8,
    /// Indices below this are in the second half, in blocks of one kind, which needs one multiplication less than the others.
    even: usize,
    /// Indices below this are in one of the halves. 0: none is.
    limit: usize,
    /// Indices below this are in the first half.
    boundary: usize,
    halves: [Half; 2],
    uneven: Uneven,
    /// The mapping that `start` points into, if it is not the array's own memory.
    joined: Option<Joined>,
}

/// In a cache line of its own, so that the address of the second half is found by a shift.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Half {
    /// The first index.
    start: usize,
    /// 2^64 / divisor, rounded up.
    inverse: u64,
    /// Where the first element is.
    base: *mut u8,
    /// Bytes from one index to the next, with the same quotient.
    each: usize,
    /// Bytes more from one quotient to the next.
    turn: usize,
    /// The same again, for a larger divisor. 0: for none.
    second_inverse: u64,
    second_turn: usize,
}

const NO_HALF: Half =
    Half { start: 0, inverse: 0, base: std::ptr::null_mut(), each: 0, turn: 0, second_inverse: 0, second_turn: 0 };

/// Parts of any sizes. Indices are cut into chunks of a power of two, no longer than the shortest part: at most one part
/// ends inside a chunk.
#[derive(Debug, Default)]
struct Uneven {
    /// Indices below it are found here.
    extent: usize,
    shift: u32,
    chunks: Box<[Chunk]>,
}

#[derive(Debug, Clone, Copy)]
struct Chunk {
    /// Where index 0 would be, counted by the part that the chunk begins in, and by the next one.
    bases: [*mut u8; 2],
    /// Where the next one begins.
    next: usize,
}

impl Flat {
    /// Nothing is reached this way.
    pub fn none() -> Flat {
        let (start, halves, uneven) = (std::ptr::null_mut(), [NO_HALF; 2], Uneven::default());
        Flat { straight: 0, start, even: 0, limit: 0, boundary: 0, halves, uneven, joined: None }
    }

    /// For an array of this memory, whose elements lie `ghost` elements behind the beginning of each part.
    pub fn new<T: Pod>(memory: &Symmetric<T>, axis: &Axis, ghost: usize) -> Flat {
        Self::find(memory, axis, ghost).unwrap_or(Self::none())
    }

    /// Whether parts of the axis may be mapped one after the other, if their memory begins with a page: all are as long, and
    /// whole pages.
    pub fn may_join<T>(axis: &Axis, ghost: usize) -> bool {
        let part = axis.longest();
        let page = page_size();
        let whole = part.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes.is_multiple_of(page));
        let all = part.checked_mul(axis.parts()) == Some(axis.extent());
        ghost == 0 && axis.parts() > 1 && axis.is_contiguous() && all && whole
    }

    /// Maps the parts one after the other, if that can be.
    pub fn join<T: Pod>(&mut self, memory: &Symmetric<T>, axis: &Axis, ghost: usize) {
        if self.joined.is_none()
            && Self::may_join::<T>(axis, ghost)
            && let Some(joined) = memory.joined()
        {
            (self.straight, self.start) = (axis.extent(), joined.base());
            self.joined = Some(joined);
        }
    }

    fn find<T: Pod>(memory: &Symmetric<T>, axis: &Axis, ghost: usize) -> Option<Flat> {
        let size = size_of::<T>();
        let [first, last] = tables::ends(memory, axis.parts())?;
        let stride = (last.addr() - first.addr()) / (axis.parts() - 1).max(1);
        if axis.parts() == 1 {
            let start = first.wrapping_byte_add(ghost * size);
            return Some(Flat { straight: axis.extent(), start, ..Self::none() });
        }
        let base = |part: usize| first.wrapping_byte_add(part * stride + ghost * size);
        let half = |stretch: Stretch| {
            let Stretch { start, count, part, divisor, dealt, round } = stretch;
            // Never asked for.
            if count == 0 {
                return Some(NO_HALF);
            }
            let inverse = inverse(divisor, count)?;
            let second_inverse = if round == 0 { 0 } else { self::inverse(round, count)? };
            let (each, turn) = match dealt {
                false => (size, stride.wrapping_sub(divisor * size)),
                true => (stride, size.wrapping_sub(divisor.wrapping_mul(stride))),
            };
            // After a round of blocks the next is of the first part again, one block on.
            let second_turn = match round {
                0 => 0,
                _ => (divisor * size).wrapping_sub((round / divisor).wrapping_mul(stride)),
            };
            Some(Half { start, inverse, base: base(part), each, turn, second_inverse, second_turn })
        };
        let Some([a, b]) = axis.stretches() else {
            let most = tables::most_entries::<Chunk>(memory.len() * size);
            let uneven = Uneven::find(axis, most, |part, start| base(part).wrapping_byte_sub(start * size))?;
            return Some(Flat { uneven, ..Self::none() });
        };
        let limit = axis.extent();
        let even = if b.start == 0 && !b.dealt && b.round == 0 { limit } else { 0 };
        Some(Flat { even, limit, boundary: b.start, halves: [half(a)?, half(b)?], ..Self::none() })
    }

    /// The address of an element that follows the one before; aligned, and inside the part of its rank. `T` is what the
    /// memory is of.
    #[inline(always)]
    pub fn straight<T>(&self, index: usize) -> Option<*mut T> {
        (index < self.straight).then(|| self.start.cast::<T>().wrapping_add(index))
    }

    /// The address of an element that [`Flat::straight`] does not find, if it can be reached this way.
    #[inline(always)]
    pub fn address<T>(&self, index: usize) -> Option<*mut T> {
        let distance = index.wrapping_mul(size_of::<T>());
        if index < self.even {
            let half = &self.halves[1];
            let turned = quotient(index, half.inverse).wrapping_mul(half.turn);
            return Some(half.base.wrapping_byte_add(turned).wrapping_byte_add(distance).cast());
        }
        if index < self.limit {
            // By place, not by a branch that random indices would mispredict.
            let half = &self.halves[usize::from(index >= self.boundary)];
            return Some(half.address(index - half.start).cast());
        }
        self.address_apart(index, distance).map(|at| at.as_ptr().cast())
    }

    /// Not inlined, so that the short path stays short; arguments and result fit in registers.
    #[inline(never)]
    fn address_apart(&self, index: usize, distance: usize) -> Option<NonNull<u8>> {
        let found = index < self.uneven.extent;
        found.then(|| NonNull::new(self.uneven.base(index).wrapping_byte_add(distance))).flatten()
    }
}

impl Half {
    #[inline(always)]
    fn address(&self, index: usize) -> *mut u8 {
        let distance = index.wrapping_mul(self.each);
        let turned = quotient(index, self.inverse).wrapping_mul(self.turn);
        let turned_again = quotient(index, self.second_inverse).wrapping_mul(self.second_turn);
        self.base.wrapping_byte_add(distance).wrapping_byte_add(turned).wrapping_byte_add(turned_again)
    }
}

impl Uneven {
    /// For an axis of neighbouring indices in each part, if it takes no more than `most` chunks. `base` is the address that index 0
    /// would have, from the number of a part and the index at which the part begins.
    fn find(axis: &Axis, most: usize, base: impl Fn(usize, usize) -> *mut u8) -> Option<Uneven> {
        let parts: Vec<usize> = (0..axis.parts()).filter(|part| axis.len(*part) > 0).collect();
        let shift = parts.iter().map(|part| axis.len(*part)).min()?.ilog2();
        let (extent, count) = (axis.extent(), axis.extent().div_ceil(1 << shift));
        if count > most {
            return None;
        }
        let mut at = 0;
        let chunk = |number: usize| {
            while parts.get(at + 1).is_some_and(|next| axis.start(*next) <= number << shift) {
                at += 1;
            }
            let next = parts.get(at + 1).map_or(extent, |next| axis.start(*next));
            let bases = [at, (at + 1).min(parts.len() - 1)].map(|at| base(parts[at], axis.start(parts[at])));
            Chunk { bases, next }
        };
        Some(Uneven { extent, shift, chunks: (0..count).map(chunk).collect() })
    }

    #[inline(always)]
    fn base(&self, index: usize) -> *mut u8 {
        let chunk = &self.chunks[index >> self.shift];
        chunk.bases[usize::from(index >= chunk.next)]
    }
}

#[inline(always)]
fn quotient(index: usize, inverse: u64) -> usize {
    ((index as u128 * u128::from(inverse)) >> 64) as usize
}

/// 2^64 / divisor, rounded up, if the quotient is exact for the first `count` indices.
fn inverse(divisor: usize, count: usize) -> Option<u64> {
    let inverse = (u64::MAX / divisor as u64).checked_add(1)?;
    // It is for all indices below 2^64 / excess.
    let excess = inverse.wrapping_mul(divisor as u64);
    (count as u128 * u128::from(excess) <= 1 << 64).then_some(inverse)
}

#[cfg(test)]
mod tests {
    use bellwether_runtime::{HugePages, Settings, Threads};

    use super::*;
    use crate::array::{Distribution, Layout};

    /// Every element is where the layout says, unless none is found.
    fn check(flat: &Flat, memory: &Symmetric<u32>, layout: &Layout<1>, ghost: usize) {
        let extent = layout.len();
        let found = flat.straight + flat.limit + flat.uneven.extent > 0;
        let find = |index| flat.straight::<u32>(index).or_else(|| flat.address(index));
        assert_eq!((find(extent), find(usize::MAX)), (None, None));
        for index in 0..extent {
            let (rank, [local]) = layout.locate(index).expect("inside");
            let at = memory.ptr(rank).expect("mapped").wrapping_add(local + ghost);
            assert_eq!(find(index), found.then_some(at), "{index} of {layout}");
        }
        // A divisor of one is left to the layout.
        assert!(found || extent < 2 * layout.ranks(), "{layout}");
    }

    #[test]
    fn as_the_layout_says() {
        let body = |world: &bellwether_runtime::World| {
            let n = world.size();
            for extent in [1, 2, 5, 7, 8, 30, 31, 64, 1000] {
                use Distribution::*;
                let ramp = Uneven((0..n).map(|part| part as f64 + 0.3).collect());
                let gaps = Uneven((0..n).map(|part| ((part + 1) % 2) as f64).collect());
                let kinds = [Block, Cyclic, BlockCyclic(3), BlockCyclic(16), ramp, gaps];
                for (kind, ghost) in kinds.into_iter().flat_map(|kind| [(kind.clone(), 0), (kind, 3)]) {
                    let layout = Layout::new([extent], [kind], n)?;
                    let memory = world.alloc::<u32>(extent + 6)?;
                    check(&Flat::new(&memory, layout.axis(0), ghost), &memory, &layout, ghost);
                }
            }
            world.barrier()
        };
        for ranks in [1, 2, 3, 5, 7] {
            let outcomes = bellwether_runtime::threads(ranks, body).expect("runs");
            outcomes.into_iter().collect::<bellwether_runtime::Result<()>>().expect("runs");
        }
    }

    #[test]
    fn joined_parts_are_the_same_elements() {
        let body = |world: &bellwether_runtime::World| {
            let page = page_size() / size_of::<u32>();
            let layout = Layout::block([3 * page * world.size()], world.size())?;
            let memory = world.alloc_aligned::<u32>(3 * page, page_size())?;
            let mut flat = Flat::none();
            flat.join(&memory, layout.axis(0), 0);
            assert_eq!(flat.straight, if world.size() > 1 { layout.len() } else { 0 });
            (0..3 * page).for_each(|local| memory.store(local, (world.rank() * 3 * page + local) as u32));
            world.barrier()?;
            for index in 0..flat.straight {
                let at = flat.straight::<u32>(index).expect("joined");
                // SAFETY: an element of the memory that is mapped there, which no rank writes now.
                assert_eq!(unsafe { at.read_volatile() }, index as u32);
            }
            assert_eq!(flat.straight::<u32>(layout.len()), None);
            // Not whole pages, borders between them, or dealt out.
            assert!(!Flat::may_join::<u32>(Layout::block([3 * page * world.size() + 1], world.size())?.axis(0), 0));
            assert!(!Flat::may_join::<u32>(Layout::block([page / 2 * world.size()], world.size())?.axis(0), 0));
            assert!(!Flat::may_join::<u32>(layout.axis(0), 1));
            assert!(!Flat::may_join::<u32>(Layout::cyclic([3 * page * world.size()], world.size())?.axis(0), 0));
            world.barrier()
        };
        for ranks in [1, 2, 3, 7] {
            // Where there are reserved huge pages, nothing is mapped twice.
            let mut settings = Settings::default();
            settings.huge_pages = HugePages::Off;
            let outcomes = Threads::new(ranks).settings(settings).run(body).expect("runs");
            outcomes.into_iter().collect::<bellwether_runtime::Result<()>>().expect("runs");
        }
    }

    #[test]
    fn quotients_are_exact_up_to_where_they_are_used() {
        for divisor in [2usize, 3, 5, 7, 641, 1 << 20, (1 << 20) + 1, (1 << 31) - 1, (1 << 32) + 15] {
            let inverse = u64::MAX / divisor as u64 + 1;
            let excess = inverse.wrapping_mul(divisor as u64);
            let most = ((1u128 << 64) / u128::from(excess.max(1))).min(1 << 63) as usize;
            for index in [most - 1, most - 2, most / 2, most / divisor * divisor - 1, divisor - 1, divisor, 0] {
                let quotient = ((index as u128 * u128::from(inverse)) >> 64) as usize;
                assert_eq!(quotient, index / divisor, "{index} / {divisor}");
            }
        }
    }
}
