//! The network stack of this process, and the numbers of the interfaces that a rank has open.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::address;
use crate::transport::error::{Error, Result};
use crate::transport::lock::Mutex;

/// Tells the network stack of this process from others: that of the booted system, and of the namespace in it (namespaces(7)).
pub fn stack() -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::metadata("/proc/self/ns/net").map_or((0, 0), |file| (file.dev(), file.ino()));
    let mut hasher = std::hash::DefaultHasher::new();
    (boot, namespace).hash(&mut hasher);
    hasher.finish()
}

/// The numbers of a rank's open interfaces. They go round: one comes back as late as can be, since endpoints to an interface that
/// is closed may still be about.
#[derive(Debug, Default)]
pub struct Numbers(Mutex<(BTreeSet<u32>, u32)>);

/// A number that an interface has, until it is dropped.
#[derive(Debug)]
pub struct Number {
    numbers: Arc<Numbers>,
    /// The number.
    pub number: u32,
}

impl Numbers {
    /// The next free number.
    ///
    /// # Errors
    /// [`Error::Busy`] if as many are open as addresses can tell apart.
    pub fn take(self: &Arc<Numbers>) -> Result<Number> {
        const COUNT: u32 = address::INTERFACES as u32;
        let (taken, next) = &mut *self.0.lock();
        let number = (0..COUNT).map(|step| (*next + step) % COUNT).find(|number| !taken.contains(number));
        let number = number.ok_or(Error::Busy)?;
        *next = number + 1;
        taken.insert(number);
        Ok(Number { numbers: Arc::clone(self), number })
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.numbers.0.lock().0.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_round_and_end() {
        let numbers = Arc::<Numbers>::default();
        let mut open: Vec<_> = (0..address::INTERFACES).map(|_| numbers.take().expect("a number")).collect();
        assert!(numbers.take().is_err());
        for number in [5, 3] {
            drop(open.remove(number));
        }
        let again = [0, 1].map(|_| numbers.take().expect("a number").number);
        assert_eq!(again, [3, 5]);
    }

    #[test]
    fn a_process_has_one_network_stack() {
        assert_eq!(stack(), stack());
    }
}
