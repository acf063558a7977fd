//! Faces go to symmetric memory, and a bell announces each of them.

use bellwether::{Bell, Error, Result, Symmetric, World};

use super::{DIRECTIONS, Exchange, Field, Part, opposite};

/// The exchange by put and bell.
#[derive(Debug)]
pub struct Bells<'w> {
    world: &'w World,
    part: Part,
    /// Two faces from each direction, used in turn: a neighbour may be one exchange ahead.
    faces: Symmetric<f64>,
    /// A bell for each direction, which the neighbour there rings.
    arrived: Vec<Bell>,
    /// Exchanges so far.
    done: u64,
}

impl<'w> Bells<'w> {
    /// Makes room for faces. Collective.
    ///
    /// # Errors
    /// Out of memory, or a rank was lost.
    pub fn new(world: &'w World, part: &Part) -> Result<Bells<'w>> {
        let faces = world.alloc(2 * DIRECTIONS * part.largest_face())?;
        let arrived = (0..DIRECTIONS).map(|_| world.bell()).collect::<Result<_>>()?;
        Ok(Bells { world, part: part.clone(), faces, arrived, done: 0 })
    }

    fn place(&self, direction: usize) -> usize {
        (2 * direction + (self.done % 2) as usize) * self.part.largest_face()
    }

    /// Gathers the numbers of each rank, `most` at most, on all ranks. Collective.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn gather(&self, mut mine: Vec<f64>, most: usize) -> Result<Vec<Vec<f64>>> {
        mine.resize(most, 0.0);
        let all = self.world.allgather(&mine)?;
        Ok(all.chunks_exact(most).map(<[f64]>::to_vec).collect())
    }
}

impl Exchange for Bells<'_> {
    type Error = Error;

    fn send(&mut self, field: &Field) -> Result<()> {
        for direction in 0..DIRECTIONS {
            if let Some(rank) = self.part.neighbour(direction) {
                let there = opposite(direction);
                self.faces.put_slice_bell(rank, self.place(there), &field.pack(direction), &self.arrived[there])?;
            }
        }
        Ok(())
    }

    fn receive(&mut self, field: &mut Field) -> Result<()> {
        for direction in 0..DIRECTIONS {
            if self.part.neighbour(direction).is_some() {
                self.arrived[direction].wait(self.done + 1)?;
                let mut face = vec![0.0; self.part.face(direction)];
                self.faces.read(self.place(direction), &mut face);
                field.unpack(direction, &face);
            }
        }
        self.done += 1;
        Ok(())
    }

    fn barrier(&self) -> Result<()> {
        self.world.barrier()
    }
}
