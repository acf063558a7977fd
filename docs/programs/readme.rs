//! A put with a bell, and a remote call.

use bellwether::World;

fn main() -> bellwether::Result<()> {
    let world = World::start()?;
    let next = (world.rank() + 1) % world.size();

    let mailbox = world.alloc::<u64>(1)?; // one number at every rank
    let bell = world.bell()?;
    mailbox.put_bell(next, 0, world.rank() as u64, &bell)?;
    bell.wait(1)?; // the number is here
    println!("rank {} heard from {}", world.rank(), mailbox.load(0));

    let answer = world.call(next, 20, |ctx, x: i32| x + ctx.rank() as i32)?.wait()?;
    println!("rank {next} says {answer}");
    world.finish()
}
