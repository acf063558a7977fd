//! The launcher of one host: starts its ranks, passes on what they print and how they end, and serves PMI-1 to them.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use super::frame::{self, Down, Frames, GREETING, HostJob, Up};
use super::space::{self, Reply, Space};
use crate::bootstrap::launch::TERM_WIDTH;
use crate::bootstrap::launch::child::{Spawner, Streams};
use crate::bootstrap::launch::error::LaunchError;
use crate::bootstrap::launch::guardian::Guardian;
use crate::bootstrap::launch::limits;
use crate::bootstrap::launch::output::{LAST_WORDS, LINGER};
use crate::bootstrap::launch::signals::mask_now;
use crate::bootstrap::launch::sink::Sink;
use crate::bootstrap::launch::spec::{Bind, JobSpec};
use crate::bootstrap::launch::strays::Strays;

/// Output that may be in flight to the launcher: more is left in the ranks' pipes.
const WINDOW: usize = 1 << 20;

/// Serves the launcher that started this process as a host's launcher, over standard input and output, until the ranks have ended or
/// the connection has. Gives this process's exit status: 0 if the launcher has been told all.
///
/// This process has no other business: no other thread, and no children.
pub fn serve() -> i32 {
    let Ok(sink) = Sink::new(io::stdout().as_fd()) else { return 1 };
    let mut wire = Wire { up: sink, frames: Frames::default() };
    wire.up.buffer().extend_from_slice(GREETING);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    wire.send(&Up::Hello { version: env!("CARGO_PKG_VERSION").into(), cpus });
    let Some(job) = wire.first() else { return 1 };
    match run(&mut wire, &job) {
        Ok(true) => wire.send(&Up::Bye),
        Ok(false) => return 1,
        Err(error) => wire.send(&Up::Cannot { status: error.status(), why: error.to_string() }),
    }
    i32::from(!wire.drain())
}

/// The connection to the launcher.
struct Wire {
    up: Sink,
    frames: Frames,
}

impl Wire {
    fn send(&mut self, frame: &Up) {
        frame::append(self.up.buffer(), frame);
    }

    /// Reads once; false if the connection has ended.
    fn read(&mut self) -> bool {
        let mut space = [0; 64 << 10];
        match rustix::io::read(io::stdin(), &mut space) {
            Ok(0) => false,
            Ok(n) => {
                self.frames.push(&space[..n]);
                true
            }
            Err(error) => matches!(error, Errno::INTR | Errno::AGAIN),
        }
    }

    /// Waits for the job; `None` if the launcher has none for this host, or has gone.
    fn first(&mut self) -> Option<Box<HostJob>> {
        loop {
            self.up.flush();
            match self.frames.next() {
                Ok(Some(Down::Job(job))) => return Some(job),
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => return None,
            }
            let stdin = io::stdin();
            let mut polled = vec![PollFd::new(&stdin, PollFlags::IN)];
            if self.up.backlog() > 0 {
                polled.push(PollFd::new(&self.up, PollFlags::OUT));
            }
            let _ = rustix::event::poll(&mut polled, None);
            let came = !polled[0].revents().is_empty();
            if self.up.fault().is_some() || came && !self.read() {
                return None;
            }
        }
    }

    /// Sends all that waits; false if the launcher has gone.
    fn drain(&mut self) -> bool {
        loop {
            self.up.flush();
            if self.up.fault().is_some() || self.up.backlog() == 0 {
                return self.up.fault().is_none();
            }
            let _ = rustix::event::poll(&mut [PollFd::new(&self.up, PollFlags::OUT)], None);
        }
    }
}

/// A rank of this host.
struct Seat {
    process: Option<OwnedFd>,
    /// Standard output and error, until they end.
    pipes: [Option<OwnedFd>; 2],
    /// Our end of its PMI socket, and what has come there.
    pmi: Option<(OwnedFd, Vec<u8>)>,
}

struct Side<'a> {
    wire: &'a mut Wire,
    job: &'a HostJob,
    seats: Vec<Seat>,
    space: Space,
    /// The ranks that wait for the end of a fence.
    fenced: Vec<usize>,
    /// Bytes of output that the launcher has not taken.
    outstanding: usize,
    /// Input that rank 0 has not read; rank 0's pipe, until rank 0 or the input has ended.
    input: (Vec<u8>, Option<OwnedFd>),
    input_ended: bool,
    // Dropped in this order: the group is killed, then what has left it.
    guardian: Guardian,
    _strays: Strays,
}

/// What can be ready.
#[derive(Clone, Copy)]
enum Ready {
    Launcher,
    Room,
    Exit(usize),
    Pipe(usize, usize),
    Pmi(usize),
    Input,
}

/// Starts the ranks and stays until they have ended; false if the launcher has gone before.
fn run(wire: &mut Wire, job: &HostJob) -> Result<bool, LaunchError> {
    let os = |bytes: &Vec<u8>| OsString::from_vec(bytes.clone());
    // SAFETY: this process has one thread.
    unsafe {
        // We may be the rank of another job.
        std::env::remove_var(crate::bootstrap::JOB_VARIABLE);
        job.env.iter().for_each(|(name, value)| std::env::set_var(os(name), os(value)));
    }
    std::env::set_current_dir(os(&job.folder))
        .map_err(|source| LaunchError::Folder { folder: os(&job.folder).into(), source })?;
    // A rank costs four descriptors here: those of a rank of one host, and its PMI socket.
    let files = limits::allow_files(job.count, 2 * job.count)?;
    let file_size = limits::FileSize::survive();
    limits::keep_children();
    let mut spec = JobSpec::new(os(&job.program), job.args.iter().map(os), job.size);
    spec.bind = if job.bind { Bind::Core } else { Bind::None };
    let exchange = [("BELLWETHER_JOIN", "pmi1".into()), ("PMI_SIZE", job.size.to_string())];
    spec.extra_env = exchange.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    // Spawners drop it, since it says something about our own standard error.
    let width = job.env.iter().filter(|(name, _)| os(name) == TERM_WIDTH);
    spec.extra_env.extend(width.map(|(name, value)| (os(name), os(value))));
    let strays = Strays::adopt();
    let guardian = Guardian::start()?;
    let mut spawner = Spawner::new(&spec, guardian.group(), mask_now(), files, file_size.changed())?;
    let mut side = Side {
        wire,
        job,
        seats: Vec::with_capacity(job.count),
        space: Space::new(job.count),
        fenced: Vec::with_capacity(job.count),
        outstanding: 0,
        input: (Vec::new(), None),
        input_ended: false,
        guardian,
        _strays: strays,
    };
    let null =
        std::fs::File::open("/dev/null").map_err(|source| LaunchError::System { what: "open of /dev/null", source })?;
    for seat in 0..job.count {
        side.start(&mut spawner, seat, null.as_fd())?;
    }
    let told = side.work();
    side.last_words();
    Ok(told)
}

impl Side<'_> {
    fn start(&mut self, spawner: &mut Spawner, seat: usize, null: BorrowedFd<'_>) -> Result<(), LaunchError> {
        let rank = self.job.first + seat;
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(LaunchError::system("pipe"));
        let (out, stdout) = pipe()?;
        let (err, stderr) = pipe()?;
        for pipe in [&out, &err] {
            rustix::fs::fcntl_setfl(pipe, rustix::fs::OFlags::NONBLOCK).map_err(LaunchError::system("fcntl"))?;
        }
        let mut from = None;
        if rank == 0 {
            let (reader, writer) = pipe()?;
            rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).map_err(LaunchError::system("fcntl"))?;
            self.input.1 = Some(writer);
            from = Some(reader);
        }
        let (ours, theirs) = UnixStream::pair().map_err(|source| LaunchError::System { what: "socketpair", source })?;
        let rank_env = [("PMI_FD", theirs.as_raw_fd().to_string()), ("PMI_RANK", rank.to_string())];
        let rank_env = rank_env.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let streams = Streams {
            stdin: from.as_ref().map_or(null, AsFd::as_fd),
            stdout: stdout.as_fd(),
            stderr: stderr.as_fd(),
            kept: Some(theirs.as_fd()),
        };
        let (pid, process) = spawner.spawn(rank, self.job.seat + seat, rank_env, &streams)?;
        let pmi = Some((ours.into(), Vec::new()));
        self.seats.push(Seat { process: Some(process), pipes: [Some(out), Some(err)], pmi });
        self.wire.send(&Up::Started { rank, pid: pid.as_raw_nonzero().get() });
        Ok(())
    }

    /// Until all ranks have ended; false if the launcher has gone before.
    fn work(&mut self) -> bool {
        // What has come together with the job, such as the end of a rank of another host: nothing may follow that makes us look again.
        if !self.obey() {
            return false;
        }
        while self.seats.iter().any(|seat| seat.process.is_some()) {
            if !self.turn(None) {
                return false;
            }
        }
        true
    }

    /// Waits for something, at most so long, and deals with it; false if the launcher has gone.
    fn turn(&mut self, wait: Option<Duration>) -> bool {
        self.wire.up.flush();
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let mut ready: Vec<Ready> = Vec::new();
        {
            let stdin = io::stdin();
            let mut polled = Vec::with_capacity(2 + 4 * self.seats.len());
            let mut watch = |fd, flags, what| {
                polled.push(PollFd::from_borrowed_fd(fd, flags));
                ready.push(what);
            };
            watch(stdin.as_fd(), PollFlags::IN, Ready::Launcher);
            if self.wire.up.backlog() > 0 {
                watch(self.wire.up.as_fd(), PollFlags::OUT, Ready::Room);
            }
            if let (false, Some(pipe)) = (self.input.0.is_empty(), &self.input.1) {
                watch(pipe.as_fd(), PollFlags::OUT, Ready::Input);
            }
            for (number, seat) in self.seats.iter().enumerate() {
                if let Some(process) = &seat.process {
                    watch(process.as_fd(), PollFlags::IN, Ready::Exit(number));
                }
                if let Some((socket, _)) = &seat.pmi {
                    watch(socket.as_fd(), PollFlags::IN, Ready::Pmi(number));
                }
                for (which, pipe) in seat.pipes.iter().enumerate() {
                    if let (Some(pipe), true) = (pipe, self.outstanding < WINDOW) {
                        watch(pipe.as_fd(), PollFlags::IN, Ready::Pipe(number, which));
                    }
                }
            }
            match rustix::event::poll(&mut polled, wait.as_ref()) {
                Ok(_) => {}
                Err(Errno::INTR) => return true,
                Err(_) => return false,
            }
            let mut which = polled.iter().map(|polled| !polled.revents().is_empty());
            ready.retain(|_| which.next().unwrap_or(false));
        }
        // Deaths first.
        ready.sort_by_key(|ready| !matches!(ready, Ready::Exit(_)));
        for what in ready {
            match what {
                Ready::Launcher if !self.wire.read() || !self.obey() => return false,
                Ready::Launcher | Ready::Room => {}
                Ready::Input => self.feed(),
                Ready::Exit(seat) => self.reap(seat),
                Ready::Pipe(seat, which) => drop(self.pass_on(seat, which)),
                Ready::Pmi(seat) => self.serve_rank(seat),
            }
        }
        self.wire.up.flush();
        self.wire.up.fault().is_none()
    }

    /// Does what the launcher has asked for; false if that cannot be understood.
    fn obey(&mut self) -> bool {
        loop {
            match self.wire.frames.next() {
                Ok(None) => return true,
                Ok(Some(Down::Signal { group, signal })) => {
                    let Some(signal) = Signal::from_named_raw(signal) else { continue };
                    // The guardian itself must stay until all have gone.
                    if group && signal != Signal::KILL {
                        self.guardian.signal(signal);
                        continue;
                    }
                    for process in self.seats.iter().filter_map(|seat| seat.process.as_ref()) {
                        // It fails only for one that has just ended.
                        let _ = pidfd_send_signal(process, signal);
                    }
                }
                Ok(Some(Down::Fence(all))) => {
                    let line = self.space.fence(all);
                    self.end_fence(line);
                }
                Ok(Some(Down::Broken { rank, killed, number })) => {
                    let line = self.space.break_fence(rank, killed, number);
                    self.end_fence(&line);
                }
                Ok(Some(Down::Taken(bytes))) => self.outstanding = self.outstanding.saturating_sub(bytes),
                Ok(Some(Down::Input(bytes))) => {
                    self.input_ended |= bytes.is_empty();
                    self.input.0.extend_from_slice(&bytes);
                    self.feed();
                }
                Ok(Some(Down::Job(_))) | Err(_) => return false,
            }
        }
    }

    /// Writes to rank 0 what it has room for.
    fn feed(&mut self) {
        let (waiting, pipe) = &mut self.input;
        let mut taken = 0;
        while let (Some(to), false) = (pipe.as_ref(), waiting[taken..].is_empty()) {
            match rustix::io::write(to, &waiting[taken..]) {
                Ok(n) => taken += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // It reads no more.
                Err(_) => *pipe = None,
            }
        }
        if pipe.is_none() {
            taken = waiting.len();
        }
        waiting.drain(..taken);
        if waiting.is_empty() && self.input_ended {
            *pipe = None;
        }
        if taken > 0 {
            self.wire.send(&Up::InputTaken(taken));
        }
    }

    /// Reads once from a rank's output and passes it on; how much there was.
    fn pass_on(&mut self, seat: usize, which: usize) -> usize {
        let (rank, error) = (self.job.first + seat, which == 1);
        let Some(pipe) = &self.seats[seat].pipes[which] else { return 0 };
        let mut bytes = vec![0; 64 << 10];
        match rustix::io::read(pipe, &mut bytes) {
            Err(Errno::INTR | Errno::AGAIN) => 0,
            Ok(0) | Err(_) => {
                self.seats[seat].pipes[which] = None;
                self.wire.send(&Up::Closed { rank, error });
                0
            }
            Ok(n) => {
                bytes.truncate(n);
                self.outstanding += n;
                self.wire.send(&Up::Output { rank, error, bytes });
                n
            }
        }
    }

    /// Passes on all that is left of a rank's output.
    fn pass_on_all(&mut self, seat: usize) {
        for which in 0..2 {
            let mut total = 0;
            while total < LAST_WORDS {
                match self.pass_on(seat, which) {
                    0 => break,
                    n => total += n,
                }
            }
        }
    }

    fn reap(&mut self, seat: usize) {
        let Some(process) = self.seats[seat].process.take() else { return };
        let (killed, number) =
            match waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
                Ok(None) | Err(Errno::INTR) => {
                    self.seats[seat].process = Some(process);
                    return;
                }
                Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => (false, code),
                    (None, Some(signal)) => (true, signal),
                    (None, None) => (false, 1),
                },
                Err(_) => (false, 1),
            };
        // The rank's last requests and output are passed on before its end is told.
        self.serve_rank(seat);
        self.pass_on_all(seat);
        let rank = self.job.first + seat;
        if rank == 0 {
            self.input.1 = None;
        }
        self.wire.send(&Up::Ended { rank, killed, number });
    }

    /// Reads what a rank has sent to its PMI server, and answers.
    fn serve_rank(&mut self, seat: usize) {
        let rank = self.job.first + seat;
        loop {
            let Some((socket, came)) = &mut self.seats[seat].pmi else { return };
            let Ok(line) = space::line(came) else {
                self.seats[seat].pmi = None;
                return;
            };
            let Some(line) = line else {
                let mut bytes = [0; 4096];
                match rustix::net::recv(&*socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                    Ok((_, n)) if n > 0 => came.extend_from_slice(&bytes[..n]),
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return,
                    Ok(_) | Err(_) => self.seats[seat].pmi = None,
                }
                continue;
            };
            match self.space.take(&line) {
                Reply::Say(text) => self.answer(seat, &text),
                Reply::Joined(text) => {
                    self.wire.send(&Up::Joined(rank));
                    self.answer(seat, &text);
                }
                Reply::Left(text, missed) => {
                    self.wire.send(&Up::Left(rank, missed));
                    self.answer(seat, &text);
                }
                Reply::Wait => self.fenced.push(seat),
                Reply::Fence(put) => {
                    self.fenced.push(seat);
                    self.wire.send(&Up::Fence(put));
                }
                Reply::Cut => self.seats[seat].pmi = None,
            }
        }
    }

    /// Sends a line to each rank that waits for the end of a fence.
    fn end_fence(&mut self, line: &str) {
        std::mem::take(&mut self.fenced).into_iter().for_each(|seat| self.answer(seat, line));
    }

    /// Sends a line to a rank. One that reads no answers is cut off.
    fn answer(&mut self, seat: usize, line: &str) {
        let Some((socket, _)) = &self.seats[seat].pmi else { return };
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::send(socket, line.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
        });
        if sent != Ok(line.len()) {
            self.seats[seat].pmi = None;
        }
    }

    /// All ranks have ended: for a moment, passes on the output of children that they left behind.
    fn last_words(mut self) {
        let until = Instant::now() + LINGER;
        let open = |side: &Side<'_>| side.seats.iter().any(|seat| seat.pipes.iter().any(Option::is_some));
        while open(&self) && Instant::now() < until {
            if !self.turn(Some(until.saturating_duration_since(Instant::now()))) {
                break;
            }
        }
        (0..self.seats.len()).for_each(|seat| self.pass_on_all(seat));
    }
}
