//! From raw samples to signal values.

use crate::average::Average;
use crate::units::{InvalidNumber, Timestamp, nanos};
use core::time::Duration;

/// Executor load average: how many tasks are running or ready to run, per CPU, smoothed.
///
/// A request with a large fan-out makes thousands of tasks ready at once and is done with them in
/// a moment; more work than the CPUs can do keeps them ready. Smoothing over time tells the two
/// apart: with time constant `tau`, a spike of height `h` that lasts `d` moves the average by about
/// `h d / tau`, and a lasting rise to `h` arrives after about `tau`.
#[derive(Debug, Clone)]
pub struct LoadAverage {
    average: Average,
    cpus: f64,
}

impl LoadAverage {
    /// Long against a fan-out (a few milliseconds), short against the patience of a caller.
    pub const TAU_DEFAULT: Duration = Duration::from_millis(100);

    /// For a task that may use `cpus` CPUs, which need not be whole: a container with a quota of
    /// 1.5 has 1.5. Starts idle at `now`.
    pub fn new(tau: Duration, cpus: f64, now: Timestamp) -> Result<Self, InvalidNumber> {
        if cpus.is_finite() && cpus > 0.0 {
            Ok(Self { average: Average::starting_at(tau, 0.0, now), cpus })
        } else {
            Err(InvalidNumber::new("a number of CPUs", "more than zero, and finite", cpus))
        }
    }

    /// As [`Lane::touch`](crate::admission::Lane::touch).
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn touch(&self) -> u64 {
        self.cpus.to_bits() ^ self.average.get().unwrap_or(0.0).to_bits()
    }

    /// `active` tasks are running or ready to run. Returns the load average per CPU.
    pub fn record(&mut self, active: u64, now: Timestamp) -> f64 {
        self.average.record(active as f64 / self.cpus, now);
        self.average.get().unwrap_or(0.0)
    }
}

/// The slope of a counter of time: CPU time used, time spent waiting for a CPU, time throttled.
///
/// Two readings of a counter that only grows give a rate; over what is reserved, a utilization:
///
/// ```text
/// value = (counter - counter before) / (now - before) / reserved
/// ```
///
/// smoothed with time constant `tau`. A counter that went backwards (the process watched was
/// replaced) starts over.
#[derive(Debug, Clone)]
pub struct Slope {
    average: Average,
    reserved: f64,
    last: Option<(Duration, Timestamp)>,
}

impl Slope {
    /// A counter of which `reserved` seconds per second may be used: CPUs for CPU time, 1 for the
    /// delay of one thread.
    pub fn new(tau: Duration, reserved: f64) -> Result<Self, InvalidNumber> {
        if reserved.is_finite() && reserved > 0.0 {
            Ok(Self { average: Average::new(tau), reserved, last: None })
        } else {
            Err(InvalidNumber::new("a reservation", "more than zero, and finite", reserved))
        }
    }

    /// The counter stands at `counter`. Returns the smoothed value once there are two readings.
    pub fn record(&mut self, counter: Duration, now: Timestamp) -> Option<f64> {
        let (before, then) = self.last.replace((counter, now))?;
        let elapsed = nanos(now.since(then));
        if counter >= before && elapsed > 0 {
            let used = nanos(counter.saturating_sub(before));
            self.average.record(used as f64 / elapsed as f64 / self.reserved, now);
        }
        self.average.get()
    }
}
