//! Room for requests: whether a request was refused, and whether room has come since. A caller whose request was refused sleeps until there
//! is room, and reports are read wherever this interface makes progress.

use std::cell::Cell;

/// Whether a request was refused for lack of room, and whether room has come since.
#[derive(Debug, Default)]
pub struct Room {
    is_wanted: Cell<bool>,
    has_come: Cell<bool>,
}

impl Room {
    /// Called when a request was refused.
    pub fn refuse(&self) {
        self.is_wanted.set(true);
    }

    /// Called when there may be room again.
    #[inline(always)]
    pub fn gain(&self) {
        if self.is_wanted.get() {
            self.has_come.set(true);
        }
    }

    /// Whether there may be room for a caller whose request was refused. Returns `true` once.
    pub fn take(&self) -> bool {
        let has_come = self.has_come.take();
        if has_come {
            self.is_wanted.set(false);
        }
        has_come
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_told_once_and_only_to_who_was_refused() {
        let room = Room::default();
        room.gain();
        assert!(!room.take(), "nobody wanted any");
        room.refuse();
        assert!(!room.take(), "none has come");
        room.gain();
        assert!(room.take() && !room.take());
        room.gain();
        assert!(!room.take(), "who was refused has been told");
    }
}
