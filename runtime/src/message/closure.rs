//! Closures as active messages: no registration, no macro.
//!
//! A closure that captures nothing has size 0, so a message only needs to name code. For each closure type the compiler
//! instantiates a small function, the shim, that decodes the arguments and runs the closure. A message carries the shim's
//! distance from an anchor function, which is the same in every process of this executable (see [`super::code`]).

use std::cell::Cell;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{self, Poll};

use bytemuck::Pod;
use serde::{Serialize, de::DeserializeOwned};

use super::calls::Bytes;
use super::code::CodeOffset;
use super::encoding::{Encoding, Plain, Postcard};
use super::panic::{Caller, Panicked};
use super::{Context, Messages, id, words};
use crate::engine::{RECEIPT, Ready};
use crate::error::{Error, Result};

/// Takes the encoded arguments and appends the encoded result to the last argument. An error says why the arguments could not be
/// decoded or the result could not be encoded. Before the closure runs, the shim sets the cell to the name of the closure's type.
type Shim = fn(&Context<'_>, &[u8], &Cell<&'static str>, &mut Bytes) -> std::result::Result<(), String>;

/// The first byte of an answer. `DONE`: the result follows. `REFUSED`: the reason why there is no result follows. `PANICKED`: an
/// encoded [`Panicked`] follows.
pub(super) const DONE: u8 = 0;
pub(super) const REFUSED: u8 = 1;
pub(super) const PANICKED: u8 = 2;
/// The first byte of the answer to an atomic on a segment that has been closed.
pub(super) const CLOSED: u8 = 3;

/// Using `CHECK` compiles only if `F` has size 0.
struct CapturesNothing<F>(PhantomData<F>);

impl<F> CapturesNothing<F> {
    const CHECK: () = assert!(
        size_of::<F>() == 0,
        "a closure sent to another rank must not capture anything: pass what it needs as arguments"
    );
}

/// Runs closure `F` at the target. The shim's address identifies `F` on every rank.
fn shim<E, A, R, F>(
    context: &Context<'_>,
    bytes: &[u8],
    name: &Cell<&'static str>,
    answer: &mut Bytes,
) -> std::result::Result<(), String>
where
    E: Encoding<A> + Encoding<R>,
    F: Fn(&Context<'_>, A) -> R + Copy,
{
    let () = CapturesNothing::<F>::CHECK;
    // SAFETY: `F` has size 0 and is Copy, and the caller at the other rank held a value, so `F` is inhabited. A closure
    // that captures a zero-sized token passes the size check too: the token is then duplicated in this process, which
    // `World::invoke` documents.
    let function = unsafe { std::mem::zeroed::<F>() };
    name.set(std::any::type_name::<F>());
    let result = function(context, E::decode(bytes)?);
    E::encode(&result, answer).map_err(|error| error.to_string())
}

fn place_of(shim: Shim) -> Result<u64> {
    CodeOffset::of(shim as usize).map(CodeOffset::to_bits).ok_or_else(|| Error::InvalidArgument {
        operation: "remote call",
        why: "the closure is not part of the executable (it comes from a shared library), so other ranks cannot \
              find it; register a handler instead"
            .into(),
    })
}

/// The code offset of a closure that sends no answer and whose arguments are encoded by serde.
pub(super) fn place_of_postcard<A, F>(function: F) -> Result<u64>
where
    A: Serialize + DeserializeOwned,
    F: Fn(&Context<'_>, A) + Copy,
{
    let _ = function;
    place_of(shim::<Postcard, A, (), F>)
}

/// The code offset of a closure that sends no answer and whose arguments are sent as their bytes in memory.
pub(super) fn place_of_plain<A, F>(function: F) -> Result<u64>
where
    A: Pod,
    F: Fn(&Context<'_>, A) + Copy,
{
    let _ = function;
    place_of(plain_shim::<A, F>)
}

fn find(bits: u64) -> std::result::Result<Shim, String> {
    let address = CodeOffset::from_bits(bits).address().ok_or("a remote call to a place where no code is")?;
    // SAFETY: `address` is inside this executable's code. The sender made `bits` by `place_of`, and every rank runs the same
    // executable (checked at the start), so a `Shim` begins there.
    Ok(unsafe { std::mem::transmute::<usize, Shim>(address) })
}

pub(super) fn install(messages: &Rc<Messages>) {
    messages.set_handler(id::INVOKE, move |messages, message| {
        let Some(([place], arguments)) = words(message.data()) else {
            return messages.fault(message.from, "a remote call without a place");
        };
        // A closure without answer has the result `()`, which takes no bytes.
        let mut nothing = Bytes::new();
        if let Err(why) = messages.run_closure(message.from, Caller::Nothing, place, arguments, &mut nothing) {
            messages.fault(message.from, why);
        }
    });
    messages.set_handler(id::CALL, move |messages, message| {
        let Some(([place, number], arguments)) = words(message.data()) else {
            return messages.fault(message.from, "a remote call without a number");
        };
        let mut answer = Bytes::from_slice(&[DONE]);
        if let Err(why) = messages.run_closure(message.from, Caller::Call(number), place, arguments, &mut answer) {
            answer.clear();
            answer.push(REFUSED);
            answer.extend_from_slice(why.as_bytes());
        }
        let send = |answer: &[u8]| messages.engine.send_or_keep(message.from, id::ANSWER, number, answer);
        // The caller waits for an answer. If the result cannot be sent, it gets the reason instead.
        messages.engine.answer(message.from, || {
            send(&answer).or_else(|error| send(&[&[REFUSED], error.to_string().as_bytes()].concat()))
        });
    });
    messages.set_handler(id::ANSWER, move |messages, message| {
        let Some(([number], answer)) = words(message.data()) else {
            return messages.fault(message.from, "an answer without a number");
        };
        if number & RECEIPT != 0 {
            // First: a program that is told that it may change its data takes the data back.
            messages.end_outgoing(number, message.from);
            return messages.take_receipt(message.from, number, answer);
        }
        messages.calls.answer(number, answer);
        messages.end_outgoing(number, message.from);
    });
}

impl Messages {
    /// Runs, for rank `from`, the closure whose shim is at code offset `place`.
    #[inline]
    fn run_closure(
        &self,
        from: usize,
        caller: Caller,
        place: u64,
        arguments: &[u8],
        answer: &mut Bytes,
    ) -> std::result::Result<(), String> {
        let shim = find(place)?;
        let name = Cell::new("a closure");
        self.run_for(from, caller, || name.get().to_owned(), || shim(&self.context(from), arguments, &name, answer))
    }

    /// Runs `function` at rank `to`, without an answer. Arguments are encoded by serde; see `World::invoke`.
    pub fn invoke<A, F>(&self, to: usize, arguments: &A, function: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        let _ = function;
        self.engine.check_rank(to, "remote call")?;
        let place = place_of(shim::<Postcard, A, (), F>)?;
        let mut bytes = Bytes::new();
        <Postcard as Encoding<A>>::encode(arguments, &mut bytes)?;
        self.send(to, id::INVOKE, place, &bytes)
    }

    /// As [`Messages::invoke`], with plain-old-data arguments.
    pub fn invoke_plain<A, F>(&self, to: usize, arguments: A, function: F) -> Result<()>
    where
        A: Pod,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        let place = place_of_plain::<A, F>(function)?;
        self.engine.check_rank(to, "remote call")?;
        self.send(to, id::INVOKE, place, bytemuck::bytes_of(&arguments))
    }

    /// Runs `function` at rank `to` and returns a handle to its result; see `World::call`.
    #[track_caller]
    pub fn call<A, R, F>(self: &Rc<Self>, to: usize, arguments: &A, function: F) -> Result<Call<R>>
    where
        A: Serialize + DeserializeOwned,
        R: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) -> R + Copy + Send + 'static,
    {
        let _ = function;
        self.begin::<Postcard, A, R>(to, shim::<Postcard, A, R, F>, arguments)
    }

    /// As [`Messages::call`], with plain-old-data arguments and result.
    #[track_caller]
    pub fn call_plain<A, R, F>(self: &Rc<Self>, to: usize, arguments: A, function: F) -> Result<Call<R>>
    where
        A: Pod,
        R: Pod,
        F: Fn(&Context<'_>, A) -> R + Copy + Send + 'static,
    {
        let _ = function;
        self.begin::<Plain, A, R>(to, shim::<Plain, A, R, F>, &arguments)
    }

    /// Opens a call to rank `to` without sending anything. Dropping the [`Call`] closes it.
    #[track_caller]
    pub(super) fn open_call<R>(
        self: &Rc<Self>,
        to: usize,
        decode: fn(&[u8]) -> std::result::Result<R, String>,
    ) -> Call<R> {
        Call {
            messages: Rc::clone(self),
            number: self.calls.open(),
            to,
            decode,
            place: self.engine.place(),
            result: PhantomData,
        }
    }

    #[track_caller]
    fn begin<E, A, R>(self: &Rc<Self>, to: usize, shim: Shim, arguments: &A) -> Result<Call<R>>
    where
        E: Encoding<A> + Encoding<R>,
    {
        self.engine.check_rank(to, "remote call")?;
        let place = place_of(shim)?;
        let call = self.open_call(to, <E as Encoding<R>>::decode);
        let mut bytes = Bytes::from_slice(&call.number.to_ne_bytes());
        <E as Encoding<A>>::encode(arguments, &mut bytes)?;
        self.send(to, id::CALL, place, &bytes)?;
        Ok(call)
    }
}

fn plain_shim<A, F>(
    context: &Context<'_>,
    bytes: &[u8],
    name: &Cell<&'static str>,
    _answer: &mut Bytes,
) -> std::result::Result<(), String>
where
    A: Pod,
    F: Fn(&Context<'_>, A) + Copy,
{
    let () = CapturesNothing::<F>::CHECK;
    // SAFETY: as in `shim`.
    let function = unsafe { std::mem::zeroed::<F>() };
    name.set(std::any::type_name::<F>());
    function(context, <Plain as Encoding<A>>::decode(bytes)?);
    Ok(())
}

const WAITING: &str = "waiting for the result of a remote call";

/// A remote call in flight: a future, or [`wait`](Self::wait) for its result.
///
/// The call has been sent when this value exists. The future is driven on the thread of its world: by
/// [`World::block_on`](crate::World::block_on), by any wait of this rank, or by a single-threaded executor.
/// [`World::wait_all`](crate::World::wait_all) waits for several calls, [`World::select`](crate::World::select) for the first of
/// several. The target runs the function when it polls or waits.
///
/// The value owns its buffers. Dropping it is safe at any time: that discards the answer, and the function still runs. Errors name the
/// place in the program where the call was made.
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// bellwether::threads(3, |world| {
///     let squares = (0..world.size()).map(|to| world.call(to, 7u64, |ctx, x| ctx.rank() as u64 * x));
///     let sum = world.block_on(async {
///         let mut sum = 0;
///         for call in squares.collect::<bellwether::Result<Vec<_>>>()? {
///             sum += call.await?;
///         }
///         Ok(sum)
///     })?;
///     assert_eq!(sum, 21);
///     world.barrier()
/// })?.into_iter().collect::<Result<Vec<_>, _>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
#[must_use = "what it gives, and its errors, come from `wait` or `.await`; use `invoke` if there is no result"]
pub struct Call<R> {
    messages: Rc<Messages>,
    number: u64,
    to: usize,
    decode: fn(&[u8]) -> std::result::Result<R, String>,
    /// Where the program made the call.
    place: &'static Location<'static>,
    result: PhantomData<fn() -> R>,
}

impl<R> Call<R> {
    /// Polls, and returns whether the answer has arrived.
    ///
    /// # Errors
    /// As `World::poll`.
    pub fn is_done(&self) -> Result<bool> {
        let engine = &self.messages.engine;
        let polled = engine.poll_alive(WAITING).map_err(|error| error.at(self.place));
        if let Err(Error::PeerLost { .. }) = polled {
            // The target may have answered before it ended. Poll once more: the answer may have arrived since the last poll.
            engine.turn();
        }
        if self.answered() { Ok(true) } else { polled.map(|_| false) }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn answered(&self) -> bool {
        self.messages.calls.is_answered(self.number)
    }

    /// Blocks until the result arrives. The target must poll or wait.
    ///
    /// # Errors
    /// [`Error::HandlerPanicked`] if the closure panicked; [`Error::PeerLost`] if the target is gone; [`Error::BadMessage`] if the
    /// target could not decode the arguments or send the result, or this rank cannot decode it.
    #[track_caller]
    pub fn wait(self) -> Result<R> {
        let engine = &self.messages.engine;
        engine.at(|| {
            let mut outcome = None;
            let waited = engine.wait_until(WAITING, None, || {
                outcome = self.outcome().transpose();
                outcome.is_some()
            });
            waited.and_then(|()| outcome.expect("the wait ends with an outcome")).map_err(|error| error.at(self.place))
        })
    }

    /// The result or error of the call, if it is known. Must not be called again after that.
    fn outcome(&self) -> Result<Option<R>> {
        if let Some(answer) = self.messages.calls.take(self.number) {
            return self.read(&answer).map(Some);
        }
        let engine = &self.messages.engine;
        if !(engine.job.any_lost() || engine.job.any_left()) {
            return Ok(None);
        }
        let Some(cause) = engine.job.loss(self.to) else { return Ok(None) };
        // The target may have answered before it left. Poll once more: the answer may have arrived since the last poll.
        if !engine.interface.delivering() {
            engine.turn();
        }
        match self.messages.calls.take(self.number) {
            Some(answer) => self.read(&answer).map(Some),
            None => {
                self.messages.calls.close(self.number);
                Err(engine.failures.lost(self.to, cause, WAITING))
            }
        }
    }

    fn read(&self, answer: &[u8]) -> Result<R> {
        match answer.split_first() {
            Some((&DONE, bytes)) => (self.decode)(bytes),
            Some((&PANICKED, panicked)) => {
                let error = Panicked::decode(self.to, panicked);
                return Err(self.messages.engine.failures.told(error));
            }
            Some((_, why)) => Err(String::from_utf8_lossy(why).into_owned()),
            None => Err("an empty answer".into()),
        }
        .map_err(|why| Error::BadMessage { from: self.to, why })
    }
}

impl<R> Future for Call<R> {
    type Output = Result<R>;

    fn poll(self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Result<R>> {
        self.messages.engine.poll_ready(WAITING, context, || self.outcome()).map_err(|error| error.at(self.place))
    }
}

impl<R> Ready for Call<R> {
    fn is_ready(&mut self) -> bool {
        let job = &self.messages.engine.job;
        self.answered() || ((job.any_lost() || job.any_left()) && job.loss(self.to).is_some())
    }

    fn driver(&self) -> Option<*const ()> {
        Some(Rc::as_ptr(&self.messages.engine).cast())
    }

    fn is_taken(&self) -> bool {
        self.messages.calls.is_closed(self.number)
    }
}

impl<R> std::fmt::Debug for Call<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Call(number {}, to rank {})", self.number, self.to)
    }
}

impl<R> Drop for Call<R> {
    fn drop(&mut self) {
        self.messages.calls.close(self.number);
    }
}

/// For fuzzing: decodes `bytes` as arguments and results of several types. Must not panic.
#[cfg(any(test, fuzzing))]
pub(crate) fn feed_closures(bytes: &[u8]) {
    type Rows = Vec<(String, Option<Box<[f64; 2]>>, std::collections::BTreeMap<u8, char>)>;
    let _ = <Postcard as Encoding<Rows>>::decode(bytes);
    let _ = <Postcard as Encoding<std::result::Result<i128, ()>>>::decode(bytes);
    let _ = <Plain as Encoding<[u16; 3]>>::decode(bytes);
    let _ = <Plain as Encoding<()>>::decode(bytes);
}

/// For fuzzing: the code offset of a closure that takes a `T` if `bits` name code or are odd; otherwise `bits`.
#[cfg(any(test, fuzzing))]
pub(crate) fn name_code<T: Serialize + DeserializeOwned>(bits: u64) -> u64 {
    fn taking<T: Serialize + DeserializeOwned, F: Fn(&Context<'_>, T) -> u8 + Copy>(_: F) -> Shim {
        shim::<Postcard, T, u8, F>
    }
    let named = CodeOffset::from_bits(bits).address().is_some() || bits & 1 == 1;
    if named {
        place_of(taking::<T, _>(|_, value| {
            drop(value);
            1
        }))
        .expect("our own code")
    } else {
        bits
    }
}
