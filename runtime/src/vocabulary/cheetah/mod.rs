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
//! # Threads
//!
//! Messages move when a context calls into the controller; no thread does that in its place. Contexts that `-np`, the
//! launcher or `BELLWETHER_RANKS` started on one machine have no thread but the program's. A job has a further thread where
//! requests that come at any time must be answered, also while the program computes:
//! - over RDMA one for each rank (`connections`): it answers peers that ask for a connection, which come by datagram. It
//!   moves no message and calls no function.
//! - over TCP one for each rank, between hosts without RDMA and with `BELLWETHER_TRANSPORT=tcp`: it accepts connections, and serves
//!   puts and gets of peers while the program computes. It calls no function.
//! - on several hosts one for each host (`hosts`), at its first rank: it tells the other hosts which ranks have arrived and which have failed.
//! - under mpirun or srun those that the MPI or PMIx library starts for itself.

mod matching;

use std::any::Any;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

pub use self::matching::{MatchingHandler, Postcard, RawRequest, Serialize, Value};

use self::matching::Matching;
use crate::error::{Error, Placed, Result};
use crate::message::HandlerId;
use crate::world::{Builder, RawBells, StartBy, World};

/// A function's number, counted from the first one registered.
pub type FunctionId = u32;

/// A counter that operations ring. The program decides what it counts.
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

    /// The bell that a number of the program's own is: the two are one, whichever of them is rung, read or changed.
    ///
    /// # Examples
    /// ```
    /// # mod bellwether { pub use bellwether_runtime::vocabulary; }
    /// use std::sync::atomic::{AtomicI32, Ordering};
    /// use bellwether::vocabulary::cheetah::Bell;
    /// static ARRIVED: AtomicI32 = AtomicI32::new(0);
    /// let bell = Bell::of(&ARRIVED);
    /// bell.ring();
    /// assert_eq!(ARRIVED.load(Ordering::Acquire), 1);
    /// ```
    pub const fn of(number: &AtomicI32) -> &Bell {
        // SAFETY: a `Bell` is an `AtomicI32` and nothing else, by `repr(transparent)`; the borrow goes on as it was.
        unsafe { &*std::ptr::from_ref(number).cast::<Bell>() }
    }

    /// Rings by hand: counts one more. A thread that sees the ring sees everything that this thread wrote before.
    pub fn ring(&self) {
        // Pairs with the Acquire loads of `read`, `value` and `wait`.
        self.0.fetch_add(1, Ordering::Release);
    }

    /// Sets the count. A ring of another context that comes at the same time may be lost: [`Bell::lower`] loses none.
    pub fn set(&self, count: i32) {
        self.0.store(count, Ordering::Release);
    }

    /// Takes `rings` off the count, usually those that were waited for, and returns what is left. Loses no ring.
    pub fn lower(&self, rings: i32) -> i32 {
        self.0.fetch_sub(rings, Ordering::AcqRel).wrapping_sub(rings)
    }

    /// The count, without a poll. It changes while the context polls, or, where the bell lies in memory that other contexts
    /// reach directly, at any time.
    pub fn value(&self) -> i32 {
        self.0.load(Ordering::Acquire)
    }

    /// Its address, for other contexts to name it as their remote bell.
    pub fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Polls, and tells how often it has rung.
    ///
    /// # Errors
    /// As [`Controller::poll`].
    #[track_caller]
    pub fn read(&self, controller: &Controller) -> Result<i32> {
        controller.poll()?;
        Ok(self.0.load(Ordering::Acquire))
    }
}

thread_local! {
    /// The controller that this thread set up.
    static SET_UP: RefCell<Weak<Inner>> = const { RefCell::new(Weak::new()) };
}

/// A context's access to all others. Clones share it; the last one to go finalises.
#[derive(Clone, Default)]
pub struct Controller(Option<Rc<Inner>>);

struct Inner {
    world: RefCell<Option<Rc<World>>>,
    matching: Matching,
}

impl Controller {
    /// A controller that is not valid until another is assigned to it.
    pub fn invalid() -> Controller {
        Controller(None)
    }

    /// Sets up the contexts and takes Cheetah's options out of `arguments`: `-np N` starts N contexts as copies of
    /// this program, unless a launcher has done so already. `-shmem` and `-mpi` choose how contexts start and reach each other:
    ///
    /// | option | contexts | they reach each other |
    /// | --- | --- | --- |
    /// | none | as the surroundings say | as settings say |
    /// | `-shmem` | copies of the program, or those of `bellwether run` | by shared memory, whatever `BELLWETHER_TRANSPORT` says |
    /// | `-mpi` | the tasks of mpirun or srun; one if there are none | as settings say |
    ///
    /// `-ulm` is refused. Call it as early as possible: before it, every context does what the program says. Collective.
    ///
    /// A program may set up several controllers. While one that this thread has set up is valid, all further ones share it, as
    /// clones do, and the last to go finalises.
    ///
    /// # Errors
    /// As [`World::start`]; [`Error::InvalidArgument`] for an option that cannot be understood, for `-mpi` in a build without the
    /// feature `mpi` that neither mpirun nor srun started, for an option that the surroundings contradict, as `-shmem` under mpirun does, and for `-np` with
    /// another number than the controller has that is valid already.
    #[track_caller]
    pub fn setup(arguments: &mut Vec<String>) -> Result<Controller> {
        let Options { contexts, start } = take_options(arguments)?;
        if let Some(inner) = SET_UP.with_borrow(Weak::upgrade) {
            let controller = Controller(Some(inner));
            if controller.is_valid() {
                return match (controller.ncontexts()?, contexts) {
                    (there, Some(asked)) if there != asked => Err(Error::InvalidArgument {
                        operation: "setup",
                        why: format!("-np {asked}: this program has set up {there} contexts already"),
                    }),
                    _ => Ok(controller),
                };
            }
        }
        let mut builder = World::builder();
        if let Some(contexts) = contexts {
            builder = builder.ranks(contexts);
        }
        if let Some(start) = start {
            builder = builder.start_by(start);
        }
        Self::setup_with(builder)
    }

    /// Sets up a controller on a world to be started, for example a rank that is a thread. Collective.
    ///
    /// # Errors
    /// As [`World::start`].
    #[track_caller]
    pub fn setup_with(builder: Builder) -> Result<Controller> {
        let world = Rc::new(builder.open_table().start_unplaced()?);
        let inner = Rc::new(Inner { world: RefCell::new(Some(Rc::clone(&world))), matching: Matching::default() });
        matching::install(&world, &inner);
        SET_UP.set(Rc::downgrade(&inner));
        Ok(Controller(Some(inner)))
    }

    /// Whether it has been set up and not finalised.
    pub fn is_valid(&self) -> bool {
        self.0.as_ref().is_some_and(|inner| inner.world.borrow().is_some())
    }

    #[inline]
    fn inner(&self, operation: &'static str) -> Result<&Rc<Inner>> {
        self.0.as_ref().ok_or_else(|| unusable(operation))
    }

    #[inline]
    fn world(&self, operation: &'static str) -> Result<Rc<World>> {
        self.inner(operation)?.world.borrow().clone().ok_or_else(|| unusable(operation))
    }

    /// The world, after a poll: puts and gets of the world itself do not poll where they need no message.
    fn polled(&self, operation: &'static str) -> Result<Rc<World>> {
        let _held = self.inner(operation)?.matching.hold();
        self.world(operation).and_then(|world| world.engine().poll().map(|_| world))
    }

    /// The world, for a call that may wait and runs functions of matching handlers, and so is not made inside one.
    fn waiting_world(&self, operation: &'static str) -> Result<Rc<World>> {
        let world = self.world(operation)?;
        self.inner(operation)?.check_may_wait(operation)?;
        Ok(world)
    }

    /// The world underneath, for everything that Cheetah does not have.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`Controller::setup`] and after [`Controller::finalize`].
    #[track_caller]
    pub fn as_world(&self) -> Result<Rc<World>> {
        self.world("as_world")
    }

    /// How many contexts there are.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`Controller::setup`] and after [`Controller::finalize`].
    #[track_caller]
    pub fn ncontexts(&self) -> Result<usize> {
        Ok(self.world("ncontexts")?.size())
    }

    /// This context's number, from 0.
    ///
    /// # Errors
    /// As [`Controller::ncontexts`].
    #[track_caller]
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
    #[track_caller]
    pub unsafe fn put(
        &self,
        context: usize,
        remote: usize,
        source: &[u8],
        local_bell: Option<&Bell>,
        remote_bell: Option<usize>,
    ) -> Result<()> {
        let _held = self.inner("put")?.matching.hold();
        let bells = RawBells { local: local_bell.map(|bell| &bell.0), remote: remote_bell };
        // SAFETY: the caller guarantees it.
        unsafe { self.polled("put")?.put_address(context, remote, source, bells) }
    }

    /// Copies `length` bytes at address `remote` of `context` to `local`. The remote bell rings when the memory there
    /// may be changed, the local one when the data is here.
    ///
    /// # Safety
    /// As [`World::get_address`].
    ///
    /// # Errors
    /// As [`World::get_address`].
    #[track_caller]
    pub unsafe fn get(
        &self,
        context: usize,
        remote: usize,
        local: *mut u8,
        length: usize,
        local_bell: Option<&Bell>,
        remote_bell: Option<usize>,
    ) -> Result<()> {
        let _held = self.inner("get")?.matching.hold();
        let bells = RawBells { local: local_bell.map(|bell| &bell.0), remote: remote_bell };
        // SAFETY: the caller guarantees it.
        unsafe { self.polled("get")?.get_address(context, remote, local, length, bells) }
    }

    /// Gives `function` the next number. Every context registers the same functions in the same order, each at any time: also
    /// after communication has begun, and without waiting for the others. A context keeps a call of a function that the caller
    /// has registered and itself not yet, and runs it in a call after it has. The function gets the controller, the calling context, its own number and the
    /// buffer, which belongs to the system and is gone afterwards; it runs inside a call of this context and may put,
    /// get and invoke, but not wait.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`Controller::setup`] and after [`Controller::finalize`]. That functions differ is found
    /// by calls between the contexts and by the barrier ([`Error::RanksDiffer`]).
    #[track_caller]
    pub fn register_function<F>(&self, function: F) -> Result<FunctionId>
    where
        F: Fn(&Controller, usize, FunctionId, &[u8]) + 'static,
    {
        // A function pointer is a value: its type says nothing about which function it is.
        let code = match (&function as &dyn Any).downcast_ref::<fn(&Controller, usize, FunctionId, &[u8])>() {
            Some(pointer) => *pointer as usize,
            None => run::<F> as fn(&F, &Controller, usize, FunctionId, &[u8]) as usize,
        };
        self.register(std::any::type_name::<F>(), code, function)
    }

    /// As [`Controller::register_function`], for a function of another language or library: `name` says which function it is.
    /// Contexts that give the same number to different names are told so.
    ///
    /// # Errors
    /// As [`Controller::register_function`].
    ///
    /// # Examples
    /// ```
    /// # mod bellwether { pub use bellwether_runtime::*; }
    /// # use bellwether::vocabulary::cheetah::Controller;
    /// let controller = Controller::setup(&mut vec!["program".into()])?;
    /// let first = controller.register_named("libforces.so+0x1130", |_, _, _, _| {})?;
    /// let second = controller.register_named("libforces.so+0x11f0", |_, _, _, _| {})?;
    /// assert_eq!(second, first + 1);
    /// controller.finalize()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn register_named<F>(&self, name: &str, function: F) -> Result<FunctionId>
    where
        F: Fn(&Controller, usize, FunctionId, &[u8]) + 'static,
    {
        self.register(name, 0, function)
    }

    /// `name` and `code` say which function it is.
    fn register<F>(&self, name: &str, code: usize, function: F) -> Result<FunctionId>
    where
        F: Fn(&Controller, usize, FunctionId, &[u8]) + 'static,
    {
        let world = self.world("register_function")?;
        let weak = Rc::downgrade(self.inner("register_function")?);
        let number = world.messages().handlers() as u32;
        world.messages().register(
            name,
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
    /// before that. Does not wait for that context, and keeps what finds no room on the way there, up to
    /// `BELLWETHER_MESSAGE_MEMORY` bytes for all contexts together.
    ///
    /// **Blocks when that memory is full**, until some of it is free: the contexts that are called must poll for that. Meanwhile
    /// it makes progress, so that functions run here. It also blocks while as many bytes of calls are in flight to functions that
    /// the called contexts may not have registered yet, until some of those are. Inside a function it never blocks, and keeps more. Where the
    /// program has something else to do, use [`Controller::try_ainvoke`].
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`], [`Error::PeerLost`]; [`Error::RanksDiffer`] if that context registered other
    /// functions; [`Error::OutOfMemory`] if the buffer can never fit. A number that the caller has not registered is an
    /// [`Error::UnknownHandler`] from the next call of the *called* context.
    #[track_caller]
    pub fn ainvoke(
        &self,
        context: usize,
        function: FunctionId,
        buffer: &[u8],
        local_bell: Option<&Bell>,
    ) -> Result<()> {
        let world = self.world("ainvoke")?;
        let _held = self.inner("ainvoke")?.matching.hold();
        world.messages().post_to_function(context, HandlerId::from_number(function), buffer).placed()?;
        if let Some(bell) = local_bell {
            bell.ring();
        }
        world.engine().poll_alive("polling").map(drop).placed()
    }

    /// As [`Controller::ainvoke`], but never blocks and keeps nothing: returns whether there was room on the way to that context.
    /// If not, nothing has happened and the bell is not rung; poll, and try again.
    ///
    /// # Errors
    /// As [`Controller::ainvoke`].
    ///
    /// # Examples
    /// ```
    /// # mod bellwether { pub use bellwether_runtime::*; }
    /// # use bellwether::vocabulary::cheetah::Controller;
    /// let controller = Controller::setup(&mut vec!["program".into()])?;
    /// let function = controller.register_function(|_, who, _, buffer| println!("{who} sent {buffer:?}"))?;
    /// while !controller.try_ainvoke(0, function, b"hello", None)? {
    ///     // Something useful; the call has polled.
    /// }
    /// controller.finalize()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn try_ainvoke(
        &self,
        context: usize,
        function: FunctionId,
        buffer: &[u8],
        local_bell: Option<&Bell>,
    ) -> Result<bool> {
        let world = self.world("try_ainvoke")?;
        let _held = self.inner("try_ainvoke")?.matching.hold();
        let sent = world.messages().try_post_to_function(context, HandlerId::from_number(function), buffer).placed()?;
        if let Some(bell) = local_bell.filter(|_| sent) {
            bell.ring();
        }
        world.engine().poll_alive("polling").map(|_| sent)
    }

    /// Waits until every context has called this. Collective. Checks that all have registered the same functions, as far as
    /// each had when it first called another.
    ///
    /// # Errors
    /// As [`World::barrier`]; [`Error::RanksDiffer`].
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        let world = self.waiting_world("barrier")?;
        world.messages().seal();
        world.barrier()?;
        (0..world.size()).try_for_each(|rank| world.messages().verify(rank))
    }

    /// Moves messages in and out; tells how many.
    ///
    /// # Errors
    /// As [`World::poll`].
    #[inline]
    #[track_caller]
    pub fn poll(&self) -> Result<usize> {
        self.world("poll")?.engine().poll_alive("polling")
    }

    /// Polls, at least once, until `bell` has rung at least `count` times. Does not change the bell.
    ///
    /// # Errors
    /// As [`World::wait_until`].
    #[track_caller]
    pub fn wait(&self, bell: &Bell, count: i32) -> Result<()> {
        let world = self.waiting_world("wait")?;
        // Also where the bell has rung already: every call makes progress.
        world.engine().poll()?;
        let ready = || bell.0.load(Ordering::Acquire) >= count;
        world.engine().at(|| world.engine().wait_until("waiting for a bell", None, ready))
    }

    /// As [`Controller::wait`], for at most `limit`.
    ///
    /// # Errors
    /// As [`Controller::wait`], and [`Error::TimedOut`].
    #[track_caller]
    pub fn wait_for(&self, bell: &Bell, count: i32, limit: Duration) -> Result<()> {
        let world = self.waiting_world("wait_for")?;
        world.engine().poll()?;
        world.wait_until_for(limit, || bell.0.load(Ordering::Acquire) >= count)
    }

    /// Enters a last barrier and leaves; what was sent before it is delivered. Collective. All clones are invalid
    /// afterwards, and requests that no message has met are dropped.
    ///
    /// # Errors
    /// As [`Controller::barrier`]; [`Error::UnknownHandler`] if a call is left of a function that this context never registered.
    /// Where no collective call can be made, inside a function or another such call, nothing has happened, and the controller stays
    /// valid.
    #[track_caller]
    pub fn finalize(&self) -> Result<()> {
        let world = self.waiting_world("finalize")?;
        match world.check_may_begin("finalize") {
            // The contexts that are left finish together.
            Err(Error::PeerLost { .. }) if world.settings().survive => {}
            outcome => outcome?,
        }
        world.messages().seal();
        let done = world.last_barrier().and_then(|()| world.messages().check_none_early());
        let inner = self.inner("finalize")?;
        inner.world.borrow_mut().take();
        // Requests may hold the controller, and would keep it for ever.
        inner.matching.clear();
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

#[cold]
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

/// The settings that the command line gives.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    contexts: Option<usize>,
    start: Option<StartBy>,
}

/// Takes Cheetah's options out.
fn take_options(arguments: &mut Vec<String>) -> Result<Options> {
    let wrong = |why: String| Error::InvalidArgument { operation: "setup", why };
    let Options { mut contexts, mut start } = Options::default();
    let mut choose = |by: StartBy| match start.replace(by) {
        Some(other) if other != by => Err(wrong("-shmem and -mpi: one of the two".into())),
        _ => Ok(()),
    };
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
            option @ ("-shmem" | "-mpi") => {
                choose(if option == "-shmem" { StartBy::Copies } else { StartBy::Mpi })?;
                arguments.remove(at);
            }
            "-ulm" => return Err(wrong("-ulm: there are no user-level messages here; use -shmem or -mpi".into())),
            _ => at += 1,
        }
    }
    Ok(Options { contexts, start })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_out_and_others_left() {
        let mut arguments: Vec<String> = ["prog", "-v", "-np", "4", "-shmem", "x", "--", "-np"].map(Into::into).into();
        let wanted = Options { contexts: Some(4), start: Some(StartBy::Copies) };
        assert_eq!(take_options(&mut arguments).expect("fine"), wanted);
        assert_eq!(arguments, ["prog", "-v", "x", "--", "-np"]);
        for bad in
            [&["p", "-np"][..], &["p", "-np", "0"], &["p", "-np", "many"], &["p", "-shmem", "-mpi"], &["p", "-ulm"]]
        {
            let mut arguments: Vec<String> = bad.iter().map(|a| a.to_string()).collect();
            assert!(take_options(&mut arguments).is_err(), "{bad:?}");
        }
    }
}
