//! The output of a child process.

use std::io::Read;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The text of one stream. A thread reads it, so that the child never waits for room in the pipe.
pub struct Output(Receiver<Vec<u8>>);

impl Output {
    /// Starts to read.
    pub fn of(mut stream: impl Read + Send + 'static) -> Output {
        let (tell, text) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = stream.read(&mut buffer) {
                if tell.send(buffer[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        Output(text)
    }

    /// The text that has come by the end of the stream, or after `limit` if that is earlier. The stream may outlive the child: a process
    /// that the child left behind may hold it open.
    pub fn take(&self, limit: Duration) -> String {
        let (until, mut text) = (Instant::now() + limit, Vec::new());
        while let Ok(more) = self.0.recv_timeout(until.saturating_duration_since(Instant::now())) {
            text.extend(more);
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}
