//! What can be wrong with how a page was set up.
//!
//! A client that is shown nowhere, or two parts of one name, would be found out when somebody looks
//! for what is not there, which is when it burns. So whoever serves the page is told at once.

use crate::metrics::InvalidCalls;

/// What is wrong, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSetup {
    /// A client or a balancer with no task before it.
    #[error(
        "the {what} of `{service}` belongs to no task: call `.{what}(..)` right after \
         `Admin::new(&task)` or `.part(name, &task)` of the task that asks through it"
    )]
    NoTask {
        /// `client` or `balancer`.
        what: &'static str,
        /// The service that it asks.
        service: String,
    },
    /// A client or a balancer that is one too many.
    #[error(transparent)]
    Calls(#[from] InvalidCalls),
}
