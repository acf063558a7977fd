//! The cores a benchmark runs on.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::Context;

/// CPUs this process may run on.
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: cpu_set_t is plain bits.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: fills a set of this size.
    let failed = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0;
    // SAFETY: only reads bits below CPU_SETSIZE.
    let cpus: Vec<usize> =
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect();
    if failed || cpus.is_empty() { vec![0] } else { cpus }
}

/// Keeps this thread on one CPU: the one of this number among those allowed, starting over after the last.
pub fn pin(number: usize) -> anyhow::Result<()> {
    let cpus = allowed_cpus();
    pin_to(cpus[number % cpus.len()])
}

/// Keeps this thread on this CPU.
pub fn pin_to(cpu: usize) -> anyhow::Result<()> {
    keep_to(&[cpu])
}

/// Keeps this thread, and what it starts, on these CPUs.
fn keep_to(cpus: &[usize]) -> anyhow::Result<()> {
    // SAFETY: cpu_set_t is plain bits, all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        // SAFETY: the number is below CPU_SETSIZE, since it came out of such a set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: reads a set of this size.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()).with_context(|| format!("keeping a thread on the CPUs {cpus:?}")),
    }
}

/// Runs `work`. Meanwhile this thread, and what it starts, may use only the first `count` of its CPUs.
///
/// # Errors
/// If the system refuses the change.
pub fn within<T>(count: usize, work: impl FnOnce() -> T) -> anyhow::Result<T> {
    let cpus = allowed_cpus();
    keep_to(&cpus[..count.min(cpus.len())])?;
    let done = work();
    keep_to(&cpus)?;
    Ok(done)
}

/// How much longer a computation takes when a second CPU does it too, in the best of some attempts. It is near 1 on two cores, and up
/// to 2 on two hardware threads of one core. A virtual machine cannot tell these apart in another way.
pub fn slowdown() -> f64 {
    const ATTEMPTS: usize = 5;
    if allowed_cpus().len() < 2 {
        return 1.0;
    }
    let together = Barrier::new(2);
    // Without pinning the figures are less precise, but not wrong.
    let meet = |number| {
        let _ = pin(number);
        let best = |_| {
            together.wait();
            compute()
        };
        (0..ATTEMPTS).map(best).fold(f64::INFINITY, f64::min)
    };
    std::thread::scope(|scope| {
        let alone = scope.spawn(|| {
            let _ = pin(0);
            (0..ATTEMPTS).map(|_| compute()).fold(f64::INFINITY, f64::min)
        });
        let alone = alone.join().expect("it only computes");
        let other = scope.spawn(|| meet(1));
        let one = scope.spawn(|| meet(0)).join().expect("it only computes");
        one.max(other.join().expect("it only computes")) / alone
    })
}

/// Seconds for a computation that keeps most of a core's units busy: four chains that do not wait for each other.
fn compute() -> f64 {
    const ROUNDS: u64 = 200_000;
    let start = Instant::now();
    let mut chains = [1u64, 2, 3, 4];
    for round in 0..ROUNDS {
        chains = chains.map(|chain| black_box((chain ^ round).wrapping_add(chain >> 3)));
    }
    black_box(chains);
    start.elapsed().as_secs_f64()
}
