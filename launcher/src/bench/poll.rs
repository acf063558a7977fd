//! The cost of a poll among many idle ranks.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bellwether_runtime::{Poller, Result};

use super::task::Measured;

/// Ranks of the node. All but one are idle.
pub const RANKS: usize = 1000;
/// Polls of a batch.
const POLLS: usize = 20_000;

/// A word that another rank could write, on a line of its own: what the limit reads.
#[repr(align(64))]
struct Line(AtomicU64);

/// Polls that find nothing, in turn: with [`RANKS`] ranks, one bare load of a line, and polls with 2 ranks, which stand beside.
/// Values are nanoseconds a poll. Each rank has sent one message some time ago, so that no lane is as it was at the start.
///
/// # Errors
/// Those of the runtime; if a message did not come, or one comes while polls are measured.
pub fn idle(batches: usize, quick: bool) -> anyhow::Result<Measured> {
    let polls = if quick { POLLS / 10 } else { POLLS };
    let (many, two) = (poller(RANKS)?, poller(2)?);
    let line = Line(AtomicU64::new(0));
    let load = || Ok(black_box(&line.0).load(Ordering::Acquire) as usize);
    for poller in [&many, &two] {
        nanoseconds(2 * POLLS, || poller.poll())?;
    }
    let mut measured = Measured { name: "poll".into(), on_cpu: 1.0, ..Measured::default() };
    for _ in 0..batches {
        measured.ours.push(nanoseconds(polls, || many.poll())?);
        measured.limit.push(nanoseconds(polls, load)?);
        measured.beside.push(nanoseconds(polls, || two.poll())?);
    }
    Ok(measured)
}

fn poller(ranks: usize) -> anyhow::Result<Poller> {
    let poller = Poller::new(ranks)?;
    let heard = poller.heard();
    anyhow::ensure!(heard == ranks - 1, "poll: {heard} messages came from {} ranks, one each", ranks - 1);
    Ok(poller)
}

fn nanoseconds(polls: usize, mut poll: impl FnMut() -> Result<usize>) -> anyhow::Result<f64> {
    let begin = Instant::now();
    let mut came = 0;
    for _ in 0..polls {
        came += black_box(poll()?);
    }
    let taken = begin.elapsed().as_nanos() as f64 / polls as f64;
    anyhow::ensure!(came == 0, "poll: {came} messages came while none was sent");
    Ok(taken)
}
