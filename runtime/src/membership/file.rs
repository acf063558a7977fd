//! Files of memory without a name, which no process can truncate while others have mapped them.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, Mode, SealFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::error::{Error, Result};

/// Makes a file of `len` bytes, all holes, for this user alone. It keeps that size and cannot be executed, also by a
/// process that opens it through `/proc`: if the file were truncated, every process that touches its mapping beyond the new
/// end would die by SIGBUS.
///
/// Man pages `memfd_create(2)`, `F_ADD_SEALS` in `fcntl(2)`.
///
/// # Errors
/// [`Error::Os`] if the kernel has no such files, or none of such pages; [`Error::Start`] if files of this size are not allowed.
pub fn sealed(len: usize, pages: MemfdFlags) -> Result<OwnedFd> {
    // The limit holds for memory files too. Asked beforehand: `ftruncate` beyond it raises SIGXFSZ, which ends a program
    // without a word.
    if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|&limit| limit < len as u64) {
        return Err(Error::Start(format!(
            "the limit on the size of files is {limit} bytes (`ulimit -f`, RLIMIT_FSIZE), and the job's memory is a file \
             of {len} bytes: address space, of which only what is used takes memory; raise the limit (`ulimit -f unlimited`)"
        )));
    }
    let failed = |call| move |errno| Error::os("making the job's memory", call, errno);
    let flags = pages | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag, which also seals the execute bits.
    let file = match rustix::fs::memfd_create("bellwether", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create("bellwether", flags),
        made => made,
    };
    let file = file.map_err(failed("memfd_create"))?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(failed("fchmod"))?;
    rustix::fs::ftruncate(&file, len as u64).map_err(failed("ftruncate"))?;
    // Memory is committed by fallocate inside this size, which the seals allow.
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(failed("fcntl"))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FallocateFlags, fallocate, fchmod, fstat, ftruncate};

    use super::*;

    #[test]
    fn neither_size_nor_seals_nor_execute_bits_change() {
        let file = sealed(1 << 20, MemfdFlags::empty()).unwrap();
        assert_eq!(ftruncate(&file, 0), Err(Errno::PERM));
        assert_eq!(ftruncate(&file, 2 << 20), Err(Errno::PERM));
        assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, 2 << 20), Err(Errno::PERM));
        assert_eq!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::PERM));
        assert_eq!(fstat(&file).unwrap().st_mode & 0o777, 0o600);
        // Where the kernel has that seal.
        if rustix::fs::memfd_create("probe", MemfdFlags::NOEXEC_SEAL).is_ok() {
            assert_eq!(fchmod(&file, Mode::RWXU), Err(Errno::PERM));
        }
        // Grow the file as the heap does.
        fallocate(&file, FallocateFlags::empty(), 4096, 8192).unwrap();
        rustix::io::pwrite(&file, b"there", 4096).unwrap();
    }

    #[test]
    fn reserved_huge_pages_are_sealed_too() {
        // No page is taken from the pool, which may be empty: only the size is set.
        let file = match sealed(2 << 20, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) {
            Ok(file) => file,
            Err(error) => return println!("no huge pages here: {error}"),
        };
        assert_eq!(ftruncate(&file, 0), Err(Errno::PERM));
        assert_eq!(fstat(&file).unwrap().st_mode & 0o777, 0o600);
    }
}
