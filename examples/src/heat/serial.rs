//! The reference: the whole plate as one band, on one rank.

use super::plate::{INSULATED, Plate, temperature};
use super::stencil::Stencil;

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
    let cells = [&wall, plate.cells.as_slice(), &wall].concat();
    let stencil = Stencil::new(plate.width, alpha, &cells);
    let mut now: Vec<f64> = cells.into_iter().map(temperature).collect();
    let (mut next, mut steps) = (now.clone(), 0);
    while steps < stop.steps {
        stencil.relax(0..plate.height, &now, &mut next);
        steps += 1;
        let settled =
            stop.looks_after(steps).is_some_and(|limit| stencil.change(0..plate.height, &now, &next) <= limit);
        std::mem::swap(&mut now, &mut next);
        if settled {
            break;
        }
    }
    (now[plate.width..(plate.height + 1) * plate.width].to_vec(), steps)
}
