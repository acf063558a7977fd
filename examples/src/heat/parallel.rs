//! The plate on several ranks: each has a band of rows and gives its first and last row to its neighbours.
//!
//! # The halo exchange
//! A rank that has computed its edge rows of time `s` puts them into its neighbours' memory and rings their bell, one
//! bell for each direction; then it computes its inner rows. Before it computes time `s + 1` it waits until each bell has
//! counted `s`. There is no barrier: neighbours may be one step apart, and two ranks far apart by more.
//!
//! Each direction has two buffers, used in turn (time `s` goes into buffer `s % 2`). That is enough: a rank puts its row
//! of time `s + 2` over that of time `s` only after its bell said that the neighbour's row of time `s + 1` is here; the
//! neighbour put that row after it had computed time `s + 1`, for which it had read the row of time `s`.

use bellwether::{Bell, Result, Symmetric, World};

use super::plate::{Cell, INSULATED, Plate};
use super::serial::Stop;
use super::stencil::Band;
use crate::gather::Gather;
use crate::share::Shares;

/// A neighbour's row as it arrives here.
struct Inbox {
    /// Two rows, used in turn.
    rows: Symmetric<f64>,
    /// Rung once for each row that has arrived.
    arrived: Bell,
}

impl Inbox {
    fn new(world: &World, width: usize) -> Result<Inbox> {
        Ok(Inbox { rows: world.alloc(2 * width)?, arrived: world.bell()? })
    }

    /// Puts `row` of time `step` into this inbox of rank `to`.
    fn send(&self, to: usize, step: u64, row: &[f64]) -> Result<()> {
        self.rows.put_slice_bell(to, (step % 2) as usize * row.len(), row, &self.arrived)
    }

    /// Waits for the neighbour's row of time `step` and copies it out.
    fn receive(&self, step: u64, row: &mut [f64]) -> Result<()> {
        self.arrived.wait(step)?;
        self.rows.read((step % 2) as usize * row.len(), row);
        Ok(())
    }
}

/// A plate shared by all ranks of a world.
pub struct SharedPlate<'w> {
    world: &'w World,
    shares: Shares,
    band: Band,
    from_above: Inbox,
    from_below: Inbox,
    /// The shares counted in cells.
    cells: Shares,
    gather: Gather,
    steps_done: u64,
}

impl<'w> SharedPlate<'w> {
    /// Gives each rank its band of the plate that rank 0 has. Collective.
    ///
    /// # Errors
    /// Out of memory, or a rank was lost.
    pub fn scatter(world: &'w World, plate: Option<&Plate>, alpha: f64) -> Result<SharedPlate<'w>> {
        let mut size = plate.map_or([0, 0], |plate| [plate.width as u64, plate.height as u64]);
        world.broadcast(0, &mut size)?;
        let [width, height] = size.map(|side| side as usize);
        let shares = Shares::even(height, world.size());
        let own_cells = shares.scaled(width);
        let cells = scatter_cells(world, plate, width, &shares)?;
        Ok(SharedPlate {
            world,
            band: Band::new(width, alpha, &cells),
            from_above: Inbox::new(world, width)?,
            from_below: Inbox::new(world, width)?,
            gather: Gather::new(world, &own_cells)?,
            cells: own_cells,
            steps_done: 0,
            shares,
        })
    }

    /// Runs up to `stop`, counted from time 0, and calls `after_step` after each step with the number of steps done; it
    /// may look at the plate. Collective.
    ///
    /// # Errors
    /// A rank was lost, or what `after_step` returned.
    pub fn run<E: From<bellwether::Error>>(
        &mut self,
        stop: Stop,
        mut after_step: impl FnMut(&mut Self, u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        while self.steps_done < stop.steps {
            let settled = self.step(stop)?;
            after_step(self, self.steps_done)?;
            if settled {
                break;
            }
        }
        Ok(())
    }

    /// One time step; says whether the plate has settled.
    fn step(&mut self, stop: Stop) -> Result<bool> {
        let (before, after) = (self.steps_done, self.steps_done + 1);
        let (above, below) = self.neighbours();
        let rows = self.band.rows();
        // At time 0 the halo is known: it came with the cells.
        if before > 0 && above.is_some() {
            self.from_above.receive(before, self.band.above_mut())?;
        }
        if before > 0 && below.is_some() {
            self.from_below.receive(before, self.band.below_mut())?;
        }
        if rows > 0 {
            self.band.relax_row(0);
            if rows > 1 {
                self.band.relax_row(rows - 1);
            }
        }
        if let Some(above) = above {
            self.from_below.send(above, after, self.band.next_row(0))?;
        }
        if let Some(below) = below {
            self.from_above.send(below, after, self.band.next_row(rows - 1))?;
        }
        if rows > 2 {
            self.band.relax_rows(1..rows - 1);
        }
        let settled = self.settled(stop, after)?;
        self.band.advance();
        self.steps_done = after;
        Ok(settled)
    }

    /// Whether all ranks agree that the plate has settled. All ask at the same steps.
    fn settled(&self, stop: Stop, step: u64) -> Result<bool> {
        let Some(limit) = stop.looks_after(step) else {
            return Ok(false);
        };
        let mut change = [self.band.change()];
        self.world.allreduce(&mut change, f64::max)?;
        Ok(change[0] <= limit)
    }

    /// The ranks that have the rows next to this rank's.
    fn neighbours(&self) -> (Option<usize>, Option<usize>) {
        let rank = self.world.rank();
        let has_rows = |rank: &usize| !self.shares.of(*rank).is_empty();
        if !has_rows(&rank) {
            return (None, None);
        }
        // Only the last ranks can be without rows.
        (rank.checked_sub(1), Some(rank + 1).filter(|&next| next < self.world.size()).filter(has_rows))
    }

    /// Steps done since time 0.
    pub fn steps_done(&self) -> u64 {
        self.steps_done
    }

    /// All temperatures, row by row, on rank 0; `None` on the others. Every rank calls it at the same step, but none
    /// waits for another, except rank 0, and a rank whose previous band rank 0 has not taken yet.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn gather(&mut self) -> Result<Option<Vec<f64>>> {
        self.gather.collect(self.world, &self.cells, self.band.temperatures())
    }
}

/// Rank 0 puts each rank's rows, and one more on each side, into its memory.
fn scatter_cells(world: &World, plate: Option<&Plate>, width: usize, shares: &Shares) -> Result<Vec<Cell>> {
    let inbox: Symmetric<Cell> = world.alloc((shares.largest() + 2) * width)?;
    let arrived = world.bell()?;
    if let Some(plate) = plate {
        let wall = vec![INSULATED; width];
        let row = |row: Option<usize>| row.and_then(|row| plate.cells.chunks(width).nth(row)).unwrap_or(&wall);
        for to in 0..world.size() {
            let own = shares.of(to);
            inbox.put_slice(to, 0, row(own.start.checked_sub(1)))?;
            inbox.put_slice(to, width, &plate.cells[own.start * width..own.end * width])?;
            inbox.put_slice_bell(to, (own.len() + 1) * width, row(Some(own.end)), &arrived)?;
        }
    }
    arrived.wait(1)?;
    let mut cells = vec![INSULATED; (shares.of(world.rank()).len() + 2) * width];
    inbox.read(0, &mut cells);
    Ok(cells)
}
