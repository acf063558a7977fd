//! Any change of an element, by compare-and-swap.

use super::Symmetric;
use super::atomics::{AtomicElement, Word};
use super::posted::{Posted, Stage, Steps};
use crate::engine::{Atomic, Change, Claim, Engine, Get, HeapRange};
use crate::error::{Placed, Result};
use crate::transport::AtomicOp;

impl<T: Word> Symmetric<T> {
    /// Replaces an element of `rank` by the value that `change` returns for it, atomically, and returns the former value. `change`
    /// is called again if another rank has changed the element meanwhile. This adds floating-point numbers: `|x| x + 1.5`. Over a
    /// network it takes two round trips or more.
    ///
    /// # Errors
    /// As [`Symmetric::compare_swap`].
    #[track_caller]
    pub fn fetch_update(&self, rank: usize, index: usize, mut change: impl FnMut(T) -> T) -> Result<T> {
        self.range("fetch_update", rank, index, 1).placed()?;
        let mut expected: T::Bits = bytemuck::cast(self.get(rank, index).placed()?);
        loop {
            let new: T::Bits = bytemuck::cast(change(bytemuck::cast(expected)));
            let found = match self.element(rank, index) {
                // SAFETY: an element of ours, as long and as aligned, only touched atomically.
                Some(at) => unsafe { T::Bits::compare_swap(at.cast(), expected, new) },
                None => {
                    self.atomic_remote("fetch_update", AtomicOp::CompareSwap, rank, index, new, expected).placed()?
                }
            };
            if found == expected {
                return Ok(bytemuck::cast(found));
            }
            expected = found;
        }
    }

    /// The future form of [`Symmetric::fetch_update`]. Where memory is mapped it is done when this returns. Over a network
    /// the element has been asked for then, and each further step is made when the future is polled after the answer to the
    /// one before: so the first steps of several updates are made at once, and the further ones too if the updates are
    /// polled in turn ([`Posted::wait_all`], or a join of futures); a wait for one update makes only the steps of that one.
    /// One that is dropped before it is ready, or whose phase or allocation has ended, may have changed the element or not,
    /// and does not from then on ([`crate::Error::PhaseOver`]).
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::Posted;
    /// bellwether::threads(3, |world| {
    ///     let most = world.alloc::<f64>(2)?;
    ///     let mine = world.rank() as f64;
    ///     Posted::wait_all((0..2).map(|i| most.fetch_update_async(0, i, move |x| mine.max(x))))?;
    ///     world.barrier()?;
    ///     assert_eq!(most.get(0, 1)?, 2.0);
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn fetch_update_async(&self, rank: usize, index: usize, change: impl FnMut(T) -> T + 'static) -> Posted<T> {
        const DOING: &str = "fetch_update_async";
        let post = || {
            let offset = self.range(DOING, rank, index, 1)?;
            if self.engine().routes.all_mapped() {
                return Ok(Stage::Done(self.fetch_update(rank, index, change)));
            }
            let claim = self.claim();
            let get = Get::new(
                self.engine().networks.largest_get(),
                Some(claim),
                [HeapRange { rank, offset, len: size_of::<T>() }],
            );
            Ok(Stage::Steps(Box::new(Update { claim, rank, offset, step: Step::Read(get, T::zeroed()), change })))
        };
        Posted::new(self.engine(), DOING, post())
    }
}

/// A change over a network that is in flight.
struct Update<T: Word, F> {
    claim: Claim,
    rank: usize,
    offset: usize,
    step: Step<T>,
    change: F,
}

enum Step<T: Word> {
    /// Reads the element.
    Read(Get, T),
    /// If it still is this, it is to be another.
    Swap(T::Bits, Atomic),
}

impl<T: Word, F: FnMut(T) -> T> Steps<T> for Update<T, F> {
    fn advance(&mut self, engine: &Engine, doing: &'static str) -> Result<Option<T>> {
        loop {
            let found: T::Bits = match &mut self.step {
                Step::Read(get, element) => {
                    if !get.advance(&mut &*engine, doing, bytemuck::bytes_of_mut(element))? {
                        return Ok(None);
                    }
                    bytemuck::cast(*element)
                }
                Step::Swap(expected, swap) => {
                    let Some(word) = swap.advance(&mut &*engine, doing)? else { return Ok(None) };
                    let found = T::Bits::narrow(word);
                    if found == *expected {
                        return Ok(Some(bytemuck::cast(found)));
                    }
                    found
                }
            };
            let new: T::Bits = bytemuck::cast((self.change)(bytemuck::cast(found)));
            let (value, compare) = (new.widen(), found.widen());
            let change = Change { op: AtomicOp::CompareSwap, width: T::Bits::WIDTH, value, compare };
            self.step = Step::Swap(found, Atomic::new(self.claim, self.rank, self.offset, change));
        }
    }
}
