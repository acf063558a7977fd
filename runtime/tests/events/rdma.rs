//! Events of operations over an RDMA device.

use bellwether_runtime::{Result, Transport};

use super::{Through, by_context, messages, one_sided, threads};

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn operations_over_rdma_tell_of_their_events() {
    let all_well = |results: Result<Vec<Result<()>>>| {
        results.expect("ranks start").into_iter().for_each(|result| result.expect("runs"));
    };
    for ranks in [1, 2, 3] {
        let through = Through::default();
        all_well(threads(ranks, Transport::Verbs).run(|world| one_sided(world, &through)));
        let ran = Through::default();
        all_well(threads(ranks, Transport::Verbs).run(|world| messages(world, &ran)));
        for elsewhere in [false, true] {
            let through = Through::default();
            all_well(threads(ranks, Transport::Verbs).run(|world| by_context(world, &through, elsewhere)));
        }
    }
}
