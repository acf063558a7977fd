//! Starts and ends, and nothing else: what a job costs, and a second program for jobs that must not mix two. Told
//! `fail RANK` or `return RANK`, that rank ends with an error or with 0 while the others need it; `fail all`, every rank with
//! the same error. `survive RANK`: that rank is killed, and the others go on and each tell how many they are; with `survive RANK FOLDER` in a
//! file there, too. `again N` starts N worlds in turn; `copies N` asks for N copies of this program, and rank 0 tells how many came.

use std::path::Path;

use bellwether::{Error, World};

fn main() -> bellwether::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let world = match &arguments[..] {
        [_, how, ranks] if how == "copies" => World::builder().ranks(ranks.parse().expect("a number")).start()?,
        [_, how, rank, folder @ ..] if how == "survive" => {
            return survive(rank.parse().expect("a number"), folder.first().map(Path::new));
        }
        _ => World::start()?,
    };
    if let [_, how, rank] = &arguments[..] {
        match how.as_str() {
            "fail" if rank == "all" => {
                world.barrier()?;
                return Err(Error::InvalidArgument { operation: "start", why: "as all were asked".into() });
            }
            "fail" if rank.parse() == Ok(world.rank()) => {
                return Err(Error::InvalidArgument { operation: "start", why: "as asked".into() });
            }
            "again" => {
                world.finish()?;
                return (1..rank.parse().expect("a number")).try_for_each(|_| World::start()?.finish());
            }
            "copies" => {
                if world.rank() == 0 {
                    println!("{} copies", world.size());
                }
            }
            "return" if rank.parse() == Ok(world.rank()) => return Ok(()),
            _ => world.barrier()?,
        }
    }
    world.finish()
}

fn survive(victim: usize, folder: Option<&Path>) -> bellwether::Result<()> {
    let world = World::builder().survive().start()?;
    // A death before all have started ends the job. A rank may hear of one before it has left this barrier.
    let all_started = world.barrier();
    if world.rank() == victim {
        // SAFETY: plain numbers.
        unsafe { libc::kill(std::process::id() as i32, libc::SIGKILL) };
    }
    match all_started.and_then(|()| world.barrier()) {
        Err(Error::PeerLost { rank, .. }) if rank == victim => {}
        outcome => panic!("rank {victim} was killed, and the barrier gives {outcome:?}"),
    }
    let team = world.survivors()?;
    let mut ranks = [1];
    team.allreduce(&mut ranks, bellwether::Sum)?;
    let line = format!("rank {} goes on, one of {}", world.rank(), ranks[0]);
    println!("{line}");
    if let Some(folder) = folder {
        std::fs::write(folder.join(world.rank().to_string()), line).expect("the folder is ours");
    }
    world.finish()
}
