//! Failures: the task, the kind of transfer and a text behind a code.

use std::cell::RefCell;

use super::codes;
use super::domain::LOC_ADDRTBL_SZ;
use crate::error::Error;

/// The kind of a failure, with the numbers of `lapi_err_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum What {
    /// A get.
    Get = 0,
    /// A put.
    Put = 1,
    /// An atomic operation.
    Rmw = 2,
    /// An active message.
    Message = 3,
    /// The job as a whole, or no transfer.
    Job = 4,
}

impl What {
    /// From the number that a message carries.
    pub(super) fn from_word(word: u64) -> What {
        [What::Get, What::Put, What::Rmw, What::Message].get(word as usize).copied().unwrap_or(What::Job)
    }

    fn name(self) -> &'static str {
        match self {
            What::Get => "a get",
            What::Put => "a put",
            What::Rmw => "an atomic operation",
            What::Message => "an active message",
            What::Job => "a call",
        }
    }
}

/// Why a call returned its code. Each thread keeps its last failure: see [`Failure::last`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The code.
    pub code: i32,
    /// The kind of transfer.
    pub what: What,
    /// The task that failed, that has the handler or the address, or that sent the message.
    pub task: Option<usize>,
    /// What happened and where: for a panic the task, the handler, its text, file and line.
    pub text: String,
}

thread_local! {
    static LAST: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

impl Failure {
    /// The last failure of a message or of the job that a call of this thread returned, if its code is `code`. Errors of arguments keep no
    /// failure: after one, this may return an earlier failure with the same code.
    pub fn last(code: i32) -> Option<Failure> {
        let last = LAST.try_with(|last| last.try_borrow().ok().and_then(|last| last.clone()));
        last.ok().flatten().filter(|last| last.code == code)
    }

    /// Keeps it for [`Failure::last`], logs it, and returns its code. For a library that wraps these calls.
    #[cold]
    pub fn keep(self) -> i32 {
        let code = self.code;
        tracing::warn!(code, text = self.text, "a LAPI call fails");
        // Fails only in a thread that ends, where no code asks for the failure.
        let _ = LAST.try_with(|last| last.replace(Some(self)));
        code
    }

    /// A failure with this code, of a transfer from or to `task`.
    #[cold]
    pub(super) fn of_code(code: i32, what: What, task: usize) -> Failure {
        let text = codes::text(code).unwrap_or("An unknown code.");
        Failure { code, what, task: Some(task), text: format!("{text} It concerns {} and task {task}.", what.name()) }
    }

    #[cold]
    pub(super) fn of_error(error: &Error) -> Failure {
        use Error as E;
        let (code, what, task) = match error {
            E::PeerLost { rank, .. } => (codes::PEER_LOST, What::Job, Some(*rank)),
            E::Standstill { .. } => (codes::PEER_LOST, What::Job, None),
            E::HandlerPanicked { rank, .. } => (codes::HANDLER_PANICKED, What::Message, Some(*rank)),
            E::BadAddress { rank, .. } | E::Misaligned { rank, .. } => (codes::BAD_ADDRESS, What::Job, Some(*rank)),
            E::OutOfMemory { .. } | E::NoContext { .. } => (codes::MEMORY_EXHAUSTED, What::Job, None),
            E::InsideHandler { .. } => (codes::IN_HANDLER, What::Job, None),
            E::RankOutOfRange { .. } => (codes::TGT, What::Job, None),
            E::BadMessage { from, .. } => (codes::RUNTIME, What::Message, Some(*from)),
            _ => (codes::RUNTIME, What::Job, None),
        };
        Failure { code, what, task, text: error.to_string() }
    }
}

/// Why a message cannot be delivered. Both tasks get this error.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    pub(super) code: i32,
    pub(super) what: What,
    /// The index, the address or the length that is wrong.
    pub(super) detail: u64,
    /// Whether the address is one of the task that sent the message, not of the target.
    pub(super) of_origin: bool,
}

impl Refusal {
    pub(super) fn new(code: i32, what: What, detail: u64) -> Refusal {
        Refusal { code, what, detail, of_origin: false }
    }

    /// An address of the target is wrong.
    pub(super) fn bad_address(what: What, address: u64) -> Refusal {
        Refusal::new(codes::BAD_ADDRESS, what, address)
    }

    pub(super) fn words(self) -> [u64; 3] {
        [self.code as u64, self.what as u64 | u64::from(self.of_origin) << 8, self.detail]
    }

    pub(super) fn from_words([code, what, detail]: [u64; 3]) -> Refusal {
        Refusal { code: code as i32, what: What::from_word(what & 0xFF), detail, of_origin: what >> 8 & 1 == 1 }
    }

    /// The failure that one of the two tasks gets; `about` is the other task.
    #[cold]
    pub(super) fn failure(self, from: usize, to: usize, about: usize) -> Failure {
        let Refusal { code, what, detail, of_origin } = self;
        let at = if of_origin { from } else { to };
        let why = match code {
            codes::NO_HNDLR_SET if detail < LOC_ADDRTBL_SZ as u64 => {
                format!("no header handler is set at index {detail} of task {to}")
            }
            codes::NO_HNDLR_SET => {
                format!("{detail:#x} is neither an index of header handlers nor an address of a function of task {to}")
            }
            codes::BAD_ADDRESS => format!("the memory at address {detail:#x} of task {at} cannot be reached"),
            codes::MEMORY_EXHAUSTED => format!("task {to} has no memory for {detail} bytes"),
            _ => codes::text(code).unwrap_or("for an unknown reason").trim_end_matches('.').to_owned(),
        };
        let text = format!("task {to} refused {} of task {from}: {why}", what.name());
        Failure { code, what, task: Some(about), text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_last_failure_and_no_other_code_finds_it() {
        let failure = Failure::of_code(codes::RUNTIME, What::Put, 3);
        assert_eq!(failure.clone().keep(), codes::RUNTIME);
        assert_eq!(Failure::last(codes::RUNTIME), Some(failure));
        assert_eq!(Failure::last(codes::PEER_LOST), None);
        assert_eq!(std::thread::spawn(|| Failure::last(codes::RUNTIME)).join().expect("no panic"), None);
        let refusal = Refusal { of_origin: true, ..Refusal::bad_address(What::Get, 0x1000) };
        let told = Refusal::from_words(refusal.words()).failure(1, 2, 2);
        assert_eq!((told.code, told.what, told.task), (codes::BAD_ADDRESS, What::Get, Some(2)));
        let text = "task 2 refused a get of task 1: the memory at address 0x1000 of task 1 cannot be reached";
        assert_eq!(told.text, text);
    }
}
