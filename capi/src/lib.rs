//! Bellwether for C and C++. The documentation of each call is in its header, in `include/`.
//!
//! | module | header |
//! | --- | --- |
//! | [`cheetah`] | `cheetah.h` |
//! | [`lapi`] | `lapi.h` |
//! | [`fault`] | codes and texts of errors; no panic leaves the library |

pub mod cheetah;
pub mod fault;
pub mod lapi;
