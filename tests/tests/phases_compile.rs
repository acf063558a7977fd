//! What the compiler refuses, so that safe code has no data race and no rank's thread does what is another's: each with the
//! error's code, and beside the same program put right. And what the test attribute says of wrong arguments.

mod fixture;

use fixture::Case;

const PRELUDE: &str = "#![allow(unused)]\n\
    use bellwether::{aggregate::{Aggregator, Options}, array::{Ghosts, GlobalArray, Layout}, rayon::prelude::*, Pool, World};\n";
const BEGIN: &str = "let layout = Layout::block([100], world.size())?;\n\
    let mut array = GlobalArray::<u64, 1>::new(world, layout.clone())?;\n\
    let mut pool = Pool::new(world)?;\n";

const fn case(
    name: &'static str,
    code: &'static str,
    says: &'static str,
    wrong: &'static str,
    right: &'static str,
) -> Case {
    Case { name, code, says, items: false, wrong, right }
}

#[test]
fn each_phase_has_its_own_ways_in() {
    let none = "no method named";
    let cases = [
        case("get", "E0599", none, "array.get(70)?;", "array.share(world)?.get(70)?;"),
        case("put", "E0599", none, "array.put(70, 1)?;", "array.share(world)?.put(70, 1)?;"),
        case("fetch_add", "E0599", none, "array.fetch_add(70, 1)?;", "array.share(world)?.fetch_add(70, 1)?;"),
        case("pointer", "E0599", none, "array.pointer(70)?;", "array.share(world)?.pointer(70)?;"),
        case("get_patch", "E0599", none, "array.get_patch([0..7])?;", "array.share(world)?.get_patch([0..7])?;"),
        case("pooled", "E0599", none, "array.pooled(&pool);", "array.share(world)?.pooled(&pool);"),
        case("local", "E0599", none, "array.share(world)?.local()[0];", "array.local()[0];"),
        case("local_mut", "E0599", none, "array.share(world)?.local_mut()[0] = 1;", "array.local_mut()[0] = 1;"),
        case("iter", "E0599", none, "array.share(world)?.iter();", "array.iter();"),
        case("par_iter", "E0599", none, "array.share(world)?.par_iter();", "array.par_iter();"),
        case("zip", "E0599", none, "array.share(world)?.zip(&array);", "array.zip(&array)?;"),
        case(
            "scatter_add",
            "E0599",
            none,
            "let mut by = Aggregator::new(world, &Options::new(world))?;
             array.share(world)?.scatter_add(&mut by, &[1], &[1])?;",
            "let mut by = Aggregator::new(world, &Options::new(world))?;
             array.scatter_add(&mut by, &[1], &[1])?;",
        ),
        case(
            "plain_data",
            "E0277",
            "elements are plain old data",
            "GlobalArray::<&'static str, 1>::new(world, layout)?;",
            "GlobalArray::<[u8; 3], 1>::new(world, layout)?;",
        ),
        case(
            "elements_of_no_type",
            "E0277",
            "name their type: `GlobalArray::<f64, 1>::new(...)`",
            "let some = GlobalArray::<_, 1>::new(world, layout)?.share(world)?; println!(\"{}\", some.get(3)?);",
            "let some = GlobalArray::<f64, 1>::new(world, layout)?.share(world)?; println!(\"{}\", some.get(3)?);",
        ),
        case(
            "plain_symmetric",
            "E0277",
            "the trait bound",
            "world.alloc::<&'static str>(1)?;",
            "world.alloc::<[u8; 3]>(1)?;",
        ),
    ];
    fixture::check("phases", PRELUDE, BEGIN, false, &cases);
}

#[test]
fn nothing_of_a_phase_outlives_it() {
    let (moved, borrowed) = ("borrow of moved value", "because it is borrowed");
    let cases = [
        case(
            "shared_is_gone",
            "E0382",
            moved,
            "let shared = array.share(world)?; array.local_mut()[0] = 1; shared.get(3)?;",
            "let shared = array.share(world)?; shared.put(0, 1)?; shared.get(3)?;",
        ),
        case(
            "local_is_gone",
            "E0382",
            moved,
            "let shared = array.share(world)?; let local = shared.localize(world)?; shared.get(3)?;",
            "let shared = array.share(world)?; shared.get(3)?; let local = shared.localize(world)?;",
        ),
        case(
            "slice",
            "E0505",
            borrowed,
            "let part = array.local_mut(); let shared = array.share(world)?; part[0] = 1;",
            "let part = array.local_mut(); part[0] = 1; let shared = array.share(world)?;",
        ),
        case(
            "slice_read",
            "E0505",
            borrowed,
            "let part = array.local(); let shared = array.share(world)?; println!(\"{}\", part[0]);",
            "let part = array.local(); println!(\"{}\", part[0]); let shared = array.share(world)?;",
        ),
        case(
            "iterator",
            "E0505",
            borrowed,
            "let mut all = array.iter_mut(); let shared = array.share(world)?; all.next();",
            "let mut all = array.iter_mut(); all.next(); drop(all); let shared = array.share(world)?;",
        ),
        case(
            "parallel_iterator",
            "E0505",
            borrowed,
            "let all = array.par_iter_mut(); let shared = array.share(world)?;
             pool.install(|| all.for_each(|(_, x)| *x = 1));",
            "let all = array.par_iter_mut();
             pool.install(|| all.for_each(|(_, x)| *x = 1)); let shared = array.share(world)?;",
        ),
        case(
            "view",
            "E0505",
            borrowed,
            "let view = array.view([0..7])?; let shared = array.share(world)?; view.iter().count();",
            "let view = array.view([0..7])?; view.iter().count(); let shared = array.share(world)?;",
        ),
        case(
            "view_of_shared",
            "E0505",
            borrowed,
            "let shared = array.share(world)?; let view = shared.view([0..7])?; let local = shared.localize(world)?;
             view.get(3)?;",
            "let shared = array.share(world)?; let view = shared.view([0..7])?; view.get(3)?;
             let local = shared.localize(world)?;",
        ),
        case(
            "view_mut",
            "E0505",
            borrowed,
            "let mut view = array.view_mut([0..7])?; let shared = array.share(world)?; view.fill(1);",
            "let mut view = array.view_mut([0..7])?; view.fill(1); let shared = array.share(world)?;",
        ),
        case(
            "signal_awaited",
            "E0505",
            borrowed,
            "let signals = world.alloc::<u64>(1)?; let one = signals.signalled(0, 1); drop(signals); world.block_on(one)?;",
            "let signals = world.alloc::<u64>(1)?; let one = signals.signalled(0, 1); world.block_on(one)?; drop(signals);",
        ),
        case(
            "pool_handle_of_memory",
            "E0505",
            borrowed,
            "let memory = world.alloc::<u64>(1)?; let handle = pool.share(&memory); drop(memory);
             pool.install(|| handle.get(0, 0))?;",
            "let memory = world.alloc::<u64>(1)?; let handle = pool.share(&memory);
             pool.install(|| handle.get(0, 0))?; drop(memory);",
        ),
        case(
            "pool_handle",
            "E0505",
            borrowed,
            "let shared = array.share(world)?; let handle = shared.pooled(&pool);
             let local = shared.localize(world)?; pool.install(|| handle.get(3))?;",
            "let shared = array.share(world)?; let handle = shared.pooled(&pool);
             pool.install(|| handle.get(3))?; let local = shared.localize(world)?;",
        ),
        case(
            "exchange",
            "E0505",
            borrowed,
            "let pending = array.start_exchange()?; let shared = array.share(world)?; pending.finish()?;",
            "let pending = array.start_exchange()?; pending.finish()?; let shared = array.share(world)?;",
        ),
        case(
            "two_slices",
            "E0499",
            "as mutable more than once",
            "let a = array.local_mut(); let b = array.local_mut(); (a[0], b[0]) = (1, 2);",
            "let (a, b) = array.local_mut().split_at_mut(1); (a[0], b[0]) = (1, 2);",
        ),
        case(
            "read_while_written",
            "E0502",
            "as immutable because it is also borrowed as mutable",
            "let a = array.local_mut(); let b = array.local(); a[0] = b[1];",
            "let b = array.local()[1]; let a = array.local_mut(); a[0] = b;",
        ),
        case(
            "zip_with_itself",
            "E0502",
            "because it is also borrowed as",
            "array.zip_mut(&array)?.count();",
            "array.zip(&array)?.count();",
        ),
        case(
            "read_while_exchanged",
            "E0502",
            "as immutable because it is also borrowed as mutable",
            "let pending = array.start_exchange()?; array.local()[0]; pending.finish()?;",
            "let pending = array.start_exchange()?; pending.local()[0]; pending.finish()?;",
        ),
    ];
    fixture::check("outlives", PRELUDE, BEGIN, true, &cases);
}

#[test]
fn values_that_are_no_plain_data_are_told_what_to_do() {
    let plain = "is no plain old data (`Pod`): other ranks get its bytes";
    let serde = "travel by `World::call` and `World::invoke`";
    let derive = "by `#[derive(Clone, Copy, Pod, Zeroable)] #[repr(C)]`, of bytemuck";
    let names = "vec![String::from(\"a\")]";
    let wrong = |call: &str| -> &'static str { call.replace("VALUES", names).leak() };
    let right = |call: &str| -> &'static str { call.replace("VALUES", "vec![1u8]").leak() };
    let one = |name, says, call: &str| case(name, "E0277", says, wrong(call), right(call));
    let cases = [
        case("alloc", "E0277", plain, "world.alloc::<String>(1)?;", "world.alloc::<u64>(1)?;"),
        case("alloc_serde", "E0277", serde, "world.alloc::<Vec<u8>>(1)?;", "world.alloc::<u64>(1)?;"),
        case("alloc_bool", "E0277", "use `u8`", "world.alloc::<bool>(1)?;", "world.alloc::<u8>(1)?;"),
        case(
            "alloc_label",
            "E0277",
            "the values are of type `char` here",
            "world.alloc::<char>(1)?;",
            "world.alloc::<u32>(1)?;",
        ),
        case(
            "alloc_struct",
            "E0277",
            derive,
            "struct Point(f64); world.alloc::<Point>(1)?;",
            "world.alloc::<f64>(1)?;",
        ),
        case(
            "array_label",
            "E0277",
            "the type of the elements is taken to be `char` here",
            "GlobalArray::<char, 1>::new(world, layout)?;",
            "GlobalArray::<u32, 1>::new(world, layout)?;",
        ),
        case(
            "array_of_structs",
            "E0277",
            derive,
            "struct Point(f64); GlobalArray::<Point, 1>::new(world, layout)?;",
            "GlobalArray::<f64, 1>::new(world, layout)?;",
        ),
        case(
            "alloc_aligned",
            "E0277",
            plain,
            "world.alloc_aligned::<char>(1, 64)?;",
            "world.alloc_aligned::<u32>(1, 64)?;",
        ),
        one("broadcast", plain, "world.broadcast(0, &mut VALUES)?;"),
        one("allgather", plain, "world.allgather(&VALUES)?;"),
        one("allreduce", plain, "world.allreduce(&mut VALUES, |a, _| a)?;"),
        case(
            "invoke_plain",
            "E0277",
            plain,
            "world.invoke_plain(0, String::new(), |_, _: String| ())?;",
            "world.invoke(0, String::new(), |_, _: String| ())?;",
        ),
        case(
            "call_plain",
            "E0277",
            plain,
            "world.call_plain(0, 1u8, |_, _: u8| true)?.wait()?;",
            "world.call(0, 1u8, |_, _: u8| true)?.wait()?;",
        ),
        one("team_gather", plain, "bellwether::Team::world(world)?.gather(0, &VALUES)?;"),
        one("team_alltoall", plain, "bellwether::Team::world(world)?.alltoall_async(VALUES).wait()?;"),
        one("team_scan", plain, "bellwether::Team::world(world)?.scan(&mut VALUES, |a, _| a)?;"),
        case(
            "push",
            "E0277",
            plain,
            "bellwether::aggregate::Push::new(world, &Options::new(world), |_: String| ())?;",
            "bellwether::aggregate::Push::new(world, &Options::new(world), |_: u32| ())?;",
        ),
        case(
            "aggregator",
            "E0277",
            plain,
            "Aggregator::<(u8, u8)>::new(world, &Options::new(world))?;",
            "Aggregator::<[u8; 2]>::new(world, &Options::new(world))?;",
        ),
        case("map", "E0277", "use `u8`", "array.map(world, |x| x > 3)?;", "array.map(world, |x| u8::from(x > 3))?;"),
        case(
            "array_of_strings",
            "E0277",
            "live in a `DistHashMap`",
            "GlobalArray::<String, 1>::new(world, layout)?;",
            "GlobalArray::<u8, 1>::new(world, layout)?;",
        ),
    ];
    fixture::check("plain_data", PRELUDE, BEGIN, true, &cases);
}

#[test]
fn what_is_of_a_rank_stays_with_its_thread() {
    let stays = "and what is made of a world stay on the thread of their rank";
    let cases = [
        case(
            "world_to_a_thread",
            "E0277",
            stays,
            "std::thread::scope(|scope| { scope.spawn(|| world.rank()); });",
            "let rank = world.rank(); std::thread::scope(|scope| { scope.spawn(|| rank); });",
        ),
        case(
            "world_label",
            "E0277",
            "another thread would use a `World`",
            "std::thread::scope(|scope| { scope.spawn(|| world.size()); });",
            "let size = world.size(); std::thread::scope(|scope| { scope.spawn(|| size); });",
        ),
        case(
            "ranks_that_are_threads_are_named",
            "E0277",
            "`bellwether::threads(4, |world| ...)`",
            "std::thread::scope(|scope| { scope.spawn(|| world.poll().is_ok()); });",
            "let size = world.size(); std::thread::scope(|scope| { scope.spawn(|| size); });",
        ),
        case(
            "context_is_moved",
            "E0277",
            "`ThreadContext` is for one thread at a time",
            "let context = world.context()?; std::thread::scope(|scope| { scope.spawn(|| context.flush_all().is_ok()); });",
            "let context = world.context()?; std::thread::scope(|scope| { scope.spawn(move || context.flush_all().is_ok()); });",
        ),
        case(
            "context_for_each_thread",
            "E0277",
            "move it into the thread that uses it, as `move ||` does, and make one for each thread",
            "let context = world.context()?; std::thread::scope(|scope| { scope.spawn(|| context.poll().is_ok()); });",
            "let context = world.context()?; std::thread::scope(|scope| { scope.spawn(move || context.poll().is_ok()); });",
        ),
        case(
            "pool_is_named",
            "E0277",
            "make a `Pool`: its threads take iterators over arrays",
            "let memory = world.alloc::<u64>(1)?; std::thread::scope(|scope| { scope.spawn(|| memory.get(0, 0).is_ok()); });",
            "let memory = world.alloc::<u64>(1)?; let memory = pool.share(&memory); pool.install(|| memory.get(0, 0))?;",
        ),
        case(
            "array_names_the_pool",
            "E0277",
            stays,
            "let array = array.share(world)?; pool.install(|| array.get(3))?;",
            "let array = array.share(world)?; let array = array.pooled(&pool); pool.install(|| array.get(3))?;",
        ),
        case(
            "bell",
            "E0277",
            stays,
            "let bell = world.bell()?; pool.install(|| bell.count());",
            "let bell = world.bell()?; pool.install(|| 3); bell.count();",
        ),
        case(
            "team",
            "E0277",
            stays,
            "let team = bellwether::Team::world(world)?; pool.install(|| team.barrier())?;",
            "let team = bellwether::Team::world(world)?; pool.install(|| 3); team.barrier()?;",
        ),
        case(
            "shared_array",
            "E0277",
            stays,
            "let array = array.share(world)?; std::thread::scope(|scope| { scope.spawn(|| array.get(3).is_ok()); });",
            "let array = array.share(world)?; std::thread::scope(|scope| { scope.spawn(|| true); });",
        ),
        case(
            "local_array",
            "E0277",
            stays,
            "std::thread::scope(|scope| { scope.spawn(|| array.local()[0]); });",
            "let part = array.local(); std::thread::scope(|scope| { scope.spawn(|| part[0]); });",
        ),
        case(
            "moved_array",
            "E0277",
            stays,
            "std::thread::scope(|scope| { scope.spawn(move || drop(array)); });",
            "std::thread::scope(|scope| { scope.spawn(move || drop(layout)); });",
        ),
        case(
            "world",
            "E0277",
            stays,
            "pool.install(|| world.barrier())?;",
            "let rank = world.rank(); pool.install(|| rank); world.barrier()?;",
        ),
        case(
            "symmetric",
            "E0277",
            stays,
            "let memory = world.alloc::<u64>(1)?; pool.install(|| memory.get(0, 0))?;",
            "let memory = world.alloc::<u64>(1)?; let memory = pool.share(&memory); pool.install(|| memory.get(0, 0))?;",
        ),
        case(
            "future",
            "E0277",
            stays,
            "let get = array.share(world)?.get_async(0)?; std::thread::scope(|scope| { scope.spawn(move || get.wait().is_ok()); });",
            "let get = array.share(world)?.get_async(0)?; get.wait()?;",
        ),
    ];
    fixture::check("threads", PRELUDE, BEGIN, true, &cases);
}

#[test]
fn wrong_arguments_of_the_test_attribute_are_told() {
    macro_rules! test {
        ($name:ident, $says:literal, $wrong:literal) => {
            Case {
                name: stringify!($name),
                code: "",
                says: $says,
                items: true,
                wrong: concat!("#[bellwether::test(", $wrong, ")]\nfn everyone_counts(world: &World) {}\n"),
                right: "#[bellwether::test(ranks = [1, 7], launch = \"processes\", deadline = \"500ms\")]\n\
                        fn everyone_counts(world: &World) {}\n",
            }
        };
    }
    let function = |name, says, wrong| Case {
        name,
        code: "",
        says,
        items: true,
        wrong,
        // Text of a program that is only compiled: `#[bellwether::test]` keeps attributes that follow.
        right: "#[bellwether::test]\n#[ignore]\nfn f(world: &World) -> bellwether::Result<()> { world.barrier() }",
    };
    let signature = "a test takes one argument, `world: &World`, and is neither generic nor async";
    let cases = [
        test!(ranks_no_list, "expected a list of numbers of ranks, such as [1, 2, 3, 7]", "ranks = 3"),
        test!(ranks_none, "expected a list of numbers of ranks, such as [1, 2, 3, 7]", "ranks = []"),
        test!(ranks_text, "expected a list of numbers of ranks, such as [1, 2, 3, 7]", "ranks = [1, \"two\"]"),
        test!(ranks_negative, "expected a list of numbers of ranks, such as [1, 2, 3, 7]", "ranks = [-1]"),
        test!(ranks_zero, "a job has at least 1 rank", "ranks = [1, 0]"),
        test!(ranks_twice, "3 ranks are on the list already", "ranks = [3, 1, 3]"),
        test!(ranks_huge, "number too large", "ranks = [99999999999999999999999]"),
        test!(launch_unknown, r#"expected \"threads\" or \"processes\""#, "launch = \"mpirun\""),
        test!(launch_no_text, "expected a text in quotes", "launch = threads"),
        test!(deadline_no_unit, r#"expected a time such as \"500ms\", \"10s\" or \"2min\""#, "deadline = \"10\""),
        test!(deadline_zero, r#"expected a time such as \"500ms\", \"10s\" or \"2min\""#, "deadline = \"0s\""),
        test!(deadline_number, "expected a text in quotes", "deadline = 10"),
        test!(unknown, "unknown argument `rank`: expected ranks, launch or deadline", "rank = [1]"),
        test!(no_value, "expected `=`", "ranks"),
        function("two_arguments", signature, "#[bellwether::test]\nfn f(world: &World, more: u8) {}"),
        function("no_arguments", signature, "#[bellwether::test]\nfn f() {}"),
        function("generic", signature, "#[bellwether::test]\nfn f<T>(world: &World) {}"),
        function("asynchronous", signature, "#[bellwether::test]\nasync fn f(world: &World) {}"),
        function(
            "test_twice",
            "this attribute makes the tests: leave out `#[test]`",
            "#[bellwether::test]\n#[test]\nfn f(world: &World) {}",
        ),
    ];
    fixture::check("attribute", PRELUDE, "", true, &cases);
}
