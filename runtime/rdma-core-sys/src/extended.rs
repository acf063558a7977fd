//! The header's inline calls that reach the driver through `verbs_context`, with a fallback where C has one.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::offset_of;
use core::ptr;

use crate::{
    IBV_ACCESS_OPTIONAL_RANGE, IBV_QP_INIT_ATTR_PD, Verbs, ibv_access_flags, ibv_context, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_device_attr_ex, ibv_fork_status, ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp,
    ibv_qp_ex, ibv_qp_init_attr_ex, ibv_query_device_ex_input, ibv_wr_opcode, verbs_context,
};

/// The extended context around `context`, or null where a library older than those has none.
///
/// # Safety
///
/// `context` is open.
unsafe fn extended(context: *mut ibv_context) -> *const verbs_context {
    // SAFETY: as the caller promises. The mark is set only in a context that lies inside of a `verbs_context`.
    unsafe {
        if (*context).abi_compat as usize != usize::MAX {
            return ptr::null();
        }
        context.byte_sub(offset_of!(verbs_context, context)).cast()
    }
}

/// The operation of that name, if the library's `verbs_context` reaches so far to the front and has it.
/// Fields are read through the raw pointer: an older library's struct starts later than ours.
macro_rules! operation {
    ($context:expr, $operation:ident) => {{
        let verbs = extended($context);
        if verbs.is_null() || (*verbs).sz < size_of::<verbs_context>() - offset_of!(verbs_context, $operation) {
            None
        } else {
            (*verbs).$operation
        }
    }};
}

/// Leaves in `errno` that there is no such call, as C does.
#[cold]
fn unsupported<T>() -> *mut T {
    // SAFETY: the address of this thread's `errno`.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
    ptr::null_mut()
}

impl Verbs {
    /// Asks for the extended properties of a device; the plain ones where the driver has no more, the rest then zero.
    ///
    /// # Safety
    ///
    /// `context` is open; `input` is null or valid; `attr` may be written.
    pub unsafe fn ibv_query_device_ex(
        &self,
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
    ) -> c_int {
        // SAFETY: as the caller promises.
        unsafe {
            if !input.is_null() && (*input).comp_mask != 0 {
                return libc::EINVAL;
            }
            if let Some(query) = operation!(context, query_device_ex) {
                let code = query(context, input, attr, size_of::<ibv_device_attr_ex>());
                if code != libc::EOPNOTSUPP && code != libc::ENOSYS {
                    return code;
                }
            }
            attr.write_bytes(0, 1);
            self.ibv_query_device(context, &raw mut (*attr).orig_attr)
        }
    }

    /// Asks for the properties of a port.
    ///
    /// The library's own `ibv_query_port` fills a shorter struct for programs older than 2018; it is the fallback.
    ///
    /// # Safety
    ///
    /// `context` is open; `attr` may be written.
    pub unsafe fn ibv_query_port(&self, context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
        // SAFETY: as the caller promises; the shorter struct is the head of ours.
        unsafe {
            if let Some(query) = operation!(context, query_port) {
                return query(context, port, attr, size_of::<ibv_port_attr>());
            }
            attr.write_bytes(0, 1);
            (self.ibv_query_port)(context, port, attr)
        }
    }

    /// Reads one entry of a port's table of GIDs, with its type.
    ///
    /// # Safety
    ///
    /// `context` is open; `entry` may be written.
    pub unsafe fn ibv_query_gid_ex(
        &self,
        context: *mut ibv_context,
        port: u32,
        index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
    ) -> c_int {
        let Some(query) = self._ibv_query_gid_ex else { return libc::EOPNOTSUPP };
        // SAFETY: as the caller promises.
        unsafe { query(context, port, index, entry, flags, size_of::<ibv_gid_entry>()) }
    }

    /// Reads the valid GIDs of all ports; the number of them, or `-errno`.
    ///
    /// # Safety
    ///
    /// `context` is open; `entries` is an array of `max_entries` that may be written.
    pub unsafe fn ibv_query_gid_table(
        &self,
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
    ) -> isize {
        let Some(query) = self._ibv_query_gid_table else { return -(libc::EOPNOTSUPP as isize) };
        // SAFETY: as the caller promises.
        unsafe { query(context, entries, max_entries, flags, size_of::<ibv_gid_entry>()) }
    }

    /// Registers memory under its own address.
    ///
    /// Optional flags (`IBV_ACCESS_OPTIONAL_RANGE`, among them relaxed ordering) are dropped where the library or the
    /// kernel does not know them, as C does.
    ///
    /// # Safety
    ///
    /// `pd` is valid. The memory stays mapped until `ibv_dereg_mr`, and the holders of its key may touch it.
    pub unsafe fn ibv_reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: ibv_access_flags,
    ) -> *mut ibv_mr {
        let plain = access & !IBV_ACCESS_OPTIONAL_RANGE;
        // SAFETY: as the caller promises.
        unsafe {
            match self.ibv_reg_mr_iova2 {
                Some(register) if access != plain => register(pd, addr, length, addr as u64, access),
                _ => (self.ibv_reg_mr)(pd, addr, length, plain as c_int),
            }
        }
    }

    /// Registers memory under the address `iova` for those that reach it with its key.
    ///
    /// # Safety
    ///
    /// As [`Self::ibv_reg_mr`].
    pub unsafe fn ibv_reg_mr_iova2(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr {
        let Some(register) = self.ibv_reg_mr_iova2 else { return unsupported() };
        // SAFETY: as the caller promises.
        unsafe { register(pd, addr, length, iova, access) }
    }

    /// Registers the memory of a DMA buffer, as of a GPU, by its file descriptor.
    ///
    /// # Safety
    ///
    /// `pd` is valid; the buffer outlives the registration, and the holders of its key may touch it.
    pub unsafe fn ibv_reg_dmabuf_mr(
        &self,
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
    ) -> *mut ibv_mr {
        let Some(register) = self.ibv_reg_dmabuf_mr else { return unsupported() };
        // SAFETY: as the caller promises.
        unsafe { register(pd, offset, length, iova, fd, access) }
    }

    /// Makes a completion queue for the `ibv_start_poll` family. Null with `EOPNOTSUPP` where the driver has none.
    ///
    /// # Safety
    ///
    /// `context` is open; `attr` and what it points to are valid.
    pub unsafe fn ibv_create_cq_ex(&self, context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
        // SAFETY: as the caller promises.
        unsafe {
            match operation!(context, create_cq_ex) {
                Some(create) => create(context, attr),
                None => unsupported(),
            }
        }
    }

    /// Makes a queue pair, for the `ibv_wr_` family where `send_ops_flags` names its operations.
    /// Null with `EOPNOTSUPP` where the driver has none.
    ///
    /// # Safety
    ///
    /// `context` is open; `attr` and what it points to are valid.
    pub unsafe fn ibv_create_qp_ex(&self, context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
        // SAFETY: as the caller promises; the plain attributes are the head of the extended ones.
        unsafe {
            if (*attr).comp_mask == IBV_QP_INIT_ATTR_PD {
                return self.ibv_create_qp((*attr).pd, attr.cast());
            }
            match operation!(context, create_qp_ex) {
                Some(create) => create(context, attr),
                None => unsupported(),
            }
        }
    }

    /// The view of a queue pair that the `ibv_wr_` family takes, or null if it was made without `send_ops_flags`.
    ///
    /// # Safety
    ///
    /// `qp` is valid and was made by [`Self::ibv_create_qp_ex`].
    pub unsafe fn ibv_qp_to_qp_ex(&self, qp: *mut ibv_qp) -> *mut ibv_qp_ex {
        let Some(convert) = self.ibv_qp_to_qp_ex else { return unsupported() };
        // SAFETY: as the caller promises.
        unsafe { convert(qp) }
    }

    /// Whether such an operation's bytes arrive in order: 1, or 0 also where the library cannot tell.
    ///
    /// # Safety
    ///
    /// `qp` is valid.
    pub unsafe fn ibv_query_qp_data_in_order(&self, qp: *mut ibv_qp, operation: ibv_wr_opcode, flags: u32) -> c_int {
        let Some(query) = self.ibv_query_qp_data_in_order else { return 0 };
        // SAFETY: as the caller promises.
        unsafe { query(qp, operation, flags) }
    }

    /// Whether registered memory survives a `fork`, or `None` where the library cannot tell.
    #[must_use]
    pub fn ibv_is_fork_initialized(&self) -> Option<ibv_fork_status> {
        // SAFETY: it has no arguments and only reads.
        self.ibv_is_fork_initialized.map(|query| unsafe { query() })
    }
}
