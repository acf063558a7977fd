//! What is done next, as the seed says, and what came of it.

use bellwether::{Pod, Posted, Result, World};

use crate::common::Chance;

/// One rank's choices and findings.
pub struct Plan {
    /// The same on all ranks.
    pub all: Chance,
    /// This rank's own.
    pub own: Chance,
    pub seed: u64,
    /// How much is done; 1 where it takes long.
    pub effort: usize,
    seen: Vec<String>,
    /// What is being done, for what is seen.
    part: String,
}

/// A future of some kind: what it is called, and what it gives when it is waited for.
pub struct Under {
    what: String,
    wait: Box<dyn FnOnce(&World) -> String>,
    /// Nothing is lost if it is dropped: it happens nevertheless.
    may_go: bool,
}

/// Waits in one of the ways there are.
type Waiting<R> = Box<dyn FnOnce(&World) -> Result<R>>;

impl Plan {
    pub fn new(world: &World, seed: u64, effort: usize) -> Plan {
        let all = Chance::new(1000, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let own = Chance::new(world.rank(), seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 77);
        Plan { all, own, seed, effort, seen: Vec::new(), part: String::new() }
    }

    /// What follows is about this.
    pub fn about(&mut self, part: impl Into<String>) {
        self.part = part.into();
    }

    /// Notes what a call gave.
    pub fn note(&mut self, what: impl std::fmt::Display, outcome: Result<String>) {
        self.seen.push(format!("{}: {what}: {}", self.part, shown(outcome)));
    }

    /// As [`Plan::note`], of a put: the next one to the same elements comes after it.
    pub fn note_put(&mut self, world: &World, what: impl std::fmt::Display, outcome: Result<()>) {
        self.note(what, outcome.map(nothing));
        world.fence();
    }

    pub fn seen(self) -> Vec<String> {
        self.seen
    }

    /// Any value of this type.
    pub fn value<T: Pod>(&mut self) -> T {
        let bytes: Vec<u8> = (0..size_of::<T>()).map(|_| self.own.next() as u8).collect();
        // SAFETY: as many bytes as a value has, and any are one, also where there are none.
        unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
    }

    pub fn values<T: Pod>(&mut self, count: usize) -> Vec<T> {
        (0..count).map(|_| self.value()).collect()
    }

    /// A rank; now and then one that there is not.
    pub fn rank(&mut self, world: &World) -> usize {
        match self.own.below(25) {
            0 => world.size() + self.own.below(3),
            _ => self.own.below(world.size()),
        }
    }

    /// Waits for futures, in any order, each in one of the ways there are, or lets them go; all is done when this returns.
    pub fn wait_for(&mut self, world: &World, mut under: Vec<Under>) -> Result<()> {
        while !under.is_empty() {
            let next = under.swap_remove(self.own.below(under.len()));
            if next.may_go && self.own.below(5) == 0 {
                continue;
            }
            let line = format!("{}: {}: {}", self.part, next.what, (next.wait)(world));
            self.seen.push(line);
        }
        world.fence();
        Ok(())
    }

    /// A future, to be waited for in a way that is chosen now, or let go of.
    pub fn under<R: 'static>(
        &mut self,
        what: impl std::fmt::Display,
        posted: Posted<R>,
        show: fn(R) -> String,
    ) -> Under {
        Under { may_go: true, ..self.update(what, posted, show) }
    }

    /// As [`Plan::under`], of something that only happens if it is waited for.
    pub fn update<R: 'static>(
        &mut self,
        what: impl std::fmt::Display,
        mut posted: Posted<R>,
        show: fn(R) -> String,
    ) -> Under {
        let wait: Waiting<R> = match self.own.below(4) {
            0 => Box::new(move |_| posted.wait()),
            1 => Box::new(move |world| world.block_on(posted)),
            2 => Box::new(move |_| Posted::wait_all([posted]).map(|mut all| all.remove(0))),
            _ => Box::new(move |_| {
                while !posted.is_done() {}
                posted.wait()
            }),
        };
        Under { what: what.to_string(), wait: Box::new(move |world| shown(wait(world).map(show))), may_go: false }
    }
}

/// The bytes of values.
fn bytes_of<T: Pod>(values: &[T]) -> &[u8] {
    // SAFETY: plain old data of any size, zero included, is its bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn shown(outcome: Result<String>) -> String {
    let text = |error: bellwether::Error| without_addresses(&error.to_string());
    outcome.map_err(text).unwrap_or_else(|text| {
        assert!(
            !text.contains("called at") || text.contains("pgas/tests/"),
            "an error names a line of the library: {text}"
        );
        format!("error: {text}")
    })
}

/// Memory lies elsewhere in each run.
fn without_addresses(text: &str) -> String {
    let mut parts = text.split("0x");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "0x.." + part.trim_start_matches(|c: char| c.is_ascii_hexdigit()))
}

/// Nothing, as a line shows it.
pub fn nothing((): ()) -> String {
    "done".into()
}

/// A value.
pub fn one<T: Pod>(value: T) -> String {
    many(vec![value])
}

/// Values: all bytes if they are few, else a digest.
pub fn many<T: Pod>(values: Vec<T>) -> String {
    let bytes = bytes_of(&values);
    let step = |digest: u64, byte: &u8| (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    match bytes.len() {
        0..=24 => format!("{} elements {bytes:x?}", values.len()),
        len => format!("{} elements, {len} bytes, {:x}", values.len(), bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)),
    }
}
