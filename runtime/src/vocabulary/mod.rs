//! Other systems' own calls, thin over the world.

pub mod cheetah;
pub mod lapi;
