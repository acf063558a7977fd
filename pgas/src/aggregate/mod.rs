//! Irregular access in bulk: many small reads and updates of elements anywhere, gathered so that each costs a few
//! nanoseconds.
//!
//! | to | use |
//! | --- | --- |
//! | add, or combine otherwise, values into elements | [`Aggregator::scatter_add`], [`Aggregator::scatter_with`] |
//! | the same, and know what was there | [`Aggregator::fetch_add`] |
//! | read elements | [`Aggregator::gather`] |
//! | hand items to a function of the rank that owns them | [`Push`] |
//! | look up, set and change by key; hand out work | [`DistHashMap`](crate::DistHashMap), [`DistQueue`](crate::DistQueue) |
//! | say where an element lies | [`Places`]: [`Blocks`], [`Cyclic`], or an array's own |
//! | bound the memory, choose the way | [`Options`] |
//!
//! The order in which items are applied is not defined. Completion is: when a collective call returns, the items of all ranks
//! in this call have been applied. Calls of a map are not collective: when one returns, the operations of the calling rank
//! have been done.
//!
//! # How it is fast
//! Where ranks map each other's memory, items are sorted by owner and by stretch of the table, and applied or read a stretch at
//! a time; or elements are read in the order asked for, each prefetched well ahead, whichever proves quicker. Elsewhere items
//! travel in messages, in one hop or two.

mod agreed;
mod buckets;
mod chains;
mod element;
mod options;
mod places;
mod pool;
mod port;
mod prefetch;
mod push;
mod remote;
mod rounds;
mod shape;
mod straight;
mod table;
mod trial;
mod verdict;

pub use self::element::Addend;
pub use self::options::{Options, Route};
pub use self::places::{Blocks, Cyclic, Places};
pub use self::push::Push;
pub use self::table::Aggregator;

pub(crate) use self::agreed::check_records;
pub(crate) use self::port::{By, Draft, Eager, Errands, Feed, Form, Port, Record, Sink};
