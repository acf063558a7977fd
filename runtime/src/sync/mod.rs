//! What ranks meet at: bells, the barrier, small exchanges.

pub mod barrier;
pub mod bell;
pub mod exchange;
pub mod title;
