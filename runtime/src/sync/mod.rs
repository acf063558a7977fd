//! Bells: what a rank waits at for others' data.

pub mod bell;
