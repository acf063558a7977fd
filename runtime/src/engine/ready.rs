//! The question that a wait for the first of several operations asks each of them.

/// An operation that `Engine::wait_ready` waits for. Asking does not take its result.
pub trait Ready {
    /// Whether a wait for this operation would return at once, with its result or its error. Advances the operation as far as possible, but
    /// makes no other progress.
    fn is_ready(&mut self) -> bool;

    /// The address of the engine that drives it, if only one does.
    fn driver(&self) -> Option<*const ()>;

    /// Whether it has given its result before: a wait for it would not end.
    fn is_taken(&self) -> bool {
        false
    }
}
