//! Which peers are lost, and when their connections may be taken apart.

use std::cell::{Cell, RefCell};

/// Losses of peers. While completions are read, more completions of a lost peer may follow in the same batch; its connection is
/// taken apart afterwards.
#[derive(Debug, Default)]
pub struct Losses {
    /// Completions are being read. No code may read later ones before these are handled.
    reading: Cell<bool>,
    /// Peers that were lost meanwhile.
    ending: RefCell<Vec<u32>>,
    count: Cell<u64>,
}

impl Losses {
    /// Completions are read until [`Losses::end_reading`].
    #[inline(always)]
    pub fn begin_reading(&self) {
        self.reading.set(true);
    }

    /// Returns whether peers were lost meanwhile: [`Losses::take_ending`] has them.
    #[inline(always)]
    pub fn end_reading(&self) -> bool {
        self.reading.set(false);
        !self.ending.borrow().is_empty()
    }

    pub fn are_being_read(&self) -> bool {
        self.reading.get()
    }

    /// A peer is lost. Returns whether its connection may be taken apart now.
    pub fn note(&self, peer: u32) -> bool {
        self.count.set(self.count.get() + 1);
        if self.reading.get() {
            self.ending.borrow_mut().push(peer);
        }
        !self.reading.get()
    }

    /// The peers whose connections are to be taken apart.
    pub fn take_ending(&self) -> Vec<u32> {
        self.ending.take()
    }

    /// Peers lost so far.
    pub fn count(&self) -> u64 {
        self.count.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_taken_apart_after_its_completions_are_read() {
        let losses = Losses::default();
        assert!(losses.note(3), "nothing is being read");
        losses.begin_reading();
        assert!(losses.are_being_read() && !losses.note(4) && !losses.note(5));
        assert!(losses.end_reading() && !losses.are_being_read());
        assert_eq!((losses.take_ending(), losses.take_ending()), (vec![4, 5], vec![]));
        losses.begin_reading();
        assert!(!losses.end_reading());
        assert_eq!(losses.count(), 3);
    }
}
