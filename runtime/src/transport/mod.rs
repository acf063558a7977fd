//! How bytes move.

pub mod peers;
pub mod shm;

/// Active-message ids an interface knows.
pub const MESSAGE_IDS: usize = 32;

/// A message as its handler sees it. The payload stays where the transport has it; after the handler it is gone,
/// unless it was [retained](shm::Delivery::retain).
pub type Handler = Box<dyn Fn(&shm::Delivery<'_>)>;
