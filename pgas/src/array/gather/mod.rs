//! Gather plans: which rank needs which elements of which other rank, found once and used many times.

mod requests;
mod runs;

use bellwether_runtime::{Bell, Error, Pod, Result, Symmetric, World};

use self::requests::Wanted;
use self::runs::{Pair, pairs, spans};
use super::Layout;
use super::irregular::Numbered;
use crate::aggregate::Places;

const START: &str = "GatherPlan::start";
const FINISH: &str = "Gathering::finish";

/// Below this mean number of elements in a run, copies go through private memory: a call for each run would cost more than
/// the second copy.
const SHORT: usize = 8;

/// The pattern of an irregular read that is repeated: made once from a list of elements, executed as often as the elements
/// change. PETSc's `VecScatter`, Trilinos' `Import`.
///
/// Making a plan tells each rank which of its elements the others want. An execution then sends, from every rank to every rank that wants
/// something there, one packed message with the elements, each once, however often it is listed. A rank waits for the ranks that it
/// has elements from, and for no other: there is no barrier. [`GatherPlan::start`] and [`Gathering::finish`] are the two
/// halves, between which the program computes what needs no remote element.
///
/// For indices that are used once [`GlobalArray::gather`](super::GlobalArray::gather) is the better call; for the borders of blocks,
/// [`Ghosts`](super::Ghosts).
///
/// At every rank a plan takes memory for twice the largest number of remote elements that any rank has in the plan, and
/// four words for each rank of the world.
///
/// # Examples
/// A sparse product: each rank multiplies its own columns while the others' entries are in flight.
/// ```
/// # fn main() -> bellwether::Result<()> {
/// # bellwether::threads(3, |world| {
/// use bellwether::Layout;
/// use bellwether::array::GatherPlan;
/// // Row i is x[i - 1] + 2 x[i] + x[i + 1], on a ring of 30.
/// let layout = Layout::block([30], world.size())?;
/// let own = layout.box_at(world.rank()).expect("blocks").range(0);
/// let ghosts = [(own.start + 29) % 30, own.end % 30];
/// let mut plan = GatherPlan::new(world, &layout, &ghosts)?;
///
/// let x: Vec<f64> = own.clone().map(|i| i as f64).collect();
/// let (mut y, mut remote) = (vec![0.0; x.len()], [0.0; 2]);
/// let gathering = plan.start(&x)?;
/// for i in 0..x.len() {
///     y[i] = 2.0 * x[i];
///     y[i] += if i > 0 { x[i - 1] } else { 0.0 };
///     y[i] += if i + 1 < x.len() { x[i + 1] } else { 0.0 };
/// }
/// gathering.finish(&mut remote)?;
/// y[0] += remote[0];
/// *y.last_mut().unwrap() += remote[1];
/// for (i, y) in own.zip(y) {
///     assert_eq!(y, [30.0, 4.0 * i as f64, 86.0][usize::from(i > 0) + usize::from(i == 29)]);
/// }
/// # Ok(()) })?.into_iter().collect() }
/// ```
pub struct GatherPlan<T> {
    /// Two halves, for even and odd executions. A half is overwritten after all its elements have been copied out.
    inbox: Symmetric<T>,
    half: usize,
    /// Rung by a source when its elements are in the inbox; one bell for each half.
    arrived: [Bell; 2],
    /// A destination that sends nothing to a source rings this at the source when it has copied a half. See [`GatherPlan::send`].
    copied: Option<[Bell; 2]>,
    /// Elements of this rank.
    own: usize,
    /// Elements that were asked for.
    len: usize,
    sends: Vec<Send>,
    /// Ranks with elements for this one.
    sources: Vec<usize>,
    /// Sources that this rank sends nothing to, so that they hear of a copied half by bell only.
    silent_sources: Vec<usize>,
    /// Destinations that send this rank nothing.
    silent_destinations: u64,
    /// Where own elements go in the requested list, and where those of the inbox go.
    local: Vec<Pair>,
    remote: Vec<Pair>,
    /// Remote elements, each once.
    remote_len: usize,
    /// Own elements that were asked for, as they were when the execution started.
    kept: Vec<T>,
    /// Room to pack elements that are not contiguous.
    packed: Vec<T>,
    started: u64,
    finished: u64,
}

/// The elements that go to one rank.
struct Send {
    rank: usize,
    /// Place in the half of the inbox there.
    to: usize,
    count: usize,
    /// Own elements, as start and count.
    spans: Vec<(usize, usize)>,
}

/// An execution of a [`GatherPlan`] that was started.
///
/// If it is dropped, or forgotten, the next start finishes it and discards what came.
#[must_use = "the elements are there when the execution is finished"]
pub struct Gathering<'a, T: Pod> {
    plan: &'a mut GatherPlan<T>,
}

impl<T: Pod> GatherPlan<T> {
    /// A plan for the elements with these numbers, of vectors and arrays of this layout. Elements are numbered in the order of
    /// their indices, the last dimension fastest. Collective: every rank gives the same layout, and a list of its own, in any
    /// order, also with repetitions, own elements, or nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a number outside of the layout, and [`Error::Agreed`] on the ranks whose lists are in order;
    /// [`Error::InvalidArgument`] if the layout is not for as many ranks as the world has; [`Error::RanksDiffer`] if it is not the
    /// same everywhere; as [`World::alloc`].
    #[track_caller]
    pub fn new<const D: usize>(world: &World, layout: &Layout<D>, numbers: &[usize]) -> Result<GatherPlan<T>> {
        const { assert!(size_of::<T>() > 0, "elements have at least one byte") };
        world.within("GatherPlan::new", || {
            requests::check(world, layout, numbers)?;
            let places = Numbered::without_ghosts(layout);
            Self::build(world, layout.extents_at(world.rank()).iter().product(), &places, numbers)
        })
    }

    fn build(world: &World, own: usize, places: &impl Places, numbers: &[usize]) -> Result<GatherPlan<T>> {
        let wanted = Wanted::new(world.rank(), places, numbers);
        let asked = requests::tell_owners(world, &wanted)?;
        let sends: Vec<Send> = asked
            .into_iter()
            .map(|asked| Send {
                rank: asked.rank,
                to: asked.to,
                count: asked.places.len(),
                spans: spans(&asked.places),
            })
            .collect();
        let sources: Vec<usize> = wanted.owners().map(|(rank, _)| rank).collect();
        let sends_to = |rank: &usize| sends.binary_search_by_key(rank, |send| send.rank).is_ok();
        let silent_sources: Vec<usize> = sources.iter().copied().filter(|rank| !sends_to(rank)).collect();
        let silent_destinations = sends.iter().filter(|send| sources.binary_search(&send.rank).is_err()).count() as u64;
        let mut most = [wanted.remote.len() as u64, silent_sources.len() as u64];
        world.allreduce(&mut most, u64::max)?;
        let half = most[0] as usize;
        let inbox = world.alloc_withheld(half.saturating_mul(2))?;
        let bells = || Ok::<_, Error>([world.bell()?, world.bell()?]);
        let (arrived, copied) = (bells()?, if most[1] > 0 { Some(bells()?) } else { None });
        let remote_len = wanted.remote.len();
        Ok(GatherPlan {
            inbox,
            half,
            arrived,
            copied,
            own,
            len: numbers.len(),
            sends,
            sources,
            silent_sources,
            silent_destinations,
            local: pairs(wanted.to_local),
            remote: pairs(wanted.to_remote),
            remote_len,
            kept: Vec::new(),
            packed: Vec::new(),
            started: 0,
            finished: 0,
        })
    }

    /// Elements that this rank asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether this rank asked for none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements that come from other ranks in each execution: those of the list that are remote, each counted once.
    pub fn remote_len(&self) -> usize {
        self.remote_len
    }

    /// The ranks that have elements for this one, in order.
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// Sends the elements of `own` that other ranks want. `own` is this rank's elements in the layout, as
    /// [`GlobalArray::local`](super::GlobalArray::local) of an array without ghost layers, or any vector of that length. The caller may
    /// change it as soon as this returns.
    ///
    /// All ranks execute a plan equally often, in the same order. This half waits only for ranks that want elements of this rank and
    /// have not finished the execution before the last.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another length; then nothing was sent, and others wait for this execution. As
    /// [`Symmetric::put_slice`] and [`Bell::wait`].
    #[track_caller]
    pub fn start(&mut self, own: &[T]) -> Result<Gathering<'_, T>> {
        if own.len() != self.own {
            let why = format!(
                "{} elements; this rank has {} in the plan's layout (ghost layers are no part of it)",
                own.len(),
                self.own
            );
            return Err(Error::InvalidArgument { operation: START, why });
        }
        self.inbox.progress().within(START, || {
            self.discard()?;
            self.send(own)
        })?;
        Ok(Gathering { plan: self })
    }

    /// Both halves: sends what others want, and reads what this rank asked for into `into`, in the order of its list.
    ///
    /// # Errors
    /// As [`GatherPlan::start`] and [`Gathering::finish`].
    #[track_caller]
    pub fn gather(&mut self, own: &[T], into: &mut [T]) -> Result<()> {
        self.check_len(into.len())?;
        self.start(own)?.finish(into)
    }

    /// Execution n writes to half n mod 2 of the destinations' inboxes, so each must have copied execution n - 2. A destination that is
    /// a source too has said so by sending execution n - 1, which this rank has finished: it starts an execution when it
    /// has finished the one before. Any other destination rings a bell. So no rank is two executions ahead of a rank that it sends to,
    /// and all have rung a bell before one rings it again: its count tells how many executions are complete.
    fn send(&mut self, own: &[T]) -> Result<()> {
        let turn = (self.started % 2) as usize;
        if let (Some(copied), true) = (&self.copied, self.silent_destinations > 0) {
            copied[turn].wait(self.started / 2 * self.silent_destinations)?;
        }
        // The execution counts as started even if it fails below: destinations may have been told.
        self.started += 1;
        self.kept.clear();
        self.local.iter().for_each(|pair| self.kept.extend_from_slice(&own[pair.from..][..pair.count]));
        for send in &self.sends {
            let to = turn * self.half + send.to;
            let values = match &send.spans[..] {
                [(start, count)] => &own[*start..][..*count],
                spans => {
                    self.packed.clear();
                    spans.iter().for_each(|(start, count)| self.packed.extend_from_slice(&own[*start..][..*count]));
                    &self.packed[..]
                }
            };
            debug_assert_eq!(values.len(), send.count);
            self.inbox.put_slice_bell(send.rank, to, values, &self.arrived[turn])?;
        }
        Ok(())
    }

    /// Waits for an execution that was started and never finished.
    fn discard(&mut self) -> Result<()> {
        if self.started > self.finished { self.receive(|_, _| ()) } else { Ok(()) }
    }

    /// Waits until all sources have sent; lets `copy` take their elements, from this place of the inbox on; then lets them send again.
    fn receive(&mut self, copy: impl FnOnce(&mut Self, usize)) -> Result<()> {
        let turn = (self.finished % 2) as usize;
        if !self.sources.is_empty() {
            self.arrived[turn].wait((self.finished / 2 + 1) * self.sources.len() as u64)?;
        }
        self.finished += 1;
        copy(self, turn * self.half);
        if let Some(copied) = &self.copied {
            self.silent_sources.iter().try_for_each(|rank| copied[turn].ring(*rank))?;
        }
        Ok(())
    }

    fn copy_out(&mut self, first: usize, into: &mut [T]) {
        let mut kept = &self.kept[..];
        for pair in &self.local {
            let (values, rest) = kept.split_at(pair.count);
            into[pair.to..][..pair.count].copy_from_slice(values);
            kept = rest;
        }
        let listed: usize = self.remote.iter().map(|pair| pair.count).sum();
        if listed >= SHORT * self.remote.len() {
            for pair in &self.remote {
                self.inbox.read(first + pair.from, &mut into[pair.to..][..pair.count]);
            }
            return;
        }
        self.packed.resize(self.remote_len, T::zeroed());
        self.inbox.read(first, &mut self.packed);
        for pair in &self.remote {
            into[pair.to..][..pair.count].copy_from_slice(&self.packed[pair.from..][..pair.count]);
        }
    }

    fn check_len(&self, found: usize) -> Result<()> {
        if found == self.len {
            return Ok(());
        }
        let why = format!("room for {found} elements; the plan's list has {} at this rank", self.len);
        Err(Error::InvalidArgument { operation: FINISH, why })
    }
}

impl<T: Pod> Gathering<'_, T> {
    /// Waits until all elements that this rank asked for are here, and copies them to `into`, in the order of its list.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `into` has another length than the list; then the next start discards what comes. As
    /// [`Bell::wait`]; then `into` is as before.
    #[track_caller]
    pub fn finish(self, into: &mut [T]) -> Result<()> {
        self.plan.check_len(into.len())?;
        let progress = self.plan.inbox.progress();
        progress.within(FINISH, || self.plan.receive(|plan, first| plan.copy_out(first, into)))
    }
}

impl<T> std::fmt::Debug for GatherPlan<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sources, destinations) = (self.sources.len(), self.sends.len());
        write!(
            f,
            "GatherPlan({} elements, {} remote ones from {sources} ranks; to {destinations} ranks; started {} times)",
            self.len, self.remote_len, self.started
        )
    }
}

impl<T: Pod> std::fmt::Debug for Gathering<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gathering({:?})", self.plan)
    }
}
