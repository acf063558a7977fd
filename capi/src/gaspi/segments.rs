//! Segments and their notifications.

use std::ffi::{c_int, c_uint, c_void};

use bellwether_runtime::vocabulary::gaspi::{Code, Result, SegmentId, Timeout, codes};

use super::life::{waiting, working};
use super::{calls, check, store};

/// The lowest id without a segment.
fn available() -> Result<SegmentId> {
    let process = working()?;
    let (used, most) = (process.segment_list()?, process.config_get()?.segment_max);
    let free = (0..=SegmentId::MAX).take(most as usize).find(|id| used.binary_search(id).is_err());
    free.ok_or(Code(codes::MANY_SEG))
}

calls! {
    gaspi_segment_alloc, pgaspi_segment_alloc(segment: u8, size: u64, _policy: c_uint) {
        waiting(|process| process.segment_alloc(segment, size))
    }

    gaspi_segment_bind, pgaspi_segment_bind(segment: u8, start: *mut c_void, size: u64, _description: c_int) {
        // SAFETY: the caller guarantees that the bytes are valid until the segment is deleted.
        waiting(|process| unsafe { process.segment_bind(segment, start.cast(), size) })
    }

    gaspi_segment_create, pgaspi_segment_create(segment: u8, size: u64, group: u8, timeout: u64, _policy: c_uint) {
        waiting(|process| process.segment_create(segment, size, group, Timeout::from_millis(timeout)))
    }

    gaspi_segment_use, pgaspi_segment_use(
        segment: u8,
        start: *mut c_void,
        size: u64,
        group: u8,
        timeout: u64,
        _description: c_int,
    ) {
        let timeout = Timeout::from_millis(timeout);
        // SAFETY: the caller guarantees that the bytes are valid until the segment is deleted.
        waiting(|process| unsafe { process.segment_use(segment, start.cast(), size, group, timeout) })
    }

    gaspi_segment_register, pgaspi_segment_register(segment: u8, rank: u16, timeout: u64) {
        waiting(|process| process.segment_register(segment, rank, Timeout::from_millis(timeout)))
    }

    gaspi_segment_delete, pgaspi_segment_delete(segment: u8) { waiting(|process| process.segment_delete(segment)) }

    gaspi_segment_ptr, pgaspi_segment_ptr(segment: u8, start: *mut *mut c_void) {
        let process = working()?;
        check([start.cast_const().cast()])?;
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(start, process.segment_ptr(segment)?.cast()) }
    }

    gaspi_segment_size, pgaspi_segment_size(segment: u8, rank: u16, size: *mut u64) {
        waiting(|process| {
            check([size.cast_const().cast()])?;
            // SAFETY: not null, and valid by the caller.
            unsafe { store(size, process.segment_size_at(segment, rank)?) }
        })
    }

    gaspi_segment_num, pgaspi_segment_num(number: *mut u32) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(number, working()?.segment_list()?.len() as u32) }
    }

    gaspi_segment_list, pgaspi_segment_list(number: u32, list: *mut u8) {
        let segments = working()?.segment_list()?;
        check([list.cast_const().cast()])?;
        if segments.len() != number as usize {
            return Err(Code(codes::INV_NUM));
        }
        // SAFETY: not null; the caller guarantees room for `number` ids.
        unsafe { std::ptr::copy_nonoverlapping(segments.as_ptr(), list, segments.len()) };
        Ok(())
    }

    gaspi_segment_avail_local, pgaspi_segment_avail_local(segment: *mut u8) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(segment, available()?) }
    }

    gaspi_notify_waitsome, pgaspi_notify_waitsome(segment: u8, begin: u32, number: u32, first: *mut u32, timeout: u64) {
        waiting(|process| {
            check([first.cast_const().cast()])?;
            match process.notify_waitsome(segment, begin, number, Timeout::from_millis(timeout))? {
                // SAFETY: not null, and valid by the caller.
                Some(found) => unsafe { store(first, found) },
                None => Ok(()),
            }
        })
    }

    gaspi_notify_reset, pgaspi_notify_reset(segment: u8, id: u32, old: *mut u32) {
        let value = working()?.notify_reset(segment, id)?;
        if !old.is_null() {
            // SAFETY: not null, and valid by the caller.
            unsafe { store(old, value)? };
        }
        Ok(())
    }
}
