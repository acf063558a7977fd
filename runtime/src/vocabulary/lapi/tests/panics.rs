//! Panics that meet other panics, or collective calls.

use super::*;

/// Panics when it is dropped, if it is to.
struct Falls(bool);

impl Drop for Falls {
    fn drop(&mut self) {
        assert!(!self.0, "it falls");
    }
}

/// The panic of a handler comes out of a send. What the function of the origin event holds panics when that is forgotten: the next call returns
/// the code, and the other event ends too.
#[test]
fn a_panic_of_what_an_event_holds_is_told_after_that_of_a_handler() {
    panics_once(true, None, |lapi, again| {
        let (completion, falls) = (Completion::new(), Falls(!again));
        let origin = Signal::call(move |_| drop(falls));
        let send = || lapi.message(1, 2).origin(origin).completion(&completion).send();
        match catch_unwind(AssertUnwindSafe(send)) {
            Ok(sent) => {
                sent.expect("sends");
                assert_eq!(lapi.wait_completion(&completion), Ok(()));
            }
            Err(panic) => {
                until_told(lapi, codes::HANDLER_PANICKED, 1);
                assert_eq!(lapi.wait_completion(&completion), Err(Code(codes::RUNTIME)));
                resume_unwind(panic)
            }
        }
    });
}
