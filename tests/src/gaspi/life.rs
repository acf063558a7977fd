//! Rows about time limits, life cycles and the configuration.

use bellwether_runtime::vocabulary::gaspi::Timeout::{Block, Test};
use bellwether_runtime::vocabulary::gaspi::{
    Code, Config, Counter, Datatype, GROUP_ALL, NetworkType, Operation, codes,
};

use super::{S, Task, fails, note, ok, part, test_loop};

pub(super) fn g18(task: &Task) {
    let outside = || {
        let p = &task.process;
        fails(codes::NOINIT, p.proc_rank());
        fails(codes::NOINIT, p.proc_num());
        fails(codes::NOINIT, p.proc_local());
        fails(codes::NOINIT, p.proc_ping(0));
        fails(codes::NOINIT, p.connect(0, Block));
        fails(codes::NOINIT, p.disconnect(0, Block));
        fails(codes::NOINIT, p.queue_max());
        fails(codes::NOINIT, p.queue_purge(0, Block));
        fails(codes::NOINIT, p.queue_create(Block));
        fails(codes::NOINIT, p.queue_delete(0));
        fails(codes::NOINIT, p.queue_num());
        fails(codes::NOINIT, p.queue_size(0));
        fails(codes::NOINIT, p.segment_alloc(S, 8));
        fails(codes::NOINIT, p.segment_create(S, 8, GROUP_ALL, Block));
        fails(codes::NOINIT, p.segment_delete(S));
        fails(codes::NOINIT, p.segment_ptr(S));
        fails(codes::NOINIT, p.segment_size(S));
        fails(codes::NOINIT, p.segment_list());
        fails(codes::NOINIT, p.segment_register(S, 0, Block));
        fails(codes::NOINIT, p.segment_read(S, 0, &mut [0; 8]));
        fails(codes::NOINIT, p.segment_write(S, 0, &[0; 8]));
        let mut memory = [0u64; 8];
        // SAFETY: nothing is bound.
        unsafe {
            fails(codes::NOINIT, p.segment_bind(S, memory.as_mut_ptr().cast(), 64));
            fails(codes::NOINIT, p.segment_use(S, memory.as_mut_ptr().cast(), 64, GROUP_ALL, Block));
        }
        let list = [part(0, 0, 8)];
        fails(codes::NOINIT, p.read(part(0, 0, 8), 0, 0, Block));
        fails(codes::NOINIT, p.write_notify(part(0, 0, 8), 0, note(0, 1), 0, Block));
        fails(codes::NOINIT, p.read_notify(part(0, 0, 8), 0, (S, 0), 0, Block));
        fails(codes::NOINIT, p.write_list(&list, 0, 0, Block));
        fails(codes::NOINIT, p.read_list(&list, 0, 0, Block));
        fails(codes::NOINIT, p.write_list_notify(&list, 0, note(0, 1), 0, Block));
        fails(codes::NOINIT, p.read_list_notify(&list, 0, (S, 0), 0, Block));
        fails(codes::NOINIT, p.write(part(0, 0, 8), 0, 0, Block));
        fails(codes::NOINIT, p.notify(note(0, 1), 0, 0, Block));
        fails(codes::NOINIT, p.notify_waitsome(S, 0, 1, Test));
        fails(codes::NOINIT, p.notify_reset(S, 0));
        fails(codes::NOINIT, p.wait(0, Block));
        fails(codes::NOINIT, p.barrier(GROUP_ALL, Block));
        fails(codes::NOINIT, p.group_create());
        fails(codes::NOINIT, p.group_commit(GROUP_ALL, Block));
        fails(codes::NOINIT, p.group_add(1, 0));
        fails(codes::NOINIT, p.group_delete(1));
        fails(codes::NOINIT, p.group_num());
        fails(codes::NOINIT, p.group_ranks(GROUP_ALL));
        fails(codes::NOINIT, p.allreduce_user(&[0; 4], &mut [0; 4], 4, GROUP_ALL, Block, |_, _| Ok(())));
        fails(codes::NOINIT, p.atomic_compare_swap(S, 0, 0, 0, 1, Block));
        fails(codes::NOINIT, p.allreduce(&[0; 4], &mut [0; 4], Operation::Sum, Datatype::Int, GROUP_ALL, Block));
        fails(codes::NOINIT, p.atomic_fetch_add(S, 0, 0, 1, Block));
        fails(codes::NOINIT, p.passive_send(S, 0, 0, 1, Block));
        fails(codes::NOINIT, p.passive_receive(S, 0, 1, Block));
        fails(codes::NOINIT, p.state_vec_get());
        fails(codes::NOINIT, p.proc_term(Block));
    };
    outside();
    task.works(|here| assert_eq!(here.p.initialized(), Ok(true)));
    outside();
    assert_eq!(task.process.initialized(), Ok(false));
}

pub(super) fn g19(task: &Task) {
    task.works(|here| {
        let all: Vec<_> = (0..here.n as u16).collect();
        here.late("segment_create", |timeout| here.p.segment_create(S + 1, 64, GROUP_ALL, timeout));
        let mut memory = vec![0u64; 8];
        let start = memory.as_mut_ptr().cast();
        // SAFETY: it stays until the segment is deleted.
        here.late("segment_use", |timeout| unsafe { here.p.segment_use(S + 2, start, 64, GROUP_ALL, timeout) });
        assert_eq!(ok("list", here.p.segment_list()), [S, S + 1, S + 2]);
        let group = ok("group_create", here.p.group_create());
        all.iter().for_each(|rank| ok("group_add", here.p.group_add(group, *rank)));
        here.late("group_commit", |timeout| here.p.group_commit(group, timeout));
        here.late("barrier", |timeout| here.p.barrier(group, timeout));
        let mut sum = [0; 4];
        let one = 1i32.to_ne_bytes();
        here.late("allreduce", |timeout| {
            here.p.allreduce(&one, &mut sum, Operation::Sum, Datatype::Int, group, timeout)
        });
        assert_eq!(i32::from_ne_bytes(sum), here.n as i32);
        let mut most = [0];
        here.late("allreduce_user", |timeout| {
            here.p.allreduce_user(&[here.me as u8], &mut most, 1, group, timeout, |mine, theirs| {
                mine[0] = mine[0].max(theirs[0]);
                Ok(())
            })
        });
        assert_eq!(usize::from(most[0]), here.n - 1);
        let before = test_loop("atomic", |timeout| here.p.atomic_fetch_add(S, 800, 0, 1, timeout)).0;
        assert!(before < here.n as u64);
        here.barrier();
        if here.me == 0 {
            assert_eq!(ok("atomic", here.p.atomic_fetch_add(S, 800, 0, 0, Block)), here.n as u64, "each added once");
        }
        ok("read", here.p.read(part(0, 2 << 20, task.times(1 << 14, 1 << 20)), here.next(), 0, Block));
        test_loop("wait", |timeout| here.p.wait(0, timeout));
        ok("notify", here.p.notify(note(5, 6), here.next(), 0, Block));
        assert_eq!(test_loop("waitsome", |timeout| here.p.notify_waitsome(S, 0, 10, timeout)).0, Some(5));
        let swap = |timeout| here.p.atomic_compare_swap(S, 3 << 20, here.next(), 0, 9, timeout);
        assert_eq!(test_loop("compare_swap", swap).0, 0);
        test_loop("purge", |timeout| here.p.queue_purge(0, timeout));
        here.barrier();
        assert_eq!(ok("atomic", here.p.atomic_fetch_add(S, 3 << 20, here.me as u16, 0, Block)), 9);
        ok("segment_delete", here.p.segment_delete(S + 2));
        drop(memory);
    });
}

pub(super) fn g20(task: &Task) {
    let p = &task.process;
    for config in [
        Config { queue_num: 0, ..Config::default() },
        Config { queue_num: 17, ..Config::default() },
        Config { queue_size_max: 4097, ..Config::default() },
        Config { notification_num: 65537, ..Config::default() },
        Config { transfer_size_max: 0, ..Config::default() },
    ] {
        fails(codes::CONFIG, p.config_set(config));
    }
    assert_eq!(p.config_get(), Ok(Config::default()));
    let set = Config { queue_num: 4, queue_size_max: 10, notification_num: 100, group_max: 3, ..Config::default() };
    ok("config_set", p.config_set(set));
    task.works_as_set(|here| {
        assert_eq!((p.config_get(), p.queue_num()), (Ok(set), Ok(4)));
        fails(codes::INITED, p.config_set(Config::default()));
        ok("segment_create", p.segment_create(S, 100, GROUP_ALL, Block));
        fails(codes::INV_NOTIF_ID, p.notify(note(100, 1), here.next(), 0, Block));
        fails(codes::INV_NOTIF_ID, p.notify_waitsome(S, 0, 101, Test));
        assert_eq!((p.group_create(), p.group_create()), (Ok(1), Ok(2)));
        fails(codes::MANY_GRP, p.group_create());
        here.barrier();
    });
}

pub(super) fn g20_differ(task: &Task) {
    let p = &task.process;
    let (me, n) = p.place();
    ok("config_set", p.config_set(Config { queue_num: if me == 0 { 5 } else { 6 }, ..Config::default() }));
    if n > 1 {
        fails(codes::CONFIG, p.proc_init(Block));
        fails(codes::NOINIT, p.proc_rank());
    }
    task.works(|here| assert_eq!(here.p.queue_num(), Ok(8)));
}

pub(super) fn g21(task: &Task) {
    let p = &task.process;
    let (mut times, mut done) = (0, false);
    while !done {
        match p.proc_init(Test) {
            Ok(()) => done = true,
            Err(code) if code.is_timeout() => {
                times += 1;
                if times == 1 {
                    fails(codes::INITED, p.config_set(Config::default()));
                    fails(codes::NOINIT, p.proc_num());
                }
            }
            Err(code) => panic!("{code}"),
        }
    }
    fails(codes::INITED, p.proc_init(Block));
    ok("barrier", p.barrier(GROUP_ALL, Block));
    ok("proc_term", p.proc_term(Block));
    fails(codes::NOINIT, p.proc_term(Block));
}

pub(super) fn g23(task: &Task) {
    for life in 0..5u32 {
        task.works(|here| {
            assert_eq!(ok("waitsome", here.p.notify_waitsome(S, 0, 0, Test)), None);
            fails(codes::TIMEOUT, here.p.notify_waitsome(S, 0, 100, Test));
            assert_eq!(here.bytes(0, 8), [0; 8], "life {life}");
            here.barrier();
            here.fill(0, &[7; 8]);
            ok("write", here.p.write_notify(part(0, 64, 8), here.next(), note(life, 1), 0, Block));
            here.take(life);
            let group = ok("group", here.p.group_create());
            assert_eq!(group, 1);
            ok("add", here.p.group_add(group, here.me as u16));
            ok("commit", here.p.group_commit(group, Block));
        });
    }
}

pub(super) fn g24(task: &Task) {
    task.works(|here| {
        let mut ranks = vec![0; 4 * here.n];
        ranks[4 * here.me..][..4].copy_from_slice(&(here.me as u32 + 1).to_ne_bytes());
        let mut all = vec![0; 4 * here.n];
        ok("allreduce", here.p.allreduce(&ranks, &mut all, Operation::Sum, Datatype::Uint, GROUP_ALL, Block));
        let expected: Vec<u8> = (1..=here.n as u32).flat_map(u32::to_ne_bytes).collect();
        assert_eq!(all, expected, "every rank is there once");
        let (local, there) = ok("local", here.p.proc_local());
        assert!(local < there && usize::from(there) <= here.n);
    });
}

pub(super) fn g26(task: &Task) {
    task.works(|here| {
        for _ in 0..2 {
            ok("connect", here.p.connect(here.next(), Block));
        }
        ok("disconnect", here.p.disconnect(here.next(), Block));
        ok("ping", here.p.proc_ping(here.next()));
        for rank in [here.n as u16, u16::MAX] {
            fails(codes::INV_RANK, here.p.connect(rank, Block));
            fails(codes::INV_RANK, here.p.disconnect(rank, Block));
            fails(codes::INV_RANK, here.p.proc_ping(rank));
        }
        let states = ok("state_vec", here.p.state_vec_get());
        assert_eq!(states, vec![bellwether_runtime::vocabulary::gaspi::State::Healthy; here.n]);
    });
}

pub(super) fn g28(task: &Task) {
    task.works(|here| {
        for (code, name, _) in codes::CODES {
            assert!(codes::text(*code).is_some_and(|text| !text.is_empty()), "{name}");
        }
        let before = ok("time", here.p.time_get());
        here.pause();
        assert!(ok("time", here.p.time_get()) > before);
        let statistics = here.p.statistics();
        let all = || Counter::ALL.map(|counter| statistics.get(counter));
        here.post_often(0);
        assert_eq!((statistics.verbosity(), all()), (0, [0; 5]), "nothing is counted at first");
        statistics.set_verbosity(1);
        let next = here.next();
        ok("write", here.p.write(part(0, 1024, 8), next, 0, Block));
        ok("read", here.p.read(part(64, 0, 24), next, 0, Block));
        ok("notify", here.p.notify(note(1, 1), next, 0, Block));
        ok("write_notify", here.p.write_notify(part(0, 1024, 16), next, note(2, 1), 0, Block));
        ok("list", here.p.write_list(&[part(0, 1024, 8), part(8, 1032, 8)], next, 0, Block));
        fails(codes::INV_QUEUE, here.p.write(part(0, 1024, 8), next, 200, Block));
        assert_eq!(all(), [3, 1, 2, 40, 24]);
        statistics.reset(Counter::Writes);
        statistics.set_verbosity(0);
        ok("write", here.p.write(part(0, 1024, 8), next, 0, Block));
        assert_eq!(all(), [0, 1, 2, 40, 24]);
        ok("wait", here.p.wait(0, Block));
        // Processes that reach each other by mapped memory alone need no network.
        let type_of_network = here.p.network_type();
        assert!(here.p.has_network() || type_of_network == NetworkType::Memory, "{type_of_network:?}");
    });
}

pub(super) fn g25(task: &Task) {
    fails(codes::NOINIT, task.process.proc_kill(0, Test));
    task.works(|here| {
        for rank in [here.me as u16, here.n as u16, u16::MAX] {
            fails(codes::INV_RANK, here.p.proc_kill(rank, Block));
        }
    });
}

pub(super) fn g26_unconnected(task: &Task) {
    ok("config_set", task.process.config_set(Config { build_infrastructure: false, ..Config::default() }));
    task.works_as_set(|here| {
        ok("segment_create", here.p.segment_create(S, 1 << 16, GROUP_ALL, Block));
        here.fill(0, &[here.me as u8 + 1; 64]);
        ok("write", here.p.write_notify(part(0, 1024, 64), here.next(), note(1, 1), 0, Block));
        here.take(1);
        assert_eq!(here.bytes(1024, 64), [here.before() as u8 + 1; 64]);
        ok("wait", here.p.wait(0, Block));
        here.barrier();
        // A path that was given up is made again.
        ok("disconnect", here.p.disconnect(here.next(), Block));
        ok("write", here.p.write_notify(part(0, 2048, 64), here.next(), note(2, 1), 0, Block));
        here.take(2);
        assert_eq!(here.bytes(2048, 64), [here.before() as u8 + 1; 64]);
        ok("wait", here.p.wait(0, Block));
    });
}

pub(super) fn g27(task: &Task) {
    let set = Config {
        queue_num: 5,
        queue_size_max: 77,
        group_max: 9,
        segment_max: 11,
        notification_num: 1000,
        transfer_size_max: 1 << 20,
        passive_transfer_size_max: 4000,
        allreduce_elem_max: 100,
        allreduce_buf_size: 800,
        rw_list_elem_max: 20,
        build_infrastructure: false,
    };
    let p = &task.process;
    for wrong in
        [Config { queue_num: 0, ..set }, Config { queue_size_max: 4097, ..set }, Config { group_max: 33, ..set }]
    {
        fails(codes::CONFIG, p.config_set(wrong));
    }
    ok("config_set", p.config_set(set));
    assert_eq!(p.config_get(), Ok(set));
    task.works_as_set(|here| {
        assert_eq!((here.p.config_get(), here.p.queue_num()), (Ok(set), Ok(5)));
        ok("segment_create", here.p.segment_create(S, 1 << 21, GROUP_ALL, Block));
        // Each limit is in force.
        fails(codes::INV_NOTIF_ID, here.p.notify(note(1000, 1), here.next(), 0, Block));
        fails(codes::INV_NOTIF_ID, here.p.notify_waitsome(S, 0, 1001, Test));
        fails(codes::INV_COMMSIZE, here.p.write(part(0, 0, (1 << 20) + 1), here.next(), 0, Block));
        fails(codes::INV_COMMSIZE, here.p.passive_send(S, 0, here.next(), 4001, Test));
        fails(codes::INV_NUM, here.p.write_list(&[part(0, 0, 8); 21], here.next(), 0, Block));
        let (send, mut receive) = ([0; 404], [0; 404]);
        let outcome = here.p.allreduce(&send, &mut receive, Operation::Sum, Datatype::Int, GROUP_ALL, Block);
        fails(codes::INV_NUM, outcome);
        for _ in 1..9 {
            ok("group_create", here.p.group_create());
        }
        fails(codes::MANY_GRP, here.p.group_create());
    });
}

pub(super) fn g21_threads(task: &Task) {
    let p = &task.process;
    if task.virtual_time {
        return;
    }
    for _ in 0..task.times(3, 20) {
        let outcomes = std::thread::scope(|scope| {
            let threads = [(); 2].map(|()| scope.spawn(|| p.proc_init(Block)));
            threads.map(|thread| thread.join().expect("no panic"))
        });
        let inited = outcomes.iter().filter(|outcome| **outcome == Err(Code(codes::INITED))).count();
        assert!(outcomes.contains(&Ok(())) && inited == 1, "{outcomes:?}");
        ok("barrier", p.barrier(GROUP_ALL, Block));
        ok("proc_term", p.proc_term(Block));
    }
}
