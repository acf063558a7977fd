//! Bellwether for C and C++. The documentation of each call is in its header, in `include/`.
//!
//! | module | header |
//! | --- | --- |
//! | [`cheetah`] | `cheetah.h` |
//! | [`lapi`] | `lapi.h` |
//! | [`gaspi`] | `GASPI.h`, `GASPI_Ext.h`, `GASPI_Threads.h` |
//! | [`matching`], [`controllers`] | `Cheetah/Cheetah.h`, whose templates call these functions |
//! | [`fault`] | codes and texts of errors; no panic leaves the library |

pub mod cheetah;
pub mod controllers;
pub mod fault;
pub mod gaspi;
pub mod lapi;
pub mod matching;
