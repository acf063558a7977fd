//! The supervisor's part in a job whose ranks run on several hosts.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;

use super::{Process, Rank, Starter, Supervisor};
use crate::bootstrap::launch::error::LaunchError;
use crate::bootstrap::launch::hosts::Event;
use crate::bootstrap::launch::limits;
use crate::bootstrap::launch::spec::{Cause, Ended, RankEnd};
use crate::bootstrap::launch::token::Token;

/// How long hosts may take to end what runs on them, at the end of the job.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long a host may take, after SIGKILL, to tell that its ranks have ended. A host that takes longer counts as lost.
const SILENCE: Duration = Duration::from_secs(5);

/// Most bytes that are read from standard input at once.
const PIECE: usize = 16 << 10;

/// Our standard input, for a rank 0 on a host.
pub(super) struct Typed {
    own: OwnedFd,
    /// The epoll set tells when it has something.
    is_watched: bool,
}

impl Typed {
    /// Takes it out of the epoll set, which it does not leave by itself while our caller has it.
    fn forget(&mut self, set: &OwnedFd) {
        if std::mem::take(&mut self.is_watched) {
            let _ = epoll::delete(set, &self.own);
        }
    }
}

impl Supervisor<'_, '_> {
    /// Rank 0 has ended: it takes no input.
    pub(super) fn stop_input(&mut self) {
        self.pump = None;
        if let Some(mut typed) = self.typed.take() {
            typed.forget(&self.epoll);
        }
    }

    /// All hosts are there: has them start the ranks.
    pub(super) fn begin_hosts(&mut self) -> Result<(), LaunchError> {
        let Starter::Hosts(links) = &mut self.starter else { return Ok(()) };
        links.begin(self.spec, limits::terminal_width())?;
        links.flush(false);
        let (started, end) = (Instant::now(), RankEnd { ended: None, after: Duration::ZERO, told_to_end: None });
        for rank in 0..self.spec.ranks {
            self.output.expect(rank);
            self.ranks.push(Rank { pid: 0, process: Some(Process::OnHost), started, end });
        }
        self.live = self.spec.ranks;
        let own = self.input.own_copy()?;
        self.input.handed_out();
        self.typed = Some(Typed { own, is_watched: false });
        self.go_on_sending();
        Ok(())
    }

    /// A host has told something, or its connection has ended.
    pub(super) fn listen(&mut self, host: usize) -> Result<(), LaunchError> {
        let Starter::Hosts(links) = &mut self.starter else { return Ok(()) };
        for event in links.read(host)? {
            match event {
                Event::Started { rank, pid } => self.ranks[rank].pid = pid,
                Event::Output { rank, source, bytes } => self.output.take(source, rank, &bytes),
                Event::Closed { rank, source } => self.output.close(source, rank),
                Event::Ended { rank, ended } => {
                    if self.ranks[rank].process.take().is_some() {
                        self.note_end(rank, ended);
                    }
                }
                Event::InputTaken => self.go_on_sending(),
                Event::Lost { host, why, ranks } => self.lose_host(host, why, ranks),
            }
        }
        Ok(())
    }

    /// The ranks of the hosts have been sent SIGKILL: from now on their hosts have [`SILENCE`] to answer.
    pub(super) fn begin_silence(&mut self, now: Instant) {
        if matches!(self.starter, Starter::Hosts(_)) {
            self.silence = Some(now + SILENCE);
        }
    }

    /// Gives up the hosts that have not told how their ranks ended, if their time is over.
    pub(super) fn judge_silence(&mut self, now: Instant) {
        let Starter::Hosts(links) = &mut self.starter else { return };
        if self.silence.take_if(|until| now >= *until).is_none() {
            return;
        }
        let live: Vec<usize> = (0..self.ranks.len()).filter(|&rank| self.ranks[rank].process.is_some()).collect();
        for event in links.give_up(&live) {
            let Event::Lost { host, why, ranks } = event else { continue };
            let words = format!("{}: host {host} is given up: {why}; its ranks may still run\n", self.spec.name);
            self.output.say(words.as_bytes());
            self.lose_host(host, why, ranks);
        }
    }

    /// Which hosts have not answered, if ranks have not been started because of that.
    pub(super) fn unanswered(&self) -> String {
        let Starter::Hosts(links) = &self.starter else { return String::new() };
        if links.begun() {
            return String::new();
        }
        let lines = links
            .unanswered()
            .map(|(host, command)| format!("{}: host {host} has not answered: {command}\n", self.spec.name));
        lines.collect()
    }

    /// The connection to a host has ended: what ran there is killed by the host's launcher.
    fn lose_host(&mut self, host: String, why: String, ranks: std::ops::Range<usize>) {
        let now = Instant::now();
        let mut lost = false;
        for rank in &mut self.ranks[ranks] {
            if rank.process.take().is_some() {
                let ended = Some(Ended::Signaled(libc::SIGKILL));
                rank.end = RankEnd { ended, after: now - rank.started, told_to_end: Some(libc::SIGKILL) };
                self.live -= 1;
                lost = true;
            }
        }
        // All its ranks have told how they ended: the job goes on elsewhere.
        if !lost {
            return;
        }
        if !self.ending.begun() {
            self.cause = Some(Cause::HostLost { host, why });
        }
        self.ending.shorten(now);
    }

    /// Rank 0 takes more input.
    fn go_on_sending(&mut self) {
        let Starter::Hosts(links) = &self.starter else { return };
        while let (Some(typed), true) = (&mut self.typed, links.input_room() > 0) {
            if typed.is_watched {
                return;
            }
            match epoll::add(&self.epoll, &typed.own, Token::Input.data(), epoll::EventFlags::IN) {
                Ok(()) => typed.is_watched = true,
                // A file is always ready, and cannot be waited for.
                Err(_) => return self.send_input(),
            }
        }
    }

    /// Standard input has something, or has ended: sends rank 0 as much as it takes.
    pub(super) fn send_input(&mut self) {
        let Starter::Hosts(links) = &mut self.starter else { return };
        let mut piece = [0; PIECE];
        while let Some(typed) = &mut self.typed {
            let room = links.input_room().min(PIECE);
            if room == 0 {
                return typed.forget(&self.epoll);
            }
            let read = match rustix::io::read(&typed.own, &mut piece[..room]) {
                Ok(n) => n,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return,
                Err(_) => 0,
            };
            links.send_input(&piece[..read]);
            if read == 0 {
                typed.forget(&self.epoll);
                self.typed = None;
            } else if typed.is_watched {
                // The set tells when there is more.
                return;
            }
        }
    }

    /// Ends what is left on the hosts, and takes what they still say.
    pub(super) fn leave_hosts(&mut self) {
        let until = Instant::now() + FAREWELL;
        while let Starter::Hosts(links) = &mut self.starter {
            links.close();
            if !links.begun() || !links.any_open() || Instant::now() >= until {
                return;
            }
            if self.turn(Some(until.saturating_duration_since(Instant::now()))).is_err() {
                return;
            }
        }
    }
}
