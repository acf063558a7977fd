//! Bells, signals, exchanges, collectives and streams that are given up before they are done, and whose memory another array
//! gets: none of them reaches that.

use bellwether::aggregate::{Options, Push};
use bellwether::array::{GatherPlan, Ghosts, GlobalArray, Layout, Local};
use bellwether::{DistHashMap, DistQueue, Result, Team, World};

use super::futures::{ELEMENTS, in_place_of, is_left_alone, on_all};

/// Arrays, until one of them has the memory that something before had: that may have been in several pieces.
fn several(world: &World) -> Result<Vec<GlobalArray<u64, 1, Local>>> {
    (0..4).map(|_| in_place_of(world, ())).collect()
}

fn are_left_alone(world: &World, what: &str, arrays: &[GlobalArray<u64, 1, Local>]) -> Result<()> {
    arrays.iter().try_for_each(|array| is_left_alone(world, what, array))
}

#[test]
fn rings_of_a_bell_that_is_gone() {
    on_all("rings of a bell that is gone", 5, |world| {
        for _ in 0..3 {
            let (bell, data) = (world.bell()?, world.alloc::<u64>(40)?);
            for to in (0..world.size()).filter(|to| *to != world.rank()) {
                for i in 0..20 {
                    bell.ring(to)?;
                    data.put_bell(to, i, 5, &bell)?;
                    data.put_slice_bell(to, 20, &[7; 20], &bell)?;
                }
            }
            drop((bell, data));
            are_left_alone(world, "a bell", &several(world)?)?;
        }
        Ok(())
    });
}

#[test]
fn signals_and_puts_of_memory_that_is_gone() {
    on_all("signals of memory that is gone", 5, |world| {
        let (signals, data, source) = (world.alloc::<u64>(8)?, world.alloc::<u64>(4000)?, world.alloc::<u64>(4000)?);
        source.write(0, &[3; 4000]);
        for to in (0..world.size()).filter(|to| *to != world.rank()) {
            data.put_from(to, 0, &source, 0..4000)?;
            for _ in 0..20 {
                data.put_slice_signal(to, 0, &[9; 100], &signals, 3)?;
                signals.signal(to, 5)?;
            }
        }
        drop((signals, data, source));
        are_left_alone(world, "signals", &several(world)?)
    });
}

#[test]
fn an_exchange_that_is_forgotten() {
    on_all("an exchange that is forgotten", 5, |world| {
        let ghosts = Ghosts::new([2, 1]).periodic([true, true]).corners(true);
        for _ in 0..2 {
            let layout = Layout::rows([12, 20], world.size())?;
            let mut array = GlobalArray::<u64, 2>::with_ghosts(world, layout, ghosts)?;
            array.local_mut().fill(world.rank() as u64 + 1);
            let _ = array.start_exchange()?;
            // The array is there again, and its ghost layers are not renewed behind its back.
            assert!(array.local().iter().all(|x| *x == world.rank() as u64 + 1));
            // In the other phase, and back: the exchange is finished by the next one.
            let mut array = array.share(world)?.localize(world)?;
            array.exchange()?;
            let before = (world.rank() + world.size() - 1) % world.size();
            assert_eq!(array.local()[22], before as u64 + 1);
            let _ = array.start_exchange()?;
            drop(array);
            are_left_alone(world, "an exchange", &several(world)?)?;
        }
        Ok(())
    });
}

#[test]
fn a_plan_that_is_dropped_with_an_execution_under_way() {
    on_all("a plan that is dropped", 5, |world| {
        let (rank, n) = (world.rank(), world.size());
        for turn in 0..4 {
            let layout = Layout::block([ELEMENTS * n], n)?;
            // What the last rank has goes to all others, and what they have to it: once in one piece, once packed.
            let from = if rank == n - 1 { 0 } else { ELEMENTS * (n - 1) };
            let numbers: Vec<usize> = (0..ELEMENTS).step_by(1 + turn % 2).map(|i| from + i).collect();
            let mut plan = GatherPlan::<u64>::new(world, &layout, &numbers)?;
            let own = vec![7; ELEMENTS];
            if turn < 2 {
                plan.gather(&own, &mut vec![0; numbers.len()])?;
            }
            // Twice: the second start finishes the first execution.
            let _ = plan.start(&own)?;
            let _ = plan.start(&own)?;
            drop(plan);
            are_left_alone(world, "a plan", &several(world)?)?;
        }
        Ok(())
    });
}

#[test]
fn a_collective_that_is_forgotten() {
    on_all("a collective that is forgotten", 5, |world| {
        let all = Team::world(world)?;
        let half = all.split(Some(world.rank() as u64 % 2), 0)?.expect("everyone has a colour");
        let sums: Vec<_> = (0..3).map(|_| half.allreduce_async(vec![1u64; 300], |a, b| a + b)).collect();
        let told = all.allgather_async(vec![world.rank(); 50]);
        let mut kept = Vec::new();
        for (number, sum) in sums.into_iter().enumerate() {
            match number {
                0 => std::mem::forget(sum),
                1 => drop(sum),
                _ => kept.push(sum),
            }
        }
        std::mem::forget(told);
        drop((all, half));
        let arrays = several(world)?;
        are_left_alone(world, "collectives under way", &arrays)?;
        for sum in kept {
            let members = (world.rank() % 2..world.size()).step_by(2).count() as u64;
            assert_eq!(sum.wait()?, vec![members; 300]);
        }
        are_left_alone(world, "collectives that were done late", &arrays)
    });
}

#[test]
fn streams_maps_and_queues_that_are_gone() {
    on_all("streams that are gone", 3, |world| {
        let next = (world.rank() + 1) % world.size();
        let mut push = Push::new(world, &Options::new(world), |_: u64| {})?;
        (0..100).try_for_each(|i| push.push(next, i))?;
        push.flush()?;
        let mut map = DistHashMap::<u64, u64>::new(world)?;
        map.insert_many((0..50).map(|i| (i, i)))?;
        let mut queue = DistQueue::<u64>::new(world)?;
        (0..50).try_for_each(|i| queue.push_to(next, i))?;
        queue.flush()?;
        // All in flight, or in buffers.
        drop((map, queue));
        std::mem::forget(push);
        are_left_alone(world, "streams", &several(world)?)
    });
}
