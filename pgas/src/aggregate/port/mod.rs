//! Items on their way to other ranks, gathered into messages.
//!
//! A port has a buffer for each rank that it sends to directly. A full buffer leaves as one message, and the next only when
//! its target has said that it took the first: so at most one message of each sender waits at a rank, and what a rank holds
//! is bounded by what it was told to hold, whoever sends how much to whom. In large jobs an item travels in two hops, so that
//! the ranks a rank sends to directly are few ([`Grid`]); a message of the first hop is taken when its items are in the
//! buffers of the second. A message of the last hop is taken when the sink has had its items. The second hop waits for
//! nobody but sinks, and a sink only for ports that come after its own, so somebody always gets on: no deadlock.
//!
//! Everything happens in handlers and in the calls of the port's owner, so a rank that waits for anything takes part.

mod grid;
#[cfg(test)]
mod held;
mod join;
mod leg;
mod parcel;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bellwether_runtime::{Context, Error, Result, World};

pub use self::grid::Route;
pub(super) use self::join::Merge;

use self::grid::Grid;
use self::join::Joins;
use self::leg::Leg;
use self::parcel::{Parcel, Post};

/// How a port is to be made.
pub(super) struct Plan {
    /// Bytes of an item.
    pub(super) width: usize,
    /// Bytes of buffers, here and for what comes in.
    pub(super) memory: usize,
    /// Most items of a buffer.
    pub(super) items: usize,
    /// After which time items leave though their buffer is not full.
    pub(super) age: Duration,
    pub(super) route: Route,
    /// How items for the same thing become one before they leave, if they may.
    pub(super) merge: Option<Merge>,
}

/// What a plan comes to.
struct Room {
    grid: Grid,
    /// Bytes of an item on its first hop, which carries its target, and of items that a message has room for.
    wide: usize,
    most: usize,
    hops: usize,
    /// Of a buffer.
    items: usize,
    /// Most bytes that are held.
    memory: usize,
}

/// Messages of items that there may be here of a hop and a rank: one in its buffer; one that left that and waits for room on
/// the network; one from there that was not taken yet.
const MESSAGES: usize = 3;

impl Plan {
    /// Most bytes that a port of this plan holds; none if it cannot be made.
    pub(super) fn most_memory(&self, world: &World) -> usize {
        let room = self.room(world);
        if room.most < room.wide { 0 } else { room.memory }
    }

    fn room(&self, world: &World) -> Room {
        let grid = Grid::new(world.rank(), world.size(), self.route, ranks_of_a_node(world));
        let (wide, hops) = if grid.is_direct() { (self.width, 1) } else { (size_of::<u32>() + self.width, 2) };
        let most = world.largest_message().saturating_sub(Parcel::OVERHEAD);
        let tables = self.merge.as_ref().map_or(0, |_| hops * Joins::memory_of(self.memory / JOINS / hops));
        let places = MESSAGES * hops * grid.peers();
        let items = ((self.memory - tables) / (places * wide).max(1)).min(self.items).min(most / wide).max(1);
        Room { grid, wide, most, hops, items, memory: places * items * wide + tables }
    }
}

/// Takes items that have arrived, several in one slice, and tells how many bytes of them it took. For the rest it is asked
/// again when something has changed.
pub(super) type Sink = Box<dyn FnMut(&[u8]) -> usize>;

/// Of the first hop, and of the last.
const FIRST: usize = 0;
const LAST: usize = 1;

/// One port at one rank.
struct State {
    number: u64,
    grid: Grid,
    /// The first hop's buffers, whose items begin with their target; the last hop's.
    legs: [Leg; 2],
    /// Messages that were not taken whole: sender, hop, bytes, and how many of them are done.
    inbox: VecDeque<(usize, usize, Vec<u8>, usize)>,
    sink: Sink,
    age: Duration,
    /// Of each hop: buffers leave as soon as they may, full or not.
    flushing: [bool; 2],
}

impl State {
    /// Puts an item for `to` into its buffer. `false`: that is full, and must wait.
    fn put(&mut self, to: usize, item: &[u8], now: Duration, posts: &mut Vec<Post>) -> bool {
        if to == self.grid.rank() {
            return (self.sink)(item) != 0;
        }
        let via = self.grid.via(to);
        if via == to {
            return self.legs[LAST].put(to, [&[], item], now, self.number, self.flushing[LAST], posts);
        }
        let target = (to as u32).to_ne_bytes();
        self.legs[FIRST].put(via, [&target, item], now, self.number, self.flushing[FIRST], posts)
    }

    /// Takes what it can of the messages that have come.
    fn advance(&mut self, now: Duration, posts: &mut Vec<Post>) {
        for _ in 0..self.inbox.len() {
            let Some((from, hop, bytes, mut done)) = self.inbox.pop_front() else { return };
            if hop == LAST {
                done += (self.sink)(&bytes[done..]);
            } else {
                let item = self.legs[FIRST].width();
                while let Some((target, item)) = bytes.get(done..done + item).and_then(|item| item.split_first_chunk())
                {
                    let target = u32::from_ne_bytes(*target) as usize;
                    if target == self.grid.rank() {
                        if (self.sink)(item) == 0 {
                            break;
                        }
                    } else if !self.legs[LAST].put(target, [&[], item], now, self.number, self.flushing[LAST], posts) {
                        break;
                    }
                    done += self.legs[FIRST].width();
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
    /// Messages that are to leave.
    posts: RefCell<Vec<Post>>,
    /// The time, as this rank last looked.
    now: Cell<Duration>,
    /// What went wrong in a handler.
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
    fn receive(&self, from: usize, parcel: Parcel) {
        let Some(port) = self.get(parcel.port) else {
            // Its owner has closed it: nobody is to wait for that.
            if !parcel.is_taken() {
                let parcel = Parcel::taken(parcel.port, parcel.hop());
                self.posts.borrow_mut().push(Post { to: from, parcel });
            }
            return;
        };
        let mut state = port.borrow_mut();
        if parcel.is_taken() {
            let state = &mut *state;
            let hop = parcel.hop();
            state.legs[hop].taken(from, state.number, state.flushing[hop], &mut self.posts.borrow_mut());
        } else {
            state.inbox.push_back((from, parcel.hop(), parcel.into_bytes(), 0));
        }
        drop(state);
        #[cfg(test)]
        self.look();
        self.advance();
    }

    /// Lets all ports go on, the last made first: others may wait for them.
    fn advance(&self) {
        let ports: Vec<_> = self.open.borrow().values().rev().map(Rc::clone).collect();
        for port in ports {
            let mut posts = Vec::new();
            port.borrow_mut().advance(self.now.get(), &mut posts);
            self.posts.borrow_mut().append(&mut posts);
        }
    }

    /// Sends what is to leave. `send` may deliver messages, so nothing is borrowed meanwhile.
    fn dispatch(&self, send: impl Fn(usize, Parcel) -> Result<()>) -> Result<()> {
        loop {
            let posts = self.posts.take();
            if posts.is_empty() {
                return self.fault.take().map_or(Ok(()), Err);
            }
            #[cfg(test)]
            self.leaving(&posts);
            for Post { to, parcel } in posts {
                #[cfg(test)]
                let bytes = parcel.held();
                let sent = send(to, parcel);
                #[cfg(test)]
                self.left(bytes);
                sent?;
            }
        }
    }
}

/// What a parcel does where it arrives.
fn receive(context: &Context<'_>, parcel: Parcel) {
    let Some(ports) = context.state::<Rc<Ports>>() else { return };
    ports.receive(context.from(), parcel);
    let sent = ports.dispatch(|to, parcel| context.invoke(to, parcel, receive));
    if let Err(error) = sent {
        ports.fault.replace(Some(error));
    }
}

/// One byte in so many remembers where items wait that others can be joined to.
const JOINS: usize = 16;

/// How many ranks each node has, where there are several nodes, and ranks fill them in turn.
fn ranks_of_a_node(world: &World) -> Option<usize> {
    let node = |rank| world.node_of(rank).ok();
    let each = (0..world.size()).take_while(|rank| node(*rank) == node(0)).count();
    (world.nodes() > 1 && (0..world.size()).all(|rank| node(rank) == Some(rank / each))).then_some(each)
}

/// Looks at the clock once in so many items.
const LOOK: u32 = 64;

/// One rank's handle to a port. Dropping it closes the port here: what comes later is lost, but nobody waits for it.
pub(super) struct Port<'w> {
    world: &'w World,
    feed: Feed,
    number: u64,
    memory: usize,
    pushes: u32,
}

/// What it takes to push without waiting: for sinks of ports that were made before.
#[derive(Clone)]
pub(super) struct Feed {
    ports: Rc<Ports>,
    state: Rc<RefCell<State>>,
}

impl Feed {
    /// Puts an item for `to` beside others that go the same way. `false`: there is no room.
    pub(super) fn put(&self, to: usize, item: &[u8]) -> bool {
        let mut posts = Vec::new();
        let done = self.state.borrow_mut().put(to, item, self.ports.now.get(), &mut posts);
        if !posts.is_empty() {
            self.ports.posts.borrow_mut().append(&mut posts);
        }
        #[cfg(test)]
        self.ports.look();
        done
    }
}

impl<'w> Port<'w> {
    /// A port, which is open at this rank. Collective, and to be used only after all ranks have made theirs: a barrier is
    /// the caller's to make.
    pub(super) fn new(world: &'w World, operation: &'static str, plan: Plan, sink: Sink) -> Result<Port<'w>> {
        let ports = Ports::of(world);
        let number = ports.count();
        let Room { grid, wide, most, hops, items, memory } = plan.room(world);
        if most < wide {
            let why = format!("an item takes {wide} bytes, and a message has room for {most}");
            return Err(Error::InvalidArgument { operation, why });
        }
        let joins = |hop: usize| {
            let merge = plan.merge.as_ref().filter(|_| hop == LAST || hops == 2)?;
            Joins::new(merge, plan.memory / JOINS / hops)
        };
        let [first, last] = [joins(FIRST), joins(LAST)];
        let legs = [Leg::new(grid, FIRST, wide, items, first), Leg::new(grid, LAST, plan.width, items, last)];
        let state = State { number, grid, legs, inbox: VecDeque::new(), sink, age: plan.age, flushing: [false; 2] };
        let state = Rc::new(RefCell::new(state));
        ports.open.borrow_mut().insert(number, Rc::clone(&state));
        Ok(Port { world, feed: Feed { ports, state }, number, memory, pushes: 0 })
    }

    /// Makes none, where other ranks may make one: their next has the number of this one's next.
    pub(super) fn skip(world: &World) {
        Ports::of(world).count();
    }

    /// Most bytes at this rank: of items in buffers, in messages on their way out, and in such that were not taken yet; and
    /// of what remembers where items wait.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// Sends what handlers and calls have made ready.
    fn dispatch(&self) -> Result<()> {
        self.feed.ports.dispatch(|to, parcel| self.world.invoke(to, parcel, receive))
    }

    /// Sends an item, or puts it beside others that go the same way; waits for room there.
    pub(super) fn push(&mut self, to: usize, item: &[u8]) -> Result<()> {
        if to >= self.world.size() {
            return Err(Error::RankOutOfRange { operation: "push", rank: to, size: self.world.size() });
        }
        self.pushes = self.pushes.wrapping_add(1);
        if self.pushes.is_multiple_of(LOOK) {
            self.progress()?;
        }
        if !self.try_push(to, item) {
            self.wait_for(|port| port.try_push(to, item))?;
        }
        if self.feed.ports.posts.borrow().is_empty() { Ok(()) } else { self.dispatch() }
    }

    /// As [`Port::push`]; `false` if there is no room.
    fn try_push(&self, to: usize, item: &[u8]) -> bool {
        self.feed.put(to, item)
    }

    /// Polls until `done` holds, sending what gets ready meanwhile.
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

    /// Delivers what has come, and sends what is old enough.
    pub(super) fn progress(&self) -> Result<()> {
        self.world.poll()?;
        let now = self.world.elapsed();
        self.feed.ports.now.set(now);
        self.feed.ports.advance();
        let age = self.feed.state.borrow().age;
        self.flush(FIRST..=LAST, now, age);
        self.dispatch()
    }

    /// Makes ready what is older than `age`, of these hops.
    fn flush(&self, hops: std::ops::RangeInclusive<usize>, now: Duration, age: Duration) {
        let mut state = self.feed.state.borrow_mut();
        let state = &mut *state;
        let mut posts = self.feed.ports.posts.borrow_mut();
        state.legs[hops].iter_mut().for_each(|leg| leg.flush(now, age, state.number, &mut posts));
    }

    /// Sends all that is in buffers, as soon as their targets have taken what came before. Does not wait for that.
    pub(super) fn flush_all(&self) -> Result<()> {
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
        self.feed.state.borrow_mut().flushing = [false; 2];
        Ok(())
    }

    /// What a sink of a port made before needs to push here.
    pub(super) fn feed(&self) -> Feed {
        self.feed.clone()
    }
}

impl Drop for Port<'_> {
    fn drop(&mut self) {
        self.feed.ports.open.borrow_mut().remove(&self.number);
    }
}
