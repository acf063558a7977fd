//! Counters of posted requests, which count while the verbosity level is not 0.

use std::ffi::{CStr, c_char, c_uint};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bellwether_runtime::vocabulary::gaspi::{Code, Result, codes};

use super::{calls, check, store};

/// What is counted.
#[derive(Clone, Copy)]
pub(super) enum Counter {
    Writes,
    Reads,
    Notifications,
    WrittenBytes,
    ReadBytes,
}

const COUNTERS: [(&CStr, &CStr); 5] = [
    (c"writes", c"Writes and lists of writes that were posted"),
    (c"reads", c"Reads and lists of reads that were posted"),
    (c"notifications", c"Notifications of other ranks that were posted"),
    (c"bytes written", c"Bytes of writes that were posted"),
    (c"bytes read", c"Bytes of reads that were posted"),
];

/// The verbosity level from which all counters count.
const LEVEL: u32 = 1;
/// `GASPI_STATISTIC_ARGUMENT_NONE`.
const NO_ARGUMENT: c_uint = 0;

static VERBOSITY: AtomicU32 = AtomicU32::new(0);
static COUNTS: [AtomicU64; COUNTERS.len()] = [const { AtomicU64::new(0) }; COUNTERS.len()];

/// Counts a request, and its bytes.
#[inline(always)]
pub(super) fn count(requests: Counter, bytes: Counter, size: u64) {
    if VERBOSITY.load(Ordering::Relaxed) >= LEVEL {
        COUNTS[requests as usize].fetch_add(1, Ordering::Relaxed);
        COUNTS[bytes as usize].fetch_add(size, Ordering::Relaxed);
    }
}

/// # Errors
/// [`codes::INV_NUM`].
fn counter(number: c_uint) -> Result<usize> {
    let number = number as usize;
    if number < COUNTERS.len() { Ok(number) } else { Err(Code(codes::INV_NUM)) }
}

calls! {
    gaspi_statistic_verbosity_level, pgaspi_statistic_verbosity_level(level: u32) {
        VERBOSITY.store(level, Ordering::Relaxed);
        Ok(())
    }

    gaspi_statistic_counter_max, pgaspi_statistic_counter_max(most: *mut u32) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(most, COUNTERS.len() as u32) }
    }

    gaspi_statistic_counter_info, pgaspi_statistic_counter_info(
        number: c_uint,
        argument: *mut c_uint,
        name: *mut *mut c_char,
        description: *mut *mut c_char,
        level: *mut u32,
    ) {
        let (known, described) = COUNTERS[counter(number)?];
        let places = [name.cast_const().cast(), description.cast_const().cast()];
        check(places)?;
        check([argument.cast_const().cast(), level.cast_const().cast()])?;
        // SAFETY: not null, and valid by the caller.
        unsafe {
            store(argument, NO_ARGUMENT)?;
            store(name, known.as_ptr().cast_mut())?;
            store(description, described.as_ptr().cast_mut())?;
            store(level, LEVEL)
        }
    }

    gaspi_statistic_counter_get, pgaspi_statistic_counter_get(number: c_uint, _argument: u32, value: *mut u64) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(value, COUNTS[counter(number)?].load(Ordering::Relaxed)) }
    }

    gaspi_statistic_counter_reset, pgaspi_statistic_counter_reset(number: c_uint) {
        COUNTS[counter(number)?].store(0, Ordering::Relaxed);
        Ok(())
    }
}
