//! Each rank forks, and its child ends in the way that the argument says, while the rank goes on:
//! `forking exits|calls|returns|panics|aborts|killed|stays`.

use std::process::exit;

use bellwether::{Error, Result, World};

fn main() -> Result<()> {
    let how = std::env::args().nth(1).expect("an argument says how the children end");
    let world = World::start()?;
    let (rank, size) = (world.rank(), world.size());
    let memory = world.alloc::<u64>(size)?;
    world.barrier()?;
    // SAFETY: this thread alone touches the world, and the child uses nothing that another thread may have locked.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child: {}", std::io::Error::last_os_error());
    if child == 0 {
        return in_child(&how, world);
    }
    if how != "stays" {
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        let ended = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) };
        let wanted = match how.as_str() {
            "panics" => 101,
            "aborts" => 5,
            "killed" => -libc::SIGKILL,
            _ => 0,
        };
        assert_eq!(ended, wanted, "how the child of rank {rank} ended");
    }
    for round in 0..20u64 {
        let next = (rank + 1) % size;
        memory.put(next, rank, round)?;
        world.barrier()?;
        assert_eq!(memory.load((rank + size - 1) % size), round);
        // Before the next put there.
        world.barrier()?;
        assert_eq!(world.call(next, round, |_, round| round + 1)?.wait()?, round + 1);
    }
    println!("rank {rank} went on");
    world.finish()
}

fn in_child(how: &str, world: World) -> Result<()> {
    match how {
        "exits" => exit(0),
        "calls" => match world.barrier() {
            Err(Error::Forked { rank, .. }) if rank == world.rank() => exit(0),
            other => {
                eprintln!("a barrier in a child: {other:?}");
                exit(1)
            }
        },
        // Drops the world on its way.
        "returns" => Ok(()),
        "panics" => panic!("a child that panics, as it should"),
        "aborts" => world.abort(5, "a child that aborts, as it should"),
        // SAFETY: ends this process.
        "killed" => unsafe {
            libc::raise(libc::SIGKILL);
            unreachable!("nobody outlives that")
        },
        "stays" => {
            std::thread::sleep(std::time::Duration::from_secs(600));
            Ok(())
        }
        other => panic!("{other}: no way to end"),
    }
}
