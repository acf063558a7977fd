//! Counters of posted requests, which count while the verbosity level is not 0: those of the runtime.

use std::ffi::{c_char, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};

use bellwether_runtime::vocabulary::gaspi::{Code, Counter, Result, codes};

use super::life::with_statistics;
use super::{calls, check, store};

/// The verbosity level from which all counters count.
const LEVEL: u32 = 1;
/// `GASPI_STATISTIC_ARGUMENT_NONE`.
const NO_ARGUMENT: c_uint = 0;

/// The level that the program has set. It can be set before there is a process.
pub(super) static VERBOSITY: AtomicU32 = AtomicU32::new(0);

/// # Errors
/// [`codes::INV_NUM`].
fn counter(number: c_uint) -> Result<Counter> {
    Counter::ALL.get(number as usize).copied().ok_or(Code(codes::INV_NUM))
}

calls! {
    gaspi_statistic_verbosity_level, pgaspi_statistic_verbosity_level(level: u32) {
        VERBOSITY.store(level, Ordering::Relaxed);
        with_statistics(|statistics| statistics.set_verbosity(level));
        Ok(())
    }

    gaspi_statistic_counter_max, pgaspi_statistic_counter_max(most: *mut u32) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(most, Counter::ALL.len() as u32) }
    }

    gaspi_statistic_counter_info, pgaspi_statistic_counter_info(
        number: c_uint,
        argument: *mut c_uint,
        name: *mut *mut c_char,
        description: *mut *mut c_char,
        level: *mut u32,
    ) {
        let (known, described) = counter(number)?.texts();
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
        let counter = counter(number)?;
        let counted = with_statistics(|statistics| statistics.get(counter)).unwrap_or(0);
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(value, counted) }
    }

    gaspi_statistic_counter_reset, pgaspi_statistic_counter_reset(number: c_uint) {
        let counter = counter(number)?;
        with_statistics(|statistics| statistics.reset(counter));
        Ok(())
    }
}
