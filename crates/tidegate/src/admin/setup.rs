//! What can be wrong with how a page was set up.
//!
//! A client that is shown nowhere, or two parts of one name, would be found out when somebody looks
//! for what is not there, which is when it burns. So whoever serves the page is told at once.

use crate::metrics::InvalidCalls;

/// What fits before a chart, and into an address.
const NAME_MAX: usize = 64;

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
    /// Nothing would be shown.
    #[error(
        "there is nothing to show: begin with `Admin::new(&task)`, or add a `.part(name, &task)`"
    )]
    Empty,
    /// A name that cannot be read, or asked for.
    #[error(
        "a part is called {0:?}: a name has up to {NAME_MAX} characters, no control characters \
         among them and no blanks at its ends; `.part(\"checkout\", &task)` gives one"
    )]
    PartName(String),
    /// Two parts of one name.
    #[error(
        "two parts are called `{0}`: `?part=` and metrics tell parts apart by their names, so give \
         each its own by `.part(name, ..)` or `.source(name, ..)`"
    )]
    PartTwice(String),
}

/// Whether these can be told apart.
pub(super) fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), InvalidSetup> {
    let mut known: Vec<&str> = Vec::new();
    for name in names {
        let odd = name.trim() != name || name.chars().any(char::is_control);
        if name.is_empty() || odd || name.chars().count() > NAME_MAX {
            return Err(InvalidSetup::PartName(name.to_owned()));
        }
        if known.contains(&name) {
            return Err(InvalidSetup::PartTwice(name.to_owned()));
        }
        known.push(name);
    }
    if known.is_empty() { Err(InvalidSetup::Empty) } else { Ok(()) }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::super::{Admin, AdminError, api};
    use super::*;
    use crate::Task;
    use crate::client::{Balancer, Discovery, Endpoint, Layer};

    fn bare() -> api::Snapshot {
        api::Snapshot::default()
    }

    #[test]
    fn what_makes_no_sense_is_told_with_what_would() {
        let task = Task::builder("shop").build().expect("a task");
        let unnamed = Task::builder("").build();
        let inventory = Layer::new("inventory");
        let make = |_: &Endpoint| Ok::<_, core::convert::Infallible>(());
        let balancer = Balancer::builder(Discovery::list(["a:80"]), make).build();
        let balancer = balancer.expect("a balancer");
        let long = "x".repeat(NAME_MAX + 1);
        for (admin, words) in [
            (Admin::empty(), "begin with `Admin::new(&task)`"),
            (Admin::empty().client(&inventory), "the client of `inventory` belongs to no task"),
            (
                Admin::new(&task).source("bare", bare).client(&inventory),
                "call `.client(..)` right after",
            ),
            (
                Admin::empty().balancer("inventory", &balancer),
                "the balancer of `inventory` belongs to no task",
            ),
            (Admin::new(&task).balancer("", &balancer), "a balancer for a service without a name"),
            (
                Admin::new(&task).client(&inventory).client(&inventory),
                "two clients for `inventory`",
            ),
            (Admin::new(&task).part("shop", &task), "two parts are called `shop`"),
            (Admin::new(&task).source("shop", bare), "two parts are called `shop`"),
            (Admin::new(&task).part("", &task), "a part is called \"\""),
            (Admin::new(&task).part(" a", &task), "no blanks at its ends"),
            (Admin::new(&task).part("a\nb", &task), "a part is called \"a\\nb\""),
            (Admin::new(&task).part(long, &task), "up to 64 characters"),
        ] {
            let error = admin.spawn("127.0.0.1:0").expect_err(words);
            assert!(matches!(error, AdminError::Setup(_)), "{error:?}");
            assert!(error.to_string().contains(words), "{error}");
        }
        if let Ok(unnamed) = unnamed {
            let error = Admin::new(&unnamed).router().expect_err("no name");
            assert!(error.to_string().contains(".part(\"checkout\", &task)"), "{error}");
        }
        let right = Admin::new(&task).client(&inventory).balancer("inventory", &balancer);
        assert!(right.part("seen from outside, 2/3", &task).router().is_ok());
    }
}
