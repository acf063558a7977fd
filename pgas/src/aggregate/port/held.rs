//! How much ports really hold, in tests.

use std::cell::Cell;

use bellwether_runtime::transport::sim::Config;
use bellwether_runtime::{Simulated, World};

use super::super::{Aggregator, Blocks, Options, Push, Route};
use super::{Ports, Post};
use crate::{DistHashMap, DistQueue};

#[derive(Default)]
pub(super) struct Held {
    leaving: Cell<usize>,
    most: Cell<usize>,
}

impl Ports {
    pub(super) fn leaving(&self, posts: &[Post]) {
        let bytes: usize = posts.iter().map(|post| post.parcel.held()).sum();
        self.held.leaving.set(self.held.leaving.get() + bytes);
        self.sample();
    }

    pub(super) fn left(&self, bytes: usize) {
        self.held.leaving.set(self.held.leaving.get() - bytes);
    }

    /// Counts all bytes that are held now. A port whose sink is running is left out, because it is borrowed.
    pub(super) fn sample(&self) {
        let posts: usize = self.posts.try_borrow().map_or(0, |posts| posts.iter().map(|post| post.parcel.held()).sum());
        let mut held = posts + self.held.leaving.get();
        for state in self.open.borrow().values() {
            let Ok(state) = state.try_borrow() else { continue };
            held += state.legs.iter().map(super::Leg::held).sum::<usize>();
            held += state.inbox.iter().map(|(_, _, bytes, _)| bytes.capacity()).sum::<usize>();
        }
        self.held.most.set(self.held.most.get().max(held));
    }
}

/// The most bytes that were held since the last sample.
fn most(world: &World) -> usize {
    Ports::of(world).held.most.replace(0)
}

const ROUTES: [Route; 2] = [Route::OneHop, Route::TwoHops { columns: Some(2) }];

/// Runs `body` with several budgets and routes, and checks that no more memory is held than the number that `body` returns.
fn compare(body: impl Fn(&World, &Options) -> crate::Result<usize> + Sync) {
    for ranks in [2, 5] {
        for (route, memory) in ROUTES.into_iter().flat_map(|route| [0, 20_000, 16 << 20, 1 << 40].map(|m| (route, m))) {
            let ends = Simulated::new(Config::new(ranks, 1).wild()).run(|world| {
                let options = Options { memory, route, ..Options::new(world) };
                most(world);
                let told = body(world, &options)?;
                let held = most(world);
                world.barrier()?;
                Ok::<_, crate::Error>((told, held))
            });
            for end in ends.expect("the job starts") {
                let (told, held) = end.expect("it goes well");
                println!("{ranks} ranks, {route:?}, {memory} bytes wished for, {told} told, {held} held");
                assert!(held > 0 && held <= told, "{held} bytes held, {told} told, {memory} wished for, {route:?}");
                assert!(told <= memory.max(2500), "{told} told, {memory} wished for");
                // Messages are no longer than 64 KiB, however much there is.
                assert!(told <= 8 << 20, "{told} told, {memory} wished for");
            }
        }
    }
}

#[test]
fn an_aggregator_holds_what_it_tells_at_most() {
    compare(|world, options| {
        let places = Blocks::new(1000 * world.size(), world.size());
        let mut table = world.alloc::<u64>(places.block())?;
        let mut by = Aggregator::new(world, options)?;
        let count = if bellwether_tests::is_full() { 3000 } else { 1000 };
        let indices: Vec<usize> = (0..count).map(|i| (i * 7919 + world.rank()) % (1000 * world.size())).collect();
        let ones = vec![1; indices.len()];
        by.scatter_add(&mut table, &places, &indices, &ones)?;
        by.fetch_add(&mut table, &places, &indices, &ones)?;
        by.gather(&table, &places, &indices)?;
        Ok(by.memory())
    });
}

#[test]
fn a_push_holds_what_it_tells_at_most() {
    compare(|world, options| {
        let mut push = Push::new(world, options, |_: [u64; 3]| ())?;
        (0..3000).try_for_each(|i| push.push(i % world.size(), [i as u64; 3]))?;
        push.finish()?;
        Ok(push.memory())
    });
}

#[test]
fn a_map_holds_what_it_tells_at_most() {
    compare(|world, options| {
        let mut map = DistHashMap::<usize, Vec<u8>>::with_options(world, options)?;
        // Answers that are larger than requests, and some that are larger than small buffers.
        map.insert_many((0..300).map(|i| (i * world.size() + world.rank(), vec![1; i % 200])))?;
        world.barrier()?;
        let keys: Vec<usize> = (0..300 * world.size()).rev().collect();
        let found = map.get_many(&keys)?;
        assert!(found.iter().zip(keys).all(|(found, key)| *found == Some(vec![1; key / world.size() % 200])));
        world.barrier()?;
        Ok(map.memory())
    });
}

#[test]
fn a_queue_holds_what_it_tells_at_most() {
    compare(|world, options| {
        let mut queue = DistQueue::<Vec<u8>>::with_options(world, options)?;
        (0..1000).try_for_each(|i| queue.push_to(i % world.size(), vec![1; i % 200]))?;
        while queue.pop()?.is_some() {}
        Ok(queue.memory())
    });
}
