//! What a poll costs among many idle ranks.

use std::hint::black_box;
use std::time::Instant;

use bellwether_runtime::{Poller, Result};

use super::task::Measured;

/// Ranks of the node. All but one are idle.
pub const RANKS: usize = 1000;
/// Polls of a batch.
const POLLS: usize = 20_000;

/// Polls that find nothing, with [`RANKS`] ranks and with 2 in turn; values are nanoseconds a poll. Each rank has sent one
/// message some time ago, so that no lane is as it was at the start.
///
/// # Errors
/// Of the runtime.
pub fn idle(batches: usize, quick: bool) -> Result<Measured> {
    let polls = if quick { POLLS / 10 } else { POLLS };
    let [many, two] = [RANKS, 2].map(Poller::new);
    let pollers = [many?, two?];
    for poller in &pollers {
        poller.hear_from_all()?;
        nanoseconds(poller, 2 * POLLS)?;
    }
    let mut measured = Measured { name: "poll".into(), on_cpu: 1.0, ..Measured::default() };
    for _ in 0..batches {
        measured.ours.push(nanoseconds(&pollers[0], polls)?);
        measured.limit.push(nanoseconds(&pollers[1], polls)?);
    }
    Ok(measured)
}

fn nanoseconds(poller: &Poller, polls: usize) -> Result<f64> {
    let begin = Instant::now();
    for _ in 0..polls {
        black_box(poller.poll()?);
    }
    Ok(begin.elapsed().as_nanos() as f64 / polls as f64)
}
