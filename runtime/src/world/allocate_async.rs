//! Allocations that go on beside other work: the future forms of [`World::alloc`] and [`World::bell`].

use std::cell::RefCell;
use std::rc::Rc;

use super::allocate::{Allocator, Answer, Block, no_memory_at};
use super::symmetric::bytes_of;
use super::{Bell, PlainData, Symmetric, World};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::memory::layout::LINE;
use crate::sync::bell::WORDS_LEN;
use crate::team::{Allocation, Pending, Team};

/// They are collectives of the team of all ranks, and are tested, waited for with a limit, and resumed as [the others
/// are](World#method.barrier_async). While a rank has not begun its call, the others go on with what they do. Over a network the call itself waits
/// until this rank's contexts have nothing in flight. A rank that has its array may put to any other one, whose own [`Pending`] may still be open;
/// global pointers reach a rank's part when its own is done.
///
/// # Errors
/// As [`Team::world`]. From the [`Pending`]: [`Error::RanksDiffer`] if ranks ask for other types or lengths, and
/// [`Error::InvalidArgument`] for more elements than there are addresses; other ranks may get [`Error::Agreed`], and the team is not used
/// again. [`Error::OutOfMemory`] at all ranks; where a rank has no memory, that rank's error there, and [`Error::Agreed`], that it has no memory, at the
/// others. After these two the team is used on.
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
    /// See above.
    #[track_caller]
    pub fn alloc_async<T: PlainData>(&self, len: usize) -> Result<Pending<Symmetric<T>>> {
        let engine = Rc::clone(self.engine());
        self.allocate_async::<T, _>(len, bytes_of::<T>(len), move |block| Symmetric::shown(block, engine, len))
    }

    /// As [`World::bell`]; gives the bell.
    ///
    /// # Errors
    /// See above.
    #[track_caller]
    pub fn bell_async(&self) -> Result<Pending<Bell>> {
        let engine = Rc::clone(self.engine());
        self.allocate_async::<Bell, _>(1, Ok(WORDS_LEN), move |block| Bell::over(block, engine))
    }

    /// Begins an allocation of `bytes` bytes, for `len` of `T`. What comes of it is made by `made`.
    #[track_caller]
    fn allocate_async<T: 'static, R: 'static>(
        &self,
        len: usize,
        bytes: std::result::Result<usize, String>,
        made: impl FnOnce(Block) -> R + 'static,
    ) -> Result<Pending<R>> {
        let team = Team::world(self)?;
        let engine = Rc::clone(self.engine());
        // A call that is refused tells rank 0 nothing: the next one does.
        let is_refused =
            bytes.is_err() || engine.is_in_collective() || engine.check_outside_handler("allocation").is_err();
        let dropped = if is_refused { Vec::new() } else { self.within("allocation", || engine.take_dropped())? };
        let (allocator, note_backed) = (Rc::clone(&self.allocator), self.heaps.note_backed());
        let steps = bytes.map(|bytes| Steps { engine, allocator, note_backed, dropped, bytes, made, failed: None });
        Ok(team.allocate_async::<T, _>(len, steps))
    }
}

/// This rank's part in an allocation.
struct Steps<B, M> {
    engine: Rc<Engine>,
    allocator: Rc<RefCell<Allocator>>,
    /// Notes how much of each heap is backed.
    note_backed: B,
    /// Blocks that this rank has dropped before.
    dropped: Vec<usize>,
    bytes: usize,
    made: M,
    /// Why this rank has no memory.
    failed: Option<Error>,
}

impl<B: Fn(usize) + 'static, R: 'static, M: FnOnce(Block) -> R + 'static> Allocation for Steps<B, M> {
    type Place = Answer;
    type Made = R;

    fn hand_back(&mut self) -> Result<()> {
        self.engine.tell_dropped(std::mem::take(&mut self.dropped))
    }

    fn take(&mut self) -> Answer {
        self.allocator.borrow_mut().take(&self.engine, self.bytes, LINE)
    }

    fn back(&mut self, answer: Answer) -> bool {
        // Where there is no room all get that error.
        let Some(start) = answer.start() else { return true };
        if !self.engine.routes.all_mapped() {
            // The last rings of a bell that lay there have come, but may not have been counted. No handler runs here.
            self.engine.networks.progress();
        }
        self.failed = self.allocator.borrow_mut().back(&self.engine, start, start + LINE + self.bytes).err();
        self.failed.is_none()
    }

    fn made(self, answer: Answer, without: Option<usize>) -> Result<R> {
        let (start, number) = answer.placed(self.bytes, self.allocator.borrow().limit())?;
        if let Some(rank) = without {
            self.allocator.borrow_mut().give_back(start);
            return Err(self.failed.unwrap_or_else(|| no_memory_at(rank, self.bytes, "an allocation")));
        }
        (self.note_backed)(start + LINE + self.bytes);
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
