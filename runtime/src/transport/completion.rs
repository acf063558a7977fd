//! Counted completions: one callback for several operations.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering, fence};

use super::error::{Error, Result};
use super::lock::Mutex;

type Callback = Box<dyn Fn(Result<()>) + Send + Sync>;

/// A callback that runs when a number of operations are locally complete.
///
/// The user sets the count; each operation that answered [`super::Posted::InProgress`] takes one off when its buffer
/// may be reused, and whenever the count reaches 0 the callback runs, inside progress. An operation that answered
/// [`super::Posted::Done`] never touches it. The first error is kept and given to the callback. Clones are the same
/// completion.
///
/// # Examples
/// ```
/// use bellwether_runtime::transport::Completion;
/// let done = Completion::new(2, |outcome| assert!(outcome.is_ok()));
/// done.complete(Ok(()));
/// assert_eq!(done.count(), 1);
/// ```
#[derive(Clone)]
pub struct Completion(Arc<State>);

struct State {
    count: AtomicI32,
    first_error: Mutex<Option<Error>>,
    callback: Callback,
}

impl Completion {
    /// A completion of `count` operations.
    pub fn new(count: i32, callback: impl Fn(Result<()>) + Send + Sync + 'static) -> Completion {
        let callback: Callback = Box::new(callback);
        Completion(Arc::new(State { count: AtomicI32::new(count), first_error: Mutex::new(None), callback }))
    }

    /// Operations still awaited.
    pub fn count(&self) -> i32 {
        self.0.count.load(Ordering::Acquire)
    }

    /// Awaits this many more.
    pub fn add(&self, operations: i32) {
        self.0.count.fetch_add(operations, Ordering::AcqRel);
    }

    /// The first error so far.
    pub fn status(&self) -> Result<()> {
        self.0.first_error.lock().map_or(Ok(()), Err)
    }

    /// Forgets the error and sets the count, for the next round of operations.
    pub fn reset(&self, count: i32) {
        *self.0.first_error.lock() = None;
        self.0.count.store(count, Ordering::Release);
    }

    /// Whether this is the only handle, so that no other code can complete it.
    pub(crate) fn is_unshared(&self) -> bool {
        let unshared = Arc::strong_count(&self.0) == 1;
        // Pairs with the Release of the drop of another handle.
        fence(Ordering::Acquire);
        unshared
    }

    /// One operation ended. Transports call this; users do for an operation that answered `Done` but was counted.
    pub fn complete(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.0.first_error.lock().get_or_insert(error);
        }
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            (self.0.callback)(self.status());
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Completion({} awaited, {:?})", self.count(), self.status())
    }
}
