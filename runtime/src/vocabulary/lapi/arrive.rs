//! Arrivals: active messages, and the control messages of their protocol.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::rc::{Rc, Weak};

use super::calls;
use super::closures::{self, Announced, CLOSURE};
use super::domain::{Domain, LOC_ADDRTBL_SZ, MAX_UHDR_SZ, Running};
use super::event::Event;
use super::failure::{Failure, Refusal, What};
use super::parts::Dropped;
use super::queue::{self, Finish, Work};
use super::send::{is_no_function, is_nowhere};
use super::traffic::{Collective, Ticket};
use super::types::{BURY_MSG, CompletionHandler, DROP_PKT, Handle, LOCAL_STATE, MAGIC, NORMAL, ReturnInfo, SEND_REPLY};
use super::vectors::Name;
use super::{codes, kind, own};
use crate::error::Error;
use crate::message::{Fetch, Messages, Offered, id};

/// Fetches that are advanced at a time. Chosen: each has a few pieces in flight, which the sender copies.
const ACTIVE: usize = 8;

/// A message as it came.
struct Arrival<'a> {
    from: usize,
    handler: u64,
    target: u64,
    completion: u64,
    header: &'a [u8],
    len: u64,
    data: Data<'a>,
    /// The ticket, if the message has arrived before and its header handler returned [`DROP_PKT`].
    ticket: Option<Ticket>,
}

/// The values to which a header handler gets references, and its answers in them.
struct Shown {
    info: ReturnInfo,
    handle: Handle,
    header_len: u32,
    then: Option<CompletionHandler>,
    parameter: *mut c_void,
}

enum Data<'a> {
    Here(&'a [u8]),
    /// The origin's number for the message, and its offer.
    Offered(u64, Offered),
}

/// A message whose data is being fetched.
pub(super) struct Incoming {
    fetch: Fetch,
    number: u64,
    landed: Landed,
}

impl Incoming {
    /// The task that sent it.
    pub(super) fn from(&self) -> usize {
        self.landed.finish.from
    }
}

/// A completion handler that a header handler has named.
struct Then {
    /// The header handler.
    of: u64,
    handler: CompletionHandler,
    parameter: *mut c_void,
}

/// The actions when the data is in its place.
struct Landed {
    then: Option<Then>,
    finish: Finish,
    running: Option<Running>,
    role: Role,
}

/// The kind of a message at the task where it arrives.
enum Role {
    /// A message of another task.
    Message,
    /// A message of another task to a closure.
    Closure,
    /// A put of another task.
    Put,
    /// The answer to a get of this task, and the event that happens then.
    Answer(Event),
    /// A part of a vector transfer: its group, and its bytes.
    Part(Name, u64),
    /// A message of [`vectors`](super::vectors) whose data was announced.
    Described(Box<Described>),
}

impl Role {
    fn what(&self) -> What {
        match self {
            Role::Message | Role::Closure | Role::Described(_) => What::Message,
            Role::Answer(_) => What::Get,
            Role::Part(name, _) if name.is_receivers() => What::Get,
            Role::Put | Role::Part(..) => What::Put,
        }
    }
}

struct Described {
    handler: u64,
    header: Box<[u8]>,
    data: Box<[u8]>,
}

/// The first `N` words of a message, and the rest.
#[inline]
pub(super) fn words<const N: usize>(bytes: &[u8]) -> Option<([u64; N], &[u8])> {
    let (head, rest) = bytes.split_at_checked(8 * N)?;
    let word = |i: usize| u64::from_ne_bytes(head[8 * i..8 * i + 8].try_into().expect("eight bytes"));
    Some((std::array::from_fn(word), rest))
}

/// The lengths of user header and data in one word. An announced message has the length of its data in a word of its own.
pub(super) fn lengths(header: usize, data: usize) -> u64 {
    (data as u64) << 16 | header as u64
}

/// Installs the handlers for the messages of a handle.
pub(super) fn install(domain: &Rc<Domain>) {
    let messages = domain.world.messages();
    let weak = Rc::downgrade(domain);
    messages.set_handler(id::LAPI, move |messages, message| {
        let Some(domain) = weak.upgrade() else { return };
        if domain.deliver_short(messages, message.from, message.data(), None).is_none() {
            domain.bad(message.from);
        }
    });
    let weak = Rc::downgrade(domain);
    messages.set_handler(id::LAPI_CONTROL, move |messages, message| {
        let Some(domain) = Weak::upgrade(&weak) else { return };
        if domain.control(messages, message.from, message.data()).is_none() {
            domain.bad(message.from);
        }
    });
}

/// As [`install`], but catches the panics of handlers.
pub(super) fn install_catching(domain: &Rc<Domain>) {
    let messages = domain.world.messages();
    for (number, is_control) in [(id::LAPI, false), (id::LAPI_CONTROL, true)] {
        let weak = Rc::downgrade(domain);
        messages.set_handler(number, move |messages, message| {
            let Some(domain) = weak.upgrade() else { return };
            let (from, bytes) = (message.from, message.data());
            let delivered = domain.caught(from, || match is_control {
                true => domain.control(messages, from, bytes),
                false => domain.deliver_short(messages, from, bytes, None),
            });
            if matches!(delivered, Some(None)) {
                domain.bad(from);
            }
        });
    }
}

/// Ends a message whose header handler panics: the origin may change its data, and no fence waits for the message any more.
struct Unwound<'a> {
    domain: &'a Domain,
    finish: Finish,
    number: Option<u64>,
}

impl Drop for Unwound<'_> {
    #[cold]
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.domain.tell(self.finish.from, kind::FETCHED, &[number]);
        }
        self.domain.fail_events(&self.finish, codes::HANDLER_PANICKED);
        self.domain.arrived(self.finish.from, self.finish.ticket);
    }
}

/// Tells the origin of a message that its inline completion handler, or the function of its target event, has panicked.
struct Unfinished<'a>(&'a Domain, Finish);

impl Drop for Unfinished<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.fail_events(&self.1, codes::HANDLER_PANICKED);
    }
}

impl Domain {
    /// Records that a message is malformed: no task that runs this library sends such a message.
    #[cold]
    fn bad(&self, from: usize) {
        let text =
            format!("task {from} sent a malformed LAPI message; do all tasks run the same version of the library?");
        self.fail(Failure { code: codes::RUNTIME, what: What::Job, task: Some(from), text });
    }

    #[inline(always)]
    fn deliver_short(&self, messages: &Messages, from: usize, bytes: &[u8], ticket: Option<Ticket>) -> Option<()> {
        let ([handler, target, completion, lengths], rest) = words::<4>(bytes)?;
        let (header, rest) = rest.split_at_checked(lengths as usize & 0xFFFF)?;
        // A message that fits in a line takes the whole line.
        let data = rest.get(..(lengths >> 16) as usize)?;
        let (len, data) = (data.len() as u64, Data::Here(data));
        if !self.deliver(messages, Arrival { from, handler, target, completion, header, len, data, ticket })? {
            self.drop_message(from, false, bytes, ticket);
        }
        Some(())
    }

    fn deliver_announced(&self, messages: &Messages, from: usize, bytes: &[u8], ticket: Option<Ticket>) -> Option<()> {
        let ([_, handler, target, completion, len, number], rest) = words::<6>(bytes)?;
        let (offered, header) = Offered::decode(rest)?;
        let data = Data::Offered(number, offered);
        if !self.deliver(messages, Arrival { from, handler, target, completion, header, len, data, ticket })? {
            self.drop_message(from, true, bytes, ticket);
        }
        Some(())
    }

    /// Keeps a message whose header handler returned [`DROP_PKT`], for a later poll to deliver again.
    #[cold]
    fn drop_message(&self, from: usize, is_announced: bool, bytes: &[u8], ticket: Option<Ticket>) {
        let ticket = ticket.unwrap_or_else(|| self.traffic.begin(from));
        self.transfers.dropped.borrow_mut().push_back(Dropped { from, is_announced, bytes: bytes.into(), ticket });
        self.keep_going();
    }

    /// Runs the header handler. `Some(false)`: it returned [`DROP_PKT`], so the message is to be delivered again. `None`: the message is
    /// malformed.
    #[inline(always)]
    fn deliver(&self, messages: &Messages, arrival: Arrival<'_>) -> Option<bool> {
        let Arrival { from, handler, target, completion, header, len, data, ticket } = arrival;
        let mut place = [MaybeUninit::<u64>::uninit(); MAX_UHDR_SZ / 8];
        if header.len() > MAX_UHDR_SZ {
            return None;
        }
        let number = if let Data::Offered(number, _) = &data { Some(*number) } else { None };
        if handler >= own::FIRST {
            return self
                .deliver_own(messages, Arrival { from, handler, target, completion, header, len, data, ticket });
        }
        let address =
            if handler < LOC_ADDRTBL_SZ as u64 { self.entries.table[handler as usize].get() } else { handler as usize };
        if is_no_function(address as u64) && address != CLOSURE {
            let refusal = Refusal::new(codes::NO_HNDLR_SET, What::Message, handler);
            self.refuse(Finish { from, target, completion, ticket }, number, refusal);
            return Some(true);
        }
        if !header.is_empty() {
            // SAFETY: the place has as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), place.as_mut_ptr().cast(), header.len()) };
        }
        let one_packet = match &data {
            Data::Here(data) if !data.is_empty() => data.as_ptr().cast::<c_void>().cast_mut(),
            _ => std::ptr::null_mut(),
        };
        // One struct, by one reference: many references would be stored first, and loaded again by the function that catches panics.
        let mut shown = Shown {
            info: ReturnInfo {
                msg_len: len,
                magic: MAGIC,
                ret_flags: NORMAL,
                ctl_flags: super::types::DELIVER_MSG,
                dgsp_handle: 0,
                bytes: len,
                src: from as i32,
                udata_one_pkt_ptr: one_packet,
                recv_offset: 0,
            },
            handle: self.handle,
            header_len: header.len() as u32,
            then: None,
            parameter: std::ptr::null_mut(),
        };
        let finish = Finish { from, target, completion, ticket };
        let start = {
            let _running = self.runs(Running::Header);
            let name = || queue::header_name(handler);
            let unwound = || Unwound { domain: self, finish, number };
            let (shown, place) = (&mut shown, place.as_mut_ptr().cast());
            // `None`: there is no memory for the data.
            if address == CLOSURE {
                let data = if let Data::Here(data) = &data { Some(*data) } else { None };
                let announced = Announced { from, header, len: len as usize, data };
                let Shown { info, then, parameter, .. } = shown;
                let call = || self.call_closure(handler as usize, &announced, info, then, parameter);
                messages.run_guarded(from, name, unwound, call)
            } else {
                let calls = self.calls;
                messages.run_guarded(from, name, unwound, move || {
                    let Shown { info, handle, header_len, then, parameter } = shown;
                    let len = (&raw mut *info).cast();
                    let with = calls::Arrived { handle, header: place, header_len, len, then, parameter };
                    // SAFETY: the sender, or this task by `addr_set`, guarantees that a header handler is at this address; all
                    // pointers are valid during the call.
                    Some(unsafe { calls.header(address, with) })
                })
            }
        };
        let Shown { info, then, parameter, .. } = shown;
        let Some(start) = start.map(<*mut c_void>::cast::<u8>) else {
            self.refuse(finish, number, Refusal::new(codes::MEMORY_EXHAUSTED, What::Message, len));
            return Some(true);
        };
        if info.ctl_flags == DROP_PKT {
            return Some(false);
        }
        // The header handler may shorten what is stored.
        let stored = len.min(info.bytes) as usize;
        let buried = info.ctl_flags & BURY_MSG != 0 || start.is_null() || stored == 0;
        let then = then.map(|then| Then { of: handler, handler: then, parameter });
        let stored = if buried { 0 } else { stored };
        let running = match info.ret_flags {
            flags if flags & LOCAL_STATE != 0 => Some(Running::Local),
            flags if flags & SEND_REPLY != 0 => Some(Running::Reply(from)),
            _ => None,
        };
        let role = if address == CLOSURE { Role::Closure } else { Role::Message };
        let landed = Landed { then, finish, running, role };
        // SAFETY: the header handler guarantees room for the data at this address until the target counter has moved.
        unsafe { self.store(messages, data, start, stored, landed) };
        Some(true)
    }

    /// Refuses a message: both tasks get the error, the origin may change the data again, and no fence waits for the message any more.
    #[cold]
    fn refuse(&self, finish: Finish, number: Option<u64>, refusal: Refusal) {
        self.tell_refused(finish.from, number, refusal);
        self.fail_events(&finish, refusal.code);
        self.arrived(finish.from, finish.ticket);
    }

    /// Tells this task and task `from` that a message of `from` cannot be delivered. `number` is the number of the message if it was
    /// announced.
    #[cold]
    pub(super) fn tell_refused(&self, from: usize, number: Option<u64>, refusal: Refusal) {
        self.fail(refusal.failure(from, self.world.rank(), from));
        let [code, what, detail] = refusal.words();
        self.tell(from, kind::REFUSED, &[code, number.map_or(0, |number| number + 1), what, detail]);
    }

    /// Ends a message whose data cannot be brought to its place, so that nothing waits for it any more.
    #[cold]
    fn broken(&self, landed: Landed, number: Option<u64>, refusal: Refusal) {
        // The completion handler does not run. Its parameter belongs to the program, or to a closure: that one is dropped below.
        let Landed { then, finish, role, .. } = landed;
        if let Role::Described(described) = role {
            return self.refuse_described((described.handler, &described.header), finish, number, refusal);
        }
        // A part has the events of its group. The group reports once that they cannot happen.
        let own = match role {
            Role::Part(..) => Finish { target: 0, completion: 0, ..finish },
            _ => finish,
        };
        self.refuse(own, number, refusal);
        match role {
            // SAFETY: `call_closure` made the parameter, and nobody uses it any more.
            Role::Closure => then.into_iter().for_each(|then| unsafe { closures::discard(then.parameter) }),
            Role::Message | Role::Put | Role::Described(_) => {}
            Role::Answer(event) => {
                self.owed.answered(finish.from);
                self.fail_event(event, refusal.code, finish.from);
            }
            Role::Part(name, len) => self.part_ended(name, len, finish, Some(refusal.code)),
        }
    }

    /// A fetch has ended with an error.
    #[cold]
    fn fetch_failed(&self, incoming: Incoming, error: &Error) {
        let Incoming { fetch, number, mut landed } = incoming;
        // Pieces may still arrive: leak the memory that they go to.
        if fetch.may_be_written() {
            match &mut landed.role {
                Role::Described(described) => std::mem::forget(std::mem::take(&mut described.data)),
                Role::Closure => {
                    if let Some(then) = &landed.then {
                        // SAFETY: `call_closure` made the parameter, and nobody else uses it.
                        unsafe { closures::leave_place(then.parameter) };
                    }
                }
                _ => {}
            }
        }
        drop(fetch);
        let what = landed.role.what();
        let refusal = match error {
            Error::BadAddress { rank, address, .. } => {
                let of_origin = *rank != self.world.rank();
                Refusal { of_origin, ..Refusal::bad_address(what, *address as u64) }
            }
            other => Refusal::new(Failure::of_error(other).code, what, 0),
        };
        // A counter of this task may wait for this message.
        self.note_owing(landed.finish.from);
        self.broken(landed, Some(number), refusal);
    }

    /// Copies or fetches `len` bytes of data, which may be 0, to their place.
    ///
    /// # Safety
    /// The place has room for `len` bytes until the message is done.
    #[inline(always)]
    unsafe fn store(&self, messages: &Messages, data: Data<'_>, start: *mut u8, len: usize, landed: Landed) {
        match data {
            Data::Here(data) => {
                if len != 0 {
                    if is_nowhere(start as u64, len as u64) {
                        let refusal = Refusal::bad_address(landed.role.what(), start as u64);
                        return self.broken(landed, None, refusal);
                    }
                    // SAFETY: the caller guarantees room for the data, of which there is as much.
                    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), start, len.min(data.len())) };
                }
                self.landed(messages, landed);
            }
            // SAFETY: the caller guarantees room for the data.
            Data::Offered(number, offered) => unsafe { self.fetch(messages, (number, offered), (start, len), landed) },
        }
    }

    /// Fetches `len` bytes of data, which may be 0, to their place.
    ///
    /// # Safety
    /// As [`Domain::store`].
    #[inline(never)]
    unsafe fn fetch(
        &self,
        messages: &Messages,
        (number, offered): (u64, Offered),
        (start, len): (*mut u8, usize),
        mut landed: Landed,
    ) {
        let from = landed.finish.from;
        // SAFETY: the caller guarantees room for the data.
        let fetch = (len != 0).then(|| unsafe { messages.fetch(from, offered, start, len) });
        match fetch {
            Some(fetch) if !fetch.is_here() => {
                landed.finish.ticket.get_or_insert_with(|| self.traffic.begin(from));
                self.transfers.incoming.borrow_mut().push_back(Incoming { fetch, number, landed });
                self.keep_going();
            }
            _ => {
                self.tell(from, kind::FETCHED, &[number]);
                self.landed(messages, landed);
            }
        }
    }

    /// Delivers a message of a call that has no header handler.
    #[inline(never)]
    fn deliver_own(&self, messages: &Messages, arrival: Arrival<'_>) -> Option<bool> {
        let Arrival { from, handler, target, completion, header, len, data, ticket } = arrival;
        let finish = Finish { from, target, completion, ticket };
        match handler {
            own::PUT | own::ANSWER => {
                let ([start], _) = words::<1>(header)?;
                let (finish, role) = match handler {
                    own::PUT => (finish, Role::Put),
                    _ => (Finish { target: 0, ..finish }, Role::Answer(Event::from_word(target))),
                };
                let landed = Landed { then: None, finish, running: None, role };
                // SAFETY: the caller of `put` guarantees room at this address of this task; the caller of `get` has given its own.
                unsafe { self.store(messages, data, start as *mut u8, len as usize, landed) };
            }
            own::GET => {
                let (request, _) = words::<5>(header)?;
                // SAFETY: the caller of `get` guarantees that the memory may be read, and the counter moved.
                unsafe { self.answer_get(from, request) };
            }
            own::RMW => {
                let (request, _) = words::<6>(header)?;
                // SAFETY: the caller of `rmw` guarantees that the word may be changed.
                unsafe { self.answer_rmw(from, request) };
            }
            own::PART => {
                let ([start, number, total], _) = words::<3>(header)?;
                let name = Name { number, total };
                // Data that was not asked for is not stored.
                let (stored, role) =
                    if self.has_group(from, name) { (len as usize, Role::Part(name, len)) } else { (0, Role::Message) };
                let landed = Landed { then: None, finish, running: None, role };
                // SAFETY: the caller of the transfer guarantees room at this address.
                unsafe { self.store(messages, data, start as *mut u8, stored, landed) };
            }
            _ => match data {
                Data::Here(data) => self.deliver_described(messages, handler, header, data, finish)?,
                Data::Offered(number, offered) => {
                    let mut data = Vec::new();
                    // The length comes from another task, so it may be too large.
                    if data.try_reserve_exact(usize::try_from(len).ok()?).is_err() {
                        let refusal = Refusal::new(codes::MEMORY_EXHAUSTED, What::Message, len);
                        self.refuse_described((handler, header), finish, Some(number), refusal);
                        return Some(true);
                    }
                    data.resize(len as usize, 0);
                    let mut described = Box::new(Described { handler, header: header.into(), data: data.into() });
                    let (start, len) = (described.data.as_mut_ptr(), described.data.len());
                    let landed = Landed { then: None, finish, running: None, role: Role::Described(described) };
                    // SAFETY: memory of `described`, which stays where it is until the message has landed.
                    unsafe { self.store(messages, Data::Offered(number, offered), start, len, landed) };
                }
            },
        }
        Some(true)
    }

    /// Does what follows when the data of a message is in its place: ends its ticket, performs its events, runs or queues its completion
    /// handler.
    #[inline(always)]
    fn landed(&self, messages: &Messages, landed: Landed) {
        let Landed { then, finish, running, role } = landed;
        if let Role::Described(described) = role {
            let Described { handler, header, data } = *described;
            if self.deliver_described(messages, handler, &header, &data, finish).is_none() {
                self.bad(finish.from);
            }
            return;
        }
        self.arrived(finish.from, finish.ticket);
        match role {
            Role::Described(_) => {}
            Role::Part(name, len) => return self.part_landed(name, len, finish),
            Role::Message | Role::Closure | Role::Put => self.done.receives.set(self.done.receives.get() + 1),
            Role::Answer(event) => {
                self.owed.answered(finish.from);
                self.done.sends.set(self.done.sends.get() + 1);
                // SAFETY: the caller of `get` guarantees that the counter is null or valid until it has moved.
                unsafe { self.happen(event, finish.from) };
            }
        }
        match (then, running) {
            (None, _) => self.finish(finish),
            (Some(Then { of, handler, parameter }), None) => self.enqueue(Work { of, handler, parameter, finish }),
            (Some(Then { of, handler, parameter }), Some(running)) => {
                let (calls, mut handle) = (self.calls, self.handle);
                let _running = self.runs(running);
                let name = || queue::name(of, true);
                let unfinished = || Unfinished(self, finish);
                // SAFETY: the header handler gave this function with this parameter, and guarantees that it may be called.
                let call = || unsafe { calls.completion(handler, &mut handle, parameter) };
                messages.run_guarded(finish.from, name, unfinished, call);
                self.finish(finish);
            }
        }
    }

    /// Moves the counters of a message that is done.
    #[inline(always)]
    pub(super) fn finish(&self, finish: Finish) {
        match finish.target {
            0 => {}
            index if index < LOC_ADDRTBL_SZ as u64 => self.finish_event(finish),
            // SAFETY: the sender guarantees that a counter is at this address of this task.
            address => unsafe { self.move_counter(address, finish.from) },
        }
        if finish.completion != 0 {
            self.tell(finish.from, kind::COMPLETED, &[finish.completion]);
        }
    }

    /// Performs the target event of a message that is done.
    #[cold]
    fn finish_event(&self, finish: Finish) {
        // If the target event panics, only the completion event is left to fail.
        let unfinished = Unfinished(self, Finish { target: 0, ..finish });
        self.target_event(finish.target as usize, finish.from);
        std::mem::forget(unfinished);
    }

    #[inline(always)]
    pub(super) fn arrived(&self, from: usize, ticket: Option<Ticket>) {
        if let Some(ticket) = ticket {
            self.end_ticket(from, ticket);
        }
    }

    #[cold]
    fn end_ticket(&self, from: usize, ticket: Ticket) {
        for number in self.traffic.end(from, ticket) {
            self.tell(from, kind::FENCED, &[number.into()]);
        }
    }

    /// Sends a control message. Never waits; drops the message if the peer is gone.
    #[inline(never)]
    pub(super) fn tell(&self, to: usize, kind: u64, words: &[u64]) {
        let mut bytes = [0; 40];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        self.world.engine().send_unasked(to, id::LAPI_CONTROL, kind, &bytes[..8 * words.len()]);
    }

    fn control(&self, messages: &Messages, from: usize, bytes: &[u8]) -> Option<()> {
        let ([kind], rest) = words::<1>(bytes)?;
        match kind {
            kind::ANNOUNCED => return self.deliver_announced(messages, from, bytes, None),
            kind::FETCHED => {
                let ([number], _) = words(rest)?;
                self.done.sends.set(self.done.sends.get() + 1);
                self.fetched(number, Ok(()));
            }
            kind::COMPLETED => {
                let ([event], _) = words::<1>(rest)?;
                let event = Event::from_word(event);
                if event.is_counter() {
                    self.owed.completed(from);
                }
                // SAFETY: this task gave its own event, whose counter is valid until it has moved.
                unsafe { self.happen(event, from) };
                self.done.sends.set(self.done.sends.get() + 1);
            }
            kind::REFUSED => {
                let ([code, number, what, detail], _) = words(rest)?;
                let refusal = Refusal::from_words([code, what, detail]);
                if let Some(number) = number.checked_sub(1) {
                    self.fetched(number, Err(refusal.code));
                }
                self.fail(refusal.failure(self.world.rank(), from, from));
            }
            kind::FAILED => {
                let ([event, code], _) = words::<2>(rest)?;
                let event = Event::from_word(event);
                if event.is_counter() {
                    self.owed.completed(from);
                }
                self.fail_event(event, code as i32, from);
            }
            kind::MISSING => {
                let ([number, total, len, code], _) = words::<4>(rest)?;
                return self.parts_missing(from, Name { number, total }, len, code as i32);
            }
            kind::FENCE => {
                let ([number], _) = words::<1>(rest)?;
                if self.traffic.asked(from, number as u32) {
                    self.tell(from, kind::FENCED, &[number]);
                }
            }
            kind::FENCED => {
                let ([number], _) = words::<1>(rest)?;
                self.traffic.answered(from, number as u32);
            }
            kind::CHANGED => {
                let (answer, _) = words::<4>(rest)?;
                self.done.sends.set(self.done.sends.get() + 1);
                // SAFETY: this task gave the addresses of its own result and counter.
                unsafe { self.changed(from, answer) };
            }
            kind::FREED => {
                let ([event, code], _) = words::<2>(rest)?;
                let event = Event::from_word(event);
                self.owed.answered(from);
                self.done.sends.set(self.done.sends.get() + 1);
                match code as i32 {
                    // SAFETY: the caller of `amsendv` guarantees that the counter is null or valid until it has moved.
                    codes::SUCCESS => unsafe { self.happen(event, from) },
                    code => self.fail_event(event, code, from),
                }
            }
            kind::BARRIER => {
                let ([round, call, code, about], _) = words::<4>(rest)?;
                if about > self.world.size() as u64 {
                    return None;
                }
                let broken = (code as i32 != codes::SUCCESS).then_some((code as i32, about as usize));
                let call = Collective::from_word(call)?;
                return self.traffic.count_round(round as usize, call, broken).then_some(());
            }
            _ => return None,
        }
        Some(())
    }

    /// Advances fetches, delivers again the messages whose header handler returned [`DROP_PKT`], and retries rings. Returns whether any are
    /// left.
    pub(super) fn advance(&self) -> bool {
        let messages = self.world.messages();
        let _running = self.world.engine().interface.begin_handler();
        let dropped = self.transfers.dropped.borrow().len();
        for _ in 0..dropped {
            let Some(message) = self.transfers.dropped.borrow_mut().pop_front() else { break };
            let Dropped { from, is_announced, bytes, ticket } = message;
            let delivered = match is_announced {
                true => self.deliver_announced(messages, from, &bytes, Some(ticket)),
                false => self.deliver_short(messages, from, &bytes, Some(ticket)),
            };
            delivered.expect("it was well formed the first time");
        }
        let mut place = 0;
        while place < ACTIVE {
            // The fetch is out of the list meanwhile: handlers may add to the list.
            let Some(mut incoming) = self.transfers.incoming.borrow_mut().remove(place) else { break };
            match messages.advance_fetch(&mut incoming.fetch) {
                Ok(true) => {
                    let Incoming { fetch, number, landed } = incoming;
                    drop(fetch);
                    self.tell(landed.finish.from, kind::FETCHED, &[number]);
                    self.landed(messages, landed);
                }
                Ok(false) => {
                    self.transfers.incoming.borrow_mut().insert(place, incoming);
                    place += 1;
                }
                Err(error) => self.fetch_failed(incoming, &error),
            }
        }
        self.ring_again();
        !self.transfers.incoming.borrow().is_empty()
            || !self.transfers.dropped.borrow().is_empty()
            || !self.bells.rings.borrow().is_empty()
    }
}
