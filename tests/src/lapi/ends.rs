//! When a transfer whose source is read in parts ends, and what becomes of the function of a call that fails while it waits for room. For
//! simulated networks: what happens there in which order follows from the seed.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex};

use bellwether_runtime::Builder;
use bellwether_runtime::vocabulary::lapi::raw::{self, CompletionHandler, Handle, SendInfo, Vector, transfer};
use bellwether_runtime::vocabulary::lapi::{Answer, Code, Counter, Lapi, Signal, codes};

use super::handlers::locked;
use super::one_sided::{Shared, pattern};
use super::{all, ok};
use crate::watchdog;

/// The first page but one is not mapped, and only the kernel knows.
const BAD: u64 = 4096;

/// Observations of send completion handlers, and the source that they may change.
#[derive(Default)]
struct Sent {
    source: Cell<Option<(*mut u8, usize)>>,
    reasons: Mutex<Vec<i32>>,
}

impl Sent {
    fn parameter(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    fn add(&self, reason: i32) {
        locked(&self.reasons).push(reason);
    }

    fn reasons(&self) -> Vec<i32> {
        locked(&self.reasons).clone()
    }
}

unsafe extern "C-unwind" fn sent(_: *mut Handle, parameter: *mut c_void, info: *mut SendInfo) {
    // SAFETY: a `Sent`, which stays, and valid information.
    let (own, info) = unsafe { (&*parameter.cast::<Sent>(), &*info) };
    if let Some((source, len)) = own.source.get() {
        // SAFETY: the source may be changed from now on.
        unsafe { source.write_bytes(0xFF, len) };
    }
    own.add(info.reason as i32);
}

fn vector(info: &mut [*mut c_void; 2], lengths: &mut [u64; 2]) -> Vector {
    Vector { vec_type: raw::GEN_IOVECTOR, num_vecs: 2, info: info.as_mut_ptr(), len: lengths.as_mut_ptr() }
}

/// The program of one of two tasks. Of two long places of a vector, one is outside memory at the target, and is refused at once. The function
/// of the transfer runs when the other has been read, once, with the code of the first.
///
/// # Panics
/// If something of this does not hold.
pub fn a_vector_of_which_one_place_fails(builder: Builder, bad_first: bool) {
    const LENGTHS: [usize; 2] = [20_000, 1 << 20];
    let lapi = Lapi::start(builder).expect("starts");
    // SAFETY: no handler uses it, and no other code ends it.
    let handle = unsafe { lapi.handle() };
    let memory = Shared::new(LENGTHS[1]);
    let there = all(handle, memory.address())[1];
    let [mut refused, mut data] = LENGTHS.map(|len| pattern(len, len));
    // Each end is reported once.
    let told = Cell::new(0);
    let probe = || match raw::probe(handle) {
        codes::SUCCESS => {}
        code => {
            assert_eq!(code, codes::BAD_ADDRESS);
            told.set(told.get() + 1);
        }
    };
    if lapi.rank() == 0 {
        let own = Sent::default();
        own.source.set(Some((data.as_mut_ptr(), data.len())));
        let mut from = [refused.as_mut_ptr().cast::<c_void>(), data.as_mut_ptr().cast()];
        let mut to = [BAD as *mut c_void, there as *mut c_void];
        let mut lengths = LENGTHS.map(|len| len as u64);
        if !bad_first {
            [&mut from[..], &mut to[..]].into_iter().for_each(<[_]>::reverse);
            lengths.reverse();
        }
        let mut same = lengths;
        let (mut org_vec, mut tgt_vec) = (vector(&mut from, &mut lengths), vector(&mut to, &mut same));
        let what = transfer::Putv {
            kind: transfer::PUTV,
            flags: 0,
            tgt: 1,
            shdlr: Some(sent),
            sinfo: own.parameter(),
            org_vec: &mut org_vec,
            tgt_vec: (&raw mut tgt_vec).cast(),
            tgt_cntr: 0,
            org_cntr: null_mut(),
            cmpl_cntr: null_mut(),
        };
        // SAFETY: the places stay until the function has run, and the one that is no memory is refused.
        ok(unsafe { raw::xfer(handle, (&raw const what).cast::<transfer::Xfer>()) }, "a vector");
        watchdog::at("the function of the vector");
        while own.reasons().is_empty() {
            probe();
        }
        assert_eq!(own.reasons(), [codes::BAD_ADDRESS]);
        lapi.gfence().expect("nothing is under way");
        assert_eq!(own.reasons().len(), 1, "once");
    } else {
        watchdog::at("the place that is refused");
        while told.get() == 0 {
            probe();
        }
        lapi.gfence().expect("nothing is under way");
        assert!(memory.bytes() == pattern(LENGTHS[1], LENGTHS[1]), "the source was changed while it was read");
    }
    assert_eq!(told.get(), 1);
    lapi.finish().expect("finishes");
}

/// How a call of [`a_call_that_fails`] sends.
#[derive(Debug, Clone, Copy)]
pub enum By {
    /// A message by `Xfer`.
    Message,
    /// A put of a vector by `Xfer`.
    Vector,
    /// A message with closures.
    Closure,
}

/// The event that a call of [`a_call_that_fails`] meets while it waits for room.
#[derive(Clone, Copy)]
pub enum Meets<'a> {
    /// Its target dies: this kills task 1.
    Loss(&'a (dyn Fn() + Sync)),
    /// Its target is purged.
    Purge,
}

/// For a completion handler that runs while a call of its own thread waits.
struct Meeting<'a> {
    meets: Meets<'a>,
    is_over: Cell<bool>,
}

unsafe extern "C-unwind" fn announced(
    _: *mut Handle,
    uhdr: *mut c_void,
    _: *mut u32,
    _: *mut u64,
    then: *mut Option<CompletionHandler>,
    parameter: *mut *mut c_void,
) -> *mut c_void {
    // SAFETY: what LAPI passes is valid; the user header is an address.
    unsafe {
        *then = Some(meet);
        *parameter = uhdr.cast::<*mut c_void>().read();
    }
    null_mut()
}

unsafe extern "C-unwind" fn meet(handle: *mut Handle, parameter: *mut c_void) {
    // SAFETY: `parameter` is a `Meeting` of this task's program, which waits until this has run; `handle` is LAPI's.
    let (own, handle) = unsafe { (&*parameter.cast::<Meeting<'_>>(), *handle) };
    match own.meets {
        Meets::Loss(kill) => {
            kill();
            watchdog::at("the loss");
            while raw::probe(handle) != codes::PEER_LOST {}
            // Until all has ended that waits for the lost task.
            for _ in 0..10 {
                raw::probe(handle);
            }
        }
        Meets::Purge => ok(raw::purge_totask(handle, 1), "purge"),
    }
    own.is_over.set(true);
}

/// The program of one of two tasks on a network with room for one message. Task 1 dies, or is purged, while a call of task 0 waits for room.
/// The call returns the code, so its function does not run: functions are for transfers that were made.
///
/// # Panics
/// If something of this does not hold.
pub fn a_call_that_fails(builder: Builder, by: By, meets: Meets<'_>) {
    let lapi = Lapi::start(builder).expect("starts");
    // SAFETY: no closure uses it, and no other code ends it.
    let handle = unsafe { lapi.handle() };
    lapi.handler(1, |_, _| Answer::discard()).expect("an index of the table");
    // SAFETY: a header handler.
    ok(unsafe { raw::addr_set(handle, announced as *const () as usize, 2) }, "addr_set");
    let memory = Shared::new(16);
    let there = all(handle, memory.address())[1];
    let fenced = lapi.gfence();
    if lapi.rank() == 1 {
        return match meets {
            Meets::Loss(_) => {
                assert!(fenced.and_then(|()| lapi.wait(&Counter::new(), 1)).is_err(), "it was killed");
            }
            Meets::Purge => lapi.finish().expect("finishes"),
        };
    }
    fenced.expect("both have registered");
    let (own, mut data) = (Sent::default(), [1u8; 16]);
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let (shdlr, sinfo, none) = (Some(sent as raw::SendHandler), own.parameter(), null_mut());
    let start = data.as_mut_ptr().cast::<c_void>();
    let call = || match by {
        By::Message => {
            let what = transfer::Am {
                kind: transfer::AM,
                flags: 0,
                tgt: 1,
                hdr_hdl: 1,
                uhdr_len: 0,
                uhdr: null_mut(),
                udata: start,
                udata_len: 8,
                shdlr,
                sinfo,
                tgt_cntr: 0,
                org_cntr: none,
                cmpl_cntr: none,
            };
            // SAFETY: so short a message is copied, and the function takes this parameter.
            unsafe { raw::xfer(handle, (&raw const what).cast::<transfer::Xfer>()) }
        }
        By::Vector => {
            let (mut from, mut to) =
                ([start, start.wrapping_byte_add(8)], [there, there + 8].map(|at| at as *mut c_void));
            let mut lengths = [[4; 2]; 2];
            let [own_lengths, same] = &mut lengths;
            let (mut org_vec, mut tgt_vec) = (vector(&mut from, own_lengths), vector(&mut to, same));
            let what = transfer::Putv {
                kind: transfer::PUTV,
                flags: 0,
                tgt: 1,
                shdlr,
                sinfo,
                org_vec: &mut org_vec,
                tgt_vec: (&raw mut tgt_vec).cast(),
                tgt_cntr: 0,
                org_cntr: none,
                cmpl_cntr: none,
            };
            // SAFETY: as above.
            unsafe { raw::xfer(handle, (&raw const what).cast::<transfer::Xfer>()) }
        }
        By::Closure => {
            let outcomes = Arc::clone(&outcomes);
            let told = Signal::call(move |outcome| locked(&outcomes).push(outcome.is_ok()));
            let message = lapi.message(1, 1).data(vec![1; 8]).origin(told);
            message.send().err().map_or(codes::SUCCESS, |Code(code)| code)
        }
    };
    let meeting = Meeting { meets, is_over: Cell::new(false) };
    let uhdr = std::ptr::from_ref(&meeting);
    // It arrives here when a call waits.
    // SAFETY: the header is copied; the handler runs while `meeting` lives, as is asserted below.
    let sent = unsafe {
        let (header, len) = ((&raw const uhdr).cast(), size_of_val(&uhdr) as u32);
        raw::amsend(handle, 0, std::ptr::without_provenance(2), header, len, null(), 0, null(), null(), null())
    };
    ok(sent, "a message to this task");
    watchdog::at("calls until one waits for room");
    let mut made = 0;
    let code = loop {
        match call() {
            codes::SUCCESS => {
                assert!(!meeting.is_over.get(), "the call was made all the same");
                made += 1;
            }
            code => break code,
        }
    };
    assert!(meeting.is_over.get(), "while a call waited");
    assert_eq!(code, if let Meets::Loss(_) = meets { codes::PEER_LOST } else { codes::TGT_PURGED });
    match by {
        By::Closure => assert_eq!(*locked(&outcomes), vec![true; made], "of messages that were sent"),
        By::Message | By::Vector => assert_eq!(own.reasons(), vec![codes::SUCCESS; made], "of calls that were made"),
    }
    if let Meets::Purge = meets {
        ok(raw::resume_totask(handle, 1), "resume");
        lapi.finish().expect("finishes");
    }
}
