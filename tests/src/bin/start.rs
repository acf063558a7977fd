//! Starts and ends, and nothing else: what a job costs, and a second program for jobs that must not mix two.

fn main() -> bellwether::Result<()> {
    bellwether::World::start()?.finish()
}
