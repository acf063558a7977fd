//! Bytes as a peer might send them, for every decoder of the transport layer.
#![no_main]

use bellwether_runtime::transport::decoders::{feed, feed_machines};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    feed(bytes);
    feed_machines(bytes);
});
