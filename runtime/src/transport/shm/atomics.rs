//! The atomics of the lane ring, so that loom's can take their place in models (`RUSTFLAGS="--cfg loom"`).

#[cfg(loom)]
pub use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
pub use std::sync::atomic::AtomicU64;

/// Tells loom when a line's body is written and read, so that it finds accesses that nothing orders. Nothing else.
#[derive(Debug, Default)]
pub struct Watched {
    #[cfg(loom)]
    cell: loom::cell::UnsafeCell<()>,
}

impl Watched {
    /// The body is written while `write` runs.
    #[inline(always)]
    pub fn written<R>(&self, write: impl FnOnce() -> R) -> R {
        #[cfg(loom)]
        return self.cell.with_mut(|_| write());
        #[cfg(not(loom))]
        write()
    }

    /// The body is read here.
    #[inline(always)]
    pub fn read(&self) {
        #[cfg(loom)]
        self.cell.with(|_| ());
    }
}
