//! Messages as a peer might send them, for every handler of the runtime.
#![no_main]

use bellwether_runtime::decoders::feed_messages;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| feed_messages(bytes));
