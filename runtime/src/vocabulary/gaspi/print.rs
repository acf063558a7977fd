//! Texts that other processes send to be printed. A thread prints them: the standard output may take nothing for a while, and the handler of
//! a message runs under the lock of the process.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::thread::start;

/// Texts that wait for the standard output. Chosen: 2 MiB of the longest ones.
const WAITING: usize = 1024;

/// How long the last texts may take. Chosen: as a terminal that is stopped for a moment.
const LAST: Duration = Duration::from_secs(5);

/// Writes a text to the standard output. If it is closed, that is no error.
pub(super) fn print(text: &[u8]) {
    let mut output = std::io::stdout().lock();
    let _ = output.write_all(text).and_then(|()| output.flush());
}

/// Where texts go to, and the thread that prints them.
type Running = (SyncSender<Box<[u8]>>, JoinHandle<()>);

/// Prints in a thread, which the first text starts. A drop waits until all is printed, or the standard output has taken nothing for long.
#[derive(Default)]
pub(super) struct Printer {
    thread: Option<Running>,
    /// Texts that were dropped since the thread printed one.
    dropped: Arc<AtomicU64>,
}

impl Printer {
    /// Prints a text soon, or drops it if too many wait.
    pub(super) fn print(&mut self, text: &[u8]) {
        if self.thread.is_none() {
            self.thread = begin(&self.dropped).inspect_err(|error| tracing::warn!(%error, "no thread to print")).ok();
        }
        let sent = self.thread.as_ref().map(|(texts, _)| texts.try_send(text.into()));
        match sent {
            Some(Ok(())) => {}
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
            None => print(text),
        }
    }
}

fn begin(dropped: &Arc<AtomicU64>) -> std::io::Result<Running> {
    let (texts, coming) = sync_channel::<Box<[u8]>>(WAITING);
    let dropped = Arc::clone(dropped);
    let thread = start("gaspi print".into(), move || {
        for text in coming {
            print(&text);
            match dropped.swap(0, Ordering::Relaxed) {
                0 => {}
                number => {
                    tracing::warn!(number, "texts of other processes were dropped: the standard output took none")
                }
            }
        }
    })?;
    Ok((texts, thread))
}

impl Drop for Printer {
    fn drop(&mut self) {
        if let Some((texts, thread)) = self.thread.take() {
            drop(texts);
            let start = Instant::now();
            while !thread.is_finished() && start.elapsed() < LAST {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
