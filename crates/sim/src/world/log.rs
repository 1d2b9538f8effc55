//! What happened to every attempt, and what every controller saw, one by one.
//!
//! A [`Record`](super::record::Record) holds sums. Some questions need more: what a controller
//! planned from one look to the next, which refusal cited what, a quantile to the last digit. A log
//! keeps all of it, so its memory grows with the requests: it is for worlds that are small enough
//! to look into, and kept only where [`WorldSpec::log`](super::spec::WorldSpec::log) asks for it.

use tidegate_core::admission::shed::Plan;
use tidegate_core::decision::Cause;
use tidegate_core::{Cost, Criticality, Timestamp};

/// Everything, in the order in which it happened.
#[derive(Debug, Default)]
pub struct Log {
    /// What became of attempts that reached a task, while somebody waited for them.
    pub attempts: Vec<Attempt>,
    /// What controllers saw and planned. Only those of tidegate plan.
    pub looks: Vec<Look>,
    /// Attempts that a task in dark mode let in and would have refused otherwise.
    pub would_refuse: u64,
}

/// An attempt that came to its end at a task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attempt {
    /// When its request was made.
    pub asked: Timestamp,
    /// When it was done or refused.
    pub ended: Timestamp,
    /// What it counted as.
    pub criticality: Criticality,
    /// How it ended.
    pub ending: Ending,
}

/// How an attempt ended at a task.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Ending {
    /// It was answered.
    Done {
        /// What that cost.
        work: Cost,
        /// Whether it was before the caller's deadline.
        in_time: bool,
    },
    /// It was refused.
    Refused {
        /// The numbers behind that, where there are any.
        cause: Option<Cause>,
    },
}

/// A look of a task's controller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Look {
    /// When.
    pub at: Timestamp,
    /// The task's number in the world.
    pub backend: u32,
    /// Running or ready jobs per core, smoothed.
    pub load: f64,
    /// What is to be done until the next look.
    pub plan: Plan,
}
