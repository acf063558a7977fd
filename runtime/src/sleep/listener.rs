//! The order in which a rank arms its descriptor. Ranks and models arm by this function alone; `README.md` says why the order is this one.

use super::{Fences, SleepWord};

/// A rank that arms its descriptor, as [`listen`] uses it.
pub trait Listener {
    /// Takes back what made the descriptor readable before. `false`: more came all the time.
    fn drain(&mut self) -> bool;

    /// Whether something came that has to be handled before the rank may sleep. Arms what else makes the descriptor readable.
    fn has_work(&mut self) -> bool;
}

/// Arms: if a thread stores something from now on and then wakes the rank, the descriptor becomes readable. `false`: something
/// came before, and the descriptor is not armed.
///
/// What [`Listener::has_work`] cannot see, such as a bell, the rank checks after this and before it sleeps.
pub fn listen(word: &SleepWord, fences: Fences, listener: &mut impl Listener) -> bool {
    // Before the announcement: a ring that follows the announcement has to stay.
    listener.drain() && word.announce_listening(fences, || listener.has_work())
}
