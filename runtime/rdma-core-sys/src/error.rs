/// Why libibverbs cannot be used. None of it is a fault of the machine: there is no RDMA, or not for us.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The library is not there, or the linker refuses it.
    #[error("cannot load {file}: {reason}; to use RDMA install libibverbs (Debian: libibverbs1, Fedora: libibverbs)")]
    Library {
        /// What was asked for.
        file: String,
        /// What the dynamic linker said.
        reason: String,
    },
    /// The library lacks a function that every rdma-core since 2022 has.
    #[error("{file} has no function {symbol}; to use RDMA install rdma-core 44 or newer")]
    Symbol {
        /// What was asked for.
        file: String,
        /// The first function that was missing.
        symbol: &'static str,
    },
}
