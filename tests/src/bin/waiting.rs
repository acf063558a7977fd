//! Waits of processes for things of many types: `BELLWETHER_RANKS=3 waiting`. With the word `serve`: ranks that are served by one that
//! computes.

use std::process::ExitCode;

use bellwether_runtime::World;

fn main() -> ExitCode {
    let ran = World::start().and_then(|world| {
        let serves = std::env::args().nth(1).is_some_and(|word| word == "serve");
        match serves {
            true => bellwether_tests::serving::all(&world)?,
            false => bellwether_tests::waiting::mix(&world)?,
        }
        if world.rank() == 0 {
            println!("{}", if serves { "served" } else { "waited" });
        }
        world.finish()
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("waiting: {error}");
            ExitCode::FAILURE
        }
    }
}
