//! Threads inside a rank: rayon on the rank's share of the node's cores.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use bellwether_runtime::{Error, Mapped, Pod, Progress, Result, Symmetric, World};

/// A rayon pool of this rank's own: as many threads as it has cores when the ranks of the node share them equally, at least
/// one, each kept on one of these cores.
///
/// [`Pool::install`] runs code on it while the world's thread makes progress, so threads may wait for what needs that.
/// Parallel iterators inside use the pool; nested `join`, `scope` and `install` of rayon are fine.
///
/// # Examples
/// ```
/// use bellwether::Pool;
/// # fn main() -> bellwether::Result<()> {
/// # bellwether::threads(2, |world| {
/// let numbers = std::rc::Rc::new(world.alloc::<u64>(1000)?);
/// (0..1000).for_each(|at| numbers.store(at, at as u64));
/// world.barrier()?;
/// let pool = Pool::new(world)?;
/// let (theirs, next) = (pool.share(&numbers), (world.rank() + 1) % world.size());
/// let (low, high) = pool.install(|| pool_sums(&theirs, next));
/// # fn pool_sums(theirs: &bellwether::Shared<u64>, next: usize) -> (u64, u64) {
/// #     let sum = |half: std::ops::Range<usize>| half.map(|at| theirs.get(next, at).unwrap()).sum();
/// #     rayon::join(|| sum(0..500), || sum(500..1000))
/// # }
/// assert_eq!(low + high, 499_500);
/// world.barrier()
/// # })?.into_iter().collect() }
/// ```
pub struct Pool {
    threads: rayon::ThreadPool,
    progress: Progress,
    requests: Arc<Requests>,
    /// What serves the arrays that were shared, by their number.
    arrays: RefCell<Vec<Rc<dyn Serve>>>,
}

impl Pool {
    /// A pool of this rank's share of the cores. Local: ranks may have pools of their own, or none.
    ///
    /// # Errors
    /// [`Error::Os`] if the system has no more threads.
    pub fn new(world: &World) -> Result<Pool> {
        let cores = allowed_cores();
        let (rank, size) = (world.rank(), world.size());
        let range = rank * cores.len() / size..(rank + 1) * cores.len() / size;
        let mut own = cores[range].to_vec();
        if own.is_empty() {
            own.push(cores[rank % cores.len()]);
        }
        Pool::on(world, own)
    }

    /// A pool of so many threads, at least one, which the system places as it likes.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn with_threads(world: &World, threads: usize) -> Result<Pool> {
        Self::build(world, threads.max(1), None)
    }

    fn on(world: &World, cores: Vec<usize>) -> Result<Pool> {
        Self::build(world, cores.len(), Some(cores))
    }

    fn build(world: &World, threads: usize, cores: Option<Vec<usize>>) -> Result<Pool> {
        let rank = world.rank();
        let mut builder = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(move |n| format!("rank {rank} thread {n}"));
        if let Some(cores) = cores {
            builder = builder.start_handler(move |number| {
                let mut set = rustix::thread::CpuSet::new();
                set.set(cores[number]);
                // Where it is not allowed, the thread runs where the system likes.
                let _ = rustix::thread::sched_setaffinity(None, &set);
            });
        }
        let threads = builder.build().map_err(|error| Error::Os {
            doing: "starting the threads of a pool",
            call: "clone",
            source: std::io::Error::other(error),
        })?;
        Ok(Pool { threads, progress: world.progress(), requests: Arc::default(), arrays: RefCell::default() })
    }

    /// How many threads it has.
    pub fn threads(&self) -> usize {
        self.threads.current_num_threads()
    }

    /// Runs `work` on the pool and waits for it; this thread makes progress meanwhile, and serves what the pool's threads
    /// ask for over a network.
    ///
    /// # Panics
    /// If `work` does.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let done = AtomicBool::new(false);
        let mut result = None;
        self.threads.in_place_scope(|scope| {
            scope.spawn(|_| {
                // Also when it panics, which the scope passes on.
                let _end = End(&done);
                result = Some(work());
            });
            let mut under_way = Vec::new();
            self.progress.poll_until(|| {
                self.serve(&mut under_way);
                // Pairs with the Release in `End`.
                done.load(Ordering::Acquire) && under_way.is_empty()
            });
        });
        result.expect("the scope ends when the work has")
    }

    /// The array for the pool's threads.
    pub fn share<T: Pod + Send + Sync>(&self, array: &Rc<Symmetric<T>>) -> Shared<'_, T> {
        let number = self.arrays.borrow().len();
        self.arrays.borrow_mut().push(Rc::clone(array) as Rc<dyn Serve>);
        // SAFETY: the array lives in `arrays`, and so as long as the pool, which the view borrows; nothing is taken out.
        let array: &Symmetric<T> = unsafe { &*Rc::as_ptr(array) };
        Shared { mapped: array.mapped(), number, requests: Arc::clone(&self.requests) }
    }

    /// Begins what the threads have asked for, and answers what is done.
    fn serve(&self, under_way: &mut Vec<UnderWay>) {
        let mut asked = self.requests.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = std::mem::take(&mut *asked);
        drop(asked);
        for request in fresh {
            let array = Rc::clone(&self.arrays.borrow()[request.array]);
            under_way.push((array.begin(request.rank, request.start, request.work), request.reply));
        }
        let mut context = Context::from_waker(Waker::noop());
        under_way.retain_mut(|(future, reply)| match future.as_mut().poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(outcome) => {
                // Whoever asked takes it.
                let _ = reply.set(outcome);
                false
            }
        });
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

/// Tells that the work has ended.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Cores that this thread may run on, in order.
fn allowed_cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).ok();
    let cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.as_ref().is_some_and(|set| set.is_set(*core)));
    let cores: Vec<usize> = cores.collect();
    if cores.is_empty() { vec![0] } else { cores }
}

type Answer = Result<Vec<u8>>;
type UnderWay = (Pin<Box<dyn Future<Output = Answer>>>, Arc<OnceLock<Answer>>);

/// What threads have asked the world's thread for.
#[derive(Default)]
struct Requests {
    queue: Mutex<VecDeque<Request>>,
}

struct Request {
    array: usize,
    rank: usize,
    start: usize,
    work: Work,
    reply: Arc<OnceLock<Answer>>,
}

enum Work {
    /// So many elements.
    Get(usize),
    /// These, as bytes.
    Put(Vec<u8>),
}

/// An array, on the world's thread.
trait Serve {
    fn begin(&self, rank: usize, start: usize, work: Work) -> Pin<Box<dyn Future<Output = Answer>>>;
}

impl<T: Pod> Serve for Symmetric<T> {
    fn begin(&self, rank: usize, start: usize, work: Work) -> Pin<Box<dyn Future<Output = Answer>>> {
        match work {
            Work::Get(count) => {
                let values = self.get_slice_async(rank, start, count);
                Box::pin(async move { Ok(bytemuck::cast_slice(&values.await?).to_vec()) })
            }
            Work::Put(bytes) => {
                let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>().max(1)];
                bytemuck::cast_slice_mut(&mut values).copy_from_slice(&bytes);
                let put = self.put_slice_async(rank, start, &values);
                Box::pin(async move { put.await.map(|()| Vec::new()) })
            }
        }
    }
}

/// A symmetric array for the threads of a [`Pool`]: puts and gets that any of them may call.
///
/// Where memory is mapped they are done at once. Over a network the world's thread does them while it is in
/// [`Pool::install`], and the asking thread does other work of the pool meanwhile: call them from there only.
#[derive(Clone)]
pub struct Shared<'a, T> {
    mapped: Option<Mapped<'a, T>>,
    number: usize,
    requests: Arc<Requests>,
}

impl<T: Pod + Send + Sync> Shared<'_, T> {
    /// Reads one element of `rank`.
    ///
    /// # Errors
    /// As [`Symmetric::get`].
    pub fn get(&self, rank: usize, index: usize) -> Result<T> {
        let mut value = [T::zeroed()];
        self.get_slice(rank, index, &mut value)?;
        Ok(value[0])
    }

    /// Reads elements of `rank`, from `start`, into `values`.
    ///
    /// # Errors
    /// As [`Symmetric::get_slice`].
    pub fn get_slice(&self, rank: usize, start: usize, values: &mut [T]) -> Result<()> {
        if let Some(mapped) = &self.mapped {
            return mapped.get_slice(rank, start, values);
        }
        let bytes = self.ask(rank, start, Work::Get(values.len()))?;
        bytemuck::cast_slice_mut(values).copy_from_slice(&bytes);
        Ok(())
    }

    /// Writes one element at `rank`. It is visible there when this returns.
    ///
    /// # Errors
    /// As [`Symmetric::put`].
    pub fn put(&self, rank: usize, index: usize, value: T) -> Result<()> {
        self.put_slice(rank, index, &[value])
    }

    /// Writes `values` at `rank`, from element `start`. They are visible there when this returns.
    ///
    /// # Errors
    /// As [`Symmetric::put_slice`].
    pub fn put_slice(&self, rank: usize, start: usize, values: &[T]) -> Result<()> {
        match &self.mapped {
            Some(mapped) => mapped.put_slice(rank, start, values),
            None => self.ask(rank, start, Work::Put(bytemuck::cast_slice(values).to_vec())).map(drop),
        }
    }

    /// Asks the world's thread, and does other work of the pool until it has answered.
    fn ask(&self, rank: usize, start: usize, work: Work) -> Answer {
        if rayon::current_thread_index().is_none() {
            let why = "over a network the threads of the pool alone may ask, inside Pool::install".into();
            return Err(Error::InvalidArgument { operation: "a put or get of a pool", why });
        }
        let reply = Arc::new(OnceLock::new());
        let request = Request { array: self.number, rank, start, work, reply: Arc::clone(&reply) };
        self.requests.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(request);
        while reply.get().is_none() {
            if rayon::yield_now() != Some(rayon::Yield::Executed) {
                std::thread::yield_now();
            }
        }
        // The world's thread lets go of it right after it has answered.
        let mut reply = reply;
        loop {
            match Arc::try_unwrap(reply) {
                Ok(cell) => return cell.into_inner().expect("it was answered"),
                Err(shared) => reply = shared,
            }
            std::thread::yield_now();
        }
    }
}

impl<T> std::fmt::Debug for Shared<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared({})", if self.mapped.is_some() { "mapped" } else { "over the world's thread" })
    }
}
