//! What a task sees of itself at a look, beside what its gate has counted.

use crate::signal::Reading;
use crate::units::Cost;

/// What whoever runs the task has seen of it since the last tick.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Seen {
    /// What the signals say.
    pub reading: Reading,
    /// What those say that are not of the CPU.
    pub beyond_cpu: Reading,
    /// Running or ready to run per CPU at this moment.
    pub load: Option<f64>,
    /// The least of it since the last tick.
    pub load_least: Option<f64>,
    /// What requests used of the CPU.
    pub used: Option<Cost>,
}

impl Seen {
    /// Nothing but what the signals say; all of them may be of anything.
    pub const fn new(reading: Reading) -> Self {
        Self { reading, beyond_cpu: reading, load: None, load_least: None, used: None }
    }

    /// Signals that are not of the CPU say this.
    #[must_use]
    pub const fn beyond_cpu(mut self, reading: Reading) -> Self {
        self.beyond_cpu = reading;
        self
    }

    /// So many are running or ready to run per CPU at this moment. What is no number is not known.
    #[must_use]
    pub fn load(mut self, load: f64) -> Self {
        self.load = load.is_finite().then_some(load.max(0.0));
        self
    }

    /// No fewer than so many were running or ready to run per CPU at any moment since the last
    /// tick: tells bursts with pauses between them from work that waits all the time.
    #[must_use]
    pub fn load_least(mut self, load: f64) -> Self {
        self.load_least = load.is_finite().then_some(load.max(0.0));
        self
    }

    /// Requests used so much of the CPU since the last tick, as it was used: where requests are
    /// long, what they cost is known late.
    #[must_use]
    pub const fn used(mut self, used: Cost) -> Self {
        self.used = Some(used);
        self
    }
}

impl From<Reading> for Seen {
    fn from(reading: Reading) -> Self {
        Self::new(reading)
    }
}
