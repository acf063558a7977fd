//! The cells and the neighbours of a rank.

/// The block of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Cells of the whole box along each axis.
    pub sides: [usize; 3],
    /// Ranks along each axis.
    ranks: [usize; 3],
    /// This rank's place among them.
    place: [usize; 3],
    /// Its first cell.
    pub from: [usize; 3],
    /// Its cells along each axis.
    pub len: [usize; 3],
}

impl Part {
    /// The block of `rank` of `ranks`; `None` if the box has no room for so many ranks along its axes.
    pub fn new(sides: [usize; 3], ranks: usize, rank: usize) -> Option<Part> {
        let ranks = arrange(sides, ranks)?;
        let place = [rank / (ranks[1] * ranks[2]), rank / ranks[2] % ranks[1], rank % ranks[2]];
        let begin = |axis: usize, place: usize| sides[axis] * place / ranks[axis];
        let from = std::array::from_fn(|axis| begin(axis, place[axis]));
        let len = std::array::from_fn(|axis| begin(axis, place[axis] + 1) - from[axis]);
        Some(Part { sides, ranks, place, from, len })
    }

    /// The whole box.
    pub fn whole(sides: [usize; 3]) -> Part {
        Part { sides, ranks: [1; 3], place: [0; 3], from: [0; 3], len: sides }
    }

    /// How many ranks are along each axis.
    pub fn ranks(&self) -> [usize; 3] {
        self.ranks
    }

    /// The rank beside it in a direction; `None` at the wall.
    pub fn neighbour(&self, direction: usize) -> Option<usize> {
        let axis = direction / 2;
        let mut place = self.place;
        place[axis] = match direction % 2 {
            0 => place[axis].checked_sub(1)?,
            _ => Some(place[axis] + 1).filter(|next| *next < self.ranks[axis])?,
        };
        Some((place[0] * self.ranks[1] + place[1]) * self.ranks[2] + place[2])
    }

    /// Cells of its face in a direction.
    pub fn face(&self, direction: usize) -> usize {
        self.len.iter().product::<usize>() / self.len[direction / 2]
    }

    /// Cells of the largest face of any block.
    pub fn largest_face(&self) -> usize {
        let most: [usize; 3] = std::array::from_fn(|axis| self.sides[axis].div_ceil(self.ranks[axis]));
        (0..3).map(|axis| most.iter().product::<usize>() / most[axis]).max().unwrap_or(0)
    }

    /// Where the middle of the last axis is in this block, if it is there.
    pub fn slice(&self) -> Option<usize> {
        (self.sides[2] / 2).checked_sub(self.from[2]).filter(|z| *z < self.len[2])
    }
}

/// The number of ranks along each axis, chosen so that the faces between them are small.
fn arrange(sides: [usize; 3], ranks: usize) -> Option<[usize; 3]> {
    let divisors = |n: usize| (1..=n).filter(move |d| n.is_multiple_of(*d));
    let ways = divisors(ranks).flat_map(|x| divisors(ranks / x).map(move |y| [x, y, ranks / x / y]));
    let fits = |way: &[usize; 3]| way.iter().zip(sides).all(|(ranks, cells)| *ranks <= cells);
    let between = |way: &[usize; 3]| -> usize {
        (0..3).map(|axis| (way[axis] - 1) * sides.iter().product::<usize>() / sides[axis]).sum()
    };
    // Among equal ones, the one whose faces have the longest rows.
    ways.filter(fits).min_by_key(|way| (between(way), way[2], way[1]))
}
