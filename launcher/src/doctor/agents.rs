//! The command's side of the connection to one host: it starts an agent, which starts this command there, and reads the answers.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::finding::Finding;
use super::output::Output;
use super::side::{Down, MARK, Up};

/// Time in which an agent has to exit after its output ended, or after we closed its input.
const GOODBYE: Duration = Duration::from_secs(1);

/// The process by which the command talks to one host: an agent, or on the own host this command itself.
pub struct Agent {
    pub name: String,
    command: Vec<OsString>,
    child: Child,
    to: Option<ChildStdin>,
    from: Receiver<Up>,
    /// Standard error of `child`.
    errors: Output,
}

impl Agent {
    /// Starts the process `command`.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(name: &str, command: Vec<OsString>) -> Result<Agent, Finding> {
        let (program, arguments) = command.split_first().expect("a command has a name");
        let pipe = || (Stdio::piped(), Stdio::piped(), Stdio::piped());
        let (stdin, stdout, stderr) = pipe();
        let mut child =
            Command::new(program).args(arguments).stdin(stdin).stdout(stdout).stderr(stderr).spawn().map_err(
                |error| {
                    let found = format!("{} cannot be started: {error}", program.display());
                    Finding::error("agent", found, format!("which {}  # or name another --agent", program.display()))
                },
            )?;
        let (to, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (tell, from) = channel();
        let out = BufReader::new(out.expect("it was asked for"));
        // This thread ends when the agent's output ends.
        std::thread::spawn(move || {
            let lines = out.lines().map_while(Result::ok);
            for up in lines.filter_map(|line| serde_json::from_str(line.strip_prefix(MARK)?).ok()) {
                if tell.send(up).is_err() {
                    return;
                }
            }
        });
        let errors = Output::of(err.expect("it was asked for"));
        Ok(Agent { name: name.into(), command, child, to, from, errors })
    }

    /// Sends a question. Ignores errors: if the agent has ended, [`Agent::answer`] reports that.
    pub fn ask(&mut self, down: &Down) {
        let text = serde_json::to_string(down).expect("texts and numbers can always be written");
        if let Some(to) = &mut self.to {
            let _ = writeln!(to, "{text}").and_then(|()| to.flush());
        }
    }

    /// Waits for the next answer, at most until `until`.
    ///
    /// # Errors
    /// The agent does not answer in time, or it has ended.
    pub fn answer(&mut self, until: Instant) -> Result<Up, Finding> {
        match self.from.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(up) => Ok(up),
            Err(RecvTimeoutError::Timeout) => {
                let found = format!("{} does not answer in time", self.shown());
                Err(Finding::error("agent", found, self.by_hand()))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    /// The finding for an agent whose output has ended.
    fn ended(&mut self) -> Finding {
        let status = self.wait();
        let errors = self.errors.take(GOODBYE);
        let last = errors.lines().rev().find(|line| !line.trim().is_empty());
        let how = status.map_or("closed its output".into(), |status| format!("ended ({status})"));
        let found = format!("{} {how}{}", self.shown(), last.map_or(String::new(), |line| format!(": {line}")));
        let own = std::env::current_exe().map_or_else(|_| "bellwether".into(), |path| path.display().to_string());
        let mend = match status.and_then(|status| status.code()) {
            // Another version of this command exits with 1 or 2 and says why, an agent that fails may say nothing; a shell that does not
            // find the program exits with 127.
            Some(status @ (1 | 2 | 127)) if !self.is_here() && (status == 127 || last.is_some()) => {
                format!("scp {own} {}:{own}", self.name)
            }
            Some(126) => format!("ssh {} chmod +x {own}", self.name),
            _ => self.by_hand(),
        };
        Finding::error("agent", found, mend)
    }

    fn wait(&mut self) -> Option<std::process::ExitStatus> {
        let until = Instant::now() + GOODBYE;
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }

    /// Whether this command runs on the own host, without an agent.
    fn is_here(&self) -> bool {
        self.command.len() <= 2
    }

    fn shown(&self) -> String {
        let words: Vec<String> = self.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        format!("`{}`", words.join(" "))
    }

    /// A command for the user to try: the agent, with `true` in place of this command.
    fn by_hand(&self) -> String {
        let before = self.command.len().saturating_sub(2);
        let words: Vec<&OsStr> = self.command[..before].iter().map(OsString::as_os_str).collect();
        if words.is_empty() {
            return "bellwether doctor".into();
        }
        let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        format!("{} true", words.join(" "))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.to = None;
        if self.wait().is_none() {
            // `kill` fails only if the child has just ended.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
