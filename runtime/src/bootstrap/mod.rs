//! How ranks come to be and find each other.

pub mod launch;
