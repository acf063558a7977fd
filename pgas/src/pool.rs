//! Threads inside a rank: rayon on the rank's share of the node's cores.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use bellwether_runtime::{
    CalledAt, Error, Mapped, Placed, Pod, Progress, Result, Server, Symmetric, ThreadArray, ThreadContext,
    ThreadPosted, World,
};

/// A rayon pool for this rank, with one thread for each core of its equal share of the node's cores, at least one. Threads are
/// pinned if the share's cores are known and the system allows it ([`Pool::is_pinned`]).
///
/// The pool uses the cores to which the launcher bound the rank, but no more than an equal share. A rank that is bound to one
/// core gets one thread, as under `mpirun -n 2`. With `mpirun --bind-to none`, or `--map-by slot:pe=4`, there are more.
///
/// [`Pool::install`] runs code on the pool while the world's thread makes progress, so its threads may wait for events that need progress.
/// Parallel iterators inside use the pool; nested `join`, `scope` and `install` of rayon are fine.
///
/// Only the world's thread may use the world and make collective calls. Pool threads use iterators over local elements
/// ([`GlobalArray::par_iter`](crate::GlobalArray::par_iter)) and handles to elements of any rank ([`Pool::share`],
/// [`GlobalArray::pooled`](crate::GlobalArray::pooled)).
///
/// # Examples
/// Each element from its mirror image, wherever that is.
/// ```
/// use bellwether::rayon::prelude::*;
/// use bellwether::{GlobalArray, Layout, Pool};
/// # fn main() -> bellwether::Result<()> {
/// # bellwether::threads(2, |world| {
/// let pool = Pool::new(world)?;
/// let layout = Layout::block([1000], world.size())?;
/// let numbers = GlobalArray::from_fn(world, layout.clone(), |[i]| i as u64)?.share(world)?;
/// let mut mirrored = GlobalArray::<u64, 1>::new(world, layout)?;
/// let (from, to) = (numbers.pooled(&pool), mirrored.par_iter_mut());
/// pool.install(|| {
///     to.try_for_each(|([i], x)| {
///         *x = from.get(999 - i)?;
///         Ok::<(), bellwether::Error>(())
///     })
/// })?;
/// assert!(mirrored.iter().all(|([i], x)| *x == 999 - i as u64));
/// world.barrier()
/// # })?.into_iter().collect() }
/// ```
pub struct Pool {
    threads: rayon::ThreadPool,
    pinned: bool,
    progress: Progress,
    server: Server,
    contexts: Arc<Contexts>,
}

/// The contexts of a pool: at most one for each thread, fewer if the network has no further interface, none where all memory is
/// mapped.
///
/// While there is no [`Pooled`] no thread uses them, and the rank's waits need not make progress for them.
struct Contexts {
    list: Vec<Mutex<ThreadContext>>,
    /// Values of [`Pooled`].
    handles: AtomicUsize,
}

impl Contexts {
    fn new(list: Vec<ThreadContext>) -> Contexts {
        let contexts = Contexts { list: list.into_iter().map(Mutex::new).collect(), handles: AtomicUsize::new(0) };
        contexts.note_used(false);
        contexts
    }

    fn note_used(&self, used: bool) {
        let lock = |context: &Mutex<ThreadContext>| {
            context.lock().unwrap_or_else(PoisonError::into_inner).note_used(used);
        };
        self.list.iter().for_each(lock);
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        // They are counted as used when they end.
        self.note_used(true);
    }
}

/// A [`Pooled`]'s claim on the contexts of its pool.
struct Handle(Arc<Contexts>);

impl Handle {
    fn new(contexts: &Arc<Contexts>) -> Handle {
        // Relaxed: uses are counted, and counts commute.
        if contexts.handles.fetch_add(1, Ordering::Relaxed) == 0 {
            contexts.note_used(true);
        }
        Handle(Arc::clone(contexts))
    }
}

impl Clone for Handle {
    fn clone(&self) -> Handle {
        Handle::new(&self.0)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Relaxed: as in `new`.
        if self.0.handles.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.note_used(false);
        }
    }
}

impl Pool {
    /// A pool of this rank's share of the cores. Local: ranks may have pools of their own, or none.
    ///
    /// Where ranks reach each other over a network each thread gets a [context](World::context), as far as the network has
    /// interfaces; further threads share these. Over RDMA a context takes about 8 MB of buffers and a helper thread. The first context
    /// closes the registration of handlers. A rank with pools has the descriptors of one [`WakeUp`](crate::WakeUp), four for all pools.
    ///
    /// # Errors
    /// [`Error::Os`] if the system has no more threads or descriptors. Over a network [`Error::NoContext`] if it has no interface for even
    /// one context.
    #[track_caller]
    pub fn new(world: &World) -> Result<Pool> {
        let (place, ranks) = world.place_on_host();
        let cores = share(&allowed_cores(), world.cores(), place, ranks);
        match cores {
            Share::These(cores) => Self::build(world, cores.len(), Some(cores)),
            Share::SoMany(threads) => Self::with_threads(world, threads),
        }
    }

    /// A pool of `threads` threads, at least one. The operating system chooses their cores.
    ///
    /// # Errors
    /// As [`Pool::new`].
    #[track_caller]
    pub fn with_threads(world: &World, threads: usize) -> Result<Pool> {
        Self::build(world, threads.max(1), None).placed_here()
    }

    fn build(world: &World, threads: usize, cores: Option<Vec<usize>>) -> Result<Pool> {
        let rank = world.rank();
        let mut builder = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(move |n| format!("rank {rank} thread {n}"));
        // First core to which a thread could not be pinned, and the error.
        let refused = Arc::new(OnceLock::new());
        let mut pinned = cores.is_some();
        if let Some(cores) = cores {
            let refused = Arc::clone(&refused);
            builder = builder.start_handler(move |number| {
                let mut set = rustix::thread::CpuSet::new();
                set.set(cores[number]);
                if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
                    // Only the first refusal is reported.
                    let _ = refused.set((cores[number], error));
                }
            });
        } else if let Ok(allowed) = bellwether_runtime::allowed_cores() {
            // They inherit the binding of a simulated rank. A refusal leaves them as they are.
            builder = builder.start_handler(move |_| {
                let _ = rustix::thread::sched_setaffinity(None, &allowed);
            });
        }
        let threads = builder.build().map_err(|error| Error::Os {
            doing: "starting the threads of a pool",
            call: "clone",
            source: std::io::Error::other(error),
        })?;
        if pinned {
            // Waits until every thread has run its start handler, so `refused` is final.
            threads.broadcast(|_| ());
        }
        if let Some((core, error)) = refused.get() {
            pinned = false;
            tracing::warn!(rank, core, %error, "the pool's threads could not be bound to their cores");
        }
        let progress = world.progress();
        let count = if progress.is_mapped() { 0 } else { threads.current_num_threads() };
        let contexts = Arc::new(Contexts::new(contexts(world, count)?));
        let server = progress.server()?;
        Ok(Pool { threads, pinned, progress, server, contexts })
    }

    /// Whether each thread is pinned to one core. `false` for [`Pool::with_threads`]; if the launcher bound this rank to part
    /// of the node's cores but to more than its share, since other ranks may use the same ones; or if the system refuses, which
    /// is logged.
    pub fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// How many threads it has.
    pub fn threads(&self) -> usize {
        self.threads.current_num_threads()
    }

    /// Runs `work` on the pool and waits for it; this thread makes progress meanwhile, and sleeps until something comes, as in
    /// [`World::serve_while`]. Ranks that send or ring pay a system call while it sleeps. Errors of messages that were delivered, and
    /// failed peers, are reported by the next call.
    ///
    /// # Panics
    /// If `work` panics; in a forked child, where the pool has no threads; with the first panic of a handler, after `work` has ended.
    #[track_caller]
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        if let Err(forked) = self.progress.check_own("Pool::install").placed() {
            panic!("{forked}");
        }
        let mut result = None;
        // Before the pool's threads begin.
        let _lent = self.progress.lend_contexts();
        let served = self.server.begin();
        self.threads.in_place_scope(|scope| {
            let (working, result) = (served.working(), &mut result);
            scope.spawn(move |_| {
                // Ends also when the work panics, which the scope passes on.
                let _working = working;
                *result = Some(work());
            });
            served.serve("serving other ranks while a pool computes");
        });
        result.expect("the scope ends when the work has")
    }

    /// The array for the pool's threads.
    pub fn share<'a, T: Pod + Send + Sync>(&self, array: &'a Symmetric<T>) -> Pooled<'a, T> {
        Pooled { mapped: array.mapped(), array: array.for_threads(), contexts: Handle::new(&self.contexts) }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads, {})", self.threads(), if self.pinned { "pinned" } else { "not pinned" })
    }
}

/// Cores that this thread may run on, in order.
fn allowed_cores() -> Vec<usize> {
    let set = bellwether_runtime::allowed_cores().ok();
    let cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.as_ref().is_some_and(|set| set.is_set(*core)));
    let cores: Vec<usize> = cores.collect();
    if cores.is_empty() { vec![0] } else { cores }
}

/// A rank's cores.
#[derive(Debug, PartialEq, Eq)]
enum Share {
    These(Vec<usize>),
    /// A number of threads; which cores are this rank's is unknown.
    SoMany(usize),
}

/// The share of the rank at `place` of the `ranks` on this host in the cores that it may run on. All these ranks together may run on
/// `all` cores.
fn share(cores: &[usize], all: usize, place: usize, ranks: usize) -> Share {
    if cores.len() < all {
        // The ranks are bound apart, maybe some of them to the same cores.
        let threads = (all / ranks).clamp(1, cores.len());
        return if threads == cores.len() { Share::These(cores.to_vec()) } else { Share::SoMany(threads) };
    }
    let range = place * cores.len() / ranks..(place + 1) * cores.len() / ranks;
    Share::These(if range.is_empty() { vec![cores[place % cores.len()]] } else { cores[range].to_vec() })
}

/// `count` contexts, or fewer if the network has no more interfaces or the process no more open files, but at least one.
fn contexts(world: &World, count: usize) -> Result<Vec<ThreadContext>> {
    let mut contexts = Vec::new();
    while contexts.len() < count {
        match world.context() {
            Ok(context) => contexts.push(context),
            Err(error) if contexts.is_empty() || matches!(error, Error::Forked { .. }) => return Err(error),
            Err(_) => break,
        }
    }
    Ok(contexts)
}

/// Names `get_slice` in the error, the call that the user made, directly or by `get`.
fn as_asked(error: Error) -> Error {
    const NAME: &str = "get_slice";
    match error {
        Error::RankOutOfRange { rank, size, place, .. } => Error::RankOutOfRange { operation: NAME, rank, size, place },
        Error::OutOfBounds { rank, start, count, available, place, .. } => {
            Error::OutOfBounds { operation: NAME, rank, start, count, available, place }
        }
        other => other,
    }
}

/// Nested waits on one stack after which a thread only yields: each task that a wait runs adds a frame. Chosen.
const DEEPEST: usize = 32;

thread_local! {
    static WAITING: Cell<usize> = const { Cell::new(0) };
}

/// A symmetric array for the threads of a [`Pool`]: puts and gets that any of them may call.
///
/// If all memory is mapped they complete at once. Over a network each pool thread uses a context (shared if there are fewer
/// than threads) and runs other tasks of the pool until the operation completes. A thread outside the pool may call them too;
/// it blocks.
///
/// On a simulated network a thread other than the world's may call them while the world's thread is in [`Pool::install`], of any pool;
/// elsewhere that is [`Error::InvalidArgument`].
#[derive(Clone)]
pub struct Pooled<'a, T> {
    mapped: Option<Mapped<'a, T>>,
    array: ThreadArray<'a, T>,
    contexts: Handle,
}

impl<T: Pod + Send + Sync> Pooled<'_, T> {
    /// Reads one element of `rank`.
    ///
    /// # Errors
    /// As [`Symmetric::get`].
    #[track_caller]
    pub fn get(&self, rank: usize, index: usize) -> Result<T> {
        let mut value = [T::zeroed()];
        self.get_slice(rank, index, &mut value).placed()?;
        Ok(value[0])
    }

    /// Reads elements of `rank`, from `start`, into `values`.
    ///
    /// # Errors
    /// As [`Symmetric::get_slice`].
    #[track_caller]
    pub fn get_slice(&self, rank: usize, start: usize, values: &mut [T]) -> Result<()> {
        if let Some(mapped) = &self.mapped {
            return mapped.get_slice(rank, start, values);
        }
        let posted = self.context().placed()?.get_slice_async(&self.array, rank, start, values.len());
        values.copy_from_slice(&wait(posted).map_err(as_asked).placed()?);
        Ok(())
    }

    /// Writes one element at `rank`. It is visible there when this returns.
    ///
    /// # Errors
    /// As [`Symmetric::put`].
    #[track_caller]
    pub fn put(&self, rank: usize, index: usize, value: T) -> Result<()> {
        self.put_slice(rank, index, &[value]).placed_here()
    }

    /// Writes `values` at `rank`, from element `start`. They are visible there when this returns.
    ///
    /// # Errors
    /// As [`Symmetric::put_slice`].
    #[track_caller]
    pub fn put_slice(&self, rank: usize, start: usize, values: &[T]) -> Result<()> {
        if let Some(mapped) = &self.mapped {
            return mapped.put_slice(rank, start, values);
        }
        let posted = self.context().placed()?.put_slice_async(&self.array, rank, start, values);
        wait(posted)
    }

    /// As [`Pooled::put`], but does not wait: neither for room nor until the value is visible, for which the result waits.
    ///
    /// # Errors
    /// As [`Pooled::put`], and [`Error::WouldBlock`]: nothing was put. Also while another thread posts with the same context.
    #[track_caller]
    pub fn try_put(&self, rank: usize, index: usize, value: T) -> Result<PooledPut<'_>> {
        self.try_put_slice(rank, index, &[value]).placed_here()
    }

    /// As [`Pooled::put_slice`], but does not wait, as [`Pooled::try_put`]. What the network does not take at once is copied.
    ///
    /// # Errors
    /// As [`Pooled::put_slice`]; as [`Pooled::try_put`].
    ///
    /// # Examples
    /// ```
    /// use bellwether::{Error, Pool};
    ///
    /// # bellwether::threads(2, |world| {
    /// let (pool, numbers) = (Pool::new(world)?, world.alloc::<u64>(4)?);
    /// let (pooled, next) = (pool.share(&numbers), 1 - world.rank());
    /// pool.install(|| {
    ///     let put = loop {
    ///         match pooled.try_put_slice(next, 1, &[7, 8]) {
    ///             // Or something useful.
    ///             Err(Error::WouldBlock { .. }) => std::thread::yield_now(),
    ///             outcome => break outcome?,
    ///         }
    ///     };
    ///     put.wait()
    /// })?;
    /// world.barrier()?;
    /// assert_eq!([numbers.load(1), numbers.load(2)], [7, 8]);
    /// # world.barrier()
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn try_put_slice(&self, rank: usize, start: usize, values: &[T]) -> Result<PooledPut<'_>> {
        if let Some(mapped) = &self.mapped {
            return mapped.put_slice(rank, start, values).map(|()| PooledPut(None));
        }
        let Some(context) = self.try_context().placed()? else {
            return Err(Error::WouldBlock { operation: "try_put_slice", rank, place: CalledAt::default() }).placed();
        };
        context.try_put_slice_async(&self.array, rank, start, values).map(|posted| PooledPut(Some(posted)))
    }

    /// Locks this thread's context. Threads share one if the network has fewer interfaces than threads, and a thread outside a
    /// pool uses the first. Hold the lock only while posting: tasks that this thread runs while it waits may post too.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is none.
    fn context(&self) -> Result<MutexGuard<'_, ThreadContext>> {
        Ok(self.own_context()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// As [`Pooled::context`]; `None` if another thread has it.
    ///
    /// # Errors
    /// As [`Pooled::context`].
    fn try_context(&self) -> Result<Option<MutexGuard<'_, ThreadContext>>> {
        Ok(match self.own_context()?.try_lock() {
            Ok(context) => Some(context),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })
    }

    fn own_context(&self) -> Result<&Mutex<ThreadContext>> {
        let Some(number) = rayon::current_thread_index().unwrap_or(0).checked_rem(self.contexts.0.list.len()) else {
            let why = "the array is of another world than the pool".into();
            return Err(Error::InvalidArgument { operation: "a put or get of a pool", why });
        };
        Ok(&self.contexts.0.list[number])
    }
}

/// A put of [`Pooled::try_put`] or [`Pooled::try_put_slice`] that is in flight. One that is dropped still happens; a barrier of the world does
/// not wait for it.
#[must_use = "its errors come from `wait`"]
#[derive(Debug)]
pub struct PooledPut<'a>(Option<ThreadPosted<'a, ()>>);

impl PooledPut<'_> {
    /// Whether the values are visible at the target, so that [`PooledPut::wait`] does not wait. Makes progress.
    pub fn is_done(&mut self) -> bool {
        self.0.as_mut().is_none_or(ThreadPosted::is_done)
    }

    /// Waits until the values are visible at the target, and does other work of the pool meanwhile.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    #[track_caller]
    pub fn wait(self) -> Result<()> {
        self.0.map_or(Ok(()), wait).placed_here()
    }
}

/// Waits for an operation, and does other work of the pool meanwhile.
fn wait<R>(mut posted: ThreadPosted<'_, R>) -> Result<R> {
    if rayon::current_thread_index().is_none() {
        return posted.wait();
    }
    let waiting = WAITING.get();
    WAITING.set(waiting + 1);
    while !posted.is_done() {
        // A task run here may wait too, nested on this stack.
        if waiting >= DEEPEST || rayon::yield_now() != Some(rayon::Yield::Executed) {
            std::thread::yield_now();
        }
    }
    WAITING.set(waiting);
    posted.wait()
}

impl<T> std::fmt::Debug for Pooled<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pooled({})", if self.mapped.is_some() { "mapped" } else { "over contexts" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_refuses_is_told_by_the_pool() {
        let outcomes = bellwether_runtime::threads(2, |world| {
            let cores = |pool: &Pool| {
                let set = || rustix::thread::sched_getaffinity(None).map_or(0, |set| set.count());
                pool.threads.broadcast(|_| set())
            };
            let pool = Pool::new(world)?;
            assert!(!pool.is_pinned() || cores(&pool).iter().all(|cores| *cores == 1));
            assert!(format!("{pool:?}").contains(if pool.is_pinned() { "threads, pinned" } else { "not pinned" }));
            assert!(!Pool::with_threads(world, 2)?.is_pinned());
            // Hardly a machine has that many.
            let last = rustix::thread::CpuSet::MAX_CPU - 1;
            let allowed = allowed_cores()[0];
            if !allowed_cores().contains(&last) {
                let pool = Pool::build(world, 2, Some(vec![allowed, last]))?;
                assert!(!pool.is_pinned() && pool.install(|| rayon::join(|| 1, || 2)) == (1, 2));
            }
            Ok(())
        });
        outcomes.expect("runs").into_iter().collect::<Result<()>>().expect("runs");
    }

    /// The ranks of a simulated job are bound to one core, which is not their pool's share.
    #[test]
    fn pools_of_simulated_ranks_have_as_many_threads_as_elsewhere() {
        let threads = |world: &bellwether_runtime::World| {
            let cores = |pool: &Pool| {
                let set = || rustix::thread::sched_getaffinity(None).map_or(0, |set| set.count());
                pool.threads.broadcast(|_| set())
            };
            Ok::<_, Error>((Pool::new(world)?.threads(), cores(&Pool::with_threads(world, 2)?)))
        };
        let sim = bellwether_runtime::Simulated::new(crate::sim::Config::new(1, 1));
        let simulated = sim.run(threads).expect("runs");
        let elsewhere = bellwether_runtime::threads(1, threads).expect("runs");
        assert_eq!(simulated[0].as_ref().expect("made"), elsewhere[0].as_ref().expect("made"));
    }

    #[test]
    fn cores_are_shared_as_they_are_bound() {
        use Share::{SoMany, These};
        // Not bound: equal shares, and one core each where there are more ranks.
        assert_eq!(share(&[0, 1, 2, 3], 4, 1, 2), These(vec![2, 3]));
        assert_eq!(share(&[0, 1, 2], 3, 1, 2), These(vec![1, 2]));
        assert_eq!(share(&[4, 5], 2, 2, 7), These(vec![4]));
        // Each has cores of its own.
        assert_eq!(share(&[4, 5, 6, 7], 8, 1, 2), These(vec![4, 5, 6, 7]));
        assert_eq!(share(&[3], 4, 3, 4), These(vec![3]));
        // Four on each of two sockets.
        assert_eq!(share(&[0, 1, 2, 3, 4, 5, 6, 7], 16, 2, 8), SoMany(2));
        // More ranks than cores, bound to one of two halves.
        assert_eq!(share(&[2, 3], 4, 5, 9), SoMany(1));
    }
}
