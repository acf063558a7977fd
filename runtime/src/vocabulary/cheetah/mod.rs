//! Cheetah's calls: one-sided put, get and remote call between *contexts*, with bells that count completions.
//!
//! | Cheetah | here |
//! | --- | --- |
//! | `cheetah_core_setup`, `Controller(argc, argv)` | [`Controller::setup`] |
//! | `ncontexts`, `mycontext` | [`Controller::ncontexts`], [`Controller::mycontext`] |
//! | `put`, `get` | [`Controller::put`], [`Controller::get`] |
//! | `register_function`, `ainvoke` | [`Controller::register_function`], [`Controller::ainvoke`] |
//! | a bell: an `int` that is incremented | [`Bell`] |
//! | `poll`, `wait`, `barrier` | the same |
//! | `MatchingHandler` | [`MatchingHandler`] |
//! | `cheetah_core_finalize` | [`Controller::finalize`], or the last reference dropped |
//!
//! No thread works in the background: messages move when a context calls into the controller.

mod matching;

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

pub use self::matching::{MatchingHandler, Postcard, Serialize};

use self::matching::Matching;
use crate::error::{Error, Result};
use crate::message::HandlerId;
use crate::world::{Builder, RawBells, World};

/// A function's number, counted from the first one registered.
pub type FunctionId = u32;

/// A counter that operations ring. What it counts is the program's affair.
///
/// It can lie anywhere: on the stack, in a static, in a segment. It is read through the controller, which polls, so
/// that no loop waits for a ring that nothing delivers.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Bell(AtomicI32);

impl Bell {
    /// A bell that has not rung.
    pub const fn new() -> Bell {
        Bell(AtomicI32::new(0))
    }

    /// Its address, for other contexts to name it as their remote bell.
    pub fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Polls, and tells how often it has rung.
    ///
    /// # Errors
    /// As [`Controller::poll`].
    pub fn read(&self, controller: &Controller) -> Result<i32> {
        controller.poll()?;
        Ok(self.0.load(Ordering::Acquire))
    }
}

/// A context's access to all others. Clones share it; the last one to go finalises.
#[derive(Clone, Default)]
pub struct Controller(Option<Rc<Inner>>);

struct Inner {
    world: RefCell<Option<Rc<World>>>,
    matching: RefCell<Matching>,
}

impl Controller {
    /// A controller that is not valid until another is assigned to it.
    pub fn invalid() -> Controller {
        Controller(None)
    }

    /// Sets up the contexts and takes Cheetah's options out of `arguments`: `-np N` starts N contexts as copies of
    /// this program, unless a launcher has done so already; `-shmem` and `-mpi` say how, `-ulm` is refused. Call it as early as
    /// possible: before it, every context does what the program says. Collective.
    ///
    /// # Errors
    /// As [`World::start`]; [`Error::InvalidArgument`] for an option that cannot be understood.
    pub fn setup(arguments: &mut Vec<String>) -> Result<Controller> {
        let contexts = take_options(arguments)?;
        let mut builder = World::builder();
        if let Some(contexts) = contexts {
            builder = builder.ranks(contexts);
        }
        Self::setup_with(builder)
    }

    /// Sets up a controller on a world to be started, for example a rank that is a thread. Collective.
    ///
    /// # Errors
    /// As [`World::start`].
    pub fn setup_with(builder: Builder) -> Result<Controller> {
        let world = Rc::new(builder.open_table().start()?);
        let inner = Rc::new(Inner { world: RefCell::new(Some(Rc::clone(&world))), matching: RefCell::default() });
        matching::install(&world, &inner);
        Ok(Controller(Some(inner)))
    }

    /// Whether it has been set up and not finalised.
    pub fn is_valid(&self) -> bool {
        self.0.as_ref().is_some_and(|inner| inner.world.borrow().is_some())
    }

    fn inner(&self, operation: &'static str) -> Result<&Rc<Inner>> {
        self.0.as_ref().ok_or_else(|| unusable(operation))
    }

    fn world(&self, operation: &'static str) -> Result<Rc<World>> {
        self.inner(operation)?.world.borrow().clone().ok_or_else(|| unusable(operation))
    }

    /// The world underneath, for everything that Cheetah does not have.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`Controller::setup`] and after [`Controller::finalize`].
    pub fn as_world(&self) -> Result<Rc<World>> {
        self.world("as_world")
    }

    /// How many contexts there are.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`Controller::setup`] and after [`Controller::finalize`].
    pub fn ncontexts(&self) -> Result<usize> {
        Ok(self.world("ncontexts")?.size())
    }

    /// This context's number, from 0.
    ///
    /// # Errors
    /// As [`Controller::ncontexts`].
    pub fn mycontext(&self) -> Result<usize> {
        Ok(self.world("mycontext")?.rank())
    }

    /// Copies `source` to address `remote` of `context`. The local bell rings when `source` may be changed, the remote
    /// one, an address there, when the data is in place. Needs no matching call; does not wait for that context.
    /// Nothing is promised about the order of two operations.
    ///
    /// # Safety
    /// As [`World::put_address`].
    ///
    /// # Errors
    /// As [`World::put_address`].
    pub unsafe fn put(
        &self,
        context: usize,
        remote: usize,
        source: &[u8],
        local_bell: Option<&Bell>,
        remote_bell: Option<usize>,
    ) -> Result<()> {
        let bells = RawBells { local: local_bell.map(|bell| &bell.0), remote: remote_bell };
        // SAFETY: the caller's word.
        unsafe { self.world("put")?.put_address(context, remote, source, bells) }
    }

    /// Copies `length` bytes at address `remote` of `context` to `local`. The remote bell rings when the memory there
    /// may be changed, the local one when the data is here.
    ///
    /// # Safety
    /// As [`World::get_address`].
    ///
    /// # Errors
    /// As [`World::get_address`].
    pub unsafe fn get(
        &self,
        context: usize,
        remote: usize,
        local: *mut u8,
        length: usize,
        local_bell: Option<&Bell>,
        remote_bell: Option<usize>,
    ) -> Result<()> {
        let bells = RawBells { local: local_bell.map(|bell| &bell.0), remote: remote_bell };
        // SAFETY: the caller's word.
        unsafe { self.world("get")?.get_address(context, remote, local, length, bells) }
    }

    /// Gives `function` the next number. Every context registers the same functions in the same order, before its
    /// first communication call. The function gets the controller, the calling context, its own number and the
    /// buffer, which belongs to the system and is gone afterwards; it runs inside a call of this context and may put,
    /// get and invoke, but not wait.
    ///
    /// # Errors
    /// [`Error::RegistrationClosed`] after the first communication call.
    pub fn register_function<F>(&self, function: F) -> Result<FunctionId>
    where
        F: Fn(&Controller, usize, FunctionId, &[u8]) + 'static,
    {
        let world = self.world("register_function")?;
        let weak = Rc::downgrade(self.inner("register_function")?);
        let number = world.messages().handlers() as u32;
        // A function pointer is a value: its type says nothing about which function it is.
        let code = match (&function as &dyn Any).downcast_ref::<fn(&Controller, usize, FunctionId, &[u8])>() {
            Some(pointer) => *pointer as usize,
            None => run::<F> as fn(&F, &Controller, usize, FunctionId, &[u8]) as usize,
        };
        world.messages().register(
            std::any::type_name::<F>(),
            code,
            Rc::new(move |context, buffer| {
                if let Some(inner) = weak.upgrade() {
                    run(&function, &Controller(Some(inner)), context.from(), number, buffer);
                }
            }),
        )?;
        Ok(number)
    }

    /// Calls function `function` in `context`, with a copy of `buffer`, which may be changed on return: the bell rings
    /// before that. Does not wait for that context, and keeps what finds no room.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`], [`Error::PeerLost`]; [`Error::RanksDiffer`] if that context registered other
    /// functions; [`Error::OutOfMemory`] if the buffer can never fit. A number that was never registered is an
    /// [`Error::UnknownHandler`] from the next call of the *called* context.
    pub fn ainvoke(
        &self,
        context: usize,
        function: FunctionId,
        buffer: &[u8],
        local_bell: Option<&Bell>,
    ) -> Result<()> {
        let world = self.world("ainvoke")?;
        world.messages().post_to_handler(context, HandlerId::from_number(function), buffer)?;
        if let Some(bell) = local_bell {
            bell.0.fetch_add(1, Ordering::Release);
        }
        world.poll().map(drop)
    }

    /// Waits until every context has called this. Collective. Checks that all have registered the same functions.
    ///
    /// # Errors
    /// As [`World::barrier`]; [`Error::RanksDiffer`].
    pub fn barrier(&self) -> Result<()> {
        let world = self.world("barrier")?;
        world.messages().seal();
        world.barrier()?;
        (0..world.size()).try_for_each(|rank| world.messages().verify(rank))
    }

    /// Moves messages in and out; tells how many.
    ///
    /// # Errors
    /// As [`World::poll`].
    pub fn poll(&self) -> Result<usize> {
        self.world("poll")?.poll()
    }

    /// Polls, at least once, until `bell` has rung at least `count` times. Does not change the bell.
    ///
    /// # Errors
    /// As [`World::wait_until`].
    pub fn wait(&self, bell: &Bell, count: i32) -> Result<()> {
        let world = self.world("wait")?;
        // Also where the bell has rung already: every call makes progress.
        world.engine().poll()?;
        world.engine().wait_until("waiting for a bell", None, || bell.0.load(Ordering::Acquire) >= count)
    }

    /// As [`Controller::wait`], for at most `limit`.
    ///
    /// # Errors
    /// As [`Controller::wait`], and [`Error::TimedOut`].
    pub fn wait_for(&self, bell: &Bell, count: i32, limit: Duration) -> Result<()> {
        let world = self.world("wait_for")?;
        world.engine().poll()?;
        world.wait_until_for(limit, || bell.0.load(Ordering::Acquire) >= count)
    }

    /// Enters a last barrier and leaves; what was sent before it is delivered. Collective. All clones are invalid
    /// afterwards, and requests that no message has met are dropped.
    ///
    /// # Errors
    /// As [`Controller::barrier`].
    pub fn finalize(&self) -> Result<()> {
        let world = self.world("finalize")?;
        world.engine().check_outside_handler("finalize")?;
        world.messages().seal();
        let done = world.last_barrier();
        let inner = self.inner("finalize")?;
        inner.world.borrow_mut().take();
        // Requests may hold the controller, and would keep it for ever.
        let unmet = std::mem::take(&mut *inner.matching.borrow_mut());
        drop(unmet);
        done
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // The last reference finalises, while handlers can still find the controller. After a panic nobody waits.
        let last = self.0.as_ref().is_some_and(|inner| Rc::strong_count(inner) == 1);
        if last
            && self.is_valid()
            && !std::thread::panicking()
            && let Err(error) = self.finalize()
        {
            tracing::warn!(%error, "finalize: the other ranks did not end together with this one");
        }
    }
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.world("") {
            Ok(world) => write!(f, "Controller(context {} of {})", world.rank(), world.size()),
            Err(_) => f.write_str("Controller(invalid)"),
        }
    }
}

fn unusable(operation: &'static str) -> Error {
    Error::InvalidArgument {
        operation,
        why: "the controller is not valid: call it after `Controller::setup` and before `finalize`".into(),
    }
}

fn run<F: Fn(&Controller, usize, FunctionId, &[u8])>(
    function: &F,
    controller: &Controller,
    who: usize,
    id: FunctionId,
    buffer: &[u8],
) {
    function(controller, who, id, buffer);
}

/// Takes Cheetah's options out, and returns the number of contexts asked for.
fn take_options(arguments: &mut Vec<String>) -> Result<Option<usize>> {
    let wrong = |why: String| Error::InvalidArgument { operation: "setup", why };
    let mut contexts = None;
    let mut at = 1;
    while at < arguments.len() {
        match arguments[at].as_str() {
            "--" => break,
            "-np" => {
                let number = arguments.get(at + 1).cloned().unwrap_or_default();
                let parsed = number.parse().ok().filter(|n: &usize| *n > 0);
                contexts = Some(parsed.ok_or_else(|| wrong(format!("-np {number}: a number above 0 expected")))?);
                arguments.drain(at..(at + 2).min(arguments.len()));
            }
            "-shmem" => drop(arguments.remove(at)),
            "-mpi" if cfg!(feature = "mpi") => drop(arguments.remove(at)),
            "-mpi" => return Err(wrong("-mpi: built without the feature `mpi`".into())),
            "-ulm" => return Err(wrong("-ulm: there are no user-level messages here; use -shmem or -mpi".into())),
            _ => at += 1,
        }
    }
    Ok(contexts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_out_and_others_left() {
        let mut arguments: Vec<String> = ["prog", "-v", "-np", "4", "-shmem", "x", "--", "-np"].map(Into::into).into();
        assert_eq!(take_options(&mut arguments).expect("fine"), Some(4));
        assert_eq!(arguments, ["prog", "-v", "x", "--", "-np"]);
        for bad in [&["p", "-np"][..], &["p", "-np", "0"], &["p", "-np", "many"]] {
            let mut arguments: Vec<String> = bad.iter().map(|a| a.to_string()).collect();
            assert!(take_options(&mut arguments).is_err(), "{bad:?}");
        }
    }
}
