//! Puts of arrays that answer at once.

use std::time::Duration;

use bellwether::array::{GlobalArray, Layout};
use bellwether::sim::Config;
use bellwether::{Error, Posted, Result, Settings, Simulated, World};
use bellwether_tests::watchdog;

/// Bytes that a rank keeps for a network that takes no more.
const KEPT: usize = 16 << 10;
/// Elements of a rank: four times what is kept of single ones.
const EACH: usize = 4 * KEPT / size_of::<u64>();
/// Puts after the one that was refused.
const AFTER: usize = 50;

/// Rank 0 puts to elements of rank 1, whose interface serves nothing at first, until one is refused, which it leaves out.
fn puts(world: &World, posts: bool) -> Result<()> {
    let array = GlobalArray::<u64, 1>::new(world, Layout::block([2 * EACH], 2)?)?.share(world)?;
    let (done, skipped) = (world.bell()?, world.alloc::<u64>(1)?);
    world.barrier()?;
    if world.rank() == 1 {
        world.sleep(Duration::from_millis(10));
        done.wait(1)?;
    } else {
        let mut posted = Vec::new();
        let mut put = |index: usize| {
            let outcome = match posts {
                true => array.try_put_async(index, index as u64).map(|put| posted.push(put)),
                false => array.try_put(index, index as u64),
            };
            match outcome {
                Ok(()) => Ok(true),
                Err(Error::WouldBlock { rank: 1, place, .. }) => {
                    assert!(place.to_string().contains(file!()), "{place}");
                    Ok(false)
                }
                Err(error) => Err(error),
            }
        };
        let mut refused = EACH;
        while put(refused)? {
            refused += 1;
            assert!(refused < 2 * EACH - AFTER, "there is always room");
        }
        for index in refused + 1..=refused + AFTER {
            while !put(index)? {
                world.poll()?;
                world.sleep(Duration::from_micros(10));
            }
        }
        for outside in [2 * EACH, usize::MAX] {
            assert!(matches!(put(outside), Err(Error::InvalidArgument { .. })), "{outside}");
        }
        Posted::wait_all(posted)?;
        world.fence();
        skipped.put(1, 0, refused as u64)?;
        done.ring(1)?;
    }
    world.barrier()?;
    if world.rank() == 1 {
        let refused = skipped.load(0) as usize;
        for index in EACH..=refused + AFTER {
            assert_eq!(array.get(index)?, if index == refused { 0 } else { index as u64 }, "element {index}");
        }
    }
    world.barrier()
}

#[test]
fn puts_of_arrays_that_find_no_room_are_refused() {
    for seed in 0..2 {
        for posts in [false, true] {
            let _guard = watchdog::guard(format!("seed {seed}, futures: {posts}"), Duration::from_secs(600));
            let mut config = Config::new(2, seed).wild();
            (config.flow.slots, config.flow.credits) = (1, 1);
            config.served_asleep = false;
            let mut settings = Settings::default();
            settings.message_memory = KEPT;
            let outcomes = Simulated::new(config).settings(settings).run(|world| puts(world, posts)).expect("starts");
            for outcome in outcomes {
                outcome.unwrap_or_else(|error| panic!("seed {seed}, futures: {posts}: {error}"));
            }
        }
    }
}
