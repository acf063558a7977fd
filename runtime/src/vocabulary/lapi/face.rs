//! Active messages with closures and owned buffers.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::closures::{Announced, Answer, CLOSURE, HandlerContext};
use super::domain::Running;
use super::event::Event;
use super::failure::Failure;
use super::job::Job;
use super::poll::wait_or_purged;
use super::send::{self, Keep};
use super::signal::Signal;
use super::types::Handle;
use super::{Counter, LOC_ADDRTBL_SZ, codes, domain, port, queue};
use crate::error::{Error, Result};
use crate::world::Builder;

/// A code of [`codes`] that is not [`codes::SUCCESS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{text} (LAPI code {0})", text = codes::text(self.0).unwrap_or("An unknown code."))]
pub struct Code(pub i32);

impl Code {
    /// The last failure with which a call of this thread returned this code: the task, the kind of transfer and a text. After a panic of a
    /// handler the text names the handler and the place in its source. `None` if the code is about an argument.
    pub fn failure(self) -> Option<Failure> {
        Failure::last(self.0)
    }
}

/// A task's active messages: a [`Job`] with its handle, and handlers that are closures.
///
/// A `Lapi` stays on its thread. Handlers run on whatever thread makes progress, one at a time, and on the handler thread; see the
/// [module](super).
///
/// # Examples
/// ```
/// # mod bellwether { pub use bellwether_runtime::{Threads, vocabulary::lapi}; }
/// use bellwether::Threads;
/// use bellwether::lapi::{Answer, Counter, Lapi};
/// use std::sync::{Arc, Mutex};
///
/// let sums = Threads::new(2).build(|builder| {
///     let lapi = Lapi::start(builder).expect("starts");
///     let sum = Arc::new(Mutex::new(0));
///     let adds = Arc::clone(&sum);
///     lapi.handler(5, move |_, announced| {
///         assert_eq!(announced.header(), b"four");
///         let adds = Arc::clone(&adds);
///         Answer::vec(Vec::new()).then(move |_, landed| {
///             *adds.lock().unwrap() = landed.into_vec().iter().map(|byte| u32::from(*byte)).sum();
///         })
///     }).expect("an index of the table");
///     lapi.gfence().expect("all have registered");
///     let handled = Arc::new(Counter::new());
///     let next = (lapi.rank() + 1) % lapi.size();
///     let message = lapi.message(next, 5).header(b"four").data(vec![3; 100_000]).completion(&handled);
///     message.send().expect("sends");
///     lapi.wait(&handled, 1).expect("the handler has run");
///     lapi.gfence().expect("the own handler too");
///     lapi.finish().expect("finishes");
///     *sum.lock().unwrap()
/// })?;
/// assert_eq!(sums, [300_000, 300_000]);
/// # Ok::<(), bellwether_runtime::Error>(())
/// ```
#[derive(Debug)]
pub struct Lapi {
    job: Job,
    handle: Handle,
    rank: usize,
    size: usize,
}

impl Lapi {
    /// Joins the job that `builder` describes, and makes a handle. Collective.
    ///
    /// # Errors
    /// As [`Job::start`]; [`Error::InvalidArgument`] with the text of a code of [`Job::init`].
    pub fn start(builder: Builder) -> Result<Lapi> {
        let job = Job::start(builder)?;
        let (rank, size) = job.place();
        let handle = job.init().map_err(|code| failed("starting LAPI", code))?;
        Ok(Lapi { job, handle, rank, size })
    }

    /// This task's number.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many tasks there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The handle, for [`raw`](super::raw) calls.
    ///
    /// The handle is a number, so a closure can capture it and use it on the thread that runs the closure. A call that waits there would
    /// wait for its own handler to return.
    ///
    /// # Safety
    /// - No handler of this job uses it for a call that waits, is collective or ends the handle: the fences, `term`, `address_init`, the waits
    ///   for counters, `probe`, `msgpoll`.
    /// - The program does not end it with [`raw::term`](super::raw::term) while this value lives.
    pub unsafe fn handle(&self) -> Handle {
        self.handle
    }

    pub(super) fn number(&self) -> Handle {
        self.handle
    }

    /// Sets this task's header handler for an index, 1 to 255. It runs once for each message to that index, when the message has arrived,
    /// and answers where the data goes.
    ///
    /// # Errors
    /// [`codes::ADDR_HNDL_RANGE`].
    pub fn handler<F>(&self, index: usize, handler: F) -> Result<(), Code>
    where
        F: Fn(&HandlerContext<'_>, &Announced<'_>) -> Answer + Send + 'static,
    {
        if !(1..LOC_ADDRTBL_SZ).contains(&index) {
            return Err(Code(codes::ADDR_HNDL_RANGE));
        }
        let domain = domain::enter_outside(self.handle).map_err(Code)?;
        let old = domain.entries.closures.borrow_mut().insert(index, Box::new(handler));
        domain.entries.table[index].set(CLOSURE);
        drop((domain, old));
        Ok(())
    }

    /// A message to the handler with this index at task `to`.
    pub fn message(&self, to: usize, index: usize) -> Message<'_> {
        Message { lapi: self, sending: Sending::new(to, index, &[], Arc::default()) }
    }

    /// Makes progress until `counter` is at least `value`, subtracts `value`, and returns what is left.
    ///
    /// # Errors
    /// The code of a message's error; [`codes::PEER_LOST`]; [`codes::TGT_PURGED`] if another thread purges a task meanwhile.
    pub fn wait(&self, counter: &Counter, value: i32) -> Result<i32, Code> {
        queue::check_no_closure(self.handle).map_err(Code)?;
        let domain = domain::enter_outside(self.handle).map_err(Code)?;
        let purges = domain.purges.get();
        wait_or_purged(domain, counter, value, purges).map_err(Code)
    }

    /// As [`raw::fence`](super::raw::fence).
    ///
    /// # Errors
    /// As [`Lapi::wait`].
    pub fn fence(&self) -> Result<(), Code> {
        as_result(super::raw::fence(self.handle))
    }

    /// As [`raw::gfence`](super::raw::gfence). Collective.
    ///
    /// # Errors
    /// As [`Lapi::wait`].
    ///
    /// # Panics
    /// If a handler that runs during this call panics. A program that catches the panic makes the same call again, as after
    /// [`codes::TGT_PURGED`]. The second call resumes the first one; the other tasks see one call. Between the two calls the program waits for
    /// nothing that another task has to do: that task may wait for the second call. If the program makes another collective call instead,
    /// the calls of the tasks that still wait in the first one fail, after a panic with [`codes::HANDLER_PANICKED`].
    ///
    /// So it is with [`Lapi::bell`], `Address_init` and `Term`, with two differences. Another collective call instead fails with
    /// [`codes::RUNTIME`], once this task has sent a message of the first one. And a panic that comes while these exchange their values does not unwind out of them: the next call that makes
    /// progress returns [`codes::HANDLER_PANICKED`].
    pub fn gfence(&self) -> Result<(), Code> {
        as_result(super::raw::gfence(self.handle))
    }

    /// Waits until every task has called this and all handlers have run, and leaves the job. Collective. A purge of a task does not end it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the text of a code of [`raw::term`](super::raw::term); as [`Job::finish`].
    ///
    /// # Panics
    /// If a handler panics that runs meanwhile: at the end, when the job has finished.
    pub fn finish(self) -> Result<()> {
        let (ended, panic) = self.end();
        let finished = ended.and_then(|()| self.job.finish());
        panic.map_or(finished, |panic| resume_unwind(panic))
    }

    /// Waits as [`Lapi::finish`] does, ends the handle, and makes another one of the same job: `LAPI_Term`, and `LAPI_Init` again. Collective.
    /// Handlers, target events, bells and settings were those of the old handle. A task may send as soon as it has returned: put a fence
    /// between new handlers and their first messages.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the text of a code of [`raw::term`](super::raw::term) or [`Job::init`]. Then there is no handle, and
    /// calls fail with [`codes::HNDL_INVALID`].
    ///
    /// # Panics
    /// If a handler panics that runs meanwhile: at the end, when there is a new handle.
    pub fn restart(&mut self) -> Result<()> {
        let (ended, panic) = self.end();
        let begun = ended.and_then(|()| self.job.init().map_err(|code| failed("starting LAPI", code)));
        let begun = begun.map(|handle| self.handle = handle);
        panic.map_or(begun, |panic| resume_unwind(panic))
    }

    /// Ends the handle. Returns the first panic of a handler that ran meanwhile, too.
    fn end(&self) -> (Result<()>, Option<Box<dyn Any + Send>>) {
        let mut panic = None;
        let ended = loop {
            // Make the call again, which resumes it: the other tasks wait for this one, and the handle ends with this value.
            match catch_unwind(AssertUnwindSafe(|| super::raw::term(self.handle))) {
                Ok(codes::TGT_PURGED) => {}
                Ok(code) => break as_result(code),
                Err(caught) => panic = panic.or(Some(caught)),
            }
        };
        (ended.map_err(|Code(code)| failed("ending LAPI", code)), panic)
    }
}

fn as_result(code: i32) -> Result<(), Code> {
    if code == codes::SUCCESS { Ok(()) } else { Err(Code(code)) }
}

#[cold]
fn failed(operation: &'static str, code: i32) -> Error {
    let code = Code(code);
    let why = code.failure().map_or_else(|| code.to_string(), |failure| format!("{} ({code})", failure.text));
    Error::InvalidArgument { operation, why }
}

/// A message to be sent: its parts, and the counters of its events.
#[must_use = "it is sent by `send`"]
#[derive(Debug)]
pub struct Message<'a> {
    lapi: &'a Lapi,
    sending: Sending<'a>,
}

impl<'a> Message<'a> {
    /// The user header: a multiple of 4 bytes, up to [`MAX_UHDR_SZ`](super::MAX_UHDR_SZ). It is copied.
    pub fn header(mut self, header: &'a [u8]) -> Message<'a> {
        self.sending.header = header;
        self
    }

    /// The data: a vector, or a shared one. It is kept until the target has fetched it.
    pub fn data(mut self, data: impl Into<Arc<Vec<u8>>>) -> Message<'a> {
        self.sending.data = data.into();
        self
    }

    /// Sets the origin event: what happens when the data may be dropped. See [`Signal`]: a counter moves, a bell rings, a future becomes
    /// ready, or a function runs.
    pub fn origin(mut self, signal: impl Into<Signal>) -> Message<'a> {
        self.sending.origin = Some(signal.into());
        self
    }

    /// Names the target event, by the index that the target has given to [`Lapi::target_event`]. It happens when the completion handler has
    /// returned, or, without a completion handler, when the data is in its place.
    pub fn target(mut self, index: usize) -> Message<'a> {
        self.sending.target = index;
        self
    }

    /// Sets the completion event: what happens at this task once the message has been handled at the target.
    pub fn completion(mut self, signal: impl Into<Signal>) -> Message<'a> {
        self.sending.completion = Some(signal.into());
        self
    }

    /// Sends it. Waits for room only, and makes progress meanwhile.
    ///
    /// # Errors
    /// [`codes::TGT`], [`codes::HDR_HNDLR_NULL`] for an index outside the table, [`codes::UHDR_LEN`], [`codes::TGT_PURGED`],
    /// [`codes::ADDR_HNDL_RANGE`] for a target event outside its table, [`codes::HNDL_INVALID`] for a bell of another job,
    /// [`codes::IN_HANDLER`] in the function of an event, [`codes::PEER_LOST`]: nothing was sent.
    ///
    /// # Panics
    /// If a handler that runs while this waits for room panics. Then nothing was sent, the futures of the message's events get an error,
    /// and the functions of its events are dropped. If a value that such a function holds panics when it is dropped, the next call that
    /// makes progress returns [`codes::HANDLER_PANICKED`].
    ///
    /// If the function of the origin event panics. Then the message was sent.
    pub fn send(self) -> Result<(), Code> {
        self.sending.send(self.lapi.handle)
    }
}

/// A message with its owned parts.
#[derive(Debug)]
pub(super) struct Sending<'a> {
    to: usize,
    index: usize,
    header: &'a [u8],
    data: Arc<Vec<u8>>,
    target: usize,
    origin: Option<Signal>,
    completion: Option<Signal>,
}

impl<'a> Sending<'a> {
    pub(super) fn new(to: usize, index: usize, header: &'a [u8], data: Arc<Vec<u8>>) -> Sending<'a> {
        Sending { to, index, header, data, target: 0, origin: None, completion: None }
    }

    pub(super) fn send(self, handle: Handle) -> Result<(), Code> {
        let Sending { to, index, header, data, target, origin, completion } = self;
        let domain = port::enter(handle).map_err(Code)?;
        // Closures of messages may send, functions of events may not.
        if domain.is_nested() && domain.running.get() == Running::Local {
            return Err(Code(codes::IN_HANDLER));
        }
        if !(1..LOC_ADDRTBL_SZ).contains(&index) {
            return Err(Code(codes::HDR_HNDLR_NULL));
        }
        if target >= LOC_ADDRTBL_SZ {
            return Err(Code(codes::ADDR_HNDL_RANGE));
        }
        if domain.purged.get(to).is_some_and(std::cell::Cell::get) {
            return Err(Code(codes::TGT_PURGED));
        }
        [&origin, &completion].into_iter().flatten().try_for_each(|signal| signal.check(handle))?;
        let message = send::Message {
            to: u32::try_from(to).unwrap_or(u32::MAX),
            handler: index,
            header: (header.as_ptr(), u32::try_from(header.len()).unwrap_or(u32::MAX)),
            data: (data.as_ptr(), data.len() as u64),
            target,
            origin: Event::NONE,
            completion: Event::NONE,
        };
        message.check(&domain).map_err(Code)?;
        // A counter needs no deferred event: it moves in this call if the message has its own copy of the data, else `keep` holds it.
        let (origin, counter) = match origin.as_ref().and_then(Signal::counter).cloned() {
            Some(counter) => (Event::counter(Arc::as_ptr(&counter)), Some(counter)),
            None => (domain.event_of(origin), None),
        };
        let completion = domain.event_of(completion);
        let keep: Keep = Some((data, counter));
        let settle = |domain: &domain::Domain, is_sent| {
            let events = [origin, completion].into_iter().filter(|event| event.is_deferred());
            if is_sent { events.for_each(|event| domain.arm(event, to)) } else { domain.forget(events) }
        };
        let unwound = domain::Undo(handle, |domain| {
            // If the function of the origin event panics, that event is over, and the message was sent. All other panics come while the
            // message waits for room.
            settle(domain, origin.is_deferred() && !domain.is_to_come(origin));
        });
        // SAFETY:
        // - header and data are valid, and `keep` holds data and origin counter until the counter has moved;
        // - the domain holds the signals of the other events until these have come;
        // - the target looks handler and target event up in its own tables; the callers of `addr_set` guarantee the addresses there.
        let sent = unsafe { send::send(handle, domain, send::Message { origin, completion, ..message }, keep) };
        std::mem::forget(unwound);
        if (origin.is_deferred() || completion.is_deferred())
            && let Ok(domain) = port::enter(handle)
        {
            settle(&domain, sent.is_ok());
        }
        sent.map_err(Code)
    }
}
