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
/// `here` is valid for `len` bytes, for writing if getting, and not touched by others meanwhile. What is at
/// `there` is the peer's affair: putting may break it.
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
