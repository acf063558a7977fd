//! Memory that other ranks may touch: the mapped slots of a node, the symmetric heap in them, and copies to and from them.

pub mod blocks;
pub mod copy;
mod elsewhere;
pub mod heap;
pub mod joined;
pub mod layout;
pub mod limits;
pub mod node;
pub mod outside;
pub mod own_segments;
pub mod owner;
pub mod published;
pub mod segments;
pub mod statics;
