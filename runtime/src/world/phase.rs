//! Access rights of an allocation, on which arrays with phases and global pointers are built.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::rc::Rc;

use bytemuck::Pod;

use super::allocate::Block;
use super::{Symmetric, World};
use crate::error::{CalledAt, Error, Result};
use crate::team::see::Wanted;
use crate::team::title::Kind;

/// The ranks that may access an allocation by pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Reach {
    /// Only holders of the handle.
    Handle,
    /// Holders of pointers that were made after the change.
    Pointers,
}

impl World {
    /// Changes which ranks can access an allocation. Collective. When it returns, every rank has called it for this
    /// allocation, all earlier puts to the allocation are in effect, and no earlier pointer or future reaches it: requests
    /// that futures had posted are done, and futures post no further ones ([`Error::PhaseOver`]).
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] on every rank in this call if one is in another, or names another allocation or another
    /// reach; then no pointer reaches the allocation. [`Error::InvalidArgument`] for an allocation of another world. As
    /// [`World::barrier`].
    #[doc(hidden)]
    pub fn change_reach<T>(&self, array: &Symmetric<T>, reach: Reach) -> Result<()> {
        self.check_own(array, "a change of phase")?;
        let running = self.begin("a change of phase")?;
        let block = array.block();
        block.hide();
        self.engine.quiet_contexts("a change of phase")?;
        let mine = [block.number as u64, reach as u64];
        let mut different = None;
        self.exchange_within(
            &running,
            (Kind::Phase, Wanted::Equal),
            bytemuck::bytes_of(&mine),
            |rank, theirs: &[u8]| {
                let theirs = bytemuck::pod_read_unaligned::<[u64; 2]>(theirs);
                if theirs != mine && different.is_none() {
                    different = Some((rank, theirs));
                }
            },
        )?;
        if let Some((rank, theirs)) = different {
            let tell = |[block, reach]: [u64; 2]| {
                format!("allocation {block} to its {}", if reach == 0 { "local phase" } else { "shared phase" })
            };
            return Err(Error::RanksDiffer {
                what: "a change of phase",
                rank,
                reference: self.rank(),
                theirs: tell(theirs),
                ours: tell(mine),
                advice: "every rank must change the same arrays, in the same order",
            });
        }
        if reach == Reach::Pointers {
            block.show();
        }
        Ok(())
    }

    /// Takes an allocation away from pointers and futures. Local: every rank does so. After the next barrier or exchange only the
    /// handle reaches the allocation, because a rank enters these when what its futures have in flight is complete.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if a rank died while what contexts have in flight was waited for.
    #[doc(hidden)]
    pub fn withhold<T>(&self, array: &Symmetric<T>) -> Result<()> {
        array.block().hide();
        self.engine().quiet_contexts("taking an allocation away from pointers")
    }

    /// Lets pointers reach it again, new ones only. Local: every rank does so as often, and the same allocations.
    #[doc(hidden)]
    pub fn offer<T>(&self, array: &Symmetric<T>) {
        array.block().show();
    }

    /// # Errors
    /// [`Error::InvalidArgument`] if `array` is of another world than this one.
    #[doc(hidden)]
    pub fn check_own<T>(&self, array: &Symmetric<T>, operation: &'static str) -> Result<()> {
        if Rc::ptr_eq(self.engine(), array.engine_handle()) {
            return Ok(());
        }
        let why = "the array belongs to another world than the one that was given".into();
        Err(Error::InvalidArgument { operation, why })
    }

    /// The allocation of this number and generation, if this rank holds it and pointers reach it.
    ///
    /// # Errors
    /// [`Error::Stale`] otherwise; `rank` and `operation` are for that.
    ///
    /// # Safety
    /// What comes back is dropped before this rank drops the allocation or changes its reach.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn lend<T: Pod>(
        &self,
        operation: &'static str,
        rank: usize,
        number: usize,
        generation: u64,
    ) -> Result<Lent<'_, T>> {
        let entry = self.engine().blocks.get(number);
        if entry.generation != generation || generation == 0 {
            return Err(stale(operation, rank, generation, entry.generation));
        }
        // SAFETY: copies of a handle that lives in the world, at least as long as the values made from the copies. The copies are never dropped.
        let engine = || unsafe { std::ptr::read(self.engine()) };
        let block = Block::lent(engine(), entry, number);
        let array = Symmetric::over(block, engine(), entry.bytes / size_of::<T>());
        Ok(Lent { array: ManuallyDrop::new(array), world: PhantomData })
    }
}

impl<T> Symmetric<T> {
    /// Number and generation of the allocation, for pointers to it. The same on all ranks; generation 0: no pointer
    /// reaches it.
    #[doc(hidden)]
    pub fn identity(&self) -> (usize, u64) {
        let number = self.block().number;
        (number, self.engine_handle().blocks.get(number).generation)
    }
}

#[cold]
fn stale(operation: &'static str, rank: usize, generation: u64, current: u64) -> Error {
    Error::Stale { operation, rank, generation, current, place: CalledAt::default() }
}

/// An allocation that another handle holds.
pub struct Lent<'w, T> {
    /// Holds references to the engine that were not counted.
    array: ManuallyDrop<Symmetric<T>>,
    world: PhantomData<&'w World>,
}

impl<T> Deref for Lent<'_, T> {
    type Target = Symmetric<T>;

    #[inline(always)]
    fn deref(&self) -> &Symmetric<T> {
        &self.array
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::error::Result;
    use crate::transport::rigs::allocations;

    #[test]
    fn a_use_of_a_pointer_allocates_nothing() {
        let ranks = crate::Threads::new(2).run(|world| -> Result<u64> {
            let array = world.alloc::<u64>(8)?;
            let (number, generation) = array.identity();
            world.barrier()?;
            let before = allocations();
            for value in 0..100 {
                // SAFETY: dropped at once; the array lives longer.
                let lent = unsafe { world.lend::<u64>("a test", 1, number, generation) }?;
                lent.put(1, 3, value)?;
                lent.get(1, 3)?;
            }
            Ok(allocations() - before)
        });
        assert!(ranks.expect("runs").into_iter().all(|count| count.expect("runs") == 0));
    }
}
