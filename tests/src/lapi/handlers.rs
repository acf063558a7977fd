//! Header and completion handlers whose behaviour the user header chooses, and what they have seen.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::ThreadId;

use bellwether_runtime::vocabulary::lapi::raw::{self, CompletionHandler, Handle, ReturnInfo};
use bellwether_runtime::vocabulary::lapi::{Counter, codes};

/// The user header: what to do, which message, and where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Header {
    pub(super) mode: u32,
    pub(super) tag: u32,
    /// An address at the target, or another number.
    pub(super) address: u64,
}

/// The header handler takes the data where it is, and returns null.
pub(super) const CONSUME: u32 = 1;
/// The data is dropped though there is a place.
pub(super) const BURY: u32 = 2;
/// The message is dropped the first two times.
pub(super) const DROP: u32 = 4;
/// There is a completion handler.
pub(super) const THEN: u32 = 8;
/// It runs inline, and may reply.
pub(super) const INLINE: u32 = 16;
/// It runs inline, and does not communicate.
pub(super) const LOCAL: u32 = 32;
/// It sends a message to the source.
pub(super) const REPLY: u32 = 64;
/// It waits for its reply too.
pub(super) const WAIT: u32 = 128;
/// The data goes to `address`.
pub(super) const PLACE: u32 = 256;
/// The handlers try to call.
pub(super) const CALL: u32 = 512;
/// The header handler panics.
pub(super) const PANIC: u32 = 1024;
/// The completion handler waits until the row opens the gate.
pub(super) const GATE: u32 = 2048;
/// The completion handler panics.
pub(super) const PANIC_LATE: u32 = 4096;
/// Half of the data is stored.
pub(super) const HALF: u32 = 8192;

/// The completion handler looks at the counter at `address`.
pub(super) const LOOK: u32 = 16384;
/// The completion handler sets the word at `address` to 1.
pub(super) const FLAG: u32 = 32768;
/// An inline completion handler asks for a counter, as one that waits does.
pub(super) const POLL: u32 = 1 << 16;
/// The header handler notes the first and the last byte of the place at `address`.
pub(super) const NOTE: u32 = 1 << 17;

/// The completion handler sends [`SPREAD_TO`] messages on, whose handlers do so too, as often as the tag says.
pub(super) const SPREAD: u32 = 1 << 18;
pub(super) const SPREAD_TO: u64 = 4;
/// The lengths of their data.
const SPREAD_LENGTHS: [usize; 5] = [0, 8, 100, 9000, 0];
static SPREAD_DATA: [u8; 9000] = [7; 9000];

/// The observations of one call of a header handler.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    pub(super) header: Header,
    pub(super) header_len: u32,
    pub(super) len: u64,
    pub(super) from: usize,
    pub(super) flags: (i32, i32),
    pub(super) has_data: bool,
    pub(super) consumed: Vec<u8>,
    pub(super) depth: usize,
    /// The codes that calls returned.
    pub(super) codes: Vec<i32>,
    pub(super) thread: Option<ThreadId>,
}

/// The observations of the handlers of one handle.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) calls: Vec<Call>,
    /// The completion handlers that have run: tag, and the data as it was then.
    pub(super) done: Vec<(u32, Vec<u8>)>,
    pub(super) done_on: Vec<ThreadId>,
    pub(super) done_codes: Vec<i32>,
    /// The values of the counters that completion handlers read.
    pub(super) looked: Vec<i32>,
    pub(super) places: HashMap<u32, Box<[u8]>>,
    old_places: Vec<Box<[u8]>>,
    drops: HashMap<u32, u32>,
    /// Header handlers and inline completion handlers that run.
    depth: usize,
    /// The most that ran at a time.
    pub(super) deepest: usize,
    pub(super) gate: bool,
}

impl Seen {
    /// Counts a handler that begins. Returns how many run.
    fn enter(&mut self) -> usize {
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        self.depth
    }
}

static SEEN: Mutex<Option<HashMap<Handle, Arc<Mutex<Seen>>>>> = Mutex::new(None);

/// The observations of the handlers of `handle`.
pub(super) fn seen(handle: Handle) -> Arc<Mutex<Seen>> {
    let mut all = locked(&SEEN);
    Arc::clone(all.get_or_insert_default().entry(handle).or_default())
}

pub(super) fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    locked(seen)
}

/// The thread sanitizer does not see the order of locks that wait: they run precompiled code.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    if cfg!(bellwether_tsan) {
        loop {
            match mutex.try_lock() {
                Ok(lock) => return lock,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Parameter {
    header: Header,
    from: usize,
    place: *const u8,
    len: usize,
}

/// The index of [`take`] in every task's table: processes may have it at different addresses.
pub(super) const TAKE: *const c_void = std::ptr::without_provenance(1);

/// The header handler of most rows.
pub(super) unsafe extern "C-unwind" fn take(
    handle: *mut Handle,
    uhdr: *mut c_void,
    uhdr_len: *mut u32,
    msg_len: *mut u64,
    then: *mut Option<CompletionHandler>,
    parameter: *mut *mut c_void,
) -> *mut c_void {
    // SAFETY: what LAPI passes is valid.
    let (handle, uhdr_len, info, then, parameter) =
        unsafe { (*handle, *uhdr_len, &mut *msg_len.cast::<ReturnInfo>(), &mut *then, &mut *parameter) };
    let mut header = Header::default();
    let len = (uhdr_len as usize).min(size_of::<Header>());
    // SAFETY: the user header has at least `len` bytes, and any bytes are a `Header`.
    unsafe { std::ptr::copy_nonoverlapping(uhdr.cast::<u8>(), (&raw mut header).cast(), len) };
    assert_eq!(info.magic, raw::MAGIC);
    let state = seen(handle);
    let has = |bit| header.mode & bit != 0;
    let mut call = Call {
        header,
        header_len: uhdr_len,
        len: info.msg_len,
        from: info.src as usize,
        flags: (info.ret_flags, info.ctl_flags),
        has_data: !info.udata_one_pkt_ptr.is_null(),
        thread: Some(std::thread::current().id()),
        ..Call::default()
    };
    {
        let mut seen = lock(&state);
        call.depth = seen.enter();
    }
    if has(PANIC) {
        lock(&state).depth -= 1;
        panic!("message {} is not wanted", header.tag);
    }
    if has(CALL) {
        call.codes = calls(handle, call.from as u32);
    }
    let mut seen = lock(&state);
    seen.depth -= 1;
    if has(DROP) {
        let waits = has(GATE) && !seen.gate;
        let drops = seen.drops.entry(header.tag).or_default();
        *drops += 1;
        if waits || *drops <= 2 {
            seen.calls.push(call);
            info.ctl_flags = raw::DROP_PKT;
            return std::ptr::null_mut();
        }
    }
    let mut place: *mut u8 = std::ptr::null_mut();
    if has(CONSUME) && call.has_data {
        let start = info.udata_one_pkt_ptr.cast::<u8>();
        // SAFETY: LAPI passes `msg_len` bytes of data at this address.
        call.consumed = unsafe { std::slice::from_raw_parts(start, info.msg_len as usize) }.to_vec();
        info.ctl_flags = raw::BURY_MSG;
    } else if has(PLACE) {
        place = header.address as *mut u8;
        if has(NOTE) {
            // SAFETY: the row's buffer, which no other task writes before this has returned.
            call.consumed = unsafe { vec![place.read(), place.add(info.msg_len as usize - 1).read()] };
        }
    } else {
        let fresh = vec![0xEE; info.msg_len as usize].into();
        let old = seen.places.insert(header.tag, fresh);
        // A completion handler may look at it.
        seen.old_places.extend(old);
        place = seen.places.get_mut(&header.tag).expect("just made").as_mut_ptr();
    }
    if has(BURY) {
        info.ctl_flags = raw::BURY_MSG;
    }
    if has(HALF) {
        info.bytes = info.msg_len / 2;
    }
    if has(THEN) {
        *then = Some(done);
        let own = Parameter { header, from: call.from, place, len: info.msg_len as usize };
        *parameter = Box::into_raw(Box::new(own)).cast();
        if has(INLINE) {
            info.ret_flags = raw::SEND_REPLY;
        }
        if has(LOCAL) {
            info.ret_flags = raw::LOCAL_STATE;
        }
    }
    seen.calls.push(call);
    place.cast()
}

/// A second header handler, which differs from [`take`] in nothing but that.
pub(super) unsafe extern "C-unwind" fn take_other(
    handle: *mut Handle,
    uhdr: *mut c_void,
    uhdr_len: *mut u32,
    msg_len: *mut u64,
    then: *mut Option<CompletionHandler>,
    parameter: *mut *mut c_void,
) -> *mut c_void {
    // SAFETY: as LAPI passes them.
    let place = unsafe { take(handle, uhdr, uhdr_len, msg_len, then, parameter) };
    // SAFETY: as above.
    let state = seen(unsafe { *handle });
    lock(&state).calls.last_mut().expect("just noted").header.address = 77;
    place
}

unsafe extern "C-unwind" fn done(handle: *mut Handle, parameter: *mut c_void) {
    // SAFETY: what `take` gave, once.
    let (handle, own) = unsafe { (*handle, Box::from_raw(parameter.cast::<Parameter>())) };
    let state = seen(handle);
    let has = |bit| own.header.mode & bit != 0;
    while has(GATE) && !lock(&state).gate {
        std::thread::yield_now();
    }
    if has(PANIC_LATE) {
        panic!("message {} cannot be handled", own.header.tag);
    }
    let is_inline = has(INLINE) || has(LOCAL);
    if is_inline {
        lock(&state).enter();
    }
    let mut codes = Vec::new();
    if has(CALL) {
        codes = calls(handle, own.from as u32);
    }
    if has(REPLY) {
        let header = Header { tag: own.header.tag, ..Header::default() };
        let arrived = Counter::new();
        let counter: *const Counter = if has(WAIT) { &arrived } else { std::ptr::null() };
        let code = send(handle, own.from, TAKE, &header, &[7; 100], [std::ptr::null(), std::ptr::null(), counter]);
        codes.push(code);
        if has(WAIT) {
            // SAFETY: a valid counter.
            codes.push(unsafe { raw::waitcntr(handle, &arrived, 1, std::ptr::null_mut()) });
        }
    }
    if has(SPREAD) {
        codes.extend((0..SPREAD_TO).map(|child| spread(handle, &own, child)));
    }
    if has(POLL) {
        (0..10).for_each(|_| _ = super::get(handle, &Counter::new()));
    }
    if is_inline {
        lock(&state).depth -= 1;
    }
    let address = std::ptr::with_exposed_provenance::<c_void>(own.header.address as usize);
    if has(LOOK) {
        // SAFETY: a counter of the row, which waits for this handler.
        lock(&state).looked.push(unsafe { &*address.cast::<Counter>() }.value());
    }
    if has(FLAG) {
        // SAFETY: a word of the row, which waits for this handler.
        unsafe { &*address.cast::<AtomicU64>() }.store(1, Ordering::Release);
    }
    let data = if own.place.is_null() || has(PLACE) {
        Vec::new()
    } else {
        // SAFETY: the place is in `places`, where no other code uses it.
        unsafe { std::slice::from_raw_parts(own.place, own.len) }.to_vec()
    };
    let mut seen = lock(&state);
    seen.done.push((own.header.tag, data));
    seen.done_on.push(std::thread::current().id());
    seen.done_codes.extend(codes);
}

/// Sends the message with this number of those that the handler of a message sends on. All have different addresses.
fn spread(handle: Handle, Parameter { header: parent, from, .. }: &Parameter, child: u64) -> i32 {
    let (me, n) = super::place(handle);
    // An inline handler may send to the source of its message only.
    let to = if parent.mode & INLINE != 0 { *from } else { (me + child as usize) % n };
    let inline = if child.is_multiple_of(2) { INLINE } else { 0 };
    let tag = parent.tag - 1;
    let mode = if tag == 0 { 0 } else { SPREAD | THEN | inline };
    let (root, place) = (parent.address >> 8, parent.address & 255);
    let header = Header { mode, tag, address: root << 8 | (SPREAD_TO * place + 1 + child) };
    let data = &SPREAD_DATA[..SPREAD_LENGTHS[(place % 5) as usize]];
    send(handle, to, TAKE, &header, data, [std::ptr::null(); 3])
}

/// The codes of calls that handlers may not make.
pub(super) fn calls(handle: Handle, from: u32) -> Vec<i32> {
    // A message to oneself moves it when this has returned.
    let (counter, mut value): (&Counter, _) = (Box::leak(Box::new(Counter::new())), 0);
    let mut table = [0; 64];
    let other = (from + 1) % super::query(handle, raw::query::NUM_TASKS) as u32;
    let (null, none) = (std::ptr::null(), std::ptr::null());
    // SAFETY: all is valid.
    let codes = unsafe {
        vec![
            raw::waitcntr(handle, counter, 0, &mut value),
            raw::probe(handle),
            raw::fence(handle),
            raw::gfence(handle),
            raw::address_init(handle, 1, table.as_mut_ptr()),
            raw::term(handle),
            raw::amsend(handle, from, TAKE, null, 0, null, 0, none, none, none),
            raw::amsend(handle, other, TAKE, null, 0, null, 0, counter, counter, counter),
        ]
    };
    // The origin counter of a message that is sent has moved when the call returns.
    assert_eq!(counter.value() != 0, codes[7] == codes::SUCCESS, "no counter moves where a call is refused");
    codes
}

/// The codes of [`calls`] where nothing may be called.
pub(super) const REFUSED: [i32; 8] = [codes::IN_HANDLER; 8];

/// Sends with a user header; counters in LAPI's order.
pub(super) fn send(
    handle: Handle,
    to: usize,
    handler: *const c_void,
    header: &Header,
    data: &[u8],
    [target, origin, completion]: [*const Counter; 3],
) -> i32 {
    let (uhdr, len) = (std::ptr::from_ref(header).cast(), size_of::<Header>() as u32);
    let (data, data_len) = (data.as_ptr().cast(), data.len() as u64);
    // SAFETY: header and data are valid; rows keep the data and the counters until the counters have moved.
    unsafe { raw::amsend(handle, to as u32, handler, uhdr, len, data, data_len, target, origin, completion) }
}
