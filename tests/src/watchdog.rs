//! A deadline for tests that could hang: it ends the process and prints what each thread was doing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

struct Step {
    thread: String,
    what: String,
    since: Instant,
}

static STEPS: Mutex<Vec<Weak<Mutex<Step>>>> = Mutex::new(Vec::new());
static GUARDED: Mutex<BTreeMap<u64, (String, Instant)>> = Mutex::new(BTreeMap::new());
static CHANGED: Condvar = Condvar::new();

thread_local! {
    // Each thread writes to a lock of its own, so that `at` does not synchronise the threads that a test is about.
    static OWN: Arc<Mutex<Step>> = {
        let thread = std::thread::current().name().unwrap_or("?").into();
        let own = Arc::new(Mutex::new(Step { thread, what: String::new(), since: Instant::now() }));
        let mut steps = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
        steps.retain(|step| step.strong_count() > 0);
        steps.push(Arc::downgrade(&own));
        own
    };
}

/// Says what this thread does now, for the case that it does it for ever.
pub fn at(what: impl Into<String>) {
    OWN.with(|own| {
        let mut step = own.lock().unwrap_or_else(PoisonError::into_inner);
        (step.what, step.since) = (what.into(), Instant::now());
    });
}

/// While it lives, the process must not live longer than the limit it was made with.
#[must_use = "dropping it ends the watch"]
#[derive(Debug)]
pub struct Guard(u64);

/// Starts a watch: if the guard still lives after `limit`, the process prints what each thread was doing and aborts.
pub fn guard(name: impl Into<String>, limit: Duration) -> Guard {
    let mut guarded = GUARDED.lock().unwrap_or_else(PoisonError::into_inner);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    guarded.insert(number, (name.into(), Instant::now() + limit));
    if number == 0 {
        // Until it runs: its start takes memory, and a test may take that away.
        let runs = Arc::new(Barrier::new(2));
        let says = Arc::clone(&runs);
        let thread = std::thread::Builder::new().name("watchdog".into());
        let started = thread.spawn(move || {
            says.wait();
            watch();
        });
        started.expect("one more thread");
        runs.wait();
    }
    CHANGED.notify_all();
    Guard(number)
}

impl Drop for Guard {
    fn drop(&mut self) {
        GUARDED.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

fn watch() {
    let mut guarded = GUARDED.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let now = Instant::now();
        if let Some((name, _)) = guarded.values().find(|(_, end)| *end <= now) {
            tell(name);
            std::process::abort();
        }
        let sleep = guarded.values().map(|(_, end)| *end - now).min().unwrap_or(Duration::from_secs(1));
        let sleep = sleep.min(Duration::from_secs(1));
        guarded = CHANGED.wait_timeout(guarded, sleep).unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn tell(name: &str) {
    eprintln!("watchdog: {name}: not done in time; process {}", std::process::id());
    let steps = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
    for step in steps.iter().filter_map(Weak::upgrade) {
        let step = step.lock().unwrap_or_else(PoisonError::into_inner);
        eprintln!("watchdog:   {} for {:.1?}: {}", step.thread, step.since.elapsed(), step.what);
    }
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default().trim().to_owned();
        let state = read("status").lines().find(|line| line.starts_with("State")).unwrap_or("").to_owned();
        eprintln!("watchdog:   thread {:?} {}: {state}, in {}", task.file_name(), read("comm"), read("wchan"));
    }
}
