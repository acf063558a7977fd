//! Rows about groups and their collectives.

use std::collections::BTreeSet;

use bellwether_runtime::vocabulary::gaspi::Timeout::{Block, Test};
use bellwether_runtime::vocabulary::gaspi::{Code, Datatype, GROUP_ALL, GroupId, Operation, codes};

use super::{GO, Here, LATE, Task, fails, ok, test_loop};
use crate::watchdog;

/// A committed group of these ranks.
fn group(here: &Here<'_>, ranks: &[usize]) -> GroupId {
    let group = ok("group_create", here.p.group_create());
    ranks.iter().for_each(|rank| ok("group_add", here.p.group_add(group, *rank as u16)));
    ok("group_commit", here.p.group_commit(group, Block));
    group
}

pub(super) fn g30(task: &Task) {
    task.works(|here| {
        let p = here.p;
        let group = ok("group_create", p.group_create());
        assert_eq!((group, p.group_num()), (1, Ok(2)));
        fails(codes::INV_GROUP, p.barrier(group, Block));
        fails(codes::INV_RANK, p.group_add(group, here.n as u16));
        ok("add", p.group_add(group, here.me as u16));
        fails(codes::INV_RANK, p.group_add(group, here.me as u16));
        ok("commit", p.group_commit(group, Block));
        fails(codes::INV_GROUP, p.group_add(group, here.next()));
        ok("barrier", p.barrier(group, Block));
        // This process is no member of the group.
        if here.n > 1 {
            let other = ok("group_create", p.group_create());
            ok("add", p.group_add(other, here.next()));
            fails(codes::INV_GROUP, p.group_commit(other, Block));
            ok("delete", p.group_delete(other));
        }
        // The others' groups of this name have other members: it is not complete.
        if here.me == 0 && here.n > 1 {
            let other = ok("group_create", p.group_create());
            (0..2).for_each(|rank| ok("add", p.group_add(other, rank)));
            fails(codes::TIMEOUT, p.group_commit(other, super::WHILE));
            fails(codes::INV_GROUP, p.barrier(other, Test));
            ok("delete", p.group_delete(other));
        } else if here.me == 1 {
            let other = ok("group_create", p.group_create());
            ok("add", p.group_add(other, 1));
            ok("commit", p.group_commit(other, Block));
            ok("delete", p.group_delete(other));
        }
        ok("delete", p.group_delete(group));
        assert_eq!(p.group_num(), Ok(1));
        for gone in [group, 31, 255] {
            fails(codes::INV_GROUP, p.group_delete(gone));
            fails(codes::INV_GROUP, p.group_add(gone, 0));
            fails(codes::INV_GROUP, p.group_commit(gone, Block));
            fails(codes::INV_GROUP, p.group_ranks(gone));
            fails(codes::INV_GROUP, p.barrier(gone, Block));
        }
        fails(codes::INV_GROUP, p.group_delete(GROUP_ALL));
        let made: BTreeSet<_> = std::iter::from_fn(|| p.group_create().ok()).collect();
        assert_eq!(made, (1..32).collect());
        fails(codes::MANY_GRP, p.group_create());
    });
}

pub(super) fn g31(task: &Task) {
    task.works(|here| {
        ok("barrier", here.p.barrier(GROUP_ALL, Block));
        ok("commit", here.p.group_commit(GROUP_ALL, Block));
        ok("barrier", here.p.barrier(GROUP_ALL, Block));
    });
}

pub(super) fn g32(task: &Task) {
    task.works(|here| {
        let group = ok("group_create", here.p.group_create());
        for rank in (0..here.n as u16).rev() {
            ok("add", here.p.group_add(group, rank));
        }
        let all: Vec<_> = (0..here.n as u16).collect();
        assert_eq!(here.p.group_ranks(group), Ok(all.clone()));
        assert_eq!(here.p.group_ranks(GROUP_ALL), Ok(all));
    });
}

pub(super) fn g33(task: &Task) {
    task.works(|here| {
        for round in 1..=5 {
            if here.me == 0 {
                // The others come when this call has timed out.
                if here.n > 1 {
                    fails(codes::TIMEOUT, here.p.barrier(GROUP_ALL, Test));
                }
                (1..here.n).for_each(|rank| here.tell(rank as u16, GO, 1, LATE));
                ok("wait", here.p.wait(LATE, Block));
                test_loop("barrier", |timeout| here.p.barrier(GROUP_ALL, timeout));
                for other in 1..here.n {
                    assert_eq!(here.p.notify_reset(super::S, other as u32), Ok(round), "left before {other} came");
                }
            } else {
                here.take(GO);
                here.pause();
                here.tell(0, here.me as u32, round, 0);
                // A barrier completes no request.
                ok("wait", here.p.wait(0, Block));
                ok("barrier", here.p.barrier(GROUP_ALL, Block));
            }
            here.barrier();
        }
        let rounds = task.times(50, 1000);
        for round in 0..rounds {
            watchdog::at(format!("barrier {round}"));
            match (round + here.me) % 2 {
                0 => ok("barrier", here.p.barrier(GROUP_ALL, Block)),
                _ => _ = test_loop("barrier", |timeout| here.p.barrier(GROUP_ALL, timeout)),
            }
        }
    });
}

/// Elements of a type, of small numbers, and what they are combined.
fn elements(datatype: Datatype, of: impl Fn(usize) -> i32, number: usize) -> Vec<u8> {
    (0..number)
        .flat_map(|i| match datatype {
            Datatype::Int => of(i).to_ne_bytes().to_vec(),
            Datatype::Uint => (of(i) as u32).to_ne_bytes().to_vec(),
            Datatype::Float => (of(i) as f32).to_ne_bytes().to_vec(),
            Datatype::Double => f64::from(of(i)).to_ne_bytes().to_vec(),
            Datatype::Long => i64::from(of(i)).to_ne_bytes().to_vec(),
            Datatype::Ulong => (of(i) as u64).to_ne_bytes().to_vec(),
        })
        .collect()
}

const TYPES: [Datatype; 6] =
    [Datatype::Int, Datatype::Uint, Datatype::Float, Datatype::Double, Datatype::Long, Datatype::Ulong];

pub(super) fn g34(task: &Task) {
    task.works(|here| {
        let (p, n) = (here.p, here.n as i32);
        for datatype in TYPES {
            let signed = !matches!(datatype, Datatype::Uint | Datatype::Ulong);
            let shift = if signed { 40 } else { 0 };
            for number in [1, 2, 255] {
                let of = |rank: i32, i: usize| (rank * 7 + i as i32) % 50 - shift;
                let mine = elements(datatype, |i| of(here.me as i32, i), number);
                for operation in [Operation::Min, Operation::Max, Operation::Sum] {
                    let combined = |i| {
                        let all = (0..n).map(|rank| of(rank, i));
                        match operation {
                            Operation::Min => all.min().expect("one"),
                            Operation::Max => all.max().expect("one"),
                            Operation::Sum => all.sum(),
                        }
                    };
                    let mut result = vec![0; mine.len()];
                    ok("allreduce", p.allreduce(&mine, &mut result, operation, datatype, GROUP_ALL, Block));
                    assert_eq!(result, elements(datatype, combined, number), "{operation:?} of {number} {datatype:?}");
                }
            }
        }
        let reduce =
            |send: &[u8], len| p.allreduce(send, &mut vec![0; len], Operation::Sum, Datatype::Int, GROUP_ALL, Block);
        fails(codes::INV_NUM, reduce(&[0; 4 * 256], 4 * 256));
        fails(codes::INV_NUM, reduce(&[], 0));
        fails(codes::INV_SIZE, reduce(&[0; 8], 4));
        fails(codes::INV_SIZE, reduce(&[0; 7], 7));
        here.barrier();
        // Other numbers of elements.
        if here.n > 1 {
            let len = if here.me == here.n - 1 { 8 } else { 4 };
            fails(codes::ERROR, reduce(&[0; 8][..len], len));
        }
    });
}

pub(super) fn g34_bits(task: &Task) {
    const NUMBER: usize = 100;
    task.works(|here| {
        let (p, me) = (here.p, here.me);
        let reduce = |send: &[u8], operation, datatype| {
            let mut result = vec![0; send.len()];
            ok("allreduce", p.allreduce(send, &mut result, operation, datatype, GROUP_ALL, Block));
            result
        };
        // Of sizes so different that each order of the sum rounds differently.
        let size = |i: usize| [1.0, 1e-7, 3e7, -1e7][(i + me) % 4] * (1.0 + (i * 7 + me * 13) as f64 / 97.0);
        let doubles: Vec<u8> = (0..NUMBER).flat_map(|i| size(i).to_ne_bytes()).collect();
        let floats: Vec<u8> = (0..NUMBER).flat_map(|i| (size(i) as f32).to_ne_bytes()).collect();
        for (send, of, bits) in
            [(doubles, Datatype::Double, Datatype::Ulong), (floats, Datatype::Float, Datatype::Uint)]
        {
            let sum = reduce(&send, Operation::Sum, of);
            let [least, most] = [Operation::Min, Operation::Max].map(|operation| reduce(&sum, operation, bits));
            assert_eq!(least, most, "a process has other bits of a sum of {of:?}");
        }
    });
}

pub(super) fn g34_capture(task: &Task) {
    task.works(|here| {
        if here.me != 0 {
            here.pause();
        }
        let mut send = 5u64.to_ne_bytes();
        let mut result = [0; 8];
        loop {
            match here.p.allreduce(&send, &mut result, Operation::Sum, Datatype::Ulong, GROUP_ALL, Test) {
                Ok(()) => break,
                Err(code) => assert!(code.is_timeout(), "{code}"),
            }
            send = 1000u64.to_ne_bytes();
        }
        assert_eq!(u64::from_ne_bytes(result), 5 * here.n as u64);
    });
}

pub(super) fn g35(task: &Task) {
    task.works(|here| {
        let larger = |mine: &mut [u8], theirs: &[u8]| {
            for (mine, theirs) in mine.chunks_exact_mut(4).zip(theirs.chunks_exact(4)) {
                let [a, b] = [&*mine, theirs].map(|bytes| i32::from_ne_bytes(bytes.try_into().expect("four bytes")));
                mine.copy_from_slice(&if a.abs() >= b.abs() { a } else { b }.to_ne_bytes());
            }
            Ok(())
        };
        let user =
            |send: &[u8], result: &mut [u8], size| here.p.allreduce_user(send, result, size, GROUP_ALL, Block, larger);
        let mine = (-(here.me as i32) - 1).to_ne_bytes();
        let mut result = [0; 4];
        ok("allreduce_user", user(&mine, &mut result, 4));
        assert_eq!(i32::from_ne_bytes(result), -(here.n as i32));
        fails(codes::INV_SIZE, user(&[0; 2048], &mut [0; 2048], 8));
        fails(codes::INV_NUM, user(&[0; 1024], &mut [0; 1024], 1));
        fails(codes::INV_SIZE, user(&[0; 8], &mut [0; 8], 0));
        here.barrier();
        if here.n > 1 {
            // One that fails, at whichever process calls it, is an error at all.
            let failing = |_: &mut [u8], _: &[u8]| Err(Code(codes::ERROR));
            fails(codes::ERROR, here.p.allreduce_user(&mine, &mut result, 4, GROUP_ALL, Block, failing));
        }
    });
}

pub(super) fn g36(task: &Task) {
    task.works(|here| {
        if here.me == 0 && here.n > 1 {
            fails(codes::TIMEOUT, here.p.barrier(GROUP_ALL, Test));
        }
        let mut sum = [0; 4];
        let one = 1i32.to_ne_bytes();
        ok("allreduce", here.p.allreduce(&one, &mut sum, Operation::Sum, Datatype::Int, GROUP_ALL, Block));
        assert_eq!(i32::from_ne_bytes(sum), here.n as i32);
        ok("barrier", here.p.barrier(GROUP_ALL, Block));
        if here.n == 1 || task.virtual_time {
            return;
        }
        // While a thread is in a barrier, another one may neither enter nor delete the group.
        let all: Vec<_> = (0..here.n).collect();
        let group = group(here, &all);
        if here.me != 0 {
            here.take(GO);
            return ok("barrier", here.p.barrier(group, Block));
        }
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                loop {
                    // The other thread may be in its call.
                    match here.p.barrier(group, Block) {
                        Err(Code(codes::ACTIVE_COLL)) => std::thread::yield_now(),
                        outcome => break ok("barrier", outcome),
                    }
                }
            });
            watchdog::at("a barrier that another thread is in");
            while here.p.barrier(group, Test) != Err(Code(codes::ACTIVE_COLL)) {
                std::thread::yield_now();
            }
            fails(codes::ACTIVE_COLL, here.p.group_delete(group));
            (1..here.n).for_each(|rank| here.tell(rank as u16, GO, 1, LATE));
            ok("wait", here.p.wait(LATE, Block));
            inside.join().expect("no panic");
        });
    });
}

pub(super) fn g37(task: &Task) {
    task.works(|here| {
        let all: Vec<_> = (0..here.n).collect();
        let mut groups = vec![group(here, &all), group(here, &all)];
        // Without the last process, and without the first one: of some processes, which overlap.
        for ranks in [&all[..here.n - 1], &all[1..]] {
            if here.n > 2 && ranks.contains(&here.me) {
                groups.push(group(here, ranks));
            }
        }
        // Every other process begins with the last group.
        let mut open: Vec<_> = if here.me % 2 == 0 { groups } else { groups.into_iter().rev().collect() };
        while !open.is_empty() {
            open.retain(|group| match here.p.barrier(*group, Test) {
                Ok(()) => false,
                Err(code) => {
                    assert!(code.is_timeout(), "{code}");
                    true
                }
            });
        }
        here.barrier();
        // One of some ranks only, which others do not hear of.
        if here.me < here.n.div_ceil(2) {
            let some = group(here, &all[..here.n.div_ceil(2)]);
            ok("barrier", here.p.barrier(some, Block));
        }
    });
}
