//! Buffers that an operation owns while the network reads them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::engine::{Engine, Ready, Stream};
use crate::error::Error;
use crate::transport::lock::Mutex;

/// A buffer that an [`Operation`](super::Operation) has used without a copy: a future that gives it back when the network has read it.
/// If the put failed, it gives the buffer back all the same; the put's events tell of the error.
///
/// Await it in [`World::block_on`](super::World::block_on) or in an executor on the thread of its world, or poll the world and
/// [take](Returned::take) the buffer. In an executor each poll makes progress for the worlds of the thread, unless a
/// [`Reactor`](super::Reactor) makes it. The buffer of a [`ThreadOperation`](super::ThreadOperation) comes back in a call of its context
/// that makes progress: wait with [`ThreadContext::wait_returned`](super::ThreadContext::wait_returned). Dropping it drops the buffer
/// when the network has read it. If the world ends before that, the buffer is leaked and does not come back.
#[derive(Debug)]
pub struct Returned<B> {
    slot: Arc<Mutex<Slot<B>>>,
}

/// Where the buffer comes back.
#[derive(Debug)]
enum Slot<B> {
    /// Lent by the context at this address, which lives at least as long; `None`: lent by the world. With the waker of the task that waits for the
    /// buffer.
    Lent(Option<usize>, Option<Waker>),
    Back(B),
    Taken,
}

impl<B> Slot<B> {
    fn take(&mut self) -> Option<B> {
        if !matches!(self, Slot::Back(_)) {
            return None;
        }
        match std::mem::replace(self, Slot::Taken) {
            Slot::Back(buffer) => Some(buffer),
            _ => None,
        }
    }
}

impl<B> Returned<B> {
    /// Takes the buffer, if the network has read it. `None` before that, and when it was taken. Makes no progress.
    pub fn take(&self) -> Option<B> {
        self.slot.lock().take()
    }

    /// As [`Returned::take`], for a wait that `by` makes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it was taken before, or if `by` has not lent it and it is not back.
    pub(super) fn take_lent(&self, operation: &'static str, by: &Stream) -> crate::Result<Option<B>> {
        let mut slot = self.slot.lock();
        let invalid = |why: &str| Err(Error::InvalidArgument { operation, why: why.into() });
        match &*slot {
            Slot::Taken => invalid("it was taken before; a buffer comes back once"),
            Slot::Lent(None, _) => invalid("the world has lent it; await it on the thread of the world"),
            Slot::Lent(Some(lender), _) if *lender != address(by) => {
                invalid("another context has lent it, and gives it back in its own calls; wait with that one")
            }
            _ => Ok(slot.take()),
        }
    }
}

fn address(stream: &Stream) -> usize {
    std::ptr::from_ref(stream).addr()
}

impl<B> Future for Returned<B> {
    type Output = crate::Result<B>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<crate::Result<B>> {
        if let Some(buffer) = self.take() {
            return Poll::Ready(Ok(buffer));
        }
        if !Engine::has_drivers() {
            Engine::turn_thread();
            return match self.take() {
                Some(buffer) => Poll::Ready(Ok(buffer)),
                None => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            };
        }
        // It may also come back by a context, in another thread.
        let waker = context.waker().clone();
        let mut slot = self.slot.lock();
        let former = match &mut *slot {
            Slot::Lent(_, waiting) => waiting.replace(waker),
            _ => None,
        };
        drop(slot);
        // The program's code runs outside the lock.
        drop(former);
        let sleeps = Engine::sleep_on_thread(context);
        match self.take() {
            Some(buffer) => Poll::Ready(Ok(buffer)),
            None => {
                if !sleeps {
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }
}

impl<B> Ready for Returned<B> {
    fn is_ready(&mut self) -> bool {
        matches!(*self.slot.lock(), Slot::Back(_))
    }

    /// It may come back by the world or by a context.
    fn driver(&self) -> Option<*const ()> {
        None
    }

    fn is_taken(&self) -> bool {
        matches!(*self.slot.lock(), Slot::Taken)
    }
}

/// A buffer that is given back when this is dropped.
pub(super) struct Lender<B> {
    /// From a box.
    buffer: *mut B,
    slot: Arc<Mutex<Slot<B>>>,
}

// SAFETY: it owns the buffer, which may be sent.
unsafe impl<B: Send> Send for Lender<B> {}

impl<B> Lender<B> {
    /// `by`: the context that lends it; `None` is the world.
    pub(super) fn new(buffer: B, by: Option<&Stream>) -> (Lender<B>, Returned<B>) {
        let slot = Arc::new(Mutex::new(Slot::Lent(by.map(address), None)));
        let lender = Lender { buffer: Box::into_raw(Box::new(buffer)), slot: Arc::clone(&slot) };
        (lender, Returned { slot })
    }

    /// The content of the buffer. It is not moved until this is dropped.
    pub(super) fn elements<T>(&self) -> &[T]
    where
        B: AsRef<[T]>,
    {
        // SAFETY: from a box, and alive; nobody has a reference that excludes this one.
        unsafe { &*self.buffer }.as_ref()
    }
}

impl<B> Drop for Lender<B> {
    fn drop(&mut self) {
        // SAFETY: from a box; the last use of the pointer.
        let buffer = unsafe { Box::from_raw(self.buffer) };
        // The program's code runs outside the lock, which this statement releases.
        let before = std::mem::replace(&mut *self.slot.lock(), Slot::Back(*buffer));
        if let Slot::Lent(_, Some(waiting)) = before {
            waiting.wake();
        }
    }
}
