//! One team's slot of the workspace, and the operations that every algorithm consists of: put to a member's buffer and
//! signal it, wait for signals, read.
//!
//! A collective is a sequence of steps. Each step uses the next of [`DEPTH`] buffers at every member, and one signal word
//! for each of its rounds. A member may write to another member's buffer only when that member is done with the buffer's
//! last use, [`DEPTH`] steps ago. It knows this after any step that no member completes before all have begun it, as most
//! steps are: [`Context::synced`]. If other steps, such as broadcasts, have used all buffers, [`Context::step`] runs a
//! barrier. All members count steps alike, so they agree on this without messages.
//!
//! A member waits for each of its signals in the step that the signal belongs to. So after its last collective no signal is
//! outstanding, and the slot is clean for another team.

mod wait;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::Location;
use std::rc::Rc;

use crate::error::{Doing, Error, Loss, Result};
use crate::hash::mix;
use crate::settings::Collectives;
use crate::team::title::Caller;
use bytemuck::Pod;

use super::head::{Head, Kind};
use super::hub::{ARRIVALS, BARRIER, COUNTERS, DEPTH, Hub, PORTS};
use super::last::Last;
use super::lines;
use super::meeting::{FlagLayout, Meeting, rounds};
use super::nodes::Nodes;
use super::record::{self, KEPT, Said};

/// Bytes before the data of a message: its head. Data of any alignment up to a cache line follows.
const HEAD: usize = size_of::<Head>();
/// The error text that other members read about a collective that was dropped before it was done.
const GIVEN_UP: &str = "a collective of a team was given up before it was done";
/// Begins the digest that is the number of a team of survivors.
const SURVIVORS: u64 = 0x7375_7276_6976_6f72;

/// Why a team has failed.
#[derive(Debug, Clone)]
enum Broken {
    Lost(usize, Loss, Doing),
    Other(String),
}

/// A team's part in the workspace, or that of a group within it.
pub(super) struct Context {
    pub(super) hub: Rc<Hub>,
    /// Its place in the workspace.
    pub(super) slot: usize,
    /// The slot to give back on drop. `None` for a group, which uses its team's slot, and for the context of the world's own calls.
    held: Option<usize>,
    /// Its groups by node, if the team is on several nodes.
    nodes: Option<Box<Nodes>>,
    /// The team's number, the same at all members; 0 of a group, and of the context of the world's own calls.
    id: u64,
    /// The members' ranks in the world, by their rank in the team.
    pub(super) members: Rc<[u32]>,
    /// The team that this is, or is a group of: its members' ranks in the world, and its place in the workspace.
    team: (Rc<[u32]>, usize),
    /// This rank's number among `members`.
    pub(super) rank: usize,
    pub(super) algorithms: Cell<Collectives>,
    /// Its barriers.
    meeting: Meeting,
    /// Collectives begun.
    number: Cell<u64>,
    /// The collective begun last.
    head: Cell<Head>,
    /// Allreduces by [`super::lines`] so far.
    pub(super) turn: Cell<u64>,
    /// The buffer that the next step takes.
    next: Cell<usize>,
    /// Buffers that other members may still be using.
    used: Cell<usize>,
    /// Collectives begun that have not completed without error. Signals for them may still arrive.
    unfinished: Cell<usize>,
    /// Where the program called the collective that is in progress, or that is begun next.
    pub(super) called_at: Cell<Option<&'static Location<'static>>>,
    /// The part of the record about the caller: name of the type, and place of the call.
    written: [Cell<Written>; KEPT],
    broken: RefCell<Option<Broken>>,
    /// The rank that a wait has lost, while the collective that waited is dropped.
    lost: Cell<Option<(usize, Loss, Doing)>>,
    /// A team of survivors that another has taken the place of.
    closed: Cell<bool>,
    /// `Failures::accepted` when no member was among those that this rank goes on without.
    checked: Cell<u64>,
}

/// The parts of a [`Caller`].
type Written = (&'static str, Option<&'static Location<'static>>);

/// A step of a collective: one buffer at every member, and the signal words that belong to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    buffer: usize,
}

impl Step {
    fn port(self, port: usize) -> usize {
        debug_assert!(port < PORTS);
        self.buffer * PORTS + port
    }

    /// The counter of this step.
    fn counter(self) -> usize {
        COUNTERS + self.buffer
    }
}

impl Context {
    /// The context of the user's team of all ranks.
    pub(super) fn of_all(hub: &Rc<Hub>) -> Rc<Self> {
        let (engine, members) = (&hub.engine, (0..hub.engine.size as u32).collect());
        Self::new(hub, 0, 1, members, engine.rank, engine.settings.collectives)
    }

    /// The context of a new team that the last collective of this one has made, in a slot that all `members` have free.
    pub(super) fn of_part(&self, slot: usize, members: Rc<[u32]>, rank: usize) -> Rc<Self> {
        let id = mix(mix(self.id, self.number.get()), members[0].into()).max(1);
        Self::new(&self.hub, slot, id, members, rank, self.algorithms.get())
    }

    fn new(hub: &Rc<Hub>, slot: usize, id: u64, members: Rc<[u32]>, rank: usize, algorithms: Collectives) -> Rc<Self> {
        hub.take(slot);
        hub.open(slot, id);
        let mut context = Self::whole(hub, slot, members, rank, algorithms);
        (context.held, context.id) = (Some(slot), id);
        let context = Rc::new(context);
        hub.known.made(&context);
        context
    }

    /// The context of the world's own calls, which [`Hub::clear`] has made ready.
    pub(super) fn of_world(hub: &Rc<Hub>) -> Rc<Self> {
        let (engine, members) = (&hub.engine, (0..hub.engine.size as u32).collect());
        Rc::new(Self::whole(hub, hub.own(), members, engine.rank, engine.settings.collectives))
    }

    /// The context of the team of survivors that agreement `number` has made, in a slot that [`Hub::clear`] has prepared at all
    /// members.
    pub(super) fn of_survivors(hub: &Rc<Hub>, slot: usize, number: u64, members: Rc<[u32]>, rank: usize) -> Rc<Self> {
        let id = mix(SURVIVORS, number).max(1);
        hub.open(slot, id);
        let mut context = Self::whole(hub, slot, members, rank, hub.engine.settings.collectives);
        context.id = id;
        // Heads differ from those of the teams that had the slot before.
        context.head.set(Head::new::<()>(Kind::Barrier, number as usize));
        Rc::new(context)
    }

    /// Ends a team of survivors: its slot is that of a later one.
    pub(super) fn close(&self) {
        self.closed.set(true);
        // A drop leaves the slot alone.
        self.unfinished.set(self.unfinished.get() + 1);
        if let Some(nodes) = &self.nodes {
            nodes.local.close();
            nodes.leaders.iter().for_each(Context::close);
        }
    }

    fn whole(hub: &Rc<Hub>, slot: usize, members: Rc<[u32]>, rank: usize, algorithms: Collectives) -> Self {
        let nodes = Nodes::new(hub, slot, &members, rank).map(Box::new);
        let mut context = Self::group(hub, slot, 0, [&members, &members], rank);
        context.algorithms.set(algorithms);
        context.nodes = nodes;
        context
    }

    /// A context in a slot that a team holds, of some of the team's members.
    pub(super) fn group(
        hub: &Rc<Hub>,
        of_team: usize,
        level: usize,
        [members, team]: [&Rc<[u32]>; 2],
        rank: usize,
    ) -> Self {
        let slot = hub.level(of_team, level);
        let at = |word| hub.memory.in_slot(hub.signal(hub.word(slot, word)));
        let place = FlagLayout {
            flags: at(BARRIER),
            spacing: size_of::<u64>(),
            arrivals: at(ARRIVALS),
            places: 0,
            lines: false,
            one_flag: false,
        };
        Context {
            meeting: Meeting::new(Some(Rc::clone(members)), rank, members.len(), place),
            hub: Rc::clone(hub),
            slot,
            held: None,
            nodes: None,
            id: 0,
            members: Rc::clone(members),
            team: (Rc::clone(team), hub.level(of_team, 0)),
            rank,
            algorithms: Cell::default(),
            number: Cell::new(0),
            head: Cell::new(Head::new::<()>(Kind::Barrier, 0)),
            turn: Cell::new(0),
            next: Cell::new(0),
            used: Cell::new(0),
            unfinished: Cell::new(0),
            called_at: Cell::new(None),
            written: Default::default(),
            broken: RefCell::default(),
            lost: Cell::default(),
            closed: Cell::new(false),
            checked: Cell::new(0),
        }
    }

    pub(super) fn size(&self) -> usize {
        self.members.len()
    }

    /// A member's rank in the world.
    #[inline]
    pub(super) fn world(&self, member: usize) -> usize {
        self.members[member] as usize
    }

    /// The groups by node, if the members are on several nodes and some share one.
    pub(super) fn nodes(&self) -> Option<&Nodes> {
        self.nodes.as_deref()
    }

    /// The node of this rank.
    pub(super) fn node(&self) -> usize {
        self.hub.engine.nodes.of(self.world(self.rank))
    }

    /// The collective in progress, with digests of those before.
    #[inline]
    pub(super) fn whole_head(&self) -> Head {
        self.head.get()
    }

    /// The collective in progress.
    pub(super) fn head(&self) -> Head {
        self.head.get().without_history()
    }

    /// The name of the type of its elements; empty if it has none.
    pub(super) fn element(&self) -> &'static str {
        self.written[record::kept(self.number.get())].get().0
    }

    pub(super) fn is_mapped(&self) -> bool {
        self.hub.engine.routes.all_mapped()
    }

    /// Runs `body` as the collective that `head` stands for.
    pub(super) async fn collective<R>(
        &self,
        head: Head,
        of: &'static str,
        body: impl Future<Output = Result<R>>,
    ) -> Result<R> {
        self.begin(head, of)?;
        let mut unfinished = Unfinished(Some(self));
        let outcome = body.await;
        unfinished.0 = None;
        self.end(&outcome);
        outcome
    }

    /// After a collective that was begun.
    #[inline]
    fn end<R>(&self, outcome: &Result<R>) {
        match outcome {
            Ok(_) => self.unfinished.set(self.unfinished.get() - 1),
            Err(error) => {
                self.fail(error);
                // Each member learns of a failed peer by itself.
                if !matches!(error, Error::PeerLost { .. }) {
                    self.tell_peers();
                }
            }
        }
    }

    /// Fails the team: this rank panicked in the collective `doing`.
    #[cold]
    pub(super) fn panicked(&self, doing: &str, panic: &(dyn Any + Send)) {
        if self.broken.borrow().is_none() {
            // The collective had not begun, or dropping it would have failed the team.
            self.number.set(self.number.get() + 1);
            self.unfinished.set(self.unfinished.get() + 1);
            self.record(self.head.get(), "");
        }
        // Members that are told may leave.
        self.hub.engine.begin_to_panic();
        self.fail(&self.panic_error(doing, panic));
        self.tell_peers();
    }

    /// The error that other members get for a panic of this rank in the collective `doing`.
    #[cold]
    pub(super) fn panic_error(&self, doing: &str, panic: &(dyn Any + Send)) -> Error {
        let words = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
        let why = format!("panicked in a team's {doing}: {}", words.unwrap_or("in no words"));
        Error::Agreed { rank: self.hub.engine.rank, why }
    }

    /// Tells the members that this team has failed here, if they cannot read this rank's record.
    #[cold]
    fn tell_peers(&self) {
        let is_group = self.slot != self.team.1;
        if self.is_mapped() || is_group || self.told().is_some() {
            return;
        }
        for peer in (0..self.size()).filter(|peer| *peer != self.rank) {
            // An error means that the member is gone.
            let _ = record::tell(&self.hub, self.slot, self.world(peer));
        }
    }

    /// The member, by its rank in the world, that said that this team has failed there. A late message may be about the team
    /// that had the slot before. Its sender never frees that slot again, so it is not a member of this team and is ignored.
    #[inline]
    fn told(&self) -> Option<usize> {
        record::told(&self.hub, self.team.1).filter(|rank| self.team.0.iter().any(|member| *member as usize == *rank))
    }

    #[inline]
    fn begin(&self, head: Head, of: &'static str) -> Result<()> {
        self.check()?;
        self.number.set(self.number.get() + 1);
        let head = head.after(self.head.get());
        self.head.set(head);
        self.unfinished.set(self.unfinished.get() + 1);
        self.record(head, of);
        Ok(())
    }

    /// Says in this rank's record which collective it begins.
    #[inline]
    fn record(&self, head: Head, of: &'static str) {
        let (number, now) = (self.number.get(), (of, self.called_at.get()));
        let before = self.written[record::kept(number)].replace(now);
        // A loop calls at the same place again: the addresses tell, and the texts are not compared.
        let at = |(of, place): Written| (of.as_ptr(), of.len(), place.map(std::ptr::from_ref));
        let caller = (at(before) != at(now)).then(|| Caller::new(now.0, now.1));
        record::begin(&self.hub, self.slot, number, head, caller);
    }

    /// The error for a collective called with invalid arguments. The record shows it as begun and failed, so that members in a
    /// valid call do not wait for this rank.
    #[cold]
    pub(super) fn refuse(&self, doing: &'static str, why: String) -> Error {
        if let Err(forked) = self.hub.engine.check_own(doing) {
            return forked;
        }
        let error = Error::InvalidArgument { operation: doing, why };
        self.number.set(self.number.get() + 1);
        if !self.is_broken() {
            record::refuse(&self.hub, self.slot, &error);
        }
        let head = Head::new::<()>(Kind::Refused, 0).after(self.head.get());
        self.head.set(head);
        self.record(head, "");
        error
    }

    #[cold]
    fn fail(&self, error: &Error) {
        if matches!(error, Error::Forked { .. }) {
            return;
        }
        // A member may have told this rank.
        let names_another = match error {
            Error::PeerLost { .. } => true,
            Error::Agreed { rank, .. } => *rank != self.hub.engine.rank,
            _ => false,
        };
        if names_another {
            self.hub.engine.failures.cuts().note_named();
        }
        *self.broken.borrow_mut() = Some(match error {
            Error::PeerLost { rank, cause, doing } => Broken::Lost(*rank, *cause, *doing),
            other => Broken::Other(other.to_string()),
        });
        record::fail(&self.hub, self.slot, self.number.get(), error);
    }

    /// Drops a collective whose wait has ended with `error`. If it was not done, other members read that a rank is lost, and not that
    /// it was given up.
    #[cold]
    pub(super) fn give_up(&self, error: &Error, drop_it: impl FnOnce()) {
        if let Error::PeerLost { rank, cause, doing } = *error {
            self.lost.set(Some((rank, cause, doing)));
        }
        drop_it();
        self.lost.set(None);
    }

    /// The last collective of a team, with digests of those before; `None` if it has failed or is not done.
    pub(super) fn last(&self) -> Option<Last> {
        let (element, place) = self.written[record::kept(self.number.get())].get();
        let done = self.unfinished.get() == 0 && !self.is_broken();
        done.then(|| Last::new(self.id, [self.rank, self.size()], self.head.get(), Caller::new(element, place)))
    }

    /// Whether a collective has failed here.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.borrow().is_some()
    }

    /// # Errors
    /// If an earlier collective has failed.
    fn check(&self) -> Result<()> {
        self.hub.engine.check_own("a collective of a team")?;
        self.check_members()?;
        match &*self.broken.borrow() {
            None => Ok(()),
            Some(Broken::Lost(rank, cause, doing)) => {
                Err(Error::PeerLost { rank: *rank, cause: *cause, doing: *doing })
            }
            Some(Broken::Other(why)) => {
                let why = format!("an earlier collective of this team failed: {why}");
                Err(Error::Agreed { rank: self.hub.engine.rank, why })
            }
        }
    }

    /// # Errors
    /// [`Error::PeerLost`] if a member is a rank that this rank goes on without: a wait for that member would never end.
    /// [`Error::Agreed`] if the team is one of survivors, and there is a later one.
    #[inline]
    fn check_members(&self) -> Result<()> {
        let is_checked = self.hub.engine.failures.accepted() == self.checked.get() && !self.closed.get();
        if is_checked { Ok(()) } else { self.check_survivors() }
    }

    #[cold]
    fn check_survivors(&self) -> Result<()> {
        let accepted = self.hub.engine.failures.accepted();
        if self.closed.get() {
            let why = "a later call of `survivors` has taken the place of this team".into();
            return Err(Error::Agreed { rank: self.hub.engine.rank, why });
        }
        match self.hub.engine.failures.first_accepted(self.team.0.iter().map(|rank| *rank as usize)) {
            Some((rank, cause)) => Err(Error::PeerLost { rank, cause, doing: "a collective of a team".into() }),
            None => {
                self.checked.set(accepted);
                Ok(())
            }
        }
    }

    /// Begins a step with the next buffer. First runs a barrier if other members may still be using all buffers.
    #[inline]
    pub(super) async fn step(&self) -> Result<Step> {
        if self.used.get() == DEPTH {
            self.meet().await?;
        }
        self.used.set(self.used.get() + 1);
        let buffer = self.next.get();
        self.next.set((buffer + 1) % DEPTH);
        Ok(Step { buffer })
    }

    /// Notes that all members have begun the last step: they are done with the buffers of earlier steps.
    #[inline]
    pub(super) fn synced(&self) {
        self.used.set(1);
    }

    /// Notes that all members have reached this point: they are done with all buffers.
    pub(super) fn met(&self) {
        self.used.set(0);
    }

    /// Bytes of data that a part holds if a buffer is cut into `parts` parts of whole cache lines. 0 if there are too many.
    pub(super) fn room(&self, parts: usize) -> usize {
        self.part(parts).saturating_sub(HEAD.max(64))
    }

    /// The setting for the size of its buffers.
    pub(super) fn memory_setting(&self) -> &'static str {
        self.hub.memory_setting(self.slot)
    }

    /// Bytes from one part to the next.
    fn part(&self, parts: usize) -> usize {
        self.hub.buffer(self.slot) / parts.max(1) / 64 * 64
    }

    fn place<T>(&self, step: Step, part: (usize, usize)) -> usize {
        self.hub.at(self.slot, step.buffer) + part.0 * self.part(part.1) + Self::lead::<T>() - HEAD
    }

    /// Bytes from the start of a part to its data, which are aligned. The head ends where the data begins.
    fn lead<T>() -> usize {
        HEAD.next_multiple_of(align_of::<T>())
    }

    /// Puts the head and `data` to a part (which, of how many) of a member's buffer.
    #[inline]
    pub(super) fn put<T: Pod>(&self, to: usize, step: Step, part: (usize, usize), data: &[T]) -> Result<()> {
        let at = self.place::<T>(step, part);
        let (to, head) = (self.world(to), self.head.get());
        let (head, data) = (bytemuck::bytes_of(&head), bytemuck::cast_slice(data));
        if self.is_mapped() {
            self.hub.memory.put(to, at, head)?;
            return self.hub.memory.put(to, at + HEAD, data);
        }
        // Over a network: one put, so one message.
        self.hub.memory.put(to, at, &[head, data].concat())
    }

    /// Signals a member that the data put there before has arrived.
    #[inline]
    pub(super) fn signal(&self, to: usize, step: Step, port: usize) -> Result<()> {
        self.signal_word(to, step.port(port))
    }

    #[inline]
    pub(super) fn signal_word(&self, to: usize, word: usize) -> Result<()> {
        self.hub.memory.signal(self.world(to), self.hub.signal(self.hub.word(self.slot, word)))
    }

    /// Puts, then signals.
    #[inline]
    pub(super) fn send<T: Pod>(
        &self,
        to: usize,
        step: Step,
        port: usize,
        part: (usize, usize),
        data: &[T],
    ) -> Result<()> {
        self.put(to, step, part, data)?;
        self.signal(to, step, port)
    }

    /// Checks that what `from` has put in a part of this rank's buffer belongs to this collective.
    #[inline]
    pub(super) fn verify<T: Pod>(&self, from: usize, step: Step, part: (usize, usize)) -> Result<()> {
        let mut head: Head = bytemuck::Zeroable::zeroed();
        let at = self.place::<T>(step, part);
        self.hub.memory.read(at, bytemuck::bytes_of_mut(&mut head));
        self.check_head(from, head)
    }

    /// Checks that the head of a member belongs to this collective.
    #[inline]
    pub(super) fn check_head(&self, from: usize, head: Head) -> Result<()> {
        if head.agrees(self.head.get()) { Ok(()) } else { Err(self.differ(from, head)) }
    }

    /// The error for data from `from` that belongs to another collective. If only earlier collectives differ, it names the
    /// earliest difference that the records still hold.
    #[cold]
    fn differ(&self, from: usize, theirs: Head) -> Error {
        let (own, number) = (self.world(self.rank), self.number.get());
        let from = self.world(if self.is_mapped() { self.whose(from, theirs) } else { from });
        let ours = self.head.get();
        if self.is_mapped() && theirs.is_same_call(ours) {
            let earlier = |number: u64| match (self.said(from, number), self.said(own, number)) {
                (Said::Begun(theirs), Said::Begun(ours)) => Some((number, theirs, ours)),
                _ => None,
            };
            // Both records of this number are known. The other member may have failed in this collective since then.
            let known = (1..number).rev().map_while(earlier);
            if let Some((number, theirs, ours)) = known.filter(|(_, theirs, ours)| !theirs.is_same_call(*ours)).last() {
                return self.error((from, theirs), (own, ours), number);
            }
        }
        self.error((from, theirs), (own, ours), number)
    }

    /// The member whose call this is, by the records. Members with another root may put their data where that of `from` is expected.
    #[cold]
    fn whose(&self, from: usize, call: Head) -> usize {
        let number = self.number.get();
        let made = |member: &usize| matches!(self.said(self.world(*member), number), Said::Begun(head) if head == call);
        if made(&from) { from } else { (0..self.size()).find(made).unwrap_or(from) }
    }

    /// The error for ranks whose collectives with this number differ, with their places.
    #[cold]
    fn error(&self, theirs: (usize, Head), ours: (usize, Head), number: u64) -> Error {
        let side = |(rank, head)| (rank, head, record::caller(&self.hub, self.slot, rank, number));
        Head::differ(side(theirs), side(ours), false)
    }

    /// Notes the result of an allreduce by a closure: the next collective tells members whose closures differ.
    pub(super) fn note_result(&self, result: &[u8]) {
        self.head.set(self.head.get().with_result(result, self.called_at.get()));
    }

    fn said(&self, rank: usize, number: u64) -> Said {
        record::read(&self.hub, self.slot, rank, number)
    }

    /// Copies data out of a part of this rank's buffer, from element `start` of that part.
    #[inline]
    pub(super) fn read<T: Pod>(&self, step: Step, part: (usize, usize), start: usize, data: &mut [T]) {
        let at = self.place::<T>(step, part) + HEAD + start * size_of::<T>();
        self.hub.memory.read(at, bytemuck::cast_slice_mut(data));
    }

    /// As [`Context::verify`] and [`Context::read`], from the mapped buffer of member `owner`, where `from` put the data.
    pub(super) fn fetch<T: Pod>(
        &self,
        owner: usize,
        from: usize,
        step: Step,
        part: (usize, usize),
        data: &mut [T],
    ) -> Result<()> {
        let at = self.place::<T>(step, part);
        let mut head: Head = bytemuck::Zeroable::zeroed();
        self.hub.memory.get(self.world(owner), at, bytemuck::bytes_of_mut(&mut head))?;
        self.check_head(from, head)?;
        self.hub.memory.get(self.world(owner), at + HEAD, bytemuck::cast_slice_mut(data))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // The slot stays the parent's.
        if self.hub.engine.check_own("dropping a team").is_err() {
            return;
        }
        // Drop the groups before the slot is given back: then another team may take it.
        self.nodes = None;
        if self.held.is_some() {
            self.hub.known.dropped(self.last());
        }
        // Signals may still arrive for an unfinished collective. Then the slot is never reused: another team would take
        // them for its own.
        if self.unfinished.get() == 0 {
            // Clear the record before the slot is free: members of the next team may read it.
            record::clear(&self.hub, self.slot);
            // All flags of its barriers and lines have come. The next team counts from 1.
            for round in 0..rounds(self.size()) {
                self.hub.memory.store(self.hub.signal(self.hub.word(self.slot, BARRIER + round)), 0);
            }
            if self.turn.get() > 0 {
                lines::clear(&self.hub, self.slot);
            }
            self.held.into_iter().for_each(|slot| self.hub.give_back(slot));
        }
    }
}

/// Fails the team if a collective is dropped before it is done.
struct Unfinished<'a>(Option<&'a Context>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(context) = self.0 {
            let given_up = || Error::Agreed { rank: context.hub.engine.rank, why: GIVEN_UP.into() };
            let lost = context.lost.get().map(|(rank, cause, doing)| Error::PeerLost { rank, cause, doing });
            context.fail(&lost.unwrap_or_else(given_up));
        }
    }
}
