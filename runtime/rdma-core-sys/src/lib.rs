//! Bindings to libibverbs, the library of RDMA networks, loaded when the program runs.
//!
//! [`Verbs::load`] opens `libibverbs.so.1`; without it the answer is a [`LoadError`], never an abort, and nothing of
//! it is needed to build. What the library exports are methods of [`Verbs`]; what its header has inline (posting,
//! polling, the `ibv_wr_` and `ibv_wc_` families) are functions of this crate. Names, arguments and meaning are C's:
//! the manual pages of rdma-core are the reference, and errors come back as C gives them (null with `errno`, or a
//! number of `errno`).
//!
//! A library on a kernel without RDMA is a normal state: [`Verbs::device_list`] then fails with `ENOSYS`, or the list
//! is empty; [`is_no_kernel_support`] tells them from other failures.
//!
//! # Which rdma-core
//!
//! 44 (2022) and newer. libibverbs keeps old programs working: structs only grow, at an end that is marked in these
//! sources, and the library learns our size with the call. What came to the library in steps (`ibv_reg_mr_iova2`,
//! `ibv_qp_to_qp_ex`, the table of GIDs) may be absent from an older one and then answers `EOPNOTSUPP`.
//!
//! # The name
//!
//! The crate of this name on crates.io, 0.1.10, binds the rdma-core of 2018 that it builds from its own copy, and has
//! not compiled since Rust 1.63. This one is written anew and is not published; it keeps the name because it is what
//! a user of verbs in Rust looks for.
//!
//! # How the bindings were made
//!
//! Types and constants were printed once from the header and written into `layouts!` and `constants!`:
//!
//! ```text
//! echo '#include <infiniband/verbs.h>' > verbs.h
//! bindgen verbs.h --no-doc-comments --no-layout-tests --no-prepend-enum-name --default-enum-style consts \
//!     --allowlist-type '(ibv|verbs)_.*' --allowlist-function '_?ibv_.*' --allowlist-var 'IBV_.*'
//! ```
//!
//! Nameless unions became the member that is used, nameless structs got a name, and operations that nobody calls
//! became [`Unused`]. To add something, print it so, copy what is missing, and run `tests/abi.rs`, which compares
//! every size, offset and value with the installed header.
//!
//! # Examples
//!
//! ```
//! use rdma_core_sys::{Verbs, is_no_kernel_support};
//!
//! match Verbs::load().map(Verbs::device_list) {
//!     Err(error) => println!("no verbs: {error}"),
//!     Ok(Err(error)) if is_no_kernel_support(&error) => println!("no verbs: {error}"),
//!     Ok(Err(error)) => panic!("{error}"),
//!     Ok(Ok(devices)) => println!("{} devices", devices.len()),
//! }
//! ```

mod attributes;
mod calls;
mod constants;
mod devices;
mod error;
mod extended;
mod layout;
mod library;
mod objects;
mod work;

pub use attributes::*;
pub use calls::*;
pub use constants::*;
pub use devices::{DeviceList, is_no_kernel_support};
pub use error::LoadError;
pub use library::{LIBRARY, Verbs};
pub use objects::*;
pub use work::*;

/// A 16-bit number in network byte order.
#[allow(non_camel_case_types, reason = "an integer type")]
pub type be16 = u16;
/// A 32-bit number in network byte order.
#[allow(non_camel_case_types, reason = "an integer type")]
pub type be32 = u32;
/// A 64-bit number in network byte order.
#[allow(non_camel_case_types, reason = "an integer type")]
pub type be64 = u64;

/// What the test of the layout compares with the header.
#[doc(hidden)]
pub mod abi {
    pub use crate::layout::{Constants, Field, Growth, Layout};

    /// Every struct and union.
    pub const LAYOUTS: &[&[Layout]] = &[crate::objects::LAYOUTS, crate::attributes::LAYOUTS, crate::work::LAYOUTS];
    /// Every constant.
    pub const CONSTANTS: &[&[Constants]] = &[crate::constants::CONSTANTS];
}
