//! A rank forks. The child uses all that it has of the world, and gets an error for each call; the parent notices nothing.
//!
//! The child ends with the number of calls that did not fail as they should, each told on standard error. With an argument: see `stores` and `locks`.

mod calls;
mod locks;
mod stores;
mod together;

use std::cell::Cell;
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::task::{Context, Poll, Waker};

use bellwether::{
    Arm, DistHashMap, DistQueue, Driver, Error, Landing, LandingId, Reactor, Result, Signaller, Sum, Team, WakeUp,
    World, ucp,
};
use rustix::event::{Timespec, epoll};

/// Bytes that are dropped in the child, and given out again if that counts.
const BYTES: usize = 1 << 16;

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        None => {}
        Some("stores") => return stores::end_the_child(),
        Some("handlers") => return stores::other_faults_have_their_handler(),
        Some("threads") => return stores::ranks_that_are_threads(),
        Some("lapi") => return locks::of_a_lapi_handle(),
        Some("gaspi") => return locks::of_a_gaspi_process(),
        Some(other) => panic!("{other}: no such part"),
    }
    let landed = std::rc::Rc::new(Cell::new(0));
    let lands = std::rc::Rc::clone(&landed);
    let mut builder = World::builder();
    let large = builder.landing_handler(
        "large",
        |_, _| Landing::vec(Vec::new()),
        move |_, message| lands.set(message.into_vec().iter().map(|byte| usize::from(*byte)).sum()),
    );
    let world = builder.start()?;
    let (rank, size) = (world.rank(), world.size());
    let next = (rank + 1) % size;
    world.set_state(Cell::new(0u64));
    let memory = world.alloc::<u64>(BYTES / 8)?;
    let bell = world.bell()?;
    let team = Team::world(&world)?;
    let more = calls::More::new(&world)?;
    let together = together::Together::new(&world)?;
    world.barrier()?;
    // On its way while the parent forks: it is the parent's.
    world.invoke(next, (), |context, ()| count(context.state::<Cell<u64>>()))?;
    let call = world.call(next, 20u64, |_, x| x + 1)?;
    std::thread::sleep(std::time::Duration::from_millis(20));

    // The descriptor is readable, and stays so: the signal is the parent's.
    let outer = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
    let waits = Waits::new(&world, outer.as_fd())?;
    waits.wake_up.signal()?;

    children_that_execute();
    // SAFETY: this thread alone touches the world, and the child uses nothing that another thread may have locked.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child: {}", std::io::Error::last_os_error());
    if child == 0 {
        let wrong = Cell::new(0);
        let check = checker(rank, &wrong);
        together.in_child(&world, (next, large), &check);
        in_child(world, (memory, bell, team), call, large, waits, more, &check);
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(wrong.get()) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "rank {rank}: so many calls of its child did not fail as they should: {}", status >> 8);

    // Nothing has happened here.
    let mut events = Vec::with_capacity(8);
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    epoll::wait(&outer, rustix::buffer::spare_capacity(&mut events), Some(&now)).expect("waits");
    assert_eq!(
        events.iter().map(|event| event.data.u64()).collect::<Vec<_>>(),
        [7],
        "the worker is still in the epoll"
    );
    assert!(waits.wake_up.arm()? == Arm::Busy, "the child took the parent's signal");
    drop(waits);
    more.end(&world)?;
    together.end(&world)?;
    assert_eq!(call.wait()?, 21);
    let state = world.state::<Cell<u64>>().expect("set above");
    world.wait_until(|| state.get() == 1)?;
    memory.put_bell(next, rank, 1 + rank as u64, &bell)?;
    bell.wait(1)?;
    team.allreduce(&mut [1u64], Sum)?;
    world.barrier()?;
    let other = world.alloc::<u64>(BYTES / 8)?;
    assert_ne!(other.offset(), memory.offset(), "the child's drop of an array was counted");
    let before = (rank + size - 1) % size;
    assert_eq!(memory.load(before), 1 + before as u64);
    for round in 0..50u64 {
        assert_eq!(world.call(next, round, |_, round| round + 1)?.wait()?, round + 1);
    }
    assert_eq!(state.get(), 1, "a message was delivered twice");
    world.send_large(next, large, b"", vec![2; 300_000])?.wait()?;
    world.wait_until(|| landed.get() == 600_000)?;
    world.barrier()?;
    if rank == 0 {
        println!("{size} ranks and their children");
    }
    world.finish()
}

fn count(state: Option<std::rc::Rc<Cell<u64>>>) {
    let state = state.expect("set before the barrier");
    state.set(state.get() + 1);
}

/// Programs that are started by a rank are no ranks, and are not in the way of one.
fn children_that_execute() {
    assert!(Command::new("true").status().expect("there is `true`").success());
    let mut command = Command::new("true");
    // SAFETY: does nothing; with it the standard library forks, and without it does not.
    unsafe { command.pre_exec(|| Ok(())) };
    assert!(command.status().expect("there is `true`").success());
    // SAFETY: a C string, which the shell takes as a command.
    assert_eq!(unsafe { libc::system(c"true".as_ptr()) }, 0);
}

/// Objects that wait by descriptors.
struct Waits {
    wake_up: WakeUp,
    signaller: Signaller,
    worker: ucp::Worker,
    reactor: Reactor,
    driver: Driver,
}

impl Waits {
    fn new(world: &World, outer: BorrowedFd<'_>) -> Result<Waits> {
        let wake_up = world.wake_up()?;
        let params = ucp::Params { event_fd: Some((outer, 7)), ..ucp::Params::default() };
        Ok(Waits {
            signaller: wake_up.signaller(),
            worker: ucp::Worker::create(world, &params).expect("a worker"),
            reactor: world.wake_up()?.reactor()?,
            driver: world.wake_up()?.reactor()?.into_driver()?,
            wake_up,
        })
    }
}

/// Counts the calls of a child of rank `number` that do not fail as they should.
fn checker(number: usize, wrong: &Cell<i32>) -> impl Fn(&str, Result<()>) {
    // SAFETY: asks for numbers.
    let (own, above) = unsafe { (libc::getpid() as u32, libc::getppid() as u32) };
    move |name, outcome| {
        let fits = matches!(outcome, Err(Error::Forked { rank, parent, child, .. })
            if (rank, parent, child) == (number, above, own));
        if !fits {
            eprintln!("rank {number}, in its child: {name}: {outcome:?}");
            wrong.set(wrong.get() + 1);
        }
    }
}

fn in_child(
    world: World,
    (memory, bell, team): (bellwether::Symmetric<u64>, bellwether::Bell, Team),
    call: bellwether::Call<u64>,
    large: LandingId,
    waits: Waits,
    more: calls::More,
    check: &dyn Fn(&str, Result<()>),
) {
    let next = (world.rank() + 1) % world.size();
    check("poll", world.poll().map(drop));
    check("serve_while", world.serve_while(|| ()));
    check("barrier", world.barrier());
    check("alloc", world.alloc::<u8>(BYTES).map(drop));
    check("bell", world.bell().map(drop));
    check("allgather", world.allgather(&[1]).map(drop));
    check("allreduce", world.allreduce_sum(&mut [1]));
    check("broadcast", world.broadcast(0, &mut [1]));
    check("agree", world.agree(Ok(())));
    check("invoke", world.invoke(next, (), |context, ()| count(context.state::<Cell<u64>>())));
    check("invoke, larger", world.invoke(next, vec![1u64; 1000], |context, _| count(context.state::<Cell<u64>>())));
    check("call", world.call(next, (), |_, ()| {}).map(drop));
    check("call_plain", world.call_plain(next, 1u64, |_, x: u64| x).map(drop));
    check("send_large", world.send_large(next, large, b"", vec![1; 300_000]).map(drop));
    check("is_done", call.is_done().map(drop));
    check("wait for a call", call.wait().map(drop));
    check("wait_until", world.wait_until(|| false));
    check("count of a bell", bell.count().map(drop));
    // The peers may have rung for the parent.
    check("wait for a bell", bell.wait(1000).map(drop));
    check("team barrier", team.barrier());
    check("team allreduce", team.allreduce(&mut [1u64], Sum));
    check("team allreduce_async", team.allreduce_async(vec![1u64], Sum).wait().map(drop));
    check("split", team.split(Some(1), 0).map(drop));
    check("Team::world", Team::world(&world).map(drop));
    check("queue", DistQueue::<u64>::new(&world).map(drop));
    check("map", DistHashMap::<u64, u64>::new(&world).map(drop));
    check(
        "array",
        bellwether::GlobalArray::<u64, 1>::new(&world, bellwether::Layout::block([100], world.size()).expect("fits"))
            .map(drop),
    );
    if world.settings().transport != bellwether_runtime::Transport::Auto && world.size() > 1 {
        check("put over a network", memory.put(next, 0, 1));
        check("put_slice over a network", memory.put_slice(next, 0, &[1; 5000]));
        check("get over a network", memory.get(next, 0).map(drop));
        check("get_async over a network", memory.get_async(next, 0).wait().map(drop));
        check("fetch_add over a network", memory.fetch_add(next, 0, 1).map(drop));
        check("put_bell over a network", memory.put_bell(next, 0, 1, &bell));
        check("ring over a network", bell.ring(next));
        world.fence();
    }
    more.in_child(&world, (next, large), &memory, &bell, check);
    // The same job cannot be joined once more, but a rank that is alone may have a world in its child, too.
    match World::start() {
        Ok(own) if world.size() == 1 => own.barrier().unwrap_or_else(|error| check("another world", Err(error))),
        Err(Error::Start(why)) if world.size() > 1 && why.contains("has joined this job before") => {}
        other => check("World::start", other.map(drop)),
    }
    check("arm", waits.wake_up.arm().map(drop));
    check("wait", waits.wake_up.wait());
    check("poll of a descriptor", waits.wake_up.poll(None).map(drop));
    check("signal", waits.wake_up.signal());
    check("signal by a signaller", waits.signaller.signal());
    check("turn", waits.reactor.turn());
    check("wake_up", world.wake_up().map(drop));
    let Waits { driver, worker, reactor, wake_up, .. } = waits;
    let mut driver = Box::pin(driver);
    match driver.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Err(error)) => check("driver", Err(error)),
        _ => check("driver", Ok(())),
    }
    drop((driver, worker, reactor, wake_up));
    drop((memory, bell, team));
    check("finish", world.finish());
}
