//! The command `bellwether`.
fn main() {}
