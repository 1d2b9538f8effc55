//! Which resources there are, and how each is shared out.
//!
//! A [`Repository`] is a list of templates. The template of a resource is the one with exactly its
//! name, else the first whose pattern fits; the last one is `*`, so there always is one. A template
//! without an algorithm takes that of `*`.
//!
//! [`Draft`] and [`AlgorithmDraft`] are what a person wrote. [`Repository::new`] checks all of it
//! at once, and from then on nothing can be wrong: an entry that would never be reached or an
//! interval of zero is refused with what would be right.

use super::above::Provision;
use super::glob::{Glob, GlobError};
use crate::share::amount;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

/// How a resource is shared out among its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Everyone gets what it wants: for counting only.
    NoAlgorithm,
    /// Everyone gets up to the capacity, each on its own.
    Static,
    /// Everyone gets an equal share, and what some leave is handed out in proportion to what others
    /// lack.
    ProportionalShare,
    /// Weighted max-min: see [`share`](crate::share).
    FairShare,
}

impl Kind {
    /// All, in the order of their numbers on the wire.
    pub const ALL: [Self; 4] =
        [Self::NoAlgorithm, Self::Static, Self::ProportionalShare, Self::FairShare];

    /// The number on the wire.
    pub const fn number(self) -> i32 {
        self as i32
    }

    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoAlgorithm => "NO_ALGORITHM",
            Self::Static => "STATIC",
            Self::ProportionalShare => "PROPORTIONAL_SHARE",
            Self::FairShare => "FAIR_SHARE",
        }
    }
}

/// A text that names no algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an algorithm: expected NO_ALGORITHM, STATIC, PROPORTIONAL_SHARE or FAIR_SHARE")]
pub struct UnknownKind;

impl FromStr for Kind {
    type Err = UnknownKind;

    /// Takes the four names, in any case.
    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        Self::ALL.into_iter().find(|k| k.name().eq_ignore_ascii_case(text)).ok_or(UnknownKind)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A template as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// The resource's name, or a pattern for several.
    pub identifier_glob: String,
    /// How much there is.
    pub capacity: f64,
    /// What a client may use when it cannot reach the server; -1 for anything. Without it, an
    /// equal part of the capacity.
    pub safe_capacity: Option<f64>,
    /// How it is shared out. Without it, as `*` is.
    pub algorithm: Option<AlgorithmDraft>,
}

impl Draft {
    /// A template of `capacity` for the names that fit `identifier_glob`.
    pub fn new(identifier_glob: &str, capacity: f64) -> Self {
        let identifier_glob = identifier_glob.to_owned();
        Self { identifier_glob, capacity, safe_capacity: None, algorithm: None }
    }

    /// Shared out like this.
    #[must_use]
    pub fn with_algorithm(mut self, algorithm: AlgorithmDraft) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// With this much for clients that cannot reach the server.
    #[must_use]
    pub fn with_safe_capacity(mut self, safe_capacity: f64) -> Self {
        self.safe_capacity = Some(safe_capacity);
        self
    }
}

/// An algorithm as it was written; times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlgorithmDraft {
    /// Which.
    pub kind: Kind,
    /// For how long a client may use what it was given.
    pub lease_length: i64,
    /// After how long it should ask again.
    pub refresh_interval: i64,
    /// For how long a new master believes what clients say they have. Without it, for the length
    /// of a lease; negative for not at all.
    pub learning_mode_duration: Option<i64>,
}

impl AlgorithmDraft {
    /// `kind`, with leases of `lease_length` seconds to be refreshed every `refresh_interval`.
    pub const fn new(kind: Kind, lease_length: i64, refresh_interval: i64) -> Self {
        Self { kind, lease_length, refresh_interval, learning_mode_duration: None }
    }
}

/// How a resource is shared out. Refreshed at least every second, and before the lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Algorithm {
    kind: Kind,
    lease_length: Duration,
    refresh_interval: Duration,
    learning_duration: Duration,
}

impl Algorithm {
    /// The same from a server above, of which nobody can ask that it makes sense: what does not is
    /// as near to it as can be.
    pub fn from_above(draft: AlgorithmDraft) -> Self {
        const DAY: i64 = 86_400;
        let refresh = draft.refresh_interval.clamp(1, DAY);
        let lease = draft.lease_length.clamp(refresh, DAY);
        let learning = draft.learning_mode_duration.unwrap_or(lease).clamp(0, DAY);
        let secs = |s: i64| Duration::from_secs(s.unsigned_abs());
        Self {
            kind: draft.kind,
            lease_length: secs(lease),
            refresh_interval: secs(refresh),
            learning_duration: secs(learning),
        }
    }

    /// Which.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// For how long a client may use what it was given.
    pub const fn lease_length(&self) -> Duration {
        self.lease_length
    }

    /// After how long it should ask again.
    pub const fn refresh_interval(&self) -> Duration {
        self.refresh_interval
    }

    /// For how long a new master believes what clients say they have.
    pub const fn learning_duration(&self) -> Duration {
        self.learning_duration
    }
}

/// What a client may use when it cannot reach the server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SafeCapacity {
    /// The capacity over the number of clients.
    EqualPart,
    /// This much.
    Fixed(f64),
    /// Whatever it wants.
    Unlimited,
}

/// How one resource, or all that fit a pattern, are shared out.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    glob: Glob,
    capacity: f64,
    safe_capacity: SafeCapacity,
    algorithm: Algorithm,
}

impl Template {
    /// That of a resource of which the server above has not said anything. Nothing is handed out
    /// by it; clients ask again after a second.
    pub(super) fn unheard() -> Self {
        Self {
            glob: Glob::everything(),
            capacity: 0.0,
            safe_capacity: SafeCapacity::Fixed(0.0),
            algorithm: Algorithm {
                kind: Kind::FairShare,
                lease_length: Duration::from_secs(60),
                refresh_interval: Duration::from_secs(1),
                learning_duration: Duration::ZERO,
            },
        }
    }

    /// That of a resource which is provided by the server above.
    pub(super) fn provided(provision: &Provision) -> Self {
        Self {
            glob: Glob::everything(),
            capacity: amount(provision.lease.capacity),
            safe_capacity: provision.safe_capacity(),
            algorithm: provision.algorithm,
        }
    }

    /// For which names.
    pub const fn glob(&self) -> &Glob {
        &self.glob
    }

    /// How much there is: zero or more, and finite.
    pub const fn capacity(&self) -> f64 {
        self.capacity
    }

    /// What a client may use when it cannot reach the server.
    pub const fn safe_capacity(&self) -> SafeCapacity {
        self.safe_capacity
    }

    /// How it is shared out.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

/// What is wrong with a list of templates, and where.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("resource {position} ({glob:?}): {problem}")]
#[non_exhaustive]
pub struct ConfigError {
    /// Which entry, counted from 1; one past the last if an entry is missing.
    pub position: usize,
    /// Its pattern.
    pub glob: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a template.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The pattern means nothing.
    #[error("identifier_glob: {0}")]
    Glob(#[from] GlobError),
    /// The capacity is no amount.
    #[error("capacity must be zero or more, and finite, but it is {0}")]
    Capacity(f64),
    /// The safe capacity is no amount.
    #[error("safe_capacity must be -1 (unlimited), or zero or more and finite, but it is {0}")]
    SafeCapacity(f64),
    /// Clients would have to ask all the time.
    #[error("refresh_interval must be at least 1 second, but it is {0}")]
    RefreshInterval(i64),
    /// Leases would end before they are refreshed.
    #[error("lease_length must be at least refresh_interval ({refresh}), but it is {lease}")]
    LeaseLength {
        /// The lease length, in seconds.
        lease: i64,
        /// The refresh interval, in seconds.
        refresh: i64,
    },
    /// The entry for everything hides the ones after it.
    #[error("the entry for * must be the last one, but it is followed by {0:?}")]
    NotLast(String),
    /// The entry for everything does not say how.
    #[error("the entry for * must have an algorithm: those without one use it")]
    NoAlgorithm,
    /// A name that fits nothing would have no template.
    #[error("an entry for * is missing: it must be there, and the last one")]
    NoEverything,
}

/// All templates, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Repository {
    /// All but the one for everything.
    templates: Vec<Template>,
    everything: Template,
}

impl Repository {
    /// Checks `drafts`.
    pub fn new(drafts: &[Draft]) -> Result<Self, ConfigError> {
        let Some((last, before)) = drafts.split_last() else {
            return Err(error(0, "*", Problem::NoEverything));
        };
        for (i, pair) in drafts.windows(2).enumerate() {
            if pair[0].identifier_glob == "*" {
                return Err(error(i, "*", Problem::NotLast(pair[1].identifier_glob.clone())));
            }
        }
        if last.identifier_glob != "*" {
            return Err(error(drafts.len(), "*", Problem::NoEverything));
        }
        let here = |problem| error(before.len(), "*", problem);
        let fallback =
            last.algorithm.ok_or(Problem::NoAlgorithm).and_then(resolve).map_err(here)?;
        let everything = template(last, fallback).map_err(here)?;
        let templates = before
            .iter()
            .enumerate()
            .map(|(i, draft)| {
                template(draft, fallback)
                    .map_err(|problem| error(i, &draft.identifier_glob, problem))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { templates, everything })
    }

    /// The template of the resource called `name`.
    pub fn find(&self, name: &str) -> &Template {
        let exact = self.templates.iter().find(|t| t.glob.as_str() == name);
        exact
            .or_else(|| self.templates.iter().find(|t| t.glob.matches(name)))
            .unwrap_or(&self.everything)
    }
}

fn error(index: usize, glob: &str, problem: Problem) -> ConfigError {
    ConfigError { position: index + 1, glob: glob.to_owned(), problem }
}

fn template(draft: &Draft, fallback: Algorithm) -> Result<Template, Problem> {
    let amount = |x: f64| (x.is_finite() && x >= 0.0).then_some(x);
    Ok(Template {
        glob: Glob::new(&draft.identifier_glob)?,
        capacity: amount(draft.capacity).ok_or(Problem::Capacity(draft.capacity))?,
        safe_capacity: match draft.safe_capacity {
            None => SafeCapacity::EqualPart,
            Some(-1.0) => SafeCapacity::Unlimited,
            Some(x) => SafeCapacity::Fixed(amount(x).ok_or(Problem::SafeCapacity(x))?),
        },
        algorithm: draft.algorithm.map_or(Ok(fallback), resolve)?,
    })
}

fn resolve(draft: AlgorithmDraft) -> Result<Algorithm, Problem> {
    let AlgorithmDraft { kind, lease_length: lease, refresh_interval: refresh, .. } = draft;
    if refresh < 1 {
        return Err(Problem::RefreshInterval(refresh));
    }
    if lease < refresh {
        return Err(Problem::LeaseLength { lease, refresh });
    }
    let secs = |s: i64| Duration::from_secs(u64::try_from(s).unwrap_or(0));
    Ok(Algorithm {
        kind,
        lease_length: secs(lease),
        refresh_interval: secs(refresh),
        learning_duration: secs(draft.learning_mode_duration.unwrap_or(lease)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fair(lease: i64, refresh: i64) -> AlgorithmDraft {
        AlgorithmDraft::new(Kind::FairShare, lease, refresh)
    }

    fn everything() -> Draft {
        Draft::new("*", 0.0).with_algorithm(fair(60, 5))
    }

    #[test]
    fn the_exact_name_comes_first_then_patterns_in_order() {
        let fixed = AlgorithmDraft { learning_mode_duration: Some(-1), ..fair(30, 2) };
        let repository = Repository::new(&[
            Draft::new("db*", 1.0),
            Draft::new("db-?", 2.0),
            Draft::new("db-1", 3.0).with_algorithm(fixed).with_safe_capacity(-1.0),
            everything(),
        ])
        .unwrap();
        for (name, capacity) in
            [("db-1", 3.0), ("db-2", 1.0), ("db", 1.0), ("a/b", 0.0), ("db/1", 0.0), ("", 0.0)]
        {
            assert_eq!(repository.find(name).capacity(), capacity, "{name}");
        }
        let own = repository.find("db-1");
        assert_eq!(own.algorithm().lease_length(), Duration::from_secs(30));
        assert_eq!(own.algorithm().learning_duration(), Duration::ZERO);
        assert_eq!(own.safe_capacity(), SafeCapacity::Unlimited);
        let inherited = repository.find("db-2");
        assert_eq!(inherited.algorithm().learning_duration(), Duration::from_secs(60));
        assert_eq!(inherited.safe_capacity(), SafeCapacity::EqualPart);
    }

    #[test]
    fn mistakes_are_refused_with_where_and_what_would_be_right() {
        let text = |drafts: &[Draft]| Repository::new(drafts).unwrap_err().to_string();
        for (drafts, expected) in [
            (
                vec![],
                "resource 1 (\"*\"): an entry for * is missing: it must be there, and the last one",
            ),
            (
                vec![Draft::new("a", 1.0)],
                "resource 2 (\"*\"): an entry for * is missing: it must be there, and the last one",
            ),
            (
                vec![everything(), Draft::new("a", 1.0)],
                "resource 1 (\"*\"): the entry for * must be the last one, but it is followed by \
                 \"a\"",
            ),
            (
                vec![Draft::new("*", 1.0)],
                "resource 1 (\"*\"): the entry for * must have an algorithm: those without one use \
                 it",
            ),
            (
                vec![Draft::new("a", f64::NAN), everything()],
                "resource 1 (\"a\"): capacity must be zero or more, and finite, but it is NaN",
            ),
            (
                vec![Draft::new("a", 1.0).with_safe_capacity(-2.0), everything()],
                "resource 1 (\"a\"): safe_capacity must be -1 (unlimited), or zero or more and \
                 finite, but it is -2",
            ),
            (
                vec![Draft::new("a", 1.0).with_algorithm(fair(60, 0)), everything()],
                "resource 1 (\"a\"): refresh_interval must be at least 1 second, but it is 0",
            ),
            (
                vec![Draft::new("a", 1.0).with_algorithm(fair(4, 5)), everything()],
                "resource 1 (\"a\"): lease_length must be at least refresh_interval (5), but it is \
                 4",
            ),
            (
                vec![Draft::new("a[", 1.0), everything()],
                "resource 1 (\"a[\"): identifier_glob: the set that begins at character 2 is not \
                 complete: [abc], [a-z] or [^a-z]",
            ),
        ] {
            assert_eq!(text(&drafts), expected);
        }
    }

    #[test]
    fn kinds_have_their_names_and_numbers() {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind.number(), number as i32);
            assert_eq!(kind.name().to_lowercase().parse(), Ok(kind));
        }
        assert_eq!("FAIR".parse::<Kind>(), Err(UnknownKind));
    }
}
