//! Other systems' own calls, thin over the world.

mod bias;
pub mod cheetah;
mod code_table;
pub mod gaspi;
mod interrupt;
pub mod lapi;
mod lock;
pub mod ucp;
