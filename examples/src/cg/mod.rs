//! cg
