//! Lines of a lane as a sender might leave them, for their receiver.
#![no_main]

use bellwether_runtime::decoders::feed_lane;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| feed_lane(bytes));
