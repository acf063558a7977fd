//! Other systems' own calls, thin over the world.

pub mod cheetah;
mod code_table;
pub mod gaspi;
mod interrupt;
pub mod lapi;
mod lock;
