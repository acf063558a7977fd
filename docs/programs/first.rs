//! Each rank tells its neighbour who it is.

use bellwether::World;

fn main() -> bellwether::Result<()> {
    let world = World::start()?;
    let (rank, ranks) = (world.rank(), world.size());
    let next = (rank + 1) % ranks;

    let mailbox = world.alloc::<u64>(1)?; // one number at every rank
    let arrived = world.bell()?; // a bell at every rank
    mailbox.put_bell(next, 0, rank as u64, &arrived)?;
    arrived.wait(1)?; // somebody has put something here

    println!("rank {rank} of {ranks} heard from rank {}", mailbox.load(0));
    world.finish()
}
