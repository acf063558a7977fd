//! Children of a rank whose other thread was in LAPI's or GASPI's lock at the fork. That thread is not in the child and never gives the
//! lock back there: each call of the child is an error and does not wait.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bellwether::gaspi::{Code as GaspiCode, GROUP_ALL, Process, Timeout, codes as gaspi_codes};
use bellwether::lapi::raw::{self, MsgInfo, query};
use bellwether::lapi::{Answer, Code, Counter, Lapi, codes};
use bellwether::{Error, Result, World};

use super::stores::{End, child};

const PAUSE: Duration = Duration::from_millis(1);
/// Seconds after which a child counts as waiting for ever.
const LIMIT: u32 = 30;

/// One thread stays inside the lock, and says so, until another one has forked.
#[derive(Clone, Default)]
struct Stay {
    inside: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
}

impl Stay {
    fn stay(&self) {
        self.inside.store(true, Ordering::Release);
        while !self.over.load(Ordering::Acquire) {
            std::thread::sleep(PAUSE);
        }
    }

    /// Runs `act` in a child that is forked while the other thread is inside.
    fn fork(&self, act: impl FnOnce() -> Result<()>) {
        while !self.inside.load(Ordering::Acquire) {
            std::thread::sleep(PAUSE);
        }
        let (_, end, words) = child(|| {
            // SAFETY: no preconditions. It ends a child that waits.
            unsafe { libc::alarm(LIMIT) };
            act()
        });
        assert_eq!(end, End::Returned, "the last call that the child made: {words}");
        self.over.store(true, Ordering::Release);
    }
}

/// Makes a call in the child, which is to give this error at once.
fn refuses<R: Debug, E: Debug + PartialEq>(
    name: &str,
    error: &E,
    call: impl FnOnce() -> std::result::Result<R, E>,
) -> Result<()> {
    eprintln!("{name}");
    match call() {
        Err(got) if got == *error => Ok(()),
        other => Err(Error::Start(format!("{name}: {other:?}"))),
    }
}

/// The thread of interrupt mode runs a header handler.
pub fn of_a_lapi_handle() -> Result<()> {
    const STAYS: usize = 5;
    const OVER: usize = 6;
    let lapi = Lapi::start(World::builder())?;
    let (stay, main) = (Stay::default(), std::thread::current().id());
    let stays = stay.clone();
    let handler = lapi.handler(STAYS, move |_, _| {
        // Calls of the main thread run handlers too.
        if std::thread::current().id() != main {
            stays.stay();
        }
        Answer::discard()
    });
    handler.expect("an index of the table");
    let over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&over);
    let handler = lapi.handler(OVER, move |_, _| {
        ends.store(true, Ordering::Release);
        Answer::discard()
    });
    handler.expect("an index of the table");
    lapi.gfence().expect("both have registered");
    if lapi.rank() == 0 {
        stay.fork(|| lapi_calls_of_a_child(&lapi));
        lapi.message(1, OVER).send().expect("sends");
    } else {
        while !over.load(Ordering::Acquire) {
            lapi.message(0, STAYS).send().expect("sends");
            std::thread::sleep(10 * PAUSE);
        }
    }
    lapi.gfence().expect("the handle is as it was");
    if lapi.rank() == 0 {
        println!("2 ranks as they were");
    }
    lapi.finish()
}

fn lapi_calls_of_a_child(lapi: &Lapi) -> Result<()> {
    let invalid = Code(codes::HNDL_INVALID);
    // SAFETY: no handler has it, and the handle does not end.
    let handle = unsafe { lapi.handle() };
    let code = |code| if code == codes::SUCCESS { Ok(()) } else { Err(Code(code)) };
    let (counter, mut value, mut info) = (Counter::new(), 0, MsgInfo::default());
    refuses("handler", &invalid, || lapi.handler(7, |_, _| Answer::discard()))?;
    refuses("send", &invalid, || lapi.message(1, 5).send())?;
    refuses("wait", &invalid, || lapi.wait(&counter, 1))?;
    refuses("fence", &invalid, || lapi.fence())?;
    refuses("gfence", &invalid, || lapi.gfence())?;
    refuses("probe", &invalid, || code(raw::probe(handle)))?;
    // SAFETY: a value of this stack.
    refuses("qenv", &invalid, || code(unsafe { raw::qenv(handle, query::TASK_ID, &raw mut value) }))?;
    // SAFETY: as above.
    refuses("msgpoll", &invalid, || code(unsafe { raw::msgpoll(handle, 1, &raw mut info) }))?;
    refuses("term", &invalid, || code(raw::term(handle)))
}

/// Another thread of the program is in a reduction, whose function runs inside the lock.
pub fn of_a_gaspi_process() -> Result<()> {
    const DONE: &str = "no code";
    let process = Process::start(World::builder())?;
    process.proc_init(Timeout::Block).expect(DONE);
    process.segment_create(0, 64, GROUP_ALL, Timeout::Block).expect(DONE);
    let stay = Stay::default();
    let reduce = || {
        let (send, mut receive) = ([1u8], [0u8]);
        // Rank 0 is the root of the tree: it alone combines.
        let combine = |mine: &mut [u8], theirs: &[u8]| {
            stay.stay();
            mine[0] += theirs[0];
            Ok(())
        };
        process.allreduce_user(&send, &mut receive, 1, GROUP_ALL, Timeout::Block, combine).expect(DONE);
        assert_eq!(receive, [2]);
    };
    if process.place().0 == 0 {
        std::thread::scope(|scope| {
            scope.spawn(reduce);
            stay.fork(|| gaspi_calls_of_a_child(&process));
        });
    } else {
        reduce();
    }
    process.barrier(GROUP_ALL, Timeout::Block).expect(DONE);
    process.proc_term(Timeout::Block).expect(DONE);
    let rank = process.place().0;
    // SAFETY: the child uses nothing that another thread may have locked, and ends.
    let made = unsafe { libc::fork() };
    assert!(made >= 0, "no child: {}", std::io::Error::last_os_error());
    if made == 0 {
        // SAFETY: no preconditions. It ends a child that waits for the thread that makes progress.
        unsafe { libc::alarm(LIMIT) };
        let is_refused = matches!(process.finish(), Err(Error::Forked { rank: of, .. }) if of == rank);
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(made, &raw mut status, 0) }, made);
    assert_eq!(status, 0, "the child was not refused; 14 is SIGALRM: it waits");
    process.finish()?;
    if rank == 0 {
        println!("2 ranks as they were");
    }
    Ok(())
}

fn gaspi_calls_of_a_child(process: &Process) -> Result<()> {
    let error = GaspiCode(gaspi_codes::ERROR);
    refuses("initialized", &error, || process.initialized())?;
    refuses("proc_rank", &error, || process.proc_rank())?;
    refuses("config_get", &error, || process.config_get().map(drop))?;
    refuses("barrier", &error, || process.barrier(GROUP_ALL, Timeout::Block))?;
    refuses("passive_receive", &error, || process.passive_receive(0, 0, 8, Timeout::Block))?;
    refuses("segment_create", &error, || process.segment_create(1, 64, GROUP_ALL, Timeout::Block))?;
    refuses("proc_term", &error, || process.proc_term(Timeout::Block))
}
