//! A meeting over an [`Exchange`].

use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable, bytes_of};

use super::{Exchange, WAITING};
use crate::bootstrap::meeting::machine::{self, Machine};
use crate::bootstrap::meeting::{Carrier, Complaint, Hosts, Outcome, first_complaint};
use crate::error::{Error, Result};
use crate::membership::nodes::Nodes;

/// Digits that tell an entry's length, at its beginning.
const LENGTH: usize = 8;
/// Most bytes of an entry: the hosts of a million ranks that are dealt out by turns take 8 each.
const ENTRY: usize = 8 << 20;
/// Bytes of a value that are used, even if more were possible: what Slurm and hydra say is their most counts the zero at the end.
const VALUE: usize = 1000;

/// Longer would be no time that clocks can hold.
const LONGEST_WAIT: Duration = Duration::from_secs(1_000_000_000);

/// Carries a meeting over an exchange.
pub(super) struct Entries<'a> {
    exchange: &'a mut dyn Exchange,
    /// Counts the entries that each rank has put, so that every key is new.
    round: u32,
    /// How long this rank waits for others.
    limit: Duration,
}

/// The facts about all ranks that rank 0 publishes.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Verdict {
    rank: u64,
    outcome: Outcome,
}

impl<'a> Entries<'a> {
    pub(super) fn new(exchange: &'a mut dyn Exchange, limit: Duration) -> Entries<'a> {
        Entries { exchange, round: 0, limit: limit.min(LONGEST_WAIT) }
    }

    fn part(&self) -> usize {
        self.exchange.longest().min(VALUE)
    }

    fn key(&self, rank: usize, part: usize) -> String {
        format!("bellwether-{}-{rank}-{part}", self.round)
    }

    /// Puts this rank's entry of this round. Zeros at its end are not sent.
    fn put(&mut self, entry: &[u8]) -> Result<()> {
        let shown = entry.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let text = encode(&entry[..shown]);
        for (part, text) in text.as_bytes().chunks(self.part()).enumerate() {
            let key = self.key(self.exchange.rank(), part);
            self.exchange.put(&key, std::str::from_utf8(text).expect("digits"))?;
        }
        Ok(())
    }

    /// Gets rank `from`'s entry of this round, of at most `most` bytes.
    fn get(&mut self, from: usize, most: usize) -> Result<Vec<u8>> {
        let wrong = |what: String| Error::Start(format!("the launcher brought an entry of rank {from} that {what}"));
        let mut text = self.exchange.get(from, &self.key(from, 0))?;
        let length = text.get(..LENGTH).and_then(|digits| usize::from_str_radix(digits, 16).ok());
        let Some(length) = length else { return Err(wrong("does not begin with its length".into())) };
        if length > most.min(ENTRY) {
            return Err(wrong(format!("has {length} bytes instead of {most} at most")));
        }
        let whole = LENGTH + 2 * length;
        for part in 1.. {
            if text.len() >= whole {
                break;
            }
            let more = self.exchange.get(from, &self.key(from, part))?;
            if more.is_empty() {
                return Err(wrong("ends early".into()));
            }
            text += &more;
        }
        match decode(&text) {
            Some(entry) if entry.len() == length => Ok(entry),
            _ => Err(wrong("cannot be read".into())),
        }
    }

    fn get_value<T: Pod>(&mut self, from: usize) -> Result<T> {
        let entry = self.get(from, size_of::<T>())?;
        let mut value = T::zeroed();
        bytemuck::bytes_of_mut(&mut value)[..entry.len()].copy_from_slice(&entry);
        Ok(value)
    }

    /// Waits until all ranks have entered the fence that was begun at `since`.
    fn wait(&mut self, since: Instant) -> Result<()> {
        loop {
            let left = self.limit.saturating_sub(since.elapsed());
            if self.exchange.fence_is_done(left)? {
                return Ok(());
            }
            if left.is_zero() {
                return Err(Error::TimedOut { doing: WAITING.into(), after: self.limit });
            }
        }
    }

    fn fence(&mut self) -> Result<()> {
        let since = Instant::now();
        self.exchange.begin_fence()?;
        self.wait(since)
    }

    /// Copies what `root` holds in `value` to the ranks for which it is the root.
    fn copy<T: Pod>(&mut self, root: usize, value: &mut T) -> Result<()> {
        let is_root = root == self.exchange.rank();
        if is_root {
            self.put(bytes_of(value))?;
        }
        self.fence()?;
        if !is_root {
            *value = self.get_value(root)?;
        }
        self.round += 1;
        Ok(())
    }

    /// The layout of the hosts that rank 0 has found, as an entry: a first byte that is not 0, then rows of ranks; or 2, and what is wrong.
    fn find_hosts(&mut self) -> Result<Vec<u8>> {
        let machines: Vec<Machine> =
            (0..self.exchange.size()).map(|rank| self.get_value(rank)).collect::<Result<_>>()?;
        Ok(match machine::hosts(&machines) {
            Ok(nodes) => {
                let of: Vec<u32> = (0..machines.len()).map(|rank| nodes.of(rank) as u32).collect();
                rows(&of)
            }
            Err(error) => [&[WRONG], error.to_string().as_bytes()].concat(),
        })
    }
}

const ROWS: u8 = 1;
const WRONG: u8 = 2;

/// The hosts of the ranks: each row is how many ranks in turn are on which host. Both are one more than 0, and so the entry
/// does not end with a zero.
fn rows(hosts: &[u32]) -> Vec<u8> {
    let mut entry = vec![ROWS];
    for row in hosts.chunk_by(|one, next| one == next) {
        entry.extend((row.len() as u32).to_le_bytes());
        entry.extend(row[0].to_le_bytes());
    }
    entry.push(ROWS);
    entry
}

/// The host of each of `size` ranks.
fn read_rows(entry: &[u8], size: usize) -> Result<Vec<u32>> {
    let wrong = || Error::Start("the launcher brought a list of hosts that cannot be read".into());
    let rows = match entry {
        [WRONG, why @ ..] => return Err(Error::Start(String::from_utf8_lossy(why).into_owned())),
        [ROWS, rows @ .., ROWS] if rows.len() % 8 == 0 => rows,
        _ => return Err(wrong()),
    };
    let mut hosts = Vec::with_capacity(size);
    let mut next = 0;
    for row in rows.chunks_exact(8) {
        let [ranks, host] = [0, 4].map(|at| u32::from_le_bytes(row[at..at + 4].try_into().expect("four bytes")));
        // Hosts are numbered in the order of their first ranks.
        if ranks as usize > size - hosts.len() || host > next {
            return Err(wrong());
        }
        next = next.max(host + 1);
        hosts.extend(std::iter::repeat_n(host, ranks as usize));
    }
    if hosts.len() == size { Ok(hosts) } else { Err(wrong()) }
}

impl Carrier for Entries<'_> {
    fn rank(&self) -> usize {
        self.exchange.rank()
    }

    fn size(&self) -> usize {
        self.exchange.size()
    }

    fn hosts(&mut self, mine: &Machine) -> Result<Hosts> {
        let (rank, size) = (self.rank(), self.size());
        self.put(bytes_of(mine))?;
        self.fence()?;
        let found = if rank == 0 { self.find_hosts()? } else { Vec::new() };
        let machines = self.round;
        self.round += 1;
        if rank == 0 {
            self.put(&found)?;
        }
        self.fence()?;
        let entry = if rank == 0 { found } else { self.get(0, ENTRY)? };
        let hosts = read_rows(&entry, size)?;
        let nodes = Nodes::of_each(&hosts);
        let local: Vec<usize> = (0..size).filter(|other| hosts[*other] == hosts[rank]).collect();
        let mut pids = Vec::new();
        if local[0] == rank {
            self.round = machines;
            for other in &local[1..] {
                pids.push(self.get_value::<Machine>(*other)?.pid());
            }
        }
        self.round = machines + 2;
        Ok(Hosts { nodes, local, pids })
    }

    fn broadcast<T: Pod>(&mut self, value: &mut T) -> Result<()> {
        self.copy(0, value)
    }

    fn broadcast_on_host<T: Pod>(&mut self, hosts: &Hosts, value: &mut T) -> Result<()> {
        self.copy(hosts.local[0], value)
    }

    fn agree(&mut self, mine: &Outcome, meanwhile: impl FnOnce(&mut dyn FnMut() -> bool)) -> Result<Complaint> {
        self.put(bytes_of(mine))?;
        let since = Instant::now();
        self.exchange.begin_fence()?;
        let mut done = Ok(false);
        meanwhile(&mut || {
            if let Ok(false) = done {
                done = self.exchange.fence_is_done(Duration::ZERO);
            }
            !matches!(done, Ok(false)) || since.elapsed() > self.limit
        });
        if !done? {
            self.wait(since)?;
        }
        let mut verdict = Verdict::zeroed();
        if self.rank() == 0 {
            let outcomes: Vec<Outcome> = (0..self.size()).map(|rank| self.get_value(rank)).collect::<Result<_>>()?;
            if let Some((rank, outcome)) = first_complaint(&outcomes) {
                verdict = Verdict { rank: rank as u64, outcome };
            }
        }
        self.round += 1;
        self.copy(0, &mut verdict)?;
        let is_bad = !verdict.outcome.text().is_empty();
        Ok(is_bad.then(|| ((verdict.rank as usize).min(self.size() - 1), verdict.outcome)))
    }
}

/// An entry as text: its length, and two digits for each byte. All exchanges carry letters and digits.
fn encode(entry: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = format!("{:0LENGTH$x}", entry.len());
    entry.iter().for_each(|byte| write!(text, "{byte:02x}").expect("memory has room"));
    text
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().get(LENGTH..)?;
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_survives_as_text() {
        for entry in [&b""[..], b"\0", b"\xff\0\x7f", &[7; 3000]] {
            assert_eq!(decode(&encode(entry)).as_deref(), Some(entry));
        }
        for text in ["", "0000000", "00000001f", "00000001fg", "00000001é"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    #[test]
    fn a_list_of_hosts_is_read_or_refused() {
        for hosts in [&[0][..], &[0, 0, 0], &[0, 1, 0, 1, 2], &[0, 1, 1]] {
            let entry = rows(hosts);
            assert_ne!(entry.last(), Some(&0));
            assert_eq!(read_rows(&entry, hosts.len()).expect("just written"), hosts);
            assert!(read_rows(&entry, hosts.len() + 1).is_err());
            assert!(read_rows(&entry, hosts.len() - 1).is_err());
            assert!(read_rows(&entry[..entry.len() - 1], hosts.len()).is_err());
        }
        // A host that comes before its number's turn, or a number of ranks that fits no memory.
        assert!(read_rows(&rows(&[1, 0]), 2).is_err());
        let endless = [&[ROWS][..], &u32::MAX.to_le_bytes(), &0u32.to_le_bytes(), &[ROWS]].concat();
        assert!(read_rows(&endless, 2).is_err());
        let text = read_rows(b"\x02rank 1 is elsewhere", 2).unwrap_err().to_string();
        assert!(text.contains("rank 1 is elsewhere"), "{text}");
    }
}
