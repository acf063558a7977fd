//! The options of aggregation.

use std::time::Duration;

use bellwether_runtime::World;

pub use super::port::Route;
use super::port::{Eager, Form, Plan};

/// How much memory aggregation takes, and which way items go. The same on every rank.
///
/// # Examples
/// ```
/// use bellwether::aggregate::{Options, Route};
/// # bellwether::threads(1, |world| {
/// let options = Options { memory: 64 << 10, route: Route::TwoHops { columns: None }, ..Options::new(world) };
/// # }).unwrap();
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Bytes of buffers at each rank. `memory()` of an object that is made with these options returns how many it uses. It always
    /// takes room for one item for each rank that it sends to directly, or a few dozen bytes each where items have different
    /// lengths. When `scatter_add` goes by messages, a sixteenth
    /// at most remembers which elements' values wait in buffers, so that further values are added to them.
    pub memory: usize,
    /// Most items of one message: with fewer they leave earlier.
    pub items: usize,
    /// An item that has waited this long leaves though its buffer is not full, when its rank next pushes or looks.
    pub age: Duration,
    /// Which way items go that travel in messages.
    pub route: Route,
}

/// Most bytes of one message: more would only push the receiver's work out of its cache.
const MESSAGE: usize = 64 << 10;

impl Options {
    /// Defaults for `world`: the memory from `BELLWETHER_AGGREGATION_MEMORY`, all others fixed.
    pub fn new(world: &World) -> Options {
        Options {
            memory: world.settings().aggregation_memory,
            items: usize::MAX,
            age: Duration::from_millis(1),
            route: Route::Auto,
        }
    }

    /// The plan of a port that has its share of the memory.
    pub(crate) fn plan(&self, form: Form, shares: usize, eager: Eager) -> Plan {
        let Options { memory, items, age, route } = *self;
        Plan { form, memory: memory / shares, items, bytes: MESSAGE, age, route, eager, merge: None }
    }
}
