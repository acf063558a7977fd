//! Waits of processes for things of many types: `BELLWETHER_RANKS=3 waiting`. With the word `serve`: ranks that are served by one that
//! computes; `serve-without-poll`: where poll(2) fails.

use std::process::ExitCode;

use bellwether_runtime::World;

fn main() -> ExitCode {
    let ran = World::start().and_then(|world| {
        let done = match std::env::args().nth(1).as_deref() {
            Some("serve") => bellwether_tests::serving::all(&world).map(|()| "served"),
            Some("serve-without-poll") => bellwether_tests::serving::without_poll(&world).map(|()| "served"),
            _ => bellwether_tests::waiting::mix(&world).map(|()| "waited"),
        }?;
        if world.rank() == 0 {
            println!("{done}");
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
