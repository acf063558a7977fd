//! Tests against a device. They are ignored unless asked for: `ci/softroce`.

mod across;
mod busy;
mod credits;
mod lost;
mod put_from;
mod several;
