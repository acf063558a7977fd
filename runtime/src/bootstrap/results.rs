//! Ranks that are threads hand over what they return.

use std::sync::Mutex;

/// What each rank of a job of threads returned.
#[derive(Debug)]
pub struct Results<R>(Vec<Mutex<Option<R>>>);

impl<R> Results<R> {
    /// Nothing so far.
    pub fn new(ranks: usize) -> Results<R> {
        Results((0..ranks).map(|_| Mutex::default()).collect())
    }

    /// Called by each rank, once.
    pub fn put(&self, rank: usize, result: R) {
        *self.0[rank].lock().expect("nothing panics while it is locked") = Some(result);
    }

    /// In order of ranks; `None` for one that did not return.
    pub fn into_each(self) -> impl Iterator<Item = Option<R>> {
        self.0.into_iter().map(|result| result.into_inner().expect("nothing panics while it is locked"))
    }
}
