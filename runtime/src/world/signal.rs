//! Signals: 64-bit counters in symmetric memory that a put adds one to when its data is there.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytemuck::Pod;

use super::Symmetric;
use crate::engine::Ready;
use crate::error::{Placed, Result};

const WAITING: &str = "waiting for a signal";

impl<T: Pod> Symmetric<T> {
    /// Writes `values` at `rank`, from element `start`, then adds one to word `index` of `signals` there: a rank that
    /// sees the count sees all values. OpenSHMEM's put-with-signal (1.5, section 9.8), with an add. Nothing is needed
    /// from the target.
    ///
    /// Several ranks may signal one word. It counts signals only: other puts to it are lost or lose some.
    ///
    /// # Errors
    /// As [`Symmetric::put_slice`], for either array; then nothing was written.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// bellwether::threads(2, |world| {
    ///     let (halo, arrived) = (world.alloc::<f64>(8)?, world.alloc::<u64>(1)?);
    ///     let other = 1 - world.rank();
    ///     halo.put_slice_signal(other, 0, &[1.5; 8], &arrived, 0)?;
    ///     arrived.wait_signal(0, 1)?;
    ///     assert_eq!(halo.load(7), 1.5);
    ///     world.barrier()
    /// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[inline]
    #[track_caller]
    pub fn put_slice_signal(
        &self,
        rank: usize,
        start: usize,
        values: &[T],
        signals: &Symmetric<u64>,
        index: usize,
    ) -> Result<()> {
        signals.range("put_slice_signal", rank, index, 1).placed()?;
        self.put_slice(rank, start, values).placed()?;
        signals.signal(rank, index)
    }
}

impl Symmetric<u64> {
    /// Adds one to word `index` of `rank`, after everything this rank has put there before. It waits a moment for the
    /// device where that rank's memory is mapped here and others' is not, and for nobody else.
    ///
    /// # Errors
    /// [`crate::Error::RankOutOfRange`], [`crate::Error::OutOfBounds`]; over a network [`crate::Error::PeerLost`].
    #[inline]
    #[track_caller]
    pub fn signal(&self, rank: usize, index: usize) -> Result<()> {
        (|| -> Result<()> {
            let Some(at) = self.element(rank, index) else { return self.signal_remote(rank, index) };
            // SAFETY: an element of ours; words that are signalled are only touched atomically. Release pairs with the
            // Acquire load in `signals`.
            unsafe { AtomicU64::from_ptr(at) }.fetch_add(1, Ordering::Release);
            self.engine().interface.wake_if_asleep(rank);
            Ok(())
        })()
        .placed_here()
    }

    #[cold]
    fn signal_remote(&self, rank: usize, index: usize) -> Result<()> {
        let offset = self.range("signal", rank, index, 1)?;
        self.engine().remote_ring(rank, offset)?;
        self.engine().settle_mapped(rank);
        Ok(())
    }

    /// How often this rank's word `index` has been signalled. Reads memory and makes no progress: see [`Symmetric::load`].
    ///
    /// # Panics
    /// If the index is out of bounds.
    #[inline]
    #[track_caller]
    pub fn signals(&self, index: usize) -> u64 {
        assert!(index < self.len(), "element {index} of {}", self.len());
        // SAFETY: an element of ours. Acquire pairs with the Release in `signal`, here or of the network.
        unsafe { AtomicU64::from_ptr(self.as_ptr_range().start.add(index)) }.load(Ordering::Acquire)
    }

    /// Waits until this rank's word `index` is at least `at_least`, and tells what it is. Delivers messages meanwhile.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBounds`]; as [`super::Bell::wait`].
    #[track_caller]
    pub fn wait_signal(&self, index: usize, at_least: u64) -> Result<u64> {
        self.range("wait_signal", self.engine().rank, index, 1).placed()?;
        let mut count = 0;
        let ready = || {
            count = self.signals(index);
            count >= at_least
        };
        self.engine().at(|| self.engine().wait_until(WAITING, None, ready))?;
        Ok(count)
    }

    /// The future form of [`Symmetric::wait_signal`]. Its errors name the place where it was made.
    ///
    /// # Panics
    /// When polled, if the index is out of bounds.
    #[inline]
    #[track_caller]
    pub fn signalled(&self, index: usize, at_least: u64) -> Signalled<'_> {
        Signalled { signals: self, index, at_least, place: self.engine().place() }
    }
}

/// Ready when a word has been signalled often enough; see [`Symmetric::signalled`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Signalled<'a> {
    signals: &'a Symmetric<u64>,
    index: usize,
    at_least: u64,
    /// Where the program made it.
    place: &'static Location<'static>,
}

impl Future for Signalled<'_> {
    type Output = Result<u64>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<u64>> {
        let polled = self.signals.engine().poll_ready(WAITING, context, || {
            let count = self.signals.signals(self.index);
            Ok((count >= self.at_least).then_some(count))
        });
        polled.map_err(|error| error.at(self.place))
    }
}

impl Ready for Signalled<'_> {
    fn is_ready(&mut self) -> bool {
        self.signals.signals(self.index) >= self.at_least
    }

    fn driver(&self) -> Option<*const ()> {
        Some(Rc::as_ptr(self.signals.engine()).cast())
    }
}
