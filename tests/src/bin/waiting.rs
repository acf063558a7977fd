//! Waits of processes for things of many types: `BELLWETHER_RANKS=3 waiting`.

use std::process::ExitCode;

use bellwether_runtime::World;

fn main() -> ExitCode {
    let ran = World::start().and_then(|world| {
        bellwether_tests::waiting::mix(&world)?;
        if world.rank() == 0 {
            println!("waited");
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
