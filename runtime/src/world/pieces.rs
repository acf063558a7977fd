//! Elements from many places, of any ranks, in one operation.

use bytemuck::Pod;

use super::Symmetric;
use super::posted::{Posted, Stage, collect};
use crate::engine::{Get, HeapRange};
use crate::error::{Error, Placed, Result};

/// Elements of a [`Symmetric`] array that lie together at one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Where they are.
    pub rank: usize,
    /// The first of these elements.
    pub start: usize,
    /// How many there are.
    pub count: usize,
}

impl<T: Pod> Symmetric<T> {
    /// Reads these elements, one piece after the other, into `values`, which are as many. One-sided. Over a network many
    /// requests are in flight at a time, so that all take about as long as one; pieces that follow each other are one.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::Piece;
    /// bellwether::threads(3, |world| {
    ///     let numbers = world.alloc::<u64>(4)?;
    ///     numbers.write(0, &[0, 1, 2, 3].map(|i| 10 * world.rank() as u64 + i));
    ///     world.barrier()?;
    ///     let mut values = [0; 3];
    ///     let pieces = [Piece { rank: 2, start: 0, count: 2 }, Piece { rank: 1, start: 3, count: 1 }];
    ///     numbers.get_pieces(&pieces, &mut values)?;
    ///     assert_eq!(values, [20, 21, 13]);
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`], [`Error::OutOfBounds`]; [`Error::InvalidArgument`] for another number of values. Then
    /// `values` is as before. Over a network as [`Symmetric::get_slice`].
    #[track_caller]
    pub fn get_pieces(&self, pieces: &[Piece], values: &mut [T]) -> Result<()> {
        (|| -> Result<()> {
            const DOING: &str = "get_pieces";
            self.check_pieces(DOING, pieces, Some(values.len()))?;
            if !self.engine().routes.all_mapped() {
                return self.engine().remote_gather(DOING, self.places(pieces), bytemuck::cast_slice_mut(values));
            }
            self.copy_pieces(pieces, values)
        })()
        .placed_here()
    }

    /// The future form of [`Symmetric::get_pieces`].
    #[track_caller]
    pub fn get_pieces_async(&self, pieces: &[Piece]) -> Posted<Vec<T>> {
        const DOING: &str = "get_pieces_async";
        let post = || {
            let count = self.check_pieces(DOING, pieces, None)?;
            if !self.engine().routes.all_mapped() {
                let get = Get::new(self.engine().networks.largest_get(), Some(self.claim()), self.places(pieces));
                return Ok(Stage::Get(get, count, vec![0; count * size_of::<T>()], collect));
            }
            let mut values = vec![T::zeroed(); count];
            self.copy_pieces(pieces, &mut values)?;
            Ok(Stage::Done(Ok(values)))
        };
        Posted::new(self.engine(), DOING, post())
    }

    /// Writes `values`, as many as there are elements, to these, one piece after the other. No put waits for the one before
    /// it; pieces that follow each other are one.
    ///
    /// # Errors
    /// As [`Symmetric::get_pieces`]; then nothing was written. Over a network as [`Symmetric::put_slice`].
    #[track_caller]
    pub fn put_pieces(&self, pieces: &[Piece], values: &[T]) -> Result<()> {
        (|| -> Result<()> {
            self.check_pieces("put_pieces", pieces, Some(values.len()))?;
            let mut rest = values;
            joined(pieces).try_for_each(|piece| {
                let (these, after) = rest.split_at(piece.count);
                rest = after;
                self.put_slice(piece.rank, piece.start, these)
            })
        })()
        .placed_here()
    }

    /// As [`Symmetric::put_pieces`], but does not wait for room, as [`Symmetric::try_put_slice`]: all pieces are put, or none.
    ///
    /// # Errors
    /// As [`Symmetric::put_pieces`], and [`Error::WouldBlock`], which names the first of the ranks over a network: nothing was put.
    #[track_caller]
    pub fn try_put_pieces(&self, pieces: &[Piece], values: &[T]) -> Result<()> {
        self.pieces_now("try_put_pieces", pieces, || self.put_pieces(pieces, values))
    }

    /// As [`Symmetric::put_pieces_async`], but does not wait for room to post them.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]: nothing was put. All other errors come from the returned [`Posted`].
    #[track_caller]
    pub fn try_put_pieces_async(&self, pieces: &[Piece], values: &[T]) -> Result<Posted<()>> {
        let posted = self.pieces_now("try_put_pieces_async", pieces, || Ok(self.put_pieces_async(pieces, values)))?;
        Ok(posted.of_caller())
    }

    #[track_caller]
    fn pieces_now<R>(&self, operation: &'static str, pieces: &[Piece], put: impl FnOnce() -> Result<R>) -> Result<R> {
        let routes = &self.engine().routes;
        let mut over_network =
            pieces.iter().filter(|piece| piece.rank < self.engine().size && !routes.is_mapped(piece.rank));
        let Some(first) = over_network.next() else { return put().placed_here() };
        let count = over_network.fold(first.count, |count, piece| count.saturating_add(piece.count));
        let len = count.saturating_mul(size_of::<T>());
        self.engine().put_at_once(operation, first.rank, len, put).placed_here()
    }

    /// The future form of [`Symmetric::put_pieces`]: ready when all are visible where they belong. `values` may be changed when
    /// this returns.
    #[track_caller]
    pub fn put_pieces_async(&self, pieces: &[Piece], values: &[T]) -> Posted<()> {
        let post = || {
            self.put_pieces(pieces, values)?;
            if self.engine().routes.all_mapped() {
                return Ok(Stage::Done(Ok(())));
            }
            let mut ranks: Vec<usize> = pieces.iter().map(|piece| piece.rank).collect();
            ranks.sort_unstable();
            ranks.dedup();
            Ok(Stage::Puts(ranks, || ()))
        };
        Posted::new(self.engine(), "put_pieces_async", post())
    }

    /// How many elements there are in pieces that all exist; as many as there are values.
    fn check_pieces(&self, operation: &'static str, pieces: &[Piece], values: Option<usize>) -> Result<usize> {
        let mut count = 0usize;
        for piece in pieces {
            self.range(operation, piece.rank, piece.start, piece.count)?;
            count = count.saturating_add(piece.count);
        }
        match values {
            Some(values) if values != count => {
                let why = format!("{values} values for {} pieces of {count} elements in all", pieces.len());
                Err(Error::InvalidArgument { operation, why })
            }
            _ => Ok(count),
        }
    }

    /// Where such pieces lie in the slots.
    fn places(&self, pieces: &[Piece]) -> impl Iterator<Item = HeapRange> {
        joined(pieces).map(|piece| {
            let (offset, len) = (self.offset() + piece.start * size_of::<T>(), piece.count * size_of::<T>());
            HeapRange { rank: piece.rank, offset, len }
        })
    }

    /// Where all ranks are mapped.
    fn copy_pieces(&self, pieces: &[Piece], values: &mut [T]) -> Result<()> {
        let mut rest = values;
        joined(pieces).try_for_each(|piece| {
            let (these, after) = std::mem::take(&mut rest).split_at_mut(piece.count);
            rest = after;
            self.get_slice(piece.rank, piece.start, these)
        })
    }
}

/// The same elements in the same order, where pieces that follow each other are one.
fn joined(pieces: &[Piece]) -> impl Iterator<Item = Piece> {
    let mut rest = pieces.iter().copied().peekable();
    std::iter::from_fn(move || {
        let mut piece = rest.next()?;
        while let Some(next) = rest.next_if(|next| (next.rank, next.start) == (piece.rank, piece.start + piece.count)) {
            piece.count += next.count;
        }
        Some(piece)
    })
}
