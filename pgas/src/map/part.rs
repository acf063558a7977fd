//! One rank's entries, and what others' requests do there.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash};

use serde::{Serialize, de::DeserializeOwned};

use super::hash::Stable;

/// One rank's entries.
pub(super) struct Part<K, V> {
    pub(super) entries: RefCell<HashMap<K, V, BuildHasherDefault<Stable<1>>>>,
    /// Most bytes of a key, and of a key with its value, as they travel: the same on every rank.
    room: usize,
}

impl<K: Hash + Eq, V: Serialize> Part<K, V> {
    pub(super) fn new(room: usize) -> Part<K, V> {
        Part { entries: RefCell::default(), room }
    }

    /// Most bytes of a key, and of a key with its value.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Appends the bytes of a value that is to be sent, if a message can hold them.
    pub(super) fn encode<T: Serialize>(&self, what: &str, value: &T, bytes: &mut Vec<u8>) -> Result<(), String> {
        let before = bytes.len();
        append(value, bytes)?;
        self.fits(what, bytes.len() - before)
    }

    /// [`Part::encode`]'s error for a value that stays here.
    pub(super) fn check<T: Serialize>(&self, what: &str, value: &T) -> Result<(), String> {
        let size = postcard::serialize_with_flavor(value, postcard::ser_flavors::Size::default());
        self.fits(what, size.map_err(|error| cannot_travel::<T>(&error))?)
    }

    fn fits(&self, what: &str, len: usize) -> Result<(), String> {
        if len <= self.room {
            Ok(())
        } else {
            Err(format!("{what} takes {len} bytes, and a message has room for {}", self.room))
        }
    }

    /// Appends the answer that brings a value to the rank that asked. Call this before changing anything: the answer may be too large.
    pub(super) fn answer(&self, value: Option<&V>, bytes: &mut Vec<u8>) -> Result<(), String> {
        let before = bytes.len();
        append(&value, bytes)?;
        let way_out = |why| why + ": its owner can take it, and `update` can make it smaller";
        self.fits("the value that is there", bytes.len() - before - 1).map_err(way_out)
    }

    /// Runs `change` on the value of `key`.
    pub(super) fn change<A>(&self, key: K, argument: A, change: impl Fn(&mut Option<V>, A)) {
        let mut entries = self.entries.borrow_mut();
        let mut value = entries.remove(&key);
        change(&mut value, argument);
        value.map(|value| entries.insert(key, value));
    }
}

/// Appends the bytes of a value.
fn append<T: Serialize>(value: &T, bytes: &mut Vec<u8>) -> Result<(), String> {
    let extended = postcard::to_extend(value, std::mem::take(bytes));
    *bytes = extended.map_err(|error| cannot_travel::<T>(&error))?;
    Ok(())
}

#[cold]
fn cannot_travel<T>(error: &postcard::Error) -> String {
    format!("{} cannot be serialised: {error}", std::any::type_name::<T>())
}

/// A value from bytes.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    postcard::from_bytes(bytes).map_err(|error| format!("{} expected: {error}", std::any::type_name::<T>()))
}
