//! The places that a vector names, and what two vectors have in common.

use super::codes;
use super::raw::MAX_MSG_SZ;
use super::send::is_nowhere;
use super::types::{GEN_GENERIC, GEN_IOVECTOR, GEN_STRIDED_XFER, Vector};

/// The error of the vector of one side.
pub(super) struct Side {
    null: i32,
    kind: i32,
    address: i32,
    length: i32,
    base: i32,
    stride: i32,
    extent: i32,
}

pub(super) const ORIGIN: Side = Side {
    null: codes::ORG_VEC_NULL,
    kind: codes::ORG_VEC_TYPE,
    address: codes::ORG_VEC_ADDR,
    length: codes::ORG_VEC_LEN,
    base: codes::STRIDE_ORG_ADDR_NULL,
    stride: codes::ORG_STRIDE,
    extent: codes::ORG_EXTENT,
};

pub(super) const TARGET: Side = Side {
    null: codes::TGT_VEC_NULL,
    kind: codes::TGT_VEC_TYPE,
    address: codes::TGT_VEC_ADDR,
    length: codes::TGT_VEC_LEN,
    base: codes::STRIDE_TGT_ADDR_NULL,
    stride: codes::TGT_STRIDE,
    extent: codes::TGT_EXTENT,
};

/// A vector that was found valid.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    kind: i32,
    pub(super) count: usize,
    places: Places,
}

#[derive(Clone, Copy)]
enum Places {
    /// As many addresses and lengths.
    List {
        addresses: *const u64,
        lengths: *const u64,
    },
    Strided {
        base: u64,
        block: u64,
        stride: u64,
    },
}

impl Shape {
    /// Reads a vector.
    ///
    /// # Errors
    /// Those of `side`.
    ///
    /// # Safety
    /// It is null or valid, and so are its lists, as long as the shape is used.
    pub(super) unsafe fn read(vector: *const Vector, side: &Side) -> Result<Shape, i32> {
        // SAFETY: the caller guarantees it.
        let Vector { vec_type: kind, num_vecs, info, len } = *unsafe { vector.as_ref() }.ok_or(side.null)?;
        let (count, addresses) = (num_vecs as usize, info.cast_const().cast::<u64>());
        match kind {
            GEN_STRIDED_XFER => {
                if addresses.is_null() {
                    return Err(side.base);
                }
                // SAFETY: the caller guarantees three words.
                let [base, block, stride] = unsafe { addresses.cast::<[u64; 3]>().read() };
                if base == 0 && block != 0 && count != 0 {
                    return Err(side.base);
                }
                if stride < block {
                    return Err(side.stride);
                }
                if stride.checked_mul(count as u64).is_none_or(|extent| extent > MAX_MSG_SZ) {
                    return Err(side.extent);
                }
                Ok(Shape { kind, count, places: Places::Strided { base, block, stride } })
            }
            GEN_IOVECTOR | GEN_GENERIC => {
                let lengths = len.cast_const();
                if count != 0 && addresses.is_null() {
                    return Err(side.address);
                }
                if count != 0 && lengths.is_null() {
                    return Err(side.length);
                }
                let shape = Shape { kind, count, places: Places::List { addresses, lengths } };
                let mut total = 0u64;
                for (address, len) in shape.parts() {
                    if address == 0 && len != 0 {
                        return Err(side.address);
                    }
                    total = total.checked_add(len).filter(|total| *total <= MAX_MSG_SZ).ok_or(side.length)?;
                }
                Ok(shape)
            }
            _ => Err(side.kind),
        }
    }

    /// The shape of a vector of another task, as its message tells it.
    ///
    /// # Safety
    /// Both have the same length, and stay as long as the shape is used.
    pub(super) unsafe fn told(kind: i32, addresses: &[u64], lengths: &[u64]) -> Shape {
        debug_assert_eq!(addresses.len(), lengths.len());
        let places = Places::List { addresses: addresses.as_ptr(), lengths: lengths.as_ptr() };
        Shape { kind, count: lengths.len(), places }
    }

    pub(super) fn kind(&self) -> i32 {
        self.kind
    }

    /// Address and length of a place.
    fn part(&self, number: usize) -> (u64, u64) {
        debug_assert!(number < self.count);
        match self.places {
            // SAFETY: the maker of the shape guarantees `count` places.
            Places::List { addresses, lengths } => unsafe {
                (addresses.add(number).read(), lengths.add(number).read())
            },
            Places::Strided { base, block, stride } => (base.wrapping_add(stride * number as u64), block),
        }
    }

    /// The address of a place of this shape where no task has memory, if there is one.
    pub(super) fn find_nowhere(&self) -> Option<u64> {
        let is_bad = |number: usize| {
            let (address, len) = self.part(number);
            (len != 0 && is_nowhere(address, len)).then_some(address)
        };
        match self.places {
            // The addresses increase.
            Places::Strided { .. } => [0, self.count.saturating_sub(1)].into_iter().take(self.count).find_map(is_bad),
            Places::List { .. } => (0..self.count).find_map(is_bad),
        }
    }

    /// Address and length of each place.
    pub(super) fn parts(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.count).map(|number| self.part(number))
    }

    /// Bytes of all places. Each length was checked to be in range; the sum of lengths that a peer sends may wrap.
    pub(super) fn total(&self) -> u64 {
        match self.places {
            Places::Strided { block, .. } => block * self.count as u64,
            Places::List { .. } => self.parts().fold(0, |total, (_, len)| total.wrapping_add(len)),
        }
    }

    /// Whether the data of this one fits in the places of `to`.
    ///
    /// # Errors
    /// [`codes::VEC_TYPE_DIFF`], [`codes::VEC_NUM_DIFF`], [`codes::VEC_LEN_DIFF`].
    pub(super) fn fits(&self, to: &Shape) -> Result<(), i32> {
        if self.kind != to.kind {
            return Err(codes::VEC_TYPE_DIFF);
        }
        if self.kind == GEN_GENERIC {
            return if self.total() <= to.total() { Ok(()) } else { Err(codes::VEC_LEN_DIFF) };
        }
        if self.count != to.count {
            return Err(codes::VEC_NUM_DIFF);
        }
        let is_equal = self.parts().zip(to.parts()).all(|((_, own), (_, other))| own == other);
        if is_equal { Ok(()) } else { Err(codes::VEC_LEN_DIFF) }
    }

    /// The pieces that are one run of bytes at both sides: the address in this one, the address in `to`, and the length.
    pub(super) fn pieces(self, to: Shape) -> Pieces {
        Pieces { sides: [(self, 0, 0), (to, 0, 0)], held: None }
    }
}

/// See [`Shape::pieces`].
pub(super) struct Pieces {
    /// The shape, the number of the place, and how much of it is done.
    sides: [(Shape, usize, u64); 2],
    held: Option<Span>,
}

/// Bytes that lie together on both sides: the address here, the address there, and how many.
pub(super) type Span = (u64, u64, u64);

impl Pieces {
    /// As far as the two places at hand go.
    fn step(&mut self) -> Option<Span> {
        let mut rest = [(0, 0); 2];
        for ((shape, number, done), rest) in self.sides.iter_mut().zip(&mut rest) {
            loop {
                if *number == shape.count {
                    return None;
                }
                let (address, len) = shape.part(*number);
                if *done < len {
                    *rest = (address + *done, len - *done);
                    break;
                }
                (*number, *done) = (*number + 1, 0);
            }
        }
        let len = rest[0].1.min(rest[1].1);
        self.sides.iter_mut().for_each(|(.., done)| *done += len);
        Some((rest[0].0, rest[1].0, len))
    }
}

impl Iterator for Pieces {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let mut piece = self.held.take().or_else(|| self.step())?;
        while let Some(next) = self.step() {
            if (piece.0 + piece.2, piece.1 + piece.2) != (next.0, next.1) {
                self.held = Some(next);
                break;
            }
            piece.2 += next.2;
        }
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(kind: i32, places: &[(u64, u64)]) -> (Vec<u64>, Vec<u64>, i32) {
        (places.iter().map(|place| place.0).collect(), places.iter().map(|place| place.1).collect(), kind)
    }

    fn shape((addresses, lengths, kind): &(Vec<u64>, Vec<u64>, i32)) -> Shape {
        // SAFETY: the lists of a test stay.
        unsafe { Shape::told(*kind, addresses, lengths) }
    }

    #[test]
    fn pieces_end_where_a_place_of_either_side_ends_and_join_where_none_does() {
        let from = list(GEN_GENERIC, &[(100, 10), (200, 0), (110, 5), (300, 5)]);
        let to = list(GEN_GENERIC, &[(1000, 4), (1004, 8), (2000, 100)]);
        let pieces: Vec<_> = shape(&from).pieces(shape(&to)).collect();
        assert_eq!(pieces, [(100, 1000, 12), (112, 2000, 3), (300, 2003, 5)]);
        assert_eq!(shape(&from).fits(&shape(&to)), Ok(()));
        assert_eq!(shape(&to).fits(&shape(&from)), Err(codes::VEC_LEN_DIFF));
        assert_eq!(shape(&to).pieces(shape(&from)).map(|piece| piece.2).sum::<u64>(), 20, "no more than there is room");
        let none = list(GEN_IOVECTOR, &[]);
        assert_eq!(shape(&none).pieces(shape(&to)).next(), None);
    }

    #[test]
    fn strides_that_are_blocks_are_one_piece() {
        let strided = |base, stride| Shape {
            kind: GEN_STRIDED_XFER,
            count: 4,
            places: Places::Strided { base, block: 8, stride },
        };
        assert_eq!(strided(64, 8).pieces(strided(640, 8)).collect::<Vec<_>>(), [(64, 640, 32)]);
        let pieces: Vec<_> = strided(64, 8).pieces(strided(640, 32)).collect();
        assert_eq!(pieces, [(64, 640, 8), (72, 672, 8), (80, 704, 8), (88, 736, 8)]);
    }
}
