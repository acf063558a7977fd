//! Events of messages when a task dies: what it does not answer any more, and what it had not sent whole.

use std::ffi::c_void;
use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bellwether_runtime::vocabulary::lapi::raw::{self, Handle, SendInfo, transfer};
use bellwether_runtime::vocabulary::lapi::{Answer, Code, Counter, Lapi, Signal, codes};
use bellwether_runtime::{Builder, Completion, Error};

use super::{all, ok};
use crate::watchdog;

/// The task that dies, of three.
const VICTIM: usize = 2;
const LONG: usize = 200_000;

/// How it dies, and where.
pub struct Death<'a> {
    /// Kills the victim, whose process this is.
    pub kill: &'a (dyn Fn(u64) + Sync),
    /// The network is simulated. Tasks take turns, and the victim makes progress while it waits.
    pub virtual_time: bool,
    /// Long data needs progress of its sender.
    pub by_pieces: bool,
}

/// Reasons with which send completion handlers ran, in the parameter.
type Reasons = Mutex<Vec<u32>>;

unsafe extern "C-unwind" fn sent(_: *mut Handle, parameter: *mut c_void, info: *mut SendInfo) {
    // SAFETY: `transfers` gave the list, and LAPI passes valid information.
    let (reasons, info) = unsafe { (&*parameter.cast::<Reasons>(), &*info) };
    assert_eq!(info.src as usize, VICTIM);
    reasons.lock().unwrap_or_else(PoisonError::into_inner).push(info.reason);
}

/// Waits for a future alone: without calls of LAPI, unless these are what makes progress.
fn outcome(lapi: &Lapi, virtual_time: bool, completion: &mut Completion) -> bellwether_runtime::Result<()> {
    let mut context = Context::from_waker(Waker::noop());
    for waits in 0.. {
        match completion.outcome() {
            Some(outcome) => return outcome,
            // Each failure that is reported to this task ends one wait. There are a few.
            None if virtual_time => {
                assert!(waits < 100, "it never ends");
                assert_eq!(lapi.wait(&Counter::new(), 1), Err(Code(codes::PEER_LOST)));
            }
            None => {
                if let Poll::Ready(outcome) = Pin::new(&mut *completion).poll(&mut context) {
                    return outcome;
                }
                std::thread::yield_now();
            }
        }
    }
    unreachable!("without end")
}

fn is_lost(outcome: bellwether_runtime::Result<()>) {
    assert!(matches!(outcome, Err(Error::PeerLost { rank: VICTIM, .. })), "{outcome:?}");
}

/// Transfers to the victim by `Xfer`: a message and an atomic with functions, and a get.
fn transfers(handle: Handle, reasons: &Reasons, data: &[u8], word: u64, place: &mut [i64; 2]) {
    let sinfo = std::ptr::from_ref(reasons).cast_mut().cast::<c_void>();
    let (shdlr, tgt) = (Some(sent as raw::SendHandler), VICTIM as u32);
    let am = transfer::Am {
        kind: transfer::AM,
        flags: 0,
        tgt,
        hdr_hdl: 1,
        uhdr_len: 0,
        uhdr: null_mut(),
        udata: data.as_ptr().cast_mut().cast(),
        udata_len: data.len() as u64,
        shdlr,
        sinfo,
        tgt_cntr: 0,
        org_cntr: null_mut(),
        cmpl_cntr: null_mut(),
    };
    let mut one = 1i64;
    let [found, got] = place;
    let rmw = transfer::Rmw {
        kind: transfer::RMW,
        op: raw::rmw_op::FETCH_AND_ADD,
        tgt,
        size: 64,
        tgt_var: word as i64,
        in_val: (&raw mut one).cast(),
        prev_tgt_val: std::ptr::from_mut(found).cast(),
        org_cntr: null_mut(),
        shdlr,
        sinfo,
    };
    // SAFETY: what is named stays until the functions have run, and the function takes this parameter.
    unsafe {
        ok(raw::xfer(handle, (&raw const am).cast::<transfer::Xfer>()), "a message");
        ok(raw::xfer(handle, (&raw const rmw).cast::<transfer::Xfer>()), "an atomic operation");
        let (word, got) = (word as *const c_void, std::ptr::from_mut(got).cast());
        ok(raw::get(handle, tgt, 8, word, got, null(), null()), "a get");
    }
}

/// The program of one of three tasks. The victim sends long data with a target event and dies; messages to it are under way. All their
/// futures end in the loss, functions run with it, each once, and memory is given back.
///
/// # Panics
/// If something of this does not hold.
pub fn events_of_a_lost_task(builder: Builder, death: &Death<'_>) {
    let lapi = Lapi::start(builder).expect("starts");
    // SAFETY: no handler uses it, and no other code ends it.
    let handle = unsafe { lapi.handle() };
    let me = lapi.rank();
    assert_eq!(lapi.size(), 3);
    let mut word = Box::new(0i64);
    let process = all(handle, std::process::id().into())[VICTIM];
    let there = all(handle, std::ptr::from_mut(&mut *word) as u64)[VICTIM];
    let bell = lapi.bell().expect("makes a bell");
    let (token, announced, ready) = (Arc::new(()), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (holds, counts) = (Arc::clone(&token), Arc::clone(&announced));
    let takes = lapi.handler(1, move |_, _| {
        let held = Arc::clone(&holds);
        counts.fetch_add(1, Ordering::Relaxed);
        Answer::vec(Vec::new()).then_inline(move |_, landed| drop((held, landed)))
    });
    takes.expect("an index of the table");
    let counts = Arc::clone(&ready);
    let meets = lapi.handler(2, move |_, _| {
        counts.fetch_add(1, Ordering::Relaxed);
        Answer::discard()
    });
    meets.expect("an index of the table");
    let mut arrived = Completion::new();
    lapi.target_event(3, &arrived).expect("an index of the table");
    if me == VICTIM && !death.virtual_time {
        ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
    }
    let fenced = lapi.gfence();
    if death.virtual_time && me == 1 {
        // Task 1 sends nothing: the death may come while it is in the fence, and its message could arrive before that.
        return assert_eq!(fenced.and_then(|()| lapi.wait(&Counter::new(), 1)), Err(Code(codes::PEER_LOST)));
    }
    fenced.expect("all have registered");
    if me == VICTIM {
        for to in [0, 1] {
            lapi.message(to, 1).data(vec![1; LONG]).target(3).send().expect("sends");
        }
        if death.virtual_time {
            return assert!(lapi.wait(&Counter::new(), 1).is_err(), "it was killed");
        }
        std::thread::sleep(super::LIMIT);
        panic!("it was not killed");
    }
    let wait_for = |count: &AtomicUsize, what: &str| {
        watchdog::at(what);
        while count.load(Ordering::Relaxed) == 0 {
            ok(raw::probe(handle), what);
        }
    };
    wait_for(&announced, "the announcement of the victim");
    let data = Arc::new(vec![1; LONG]);
    let (never, reasons, failed) = (Arc::new(Counter::new()), Reasons::default(), Arc::new(Mutex::new(Vec::new())));
    let (mut short, mut long, mut place) = (Completion::new(), Completion::new(), [7; 2]);
    let message = || lapi.message(VICTIM, 1).data(Arc::clone(&data));
    let call = || {
        let failed = Arc::clone(&failed);
        Signal::call(move |outcome| failed.lock().unwrap_or_else(PoisonError::into_inner).push(outcome))
    };
    lapi.message(VICTIM, 1).data(vec![1; 8]).completion(&short).send().expect("sends");
    message().origin(&long).completion(&long).send().expect("sends");
    message().origin(&never).completion(&never).send().expect("sends");
    message().origin(Signal::ring(bell, me)).completion(Signal::ring(bell, me)).send().expect("sends");
    message().origin(call()).completion(call()).send().expect("sends");
    transfers(handle, &reasons, &data, there, &mut place);
    if me == 1 {
        lapi.message(0, 2).send().expect("sends");
    } else {
        if !death.virtual_time {
            wait_for(&ready, "the other's messages");
        }
        (death.kill)(process);
    }
    watchdog::at("a future alone");
    is_lost(outcome(&lapi, death.virtual_time, &mut short));
    watchdog::at("a future of two events");
    is_lost(outcome(&lapi, death.virtual_time, &mut long));
    watchdog::at("the data of the victim");
    let ended = outcome(&lapi, death.virtual_time, &mut arrived);
    if death.by_pieces {
        is_lost(ended);
    }
    watchdog::at("what is lost with it");
    // Each wait ends, whatever it waits for.
    assert_eq!(lapi.wait(&never, 1), Err(Code(codes::PEER_LOST)));
    assert_eq!(lapi.wait_bell(bell, 1), Err(Code(codes::PEER_LOST)));
    assert_eq!(lapi.fence(), Err(Code(codes::PEER_LOST)));
    let failed = std::mem::take(&mut *failed.lock().unwrap_or_else(PoisonError::into_inner));
    assert_eq!(failed.len(), 2, "each once");
    failed.into_iter().for_each(is_lost);
    let reasons = std::mem::take(&mut *reasons.lock().unwrap_or_else(PoisonError::into_inner));
    assert_eq!(reasons, [codes::PEER_LOST as u32; 2]);
    assert_eq!((never.value(), place), (0, [7; 2]));
    assert_eq!((Arc::strong_count(&data), Arc::strong_count(&never)), (1, 1), "both are given back");
    assert_eq!(Arc::strong_count(&token), 2, "the handler's own, and none of a message");
    if !death.virtual_time {
        println!("losses: task {me} was told");
        std::io::stdout().flush().expect("stdout is there");
        // SAFETY: nothing has to be done at the end, which would wait for the victim.
        unsafe { libc::_exit(0) }
    }
}
