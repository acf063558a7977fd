//! Which thread this is, which cores it may run on, and threads that serve a rank.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

thread_local! {
    /// The core of [`stay_on_one_core`], and the cores that were allowed.
    static BOUND: RefCell<Option<(CpuSet, CpuSet)>> = const { RefCell::new(None) };
    /// See [`last_panic`].
    static LAST_PANIC: Cell<u64> = const { Cell::new(0) };
}

/// The number of this thread's last panic that the panic hook has [counted](count_panic), the one that the thread unwinds from. No panic
/// of another thread has it, since a world may move between threads. 0: none.
pub fn last_panic() -> u64 {
    LAST_PANIC.try_with(Cell::get).unwrap_or_default()
}

/// Called by the panic hook.
pub fn count_panic() {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    // Fails only in a thread that ends.
    let _ = LAST_PANIC.try_with(|last| last.set(number));
}

/// The cores that the program lets this thread run on.
///
/// # Errors
/// Those of sched_getaffinity(2).
pub fn allowed_cores() -> std::io::Result<CpuSet> {
    let now = sched_getaffinity(None)?;
    // The program may have bound the thread in another way since.
    Ok(BOUND.with_borrow(|bound| bound.as_ref().filter(|(one, _)| *one == now).map_or(now, |(_, allowed)| *allowed)))
}

/// Binds this thread to `core`. For it, [`allowed_cores`] are `allowed` from now on: nothing takes the job for one that has this core
/// only. Where the system refuses, the thread stays unbound.
pub fn stay_on_one_core(core: usize, allowed: &CpuSet) {
    let mut one = CpuSet::new();
    one.set(core);
    if sched_setaffinity(None, &one).is_ok() {
        BOUND.set(Some((one, *allowed)));
    }
}

/// Starts a thread, and returns when it runs. By then the system has allocated everything that the thread's start needs: a later shortage
/// of memory fails the call that asks for memory, and does not end the process from within the thread's start.
///
/// # Errors
/// Those of the system.
pub fn start<T: Send + 'static>(
    name: String,
    body: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    let runs = Arc::new(Barrier::new(2));
    let says = Arc::clone(&runs);
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        says.wait();
        drop(says);
        body()
    })?;
    runs.wait();
    Ok(thread)
}

/// A number of this thread that no other living thread has. Not 0.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", target_os = "linux", not(miri)))]
#[inline(always)]
pub fn token() -> usize {
    // In a shared library a thread-local variable is found by a call of a function; this is one load.
    let token;
    // SAFETY: the ABI of x86-64 (ELF Handling For Thread-Local Storage, 3.4.6) puts the address of the thread's control block into its
    // first word, at `fs:0`. Nothing of the program writes there, and it is the same as long as the thread lives: `pure` and `nomem` hold.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) token, options(pure, nomem, nostack, preserves_flags));
    }
    token
}

/// A number of this thread that no other living thread has. Not 0.
#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", target_os = "linux", not(miri))))]
#[inline]
pub fn token() -> usize {
    thread_local!(static TOKEN: u8 = const { 0 });
    TOKEN.with(|token| std::ptr::from_ref(token) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_live_at_once_have_tokens_of_their_own() {
        let both_live = std::sync::Barrier::new(2);
        let own = || {
            both_live.wait();
            let found = (token(), token());
            both_live.wait();
            found
        };
        let (here, there) = std::thread::scope(|scope| {
            let there = scope.spawn(own);
            (own(), there.join().expect("no panic"))
        });
        assert_eq!((here.0, there.0), (here.1, there.1), "a thread keeps its token");
        assert!(here.0 != 0 && there.0 != 0);
        assert_ne!(here.0, there.0);
    }

    #[test]
    fn panics_of_two_threads_have_numbers_of_their_own() {
        let counted = || {
            count_panic();
            last_panic()
        };
        let [one, other] = [(); 2].map(|()| std::thread::spawn(counted).join().expect("no panic"));
        assert_ne!(one, other);
    }

    #[test]
    fn a_thread_that_is_bound_keeps_its_allowed_cores() {
        let before = allowed_cores().expect("told");
        let bound = std::thread::spawn(move || {
            let core = rustix::thread::sched_getcpu();
            stay_on_one_core(core, &before);
            let now = sched_getaffinity(None).expect("told");
            assert!(now.count() == 1 && now.is_set(core));
            allowed_cores().expect("told") == before
        });
        assert!(bound.join().expect("no panic"));
    }
}
