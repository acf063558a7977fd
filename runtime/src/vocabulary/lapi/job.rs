//! Jobs: a world on which a program makes handles, one after the other.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::calls::Calls;
use super::domain::Domain;
use super::send::Outgoing;
use super::{codes, port};
use crate::error::{Error, Result};
use crate::world::{Builder, World};

/// A world between two handles.
pub(super) struct Parked(World);

// SAFETY:
// - the holder of a `Parked` has the only handle to the world and to all its parts (see `Job::start`);
// - nothing of a world depends on its thread, except on a simulated network, where the job and the handle stay on one thread.
unsafe impl Send for Parked {}

/// Announced data that was not fetched, by the number of its message.
type Unfetched = BTreeMap<u64, (usize, Outgoing)>;

/// The state that a job and the handle on it share.
#[derive(Clone)]
pub(super) struct Home(Arc<Shared>);

struct Shared {
    world: Mutex<Option<Parked>>,
    /// The handle on this job; 0 if there is none.
    handle: AtomicU32,
    calls: Calls,
}

impl Home {
    fn take(&self) -> Option<World> {
        let parked = port::lock(&self.0.world).take();
        parked.map(|Parked(world)| world)
    }

    fn put(&self, world: World) {
        *port::lock(&self.0.world) = Some(Parked(world));
    }

    /// How handlers of this job are called.
    pub(super) fn calls(&self) -> Calls {
        self.0.calls
    }

    /// Takes the world back from a handle that has ended. Returns the data that peers may still fetch: there is none after `Term`.
    pub(super) fn take_back(domain: Rc<Domain>) -> Unfetched {
        let home = domain.home.clone();
        // The bells belong to the world.
        drop(domain.bells.all.take());
        let unfetched = domain.transfers.outgoing.take();
        domain.log_faults();
        // The handlers of messages hold weak references only.
        if let Some(domain) = Rc::into_inner(domain) {
            home.put(domain.world);
        }
        home.0.handle.store(0, Ordering::Release);
        unfetched
    }
}

/// This task's place in a job. [`Job::init`] makes a handle; after `Term` it makes the next one.
///
/// Dropping it leaves the job. It stays on its thread; handles may be used from any thread.
pub struct Job {
    home: Home,
    thread: PhantomData<*const ()>,
}

impl Job {
    /// Joins the job that `builder` describes, as [`Builder::start`] does. Collective.
    ///
    /// # Errors
    /// As [`Builder::start`]; [`Error::InvalidArgument`] if the builder has handlers: other threads would run them, and the state that they
    /// share with this thread would not be protected.
    pub fn start(builder: Builder) -> Result<Job> {
        Self::start_with(builder, Calls::Own)
    }

    /// As [`Job::start`], for a program whose handlers are functions of another language. Nothing unwinds out of them: if an exception
    /// leaves one, its language ends the process and prints the exception. On processors other than x86-64 and AArch64 the process ends
    /// without that text.
    ///
    /// # Errors
    /// As [`Job::start`].
    pub fn start_foreign(builder: Builder) -> Result<Job> {
        Self::start_with(builder, Calls::Foreign)
    }

    fn start_with(builder: Builder, calls: Calls) -> Result<Job> {
        if builder.has_handlers() {
            let why = "the builder has handlers; register those of LAPI with the handle".into();
            return Err(Error::InvalidArgument { operation: "starting a LAPI job", why });
        }
        let shared = Shared { world: Mutex::new(None), handle: AtomicU32::new(0), calls };
        let home = Home(Arc::new(shared));
        home.put(builder.start_unplaced()?);
        Ok(Job { home, thread: PhantomData })
    }

    /// `LAPI_Init`: makes a handle. Collective: every task calls it.
    ///
    /// # Errors
    /// [`codes::ALL_HNDL_IN_USE`] if the process has 64 handles, or the job has one; [`codes::PEER_LOST`].
    pub fn init(&self) -> Result<u32, i32> {
        let world = self.home.take().ok_or(codes::ALL_HNDL_IN_USE)?;
        let mut world = Some(world);
        let made = port::occupy(|handle| Domain::new(handle, world.take().expect("called once"), self.home.clone()));
        if let Some(world) = world {
            self.home.put(world);
        }
        let handle = made?;
        // A task that leaves the barrier sooner may send at once: handlers and answers need the port.
        let joined = {
            let domain = port::enter(handle)?;
            // Drop the errors of messages to an earlier handle that no call has returned: they do not concern this call.
            while domain.take_fault().is_err() {}
            domain.exchange(World::barrier)
        };
        if let Err(code) = joined {
            drop(Home::take_back(port::vacate(handle)?));
            return Err(code);
        }
        self.home.0.handle.store(handle, Ordering::Release);
        // Interrupt mode is the default where there are threads.
        let domain = port::enter(handle)?;
        if !domain.is_simulated() {
            // If it cannot be switched on, only calls make progress; `Qenv` shows the mode.
            let _ = domain.set_interrupts(true);
        }
        drop(domain);
        Ok(handle)
    }

    /// This task's number and how many there are, between two handles; 0 and 0 while there is a handle.
    pub fn place(&self) -> (usize, usize) {
        let parked = port::lock(&self.home.0.world);
        parked.as_ref().map_or((0, 0), |Parked(world)| (world.rank(), world.size()))
    }

    /// Waits until every task has called this and every message is delivered, and leaves the job. Collective. After `Term`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] while there is a handle; as [`World::finish`].
    pub fn finish(self) -> Result<()> {
        let why = || "a handle is in use: call `term` first".into();
        let world = self.home.take();
        let world = world.ok_or_else(|| Error::InvalidArgument { operation: "leaving a LAPI job", why: why() })?;
        world.finish()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // A task that ends in a panic still has its handle: to its peers it is lost.
        let handle = self.home.0.handle.load(Ordering::Acquire);
        let mut unfetched = Unfetched::new();
        if handle != 0
            && let Ok(domain) = port::vacate(handle)
        {
            // The handler thread ends when its current handler has returned, and finds no handle then.
            drop(domain.end_thread());
            unfetched = Home::take_back(domain);
        }
        drop(self.home.take());
        // A peer that fetches checks afterwards whether this task is lost. So the data stays until the end of the world has reported the
        // loss.
        drop(unfetched);
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job(handle {})", self.home.0.handle.load(Ordering::Acquire))
    }
}
