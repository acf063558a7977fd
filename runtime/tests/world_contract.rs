//! The same programs on ranks that reach each other through the transport contract only.

mod programs;

const TRANSPORT: bellwether_runtime::Transport = bellwether_runtime::Transport::ShmContract;
