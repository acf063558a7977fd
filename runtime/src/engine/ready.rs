//! What a wait for the first of several things asks of each.

/// What `Engine::wait_ready` waits for. It is asked without taking what it gives.
pub trait Ready {
    /// Whether a wait for it would return at once, with its result or its error. Goes on with it as far as it can, but makes no other
    /// progress.
    fn is_ready(&mut self) -> bool;

    /// The address of the engine that drives it, if only one does.
    fn driver(&self) -> Option<*const ()>;

    /// Whether it has given its result before: a wait for it would not end.
    fn is_taken(&self) -> bool {
        false
    }
}
