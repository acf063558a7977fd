//! LAPI's calls: active messages with counters, thin over the engine.
//!
//! [`raw`] has the calls as C has them: handles by value, raw pointers, and codes, which [`codes`] lists. A [`Job`] is this task's place
//! in a job; `Init` makes a handle on it, `Term` ends the handle.
//!
//! # Rows that stand
//!
//! | rows | what | where |
//! | --- | --- | --- |
//! | L31, L32, L33, L34, L35 | counters: `Waitcntr`, `Getcntr`, `Setcntr` | [`raw::waitcntr`], [`raw::getcntr`], [`raw::setcntr`] |
//! | L52 | `Address_init64` | [`raw::address_init`] |
//! | L53 | `Addr_set`, `Addr_get` | [`raw::addr_set`], [`raw::addr_get`] |
//! | L55, L56 | `Init`, `Term`, and `Init` again | [`raw::init`], [`raw::term`] |
//! | L57, L58 | `Qenv`, `Senv` of `ERROR_CHK` and `TIMEOUT` | [`raw::qenv`], [`raw::senv`] |
//! | L60 | `Probe` | [`raw::probe`] |
//! | L64 | `Msg_string` | [`raw::msg_string`] |
//! | L65 | every call from any thread | one lock for each handle |
//!
//! All other rows are not there yet, nor are their calls.
//!
//! # Threads
//!
//! Every call may be made from every thread of the task. A handle has one lock; a thread that waits gives it up for others. On a
//! simulated network, where ranks take turns, calls are for the thread that called `Init`; others get
//! [`codes::HNDL_INVALID`].

pub mod codes;
mod counter;
mod domain;
mod job;
mod port;
pub mod raw;

pub use self::counter::Counter;
pub use self::domain::{LOC_ADDRTBL_SZ, MAX_UHDR_SZ};
pub use self::job::Job;
