//! The program of `ci/faults`: ranks that repeat one kind of call until one of the ranks meets a fault.
//!
//! `faulty FOLDER KIND ROUNDS [FAULT RANK ROUND DELAY] [unwrap]`. `FAULT` happens at `RANK`, `DELAY` microseconds after it has come to
//! `ROUND`, or to `start` or `finish`. A signal, `exit3` and `exit0` come from another thread, so that they hit the rank
//! wherever it is; `panic`, `leave` and `handler` (which panics at `RANK`, called from the next rank) happen at the round.
//!
//! With `unwrap` the other ranks panic on the error that they get in a world; else they return it.
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

use bellwether::cheetah::Controller;
use bellwether::{Error, Result, Sum, Team, World};

mod kinds;
mod vocabularies;

/// An error of whatever a kind of call has errors of.
type Told = Box<dyn std::error::Error>;

/// The exit code of a rank that got an error value.
const GOT_AN_ERROR: u8 = 9;
/// Rounds between two barriers.
const APART: u64 = 8;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let unwraps = arguments.last().is_some_and(|last| last == "unwrap");
    let arguments = &arguments[..arguments.len() - usize::from(unwraps)];
    let [folder, kind, rounds, fault @ ..] = arguments else { return usage() };
    let (folder, Ok(rounds)) = (PathBuf::from(folder), rounds.parse()) else { return usage() };
    // The second is that of mpirun.
    let number = std::env::var("BELLWETHER_RANK").or_else(|_| std::env::var("OMPI_COMM_WORLD_RANK"));
    let own = number.ok().and_then(|rank| rank.parse().ok());
    let fault = match fault {
        [] => None,
        [way, rank, round, delay] => Fault::parse(&folder, way, rank, round, delay),
        _ => return usage(),
    };
    let run = Run { folder: &folder, kind, rounds, fault: fault.as_ref(), own, unwraps };
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
    eprintln!("faulty FOLDER KIND ROUNDS [FAULT RANK ROUND DELAY] [unwrap]");
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
                // The rank may end before it is stopped. The helper ends with it then, and keeps none of its output open: mpirun
                // waits until all who have it have closed it.
                let script = format!(
                    "until grep -q '^State:.T' /proc/{0}/status; do grep -q '^State:.[^ZX]' /proc/{0}/status || exit; sleep 0.01; done
                     sleep 0.1; kill -CONT {0}",
                    std::process::id()
                );
                let mut command = Command::new("sh");
                // A name of the folder among its arguments: a helper that goes on is found with what the job left.
                command
                    .args(["-c", &script])
                    .arg(&self.fired)
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null());
                let mut helper = command.spawn().expect("there is a shell");
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
    unwraps: bool,
}

impl Run<'_> {
    fn run(&self) -> Result<(), Told> {
        if let Some(fault) = self.here() {
            match fault.way {
                Way::Panic | Way::Leave | Way::Handler => {}
                _ => fault.arm(),
            }
        }
        if self.strikes(When::Start) {
            return Ok(());
        }
        let leaves = match self.kind {
            "cheetah" => {
                let controller = Controller::setup(&mut vec!["faulty".into()])?;
                let world = controller.as_world()?;
                let leaves = self.run_world(&world, || vocabularies::cheetah(&controller, &world))?;
                if leaves {
                    // The last reference finalises, for which the others would have to come.
                    std::process::exit(0);
                }
                drop(world);
                controller.finalize()?;
                leaves
            }
            "lapi" => vocabularies::lapi(self)?,
            "gaspi" => vocabularies::gaspi(self)?,
            kind => {
                let world = World::start()?;
                let leaves = self.run_world(&world, || kinds::step(kind, &world))?;
                if !leaves {
                    self.unwrap_if_asked(world.finish())?;
                }
                leaves
            }
        };
        if !leaves {
            self.note("done", "");
        }
        Ok(())
    }

    /// All that a world does before its end; whether this rank is to leave.
    fn run_world<'w>(&self, world: &'w World, make: impl FnOnce() -> Result<kinds::Step<'w>>) -> Result<bool> {
        self.note("started", "");
        let survives = world.settings().survive;
        let struck = match self.work(world, make) {
            Err(error) if survives => {
                self.note("hit", &error.to_string());
                false
            }
            outcome => outcome?,
        };
        if struck || self.strikes(When::Finish) {
            return Ok(true);
        }
        if survives {
            self.go_on(world)?;
        }
        Ok(false)
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

    /// All rounds of a world; whether this rank is to leave.
    fn work<'w>(&self, world: &'w World, make: impl FnOnce() -> Result<kinds::Step<'w>>) -> Result<bool> {
        let mut step = self.unwrap_if_asked(make())?;
        let leaves = self.rounds(|round| {
            self.unwrap_if_asked(self.call_what_panics(world, round))?;
            self.unwrap_if_asked(step(round))?;
            if round % APART == 0 { self.unwrap_if_asked(world.barrier()) } else { Ok(()) }
        })?;
        if !leaves {
            // No rank drops memory that another rank may still access.
            self.unwrap_if_asked(world.barrier())?;
        }
        Ok(leaves)
    }

    /// Panics on an error if the ranks are told to; the world and all that the kind of call has made unwind.
    fn unwrap_if_asked<T>(&self, outcome: Result<T>) -> Result<T> {
        if self.unwraps
            && let Err(error) = &outcome
        {
            self.note("error", &error.to_string());
            panic!("{error}");
        }
        outcome
    }

    /// All rounds; whether this rank is to leave.
    fn rounds<E>(&self, mut step: impl FnMut(u64) -> Result<(), E>) -> Result<bool, E> {
        for round in 0..self.rounds {
            if self.strikes(When::Round(round)) {
                return Ok(true);
            }
            step(round)?;
        }
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
