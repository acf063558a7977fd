//! Copies between private memory and memory that other ranks may touch at the same time.
//!
//! A program that synchronises as it should never races here. One that does not gets torn data, not undefined
//! behaviour: small copies are relaxed atomic words, larger ones go through the C library's `memcpy`, which the
//! compiler treats as an unknown function on memory that has escaped.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use bytemuck::Pod;

/// Stores one value in shared memory: a single store for 1, 2, 4 and 8 bytes.
///
/// # Safety
/// `to` is valid for writing a `T`, aligned for it, and only touched through this module or atomics.
#[inline(always)]
pub unsafe fn store<T: Pod>(to: *mut T, value: T) {
    // SAFETY: sizes match in each arm; `to` is valid and aligned by the caller's word.
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
    // SAFETY: sizes match in each arm; `from` is valid and aligned by the caller's word.
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
    if len == 8 {
        // SAFETY: 8 bytes at any alignment, valid by the caller's word.
        unsafe { to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()) };
    } else {
        // SAFETY: the caller's word.
        unsafe { libc::memcpy(to.cast(), from.cast(), len) };
    }
}
