//! A progress bar on a terminal, and nothing at all elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use bellwether::World;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

/// How often the bar is redrawn, per second.
const REDRAWS: u8 = 10;

/// The bar of a job: drawn by rank 0 if there is a terminal to draw on.
///
/// Under the launcher a rank's standard error is a pipe; if there is a terminal behind it, the launcher says how wide it
/// is in `BELLWETHER_TERM_WIDTH`.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar that is full at `length`. `unit` names what is counted.
    pub fn new(world: &World, length: u64, unit: &str) -> Progress {
        let Some(target) = (world.rank() == 0).then(target).flatten() else {
            return Progress { bar: ProgressBar::hidden() };
        };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        let template = format!("{{bar:30}} {{percent:>3}} %  {{pos}} of {{len}} {unit}  {{eta}} left  {{msg}}");
        bar.set_style(ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_position(0);
        Progress { bar }
    }

    /// A bar that never draws, for serial reference runs and tests.
    pub fn hidden() -> Progress {
        Progress { bar: ProgressBar::hidden() }
    }

    /// Moves the bar to `position`.
    pub fn set(&self, position: u64) {
        self.bar.set_position(position);
    }

    /// Shows a short text at the end of the bar.
    pub fn message(&self, text: impl FnOnce() -> String) {
        if !self.bar.is_hidden() {
            self.bar.set_message(text());
        }
    }

    /// Prints a line to standard output, above the bar.
    pub fn say(&self, line: std::fmt::Arguments<'_>) {
        self.bar.suspend(|| crate::job::say(line));
    }

    /// Takes the bar off the screen.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Where to draw, if anywhere.
fn target() -> Option<ProgressDrawTarget> {
    if io::stderr().is_terminal() {
        return Some(ProgressDrawTarget::stderr_with_hz(REDRAWS));
    }
    let width = std::env::var("BELLWETHER_TERM_WIDTH").ok()?.parse().ok().filter(|width| *width > 0)?;
    Some(ProgressDrawTarget::term_like_with_hz(Box::new(RemoteTerminal { width }), REDRAWS))
}

/// The terminal behind the launcher's pipe, spoken to in ANSI sequences.
#[derive(Debug)]
struct RemoteTerminal {
    width: u16,
}

impl RemoteTerminal {
    fn send(&self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        io::stderr().lock().write_fmt(text)
    }

    fn step(&self, count: usize, direction: char) -> io::Result<()> {
        // A count of 0 would be read as 1.
        if count == 0 { Ok(()) } else { self.send(format_args!("\x1b[{count}{direction}")) }
    }
}

impl TermLike for RemoteTerminal {
    fn width(&self) -> u16 {
        self.width
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.step(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.step(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.step(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.step(n, 'D')
    }

    fn write_line(&self, s: &str) -> io::Result<()> {
        self.send(format_args!("{s}\n"))
    }

    fn write_str(&self, s: &str) -> io::Result<()> {
        self.send(format_args!("{s}"))
    }

    fn clear_line(&self) -> io::Result<()> {
        self.send(format_args!("\r\x1b[2K"))
    }

    fn flush(&self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Seconds, as short as they can be read: `0.42 s`, `12.3 s`, `4 min 05 s`.
pub fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s < 10.0 => format!("{s:.2} s"),
        s if s < 120.0 => format!("{s:.1} s"),
        s => format!("{} min {:02} s", s as u64 / 60, s as u64 % 60),
    }
}
