//! Every collective beside the same one with another root, length, type or operator, and beside another one.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bellwether_runtime::{Error, Max, Result, Sum, Team, Threads, World};

use super::{is_mapped, settings, watchdog};

struct Row {
    name: &'static str,
    /// What the odd rank did, and what the others did.
    said: [&'static str; 2],
    /// Places in the text: of both, or of the rank that is told.
    places: usize,
    call: fn(&World, &Team, bool) -> Result<()>,
}

/// A row: the odd rank makes the first call, the others the second, on lines of their own.
macro_rules! row {
    ($name:literal, $one:literal, $other:literal, |$world:ident, $team:ident| { $odd:expr; $others:expr; }) => {
        row!($name, $one, $other, 2, |$world, $team| {
            $odd;
            $others;
        })
    };
    ($name:literal, $one:literal, $other:literal, $places:literal, |$world:ident, $team:ident| {
        $odd:expr;
        $others:expr;
    }) => {
        Row {
            name: $name,
            said: [$one, $other],
            places: $places,
            call: |$world, $team, is_odd| {
                let _ = ($world, $team);
                if is_odd { $odd.map(drop) } else { $others.map(drop) }
            },
        }
    };
}

fn of_world() -> Vec<Row> {
    vec![
        row!("barrier", "a barrier", "an allgather", 1, |world, team| {
            world.barrier();
            world.allgather(&[1u8]);
        }),
        row!("agree", "an agreement", "an allgather", |world, team| {
            world.agree(Ok(()));
            world.allgather(&[1u8]);
        }),
        row!("allgather: length", "3 elements", "4 elements", |world, team| {
            world.allgather(&[1u8; 3]);
            world.allgather(&[1u8; 4]);
        }),
        row!("allgather: type", "type u32", "type f32", |world, team| {
            world.allgather(&[1u32]);
            world.allgather(&[1f32]);
        }),
        row!("allreduce: length", "3 elements", "4 elements", |world, team| {
            world.allreduce_sum(&mut [1u8; 3]);
            world.allreduce_sum(&mut [1u8; 4]);
        }),
        row!("allreduce: type", "type u32", "type f32", |world, team| {
            world.allreduce_sum(&mut [1u32]);
            world.allreduce_sum(&mut [1f32]);
        }),
        row!("allreduce: operator", "by Sum", "by a closure", |world, team| {
            world.allreduce_sum(&mut [1u32]);
            world.allreduce(&mut [1u32], u32::max);
        }),
        row!("allreduce: closure", "the results of an allreduce", "the results of an allreduce", |world, team| {
            world.allreduce(&mut [world.rank() + 1], |a, b| a + b);
            world.allreduce(&mut [world.rank() + 1], usize::max);
        }),
        row!("broadcast: root", "root 1", "root 2", |world, team| {
            world.broadcast(1, &mut [1u8]);
            world.broadcast(2, &mut [1u8]);
        }),
        row!("broadcast: length", "3 elements", "4 elements", |world, team| {
            world.broadcast(1, &mut [1u8; 3]);
            world.broadcast(1, &mut [1u8; 4]);
        }),
        row!("broadcast: type", "type u32", "type f32", |world, team| {
            world.broadcast(1, &mut [1u32]);
            world.broadcast(1, &mut [1f32]);
        }),
        row!("allocation: length", "3 elements", "4 elements", |world, team| {
            world.alloc::<u8>(3);
            world.alloc::<u8>(4);
        }),
        row!("allocation: type", "type u32", "type f32", |world, team| {
            world.alloc::<u32>(1);
            world.alloc::<f32>(1);
        }),
        row!("segments: length", "64", "72", 1, |world, team| {
            world.segment_all(64);
            world.segment_all(72);
        }),
    ]
}

fn of_team() -> Vec<Row> {
    vec![
        row!("barrier", "barrier", "gather", |world, team| {
            team.barrier();
            team.gather(1, &[1u8]);
        }),
        row!("broadcast: root", "root 1", "root 2", |world, team| {
            team.broadcast(1, &mut [1u8]);
            team.broadcast(2, &mut [1u8]);
        }),
        row!("broadcast: length", "3 elements", "4 elements", |world, team| {
            team.broadcast(1, &mut [1u8; 3]);
            team.broadcast(1, &mut [1u8; 4]);
        }),
        row!("broadcast: type", "type u32", "type f32", |world, team| {
            team.broadcast(1, &mut [1u32]);
            team.broadcast(1, &mut [1f32]);
        }),
        row!("reduce: root", "root 1", "root 2", |world, team| {
            team.reduce(1, &mut [1u8], Sum);
            team.reduce(2, &mut [1u8], Sum);
        }),
        row!("reduce: length", "3 elements", "4 elements", |world, team| {
            team.reduce(1, &mut [1u8; 3], Sum);
            team.reduce(1, &mut [1u8; 4], Sum);
        }),
        row!("reduce: type", "type u32", "type f32", |world, team| {
            team.reduce(1, &mut [1u32], Sum);
            team.reduce(1, &mut [1f32], Sum);
        }),
        row!("reduce: operator", "by Sum", "by Max", |world, team| {
            team.reduce(1, &mut [1u8], Sum);
            team.reduce(1, &mut [1u8], Max);
        }),
        row!("allreduce: length", "3 elements", "4 elements", |world, team| {
            team.allreduce(&mut [1u8; 3], Sum);
            team.allreduce(&mut [1u8; 4], Sum);
        }),
        row!("allreduce: type", "type u32", "type f32", |world, team| {
            team.allreduce(&mut [1u32], Sum);
            team.allreduce(&mut [1f32], Sum);
        }),
        row!("allreduce: operator", "by Sum", "by Max", |world, team| {
            team.allreduce(&mut [1u8], Sum);
            team.allreduce(&mut [1u8], Max);
        }),
        row!("gather: root", "root 1", "root 2", |world, team| {
            team.gather(1, &[1u8]);
            team.gather(2, &[1u8]);
        }),
        row!("gather: length", "3 elements", "4 elements", |world, team| {
            team.gather(1, &[1u8; 3]);
            team.gather(1, &[1u8; 4]);
        }),
        row!("gather: type", "type u32", "type f32", |world, team| {
            team.gather(1, &[1u32]);
            team.gather(1, &[1f32]);
        }),
        row!("allgather: length", "3 elements", "4 elements", |world, team| {
            team.allgather(&[1u8; 3]);
            team.allgather(&[1u8; 4]);
        }),
        row!("allgather: type", "type u32", "type f32", |world, team| {
            team.allgather(&[1u32]);
            team.allgather(&[1f32]);
        }),
        row!("scatter: root", "root 1", "root 2", |world, team| {
            team.scatter(1, &[1u8; 3][..if team.rank() == 1 { 3 } else { 0 }], &mut [0]);
            team.scatter(2, &[1u8; 3][..if team.rank() == 2 { 3 } else { 0 }], &mut [0]);
        }),
        row!("scatter: length", "3 elements", "4 elements", |world, team| {
            team.scatter(1, &[1u8; 9][..if team.rank() == 1 { 9 } else { 0 }], &mut [0; 3]);
            team.scatter(1, &[1u8; 12][..if team.rank() == 1 { 12 } else { 0 }], &mut [0; 4]);
        }),
        row!("scatter: type", "type u32", "type f32", |world, team| {
            team.scatter(1, &[1u32; 3][..if team.rank() == 1 { 3 } else { 0 }], &mut [0]);
            team.scatter(1, &[1f32; 3][..if team.rank() == 1 { 3 } else { 0 }], &mut [0.0]);
        }),
        row!("all-to-all: length", "3 elements", "6 elements", |world, team| {
            team.alltoall(&[1u8; 3]);
            team.alltoall(&[1u8; 6]);
        }),
        row!("all-to-all: type", "type u32", "type f32", |world, team| {
            team.alltoall(&[1u32; 3]);
            team.alltoall(&[1f32; 3]);
        }),
        row!("all-to-allv: type", "type u32", "type f32", |world, team| {
            team.alltoallv(&[1u32; 3], &[1; 3]);
            team.alltoallv(&[1f32; 3], &[1; 3]);
        }),
        row!("scan: length", "3 elements", "4 elements", |world, team| {
            team.scan(&mut [1u8; 3], Sum);
            team.scan(&mut [1u8; 4], Sum);
        }),
        row!("scan: type", "type u32", "type f32", |world, team| {
            team.scan(&mut [1u32], Sum);
            team.scan(&mut [1f32], Sum);
        }),
        row!("scan: operator", "by Sum", "by Max", |world, team| {
            team.scan(&mut [1u8], Sum);
            team.scan(&mut [1u8], Max);
        }),
        row!("exclusive scan: length", "3 elements", "4 elements", |world, team| {
            team.exclusive_scan(&mut [1u8; 3], 0, Sum);
            team.exclusive_scan(&mut [1u8; 4], 0, Sum);
        }),
        row!("exclusive scan: type", "type u32", "type f32", |world, team| {
            team.exclusive_scan(&mut [1u32], 0, Sum);
            team.exclusive_scan(&mut [1f32], 0.0, Sum);
        }),
        row!("exclusive scan: operator", "by Sum", "by Max", |world, team| {
            team.exclusive_scan(&mut [1u8], 0, Sum);
            team.exclusive_scan(&mut [1u8], 0, Max);
        }),
        row!("scan beside exclusive scan", "has scan of", "has exclusive scan of", |world, team| {
            team.scan(&mut [1u8], Sum);
            team.exclusive_scan(&mut [1u8], 0, Sum);
        }),
        row!("split beside barrier", "split", "barrier", |world, team| {
            team.split(Some(0), 0);
            team.barrier();
        }),
        row!("subset: list", "list number", "list number", |world, team| {
            team.subset(&[0, 1]);
            team.subset(&[1, 0]);
        }),
    ]
}

/// The lines of this file that a text names.
fn lines(text: &str) -> BTreeSet<&str> {
    text.split("each_kind.rs:").skip(1).filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()).collect()
}

const RANKS: usize = 3;
/// Far more than a call takes.
const LIMIT: Duration = Duration::from_secs(300);

/// What each of three ranks is told, by row and rank, if rank `odd` makes the first call of each row and the others make the second, and
/// all make `next` after it. Each row has a team of its own. With `stay` no rank goes on before all have been told.
fn told(rows: &[Row], odd: usize, stay: bool, next: fn(&World, &Team) -> Result<()>) -> Vec<Vec<String>> {
    let ended = AtomicUsize::new(0);
    let outcomes = Threads::new(RANKS).settings(settings()).deadline(LIMIT).run(|world| {
        let all = Team::world(world)?;
        let mut texts = Vec::new();
        for (number, row) in rows.iter().enumerate() {
            let team = all.split(Some(0), 0)?.expect("of all");
            let outcome = (row.call)(world, &team, world.rank() == odd).and_then(|()| next(world, &team));
            texts.push(outcome.err().map_or_else(String::new, |error| error.to_string()));
            ended.fetch_add(1, Ordering::AcqRel);
            if stay {
                // It polls: where memory is not mapped, another rank may need that to be told.
                world.wait_until_for(LIMIT, || ended.load(Ordering::Acquire) >= RANKS * (number + 1))?;
            }
        }
        Ok::<_, Error>(texts)
    });
    let texts: Vec<Vec<String>> =
        outcomes.expect("the ranks start").into_iter().map(|texts| texts.expect("the world goes on")).collect();
    (0..rows.len()).map(|row| texts.iter().map(|texts| texts[row].clone()).collect()).collect()
}

/// All in full, else one for each.
fn odd_ones() -> &'static [usize] {
    if std::env::var_os("ROWS_FULL").is_some() { &[0, 1, 2] } else { &[1] }
}

impl Row {
    /// Whether a text has what both sides did, and where.
    fn is_in(&self, text: &str) -> bool {
        self.said.iter().all(|said| text.contains(said)) && lines(text).len() >= self.places
    }
}

/// Where all ranks are mapped each is told what both sides did and where.
pub fn every_rank_is_told_both_sides_of_a_call_of_the_world() {
    watchdog();
    let rows = of_world();
    let next = |world: &World, _: &Team| world.allgather(&[1u8]).map(drop);
    for &odd in odd_ones() {
        if is_mapped() {
            for (row, told) in rows.iter().zip(told(&rows, odd, true, next)) {
                assert!(told.iter().all(|text| row.is_in(text)), "{}, rank {odd} is odd: {told:#?}", row.name);
            }
            continue;
        }
        // A rank that was told leaves, and others may hear only of that.
        for row in &rows {
            let told = told(std::slice::from_ref(row), odd, false, next).remove(0);
            // A root neither waits nor compares: the next call says that broadcasts differ. A message of a broadcast has the number of
            // its type only, not the name.
            let less = ["root, length or type of a broadcast before", "of type another than this"];
            let said = |text: &String| {
                row.said.iter().all(|said| text.contains(said)) || less.iter().any(|less| text.contains(less))
            };
            let both = |text: &String| said(text) && !lines(text).is_empty();
            assert!(told.iter().any(both), "{}, rank {odd} is odd: {told:#?}", row.name);
            let gone = |text: &String| text.contains("differs between ranks") || text.contains("is gone: it left");
            assert!(told.iter().all(gone), "{}, rank {odd} is odd: {told:#?}", row.name);
        }
    }
}

/// Where all ranks are mapped each is told what both sides did and where. Else those that found it, and the others which rank that is. Where
/// every member waits for another, as for one that is done with its part, all are told in what call, and where, two of them wait. Over a
/// network a member whose root is another one may name the member that it waits for, or find the difference in its next call.
pub fn every_member_is_told_both_sides_of_a_call_of_a_team() {
    watchdog();
    let rows = of_team();
    let next = |_: &World, team: &Team| team.allgather(&[1u8]).map(drop);
    for &odd in odd_ones() {
        for (row, told) in rows.iter().zip(told(&rows, odd, true, next)) {
            let is_found = |text: &str| row.is_in(text) || waits(text);
            let by = |text: &str| (0..RANKS).find(|rank| text.starts_with(&format!("rank {rank}:")));
            let is_told = |text: &String| {
                let is_passed_on = text.contains("its own error says how");
                is_found(text) || is_passed_on && by(text).is_some_and(|finder| is_found(&told[finder]))
            };
            let has_root = row.name.ends_with("root");
            let is_enough = |text: &String| match is_mapped() {
                true => row.is_in(text),
                false if has_root => text.contains("differs between ranks") || text.contains("its own error says how"),
                false => is_told(text),
            };
            assert!(told.iter().all(is_enough), "{}, rank {odd} is odd: {told:#?}", row.name);
        }
    }
}

/// Whether a text tells the waits of two ranks.
fn waits(text: &str) -> bool {
    text.contains("the collective call in which each rank waits differs") && lines(text).len() >= 2
}
