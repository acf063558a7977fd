//! The conformance suite: a test for each row U1 to U59 of the contract, generic over the transport.
//!
//! A transport brings a [`Rig`] and one line, `conformance!(module, Rig);`, and has every test. Tests with both ends in
//! one thread use a [`Duo`]; those that are about concurrency run as ranks through [`Rig::ranks`].

mod completions;
mod endpoints;
mod limits;
mod memory;
mod messages;
mod objects;
mod operations;
mod pending;
mod progress;
mod rig;

pub use self::completions::*;
pub use self::endpoints::*;
pub use self::limits::*;
pub use self::memory::*;
pub use self::messages::*;
pub use self::objects::*;
pub use self::operations::*;
pub use self::pending::*;
pub use self::progress::*;
pub use self::rig::{Board, Dom, Duo, Ep, If, Player, Rig, Side, join, wait};

/// Every row as a test of the module `$name`, for the transport of `$rig`.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $rig:ty $(, $meta:meta)?) => {
        mod $name {
            use super::*;
            $crate::conformance!(@rows $rig, ($($meta)?):
                u01_objects u02_capabilities_are_attributes u03_capability_bits u04_primitives u05_atomics
                u06_atomic_results_need_no_key u07_three_return_values u08_completion_counts u09_fewer_operations_than_count
                u10_completion_status u10_death_before_arrival u11_no_completion u12_local_is_not_remote u13_flush u14_flush_flags
                u15_interface_flush u16_order_is_exposed u17_fence u18_implicit_completion u19_completion_thread
                u20_message_handler_thread u21_handlers_send_but_do_not_nest u22_retention u23_retainable_flag
                u24_message_ids u25_short_messages u26_packing_callback u27_packing_limit u28_get_packed
                u29_zero_copy_messages u30_local_keys u31_least_short u32_scatter_gather u33_limits_are_exact
                u34_no_target_progress_needed u35_worker_progress u36_progress_starts_disabled
                u37_independent_interfaces u38_shared_between_threads u39_memory u40_remote_keys u41_any_registered_memory
                u42_key_pointer u43_allocation_methods u44_connect_modes u45_many_endpoints u46_endpoint_to_the_dead
                u47_reachability u48_pending_add u49_pending_outcomes u50_no_overtaking u51_pending_before_completions
                u52_pending_is_fair u53_pending_purge u54_events u55_drop_forgets u55_drop_leaves_others_alone u56_only_address_bytes
                u57_registering_again u58_notices u59_several_interfaces);
        }
    };
    (@rows $rig:ty, (): $($row:ident)*) => { $($crate::conformance!(@row $rig, $row, test);)* };
    (@rows $rig:ty, ($meta:meta): $($row:ident)*) => { $($crate::conformance!(@row $rig, $row, test, $meta);)* };
    (@row $rig:ty, $row:ident, $($meta:meta),+) => {
        $(#[$meta])+
        fn $row() {
            <$rig as $crate::transport::conformance::Rig>::repeat(
                concat!(module_path!(), "::", stringify!($row)),
                $crate::transport::conformance::$row::<$rig>,
            );
        }
    };
}
