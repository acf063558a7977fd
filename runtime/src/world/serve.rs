//! Progress while the program computes.

use std::panic::resume_unwind;
use std::rc::Rc;

use super::progress::Progress;
use super::wakeup::Signaller;
use super::{OneThread, World};
use crate::engine::{Engine, Wakeup};
use crate::error::{Error, Placed, Result};
use crate::sleep::Ending;

const DOING: &str = "serving other ranks while a thread computes";

/// Serves other ranks on the world's thread while other threads of this rank work. Made by [`Progress::server`]; keeps the descriptors of
/// a [`WakeUp`](super::WakeUp).
#[doc(hidden)]
pub struct Server {
    engine: OneThread<Rc<Engine>, World>,
    wakeup: OneThread<Rc<Wakeup>, World>,
}

/// Work of other threads, during which a [`Server`] serves.
#[doc(hidden)]
pub struct Served<'a> {
    server: &'a Server,
    shared: Shared,
}

/// The state that the threads share.
struct Shared {
    ending: Ending,
    signaller: Signaller,
}

/// Work that has not ended. Its drop, also in a panic, ends [`Served::serve`].
#[doc(hidden)]
pub struct Working<'a>(&'a Shared);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        if self.0.ending.end() {
            // Fails only in a forked child, which has no thread that waits.
            let _ = self.0.signaller.signal();
        }
    }
}

impl Progress {
    /// # Errors
    /// As [`World::wake_up`].
    #[doc(hidden)]
    pub fn server(&self) -> Result<Server> {
        let wakeup = OneThread::new(self.engine().wakeup()?);
        Ok(Server { engine: OneThread::new(Rc::clone(self.engine())), wakeup })
    }
}

impl Server {
    /// For work that is about to begin.
    pub fn begin(&self) -> Served<'_> {
        let shared = Shared { ending: Ending::default(), signaller: Signaller::of(&self.engine, &self.wakeup) };
        Served { server: self, shared }
    }
}

impl Served<'_> {
    /// For the thread that works. There is one value of this type.
    pub fn working(&self) -> Working<'_> {
        Working(&self.shared)
    }

    /// Makes progress, and sleeps when nothing is left, until the work has ended. Other threads may use contexts in virtual time meanwhile,
    /// too. Does not check for failed peers: the next call reports them. Signals that came meanwhile count as one that nobody has waited
    /// for.
    ///
    /// # Panics
    /// With the first panic of a handler, when the work has ended.
    pub fn serve(&self, doing: &'static str) {
        let Served { server: Server { engine, wakeup }, shared } = self;
        let _asks = Asks::new(wakeup, shared);
        engine.serve_until(doing, wakeup, &shared.ending);
    }
}

/// Asks for all events as long as it lives. Its drop, also in a panic of a handler, gives a signal back.
struct Asks<'a> {
    wakeup: &'a Wakeup,
    shared: &'a Shared,
}

impl<'a> Asks<'a> {
    fn new(wakeup: &'a Wakeup, shared: &'a Shared) -> Asks<'a> {
        wakeup.count_handle(true);
        Asks { wakeup, shared }
    }
}

impl Drop for Asks<'_> {
    fn drop(&mut self) {
        if self.shared.ending.has_slept() {
            // The program may have sent one to its own loop. A full descriptor is readable, too.
            let _ = self.shared.signaller.signal();
        }
        self.wakeup.count_handle(false);
    }
}

impl World {
    /// Runs `work` on a thread of its own, and makes progress on this one until it is done: emulated puts, gets and atomics of other ranks
    /// take effect, messages are delivered, and handlers run, all on the thread of the world as ever. Meanwhile this thread sleeps until
    /// something comes. Returns what `work` returned.
    ///
    /// [`Settings::progress_thread`](crate::Settings::progress_thread), `BELLWETHER_PROGRESS_THREAD`, says where it does so. By default only
    /// where puts, gets or atomics of other ranks, on symmetric memory or segments, need progress of this one: elsewhere `work` is called
    /// directly, with no thread and at no cost. With `on`, messages and remote calls are served everywhere.
    ///
    /// The default does not look at accesses that may go by message: `put_address` and `get_address` of other memory over a network, and
    /// where the kernel allows no cross-memory attach also on one node, with those of segments outside the memory of the job. Use `on` if
    /// the work makes such accesses.
    ///
    /// `work` may not use the world, its handles or its handlers' state, which stay on this thread; it may use
    /// [contexts](World::context), which move into it. It must not call an MPI that was initialised for one thread.
    ///
    /// # Cost
    /// Where it serves: the start of a thread, some tens of microseconds, so call it for work of a millisecond or more; the descriptors of
    /// a [`WakeUp`](super::WakeUp) for as long as it lasts, if the program has none; and a core as far as messages come. Ranks that send or
    /// ring pay a system call while this one sleeps.
    ///
    /// `work` then has the stack of a thread of Rust, 2 MiB, not that of the main thread: set `RUST_MIN_STACK` for more.
    ///
    /// # On a simulated network
    /// Virtual time passes while the work runs, however long that takes.
    ///
    /// # Errors
    /// [`Error::InsideHandler`]; [`Error::Forked`]; [`Error::Os`] without a thread or a descriptor to be had. After an error `work` has not
    /// run. A failed peer, and errors of messages that were delivered meanwhile, come from the next call.
    ///
    /// # Panics
    /// With the panic of `work`; else with the first of a handler, when `work` is done. Until then this rank serves on.
    ///
    /// # Fork
    /// A handler must not fork meanwhile, other than to `exec` or `_exit`: the child has no thread that runs `work`, and would wait for it
    /// without end.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    ///
    /// let mut settings = bellwether::Settings::default();
    /// settings.progress_thread = bellwether::ProgressThread::On;
    /// bellwether::Threads::new(2).settings(settings).run(|world| {
    ///     let asked = Arc::new(AtomicBool::new(false));
    ///     world.set_state(Arc::clone(&asked));
    ///     world.barrier()?;
    ///     if world.rank() == 0 {
    ///         // Rank 1 answers, although it computes until it has.
    ///         let answer = world.call(1, 20, |context, x: u64| {
    ///             context.state::<Arc<AtomicBool>>().expect("set before the barrier").store(true, Ordering::Relaxed);
    ///             x + 1
    ///         })?;
    ///         assert_eq!(answer.wait()?, 21);
    ///     } else {
    ///         let sums = world.serve_while(|| {
    ///             let mut sums = Vec::new();
    ///             while !asked.load(Ordering::Relaxed) {
    ///                 sums.push((1..=1000u64).sum::<u64>());
    ///             }
    ///             sums
    ///         })?;
    ///         assert!(sums.iter().all(|sum| *sum == 500_500));
    ///     }
    ///     world.barrier()
    /// })?.into_iter().collect::<bellwether::Result<Vec<_>>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    ///
    /// The work cannot use the world:
    /// ```compile_fail,E0277
    /// # use bellwether_runtime as bellwether;
    /// bellwether::threads(1, |world| world.serve_while(|| world.rank()));
    /// ```
    #[track_caller]
    pub fn serve_while<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Result<R> {
        let engine = self.engine();
        engine.check_outside_handler(DOING).placed()?;
        if !engine.serves() {
            return Ok(work());
        }
        engine.at(|| {
            let server = self.progress().server()?;
            let served = server.begin();
            let name = format!("rank {} computes", self.rank());
            let _lent = engine.lend_contexts();
            std::thread::scope(|scope| {
                let working = served.working();
                let worker = std::thread::Builder::new().name(name).spawn_scoped(scope, move || {
                    let _working = working;
                    work()
                });
                let worker = worker.map_err(|source| Error::Os { doing: DOING, call: "thread", source })?;
                served.serve(DOING);
                Ok(worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
            })
        })
    }
}
