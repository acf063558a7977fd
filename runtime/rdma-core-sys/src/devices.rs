use core::ffi::c_int;
use std::{io, ops::Deref, slice};

use crate::{Verbs, ibv_device};

/// The RDMA devices of this machine, as pointers for [`Verbs::ibv_open_device`].
///
/// A device that is not opened by then is gone when the list is dropped.
#[derive(Debug)]
pub struct DeviceList<'v> {
    verbs: &'v Verbs,
    list: *mut *mut ibv_device,
    len: usize,
}

impl Verbs {
    /// Lists the devices. Asks the kernel each time; does not wait.
    ///
    /// # Errors
    ///
    /// What the library left in `errno`; see [`is_no_kernel_support`].
    pub fn device_list(&self) -> io::Result<DeviceList<'_>> {
        let mut len: c_int = 0;
        // SAFETY: `len` may be written; whoever made `self` answered for the functions.
        let list = unsafe { self.ibv_get_device_list(&raw mut len) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(DeviceList { verbs: self, list, len: usize::try_from(len).unwrap_or(0) })
    }
}

/// Whether [`Verbs::device_list`] failed because this kernel has no RDMA, which is no fault.
#[must_use]
pub fn is_no_kernel_support(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSYS)
}

impl Deref for DeviceList<'_> {
    type Target = [*mut ibv_device];

    fn deref(&self) -> &[*mut ibv_device] {
        // SAFETY: the library gave an array of `len` pointers, which lives until `drop`.
        unsafe { slice::from_raw_parts(self.list, self.len) }
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: the list came from `ibv_get_device_list` and is freed once.
        unsafe { self.verbs.ibv_free_device_list(self.list) }
    }
}
