//! The rows of UCP's wake-up, each a program that every rank runs.

mod arming;
mod events;
mod pingpong;
mod signals;
mod waits;

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bellwether_runtime::vocabulary::ucp::codes::BUSY;
use bellwether_runtime::vocabulary::ucp::{Params, Status, Worker};
use bellwether_runtime::{Bell, World};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use self::pingpong::ping_pong;

/// A rank that runs a row.
#[derive(Debug)]
pub struct Task<'a> {
    /// Its world.
    pub world: &'a World,
    /// Time passes only in waits of the library.
    pub virtual_time: bool,
    /// Ranks reach each other by mapped memory.
    pub mapped: bool,
    /// Gets end later, over a network that announces their ends.
    pub posted: bool,
    /// All that comes is announced: descriptors do without their timer, so that an announcement that is lost leaves a rank asleep.
    pub announced: bool,
    /// Ranks are processes.
    pub processes: bool,
    /// How often loops run: the share of the table's number, in thousandths.
    pub share: usize,
}

impl Task<'_> {
    /// Nothing comes to a rank whose peers wait. Over the contract a peer that is late may still send what belongs to a barrier before.
    pub fn is_quiet_alone(&self) -> bool {
        self.mapped || self.announced && self.virtual_time
    }
}

impl std::ops::Deref for Task<'_> {
    type Target = World;

    fn deref(&self) -> &World {
        self.world
    }
}

/// A row: the program of one rank.
pub type Row = fn(&Task<'_>);

macro_rules! rows {
    ($dollar:tt $($name:ident: $row:path;)+) => {
        /// All rows, by name.
        pub const ROWS: &[(&str, Row)] = &[$((stringify!($name), $row)),+];

        /// Makes a test of each row, which calls the given function with its name.
        #[macro_export]
        macro_rules! ucp_row_tests {
            ($dollar run:ident) => {$(
                #[test]
                fn $name() {
                    $dollar run(stringify!($name));
                }
            )+};
        }
    };
}

rows! { $
    w01_the_descriptor_is_the_workers: arming::w01;
    w02_w03_without_the_feature_calls_are_refused: arming::w02;
    w04_an_armed_descriptor_becomes_readable: arming::w04;
    w05_events_that_wait_keep_it_from_arming: arming::w05;
    w06_no_wake_up_is_lost: pingpong::w06;
    w07_w23_it_stays_readable_until_it_is_armed_again: arming::w07;
    w08_what_was_there_is_drained_first: arming::w08;
    w09_progress_tells_of_work: arming::w09;
    w10_a_wait_makes_no_progress: waits::w10;
    w11_a_wait_is_arm_and_sleep: waits::w11;
    w12_a_wait_sleeps: waits::w12;
    w13_wait_mem_ends_when_the_word_is_written: waits::w13;
    w14_a_signal_ends_a_wait: signals::w14;
    w15_any_thread_may_signal: signals::w15;
    w16_a_signal_before_a_wait_is_not_lost: signals::w16;
    w17_signals_coalesce: signals::w17;
    w18_the_order_of_ucx_own_test: signals::w18;
    w19_the_end_of_a_send_is_an_event: events::w19;
    w20_a_mask_keeps_arrivals: events::w20;
    w21_events_come_to_the_programs_epoll: events::w21;
    w22_each_descriptor_in_an_epoll_is_independent: events::w22;
    w24_the_references_loop_ends: pingpong::w24;
}

/// The row whose name begins with `name`.
pub fn row(name: &str) -> Option<(&'static str, Row)> {
    ROWS.iter().copied().find(|(full, _)| full.starts_with(name))
}

/// Longest time of a row in one surrounding.
pub const LIMIT: Duration = Duration::from_secs(150);

/// Longest wait for an event that has to come.
const LONG: Duration = Duration::from_secs(60);
const NOW: Duration = Duration::ZERO;

/// Messages that have come here.
#[derive(Debug, Default)]
struct Received(Cell<u64>);

/// Rank 0 has a worker; the others do what it asks for.
struct Run<'a> {
    task: &'a Task<'a>,
    worker: Worker,
    came: Rc<Received>,
    /// Rung at a rank that is to go on.
    go: Bell,
    gone: Cell<u64>,
}

impl<'a> Run<'a> {
    /// Collective.
    fn new(task: &'a Task<'a>) -> Run<'a> {
        Run::with(task, &Params::default())
    }

    /// Collective.
    fn with(task: &'a Task<'a>, params: &Params<'_>) -> Run<'a> {
        let here = Run::with_timer(task, params);
        if task.announced {
            task.wake_up().expect("there is one").trust_announcements();
        }
        here
    }

    /// As [`Run::with`], and the descriptor keeps its timer. Collective.
    fn with_timer(task: &'a Task<'a>, params: &Params<'_>) -> Run<'a> {
        task.set_state(Received::default());
        let came = task.state().expect("just set");
        let go = task.bell().expect("makes a bell");
        let worker = Worker::create(task.world, params).expect("makes a worker");
        task.barrier().expect("all are there");
        Run { task, worker, came, go, gone: Cell::new(0) }
    }

    fn came(&self) -> u64 {
        self.came.0.get()
    }

    /// Lets rank 1 go on.
    fn go_on(&self) {
        self.go.ring(1).expect("rank 1 is there");
    }

    /// Waits until this rank is to go on.
    fn wait_to_go_on(&self) {
        self.gone.set(self.gone.get() + 1);
        self.go.wait(self.gone.get()).expect("somebody rings");
    }

    /// Runs `body` on rank 0 while nothing comes from the other ranks. They wait for a ring: a rank that ended the row earlier would
    /// send to rank 0 in a barrier.
    fn by_itself(&self, body: impl FnOnce()) {
        if self.task.rank() == 0 {
            self.settle();
            body();
            (1..self.task.size()).for_each(|rank| self.go.ring(rank).expect("is there"));
        } else {
            self.wait_to_go_on();
        }
    }

    /// Rank 1 sends a message to rank 0 each of `times` times that it is told to. Does nothing elsewhere.
    fn answer(&self, times: usize) {
        if self.task.rank() == 1 {
            for _ in 0..times {
                self.wait_to_go_on();
                send(self.task, 0);
            }
        }
    }

    /// Whether the descriptor is readable within so long. Makes no progress.
    fn readable(&self, limit: Duration) -> bool {
        readable(self.task, limit)
    }

    /// Makes progress until nothing is left.
    fn drain(&self) {
        while self.worker.progress().expect("makes progress") > 0 {}
    }

    /// Makes progress until the worker can be armed, and arms it.
    fn drain_and_arm(&self) {
        self.drain();
        // Something may come in between.
        self.arm();
    }

    /// Arms, with progress while something waits.
    fn arm(&self) {
        let end = Instant::now() + LONG;
        while let Err(status) = self.worker.arm() {
            assert_eq!(status, Status(BUSY));
            self.drain();
            assert!(Instant::now() < end, "busy for ever");
        }
    }

    /// Arms when nothing comes any more: neither completions of this rank's sends, nor messages of others in a barrier.
    fn settle(&self) {
        self.task.fence();
        let mut quiet = 0;
        while quiet < 3 {
            self.drain();
            self.arm();
            let wake_up = self.task.wake_up().expect("there is one");
            quiet = if wake_up.poll(Some(Duration::from_millis(3))).expect("polls") { 0 } else { quiet + 1 };
        }
    }

    /// Lets rank 1 go on, and is armed again when what that costs this rank is over.
    fn go_on_quietly(&self) {
        self.go_on();
        if !self.task.mapped {
            self.task.fence();
        }
    }

    /// Sleeps by the descriptor, which is armed, until something has come; returns before it is delivered. The timer of the descriptor ends no
    /// such sleep.
    fn await_event(&self) {
        let wake_up = self.task.wake_up().expect("there is one");
        assert!(wake_up.poll(Some(LONG)).expect("polls"), "armed, and nothing is announced");
        assert!(self.task.virtual_time || is_readable(wake_up.as_fd(), NOW));
    }

    /// Sleeps by poll(2), where that may be, until the descriptor is readable.
    fn sleep(&self, round: u64) {
        assert!(self.readable(LONG), "round {round}: armed, and the message was not announced");
    }

    /// Whether nothing has come. The descriptor may be readable all the same: its timer may have expired.
    fn is_quiet(&self) -> bool {
        !self.task.wake_up().expect("there is one").poll(Some(NOW)).expect("polls")
    }

    /// Delivers messages until `count` have come.
    fn await_messages(&self, count: u64) {
        while self.came() < count {
            self.drain();
            if self.came() < count {
                self.arm();
                assert!(self.came() >= count || self.readable(LONG), "armed, and nothing is announced");
            }
        }
    }

    /// All ranks come here.
    fn end(self) {
        drop(self.worker);
        self.task.barrier().expect("all are there");
    }
}

/// Sends a message that the target counts.
fn send(world: &World, to: usize) {
    let note = |context: &bellwether_runtime::Context<'_>, _: u64| {
        let came = context.state::<Received>().expect("set before the barrier");
        came.0.set(came.0.get() + 1);
    };
    world.invoke_plain(to, 1u64, note).expect("sends");
}

/// Whether the descriptor of this rank becomes readable within so long, by poll(2) where that may be.
fn readable(task: &Task<'_>, limit: Duration) -> bool {
    let wake_up = task.wake_up().expect("there is one");
    if task.virtual_time {
        return wake_up.poll(Some(limit)).expect("polls");
    }
    is_readable(wake_up.as_fd(), limit)
}

fn is_readable(descriptor: BorrowedFd<'_>, limit: Duration) -> bool {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&limit)).expect("polls") > 0
}
