//! Items on their way to other ranks, gathered into messages.
//!
//! A port has a buffer for each rank that it sends to directly. A full buffer leaves as one message. The next message to that
//! target leaves only after the target has acknowledged the first. So at most one message of each sender waits at a rank, and
//! the plan bounds the memory of a rank, whatever the other ranks send. In large jobs an item travels in two hops, so that a
//! rank sends to few ranks directly ([`Grid`]). A message of the first hop is acknowledged when its items are in the
//! buffers of the second hop, a message of the last hop when the sink has taken its items. The second hop waits only for
//! sinks, and a sink only for ports that were made after its own, so there is always one that can proceed: no deadlock.
//!
//! Items have one width, or are records of different lengths ([`Form`]). A port does not carry an item that is longer than a
//! buffer: the caller sends it in a message of its own.
//!
//! A port makes progress in handlers and in the calls of its owner, so every rank that waits for anything takes part. Items that
//! a rank passes on, and its answers, leave without such a call where their hop is *eager*: at the end of a handler, as soon as
//! the target has acknowledged the previous message.

mod grid;
#[cfg(test)]
mod held;
mod join;
mod leg;
mod parcel;
mod record;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bellwether_runtime::{CalledAt, Context, Error, Result, World};
use serde::{Serialize, de::DeserializeOwned};

pub use self::grid::Route;
pub(super) use self::join::Merge;
pub(crate) use self::record::{Draft, Form, Record};

use self::grid::Grid;
use self::join::Joins;
use self::leg::Leg;
use self::parcel::{Parcel, Post};

/// How a port is to be made.
pub(crate) struct Plan {
    pub(crate) form: Form,
    /// Bytes of buffers, for items of this rank and for incoming messages.
    pub(crate) memory: usize,
    /// Most items of a buffer, and most bytes.
    pub(crate) items: usize,
    pub(crate) bytes: usize,
    /// After which time items leave though their buffer is not full.
    pub(crate) age: Duration,
    pub(crate) route: Route,
    /// Which buffers leave as soon as their target has taken the previous message, full or not.
    pub(crate) eager: Eager,
    /// How items with equal keys are joined before they leave, if they may be joined.
    pub(super) merge: Option<Merge>,
}

/// Which buffers leave without being full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Eager {
    /// None: all ranks take part in the call that makes them leave.
    Nobody,
    /// Those in which ranks pass items on. The own items of these ranks go the same way.
    Between,
    /// All.
    Everybody,
}

/// The sizes that follow from a plan.
struct Room {
    grid: Grid,
    /// Bytes of the smallest item on its first hop, with its target; and bytes of items that a message has room for.
    wide: usize,
    most: usize,
    hops: usize,
    /// Bytes and items of a buffer of each hop.
    full: [usize; 2],
    items: usize,
    /// Most bytes that are held.
    memory: usize,
}

/// Most messages of items at this rank for each hop and rank: one in the buffer, one that has left the buffer and waits for
/// room on the network, and one from that rank that was not taken yet.
const MESSAGES: usize = 3;

impl Plan {
    /// The same plan with buffers of at most `bytes`. If the largest message differs between ranks, `bytes` is the least of them:
    /// an item that fits into its sender's buffer must also fit into the buffers that it passes.
    pub(crate) fn at_most(self, bytes: usize) -> Plan {
        Plan { bytes: self.bytes.min(bytes), ..self }
    }

    /// Most bytes that a port of this plan holds; none if it cannot be made.
    pub(super) fn most_memory(&self, world: &World) -> usize {
        let room = self.room(world);
        if room.most < room.wide { 0 } else { room.memory }
    }

    fn room(&self, world: &World) -> Room {
        let grid = Grid::new(world.rank(), world.size(), self.route, ranks_of_a_node(world));
        let (prefix, hops) = if grid.is_direct() { (0, 1) } else { (TARGET, 2) };
        let most = world.largest_message().saturating_sub(Parcel::OVERHEAD);
        let tables = self.merge.as_ref().map_or(0, |_| hops * Joins::memory_of(self.memory / JOINS / hops));
        let places = MESSAGES * hops * grid.peers();
        let each = ((self.memory - tables) / places.max(1)).min(most);
        let (wide, full, items) = match self.form {
            Form::Fixed(width) => {
                let wide = prefix + width;
                let items = (each / wide).min(self.items).min(self.bytes / width).max(1);
                (wide, [items * wide, items * width], items)
            }
            Form::Records => {
                let wide = prefix + record::LEAST;
                (wide, [each.min(self.bytes).max(wide); 2], self.items.max(1))
            }
        };
        Room { grid, wide, most, hops, full, items, memory: places * full[FIRST] + tables }
    }
}

/// Takes items that have arrived, several in one slice, and returns how many bytes of them it took. For the rest it is called
/// again when something has changed.
pub(crate) type Sink = Box<dyn FnMut(&[u8]) -> usize>;

/// Numbers of the first hop and of the last.
const FIRST: usize = 0;
const LAST: usize = 1;
/// Bytes of the target that an item carries on its first hop.
const TARGET: usize = size_of::<u32>();

/// One port at one rank.
struct State {
    number: u64,
    form: Form,
    grid: Grid,
    /// The first hop's buffers, whose items begin with their target; the last hop's.
    legs: [Leg; 2],
    /// Messages that were not taken whole: sender, hop, bytes, and how many of them are done.
    inbox: VecDeque<(usize, usize, Vec<u8>, usize)>,
    sink: Sink,
    age: Duration,
    /// For each hop: whether buffers leave as soon as they may, full or not (`flushing`), and whether that is always so (`eager`).
    flushing: [bool; 2],
    eager: [bool; 2],
    /// Ranks that have closed the port. This rank learns of them when a record for them is lost.
    lost: BTreeSet<usize>,
}

impl State {
    /// Puts an item for `to` into its buffer. `false`: that is full, and must wait.
    fn put(&mut self, to: usize, item: &[u8], now: Duration, posts: &mut Vec<Post>) -> bool {
        if to == self.grid.rank() {
            return (self.sink)(item) != 0;
        }
        let via = self.grid.via(to);
        if via == to {
            return self.legs[LAST].put(to, [&[], item], now, self.form, self.number, posts);
        }
        let target = (to as u32).to_ne_bytes();
        self.legs[FIRST].put(via, [&target, item], now, self.form, self.number, posts)
    }

    /// Whether an item of `len` bytes for `to` has room now.
    fn has_room(&self, to: usize, len: usize) -> bool {
        if to == self.grid.rank() {
            return true;
        }
        let via = self.grid.via(to);
        if via == to { self.legs[LAST].has_room(to, len) } else { self.legs[FIRST].has_room(via, TARGET + len) }
    }

    /// Most bytes of a record's own.
    fn longest(&self) -> usize {
        record::room(self.legs[FIRST].full() - if self.grid.is_direct() { 0 } else { TARGET })
    }

    /// Sends the buffers of hops whose buffers leave without being full.
    fn flush(&mut self, posts: &mut Vec<Post>) {
        for (leg, _) in self.legs.iter_mut().zip(self.flushing).filter(|(_, flushing)| *flushing) {
            leg.flush(Duration::MAX, Duration::ZERO, self.form, self.number, posts);
        }
    }

    /// Takes what it can of the messages that have come.
    fn advance(&mut self, now: Duration, posts: &mut Vec<Post>) {
        for _ in 0..self.inbox.len() {
            let Some((from, hop, bytes, mut done)) = self.inbox.pop_front() else { return };
            if hop == LAST {
                done += (self.sink)(&bytes[done..]);
            } else {
                while let Some((target, rest)) = bytes.get(done..).and_then(|items| items.split_first_chunk()) {
                    let Some(item) = self.form.first(rest) else { break };
                    let target = u32::from_ne_bytes(*target) as usize;
                    if target == self.grid.rank() {
                        if (self.sink)(item) == 0 {
                            break;
                        }
                    } else if !self.legs[LAST].put(target, [&[], item], now, self.form, self.number, posts) {
                        break;
                    }
                    done += TARGET + item.len();
                }
            }
            if done >= bytes.len() {
                posts.push(Post { to: from, parcel: Parcel::taken(self.number, hop) });
            } else {
                self.inbox.push_back((from, hop, bytes, done));
            }
        }
    }
}

/// All ports of a rank, as handlers find them.
#[derive(Default)]
struct Ports {
    /// Numbers given so far: the same on every rank, since ports are made together, also those that come to nothing.
    made: Cell<u64>,
    open: RefCell<BTreeMap<u64, Rc<RefCell<State>>>>,
    /// Messages to be sent, and other messages that sinks want to send.
    posts: RefCell<Vec<Post>>,
    errands: RefCell<Vec<Errand>>,
    /// The time at this rank's last reading of the clock.
    now: Cell<Duration>,
    /// An error of a handler.
    fault: RefCell<Option<Error>>,
    /// Bytes in parcels that are being sent, and the most bytes there ever were.
    #[cfg(test)]
    held: held::Held,
}

impl Ports {
    fn of(world: &World) -> Rc<Ports> {
        world.state::<Rc<Ports>>().map_or_else(
            || {
                let ports = Rc::new(Ports::default());
                world.set_state(Rc::clone(&ports));
                ports
            },
            |ports| Rc::clone(&ports),
        )
    }

    /// The next number.
    fn count(&self) -> u64 {
        self.made.replace(self.made.get() + 1)
    }

    fn get(&self, number: u64) -> Option<Rc<RefCell<State>>> {
        self.open.borrow().get(&number).map(Rc::clone)
    }

    /// Takes in a message, and whatever can be done after it.
    fn receive(&self, from: usize, rank: usize, parcel: Parcel) {
        let Some(port) = self.get(parcel.port) else {
            // The port is closed here: acknowledge the parcel, so that no rank waits for it.
            if !parcel.is_taken() && !parcel.is_lost() {
                let mut posts = vec![Post { to: from, parcel: Parcel::taken(parcel.port, parcel.hop()) }];
                if parcel.is_records() {
                    lose(rank, parcel.port, parcel.hop(), &parcel.into_bytes(), &mut posts);
                }
                self.posts.borrow_mut().append(&mut posts);
            }
            return;
        };
        let mut state = port.borrow_mut();
        if parcel.is_lost() {
            state.lost.insert(from);
        } else if parcel.is_taken() {
            let state = &mut *state;
            state.legs[parcel.hop()].taken(from, state.form, state.number, &mut self.posts.borrow_mut());
        } else {
            state.inbox.push_back((from, parcel.hop(), parcel.into_bytes(), 0));
        }
        drop(state);
        #[cfg(test)]
        self.sample();
        self.advance();
    }

    /// Advances all ports, the last made first, because earlier ports may wait for later ones.
    fn advance(&self) {
        let ports: Vec<_> = self.open.borrow().values().rev().map(Rc::clone).collect();
        let mut posts = Vec::new();
        for port in &ports {
            port.borrow_mut().advance(self.now.get(), &mut posts);
        }
        ports.iter().for_each(|port| port.borrow_mut().flush(&mut posts));
        self.posts.borrow_mut().append(&mut posts);
    }

    /// Sends all waiting messages and errands. Sending may deliver messages, so nothing is borrowed meanwhile.
    fn dispatch(&self, by: &By<'_>) -> Result<()> {
        loop {
            let (posts, errands) = (self.posts.take(), self.errands.take());
            if posts.is_empty() && errands.is_empty() {
                return self.fault.take().map_or(Ok(()), Err);
            }
            #[cfg(test)]
            self.leaving(&posts);
            for Post { to, parcel } in posts {
                #[cfg(test)]
                let bytes = parcel.held();
                let sent = by.invoke(to, parcel, receive);
                #[cfg(test)]
                self.left(bytes);
                sent?;
            }
            errands.into_iter().try_for_each(|errand| errand(by))?;
        }
    }

    /// Sends the waiting messages that find room now. The rest stays for [`Ports::dispatch`].
    fn dispatch_now(&self, world: &World) -> Result<()> {
        let mut posts = VecDeque::from(self.posts.take());
        let mut outcome = Ok(());
        while let Some(Post { to, parcel }) = posts.front() {
            outcome = match world.try_invoke(*to, parcel, receive) {
                Err(Error::WouldBlock { .. }) => break,
                sent => sent,
            };
            posts.pop_front();
            if outcome.is_err() {
                break;
            }
        }
        let mut later = self.posts.borrow_mut();
        posts.extend(later.drain(..));
        *later = posts.into();
        outcome
    }
}

/// Handles records for a closed port: the sender of a record for this rank is told, records for other ranks are passed on. A
/// closed port has no buffers: only the size of the incoming message bounds the size of what is passed on.
#[cold]
fn lose(rank: usize, port: u64, hop: usize, bytes: &[u8], posts: &mut Vec<Post>) {
    let prefix = if hop == FIRST { TARGET } else { 0 };
    let (mut rest, mut senders) = (bytes, BTreeSet::new());
    let mut passing = BTreeMap::<usize, Vec<u8>>::new();
    while let Some((target, record)) = rest.split_at_checked(prefix)
        && let Some(record) = Form::Records.first(record)
    {
        match target.first_chunk().map_or(rank, |target| u32::from_ne_bytes(*target) as usize) {
            target if target != rank => passing.entry(target).or_default().extend_from_slice(record),
            _ => senders.extend(Record::first(record).map(|record| record.from)),
        }
        rest = &rest[prefix + record.len()..];
    }
    posts.extend(senders.into_iter().map(|to| Post { to, parcel: Parcel::lost(port) }));
    let pass = |(to, bytes)| Post { to, parcel: Parcel::new(port, LAST, Form::Records, bytes) };
    posts.extend(passing.into_iter().map(pass));
}

/// The sender: the rank outside handlers, or a handler.
pub(crate) enum By<'a> {
    World(&'a World),
    Handler(&'a Context<'a>),
}

impl By<'_> {
    /// As [`World::invoke`].
    pub(crate) fn invoke<A, F>(&self, to: usize, arguments: A, function: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned,
        F: Fn(&Context<'_>, A) + Copy + Send + 'static,
    {
        match self {
            By::World(world) => world.invoke(to, arguments, function),
            By::Handler(context) => context.invoke_kept(to, arguments, function),
        }
    }
}

/// A message beside items that a sink wants to send. The port sends it, because a sink cannot.
type Errand = Box<dyn FnOnce(&By<'_>) -> Result<()>>;

/// Where sinks leave it.
pub(crate) struct Errands(Rc<Ports>);

impl Errands {
    pub(crate) fn of(world: &World) -> Errands {
        Errands(Ports::of(world))
    }

    pub(crate) fn add(&self, errand: impl FnOnce(&By<'_>) -> Result<()> + 'static) {
        self.0.errands.borrow_mut().push(Box::new(errand));
    }
}

/// Handles a parcel at its target.
fn receive(context: &Context<'_>, parcel: Parcel) {
    let Some(ports) = context.state::<Rc<Ports>>() else { return };
    ports.receive(context.from(), context.rank(), parcel);
    let sent = ports.dispatch(&By::Handler(context));
    if let Err(error) = sent {
        ports.fault.replace(Some(error));
    }
}

/// One in this many bytes of a buffer's memory remembers where items wait that others can be joined to.
const JOINS: usize = 16;

/// How many ranks each node has, where there are several nodes, and ranks fill them in turn.
fn ranks_of_a_node(world: &World) -> Option<usize> {
    let node = |rank| world.node_of(rank).ok();
    let each = (0..world.size()).take_while(|rank| node(*rank) == node(0)).count();
    (world.nodes() > 1 && (0..world.size()).all(|rank| node(rank) == Some(rank / each))).then_some(each)
}

/// Items between two readings of the clock.
const CLOCK_INTERVAL: u32 = 64;

/// One rank's handle to a port. Dropping it closes the port here: items that come later are lost, and no rank waits for them.
pub(crate) struct Port<'w> {
    world: &'w World,
    feed: Feed,
    _closing: Closing,
    memory: usize,
    pushes: Cell<u32>,
}

/// A handle that pushes without waiting, for sinks of ports that were made before.
#[derive(Clone)]
pub(crate) struct Feed {
    ports: Rc<Ports>,
    state: Rc<RefCell<State>>,
}

impl Feed {
    /// Most bytes of a record's own.
    pub(crate) fn longest(&self) -> usize {
        self.state.borrow().longest()
    }

    /// Whether a record with `len` bytes of payload for `to` has room now.
    pub(crate) fn has_room(&self, to: usize, len: usize) -> bool {
        self.state.borrow().has_room(to, record::size(len))
    }

    /// Puts an item for `to` beside others that go the same way. `false`: there is no room.
    pub(crate) fn put(&self, to: usize, item: &[u8]) -> bool {
        let mut posts = Vec::new();
        let done = self.state.borrow_mut().put(to, item, self.ports.now.get(), &mut posts);
        if !posts.is_empty() {
            self.ports.posts.borrow_mut().append(&mut posts);
        }
        #[cfg(test)]
        self.ports.sample();
        done
    }
}

impl<'w> Port<'w> {
    /// A port, which is open at this rank. Collective. It may be used only after all ranks have made theirs: the caller has to
    /// make a barrier.
    pub(crate) fn new(world: &'w World, operation: &'static str, plan: Plan, sink: Sink) -> Result<Port<'w>> {
        let ports = Ports::of(world);
        let number = ports.count();
        let Room { grid, wide, most, hops, full, items, memory } = plan.room(world);
        if most < wide {
            let why = format!("an item takes {wide} bytes, and a message has room for {most}");
            return Err(Error::InvalidArgument { operation, why });
        }
        let joins = |hop: usize| {
            let merge = plan.merge.as_ref().filter(|_| hop == LAST || hops == 2)?;
            Joins::new(merge, plan.memory / JOINS / hops)
        };
        let [first, last] = [joins(FIRST), joins(LAST)];
        let [first_full, last_full] = full;
        let legs = [Leg::new(grid, FIRST, first_full, items, first), Leg::new(grid, LAST, last_full, items, last)];
        let eager = [
            plan.eager == Eager::Everybody,
            plan.eager == Eager::Everybody || (plan.eager == Eager::Between && hops == 2),
        ];
        let state = State {
            number,
            form: plan.form,
            grid,
            legs,
            inbox: VecDeque::new(),
            sink,
            age: plan.age,
            flushing: eager,
            eager,
            lost: BTreeSet::new(),
        };
        let state = Rc::new(RefCell::new(state));
        ports.open.borrow_mut().insert(number, Rc::clone(&state));
        let feed = Feed { ports, state };
        Ok(Port { world, _closing: Closing { feed: feed.clone(), number }, feed, memory, pushes: Cell::new(0) })
    }

    /// Makes no port where other ranks may make one, and skips its number, so that the next ports of all ranks have one number.
    pub(super) fn skip(world: &World) {
        Ports::of(world).count();
    }

    /// Most bytes at this rank: of items in buffers, in messages on their way out, and in messages that were not taken yet; and
    /// of the table that remembers where items wait.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    /// Sends the messages that handlers and calls have made ready.
    fn dispatch(&self) -> Result<()> {
        self.feed.ports.dispatch(&By::World(self.world))
    }

    /// Sends an item, or puts it beside others that go the same way; waits for room there.
    #[inline]
    pub(crate) fn push(&self, to: usize, item: &[u8]) -> Result<()> {
        if to >= self.world.size() {
            return Err(Error::RankOutOfRange {
                operation: "push",
                rank: to,
                size: self.world.size(),
                place: CalledAt::default(),
            });
        }
        self.pushes.set(self.pushes.get().wrapping_add(1));
        if self.pushes.get().is_multiple_of(CLOCK_INTERVAL) {
            self.progress()?;
        }
        if !self.try_push(to, item) {
            self.wait_for(|port| port.try_push(to, item))?;
        }
        if self.feed.ports.posts.borrow().is_empty() { Ok(()) } else { self.dispatch() }
    }

    /// As [`Port::push`], but does not wait for room, and makes no progress. A buffer that should leave and finds no room on the network
    /// leaves in a later call.
    ///
    /// # Errors
    /// As [`Port::push`]; [`Error::WouldBlock`]: the item is not taken.
    pub(crate) fn push_now(&self, operation: &'static str, to: usize, item: &[u8]) -> Result<()> {
        self.take_now(operation, to, item)?;
        self.send_now()
    }

    /// The first half of [`Port::push_now`]: takes the item, or is an error.
    pub(crate) fn take_now(&self, operation: &'static str, to: usize, item: &[u8]) -> Result<()> {
        let (size, place) = (self.world.size(), CalledAt::default());
        if to >= size {
            return Err(Error::RankOutOfRange { operation, rank: to, size, place });
        }
        if !self.try_push(to, item) {
            return Err(Error::WouldBlock { operation, rank: to, place });
        }
        Ok(())
    }

    /// The second half: sends what is to leave, as far as the network has room.
    pub(crate) fn send_now(&self) -> Result<()> {
        self.feed.ports.dispatch_now(self.world)
    }

    /// As [`Port::push`]; `false` if there is no room.
    fn try_push(&self, to: usize, item: &[u8]) -> bool {
        self.feed.put(to, item)
    }

    /// Polls until `done` holds, and sends messages that become ready meanwhile.
    fn wait_for(&self, mut done: impl FnMut(&Self) -> bool) -> Result<()> {
        let mut sent = self.dispatch();
        while sent.is_ok() {
            // Sending waits by itself, so it is done outside of the wait.
            let mut finished = false;
            self.world.wait_for_peers("waiting until items are taken", || {
                finished = done(self);
                finished || !self.feed.ports.posts.borrow().is_empty()
            })?;
            sent = self.dispatch();
            if finished {
                break;
            }
        }
        sent
    }

    /// Delivers messages that have come, and sends buffers that are old enough.
    pub(crate) fn progress(&self) -> Result<()> {
        self.world.poll()?;
        let now = self.world.elapsed();
        self.feed.ports.now.set(now);
        self.feed.ports.advance();
        let age = self.feed.state.borrow().age;
        self.flush(FIRST..=LAST, now, age);
        self.dispatch()
    }

    /// Makes the buffers of these hops ready that are older than `age`.
    fn flush(&self, hops: std::ops::RangeInclusive<usize>, now: Duration, age: Duration) {
        let mut state = self.feed.state.borrow_mut();
        let state = &mut *state;
        let mut posts = self.feed.ports.posts.borrow_mut();
        state.legs[hops].iter_mut().for_each(|leg| leg.flush(now, age, state.form, state.number, &mut posts));
    }

    /// Sends each buffer as soon as its target has taken the previous message. Does not wait for that.
    pub(crate) fn flush_all(&self) -> Result<()> {
        self.flush(FIRST..=LAST, Duration::MAX, Duration::ZERO);
        self.dispatch()
    }

    /// Waits until every item that any rank has pushed before was taken by its owner's sink. Collective.
    pub(super) fn finish(&mut self) -> Result<()> {
        // When nothing of a hop is under way anywhere, nothing new comes to the next.
        let hops = if self.feed.state.borrow().grid.is_direct() { LAST..=LAST } else { FIRST..=LAST };
        for hop in hops {
            // The last hop's buffers fill from all that come by the first, before any of them leaves.
            self.feed.state.borrow_mut().flushing[hop] = true;
            self.flush(hop..=hop, Duration::MAX, Duration::ZERO);
            self.dispatch()?;
            self.wait_for(|port| port.feed.state.borrow().legs[hop].is_idle())?;
            self.world.barrier()?;
        }
        self.calm();
        Ok(())
    }

    /// From now on buffers leave as soon as they may, full or not, until [`Port::calm`].
    pub(crate) fn hurry(&self) -> Result<()> {
        self.feed.state.borrow_mut().flushing = [true; 2];
        self.flush_all()
    }

    /// Buffers leave as the port's plan says.
    pub(crate) fn calm(&self) {
        let mut state = self.feed.state.borrow_mut();
        state.flushing = state.eager;
    }

    /// Waits until `done` holds; buffers leave as soon as they may.
    pub(crate) fn wait(&self, done: impl Fn() -> bool) -> Result<()> {
        let waited = self.hurry().and_then(|()| self.wait_for(|_| done()));
        self.calm();
        waited
    }

    /// Whether something waits in buffers.
    pub(crate) fn has_items(&self) -> bool {
        self.feed.state.borrow().legs.iter().any(Leg::has_items)
    }

    /// How many ranks are known to have closed the port.
    pub(crate) fn lost(&self) -> usize {
        self.feed.state.borrow().lost.len()
    }

    pub(crate) fn world(&self) -> &World {
        self.world
    }

    /// The lowest rank that is known to have closed the port.
    pub(crate) fn first_lost(&self) -> Option<usize> {
        self.feed.state.borrow().lost.first().copied()
    }

    pub(crate) fn has_lost(&self, rank: usize) -> bool {
        self.feed.state.borrow().lost.contains(&rank)
    }

    /// A handle by which the sink of a port that was made before pushes here.
    pub(crate) fn feed(&self) -> Feed {
        self.feed.clone()
    }
}

/// Closes a port when it is dropped. This needs no world.
struct Closing {
    feed: Feed,
    number: u64,
}

impl Drop for Closing {
    fn drop(&mut self) {
        let Feed { ports, state } = &self.feed;
        ports.open.borrow_mut().remove(&self.number);
        let state = &mut *state.borrow_mut();
        if !state.form.is_records() {
            return;
        }
        // Another rank may wait for records that are still here. They wait until a message is acknowledged, or for a call of
        // this rank. Dropping the port is that call: it sends them.
        let mut posts = Vec::new();
        state.legs.iter_mut().for_each(|leg| leg.clear(state.form, self.number, &mut posts));
        for (from, hop, bytes, done) in state.inbox.drain(..) {
            posts.push(Post { to: from, parcel: Parcel::taken(self.number, hop) });
            lose(state.grid.rank(), self.number, hop, &bytes[done..], &mut posts);
        }
        ports.posts.borrow_mut().append(&mut posts);
    }
}
