//! Calls for many keys: requests through one port, answers through another, made after it.
//!
//! A request names its call and what is to be done; then come the number of the key in the call, if it is to be read, and the
//! key. Requests that are only counted are answered by one number for a run of requests of one call; each read is answered by a
//! record. An answer that does not fit into a buffer is replaced by a notice that the key has to be read alone, in a message of its own.

use std::cell::{Cell, RefCell};
use std::hash::Hash;
use std::rc::Rc;

use bellwether_runtime::{CodeOffset, Error, Result, World};
use serde::{Serialize, de::DeserializeOwned};

use super::part::{Part, decode};
use super::{bad, dropped};
use crate::aggregate::{Draft, Eager, Feed, Form, Options, Port, Record, Sink};

/// The function that changes an entry. It takes the key and the argument as they travel.
type Change<K, V> = fn(&Part<K, V>, &[u8]) -> Result<(), String>;

/// The ports of a map at one rank, and the call under way.
pub(super) struct Lines<'w, V> {
    // Dropped in this order: what has been asked is answered.
    requests: Port<'w>,
    answers: Port<'w>,
    /// Most bytes of a request.
    longest: usize,
    pending: Rc<RefCell<Pending<V>>>,
    draft: RefCell<Draft>,
    /// A call is under way: one that a handler makes meanwhile would take its answers.
    asking: Cell<bool>,
}

/// A call under way, as long as it lives, also through a panic.
pub(super) struct Asking<'a>(&'a Cell<bool>);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// A call whose answers come.
struct Pending<V> {
    number: u64,
    /// Requests that were not answered yet.
    left: usize,
    /// How many ranks were known to have closed the map when it began: its requests to others may be lost.
    lost: usize,
    /// The values that were read; the keys that have to be read alone.
    values: Vec<Option<V>>,
    alone: Vec<usize>,
    /// The first error.
    fault: Option<String>,
}

impl<V> Pending<V> {
    /// Takes an answer in.
    fn take(&mut self, body: &[u8])
    where
        V: DeserializeOwned,
    {
        let Some((Answer { call, kind, number }, rest)) = Answer::first(body) else { return };
        if call != self.number {
            // The answer belongs to a call that has ended with an error.
            return;
        }
        let number = number as usize;
        let (done, fault) = match kind {
            READ => match (decode(rest), self.values.get_mut(number)) {
                (Ok(value), Some(place)) => {
                    *place = value;
                    (1, None)
                }
                (value, _) => (1, value.err()),
            },
            ALONE => {
                self.alone.push(number);
                (1, None)
            }
            CHANGED => (number, None),
            _ => (1, Some(String::from_utf8_lossy(rest).into_owned())),
        };
        self.left = self.left.saturating_sub(done);
        self.fault = self.fault.take().or(fault);
    }
}

/// The fixed part of an answer.
struct Answer {
    call: u64,
    kind: u8,
    /// The number of the key in the call, or how many requests were done.
    number: u64,
}

const READ: u8 = 0;
const ALONE: u8 = 1;
const CHANGED: u8 = 2;
const FAULT: u8 = 3;

impl Answer {
    const SIZE: usize = 17;

    fn append(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.call.to_ne_bytes());
        bytes.push(self.kind);
        bytes.extend_from_slice(&self.number.to_ne_bytes());
    }

    fn first(body: &[u8]) -> Option<(Answer, &[u8])> {
        let (call, rest) = word(body)?;
        let (kind, rest) = rest.split_first()?;
        let (number, rest) = word(rest)?;
        Some((Answer { call, kind: *kind, number }, rest))
    }
}

/// A word, and what follows.
#[inline]
fn word(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (word, rest) = bytes.split_first_chunk()?;
    Some((u64::from_ne_bytes(*word), rest))
}

/// Marks requests that read. Other requests have the place of their function.
const GET: u64 = 0;

/// Serves requests at their owner.
struct Server<K, V> {
    part: Rc<Part<K, V>>,
    answers: Feed,
    draft: Draft,
}

impl<K, V> Server<K, V>
where
    K: Hash + Eq + DeserializeOwned,
    V: Serialize,
{
    /// Does requests, as long as there is room for answers. Returns how many bytes of requests are done.
    fn serve(&mut self, requests: &[u8]) -> usize {
        let mut done = 0;
        while let Some(record) = Record::first(&requests[done..]) {
            let Some((call, rest)) = word(record.body) else { return requests.len() };
            let Some((place, rest)) = word(rest) else { return requests.len() };
            let taken = match place {
                GET => self.get(record.from, call, rest).then_some(record.size()),
                _ => self.change(record.from, call, place, &requests[done..]),
            };
            match taken {
                Some(taken) => done += taken,
                None => return done,
            }
        }
        requests.len()
    }

    /// Reads. `false`: there is no room for the answer.
    fn get(&mut self, from: usize, call: u64, request: &[u8]) -> bool {
        if !self.answers.has_room(from, Answer::SIZE) {
            return false;
        }
        let Some((number, key)) = word(request) else { return true };
        let answer = self.draft.write(|bytes| {
            Answer { call, kind: READ, number }.append(bytes);
            let entries = self.part.entries.borrow();
            self.part.answer(entries.get(&decode::<K>(key)?), bytes)
        });
        if answer.is_err() || self.draft.body().len() > self.answers.longest() {
            // Asked for alone, it comes, or says what is wrong.
            self.answer(from, &Answer { call, kind: ALONE, number }, &[]);
            return true;
        }
        self.answers.put(from, self.draft.bytes())
    }

    /// Changes, as long as requests are for one call and do the same. Tells how many bytes of them are done.
    fn change(&mut self, from: usize, call: u64, place: u64, requests: &[u8]) -> Option<usize> {
        if !self.answers.has_room(from, Answer::SIZE) {
            return None;
        }
        let (mut done, mut count) = (0, 0);
        let change = find::<K, V>(place);
        for record in Record::all(requests) {
            let request = word(record.body).and_then(|(call, rest)| Some((call, word(rest)?)));
            let Some((of, (what, request))) = request else { break };
            if (record.from, of, what) != (from, call, place) {
                break;
            }
            let changed = change.as_ref().map_err(Clone::clone).and_then(|change| change(&self.part, request));
            if let Err(why) = changed {
                // Report the requests that were done before this one first.
                if count > 0 {
                    break;
                }
                let mut end = why.len().min(self.answers.longest() - Answer::SIZE);
                while !why.is_char_boundary(end) {
                    end -= 1;
                }
                if !self.answers.has_room(from, Answer::SIZE + end) {
                    return None;
                }
                self.answer(from, &Answer { call, kind: FAULT, number: 0 }, &why.as_bytes()[..end]);
                return Some(record.size());
            }
            done += record.size();
            count += 1;
        }
        self.answer(from, &Answer { call, kind: CHANGED, number: count }, &[]);
        Some(done)
    }

    /// Sends an answer for which there is room.
    fn answer(&mut self, to: usize, answer: &Answer, rest: &[u8]) {
        let written = self.draft.write(|bytes| {
            answer.append(bytes);
            bytes.extend_from_slice(rest);
            Ok::<_, std::convert::Infallible>(())
        });
        let Ok(()) = written;
        let put = self.answers.put(to, self.draft.bytes());
        debug_assert!(put, "there was room");
    }
}

/// The function of this place.
fn find<K, V>(place: u64) -> Result<Change<K, V>, String> {
    let address = CodeOffset::from_bits(place).address().ok_or("a change to be made by a place where no code is")?;
    // SAFETY: every rank runs the same executable, and those of a port have agreed on keys and values, so a function of
    // that type, which `Lines::change` has named, lies here.
    Ok(unsafe { std::mem::transmute::<usize, Change<K, V>>(address) })
}

/// Stands for `F` on every rank.
fn change<K, V, A, F>(part: &Part<K, V>, request: &[u8]) -> Result<(), String>
where
    K: Hash + Eq + DeserializeOwned,
    V: Serialize,
    A: DeserializeOwned,
    F: Fn(&mut Option<V>, A) + Copy,
{
    const {
        assert!(
            size_of::<F>() == 0,
            "a closure sent to another rank must not capture anything: pass what it needs as arguments"
        );
    }
    // SAFETY: F has no bytes and is Copy and Send, and the rank that asked had a value of F.
    let function = unsafe { std::mem::zeroed::<F>() };
    let (key, argument) = decode::<(K, A)>(request)?;
    part.change(key, argument, function);
    Ok(())
}

/// The operation of a call for many keys.
#[derive(Clone, Copy)]
pub(super) enum Request {
    /// Their values.
    Get,
    /// Run the function at this place.
    Change(u64),
}

impl Request {
    /// The request to run this closure.
    pub(super) fn change<K, V, A, F>(_: F) -> Result<Request>
    where
        K: Hash + Eq + DeserializeOwned,
        V: Serialize,
        A: DeserializeOwned,
        F: Fn(&mut Option<V>, A) + Copy + Send + 'static,
    {
        let change: Change<K, V> = change::<K, V, A, F>;
        match CodeOffset::of(change as usize) {
            Some(place) => Ok(Request::Change(place.to_bits())),
            None => Err(bad("the closure is not part of the executable, so other ranks cannot find it".into())),
        }
    }
}

impl<'w, V: Serialize + DeserializeOwned + 'static> Lines<'w, V> {
    /// Ports for `part`. Collective, and to be used only after all ranks have made theirs.
    pub(super) fn new<K>(world: &'w World, options: &Options, part: &Rc<Part<K, V>>) -> Result<Lines<'w, V>>
    where
        K: Hash + Eq + DeserializeOwned + 'static,
    {
        let rank = world.rank();
        let server = Rc::new(RefCell::new(None::<Server<K, V>>));
        let serving = Rc::clone(&server);
        let serve: Sink =
            Box::new(move |requests| serving.borrow_mut().as_mut().map_or(0, |server| server.serve(requests)));
        let pending = Pending { number: 0, left: 0, lost: 0, values: Vec::new(), alone: Vec::new(), fault: None };
        let pending = Rc::new(RefCell::new(pending));
        let taking = Rc::clone(&pending);
        let take: Sink = Box::new(move |answers| {
            Record::all(answers).for_each(|record| taking.borrow_mut().take(record.body));
            answers.len()
        });
        let plan = |eager| options.plan(Form::Records, 2, eager).at_most(part.room());
        let requests = Port::new(world, "a distributed map", plan(Eager::Between), serve);
        let answers = Port::new(world, "a distributed map", plan(Eager::Everybody), take);
        let (requests, answers) = (requests?, answers?);
        let server_here = Server { part: Rc::clone(part), answers: answers.feed(), draft: Draft::new(rank) };
        server.replace(Some(server_here));
        let longest = requests.feed().longest();
        Ok(Lines {
            requests,
            answers,
            longest,
            pending,
            draft: RefCell::new(Draft::new(rank)),
            asking: Cell::new(false),
        })
    }

    pub(super) fn memory(&self) -> usize {
        self.requests.memory() + self.answers.memory()
    }

    /// Begins a call that reads `values` values.
    ///
    /// # Errors
    /// [`Error::InsideHandler`] if one is under way.
    pub(super) fn begin(&self, values: usize) -> Result<Asking<'_>> {
        if self.asking.replace(true) {
            return Err(Error::InsideHandler { operation: "a distributed map", place: Default::default() });
        }
        let mut pending = self.pending.borrow_mut();
        let number = pending.number + 1;
        *pending =
            Pending { number, left: 0, lost: self.requests.lost(), values: Vec::new(), alone: Vec::new(), fault: None };
        pending.values.resize_with(values, || None);
        Ok(Asking(&self.asking))
    }

    /// Sends a request of this call: what `encode` writes, for key `number`. `false`: it is longer than a buffer, and to be
    /// sent by itself.
    pub(super) fn ask(
        &self,
        owner: usize,
        request: Request,
        number: usize,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), String>,
    ) -> Result<bool> {
        if self.requests.lost() > 0 && self.requests.has_lost(owner) {
            return Err(dropped(self.requests.world(), owner));
        }
        let mut draft = self.draft.borrow_mut();
        let call = self.pending.borrow().number;
        let written = draft.write(|bytes| {
            bytes.extend_from_slice(&call.to_ne_bytes());
            match request {
                Request::Change(place) => bytes.extend_from_slice(&place.to_ne_bytes()),
                Request::Get => {
                    bytes.extend_from_slice(&GET.to_ne_bytes());
                    bytes.extend_from_slice(&(number as u64).to_ne_bytes());
                }
            }
            encode(bytes)
        });
        written.map_err(bad)?;
        if draft.body().len() > self.longest {
            return Ok(false);
        }
        self.pending.borrow_mut().left += 1;
        self.requests.push(owner, draft.bytes())?;
        Ok(true)
    }

    /// Waits for the answers of this call, also if `sent` is an error and not all requests were sent. Returns the values that were
    /// read, and the numbers of the keys that have to be read alone.
    pub(super) fn end(&self, sent: Result<()>) -> Result<(Vec<Option<V>>, Vec<usize>)> {
        let waited = self.requests.wait(|| {
            let pending = self.pending.borrow();
            pending.left == 0 || self.requests.lost() > pending.lost
        });
        sent.and(waited)?;
        let mut pending = self.pending.borrow_mut();
        if let Some(why) = pending.fault.take() {
            return Err(bad(why));
        }
        match self.requests.first_lost() {
            Some(owner) if pending.left > 0 => Err(dropped(self.requests.world(), owner)),
            _ => Ok((std::mem::take(&mut pending.values), std::mem::take(&mut pending.alone))),
        }
    }

    /// Puts a value where what was read is.
    pub(super) fn put(&self, number: usize, value: Option<V>) {
        self.pending.borrow_mut().values[number] = value;
    }
}
