//! A hash map that is spread over all ranks.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use bellwether_runtime::{Call, Context, Error, Result, World};
use serde::{Serialize, de::DeserializeOwned};

use crate::registry::{Bytes, Entry, Registry};

/// A map from `K` to `V` whose entries lie at the rank that a hash of their key names.
///
/// Nothing but making it is collective. A call for one key is a message to the owner and its answer, or a look into local
/// memory; calls for many keys ([`insert_many`](Self::insert_many), [`get_many`](Self::get_many),
/// [`update_many`](Self::update_many)) gather them into messages of up to 64 KiB for each owner, with one under way to each.
/// While such a call lasts it keeps up to about 128 KiB for each owner, what gathers and what is under way, beside 16 bytes
/// a key; no setting bounds the sum over the owners.
/// The owner serves them when it polls, waits or enters a collective. When a call returns, it has been done; calls of different
/// ranks for one key are done one after the other. Each rank's part grows by itself, in its own memory.
///
/// The hash is the same on every rank and in every run. Keys and values travel by serde. What is larger than a message, a key
/// or a key with its value, is refused at its owner as elsewhere, so that a program behaves alike on any number of ranks. A
/// value that [`update`](Self::update) has made larger stays where it is: others' calls that would bring it are errors and
/// change nothing; its owner can [`get`](Self::get) and [`remove`](Self::remove) it.
///
/// # Examples
/// ```
/// use bellwether::DistHashMap;
/// # bellwether::threads(3, |world| {
/// let mut counts = DistHashMap::<String, u64>::new(world)?;
/// let words = ["put", "get", "put"].map(|word| (word.to_string(), 1));
/// counts.update_many(words, |count, more: u64| *count = Some(count.unwrap_or(0) + more))?;
/// world.barrier()?;
/// assert_eq!(counts.get(&"put".to_string())?, Some(2 * world.size() as u64));
/// assert_eq!(counts.len()?, 2);
/// # Ok(())
/// # })?.into_iter().collect::<bellwether::Result<()>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
pub struct DistHashMap<'w, K: 'static, V: 'static> {
    world: &'w World,
    part: Entry<Part<K, V>>,
}

/// One rank's entries.
struct Part<K, V> {
    entries: RefCell<HashMap<K, V, BuildHasherDefault<Stable<1>>>>,
    /// Most bytes of a key, and of a key with its value, as they travel: the same on every rank.
    room: usize,
}

/// Most bytes of a message with many keys.
const MESSAGE: usize = 64 << 10;
/// Bytes that a request or an answer has beside its items, at most; the byte that says whether there is a value is one.
const OVERHEAD: usize = 64;

impl<'w, K, V> DistHashMap<'w, K, V>
where
    K: Hash + Eq + Serialize + DeserializeOwned + 'static,
    V: Serialize + DeserializeOwned + 'static,
{
    /// An empty map. Collective.
    ///
    /// # Errors
    /// As [`World::allgather`].
    pub fn new(world: &'w World) -> Result<DistHashMap<'w, K, V>> {
        world.within("DistHashMap::new", || {
            let mut room = [world.largest_message().saturating_sub(OVERHEAD)];
            world.allreduce(&mut room, usize::min)?;
            let part = Registry::open(world, Part { entries: RefCell::default(), room: room[0] });
            world.barrier()?;
            Ok(DistHashMap { world, part })
        })
    }

    /// The rank that has the entry of `key`, or would have it. Local.
    pub fn owner(&self, key: &K) -> usize {
        let mut hasher = Stable::<0>::default();
        key.hash(&mut hasher);
        ((u128::from(hasher.finish()) * self.world.size() as u128) >> 64) as usize
    }

    /// Sets the value of `key`; returns the one it had.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if key and value are larger than a message, or if the old value is and would have to travel,
    /// with both numbers: nothing has changed then. [`Error::PeerLost`]; [`Error::InsideHandler`].
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>> {
        let (owner, entry) = (self.owner(&key), (key, value));
        if owner == self.world.rank() {
            self.part.object.check("an entry", &entry).map_err(bad)?;
            return Ok(self.part.object.entries.borrow_mut().insert(entry.0, entry.1));
        }
        self.ask(owner, "an entry", &entry, |part, bytes| {
            let (key, value) = decode::<(K, V)>(&mut &*bytes)?;
            let mut entries = part.entries.borrow_mut();
            let answer = part.answer(entries.get(&key))?;
            entries.insert(key, value);
            Ok(answer)
        })
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// As [`DistHashMap::insert`].
    pub fn get(&self, key: &K) -> Result<Option<V>>
    where
        V: Clone,
    {
        let owner = self.owner(key);
        if owner == self.world.rank() {
            self.part.object.check("a key", key).map_err(bad)?;
            return Ok(self.part.object.entries.borrow().get(key).cloned());
        }
        self.ask(owner, "a key", key, |part, bytes| part.answer(part.entries.borrow().get(&decode::<K>(&mut &*bytes)?)))
    }

    /// Takes the entry of `key` out; returns its value.
    ///
    /// # Errors
    /// As [`DistHashMap::insert`].
    pub fn remove(&mut self, key: &K) -> Result<Option<V>> {
        let owner = self.owner(key);
        if owner == self.world.rank() {
            self.part.object.check("a key", key).map_err(bad)?;
            return Ok(self.part.object.entries.borrow_mut().remove(key));
        }
        self.ask(owner, "a key", key, |part, bytes| {
            let (key, mut entries) = (decode::<K>(&mut &*bytes)?, part.entries.borrow_mut());
            let answer = part.answer(entries.get(&key))?;
            entries.remove(&key);
            Ok(answer)
        })
    }

    /// Runs `change` on the value of `key` where it lies, with an argument: it finds `None` if there is no entry, and what it
    /// leaves is the entry. It captures nothing, as in [`World::invoke`].
    ///
    /// # Errors
    /// As [`DistHashMap::insert`].
    pub fn update<A, F>(&mut self, key: K, argument: A, change: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned + 'static,
        F: Fn(&mut Option<V>, A) + Copy + Send + 'static,
    {
        self.update_many([(key, argument)], change)
    }

    /// As [`DistHashMap::update`], for many keys. What comes for one key is done one after the other, in no promised order.
    ///
    /// # Errors
    /// As [`DistHashMap::insert`]; then some may have been done.
    pub fn update_many<A, F>(&mut self, items: impl IntoIterator<Item = (K, A)>, change: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned + 'static,
        F: Fn(&mut Option<V>, A) + Copy + Send + 'static,
    {
        let items = items.into_iter().map(|(key, argument)| (self.owner(&key), (key, argument)));
        self.many(
            "an entry",
            items,
            move |part, count, bytes| {
                let (mut rest, mut entries) = (bytes, part.entries.borrow_mut());
                for _ in 0..count {
                    let (key, argument) = decode::<(K, A)>(&mut rest)?;
                    let mut value = entries.remove(&key);
                    change(&mut value, argument);
                    value.map(|value| entries.insert(key, value));
                }
                Ok(Vec::new())
            },
            |_, _| Ok(0),
        )
    }

    /// Sets the values of many keys. Of several values for one key any may stay.
    ///
    /// # Errors
    /// As [`DistHashMap::update_many`].
    pub fn insert_many(&mut self, items: impl IntoIterator<Item = (K, V)>) -> Result<()> {
        self.update_many(items, |value, new| *value = Some(new))
    }

    /// The values of many keys, in their order.
    ///
    /// # Errors
    /// As [`DistHashMap::insert`].
    pub fn get_many(&self, keys: &[K]) -> Result<Vec<Option<V>>> {
        let mut values: Vec<Option<V>> = Vec::new();
        values.resize_with(keys.len(), || None);
        self.many(
            "a key",
            keys.iter().map(|key| (self.owner(key), key)),
            |part, count, bytes| {
                let (mut rest, mut answer, entries) = (bytes, Vec::new(), part.entries.borrow());
                for _ in 0..count {
                    let value = part.answer(entries.get(&decode::<K>(&mut rest)?))?;
                    // At least one; the rest is asked for again.
                    if !answer.is_empty() && answer.len() + value.len() > part.full() {
                        break;
                    }
                    answer.extend_from_slice(&value);
                }
                Ok(answer)
            },
            |numbers, mut answer| {
                let mut done = 0;
                while !answer.is_empty() && done < numbers.len() {
                    values[numbers[done]] = decode(&mut answer)?;
                    done += 1;
                }
                Ok(done)
            },
        )?;
        Ok(values)
    }

    /// Entries at this rank. Local.
    pub fn local_len(&self) -> usize {
        self.part.object.entries.borrow().len()
    }

    /// Entries at all ranks. Collective.
    ///
    /// # Errors
    /// As [`World::barrier`].
    pub fn len(&self) -> Result<usize> {
        self.world.within("DistHashMap::len", || {
            let mut sum = [self.local_len()];
            self.world.allreduce_sum(&mut sum)?;
            Ok(sum[0])
        })
    }

    /// Whether there are none. Collective.
    ///
    /// # Errors
    /// As [`World::barrier`].
    pub fn is_empty(&self) -> Result<bool> {
        self.world.within("DistHashMap::is_empty", || Ok(self.len()? == 0))
    }

    /// A copy of this rank's entries, in an order that depends on their keys and history only. Local.
    pub fn local(&self) -> Vec<(K, V)>
    where
        K: Clone,
        V: Clone,
    {
        self.part.object.entries.borrow().iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Takes this rank's entries out, leaving none. Local; others may add new ones at once.
    pub fn drain_local(&mut self) -> impl Iterator<Item = (K, V)> {
        self.part.object.entries.take().into_iter()
    }

    /// Sends `request` to `owner` and waits for the answer of `serve` there.
    fn ask<Q: Serialize, R: DeserializeOwned, F>(&self, owner: usize, what: &str, request: &Q, serve: F) -> Result<R>
    where
        F: Fn(&Part<K, V>, &[u8]) -> Result<Vec<u8>, String> + Copy + Send + 'static,
    {
        let request = self.part.object.encode(what, request).map_err(bad)?;
        let answer = self.call(owner, 1, request, move |part, _, bytes| serve(part, bytes))?.wait()?;
        let bytes = answer.map_err(bad)?.0;
        decode(&mut &bytes[..]).map_err(bad)
    }

    /// Runs `serve` at `owner`, with a request of so many items, which may have no bytes.
    fn call<F>(&self, owner: usize, count: usize, request: Vec<u8>, serve: F) -> Result<Call<Result<Bytes, String>>>
    where
        F: Fn(&Part<K, V>, usize, &[u8]) -> Result<Vec<u8>, String> + Copy + Send + 'static,
    {
        let arguments = (self.part.number, count, Bytes(request));
        self.world.call(
            owner,
            arguments,
            move |context: &Context<'_>, (number, count, Bytes(request))| match Registry::<Part<K, V>>::find(
                context, number,
            ) {
                Some(part) => serve(&part, count, &request).map(Bytes),
                None => Err(format!("rank {} has dropped the map", context.rank())),
            },
        )
    }

    /// Sends items to their owners, many in a message. `see` gets the numbers of the items of a message and the answer, and
    /// tells how many of them it has an answer for, or 0 if none is needed; the others are sent again.
    fn many<Q: Serialize, F>(
        &self,
        what: &str,
        items: impl Iterator<Item = (usize, Q)>,
        serve: F,
        mut see: impl FnMut(&[usize], &[u8]) -> Result<usize, String>,
    ) -> Result<()>
    where
        F: Fn(&Part<K, V>, usize, &[u8]) -> Result<Vec<u8>, String> + Copy + Send + 'static,
    {
        let part = &self.part.object;
        let mut lines: Vec<Line> = Vec::new();
        lines.resize_with(self.world.size(), Line::default);
        // Takes the answer of an owner, if one is due, and sends what waits for it. Whether there is more to do.
        let mut turn = |owner: usize, line: &mut Line| -> Result<bool> {
            if let Some((sent, call)) = line.under_way.take() {
                let answer = call.wait()?.map_err(bad)?;
                let done = see(&sent.numbers, &answer.0).map_err(bad)?;
                if done > 0 && done < sent.numbers.len() {
                    line.again = Some(sent.rest(done));
                }
            }
            let next = line.again.take().unwrap_or_else(|| std::mem::take(&mut line.waiting));
            if !next.numbers.is_empty() {
                let call = self.call(owner, next.numbers.len(), next.bytes.clone(), serve)?;
                line.under_way = Some((next, call));
            }
            Ok(line.under_way.is_some())
        };
        for (number, (owner, item)) in items.enumerate() {
            let item = part.encode(what, &item).map_err(bad)?;
            let line = &mut lines[owner];
            while !line.waiting.numbers.is_empty() && line.waiting.bytes.len() + item.len() > part.full() {
                turn(owner, line)?;
            }
            line.waiting.add(number, &item);
        }
        let mut any = true;
        while any {
            any = false;
            for (owner, line) in lines.iter_mut().enumerate() {
                any |= turn(owner, line)?;
            }
        }
        Ok(())
    }
}

impl<K, V: Serialize> Part<K, V> {
    /// The bytes of what is to travel, if a message can hold them.
    fn encode<T: Serialize>(&self, what: &str, value: &T) -> Result<Vec<u8>, String> {
        let bytes = postcard::to_stdvec(value).map_err(|error| cannot_travel::<T>(&error))?;
        self.fits(what, bytes.len())?;
        Ok(bytes)
    }

    /// [`Part::encode`]'s error for what stays here.
    fn check<T: Serialize>(&self, what: &str, value: &T) -> Result<(), String> {
        let size = postcard::serialize_with_flavor(value, postcard::ser_flavors::Size::default());
        self.fits(what, size.map_err(|error| cannot_travel::<T>(&error))?)
    }

    fn fits(&self, what: &str, len: usize) -> Result<(), String> {
        if len <= self.room {
            Ok(())
        } else {
            Err(format!("{what} takes {len} bytes, and a message has room for {}", self.room))
        }
    }

    /// The answer that brings a value to who asked. To be made before anything changes: it may be too large.
    fn answer(&self, value: Option<&V>) -> Result<Vec<u8>, String> {
        let bytes = postcard::to_stdvec(&value).map_err(|error| cannot_travel::<V>(&error))?;
        let way_out = |why| why + ": its owner can take it, and `update` can make it smaller";
        self.fits("the value that is there", bytes.len() - 1).map_err(way_out)?;
        Ok(bytes)
    }

    /// Most bytes of many keys' requests or answers.
    fn full(&self) -> usize {
        self.room.min(MESSAGE)
    }
}

/// What goes to one owner: what is under way, what of an earlier message has to be sent again, and what gathers.
#[derive(Default)]
struct Line {
    under_way: Option<(Batch, Call<Result<Bytes, String>>)>,
    again: Option<Batch>,
    waiting: Batch,
}

/// Items of one message: their numbers, where each ends, and their bytes.
#[derive(Default)]
struct Batch {
    numbers: Vec<usize>,
    ends: Vec<usize>,
    bytes: Vec<u8>,
}

impl Batch {
    fn add(&mut self, number: usize, item: &[u8]) {
        self.numbers.push(number);
        self.bytes.extend_from_slice(item);
        self.ends.push(self.bytes.len());
    }

    /// Without the first `done` items.
    fn rest(mut self, done: usize) -> Batch {
        let cut = self.ends[done - 1];
        self.numbers.drain(..done);
        self.bytes.drain(..cut);
        Batch { ends: self.ends[done..].iter().map(|end| end - cut).collect(), ..self }
    }
}

#[cold]
fn cannot_travel<T>(error: &postcard::Error) -> String {
    format!("{} cannot be serialised: {error}", std::any::type_name::<T>())
}

/// Takes a value from the front.
fn decode<T: DeserializeOwned>(bytes: &mut &[u8]) -> Result<T, String> {
    let (value, rest) = postcard::take_from_bytes(bytes)
        .map_err(|error| format!("{} expected: {error}", std::any::type_name::<T>()))?;
    *bytes = rest;
    Ok(value)
}

#[cold]
fn bad(why: String) -> Error {
    Error::InvalidArgument { operation: "a distributed map", why }
}

/// A hash that is the same everywhere: words multiplied and mixed (the finalizer of MurmurHash3). `SEED` keeps the hash that
/// chooses the rank apart from the one that orders a rank's own table.
struct Stable<const SEED: u64>(u64);

impl<const SEED: u64> Default for Stable<SEED> {
    fn default() -> Self {
        Stable(SEED.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

impl<const SEED: u64> Hasher for Stable<SEED> {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0.rotate_left(5) ^ word);
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        mix(self.0.wrapping_add(SEED))
    }
}

fn mix(mut word: u64) -> u64 {
    word ^= word >> 33;
    word = word.wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^= word >> 33;
    word = word.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ (word >> 33)
}
