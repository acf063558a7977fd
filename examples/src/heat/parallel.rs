//! The plate on several ranks: an array of which each has a band of rows, and its neighbours' nearest row on each side.
//!
//! A rank that has computed its first and last row of a time step sends them off, and computes the rows between while
//! they are under way. There is no barrier: neighbours may be one step apart, and two ranks far apart by more.

use bellwether::array::Ghosts;
use bellwether::{GlobalArray, Layout, Result, World};

use super::plate::{INSULATED, Plate, temperature};
use super::serial::Stop;
use super::stencil::Stencil;

/// A plate shared by all ranks of a world.
pub struct SharedPlate<'w> {
    world: &'w World,
    stencil: Stencil,
    /// Temperatures: now, and after the step.
    now: GlobalArray<f64, 2>,
    next: GlobalArray<f64, 2>,
    steps_done: u64,
}

impl<'w> SharedPlate<'w> {
    /// Gives each rank its band of the plate that rank 0 has. Collective.
    ///
    /// # Errors
    /// Out of memory, or a rank was lost.
    pub fn scatter(world: &'w World, plate: Option<&Plate>, alpha: f64) -> Result<SharedPlate<'w>> {
        let mut size = plate.map_or([0, 0], |plate| [plate.height as u64, plate.width as u64]);
        world.broadcast(0, &mut size)?;
        let layout = Layout::rows(size.map(|side| side as usize), world.size())?;
        let bands = GlobalArray::from_root(world, layout.clone(), 0, plate.map(|plate| plate.cells.as_slice()))?;
        let mut cells = GlobalArray::with_ghosts(world, layout.clone(), Ghosts::new([1, 0]))?;
        // Beyond the plate it stays.
        cells.local_mut().fill(INSULATED);
        cells.zip_update(&bands, |cell, given| *cell = given)?;
        cells.exchange()?;
        let temperatures = || {
            let mut array = GlobalArray::with_ghosts(world, layout.clone(), Ghosts::new([1, 0]))?;
            array.local_mut().iter_mut().zip(cells.local()).for_each(|(t, cell)| *t = temperature(*cell));
            Ok(array)
        };
        let (now, next) = (temperatures()?, temperatures()?);
        Ok(SharedPlate {
            world,
            stencil: Stencil::new(layout.extents()[1], alpha, cells.local()),
            now,
            next,
            steps_done: 0,
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

    /// One time step; says whether all ranks agree that the plate has settled.
    fn step(&mut self, stop: Stop) -> Result<bool> {
        let (stencil, now, rows) = (&self.stencil, self.now.local(), self.stencil.rows());
        let last = rows.saturating_sub(1).max(1);
        stencil.relax(0..rows.min(1), now, self.next.local_mut());
        stencil.relax(last..rows, now, self.next.local_mut());
        let mut exchange = self.next.start_exchange()?;
        stencil.relax(1..last, now, exchange.local_mut());
        exchange.finish()?;
        self.steps_done += 1;
        let settled = match stop.looks_after(self.steps_done) {
            None => false,
            Some(limit) => {
                let mut change = [stencil.change(now, self.next.local())];
                self.world.allreduce(&mut change, f64::max)?;
                change[0] <= limit
            }
        };
        std::mem::swap(&mut self.now, &mut self.next);
        Ok(settled)
    }

    /// Steps done since time 0.
    pub fn steps_done(&self) -> u64 {
        self.steps_done
    }

    /// All temperatures, row by row, on rank 0; `None` on the others. Collective.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn gather(&self) -> Result<Option<Vec<f64>>> {
        self.now.to_root(self.world, 0)
    }
}
