//! What is wrong with a file, where, and what would be right.

use core::fmt;

/// A place in a file: line and column, each from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) line: u64,
    pub(crate) column: u64,
}

impl At {
    pub(crate) const START: Self = Self { line: 1, column: 1 };

    pub(crate) fn new(line: u64, column: u64) -> Self {
        Self { line: line.max(1), column: column.max(1) }
    }
}

/// Something wrong at some place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) at: At,
    pub(crate) what: String,
    pub(crate) right: String,
}

impl Fault {
    pub(crate) fn new(at: At, what: impl Into<String>, right: impl Into<String>) -> Self {
        Self { at, what: what.into(), right: right.into() }
    }
}

/// A scenario that was refused, before anything ran.
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

impl Refused {
    pub(crate) fn new(file: &str, fault: Fault) -> Self {
        let Fault { at, what, right } = fault;
        Self { file: file.to_owned(), line: at.line, column: at.column, what, right }
    }
}

/// `a, b or c`.
pub(crate) fn choices<T: fmt::Display>(names: &[T]) -> String {
    match names {
        [] => "none".to_owned(),
        [one] => one.to_string(),
        [most @ .., last] => {
            let most: Vec<String> = most.iter().map(ToString::to_string).collect();
            format!("{} or {last}", most.join(", "))
        }
    }
}

/// One of `names`: the one that was probably meant, and all.
pub(crate) fn suggestion<T: AsRef<str>>(found: &str, names: &[T]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match closest(found, &names) {
        Some(name) => format!("{name}, perhaps? One of {}", choices(&names)),
        None => choices(&names),
    }
}

/// The name that `found` was most likely meant to be: no more than a third of its letters wrong.
fn closest<'a>(found: &str, names: &[&'a str]) -> Option<&'a str> {
    let found = found.to_lowercase();
    let distance = |name: &str| edits(&found, &name.to_lowercase());
    let best = names.iter().copied().min_by_key(|name| distance(name))?;
    (distance(best) <= (best.chars().count() / 3).max(1)).then_some(best)
}

/// How many letters have to be added, dropped, exchanged for another or for their neighbour to
/// turn `a` into `b`.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let change = usize::from(a[i - 1] != b[j - 1]);
                let mut least = rows[i - 1][j - 1] + change;
                least = least.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    least = least.min(rows[i - 2][j - 2] + 1);
                }
                least
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_by_the_table() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("task", "tasks", 1),
            ("taks", "task", 1),
            ("critical", "CRITICAL", 8),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(edits(a, b), expected, "{a} {b}");
            assert_eq!(edits(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn the_likely_name_comes_first_and_an_unlikely_one_not_at_all() {
        let names = ["tasks", "cores", "CRITICAL"];
        assert_eq!(suggestion("task", &names), "tasks, perhaps? One of tasks, cores or CRITICAL");
        assert_eq!(
            suggestion("critical", &names),
            "CRITICAL, perhaps? One of tasks, cores or CRITICAL"
        );
        assert_eq!(suggestion("machines", &names), "tasks, cores or CRITICAL");
        assert_eq!(suggestion::<&str>("machines", &[]), "none");
    }
}
