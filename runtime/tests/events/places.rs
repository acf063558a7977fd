//! The errors of calls that wait for nobody name the line of the call, too.

use std::time::Duration;

use bellwether_runtime::transport::AtomicOp;
use bellwether_runtime::{Completion, Piece, Posted, RawBells, Result, Sum, Team, World};

use super::everywhere;

/// The error was told with the line of this file.
fn told<T>(outcome: Result<T>, line: u32) {
    let message = outcome.err().expect("an error").to_string();
    assert!(message.contains(&format!("called at {}:{line})", file!())), "line {line}: {message}");
}

#[rustfmt::skip]
fn places(world: &World, _: &()) -> Result<()> {
    const ADD: AtomicOp = AtomicOp::Add;
    let (n, me, here) = (world.size(), world.rank(), (world.rank() + 1) % world.size());
    let (array, bell, segment) = (world.alloc::<u64>(4)?, world.bell()?, world.segment_all(64)?);
    let (context, at, number) = (world.context()?, array.for_threads(), segment.number());
    let numbers = vec![0u64; 5];
    // Arrays.
    told(array.put(here, 4, 1), line!());
    told(array.put(n, 0, 1), line!());
    told(array.get(here, 4), line!());
    told(array.get(n, 0), line!());
    told(array.put_slice(here, 0, &numbers), line!());
    told(array.get_slice(here, 1, &mut [0; 4]), line!());
    told(array.put_from(here, 2, &array, 0..3), line!());
    told(array.put_bell(here, 4, 1, &bell), line!());
    told(array.put_slice_bell(here, 0, &numbers, &bell), line!());
    told(array.fetch_add(here, 4, 1), line!());
    told(array.compare_swap(n, 0, 1, 2), line!());
    told(bell.ring(n), line!());
    // Messages.
    told(world.invoke(n, 1u8, |_, _| ()), line!());
    told(world.invoke_plain(n, 1u8, |_, _| ()), line!());
    told(world.call(n, 1u8, |_, x| x), line!());
    told(world.call_plain(n, 1u8, |_, x| x), line!());
    // Segments.
    told(world.put_segment(here, number, 60, &[0; 8]), line!());
    told(world.get_segment(here, 7777, 0, &mut [0; 8]), line!());
    told(world.put_segment_bell(n, number, 0, &[0; 8], &bell), line!());
    told(world.notify_segment(here, number, 3, 1u32), line!());
    told(world.fetch_segment(ADD, here, number, 4, 1u64), line!());
    told(world.compare_swap_segment(here, number, 64, 1u64, 2), line!());
    told(segment.read(60, &mut [0; 8]), line!());
    told(segment.write(65, &[]), line!());
    told(world.segment(0), line!());
    // SAFETY: there is no such rank.
    told(unsafe { world.put_address(n, 8, &[0; 8], RawBells::default()) }, line!());
    // Operations.
    told(world.operation().put(&array, here, 0, &numbers), line!());
    told(world.operation().get_into(&array, here, 0, &array, 0..5), line!());
    told(world.operation().fetch(ADD, &array, here, 4, 1), line!());
    told(world.operation().invoke(n, 1u8, |_, _| ()), line!());
    told(world.operation().put_segment(here, number, 65, &[]), line!());
    told(world.operation().fetch_segment(ADD, here, number, 4, 1u64), line!());
    // SAFETY: there is no such rank.
    unsafe {
        told(world.compare_swap_address(n, 8, 1u64, 2), line!());
        told(world.operation().put_address(n, 8, &[0; 8]), line!());
        told(world.operation().fetch_address(ADD, n, 8, 1u64), line!());
        told(context.put_address(n, 8, &[0; 8]), line!());
        told(context.operation().put_address(n, 8, &[0; 8]), line!());
        told(context.operation().compare_swap_address(n, 8, 1u64, 2), line!());
    }
    // Contexts.
    told(context.put(&at, here, 4, 1), line!());
    told(context.get(&at, n, 0), line!());
    told(context.put_slice(&at, here, 0, &numbers), line!());
    told(context.get_slice(&at, here, 1, &mut [0; 4]), line!());
    told(context.fetch_add(&at, here, 4, 1), line!());
    told(context.compare_swap(&at, here, 4, 1, 2), line!());
    told(context.put_segment(here, number, 60, &[0; 8]), line!());
    told(context.get_segment(here, 7777, 0, &mut [0; 8]), line!());
    told(context.notify_segment(here, number, 3, 1u32), line!());
    told(context.fetch_segment(ADD, here, number, 4, 1u64), line!());
    told(context.operation().put(&at, here, 0, &numbers), line!());
    told(context.operation().fetch(ADD, &at, here, 4, 1), line!());
    told(context.invoke(n, 1u8, |_, _| ()), line!());
    // Futures, which are made at one line and awaited at another.
    let mut made: Vec<(Result<u64>, u32)> = Vec::new();
    let future = (array.get_async(n, 0), line!());
    made.push((future.0.wait(), future.1));
    let future = (array.fetch_add_async(here, 4, 1), line!());
    made.push((world.block_on(future.0), future.1));
    let future = (array.compare_swap_async(here, 4, 1, 2), line!());
    made.push((Posted::wait_all([future.0]).map(|all| all[0]), future.1));
    let future = (array.fetch_update_async(here, 4, |x| x), line!());
    made.push((world.wait_all([future.0]).map(|all| all[0]), future.1));
    let future = (array.put_async(here, 4, 1), line!());
    made.push((world.select(&mut vec![future.0])?.1.map(|()| 0), future.1));
    let future = (array.get_slice_async(here, 1, 4), line!());
    made.push((future.0.wait().map(|all| all[0]), future.1));
    let future = (array.put_slice_async(here, 1, &[0; 4]), line!());
    made.push((future.0.wait().map(|()| 0), future.1));
    let piece = [Piece { rank: here, start: 3, count: 2 }];
    let future = (array.get_pieces_async(&piece), line!());
    made.push((future.0.wait().map(|all| all[0]), future.1));
    let future = (array.put_pieces_async(&piece, &[0; 2]), line!());
    made.push((future.0.wait().map(|()| 0), future.1));
    let future = (context.get_slice_async(&at, n, 0, 1), line!());
    made.push((future.0.wait().map(|all| all[0]), future.1));
    let future = (context.put_slice_async(&at, here, 4, &[0]), line!());
    made.push((future.0.wait().map(|()| 0), future.1));
    let future = (context.fetch_add_async(&at, here, 4, 1), line!());
    made.push((future.0.wait(), future.1));
    let future = (context.compare_swap_async(&at, here, 4, 1, 2), line!());
    made.push((world.block_on(future.0), future.1));
    let completion = (Completion::new(), line!());
    told(world.operation().effect(&completion.0).put(&array, n, 0, &numbers), line!());
    made.push((world.wait_completion(&completion.0).map(|()| 0), completion.1));
    made.into_iter().for_each(|(outcome, line)| told(outcome, line));
    told(world.select(&mut Vec::<Posted<u64>>::new()), line!());
    // Teams. A root or a length that never fits fails at all members alike.
    let team = Team::world(world)?;
    told(team.world_rank(n), line!());
    told(team_of(world)?.subset(&[]), line!());
    told(team_of(world)?.broadcast(n, &mut [0u64]), line!());
    let team = team_of(world)?;
    let pending = (team.reduce_async(n, vec![0u64], Sum), line!());
    told(pending.0.wait(), pending.1);
    let team = team_of(world)?;
    let mut pending = (team.gather_async(n, vec![0u64]), line!());
    told(pending.0.wait_for(Duration::from_secs(60)), pending.1);
    told(team_of(world)?.scatter(n, &[0u64], &mut [0u64]), line!());
    told(team_of(world)?.gather_values(n, &0u64), line!());
    told(team_of(world)?.broadcast_value(n, Some(0u64)), line!());
    assert!(me < n);
    world.barrier()?;
    segment.close()
}

/// A further team of all ranks: one whose collective failed is not used again.
fn team_of(world: &World) -> Result<Team> {
    Ok(Team::world(world)?.split(Some(0), 0)?.expect("a colour"))
}

#[test]
fn errors_of_calls_name_their_line() {
    everywhere("places of calls", || (), places);
}
