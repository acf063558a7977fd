//! The supervisor: one loop that handles every event of a job.

mod on_hosts;

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use self::on_hosts::Typed;
use super::child::{Spawner, Streams};
use super::ending::{Ending, Step};
use super::error::LaunchError;
use super::guardian::Guardian;
use super::hosts::{Host, Links, States};
use super::input::{Input, Pump, Wait};
use super::limits;
use super::output::{LINGER, Output};
use super::report;
use super::signals::SignalQueue;
use super::spec::{Cause, Ended, Hooks, JobSpec, Membership, Outcome, RankEnd};
use super::strays::Strays;
use super::token::Token;

/// How often the loop checks for changes that cause no event.
const TICK: Duration = Duration::from_millis(50);

/// How often the job as a whole is checked.
const CHECK: Duration = Duration::from_secs(1);

/// A SIGINT this soon after another one is the same press of Ctrl-C, delivered twice.
const SAME_PRESS: Duration = Duration::from_millis(100);

/// Starts the ranks of a job, looks after them, and returns when the last has ended.
///
/// Ranks' output goes to this process's own output, whole lines at a time; a failure is reported on standard
/// error before this returns. The calling thread does all the work and must live as long as the job:
/// the kernel kills the ranks when that thread ends. Signals for the job are received on this thread, so
/// a program with other threads should block them in those.
///
/// # Errors
///
/// The job could not be started or supervised; no rank is left running.
pub fn supervise(spec: &JobSpec<'_>, hooks: &mut dyn Hooks) -> Result<Outcome, LaunchError> {
    supervise_at(spec, hooks, None)
}

/// As [`supervise`], with the ranks on these hosts. The hosts are filled in order, each with as many ranks as it has room for.
///
/// # Errors
///
/// As [`supervise`]; or a host cannot be reached.
pub fn supervise_hosts(spec: &JobSpec<'_>, hosts: &[Host]) -> Result<Outcome, LaunchError> {
    let states = States::new(spec.ranks);
    supervise_at(spec, &mut states.clone(), Some((hosts, states)))
}

fn supervise_at(
    spec: &JobSpec<'_>,
    hooks: &mut dyn Hooks,
    hosts: Option<(&[Host], States)>,
) -> Result<Outcome, LaunchError> {
    if spec.ranks == 0 {
        return Err(LaunchError::NoRanks);
    }
    // Our own output so far must come before that of the ranks.
    let _ = io::stdout().flush();
    let mut job = Supervisor::prepare(spec, hooks, hosts)?;
    match job.run() {
        Ok(()) => Ok(job.finish()),
        Err(error) => {
            job.abandon();
            Err(error)
        }
    }
}

/// A process that has been started.
struct Rank {
    pid: i32,
    /// `None` when the process has ended.
    process: Option<Process>,
    started: Instant,
    end: RankEnd,
}

/// Where a rank runs.
enum Process {
    Here(OwnedFd),
    OnHost,
}

struct Supervisor<'a, 'b> {
    spec: &'a JobSpec<'b>,
    hooks: &'a mut dyn Hooks,
    /// Starts the ranks here, or has the launchers on the hosts start them.
    starter: Starter,
    epoll: OwnedFd,
    signals: SignalQueue,
    output: Output,
    input: Input,
    pump: Option<(Pump, Wait)>,
    /// Our standard input, if rank 0 runs on another host.
    typed: Option<Typed>,
    /// Entry r is rank r: ranks are started in order.
    ranks: Vec<Rank>,
    live: usize,
    ending: Ending,
    /// Why the job ends, if the first cause is not the failure of a rank. Set once.
    cause: Option<Cause>,
    /// Ranks that failed, in the order of their deaths.
    failures: Vec<(usize, Cause)>,
    /// The ranks of `failures` that died while the other ranks went on.
    deaths: Vec<usize>,
    /// A rank that returned 0 without ever joining: a failure only if others do join.
    absent: Option<usize>,
    /// The user's last signal of a kind that usually ends a program, and when it came.
    interrupt: Option<(i32, Instant)>,
    deadline: Option<Instant>,
    /// When we stop waiting for hosts that do not answer.
    silence: Option<Instant>,
    _file_size: limits::FileSize,
    // Dropped in this order: the guardian kills the process group, then `strays` ends the processes that have left the group.
    guardian: Guardian,
    strays: Option<Strays>,
}

/// The part that starts the ranks.
enum Starter {
    Here(Box<Spawner>),
    Hosts(Links),
}

impl<'a, 'b> Supervisor<'a, 'b> {
    fn prepare(
        spec: &'a JobSpec<'b>,
        hooks: &'a mut dyn Hooks,
        hosts: Option<(&[Host], States)>,
    ) -> Result<Supervisor<'a, 'b>, LaunchError> {
        // A host uses three descriptors, as a rank does.
        let files = limits::allow_files(spec.ranks, hosts.as_ref().map_or(spec.ranks, |(hosts, _)| hosts.len()))?;
        let file_size = limits::FileSize::survive();
        limits::keep_children();
        let strays = spec.adopt.then(Strays::adopt);
        let signals = SignalQueue::open()?;
        let guardian = Guardian::start()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(LaunchError::system("epoll"))?;
        let (group, mask) = (guardian.group(), signals.mask_before());
        let starter = match hosts {
            None => {
                let mut spec_env = spec.clone();
                spec_env.extra_env.extend(limits::terminal_width());
                Starter::Here(Box::new(Spawner::new(&spec_env, group, mask, files, file_size.changed())?))
            }
            Some((hosts, states)) => Starter::Hosts(Links::start(spec, hosts, states, &epoll, group, mask)?),
        };
        let watch = |fd, token: Token| {
            epoll::add(&epoll, fd, token.data(), epoll::EventFlags::IN).map_err(LaunchError::system("epoll_ctl"))
        };
        watch(signals.fd(), Token::Signal)?;
        let (input, pump) = Input::open(spec.stdin)?;
        if let Some(pump) = &pump {
            watch(pump.terminal(), Token::Typed)?;
        }
        let output = Output::open(&epoll, spec.tag)
            .map_err(|source| LaunchError::System { what: "copy of stdout and stderr", source })?;
        Ok(Supervisor {
            spec,
            hooks,
            starter,
            epoll,
            signals,
            output,
            input,
            pump: pump.map(|pump| (pump, Wait::Terminal)),
            typed: None,
            ranks: Vec::with_capacity(spec.ranks),
            live: 0,
            ending: Ending::new(),
            cause: None,
            failures: Vec::new(),
            deaths: Vec::new(),
            absent: None,
            interrupt: None,
            deadline: spec.timeout.and_then(|limit| Instant::now().checked_add(limit)),
            silence: None,
            _file_size: file_size,
            guardian,
            strays,
        })
    }

    /// Runs the job until every rank has ended.
    fn run(&mut self) -> Result<(), LaunchError> {
        loop {
            // Start one rank at a time and check the running ranks in between: if a rank dies early,
            // the rest is not started.
            let starting = self.to_start();
            match &self.starter {
                Starter::Here(_) if starting => self.start_next()?,
                Starter::Hosts(links) if starting && links.ready() => self.begin_hosts()?,
                Starter::Hosts(_) if starting => {}
                _ if self.live == 0 => return Ok(()),
                _ => {}
            }
            let here = matches!(self.starter, Starter::Here(_));
            let wait = if starting && here { Some(Duration::ZERO) } else { self.patience() };
            self.turn(wait)?;
            self.tick();
        }
    }

    /// Ends the ranks that have been started, after an error of the supervisor itself.
    fn abandon(mut self) {
        self.signal_ranks(Signal::KILL);
        for process in self.ranks.iter_mut().filter_map(|rank| rank.process.take()) {
            if let Process::Here(process) = process {
                let _ = waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED);
            }
        }
        self.leave_hosts();
        self.output.close_all();
        self.output.flush();
    }

    fn to_start(&self) -> bool {
        self.ranks.len() < self.spec.ranks && !self.ending.begun()
    }

    fn start_next(&mut self) -> Result<(), LaunchError> {
        let Starter::Here(spawner) = &mut self.starter else { return Ok(()) };
        let rank = self.ranks.len();
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(LaunchError::system("pipe"));
        let (out, stdout) = pipe()?;
        let (err, stderr) = pipe()?;
        let rank_env = self.hooks.rank_env(rank);
        let streams =
            Streams { stdin: self.input.of(rank), stdout: stdout.as_fd(), stderr: stderr.as_fd(), kept: None };
        let started = Instant::now();
        let (pid, process) = spawner.spawn(rank, rank, rank_env, &streams)?;
        let pid = pid.as_raw_nonzero().get();
        epoll::add(&self.epoll, &process, Token::Exit(rank).data(), epoll::EventFlags::IN)
            .map_err(LaunchError::system("epoll_ctl"))?;
        self.output.add(rank, [out, err])?;
        if rank == 0 {
            self.input.handed_out();
        }
        let end = RankEnd { ended: None, after: Duration::ZERO, told_to_end: None };
        self.ranks.push(Rank { pid, process: Some(Process::Here(process)), started, end });
        self.live += 1;
        Ok(())
    }

    /// How long the loop may wait for an event. `None`: without limit.
    fn patience(&self) -> Option<Duration> {
        let now = Instant::now();
        let limit = self.deadline.filter(|_| !self.ending.told());
        let in_background = matches!(self.pump, Some((_, Wait::Foreground)));
        let tick = (self.absent.is_some() || in_background).then_some(now + TICK);
        let check = (!self.ending.begun()).then_some(now + CHECK);
        let times = [limit, self.ending.deadline(), tick, check, self.output.deadline(), self.silence];
        times.into_iter().flatten().min().map(|at| at.saturating_duration_since(now))
    }

    /// Waits for events for at most `wait`, and handles them.
    fn turn(&mut self, wait: Option<Duration>) -> Result<(), LaunchError> {
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(LaunchError::system("epoll_wait")(errno)),
        }
        let tokens: Vec<Token> = events.iter().map(|event| Token::of(event.data)).collect();
        // Deaths first: peers wait to learn of them. The kernel lists them in the order in which they happened.
        for &token in &tokens {
            if let Token::Exit(rank) = token {
                self.reap(rank);
            }
        }
        for token in tokens {
            match token {
                Token::Exit(_) | Token::Room(_) | Token::HostRoom(_) => {}
                Token::Host(host) => self.listen(host)?,
                Token::Input => self.send_input(),
                Token::Pipe(source, rank) => self.output.readable(source, rank),
                Token::Signal => self.take_signals(),
                Token::Typed | Token::TypedRoom => self.carry_input(),
            }
        }
        self.output.flush();
        let taken = !self.output.is_full();
        if let Starter::Hosts(links) = &mut self.starter {
            links.flush(taken);
        }
        Ok(())
    }

    /// Does what has become due.
    fn tick(&mut self) {
        let now = Instant::now();
        self.output.expire(now);
        if self.absent.is_some() {
            self.judge_absent(now);
        }
        if let Some((_, Wait::Foreground)) = self.pump {
            self.watch_input(Wait::Terminal);
        }
        if self.deadline.is_some_and(|at| now >= at) && !self.ending.told() {
            let running = (0..self.ranks.len()).filter(|&r| self.ranks[r].process.is_some());
            let limit = self.spec.timeout.unwrap_or_default();
            let running: Vec<usize> = running.collect();
            if !self.ending.begun() {
                for rank in &running {
                    if let Some(place) = self.hooks.whereabouts(*rank) {
                        eprintln!("{}: after {limit:?}, rank {rank} {place}", self.spec.name);
                    }
                }
                self.cause = Some(Cause::TimedOut { limit, running });
            }
            self.ending.shorten(now);
        }
        if !self.ending.begun()
            && let Some(why) = self.hooks.fault()
        {
            self.cause = Some(Cause::MemoryLost { why });
            self.ending.shorten(now);
        }
        if let (Some(fault), false) = (self.output.fault(), self.ending.told()) {
            let errno = fault.raw_os_error();
            if !self.ending.begun() {
                self.cause = Some(Cause::OutputFailed { errno });
            }
            if fault == Errno::PIPE {
                // The reader of our output has gone: print no further reports, of broken pipes for example.
                self.output.silence();
            }
            self.ending.shorten(now);
        }
        self.judge_silence(now);
        let signal = match self.ending.due(now) {
            Step::Nothing => return,
            Step::Terminate => Signal::TERM,
            Step::Kill => Signal::KILL,
        };
        for rank in self.ranks.iter_mut().filter(|rank| rank.process.is_some()) {
            rank.end.told_to_end = Some(signal.as_raw());
        }
        self.signal_group(signal);
        // A stopped process handles SIGTERM only after SIGCONT.
        self.signal_group(Signal::CONT);
        if signal == Signal::KILL {
            self.begin_silence(now);
        }
    }

    /// Sends `signal` to every process of the group: a rank that is a script has children of its own.
    fn signal_group(&mut self, signal: Signal) {
        if signal == Signal::KILL {
            // Not to the group: the guardian belongs to it, and must live until all others have ended.
            return self.signal_ranks(signal);
        }
        match &mut self.starter {
            Starter::Here(_) => self.guardian.signal(signal),
            // The guardian's group here holds only the agents, which start the launchers on the hosts.
            Starter::Hosts(links) => links.signal(true, signal),
        }
    }

    fn signal_ranks(&mut self, signal: Signal) {
        if let Starter::Hosts(links) = &mut self.starter {
            return links.signal(false, signal);
        }
        for rank in &self.ranks {
            if let Some(Process::Here(process)) = &rank.process {
                // Fails only for a process that has just ended.
                let _ = pidfd_send_signal(process, signal);
            }
        }
    }

    /// A rank's process has ended.
    fn reap(&mut self, number: usize) {
        let Some(Process::Here(process)) = self.ranks[number].process.take_if(|it| matches!(it, Process::Here(_)))
        else {
            return;
        };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let ended = match waitid(WaitId::PidFd(process.as_fd()), options) {
            Ok(None) | Err(Errno::INTR) => {
                self.ranks[number].process = Some(Process::Here(process));
                return;
            }
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Ended::Exited(code),
                (None, Some(signal)) => Ended::Signaled(signal),
                (None, None) => Ended::Exited(1),
            },
            // Other code in this process has waited for the rank's process: how it ended is lost.
            Err(_) => Ended::Exited(1),
        };
        let _ = epoll::delete(&self.epoll, &process);
        self.note_end(number, ended);
    }

    /// Records that a rank has ended like this. Its `process` has been taken.
    fn note_end(&mut self, number: usize, ended: Ended) {
        // Asked before the peers hear of the end: they may leave at once because of it, and then nobody is left who misses this rank.
        let membership = self.hooks.membership(number);
        let missed = membership == Membership::Joined && self.others_go_on();
        let panicked = self.hooks.has_panicked(number);
        self.hooks.rank_ended(number, &ended);
        let now = Instant::now();
        let rank = &mut self.ranks[number];
        rank.end.ended = Some(ended);
        rank.end.after = now - rank.started;
        self.live -= 1;
        if number == 0 {
            self.stop_input();
        }
        self.output.drain(number);
        self.output.ended(number, !ended.success());
        if self.ending.told() {
            return;
        }
        let pid = self.ranks[number].pid;
        let survives = membership != Membership::Absent && self.interrupt.is_none() && self.hooks.survives();
        // Not for an exit code other than 0: with it, the rank itself reports that the job has failed.
        if survives && (panicked || matches!(ended, Ended::Signaled(_))) {
            return self.note_death(number, pid, ended);
        }
        if !ended.success() {
            if membership != Membership::Absent {
                // This rank was in the world, or waited for all ranks to join.
                self.blame_absent(now);
            }
            return self.fail(number, Cause::Failed { rank: number, pid, ended }, now);
        }
        match membership {
            Membership::Absent => self.absent = self.absent.or(Some(number)),
            Membership::Joined if missed && !survives => {
                self.fail(number, Cause::LeftEarly { rank: number, pid, joined: true }, now);
            }
            Membership::Joined | Membership::Left => {}
        }
    }

    /// A rank has died, and the others go on.
    fn note_death(&mut self, rank: usize, pid: i32, ended: Ended) {
        self.failures.push((rank, Cause::Failed { rank, pid, ended }));
        self.deaths.push(rank);
        if !self.spec.tells_deaths {
            return;
        }
        let after = self.ranks[rank].end.after.as_secs_f64();
        let others = if self.live == 0 { "" } else { "; the others go on" };
        let name = &self.spec.name;
        self.output
            .say(format!("{name}: rank {rank} (pid {pid}) died: {ended} after {after:.2} s{others}\n").as_bytes());
    }

    /// Whether some rank could miss a rank that has just ended: a running one that has not left, or one that is still to be started.
    fn others_go_on(&mut self) -> bool {
        let hooks = &mut self.hooks;
        let left = |rank| hooks.membership(rank) == Membership::Left;
        // Without the rank that has just ended: its process has been taken.
        let mut live = (0..self.ranks.len()).filter(|&r| self.ranks[r].process.is_some());
        self.ranks.len() < self.spec.ranks || !live.all(left)
    }

    /// A rank that returned 0 without ever joining has failed if another rank is in the world, or waits to join.
    fn judge_absent(&mut self, now: Instant) {
        let mut live = (0..self.ranks.len()).filter(|&r| self.ranks[r].process.is_some());
        if live.any(|rank| self.hooks.membership(rank) == Membership::Joined) {
            self.blame_absent(now);
        }
    }

    /// Reports the rank that returned 0 without ever joining, if there is one, as failed: another rank is in the world, or waits to join.
    fn blame_absent(&mut self, now: Instant) {
        if let Some(absent) = self.absent.take() {
            let pid = self.ranks[absent].pid;
            self.fail(absent, Cause::LeftEarly { rank: absent, pid, joined: false }, now);
        }
    }

    fn fail(&mut self, rank: usize, cause: Cause, now: Instant) {
        if let (Some((signal, _)), Cause::Failed { ended, .. }) = (self.interrupt, &cause)
            && matches!(*ended, Ended::Exited(_)) | (*ended == Ended::Signaled(signal))
            && !self.ending.begun()
        {
            self.cause = Some(Cause::Signaled { signal, status: ended.status() });
        }
        self.failures.push((rank, cause));
        self.ending.begin(now, self.spec.grace);
    }

    /// Passes on the signals that have come.
    fn take_signals(&mut self) {
        while let Some(number) = self.signals.next() {
            let Some(signal) = Signal::from_named_raw(number) else {
                continue;
            };
            let now = Instant::now();
            match signal {
                // These signals are for the program, not for a shell around it.
                Signal::USR1 | Signal::USR2 => self.signal_ranks(signal),
                Signal::TSTP => {
                    self.signal_group(signal);
                    // SIGTSTP is blocked in this process: stop it by SIGSTOP, as SIGTSTP would have done.
                    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
                }
                Signal::CONT => self.signal_group(signal),
                _ => {
                    let again = matches!(self.interrupt, Some((libc::SIGINT, at)) if now - at > SAME_PRESS);
                    // Until all hosts are connected there is no rank to signal: end the job.
                    let unstarted = matches!(&self.starter, Starter::Hosts(links) if !links.begun());
                    if again && signal == Signal::INT || unstarted {
                        if !self.ending.begun() {
                            let status = 128 + number;
                            self.cause = Some(Cause::Signaled { signal: number, status });
                        }
                        self.ending.hurry(now);
                    } else {
                        self.signal_group(signal);
                    }
                    if !matches!(self.interrupt, Some((before, _)) if before == number) {
                        self.interrupt = Some((number, now));
                    }
                }
            }
        }
    }

    /// Copies typed input to rank 0, then watches for the event that lets it copy more.
    fn carry_input(&mut self) {
        let Some((pump, _)) = &mut self.pump else {
            return;
        };
        let wait = pump.turn();
        self.watch_input(wait);
    }

    fn watch_input(&mut self, wait: Wait) {
        let Some((pump, before)) = &mut self.pump else {
            return;
        };
        let events = epoll::EventFlags::IN;
        let _ = match before {
            Wait::Terminal => epoll::delete(&self.epoll, pump.terminal()),
            Wait::Rank => epoll::delete(&self.epoll, pump.rank()),
            _ => Ok(()),
        };
        let _ = match wait {
            Wait::Terminal => epoll::add(&self.epoll, pump.terminal(), Token::Typed.data(), events),
            Wait::Rank => {
                let room = epoll::EventFlags::OUT;
                epoll::add(&self.epoll, pump.rank(), Token::TypedRoom.data(), room)
            }
            Wait::Foreground | Wait::Over => Ok(()),
        };
        *before = wait;
        if wait == Wait::Over {
            // Closes the pipe: rank 0 sees the end of its input.
            self.pump = None;
        }
    }

    /// All ranks have ended: reads the rest of their output, ends the processes that they left behind, and reports the cause.
    fn finish(mut self) -> Outcome {
        let until = Instant::now() + LINGER;
        while self.output.any_open() && !self.ending.begun() && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            if self.turn(Some(left)).is_err() {
                break;
            }
        }
        let unanswered = self.unanswered();
        self.leave_hosts();
        let Supervisor { spec, hooks, ranks, signals, mut output, epoll, .. } = self;
        drop((self.guardian, self.strays));
        output.close_all();
        let mut ends: Vec<RankEnd> = ranks.iter().map(|rank| rank.end).collect();
        let none = RankEnd { ended: None, after: Duration::ZERO, told_to_end: None };
        ends.resize(spec.ranks, none);
        let is_own =
            |(rank, _): &&(usize, Cause)| ends[*rank].ended.is_none_or(|ended| !hooks.is_consequence(*rank, &ended));
        let own: Vec<_> = self.failures.iter().filter(is_own).collect();
        // Ranks that agree to give up exit with the same code, in any order: name the one that printed something to standard error.
        let code = |cause: &Cause| match cause {
            Cause::Failed { ended: Ended::Exited(code), .. } => Some(*code),
            _ => None,
        };
        let alike = |(_, cause): &&&(usize, Cause)| code(cause).is_some() && code(cause) == code(&own[0].1);
        let told = own.iter().filter(alike).find(|(rank, _)| output.spoke(*rank));
        let left = || {
            let rank = hooks.first_missed().filter(|_| own.is_empty() && !self.failures.is_empty())?;
            let pid = ranks.get(rank)?.pid;
            ends[rank].ended.filter(|ended| ended.success())?;
            Some(Cause::LeftEarly { rank, pid, joined: true })
        };
        // The job has succeeded despite deaths: all failures are deaths that other ranks survived, and some rank returned 0.
        let survived = self.failures.iter().all(|(rank, _)| self.deaths.contains(rank))
            && ends.iter().any(|end| end.ended.is_some_and(Ended::success));
        let own_first = told.or(own.first()).map(|(_, cause)| cause.clone());
        let first = own_first.or_else(left).or_else(|| Some(self.failures.first()?.1.clone()));
        let first = first.filter(|_| !survived);
        output.flush();
        let fault = output.fault().map(|fault| Cause::OutputFailed { errno: fault.raw_os_error() });
        let cause = self.cause.or(first).or(fault);
        if let Some(cause) = &cause {
            let repeat = match cause {
                Cause::Failed { rank, .. } | Cause::LeftEarly { rank, .. } => output.lost_lines(*rank),
                _ => Vec::new(),
            };
            let mut words = report::words(&spec.name, cause, &ends, &repeat);
            // A fault of the whole job may have ended ranks before the supervisor saw it.
            if !matches!(cause, Cause::MemoryLost { .. })
                && let Some(fault) = hooks.fault()
            {
                words += &format!("{}: {fault}\n", spec.name);
            }
            let common = report::common(&spec.name, &output.common(), output.is_one_error(), spec.ranks);
            output.say(common.as_bytes());
            output.say(words.as_bytes());
            output.say(unanswered.as_bytes());
        }
        output.flush();
        // The readers of our output may take any time. A signal ends the wait: no rank is left that it could be for.
        while output.backlog() > 0 {
            let mut events: Vec<epoll::Event> = Vec::with_capacity(8);
            let waited = epoll::wait(&epoll, spare_capacity(&mut events), None);
            if !matches!(waited, Ok(_) | Err(Errno::INTR)) || signals.next().is_some() {
                break;
            }
            output.flush();
        }
        Outcome { cause, ranks: ends }
    }
}
