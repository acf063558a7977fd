//! Elements of arrays of two and three dimensions in mapped memory, by a look into a table for each dimension.

use bellwether_runtime::{Pod, Symmetric};

use super::layout::Layout;

/// Bytes of a table that are always worth it.
const FEW: usize = 64 << 10;

/// How many entries a table may have to be small beside `bytes` bytes of elements at a rank.
pub(super) fn most_entries<E>(bytes: usize) -> usize {
    FEW.max(bytes / 16) / size_of::<E>()
}

/// Addresses of the first and the last part, if all these are mapped and may be stored to: they lie a stride apart.
pub(super) fn ends<T: Pod>(memory: &Symmetric<T>, parts: usize) -> Option<[*mut u8; 2]> {
    let bases: Option<Vec<_>> = (0..parts).map(|rank| memory.ptr_unannounced(rank)).collect();
    Some([bases.as_ref()?.first()?.cast(), bases.as_ref()?.last()?.cast()])
}

/// Where the elements are: at the sum of one number for each dimension.
///
/// An index of one dimension says how far away its part is, and how far in it. That depends on how long the part's rows are,
/// which the dimensions behind say: so a dimension has its table once for each length there is, and the tables are looked
/// into from the last to the first. In most layouts there is one length, or two. Tables that are not little beside the
/// elements are not made.
#[derive(Debug)]
pub(super) struct Tables<const D: usize> {
    base: *mut u8,
    axes: [Axis; D],
}

#[derive(Debug, Default)]
struct Axis {
    extent: usize,
    /// Bytes to the element, as far as this dimension says: `extent` entries for each length.
    bytes: Box<[usize]>,
    /// For each of these where the table of the dimension before begins. None in the first.
    before: Box<[usize]>,
}

impl<const D: usize> Tables<D> {
    /// Nothing is reached this way.
    pub fn none() -> Tables<D> {
        Tables { base: std::ptr::null_mut(), axes: std::array::from_fn(|_| Axis::default()) }
    }

    pub fn is_none(&self) -> bool {
        self.base.is_null()
    }

    /// For an array of this memory, with ghost layers of these widths.
    pub fn new<T: Pod>(memory: &Symmetric<T>, layout: &Layout<D>, ghost: &[usize; D]) -> Tables<D> {
        Self::find(memory, layout, ghost).unwrap_or(Self::none())
    }

    fn find<T: Pod>(memory: &Symmetric<T>, layout: &Layout<D>, ghost: &[usize; D]) -> Option<Tables<D>> {
        let [first, last] = ends(memory, layout.ranks())?;
        let mut stride = (last.addr() - first.addr()) / (layout.ranks() - 1).max(1);
        let mut axes = std::array::from_fn(|_| Axis::default());
        // Bytes from an index of this dimension to the next, in a part: all there are.
        let mut steps = vec![size_of::<T>()];
        let mut room = most_entries::<[usize; 2]>(memory.len() * size_of::<T>());
        for d in (0..D).rev() {
            let (axis, mut steps_before) = (layout.axis(d), Vec::new());
            let (extent, ghost) = (axis.extent(), ghost[d]);
            room = room.checked_sub(extent.checked_mul(steps.len())?)?;
            let (mut bytes, mut before) = (Vec::new(), Vec::new());
            for step in steps {
                for (part, local) in (0..extent).map(|index| axis.locate(index)) {
                    bytes.push(part * stride + (local + ghost) * step);
                    if d > 0 {
                        let row = step * (axis.len(part) + 2 * ghost);
                        let known = steps_before.iter().position(|step| *step == row);
                        let number = known.unwrap_or_else(|| {
                            steps_before.push(row);
                            steps_before.len() - 1
                        });
                        before.push(number * layout.axis(d - 1).extent());
                    }
                }
            }
            axes[d] = Axis { extent, bytes: bytes.into(), before: before.into() };
            steps = steps_before;
            // The last dimension's neighbour in the grid is the next rank.
            stride *= axis.parts();
        }
        Some(Tables { base: first, axes })
    }

    /// The address of an element that can be reached this way; aligned, and inside the part of its rank. `T` is what the
    /// memory is of.
    #[inline(always)]
    pub fn address<T>(&self, index: &[usize; D]) -> Option<*mut T> {
        if (0..D).any(|d| index[d] >= self.axes[d].extent) {
            return None;
        }
        let (mut far, mut table) = (0, 0);
        for d in (0..D).rev() {
            let (axis, entry) = (&self.axes[d], table + index[d]);
            // SAFETY: the table begins at a multiple of the extent that has as many entries behind it, and the index is
            // below the extent.
            far += unsafe { axis.bytes.get_unchecked(entry) };
            if d > 0 {
                // SAFETY: it is as long.
                table = unsafe { *axis.before.get_unchecked(entry) };
            }
        }
        Some(self.base.wrapping_byte_add(far).cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{Distribution, near_square};

    fn as_the_layout_says<const D: usize>(
        world: &bellwether_runtime::World,
        layout: &Layout<D>,
        ghost: [usize; D],
    ) -> bellwether_runtime::Result<()> {
        let longest = (0..D).map(|d| layout.axis(d).longest() + 2 * ghost[d]).product();
        let memory = world.alloc::<u32>(longest)?;
        let tables = Tables::new(&memory, layout, &ghost);
        assert!(!tables.is_none());
        let extents = layout.extents();
        for number in 0..layout.len() {
            let (mut index, mut rest) = ([0; D], number);
            for d in (0..D).rev() {
                (index[d], rest) = (rest % extents[d], rest / extents[d]);
            }
            let (rank, at) = layout.place(index, &ghost).expect("inside");
            let expected = memory.ptr(rank).expect("mapped").wrapping_add(at);
            assert_eq!(tables.address(&index), Some(expected), "{index:?} of {layout}");
        }
        for d in 0..D {
            let mut outside = [0; D];
            outside[d] = extents[d];
            assert_eq!(tables.address::<u32>(&outside), None);
            outside[d] = usize::MAX;
            assert_eq!(tables.address::<u32>(&outside), None);
        }
        Ok(())
    }

    #[test]
    fn every_kind_is_where_the_layout_says() {
        let body = |world: &bellwether_runtime::World| {
            use Distribution::*;
            let n = world.size();
            let grid = near_square(n, [0, 0])?;
            let uneven = |parts: usize| Uneven((0..parts).map(|part| (part % 3) as f64 + 0.5).collect());
            for extents in [[1, 1], [7, 5], [8, 12]] {
                for first in [Block, Cyclic, BlockCyclic(3), uneven(grid[0])] {
                    for second in [Block, Cyclic, BlockCyclic(2), uneven(grid[1])] {
                        let layout = Layout::on_grid(extents, [first.clone(), second], grid, n)?;
                        as_the_layout_says(world, &layout, [0, 0])?;
                        as_the_layout_says(world, &layout, [1, 2])?;
                    }
                }
                as_the_layout_says(world, &Layout::rows(extents, n)?, [1, 0])?;
            }
            as_the_layout_says(world, &Layout::block([7, 5, 6], n)?, [1, 0, 2])?;
            as_the_layout_says(world, &Layout::new([7, 5, 6], [Cyclic, Block, BlockCyclic(2)], n)?, [0; 3])?;
            // Tables as large as the elements are not made.
            let long = Layout::rows([100_000, 1], n)?;
            assert!(Tables::new(&world.alloc::<u8>(100_000)?, &long, &[0, 0]).is_none());
            world.barrier()
        };
        for ranks in [1, 2, 3, 5, 6, 7] {
            let outcomes = bellwether_runtime::threads(ranks, body).expect("runs");
            outcomes.into_iter().collect::<bellwether_runtime::Result<()>>().expect("runs");
        }
    }
}
