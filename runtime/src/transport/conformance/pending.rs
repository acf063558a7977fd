//! U48 to U53: pending requests.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::rig::*;
use crate::transport::*;

/// Sends until there is no room; gives how many went.
fn exhaust<R: Rig>(ep: &Ep<R>) -> u64 {
    let mut sent = 0;
    while ep.am_short(0, sent, &[]).is_ok() {
        sent += 1;
        assert!(sent < 1_000_000, "room never ends");
    }
    sent
}

/// Counts and lists the headers of messages with id 0.
fn listen<R: Rig>(duo: &Duo<R>) -> Rc<RefCell<Vec<u64>>> {
    let list = Rc::new(RefCell::new(Vec::new()));
    let into = Rc::clone(&list);
    let note = move |m: &Message<'_>| into.borrow_mut().push(m.short().expect("a header").0);
    duo.b.interface.set_handler(0, Some(Box::new(note))).expect("id");
    list
}

/// U48: Busy while there is room, queued when there is none.
pub fn u48_pending_add<R: Rig>() {
    let duo = Duo::<R>::new();
    let list = listen(&duo);
    let refused = duo.a.ep().pending_add(Box::new(|| panic!("never queued"))).expect_err("there is room");
    assert_eq!(refused.error, Error::Busy);
    let sent = exhaust::<R>(duo.a.ep());
    let called = Rc::new(Cell::new(false));
    let seen = Rc::clone(&called);
    let queued = duo.a.ep().pending_add(Box::new(move || {
        seen.set(true);
        Resume::Done
    }));
    assert!(queued.is_ok(), "there is no room");
    duo.until("the request", || called.get());
    duo.until("the messages", || list.borrow().len() == sent as usize);
    duo.settle();
    assert_eq!(duo.a.ep().pending_add(Box::new(|| Resume::Done)).expect_err("room again").error, Error::Busy);
}

/// U49: Done ends a request; Keep goes on with others; Stop ends the round.
pub fn u49_pending_outcomes<R: Rig>() {
    let duo = Duo::<R>::new();
    let second = duo.a.connect(&duo.b.interface.address());
    let calls: Rc<RefCell<Vec<u8>>> = Rc::default();
    let answer = Rc::new(Cell::new(Resume::Keep));
    exhaust::<R>(duo.a.ep());
    let (log, say) = (Rc::clone(&calls), Rc::clone(&answer));
    let first = move || {
        log.borrow_mut().push(1);
        say.get()
    };
    assert!(duo.a.ep().pending_add(Box::new(first)).is_ok());
    exhaust::<R>(&second);
    let log = Rc::clone(&calls);
    let other = move || {
        log.borrow_mut().push(2);
        Resume::Keep
    };
    while second.am_short(0, 0, &[]).is_ok() {}
    assert!(second.pending_add(Box::new(other)).is_ok());
    duo.a.worker.progress();
    assert!(calls.borrow().contains(&1) && calls.borrow().contains(&2), "kept, and the other served: {calls:?}");
    assert_eq!(calls.take().len(), 2, "each once in a round without success");
    answer.set(Resume::Stop);
    // A round ends at Stop, so no endpoint's turn follows it in the round.
    for _ in 0..4 {
        duo.a.worker.progress();
        let round = calls.take();
        let stop = round.iter().position(|call| *call == 1).expect("called each round");
        assert_eq!(stop, round.len() - 1, "{round:?}");
    }
    answer.set(Resume::Done);
    duo.a.worker.progress();
    assert_eq!(calls.take().iter().filter(|call| **call == 1).count(), 1);
    duo.a.worker.progress();
    assert!(!calls.take().contains(&1), "done is done");
    second.pending_purge(drop);
    duo.settle();
}

/// Adds a request that sends `number`.
fn queue<R: Rig>(ep: &Rc<Ep<R>>, number: u64) -> Result<(), Error> {
    let sender = Rc::clone(ep);
    let request = Box::new(move || match sender.am_short(0, number, &[]) {
        Ok(()) => Resume::Done,
        Err(Error::NoResource) => Resume::Keep,
        Err(error) => panic!("{error}"),
    });
    ep.pending_add(request).map_err(|refused| refused.error)
}

/// U50: while something is pending new sends are refused, so numbers stay in order.
pub fn u50_no_overtaking<R: Rig>() {
    let duo = Duo::<R>::new();
    let list = listen(&duo);
    let ep = Rc::new(duo.a.connect(&duo.b.interface.address()));
    let count = R::rounds(5000) as u64;
    let mut number = 0;
    let mut queued = 0;
    while number < count {
        // Every way of sending, at odd times.
        match ep.am_short(0, number, &[]) {
            Ok(()) => number += 1,
            Err(Error::NoResource) => {
                if queue::<R>(&ep, number).is_ok() {
                    number += 1;
                    queued += 1;
                    assert_eq!(ep.am_short(0, 999_999, &[]), Err(Error::NoResource), "would overtake");
                    assert_eq!(ep.am_bcopy(0, 8, |_| panic!("would overtake")), Err(Error::NoResource));
                }
                if number % 3 == 0 {
                    duo.turn();
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    duo.until("all messages", || list.borrow().len() == count as usize);
    assert!(queued > 0);
    let mut seen = list.take();
    if duo.a.interface.attributes().message_order == Order::Posted {
        assert!(seen.iter().copied().eq(0..count), "out of order");
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..count), "each once");
}

/// A value that a callback uses on its own thread only: completions of a test run on the thread that calls progress.
struct Here<T>(T);

// SAFETY: never leaves the thread that made it.
unsafe impl<T> Send for Here<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Here<T> {}

impl<T> Here<T> {
    fn get(&self) -> &T {
        &self.0
    }
}

/// The state of the test while requests wait and completions come.
#[derive(Default)]
struct Scene {
    /// Requests that wait, and how many did when this turn began.
    waiting: Cell<usize>,
    at_start: Cell<usize>,
    /// Requests called in this turn.
    tried: Cell<usize>,
    /// The message that the callback sent has gone.
    late: Cell<bool>,
}

/// U51: in each turn pending requests are called before completions, so what a callback sends comes after them.
pub fn u51_pending_before_completions<R: Rig>() {
    let duo = Duo::<R>::new();
    let list = listen(&duo);
    let ep = Rc::new(duo.a.connect(&duo.b.interface.address()));
    let (_memory, key) = duo.remote(8);
    let local = duo.a.memory(8);
    let scene = Rc::new(Scene::default());
    let sent = exhaust::<R>(&ep);
    for number in sent..sent + 10 {
        let (sender, scene) = (Rc::clone(&ep), Rc::clone(&scene));
        scene.waiting.set(scene.waiting.get() + 1);
        let request = Box::new(move || {
            scene.tried.set(scene.tried.get() + 1);
            match sender.am_short(0, number, &[]) {
                Ok(()) => scene.waiting.set(scene.waiting.get() - 1),
                Err(error) => {
                    assert_eq!(error, Error::NoResource);
                    return Resume::Keep;
                }
            }
            Resume::Done
        });
        assert!(ep.pending_add(request).is_ok());
    }
    let here = Here((Rc::clone(&scene), Rc::clone(&ep)));
    let callback = move |status: Result<()>| {
        let (scene, ep) = here.get();
        assert_eq!(status, Ok(()));
        assert!(scene.at_start.get() == 0 || scene.tried.get() > 0, "a completion ran before what is pending");
        if !scene.late.get() && ep.am_short(0, sent + 10, &[]).is_ok() {
            assert_eq!(scene.waiting.get(), 0, "it overtook what is pending");
            scene.late.set(true);
        }
    };
    let completion = Completion::new(1, callback);
    let iov = [Iov { pointer: local.address(), length: 8, stride: 8, count: 1, region: Some(local.region()) }];
    let mut under_way = false;
    duo.until("the late message", || {
        // One get after the other, by an endpoint on which nothing waits.
        if !under_way || completion.count() == 0 {
            completion.reset(1);
            // SAFETY: the buffer lives past the flush.
            let posted = unsafe { duo.a.ep().get_zcopy(&iov, key.address, &key, Some(&completion)) };
            under_way = posted == Ok(Posted::InProgress);
            if posted == Ok(Posted::Done) && scene.waiting.get() == 0 {
                // Where nothing is ever in flight the caller sends.
                completion.complete(Ok(()));
            }
        }
        scene.tried.set(0);
        scene.at_start.set(scene.waiting.get());
        duo.a.worker.progress();
        scene.at_start.set(0);
        scene.late.get()
    });
    duo.flush();
    duo.until("all messages", || list.borrow().len() as u64 == sent + 11);
    let seen = list.take();
    if duo.a.interface.attributes().message_order == Order::Posted {
        assert!(seen.iter().copied().eq(0..sent + 11), "{seen:?}");
    }
    assert_eq!(seen.len() as u64, sent + 11);
}

/// U52: eight endpoints with much to send get on alike.
pub fn u52_pending_is_fair<R: Rig>() {
    let duo = Duo::<R>::new();
    let each = R::rounds(1000);
    let served: Rc<RefCell<[usize; 8]>> = Rc::default();
    let eps: Vec<Rc<Ep<R>>> = (0..8).map(|_| Rc::new(duo.a.connect(&duo.b.interface.address()))).collect();
    exhaust::<R>(&eps[0]);
    for (i, ep) in eps.iter().enumerate() {
        while ep.am_short(0, 0, &[]).is_ok() {}
        for _ in 0..each {
            let (sender, count) = (Rc::clone(ep), Rc::clone(&served));
            let request = Box::new(move || match sender.am_short(0, i as u64, &[]) {
                Ok(()) => {
                    count.borrow_mut()[i] += 1;
                    Resume::Done
                }
                Err(Error::NoResource) => Resume::Keep,
                Err(error) => panic!("{error}"),
            });
            assert!(ep.pending_add(request).is_ok());
        }
    }
    let (mut spread, mut total) = (0, 0);
    duo.until("all requests", || {
        let served = *served.borrow();
        let (least, most) = (*served.iter().min().expect("8"), *served.iter().max().expect("8"));
        if least < each {
            spread = spread.max(most - least);
        }
        total = served.iter().sum();
        total == 8 * each
    });
    assert!(spread <= 4 + each / 10, "one endpoint was {spread} ahead of another");
    duo.settle();
}

/// U53: purging hands back every request, and the queue is empty.
pub fn u53_pending_purge<R: Rig>() {
    let duo = Duo::<R>::new();
    exhaust::<R>(duo.a.ep());
    for _ in 0..100 {
        assert!(duo.a.ep().pending_add(Box::new(|| panic!("never called"))).is_ok());
    }
    let mut handed = 0;
    duo.a.ep().pending_purge(|_| handed += 1);
    assert_eq!(handed, 100);
    duo.a.ep().pending_purge(|_| panic!("the queue is empty"));
    duo.insist(|| duo.a.ep().am_short(0, 0, &[]));
    duo.settle();
}
