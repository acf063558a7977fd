//! Allocations that go on beside other work: the future forms of [`World::alloc`] and [`World::bell`].

use std::cell::RefCell;
use std::rc::Rc;

use super::allocate::{Allocator, Answer, Block, not_backed};
use super::symmetric::bytes_of;
use super::{Bell, PlainData, Symmetric, World};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::memory::layout::LINE;
use crate::sync::bell::WORDS_LEN;
use crate::team::{Allocation, Pending, Team};

/// They are collectives of the team of all ranks, and are tested, waited for with a limit, and resumed as [the others
/// are](World#method.barrier_async). While a rank has not begun its call, the others go on with what they do.
///
/// # Errors
/// As [`Team::world`]. From the [`Pending`], at all ranks: [`Error::RanksDiffer`] if ranks ask for other types or lengths;
/// [`Error::OutOfMemory`] and, where a rank has no memory, [`Error::Agreed`], after which the team is used on.
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// # bellwether::threads(2, |world| {
/// let (halo, bell) = (world.alloc_async::<f64>(512)?, world.bell_async()?);
/// // ... while memory is laid out ...
/// let (halo, bell) = (halo.wait()?, bell.wait()?);
/// halo.put_bell(1 - world.rank(), 511, 2.5, &bell)?;
/// bell.wait(1)?;
/// assert_eq!(halo.load(511), 2.5);
/// # world.barrier()
/// # })?.into_iter().collect::<bellwether::Result<()>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
impl World {
    /// As [`World::alloc`]; gives the array.
    ///
    /// # Errors
    /// See above; [`Error::InvalidArgument`] for more elements than there are addresses.
    #[track_caller]
    pub fn alloc_async<T: PlainData>(&self, len: usize) -> Result<Pending<Symmetric<T>>> {
        let (engine, bytes) = (Rc::clone(self.engine()), bytes_of::<T>(len)?);
        self.allocate_async::<T, _>(len, bytes, move |block| Symmetric::shown(block, engine, len))
    }

    /// As [`World::bell`]; gives the bell.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn bell_async(&self) -> Result<Pending<Bell>> {
        let engine = Rc::clone(self.engine());
        self.allocate_async::<Bell, _>(1, WORDS_LEN, move |block| Bell::over(block, engine))
    }

    /// Begins an allocation of `bytes` bytes, for `len` of `T`. What comes of it is made by `made`.
    #[track_caller]
    fn allocate_async<T: 'static, R: 'static>(
        &self,
        len: usize,
        bytes: usize,
        made: impl FnOnce(Block) -> R + 'static,
    ) -> Result<Pending<R>> {
        let team = Team::world(self)?;
        self.within("allocation", || self.engine().hand_back())?;
        let (engine, allocator) = (Rc::clone(self.engine()), Rc::clone(&self.allocator));
        let steps = Steps { engine, allocator, backed: self.heaps.note_backed(), bytes, made, failed: None };
        Ok(team.allocate_async::<T, _>(len, steps))
    }
}

/// This rank's part in an allocation.
struct Steps<B, M> {
    engine: Rc<Engine>,
    allocator: Rc<RefCell<Allocator>>,
    /// Notes how much of each heap is backed.
    backed: B,
    bytes: usize,
    made: M,
    /// Why this rank has no memory.
    failed: Option<Error>,
}

impl<B: Fn(usize) + 'static, R: 'static, M: FnOnce(Block) -> R + 'static> Allocation for Steps<B, M> {
    type Place = Answer;
    type Made = R;

    fn take(&mut self) -> Answer {
        self.allocator.borrow_mut().take(&self.engine, self.bytes, LINE)
    }

    fn back(&mut self, answer: Answer) -> bool {
        // Where there is no room all get that error.
        let Some(start) = answer.start() else { return true };
        if !self.engine.routes.all_mapped() {
            // The last rings of a bell that lay there have come, but may not have been counted.
            self.engine.turn();
        }
        self.failed = self.allocator.borrow_mut().back(&self.engine, start, start + LINE + self.bytes).err();
        self.failed.is_none()
    }

    fn made(self, answer: Answer, without: Option<usize>) -> Result<R> {
        let (start, number) = answer.placed(self.bytes, self.allocator.borrow().limit())?;
        if let Some(rank) = without {
            self.allocator.borrow_mut().give_back(start);
            return Err(self.failed.unwrap_or_else(|| not_backed(&self.engine, rank, self.bytes)));
        }
        (self.backed)(start + LINE + self.bytes);
        Ok((self.made)(Block::made(&self.engine, start, number, self.bytes, answer.allocation)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use crate::error::Result;
    use crate::settings::{Settings, Transport};
    use crate::transport::sim;
    use crate::{Simulated, Team, Threads, World};

    #[test]
    fn what_all_ranks_have_dropped_is_used_again() {
        let body = |world: &World| {
            Team::world(world)?;
            for round in 0..20u8 {
                let memory = world.alloc_async::<u8>(2 << 20)?.wait()?;
                assert_eq!(memory.load(0), 0, "round {round}");
                memory.store(0, 1 + round);
            }
            world.barrier()
        };
        let of = |transport| Settings { heap_limit: Some(16 << 20), transport, ..Settings::default() };
        let mut outcomes = Vec::new();
        for transport in [Transport::Auto, Transport::ShmContract, Transport::Tcp] {
            let ranks = Threads::new(3).settings(of(transport)).deadline(Duration::from_secs(60));
            outcomes.extend(ranks.run(body).expect("the ranks start"));
        }
        let simulated = Simulated::new(sim::Config::new(3, 1).wild()).settings(of(Transport::Auto));
        outcomes.extend(simulated.run(body).expect("the job starts"));
        outcomes.into_iter().collect::<Result<Vec<_>>>().expect("there is room for one");
    }
}
