//! A self-checking program: each rank passes numbers to the next, with a bell.
use bellwether::World;

fn main() -> bellwether::Result<()> {
    let world = World::start()?;
    let next = (world.rank() + 1) % world.size();
    let mailbox = world.alloc::<u64>(1)?;
    let bell = world.bell()?;
    let rounds: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1000);
    for round in 1..=rounds {
        mailbox.put_bell(next, 0, round, &bell)?;
        bell.wait(round)?;
    }
    let mut sum = [world.rank() as u64];
    world.allreduce_sum(&mut sum)?;
    if world.rank() == 0 {
        println!("{} ranks, {rounds} rounds, sum {}", world.size(), sum[0]);
    }
    world.finish()
}
