//! Building blocks of hand-written loops and waits, without a library between them and the processor.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Hides a value from the optimiser in a register: unlike `std::hint::black_box` it costs no memory access, which
/// in a loop of single stores would take most of the measured time.
#[inline(always)]
pub fn opaque<T: Copy + Into<u64>>(value: T) -> u64 {
    let mut value: u64 = value.into();
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) value, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
    {
        value = std::hint::black_box(value);
    }
    value
}

/// As [`opaque`], for an index.
#[inline(always)]
pub fn opaque_index(index: usize) -> usize {
    opaque(index as u64) as usize
}

/// Reads the first and the last bytes of a payload, as a receiver that uses it would.
#[inline(always)]
pub fn read_ends(payload: &[u8]) {
    let word = |at: usize| payload.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes);
    opaque(word(0));
    if payload.len() > 8 {
        opaque(word(payload.len() - 8));
    }
}

/// Polls after which a bare wait gives up the core.
static PATIENCE: AtomicU32 = AtomicU32::new(50_000);

/// Makes bare waits yield the core after each poll: for ranks that share a core with the rank that they wait for.
pub fn share_cores() {
    PATIENCE.store(1, Ordering::Relaxed);
}

/// Spins until something holds: a bare wait. It gives up the core now and then, for others that need it.
#[inline(always)]
pub fn spin_until(mut ready: impl FnMut() -> bool) {
    let mut polls = 0;
    while !ready() {
        polls += 1;
        if polls >= PATIENCE.load(Ordering::Relaxed) {
            polls = 0;
            // SAFETY: always safe.
            unsafe { libc::sched_yield() };
        }
    }
}

/// Spins until a word has a value.
#[inline(always)]
pub fn spin(flag: &AtomicU64, value: u64) {
    spin_until(|| flag.load(Ordering::Acquire) == value);
}
