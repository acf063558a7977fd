//! Rows about the controller's life: before, during, after.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bellwether_runtime::Error;
use bellwether_runtime::vocabulary::cheetah::{Bell, Controller, MatchingHandler};

use super::{Load, barrier, place, sleep};
use crate::watchdog;

/// How long the others are kept waiting.
const DELAY: Duration = Duration::from_millis(300);
/// How often what is sent before finalising is passed on.
const HOPS: u8 = 20;

pub(super) fn c01(controller: Controller, _: &Load) {
    let (me, n) = place(&controller);
    let world = controller.as_world().expect("valid");
    let arrived = world.alloc::<u64>(n).expect("it fits");
    let received = Rc::new(Cell::new(0u64));
    let count = Rc::clone(&received);
    // Messages that are sent just before finalising are delivered in it, and so are those that their functions send.
    let function = controller
        .register_function(move |controller, _, id, buffer| {
            count.set(count.get() + buffer.len() as u64);
            if buffer[0] > 0 {
                let mut rest = buffer.to_vec();
                rest[0] -= 1;
                controller.ainvoke((me + 1) % n, id, &rest, None).expect("from a handler");
            }
        })
        .expect("registered early");
    barrier(&controller, "start");
    if me == n - 1 {
        sleep(&controller, DELAY);
    }
    for to in 0..n {
        arrived.put(to, me, 1).expect("in range");
        for _ in 0..50 {
            controller.ainvoke(to, function, &[HOPS; 60], None).expect("ainvoke");
        }
    }
    watchdog::at("finalize");
    controller.finalize().expect("all finalise");
    assert!((0..n).all(|rank| arrived.load(rank) == 1), "finalize returned before all had called it");
    assert_eq!(received.get(), 50 * 60 * (u64::from(HOPS) + 1) * n as u64, "calls lost in finalize");
    assert!(!controller.is_valid());
}

/// Every call on a controller that cannot be used.
fn refuses_everything(controller: &Controller) {
    let bell = Bell::new();
    assert!(!controller.is_valid());
    let here = [0u8; 8];
    // SAFETY: nothing is copied, which is the point.
    let (put, get) = unsafe {
        let address = here.as_ptr() as usize;
        (
            controller.put(0, address, &[1; 8], Some(&bell), None),
            controller.get(0, address, here.as_ptr().cast_mut(), 8, Some(&bell), None),
        )
    };
    let outcomes = [
        ("ncontexts", controller.ncontexts().map(drop)),
        ("mycontext", controller.mycontext().map(drop)),
        ("put", put),
        ("get", get),
        ("register_function", controller.register_function(|_, _, _, _| {}).map(drop)),
        ("ainvoke", controller.ainvoke(0, 0, &[], Some(&bell))),
        ("try_ainvoke", controller.try_ainvoke(0, 0, &[], Some(&bell)).map(drop)),
        ("barrier", controller.barrier()),
        ("poll", controller.poll().map(drop)),
        ("wait", controller.wait(&bell, 1)),
        ("wait_for", controller.wait_for(&bell, 1, Duration::from_secs(60))),
        ("finalize", controller.finalize()),
        ("poll", bell.read(controller).map(drop)),
        ("as_world", controller.as_world().map(drop)),
    ];
    for (call, outcome) in outcomes {
        let error = outcome.expect_err(call).to_string();
        assert!(error.contains(call) && error.contains("Controller::setup"), "{call}: {error}");
    }
    assert!(MatchingHandler::new(controller).is_err());
}

/// Refused inside a collective call, by an operator, the controller goes on.
fn refused_inside(controller: &Controller) {
    let world = controller.as_world().expect("it is valid");
    let mut values = [world.rank() as u64];
    let sum = |a, b| {
        let refused = controller.finalize();
        assert!(matches!(refused, Err(Error::InvalidArgument { operation: "finalize", .. })), "{refused:?}");
        a + b
    };
    world.allreduce(&mut values, sum).expect("all do");
    let n = world.size() as u64;
    assert!(controller.is_valid() && values == [n * (n - 1) / 2]);
    controller.barrier().expect("it still can");
}

pub(super) fn c02(controller: Controller, _: &Load) {
    refused_inside(&controller);
    let handler = MatchingHandler::new(&controller).expect("all make it");
    controller.finalize().expect("all finalise");
    refuses_everything(&controller);
    assert!(handler.send(0, 0, &1u8).is_err());
    assert!(handler.request::<u8, _>(0, 0, |_| {}).is_err());
    assert_eq!((handler.actions(0), handler.messages(0)), (0, 0));
    refuses_everything(&controller.clone());
}

pub(super) fn c03(controller: Controller, _: &Load) {
    refuses_everything(&Controller::invalid());
    refuses_everything(&Controller::default());
    assert_eq!(format!("{:?}", Controller::invalid()), "Controller(invalid)");
    assert!(controller.is_valid());
}

pub(super) fn c04(controller: Controller, _: &Load) {
    let (me, n) = place(&controller);
    let world = controller.as_world().expect("valid");
    let all = world.allgather(&[me as u64, n as u64]).expect("all take part");
    let expected: Vec<u64> = (0..n as u64).flat_map(|rank| [rank, n as u64]).collect();
    assert_eq!(all, expected);
}

pub(super) fn c28(controller: Controller, _: &Load) {
    let (me, n) = place(&controller);
    let mut assigned = Controller::invalid();
    assert!(!assigned.is_valid());
    assigned.clone_from(&controller);
    assert!(assigned.is_valid() && assigned.mycontext().expect("valid") == me);
    let received = Rc::new(Cell::new(0));
    let count = Rc::clone(&received);
    let function =
        controller.register_function(move |_, _, _, _| count.set(count.get() + 1)).expect("registered early");
    // Setting up again, as a library of the program may do, gives the same contexts.
    let mut arguments = vec!["program".to_string(), "-np".into(), n.to_string(), "file".into()];
    let another = Controller::setup(&mut arguments).expect("there is one");
    assert_eq!((place(&another), arguments), ((me, n), vec!["program".to_string(), "file".into()]));
    let wrong = Controller::setup(&mut vec!["program".into(), "-np".into(), (n + 1).to_string()]);
    let told = wrong.expect_err("another number").to_string();
    assert!(told.contains(&format!("-np {}", n + 1)), "{told}");
    let mut copies = vec![assigned.clone(), another, assigned.clone()];
    drop(assigned);
    drop(controller);
    // The copies work on, to the last one.
    barrier(&copies[1], "with a copy");
    assert_eq!(place(&copies[2]), (me, n));
    copies.truncate(1);
    barrier(&copies[0], "with the last copy");
    let arrived = copies[0].as_world().expect("valid").alloc::<u64>(1).expect("it fits");
    if me == n - 1 {
        sleep(&copies[0], DELAY);
        (0..n).for_each(|rank| arrived.put(rank, 0, 1).expect("in range"));
    }
    for to in 0..n {
        copies[0].ainvoke(to, function, &[], None).expect("ainvoke");
    }
    watchdog::at("dropping the last copy");
    drop(copies);
    // The last one waited for the late context, and what was on its way was delivered.
    assert_eq!(arrived.load(0), 1, "the last copy did not finalise");
    assert_eq!(received.get(), n, "calls lost when the last copy went");
}
