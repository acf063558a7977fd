//! Memory for the limits of vocabularies, whose own memory only their calls reach.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::rc::Rc;

use bellwether_runtime::{Error, Result};

use super::Words;

const PAGE: usize = 4096;

/// Memory that the first two tasks have mapped: a part of each.
#[derive(Clone)]
pub struct Area {
    map: Rc<Map>,
    /// From the start of each part.
    start: usize,
    words: usize,
}

struct Map {
    start: *mut u8,
    /// Bytes of each part.
    part: usize,
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no code uses it any more.
        unsafe { libc::munmap(self.start.cast(), 2 * self.part) };
    }
}

impl Words for Area {
    #[inline(always)]
    fn count(&self) -> usize {
        self.words
    }

    #[inline(always)]
    fn start(&self, rank: usize) -> *mut u64 {
        assert!(rank < 2);
        // SAFETY: inside the map: see `Area::new`.
        unsafe { self.map.start.add(rank * self.map.part + self.start).cast() }
    }
}

impl Area {
    /// Fresh memory behind `passed` bytes, as many words at each of the first two tasks; other tasks get some of their own. `exchange` gives
    /// what each task gave, and `meet` waits for all. Collective.
    ///
    /// # Errors
    /// Those of both; if the memory cannot be opened.
    pub fn new(
        own: usize,
        passed: usize,
        words: usize,
        exchange: impl FnOnce(u64) -> Result<Vec<u64>>,
        meet: impl FnOnce() -> Result<()>,
    ) -> Result<Area> {
        let start = passed.next_multiple_of(64);
        let part = (start + 8 * words).next_multiple_of(PAGE);
        let owner = if own < 2 { 1 } else { own };
        // SAFETY: a name, and a file of this process.
        let made = (own == owner).then(|| unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"limit".as_ptr(), 0)) });
        if let Some(file) = &made {
            // SAFETY: a file of this process.
            let outcome = unsafe { libc::ftruncate(file.as_raw_fd(), 2 * part as i64) };
            assert_eq!(outcome, 0, "memory for the limit");
        }
        let mine = made.as_ref().map_or(0, |file| u64::from(std::process::id()) << 32 | file.as_raw_fd() as u64);
        let theirs = exchange(mine)?[owner];
        let path = format!("/proc/{}/fd/{}", theirs >> 32, theirs as u32);
        let opened = std::fs::File::options().read(true).write(true).open(&path).map_err(|error| {
            Error::InvalidArgument { operation: "memory for the limit", why: format!("opening {path}: {error}") }
        })?;
        // SAFETY: a new mapping of an open file.
        let map = unsafe {
            libc::mmap(
                null_mut(),
                2 * part,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                opened.as_raw_fd(),
                0,
            )
        };
        assert_ne!(map, libc::MAP_FAILED, "memory for the limit");
        // Open until all have it.
        meet()?;
        Ok(Area { map: Rc::new(Map { start: map.cast(), part }), start, words })
    }
}
