//! The shape of a call's layout and buckets, in a few words that ranks compare. An owner walks through the others' pools by
//! its own buckets, so theirs must be the same.

use super::places::Places;

/// How items are divided into buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Not at all: items travel one by one, or the layout does not fit the table.
    None,
    /// By stretches of indices.
    Index,
    /// By stretches of the ranks' parts.
    Place,
}

/// One rank's layout, and the buckets that the rank makes from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) kind: Kind,
    pub(super) extent: usize,
    /// Buckets, and elements of a stretch: all offsets are below that.
    pub(super) count: usize,
    pub(super) stretch: usize,
    /// A hash of the places of some elements, and of all runs that buckets by index know.
    pub(super) print: Print,
}

/// Places that are looked at in any case.
const SAMPLES: u64 = 16;

impl Shape {
    /// Without buckets.
    pub(super) fn new<P: Places>(places: &P) -> Shape {
        let (extent, mut print) = (places.extent(), Print::default());
        // Spread by the golden ratio, so that they fall in with no period of a layout.
        let spread = |sample: u64| sample.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let sample = |sample| ((u128::from(spread(sample)) * extent as u128) >> u64::BITS) as usize;
        let samples = (0..SAMPLES).map(sample).chain(extent.checked_sub(1)).filter(|index| *index < extent);
        samples.for_each(|index| print.see(index, places.place(index)));
        Shape { kind: Kind::None, extent, count: 0, stretch: 0, print }
    }

    pub(super) fn words(self) -> [u64; WORDS] {
        let kind = match self.kind {
            Kind::None => 0,
            Kind::Index => 1,
            Kind::Place => 2,
        };
        [kind, self.extent as u64, self.count as u64, self.stretch as u64, self.print.0]
    }

    /// The text for errors.
    pub(super) fn show([kind, extent, count, stretch, print]: [u64; WORDS]) -> String {
        let by = match kind {
            1 => format!("buckets by index: {count} of {stretch}"),
            2 => format!("buckets by place: {count} of {stretch}"),
            _ => "without buckets".into(),
        };
        format!("a layout of {extent} elements ({by}; fingerprint {print:016x})")
    }
}

/// Words that say it.
pub(super) const WORDS: usize = 5;

/// A hash of where elements lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Print(u64);

impl Print {
    /// The element `index` lies there.
    pub(super) fn see(&mut self, index: usize, (rank, local): (usize, usize)) {
        self.0 = [index, rank, local].into_iter().fold(self.0, |hash, word| mix(hash, word as u64));
    }

    /// Takes in another.
    pub(super) fn join(&mut self, other: Print) {
        self.0 = mix(self.0, other.0);
    }
}

/// A hash of anything in bytes.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |hash, byte| mix(hash, u64::from(*byte)))
}

/// Two different words give two different hashes.
fn mix(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

#[cfg(test)]
mod tests {
    use super::super::buckets::{Buckets, ByIndex, ByPlace, Table};
    use super::super::places::{Blocks, Cyclic};
    use super::*;

    const TABLE: Table = Table { ranks: 2, len: 1000, size: 8, stretch: 512, most: 64 };

    fn by_index(places: &impl Places) -> Shape {
        ByIndex::new(TABLE, places).expect("all have a place").expect("long runs").shape(Shape::new(places))
    }

    #[test]
    fn layouts_that_differ_have_shapes_that_differ() {
        /// Two halves, the first of `first` elements at rank 1.
        struct Halves(usize, usize);
        impl Places for Halves {
            fn extent(&self) -> usize {
                self.1
            }
            fn place(&self, index: usize) -> (usize, usize) {
                if index < self.0 { (1, index) } else { (0, index - self.0) }
            }
            fn run(&self, index: usize) -> usize {
                if index < self.0 { self.0 - index } else { self.1 - index }
            }
        }
        // The last two differ by one element, which no sample need meet.
        let halves = [(500, 1000), (500, 1001), (501, 1001), (502, 1001)].map(|(first, all)| Halves(first, all));
        let all: Vec<Shape> = halves.iter().map(by_index).chain([by_index(&Blocks::new(1001, 2))]).collect();
        for (number, shape) in all.iter().enumerate() {
            assert!(all[..number].iter().all(|other| other != shape), "{all:?}");
        }
        assert_eq!(by_index(&halves[0]), all[0]);
        let cyclic = Cyclic::new(1001, 2);
        let by_place = ByPlace::new(TABLE, &cyclic).expect("few").shape(Shape::new(&cyclic));
        assert!(by_place.kind == Kind::Place && all.iter().all(|other| *other != by_place));
        assert_eq!(Shape::new(&Cyclic::new(0, 2)), Shape::new(&Blocks::new(0, 2)));
    }
}
