//! How soon the other ranks learn that a rank was killed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use bellwether_runtime::{Error, Max, World};

use super::task::{Measured, write_report};

/// Ranks of the job.
pub const RANKS: usize = 8;
/// How long the other ranks wait before the last rank is killed. Chosen: they sleep by then.
const ASLEEP: Duration = Duration::from_millis(30);

/// One rank of a job whose last rank kills itself while the others wait: in a barrier, for a bell, for something outside the job. Rank
/// 0 reports the seconds from the kill until the last of them has got its error.
///
/// # Errors
/// Those of the runtime; if a wait ends in another way.
pub fn rank(report: &Path) -> anyhow::Result<()> {
    let world = World::builder().survive().start()?;
    let (rank, last) = (world.rank(), world.size() - 1);
    let killed = world.alloc::<u64>(1)?;
    let bell = world.bell()?;
    world.barrier()?;
    if rank == last {
        std::thread::sleep(ASLEEP);
        killed.put(0, 0, now()?)?;
        // SAFETY: plain numbers.
        unsafe { libc::kill(std::process::id() as libc::pid_t, libc::SIGKILL) };
    }
    let outcome = match rank % 3 {
        0 => world.barrier(),
        1 => bell.wait(1).map(drop),
        _ => world.wait_until(|| false),
    };
    let heard = now()?;
    let is_told = matches!(outcome, Err(Error::PeerLost { rank, .. }) if rank == last);
    anyhow::ensure!(is_told, "rank {rank} waited while rank {last} was killed, and got {outcome:?}");
    let mut latest = [heard];
    world.survivors()?.allreduce(&mut latest, Max)?;
    if rank == 0 {
        let seconds = latest[0].saturating_sub(killed.load(0)) as f64 / 1e9;
        write_report(report, &[Measured { name: "death".into(), ours: vec![seconds], ..Measured::default() }])?;
    }
    Ok(world.finish()?)
}

/// Seconds from the kill of a bare process until its parent's wait has returned.
///
/// # Errors
/// If it cannot be started.
pub fn bare() -> anyhow::Result<f64> {
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().context("starting a bare process")?;
    std::thread::sleep(ASLEEP);
    let begin = Instant::now();
    child.kill().context("killing a bare process")?;
    child.wait().context("waiting for a bare process")?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Nanoseconds of a clock that all processes of this machine share.
fn now() -> anyhow::Result<u64> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is set before 1970")?;
    Ok(since.as_nanos() as u64)
}
