use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::{forget, transmute};
use core::ptr::NonNull;

use libloading::Library;
use once_cell::sync::OnceCell;

use crate::{
    LoadError, be16, be64, ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_event_type, ibv_fork_status, ibv_gid, ibv_gid_entry, ibv_mr, ibv_node_type, ibv_pd,
    ibv_port_attr, ibv_port_state, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, ibv_wc_status, ibv_wr_opcode,
};

/// The file that [`Verbs::load`] opens, found by the dynamic linker.
pub const LIBRARY: &str = "libibverbs.so.1";

/// Defines [`Verbs`]. `called` are methods as they stand; `wrapped` and `optional` have theirs in `extended.rs`.
macro_rules! symbols {
    (
        called { $($(#[$meta:meta])* fn $called:ident($($name:ident: $type:ty),*) $(-> $result:ty)?;)* }
        wrapped { $(fn $wrapped:ident($($wrapped_type:ty),*) $(-> $wrapped_result:ty)?;)* }
        optional { $(fn $optional:ident($($optional_type:ty),*) $(-> $optional_result:ty)?;)* }
    ) => {
        /// libibverbs, loaded: a function for each of its symbols that this crate knows.
        ///
        /// A call costs what it does in C. The library stays loaded until the process ends, as its drivers keep
        /// threads and `fork` handlers.
        #[derive(Debug)]
        pub struct Verbs {
            $($called: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
            $(pub(crate) $wrapped: unsafe extern "C" fn($($wrapped_type),*) $(-> $wrapped_result)?,)*
            $(pub(crate) $optional: Option<unsafe extern "C" fn($($optional_type),*) $(-> $optional_result)?>,)*
        }

        impl Verbs {
            /// Takes the functions from wherever `lookup` finds them: for a test without a network.
            /// `file` is what an error calls the place.
            ///
            /// # Errors
            ///
            /// [`LoadError::Symbol`] for the first that is missing and not optional.
            ///
            /// # Safety
            ///
            /// What `lookup` gives for a name has the signature and the meaning of libibverbs' function of that name,
            /// for as long as the value lives.
            pub unsafe fn from_symbols(
                file: &str,
                mut lookup: impl FnMut(&CStr) -> Option<NonNull<c_void>>,
            ) -> Result<Self, LoadError> {
                let mut find = |symbol: &'static CStr| {
                    lookup(symbol).ok_or_else(|| LoadError::Symbol {
                        file: file.to_owned(),
                        symbol: symbol.to_str().unwrap_or_default(),
                    })
                };
                // SAFETY: as the caller promises of each name.
                unsafe {
                    Ok(Self {
                        $($called: transmute::<NonNull<c_void>, unsafe extern "C" fn($($type),*) $(-> $result)?>(
                            find(name!($called))?
                        ),)*
                        $($wrapped: transmute::<
                            NonNull<c_void>,
                            unsafe extern "C" fn($($wrapped_type),*) $(-> $wrapped_result)?,
                        >(find(name!($wrapped))?),)*
                        $($optional: find(name!($optional)).ok().map(|found| transmute::<
                            NonNull<c_void>,
                            unsafe extern "C" fn($($optional_type),*) $(-> $optional_result)?,
                        >(found)),)*
                    })
                }
            }

            $(
                $(#[$meta])*
                ///
                /// # Safety
                ///
                /// The pointers are what the C function of this name asks for.
                #[inline]
                pub unsafe fn $called(&self, $($name: $type),*) $(-> $result)? {
                    // SAFETY: as the caller promises.
                    unsafe { (self.$called)($($name),*) }
                }
            )*
        }
    };
}

macro_rules! name {
    ($symbol:ident) => {
        const {
            match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            }
        }
    };
}

symbols! {
    called {
        /// Lists the devices, ended by null; null with `errno` if that fails. [`Verbs::device_list`] frees it by itself.
        fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
        /// Frees the list; devices that were not opened are gone.
        fn ibv_free_device_list(list: *mut *mut ibv_device);
        /// The kernel's name of a device.
        fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
        /// The device's node GUID, in network byte order.
        fn ibv_get_device_guid(device: *mut ibv_device) -> be64;
        /// Opens a device; null with `errno` if that fails.
        fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        /// Closes a device; what was made from it must be gone.
        fn ibv_close_device(context: *mut ibv_context) -> c_int;
        /// Waits for an event of the device, as long as its `async_fd` blocks.
        fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
        /// Acknowledges an event; destroying what it is about waits for that.
        fn ibv_ack_async_event(event: *mut ibv_async_event);
        /// Asks for the properties of a device.
        fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
        /// Reads one entry of a port's table of GIDs.
        fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
        /// Reads one entry of a port's table of partition keys.
        fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut be16) -> c_int;
        /// Makes a protection domain.
        fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        /// Frees a protection domain; what was made in it must be gone.
        fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
        /// Ends a registration; its keys are worth nothing from then on.
        fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
        /// Makes a channel that completion queues send events to.
        fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        /// Frees a channel; its queues must be gone.
        fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        /// Makes a completion queue of at least `cqe` entries.
        fn ibv_create_cq(
            context: *mut ibv_context,
            cqe: c_int,
            cq_context: *mut c_void,
            channel: *mut ibv_comp_channel,
            comp_vector: c_int
        ) -> *mut ibv_cq;
        /// Frees a completion queue; waits until its events are acknowledged.
        fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
        /// Waits for an event of a channel, as long as its `fd` blocks.
        fn ibv_get_cq_event(
            channel: *mut ibv_comp_channel,
            cq: *mut *mut ibv_cq,
            cq_context: *mut *mut c_void
        ) -> c_int;
        /// Acknowledges events of a queue. Takes a lock: better many at once.
        fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);
        /// Makes an address for datagrams; null and `errno` if it cannot.
        fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
        /// Frees an address; 0 or the number of `errno`.
        fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
        /// Makes a receive queue that queue pairs share.
        fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        /// Changes a shared receive queue: its size, or the level below which it sends an event.
        fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, attr_mask: c_int) -> c_int;
        /// Asks for the properties of a shared receive queue.
        fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
        /// Frees a shared receive queue; its queue pairs must be gone.
        fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
        /// Makes a queue pair.
        fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        /// Changes a queue pair, as from one state to the next; the number of `errno` if that fails.
        fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
        /// Asks for the properties of a queue pair.
        fn ibv_query_qp(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_attr,
            attr_mask: c_int,
            init_attr: *mut ibv_qp_init_attr
        ) -> c_int;
        /// Frees a queue pair; waits until its events are acknowledged.
        fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
        /// Keeps registered memory usable by the parent after a `fork`. To be called before anything else.
        fn ibv_fork_init() -> c_int;
        /// A completion's status in words, which live as long as the library.
        fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char;
        /// An event in words, which live as long as the library.
        fn ibv_event_type_str(event: ibv_event_type) -> *const c_char;
        /// A node type in words, which live as long as the library.
        fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char;
        /// A port's state in words, which live as long as the library.
        fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char;
    }
    wrapped {
        fn ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    }
    optional {
        fn ibv_reg_mr_iova2(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        fn ibv_reg_dmabuf_mr(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
        fn ibv_qp_to_qp_ex(*mut ibv_qp) -> *mut ibv_qp_ex;
        fn ibv_query_qp_data_in_order(*mut ibv_qp, ibv_wr_opcode, u32) -> c_int;
        fn ibv_is_fork_initialized() -> ibv_fork_status;
        fn _ibv_query_gid_ex(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
        fn _ibv_query_gid_table(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    }
}

impl Verbs {
    /// The library of this machine. Loaded by the first call that can, then only looked up. A call that cannot, for lack of
    /// descriptors or memory, or because the library is not installed yet, leaves the next one to try again.
    ///
    /// # Errors
    ///
    /// [`LoadError`], when it is absent or too old.
    pub fn load() -> Result<&'static Self, LoadError> {
        static LOADED: OnceCell<Verbs> = OnceCell::new();
        // SAFETY: the file of that name is libibverbs, whose start-up code may run at any time.
        LOADED.get_or_try_init(|| unsafe { Self::load_from(LIBRARY) })
    }

    /// The library in `file`: a path, or a name for the dynamic linker to find. It is never unloaded.
    ///
    /// # Errors
    ///
    /// [`LoadError`], when it is absent or too old.
    ///
    /// # Safety
    ///
    /// The file is libibverbs, and its start-up code may run now.
    pub unsafe fn load_from(file: &str) -> Result<Self, LoadError> {
        // SAFETY: as the caller promises.
        let library = unsafe { Library::new(file) }
            .map_err(|error| LoadError::Library { file: file.to_owned(), reason: error.to_string() })?;
        // SAFETY: as the caller promises. Of a symbol with versions the dynamic linker gives the newest.
        let verbs = unsafe {
            Self::from_symbols(file, |symbol| {
                let found = library.get::<*mut c_void>(symbol.to_bytes_with_nul()).ok()?;
                NonNull::new(*found)
            })
        }?;
        forget(library);
        Ok(verbs)
    }
}
