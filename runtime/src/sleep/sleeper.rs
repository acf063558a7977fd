//! The order in which a thread falls asleep. Ranks and models sleep by this function alone; `README.md` says why the order is this one.

use super::{Fences, SleepWord};

/// A thread that waits for something, as [`fall_asleep`] uses it.
pub trait Sleeper {
    /// Arms what ends a sleep from elsewhere, such as the events of a device. `false`: something has come there already.
    fn arm(&mut self) -> bool;

    /// Whether what the thread waits for holds. May have side effects, such as sending a message.
    fn ready(&mut self) -> bool;

    /// Sends what `ready` left to send. Whether anything moved, so that `ready` may hold now.
    fn flush(&mut self) -> bool;

    /// Whether something came that may change what `ready` says, and that the thread has to handle first.
    fn has_work(&mut self) -> bool;

    /// Blocks until the announcement in `word` is gone or an armed event has come; may return early.
    fn block(&mut self, word: &SleepWord);
}

/// Announces a sleep, looks once more whether there is anything to do, and blocks if not. Returns whether the thread's wait is over: it
/// was [`ready`](Sleeper::ready) when it was asked, which is after the announcement and before the thread blocks.
#[inline]
pub fn fall_asleep(word: &SleepWord, fences: Fences, sleeper: &mut impl Sleeper) -> bool {
    let mut done = false;
    let sleeps = word.announce(fences, || {
        let armed = sleeper.arm();
        done = sleeper.ready();
        // After `ready` nothing of the program runs, which may panic: what it did, such as a request, is sent first.
        let moved = !done && sleeper.flush();
        !armed || done || moved || sleeper.has_work()
    });
    if sleeps {
        sleeper.block(word);
        word.withdraw();
    }
    done
}
