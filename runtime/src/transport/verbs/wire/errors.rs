//! Reports of the device and the system, as error texts for the user.

use rdma_core_sys::*;

use crate::transport::error::Error;

/// The error of the system when an object of the device could not be made, and what the user can do.
pub fn io(error: std::io::Error) -> Error {
    Error::Io(match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM) => {
            "no room for the network device's queues; raise `ulimit -l`, or start fewer ranks on this host"
        }
        Some(libc::ENOSPC) => "the network device has no more queues; start fewer ranks on this host",
        Some(libc::EMFILE | libc::ENFILE) => "too many open files for the network device's queues; raise `ulimit -n`",
        Some(libc::ENODEV | libc::EIO) => "the network device is gone or broken; see `bellwether info`",
        _ => "the network device cannot be opened; the log names the call, `bellwether info` the devices",
    })
}

/// Why a request failed.
pub fn status(status: ibv_wc_status) -> &'static str {
    match status {
        IBV_WC_RETRY_EXC_ERR => "it did not answer, however often it was asked (retry exceeded)",
        IBV_WC_RNR_RETRY_EXC_ERR => "it has no buffers for messages",
        IBV_WC_REM_ACCESS_ERR => "an access that it did not allow (remote access error)",
        IBV_WC_REM_INV_REQ_ERR => "a request that it did not understand",
        IBV_WC_REM_OP_ERR => "it failed to do what was asked",
        IBV_WC_LOC_PROT_ERR => "memory of this rank that is not registered",
        IBV_WC_LOC_LEN_ERR => "a message longer than its buffer",
        IBV_WC_WR_FLUSH_ERR => "its queue pair had failed before",
        _ => "the device reported an error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_refuses_says_what_to_do() {
        for (number, advice) in [(libc::ENOMEM, "ulimit -l"), (libc::EMFILE, "ulimit -n"), (libc::EINVAL, "info")] {
            let told = io(std::io::Error::from_raw_os_error(number)).to_string();
            assert!(told.contains(advice), "{told}");
        }
    }
}
