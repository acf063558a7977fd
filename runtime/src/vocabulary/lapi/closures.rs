//! Header and completion handlers that are closures.

use std::ffi::c_void;
use std::marker::PhantomData;

use super::MAX_UHDR_SZ;
use super::domain::Domain;
use super::face::{Code, Sending};
use super::queue::Marks;
use super::types::{CompletionHandler, Handle, LOCAL_STATE, ReturnInfo, SEND_REPLY};

/// Stands for a closure in the table of handlers, in place of an address.
pub(super) const CLOSURE: usize = 1;

/// A message that has arrived, before its data has a place.
#[derive(Debug)]
pub struct Announced<'a> {
    pub(super) from: usize,
    pub(super) header: &'a [u8],
    pub(super) len: usize,
    pub(super) data: Option<&'a [u8]>,
}

impl<'a> Announced<'a> {
    /// The task that sent it.
    pub fn from(&self) -> usize {
        self.from
    }

    /// The user header.
    pub fn header(&self) -> &'a [u8] {
        self.header
    }

    /// Bytes of data.
    #[expect(clippy::len_without_is_empty, reason = "a size, not a collection")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The data, if it came with the header: a short message can be taken here, and answered with [`Answer::discard`].
    pub fn data(&self) -> Option<&'a [u8]> {
        self.data
    }
}

/// A message whose data is in its place.
#[derive(Debug)]
pub struct Landed {
    from: usize,
    header: Box<[u8]>,
    data: Vec<u8>,
}

impl Landed {
    /// The task that sent it.
    pub fn from(&self) -> usize {
        self.from
    }

    /// The user header.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The data; none if it was discarded.
    pub fn into_vec(self) -> Vec<u8> {
        self.data
    }
}

type Then = Box<dyn FnOnce(&HandlerContext<'_>, Landed) + Send>;

/// The answer of a header handler: where the data goes, and the function that runs when it is there.
#[derive(Default)]
pub struct Answer {
    place: Option<Vec<u8>>,
    then: Option<Then>,
    inline: bool,
}

impl Answer {
    /// The data goes to this vector, in place of its contents. The vector's memory is used if it suffices.
    pub fn vec(vec: Vec<u8>) -> Answer {
        Answer { place: Some(vec), ..Answer::default() }
    }

    /// The data is not wanted, or was taken already.
    pub fn discard() -> Answer {
        Answer::default()
    }

    /// When the data is in its place, the handler thread runs `completion`.
    #[must_use]
    pub fn then(self, completion: impl FnOnce(&HandlerContext<'_>, Landed) + Send + 'static) -> Answer {
        Answer { then: Some(Box::new(completion)), inline: false, ..self }
    }

    /// When the data is in its place, `completion` runs at once, in the poll that brought it: for short functions.
    #[must_use]
    pub fn then_inline(self, completion: impl FnOnce(&HandlerContext<'_>, Landed) + Send + 'static) -> Answer {
        Answer { then: Some(Box::new(completion)), inline: true, ..self }
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if self.place.is_some() { "a vector" } else { "nowhere" };
        write!(f, "Answer({place}, inline: {})", self.inline)
    }
}

/// The calls that a handler can make: it can send. It can neither wait for an event nor enter a collective, since there is no such call.
///
/// ```compile_fail,E0599
/// # use bellwether_runtime::vocabulary::lapi::{Answer, Lapi};
/// # fn f(lapi: &Lapi) {
/// lapi.handler(5, |context, _| {
///     context.gfence();
///     Answer::discard()
/// });
/// # }
/// ```
///
/// Nor can it capture a `Lapi`, which stays on its thread:
/// ```compile_fail,E0277
/// # use bellwether_runtime::vocabulary::lapi::{Answer, Lapi};
/// # fn f(lapi: std::rc::Rc<Lapi>) {
/// let own = std::rc::Rc::clone(&lapi);
/// lapi.handler(5, move |_, _| {
///     own.gfence();
///     Answer::discard()
/// });
/// # }
/// ```
///
/// Without `unsafe` a closure cannot get the handle that [`raw`](super::raw) calls take. If it guesses the number, collective calls and
/// fences fail with [`codes::IN_HANDLER`](super::codes::IN_HANDLER).
/// ```compile_fail,E0133
/// # use bellwether_runtime::vocabulary::lapi::{Answer, Lapi, raw};
/// # fn f(lapi: &Lapi) {
/// let handle = lapi.handle();
/// lapi.handler(5, move |_, _| Answer::discard().then(move |_, _| drop(raw::gfence(handle))));
/// # }
/// ```
#[derive(Debug)]
pub struct HandlerContext<'a> {
    handle: Handle,
    lives: PhantomData<&'a Handle>,
}

impl HandlerContext<'_> {
    /// Sends copies of header and data to the handler with this index at task `to`. In a header handler, and inline, a message that finds
    /// no room is kept; on the handler thread this waits for room.
    ///
    /// # Errors
    /// As [`Message::send`](super::Message::send).
    pub fn send(&self, to: usize, index: usize, header: &[u8], data: &[u8]) -> Result<(), Code> {
        Sending::new(to, index, header, data.to_vec().into()).send(self.handle)
    }
}

/// A header handler.
pub(super) type Closure = Box<dyn Fn(&HandlerContext<'_>, &Announced<'_>) -> Answer + Send>;

/// The part of an answer that is kept until the data is in its place.
struct Pending {
    landed: Landed,
    len: usize,
    then: Option<Then>,
}

/// The completion handler of every message to a closure.
unsafe extern "C-unwind" fn complete(handle: *mut Handle, parameter: *mut c_void) {
    // SAFETY: `call_closure` made the parameter for one call, and LAPI passes a valid handle.
    let (handle, pending) = unsafe { (*handle, *Box::from_raw(parameter.cast::<Pending>())) };
    let Pending { mut landed, len, then } = pending;
    // SAFETY: `call_closure` reserved room for `len` bytes, 0 if there is no place, and all were written.
    unsafe { landed.data.set_len(len) };
    if let Some(then) = then {
        let _marks = Marks::new(handle, true);
        then(&HandlerContext { handle, lives: PhantomData }, landed);
    }
}

/// Drops an answer whose data cannot come: its place, and its completion closure.
///
/// # Safety
/// The parameter is that of a message to a closure, and is not used again.
#[cold]
pub(super) unsafe fn discard(parameter: *mut c_void) {
    // SAFETY: `call_closure` made it for one use, by the caller's guarantee this one.
    drop(unsafe { Box::from_raw(parameter.cast::<Pending>()) });
}

/// Leaks the place of an answer: pieces of the data may still arrive there.
///
/// # Safety
/// The parameter is that of a message to a closure, which nobody else uses meanwhile.
#[cold]
pub(super) unsafe fn leave_place(parameter: *mut c_void) {
    // SAFETY: `call_closure` made it, and the caller guarantees that it is not in use.
    let pending = unsafe { &mut *parameter.cast::<Pending>() };
    std::mem::forget(std::mem::take(&mut pending.landed.data));
}

impl Domain {
    /// Runs a closure as a header handler. Returns where the data goes, or `None` if there is no memory for it, and sets the completion
    /// handler. Out of line, so that messages to C handlers do not pay for its frame.
    #[inline(never)]
    pub(super) fn call_closure(
        &self,
        index: usize,
        announced: &Announced<'_>,
        info: &mut ReturnInfo,
        then: &mut Option<CompletionHandler>,
        parameter: &mut *mut c_void,
    ) -> Option<*mut c_void> {
        debug_assert!(announced.header.len() <= MAX_UHDR_SZ);
        let context = HandlerContext { handle: self.handle, lives: PhantomData };
        let closures = self.entries.closures.borrow();
        let Some(closure) = closures.get(&index) else { return Some(std::ptr::null_mut()) };
        let Answer { place, then: completion, inline } = closure(&context, announced);
        drop(closures);
        let (mut data, len) = match place {
            Some(vec) => (vec, announced.len),
            None => (Vec::new(), 0),
        };
        data.clear();
        if data.try_reserve_exact(len).is_err() {
            return None;
        }
        let start: *mut c_void = if len == 0 { std::ptr::null_mut() } else { data.as_mut_ptr().cast() };
        info.ret_flags = match (&completion, inline) {
            (None, _) => LOCAL_STATE,
            (_, true) => SEND_REPLY,
            _ => info.ret_flags,
        };
        let landed = Landed { from: announced.from, header: announced.header.into(), data };
        *parameter = Box::into_raw(Box::new(Pending { landed, len, then: completion })).cast();
        *then = Some(complete);
        Some(start)
    }
}
