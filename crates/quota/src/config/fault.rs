//! What is wrong with a file, where, and what would be right.

use serde_saphyr::{Location, Spanned};

/// A configuration that was refused; whatever held before still holds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {what}\n  right: {right}")]
#[non_exhaustive]
pub struct Refused {
    /// The file.
    pub file: String,
    /// Line, from 1.
    pub line: u64,
    /// Column, from 1.
    pub column: u64,
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub right: String,
}

/// Something wrong at some place.
#[derive(Debug)]
pub(super) struct Fault {
    line: u64,
    column: u64,
    what: String,
    right: String,
}

impl Fault {
    pub(super) fn new(at: Location, what: impl Into<String>, right: impl Into<String>) -> Self {
        let (line, column) = (at.line().max(1), at.column().max(1));
        Self { line, column, what: what.into(), right: right.into() }
    }

    /// The same, at a value.
    pub(super) fn at<T>(
        value: &Spanned<T>,
        what: impl Into<String>,
        right: impl Into<String>,
    ) -> Self {
        Self::new(value.referenced, what, right)
    }

    /// What the reader of YAML has to say.
    pub(super) fn from_yaml(error: &serde_saphyr::Error) -> Self {
        let error = error.without_snippet();
        let at = error.location();
        let (line, column) = at.map_or((1, 1), |at| (at.line().max(1), at.column().max(1)));
        let text = error.to_string();
        // The place stands before it, and what a program could do about it is no help.
        let text = text.split(" at line ").next().unwrap_or_default();
        let text = text.split(", set ").next().unwrap_or_default();
        let text = text.trim_start_matches("error: ").trim_end_matches(['.', ':']);
        let (what, right) = match text.split_once(", expected ") {
            Some(both) => both,
            None if text.starts_with("non-finite") => (text, "a finite number"),
            None => (text, HELP),
        };
        Self { line, column, what: what.to_owned(), right: right.to_owned() }
    }

    pub(super) fn of(self, file: &str) -> Refused {
        let Self { line, column, what, right } = self;
        Refused { file: file.to_owned(), line, column, what, right }
    }
}

const HELP: &str = "YAML, with each key once; docs/quota.md shows how";
