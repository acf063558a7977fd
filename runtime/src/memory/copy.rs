//! Copies between private memory and memory that other ranks may touch at the same time.
//!
//! A program that synchronises as it should never races here. A program that does not gets torn data, not undefined
//! behaviour: small copies are relaxed atomic words, larger ones go through a function that the compiler cannot see
//! into.

use std::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use bytemuck::Pod;

/// Stores one value in shared memory: a single store for 1, 2, 4 and 8 bytes.
///
/// # Safety
/// `to` is valid for writing a `T`, aligned for it, and only touched through this module or atomics.
#[inline(always)]
pub unsafe fn store<T: Pod>(to: *mut T, value: T) {
    // SAFETY: sizes match in each arm; the caller guarantees that `to` is valid and aligned.
    unsafe {
        match (size_of::<T>(), align_of::<T>()) {
            (1, _) => AtomicU8::from_ptr(to.cast()).store(bytemuck::cast(value), Relaxed),
            (2, 2) => AtomicU16::from_ptr(to.cast()).store(bytemuck::cast(value), Relaxed),
            (4, 4) => AtomicU32::from_ptr(to.cast()).store(bytemuck::cast(value), Relaxed),
            (8, 8) => AtomicU64::from_ptr(to.cast()).store(bytemuck::cast(value), Relaxed),
            _ => copy(to.cast(), (&raw const value).cast(), size_of::<T>()),
        }
    }
}

/// Loads one value from shared memory: a single load for 1, 2, 4 and 8 bytes.
///
/// # Safety
/// As [`store`], for reading.
#[inline(always)]
pub unsafe fn load<T: Pod>(from: *const T) -> T {
    // SAFETY: sizes match in each arm; the caller guarantees that `from` is valid and aligned.
    unsafe {
        match (size_of::<T>(), align_of::<T>()) {
            (1, _) => bytemuck::cast(AtomicU8::from_ptr(from.cast_mut().cast()).load(Relaxed)),
            (2, 2) => bytemuck::cast(AtomicU16::from_ptr(from.cast_mut().cast()).load(Relaxed)),
            (4, 4) => bytemuck::cast(AtomicU32::from_ptr(from.cast_mut().cast()).load(Relaxed)),
            (8, 8) => bytemuck::cast(AtomicU64::from_ptr(from.cast_mut().cast()).load(Relaxed)),
            _ => {
                let mut value = T::zeroed();
                copy((&raw mut value).cast(), from.cast(), size_of::<T>());
                value
            }
        }
    }
}

/// Copies `len` bytes; the ranges may be shared with other ranks but do not overlap.
///
/// # Safety
/// `from` is valid for reading and `to` for writing `len` bytes.
#[inline(always)]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    if len <= 8 * WORD && (to as usize | from as usize | len).is_multiple_of(WORD) {
        for at in (0..len).step_by(WORD) {
            // SAFETY: aligned words inside both ranges.
            unsafe {
                let word = AtomicU64::from_ptr(from.add(at).cast_mut().cast()).load(Relaxed);
                AtomicU64::from_ptr(to.add(at).cast()).store(word, Relaxed);
            }
        }
    } else {
        // SAFETY: the caller guarantees it.
        unsafe { copy_unseen(to, from, len) };
    }
}

/// Copies `len` private bytes to shared memory whose type is not known. Bytes that may be one value, and so a flag, are written by one
/// store, ordered after all earlier puts.
///
/// # Safety
/// As [`copy`].
#[inline]
pub unsafe fn put(to: *mut u8, from: *const u8, len: usize) {
    macro_rules! value {
        ($word:ty, $atomic:ty) => {
            // SAFETY: an aligned word; the caller guarantees that it is valid. Pairs with the waiter's Acquire load.
            unsafe { <$atomic>::from_ptr(to.cast()).store(from.cast::<$word>().read_unaligned(), Release) }
        };
    }
    match len {
        8 if to.addr().is_multiple_of(8) => value!(u64, AtomicU64),
        4 if to.addr().is_multiple_of(4) => value!(u32, AtomicU32),
        2 if to.addr().is_multiple_of(2) => value!(u16, AtomicU16),
        1 => value!(u8, AtomicU8),
        // SAFETY: the caller guarantees it.
        _ => unsafe { copy(to, from, len) },
    }
}

/// Whether [`put_word`] stores at addresses of any alignment.
pub const ANY_ALIGNMENT: bool = cfg!(all(target_arch = "x86_64", not(any(miri, loom, bellwether_tsan))));

/// Stores a word at `offset` behind `to`, ordered after all earlier puts: a rank that loads the word with Acquire sees them. If the word is
/// not aligned, another rank may see a part of it.
///
/// # Safety
/// `to + offset` is valid for writing 8 bytes, aligned for them unless [`ANY_ALIGNMENT`], and only touched through this module or
/// atomics.
#[inline(always)]
pub unsafe fn put_word(to: *mut u8, offset: usize, value: u64) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom, bellwether_tsan))))]
    // SAFETY: valid by the caller's guarantees, at any alignment. The processor makes stores visible in program order, and
    // the compiler keeps that order: it has to assume that the instruction reads and writes all memory.
    unsafe {
        std::arch::asm!("mov qword ptr [{} + {}], {}", in(reg) to, in(reg) offset, in(reg) value, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, bellwether_tsan)))))]
    // SAFETY: an aligned word, valid by the caller's guarantees. Pairs with the Acquire load of the rank that waits for it.
    unsafe {
        AtomicU64::from_ptr(to.add(offset).cast()).store(value, Release)
    };
}

/// The reverse of [`put`]: bytes that may be one value are read by one load.
///
/// # Safety
/// As [`copy`].
#[inline]
pub unsafe fn get(to: *mut u8, from: *const u8, len: usize) {
    macro_rules! value {
        ($word:ty, $atomic:ty) => {
            // SAFETY: an aligned word; the caller guarantees that it is valid. Pairs with the Release store in `put`.
            unsafe { to.cast::<$word>().write_unaligned(<$atomic>::from_ptr(from.cast_mut().cast()).load(Acquire)) }
        };
    }
    match len {
        8 if from.addr().is_multiple_of(8) => value!(u64, AtomicU64),
        4 if from.addr().is_multiple_of(4) => value!(u32, AtomicU32),
        2 if from.addr().is_multiple_of(2) => value!(u16, AtomicU16),
        1 => value!(u8, AtomicU8),
        // SAFETY: the caller guarantees it.
        _ => unsafe { copy(to, from, len) },
    }
}

/// Copies `len` bytes within shared memory; the ranges may overlap. Bytes that may be one value are read by one load and written by one
/// store, ordered after all earlier puts.
///
/// # Safety
/// As [`copy`], but for the overlap.
#[inline]
pub unsafe fn between(to: *mut u8, from: *const u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    const MOST: usize = 8;
    macro_rules! value {
        ($word:ty, $atomic:ty) => {
            // SAFETY: aligned words; the caller guarantees that they are valid. Acquire and Release pair with those of `put` and `get`.
            unsafe {
                let value = <$atomic>::from_ptr(from.cast_mut().cast()).load(Acquire);
                <$atomic>::from_ptr(to.cast()).store(value, Release);
            }
        };
    }
    match len {
        8 if (to.addr() | from.addr()).is_multiple_of(8) => value!(u64, AtomicU64),
        4 if (to.addr() | from.addr()).is_multiple_of(4) => value!(u32, AtomicU32),
        2 if (to.addr() | from.addr()).is_multiple_of(2) => value!(u16, AtomicU16),
        1 => value!(u8, AtomicU8),
        _ if len <= MOST * WORD && (to.addr() | from.addr() | len).is_multiple_of(WORD) => {
            // All are loaded before the first is stored, since the ranges may overlap.
            let mut words = [0; MOST];
            for (i, word) in words.iter_mut().enumerate().take(len / WORD) {
                // SAFETY: an aligned word inside the range.
                *word = unsafe { AtomicU64::from_ptr(from.add(WORD * i).cast_mut().cast()).load(Relaxed) };
            }
            for (i, word) in words.iter().enumerate().take(len / WORD) {
                // SAFETY: as above.
                unsafe { AtomicU64::from_ptr(to.add(WORD * i).cast()).store(*word, Relaxed) };
            }
        }
        // SAFETY: the caller guarantees it.
        _ => unsafe { unseen(libc::memmove, to, from, len) },
    }
}

/// `memcpy` or `memmove` of the C library.
type Copier = unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void;

/// The C library's `memcpy`, which chooses among all ways by size and machine. Nothing beats it by as much as a tenth:
/// GB/s on a Xeon of 2.5 GHz (Cascade Lake), glibc 2.36, private memory to a segment, `bellwether bench-copies`:
///
/// | bytes | memcpy | `rep movsb` | streaming stores |
/// | --- | --- | --- | --- |
/// | 1 KiB | 57.5 | 25.8 | 3.5 |
/// | 64 KiB | 28.5 | 28.3 | 5.1 |
/// | 1 MiB | 17.4 | 17.9 | 5.1 |
/// | 4 MiB | 9.6 | 10.3 | 4.9 |
/// | 64 MiB | 5.0 | 4.3 | 4.0 |
///
/// # Safety
/// As [`copy`].
#[inline(always)]
unsafe fn copy_unseen(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller guarantees it.
    unsafe { unseen(libc::memcpy, to, from, len) };
}

/// Calls `function` without letting the compiler know which function it is: the compiler knows `memcpy` by its name, would treat the call
/// as a copy of private memory, and move it out of a loop that waits for another rank's put.
///
/// # Safety
/// As `function` demands.
#[inline(always)]
unsafe fn unseen(function: Copier, to: *mut u8, from: *const u8, len: usize) {
    let mut address = function as usize;
    // SAFETY: does nothing, but may have changed the address for all that the compiler knows. In a register: with
    // both buffers filling the first-level cache, one line more in the loop costs a twentieth.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) address, options(pure, nomem, nostack, preserves_flags)) };
    // SAFETY: the address that was put in.
    let function: Copier = unsafe { std::mem::transmute(address) };
    // SAFETY: the caller guarantees it.
    unsafe { function(to.cast(), from.cast(), len) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::between;

    #[test]
    fn overlapping_ranges_of_each_length_and_alignment_are_moved_whole() {
        #[repr(align(8))]
        struct Memory([u8; 400]);
        for len in (0..=80).chain([200]) {
            for (to, from) in [(0, 8), (8, 0), (0, 1), (1, 0), (3, 5), (5, 3), (0, 0), (16, 8), (4, 12), (12, 4)] {
                let mut memory = Memory(std::array::from_fn(|i| (i * 7) as u8));
                let mut right = memory.0;
                right.copy_within(from..from + len, to);
                let start = memory.0.as_mut_ptr();
                // SAFETY: both ranges lie in the memory, which nobody else touches.
                unsafe { between(start.add(to), start.add(from), len) };
                assert!(memory.0 == right, "{len} bytes from {from} to {to}");
            }
        }
    }
}
