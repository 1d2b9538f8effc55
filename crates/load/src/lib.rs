//! Load that does not wait for answers.
//!
//! A generator that sends the next request when the last one is answered slows down with the server
//! and never sees what its callers would: that is coordinated omission. Here requests start at
//! times that were drawn beforehand from a seed ([`schedule`]), latency counts from then, and what
//! could not be sent is counted ([`stats`]).
//!
//! It speaks HTTP/1.1, HTTP/2 and unary gRPC, plain and over TLS, with tidegate's headers: requests
//! have a criticality, a customer, a deadline ([`mix`]). Callers retry not at all, as naive ones
//! do, or within a budget, and may throttle themselves, by the very controllers of `tidegate-core`.
//!
//! ```no_run
//! use std::time::Duration;
//! use tidegate_load::{Plan, Run, Stage, Target};
//!
//! let target = Target::resolve("http://127.0.0.1:8080/", false)?;
//! let stages = vec!["100 for 10s".parse::<Stage>()?, "100..1000 for 30s".parse()?];
//! let run = Run::start(Plan::new(target, stages, 7))?;
//! let report = run.finish(|interval| {
//!     println!("{:?}: {} OK", interval.end, interval.stats.sum(|level| level.ok));
//! })?;
//! println!("{:.0} good answers a second", report.goodput_rps);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod draft;
mod h1;
mod h2;
mod hdr;
pub mod mix;
mod plan;
pub mod report;
mod request;
mod run;
pub mod schedule;
pub mod stats;
mod target;
mod text;
mod tls;
mod transport;
mod verdict;
mod worker;

pub use draft::{Draft, HeaderText, PlanError, RouteDraft, RouteText, Switch};
pub use hdr::{HistogramError, HistogramFormat, write_histogram};
pub use mix::{Mix, Route, Weighted};
pub use plan::{Course, Load, Plan, Protocol, Retry};
pub use report::Report;
pub use request::RequestError;
pub use run::{Handle, Interval, Run, RunError};
pub use schedule::{Spacing, Stage};
pub use stats::{NotSent, Stats};
pub use target::{Target, TargetError};
pub use text::{Rate, Span, Unreadable, WeightedList};
pub use tls::{TlsError, Trust};
pub use verdict::{Code, ErrorKind};
