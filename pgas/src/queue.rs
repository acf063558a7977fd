//! A work queue that is spread over all ranks, and knows when all work is done.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use bellwether_runtime::{CalledAt, Context, Error, Placed, Result, World};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::aggregate::{By, Draft, Eager, Errands, Form, Options, Port, Record, check_records};
use crate::registry::{Bytes, Entry, Registry};

/// Work for all ranks: any rank pushes items, any rank pops them, and [`pop`](Self::pop) tells all of them when nothing is left
/// anywhere.
///
/// Each rank has a queue of its own. Pushing is local; popping is local while there is something, newest first. A rank that
/// has run out asks its neighbours at distances 1, 2, 4, ... for half of their items, oldest first. A neighbour without items
/// remembers the ranks that asked, and shares when it has more than one item again, so that no rank asks twice (Saraswat and others,
/// *Lifeline-based global load balancing*, PPoPP 2011). A token that only ranks without work pass on, with counts of items under
/// way, finds that nothing is left (Dijkstra's version of Safra's algorithm, EWD 998). Items travel by serde, when
/// their holder polls, waits, pushes or pops.
///
/// Items that are pushed to other ranks ([`push_to`](Self::push_to)) gather in buffers as in [`crate::aggregate`], within the
/// memory of the [`Options`]. They leave when their buffer is full, when they have waited for [`Options::age`] and this rank pushes
/// to others or pops, when this rank finds nothing to pop, or with [`flush`](Self::flush).
///
/// # Examples
/// Counting the nodes of a tree whose shape is not known beforehand.
/// ```
/// use bellwether::DistQueue;
/// # bellwether::threads(3, |world| {
/// let mut queue = DistQueue::<u32>::new(world)?;
/// if world.rank() == 0 {
///     queue.push(10)?;
/// }
/// let mut nodes = [0u64];
/// while let Some(depth) = queue.pop()? {
///     nodes[0] += 1;
///     for _ in 0..2 {
///         if depth > 1 { queue.push(depth - 1)?; }
///     }
/// }
/// world.allreduce_sum(&mut nodes)?;
/// assert_eq!(nodes, [1023]);
/// # Ok(())
/// # })?.into_iter().collect::<bellwether::Result<()>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
pub struct DistQueue<'w, T: 'static> {
    world: &'w World,
    port: Port<'w>,
    draft: Draft,
    /// Most bytes of an item that goes through the port.
    longest: usize,
    part: Entry<Part<T>>,
    /// The value of `fed` when this rank last asked for work.
    asked: Option<u64>,
}

/// Most bytes of items that are handed over at once.
const MESSAGE: usize = 64 << 10;
/// Bytes that such a message has beside the items, at most.
const OVERHEAD: usize = 64;

/// One rank's part.
struct Part<T> {
    items: RefCell<VecDeque<T>>,
    /// Ranks that asked when there was nothing.
    hungry: RefCell<VecDeque<usize>>,
    /// How often the queue was started. Messages with another number are ignored.
    life: Cell<u64>,
    /// Messages with items and single items that were sent, or wait to be, less those that have come.
    balance: Cell<i64>,
    /// Items have come since the token was here.
    touched: Cell<bool>,
    /// How often items have come.
    fed: Cell<u64>,
    token: Cell<Option<Token>>,
    ended: Cell<bool>,
    /// An error of a handler.
    fault: RefCell<Option<Error>>,
    /// Bytes of items that fit in a message: the same on every rank.
    room: usize,
}

/// The token that goes round while ranks have nothing to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Token {
    /// Sum of the balances of the ranks that it has passed.
    balance: i64,
    /// One of these ranks has got items since the token passed it before.
    touched: bool,
    /// The token starts here: it has not passed any other rank.
    fresh: bool,
}

/// A message between ranks.
#[derive(Serialize, Deserialize)]
enum Word {
    /// The sender has nothing to do.
    Hungry,
    /// A number of items, and their bytes.
    Items(u64, Bytes),
    Token(Token),
    /// Nothing is left anywhere.
    End,
}

/// A word to be sent, and its target.
type Post = (usize, Word);

impl<T: Serialize + DeserializeOwned + 'static> Part<T> {
    fn new(room: usize) -> Part<T> {
        Part {
            items: RefCell::default(),
            hungry: RefCell::default(),
            life: Cell::new(0),
            balance: Cell::new(0),
            touched: Cell::new(false),
            fed: Cell::new(0),
            token: Cell::new(None),
            ended: Cell::new(false),
            fault: RefCell::default(),
            room,
        }
    }

    /// Hands half of the items to a rank that asked, if there is more than one, or to `asker`, if there is any.
    fn share(&self, asker: Option<usize>) -> Result<Option<Post>, String> {
        let mut items = self.items.borrow_mut();
        let to = match asker {
            Some(asker) if items.is_empty() => {
                let mut hungry = self.hungry.borrow_mut();
                if !hungry.contains(&asker) {
                    hungry.push_back(asker);
                }
                return Ok(None);
            }
            Some(asker) => asker,
            None if items.len() < 2 => return Ok(None),
            None => match self.hungry.borrow_mut().pop_front() {
                Some(hungry) => hungry,
                None => return Ok(None),
            },
        };
        let (mut bytes, mut count) = (Vec::new(), 0);
        for _ in 0..items.len().div_ceil(2) {
            let Some(item) = items.front() else { break };
            let before = bytes.len();
            encode(item, &mut bytes)?;
            if bytes.len() > self.room {
                bytes.truncate(before);
                break;
            }
            items.pop_front();
            count += 1;
        }
        if count == 0 {
            // Too large to travel: it is done here.
            self.hungry.borrow_mut().push_front(to);
            return Ok(None);
        }
        self.balance.set(self.balance.get() + 1);
        Ok(Some((to, Word::Items(count, Bytes(bytes)))))
    }

    /// Takes in what `from` says.
    fn hear(&self, from: usize, size: usize, rank: usize, word: Word) -> Result<Vec<Post>, String> {
        let mut posts = Vec::new();
        match word {
            Word::Hungry => posts.extend(self.share(Some(from))?),
            Word::Items(count, Bytes(bytes)) => {
                self.come(1);
                let mut rest = &bytes[..];
                for _ in 0..count {
                    let (item, tail) = postcard::take_from_bytes(rest)
                        .map_err(|error| format!("{} expected: {error}", std::any::type_name::<T>()))?;
                    self.items.borrow_mut().push_back(item);
                    rest = tail;
                }
                posts.extend(self.share(None)?);
            }
            Word::Token(token) => self.token.set(Some(token)),
            Word::End => {
                self.ended.set(true);
                posts.extend(end_below(rank, size));
            }
        }
        Ok(posts)
    }

    /// `count` of the words that were sent have arrived.
    fn come(&self, count: i64) {
        self.balance.set(self.balance.get() - count);
        self.touched.set(true);
        self.fed.set(self.fed.get() + 1);
    }

    /// Takes in what has been gathered.
    fn gather(&self, records: &[u8]) {
        for record in Record::all(records) {
            self.come(1);
            match postcard::from_bytes(record.body) {
                Ok(item) => self.items.borrow_mut().push_back(item),
                Err(error) => {
                    let why = format!("{} expected: {error}", std::any::type_name::<T>());
                    self.fault.replace(Some(bad(why)));
                }
            }
        }
    }

    /// Passes the token on, if this rank has it. Called when this rank has no work. Rank 0 ends the queue instead if nothing is left.
    fn pass(&self, rank: usize, size: usize) -> Vec<Post> {
        let Some(token) = self.token.take() else { return Vec::new() };
        let next = (rank + 1) % size;
        if rank != 0 {
            let balance = token.balance + self.balance.get();
            let touched = token.touched | self.touched.replace(false);
            return vec![(next, Word::Token(Token { balance, touched, fresh: false }))];
        }
        let is_calm = !token.fresh && !token.touched && !self.touched.get();
        if is_calm && token.balance + self.balance.get() == 0 {
            self.ended.set(true);
            return end_below(rank, size).collect();
        }
        self.touched.set(false);
        vec![(next, Word::Token(Token::default()))]
    }
}

/// The end goes down a tree.
fn end_below(rank: usize, size: usize) -> impl Iterator<Item = Post> {
    [2 * rank + 1, 2 * rank + 2].into_iter().filter(move |to| *to < size).map(|to| (to, Word::End))
}

/// Handles a word at its target.
fn receive<T>(context: &Context<'_>, (number, life, word): (u64, u64, Word))
where
    T: Serialize + DeserializeOwned + 'static,
{
    let Some(part) = Registry::<Part<T>>::find(context, number).filter(|part| part.life.get() == life) else { return };
    let posts = part.hear(context.from(), context.size(), context.rank(), word);
    let sent = posts.map_err(bad).and_then(|posts| send::<T>(&By::Handler(context), number, life, posts));
    if let Err(error) = sent {
        part.fault.replace(Some(error));
    }
}

impl<'w, T: Serialize + DeserializeOwned + 'static> DistQueue<'w, T> {
    /// An empty queue, with the [`Options`] of the settings of `world`. Collective.
    ///
    /// # Errors
    /// As [`DistQueue::with_options`].
    #[track_caller]
    pub fn new(world: &'w World) -> Result<DistQueue<'w, T>> {
        world.within("DistQueue::new", || DistQueue::with_options(world, &Options::new(world)))
    }

    /// An empty queue. Collective, with the same type and, except for [`Options::age`], the same options on every rank.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] on all ranks if these differ; [`Error::InvalidArgument`] if messages have no room for any item;
    /// as [`World::allgather`].
    #[track_caller]
    pub fn with_options(world: &'w World, options: &Options) -> Result<DistQueue<'w, T>> {
        world.within("DistQueue::with_options", || {
            let mut room = [world.largest_message().saturating_sub(OVERHEAD).min(MESSAGE)];
            world.allreduce(&mut room, usize::min)?;
            let part = Registry::open(world, Part::<T>::new(room[0]));
            let (number, here, errands) = (part.number, Rc::clone(&part.object), Errands::of(world));
            let sink = move |records: &[u8]| {
                here.gather(records);
                if !here.hungry.borrow().is_empty() {
                    let part = Rc::clone(&here);
                    errands.add(move |by| {
                        let post = part.share(None).map_err(bad)?;
                        send::<T>(by, number, part.life.get(), post)
                    });
                }
                records.len()
            };
            let plan = options.plan(Form::Records, 1, Eager::Between).at_most(room[0]);
            let port = Port::new(world, "a distributed queue", plan, Box::new(sink));
            check_records::<T>(world, "a distributed queue", options)?;
            let port = port?;
            let (draft, longest) = (Draft::new(world.rank()), port.feed().longest());
            let queue = DistQueue { world, port, draft, longest, part, asked: None };
            queue.begin()?;
            Ok(queue)
        })
    }

    /// Most bytes of items at this rank that were pushed to others, or come from them: in buffers, in messages on their way
    /// out, and in arrived messages that it has not taken yet.
    pub fn memory(&self) -> usize {
        self.port.memory()
    }

    /// Starts the queue anew. All ranks have done so before any rank sends again.
    fn begin(&self) -> Result<()> {
        self.world.barrier()?;
        let part = &self.part.object;
        part.life.set(part.life.get() + 1);
        part.hungry.borrow_mut().clear();
        part.balance.set(0);
        part.touched.set(false);
        part.ended.set(false);
        let first = Token { fresh: true, ..Token::default() };
        part.token.set((self.world.rank() == 0).then_some(first));
        self.world.barrier()
    }

    /// Lets the queue be used again after [`DistQueue::pop`] has told all ranks that nothing is left. Collective.
    ///
    /// # Errors
    /// [`Error::Agreed`] if a rank has not been told yet; as [`World::barrier`].
    #[track_caller]
    pub fn restart(&mut self) -> Result<()> {
        self.world.within("DistQueue::restart", || {
            let ended = self.part.object.ended.get();
            self.world.agree(if ended { Ok(()) } else { Err("the queue has not come to its end here".into()) })?;
            self.begin()
        })
    }

    /// Adds an item here. Local, unless a rank is waiting for work.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] after the end; [`Error::PeerLost`].
    #[track_caller]
    pub fn push(&mut self, item: T) -> Result<()> {
        (|| -> Result<()> {
            self.check_open()?;
            let part = &self.part.object;
            part.items.borrow_mut().push_back(item);
            if part.hungry.borrow().is_empty() {
                return Ok(());
            }
            let post = part.share(None).map_err(bad)?;
            self.post(post)
        })()
        .placed_here()
    }

    /// Adds an item at `rank`, from which other ranks may take it. The item leaves now or later, together with others that go the same
    /// way; an item that is longer than a buffer leaves now. Waits while as much is under way there as it may hold.
    ///
    /// # Errors
    /// As [`DistQueue::push`]; [`Error::RankOutOfRange`]; [`Error::InvalidArgument`] for an item that is larger than a
    /// message, with both numbers.
    #[track_caller]
    pub fn push_to(&mut self, rank: usize, item: T) -> Result<()> {
        if rank == self.world.rank() {
            return self.push(item);
        }
        let is_long = self.draft_item("push_to", rank, &item).placed()?;
        let part = &self.part.object;
        part.balance.set(part.balance.get() + 1);
        if is_long {
            return self.post([(rank, Word::Items(1, Bytes(self.draft.body().to_vec())))]);
        }
        self.port.push(rank, self.draft.bytes())
    }

    /// As [`DistQueue::push_to`], but does not wait for room. Takes the item out of `item` if it is pushed, and leaves it there otherwise.
    /// Makes no progress: call [`DistQueue::progress`] before the next attempt, and after the last one. For the own rank this is
    /// [`DistQueue::push`], which may wait where another rank waits for work.
    ///
    /// # Errors
    /// As [`DistQueue::push_to`], and [`Error::WouldBlock`]: nothing was pushed. [`Error::InvalidArgument`] if `item` is `None`.
    #[track_caller]
    pub fn try_push_to(&mut self, rank: usize, item: &mut Option<T>) -> Result<()> {
        const NAME: &str = "try_push_to";
        (|| -> Result<()> {
            let Some(pushed) = item else { return Err(bad("there is no item: it was pushed before".into())) };
            if rank == self.world.rank() {
                return item.take().map_or(Ok(()), |item| self.push(item));
            }
            let is_long = self.draft_item(NAME, rank, pushed)?;
            if is_long {
                let word = Word::Items(1, Bytes(self.draft.body().to_vec()));
                let (number, life) = (self.part.number, self.part.object.life.get());
                self.world.try_invoke(rank, &(number, life, word), receive::<T>)?;
            } else {
                self.port.take_now(NAME, rank, self.draft.bytes())?;
            }
            let part = &self.part.object;
            part.balance.set(part.balance.get() + 1);
            *item = None;
            if is_long { Ok(()) } else { self.port.send_now() }
        })()
        .placed_here()
    }

    /// Makes the bytes of an item for another rank. Whether they are longer than a buffer.
    fn draft_item(&mut self, operation: &'static str, rank: usize, item: &T) -> Result<bool> {
        self.check_open()?;
        let size = self.world.size();
        if rank >= size {
            return Err(Error::RankOutOfRange { operation, rank, size, place: CalledAt::default() });
        }
        self.draft.write(|bytes| encode(item, bytes)).map_err(bad)?;
        let (len, room) = (self.draft.body().len(), self.part.object.room);
        if len > room {
            return Err(bad(format!("an item takes {len} bytes, and a message has room for {room}")));
        }
        Ok(len > self.longest)
    }

    /// Takes what others have pushed here, and sends what has waited for [`Options::age`].
    ///
    /// # Errors
    /// As [`World::poll`].
    #[track_caller]
    pub fn progress(&mut self) -> Result<()> {
        self.port.progress().placed_here()
    }

    /// Sends what was pushed to others, as soon as they have taken what came before. Does not wait for that.
    ///
    /// # Errors
    /// [`Error::PeerLost`].
    #[track_caller]
    pub fn flush(&mut self) -> Result<()> {
        self.port.flush_all().placed_here()
    }

    /// Takes an item. Waits while there is none and other ranks still work. When nothing is left at any rank and all ranks wait
    /// here, all get `None`. Every rank must call this until it returns `None`.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::InsideHandler`].
    #[track_caller]
    pub fn pop(&mut self) -> Result<Option<T>> {
        (|| -> Result<Option<T>> {
            // Others are served also while there is enough here.
            match self.port.has_items() {
                true => self.port.progress()?,
                false => drop(self.world.poll()?),
            }
            if self.part.object.items.borrow().is_empty() {
                // Send the items in the buffers now, so that no rank waits for them while this rank waits.
                self.port.hurry()?;
            }
            let popped = self.pop_or_wait();
            self.port.calm();
            popped
        })()
        .placed_here()
    }

    fn pop_or_wait(&mut self) -> Result<Option<T>> {
        let part = Rc::clone(&self.part.object);
        loop {
            if let Some(fault) = part.fault.take() {
                return Err(fault);
            }
            let item = part.items.borrow_mut().pop_back();
            if item.is_some() {
                self.asked = None;
                return Ok(item);
            }
            let (rank, size) = (self.world.rank(), self.world.size());
            if size == 1 {
                part.ended.set(true);
            }
            if part.ended.get() {
                return Ok(None);
            }
            // Ask again if items have come since, but were passed on before this rank took one.
            if self.asked.replace(part.fed.get()) != Some(part.fed.get()) {
                let distances = (0..usize::BITS).map(|bit| 1 << bit).take_while(|distance| *distance < size);
                self.post(distances.map(|distance| ((rank + distance) % size, Word::Hungry)))?;
            }
            // Sending may have delivered items.
            if part.items.borrow().is_empty() {
                self.post(part.pass(rank, size))?;
            }
            self.world.wait_for_peers("waiting for items of a queue", || {
                let has_token = part.token.get().is_some();
                has_token || part.ended.get() || !part.items.borrow().is_empty() || part.fault.borrow().is_some()
            })?;
        }
    }

    /// Items at this rank.
    pub fn local_len(&self) -> usize {
        self.part.object.items.borrow().len()
    }

    fn check_open(&self) -> Result<()> {
        if self.part.object.ended.get() {
            return Err(bad("it has come to its end: `restart` it first".into()));
        }
        Ok(())
    }

    fn post(&self, posts: impl IntoIterator<Item = Post>) -> Result<()> {
        send::<T>(&By::World(self.world), self.part.number, self.part.object.life.get(), posts)
    }
}

/// Sends words of a queue.
fn send<T>(by: &By<'_>, number: u64, life: u64, posts: impl IntoIterator<Item = Post>) -> Result<()>
where
    T: Serialize + DeserializeOwned + 'static,
{
    posts.into_iter().try_for_each(|(to, word)| by.invoke(to, (number, life, word), receive::<T>))
}

/// Appends the bytes of an item.
fn encode<T: Serialize>(item: &T, bytes: &mut Vec<u8>) -> Result<(), String> {
    let extended = postcard::to_extend(item, std::mem::take(bytes));
    let cannot = |error| format!("{} cannot be serialised: {error}", std::any::type_name::<T>());
    *bytes = extended.map_err(cannot)?;
    Ok(())
}

#[cold]
fn bad(why: String) -> Error {
    Error::InvalidArgument { operation: "a distributed queue", why }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets `rank` of three pass the token on to the next.
    fn pass(parts: &[Part<u8>], rank: usize) {
        for (to, word) in parts[rank].pass(rank, 3) {
            parts[to].hear(rank, 3, to, word).expect("nothing has to travel");
        }
    }

    #[test]
    fn work_behind_the_token_keeps_it_going() {
        let parts: Vec<Part<u8>> = (0..3).map(|_| Part::new(100)).collect();
        parts[0].token.set(Some(Token { fresh: true, ..Token::default() }));
        pass(&parts, 0);
        pass(&parts, 1);
        // The token is at rank 2, which has work and shares it with rank 1, behind the token, and gets some back.
        parts[2].items.borrow_mut().extend([1, 2, 3, 4]);
        for (from, to) in [(2, 1), (1, 2)] {
            let (_, word) = parts[from].share(Some(to)).expect("bytes are written").expect("there is something");
            parts[to].hear(from, 3, to, word).expect("nothing has to travel");
        }
        parts[2].items.borrow_mut().clear();
        pass(&parts, 2);
        pass(&parts, 0);
        assert!(parts.iter().all(|part| !part.ended.get()), "rank 1 still has work");
        parts[1].items.borrow_mut().clear();
        // The first round clears the marks of earlier activity, and the second finds none.
        [1, 2, 0, 1, 2, 0].into_iter().for_each(|rank| pass(&parts, rank));
        assert!(parts[0].ended.get() && parts[1].ended.get() && parts[2].ended.get());
    }
}
