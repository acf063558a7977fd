//! Programs on ranks that have mapped each other's memory.

mod programs;

const TRANSPORT: bellwether_runtime::Transport = bellwether_runtime::Transport::Auto;
