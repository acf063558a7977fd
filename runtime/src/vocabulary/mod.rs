//! Other systems' own calls, thin over the world.
