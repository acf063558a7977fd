//! Credits for notices, in both directions of one connection. A notice holds a receive buffer of the target until the notice is taken.

use std::cell::Cell;

/// Notices of one sender that may wait to be taken. Each holds a receive buffer, which all peers share.
/// Chosen: the 1024 buffers suffice for 32 peers.
pub const NOTICES: u32 = 32;

/// One end's counts of the notices in both directions.
#[derive(Debug)]
pub struct NoticeCredits {
    /// Notices that the peer has room for.
    room: Cell<u32>,
    /// Notices of the peer that this rank has taken, and has not returned credits for.
    taken: Cell<u32>,
}

impl Default for NoticeCredits {
    fn default() -> NoticeCredits {
        NoticeCredits { room: Cell::new(NOTICES), taken: Cell::new(0) }
    }
}

impl NoticeCredits {
    /// Whether the peer has room for a notice.
    pub fn has_room(&self) -> bool {
        self.room.get() > 0
    }

    /// A notice was sent.
    pub fn spend(&self) {
        self.room.set(self.room.get() - 1);
    }

    /// The peer says that it took so many.
    pub fn grant(&self, count: u32) {
        self.room.set((self.room.get() + count).min(NOTICES));
    }

    /// A notice of the peer was taken. Returns whether the peer must be told now.
    pub fn take(&self) -> bool {
        self.taken.set((self.taken.get() + 1).min(NOTICES));
        self.is_due()
    }

    /// Credits to return to the peer.
    pub fn owed(&self) -> u32 {
        self.taken.get()
    }

    /// All credits that [`NoticeCredits::owed`] counted were returned.
    pub fn told(&self) {
        self.taken.set(0);
    }

    /// Whether so many are owed that the peer is told even without a notice to tell it with.
    pub fn is_due(&self) -> bool {
        self.taken.get() >= NOTICES / 2
    }

    /// Both ends begin anew.
    pub fn restart(&self) {
        self.room.set(NOTICES);
        self.taken.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_never_stops_while_its_notices_are_taken() {
        let (sender, target) = (NoticeCredits::default(), NoticeCredits::default());
        for _ in 0..10 * NOTICES {
            assert!(sender.has_room());
            sender.spend();
            if target.take() {
                sender.grant(target.owed());
                target.told();
            }
            assert!(target.owed() < NOTICES / 2);
        }
    }

    #[test]
    fn a_sender_stops_when_none_is_taken() {
        let sender = NoticeCredits::default();
        let sent = (0..).take_while(|_| sender.has_room().then(|| sender.spend()).is_some()).count();
        assert_eq!(sent, NOTICES as usize);
        sender.grant(2 * NOTICES);
        assert_eq!(sender.room.get(), NOTICES, "no more than the peer has buffers for");
        sender.spend();
        sender.restart();
        assert_eq!(sender.room.get(), NOTICES);
    }
}
