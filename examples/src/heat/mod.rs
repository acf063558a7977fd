//! Heat on a plate: the parts of the example `heat2d`.
//!
//! [`plate`] says what a pixel means, [`floor`] draws the plate that is used when none is given, [`stencil`] moves heat
//! by one time step, [`serial`] and [`parallel`] run a number of steps, [`picture`] reads and writes PNG.
//! [`given`] is what the command lines of `heat2d` and `watch` have in common, and [`live`] what a rank tells while it computes.

pub mod floor;
pub mod given;
pub mod live;
pub mod parallel;
pub mod picture;
pub mod plate;
pub mod serial;
pub mod stencil;
