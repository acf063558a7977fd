//! Tables of codes: a constant, a name and a text for each.

/// Defines the codes of a vocabulary, the list of them, and the look-up of a text.
macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $number:literal, $text:literal;)+) => {
        $(#[doc = $text] #[doc = ""] $(#[doc = $doc])* pub const $name: i32 = $number;)+

        /// Every code with its name and its text.
        pub const CODES: &[(i32, &str, &str)] = &[$(($number, stringify!($name), $text)),+];

        /// The text of a code; `None` for a number that is no code.
        pub fn text(code: i32) -> Option<&'static str> {
            CODES.iter().find(|(number, ..)| *number == code).map(|(_, _, text)| *text)
        }
    };
}
pub(crate) use codes;
