//! The program of `ci/faults`: ranks that repeat one kind of call until one of the ranks meets a fault.
//!
//! `faulty FOLDER KIND ROUNDS [FAULT RANK ROUND DELAY]`. `FAULT` happens at `RANK`, `DELAY` microseconds after it has come to
//! `ROUND`, or to `start` or `finish`. A signal, `exit3` and `exit0` come from another thread, so that they hit the rank
//! wherever it is; `panic`, `leave` and `handler` (which panics at `RANK`, called from the next rank) happen at the round.
//!
//! In a world that survives (`BELLWETHER_SURVIVE=on`) the remaining ranks then agree on which ranks are gone, work on as a team, and finish.
//!
//! Each rank leaves a note in `FOLDER`: `done.R` after it has finished, `error.R` with the error that it got. `fired.R` says
//! that the fault is about to happen. In a world that survives: `started.R`, `hit.R` with the error that the rank got, and `gone.R` with
//! the ranks that were gone at its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bellwether::{DistHashMap, DistQueue, Error, Result, Sum, Team, World};

/// The exit code of a rank that got an error value.
const GOT_AN_ERROR: u8 = 9;
/// Elements at each rank.
const ELEMENTS: usize = 4096;
/// Rounds between two barriers.
const APART: u64 = 8;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, kind, rounds, fault @ ..] = arguments.as_slice() else { return usage() };
    let (folder, Ok(rounds)) = (PathBuf::from(folder), rounds.parse()) else { return usage() };
    let own = std::env::var("BELLWETHER_RANK").ok().and_then(|rank| rank.parse().ok());
    let fault = match fault {
        [] => None,
        [way, rank, round, delay] => Fault::parse(&folder, way, rank, round, delay),
        _ => return usage(),
    };
    let run = Run { folder: &folder, kind, rounds, fault: fault.as_ref(), own };
    match run.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            run.note("error", &error.to_string());
            eprintln!("rank {}: {error}", own.unwrap_or(0));
            ExitCode::from(GOT_AN_ERROR)
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("faulty FOLDER KIND ROUNDS [FAULT RANK ROUND DELAY]");
    ExitCode::from(2)
}

/// When a fault happens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Start,
    Round(u64),
    Finish,
}

#[derive(Clone)]
enum Way {
    Signal(i32),
    /// Stops the rank, and lets it go on a little later.
    Pause,
    Exit(i32),
    Panic,
    Leave,
    Handler,
}

#[derive(Clone)]
struct Fault {
    way: Way,
    rank: usize,
    when: When,
    delay: Duration,
    fired: PathBuf,
    armed: Arc<AtomicBool>,
}

impl Fault {
    fn parse(folder: &Path, way: &str, rank: &str, round: &str, delay: &str) -> Option<Fault> {
        let way = match way {
            "pause" => Way::Pause,
            "exit0" => Way::Exit(0),
            "exit3" => Way::Exit(3),
            "panic" => Way::Panic,
            "leave" => Way::Leave,
            "handler" => Way::Handler,
            number => Way::Signal(number.parse().expect("a signal's number")),
        };
        let when = match round {
            "start" => When::Start,
            "finish" => When::Finish,
            round => When::Round(round.parse().expect("a round's number")),
        };
        let rank = rank.parse().expect("a rank's number");
        let delay = Duration::from_micros(delay.parse().expect("microseconds"));
        Some(Fault { way, rank, when, delay, fired: folder.join(format!("fired.{rank}")), armed: Arc::default() })
    }

    /// Starts the thread that the fault comes from: it waits to be told.
    fn arm(&self) {
        let fault = self.clone();
        std::thread::spawn(move || {
            while !fault.armed.load(Ordering::Acquire) {
                std::thread::park_timeout(Duration::from_micros(50));
            }
            let start = Instant::now();
            while start.elapsed() < fault.delay {
                std::hint::spin_loop();
            }
            fault.happen();
        });
    }

    fn happen(&self) {
        fs::write(&self.fired, "").expect("the folder is ours");
        match self.way {
            Way::Signal(signal) => raise(signal),
            Way::Pause => {
                let script = format!(
                    "until grep -q '^State:.T' /proc/{0}/status; do sleep 0.01; done; sleep 0.1; kill -CONT {0}",
                    std::process::id()
                );
                let mut command = Command::new("sh");
                let mut helper = command.args(["-c", &script]).stdin(Stdio::null()).spawn().expect("there is a shell");
                raise(libc::SIGSTOP);
                helper.wait().expect("our own child");
            }
            Way::Exit(code) => std::process::exit(code),
            Way::Panic => panic!("as I was told to"),
            Way::Leave | Way::Handler => {}
        }
    }
}

fn raise(signal: i32) {
    // SAFETY: plain numbers.
    unsafe { libc::kill(std::process::id() as i32, signal) };
}

struct Run<'a> {
    folder: &'a Path,
    kind: &'a str,
    rounds: u64,
    fault: Option<&'a Fault>,
    own: Option<usize>,
}

impl Run<'_> {
    fn run(&self) -> Result<()> {
        if let Some(fault) = self.here() {
            match fault.way {
                Way::Panic | Way::Leave | Way::Handler => {}
                _ => fault.arm(),
            }
        }
        if self.strikes(When::Start) {
            return Ok(());
        }
        let world = World::start()?;
        self.note("started", "");
        let survives = world.settings().survive;
        let struck = match self.work(&world) {
            Err(error) if survives => {
                self.note("hit", &error.to_string());
                false
            }
            outcome => outcome?,
        };
        if struck || self.strikes(When::Finish) {
            return Ok(());
        }
        if survives {
            self.go_on(&world)?;
        }
        world.finish()?;
        self.note("done", "");
        Ok(())
    }

    /// The fault, if it is this rank's.
    fn here(&self) -> Option<&Fault> {
        self.fault.filter(|fault| Some(fault.rank) == self.own)
    }

    /// Lets the fault happen if this is its time; whether this rank is to leave.
    fn strikes(&self, now: When) -> bool {
        let Some(fault) = self.here().filter(|fault| fault.when == now) else { return false };
        match fault.way {
            Way::Panic | Way::Leave => fault.happen(),
            Way::Handler => {}
            _ => fault.armed.store(true, Ordering::Release),
        }
        matches!(fault.way, Way::Leave)
    }

    fn note(&self, name: &str, words: &str) {
        // Ignore errors: the reader notices a missing file.
        let _ = fs::write(self.folder.join(format!("{name}.{}", self.own.unwrap_or(0))), words);
    }

    /// Works on as a team of the ranks that live, also if more ranks die meanwhile.
    fn go_on(&self, world: &World) -> Result<()> {
        loop {
            let team = world.survivors()?;
            let gone = world.gone().iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
            self.note("gone", &gone);
            match self.work_as(world, &team) {
                Err(Error::PeerLost { .. }) => {}
                outcome => return outcome,
            }
        }
    }

    fn work_as(&self, world: &World, team: &Team) -> Result<()> {
        for round in 0..20u64 {
            let mut sum = [1, round];
            team.allreduce(&mut sum, Sum)?;
            assert_eq!(sum, [team.size() as u64, round * team.size() as u64]);
            let next = team.world_rank((team.rank() + 1) % team.size())?;
            assert_eq!(world.call(next, round, |_, round: u64| round + 1)?.wait()?, round + 1);
        }
        team.barrier()
    }

    /// All rounds; whether this rank is to leave.
    fn work(&self, world: &World) -> Result<bool> {
        let (rank, size) = (world.rank(), world.size());
        let next = (rank + 1) % size;
        let memory = world.alloc::<u64>(ELEMENTS)?;
        let bell = world.bell()?;
        let team = Team::world(world)?;
        let mut queue = (self.kind == "queue").then(|| DistQueue::<u64>::new(world)).transpose()?;
        let mut map = (self.kind == "map").then(|| DistHashMap::<u64, u64>::new(world)).transpose()?;
        for round in 0..self.rounds {
            if self.strikes(When::Round(round)) {
                return Ok(true);
            }
            self.call_what_panics(world, round)?;
            let to = (rank + 1 + round as usize % (size.max(2) - 1)) % size;
            match self.kind {
                "put" => (0..50).try_for_each(|i| memory.put(to, i, round))?,
                "slice" => memory.put_slice(to, 0, &[round; ELEMENTS])?,
                "get" => (0..50).try_for_each(|i| memory.get(to, i).map(drop))?,
                "bell" => {
                    memory.put_bell(next, rank, round, &bell)?;
                    bell.wait(round + 1)?;
                }
                "call" => assert_eq!(world.call(to, round, |_, round| round + 1)?.wait()?, round + 1),
                "plain" => assert_eq!(world.call_plain(to, round, |_, round: u64| round + 1)?.wait()?, round + 1),
                "message" => (0..20).try_for_each(|i| world.invoke(to, i, |_, _: u64| {}))?,
                "large" => world.invoke(to, vec![round; ELEMENTS], |_, _| {})?,
                "atomic" => drop((0..20).try_fold(0, |_, _| memory.fetch_add(to, 0, 1))?),
                "barrier" => world.barrier()?,
                "reduce" => world.allreduce_sum(&mut [round, 1])?,
                "broadcast" => world.broadcast(round as usize % size, &mut [round; 100])?,
                "gather" => drop(world.allgather(&[round; 10])?),
                "alloc" => drop(world.alloc::<u64>(1 + round as usize * 100)?),
                "team" => team.allreduce(&mut [round; 64], Sum)?,
                "queue" => {
                    let queue = queue.as_mut().expect("made above");
                    (0..20).try_for_each(|i| queue.push(i))?;
                    while queue.pop()?.is_some() {}
                    queue.restart()?;
                }
                "map" => {
                    let map = map.as_mut().expect("made above");
                    map.insert(round * size as u64 + rank as u64, round)?;
                    map.get(&(round * size as u64 + next as u64))?;
                }
                "wait" => {
                    if rank == 0 {
                        std::thread::sleep(Duration::from_micros(500));
                    }
                    world.barrier()?;
                }
                kind => panic!("{kind}: no such kind of call"),
            }
            if round % APART == 0 {
                world.barrier()?;
            }
        }
        // No rank drops memory that another rank may still access.
        world.barrier()?;
        Ok(false)
    }

    /// At its round, the rank after the one with the fault calls what panics there.
    fn call_what_panics(&self, world: &World, round: u64) -> Result<()> {
        let Some(fault) = self.fault else { return Ok(()) };
        let calls = matches!(fault.way, Way::Handler)
            && fault.when == When::Round(round)
            && world.rank() == (fault.rank + 1) % world.size();
        if !calls {
            return Ok(());
        }
        fs::write(&fault.fired, "").expect("the folder is ours");
        world.call(fault.rank, (), |_, ()| panic!("as I was told to"))?.wait()
    }
}
