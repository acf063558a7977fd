//! Heat on a plate: the parts of the example `heat2d`.
//!
//! [`plate`] says what a pixel means, [`floor`] draws the plate that is used when none is given, [`stencil`] moves heat
//! by one time step, [`serial`] and [`parallel`] run a number of steps, [`picture`] reads and writes PNG.

pub mod floor;
pub mod parallel;
pub mod picture;
pub mod plate;
pub mod serial;
pub mod stencil;
