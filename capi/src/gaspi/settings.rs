//! The configuration, and the calls that return its numbers.

use std::ffi::{c_int, c_uint, c_void};

use bellwether_runtime::vocabulary::gaspi::{self, Code, Config, Result, codes};

use super::life::{held, is_working, working};
use super::{calls, store};

/// `gaspi_config_t`. The fields up to `network`, and `passive_queue_size_max` and `user_defined`, are kept for the program. Of these only
/// `network` is checked, and nothing else depends on them.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Settings {
    logger: c_uint,
    sn_port: c_uint,
    net_info: c_uint,
    user_net: c_uint,
    sn_persistent: c_int,
    sn_timeout: u64,
    /// `gaspi_dev_config_t`: network type; InfiniBand device, MTU and port check; TCP port.
    dev_config: [c_uint; 5],
    network: c_uint,
    queue_size_max: c_uint,
    queue_num: c_uint,
    group_max: c_uint,
    segment_max: c_uint,
    transfer_size_max: u64,
    notification_num: c_uint,
    passive_queue_size_max: c_uint,
    passive_transfer_size_max: c_uint,
    allreduce_buf_size: u64,
    allreduce_elem_max: c_uint,
    rw_list_elem_max: c_uint,
    build_infrastructure: c_uint,
    user_defined: *mut c_void,
}

/// `GASPI_ETHERNET`.
const ETHERNET: c_uint = 2;
/// The largest values of `gaspi_network_t` and of `gaspi_topology_t`.
const NETWORKS: c_uint = 4;
const TOPOLOGIES: c_uint = 2;
/// Defaults for programs that were written for GPI-2: MTU in bytes, and TCP port.
const MTU: c_uint = 4096;
const PORT: c_uint = 19000;
/// Default of `sn_timeout`, in milliseconds.
const START_LIMIT: u64 = 30_000;

impl Default for Settings {
    fn default() -> Settings {
        let config = Config::default();
        Settings {
            logger: 1,
            sn_port: 10840,
            net_info: 0,
            user_net: 0,
            sn_persistent: 1,
            sn_timeout: START_LIMIT,
            dev_config: [ETHERNET, u32::MAX, MTU, 1, PORT],
            network: ETHERNET,
            queue_size_max: config.queue_size_max,
            queue_num: config.queue_num,
            group_max: config.group_max,
            segment_max: config.segment_max,
            transfer_size_max: config.transfer_size_max,
            notification_num: config.notification_num,
            passive_queue_size_max: config.queue_size_max,
            passive_transfer_size_max: config.passive_transfer_size_max as c_uint,
            allreduce_buf_size: config.allreduce_buf_size,
            allreduce_elem_max: config.allreduce_elem_max,
            rw_list_elem_max: config.rw_list_elem_max,
            build_infrastructure: c_uint::from(config.build_infrastructure),
            user_defined: std::ptr::null_mut(),
        }
    }
}

/// The part of the configuration that the runtime uses.
pub(super) fn config(settings: &Settings) -> Config {
    Config {
        queue_num: settings.queue_num,
        queue_size_max: settings.queue_size_max,
        group_max: settings.group_max,
        segment_max: settings.segment_max,
        notification_num: settings.notification_num,
        transfer_size_max: settings.transfer_size_max,
        passive_transfer_size_max: settings.passive_transfer_size_max.into(),
        allreduce_elem_max: settings.allreduce_elem_max,
        allreduce_buf_size: settings.allreduce_buf_size,
        rw_list_elem_max: settings.rw_list_elem_max,
        build_infrastructure: settings.build_infrastructure != 0,
    }
}

fn set(settings: Settings) -> Result<()> {
    let mut held = held()?;
    if is_working() || held.starts {
        return Err(Code(codes::INITED));
    }
    if settings.network > NETWORKS || settings.build_infrastructure > TOPOLOGIES {
        return Err(Code(codes::CONFIG));
    }
    config(&settings).check()?;
    held.settings = Some(settings);
    Ok(())
}

/// The configuration that was set, or the default.
fn get() -> Result<Settings> {
    Ok(*held()?.settings.get_or_insert_default())
}

/// Defines calls that return a number of the configuration, or a constant. They may be called in every phase.
macro_rules! numbers {
    ($($name:ident, $profiled:ident: $type:ty = $value:expr;)+) => {
        calls! {$(
            $name, $profiled(place: *mut $type) {
                let value: fn(Settings) -> $type = $value;
                // SAFETY: the caller guarantees that it is null or valid.
                unsafe { store(place, value(get()?)) }
            }
        )+}
    };
}

numbers! {
    gaspi_group_max, pgaspi_group_max: u32 = |settings| settings.group_max;
    gaspi_segment_max, pgaspi_segment_max: u32 = |settings| settings.segment_max;
    gaspi_queue_size_max, pgaspi_queue_size_max: u32 = |settings| settings.queue_size_max;
    gaspi_queue_max, pgaspi_queue_max: u32 = |_| gaspi::QUEUE_MAX;
    gaspi_transfer_size_min, pgaspi_transfer_size_min: u64 = |_| gaspi::TRANSFER_SIZE_MIN;
    gaspi_transfer_size_max, pgaspi_transfer_size_max: u64 = |settings| settings.transfer_size_max;
    gaspi_notification_num, pgaspi_notification_num: u32 = |settings| settings.notification_num;
    gaspi_passive_transfer_size_min, pgaspi_passive_transfer_size_min: u64 = |_| gaspi::PASSIVE_TRANSFER_SIZE_MIN;
    gaspi_passive_transfer_size_max, pgaspi_passive_transfer_size_max: u64 =
        |settings| settings.passive_transfer_size_max.into();
    gaspi_atomic_max, pgaspi_atomic_max: u64 = |_| gaspi::ATOMIC_MAX;
    gaspi_allreduce_buf_size, pgaspi_allreduce_buf_size: u64 = |settings| settings.allreduce_buf_size;
    gaspi_allreduce_elem_max, pgaspi_allreduce_elem_max: u32 = |settings| settings.allreduce_elem_max;
    gaspi_rw_list_elem_max, pgaspi_rw_list_elem_max: u32 = |settings| settings.rw_list_elem_max;
    gaspi_network_type, pgaspi_network_type: c_uint = |settings| settings.network;
    gaspi_build_infrastructure, pgaspi_build_infrastructure: u32 = |settings| settings.build_infrastructure;
    gaspi_version, pgaspi_version: f32 = |_| gaspi::VERSION;
}

calls! {
    gaspi_config_get, pgaspi_config_get(place: *mut Settings) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(place, get()?) }
    }

    gaspi_config_set, pgaspi_config_set(settings: Settings) { set(settings) }

    gaspi_queue_num, pgaspi_queue_num(number: *mut u32) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(number, working()?.queue_num()?) }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn settings_have_the_headers_fields() {
        // The same numbers as in gaspi_header.c.
        let places = [
            offset_of!(Settings, sn_timeout),
            offset_of!(Settings, dev_config),
            offset_of!(Settings, network),
            offset_of!(Settings, queue_num),
            offset_of!(Settings, transfer_size_max),
            offset_of!(Settings, passive_transfer_size_max),
            offset_of!(Settings, allreduce_buf_size),
            offset_of!(Settings, build_infrastructure),
            offset_of!(Settings, user_defined),
            size_of::<Settings>(),
        ];
        assert_eq!(places, [24, 32, 52, 60, 72, 88, 96, 112, 120, 128]);
        config(&Settings::default()).check().expect("the defaults are valid");
    }
}
