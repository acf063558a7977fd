//! The queue of completion handlers, and the thread that runs them.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::calls::Calls;
use super::domain::LOC_ADDRTBL_SZ;
use super::traffic::Ticket;
use super::types::{CompletionHandler, Handle};
use super::{codes, port};

/// The work that is left for a message whose data is in its place.
#[derive(Clone, Copy)]
pub(super) struct Finish {
    pub(super) from: usize,
    /// The target event: the address of a counter of this task, or an index of [`Lapi::target_event`](super::Lapi::target_event); 0 is
    /// none.
    pub(super) target: u64,
    /// The word of the completion event, which is one of task `from`; 0 is none.
    pub(super) completion: u64,
    /// The ticket of a message that was not put in its place at once.
    pub(super) ticket: Option<Ticket>,
}

/// A completion handler that has not run yet.
pub(super) struct Work {
    /// The header handler of its message, by index or address; 0 for the completion handler of a get.
    pub(super) of: u64,
    pub(super) handler: CompletionHandler,
    pub(super) parameter: *mut c_void,
    pub(super) finish: Finish,
}

// SAFETY: the header handler that named the completion handler and its parameter guarantees that another thread may run it.
unsafe impl Send for Work {}

thread_local! {
    /// The handle whose completion handler this thread runs, and whether that is a closure.
    static RUNS: Cell<Option<(Handle, bool)>> = const { Cell::new(None) };
}

/// Marks that this thread runs a completion handler of a handle. Dropping it restores the previous mark.
pub(super) struct Marks(Option<(Handle, bool)>);

impl Marks {
    pub(super) fn new(handle: Handle, is_closure: bool) -> Marks {
        Marks(RUNS.replace(Some((handle, is_closure))))
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        RUNS.set(self.0);
    }
}

/// # Errors
/// [`codes::IN_HANDLER`] if this thread runs a completion handler of this handle: in a collective call the other tasks would wait for a
/// handler.
pub(super) fn check_outside(handle: Handle) -> Result<(), i32> {
    if RUNS.get().is_some_and(|(own, _)| own == handle) { Err(codes::IN_HANDLER) } else { Ok(()) }
}

/// # Errors
/// [`codes::IN_HANDLER`] if this thread runs a completion handler of this handle that is a closure: closures must not wait.
pub(super) fn check_no_closure(handle: Handle) -> Result<(), i32> {
    if RUNS.get() == Some((handle, true)) { Err(codes::IN_HANDLER) } else { Ok(()) }
}

/// The name of a completion handler in the error of a panic.
#[cold]
pub(super) fn name(of: u64, is_inline: bool) -> String {
    let inline = if is_inline { "inline " } else { "" };
    match of {
        0 => format!("{inline}completion handler of a get"),
        of => format!("{inline}completion handler of {}", header_name(of)),
    }
}

/// The name of a header handler in the error of a panic.
#[cold]
pub(super) fn header_name(of: u64) -> String {
    if of < LOC_ADDRTBL_SZ as u64 { format!("header handler {of}") } else { format!("header handler at {of:#x}") }
}

#[derive(Default)]
struct Waiting {
    /// In the order in which the data of their messages arrived.
    works: VecDeque<Work>,
    /// The message of the handler that was taken last. That handler may have run already.
    taken: Option<Finish>,
}

impl Waiting {
    fn take(&mut self) -> Option<Work> {
        let work = self.works.pop_front()?;
        self.taken = Some(work.finish);
        Some(work)
    }
}

/// Completion handlers that wait for their turn.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Number of handlers that wait or run.
    left: AtomicUsize,
    /// Whether a thread that makes progress runs them: see [`run_own`](super::domain::run_own).
    pub(super) running: AtomicBool,
    over: AtomicBool,
    calls: Calls,
}

/// Counts a handler as run when it is dropped, also if the handler unwinds.
struct Ends<'a> {
    queue: &'a Queue,
    handle: Handle,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        // Pairs with the Acquire in `is_done`.
        self.queue.left.fetch_sub(1, Ordering::Release);
        // The thread that waits for the last handler may sleep in the port.
        port::wake(self.handle);
    }
}

impl Queue {
    pub(super) fn new(calls: Calls) -> Queue {
        Queue { calls, ..Queue::default() }
    }

    pub(super) fn push(&self, work: Work) {
        self.left.fetch_add(1, Ordering::Relaxed);
        port::lock(&self.waiting).works.push_back(work);
        self.changed.notify_one();
    }

    /// Whether all have run.
    pub(super) fn is_done(&self) -> bool {
        // Pairs with the Release in `Ends`.
        self.left.load(Ordering::Acquire) == 0
    }

    pub(super) fn pop(&self) -> Option<Work> {
        port::lock(&self.waiting).take()
    }

    /// Number of handlers that wait or run, of messages for which `is_meant` holds. The calling thread is in the port, where handlers are pushed.
    #[cold]
    pub(super) fn count(&self, is_meant: impl Fn(&Finish) -> bool) -> usize {
        let waiting = port::lock(&self.waiting);
        // One handler runs at a time, and `left` counts it too.
        let running = waiting.taken.iter().filter(|_| self.left.load(Ordering::Acquire) > waiting.works.len());
        waiting.works.iter().map(|work| &work.finish).chain(running).filter(|finish| is_meant(finish)).count()
    }

    /// Runs a handler, and then moves the counters of its message. The calling thread is in no port.
    pub(super) fn run(&self, handle: Handle, work: Work) {
        let Work { of, handler, parameter, finish } = work;
        let mut own = handle;
        let _ends = Ends { queue: self, handle };
        let outcome = {
            let _marks = Marks::new(handle, false);
            // SAFETY: the header handler gave this function with this parameter, and guarantees that it may be called.
            catch_unwind(AssertUnwindSafe(|| unsafe { self.calls.completion(handler, &mut own, parameter) }))
        };
        // If the handle has ended since, there is no counter to move.
        if let Ok(domain) = port::enter(handle) {
            match outcome {
                // The function of a target event may panic too. This thread must continue: other threads wait for the remaining handlers.
                Ok(()) => match catch_unwind(AssertUnwindSafe(|| domain.finish(finish))) {
                    Ok(()) => {}
                    Err(_) => domain.panicked(finish.from),
                },
                Err(panic) => {
                    domain.world.messages().tell_panic(finish.from, name(of, false), &*panic);
                    domain.panicked(finish.from);
                    domain.fail_events(&finish, codes::HANDLER_PANICKED);
                }
            }
        }
    }

    /// Makes the handler thread end when its current handler has returned.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
        drop(port::lock(&self.waiting));
        self.changed.notify_all();
    }

    /// Waits until something is pushed, or the queue ends.
    fn wait<'a>(&'a self, waiting: MutexGuard<'a, Waiting>) -> MutexGuard<'a, Waiting> {
        if cfg!(bellwether_tsan) {
            drop(waiting);
            std::thread::yield_now();
            return port::lock(&self.waiting);
        }
        self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, handle: Handle) {
        loop {
            let mut waiting = port::lock(&self.waiting);
            let work = loop {
                if self.over.load(Ordering::Acquire) {
                    return;
                }
                match waiting.take() {
                    Some(work) => break work,
                    None => waiting = self.wait(waiting),
                }
            };
            drop(waiting);
            self.run(handle, work);
        }
    }
}

/// Starts the thread of a handle.
///
/// # Errors
/// Those of the system.
pub(super) fn start(queue: &Arc<Queue>, handle: Handle) -> std::io::Result<JoinHandle<()>> {
    let queue = Arc::clone(queue);
    let name = format!("lapi handler {handle}");
    crate::thread::start(name, move || queue.work(handle))
}
