//! placeholder
pub use bellwether_runtime::*;
