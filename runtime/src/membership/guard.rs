//! Keeps the supervisor of a job alive when the job's memory file is truncated.
//!
//! Job files are sealed against that (`file`). Two cases remain: files that another program made and handed over, and pages
//! in which a hole was punched and that the kernel has no memory to back again. An access to them raises SIGBUS; the
//! supervisor continues with zeros there, and finds in the zeros that the job's memory is lost.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

/// Mappings that are guarded at a time in one process; more are not guarded.
const MOST: usize = 8;

/// The bytes of one mapping. `end` is 0 while they do not count.
struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Whether somebody has this place.
    taken: AtomicUsize,
}

static RANGES: [Range; MOST] =
    [const { Range { start: AtomicUsize::new(0), end: AtomicUsize::new(0), taken: AtomicUsize::new(0) } }; MOST];

/// The former action of SIGBUS, for addresses that are not guarded.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// While it lives, the mapping it was made for can be touched whatever becomes of the file behind it.
#[derive(Debug)]
pub(crate) struct Guarded(Option<usize>);

impl Guarded {
    /// Guards `len` bytes from `start` on, whole pages of one mapping.
    ///
    /// # Safety
    /// The mapping outlives what this returns, and nothing but integers without meaning for memory safety is read there.
    pub(super) unsafe fn new(start: *const u8, len: usize) -> Guarded {
        BEFORE.get_or_init(install);
        let free = |range: &Range| range.taken.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let place = RANGES.iter().position(free);
        if let Some(place) = place {
            RANGES[place].start.store(start as usize, Ordering::Relaxed);
            // Pairs with the Acquire load in `on_bus_error`.
            RANGES[place].end.store(start as usize + len, Ordering::Release);
        }
        Guarded(place)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            RANGES[place].end.store(0, Ordering::Release);
            RANGES[place].taken.store(0, Ordering::Relaxed);
        }
    }
}

/// Sets the handler, and tells what there was before. Ranks do not inherit it: the spawner resets all handlers.
fn install() -> libc::sigaction {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a zeroed record is a valid action; the handler makes system calls and touches atomics only, and has the type
    // that SA_SIGINFO asks for; the zeroed `before` is valid whatever the call returns.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, before.as_mut_ptr());
        before.assume_init()
    }
}

extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a record whose address is that of the fault.
    let address = unsafe { (*info).si_addr() } as usize;
    let hit = RANGES.iter().find_map(|range| {
        // Pairs with the Release store in `Guarded::new`.
        let end = range.end.load(Ordering::Acquire);
        let start = range.start.load(Ordering::Relaxed);
        (end != 0 && (start..end).contains(&address)).then_some((start, end))
    });
    // SAFETY:
    // - the range is a live mapping of ours (`Guarded::new`), which is replaced as a whole by zeros;
    // - mmap and sigaction are system calls, and errno is put back;
    // - without a range of ours the former action is set again, and is taken when the access is repeated; a zeroed record
    //   is the default action.
    unsafe {
        let errno = *libc::__errno_location();
        let replaced = hit.is_some_and(|(start, end)| {
            let (access, how) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
            libc::mmap(start as *mut c_void, end - start, access, how, -1, 0) != libc::MAP_FAILED
        });
        if !replaced {
            let default = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            libc::sigaction(signal, BEFORE.get().unwrap_or(&default), ptr::null_mut());
        }
        *libc::__errno_location() = errno;
    }
}
