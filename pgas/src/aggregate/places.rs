//! Where an element of a distributed array lies: its rank, and its place in that rank's part.

/// How a global index is found: the layout of a distributed array, as aggregation sees it.
///
/// All ranks must describe the same layout, by the same type. A call compares extents and what lies under its buckets, and
/// where layouts are looked up element by element, a sample of places; if ranks differ in these, the call fails before anything is
/// changed. Layouts that differ in other places give other results, but no access outside of the table. [`Blocks`] and
/// [`Cyclic`] are here; arrays bring theirs.
///
/// # Examples
/// ```
/// use bellwether::aggregate::{Blocks, Cyclic, Places};
/// assert_eq!(Blocks::new(10, 3).place(7), (1, 3)); // 4 elements a rank
/// assert_eq!(Cyclic::new(10, 3).place(7), (1, 2));
/// ```
pub trait Places {
    /// Elements in all: indices are below it.
    fn extent(&self) -> usize;

    /// Rank and local index of the element `index`, which is below [`Places::extent`]. Called once or twice for every
    /// index, so it should be a few instructions. A place that does not exist is an error of the operation, not
    /// undefined behaviour.
    fn place(&self, index: usize) -> (usize, usize);

    /// How many indices from `index` on lie one after the other at the same rank, as far as is easily said. Where these are
    /// many, an index need not be looked up by its place.
    fn run(&self, index: usize) -> usize {
        let _ = index;
        1
    }
}

/// Equal blocks, one a rank: rank 0 has the first, and the last may be shorter or empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    extent: usize,
    block: Divisor,
}

impl Blocks {
    /// `extent` elements over `ranks` ranks, ⌈`extent` / `ranks`⌉ at each.
    pub fn new(extent: usize, ranks: usize) -> Blocks {
        Blocks { extent, block: Divisor::new(extent.div_ceil(ranks.max(1)).max(1)) }
    }

    /// Elements of a block: what each rank needs room for.
    pub fn block(&self) -> usize {
        self.block.divisor as usize
    }
}

impl Places for Blocks {
    fn extent(&self) -> usize {
        self.extent
    }

    #[inline(always)]
    fn place(&self, index: usize) -> (usize, usize) {
        self.block.divide(index)
    }

    fn run(&self, index: usize) -> usize {
        self.block() - self.block.divide(index).1
    }
}

/// Element `i` at rank `i mod ranks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cyclic {
    extent: usize,
    ranks: Divisor,
}

impl Cyclic {
    /// `extent` elements over `ranks` ranks.
    pub fn new(extent: usize, ranks: usize) -> Cyclic {
        Cyclic { extent, ranks: Divisor::new(ranks.max(1)) }
    }

    /// Most elements at one rank: what each rank needs room for.
    pub fn block(&self) -> usize {
        self.extent.div_ceil(self.ranks.divisor as usize)
    }
}

impl Places for Cyclic {
    fn extent(&self) -> usize {
        self.extent
    }

    #[inline(always)]
    fn place(&self, index: usize) -> (usize, usize) {
        let (local, rank) = self.ranks.divide(index);
        (rank, local)
    }
}

/// Division by a number that is known only at run time. It does not use the processor's division, which would take as long as
/// about ten elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Divisor {
    divisor: u64,
    reciprocal: u64,
}

impl Divisor {
    fn new(divisor: usize) -> Divisor {
        Divisor { divisor: divisor as u64, reciprocal: u64::MAX / divisor as u64 }
    }

    /// Quotient and remainder.
    #[inline(always)]
    fn divide(self, number: usize) -> (usize, usize) {
        let number = number as u64;
        // The reciprocal is too small by at most one part in 2^64, so the quotient is right or one too small.
        let quotient = ((u128::from(number) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = number - quotient * self.divisor;
        let above = rest >= self.divisor;
        ((quotient + u64::from(above)) as usize, (rest - if above { self.divisor } else { 0 }) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_is_exact() {
        let edges = [0, 1, 2, 3, 5, 7, 10, 63, 64, 1 << 20, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63];
        let numbers = edges.into_iter().chain([usize::MAX - 1, usize::MAX]);
        for number in numbers.clone() {
            for divisor in numbers.clone().filter(|divisor| *divisor > 0) {
                for number in [number.saturating_sub(1), number, number.saturating_mul(divisor)] {
                    let expected = (number / divisor, number % divisor);
                    assert_eq!(Divisor::new(divisor).divide(number), expected, "{number} by {divisor}");
                }
            }
        }
    }

    #[test]
    fn every_element_has_a_place_of_its_own() {
        for (extent, ranks) in [(0, 1), (1, 3), (10, 3), (64, 4), (1000, 7)] {
            let (blocks, cyclic) = (Blocks::new(extent, ranks), Cyclic::new(extent, ranks));
            let check = |place: &dyn Fn(usize) -> (usize, usize), room: usize| {
                let mut seen = vec![false; ranks * room];
                for index in 0..extent {
                    let (rank, local) = place(index);
                    assert!(rank < ranks && local < room);
                    assert!(!std::mem::replace(&mut seen[rank * room + local], true));
                }
            };
            check(&|index| blocks.place(index), blocks.block());
            check(&|index| cyclic.place(index), cyclic.block());
        }
    }
}
