//! The plate on several ranks: an array of which each has a band of rows, and its neighbours' nearest rows on each side.
//!
//! A rank keeps up to `BLOCK` rows of each neighbour, and computes as many steps between two exchanges. The steps go over the band
//! together, while it is in the cache; rows of the neighbours are computed on both sides, one less with each step. While the
//! exchange is under way a rank computes all that needs no row of a neighbour: in each step one row less on either side. There
//! is no barrier: neighbours may be one exchange apart, and two ranks far apart by more.

use std::rc::Rc;

use bellwether::array::Ghosts;
use bellwether::{GlobalArray, Layout, Result, World};

use super::live::{Doing, Live};
use super::plate::{INSULATED, Plate, temperature};
use super::serial::{CHECK_EVERY, Stop};
use super::stencil::Stencil;

/// Most steps between two exchanges. Their rows are to stay in a core's second-level cache, and each costs as many rows of the
/// neighbours that are computed twice.
const BLOCK: u64 = 8;

/// A plate shared by all ranks of a world.
pub struct SharedPlate<'w> {
    world: &'w World,
    stencil: Stencil,
    /// Rows of each neighbour that are kept, and steps between two exchanges: at least 1, and no more rows than any rank has.
    halo: usize,
    /// Temperatures: now, and after the next step.
    now: GlobalArray<f64, 2>,
    next: GlobalArray<f64, 2>,
    steps_done: u64,
    /// Ranks that have rows next to this one's.
    neighbours: u64,
    live: Rc<Live>,
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
        let heights = (0..world.size()).map(|rank| layout.extents_at(rank)[0]);
        let halo = heights.filter(|rows| *rows > 0).min().unwrap_or(1).min(BLOCK as usize);
        let mut cells = GlobalArray::with_ghosts(world, layout.clone(), Ghosts::new([halo, 0]))?;
        // Beyond the plate it stays.
        cells.local_mut().fill(INSULATED);
        cells.zip_update(&bands, |cell, given| *cell = given)?;
        cells.exchange()?;
        let temperatures = || {
            let mut array = GlobalArray::with_ghosts(world, layout.clone(), Ghosts::new([halo, 0]))?;
            array.local_mut().iter_mut().zip(cells.local()).for_each(|(t, cell)| *t = temperature(*cell));
            Ok(array)
        };
        let (now, next) = (temperatures()?, temperatures()?);
        let rows = |rank: usize| layout.extents_at(rank)[0];
        let beside = [world.rank().checked_sub(1), Some(world.rank() + 1).filter(|rank| *rank < world.size())];
        let beside = beside.into_iter().flatten().filter(|rank| rows(*rank) > 0).count();
        let neighbours = if rows(world.rank()) > 0 { beside as u64 } else { 0 };
        Ok(SharedPlate {
            world,
            stencil: Stencil::new(layout.extents()[1], alpha, cells.local()),
            halo,
            now,
            next,
            steps_done: 0,
            neighbours,
            live: Rc::default(),
        })
    }

    /// Runs up to `stop`, counted from time 0, and calls `after_steps` after every few steps with the number of steps done: in any case
    /// after each multiple of `every`. It may look at the plate. Collective.
    ///
    /// # Errors
    /// A rank was lost, or what `after_steps` returned.
    pub fn run<E: From<bellwether::Error>>(
        &mut self,
        stop: Stop,
        every: Option<u64>,
        mut after_steps: impl FnMut(&mut Self, u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        while self.steps_done < stop.steps {
            let until = |multiple: u64| multiple - self.steps_done % multiple;
            let mut steps = (stop.steps - self.steps_done).min(self.halo as u64);
            steps = every.map_or(steps, |every| steps.min(until(every)));
            steps = stop.until_change.map_or(steps, |_| steps.min(until(CHECK_EVERY)));
            self.steps(steps as usize)?;
            let settled = self.settled(stop)?;
            after_steps(self, self.steps_done)?;
            if settled {
                break;
            }
        }
        Ok(())
    }

    /// Makes `steps` time steps with one exchange: at most as many as rows of each neighbour are kept.
    ///
    /// Step k, from 1, computes all own rows and `steps` - k rows of each neighbour, from as many and one more on either side. Own rows that
    /// are k or more rows from both ends need no row of a neighbour: the sweep computes them during the exchange. The other rows are computed
    /// after it, step by step. Their inputs are still there, since step k + 1 of the sweep overwrites rows k + 1 and further in only.
    fn steps(&mut self, steps: usize) -> Result<()> {
        let (stencil, own) = (&self.stencil, self.now.own_extents()[0]);
        // The stencil counts from the second row that is kept of the neighbour above.
        let above = self.halo - 1;
        let mut exchange = self.now.start_exchange()?;
        stencil.sweep(above + 1..(above + own).saturating_sub(1), steps, exchange.local_mut(), self.next.local_mut());
        self.live.count_rings(self.neighbours);
        self.live.during(Doing::AwaitsRows, || exchange.finish())?;
        let mut arrays = [&mut self.now, &mut self.next];
        for step in 1..=steps {
            let [now, next] = arrays;
            let (first, end) = (above + step - steps, above + own + steps - step);
            let (from, to) = (above + step, (above + own).saturating_sub(step));
            if own == 0 {
            } else if from < to {
                stencil.relax(first..from, now.local(), next.local_mut());
                stencil.relax(to..end, now.local(), next.local_mut());
            } else {
                stencil.relax(first..end, now.local(), next.local_mut());
            }
            arrays = [next, now];
        }
        if !steps.is_multiple_of(2) {
            std::mem::swap(&mut self.now, &mut self.next);
        }
        self.steps_done += steps as u64;
        self.live.set_steps(self.steps_done);
        Ok(())
    }

    /// Whether all ranks agree that the plate has settled, if that is to be known now.
    fn settled(&self, stop: Stop) -> Result<bool> {
        let Some(limit) = stop.looks_after(self.steps_done) else { return Ok(false) };
        let own = self.halo - 1..self.halo - 1 + self.now.own_extents()[0];
        let mut change = [self.stencil.change(own, self.next.local(), self.now.local())];
        self.live.during(Doing::AwaitsChange, || self.world.allreduce(&mut change, f64::max))?;
        Ok(change[0] <= limit)
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
        self.live.during(Doing::AwaitsGather, || self.now.to_root(self.world, 0))
    }

    /// This rank's activity, which other ranks can ask for.
    pub fn live(&self) -> &Rc<Live> {
        &self.live
    }
}
