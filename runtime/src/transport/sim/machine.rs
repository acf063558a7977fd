//! Ranks as state machines, all in one thread: thousands of them.

use super::{Network, Stalled};

/// Where a machine is after it was polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It waits for something to happen to its rank.
    Waiting,
    /// It has ended, and still answers when polled.
    Done,
}

/// A rank's program, written so that it never waits inside.
pub trait Machine {
    /// Makes as much progress as is possible now. Called once at the start and after each event that may matter to this rank.
    fn poll(&mut self) -> Step;
}

/// Runs machine `i` as rank `i`, event by event, until all have ended and nothing is in flight.
///
/// # Errors
/// [`Stalled`] if nothing is in flight and some have not ended.
pub fn drive<M: Machine>(network: &Network, machines: &mut [M]) -> Result<(), Stalled> {
    let mut ended = vec![false; machines.len()];
    for (rank, machine) in machines.iter_mut().enumerate() {
        ended[rank] = machine.poll() == Step::Done;
    }
    loop {
        while let Some(rank) = network.step() {
            // A message's arrival also matters to its sender, so signals say more than the event.
            for rank in network.take_signals(rank) {
                if let Some(machine) = machines.get_mut(rank) {
                    ended[rank] |= machine.poll() == Step::Done;
                }
            }
        }
        let before = network.digest();
        // A step of one machine may have let another go on without any event.
        for (rank, machine) in machines.iter_mut().enumerate() {
            ended[rank] |= machine.poll() == Step::Done;
        }
        if !network.is_idle() || network.digest() != before {
            continue;
        }
        if ended.iter().all(|ended| *ended) {
            return Ok(());
        }
        let waiting = (0..ended.len()).filter(|rank| !ended[*rank]).take(8).collect();
        return Err(network.stalled(waiting));
    }
}
