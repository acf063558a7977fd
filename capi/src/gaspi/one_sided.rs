//! Writes, reads, lists, atomic operations, passive messages, queues.

use bellwether_runtime::vocabulary::gaspi::{Code, Note, Part, RW_LIST_ELEM_MAX, Result, Timeout, codes};

use super::life::{waiting, working};
use super::{calls, check, store};

/// # Errors
/// [`codes::NULLPTR`]; [`codes::INV_NUM`].
///
/// # Safety
/// Each pointer is null or valid for reading `number` values.
unsafe fn list(
    number: u32,
    (local, local_offset): (*const u8, *const u64),
    (remote, remote_offset): (*const u8, *const u64),
    size: *const u64,
) -> Result<Vec<Part>> {
    check([local.cast(), local_offset.cast(), remote.cast(), remote_offset.cast(), size.cast()])?;
    // Before anything is read: the arrays may be shorter than a wrong number. The runtime has the configuration's limit.
    if number == 0 || number > RW_LIST_ELEM_MAX {
        return Err(Code(codes::INV_NUM));
    }
    let part = |n| {
        // SAFETY: `n` is less than `number`, for which the caller guarantees it.
        unsafe {
            Part {
                local: (*local.add(n), local_offset.add(n).read_unaligned()),
                remote: (*remote.add(n), remote_offset.add(n).read_unaligned()),
                size: size.add(n).read_unaligned(),
            }
        }
    };
    Ok((0..number as usize).map(part).collect())
}

/// Defines calls that post one transfer, and calls that post a list of transfers: names, the runtime's function.
macro_rules! transfers {
    (one: $($name:ident, $profiled:ident: $post:ident;)+) => {calls! {$(
        $name, $profiled(
            local: u8,
            local_offset: u64,
            rank: u16,
            remote: u8,
            remote_offset: u64,
            size: u64,
            queue: u8,
            timeout: u64,
        ) {
            let part = Part { local: (local, local_offset), remote: (remote, remote_offset), size };
            working()?.$post(part, rank, queue, Timeout::from_millis(timeout))
        }
    )+}};
    (list: $($name:ident, $profiled:ident: $post:ident;)+) => {calls! {$(
        $name, $profiled(
            number: u32,
            local: *const u8,
            local_offset: *const u64,
            rank: u16,
            remote: *const u8,
            remote_offset: *const u64,
            size: *const u64,
            queue: u8,
            timeout: u64,
        ) {
            let process = working()?;
            // SAFETY: the caller guarantees that all are null or valid for `number` values.
            let parts = unsafe { list(number, (local, local_offset), (remote, remote_offset), size) }?;
            process.$post(&parts, rank, queue, Timeout::from_millis(timeout))
        }
    )+}};
}

transfers! { one:
    gaspi_write, pgaspi_write: write;
    gaspi_read, pgaspi_read: read;
}

transfers! { list:
    gaspi_write_list, pgaspi_write_list: write_list;
    gaspi_read_list, pgaspi_read_list: read_list;
}

calls! {
    gaspi_notify, pgaspi_notify(segment: u8, rank: u16, id: u32, value: u32, queue: u8, timeout: u64) {
        working()?.notify(Note { segment, id, value }, rank, queue, Timeout::from_millis(timeout))
    }

    gaspi_write_notify, pgaspi_write_notify(
        local: u8,
        local_offset: u64,
        rank: u16,
        remote: u8,
        remote_offset: u64,
        size: u64,
        id: u32,
        value: u32,
        queue: u8,
        timeout: u64,
    ) {
        let part = Part { local: (local, local_offset), remote: (remote, remote_offset), size };
        let note = Note { segment: remote, id, value };
        working()?.write_notify(part, rank, note, queue, Timeout::from_millis(timeout))
    }

    gaspi_read_notify, pgaspi_read_notify(
        local: u8,
        local_offset: u64,
        rank: u16,
        remote: u8,
        remote_offset: u64,
        size: u64,
        id: u32,
        queue: u8,
        timeout: u64,
    ) {
        let part = Part { local: (local, local_offset), remote: (remote, remote_offset), size };
        working()?.read_notify(part, rank, (local, id), queue, Timeout::from_millis(timeout))
    }

    gaspi_write_list_notify, pgaspi_write_list_notify(
        number: u32,
        local: *const u8,
        local_offset: *const u64,
        rank: u16,
        remote: *const u8,
        remote_offset: *const u64,
        size: *const u64,
        segment: u8,
        id: u32,
        value: u32,
        queue: u8,
        timeout: u64,
    ) {
        let process = working()?;
        // SAFETY: the caller guarantees that all are null or valid for `number` values.
        let parts = unsafe { list(number, (local, local_offset), (remote, remote_offset), size) }?;
        let note = Note { segment, id, value };
        process.write_list_notify(&parts, rank, note, queue, Timeout::from_millis(timeout))
    }

    gaspi_read_list_notify, pgaspi_read_list_notify(
        number: u32,
        local: *const u8,
        local_offset: *const u64,
        rank: u16,
        remote: *const u8,
        remote_offset: *const u64,
        size: *const u64,
        segment: u8,
        id: u32,
        queue: u8,
        timeout: u64,
    ) {
        let process = working()?;
        // SAFETY: the caller guarantees that all are null or valid for `number` values.
        let parts = unsafe { list(number, (local, local_offset), (remote, remote_offset), size) }?;
        process.read_list_notify(&parts, rank, (segment, id), queue, Timeout::from_millis(timeout))
    }

    gaspi_wait, pgaspi_wait(queue: u8, timeout: u64) {
        waiting(|process| process.wait(queue, Timeout::from_millis(timeout)))
    }

    gaspi_queue_create, pgaspi_queue_create(queue: *mut u8, timeout: u64) {
        waiting(|process| {
            // Check first: otherwise there would be a queue whose number the program does not get.
            check([queue.cast_const().cast()])?;
            // SAFETY: not null, and valid by the caller.
            unsafe { store(queue, process.queue_create(Timeout::from_millis(timeout))?) }
        })
    }

    gaspi_queue_delete, pgaspi_queue_delete(queue: u8) { waiting(|process| process.queue_delete(queue)) }

    gaspi_queue_size, pgaspi_queue_size(queue: u8, size: *mut u32) {
        let process = working()?;
        check([size.cast_const().cast()])?;
        // SAFETY: not null, and valid by the caller.
        unsafe { store(size, process.queue_size(queue)?) }
    }

    gaspi_queue_purge, pgaspi_queue_purge(queue: u8, timeout: u64) {
        waiting(|process| process.queue_purge(queue, Timeout::from_millis(timeout)))
    }

    gaspi_atomic_fetch_add, pgaspi_atomic_fetch_add(
        segment: u8,
        offset: u64,
        rank: u16,
        value: u64,
        old: *mut u64,
        timeout: u64,
    ) {
        waiting(|process| {
            // Before anything is added.
            check([old.cast_const().cast()])?;
            let was = process.atomic_fetch_add(segment, offset, rank, value, Timeout::from_millis(timeout))?;
            // SAFETY: not null, and valid by the caller.
            unsafe { store(old, was) }
        })
    }

    gaspi_atomic_compare_swap, pgaspi_atomic_compare_swap(
        segment: u8,
        offset: u64,
        rank: u16,
        expected: u64,
        new: u64,
        old: *mut u64,
        timeout: u64,
    ) {
        waiting(|process| {
            check([old.cast_const().cast()])?;
            let timeout = Timeout::from_millis(timeout);
            let was = process.atomic_compare_swap(segment, offset, rank, expected, new, timeout)?;
            // SAFETY: not null, and valid by the caller.
            unsafe { store(old, was) }
        })
    }

    gaspi_passive_send, pgaspi_passive_send(segment: u8, offset: u64, rank: u16, size: u64, timeout: u64) {
        waiting(|process| process.passive_send(segment, offset, rank, size, Timeout::from_millis(timeout)))
    }

    gaspi_passive_receive, pgaspi_passive_receive(segment: u8, offset: u64, rank: *mut u16, size: u64, timeout: u64) {
        waiting(|process| {
            // Before a message is taken.
            check([rank.cast_const().cast()])?;
            let (from, _) = process.passive_receive(segment, offset, size, Timeout::from_millis(timeout))?;
            // SAFETY: not null, and valid by the caller.
            unsafe { store(rank, from) }
        })
    }
}
