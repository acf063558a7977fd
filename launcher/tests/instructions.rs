//! Counts the instructions of an 8-byte put, so that nobody makes it longer without noticing.

use std::process::Command;

/// What a put took when this was written, on x86-64; the loop and the hiding of its index included.
const PUT: f64 = if cfg!(debug_assertions) { 21.0 } else { 8.0 };
/// It may grow by a quarter.
const GROWTH: f64 = 1.25;

/// Instructions of a whole run with `puts` puts.
fn instructions(puts: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", env!("CARGO_BIN_EXE_bellwether"), "bench-puts"])
        .arg(puts.to_string())
        .env("BELLWETHER_RANKS", "1")
        // Valgrind has no room for the address space that is reserved otherwise.
        .env("BELLWETHER_HEAP_LIMIT", "16M")
        .output()
        .expect("valgrind was there a moment ago");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected :")).expect("callgrind tells a total");
    collected.1.trim().parse().expect("a number")
}

#[test]
fn a_put_does_not_grow_by_a_quarter() {
    const PUTS: u64 = 200_000;
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("there is no valgrind here, so instructions were not counted");
        assert!(std::env::var_os("CI").is_none(), "valgrind is missing where it must not be");
        return;
    }
    // What comes before and after the puts is the same in both.
    let each = (instructions(2 * PUTS) - instructions(PUTS)) as f64 / PUTS as f64;
    println!("{each:.2} instructions a put");
    assert!(each >= 1.0, "puts are missing");
    assert!(each <= PUT * GROWTH, "{each:.2} instructions a put, where {PUT} were stored");
}
