//! The collectives of teams, for the world's own calls: in a context of their own, so that they need no common order with those of
//! the user's team of all ranks.

use std::cell::RefCell;
use std::rc::Rc;

use bytemuck::Pod;

use super::Team;
use super::checked;
use super::context::Context;
use super::head::Kind;
use super::hub::Hub;
use super::last::{Shown, Sums};
use super::operator::OnSlices;
use super::queue::Shared;
use crate::bounds::OneThread;
use crate::error::Result;

/// This rank's part in them.
pub(crate) struct OfWorld {
    hub: Rc<Hub>,
    shared: RefCell<Rc<Shared>>,
    /// The last team of survivors.
    survivors: RefCell<Option<Rc<Context>>>,
}

/// All are blocking, and collective over the world. All ranks are known to be in the same call, which is marked as such.
impl OfWorld {
    pub(super) fn new(hub: &Rc<Hub>) -> OfWorld {
        let shared = RefCell::new(Rc::new(Shared::new(Context::of_world(hub))));
        OfWorld { hub: Rc::clone(hub), shared, survivors: RefCell::default() }
    }

    /// Whether a call has failed here, as by a panic of its operator. The others fail too, or have not yet noticed.
    pub(crate) fn is_broken(&self) -> bool {
        self.shared.borrow().context.is_broken()
    }

    /// Begins anew, after a call that failed. All ranks do so: each when all ranks have left that call and their puts are in effect.
    /// None makes another before all have done so.
    #[cold]
    pub(crate) fn renew(&self) {
        self.hub.clear(self.hub.own());
        self.shared.replace(Rc::new(Shared::new(Context::of_world(&self.hub))));
    }

    /// This rank leaves a call that the others may be in.
    #[cold]
    pub(crate) fn leave_behind(&self) {
        let why = "a panic came out of a wait in it";
        self.shared.borrow().context.panicked("collective call", &why);
    }

    /// Prepares the slot of the next team of survivors, that of agreement `number`, and ends the last such team. Earlier puts of this rank
    /// are in effect already. Returns whether there are such slots.
    #[cold]
    pub(crate) fn prepare_survivors(&self, number: u64) -> bool {
        if let Some(last) = self.survivors.take() {
            last.close();
        }
        self.hub.of_survivors(number).map(|slot| self.hub.clear(slot)).is_some()
    }

    /// The team of survivors that agreement `number` has made, when all of them have prepared it.
    #[cold]
    pub(crate) fn make_survivors(&self, number: u64, members: Rc<[u32]>, rank: usize) -> Team {
        let slot = self.hub.of_survivors(number).expect("it was made ready");
        let context = Context::of_survivors(&self.hub, slot, number, members, rank);
        self.survivors.replace(Some(Rc::clone(&context)));
        Team { shared: OneThread::new(Rc::new(Shared::new(context))) }
    }

    /// The last collectives of this rank's teams, as words to add up.
    pub(crate) fn sums(&self) -> Sums {
        self.hub.known.sums()
    }

    /// The same, for all to see.
    pub(crate) fn last(&self) -> Shown {
        self.hub.known.shown()
    }

    fn run<R>(&self, kind: Kind, body: impl AsyncFnOnce(&Context) -> Result<R>) -> Result<R> {
        let shared = Rc::clone(&self.shared.borrow());
        shared.run_here(kind.doing(), body(&shared.context))
    }

    /// As [`super::Team::allreduce`]. The caller compares results of closures.
    pub(crate) fn allreduce<T: Pod>(&self, values: &mut [T], op: &dyn OnSlices<T>) -> Result<()> {
        self.run(Kind::Allreduce, async |context: &Context| checked::allreduce_only(context, values, op).await)
    }

    /// As [`super::Team::broadcast`].
    pub(crate) fn broadcast<T: Pod>(&self, root: usize, values: &mut [T]) -> Result<()> {
        self.run(Kind::Broadcast, async |context: &Context| checked::broadcast(context, root, values).await)
    }

    /// As [`super::Team::allgather`].
    pub(crate) fn allgather<T: Pod>(&self, mine: &[T]) -> Result<Vec<T>> {
        self.run(Kind::Allgather, async |context: &Context| checked::allgather(context, mine).await)
    }
}
