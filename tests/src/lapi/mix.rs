//! A seeded random mix of all calls, from several threads of each task: nothing is lost, nothing comes twice, no byte is wrong.
//!
//! Every message has a number of its own. Sender and receiver add up counts and hashes of the numbers, for each pair of tasks; in the end
//! of each round all tasks exchange the sums and compare them. The sums go on from round to round, so what comes late, once too often, is
//! found too.

mod calls;
mod events;

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bellwether_runtime::Builder;
use bellwether_runtime::vocabulary::lapi::raw::{
    self, CompletionHandler, Handle, ReturnInfo, Vector, rmw_op, transfer,
};
use bellwether_runtime::vocabulary::lapi::{Answer, Counter, HandlerContext, Landed, Lapi, codes};

use events::{Events, Sender};

use super::one_sided::Shared;
use super::{all, gfence, ok, wait};
use crate::watchdog;

/// How long a mix goes on.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// This number of rounds.
    Rounds(usize),
    /// The first round that ends after so long.
    Time(Duration),
}

/// Threads of each task that call.
const WORKERS: usize = 2;
/// Bytes of the memory that one worker uses at each task.
const SLOT: usize = 300_000;

fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    x = (x ^ (x >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    x ^ (x >> 33)
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn chance(&mut self, one_of: usize) -> bool {
        self.below(one_of) == 0
    }

    /// Mostly short, sometimes around 8 KiB, seldom long.
    fn len(&mut self, most: usize) -> usize {
        let len = match self.below(20) {
            0..=9 => self.below(40),
            10..=14 => self.below(1000),
            15 | 16 => 8192 - 64 + self.below(128),
            17 | 18 => self.below(60_000),
            _ => self.below(SLOT),
        };
        len.min(most)
    }
}

/// The data of a message: any part of it tells where it belongs.
fn data(id: u64, len: usize) -> Vec<u8> {
    (0..len.div_ceil(8)).flat_map(|i| mixed(id ^ (i as u64) << 40).to_ne_bytes()).take(len).collect()
}

/// Count and hash of numbers.
#[derive(Default)]
struct Sum([AtomicU64; 2]);

impl Sum {
    fn add(&self, id: u64) {
        self.0[0].fetch_add(1, Ordering::Relaxed);
        self.0[1].fetch_add(mixed(id), Ordering::Relaxed);
    }

    fn value(&self) -> [u64; 2] {
        self.0.each_ref().map(|word| word.load(Ordering::Relaxed))
    }
}

/// The counts of a task.
struct State {
    n: usize,
    /// Messages by their source, and answers.
    came: Box<[Sum]>,
    answers: Box<[Sum]>,
    /// Messages that were sent to each task, and answers that it owes.
    sent: Box<[Sum]>,
    owed: Box<[Sum]>,
    /// Increments of each task's target counters, rings of its bell, and additions to its words.
    targets: Box<[Sum]>,
    counted: Box<[Sum]>,
    rung: Box<[Sum]>,
    added: Box<[Sum]>,
    wrong: Mutex<Vec<String>>,
    turns: AtomicU64,
}

static STATES: Mutex<Option<HashMap<Handle, Arc<State>>>> = Mutex::new(None);

fn state(handle: Handle) -> Arc<State> {
    Arc::clone(&super::handlers::locked(&STATES).as_ref().expect("set")[&handle])
}

impl State {
    fn new(n: usize) -> State {
        let sums = || (0..n).map(|_| Sum::default()).collect();
        State {
            n,
            came: sums(),
            answers: sums(),
            sent: sums(),
            owed: sums(),
            targets: sums(),
            counted: sums(),
            rung: sums(),
            added: sums(),
            wrong: Mutex::default(),
            turns: AtomicU64::new(0),
        }
    }

    fn arrived(&self, from: usize, header: Header, bytes: &[u8]) {
        let stored = header.stored();
        self.check("a message", header.id, &bytes[..stored], stored);
        if bytes[stored..].iter().any(|byte| *byte != 0) {
            let why = format!("message {:#x}: more than {stored} of {} bytes were stored", header.id, header.len);
            super::handlers::locked(&self.wrong).push(why);
        }
        self.came[from].add(header.id);
    }

    fn check(&self, what: &str, id: u64, bytes: &[u8], len: usize) {
        let wanted = data(id, len);
        if bytes != wanted {
            let wrong: Vec<usize> = (0..len.min(bytes.len())).filter(|i| bytes[*i] != wanted[*i]).collect();
            let (count, first) = (wrong.len(), wrong.first());
            let came = first.map(|first| &bytes[*first..(*first + 16).min(bytes.len())]);
            let why = format!(
                "{what} of {len} bytes, {} came, number {id:#x}: {count} are wrong, from {first:?}: {came:x?}",
                bytes.len()
            );
            super::handlers::locked(&self.wrong).push(why);
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    mode: u32,
    len: u32,
    id: u64,
}

impl Header {
    /// The bytes that the target has stored.
    fn stored(self) -> usize {
        self.len as usize / if self.mode & SHORT != 0 { 2 } else { 1 }
    }

    fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.mode.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.len.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.id.to_ne_bytes());
        bytes
    }
}

const IN_PLACE: u32 = 1;
const INLINE: u32 = 4;
const LOCAL: u32 = 8;
const ANSWER: u32 = 16;
const MAY_DROP: u32 = 32;
/// The data goes nowhere, though there is a place.
const BURY: u32 = 64;
/// Half of the data goes nowhere.
const SHORT: u32 = 128;

/// Indexes of handlers, the same at every task.
const TAKE: usize = 2;
const TAKE_ANSWER: usize = 3;
const TAKE_VECTOR: usize = 4;
const CLOSURE: usize = 20;

/// A message whose data is on its way.
struct Pending {
    header: Header,
    from: usize,
    memory: Vec<u8>,
    /// For a vector message, the vector and its lists.
    vector: Option<(Vector, Vec<u64>, Vec<u64>)>,
}

unsafe extern "C-unwind" fn take(
    handle: *mut Handle,
    uhdr: *mut c_void,
    _: *mut u32,
    msg_len: *mut u64,
    then: *mut Option<CompletionHandler>,
    parameter: *mut *mut c_void,
) -> *mut c_void {
    // SAFETY: what LAPI passes is valid, and every user header here is a `Header`.
    let (state, header, info) =
        unsafe { (state(*handle), uhdr.cast::<Header>().read(), &mut *msg_len.cast::<ReturnInfo>()) };
    let (len, from) = (info.msg_len as usize, info.src as usize);
    if header.mode & MAY_DROP != 0 && state.turns.fetch_add(1, Ordering::Relaxed) % 3 == 0 {
        info.ctl_flags = raw::DROP_PKT;
        return null_mut();
    }
    if header.mode & BURY != 0 {
        state.came[from].add(header.id);
        info.ctl_flags = raw::BURY_MSG;
        // An address outside memory, so that a write to it is noticed.
        return std::ptr::without_provenance_mut(8);
    }
    if header.mode & IN_PLACE != 0 && !info.udata_one_pkt_ptr.is_null() {
        // SAFETY: LAPI passes `len` bytes of data at this address.
        state.arrived(from, header, unsafe { std::slice::from_raw_parts(info.udata_one_pkt_ptr.cast(), len) });
        info.ctl_flags = raw::BURY_MSG;
        return null_mut();
    }
    let mut memory = vec![0; len];
    let start = memory.as_mut_ptr();
    info.bytes = header.stored() as u64;
    info.ret_flags = match header.mode {
        mode if mode & LOCAL != 0 => raw::LOCAL_STATE,
        mode if mode & INLINE != 0 => raw::SEND_REPLY,
        _ => raw::NORMAL,
    };
    // SAFETY: as above.
    unsafe {
        *then = Some(done);
        *parameter = Box::into_raw(Box::new(Pending { header, from, memory, vector: None })).cast();
    }
    start.cast()
}

unsafe extern "C-unwind" fn done(handle: *mut Handle, parameter: *mut c_void) {
    // SAFETY: what a header handler gave, once.
    let (handle, own) = unsafe { (*handle, *Box::from_raw(parameter.cast::<Pending>())) };
    let Pending { header, from, memory, .. } = own;
    state(handle).arrived(from, header, &memory);
    if header.mode & ANSWER != 0 {
        let (uhdr, none) = (Header { mode: 0, len: 0, ..header }, null());
        // SAFETY: a header, which is copied, and no data.
        let code = unsafe {
            let (start, len) = (std::ptr::from_ref(&uhdr).cast(), size_of::<Header>() as u32);
            raw::amsend(handle, from as u32, index(TAKE_ANSWER), start, len, null(), 0, none, none, none)
        };
        ok(code, "an answer");
    }
}

unsafe extern "C-unwind" fn take_answer(
    handle: *mut Handle,
    uhdr: *mut c_void,
    _: *mut u32,
    msg_len: *mut u64,
    _: *mut Option<CompletionHandler>,
    _: *mut *mut c_void,
) -> *mut c_void {
    // SAFETY: as of `take`.
    let (state, header, info) =
        unsafe { (state(*handle), uhdr.cast::<Header>().read(), &*msg_len.cast::<ReturnInfo>()) };
    state.answers[info.src as usize].add(header.id);
    null_mut()
}

unsafe extern "C-unwind" fn take_vector(
    _: *mut Handle,
    uhdr: *mut c_void,
    _: *mut u32,
    lens: *mut u64,
    then: *mut Option<CompletionHandler>,
    parameter: *mut *mut c_void,
) -> *mut Vector {
    // SAFETY: what LAPI passes is valid; the header tells the source and how many places there are.
    let (header, lens) = unsafe {
        let header = uhdr.cast::<Header>().read();
        (header, std::slice::from_raw_parts(lens, (header.mode >> 16) as usize))
    };
    let total: u64 = lens.iter().sum();
    let mut memory = vec![0u8; total as usize];
    let start = memory.as_mut_ptr() as u64;
    // Other pieces than the origin's.
    let cut = mixed(header.id) % (total + 1);
    let (info, lens) = (vec![start, start + cut], vec![cut, total - cut]);
    let from = (header.id >> 56) as usize;
    let mut own = Box::new(Pending { header, from, memory, vector: None });
    let vector = own.vector.insert((
        Vector { vec_type: raw::GEN_GENERIC, num_vecs: 2, info: null_mut(), len: null_mut() },
        info,
        lens,
    ));
    (vector.0.info, vector.0.len) = (vector.1.as_mut_ptr().cast(), vector.2.as_mut_ptr());
    let answer = &raw mut vector.0;
    // SAFETY: as above. The vector stays until the completion handler runs.
    unsafe {
        *then = Some(done);
        *parameter = Box::into_raw(own).cast();
    }
    answer
}

fn index(number: usize) -> *const c_void {
    std::ptr::without_provenance(number)
}

unsafe extern "C-unwind" fn sent(_: *mut Handle, parameter: *mut c_void, _: *mut raw::SendInfo) {
    // SAFETY: a worker's counter.
    unsafe { &*parameter.cast::<Counter>() }.increment();
}

/// The addresses of all tasks, which every task knows.
struct Tables {
    slots: Vec<u64>,
    targets: Vec<u64>,
    words: Vec<u64>,
    /// A word for each worker of each task.
    own_words: Vec<u64>,
    /// The address of [`take`], which may differ between tasks.
    takes: Vec<u64>,
}

struct Worker<'a> {
    handle: Handle,
    me: usize,
    number: usize,
    state: &'a State,
    tables: &'a Tables,
    random: Random,
    serial: u64,
    /// The longest data.
    most: usize,
    origin: Counter,
    completion: Counter,
    kept: Vec<Vec<u8>>,
    expected: [i32; 2],
    fences: bool,
}

/// A function for an event at the origin, and its parameter.
type Function = (Option<raw::SendHandler>, *mut c_void);

impl Worker<'_> {
    fn id(&mut self) -> u64 {
        self.serial += 1;
        Worker::number(self.me, self.number, self.serial)
    }

    /// The number of a message of a worker.
    fn number(task: usize, worker: usize, serial: u64) -> u64 {
        (task as u64) << 56 | (worker as u64) << 48 | serial
    }

    /// A random choice of counters: the target's, ours, and whether a fence has to free the source.
    fn counters(&mut self, to: usize) -> [*const Counter; 3] {
        let mut chosen = [null(); 3];
        if self.random.chance(2) {
            chosen[0] = self.tables.targets[to] as *const Counter;
            self.state.targets[to].add(0);
        }
        if self.random.chance(2) {
            chosen[1] = &self.origin;
            self.expected[0] += 1;
        } else {
            self.fences = true;
        }
        if self.random.chance(2) {
            chosen[2] = &self.completion;
            self.expected[1] += 1;
        }
        chosen
    }

    /// By chance, a function in place of an origin counter, or neither.
    fn function(&mut self) -> Function {
        if self.random.chance(2) {
            return (None, null_mut());
        }
        self.expected[0] += 1;
        (Some(sent), (&raw const self.origin).cast_mut().cast())
    }

    /// Where this worker may write at another task.
    fn slot(&self, to: usize) -> u64 {
        self.tables.slots[to] + (SLOT * (self.me * WORKERS + self.number)) as u64
    }

    fn message(&mut self, to: usize) {
        let (id, len) = (self.id(), self.random.len(self.most));
        let kind = self.random.below(10);
        let mode = match kind {
            9 => SHORT,
            8 => BURY,
            0 => IN_PLACE,
            1 | 2 => LOCAL,
            3 => INLINE | ANSWER,
            4 => ANSWER,
            5 => INLINE | MAY_DROP,
            _ => 0,
        };
        let closure = kind == 7;
        let header = Header { mode: mode | if closure { ANSWER } else { 0 }, len: len as u32, id };
        self.state.sent[to].add(id);
        if header.mode & ANSWER != 0 {
            self.state.owed[to].add(id);
        }
        let bytes = data(id, len);
        let (uhdr, uhdr_len) = (std::ptr::from_ref(&header), size_of::<Header>() as u32);
        let [target, origin, completion] = self.counters(to);
        let handler = match self.random.below(3) {
            _ if closure => CLOSURE,
            0 => self.tables.takes[to] as usize,
            _ => TAKE,
        };
        let code = if self.random.chance(4) {
            let shdlr: Option<raw::SendHandler> = if origin.is_null() { None } else { Some(sent) };
            let what = transfer::Am {
                kind: transfer::AM,
                flags: 0,
                tgt: to as u32,
                hdr_hdl: handler as i64,
                uhdr_len,
                uhdr: uhdr.cast_mut().cast(),
                udata: bytes.as_ptr().cast_mut().cast(),
                udata_len: len as u64,
                shdlr,
                sinfo: origin.cast_mut().cast(),
                tgt_cntr: target as i64,
                org_cntr: null_mut(),
                cmpl_cntr: completion.cast_mut(),
            };
            // SAFETY: all is kept until it is done.
            unsafe { raw::xfer(self.handle, std::ptr::from_ref(&what).cast()) }
        } else {
            let (start, len) = (bytes.as_ptr().cast(), len as u64);
            // SAFETY: as above.
            unsafe {
                let (to, handler) = (to as u32, index(handler));
                raw::amsend(self.handle, to, handler, uhdr.cast(), uhdr_len, start, len, target, origin, completion)
            }
        };
        ok(code, "a message");
        self.kept.push(bytes);
    }

    fn lightweight(&mut self, to: usize) {
        let (id, len) = (self.id(), self.random.below(113));
        let header = Header { mode: IN_PLACE, len: len as u32, id };
        self.state.sent[to].add(id);
        let bytes = data(id, len);
        let what = transfer::Am {
            kind: transfer::AM_LW,
            flags: 0,
            tgt: to as u32,
            hdr_hdl: TAKE as i64,
            uhdr_len: size_of::<Header>() as u32,
            uhdr: std::ptr::from_ref(&header).cast_mut().cast(),
            udata: bytes.as_ptr().cast_mut().cast(),
            udata_len: len as u64,
            shdlr: None,
            sinfo: null_mut(),
            tgt_cntr: 0,
            org_cntr: null_mut(),
            cmpl_cntr: null_mut(),
        };
        // SAFETY: it is copied.
        ok(unsafe { raw::xfer(self.handle, std::ptr::from_ref(&what).cast()) }, "a lightweight message");
    }

    /// Cuts `len` bytes at `start` into a few places.
    fn cut(&mut self, start: u64, len: usize) -> (Vec<u64>, Vec<u64>) {
        let mut ends: Vec<usize> = (0..self.random.below(6)).map(|_| self.random.below(len + 1)).collect();
        ends.push(len);
        ends.sort_unstable();
        let begins: Vec<usize> = std::iter::once(0).chain(ends.iter().copied()).take(ends.len()).collect();
        let info = begins.iter().map(|begin| start + *begin as u64).collect();
        (info, begins.iter().zip(&ends).map(|(begin, end)| (end - begin) as u64).collect())
    }

    fn vector(&mut self, to: usize) {
        let (id, len) = (self.id(), self.random.len(self.most));
        let bytes = data(id, len);
        let (mut info, mut lens) = self.cut(bytes.as_ptr() as u64, len);
        let header = Header { mode: (info.len() as u32) << 16, len: len as u32, id };
        self.state.sent[to].add(id);
        let [target, origin, completion] = self.counters(to);
        let vector = Vector {
            vec_type: raw::GEN_GENERIC,
            num_vecs: info.len() as u32,
            info: info.as_mut_ptr().cast(),
            len: lens.as_mut_ptr(),
        };
        let (uhdr, uhdr_len) = (std::ptr::from_ref(&header), size_of::<Header>() as u32);
        let code = if self.random.chance(2) {
            let mut vector = vector;
            // Runs in place of the counter.
            let shdlr = (!origin.is_null() && self.random.chance(2)).then_some(sent as raw::SendHandler);
            let what = transfer::Amv {
                kind: transfer::AMV,
                flags: 0,
                tgt: to as u32,
                hdr_hdl: TAKE_VECTOR as i64,
                uhdr_len,
                uhdr: uhdr.cast_mut().cast(),
                shdlr,
                sinfo: origin.cast_mut().cast(),
                org_vec: &mut vector,
                tgt_cntr: target as i64,
                org_cntr: if shdlr.is_some() { null_mut() } else { origin.cast_mut() },
                cmpl_cntr: completion.cast_mut(),
            };
            calls::xfer(self.handle, &what)
        } else {
            let (tgt, handler, uhdr) = (to as u32, index(TAKE_VECTOR), uhdr.cast());
            // SAFETY: the data is kept; the description is this call's.
            unsafe { raw::amsendv(self.handle, tgt, handler, uhdr, uhdr_len, &vector, target, origin, completion) }
        };
        ok(code, "a vector message");
        self.kept.push(bytes);
    }

    /// Writes to the own slot at a task, and reads it back.
    fn put_and_get(&mut self, to: usize) {
        let (id, len) = (self.id(), self.random.len(self.most));
        let (bytes, slot) = (data(id, len), self.slot(to));
        let back = Shared::new(len);
        let (done, moved) = (Counter::new(), Counter::new());
        self.put(to, bytes.as_ptr() as u64, slot, len, &done);
        wait(self.handle, &done, 1, "a put of the mix");
        self.get(to, back.address(), slot, len, &moved);
        wait(self.handle, &moved, 1, "a get of the mix");
        self.state.check("a put and get", id, &back.bytes(), len);
        assert_eq!((done.value(), moved.value()), (0, 0), "once");
    }

    fn change(&mut self, to: usize) {
        self.state.added[to].add(0);
        let (word, one, short) = (self.tables.words[to], 1i64, 1i32);
        self.expected[0] += 1;
        let origin = &raw const self.origin;
        // SAFETY: words of task `to`, which are changed by these operations only; no result is asked for.
        let code = unsafe {
            if self.random.chance(2) {
                raw::rmw64(self.handle, rmw_op::FETCH_AND_ADD, to as u32, word as *mut i64, &one, null_mut(), origin)
            } else {
                let word = (word + 8) as *mut i32;
                raw::rmw(self.handle, rmw_op::FETCH_AND_ADD, to as u32, word, &short, null_mut(), origin)
            }
        };
        ok(code, "an atomic operation");
    }

    /// Waits until what was sent has let go of its sources.
    fn settle(&mut self) {
        let [origin, completion] = std::mem::take(&mut self.expected);
        assert_eq!(wait(self.handle, &self.origin, origin, "sources of the mix"), 0, "once each");
        assert_eq!(wait(self.handle, &self.completion, completion, "completions of the mix"), 0, "once each");
        if std::mem::take(&mut self.fences) {
            ok(raw::fence(self.handle), "fence");
        }
        self.kept.clear();
    }

    fn run(&mut self, calls: usize) {
        for _ in 0..calls {
            let to = self.random.below(self.state.n);
            match self.random.below(20) {
                0..=6 => self.message(to),
                7 => self.lightweight(to),
                8 | 9 => self.vector(to),
                10 | 11 => self.put_and_get(to),
                12 | 13 => self.change(to),
                14 => self.local(),
                15 => self.strided(to),
                16 | 17 => self.change_own(to),
                18 => self.with_status(to),
                _ => ok(raw::fence(self.handle), "fence"),
            }
            if self.random.chance(16) {
                self.settle();
            }
        }
        self.settle();
    }
}

/// Rounds with one handle. Then `Term` ends it, and `Init` makes another.
const ROUNDS: usize = 2;

/// Makes `state` known to the handlers of the handle, and sets these. Returns the handle.
fn prepare(lapi: &Lapi, state: &Arc<State>) -> Handle {
    // SAFETY: no handler of the mix waits, and the job's own calls end the handle.
    let handle = unsafe { lapi.handle() };
    super::handlers::locked(&STATES).get_or_insert_default().insert(handle, Arc::clone(state));
    for (index, handler) in
        [(TAKE, take as *const ()), (TAKE_ANSWER, take_answer as *const ()), (TAKE_VECTOR, take_vector as *const ())]
    {
        // SAFETY: handlers of this module.
        ok(unsafe { raw::addr_set(handle, handler as usize, index as i32) }, "addr_set");
    }
    let own = Arc::clone(state);
    let closure = lapi.handler(CLOSURE, move |_, announced| {
        // SAFETY: every user header here is a `Header`.
        let header = unsafe { announced.header().as_ptr().cast::<Header>().read_unaligned() };
        // Taken here, or later.
        let taken = announced.data().filter(|_| header.id % 3 == 0);
        if let Some(data) = taken {
            own.arrived(announced.from(), header, data);
        }
        let (own, is_taken) = (Arc::clone(&own), taken.is_some());
        let then = move |context: &HandlerContext<'_>, landed: Landed| {
            let (from, uhdr) = (landed.from(), landed.header().to_vec());
            if !is_taken {
                own.arrived(from, header, &landed.into_vec());
            }
            context.send(from, TAKE_ANSWER, &uhdr, &[]).expect("an answer");
        };
        let answer = if is_taken { Answer::discard() } else { Answer::vec(Vec::new()) };
        if header.id % 2 == 0 { answer.then(then) } else { answer.then_inline(then) }
    });
    closure.expect("an index of the table");
    handle
}

/// Runs the mix as one task of the job that `builder` describes. The data of messages has up to `most` bytes. Returns rounds, and messages
/// that came to this task.
pub fn run(builder: Builder, seed: u64, until: Until, most: usize, virtual_time: bool) -> (usize, u64) {
    let mut lapi = Lapi::start(builder).expect("starts");
    let (me, n) = (lapi.rank(), lapi.size());
    let state = Arc::new(State::new(n));
    let mut handle = prepare(&lapi, &state);
    let mut events = Events::new(&lapi, [0; 2]);
    let slots = Shared::new(SLOT * WORKERS * n);
    let target = Counter::new();
    // Eight bytes, and four.
    let words = [const { AtomicU64::new(0) }; 2];
    let workers = if virtual_time { 1 } else { WORKERS };
    let own_words: Box<[AtomicU64]> = (0..n * WORKERS).map(|_| AtomicU64::new(0)).collect();
    let tables = Tables {
        own_words: all(handle, own_words.as_ptr() as u64),
        takes: all(handle, take as *const () as u64),
        slots: all(handle, slots.address()),
        targets: all(handle, target.address() as u64),
        words: all(handle, words.as_ptr() as u64),
    };
    let mut serials = vec![0; workers];
    let mut next = Worker::number(me, WORKERS, 1);
    let began = Instant::now();
    let mut rounds = 0;
    let mut messages;
    loop {
        let once = events.once(&lapi);
        gfence(handle);
        // Only calls make progress in every other round, chosen by each task for itself. Simulated tasks are always so.
        if !virtual_time {
            let interrupts = mixed(seed ^ mixed((rounds * 1000 + me) as u64)) as i32 & 1;
            ok(raw::senv(handle, raw::query::INTERRUPT_SET, interrupts), "senv");
        }
        let run = |number: usize, serial: &mut u64| {
            let seed = mixed(seed ^ mixed((rounds * 1000 + me * 10 + number) as u64));
            let mut worker = Worker {
                handle,
                me,
                number,
                state: &state,
                tables: &tables,
                random: Random(seed),
                serial: *serial,
                most,
                origin: Counter::new(),
                completion: Counter::new(),
                kept: Vec::new(),
                expected: [0; 2],
                fences: false,
            };
            worker.run(if virtual_time { 30 } else { 200 });
            *serial = worker.serial;
        };
        let mut sender = Sender {
            lapi: &lapi,
            handle,
            state: &state,
            events: &mut events,
            random: Random(mixed(seed ^ mixed((rounds * 1000 + me * 10 + WORKERS) as u64))),
            next: &mut next,
            most,
        };
        if virtual_time {
            run(0, &mut serials[0]);
            sender.run(5, once);
        } else {
            std::thread::scope(|scope| {
                for (number, serial) in serials.iter_mut().enumerate() {
                    scope.spawn(move || run(number, serial));
                }
                sender.run(40, once);
            });
        }
        gfence(handle);
        // The sums that concern this task, from each.
        let table = |mine: &dyn Fn(usize) -> u64| -> Vec<u64> {
            let tables: Vec<_> = (0..n).map(|to| all(handle, mine(to))).collect();
            tables[me].clone()
        };
        let of = |sums: &[Sum]| -> Vec<[u64; 2]> {
            let (counts, hashes) = (table(&|to| sums[to].value()[0]), table(&|to| sums[to].value()[1]));
            counts.into_iter().zip(hashes).map(|(count, hash)| [count, hash]).collect()
        };
        let (expected, increments, added) = (of(&state.sent), of(&state.targets), of(&state.added));
        let total = |sums: &[Sum]| of(sums).iter().map(|sum| sum[0]).sum::<u64>();
        let signals = [total(&state.counted), total(&state.rung)];
        // A gfence waits for data, and not for handlers.
        loop {
            let came: Vec<_> = state.came.iter().map(Sum::value).collect();
            let answers: Vec<_> = state.answers.iter().map(Sum::value).collect();
            let owed: Vec<_> = state.owed.iter().map(Sum::value).collect();
            let moved = target.value() as u64;
            let moves: u64 = increments.iter().map(|sum| sum[0]).sum();
            let signalled = events.came(&lapi);
            watchdog::at(format!(
                "mix, round {rounds}: {came:?} of {expected:?}, answers {answers:?} of {owed:?}, {moved} of {moves}, \
                 {signalled:?} of {signals:?}"
            ));
            let over = |now: &[[u64; 2]], end: &[[u64; 2]]| now.iter().zip(end).any(|(now, end)| now[0] > end[0]);
            assert!(!over(&came, &expected) && !over(&answers, &owed) && moved <= moves, "something came twice");
            assert!(!over(&[signalled], &[signals]) && signalled[1] <= signals[1], "an event came twice");
            let done = came == expected && answers == owed && moved == moves && signalled == signals;
            let wrong = super::handlers::locked(&state.wrong).clone();
            assert!(wrong.is_empty(), "seed {seed}, round {rounds}: {wrong:?}");
            if all(handle, done.into()).iter().all(|done| *done == 1) {
                messages = came.iter().map(|sum| sum[0]).sum();
                break;
            }
        }
        let total: u64 = words[0].load(Ordering::Relaxed) + words[1].load(Ordering::Relaxed);
        assert_eq!(total, added.iter().map(|sum| sum[0]).sum::<u64>(), "seed {seed}, round {rounds}: additions");
        // No task is in its next round before this one has come to the end of this.
        calls::purge(handle, (me + rounds) % n);
        rounds += 1;
        let over = match until {
            Until::Rounds(most) => rounds >= most,
            Until::Time(limit) => began.elapsed() >= limit,
        };
        // Task 0 decides.
        if all(handle, over.into())[0] == 1 {
            break;
        }
        if rounds.is_multiple_of(ROUNDS) {
            watchdog::at("Term and Init");
            lapi.restart().expect("another handle");
            super::handlers::locked(&STATES).get_or_insert_default().remove(&handle);
            handle = prepare(&lapi, &state);
            events = Events::new(&lapi, signals);
        }
    }
    assert_eq!(codes::SUCCESS, raw::gfence(handle));
    super::handlers::locked(&STATES).get_or_insert_default().remove(&handle);
    lapi.finish().expect("finishes");
    (rounds, messages)
}
