//! The mappings of jobs' memory, and what becomes of them in forked children.
//!
//! A forked child shares its parent's mapped memory. A put to a mapped rank is a store, which asks nobody whether this process is the
//! rank, so the kernel has to stop a child: a `pthread_atfork` handler takes write access from every mapping in the child, and
//! installs a handler of SIGSEGV there. A write then ends the child with one line that says why. Reads stay possible. The parent and
//! its rank pay nothing.
//!
//! A child of `vfork`, `posix_spawn`, `_Fork` or a bare `clone` runs no handlers; it may do nothing but `exec`, which also takes the mappings away
//! and resets the signal handler.
//!
//! # What runs in a child
//! Both handlers make system calls and touch atomics only. They write no static variable: where static data is symmetric, a static is
//! the parent's until another handler of `fork` has made the child's copy, and that one may run later.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::fmt::Write;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use libc::{c_int, siginfo_t};

/// No rank is known to use a mapping.
const NOBODY: usize = usize::MAX;
/// More than one thread of the process is a rank that uses the mapping.
const SEVERAL: usize = usize::MAX - 1;

/// A shared mapping of a job's memory, which this value owns: it is unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut u8,
    len: usize,
    place: &'static Place,
}

impl Mapping {
    /// Takes over `len` bytes from `start` on.
    ///
    /// # Safety
    /// They are whole pages of shared memory that the caller has mapped, and that nothing else unmaps.
    pub(crate) unsafe fn new(start: *mut u8, len: usize) -> Mapping {
        let place = registry().take();
        place.pid.store(std::process::id(), Ordering::Relaxed);
        place.rank.store(NOBODY, Ordering::Relaxed);
        place.is_closed.store(false, Ordering::Relaxed);
        place.start.store(start as usize, Ordering::Relaxed);
        // Pairs with the Acquire load in `Place::range`.
        place.end.store(start as usize + len, Ordering::Release);
        Mapping { start, len, place }
    }

    /// Address of the first byte.
    #[inline(always)]
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Notes that `rank` of this process uses the mapping: a child is told so.
    pub(crate) fn note_rank(&self, rank: usize) {
        let known = self.place.rank.compare_exchange(NOBODY, rank, Ordering::Relaxed, Ordering::Relaxed);
        if known.is_err_and(|known| known != rank) {
            self.place.rank.store(SEVERAL, Ordering::Relaxed);
        }
    }

    /// Notes that those ranks use the mapping that use `other`.
    pub(crate) fn note_ranks_of(&self, other: &Mapping) {
        self.place.rank.store(other.place.rank.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before the memory is unmapped: a child must not change what another mapping has at these addresses.
        self.place.end.store(0, Ordering::SeqCst);
        // SAFETY: this value's own mapping; users of the address hold a reference to its owner.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.len) };
        // Pairs with the Acquire exchange in `Registry::take`.
        self.place.is_taken.store(false, Ordering::Release);
    }
}

/// A mapping, as the handlers know it. One cache line, so that a child finds all of it as it was at one time.
#[derive(Debug)]
#[repr(align(64))]
struct Place {
    start: AtomicUsize,
    /// 0 while there is no mapping.
    end: AtomicUsize,
    /// The process that has made the mapping.
    pid: AtomicU32,
    /// A rank, [`NOBODY`] or [`SEVERAL`].
    rank: AtomicUsize,
    is_taken: AtomicBool,
    /// Set in a child: it may not write there.
    is_closed: AtomicBool,
    /// Does not change once the place is in the list.
    next: AtomicPtr<Place>,
}

const _: () = assert!(size_of::<Place>() == 64);

impl Place {
    fn range(&self) -> Option<(usize, usize)> {
        // Pairs with the Release store in `Mapping::new`.
        let end = self.end.load(Ordering::Acquire);
        (end != 0).then(|| (self.start.load(Ordering::Relaxed), end))
    }
}

/// All places, and the handler of SIGSEGV that a child had before. On the heap: see the page's head.
struct Registry {
    /// Places are added at the head, used again, and never freed.
    first: AtomicPtr<Place>,
    /// Whether this process, or one that it descends from by forks, has installed the handler.
    is_installed: AtomicBool,
    before: UnsafeCell<MaybeUninit<libc::sigaction>>,
}

// SAFETY: `before` is written once, in a child that has one thread, before the handler that reads it is installed.
unsafe impl Sync for Registry {}

/// Null before the first mapping. Not a lock's cell, whose accesses the thread sanitizer does not see.
static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());

fn known() -> Option<&'static Registry> {
    // SAFETY: null, or a registry that is never freed. Acquire pairs with the Release in `make`.
    unsafe { REGISTRY.load(Ordering::Acquire).as_ref() }
}

fn registry() -> &'static Registry {
    known().unwrap_or_else(make)
}

#[cold]
fn make() -> &'static Registry {
    // Before there is a mapping. A thread that makes the registry at the same time does this too: then the handler runs twice.
    // SAFETY: a function that lives as long as the process.
    if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
        tracing::warn!("forked children can write to the job's memory: the system takes no handlers of fork");
    }
    let own = Box::into_raw(Box::new(Registry {
        first: AtomicPtr::new(ptr::null_mut()),
        is_installed: AtomicBool::new(false),
        before: UnsafeCell::new(MaybeUninit::uninit()),
    }));
    match REGISTRY.compare_exchange(ptr::null_mut(), own, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: never freed from here on.
        Ok(_) => unsafe { &*own },
        Err(other) => {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(own) });
            // SAFETY: another thread's, which is never freed.
            unsafe { &*other }
        }
    }
}

impl Registry {
    /// A place that is free, or a new one.
    fn take(&self) -> &'static Place {
        let is_free = |place: &&Place| {
            let taken = place.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
            taken.is_ok()
        };
        if let Some(place) = self.places().find(is_free) {
            return place;
        }
        let place: &'static Place = Box::leak(Box::new(Place {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            pid: AtomicU32::new(0),
            rank: AtomicUsize::new(NOBODY),
            is_taken: AtomicBool::new(true),
            is_closed: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
        }));
        let mut first = self.first.load(Ordering::Relaxed);
        loop {
            place.next.store(first, Ordering::Relaxed);
            let own = ptr::from_ref(place).cast_mut();
            // Pairs with the Acquire load in `places`.
            match self.first.compare_exchange_weak(first, own, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return place,
                Err(other) => first = other,
            }
        }
    }

    fn places(&self) -> impl Iterator<Item = &'static Place> + use<> {
        let mut next = self.first.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: null, or a place of the list, which is never freed.
            let place: &'static Place = unsafe { next.as_ref() }?;
            next = place.next.load(Ordering::Relaxed);
            Some(place)
        })
    }

    /// The mapping of the parent that has `address`.
    fn closed_at(&self, address: usize) -> Option<&'static Place> {
        self.places().find(|place| {
            let is_there = place.range().is_some_and(|(start, end)| (start..end).contains(&address));
            is_there && place.is_closed.load(Ordering::Relaxed)
        })
    }

    /// Installs the handler of SIGSEGV, once in a line of descent: the program may have put its own in front since.
    fn install(&self) {
        if self.is_installed.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: a zeroed record is a valid action; this is the child's only thread, and `before` is read by the handler alone, which is
        // installed after it is written. The handler has the type that SA_SIGINFO asks for. Its other flags and its mask are the
        // former action's, which it may call.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            let is_known = libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut action) == 0;
            // An ignored signal stays ignored in the program that the child executes. The kernel ends the child at its write.
            if !is_known || action.sa_sigaction == libc::SIG_IGN {
                return;
            }
            (*self.before.get()).write(action);
            self.is_installed.store(true, Ordering::Relaxed);
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags |= libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut());
        }
    }
}

/// Runs in each child, on its only thread, before `fork` returns there.
extern "C" fn in_child() {
    let Some(registry) = known() else { return };
    let mut any = false;
    for place in registry.places() {
        let Some((start, end)) = place.range() else { continue };
        let (at, len) = (start as *mut c_void, end - start);
        // SAFETY: a shared mapping of this process, a copy of its parent's. What no longer can be written is the parent's: only the
        // kernel's answer to a write changes.
        if unsafe { libc::mprotect(at, len, libc::PROT_READ) } != 0 {
            // A part of it is not here: memory that is registered with a device may be kept from children (`MADV_DONTFORK`).
            let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: over the same range, which no code of the child may use. If it is refused, an `exec` must still be possible.
            unsafe { libc::mmap(at, len, libc::PROT_NONE, flags, -1, 0) };
        }
        place.is_closed.store(true, Ordering::Relaxed);
        any = true;
    }
    if any {
        registry.install();
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a record. A signal that a process has sent, with a code of 0 or less, has no address.
    let address = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr() as usize) };
    let Some(registry) = known() else { return };
    match address.and_then(|address| Some((address, registry.closed_at(address)?))) {
        Some((address, place)) => {
            tell(address, place);
            // A core file would hold the memory of the whole job, and make it: the holes of the file are filled as they are read.
            // SAFETY: no preconditions.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
            // SAFETY: a zeroed record is the default action, which the write, repeated after this handler, then has.
            unsafe { libc::sigaction(signal, &MaybeUninit::zeroed().assume_init(), ptr::null_mut()) };
        }
        // SAFETY: the handler is installed after `before` was written, and the arguments are those of the kernel.
        None => unsafe { hand_on((*registry.before.get()).assume_init(), signal, info, context) },
    }
}

/// Does what the former action would have done.
///
/// # Safety
/// `before` was the action of `signal`, and the rest is what a handler of it was called with.
unsafe fn hand_on(before: libc::sigaction, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the caller's: a function in an action has the type that its flags say. `raise` and `sigaction` are system calls.
    unsafe {
        match before.sa_sigaction {
            libc::SIG_DFL => {
                libc::sigaction(signal, &raw const before, ptr::null_mut());
                // A faulting access is repeated when this handler returns; a signal that was sent has to be sent again.
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
            function if before.sa_flags & libc::SA_SIGINFO != 0 => {
                let function: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = std::mem::transmute(function);
                function(signal, info, context);
            }
            function => {
                let function: extern "C" fn(c_int) = std::mem::transmute(function);
                function(signal);
            }
        }
    }
}

/// Says on standard error why the child ends.
fn tell(address: usize, place: &Place) {
    let (parent, rank) = (place.pid.load(Ordering::Relaxed), place.rank.load(Ordering::Relaxed));
    // SAFETY: no preconditions.
    let child = unsafe { libc::getpid() };
    let mut line = Line { bytes: [0; 512], len: 0 };
    // Cannot fail: what does not fit is left out.
    let _ = write!(line, "bellwether: process {child} is a forked child of process {parent}, ");
    let _ = match rank {
        NOBODY => write!(line, "which has the job's memory"),
        SEVERAL => write!(line, "which has several ranks"),
        rank => write!(line, "which is rank {rank}"),
    };
    let _ = writeln!(
        line,
        "; it wrote to the job's memory, at {address:#x}, and only process {parent} may do that. In the child, use nothing of the \
         world: call `exec` or `_exit`, or start it as a program (`std::process::Command`), or fork before the world starts"
    );
    // SAFETY: initialised bytes of this stack. Nothing is left to do on an error.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
}

/// Text that is written without memory from the heap, which another thread of the parent may have locked.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.bytes[self.len..];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}
