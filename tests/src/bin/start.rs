//! Starts and ends, and nothing else: what a job costs, and a second program for jobs that must not mix two. Told
//! `fail RANK` or `return RANK`, that rank ends with an error or with 0 while the others need it; `fail all`, every rank with
//! the same error.

use bellwether::{Error, World};

fn main() -> bellwether::Result<()> {
    let world = World::start()?;
    if let [_, how, rank] = &std::env::args().collect::<Vec<_>>()[..] {
        match how.as_str() {
            "fail" if rank == "all" => {
                world.barrier()?;
                return Err(Error::InvalidArgument { operation: "start", why: "as all were asked".into() });
            }
            "fail" if rank.parse() == Ok(world.rank()) => {
                return Err(Error::InvalidArgument { operation: "start", why: "as asked".into() });
            }
            "return" if rank.parse() == Ok(world.rank()) => return Ok(()),
            _ => world.barrier()?,
        }
    }
    world.finish()
}
