//! What is measured of a whole task: how often its thread of interrupt mode wakes.

use std::ptr::null;
use std::time::Duration;

use bellwether_runtime::vocabulary::lapi::Counter;

use super::handlers::{Header, TAKE, send};
use super::{Task, all, gfence, ok, place, wait};
use crate::watchdog;

/// The program of one of two tasks. A wake-up that is lost costs up to a second: with as many messages as here, it runs into the limit of
/// whoever starts this.
///
/// # Panics
/// If the thread does not sleep.
pub(super) fn two(task: &Task) {
    const PAUSE: Duration = Duration::from_millis(5);
    let handle = task.init();
    let (me, _) = place(handle);
    let [called, served] = [Counter::new(), Counter::new()];
    let places = [&called, &served].map(|counter| all(handle, counter.address() as u64)[1] as *const Counter);
    gfence(handle);
    std::thread::sleep(Duration::from_millis(100));
    let sleeps = || crate::gaspi::idle::sleeps("lapi progress");
    let before = sleeps();
    std::thread::sleep(Duration::from_secs(1));
    let times = sleeps() - before;
    // It sleeps for a second, or for a millisecond if it does not know how to.
    assert!(times <= 200, "the thread woke {times} times in a second");
    gfence(handle);
    let tell = |target, what| {
        watchdog::at(what);
        let completion = Counter::new();
        ok(send(handle, 1, TAKE, &Header::default(), &[1; 8], [target, null(), &completion]), "send");
        wait(handle, &completion, 1, what);
    };
    let serves = |times| {
        watchdog::at("messages to a task that makes no call");
        while served.value() < times {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // Each message finds a thread that dozes.
    const ROUNDS: i32 = 300;
    match me {
        0 => (0..ROUNDS).for_each(|_| {
            std::thread::sleep(PAUSE);
            tell(places[1], "a message to a task that makes no call");
        }),
        _ => serves(ROUNDS),
    }
    // Each second message finds a thread beside which a call has slept.
    const SLEPT: i32 = 100;
    for round in 1..=SLEPT {
        if me == 0 {
            for place in places {
                std::thread::sleep(PAUSE);
                tell(place, "a message to a task that sleeps in a call, then in none");
            }
        } else {
            std::thread::sleep(PAUSE / 2);
            wait(handle, &called, 1, "a message in a call");
            serves(ROUNDS + round);
        }
    }
    gfence(handle);
    task.term(handle);
}
