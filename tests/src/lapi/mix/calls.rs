//! The calls of the mix besides messages: `Xfer` of every type, vectors of every type, atomic operations whose results are known, and
//! calls that concern this task alone.

use std::ffi::c_void;
use std::ptr::null_mut;

use bellwether_runtime::vocabulary::lapi::raw::{self, Handle, Vector, msg_status, rmw_op, transfer};
use bellwether_runtime::vocabulary::lapi::{Counter, codes};

use super::{Header, IN_PLACE, SLOT, Shared, TAKE, Worker, data, index, mixed, ok, sent, take, wait};

/// An index that a worker sets; each worker its own.
const SPARE: i32 = 40;

/// Places of memory, as a [`Vector`] names them.
#[derive(Clone)]
pub(super) struct Places {
    kind: i32,
    count: u32,
    info: Vec<u64>,
    lens: Vec<u64>,
}

impl Places {
    pub(super) fn list(kind: i32, (info, lens): (Vec<u64>, Vec<u64>)) -> Places {
        Places { kind, count: info.len() as u32, info, lens }
    }

    fn strided(start: u64, [block, stride, count]: [u64; 3]) -> Places {
        Places { kind: raw::GEN_STRIDED_XFER, count: count as u32, info: vec![start, block, stride], lens: Vec::new() }
    }

    pub(super) fn vector(&mut self) -> Vector {
        let (info, len) = (self.info.as_mut_ptr().cast(), self.lens.as_mut_ptr());
        Vector { vec_type: self.kind, num_vecs: self.count, info, len }
    }
}

fn mutable(counter: &Counter) -> *mut Counter {
    std::ptr::from_ref(counter).cast_mut()
}

/// A completion handler of a get: adds one.
unsafe extern "C-unwind" fn here(_: *mut Handle, parameter: *mut c_void) {
    // SAFETY: the counter of a get, whose worker waits for it.
    unsafe { &*parameter.cast::<Counter>() }.increment();
}

pub(super) fn xfer<T>(handle: Handle, what: &T) -> i32 {
    // SAFETY: callers give a member of the union with its type, and what it names stays until it is done.
    unsafe { raw::xfer(handle, std::ptr::from_ref(what).cast()) }
}

impl Worker<'_> {
    /// The places of `len` bytes at `here` and at `there`, which suit each other, and those of the data at `there` again for a way back.
    fn places(&mut self, here: u64, there: u64, len: usize) -> [Places; 2] {
        if self.random.chance(2) {
            // Other pieces at either side.
            return [here, there].map(|start| Places::list(raw::GEN_GENERIC, self.cut(start, len)));
        }
        let (info, lens) = self.cut(here, len);
        let moved = info.iter().map(|place| place - here + there).collect();
        [(info, lens.clone()), (moved, lens)].map(|list| Places::list(raw::GEN_IOVECTOR, list))
    }

    /// Puts `len` bytes at `here` to `there`, in one of four ways.
    pub(super) fn put(&mut self, to: usize, here: u64, there: u64, len: usize, done: &Counter) {
        let target = self.tables.targets[to] as *const Counter;
        self.state.targets[to].add(0);
        let by_xfer = self.random.chance(2);
        let code = if self.random.chance(2) {
            let [mut own, mut other] = self.places(here, there, len);
            self.put_vector(to, &mut own.vector(), &mut other.vector(), done, by_xfer)
        } else if by_xfer {
            let (shdlr, sinfo) = self.function();
            let what = transfer::Put {
                kind: transfer::PUT,
                flags: 0,
                tgt: to as u32,
                tgt_addr: there as i64,
                org_addr: here as *mut c_void,
                len: len as u64,
                shdlr,
                sinfo,
                tgt_cntr: target as i64,
                org_cntr: null_mut(),
                cmpl_cntr: mutable(done),
            };
            xfer(self.handle, &what)
        } else {
            let (start, there) = (here as *const c_void, there as *mut c_void);
            // SAFETY: the memory at both ends is this worker's, which waits for `done`.
            unsafe { raw::put(self.handle, to as u32, len as u64, there, start, target, std::ptr::null(), done) }
        };
        ok(code, "a put");
    }

    fn put_vector(&mut self, to: usize, own: &mut Vector, there: &mut Vector, done: &Counter, by_xfer: bool) -> i32 {
        let target = self.tables.targets[to] as *const Counter;
        if !by_xfer {
            // SAFETY: as of `put`; the description is this call's.
            return unsafe { raw::putv(self.handle, to as u32, there, own, target, std::ptr::null(), done) };
        }
        let (shdlr, sinfo) = self.function();
        let what = transfer::Putv {
            kind: transfer::PUTV,
            flags: 0,
            tgt: to as u32,
            shdlr,
            sinfo,
            org_vec: own,
            tgt_vec: std::ptr::from_mut(there).cast(),
            tgt_cntr: target as i64,
            org_cntr: null_mut(),
            cmpl_cntr: mutable(done),
        };
        xfer(self.handle, &what)
    }

    /// What moves `moved` when data has arrived: a completion handler, or the get itself.
    fn arrival(&mut self, moved: &Counter) -> (Option<raw::CompletionHandler>, *mut c_void, *mut Counter) {
        let counter = mutable(moved);
        if self.random.chance(2) { (Some(here), counter.cast(), null_mut()) } else { (None, null_mut(), counter) }
    }

    /// Gets `len` bytes at `there` to `here`, in one of four ways.
    pub(super) fn get(&mut self, to: usize, here: u64, there: u64, len: usize, moved: &Counter) {
        let by_xfer = self.random.chance(2);
        let code = if self.random.chance(2) {
            let [mut own, mut other] = self.places(here, there, len);
            self.get_vector(to, &mut own.vector(), &mut other.vector(), moved, by_xfer)
        } else if by_xfer {
            let (chndlr, cinfo, org_cntr) = self.arrival(moved);
            let what = transfer::Get {
                kind: transfer::GET,
                flags: 0,
                tgt: to as u32,
                tgt_addr: there as i64,
                org_addr: here as *mut c_void,
                len: len as u64,
                tgt_cntr: 0,
                org_cntr,
                chndlr,
                cinfo,
            };
            xfer(self.handle, &what)
        } else {
            let (start, there) = (here as *mut c_void, there as *const c_void);
            // SAFETY: the memory at both ends is this worker's, which waits for `moved`.
            unsafe { raw::get(self.handle, to as u32, len as u64, there, start, std::ptr::null(), moved) }
        };
        ok(code, "a get");
    }

    fn get_vector(&mut self, to: usize, own: &mut Vector, there: &mut Vector, moved: &Counter, by_xfer: bool) -> i32 {
        if !by_xfer {
            // SAFETY: as of `get`; the description is this call's.
            return unsafe { raw::getv(self.handle, to as u32, there, own, std::ptr::null(), moved) };
        }
        let (chndlr, cinfo, org_cntr) = self.arrival(moved);
        let what = transfer::Getv {
            kind: transfer::GETV,
            flags: 0,
            tgt: to as u32,
            org_vec: own,
            tgt_vec: std::ptr::from_mut(there).cast(),
            tgt_cntr: 0,
            org_cntr,
            chndlr,
            cinfo,
        };
        xfer(self.handle, &what)
    }

    /// Writes blocks at equal distances to the own slot at a task, and reads them back.
    pub(super) fn strided(&mut self, to: usize) {
        let (block, gap) = (1 + self.random.below(500), self.random.below(9));
        let most = SLOT.min(self.most) / (block + gap);
        let count = 1 + self.random.below(most.clamp(1, 300));
        let (id, len, there) = (self.id(), block * count, self.slot(to));
        let (bytes, back) = (data(id, len), Shared::new(len));
        let [packed, spread] = [block, block + gap].map(|stride| [block as u64, stride as u64, count as u64]);
        let by_xfer = self.random.chance(2);
        let (done, moved) = (Counter::new(), Counter::new());
        self.state.targets[to].add(0);
        let mut other = Places::strided(there, spread);
        let mut own = Places::strided(bytes.as_ptr() as u64, packed);
        ok(self.put_vector(to, &mut own.vector(), &mut other.vector(), &done, by_xfer), "a strided put");
        wait(self.handle, &done, 1, "a strided put of the mix");
        let mut own = Places::strided(back.address(), packed);
        ok(self.get_vector(to, &mut own.vector(), &mut other.vector(), &moved, by_xfer), "a strided get");
        wait(self.handle, &moved, 1, "a strided get of the mix");
        self.state.check("a strided put and get", id, &back.bytes(), len);
    }

    /// Every atomic operation, with known results, because no other worker changes the word.
    pub(super) fn change_own(&mut self, to: usize) {
        let word = self.tables.own_words[to] + 8 * (self.me * super::WORKERS + self.number) as u64;
        let wide = self.random.chance(2);
        let [first, second, third] = [(); 3].map(|()| self.random.next() as i64).map(|value| match wide {
            true => value,
            false => i64::from(value as i32),
        });
        let narrow = |value: i64| if wide { value } else { i64::from(value as i32) };
        self.rmw(to, word, wide, rmw_op::SWAP, [first, 0]);
        let either = first | second;
        let sum = narrow(either.wrapping_add(third));
        for (op, operands, expected) in [
            (rmw_op::FETCH_AND_OR, [second, 0], first),
            (rmw_op::FETCH_AND_ADD, [third, 0], either),
            (rmw_op::COMPARE_AND_SWAP, [sum ^ 1, first], 0),
            (rmw_op::COMPARE_AND_SWAP, [sum, first], 1),
            (rmw_op::SWAP, [second, 0], first),
        ] {
            let came = self.rmw(to, word, wide, op, operands);
            assert_eq!(came, expected, "operation {op} with {operands:x?}");
        }
    }

    /// The result of an atomic operation.
    fn rmw(&mut self, to: usize, word: u64, wide: bool, op: i32, operands: [i64; 2]) -> i64 {
        let done = Counter::new();
        let (mut long, mut short) = (0i64, 0i32);
        let shorts = operands.map(|operand| operand as i32);
        let (tgt, handle) = (to as u32, self.handle);
        let code = if self.random.chance(2) {
            let (input, result): (*const c_void, *mut c_void) = match wide {
                true => (operands.as_ptr().cast(), (&raw mut long).cast()),
                false => (shorts.as_ptr().cast(), (&raw mut short).cast()),
            };
            let (shdlr, sinfo): super::Function = match self.random.chance(2) {
                true => (Some(sent), mutable(&done).cast()),
                false => (None, null_mut()),
            };
            let what = transfer::Rmw {
                kind: transfer::RMW,
                op,
                tgt,
                size: if wide { 64 } else { 32 },
                tgt_var: word as i64,
                in_val: input.cast_mut(),
                prev_tgt_val: result,
                org_cntr: if shdlr.is_some() { null_mut() } else { mutable(&done) },
                shdlr,
                sinfo,
            };
            xfer(handle, &what)
        } else {
            // SAFETY: a word of task `to` that is this worker's; operands and result stay until the wait has ended.
            unsafe {
                match wide {
                    true => raw::rmw64(handle, op, tgt, word as *mut i64, operands.as_ptr(), &mut long, &done),
                    false => raw::rmw(handle, op, tgt, word as *mut i32, shorts.as_ptr(), &mut short, &done),
                }
            }
        };
        ok(code, "an atomic operation");
        assert_eq!(wait(handle, &done, 1, "an atomic operation of the mix"), 0, "once");
        if wide { long } else { short.into() }
    }

    /// A message whose counter tells which task has it.
    pub(super) fn with_status(&mut self, to: usize) {
        let (counter, mut state) = (Counter::new(), -1);
        let (own, place) = (std::ptr::from_ref(&counter), &raw mut state);
        let read = || {
            // SAFETY: the state stays until it is given up below.
            unsafe { place.read_volatile() }
        };
        let (id, len) = (self.id(), self.random.below(500));
        let header = Header { mode: IN_PLACE, len: len as u32, id };
        let bytes = data(id, len);
        self.state.sent[to].add(id);
        let (tgt, handle) = (to as u32, self.handle);
        // SAFETY: all of it stays until the wait has ended.
        unsafe {
            ok(raw::setcntr(handle, own, 3), "setcntr");
            ok(raw::setcntr_wstatus(handle, own, 1, &tgt, place), "setcntr_wstatus");
            let (uhdr, uhdr_len) = (std::ptr::from_ref(&header).cast(), size_of::<Header>() as u32);
            let (start, len, none) = (bytes.as_ptr().cast(), len as u64, std::ptr::null());
            let sent = raw::amsend(handle, tgt, index(TAKE), uhdr, uhdr_len, start, len, none, none, own);
            ok(sent, "a message with a status");
            crate::watchdog::at("nopoll_wait of the mix");
            let mut left = -1;
            ok(raw::nopoll_wait(handle, own, 1, &mut left), "nopoll_wait");
            assert_eq!(left, 0, "once");
        }
        assert_eq!(read(), msg_status::RECVD);
    }

    /// Calls that concern this task alone.
    pub(super) fn local(&mut self) {
        let (handle, spare) = (self.handle, SPARE + self.number as i32);
        let (mut place, mut value, mut info) = (0, -1, raw::MsgInfo::default());
        let address = take as *const () as usize;
        // SAFETY: valid places, and a header handler.
        unsafe {
            ok(raw::msgpoll(handle, 3, &mut info), "msgpoll");
            ok(raw::getcntr(handle, &self.origin, &mut value), "getcntr");
            ok(raw::addr_set(handle, address, spare), "addr_set");
            ok(raw::addr_get(handle, &mut place, spare), "addr_get");
            assert_eq!(place, address);
            ok(raw::qenv(handle, raw::query::NUM_TASKS, &mut value), "qenv");
            let mut text = [0xFFu8; 200];
            ok(raw::msg_string(codes::TGT_PURGED, text.as_mut_ptr(), text.len()), "msg_string");
            assert!(text.starts_with(b"The target task is purged"), "{}", String::from_utf8_lossy(&text));
        }
        assert_eq!(value as usize, self.state.n);
        ok(raw::probe(handle), "probe");
    }
}

/// A task that is purged gets nothing until it is resumed. Nothing is under way.
pub(super) fn purge(handle: Handle, to: usize) {
    let (header, counter) = (Header { mode: 0, len: 0, id: mixed(1) }, Counter::new());
    ok(raw::purge_totask(handle, to as u32), "purge");
    // SAFETY: it is refused.
    let code = unsafe {
        let (uhdr, len) = (std::ptr::from_ref(&header).cast(), size_of::<Header>() as u32);
        raw::amsend(handle, to as u32, index(TAKE), uhdr, len, std::ptr::null(), 0, &counter, &counter, &counter)
    };
    ok(raw::resume_totask(handle, to as u32), "resume");
    assert_eq!((code, counter.value()), (codes::TGT_PURGED, 0));
}
