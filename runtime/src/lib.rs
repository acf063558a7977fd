//! runtime

pub mod bootstrap;
