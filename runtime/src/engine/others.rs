//! Several worlds of one thread: a wait in one world also sends the operations that the others keep, since ranks there may wait for them.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::task::Context;

use super::wakeup::has_drivers;
use super::{Engine, Wakeup};

thread_local! {
    static ENGINES: RefCell<Vec<Weak<Engine>>> = const { RefCell::new(Vec::new()) };
}

impl Engine {
    /// Lets waits of this thread's other worlds send the operations that this world keeps, and the other way round.
    pub(crate) fn join_thread(self: &Rc<Engine>) {
        ENGINES.with_borrow_mut(|engines| {
            engines.retain(|engine| engine.strong_count() > 0);
            engines.push(Rc::downgrade(self));
        });
    }

    /// Takes this world off the list of those of its thread, for one that other threads use too: the list would let a wait of this
    /// thread use it without their lock.
    pub(crate) fn leave_thread(&self) {
        let is_other = |engine: &Weak<Engine>| !std::ptr::eq(engine.as_ptr(), self);
        ENGINES.with_borrow_mut(|engines| engines.retain(is_other));
    }

    /// Whether any world of this thread has a driver: without one [`Engine::sleep_on_thread`] finds none.
    pub(crate) fn has_drivers() -> bool {
        has_drivers()
    }

    /// For a future that is not ready and belongs to no world: if this thread has a driver, the future waits to be woken. Returns `false`
    /// if there is no driver. After `true` the caller checks the future once more.
    pub(crate) fn sleep_on_thread(context: &Context<'_>) -> bool {
        let driven = |engine: Rc<Engine>| engine.driver().map(|wakeup| (engine, wakeup));
        let driven = ENGINES.try_with(|engines| {
            let engines = engines.borrow();
            engines.iter().filter_map(Weak::upgrade).filter_map(driven).collect::<Vec<(Rc<Engine>, Rc<Wakeup>)>>()
        });
        let driven = driven.unwrap_or_default();
        let sleeps = !driven.is_empty() && driven.iter().all(|(engine, wakeup)| engine.arm_for_task(wakeup).is_ok());
        if sleeps {
            driven.iter().for_each(|(engine, wakeup)| engine.let_sleep(wakeup, context));
        }
        sleeps
    }

    /// Makes progress for all worlds of this thread. For a future that is not ready, belongs to no world and has no driver. Does nothing
    /// inside a wait that polls futures, which makes progress itself, and inside a handler of one of these worlds, where progress is not
    /// allowed. Errors of messages are kept for the world's next poll.
    pub(crate) fn turn_thread() {
        let engines = ENGINES.try_with(|engines| {
            let engines = engines.borrow();
            engines.iter().filter_map(Weak::upgrade).filter(|engine| engine.is_own()).collect::<Vec<_>>()
        });
        let engines = engines.unwrap_or_default();
        if engines.iter().any(|engine| engine.interface.delivering()) {
            return;
        }
        for engine in engines.into_iter().filter(|engine| !engine.tasks.is_driving()) {
            if engine.turn() == 0 {
                // Operations that wait for a failed rank end in the next turns.
                engine.first_lost();
                engine.idle_poll();
            }
        }
    }

    /// Sends the operations that other worlds of this thread keep, as far as there is room, and delivers nothing there. Returns whether
    /// there may be more to send: a network may have taken operations that it sends only once it is connected, which it does not report.
    pub(super) fn turn_others(&self) -> bool {
        let has_network = |engine: &Rc<Engine>| !engine.networks.is_empty() && engine.networks.pace().is_none();
        let waiting = |engine: &Rc<Engine>| {
            !std::ptr::eq(&raw const **engine, self) && (engine.outbox.any() || has_network(engine))
        };
        // A world may be dropped when its thread ends, after this list was dropped.
        let others = ENGINES.try_with(|engines| {
            let engines = engines.borrow();
            let others = engines.iter().filter(|_| engines.len() > 1).filter_map(Weak::upgrade);
            others.filter(waiting).collect::<Vec<_>>()
        });
        let others = others.unwrap_or_default();
        for engine in others.iter().filter(|engine| !engine.interface.delivering()) {
            engine.networks.progress();
            engine.flush_pending();
        }
        others.iter().any(|engine| engine.outbox.any() || has_network(engine))
    }
}
