//! Values that meet their requests: Cheetah's matching handlers.

use std::cell::Cell;
use std::rc::Rc;

use bellwether_runtime::vocabulary::cheetah::{Controller, MatchingHandler};
use bellwether_runtime::{Result, World};

use super::bell::one_way;
use super::message::{Mailbox, mailbox_words};
use super::{opaque, report};
use crate::bench::session::settle;
use crate::bench::task::{Measured, Task};
use crate::bench::turns::Turns;

/// The tag of all values.
const TAG: i32 = 1;

/// Takes part in the benchmark; see [`super::vocabulary`].
///
/// # Errors
/// Those of the runtime, and of `tell`.
pub fn run(task: Task, tell: impl FnOnce(usize, &[Measured]) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let controller = Controller::setup_with(World::builder())?;
    let world = controller.as_world()?;
    settle(&task, world.rank(), world.size())?;
    let mapped = world.alloc::<u8>(1)?.mapped().is_some();
    let turns = Turns::new(world, task, mapped);
    let measured = report(&turns.task, |size| Ok(vec![turns.in_places(|| ping_pong(&turns, &controller, size))?]))?;
    tell(turns.world.rank(), &measured)?;
    drop(turns);
    controller.finalize()?;
    Ok(())
}

/// One way of a ping-pong of values: each rank requests the next one, sends if it is its turn, and polls until the function of its
/// request has run; beside one line with a sequence number and the payload.
fn ping_pong(turns: &Turns<Rc<World>>, controller: &Controller, size: usize) -> Result<Measured> {
    let (world, own) = (&turns.world, turns.world.rank());
    let handler = MatchingHandler::new(controller)?;
    let bare = Mailbox::new(world.alloc(mailbox_words(size))?, size / 8);
    let mut bare_round = 0;
    let met = Rc::new(Cell::new(0u64));
    let mut expected = 0;
    let catch = |partner: usize, expected: u64| -> Result<()> {
        let meets = Rc::clone(&met);
        handler.request(partner, TAG, move |value: &mut u64| {
            opaque(*value);
            meets.set(meets.get() + 1);
        })?;
        world.wait_until(|| met.get() >= expected)
    };
    let ours = |n| {
        let Some(&partner) = [1, 0].get(own) else { return Ok(()) };
        for round in 0..n as u64 {
            expected += 1;
            if own == 0 {
                handler.send(partner, TAG, &round)?;
                catch(partner, expected)?;
            } else {
                catch(partner, expected)?;
                handler.send(partner, TAG, &round)?;
            }
        }
        Ok(())
    };
    let limit = |n| bare.there_and_back(own, n, &mut bare_round);
    Ok(one_way(turns.latency(turns.operations(2000, 8 << 20, size), size, ours, limit)?))
}
