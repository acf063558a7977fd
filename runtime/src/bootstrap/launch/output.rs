//! The output of the ranks: from their pipes, line by line, to our own standard output and error.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use super::error::LaunchError;
use super::lines::{LineCutter, Tail};
use super::repeats::Repeats;
use super::sink::{FULL, Sink};
use super::token::{Source, Token};

/// The most that is read from a rank that has ended: what its pipe holds is far less, but a child it
/// left behind might never stop writing.
pub(super) const LAST_WORDS: usize = 4 << 20;

/// A rank's output or error that may still have something to say.
struct Stream {
    /// None if another host reads it.
    pipe: Option<OwnedFd>,
    lines: LineCutter,
}

/// All output of a job.
pub(super) struct Output {
    epoll: OwnedFd,
    sinks: [Sink; 2],
    /// The sink waits for room, and `epoll` tells when there is some.
    armed: [bool; 2],
    /// The sink is so full that the ranks' pipes are not read.
    paused: [bool; 2],
    streams: [HashMap<usize, Stream>; 2],
    tails: HashMap<usize, LastLines>,
    repeats: Repeats,
    /// Lines passed on so far, of all ranks.
    printed: usize,
    tag: bool,
    scratch: Vec<u8>,
    /// Whole lines that have just been read.
    lines: Vec<u8>,
}

/// The end of a rank's standard error, and when it was printed.
#[derive(Default)]
struct LastLines {
    tail: Tail,
    printed: usize,
}

impl Output {
    pub(super) fn open(epoll: &OwnedFd, tag: bool) -> io::Result<Output> {
        Ok(Output {
            epoll: epoll.try_clone()?,
            sinks: [Sink::new(io::stdout().as_fd())?, Sink::new(io::stderr().as_fd())?],
            armed: [false; 2],
            paused: [false; 2],
            streams: Default::default(),
            tails: HashMap::new(),
            repeats: Repeats::default(),
            printed: 0,
            tag,
            scratch: vec![0; 64 * 1024],
            lines: Vec::new(),
        })
    }

    /// Begins to read what a new rank prints.
    pub(super) fn add(&mut self, rank: usize, pipes: [OwnedFd; 2]) -> Result<(), LaunchError> {
        for (pipe, source) in pipes.into_iter().zip(Source::BOTH) {
            fcntl_setfl(&pipe, OFlags::NONBLOCK).map_err(LaunchError::system("fcntl"))?;
            if !self.paused[source.index()] {
                self.watch(&pipe, rank, source).map_err(LaunchError::system("epoll_ctl"))?;
            }
            self.insert(rank, source, Some(pipe));
        }
        Ok(())
    }

    /// Expects what a rank of another host prints.
    pub(super) fn expect(&mut self, rank: usize) {
        Source::BOTH.into_iter().for_each(|source| self.insert(rank, source, None));
    }

    fn insert(&mut self, rank: usize, source: Source, pipe: Option<OwnedFd>) {
        let tag = if self.tag { format!("[{rank}] ").into_bytes() } else { Vec::new() };
        self.streams[source.index()].insert(rank, Stream { pipe, lines: LineCutter::new(tag) });
    }

    fn watch(&self, pipe: &OwnedFd, rank: usize, source: Source) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, pipe, Token::Pipe(source, rank).data(), epoll::EventFlags::IN)
    }

    /// Reads once from a pipe that has something, or has ended.
    pub(super) fn readable(&mut self, source: Source, rank: usize) {
        self.read(source, rank);
    }

    /// Reads all that is left from a rank that has ended.
    pub(super) fn drain(&mut self, rank: usize) {
        for source in Source::BOTH {
            let mut total = 0;
            while total < LAST_WORDS {
                match self.read(source, rank) {
                    0 => break,
                    n => total += n,
                }
            }
        }
    }

    /// Reads once and gives how much there was: 0 when there is nothing now or ever.
    fn read(&mut self, source: Source, rank: usize) -> usize {
        let Some(stream) = self.streams[source.index()].get_mut(&rank) else {
            return 0;
        };
        let Some(pipe) = &stream.pipe else { return 0 };
        let n = loop {
            match rustix::io::read(pipe, &mut self.scratch) {
                Ok(n) => break n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return 0,
                Err(_) => break 0,
            }
        };
        if n == 0 {
            self.close(source, rank);
            return 0;
        }
        let scratch = std::mem::take(&mut self.scratch);
        self.take(source, rank, &scratch[..n]);
        self.scratch = scratch;
        n
    }

    /// Passes on the whole lines that a rank has printed.
    pub(super) fn take(&mut self, source: Source, rank: usize, data: &[u8]) {
        let Some(stream) = self.streams[source.index()].get_mut(&rank) else { return };
        if source == Source::Out {
            self.printed += stream.lines.push(data, self.sinks[source.index()].buffer());
        } else if stream.lines.push(data, &mut self.lines) > 0 {
            let tag = stream.lines.tag().to_vec();
            self.take_errors(rank, &tag);
        }
    }

    /// Passes on the lines that were read from a rank's standard error, unless they are another's last words.
    fn take_errors(&mut self, rank: usize, tag: &[u8]) {
        let last = self.tails.entry(rank).or_default();
        last.tail.push(&self.lines, tag);
        self.repeat(|repeats, lines, out| repeats.lines(rank, lines, tag, Instant::now(), out));
        self.lines.clear();
        self.tails.entry(rank).or_default().printed = self.printed;
    }

    /// Lets `change` pass on lines of standard error, and counts them.
    fn repeat(&mut self, change: impl FnOnce(&mut Repeats, &[u8], &mut Vec<u8>)) {
        let out = self.sinks[Source::Err.index()].buffer();
        let before = out.len();
        change(&mut self.repeats, &self.lines, out);
        self.printed += out[before..].iter().filter(|byte| **byte == b'\n').count();
    }

    /// A rank has ended, and has been drained.
    pub(super) fn ended(&mut self, rank: usize, failed: bool) {
        self.repeat(|repeats, _, out| repeats.ended(rank, failed, out));
    }

    /// When [`Output::expire`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.repeats.deadline()
    }

    /// Passes on lines that were held back for long enough: they may not be a rank's last words.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.deadline().is_some_and(|at| now >= at) {
            self.repeat(|repeats, _, out| repeats.expire(now, out));
            self.flush();
        }
    }

    /// Last words that several ranks had in common and that were passed on once, with these ranks.
    pub(super) fn common(&self) -> Vec<(&[u8], Vec<usize>)> {
        self.repeats.common()
    }

    /// No two ranks ended with different errors.
    pub(super) fn is_one_error(&self) -> bool {
        self.repeats.is_one()
    }

    /// Ends a stream: its unfinished line is finished.
    pub(super) fn close(&mut self, source: Source, rank: usize) {
        let Some(mut stream) = self.streams[source.index()].remove(&rank) else {
            return;
        };
        if source == Source::Out {
            self.printed += stream.lines.finish(self.sinks[source.index()].buffer());
        } else if stream.lines.finish(&mut self.lines) > 0 {
            self.take_errors(rank, stream.lines.tag());
        }
        // Dropped here; the last copy of a pipe's end leaves the epoll set by itself.
    }

    /// Whether any rank's pipe is still open, at a child it left behind.
    pub(super) fn any_open(&self) -> bool {
        self.streams.iter().any(|streams| !streams.is_empty())
    }

    /// Takes what is left in all pipes and closes them.
    pub(super) fn close_all(&mut self) {
        for source in Source::BOTH {
            let mut ranks: Vec<usize> = self.streams[source.index()].keys().copied().collect();
            ranks.sort_unstable();
            for rank in ranks {
                self.drain(rank);
                self.close(source, rank);
            }
        }
        self.repeat(|repeats, _, out| repeats.finish(out));
    }

    /// Writes what can be written, and holds the ranks up while too much waits.
    pub(super) fn flush(&mut self) {
        for source in Source::BOTH {
            let i = source.index();
            self.sinks[i].flush();
            let backlog = self.sinks[i].backlog();
            if (backlog > 0) != self.armed[i] {
                let token = Token::Room(source).data();
                let done = if backlog > 0 {
                    epoll::add(&self.epoll, &self.sinks[i], token, epoll::EventFlags::OUT)
                } else {
                    epoll::delete(&self.epoll, &self.sinks[i])
                };
                self.armed[i] = backlog > 0 && done.is_ok();
            }
            if backlog > FULL && !self.paused[i] {
                self.paused[i] = true;
                for pipe in self.streams[i].values().filter_map(|stream| stream.pipe.as_ref()) {
                    let _ = epoll::delete(&self.epoll, pipe);
                }
            } else if backlog == 0 && self.paused[i] {
                self.paused[i] = false;
                for (&rank, stream) in &self.streams[i] {
                    let _ = stream.pipe.as_ref().map(|pipe| self.watch(pipe, rank, source));
                }
            }
        }
    }

    /// Whether the ranks are held up.
    pub(super) fn is_full(&self) -> bool {
        self.paused.contains(&true)
    }

    /// Bytes that wait for our readers.
    pub(super) fn backlog(&self) -> usize {
        self.sinks.iter().map(Sink::backlog).sum()
    }

    /// Why our standard output takes nothing more, if so.
    pub(super) fn fault(&self) -> Option<Errno> {
        self.sinks[Source::Out.index()].fault()
    }

    /// Says nothing more.
    pub(super) fn silence(&mut self) {
        for sink in &mut self.sinks {
            sink.close(Errno::PIPE);
        }
    }

    /// Appends words of the supervisor's own to standard error.
    pub(super) fn say(&mut self, words: &[u8]) {
        self.sinks[Source::Err.index()].buffer().extend_from_slice(words);
    }

    /// Whether a rank has written to standard error.
    pub(super) fn spoke(&self, rank: usize) -> bool {
        self.tails.contains_key(&rank)
    }

    /// The last lines of a rank's standard error, if so much was printed after them that the reader
    /// may have lost sight of them.
    pub(super) fn lost_lines(&self, rank: usize) -> Vec<&[u8]> {
        match self.tails.get(&rank) {
            Some(last) if self.printed > last.printed + 2 => last.tail.iter().collect(),
            _ => Vec::new(),
        }
    }
}

/// How long pipes that outlive all ranks are listened to.
pub(super) const LINGER: Duration = Duration::from_millis(100);
