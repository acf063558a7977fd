//! Global pointers and arrays over thread ranks and over the simulated network.

mod along;
mod files;
mod futures;
mod ghosts;
mod grids;
mod huge;
mod leftovers;
mod names;
mod patches;
mod phases;
mod plans;
mod pointers;
mod round_trips;
mod support;
mod views;
mod whole;
