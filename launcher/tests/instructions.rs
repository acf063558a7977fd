//! Counts the instructions of puts of 8 bytes, so that nobody makes them longer without noticing.

use std::process::Command;

/// The command of the puts, and what one took when this was measured last, on x86-64; the loop and the hiding of its index included.
const PUTS: &[(&str, f64)] =
    if cfg!(debug_assertions) { &[("bench-puts", 12.0)] } else { &[("bench-puts", 8.0), ("bench-address-puts", 10.0)] };
/// They may grow by a quarter.
const GROWTH: f64 = 1.25;

/// Instructions of a whole run with `puts` puts.
fn instructions(command: &str, puts: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", env!("CARGO_BIN_EXE_bellwether"), command])
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
fn no_put_grows_by_a_quarter() {
    const COUNT: u64 = 200_000;
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("there is no valgrind here, so instructions were not counted");
        assert!(std::env::var_os("CI").is_none(), "valgrind is missing where it must not be");
        return;
    }
    for (command, stored) in PUTS {
        // What comes before and after the puts is the same in both.
        let each = (instructions(command, 2 * COUNT) - instructions(command, COUNT)) as f64 / COUNT as f64;
        println!("{each:.2} instructions a put of {command}");
        assert!(each >= 1.0, "puts of {command} are missing");
        assert!(each <= stored * GROWTH, "{each:.2} instructions a put of {command}, where {stored} were stored");
    }
}
