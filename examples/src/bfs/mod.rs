//! Breadth-first search in a graph that is spread over ranks.
//!
//! [`graph`] spreads a graph, [`rmat`] generates one, [`search`] searches, [`validate`] checks that the result is
//! a breadth-first tree. The file to read first is `search.rs`.

pub mod graph;
pub mod rmat;
pub mod search;
pub mod serial;
pub mod validate;
