//! perftest: a server and a client of it on this machine, over the RDMA device that ours uses.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use bellwether_runtime::Settings;
use bellwether_runtime::transport::verbs;

use crate::bench::child::{Running, in_path};
use crate::bench::cores::allowed_cpus;
use crate::bench::kind::Kind;
use crate::bench::task::stream;

const RUNNING: Duration = Duration::from_secs(60);
/// The client is started anew for so long, while the server is not yet listening.
const COMING_UP: Duration = Duration::from_secs(10);

/// The programs, found, and the device that they are to use.
pub struct Perftest {
    offer: verbs::Offer,
    quick: bool,
}

/// Which of a program's figures is meant.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Column {
    /// A latency in microseconds, of one way, or of an atomic there and back: as ours, batches' averages, after some to warm
    /// up. Perftest's typical latency leaves out the time that the kernel takes now and then.
    Latency,
    /// Millions of operations a second, over the whole run, as ours.
    Rate,
    /// MiB a second, over the whole run.
    Bandwidth,
}

impl Perftest {
    /// Finds programs and device.
    ///
    /// # Errors
    /// If either is not there.
    pub fn new(quick: bool) -> anyhow::Result<Perftest> {
        for program in ["ib_write_lat", "ib_write_bw", "ib_send_lat", "ib_atomic_lat"] {
            anyhow::ensure!(in_path(program), "there is no `{program}` in PATH (Debian: perftest)");
        }
        let offers = verbs::offers(Settings::from_env()?.verbs_device.as_deref()).map_err(anyhow::Error::msg)?;
        let offer = offers.into_iter().next().ok_or_else(|| anyhow::anyhow!("there is no RDMA device"))?;
        Ok(Perftest { offer, quick })
    }

    /// One run a size.
    ///
    /// # Errors
    /// If one fails, does not end, or prints nothing to read.
    pub fn measure(&self, kind: Kind, sizes: &[usize]) -> anyhow::Result<Vec<(usize, f64)>> {
        let (program, column) = match kind {
            Kind::Put => ("ib_write_bw", Column::Rate),
            Kind::PutPoll | Kind::PutBell => ("ib_write_lat", Column::Latency),
            Kind::Am => ("ib_send_lat", Column::Latency),
            Kind::Atomic => ("ib_atomic_lat", Column::Latency),
            Kind::Bandwidth => ("ib_write_bw", Column::Bandwidth),
            _ => return Ok(Vec::new()),
        };
        let mut found = Vec::new();
        for &size in sizes {
            found.extend(self.one(program, size, column)?.into_iter().map(|value| (size, value)));
        }
        Ok(found)
    }

    /// One run: nanoseconds per operation in each batch or over the whole run, or GB/s.
    fn one(&self, program: &str, size: usize, column: Column) -> anyhow::Result<Vec<f64>> {
        // A port that is free now; the server opens it a moment later.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let iterations = match column {
            // As many as of ours.
            Column::Latency => 11_000.min((32 << 20) / size) / if self.quick { 20 } else { 1 },
            _ => stream(size, self.quick),
        };
        let cpus = allowed_cpus();
        let command = |server: bool| {
            let mut command = Command::new(if cpus.len() > 1 { "taskset" } else { program });
            if cpus.len() > 1 {
                command.args(["-c", &cpus[usize::from(server)].to_string(), program]);
            }
            let offer = &self.offer;
            command.args(["-d", &offer.device, "-i", &offer.port.to_string(), "-x", &offer.gid_index.to_string()]);
            command.args(["-F", "-p", &port.to_string(), "-n", &iterations.max(20).to_string()]);
            if program != "ib_atomic_lat" {
                command.args(["-s", &size.to_string()]);
            }
            if column == Column::Latency {
                // Every single time.
                command.arg("-U");
            } else {
                // As many under way as ours has, and a report for as many.
                command.args(["-t", "64", "-Q", if iterations < 64 { "1" } else { "32" }]);
            }
            if !server {
                command.arg("127.0.0.1");
            }
            command
        };
        let server = Running::start(command(true))?;
        let begin = Instant::now();
        // The server prints nothing when it begins to listen.
        let output = loop {
            match Running::start(command(false))?.finish(RUNNING) {
                Ok(output) => break output,
                Err(error) if begin.elapsed() > COMING_UP => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        server.finish(RUNNING)?;
        let found = values(&output, size, column);
        anyhow::ensure!(!found.is_empty(), "`{program}` printed nothing to read");
        Ok(found)
    }
}

/// The figures: of latencies from the lines of number and time, else from the line of the table that is for `size`: size,
/// iterations, peak, average and rate.
fn values(output: &str, size: usize, column: Column) -> Vec<f64> {
    if column == Column::Latency {
        return latencies(output);
    }
    let fields = |line: &str| line.split_whitespace().map(|field| field.parse().ok()).collect::<Option<Vec<f64>>>();
    let line = output.lines().filter_map(fields).find(|fields| fields.len() >= 5 && fields[0] == size as f64);
    let value = line.map(|line| match column {
        Column::Rate => 1e3 / line[4],
        _ => line[3] * f64::from(1 << 20) / 1e9,
    });
    value.filter(|value| value.is_finite() && *value > 0.0).into_iter().collect()
}

/// The averages, in nanoseconds, of batches of the times listed, in microseconds.
fn latencies(output: &str) -> Vec<f64> {
    /// One in this many parts of a run is to warm up.
    const WARM: usize = 11;
    const BATCHES: usize = 20;
    let time = |line: &str| {
        let (number, time) = line.split_once(", ")?;
        number.parse::<usize>().ok()?;
        time.trim().parse::<f64>().ok()
    };
    let times: Vec<f64> = output.lines().filter_map(time).collect();
    let warm = &times[times.len() / WARM..];
    let batch = (warm.len() / BATCHES).max(1);
    let average = |batch: &[f64]| 1e3 * batch.iter().sum::<f64>() / batch.len() as f64;
    warm.chunks_exact(batch).map(average).filter(|value| value.is_finite() && *value > 0.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_tables_are_read() {
        let times = (1..=22).map(|n| format!("{n}, {}\n", if n < 3 { 700.0 } else { f64::from(n) + 0.5 }));
        let latency =
            format!("#, usec\n{} #bytes #iterations    t_min[usec]\n 8       22\n", times.collect::<String>());
        let batches: Vec<f64> = (3..=22).map(|n| f64::from(n) * 1e3 + 500.0).collect();
        assert_eq!(values(&latency, 8, Column::Latency), batches);
        assert!(values("#, usec\n1, nan\n", 8, Column::Latency).is_empty());
        let pairs = (0..44).map(|n| format!("{}, {}\n", n + 1, 10 + n % 2 * 2)).collect::<String>();
        assert_eq!(values(&pairs, 8, Column::Latency), [11000.0; 20], "averages of two each");
        let bandwidth = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n \
                         65536      300              30.69              1000.0  \t\t   0.016\n";
        assert_eq!(values(bandwidth, 65536, Column::Bandwidth), [1.048576]);
        assert_eq!(values(bandwidth, 65536, Column::Rate), [62500.0]);
        assert!(values("no device", 8, Column::Rate).is_empty());
    }
}
