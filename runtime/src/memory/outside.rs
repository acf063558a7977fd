//! Memory of a peer that is in no segment: its heap, stack and statics, by cross-memory attach.

use rustix::io::Errno;

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From this process to the peer.
    Put,
    /// From the peer to this process.
    Get,
}

/// Why bytes could not be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Not all of the peer's range is mapped and accessible. Bytes before the first bad page may have moved.
    BadAddress,
    /// The kernel does not let this process touch that one.
    NotPermitted,
    /// There is no such process any more.
    Gone,
}

/// Moves `len` bytes between `here` and the address `there` of process `pid`. A system call; man page
/// `process_vm_readv(2)`.
///
/// # Safety
/// `here` is valid for `len` bytes, for writing if getting, and not touched by others meanwhile. The caller
/// guarantees that the peer allows a put to overwrite the bytes at `there`.
pub unsafe fn transfer(direction: Direction, pid: u32, here: *mut u8, there: usize, len: usize) -> Result<(), Refused> {
    // One call moves at most about 2 GiB.
    const STEP: usize = 1 << 30;
    let mut done = 0;
    while done < len {
        let step = STEP.min(len - done);
        // SAFETY: inside the caller's range.
        let local = libc::iovec { iov_base: unsafe { here.add(done) }.cast(), iov_len: step };
        let remote = libc::iovec { iov_base: (there + done) as *mut libc::c_void, iov_len: step };
        // SAFETY: one valid local range; the kernel checks the remote one.
        let moved = unsafe {
            match direction {
                Direction::Put => libc::process_vm_writev(pid as i32, &local, 1, &remote, 1, 0),
                Direction::Get => libc::process_vm_readv(pid as i32, &local, 1, &remote, 1, 0),
            }
        };
        match moved {
            1.. => done += moved as usize,
            _ => {
                let errno = std::io::Error::last_os_error().raw_os_error().map(Errno::from_raw_os_error);
                return Err(match errno {
                    Some(Errno::PERM | Errno::NOSYS | Errno::ACCESS) => Refused::NotPermitted,
                    Some(Errno::SRCH) => Refused::Gone,
                    _ => Refused::BadAddress,
                });
            }
        }
    }
    Ok(())
}

const PAGE: usize = 4096;

/// Whether the byte at `address` of this process is mapped for reading. Changes nothing. Linux before 5.14 does not tell; then `true`.
pub fn readable(address: usize) -> bool {
    // SAFETY: makes the kernel take the fault that a read would take; it changes no content, and checks the address.
    let populated =
        unsafe { rustix::mm::madvise((address / PAGE * PAGE) as *mut _, PAGE, rustix::mm::Advice::LinuxPopulateRead) };
    !matches!(populated, Err(Errno::NOMEM | Errno::FAULT))
}

/// Whether the word at `address` of this process is mapped for writing, as far as the kernel tells. Changes nothing.
pub fn writable(address: usize) -> bool {
    // SAFETY: makes the kernel take the fault that a write would take; it changes no content, and checks the address.
    let populated =
        unsafe { rustix::mm::madvise((address / PAGE * PAGE) as *mut _, PAGE, rustix::mm::Advice::LinuxPopulateWrite) };
    match populated {
        Ok(()) => true,
        // Also the answer of kernels before 5.14, which do not know the question: there the mappings are looked up.
        Err(Errno::INVAL) => listed_as_writable(address),
        Err(_) => false,
    }
}

#[cold]
fn listed_as_writable(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().any(|line| {
        let Some((range, rest)) = line.split_once(' ') else { return false };
        let Some((start, end)) = range.split_once('-') else { return false };
        let bound = |text| usize::from_str_radix(text, 16).unwrap_or(0);
        (bound(start)..bound(end)).contains(&address) && rest.as_bytes().get(1) == Some(&b'w')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_written_is_writable() {
        let (on_stack, on_heap) = (1u32, Box::new(1u32));
        for good in [&raw const on_stack, &raw const *on_heap] {
            assert!(writable(good as usize) && listed_as_writable(good as usize));
        }
        static CONSTANT: u32 = 5;
        for bad in [0, 64, 1 << 63, usize::MAX - 3, &raw const CONSTANT as usize, writable as *const () as usize] {
            assert!(!writable(bad) && !listed_as_writable(bad), "{bad:#x}");
        }
    }
}
