//! Barriers of ranks that share cores.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bellwether_runtime::Result;

use super::barrier::Bare;
use crate::bench::session::Session;
use crate::bench::task::Measured;

/// Computing between two barriers of the loop.
const COMPUTING: Duration = Duration::from_millis(10);

/// The barrier, beside the best of the bare ones; and a loop in which rank 0 computes for 10 ms before each barrier, beside the computing
/// alone.
///
/// # Errors
/// Those of the runtime.
pub fn crowded(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let world = &session.world;
    let operations = session.operations(256_000 / world.size(), usize::MAX, 1);
    let mut bare = Bare::new(session, operations)?;
    let barrier = session.alternate(operations, |n| (0..n).try_for_each(|_| world.barrier()), |n| bare.meet(n))?;
    let time = if session.task.quick { COMPUTING / 10 } else { COMPUTING };
    let rounds = if world.rank() == 0 { rounds_in(time) } else { 0 };
    let computing = session.alternate(
        session.operations(250, usize::MAX, 1),
        |n| {
            (0..n).try_for_each(|_| {
                compute(rounds);
                world.barrier()
            })
        },
        |n| {
            if world.rank() == 0 {
                (0..n).for_each(|_| compute(rounds));
            } else {
                std::thread::sleep(time * n as u32);
            }
            Ok(())
        },
    )?;
    Ok(vec![Measured { name: "barrier".into(), ..barrier }, Measured { name: "computing".into(), ..computing }])
}

/// Rounds of [`compute`] that take `time` on this core, by the quickest of five attempts.
fn rounds_in(time: Duration) -> u64 {
    const ROUNDS: u64 = 200_000;
    let taken = (0..5).map(|_| {
        let begin = Instant::now();
        compute(ROUNDS);
        begin.elapsed()
    });
    let quickest = taken.min().unwrap_or(time).max(Duration::from_nanos(1));
    (time.as_secs_f64() / quickest.as_secs_f64() * ROUNDS as f64) as u64
}

/// Keeps the core busy for `rounds` rounds.
fn compute(rounds: u64) {
    let mut value = 1u64;
    for round in 0..rounds {
        value = black_box(value.wrapping_mul(3) ^ round);
    }
    black_box(value);
}
