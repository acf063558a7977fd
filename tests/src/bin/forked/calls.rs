//! Calls of contexts, operations with events, segments and streams, each an error in a child.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bellwether::aggregate::{Aggregator, Options, Push};
use bellwether::{AtomicOp, Bell, Counter, LandingId, Result, Segment, Symmetric, ThreadContext, Transport, World};

/// Values that a rank makes before it forks.
pub struct More {
    context: ThreadContext,
    segment: Segment,
    taken: Rc<Cell<u64>>,
}

impl More {
    /// Collective.
    pub fn new(world: &World) -> Result<More> {
        let (context, segment) = (world.context()?, world.segment_all(64)?);
        Ok(More { context, segment, taken: Rc::default() })
    }

    /// Nothing has happened at the parent. Collective.
    pub fn end(self, world: &World) -> Result<()> {
        let mut bytes = [1; 64];
        self.segment.read(0, &mut bytes)?;
        assert_eq!(bytes, [0; 64], "a child has written to a segment");
        assert_eq!(self.taken.get(), 0);
        self.context.flush_all()?;
        world.barrier()?;
        drop(self.context);
        self.segment.close()
    }

    /// Makes the calls in a child.
    pub fn in_child(
        self,
        world: &World,
        (next, large): (usize, LandingId),
        memory: &Symmetric<u64>,
        bell: &Bell,
        check: &dyn Fn(&str, Result<()>),
    ) {
        let (context, segment, taken) = (&self.context, &self.segment, Rc::clone(&self.taken));
        let number = segment.number();
        check("context", world.context().map(drop));
        check("poll of a context", context.poll().map(drop));
        check("flush", context.flush(next));
        check("flush_all", context.flush_all());
        check("flush_all_for", context.flush_all_for(Duration::from_secs(1)));
        check("is_complete", context.is_complete().map(drop));
        check("fence", context.fence());
        check("invoke of a context", context.invoke(next, 1u64, |_, _| ()));
        check("try_invoke of a context", context.try_invoke(next, &1u64, |_, _: u64| ()));
        check("put_segment of a context", context.put_segment(next, number, 0, &[1; 8]));
        check("notify_segment of a context", context.notify_segment(next, number, 0, 1u64));
        check("get_segment of a context", context.get_segment(next, number, 0, &mut [0; 8]));
        check("fetch_segment of a context", context.fetch_segment(AtomicOp::Add, next, number, 0, 1u64).map(drop));

        let counter = Counter::new();
        counter.add(5);
        check("invoke of an operation", world.operation().handled(&counter).invoke(next, 1u64, |_, _| ()));
        check("wait_counter", world.wait_counter(&counter, 6).map(drop));
        check("invoke of a context's operation", context.operation().handled(&counter).invoke(next, 1u64, |_, _| ()));
        check("wait_counter of a context", context.wait_counter(&counter, 6).map(drop));
        if world.settings().transport != Transport::Auto && world.size() > 1 {
            let array = memory.for_threads();
            check("put of an operation", world.operation().effect(&counter).put(memory, next, 0, &[1; 4]));
            check("put of a context", context.put(&array, next, 0, 1));
            check("get of a context", context.get(&array, next, 0).map(drop));
            check("put_bell of a context", context.put_bell(&array, next, 0, 1, &bell.for_threads()));
            check("fetch_add of a context", context.fetch_add(&array, next, 0, 1).map(drop));
        }

        check("segment", world.segment(64).map(drop));
        check("segment_all", world.segment_all(64).map(drop));
        check("put_segment", world.put_segment(next, number, 0, &[1; 8]));
        check("notify_segment", world.notify_segment(next, number, 0, 1u64));
        check("put_segment_bell", world.put_segment_bell(next, number, 0, &[1; 8], bell));
        check("get_segment", world.get_segment(next, number, 0, &mut [0; 8]));
        check("fetch_segment", world.fetch_segment(AtomicOp::Add, next, number, 0, 1u64).map(drop));

        let options = Options::new(world);
        check("Push", Push::new(world, &options, move |item: u64| taken.set(item)).map(drop));
        check("Aggregator", Aggregator::<u64>::new(world, &options).map(drop));
        check("send_large of an empty message", world.send_large(next, large, b"", Vec::new()).map(drop));
        let More { context, segment, .. } = self;
        drop(context);
        check("close", segment.close());
    }
}
