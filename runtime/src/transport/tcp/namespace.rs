//! Network namespaces, so that tests have two hosts in one process.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Runs `act` while this thread is in the network namespace of this name, as `ip netns` keeps them. Sockets that are made meanwhile
/// are there, and threads that are started stay there. `None`: here.
pub(super) fn within<T>(name: Option<&str>, act: impl FnOnce() -> T) -> T {
    let Some(name) = name else { return act() };
    let here = File::open("/proc/thread-self/ns/net").expect("this thread's namespace");
    enter(&File::open(format!("/run/netns/{name}")).expect("a namespace of that name"));
    let done = act();
    enter(&here);
    done
}

fn enter(namespace: &File) {
    // SAFETY: no memory is involved, and the descriptor is open.
    let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(entered, 0, "setns: {}", std::io::Error::last_os_error());
}
