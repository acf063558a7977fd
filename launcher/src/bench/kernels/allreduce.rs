//! Allreduce over all ranks, the team's and the world's.

use std::sync::atomic::Ordering;

use bellwether::{Sum, Team};
use bellwether_runtime::{Result, Symmetric, World};

use super::{LINE, address, opaque, spin_until, word};
use crate::bench::session::Session;
use crate::bench::task::Measured;

/// Sums by the team of all ranks.
///
/// # Errors
/// Those of the runtime.
pub fn allreduce(session: &Session, size: usize) -> Result<Vec<Measured>> {
    let team = Team::world(&session.world)?;
    sums(session, size, |values| team.allreduce(values, Sum))
}

/// Sums by the world's own call.
///
/// # Errors
/// Those of the runtime.
pub fn of_world(session: &Session, size: usize) -> Result<Vec<Measured>> {
    sums(session, size, |values| session.world.allreduce_sum(values))
}

/// Sums of `size` bytes of f64, beside the quicker of two programs of bare copies, flags and sums.
fn sums(session: &Session, size: usize, sum: impl Fn(&mut [f64]) -> Result<()>) -> Result<Vec<Measured>> {
    let world = &session.world;
    let len = size / size_of::<f64>();
    // Zeros, so that they stay small.
    let mut values = vec![0.0f64; len];
    let operations = session.operations(2000, 16 << 20, size);
    let ours = |n| (0..n).try_for_each(|_| sum(&mut values));
    if !session.mapped {
        return Ok(vec![session.alternate(operations, ours, |_| Ok(()))?]);
    }
    let (mut whole, mut pieces) = (Bare::new(world, len, len)?, Bare::new(world, len, len.div_ceil(world.size()))?);
    let (mut sums, mut more) = (vec![0.0f64; len], vec![0.0f64; len]);
    let mut by_whole = |n| {
        (0..n).for_each(|_| whole.gather(&mut sums));
        opaque(sums[0].to_bits());
        Ok(())
    };
    let mut by_pieces = |n| {
        (0..n).for_each(|_| pieces.pieces(&mut more));
        opaque(more[0].to_bits());
        Ok(())
    };
    let best = session.quickest(operations, [&mut by_whole, &mut by_pieces])?;
    let limit = |n| if best == 0 { by_whole(n) } else { by_pieces(n) };
    Ok(vec![session.alternate(operations, ours, limit)?])
}

/// Boxes in shared memory: at each rank one from every rank, of a flag and values behind it, in two halves used in turn. Before a
/// rank writes into a half again it has received from the owner of the box, so it knows that the owner has read the half.
pub struct Bare {
    boxes: Symmetric<u64>,
    rank: usize,
    ranks: usize,
    /// Values of a box at most.
    room: usize,
    turn: u64,
}

impl Bare {
    /// For arrays of `len` values, of which a box takes `room`. Collective.
    ///
    /// # Errors
    /// Those of [`World::alloc`].
    pub fn new(world: &World, len: usize, room: usize) -> Result<Bare> {
        let (rank, ranks, room) = (world.rank(), world.size(), room.min(len).max(1));
        Ok(Bare { boxes: world.alloc(2 * ranks * stride(room))?, rank, ranks, room, turn: 0 })
    }

    /// The flag of the box from rank `from` in the current half.
    #[inline(always)]
    fn at(&self, from: usize) -> usize {
        ((self.turn % 2) as usize * self.ranks + from) * stride(self.room)
    }

    /// Copies values to the box of this rank at `to`, and raises its flag.
    #[inline(always)]
    fn throw(&self, to: usize, values: &[f64]) {
        let at = self.at(self.rank);
        if values.len() < LINE {
            // They share the flag's line. A call would cost more than the stores.
            for (n, value) in values.iter().enumerate() {
                word(&self.boxes, to, at + 1 + n).store(value.to_bits(), Ordering::Relaxed);
            }
            return word(&self.boxes, to, at).store(self.turn, Ordering::Release);
        }
        // SAFETY: the box has room for the values, and `to` reads them after it has seen the flag.
        unsafe { libc::memcpy(address(&self.boxes, to, at + 1).cast(), values.as_ptr().cast(), size_of_val(values)) };
        // Pairs with the Acquire load in `catch`.
        word(&self.boxes, to, at).store(self.turn, Ordering::Release);
    }

    /// The values in the box from `from`, when they are there.
    #[inline(always)]
    fn catch(&self, from: usize, len: usize) -> &[f64] {
        let at = self.at(from);
        let flag = word(&self.boxes, self.rank, at);
        spin_until(|| flag.load(Ordering::Acquire) == self.turn);
        // SAFETY: as many values as the box has room for, which no rank writes until this rank has sent again.
        unsafe { std::slice::from_raw_parts(address(&self.boxes, self.rank, at + 1).cast(), len) }
    }

    /// All ranks but this one, beginning with the next.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank, self.ranks);
        (1..ranks).map(move |step| (rank + step) % ranks)
    }

    /// Sends the i-th piece of `values` to rank i, for each rank; the piece from rank i becomes the i-th piece of `into`.
    pub fn exchange(&mut self, values: &[f64], into: &mut [f64]) {
        let piece = values.len() / self.ranks;
        self.turn += 1;
        for other in self.others() {
            self.throw(other, &values[other * piece..][..piece]);
        }
        for other in self.others() {
            into[other * piece..][..piece].copy_from_slice(self.catch(other, piece));
        }
    }

    /// Each rank gets the values of all ranks, and adds them up.
    fn gather(&mut self, sums: &mut [f64]) {
        self.turn += 1;
        self.others().for_each(|other| self.throw(other, sums));
        for other in self.others() {
            add(sums, self.catch(other, sums.len()));
        }
    }

    /// Each rank adds up one piece, and sends the sum to all.
    fn pieces(&mut self, sums: &mut [f64]) {
        let (len, room) = (sums.len(), self.room);
        let piece = move |rank: usize| (rank * room).min(len)..((rank + 1) * room).min(len);
        self.turn += 1;
        for other in self.others() {
            self.throw(other, &sums[piece(other)]);
        }
        let own = piece(self.rank);
        for other in self.others() {
            add(&mut sums[own.clone()], self.catch(other, own.len()));
        }
        self.turn += 1;
        for other in self.others() {
            self.throw(other, &sums[own.clone()]);
        }
        for other in self.others() {
            let theirs = self.catch(other, piece(other).len());
            sums[piece(other)].copy_from_slice(theirs);
        }
    }
}

/// Words from one box to the next.
fn stride(room: usize) -> usize {
    (1 + room).next_multiple_of(LINE)
}

fn add(sums: &mut [f64], values: &[f64]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}
