//! Errors of arrays, pointers and their futures name the line of the program.

use std::time::Duration;

use bellwether::array::{GlobalArray, Layout, near_square};
use bellwether::{Result, Simulated, World, sim, threads};
use bellwether_tests::watchdog;

/// The error was told with the line of this file.
fn at_line<T>(outcome: Result<T>, line: u32) {
    let message = outcome.err().expect("an error").to_string();
    assert!(message.contains(&format!("called at {}:{line})", file!())), "line {line}: {message}");
}

/// Futures, which are made at one line and waited for at another, and the calls that refuse one.
#[rustfmt::skip]
#[expect(clippy::single_range_in_vec_init, reason = "a box of one dimension")]
fn lines(world: &World) -> Result<()> {
    let array = GlobalArray::<u64, 1>::new(world, Layout::block([6], world.size())?)?.share(world)?;
    let (slice, other) = (array.pointer(0)?.slice(9), array.pointer([0])?);
    at_line(array.get_async(6), line!());
    at_line(array.put_async(6, 1), line!());
    at_line(array.fetch_update_async(6, |x| x), line!());
    at_line(array.accumulate_async(6, 1), line!());
    at_line(array.fetch_add_async(6, 1), line!());
    at_line(array.compare_swap_async(6, 1, 2), line!());
    at_line(array.fetch_add(6, 1), line!());
    at_line(array.compare_swap(6, 1, 2), line!());
    at_line(array.get_patch_async([0..7]), line!());
    at_line(array.put_patch_async([0..7], &[0; 7]), line!());
    at_line(slice.put_async(world, &[0; 2]), line!());
    at_line(slice.get_strided_async(world, 8, 2, 2), line!());
    at_line(slice.put_strided_async(world, 8, 2, &[0; 2]), line!());
    at_line(slice.gather_async(world, &[9]), line!());
    at_line(slice.scatter_async(world, &[9], &[0]), line!());
    at_line(near_square(5, [2, 0]), line!());
    // The slice is longer than what its rank has.
    let future = (slice.get_async(world)?, line!());
    at_line(future.0.wait(), future.1);
    at_line(slice.gather_async(world, &[8]), line!());
    world.barrier()?;
    drop(array);
    at_line(other.get_async(world), line!());
    at_line(other.fetch_add_async(world, 1), line!());
    at_line(other.compare_swap(world, 1, 2), line!());
    world.barrier()
}

#[test]
fn futures_and_what_refuses_them_name_their_line() {
    let _guard = watchdog::guard("lines of futures", Duration::from_secs(600));
    for outcomes in [threads(2, lines), Simulated::new(sim::Config::new(2, 1)).run(lines)] {
        outcomes.expect("the job runs").into_iter().collect::<Result<()>>().expect("as asserted");
    }
}
