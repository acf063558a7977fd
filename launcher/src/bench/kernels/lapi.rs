//! LAPI's calls: active messages there and back and as a stream, and what carries long data.
//!
//! Programs call as C does: [`raw`] with handles and addresses. Both ranks are in polling mode, if nothing else is said.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use bellwether_runtime::vocabulary::lapi::{Code, Counter, Lapi, raw};
use bellwether_runtime::{Error, Result, Settings, World};

use super::area::Area;
use super::bell::one_way;
use super::memory::{copies_of, rates};
use super::message::{Mailbox, Ring, mailbox_words, ring_words};
use super::report;
use crate::bench::bare::read_ends;
use crate::bench::kind::Kind;
use crate::bench::session::settle;
use crate::bench::task::{Measured, Task};
use crate::bench::turns::{Ground, Turns};

/// Bytes of static data, and of a long transfer.
const LONG: usize = 1 << 20;
const PAGE: usize = 4096;
/// The index of the header handler.
const HANDLER: i32 = 1;
/// The index of the header handler whose completion handler answers.
const ANSWERED: i32 = 2;

/// Counts what has arrived at this task.
static ARRIVED: Counter = Counter::new();
/// Where the header handler lets long data go.
static PLACE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Static data, which is symmetric memory where that is set.
#[repr(C, align(4096))]
struct Static(std::cell::UnsafeCell<[u8; LONG + PAGE]>);
// SAFETY: only its address is taken; code that writes there states its own premises.
unsafe impl Sync for Static {}
static STATIC: Static = Static(std::cell::UnsafeCell::new([0; LONG + PAGE]));

/// Reads short data where it came, and lets long data go to [`PLACE`].
unsafe extern "C-unwind" fn arrive(
    _: *mut raw::Handle,
    _: *mut c_void,
    _: *mut u32,
    len: *mut u64,
    _: *mut Option<raw::CompletionHandler>,
    _: *mut *mut c_void,
) -> *mut c_void {
    // SAFETY: LAPI passes the start of such a structure.
    let info = unsafe { &*len.cast::<raw::ReturnInfo>() };
    if info.udata_one_pkt_ptr.is_null() {
        return PLACE.load(Ordering::Relaxed);
    }
    // SAFETY: the data is there, of that length.
    read_ends(unsafe { std::slice::from_raw_parts(info.udata_one_pkt_ptr.cast(), info.msg_len as usize) });
    null_mut()
}

/// The reply of [`answer`]: the address and length of its data, and the counter of the task that asks.
static REPLY: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// As [`arrive`], and lets [`answer`] run inline.
unsafe extern "C-unwind" fn arrive_answered(
    handle: *mut raw::Handle,
    header: *mut c_void,
    header_len: *mut u32,
    len: *mut u64,
    then: *mut Option<raw::CompletionHandler>,
    parameter: *mut *mut c_void,
) -> *mut c_void {
    // SAFETY: all of them are valid, and `len` is the start of such a structure.
    unsafe {
        (*len.cast::<raw::ReturnInfo>()).ret_flags = raw::SEND_REPLY;
        *then = Some(answer);
        arrive(handle, header, header_len, len, then, parameter)
    }
}

/// Answers task 0.
unsafe extern "C-unwind" fn answer(handle: *mut raw::Handle, _: *mut c_void) {
    let [data, len, counter] = REPLY.each_ref().map(|word| word.load(Ordering::Relaxed));
    let handler = HANDLER as usize as *const c_void;
    // SAFETY: `Mail::new` has set them for as long as messages come; the task that asks has set the handler.
    let code = unsafe {
        let counter = counter as *const Counter;
        raw::amsend(*handle, 0, handler, null(), 0, data as *const c_void, len as u64, counter, null(), null())
    };
    // A failure to answer is noticed by the asker, whose wait then names the cause.
    debug_assert_eq!(code, 0);
}

/// A task, and memory that the limits use.
struct Tasks {
    lapi: Lapi,
    /// Bytes that further areas pass over.
    passed: Cell<usize>,
}

fn checked(code: i32) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(failed("bench", Code(code))) }
}

#[cold]
fn failed(operation: &'static str, why: impl ToString) -> Error {
    Error::InvalidArgument { operation, why: why.to_string() }
}

impl Ground for Tasks {
    type Left = ();

    fn meet(&self) -> Result<()> {
        checked(raw::gfence(self.handle()))
    }

    fn pass_over(&self, bytes: usize) -> Result<()> {
        self.passed.set(self.passed.get() + bytes);
        Ok(())
    }
}

impl Tasks {
    fn handle(&self) -> raw::Handle {
        // SAFETY: no handler of this benchmark waits, and `finish` ends the handle.
        unsafe { self.lapi.handle() }
    }

    /// Gathers the word `mine` of each task.
    fn exchange(&self, mine: u64) -> Result<Vec<u64>> {
        let mut all = vec![0; self.lapi.size()];
        // SAFETY: room for a value of each task.
        checked(unsafe { raw::address_init(self.handle(), mine, all.as_mut_ptr()) })?;
        Ok(all)
    }

    /// Fresh memory for a limit, behind what was passed over.
    fn area(&self, words: usize) -> Result<Area> {
        Area::new(self.lapi.rank(), self.passed.get(), words, |mine| self.exchange(mine), || self.meet())
    }
}

/// Takes part in the benchmark; see [`super::vocabulary`].
///
/// # Errors
/// Those of the runtime, and of `tell`.
pub fn run(task: Task, tell: impl FnOnce(usize, &[Measured]) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mapped = Settings::from_env()?.transport.name() == "auto";
    let mut builder = World::builder();
    if task.kind == Kind::LapiBandwidth {
        builder = builder.static_data();
    }
    let lapi = Lapi::start(builder)?;
    let rank = lapi.rank();
    settle(&task, rank, lapi.size())?;
    let tasks = Tasks { lapi, passed: Cell::new(0) };
    for (index, handler) in [(HANDLER, arrive as *const ()), (ANSWERED, arrive_answered as *const ())] {
        // SAFETY: the function may be called for every message.
        checked(unsafe { raw::addr_set(tasks.handle(), handler as usize, index) })?;
    }
    let turns = Turns::new(tasks, task, mapped);
    let kernel = match turns.task.kind {
        Kind::LapiRate => stream,
        Kind::LapiBandwidth => bandwidth,
        _ => ping_pong,
    };
    let measured = report(&turns.task, |size| kernel(&turns, size))?;
    tell(rank, &measured)?;
    turns.world.lapi.finish()?;
    Ok(())
}

/// The values that each task needs for messages to another one.
struct Mail {
    handle: raw::Handle,
    payload: Vec<u8>,
    /// The address of [`ARRIVED`] at each task.
    counters: Vec<u64>,
    /// Where long data goes.
    _place: Box<[u8]>,
}

impl Mail {
    fn new(tasks: &Tasks, size: usize) -> Result<Mail> {
        let mut place = vec![0; size].into_boxed_slice();
        PLACE.store(place.as_mut_ptr().cast(), Ordering::Relaxed);
        let counters = tasks.exchange(ARRIVED.address() as u64)?;
        let mail = Mail { handle: tasks.handle(), payload: vec![7; size], counters, _place: place };
        let reply = [mail.payload.as_ptr() as usize, size, mail.counters[0] as usize];
        REPLY.iter().zip(reply).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        // No task sends a request before the other can answer.
        tasks.meet()?;
        Ok(mail)
    }

    #[inline]
    fn send(&self, to: usize, handler: i32) -> Result<()> {
        let (data, len) = (self.payload.as_ptr().cast(), self.payload.len() as u64);
        let counter = self.counters[to] as usize as *const Counter;
        // SAFETY: the payload is not changed, the counter is a static of the target, and the target has set the handler.
        checked(unsafe {
            raw::amsend(
                self.handle,
                to as u32,
                handler as usize as *const c_void,
                null(),
                0,
                data,
                len,
                counter,
                null(),
                null(),
            )
        })
    }

    #[inline]
    fn wait(&self, count: usize) -> Result<()> {
        // SAFETY: a static of this task.
        checked(unsafe { raw::waitcntr(self.handle, &ARRIVED, count as i32, null_mut()) })
    }
}

/// One way of a ping-pong of active messages. Beside the limit of `am`.
///
/// | figure | rank 1 | mode |
/// | --- | --- | --- |
/// | `lapi-am` | an inline completion handler answers, as the handler of `am` does | polling |
/// | `lapi-am-interrupts` | the same | interrupt |
/// | `lapi-am-counters` | waits for the target counter of the message, and sends one | polling |
fn ping_pong(turns: &Turns<Tasks>, size: usize) -> Result<Vec<Measured>> {
    let mut figures = Vec::new();
    for (name, interrupts, answers) in [("", 0, true), ("lapi-am-interrupts", 1, true), ("lapi-am-counters", 0, false)]
    {
        checked(raw::senv(turns.world.handle(), raw::query::INTERRUPT_SET, interrupts))?;
        let measured = turns.in_places(|| ping_pong_here(turns, size, answers))?;
        figures.push(Measured { name: name.into(), ..measured });
    }
    Ok(figures)
}

fn ping_pong_here(turns: &Turns<Tasks>, size: usize, answers: bool) -> Result<Measured> {
    let own = turns.world.lapi.rank();
    let mail = Mail::new(&turns.world, size)?;
    let bare = match turns.mapped {
        true => Some(Mailbox::new(turns.world.area(mailbox_words(size))?, size / 8)),
        false => None,
    };
    let mut bare_round = 0;
    let handler = if answers { ANSWERED } else { HANDLER };
    let ours = |n| match own {
        0 => (0..n).try_for_each(|_| {
            mail.send(1, handler)?;
            mail.wait(1)
        }),
        1 if answers => mail.wait(n),
        1 => (0..n).try_for_each(|_| {
            mail.wait(1)?;
            mail.send(0, HANDLER)
        }),
        _ => Ok(()),
    };
    let limit = |n| bare.as_ref().map_or(Ok(()), |bare| bare.there_and_back(own, n, &mut bare_round));
    let measured = turns.latency(turns.operations(2000, 8 << 20, size), size, ours, limit)?;
    // The memory that answers use is freed after this.
    turns.world.meet()?;
    Ok(one_way(measured))
}

/// A stream of active messages, whose target counter tells when all have come, beside the limit of `am-rate`.
fn stream(turns: &Turns<Tasks>, size: usize) -> Result<Vec<Measured>> {
    checked(raw::senv(turns.world.handle(), raw::query::INTERRUPT_SET, 0))?;
    let own = turns.world.lapi.rank();
    let mail = Mail::new(&turns.world, size)?;
    let mut ring = match turns.mapped {
        true => Some(Ring::new(turns.world.area(ring_words(size))?, size / 8)),
        false => None,
    };
    let measured = turns.alternate(
        turns.operations(50_000, 16 << 20, size),
        |n| match own {
            0 => {
                (0..n).try_for_each(|_| mail.send(1, HANDLER))?;
                mail.wait(1)
            }
            1 => {
                mail.wait(n)?;
                mail.send(0, HANDLER)
            }
            _ => Ok(()),
        },
        |n| ring.as_mut().map_or(Ok(()), |ring| ring.stream(own, n)),
    )?;
    Ok(vec![measured])
}

/// Puts and active messages of 1 MiB from rank 0 to rank 1, beside memcpy. Values are GB/s.
///
/// | figure | from | to |
/// | --- | --- | --- |
/// | `lapi-bandwidth` | a put of private memory | static data, which is symmetric memory |
/// | `lapi-bandwidth-am` | an active message with static data | memory that the header handler names |
/// | `lapi-bandwidth-private` | a put of private memory | private memory |
fn bandwidth(turns: &Turns<Tasks>, size: usize) -> Result<Vec<Measured>> {
    checked(raw::senv(turns.world.handle(), raw::query::INTERRUPT_SET, 0))?;
    let tasks = &turns.world;
    let (own, handle) = (tasks.lapi.rank(), tasks.handle());
    let mut room = vec![7u64; size / 8 + PAGE / 8];
    // Half a page from the start of one: see `memory::bandwidth`.
    let skip = (PAGE / 2).wrapping_sub(room.as_ptr().addr()) % PAGE / 8;
    let private = &mut room[skip..skip + size / 8];
    let privates = tasks.exchange(private.as_ptr() as u64)?;
    let statics = tasks.exchange(STATIC.0.get() as u64)?;
    let counters = tasks.exchange(ARRIVED.address() as u64)?;
    let area = if turns.mapped { Some(tasks.area(size / 8)?) } else { None };
    // Source and place may take as much as a core's cache, and which pages they have decides how fast a copy is. So messages and their limit
    // have one place.
    let place = area.as_ref().map_or(private.as_mut_ptr(), |area| super::address(area, own, 0));
    // Pages lie near the core that writes them first.
    // SAFETY: so many words of this rank, which no other code accesses before all have met.
    unsafe { std::ptr::write_bytes(place, 0, size / 8) };
    PLACE.store(place.cast(), Ordering::Relaxed);
    // The target copies messages. It may sleep in the barrier before a batch, and a batch of messages begins when it is awake: a long one
    // tells the rate.
    let [few, many] = [4 << 20, 64 << 20].map(|bytes| turns.stream(2000, bytes, size));
    let target = counters.get(1).map_or(null(), |counter| *counter as usize as *const Counter);
    let put = |to: u64, n: usize| {
        for _ in 0..if own == 0 { n } else { 0 } {
            // SAFETY: as many bytes at both ends, which no other code accesses now; rank 0 waits for the fence.
            checked(unsafe {
                raw::put(
                    handle,
                    1,
                    size as u64,
                    to as usize as *mut c_void,
                    private.as_ptr().cast(),
                    null(),
                    null(),
                    null(),
                )
            })?;
        }
        checked(raw::fence(handle))
    };
    let send = |n: usize| {
        for _ in 0..if own == 0 { n } else { 0 } {
            let (handler, data) = (HANDLER as usize as *const c_void, STATIC.0.get().cast_const().cast());
            // SAFETY: the static data is as long, and not changed; the counter is a static of the target.
            checked(unsafe { raw::amsend(handle, 1, handler, null(), 0, data, size as u64, target, null(), null()) })?;
        }
        match own {
            // SAFETY: a static of this task.
            1 => checked(unsafe { raw::waitcntr(handle, &ARRIVED, n as i32, null_mut()) }),
            _ => checked(raw::fence(handle)),
        }
    };
    let copy = |n: usize| {
        if let (0, Some(area)) = (own, &area) {
            // SAFETY: as long as the source, and no other code accesses it.
            unsafe { copies_of(super::address(area, 1, 0), private, n) };
        }
        Ok(())
    };
    let ring = if turns.mapped { Some(Ring::new(turns.world.area(ring_words(8))?, 1)) } else { None };
    let ring = std::cell::RefCell::new(ring);
    // Rank 1 copies messages, so it copies in their limit, too. Two cores do not copy equally fast.
    let copy_there = |n: usize| {
        let (Some(area), Some(ring)) = (&area, &mut *ring.borrow_mut()) else { return Ok(()) };
        if own == 1 {
            // SAFETY: mapped memory of that length, which nobody changes, and the place is as long, and no other code accesses it.
            unsafe {
                let source = std::slice::from_raw_parts(super::address(area, 0, 0), size / 8);
                copies_of(super::address(area, 1, 0), source, n);
            }
        }
        // Rank 0 waits until rank 1 has copied all.
        ring.stream(own, 1)
    };
    type Batch<'a> = &'a dyn Fn(usize) -> Result<()>;
    let ways: [(&str, Batch<'_>, Batch<'_>, usize); 3] = [
        ("", &|n| put(statics[1], n), &copy, few),
        ("lapi-bandwidth-am", &send, &copy_there, many),
        ("lapi-bandwidth-private", &|n| put(privates[1], n), &copy, few),
    ];
    let figures = ways
        .into_iter()
        .map(|(name, ours, limit, operations)| {
            let measured = turns.alternate(operations, ours, limit)?;
            Ok(Measured { name: name.into(), ..rates(measured, size) })
        })
        .collect();
    // No task frees its memory while the other one writes there.
    tasks.meet()?;
    figures
}
