//! A hash map that is spread over all ranks.

mod hash;
mod many;
mod part;

use std::hash::{Hash, Hasher};

use bellwether_runtime::{Context, Error, Placed, Result, World};
use serde::{Serialize, de::DeserializeOwned};

use self::hash::Stable;
use self::many::{Lines, Request};
use self::part::{Part, decode};
use crate::aggregate::{Options, check_records};
use crate::registry::{Bytes, Entry, Registry};

/// A map from `K` to `V` whose entries lie at the rank that a hash of their key names.
///
/// Only making a map is collective, and the calls that say so. A call for one key is a message to the owner and its answer, or an
/// access to local memory. Calls for many keys ([`insert_many`](Self::insert_many), [`get_many`](Self::get_many),
/// [`update_many`](Self::update_many)) gather requests, and owners their answers, in buffers as in [`crate::aggregate`]:
/// one for each rank that is sent to directly, by the [`Route`](crate::aggregate::Route) of the
/// [`Options`], within their memory; [`memory`](Self::memory) returns how much. An entry, a key or a value that is longer than
/// such a buffer goes in a message of its own, one at a time from a rank.
/// The owner serves when it polls, waits or enters a collective; over two hops the rank between passes on in the same way.
/// When a call returns, it has been done; calls of different ranks for one key are done one after the other. Each rank's part
/// grows by itself, in its own memory.
///
/// The hash is the same on every rank and in every run. Keys and values travel by serde. A key, or a key with its value, that is larger
/// than a message is refused at its owner as elsewhere, so that a program behaves alike on any number of ranks. A
/// value that [`update`](Self::update) has made larger stays at its owner: calls of other ranks that would transfer it fail and
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
    lines: Lines<'w, V>,
    part: Entry<Part<K, V>>,
}

/// Bytes that a request or an answer has beside its item, at most; the byte that says whether there is a value is one.
const OVERHEAD: usize = 64;

impl<'w, K, V> DistHashMap<'w, K, V>
where
    K: Hash + Eq + Serialize + DeserializeOwned + 'static,
    V: Serialize + DeserializeOwned + 'static,
{
    /// An empty map, with the [`Options`] of the settings of `world`. Collective.
    ///
    /// # Errors
    /// As [`DistHashMap::with_options`].
    #[track_caller]
    pub fn new(world: &'w World) -> Result<DistHashMap<'w, K, V>> {
        world.within("DistHashMap::new", || DistHashMap::with_options(world, &Options::new(world)))
    }

    /// An empty map. Collective, with the same types and, except for [`Options::age`], the same options on every rank.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] on all ranks if these differ; [`Error::InvalidArgument`] if messages have no room for any key;
    /// as [`World::allgather`].
    #[track_caller]
    pub fn with_options(world: &'w World, options: &Options) -> Result<DistHashMap<'w, K, V>> {
        world.within("DistHashMap::with_options", || {
            let mut room = [world.largest_message().saturating_sub(OVERHEAD)];
            world.allreduce(&mut room, usize::min)?;
            let part = Registry::open(world, Part::new(room[0]));
            let lines = Lines::new(world, options, &part.object);
            // All have made theirs when this returns.
            check_records::<(K, V)>(world, "a distributed map", options)?;
            Ok(DistHashMap { world, lines: lines?, part })
        })
    }

    /// Most bytes of requests and answers in buffers at this rank, in messages on their way out, and in messages that it has not
    /// taken yet. The setting `BELLWETHER_MESSAGE_MEMORY` bounds what the transport holds on the way.
    pub fn memory(&self) -> usize {
        self.lines.memory()
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
    #[track_caller]
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>> {
        (|| -> Result<Option<V>> {
            let (owner, entry) = (self.owner(&key), (key, value));
            if owner == self.world.rank() {
                self.part.object.check("an entry", &entry).map_err(bad)?;
                return Ok(self.part.object.entries.borrow_mut().insert(entry.0, entry.1));
            }
            self.ask(owner, "an entry", &entry, |part, bytes, answer| {
                let (key, value) = decode::<(K, V)>(bytes)?;
                let mut entries = part.entries.borrow_mut();
                part.answer(entries.get(&key), answer)?;
                entries.insert(key, value);
                Ok(())
            })
        })()
        .placed_here()
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// As [`DistHashMap::insert`].
    #[track_caller]
    pub fn get(&self, key: &K) -> Result<Option<V>>
    where
        V: Clone,
    {
        (|| -> Result<Option<V>> {
            let owner = self.owner(key);
            if owner == self.world.rank() {
                self.part.object.check("a key", key).map_err(bad)?;
                return Ok(self.part.object.entries.borrow().get(key).cloned());
            }
            self.fetch(owner, key)
        })()
        .placed_here()
    }

    /// Takes the entry of `key` out; returns its value.
    ///
    /// # Errors
    /// As [`DistHashMap::insert`].
    #[track_caller]
    pub fn remove(&mut self, key: &K) -> Result<Option<V>> {
        (|| -> Result<Option<V>> {
            let owner = self.owner(key);
            if owner == self.world.rank() {
                self.part.object.check("a key", key).map_err(bad)?;
                return Ok(self.part.object.entries.borrow_mut().remove(key));
            }
            self.ask(owner, "a key", key, |part, bytes, answer| {
                let (key, mut entries) = (decode::<K>(bytes)?, part.entries.borrow_mut());
                part.answer(entries.get(&key), answer)?;
                entries.remove(&key);
                Ok(())
            })
        })()
        .placed_here()
    }

    /// Runs `change` on the value of `key` at its owner, with an argument. `change` gets `None` if there is no entry; the value that it
    /// leaves becomes the entry, and `None` removes it. `change` captures nothing, as in [`World::invoke`].
    ///
    /// # Errors
    /// As [`DistHashMap::insert`].
    #[track_caller]
    pub fn update<A, F>(&mut self, key: K, argument: A, change: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned + 'static,
        F: Fn(&mut Option<V>, A) + Copy + Send + 'static,
    {
        self.alone(self.owner(&key), (key, argument), change).placed_here()
    }

    /// As [`DistHashMap::update`], for many keys. Updates of one key are done one after the other, in no defined order.
    ///
    /// # Errors
    /// As [`DistHashMap::insert`]; then some may have been done.
    #[track_caller]
    pub fn update_many<A, F>(&mut self, items: impl IntoIterator<Item = (K, A)>, change: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned + 'static,
        F: Fn(&mut Option<V>, A) + Copy + Send + 'static,
    {
        (|| -> Result<()> {
            let request = Request::change::<K, V, A, F>(change)?;
            let _asking = self.lines.begin(0)?;
            let sent = items.into_iter().try_for_each(|entry| {
                let owner = self.owner(&entry.0);
                if owner == self.world.rank() {
                    return self.alone(owner, entry, change);
                }
                let encode = |bytes: &mut Vec<u8>| self.part.object.encode("an entry", &entry, bytes);
                match self.lines.ask(owner, request, 0, encode)? {
                    true => Ok(()),
                    false => self.alone(owner, entry, change),
                }
            });
            self.lines.end(sent).map(drop)
        })()
        .placed_here()
    }

    /// Sets the values of many keys. Of several values for one key any may stay.
    ///
    /// # Errors
    /// As [`DistHashMap::update_many`].
    #[track_caller]
    pub fn insert_many(&mut self, items: impl IntoIterator<Item = (K, V)>) -> Result<()> {
        self.update_many(items, |value, new| *value = Some(new)).placed_here()
    }

    /// The values of many keys, in their order.
    ///
    /// # Errors
    /// As [`DistHashMap::insert`].
    #[track_caller]
    pub fn get_many(&self, keys: &[K]) -> Result<Vec<Option<V>>> {
        (|| -> Result<Vec<Option<V>>> {
            let part = &self.part.object;
            let _asking = self.lines.begin(keys.len())?;
            let sent = keys.iter().enumerate().try_for_each(|(number, key)| {
                let owner = self.owner(key);
                if owner == self.world.rank() {
                    let mut bytes = Vec::new();
                    part.check("a key", key)
                        .and_then(|()| part.answer(part.entries.borrow().get(key), &mut bytes))
                        .map_err(bad)?;
                    self.lines.put(number, decode(&bytes).map_err(bad)?);
                    return Ok(());
                }
                let encode = |bytes: &mut Vec<u8>| part.encode("a key", key, bytes);
                if !self.lines.ask(owner, Request::Get, number, encode)? {
                    self.lines.put(number, self.fetch(owner, key)?);
                }
                Ok(())
            });
            let (mut values, alone) = self.lines.end(sent)?;
            for number in alone {
                values[number] = self.fetch(self.owner(&keys[number]), &keys[number])?;
            }
            Ok(values)
        })()
        .placed_here()
    }

    /// Entries at this rank. Local.
    pub fn local_len(&self) -> usize {
        self.part.object.entries.borrow().len()
    }

    /// Entries at all ranks. Collective.
    ///
    /// # Errors
    /// As [`World::barrier`].
    #[track_caller]
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
    #[track_caller]
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

    /// The value of a key of another rank.
    fn fetch(&self, owner: usize, key: &K) -> Result<Option<V>> {
        self.ask(owner, "a key", key, |part, bytes, answer| {
            part.answer(part.entries.borrow().get(&decode::<K>(bytes)?), answer)
        })
    }

    /// Changes an entry by a message of its own, or here.
    fn alone<A, F>(&self, owner: usize, entry: (K, A), change: F) -> Result<()>
    where
        A: Serialize + DeserializeOwned + 'static,
        F: Fn(&mut Option<V>, A) + Copy + Send + 'static,
    {
        if owner == self.world.rank() {
            self.part.object.check("an entry", &entry).map_err(bad)?;
            self.part.object.change(entry.0, entry.1, change);
            return Ok(());
        }
        self.ask(owner, "an entry", &entry, move |part, bytes, _| {
            let (key, argument) = decode::<(K, A)>(bytes)?;
            part.change(key, argument, change);
            Ok(())
        })
    }

    /// Sends `request` to `owner` and waits for the answer that `serve` writes there.
    fn ask<Q: Serialize, R: DeserializeOwned, F>(&self, owner: usize, what: &str, request: &Q, serve: F) -> Result<R>
    where
        F: Fn(&Part<K, V>, &[u8], &mut Vec<u8>) -> Result<(), String> + Copy + Send + 'static,
    {
        let mut bytes = Vec::new();
        self.part.object.encode(what, request, &mut bytes).map_err(bad)?;
        let serve = move |context: &Context<'_>, (number, Bytes(request)): (u64, Bytes)| {
            let Some(part) = Registry::<Part<K, V>>::find(context, number) else { return Ok(None) };
            let mut answer = Vec::new();
            serve(&part, &request, &mut answer).map(|()| Some(Bytes(answer)))
        };
        let answer: Result<Option<Bytes>, String> =
            self.world.call(owner, (self.part.number, Bytes(bytes)), serve)?.wait()?;
        match answer.map_err(bad)? {
            Some(Bytes(answer)) => decode(&answer).map_err(bad),
            None => Err(dropped(self.world, owner)),
        }
    }
}

/// The error of a request to `owner`, which has dropped its part: the loss of another rank, if there is one, which may be the reason.
#[cold]
fn dropped(world: &World, owner: usize) -> Error {
    let gone = world.check_none_gone("a request to a distributed map");
    gone.err().unwrap_or_else(|| {
        world.suspect(owner);
        bad(format!("rank {owner} has dropped the map; call `World::barrier` before a rank drops it"))
    })
}

#[cold]
fn bad(why: String) -> Error {
    Error::InvalidArgument { operation: "a distributed map", why }
}
