//! Allocation of symmetric memory.

use bellwether_runtime::Result;

use super::barrier::Bare;
use crate::bench::session::Session;
use crate::bench::task::Measured;

/// An allocation of a word at each rank, which is dropped at once, beside a barrier.
///
/// # Errors
/// Those of the runtime.
pub fn alloc(session: &Session, _: usize) -> Result<Vec<Measured>> {
    let world = &session.world;
    let operations = session.operations(1000, usize::MAX, 1);
    let ours = |n| (0..n).try_for_each(|_| world.alloc::<u64>(1).map(drop));
    let barrier = |n| (0..n).try_for_each(|_| world.barrier());
    let mut bare = Bare::new(session, operations)?;
    Ok(vec![session.alternate_beside(operations, ours, |n| bare.meet(n), barrier)?])
}
