//! Closures as remote calls: what travels, what does not, and what is said when it does not.

mod fixture;

use std::cell::Cell;
use std::time::Duration;

use bellwether_runtime::{Error, Result, Settings, Threads, World, threads};
use bellwether_tests::watchdog;
use fixture::Case;
use serde::{Deserialize, Serialize};

fn everywhere(name: &str, program: fn(&World) -> Result<()>) {
    let _guard = watchdog::guard(name, Duration::from_secs(100));
    for ranks in [1, 2, 3, 5] {
        for result in threads(ranks, program).expect("starts") {
            result.unwrap_or_else(|error| panic!("{name}, {ranks} ranks: {error}"));
        }
    }
    let mut settings = Settings::default();
    settings.lane_depth = Some(1);
    settings.message_memory = 64 << 10;
    for result in Threads::new(3).settings(settings).run(program).expect("starts") {
        result.unwrap_or_else(|error| panic!("{name}, lanes of one: {error}"));
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Dot,
    Ring { radius: f64, name: Option<String> },
    Group(Vec<Shape>),
}

#[test]
fn arguments_and_results_of_many_types() {
    everywhere("arguments_and_results_of_many_types", |world| {
        let next = (world.rank() + 1) % world.size();
        assert_eq!(world.call(next, (), |ctx, ()| (ctx.from(), ctx.rank(), ctx.size()))?.wait()?, {
            (world.rank(), next, world.size())
        });
        let shape = Shape::Group(vec![Shape::Dot, Shape::Ring { radius: -0.0, name: Some("ä".into()) }]);
        let twice = world.call(next, shape.clone(), |_, shape: Shape| vec![shape.clone(), shape])?.wait()?;
        assert_eq!(twice, [shape.clone(), shape]);
        let failed = world.call(next, 0u32, |_, x: u32| 10u32.checked_div(x).ok_or("by zero".to_string()))?.wait()?;
        assert_eq!(failed, Err("by zero".into()));
        let map: std::collections::BTreeMap<String, [u8; 3]> = [("a".into(), [1, 2, 3])].into();
        assert_eq!(
            world.call(next, map.clone(), |_, map: std::collections::BTreeMap<String, [u8; 3]>| map)?.wait()?,
            map
        );
        // Around what fits in a line, and beyond.
        macro_rules! plain {
            ($($len:literal)*) => {$(
                let sent: [u8; $len] = std::array::from_fn(|i| i as u8);
                let answer = world.call_plain(next, sent, |_, mut got: [u8; $len]| {
                    got.iter_mut().for_each(|byte| *byte ^= 0x55);
                    got
                })?;
                assert_eq!(answer.wait()?, sent.map(|byte| byte ^ 0x55));
            )*};
        }
        plain!(0 1 7 8 9 31 32 33 39 40 41 47 48 49 255 4096);
        assert_eq!(world.call_plain(next, [1.5f64, f64::MIN], |_, x: [f64; 2]| x[0] + x[1])?.wait()?, 1.5 + f64::MIN);
        // A plain function is a closure that captures nothing.
        fn double(_: &bellwether_runtime::Context<'_>, x: u64) -> u64 {
            2 * x
        }
        assert_eq!(world.call(next, 21u64, double)?.wait()?, 42);
        world.barrier()
    });
}

#[test]
fn large_arguments_and_results() {
    let _guard = watchdog::guard("large_arguments_and_results", Duration::from_secs(100));
    threads(3, |world| -> Result<()> {
        let next = (world.rank() + 1) % world.size();
        let call = world.call(next, 10u32 << 20, |_, len: u32| (0..len).map(|i| i as u8).collect::<Vec<u8>>())?;
        let result = call.wait()?;
        assert!(result.len() == 10 << 20 && result.iter().enumerate().all(|(i, byte)| *byte == i as u8));
        let sum = world.call(next, result, |_, all: Vec<u8>| all.iter().map(|byte| u64::from(*byte)).sum::<u64>())?;
        assert_eq!(sum.wait()?, (10 << 20) / 256 * (255 * 256 / 2));
        world.barrier()
    })
    .expect("starts")
    .into_iter()
    .for_each(|result| result.expect("large is fine"));
}

#[test]
fn what_does_not_fit_is_an_error_of_the_caller() {
    let _guard = watchdog::guard("what_does_not_fit_is_an_error_of_the_caller", Duration::from_secs(100));
    let mut settings = Settings::default();
    settings.message_memory = 64 << 10;
    let program = |world: &World| -> Result<()> {
        let next = (world.rank() + 1) % world.size();
        match world.call(next, vec![0u8; 100 << 10], |_, v: Vec<u8>| v.len()).map(drop) {
            Err(Error::OutOfMemory { asked, limit, setting: "BELLWETHER_MESSAGE_MEMORY", .. }) => {
                assert!(asked >= 100 << 10 && limit == 64 << 10, "{asked} of {limit}");
            }
            other => panic!("{other:?}"),
        }
        // The target makes more than it can send: the caller, who waits, is told.
        let error = world.call(next, (), |_, ()| vec![0u8; 100 << 10])?.wait().expect_err("too large");
        assert!(matches!(&error, Error::BadMessage { from, .. } if *from == next), "{error:?}");
        assert!(error.to_string().contains("BELLWETHER_MESSAGE_MEMORY"), "{error}");
        assert_eq!(world.call(next, (), |_, ()| vec![1u8; 50 << 10])?.wait()?.len(), 50 << 10);
        world.barrier()
    };
    for ranks in [1, 2, 3] {
        let results = Threads::new(ranks).settings(settings.clone()).run(program).expect("starts");
        results.into_iter().for_each(|result| result.expect("the job goes on"));
    }
}

/// Cannot be sent when it holds 13.
#[derive(Debug, PartialEq, Deserialize)]
struct Picky(u8);

impl Serialize for Picky {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.0 {
            13 => Err(serde::ser::Error::custom("thirteen does not travel")),
            other => serializer.serialize_newtype_struct("Picky", &other),
        }
    }
}

#[test]
fn what_cannot_be_serialised_is_an_error_of_the_caller() {
    everywhere("what_cannot_be_serialised_is_an_error_of_the_caller", |world| {
        let next = (world.rank() + 1) % world.size();
        let error = world.call(next, Picky(13), |_, _: Picky| ()).map(drop).expect_err("arguments").to_string();
        assert!(error.contains("Picky") && error.contains("cannot be serialised"), "{error}");
        let error = world.call(next, Picky(12), |_, p: Picky| Picky(p.0 + 1))?.wait().expect_err("result");
        assert!(matches!(&error, Error::BadMessage { from, .. } if *from == next), "{error:?}");
        assert!(error.to_string().contains("cannot be serialised"), "{error}");
        assert_eq!(world.call(next, Picky(13 - 1), |_, p: Picky| p)?.wait()?, Picky(12));
        world.barrier()
    });
}

#[test]
fn many_calls_at_once_in_any_order() {
    everywhere("many_calls_at_once_in_any_order", |world| {
        let mut calls = Vec::new();
        for i in 0..1000usize {
            calls.push((i, world.call(i % world.size(), i, |ctx, i: usize| (ctx.rank(), i * i))?));
            // Some answers nobody wants.
            drop(world.call(i % world.size(), i, |_, i: usize| vec![0u8; i])?);
        }
        for (i, call) in calls.into_iter().rev() {
            assert_eq!(call.wait()?, (i % world.size(), i * i));
        }
        let call = world.call(0, (), |_, ()| 5u8)?;
        while !call.is_done()? {
            std::thread::yield_now();
        }
        assert_eq!(call.wait()?, 5);
        world.barrier()
    });
}

/// Passes a number round the ring until it is used up, and then tells its starter.
fn round(ctx: &bellwether_runtime::Context<'_>, (left, starter): (u32, usize)) {
    let state = ctx.state::<Counts>().expect("set before the barrier");
    state.hops.set(state.hops.get() + 1);
    match left {
        0 => ctx.invoke(starter, (), |ctx, ()| {
            let state = ctx.state::<Counts>().expect("set before the barrier");
            state.done.set(state.done.get() + 1);
        }),
        _ => ctx.invoke((ctx.rank() + 1) % ctx.size(), (left - 1, starter), round),
    }
    .expect("from a handler");
}

#[derive(Default)]
struct Counts {
    hops: Cell<u32>,
    done: Cell<u32>,
}

#[test]
fn handlers_can_call_on() {
    everywhere("handlers_can_call_on", |world| {
        world.set_state(Counts::default());
        world.barrier()?;
        let state = world.state::<Counts>().expect("just set");
        for _ in 0..10 {
            world.invoke((world.rank() + 1) % world.size(), (499u32, world.rank()), round)?;
        }
        world.wait_until(|| state.done.get() == 10)?;
        world.barrier()?;
        assert_eq!(state.hops.get(), 10 * 500);
        world.barrier()
    });
}

/// One that captures, and one that is given what it needs.
const fn capture(name: &'static str, wrong: &'static str, right: &'static str) -> Case {
    let says = "a closure sent to another rank must not capture anything: pass what it needs as arguments";
    Case { name, code: "E0080", says, items: false, wrong, right }
}

#[test]
fn a_closure_that_captures_does_not_compile() {
    let cases = [
        capture(
            "call",
            "world.call(0, 1u8, move |_, x: u8| x + captured)?.wait()?;",
            "world.call(0, (1u8, captured), |_, (x, captured)| x + captured)?.wait()?;",
        ),
        capture(
            "call_plain",
            "world.call_plain(0, 1u8, move |_, x: u8| x + captured)?.wait()?;",
            "world.call_plain(0, [1u8, captured], |_, [x, captured]: [u8; 2]| x + captured)?.wait()?;",
        ),
        capture(
            "invoke",
            "world.invoke(0, 1u8, move |_, x: u8| println!(\"{}\", x + captured))?;",
            "world.invoke(0, captured, |_, captured: u8| println!(\"{}\", 1 + captured))?;",
        ),
        capture(
            "invoke_plain",
            "world.invoke_plain(0, 1u8, move |_, x: u8| println!(\"{}\", x + captured))?;",
            "world.invoke_plain(0, captured, |_, captured: u8| println!(\"{}\", 1 + captured))?;",
        ),
        capture(
            "map_update",
            "let mut map = bellwether::DistHashMap::<u64, u8>::new(world)?;
             map.update(7, 1u8, move |value, x: u8| *value = Some(x + captured))?;",
            "let mut map = bellwether::DistHashMap::<u64, u8>::new(world)?;
             map.update(7, captured, |value, captured: u8| *value = Some(1 + captured))?;",
        ),
        capture(
            "map_update_many",
            "let mut map = bellwether::DistHashMap::<u64, u8>::new(world)?;
             map.update_many([(7, 1u8)], move |value, x: u8| *value = Some(x + captured))?;",
            "let mut map = bellwether::DistHashMap::<u64, u8>::new(world)?;
             map.update_many([(7, captured)], |value, captured: u8| *value = Some(1 + captured))?;",
        ),
        // A reference is a capture too, but of what may be gone.
        Case {
            name: "map_borrowed",
            code: "E0373",
            says: "closure may outlive the current function",
            items: false,
            wrong: "let mut map = bellwether::DistHashMap::<u64, u8>::new(world)?;
                    map.update(7, 1u8, |value, x: u8| *value = Some(x + captured))?;",
            right: "let mut map = bellwether::DistHashMap::<u64, u8>::new(world)?;
                    map.update(7, 1u8, |value, x: u8| *value = Some(x + 1))?;",
        },
    ];
    // Bodies begin with something that is not known before the program runs.
    let prelude = "use bellwether::World;\n";
    let begin = "let captured = std::env::args().count() as u8;\nstd::hint::black_box(captured);\n";
    fixture::check("closures", prelude, begin, false, &cases);
}
