//! Flow control of the messages that contexts send over a network: those of one rank have a window together at each peer, as the
//! rank's own messages have ([`super::super::network`]).
//!
//! The peer counts what it has handled in a word of its slot for this rank. A context without room reads the word, by a get of its own
//! interface. So room comes back without progress of this rank's own thread, and no peer needs to know of contexts. Contexts that
//! send at the same time may exceed the window, each by one message.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::Engine;
use super::super::network::Load;
use crate::transport::lock::Mutex;

/// The windows of a rank's contexts, by peer. Only peers that they sent to have one.
#[derive(Debug, Default)]
pub(super) struct Windows(Mutex<BTreeMap<usize, Window>>);

/// Counts of all time, which wrap.
#[derive(Debug, Default)]
struct Window {
    sent: Load,
    handled: Load,
}

impl Windows {
    /// Whether a message of `len` bytes, header included, may be sent to `to`.
    pub(super) fn leave_room(&self, to: usize, len: usize) -> bool {
        self.0.lock().get(&to).is_none_or(|window| window.sent.since(window.handled).leaves_room(len))
    }

    /// Counts a message to `to` of `len` bytes, header included.
    pub(super) fn sent(&self, to: usize, len: usize) {
        let mut windows = self.0.lock();
        let window = windows.entry(to).or_default();
        window.sent = window.sent.wrapping_with(len);
    }

    /// Notes what `to` had handled when its word was read.
    pub(super) fn handled(&self, to: usize, handled: Load) {
        let mut windows = self.0.lock();
        let window = windows.entry(to).or_default();
        // A get need not read both halves of the word at once, and another context may have read it later: older counts, and pairs
        // that cannot be, are left out.
        if window.sent.since(handled).is_within(window.sent.since(window.handled)) {
            window.handled = handled;
        }
    }
}

impl Engine {
    /// Counts a message of a context of `from` that was handled.
    pub(crate) fn handled_of_context(&self, from: usize, len: usize) {
        let offset = self.layout.handled + from * size_of::<u64>();
        // SAFETY: an aligned word in the control area of our own slot, only touched as this atomic and read by peers' gets.
        let word = unsafe { AtomicU64::from_ptr(self.node.slot(self.rank).add(offset).cast()) };
        // One writer, this thread.
        let handled = Load::from_word(word.load(Ordering::Relaxed)).wrapping_with(len);
        word.store(handled.to_word(), Ordering::Release);
        if let Some(pace) = self.networks.pace() {
            // In virtual time a context that has found no room reads the word again when it is told.
            pace.notify(from);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::RefCell;

    use crate::transport::Memory;
    use crate::transport::sim::Config;
    use crate::{Error, Simulated};

    /// The window is full of messages that were never sent, so nothing gives room back.
    #[test]
    fn a_wait_for_room_that_cannot_come_is_a_standstill() {
        let plain = Config::new(2, 3);
        for config in
            [plain.clone(), plain.clone().wild(), plain.clone().tiny(), Config { memory: Memory::Posted, ..plain }]
        {
            let outcomes = Simulated::new(config).run(|world| {
                world.barrier().expect("all are here");
                if world.rank() == 1 {
                    return world.wait_until(|| false);
                }
                let stream = world.engine().open_context().expect("there is one more interface");
                let outlet = RefCell::new(world.engine().open_outlet());
                let windows = &stream.home.shared.sendings.windows;
                while windows.leave_room(1, 8) {
                    windows.sent(1, 8);
                }
                stream.send(&outlet, 1, 1, 0, &[])
            });
            let outcome = outcomes.expect("starts").swap_remove(0);
            assert!(matches!(outcome, Err(Error::Standstill { .. })), "{outcome:?}");
        }
    }
}
