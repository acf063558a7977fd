//! A progress bar on a terminal, and nothing at all elsewhere.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::sync::{Mutex, PoisonError};
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
    /// The least width of a line above the bar.
    pad: usize,
}

/// A line above the bar is at least this wide, if the terminal is: it may reach the screen, through another pipe, before
/// the bar has been wiped from there.
const WIDEST_BAR: u16 = 79;

impl Progress {
    /// A bar that is full at `length`. `text` follows it, in the template language of indicatif.
    pub fn new(world: &World, length: u64, text: &str) -> Progress {
        let Some((target, pad)) = (world.rank() == 0).then(target).flatten() else {
            return Progress { bar: ProgressBar::hidden(), pad: 0 };
        };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        let template = format!("{{bar:30}} {{percent:>3}} % {text}");
        bar.set_style(ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_position(0);
        Progress { bar, pad }
    }

    /// Moves the bar to `position`.
    pub fn set(&self, position: u64) {
        self.bar.set_position(position);
    }

    /// Prints a line to standard output, above the bar.
    pub fn say(&self, line: std::fmt::Arguments<'_>) {
        let pad = self.pad;
        self.bar.suspend(|| crate::job::say(format_args!("{:pad$}", line.to_string())));
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

/// Where to draw, if anywhere, and how wide a line above the bar must be.
fn target() -> Option<(ProgressDrawTarget, usize)> {
    if io::stderr().is_terminal() {
        return Some((ProgressDrawTarget::stderr_with_hz(REDRAWS), 0));
    }
    let width: u16 = std::env::var("BELLWETHER_TERM_WIDTH").ok()?.parse().ok().filter(|width| *width > 0)?;
    let terminal = Box::new(RemoteTerminal::new(width));
    Some((ProgressDrawTarget::term_like_with_hz(terminal, REDRAWS), usize::from(WIDEST_BAR.min(width - 1))))
}

/// The terminal behind the launcher's pipe, spoken to in ANSI sequences.
///
/// The launcher passes a line on when it is complete, or when the cursor goes back to its beginning. So what is drawn is
/// collected, and sent at once with a carriage return after it: else it would be seen only with the next drawing.
#[derive(Debug)]
struct RemoteTerminal {
    width: u16,
    drawn: Mutex<String>,
}

impl RemoteTerminal {
    fn new(width: u16) -> RemoteTerminal {
        RemoteTerminal { width, drawn: Mutex::default() }
    }

    fn draw(&self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        // A panic while drawing leaves at worst half a line.
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        drawn.write_fmt(text).map_err(io::Error::other)
    }

    fn step(&self, count: usize, direction: char) -> io::Result<()> {
        // A count of 0 would be read as 1.
        if count == 0 { Ok(()) } else { self.draw(format_args!("\x1b[{count}{direction}")) }
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
        self.draw(format_args!("{s}\n"))
    }

    fn write_str(&self, s: &str) -> io::Result<()> {
        self.draw(format_args!("{s}"))
    }

    fn clear_line(&self) -> io::Result<()> {
        self.draw(format_args!("\r\x1b[2K"))
    }

    fn flush(&self) -> io::Result<()> {
        let drawn = std::mem::take(&mut *self.drawn.lock().unwrap_or_else(PoisonError::into_inner));
        let mut stderr = io::stderr().lock();
        stderr.write_all(format!("{drawn}\r").as_bytes())?;
        stderr.flush()
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
