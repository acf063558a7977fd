//! The interfaces that a rank has open on its device: their numbers, and the events that concern all of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::address;
use super::connect::ConnectionTable;
use crate::transport::error::{Error, Result};
use crate::transport::lock::Mutex;

/// Those of one device. Numbers go round: one comes back as late as can be, since endpoints to an interface that is closed
/// may still be about.
#[derive(Debug, Default)]
pub struct Interfaces {
    open: Mutex<Numbers>,
    broken: AtomicBool,
}

#[derive(Debug, Default)]
struct Numbers {
    taken: BTreeMap<u32, Weak<ConnectionTable>>,
    next: u32,
}

/// A number that an interface has, until it is dropped.
#[derive(Debug)]
pub struct InterfaceNumber {
    interfaces: Arc<Interfaces>,
    number: u32,
}

impl Interfaces {
    /// The next free number.
    ///
    /// # Errors
    /// [`Error::Busy`] if as many are open as addresses can tell apart.
    pub fn take(self: &Arc<Interfaces>) -> Result<InterfaceNumber> {
        const COUNT: u32 = address::INTERFACES as u32;
        let mut open = self.open.lock();
        let mut numbers = (0..COUNT).map(|step| (open.next + step) % COUNT);
        let number = numbers.find(|number| !open.taken.contains_key(number)).ok_or(Error::Busy)?;
        open.next = number + 1;
        open.taken.insert(number, Weak::new());
        Ok(InterfaceNumber { interfaces: Arc::clone(self), number })
    }

    /// Those that are open, by number.
    pub fn open(&self) -> Vec<Arc<ConnectionTable>> {
        // Nothing is dropped under the lock: a connection table gives its number back.
        self.open.lock().taken.values().filter_map(Weak::upgrade).collect()
    }
}

impl InterfaceNumber {
    /// The number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Lets `board` get the events that concern all interfaces.
    pub fn attach(&self, board: &Arc<ConnectionTable>) {
        self.interfaces.open.lock().taken.insert(self.number, Arc::downgrade(board));
    }

    /// Whether the device or its port is gone.
    pub fn is_broken(&self) -> bool {
        self.interfaces.broken.load(Ordering::Acquire)
    }

    /// Marks the device as gone for all its interfaces: the device reports each fault once, to the interface that asks first.
    pub fn break_down(&self) {
        self.interfaces.broken.store(true, Ordering::Release);
        self.interfaces.open().iter().for_each(|board| board.changed());
    }
}

impl Drop for InterfaceNumber {
    fn drop(&mut self) {
        self.interfaces.open.lock().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_round_and_end() {
        let interfaces = Arc::<Interfaces>::default();
        let mut open: Vec<_> = (0..address::INTERFACES).map(|_| interfaces.take().expect("a number")).collect();
        assert!(open.iter().map(InterfaceNumber::number).eq(0..address::INTERFACES as u32));
        assert_eq!(interfaces.take().map(drop), Err(Error::Busy));
        for number in [5, 3] {
            drop(open.remove(number));
        }
        let again = [0, 1].map(|_| interfaces.take().expect("a number"));
        assert_eq!(again.each_ref().map(InterfaceNumber::number), [3, 5]);
        drop(again);
        let again = interfaces.take().expect("a number");
        assert_eq!(again.number(), 3, "none above 5 is free");
        again.break_down();
        assert!(open.iter().all(InterfaceNumber::is_broken));
    }
}
