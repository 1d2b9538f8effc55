//! Patterns for resource names.
//!
//! `*` stands for any run of characters and `?` for any one, but neither for `/`; `[a-c]` for one
//! of a set and `[^a-c]` for one outside it; a backslash takes the next character as it is. The
//! pattern `*` alone stands for every name.
//!
//! Matching remembers only the last `*` and goes back to it at a mismatch, so it takes at most
//! pattern times name steps, whatever the pattern: no name from outside can make it explode.

use core::fmt;

/// A pattern that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    source: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    One(char),
    AnyOne,
    AnyRun,
    Set { ranges: Vec<(char, char)>, inside: bool },
}

/// A pattern that means nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GlobError {
    /// Nothing at all.
    #[error("it is empty: a name, or * for all")]
    Empty,
    /// A set without its end, or with nothing in it.
    #[error("the set that begins at character {at} is not complete: [abc], [a-z] or [^a-z]")]
    Set {
        /// Where the set begins, counted from 1.
        at: usize,
    },
    /// A backslash with nothing after it.
    #[error("the backslash at its end has nothing to take literally: \\\\ means a backslash")]
    Backslash,
}

impl Glob {
    /// Checks `source`.
    pub fn new(source: &str) -> Result<Self, GlobError> {
        let mut parts = Vec::new();
        let mut rest = source.chars().enumerate();
        while let Some((at, c)) = rest.next() {
            parts.push(match c {
                '*' => Part::AnyRun,
                '?' => Part::AnyOne,
                '\\' => Part::One(rest.next().ok_or(GlobError::Backslash)?.1),
                '[' => set(&mut rest).ok_or(GlobError::Set { at: at + 1 })?,
                c => Part::One(c),
            });
        }
        if parts.is_empty() {
            return Err(GlobError::Empty);
        }
        Ok(Self { source: source.to_owned(), parts })
    }

    /// `*`.
    pub(super) fn everything() -> Self {
        Self { source: "*".to_owned(), parts: vec![Part::AnyRun] }
    }

    /// Whether this is `*`, which stands for every name.
    pub fn is_everything(&self) -> bool {
        self.source == "*"
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// Whether `name` fits.
    pub fn matches(&self, name: &str) -> bool {
        if self.is_everything() {
            return true;
        }
        let mut rest = name.chars();
        let mut part = 0;
        // Where to go on after the last `*`, and the name it has not swallowed yet.
        let mut retry: Option<(usize, core::str::Chars<'_>)> = None;
        loop {
            let here = rest.clone();
            let step = match (self.parts.get(part), rest.next()) {
                (None, None) => return true,
                (Some(Part::AnyRun), _) => {
                    part += 1;
                    rest = here.clone();
                    retry = Some((part, here));
                    continue;
                }
                (Some(part), Some(c)) => part.takes(c),
                (None, Some(_)) | (Some(_), None) => false,
            };
            if step {
                part += 1;
                continue;
            }
            // Let the last `*` swallow one more character.
            let Some((after, mut from)) = retry.take() else { return false };
            if from.next().is_none_or(|c| c == '/') {
                return false;
            }
            (part, rest) = (after, from.clone());
            retry = Some((after, from));
        }
    }
}

impl Part {
    fn takes(&self, c: char) -> bool {
        match self {
            Self::One(one) => *one == c,
            Self::AnyOne => c != '/',
            Self::AnyRun => false,
            Self::Set { ranges, inside } => {
                c != '/' && ranges.iter().any(|&(from, to)| (from..=to).contains(&c)) == *inside
            }
        }
    }
}

/// The rest of a set after its `[`.
fn set(rest: &mut impl Iterator<Item = (usize, char)>) -> Option<Part> {
    let mut next = || rest.next().map(|(_, c)| c);
    let mut c = next()?;
    let inside = c != '^';
    if !inside {
        c = next()?;
    }
    let mut ranges = Vec::new();
    while c != ']' {
        let from = if c == '\\' { next()? } else { c };
        c = next()?;
        let mut to = from;
        if c == '-' {
            to = match next()? {
                '\\' => next()?,
                ']' => return None,
                to => to,
            };
            c = next()?;
        }
        if from > to {
            return None;
        }
        ranges.push((from, to));
    }
    (!ranges.is_empty()).then_some(Part::Set { ranges, inside })
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_by_the_table() {
        for (glob, yes, no) in [
            ("*", &["", "a", "a/b/c"][..], &[][..]),
            ("proportional", &["proportional"], &["proportiona", "proportional "]),
            ("db-*", &["db-", "db-a"], &["db", "xdb-a", "db-a/b"]),
            ("*-db", &["-db", "a-db-db"], &["a-dbx", "a/b-db"]),
            ("a*b*c", &["abc", "axbxbxc"], &["ab", "axbxb", "ac"]),
            ("a/*/c", &["a/b/c", "a//c"], &["a/b", "a/b/b/c"]),
            ("a?c", &["abc", "aüc"], &["ac", "a/c", "abbc"]),
            ("[a-cx]1", &["a1", "c1", "x1"], &["d1", "1", "a"]),
            ("[^a-c]1", &["d1"], &["a1", "/1"]),
            ("[\\]-]", &["]", "-"], &["a"]),
            ("\\*", &["*"], &["a"]),
            ("**", &["", "ab"], &["a/b"]),
        ] {
            // A dash at the end of a set needs its backslash.
            let glob = Glob::new(&glob.replace("[\\]-]", "[\\]\\-]")).unwrap();
            for name in yes {
                assert!(glob.matches(name), "{glob} {name}");
            }
            for name in no {
                assert!(!glob.matches(name), "{glob} {name}");
            }
        }
    }

    #[test]
    fn a_pattern_that_means_nothing_is_refused() {
        for (glob, error) in [
            ("", GlobError::Empty),
            ("a[", GlobError::Set { at: 2 }),
            ("a[]", GlobError::Set { at: 2 }),
            ("[^]", GlobError::Set { at: 1 }),
            ("[a-]", GlobError::Set { at: 1 }),
            ("[z-a]", GlobError::Set { at: 1 }),
            ("a\\", GlobError::Backslash),
        ] {
            assert_eq!(Glob::new(glob), Err(error), "{glob}");
        }
    }

    #[test]
    fn many_stars_do_not_explode() {
        let glob = Glob::new(&"*a".repeat(50)).unwrap();
        assert!(!glob.matches(&"a".repeat(5_000).replace("aaaaa", "aaaab")));
    }

    /// The definition, by trying everything.
    fn slow(parts: &[Part], name: &[char]) -> bool {
        match parts.split_first() {
            None => name.is_empty(),
            Some((Part::AnyRun, after)) => (0..=name.len())
                .take_while(|&n| !name[..n].contains(&'/'))
                .any(|n| slow(after, &name[n..])),
            Some((part, after)) => {
                name.split_first().is_some_and(|(&c, name)| part.takes(c) && slow(after, name))
            }
        }
    }

    proptest! {
        #[test]
        fn the_fast_way_finds_what_the_definition_says(
            glob in "[ab/*?]{1,7}|[ab]?\\[\\^?[ab]\\]\\*[ab]",
            name in "[ab/]{0,8}",
        ) {
            let glob = Glob::new(&glob).unwrap();
            prop_assume!(!glob.is_everything());
            let chars: Vec<char> = name.chars().collect();
            prop_assert_eq!(glob.matches(&name), slow(&glob.parts, &chars), "{} {}", glob, name);
        }

        #[test]
        fn no_pattern_and_no_name_panics(glob in "\\PC*", name in "\\PC*") {
            if let Ok(glob) = Glob::new(&glob) {
                glob.matches(&name);
            }
        }
    }
}
