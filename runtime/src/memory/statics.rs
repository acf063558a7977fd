//! Static data as symmetric memory: the executable's writable segment, mapped from this rank's slot.
//!
//! The bytes are copied into the slot, and the slot is mapped over them (`MAP_SHARED | MAP_FIXED`). From then on a static
//! variable is memory that ranks of the node have mapped, and that a network registers like the heap. Pages of zeros are not copied,
//! so large empty arrays stay sparse. Variables of shared libraries, thread-locals and the stack lie elsewhere and stay private.
//!
//! Pages that are read-only after relocation (`PT_GNU_RELRO`) are left out. If another thread wrote a static variable between the copy and
//! the mapping, that write would be lost, so the caller makes sure that no other thread does.
//!
//! # Children
//! A forked child gets a private copy of the variables, as it would if they were not symmetric: a `pthread_atfork` handler makes the copy
//! in the child, and the parent's `fork` returns when the copy is complete. A child of `vfork`, `posix_spawn` or a bare `clone` runs no
//! handler: it shares the variables with its parent until it calls `exec`.

use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use super::limits::page_size;
use crate::error::{Error, Result};

/// The executable's writable memory, in whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statics {
    /// The first address.
    pub start: usize,
    /// Bytes.
    pub len: usize,
}

/// For the `fork` handlers: the address and length of the statics, and the file and the offset that they are mapped from. Length 0: the
/// statics are private.
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
static FILE: AtomicI32 = AtomicI32::new(-1);
static OFFSET: AtomicUsize = AtomicUsize::new(0);
/// Set while a thread forks, from before the fork to after it.
static FORKING: AtomicBool = AtomicBool::new(false);
/// The pipe of the thread that forks. The parent waits for end-of-file on it, which comes when the child has its copy.
static PIPE: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];

/// The largest piece of the executable's writable memory that is not read-only after relocation.
pub fn find() -> Option<Statics> {
    unsafe extern "C" fn executable(info: *mut libc::dl_phdr_info, _: usize, found: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the loader's description of an object, and the variable that `find` passed.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<Option<Statics>>()) };
        // SAFETY: the loader says how many there are.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
        let (base, page) = (info.dlpi_addr as usize, page_size());
        // In a statically linked executable the C library's own variables lie there too.
        if !headers.iter().any(|header| header.p_type == libc::PT_INTERP) {
            return 1;
        }
        let range = |header: &libc::Elf64_Phdr| {
            let start = base + header.p_vaddr as usize;
            (start, start + header.p_memsz as usize)
        };
        let fixed = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO).map(range);
        let writable =
            headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0);
        let pieces = writable.map(range).filter_map(|(start, end)| {
            let first = match fixed {
                Some((from, to)) if from >= start && from < end => to / page * page,
                _ => start / page * page,
            };
            let len = end.next_multiple_of(page).checked_sub(first)?;
            (len > 0).then_some(Statics { start: first, len })
        });
        *found = pieces.max_by_key(|piece| piece.len);
        // The loader reports the executable first. A value other than 0 ends the iteration, so no other object is examined.
        1
    }
    let mut found: Option<Statics> = None;
    // SAFETY: the callback writes to `found` only before this returns.
    unsafe { libc::dl_iterate_phdr(Some(executable), (&raw mut found).cast()) };
    found
}

/// Maps the executable's statics from `offset` of `file`, which has `room` bytes there. Possible once in the life of a process.
///
/// # Errors
/// [`Error::Start`] if there are other threads (unless `shared`: then the caller knows that they leave statics alone), if there
/// is too little room, or if it was done before; [`Error::Os`].
pub fn lay(file: BorrowedFd<'_>, offset: usize, room: usize, shared: bool) -> Result<Statics> {
    let refuse = |why: String| Error::Start(format!("static data cannot be symmetric: {why}"));
    let statics = find().ok_or_else(|| refuse("the executable has none, or is statically linked".into()))?;
    if statics.len > room {
        return Err(refuse(format!("the executable has {} bytes of it, and {room} fit", statics.len)));
    }
    if LEN.load(SeqCst) != 0 {
        return Err(refuse("it is already, in another world of this process".into()));
    }
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, |tasks| tasks.count());
    if threads > 1 && !shared {
        return Err(refuse(format!(
            "this process has {threads} threads, and what the others write meanwhile would be lost; start the world before \
             any thread, or set BELLWETHER_STATIC_DATA=off"
        )));
    }
    // This descriptor stays open after the world has ended: the variables stay in the file, and forked children need it.
    let file = file.try_clone_to_owned().map_err(|source| Error::Os {
        doing: "making static data symmetric",
        call: "dup",
        source,
    })?;
    let file = file.into_raw_fd();
    FILE.store(file, SeqCst);
    OFFSET.store(offset, SeqCst);
    START.store(statics.start, SeqCst);
    if !watch() {
        return Err(refuse("the system takes no handlers of fork".into()));
    }
    LEN.store(statics.len, SeqCst);
    // SAFETY: the executable's own pages, which no other thread writes; the file has room there, and its bytes become theirs.
    if let Err(call) = unsafe { replace(file, offset, statics) } {
        let source = std::io::Error::last_os_error();
        LEN.store(0, SeqCst);
        return Err(Error::Os { doing: "making static data symmetric", call, source });
    }
    Ok(statics)
}

/// Registers the handlers of `fork`. Returns `false` if the system takes none.
///
/// Handlers of a child run in the order of their registration. One that writes static variables is registered after these: before them the
/// variables are still the parent's.
pub fn watch() -> bool {
    static TAKEN: OnceLock<bool> = OnceLock::new();
    // SAFETY: functions that live as long as the process.
    *TAKEN.get_or_init(|| unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) } == 0)
}

/// Copies the statics to the file and maps it over them. Nothing here writes a static variable after the first copy: that write would be lost.
///
/// # Safety
/// The pages are mapped and this thread's alone.
unsafe fn replace(file: RawFd, offset: usize, statics: Statics) -> std::result::Result<(), &'static str> {
    let (page, words) = (page_size(), page_size() / size_of::<usize>());
    for at in (0..statics.len).step_by(page) {
        let from = (statics.start + at) as *const usize;
        // SAFETY: a mapped page. Volatile: the page holds variables of any type.
        let is_empty = (0..words).all(|word| unsafe { from.add(word).read_volatile() } == 0);
        // SAFETY: as above; the kernel reads the page.
        if !is_empty && unsafe { libc::pwrite(file, from.cast(), page, (offset + at) as i64) } != page as isize {
            return Err("pwrite");
        }
    }
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE);
    // SAFETY: over the pages that were just copied, with the same bytes.
    let mapped = unsafe { libc::mmap(statics.start as *mut _, statics.len, access, flags, file, offset as i64) };
    if mapped == libc::MAP_FAILED { Err("mmap") } else { Ok(()) }
}

extern "C" fn prepare() {
    if LEN.load(Relaxed) == 0 {
        return;
    }
    // A lock: one thread forks at a time. SeqCst gives Acquire here and Release in the stores that end it.
    while FORKING.swap(true, SeqCst) {
        // SAFETY: no preconditions.
        unsafe { libc::sched_yield() };
    }
    let mut ends = [-1; 2];
    // SAFETY: a place for two descriptors. Without a pipe the parent does not wait.
    unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    PIPE.iter().zip(ends).for_each(|(place, end)| place.store(end, Relaxed));
}

extern "C" fn in_parent() {
    if LEN.load(Relaxed) == 0 {
        return;
    }
    let [read, write] = [0, 1].map(|end| PIPE[end].load(Relaxed));
    let mut byte = 0u8;
    // SAFETY: our own descriptors, and room for a byte. `read` returns at end-of-file: the child has its copy, or has ended.
    unsafe {
        libc::close(write);
        while libc::read(read, (&raw mut byte).cast(), 1) < 0 && *libc::__errno_location() == libc::EINTR {}
        libc::close(read);
    }
    FORKING.store(false, SeqCst);
}

extern "C" fn in_child() {
    let statics = Statics { start: START.load(Relaxed), len: LEN.load(Relaxed) };
    if statics.len == 0 {
        return;
    }
    // SAFETY: the statics are mapped from this file and offset; this is the only thread of the child.
    let done = unsafe { make_private(FILE.load(Relaxed), OFFSET.load(Relaxed), statics) };
    if !done {
        // The child would write its parent's variables.
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(127) };
    }
    // From here on the variables are the child's own.
    LEN.store(0, SeqCst);
    FORKING.store(false, SeqCst);
    // SAFETY: this process's descriptors.
    PIPE.iter().for_each(|end| unsafe { _ = libc::close(end.load(Relaxed)) });
}

/// Copies the file's bytes, without its holes, to private memory, and moves that over the statics. Allocates nothing, and
/// writes no static variable.
///
/// # Safety
/// The statics are mapped from `offset` of `file`, and no other thread of this process runs.
unsafe fn make_private(file: RawFd, offset: usize, statics: Statics) -> bool {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: fresh memory at an address of the kernel's choice.
    let copy = unsafe { libc::mmap(ptr::null_mut(), statics.len, access, flags, -1, 0) };
    if copy == libc::MAP_FAILED {
        return false;
    }
    let end = (offset + statics.len) as i64;
    let mut at = offset as i64;
    while at < end {
        // SAFETY: an open file. All other uses of it pass an offset, so they do not depend on the file position.
        let data = unsafe { libc::lseek(file, at, libc::SEEK_DATA) };
        // No data up to the end of the file.
        if data < 0 || data >= end {
            break;
        }
        // SAFETY: as above.
        let hole = unsafe { libc::lseek(file, data, libc::SEEK_HOLE) }.clamp(data, end);
        at = data;
        while at < hole {
            // SAFETY: inside the copy.
            let to = unsafe { copy.add(at as usize - offset) };
            // SAFETY: the copy has room for these bytes.
            let read = unsafe { libc::pread(file, to, (hole - at) as usize, at) };
            if read <= 0 {
                return false;
            }
            at += read as i64;
        }
    }
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: takes the place of the shared pages, with the same bytes.
    let moved = unsafe { libc::mremap(copy, statics.len, statics.len, flags, statics.start as *mut libc::c_void) };
    moved != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executables_variables_are_found_and_its_constants_are_not() {
        static VARIABLE: AtomicUsize = AtomicUsize::new(7);
        static EMPTY: [AtomicUsize; 4096] = [const { AtomicUsize::new(0) }; 4096];
        static CONSTANT: &&str = &"relocated";
        let Statics { start, len } = find().expect("there are some");
        let is_in = |address: usize| (start..start + len).contains(&address);
        assert!(
            is_in(&raw const VARIABLE as usize)
                && is_in(EMPTY.as_ptr() as usize)
                && is_in(EMPTY.as_ptr_range().end as usize)
        );
        let stack = 0;
        assert!(!is_in(&raw const stack as usize) && !is_in(Box::new(5).as_ref() as *const i32 as usize));
        assert!(!is_in(std::ptr::from_ref(CONSTANT) as usize) && !is_in(find as *const () as usize));
        assert!(start.is_multiple_of(page_size()) && len.is_multiple_of(page_size()));
    }
}
