//! Panics of handlers. The rank that called hears of one at once, before the panic goes on and ends its rank.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind, set_hook, take_hook};
use std::rc::Rc;
use std::sync::Once;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Messages, id};
use crate::error::Error;

thread_local! {
    /// Where this thread panicked last. The payload that `catch_unwind` gives does not have the place.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
    /// The last panic of a handler that this thread has reported to a caller.
    static TOLD_OF: RefCell<Option<Panicked>> = const { RefCell::new(None) };
}

/// The last panic of a handler of this rank, `rank`, that this thread has reported to a caller. Returns each panic once.
#[cold]
pub(crate) fn told_of(rank: usize) -> Option<Error> {
    let Panicked { handler, why, place } = TOLD_OF.try_with(RefCell::take).ok().flatten()?;
    Some(Error::HandlerPanicked { rank, handler, why, place })
}

/// How long a panic waits, at most, until the caller has been told: a rank that ends takes its messages with it.
const TOLD: Duration = Duration::from_millis(200);

/// A panic, as it travels.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Panicked {
    handler: String,
    why: String,
    place: Option<String>,
}

impl Panicked {
    /// The error of the rank that called, from the bytes that came from `rank`.
    pub(super) fn decode(rank: usize, bytes: &[u8]) -> Error {
        match postcard::from_bytes(bytes) {
            Ok(Panicked { handler, why, place }) => Error::HandlerPanicked { rank, handler, why, place },
            Err(error) => Error::BadMessage { from: rank, why: format!("the panic of a handler expected: {error}") },
        }
    }
}

/// What the caller waits for.
#[derive(Clone, Copy)]
pub(super) enum Caller {
    /// The answer to the call of this number.
    Call(u64),
    /// Nothing: it hears of the panic when it polls.
    Nothing,
}

/// Notes the place of every panic from now on, and then does what the hook so far does.
fn note_places() {
    static NOTED: Once = Once::new();
    // A thread that panics must not change the hook.
    if std::thread::panicking() {
        return;
    }
    NOTED.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            let place = info.location().map(ToString::to_string);
            // The thread may be about to end, and its variables gone.
            let _ = PLACE.try_with(|last| last.try_borrow_mut().map(|mut last| *last = place));
            crate::thread::count_panic();
            before(info);
        }));
    });
}

pub(super) fn install(messages: &Rc<Messages>) {
    note_places();
    messages.set_handler(id::PANICKED, move |messages, message| {
        // Behind the header.
        let bytes = message.data().get(8..).unwrap_or_default();
        messages.engine.faults.keep(Panicked::decode(message.from, bytes));
    });
}

impl Messages {
    /// Runs code that `from` asked for. If it panics, `from` is told, and the panic goes on. `name` is only asked for then.
    #[inline(always)]
    pub(super) fn run_for<R>(
        &self,
        from: usize,
        caller: Caller,
        name: impl FnOnce() -> String,
        run: impl FnOnce() -> R,
    ) -> R {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(result) => result,
            Err(panic) => self.pass_on(from, caller, name(), panic),
        }
    }

    /// As [`Messages::run_for`], for handlers of a vocabulary: `from` hears of a panic when it polls.
    #[inline(always)]
    pub(crate) fn run_told<R>(&self, from: usize, name: impl FnOnce() -> String, run: impl FnOnce() -> R) -> R {
        self.run_for(from, Caller::Nothing, name, run)
    }

    /// As [`Messages::run_told`]. After a panic, when `from` was told, what `guard` makes is dropped.
    #[inline(always)]
    pub(crate) fn run_guarded<R, G>(
        &self,
        from: usize,
        name: impl FnOnce() -> String,
        guard: impl FnOnce() -> G,
        run: impl FnOnce() -> R,
    ) -> R {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(result) => result,
            Err(panic) => {
                let _guard = guard();
                self.pass_on(from, Caller::Nothing, name(), panic)
            }
        }
    }

    /// Tells `from` of a panic that this thread has caught.
    #[cold]
    pub(crate) fn tell_panic(&self, from: usize, handler: String, panic: &(dyn Any + Send)) {
        self.tell_caller(from, Caller::Nothing, handler, panic);
    }

    #[cold]
    #[inline(never)]
    fn pass_on(&self, from: usize, caller: Caller, handler: String, panic: Box<dyn Any + Send>) -> ! {
        self.engine.begin_to_panic();
        self.tell_caller(from, caller, handler, &*panic);
        self.engine.hand_out(from, TOLD);
        resume_unwind(panic)
    }

    fn tell_caller(&self, from: usize, caller: Caller, handler: String, panic: &(dyn Any + Send)) {
        let words = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
        let panicked = Panicked { handler, why: words.unwrap_or("in no words").to_owned(), place: PLACE.take() };
        let bytes = postcard::to_stdvec(&panicked).unwrap_or_default();
        // Fails only in a thread that ends, where no code asks for the place.
        let _ = TOLD_OF.try_with(|told| told.replace(Some(panicked)));
        // The sender of a large message waits for an answer.
        let caller = match (caller, self.landings.take_announced()) {
            (Caller::Nothing, Some(number)) => Caller::Call(number),
            (caller, _) => caller,
        };
        self.engine.answer(from, || match caller {
            Caller::Call(number) => self.engine.send_or_keep(
                from,
                id::ANSWER,
                number,
                &[&[super::closure::PANICKED], bytes.as_slice()].concat(),
            ),
            Caller::Nothing => self.engine.send_or_keep(from, id::PANICKED, 0, &bytes),
        });
    }
}
