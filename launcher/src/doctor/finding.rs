//! A finding of an examination.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a finding stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// A job runs, but slower than it could, or only while it needs little.
    Warning,
    /// A job does not start, or dies.
    Error,
}

/// One thing that was examined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The subject of the examination.
    pub what: String,
    /// How it stands.
    pub state: State,
    /// The result, in words.
    pub found: String,
    /// The command that mends it, for findings that are not ok.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

impl Finding {
    pub fn ok(what: &str, found: impl Into<String>) -> Finding {
        Finding { what: what.into(), state: State::Ok, found: found.into(), mend: None }
    }

    pub fn warning(what: &str, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { what: what.into(), state: State::Warning, found: found.into(), mend: Some(mend.into()) }
    }

    pub fn error(what: &str, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { what: what.into(), state: State::Error, found: found.into(), mend: Some(mend.into()) }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Ok => "ok",
            State::Warning => "warning",
            State::Error => "error",
        })
    }
}
