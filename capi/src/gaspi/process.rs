//! Ranks, the state vector, connections.

use std::ffi::{CStr, c_char};

use bellwether_runtime::vocabulary::gaspi::Timeout;

use super::life::{waiting, working};
use super::{calls, check, store};

calls! {
    gaspi_proc_rank, pgaspi_proc_rank(rank: *mut u16) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(rank, working()?.proc_rank()?) }
    }

    gaspi_proc_num, pgaspi_proc_num(number: *mut u16) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(number, working()?.proc_num()?) }
    }

    gaspi_proc_local_rank, pgaspi_proc_local_rank(rank: *mut u16) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(rank, working()?.proc_local()?.0) }
    }

    gaspi_proc_local_num, pgaspi_proc_local_num(number: *mut u16) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(number, working()?.proc_local()?.1) }
    }

    gaspi_proc_ping, pgaspi_proc_ping(rank: u16, _timeout: u64) { waiting(|process| process.proc_ping(rank)) }

    gaspi_proc_kill, pgaspi_proc_kill(rank: u16, timeout: u64) {
        waiting(|process| process.proc_kill(rank, Timeout::from_millis(timeout)))
    }

    bellwether_gaspi_print_to, bellwether_gaspi_print_there(rank: u16, text: *const c_char) {
        check([text.cast()])?;
        // SAFETY: not null, and by the caller a text that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(text) };
        waiting(|process| process.print_to(rank, text.to_bytes()))
    }

    gaspi_connect, pgaspi_connect(rank: u16, timeout: u64) {
        waiting(|process| process.connect(rank, Timeout::from_millis(timeout)))
    }

    gaspi_disconnect, pgaspi_disconnect(rank: u16, timeout: u64) {
        waiting(|process| process.disconnect(rank, Timeout::from_millis(timeout)))
    }

    gaspi_state_vec_get, pgaspi_state_vec_get(states: *mut u8) {
        let known = working()?.state_vec_get()?;
        check([states.cast_const().cast()])?;
        for (rank, state) in known.into_iter().enumerate() {
            // SAFETY: not null; the caller guarantees a byte for each rank.
            unsafe { states.add(rank).write(state as u8) };
        }
        Ok(())
    }
}
