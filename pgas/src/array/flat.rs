//! Elements of one-dimensional arrays in mapped memory, by one multiplication.

use bellwether_runtime::{Pod, Symmetric};

use super::layout::{Axis, Stretch};

/// Where the elements are, if that is a linear function of the index and of its quotient by a fixed number.
///
/// With parts a stride apart, of blocks of `b` elements, element `i` is at `base + i * size + i / b * (stride - b * size)`;
/// dealt out one by one to `p` parts it is at `base + i * stride + i / p * (size - p * stride)`. A block layout may have
/// two kinds of blocks, one after the other. Where `p` parts get blocks of `b` in turn, `i / (b * p)` comes in too, times
/// `b * size - p * stride`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flat {
    /// Indices below it are here, in the second half, not dealt out: blocks all of one kind. As it is most often, and so
    /// without a choice.
    even: usize,
    /// Indices below it are here. 0: none is.
    limit: usize,
    /// Indices below it are here too, in the second half, dealt out in blocks.
    rounds: usize,
    /// Indices below it are in the first half.
    boundary: usize,
    halves: [Half; 2],
}

#[derive(Debug, Clone, Copy)]
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

impl Flat {
    /// Nothing is reached this way.
    pub fn none() -> Flat {
        let base = std::ptr::null_mut();
        let half = Half { start: 0, inverse: 0, base, each: 0, turn: 0, second_inverse: 0, second_turn: 0 };
        Flat { even: 0, limit: 0, rounds: 0, boundary: 0, halves: [half; 2] }
    }

    /// For an array of this memory, whose elements lie `ghost` elements behind the beginning of each part.
    pub fn new<T: Pod>(memory: &Symmetric<T>, axis: &Axis, ghost: usize) -> Flat {
        Self::find(memory, axis, ghost).unwrap_or(Self::none())
    }

    fn find<T: Pod>(memory: &Symmetric<T>, axis: &Axis, ghost: usize) -> Option<Flat> {
        let size = size_of::<T>();
        // All parts, or only this rank's own, are mapped.
        let first = memory.ptr(0)?.cast::<u8>();
        let last = memory.ptr(axis.parts() - 1)?.cast::<u8>();
        let stride = (last.addr() - first.addr()) / (axis.parts() - 1).max(1);
        let half = |stretch: Stretch| {
            let Stretch { start, count, part, divisor, dealt, round } = stretch;
            // Never asked for.
            if count == 0 {
                return Some(Self::none().halves[0]);
            }
            let inverse = inverse(divisor, count)?;
            let second_inverse = if round == 0 { 0 } else { self::inverse(round, count)? };
            let base = first.wrapping_byte_add(part * stride + ghost * size);
            let (each, turn) = match dealt {
                false => (size, stride.wrapping_sub(divisor * size)),
                true => (stride, size.wrapping_sub(divisor.wrapping_mul(stride))),
            };
            // After a round of blocks the next is of the first part again, one block on.
            let second_turn = (divisor * size).wrapping_sub((round / divisor).wrapping_mul(stride));
            Some(Half { start, inverse, base, each, turn, second_inverse, second_turn })
        };
        let [a, b] = axis.stretches()?;
        let extent = axis.extent();
        let (limit, rounds) = if b.round == 0 { (extent, 0) } else { (0, extent) };
        let even = if b.start == 0 && !b.dealt { limit } else { 0 };
        Some(Flat { even, limit, rounds, boundary: b.start, halves: [half(a)?, half(b)?] })
    }

    /// The address of an element that can be reached this way; aligned, and inside the part of its rank. `T` is what the
    /// memory is of.
    #[inline(always)]
    pub fn address<T>(&self, index: usize) -> Option<*mut T> {
        if index < self.even {
            let half = &self.halves[1];
            let distance = index * size_of::<T>();
            let turned = half.quotient(index).wrapping_mul(half.turn);
            return Some(half.base.wrapping_byte_add(turned).wrapping_byte_add(distance).cast());
        }
        self.address_in_halves(index).map(<*mut u8>::cast)
    }

    #[inline]
    fn address_in_halves(&self, index: usize) -> Option<*mut u8> {
        if index >= self.limit {
            return None;
        }
        // By place, not by a branch that random indices would mispredict.
        let half = &self.halves[usize::from(index >= self.boundary)];
        let index = index - half.start;
        Some(half.base.wrapping_byte_add(half.distance(index)))
    }

    /// As [`Flat::address`], of an element that is dealt out in blocks.
    #[inline]
    pub fn address_in_rounds<T>(&self, index: usize) -> Option<*mut T> {
        if index >= self.rounds {
            return None;
        }
        let half = &self.halves[1];
        let second = quotient(index, half.second_inverse).wrapping_mul(half.second_turn);
        Some(half.base.wrapping_byte_add(half.distance(index)).wrapping_byte_add(second).cast())
    }
}

impl Half {
    #[inline(always)]
    fn distance(&self, index: usize) -> usize {
        index.wrapping_mul(self.each).wrapping_add(self.quotient(index).wrapping_mul(self.turn))
    }

    #[inline(always)]
    fn quotient(&self, index: usize) -> usize {
        quotient(index, self.inverse)
    }
}

#[inline(always)]
fn quotient(index: usize, inverse: u64) -> usize {
    ((index as u128 * u128::from(inverse)) >> 64) as usize
}

/// 2^64 / divisor, rounded up, if the quotient is exact for so many indices.
fn inverse(divisor: usize, count: usize) -> Option<u64> {
    let inverse = (u64::MAX / divisor as u64).checked_add(1)?;
    // It is for all indices below 2^64 / excess.
    let excess = inverse.wrapping_mul(divisor as u64);
    (count as u128 * u128::from(excess) <= 1 << 64).then_some(inverse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{Distribution, Layout};

    #[test]
    fn as_the_layout_says() {
        let body = |world: &bellwether_runtime::World| {
            let n = world.size();
            for extent in [1, 2, 5, 7, 8, 30, 31, 64, 1000] {
                let memory = world.alloc::<u32>(extent + 6)?;
                use Distribution::*;
                for (ghost, kind) in [(0, Block), (3, Block), (0, Cyclic), (0, BlockCyclic(3)), (0, BlockCyclic(16))] {
                    let layout = Layout::new([extent], [kind], n)?;
                    let flat = Flat::new(&memory, layout.axis(0), ghost);
                    assert_eq!(flat.address::<u32>(extent), None);
                    assert_eq!(flat.address::<u32>(usize::MAX), None);
                    for index in 0..extent {
                        let (rank, [local]) = layout.locate(index).expect("inside");
                        let at = memory.ptr(rank).expect("mapped").wrapping_add(local + ghost);
                        // One element in a block divides by one, which is left to the layout.
                        let expected = (flat.limit + flat.rounds > 0).then_some(at);
                        let found = flat.address(index).or_else(|| flat.address_in_rounds(index));
                        assert_eq!(found, expected, "{index} of {layout}");
                    }
                    assert_eq!(flat.address_in_rounds::<u32>(extent), None);
                    assert!(flat.limit + flat.rounds > 0 || extent < 2 * n, "{layout}");
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
