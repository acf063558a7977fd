//! The reference: the whole plate as one band, on one rank.

use super::plate::{INSULATED, Plate};
use super::stencil::Band;

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// At most this many steps.
    pub steps: u64,
    /// Also when no cell changed by more than this many degrees in a step. Looked at every [`CHECK_EVERY`] steps.
    pub until_change: Option<f64>,
}

/// How many steps pass between two looks at the largest change, which needs all ranks.
pub const CHECK_EVERY: u64 = 100;

impl Stop {
    /// Whether the largest change has to be known after step `step` (counted from 1).
    pub fn looks_after(&self, step: u64) -> Option<f64> {
        self.until_change.filter(|_| step.is_multiple_of(CHECK_EVERY))
    }
}

/// Runs the plate; returns the temperatures (row by row) and the number of steps done.
pub fn run(plate: &Plate, alpha: f64, stop: Stop) -> (Vec<f64>, u64) {
    let wall = vec![INSULATED; plate.width];
    let mut band = Band::new(plate.width, alpha, &[&wall, plate.cells.as_slice(), &wall].concat());
    for step in 1..=stop.steps {
        band.relax_rows(0..plate.height);
        let settled = stop.looks_after(step).is_some_and(|limit| band.change() <= limit);
        band.advance();
        if settled {
            return (band.temperatures().to_vec(), step);
        }
    }
    (band.temperatures().to_vec(), stop.steps)
}
