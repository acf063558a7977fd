//! The launcher's connections to the launchers of its hosts.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use super::frame::{self, Down, Frames, HostJob, Pairs, Up};
use super::{Host, States};
use crate::bootstrap::launch::child::{Spawner, Streams};
use crate::bootstrap::launch::error::LaunchError;
use crate::bootstrap::launch::sink::Sink;
use crate::bootstrap::launch::spec::{Bind, Ended, JobSpec, Membership};
use crate::bootstrap::launch::token::{Source, Token};

/// Input that may be in flight to rank 0.
const INPUT: usize = 64 << 10;
/// How long an agent whose output has ended may take to end itself.
const GOODBYE: Duration = Duration::from_millis(500);
/// Passed on to the ranks: variables of these names, and those that begin so.
const PASSED: [&str; 2] = ["PATH", "LD_LIBRARY_PATH"];
const PREFIXES: [&str; 2] = ["BELLWETHER_", "RUST_"];

/// What a host has told.
#[derive(Debug)]
pub(in crate::bootstrap::launch) enum Event {
    Started {
        rank: usize,
        pid: i32,
    },
    Output {
        rank: usize,
        source: Source,
        bytes: Vec<u8>,
    },
    Closed {
        rank: usize,
        source: Source,
    },
    Ended {
        rank: usize,
        ended: Ended,
    },
    InputTaken,
    /// The connection has ended before the ranks of the host had.
    Lost {
        host: String,
        why: String,
        ranks: std::ops::Range<usize>,
    },
}

/// A host, and the connection to it.
struct Link {
    name: String,
    /// The command of its agent, as a user would type it.
    shown: String,
    /// How many ranks it takes, if that was said.
    slots: Option<usize>,
    agent: OwnedFd,
    to: Option<Sink>,
    from: Option<OwnedFd>,
    frames: Frames,
    greeted: bool,
    cpus: Option<usize>,
    first: usize,
    count: usize,
    /// Bytes of output that the host has not been told to be taken.
    taken: usize,
    fenced: bool,
    bye: bool,
    armed: bool,
}

/// All hosts of a job.
pub(in crate::bootstrap::launch) struct Links {
    epoll: OwnedFd,
    /// Where the ranks work.
    folder: Vec<u8>,
    links: Vec<Link>,
    states: States,
    begun: bool,
    put: Pairs,
    /// The hosts have been told that a rank has ended.
    broken: bool,
    /// Bytes of input in flight.
    input: usize,
}

impl Links {
    /// Starts the agents of the hosts, in the group of the guardian.
    pub(in crate::bootstrap::launch) fn start(
        spec: &JobSpec<'_>,
        hosts: &[Host],
        states: States,
        epoll: &OwnedFd,
        group: Pid,
        mask: libc::sigset_t,
    ) -> Result<Links, LaunchError> {
        let epoll = epoll.try_clone().map_err(|source| LaunchError::System { what: "copy of epoll", source })?;
        let folder = std::env::current_dir().map_err(|source| LaunchError::System { what: "getcwd", source })?;
        let folder = folder.into_os_string().into_vec();
        let (links, put) = (Vec::new(), Vec::new());
        let mut all = Links { epoll, folder, links, states, begun: false, put, broken: false, input: 0 };
        for (number, host) in hosts.iter().enumerate() {
            let link = Link::start(spec, host, group, mask)?;
            let from = link.from.as_ref().expect("it has just been made");
            epoll::add(&all.epoll, from, Token::Host(number).data(), epoll::EventFlags::IN)
                .map_err(LaunchError::system("epoll_ctl"))?;
            all.links.push(link);
        }
        Ok(all)
    }

    /// Whether ranks have been started.
    pub(in crate::bootstrap::launch) fn begun(&self) -> bool {
        self.begun
    }

    /// Whether all hosts are there.
    pub(in crate::bootstrap::launch) fn ready(&self) -> bool {
        self.links.iter().all(|link| link.cpus.is_some())
    }

    /// Tells the hosts which ranks to start: as many on each as it has room for, in the order of the hosts.
    pub(in crate::bootstrap::launch) fn begin(
        &mut self,
        spec: &JobSpec<'_>,
        more_env: Option<(OsString, OsString)>,
    ) -> Result<(), LaunchError> {
        let room = |link: &Link| link.slots.or(link.cpus).unwrap_or(1);
        let all = self.links.iter().map(room).fold(0, usize::saturating_add);
        if all < spec.ranks {
            let each: Vec<String> = self.links.iter().map(|link| format!("{}:{}", link.name, room(link))).collect();
            let last = self.links.last().map(|link| format!("{}:{}", link.name, room(link) + (spec.ranks - all)));
            let (each, example) = (each.join(","), last.unwrap_or_default());
            return Err(LaunchError::NoRoom { ranks: spec.ranks, all, each, example });
        }
        let passed = |name: &OsString| {
            let name = name.to_string_lossy();
            PASSED.contains(&&*name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        };
        let inherited = std::env::vars_os().filter(|(name, _)| passed(name) && !is_own(name));
        let env: Vec<(Vec<u8>, Vec<u8>)> = inherited
            .chain(spec.extra_env.iter().cloned())
            .chain(more_env)
            .map(|(name, value)| (name.into_vec(), value.into_vec()))
            .collect();
        let mut first = 0;
        let mut seats = HashMap::<String, usize>::new();
        for link in &mut self.links {
            let count = room(link).min(spec.ranks - first);
            let seats = seats.entry(link.name.clone()).or_default();
            let seat = std::mem::replace(seats, *seats + count);
            (link.first, link.count) = (first, count);
            first += count;
            if count == 0 {
                // The end of its input ends it.
                link.bye = true;
                link.to = None;
                continue;
            }
            link.send(&Down::Job(Box::new(HostJob {
                folder: self.folder.clone(),
                env: env.clone(),
                program: spec.program.clone().into_vec(),
                args: spec.args.iter().map(|arg| arg.clone().into_vec()).collect(),
                first: link.first,
                count,
                seat,
                size: spec.ranks,
                bind: spec.bind == Bind::Core,
            })));
        }
        self.begun = true;
        Ok(())
    }

    /// Reads once from a host.
    ///
    /// # Errors
    /// If the ranks of the host cannot be started.
    pub(in crate::bootstrap::launch) fn read(&mut self, host: usize) -> Result<Vec<Event>, LaunchError> {
        let link = &mut self.links[host];
        let Some(from) = &link.from else { return Ok(Vec::new()) };
        let mut space = [0; 64 << 10];
        let n = match rustix::io::read(from, &mut space) {
            Ok(n) => n,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(Vec::new()),
            Err(_) => 0,
        };
        link.frames.push(&space[..n]);
        let mut events = Vec::new();
        let wrong = self.take(host, &mut events)?;
        let link = &mut self.links[host];
        if n > 0 && wrong.is_none() {
            return Ok(events);
        }
        link.shut(&self.epoll);
        if link.bye {
            return Ok(events);
        }
        let (why, code) = match wrong {
            Some(wrong) => (wrong, None),
            None => link.end_of_agent(),
        };
        if link.cpus.is_none() {
            return Err(link.unreachable(why, code));
        }
        if !self.begun {
            return Err(link.unreachable(why, None));
        }
        link.bye = true;
        let why = format!("{} {why}", link.shown);
        let ranks = link.first..link.first + link.count;
        events.push(Event::Lost { host: link.name.clone(), why, ranks: ranks.clone() });
        if !ranks.is_empty() {
            // Its launcher kills them.
            self.break_fence(ranks.start, true, Signal::KILL.as_raw());
        }
        Ok(events)
    }

    /// Takes the frames that have come from a host; gives what is wrong with them.
    fn take(&mut self, host: usize, events: &mut Vec<Event>) -> Result<Option<String>, LaunchError> {
        loop {
            let link = &mut self.links[host];
            if !link.greeted {
                match link.frames.greeted() {
                    Ok(None) => return Ok(None),
                    Ok(Some(())) => link.greeted = true,
                    Err(other) => {
                        return Ok(Some(format!(
                            "printed {other:?}; nothing that it starts may print to standard output"
                        )));
                    }
                }
            }
            let up = match link.frames.next::<Up>() {
                Ok(Some(up)) => up,
                Ok(None) => return Ok(None),
                Err(why) => return Ok(Some(format!("sent what makes no sense: {why}"))),
            };
            if link.cpus.is_none() && !matches!(up, Up::Hello { .. }) {
                return Ok(Some("did not begin as it should".into()));
            }
            let own = link.first..link.first + link.count;
            let is_own = |rank: &usize| own.contains(rank);
            let source = |error| if error { Source::Err } else { Source::Out };
            match up {
                Up::Hello { version, cpus } => {
                    let ours = env!("CARGO_PKG_VERSION");
                    if version != ours {
                        return Ok(Some(format!("is version {version} of bellwether, and this is {ours}")));
                    }
                    link.cpus = Some(cpus.max(1));
                }
                Up::Cannot { status, why } => {
                    return Err(LaunchError::OnHost { host: link.name.clone(), status, why });
                }
                Up::Fence(put) => self.enter_fence(host, put),
                Up::Bye => {
                    link.bye = true;
                    link.disarm(&self.epoll);
                    link.to = None;
                }
                Up::InputTaken(bytes) => {
                    self.input = self.input.saturating_sub(bytes);
                    events.push(Event::InputTaken);
                }
                Up::Joined(rank) if is_own(&rank) => self.states.set(rank, Membership::Joined),
                Up::Left(rank, missed) if is_own(&rank) => {
                    self.states.set(rank, Membership::Left);
                    self.states.miss(missed);
                }
                Up::Started { rank, pid } if is_own(&rank) => events.push(Event::Started { rank, pid }),
                Up::Output { rank, error, bytes } if is_own(&rank) => {
                    link.taken += bytes.len();
                    events.push(Event::Output { rank, source: source(error), bytes });
                }
                Up::Closed { rank, error } if is_own(&rank) => {
                    events.push(Event::Closed { rank, source: source(error) });
                }
                Up::Ended { rank, killed, number } if is_own(&rank) => {
                    let ended = if killed { Ended::Signaled(number) } else { Ended::Exited(number) };
                    events.push(Event::Ended { rank, ended });
                    self.break_fence(rank, killed, number);
                }
                _ => return Ok(Some("spoke of a rank of another host".into())),
            }
        }
    }

    /// All ranks of a host have entered the fence.
    fn enter_fence(&mut self, host: usize, put: Pairs) {
        self.put.extend(put);
        self.links[host].fenced = true;
        let waiting = |link: &&mut Link| link.count > 0;
        if self.links.iter().any(|link| link.count > 0 && !link.fenced) {
            return;
        }
        let all = Down::Fence(std::mem::take(&mut self.put));
        for link in self.links.iter_mut().filter(waiting) {
            link.fenced = false;
            link.send(&all);
        }
    }

    /// Tells the ranks that are in a fence, or enter one later, which rank was the first to end.
    fn break_fence(&mut self, rank: usize, killed: bool, number: i32) {
        if !std::mem::replace(&mut self.broken, true) {
            let hosts = self.links.iter_mut().filter(|link| link.count > 0 && !link.bye);
            hosts.for_each(|link| link.send(&Down::Broken { rank, killed, number }));
        }
    }

    /// Sends a signal to all ranks, and with `group` to their children, too.
    ///
    /// Does nothing before there are ranks: their hosts wait for the job, and take any other frame for the end.
    pub(in crate::bootstrap::launch) fn signal(&mut self, group: bool, signal: Signal) {
        if !self.begun {
            return;
        }
        if matches!(signal, Signal::TERM | Signal::KILL) {
            self.states.tell();
        }
        let signal = signal.as_raw();
        self.links.iter_mut().filter(|link| !link.bye).for_each(|link| link.send(&Down::Signal { group, signal }));
        self.flush(false);
    }

    /// How much input rank 0 may be sent now.
    pub(in crate::bootstrap::launch) fn input_room(&self) -> usize {
        INPUT.saturating_sub(self.input)
    }

    /// Sends input to rank 0; no bytes: its end.
    pub(in crate::bootstrap::launch) fn send_input(&mut self, bytes: &[u8]) {
        self.input += bytes.len();
        if let Some(link) = self.links.iter_mut().find(|link| link.count > 0 && link.first == 0) {
            link.send(&Down::Input(bytes.to_vec()));
        }
    }

    /// Sends what can be sent without waiting. With `taken`, tells the hosts that their output was taken.
    pub(in crate::bootstrap::launch) fn flush(&mut self, taken: bool) {
        for (number, link) in self.links.iter_mut().enumerate() {
            if taken && link.taken > 0 {
                let bytes = std::mem::take(&mut link.taken);
                link.send(&Down::Taken(bytes));
            }
            let Some(to) = &mut link.to else { continue };
            to.flush();
            // A connection that takes nothing more ends what can be read, too.
            let waits = to.backlog() > 0;
            if waits && !link.armed {
                link.armed =
                    epoll::add(&self.epoll, &*to, Token::HostRoom(number).data(), epoll::EventFlags::OUT).is_ok();
            } else if !waits {
                link.disarm(&self.epoll);
            }
        }
    }

    /// The hosts that have not said that they are there, and the commands of their agents.
    pub(in crate::bootstrap::launch) fn unanswered(&self) -> impl Iterator<Item = (&str, &str)> {
        let silent = self.links.iter().filter(|link| link.cpus.is_none());
        silent.map(|link| (link.name.as_str(), link.shown.as_str()))
    }

    /// Kills the agents of the hosts of these ranks, which do not answer, and counts the hosts as lost.
    pub(in crate::bootstrap::launch) fn give_up(&mut self, ranks: &[usize]) -> Vec<Event> {
        let mut events = Vec::new();
        for link in &mut self.links {
            let own = link.first..link.first + link.count;
            if !ranks.iter().any(|rank| own.contains(rank)) {
                continue;
            }
            // It fails only for one that has just ended.
            let _ = pidfd_send_signal(&link.agent, Signal::KILL);
            link.shut(&self.epoll);
            link.bye = true;
            let why = format!("{} does not answer", link.shown);
            events.push(Event::Lost { host: link.name.clone(), why, ranks: own });
        }
        events
    }

    /// Closes the connections to hosts that are still there, which ends what runs on them.
    pub(in crate::bootstrap::launch) fn close(&mut self) {
        for link in &mut self.links {
            link.disarm(&self.epoll);
            link.to = None;
        }
    }

    /// Whether some host has not ended its connection.
    pub(in crate::bootstrap::launch) fn any_open(&self) -> bool {
        self.links.iter().any(|link| link.from.is_some())
    }
}

impl Link {
    fn start(spec: &JobSpec<'_>, host: &Host, group: Pid, mask: libc::sigset_t) -> Result<Link, LaunchError> {
        let shown = shown(&host.command);
        let Some((program, args)) = host.command.split_first() else {
            return Err(LaunchError::Unreachable { host: host.name.clone(), command: shown, why: "is empty".into() });
        };
        let mut agent = JobSpec::new(program, args, spec.ranks);
        agent.name.clone_from(&spec.name);
        let unreachable = |error: LaunchError| LaunchError::Unreachable {
            host: host.name.clone(),
            command: shown.clone(),
            why: format!("cannot be started: {error}"),
        };
        let mut spawner = Spawner::new(&agent, group, mask, None, false).map_err(unreachable)?;
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(LaunchError::system("pipe"));
        let ((from, stdout), (stdin, to)) = (pipe()?, pipe()?);
        let stderr = std::io::stderr();
        let streams = Streams {
            stdin: stdin.as_fd(),
            stdout: stdout.as_fd(),
            stderr: stderr.as_fd(),
            kept: None::<BorrowedFd<'_>>,
        };
        let (_, process) = spawner.spawn(0, 0, Vec::new(), &streams).map_err(unreachable)?;
        rustix::fs::fcntl_setfl(&from, OFlags::NONBLOCK).map_err(LaunchError::system("fcntl"))?;
        let to = Sink::new(to.as_fd()).map_err(|source| LaunchError::System { what: "copy of a pipe", source })?;
        Ok(Link {
            name: host.name.clone(),
            shown,
            slots: host.slots,
            agent: process,
            to: Some(to),
            from: Some(from),
            frames: Frames::default(),
            greeted: false,
            cpus: None,
            first: 0,
            count: 0,
            taken: 0,
            fenced: false,
            bye: false,
            armed: false,
        })
    }

    fn send(&mut self, frame: &Down) {
        if let Some(to) = &mut self.to {
            frame::append(to.buffer(), frame);
        }
    }

    /// Closes both ways.
    fn shut(&mut self, set: &OwnedFd) {
        if let Some(from) = self.from.take() {
            let _ = epoll::delete(set, &from);
        }
        self.disarm(set);
        self.to = None;
    }

    fn disarm(&mut self, set: &OwnedFd) {
        if let (Some(to), true) = (&self.to, self.armed) {
            let _ = epoll::delete(set, to);
        }
        self.armed = false;
    }

    /// How the agent, whose output has ended, ended itself; and its exit code.
    fn end_of_agent(&self) -> (String, Option<i32>) {
        let until = Instant::now() + GOODBYE;
        loop {
            match waitid(WaitId::PidFd(self.agent.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
                Ok(Some(status)) => {
                    let ended = match (status.exit_status(), status.terminating_signal()) {
                        (None, Some(signal)) => Ended::Signaled(signal),
                        (code, _) => Ended::Exited(code.unwrap_or(1)),
                    };
                    let code = if let Ended::Exited(code) = ended { Some(code) } else { None };
                    return (format!("ended ({ended})"), code);
                }
                Ok(None) | Err(Errno::INTR) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                _ => return ("closed its output".into(), None),
            }
        }
    }

    fn unreachable(&self, why: String, code: Option<i32>) -> LaunchError {
        let advice = match code {
            Some(127) => {
                "; 127 is what a shell says of a program that is not there: Bellwether has to be installed at the same path"
            }
            Some(126) => "; 126 is what a shell says of a program that cannot be executed there",
            Some(255) => {
                "; 255 is what ssh says if it cannot connect: it has to work without a password (try that command by hand)"
            }
            _ => "",
        };
        LaunchError::Unreachable { host: self.name.clone(), command: self.shown.clone(), why: format!("{why}{advice}") }
    }
}

/// Whether a variable says what this process is, and not what its ranks are to be.
fn is_own(name: &OsString) -> bool {
    use crate::bootstrap::launch::{RANK, SIZE, TERM_WIDTH};
    use crate::bootstrap::{JOB_VARIABLE, RANKS_VARIABLE};
    [RANK, SIZE, TERM_WIDTH, JOB_VARIABLE, RANKS_VARIABLE].iter().any(|own| name == own)
}

/// A command as a user would type it.
fn shown(command: &[OsString]) -> String {
    let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    format!("`{}`", words.join(" "))
}
