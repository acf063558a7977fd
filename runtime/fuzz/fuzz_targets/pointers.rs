//! Global pointers of any bits, used in every way.
#![no_main]

use bellwether::forged::feed_pointers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| feed_pointers(bytes));
