//! Collectives on one value of any serde type for each member. Values may have different sizes at different members.
//!
//! Members first show each other their call, its root and type, and the number of bytes that they contribute ([`Shape`]). All compare
//! what all have shown, so all get the same error. Then the bytes go by the collectives on plain data, of whatever size.

use bytemuck::{Pod, Zeroable};
use serde::{Serialize, de::DeserializeOwned};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::Team;
use crate::error::{Error, Result};
use crate::hash;

/// Which call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Broadcast = 1,
    Gather,
    Allgather,
    Scatter,
    Reduce,
    Allreduce,
}

impl Call {
    fn name(number: u64) -> &'static str {
        const NAMES: [&str; 6] = [
            "broadcast_value",
            "gather_values",
            "allgather_values",
            "scatter_values",
            "reduce_values",
            "allreduce_values",
        ];
        (number as usize).checked_sub(1).and_then(|at| NAMES.get(at)).unwrap_or(&"something else")
    }

    fn doing(self) -> &'static str {
        Call::name(self as u64)
    }
}

/// A member's contribution to a call on values.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Shape {
    call: u64,
    root: u64,
    /// Digest of the type's name.
    of: u64,
    /// Bytes that the member brings; [`REFUSED`] if it cannot.
    len: u64,
}

/// A member that has failed before it could show its bytes.
const REFUSED: u64 = u64::MAX;

/// Bytes of all members together up to which they are padded to the same length, whatever they are. Chosen: one collective takes less
/// time than one for each member.
const TOGETHER: usize = 64 << 10;

/// A value's bytes, in postcard's format.
fn encode<T: Serialize>(doing: &'static str, value: &T) -> Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(|error| Error::InvalidArgument {
        operation: doing,
        why: format!("{} cannot be serialised: {error}", std::any::type_name::<T>()),
    })
}

/// The value that `bytes` of member `from` are.
fn decode<T: DeserializeOwned>(doing: &'static str, from: usize, bytes: &[u8]) -> Result<T> {
    let wrong =
        |why| Error::BadMessage { from, why: format!("{doing}: {} expected: {why}", std::any::type_name::<T>()) };
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(wrong(format!("{} bytes are left over", rest.len()))),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// Every call waits for the collectives of this team that were begun before, delivers messages meanwhile, and is collective over the
/// team: with the same root and type at all members. Values go by serde, in postcard's format.
///
/// # Errors
/// All of them: [`Error::RanksDiffer`] at every member if members are in different calls on values, or give other roots or types; as
/// [`Team::barrier`] where one is in a call of another kind. [`Error::InvalidArgument`] at a member whose value cannot be serialised, or
/// whose arguments are wrong, and [`Error::Agreed`] with that one's rank at the others; the team is used on after that.
/// [`Error::BadMessage`] at a member that finds no value in the bytes of another.
impl Team {
    /// Copies the value of member `root` to all members: its own is given back there. Others give `None`.
    ///
    /// # Errors
    /// As above; [`Error::InvalidArgument`] if the root gives `None` or there is no such member.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::Team;
    /// # bellwether::threads(3, |world| {
    /// let team = Team::world(world)?;
    /// let names = (team.rank() == 1).then(|| vec![String::from("water"), String::from("ice")]);
    /// assert_eq!(team.broadcast_value(1, names)?, ["water", "ice"]);
    /// # Ok(())
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn broadcast_value<T: Serialize + DeserializeOwned>(&self, root: usize, value: Option<T>) -> Result<T> {
        let call = Call::Broadcast;
        self.named(call, || {
            let mine = self.check_member(call, root).and_then(|()| match &value {
                _ if root != self.rank() => Ok(Vec::new()),
                Some(value) => encode(call.doing(), value),
                None => Err(self.wrong(call, "the root gives no value".into())),
            });
            let (mut bytes, lens) = self.show::<T>(call, root, mine)?;
            bytes.resize(lens[root], 0);
            self.broadcast(root, &mut bytes)?;
            match value.filter(|_| root == self.rank()) {
                Some(value) => Ok(value),
                None => decode(call.doing(), self.world_rank(root)?, &bytes),
            }
        })
    }

    /// The values of all members, in their order, at member `root`; `None` elsewhere.
    ///
    /// # Errors
    /// As above; [`Error::InvalidArgument`] if there is no such member.
    #[track_caller]
    pub fn gather_values<T: Serialize + DeserializeOwned>(&self, root: usize, value: &T) -> Result<Option<Vec<T>>> {
        self.named(Call::Gather, || self.gather_for(Call::Gather, root, value))
    }

    /// The values of all members, in their order, at every member.
    ///
    /// # Errors
    /// As above.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::Team;
    /// # bellwether::threads(3, |world| {
    /// let team = Team::world(world)?;
    /// let words = team.allgather_values(&"ab".repeat(team.rank()))?;
    /// assert_eq!(words, ["", "ab", "abab"]);
    /// # Ok(())
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn allgather_values<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>> {
        let call = Call::Allgather;
        self.named(call, || {
            let (mut bytes, lens) = self.show::<T>(call, 0, encode(call.doing(), value))?;
            let longest = lens.iter().copied().max().unwrap_or(0);
            // All together, if that is not much more than they are.
            if longest * self.size() <= (2 * lens.iter().sum::<usize>()).max(TOGETHER) {
                bytes.resize(longest, 0);
                let all = self.allgather(&bytes)?;
                let parts = lens.iter().enumerate().map(|(member, len)| &all[member * longest..][..*len]);
                return self.decode_each(call, parts);
            }
            let mut parts = Vec::with_capacity(self.size());
            for (member, len) in lens.into_iter().enumerate() {
                let mut part = if member == self.rank() { std::mem::take(&mut bytes) } else { vec![0; len] };
                self.broadcast(member, &mut part)?;
                parts.push(part);
            }
            self.decode_each(call, parts.iter().map(Vec::as_slice))
        })
    }

    /// Gives the i-th of the values of member `root` to member i. Others give `None`.
    ///
    /// # Errors
    /// As above; [`Error::InvalidArgument`] if the root does not give one value for each member, or there is no such member.
    #[track_caller]
    pub fn scatter_values<T: Serialize + DeserializeOwned>(&self, root: usize, values: Option<&[T]>) -> Result<T> {
        let call = Call::Scatter;
        self.named(call, || {
            let mut counts = vec![0; self.size()];
            let mine = self.check_member(call, root).and_then(|()| {
                if root != self.rank() {
                    return Ok(Vec::new());
                }
                let values = values.filter(|values| values.len() == self.size()).ok_or_else(|| {
                    let given = values.map_or(0, <[T]>::len);
                    self.wrong(call, format!("the root gives {given} values to {} members", self.size()))
                })?;
                let parts = values.iter().map(|value| encode(call.doing(), value)).collect::<Result<Vec<_>>>()?;
                counts = parts.iter().map(Vec::len).collect();
                Ok(parts.concat())
            });
            let (bytes, _) = self.show::<T>(call, root, mine)?;
            let (part, _) = self.alltoallv(&bytes, &counts)?;
            decode(call.doing(), self.world_rank(root)?, &part)
        })
    }

    /// Combines the values of all members, in their order, at member `root`, which alone runs `combine`; `None` elsewhere. The root holds
    /// the bytes of all.
    ///
    /// # Errors
    /// As [`Team::gather_values`].
    #[track_caller]
    pub fn reduce_values<T: Serialize + DeserializeOwned>(
        &self,
        root: usize,
        value: &T,
        combine: impl FnMut(T, T) -> T,
    ) -> Result<Option<T>> {
        self.named(Call::Reduce, || {
            let all = self.gather_for(Call::Reduce, root, value)?;
            Ok(all.and_then(|all| all.into_iter().reduce(combine)))
        })
    }

    /// Combines the values of all members, in their order, for every member. Member 0 holds the bytes of all, runs `combine`, and
    /// shows the others the result.
    ///
    /// # Errors
    /// As above. If member 0 finds no value in the bytes of another, or cannot serialise the result, the others get [`Error::Agreed`] with
    /// its rank, and the team is used on.
    ///
    /// # Panics
    /// At member 0 if `combine` does. The others get [`Error::Agreed`] then, too.
    ///
    /// # Examples
    /// ```
    /// # use bellwether_runtime as bellwether;
    /// use bellwether::Team;
    /// use std::collections::BTreeSet;
    /// # bellwether::threads(3, |world| {
    /// let team = Team::world(world)?;
    /// let mine = BTreeSet::from([team.rank() / 2, 7]);
    /// let all = team.allreduce_values(&mine, |a, b| &a | &b)?;
    /// assert_eq!(all, BTreeSet::from([0, 1, 7]));
    /// # Ok(())
    /// # })?.into_iter().collect::<bellwether::Result<()>>()?;
    /// # Ok::<(), bellwether::Error>(())
    /// ```
    #[track_caller]
    pub fn allreduce_values<T: Serialize + DeserializeOwned>(
        &self,
        value: &T,
        combine: impl FnMut(T, T) -> T,
    ) -> Result<T> {
        let call = Call::Allreduce;
        self.named(call, || {
            let gathered = self.gather_bytes::<T>(call, 0, encode(call.doing(), value))?;
            let mut result = None;
            let reduce = || -> Result<Vec<u8>> {
                let Some((all, lens)) = &gathered else { return Ok(Vec::new()) };
                let reduced = self.decode_parts::<T>(call, all, lens)?.into_iter().reduce(combine);
                let reduced = result.insert(reduced.expect("a team has members"));
                encode(call.doing(), reduced)
            };
            // The other members wait for the outcome, also if it is an error or a panic. Only the bytes of this call outlive a panic.
            let (mine, panic) = match catch_unwind(AssertUnwindSafe(reduce)) {
                Ok(mine) => (mine, None),
                Err(panic) => (Err(self.wrong(call, "`combine` panicked".into())), Some(panic)),
            };
            let shown = self.show::<T>(call, 0, mine);
            if let Some(panic) = panic {
                resume_unwind(panic);
            }
            let (mut bytes, lens) = shown?;
            bytes.resize(lens[0], 0);
            self.broadcast(0, &mut bytes)?;
            match result {
                Some(result) => Ok(result),
                None => decode(call.doing(), self.world_rank(0)?, &bytes),
            }
        })
    }

    /// Runs `body` as this call of the program, which its steps are told as parts of.
    #[track_caller]
    fn named<R>(&self, call: Call, body: impl FnOnce() -> Result<R>) -> Result<R> {
        self.context().hub.engine.within(call.doing(), body)
    }

    fn gather_for<T: Serialize + DeserializeOwned>(
        &self,
        call: Call,
        root: usize,
        value: &T,
    ) -> Result<Option<Vec<T>>> {
        let mine = self.check_member(call, root).and_then(|()| encode(call.doing(), value));
        let gathered = self.gather_bytes::<T>(call, root, mine)?;
        gathered.map(|(all, lens)| self.decode_parts(call, &all, &lens)).transpose()
    }

    /// The bytes of all members, and how many each has, at member `root`; `None` elsewhere.
    fn gather_bytes<T>(&self, call: Call, root: usize, mine: Result<Vec<u8>>) -> Result<Option<(Vec<u8>, Vec<usize>)>> {
        let (bytes, _) = self.show::<T>(call, root, mine)?;
        let mut counts = vec![0; self.size()];
        counts[root] = bytes.len();
        let gathered = self.alltoallv(&bytes, &counts)?;
        Ok((self.rank() == root).then_some(gathered))
    }

    fn decode_parts<T: DeserializeOwned>(&self, call: Call, all: &[u8], lens: &[usize]) -> Result<Vec<T>> {
        let mut rest = all;
        self.decode_each(call, lens.iter().map(|len| rest.split_off(..*len).unwrap_or_default()))
    }

    fn check_member(&self, call: Call, root: usize) -> Result<()> {
        if root < self.size() { Ok(()) } else { Err(self.wrong(call, super::checked::outside(root, self.size()))) }
    }

    fn wrong(&self, call: Call, why: String) -> Error {
        Error::InvalidArgument { operation: call.doing(), why }
    }

    fn decode_each<'a, T: DeserializeOwned>(
        &self,
        call: Call,
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Vec<T>> {
        parts.enumerate().map(|(member, part)| decode(call.doing(), self.world_rank(member)?, part)).collect()
    }

    /// Shows this member's contribution, compares its description with those of the others, and gives the bytes back, with the length of each
    /// contribution.
    fn show<T>(&self, call: Call, root: usize, mine: Result<Vec<u8>>) -> Result<(Vec<u8>, Vec<usize>)> {
        let of = hash::of(std::any::type_name::<T>().as_bytes());
        let len = mine.as_ref().map_or(REFUSED, |bytes| bytes.len() as u64);
        let own = Shape { call: call as u64, root: root as u64, of, len };
        let all = self.allgather(&[own])?;
        let bytes = mine?;
        if let Some(member) = all.iter().position(|shape| shape.len == REFUSED) {
            let why = format!("{}: it failed there, and its own error says how", Call::name(all[member].call));
            return Err(Error::Agreed { rank: self.world_rank(member)?, why });
        }
        // Against the same member everywhere, so that all get the same error.
        let first = all[0];
        let differs = |shape: &Shape| (shape.call, shape.root, shape.of) != (first.call, first.root, first.of);
        if let Some(member) = all.iter().position(differs) {
            let show = |shape: &Shape| {
                let root =
                    if shape.call == Call::Allgather as u64 { String::new() } else { format!(", root {}", shape.root) };
                let name = if shape.of == of { std::any::type_name::<T>() } else { "another type" };
                format!("{} of {name}{root}", Call::name(shape.call))
            };
            return Err(Error::RanksDiffer {
                what: "the collective call on values",
                rank: self.world_rank(member)?,
                reference: self.world_rank(0)?,
                theirs: show(&all[member]),
                ours: show(&first),
                advice: "every member must make the same call with the same root and type",
            });
        }
        Ok((bytes, all.iter().map(|shape| shape.len as usize).collect()))
    }
}
