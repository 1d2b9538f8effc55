//! What is wrong with certificates and keys.

use std::error::Error;

/// What is wrong with certificates, keys or roots: where, what, and what would be right.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {what}\n  right: {right}")]
#[non_exhaustive]
pub struct InvalidTls {
    /// The file, or what was given instead of one.
    pub place: String,
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub right: &'static str,
    /// Why, as whoever found it says.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl InvalidTls {
    pub(crate) fn new(place: &str, what: impl Into<String>, right: &'static str) -> Self {
        Self { place: place.to_owned(), what: what.into(), right, source: None }
    }

    pub(crate) fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}
