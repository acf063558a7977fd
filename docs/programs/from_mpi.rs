//! MPI for its collectives, Bellwether for one-sided access, in one program.

use bellwether::World;
use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::traits::{Communicator, CommunicatorCollectives};

fn main() -> bellwether::Result<()> {
    let (universe, _) = mpi::initialize_with_threading(Threading::Serialized).expect("MPI was not initialised before");
    let comm = universe.world();

    // A world of the ranks of the communicator, in the same order.
    let world = World::from_mpi(&comm)?;
    let inbox = world.alloc::<u64>(1)?;
    let arrived = world.bell()?;
    inbox.put_bell((world.rank() + 1) % world.size(), 0, world.rank() as u64, &arrived)?;
    arrived.wait(1)?;

    // MPI works as before, also while the world is there.
    let mut sum = 0;
    comm.all_reduce_into(&inbox.load(0), &mut sum, SystemOperation::sum());
    if comm.rank() == 0 {
        println!("{} ranks, sum {sum}", comm.size());
    }
    world.finish() // before the universe is dropped, which finalises MPI
}
