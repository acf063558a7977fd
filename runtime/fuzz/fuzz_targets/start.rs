//! A job's roster as a launcher might leave it, and output as ranks might write it.
#![no_main]

use bellwether_runtime::decoders::feed_start;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| feed_start(bytes));
