//! Objects that handlers find by a number which is the same on every rank.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bellwether_runtime::{Context, Progress, World};
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A rank's objects of one type. They are made together, so the n-th is the same object on every rank.
pub(crate) struct Registry<S> {
    made: Cell<u64>,
    open: RefCell<BTreeMap<u64, Rc<S>>>,
}

impl<S: 'static> Registry<S> {
    /// Makes `object` known at this rank. A message for it may come after the next barrier only.
    pub(crate) fn open(world: &World, object: S) -> Entry<S> {
        let registry = world.state::<Registry<S>>().unwrap_or_else(|| {
            world.set_state(Registry::<S> { made: Cell::new(0), open: RefCell::default() });
            world.state().expect("it was just attached")
        });
        let number = registry.made.replace(registry.made.get() + 1);
        let object = Rc::new(object);
        registry.open.borrow_mut().insert(number, Rc::clone(&object));
        Entry { registry, object, number, progress: world.progress() }
    }

    /// The object of this number, unless it is gone.
    pub(crate) fn find(context: &Context<'_>, number: u64) -> Option<Rc<S>> {
        let registry = context.state::<Registry<S>>()?;
        registry.open.borrow().get(&number).map(Rc::clone)
    }
}

/// A rank's handle to an object. Dropping it takes the object from the handlers of this rank.
pub(crate) struct Entry<S> {
    registry: Rc<Registry<S>>,
    pub(crate) object: Rc<S>,
    pub(crate) number: u64,
    progress: Progress,
}

impl<S> Drop for Entry<S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Peers do not find the object from now on. They are told why.
            self.progress.unwind();
        }
        self.registry.open.borrow_mut().remove(&self.number);
    }
}

/// Bytes in one piece; a plain vector would be encoded byte by byte.
#[derive(Debug, Default)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Bytes;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Whole)
    }
}
