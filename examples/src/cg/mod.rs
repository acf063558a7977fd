//! Conjugate gradients: the parts of the example `cg`.
//!
//! [`problem`] finds out what a file is; [`matrix_market`] and [`metis`] read it; [`csr`] holds it, [`rows`] multiplies with it, and [`model`] makes
//! matrices of graphs. [`solve`] is the method, the same for one rank and for many; [`parallel`] is a matrix whose rows
//! are split over the ranks. [`plot`] draws the convergence.

pub mod csr;
pub mod matrix_market;
pub mod metis;
pub mod model;
pub mod parallel;
pub mod plot;
pub mod problem;
pub mod rows;
pub mod solve;
pub mod vector;
