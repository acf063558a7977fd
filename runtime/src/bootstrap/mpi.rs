//! MPI as the bootstrap.
