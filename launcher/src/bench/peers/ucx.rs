//! UCX, by its own perftest: two processes of it on this machine, over POSIX shared memory.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::bench::child::{Running, in_path};
use crate::bench::cores::allowed_cpus;
use crate::bench::figure::Summary;
use crate::bench::kind::Kind;

const PROGRAM: &str = "ucx_perftest";
const RUNNING: Duration = Duration::from_secs(60);
/// The client is started anew for so long, while the server is not yet listening.
const COMING_UP: Duration = Duration::from_secs(5);

/// The program, found.
pub struct Ucx {
    quick: bool,
}

/// Which of perftest's figures is meant.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Column {
    /// The median latency of one way, in microseconds.
    Latency,
    /// Operations a second, over the whole run.
    Rate,
    /// MiB a second, over the whole run.
    Bandwidth,
}

impl Ucx {
    /// Finds it.
    ///
    /// # Errors
    /// If it is not there.
    pub fn new(quick: bool) -> anyhow::Result<Ucx> {
        anyhow::ensure!(in_path(PROGRAM), "there is no `{PROGRAM}` in PATH (Debian: ucx-utils)");
        Ok(Ucx { quick })
    }

    /// One run a size, or the median of five at 8 bytes; the lower level first, the higher where that cannot do the
    /// size.
    ///
    /// # Errors
    /// If no size could be measured.
    pub fn measure(&self, kind: Kind, sizes: &[usize]) -> anyhow::Result<Vec<(usize, f64)>> {
        use Column::*;
        let (low, high, column) = match kind {
            Kind::Put => ("put_bw", "ucp_put_bw", Rate),
            Kind::Get => ("get", "ucp_get", Rate),
            Kind::PutPoll | Kind::PutBell => ("put_lat", "ucp_put_lat", Latency),
            Kind::Am => ("am_lat", "ucp_am_lat", Latency),
            Kind::AmRate => ("am_bw", "ucp_am_bw", Rate),
            Kind::Atomic => ("fadd", "ucp_fadd", Rate),
            Kind::Bandwidth => ("put_bw", "ucp_put_bw", Bandwidth),
            _ => return Ok(Vec::new()),
        };
        let mut values = Vec::new();
        let mut trouble = None;
        for &size in sizes {
            let repeat = if size == 8 && !self.quick { 5 } else { 1 };
            let mut found = Vec::new();
            for _ in 0..repeat {
                match self.one(low, true, size, column).or_else(|_| self.one(high, false, size, column)) {
                    Ok(value) => found.push(value),
                    Err(error) => trouble = Some(error),
                }
            }
            values.extend(Summary::of(&found).map(|found| (size, found.median)));
        }
        match trouble {
            Some(error) if values.is_empty() => Err(error),
            _ => Ok(values),
        }
    }

    /// One run: nanoseconds an operation, or GB/s.
    fn one(&self, test: &str, is_low: bool, size: usize, column: Column) -> anyhow::Result<f64> {
        /// With fewer it prints no figures for bandwidth.
        const FEWEST: usize = 100;
        let iterations = ((64 << 20) / size).min(200_000) / if self.quick { 100 } else { 1 };
        // A port that is free now; the server opens it a moment later.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let cpus = allowed_cpus();
        let command = |server: bool| {
            let mut command = Command::new(PROGRAM);
            if !server {
                command.arg("127.0.0.1");
            }
            command.args(["-t", test, "-v", "-s", &size.to_string(), "-p", &port.to_string()]);
            command.args(["-n", &iterations.max(FEWEST).to_string(), "-w", &(iterations / 10).max(10).to_string()]);
            if is_low {
                let layout = if matches!(test, "get") || size > 64 << 10 { "bcopy" } else { "short" };
                command.args(["-x", "posix", "-d", "memory", "-D", layout]);
            }
            if cpus.len() > 1 {
                command.args(["-c", &cpus[usize::from(!server)].to_string()]);
            }
            command.env("UCX_LOG_LEVEL", "fatal").env("UCX_WARN_UNUSED_ENV_VARS", "n");
            command
        };
        let _server = Running::start(command(true))?;
        let begin = Instant::now();
        while !is_listening(port) {
            anyhow::ensure!(begin.elapsed() < COMING_UP, "`{PROGRAM}` does not listen on port {port}");
            std::thread::sleep(Duration::from_millis(2));
        }
        let output = Running::start(command(false))?.finish(RUNNING)?;
        value(&output, column).ok_or_else(|| anyhow::anyhow!("`{PROGRAM} -t {test}` printed nothing to read"))
    }
}

/// Whether some process listens on this port. Connecting to find out would be taken for the client.
fn is_listening(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let listens = |table: &str| {
        std::fs::read_to_string(table).unwrap_or_default().lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let (local, state) = (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
            state == LISTEN && local.ends_with(&format!(":{port:04X}"))
        })
    };
    listens("/proc/net/tcp") || listens("/proc/net/tcp6")
}

/// The figure on the last line of `-v` output: iterations, then latency at the 50th percentile, average, overall;
/// bandwidth average, overall; rate average, overall.
fn value(output: &str, column: Column) -> Option<f64> {
    let line = output.lines().map(str::trim_start).rfind(|line| line.starts_with(|c: char| c.is_ascii_digit()))?;
    let fields: Vec<f64> = line.split(',').map(|field| field.trim().parse().ok()).collect::<Option<_>>()?;
    let [_, latency, _, _, _, bandwidth, _, rate] = fields[..] else { return None };
    let value = match column {
        Column::Latency => latency * 1e3,
        Column::Rate => 1e9 / rate,
        Column::Bandwidth => bandwidth * f64::from(1 << 20) / 1e9,
    };
    (value.is_finite() && value > 0.0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perftest_is_read() {
        let output = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                      [thread 0]  90,53557.9,56378.0,56539.4,1135.1,1131.9,18,18\n \
                      20000,0.125,0.285,0.285,13722.52,1000.0,3513140,2000000\n";
        assert_eq!(value(output, Column::Latency), Some(125.0));
        assert_eq!(value(output, Column::Rate), Some(500.0));
        assert_eq!(value(output, Column::Bandwidth), Some(1.048576));
        assert_eq!(value("no such test", Column::Rate), None);
    }

    #[test]
    fn ports_that_listen_are_seen() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        assert!(is_listening(listener.local_addr().expect("it is bound").port()));
    }
}
