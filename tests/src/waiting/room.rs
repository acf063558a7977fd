//! Room: calls that find some take no time, and room for what was refused is an event of a descriptor.

use std::time::Duration;

use bellwether_runtime::{Arm, Builder, HandlerId, Result, Symmetric, World};

use super::{LATE, had_room};

/// Handlers of [`room_is_announced`]: one that takes a message, and one that sends more to rank 1 than there is room for, so that they are kept.
pub fn takers(builder: &mut Builder) -> [HandlerId; 2] {
    let takes = builder.handler("takes", |_, bytes| assert!(bytes.iter().all(|byte| *byte == 7)));
    let floods = move |context: &bellwether_runtime::Context<'_>, _: &[u8]| {
        (0..100).for_each(|_| context.send(1, takes, &[7; 8]).expect("is sent or kept"));
    };
    [takes, builder.handler("floods", floods)]
}

/// Rank 0 finds no room for messages of `len` bytes to rank 1, which takes none while it stays away, and sleeps in its descriptor without a
/// timer. Nothing wakes it until rank 1 `comes_back`; then the room that rank 1 returns does. With `counts`, time passes while nothing comes.
/// So it is with puts that find no room.
pub fn room_is_announced(
    world: &World,
    [takes, floods]: [HandlerId; 2],
    (len, counts): (usize, bool),
    stay_away: impl FnOnce(),
    comes_back: impl FnOnce(),
) -> Result<()> {
    let (done, numbers) = (world.bell()?, world.alloc::<u64>(1024)?);
    numbers.put(1, 0, 0)?;
    world.barrier()?;
    if world.rank() == 1 {
        stay_away();
        done.wait(1)?;
    } else {
        let wake_up = world.wake_up()?;
        wake_up.trust_announcements();
        let (payload, values) = (vec![7; len], vec![7; 1024]);
        let sends = || had_room(world.try_send(1, takes, &payload));
        let puts = || had_room(numbers.try_put_slice(1, 0, &values));
        let await_room = |attempt: &dyn Fn() -> Result<bool>| -> Result<()> {
            while !attempt()? {
                // As for bells: another try after the arming. What comes later is announced.
                if wake_up.arm()? == Arm::Armed {
                    if attempt()? {
                        return Ok(());
                    }
                    assert!(wake_up.poll(Some(LATE))?, "there is room, and that is not announced");
                }
                while wake_up.progress()? > 0 {}
            }
            Ok(())
        };
        while sends()? {}
        if counts {
            world.send(0, floods, &[])?;
            let mut wakes = 0;
            while wake_up.arm()? == Arm::Busy || wake_up.poll(Some(Duration::from_millis(100)))? {
                wakes += 1;
                assert!(wakes < 20, "a rank without room woke {wakes} times while nothing came");
                while wake_up.progress()? > 0 || sends()? {}
            }
        }
        comes_back();
        (0..500).try_for_each(|_| await_room(&sends))?;
        (0..500).try_for_each(|_| await_room(&puts))?;
        world.fence();
        done.ring(1)?;
    }
    world.barrier()
}

/// Rank 0 puts to rank 1, whose table of segments it has not fetched yet: the puts answer while virtual time stands still, and are in
/// effect in time.
pub fn first_puts_take_no_time(world: &World) -> Result<()> {
    /// More than are put without a copy where a call may wait.
    const LONG: usize = 64 << 10;
    let numbers: Symmetric<u64> = world.alloc(LONG + 1)?;
    let done = world.bell()?;
    world.barrier()?;
    if world.rank() == 0 {
        let values = vec![7; LONG];
        let before = world.elapsed();
        // All of it is kept, since nothing else is.
        numbers.try_put_slice(1, 0, &values)?;
        assert_eq!(world.elapsed(), before, "nothing has happened meanwhile");
        numbers.put(1, LONG, 5)?;
        world.fence();
        done.ring(1)?;
    } else {
        done.wait(1)?;
        assert_eq!((numbers.load(0), numbers.load(LONG - 1), numbers.load(LONG)), (7, 7, 5));
    }
    world.barrier()
}
