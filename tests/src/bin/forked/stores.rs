//! Children that write to their parent's mapped memory: the write ends the child, with one line that says why, and changes nothing.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use bellwether::aggregate::{Aggregator, Options, Push};
use bellwether::{
    AtomicOp, Counter, DistHashMap, DistQueue, Error, GlobalArray, Layout, RawBells, Result, Team, Transport, World,
};

/// How a child ended, and what it has written to standard error.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// Its call returned.
    Returned,
    /// Its call was an error of forked children.
    Refused,
    /// By its exit code.
    Exit(c_int),
    /// By a signal.
    Signal(c_int),
}

/// What a child is to do.
type Act<'a> = &'a dyn Fn() -> Result<()>;

const REFUSED: c_int = 40;
const WRONG: c_int = 41;

/// Runs `act` in a child. The child's process number, its end, and its words.
pub fn child(act: impl FnOnce() -> Result<()>) -> (c_int, End, String) {
    let (mut words, told) = std::io::pipe().expect("a pipe");
    // SAFETY: the child uses nothing that another thread may have locked, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child: {}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: system calls on numbers. The end is wanted, and no image of this memory.
        unsafe {
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
            libc::dup2(told.as_raw_fd(), libc::STDERR_FILENO);
            libc::alarm(60);
        }
        let code = match act() {
            Ok(()) => 0,
            Err(Error::Forked { .. }) => REFUSED,
            Err(other) => {
                eprintln!("{other}");
                WRONG
            }
        };
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(code) };
    }
    drop(told);
    let mut text = String::new();
    words.read_to_string(&mut text).expect("reads");
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    let end = match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
        Some(0) => End::Returned,
        Some(REFUSED) => End::Refused,
        Some(code) => End::Exit(code),
        None => End::Signal(libc::WTERMSIG(status)),
    };
    (child, end, text)
}

/// What a child is to do that has no error.
fn after(act: impl FnOnce()) -> Result<()> {
    act();
    Ok(())
}

/// Runs `act` in a child, which must end by its write.
fn must_end(name: &str, who: &str, act: impl FnOnce() -> Result<()>) {
    let (number, end, text) = child(act);
    assert_eq!(end, End::Signal(libc::SIGSEGV), "{name}: {text}");
    must_say(name, number, who, &text);
}

fn must_say(name: &str, child: c_int, who: &str, text: &str) {
    let parent = std::process::id();
    let start = format!(
        "bellwether: process {child} is a forked child of process {parent}, which {who}; it wrote to the job's memory, at 0x"
    );
    assert!(text.starts_with(&start) && text.contains("call `exec` or `_exit`"), "{name}: {text}");
    assert_eq!((text.lines().count(), text.ends_with('\n')), (1, true), "{name}: {text}");
}

/// The last rank forks children, each of which does one thing. Its memory, and that of the others, stays as it is.
pub fn end_the_child() -> Result<()> {
    let world = World::start()?;
    stay_as_they_are(&world)?;
    if world.rank() == 0 {
        println!("{} ranks as they were", world.size());
    }
    world.finish()
}

fn stay_as_they_are(world: &World) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let next = (rank + 1) % size;
    let memory = world.alloc::<u64>(8)?;
    memory.write(0, &[5; 8]);
    let (bell, segment, context) = (world.bell()?, world.segment_all(64)?, world.context()?);
    let in_heap = world.exchange_addresses(memory.as_ptr_range().start)?[next];
    let in_segment = world.exchange_addresses(segment.as_ptr())?[next];
    let plain = Box::new([const { AtomicU64::new(5) }; 8]);
    let in_plain = world.exchange_addresses(plain.as_ptr())?[next];
    let (elements, rings, bytes) = (memory.for_threads(), bell.for_threads(), 9u64.to_ne_bytes());
    // SAFETY: accesses are to `memory`, of which any bits are valid.
    let (reserved, of_context) = unsafe { (world.reserved_segments(), context.reserved_segments()) };
    let place = memory.segment_offset(0);
    // What a child takes out of its copy and drops is still here.
    let array = GlobalArray::<u64, 1>::new(world, Layout::block([8], size).expect("fits"))?;
    let (map, queue) = (DistHashMap::<u64, u64>::new(world)?, DistQueue::<u64>::new(world)?);
    let options = Options::new(world);
    let push = RefCell::new(Push::new(world, &options, |_: u64| ())?);
    let sums = Aggregator::<u64>::new(world, &options)?;
    let to_drop = Cell::new(Some((array, map, queue, sums, world.bell()?, Team::world(world)?)));
    world.barrier()?;
    if rank == size - 1 {
        let who = format!("is rank {rank}");
        let end = |name: &str, act: Act<'_>| must_end(name, &who, act);
        let refuse = |name: &str, act: Act<'_>| {
            let (_, end, text) = child(act);
            assert_eq!(end, End::Refused, "{name}: {text}");
        };
        let return_ = |name: &str, act: Act<'_>| {
            let (_, end, text) = child(act);
            assert_eq!((end, text.as_str()), (End::Returned, ""), "{name}");
        };
        end("store", &|| after(|| memory.store(0, 9)));
        end("write", &|| after(|| memory.write(0, &[9; 8])));
        end("write to a segment", &|| segment.write(0, &bytes));
        // SAFETY: memory of this world, which the child may not write.
        end("a pointer", &|| after(|| unsafe { memory.as_ptr_range().start.write_volatile(9) }));
        // To other ranks: a store where they are mapped, else an error.
        let is_mapped = world.settings().transport == Transport::Auto;
        let remote: &dyn Fn(&str, Act<'_>) = if is_mapped { &end } else { &refuse };
        remote("put", &|| memory.put(next, 0, 9));
        remote("put_slice", &|| memory.put_slice(next, 0, &[9; 8]));
        remote("put_bell", &|| memory.put_bell(next, 0, 9, &bell));
        remote("ring", &|| bell.ring(next));
        remote("fetch_add", &|| memory.fetch_add(next, 0, 9).map(drop));
        remote("fetch_add_async", &|| memory.fetch_add_async(next, 0, 9).wait().map(drop));
        remote("put of an operation", &|| world.operation().effect(&Counter::new()).put(&memory, next, 0, &[9]));
        remote("put of a context", &|| context.put(&elements, next, 0, 9));
        remote("put_bell of a context", &|| context.put_bell(&elements, next, 0, 9, &rings));
        remote("compare_swap of a context", &|| context.compare_swap(&elements, next, 0, 5, 9).map(drop));
        // SAFETY: memory of `next`, which the child does not reach.
        let put_address = |to| unsafe { world.put_address(next, to, &bytes, RawBells::default()) };
        remote("put to an address of a heap", &|| put_address(in_heap));
        remote("put to an address of a segment", &|| put_address(in_segment));
        // By number, and by the kernel: these ask first.
        refuse("put to an address in no segment", &|| put_address(in_plain));
        // SAFETY: as above.
        refuse("put_address of a context", &|| unsafe { context.put_address(next, in_plain, &bytes) });
        refuse("put_segment", &|| world.put_segment(next, segment.number(), 0, &bytes));
        refuse("put_segment of a context", &|| context.put_segment(next, segment.number(), 0, &bytes));
        refuse("put by number", &|| reserved.put(next, 0, place, &bytes));
        refuse("put by number of a context", &|| of_context.put(next, 0, place, &bytes));
        refuse("fetch by number", &|| context.fetch_segment(AtomicOp::Add, next, segment.number(), 0, 9u64).map(drop));
        refuse("Push", &|| {
            let mut push = push.borrow_mut();
            push.push(next, 9)?;
            push.finish()
        });
        // Reads, drops, and memory that is the child's own.
        return_("drops", &|| after(|| drop(to_drop.take())));
        static OWN: AtomicU64 = AtomicU64::new(5);
        let is_five = |value| assert_eq!(value, 5);
        return_("load", &|| after(|| is_five(memory.load(0))));
        if is_mapped {
            return_("get", &|| memory.get(next, 0).map(is_five));
        }
        return_("a static", &|| after(|| is_five(OWN.swap(9, Ordering::Relaxed))));
        return_("its heap", &|| after(|| is_five(plain[0].swap(9, Ordering::Relaxed))));
        is_five(OWN.load(Ordering::Relaxed));
    }
    world.barrier()?;
    let mut bytes = [1; 64];
    segment.read(0, &mut bytes)?;
    let values: Vec<u64> = (0..8).map(|index| memory.load(index)).collect();
    let plain: Vec<u64> = plain.iter().map(|value| value.load(Ordering::Relaxed)).collect();
    assert_eq!((values, plain, bytes, bell.count()?), (vec![5; 8], vec![5; 8], [0; 64], 0), "a child has written");
    world.barrier()?;
    context.put_bell(&elements, next, 0, rank as u64, &rings)?;
    context.flush_all()?;
    bell.wait(1)?;
    assert_eq!(memory.load(0), ((rank + size - 1) % size) as u64);
    world.barrier()?;
    let (array, mut map, mut queue, ..) = to_drop.take().expect("a child has dropped its copy");
    map.insert(rank as u64, 1)?;
    queue.push(1)?;
    world.barrier()?;
    assert_eq!((map.get(&(next as u64))?, array.len()), (Some(1), 8));
    push.borrow_mut().finish()?;
    drop((push, context));
    segment.close()
}

/// A page that a handler of the program's own knows.
static PAGE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
const OF_PAGE: c_int = 33;
const OF_SIGNAL: c_int = 34;
const OF_OTHER: c_int = 35;

extern "C" fn own_handler(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a record, whose address is a fault's where the code is positive; ends this process.
    unsafe {
        libc::_exit(match (*info).si_code {
            ..=0 => OF_SIGNAL,
            _ if (*info).si_addr() == PAGE.load(Ordering::Relaxed) => OF_PAGE,
            _ => OF_OTHER,
        })
    }
}

extern "C" fn plain_handler(_: c_int) {
    // SAFETY: ends this process.
    unsafe { libc::_exit(OF_OTHER) }
}

/// The action of SIGSEGV, after it is set if there is a new one.
fn action(new: Option<(usize, c_int)>) -> (usize, c_int) {
    // SAFETY: zeroed records are valid actions, and so are a handler of the type that its flags say, and the default.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        if let Some((handler, flags)) = new {
            action.sa_sigaction = handler;
            action.sa_flags = flags;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()), 0);
        }
        assert_eq!(libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut action), 0);
        (action.sa_sigaction, action.sa_flags & libc::SA_SIGINFO)
    }
}

/// One rank with handlers of its own. Faults of children at other addresses, and signals, go to them.
pub fn other_faults_have_their_handler() -> Result<()> {
    let world = World::start()?;
    let memory = world.alloc::<u64>(1)?;
    // SAFETY: fresh memory at an address of the kernel's choice.
    let page =
        unsafe { libc::mmap(ptr::null_mut(), 4096, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    PAGE.store(page, Ordering::Relaxed);
    // SAFETY: no memory of Rust's is there; the access raises a signal.
    let touch = || after(|| unsafe { page.cast::<u8>().write_volatile(1) });
    // SAFETY: sends a signal to this process.
    let signal = || after(|| assert_eq!(unsafe { libc::raise(libc::SIGSEGV) }, 0));
    let store = || after(|| memory.store(0, 9));
    let end = |act: Act<'_>| {
        let (_, end, text) = child(act);
        assert_eq!(text, "");
        end
    };
    for (set, of_page, of_signal) in [
        ((own_handler as *const () as usize, libc::SA_SIGINFO), End::Exit(OF_PAGE), End::Exit(OF_SIGNAL)),
        ((plain_handler as *const () as usize, 0), End::Exit(OF_OTHER), End::Exit(OF_OTHER)),
        ((libc::SIG_DFL, 0), End::Signal(libc::SIGSEGV), End::Signal(libc::SIGSEGV)),
    ] {
        assert_eq!(action(Some(set)), set);
        assert_eq!((end(&touch), end(&signal)), (of_page, of_signal), "{set:?}");
        must_end("store", "is rank 0", store);
        // A child of the child has them all, too.
        let (_, last, text) = child(|| {
            let (grandchild, last, text) = child(store);
            assert_eq!(last, End::Signal(libc::SIGSEGV), "{text}");
            // SAFETY: asks for a number.
            let parent = unsafe { libc::getppid() };
            let start =
                format!("bellwether: process {grandchild} is a forked child of process {parent}, which is rank 0; ");
            assert!(text.starts_with(&start), "{text}");
            let (_, last, text) = child(touch);
            assert_eq!((last, text.as_str()), (of_page_again(set.0), ""));
            Ok(())
        });
        assert_eq!((last, text.as_str()), (End::Returned, ""));
        assert_eq!(action(None), set, "the parent's action");
    }
    assert_eq!(memory.load(0), 0);
    drop(memory);
    world.finish()?;
    // Without a world a child is like any other.
    let before = action(None);
    let (_, last, text) = child(|| after(|| assert_eq!(action(None), before)));
    assert_eq!((last, text.as_str()), (End::Returned, ""));
    println!("1 rank as it was");
    Ok(())
}

fn of_page_again(handler: usize) -> End {
    match handler {
        libc::SIG_DFL => End::Signal(libc::SIGSEGV),
        own if own == own_handler as *const () as usize => End::Exit(OF_PAGE),
        _ => End::Exit(OF_OTHER),
    }
}

/// Ranks that are threads of one process: a child of any of them is none of them.
pub fn ranks_that_are_threads() -> Result<()> {
    let ranks = bellwether::threads(2, |world| {
        let memory = world.alloc::<u64>(1)?;
        world.barrier()?;
        if world.rank() == 1 {
            must_end("put", "has several ranks", || memory.put(0, 0, 9));
        }
        world.barrier()?;
        assert_eq!(memory.load(0), 0);
        world.barrier()
    })?;
    ranks.into_iter().collect::<Result<Vec<_>>>()?;
    println!("2 ranks as they were");
    Ok(())
}
