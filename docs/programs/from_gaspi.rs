//! Each process writes its number to its neighbour, and all add up what they got.

use std::error::Error;

use bellwether::World;
use bellwether::gaspi::{Config, Gaspi, Operation, Process, Timeout::Block};

fn main() -> Result<(), Box<dyn Error>> {
    let process = Process::start(World::builder())?;
    let gaspi = Gaspi::begin(&process, Config::default()).block()?;
    let (me, n) = (gaspi.rank(), gaspi.size());
    let segment = gaspi.segment(1024).block()?;
    let queue = gaspi.queue(Block)?;
    let mut arrived = segment.notification(7)?;

    // From offset 0 here to offset 512 at the neighbour, with the notification after it.
    segment.write(0, &u64::from(me).to_ne_bytes())?;
    queue.write_notify(segment.here(0..8), segment.there((me + 1) % n, 512), arrived.signal(), 1)?;
    arrived.wait(Block)?;
    let mut inbox = [0; 8];
    segment.read(512, &mut inbox)?;

    let sum = gaspi.all().allreduce(&[u64::from_ne_bytes(inbox)], Operation::Sum).block()?;
    if me == 0 {
        println!("sum {}", sum[0]);
    }
    // The queue waits for its requests, and all for each other before the segment is given back.
    drop(queue);
    drop(arrived);
    gaspi.all().barrier(Block)?;
    drop(segment);
    gaspi.finish().block()?;
    process.finish()?;
    Ok(())
}
