//! How full this task is, as seen from inside.
//!
//! [`tidegate_core::signal`] says what to make of numbers that have targets. Here they come from:
//! the executor ([`crate::executor`]), the system ([`linux`]), and whatever a service knows about
//! itself ([`Signal`], [`from_fn`], [`in_flight`]). A [`Sampler`] reads them off the request path,
//! on a thread of its own, and tells the admission controller every few milliseconds.
//!
//! What each of them tells, costs and misses is in the table of `docs/signals.md`.
//!
//! ```
//! use tidegate::clock::Clock;
//! use tidegate::executor::Executor;
//! use tidegate::signals::{Sampler, in_flight};
//! use tidegate_core::admission::{AdmissionGate, Controller, shed::ShedConfig};
//! use tidegate_core::attempts::AttemptsConfig;
//! use tidegate_core::quota::QuotaConfig;
//!
//! let clock = Clock::monotonic();
//! let executor = Executor::new(clock.clone());
//! let gate = AdmissionGate::new(QuotaConfig::default());
//! let (shed, attempts) = (ShedConfig::default(), AttemptsConfig::default());
//! let mut controller = Controller::new(shed, attempts, &gate, clock.now());
//! let counted = gate.clone();
//! let sampler = Sampler::new(clock)
//!     .executor(&executor)
//!     .system()
//!     .signal(in_flight(500.0, move || counted.counts().inflight()))
//!     .start(move |tick| {
//!         controller.tick(&gate, tick.seen, tick.now);
//!     })?;
//! // It goes on until `sampler` is dropped.
//! assert!(sampler.health().iter().any(|signal| signal.name == "executor_load"));
//! # Ok::<(), tidegate::signals::StartError>(())
//! ```

pub mod linux;
mod pacer;
mod sampler;
mod sampling;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub(crate) use pacer::{Paced, Pacer};
pub use sampler::{Handle, Sampler, StartError};
pub use sampling::{Health, Sampling, Tick};
pub use tidegate_core::signal::{Combine, Reading, Role};

use core::time::Duration;
use tidegate_core::{Timestamp, Utilization};

/// A number that tells how full the task is.
///
/// Name, target, role, weight and period are asked for once, when the sampler starts.
pub trait Signal: Send {
    /// What it is called in metrics and explanations.
    fn name(&self) -> &str;

    /// What it should not exceed, in its own unit.
    fn target(&self) -> f64;

    /// Where it stands, in its own unit, or nothing if that is not known: then the last value holds
    /// for some seconds, and after that the signal is left out. It must not wait for anything, as
    /// all signals are read by one thread. If it panics it is not asked again.
    fn sample(&mut self, now: Timestamp) -> Option<Utilization>;

    /// Where it stands at this very moment, for a signal whose samples are smoothed. Asked right
    /// after [`Signal::sample`].
    fn instant(&self) -> Option<Utilization> {
        None
    }

    /// Whether it may declare overload by itself.
    fn role(&self) -> Role {
        Role::Leading
    }

    /// Whether it tells how short the CPU is. Requests that fit into what the CPUs are seen to be
    /// capable of are not refused for its sake.
    fn is_of_cpu(&self) -> bool {
        false
    }

    /// Its weight, where signals are summed.
    fn weight(&self) -> f64 {
        1.0
    }

    /// How often to read it; no more often than the sampler ticks.
    fn period(&self) -> Duration {
        Duration::ZERO
    }

    /// Why the last sample is not known.
    fn trouble(&self) -> Option<String> {
        None
    }
}

impl<S: Signal + ?Sized> Signal for Box<S> {
    fn name(&self) -> &str {
        (**self).name()
    }
    fn target(&self) -> f64 {
        (**self).target()
    }
    fn sample(&mut self, now: Timestamp) -> Option<Utilization> {
        (**self).sample(now)
    }
    fn instant(&self) -> Option<Utilization> {
        (**self).instant()
    }
    fn role(&self) -> Role {
        (**self).role()
    }
    fn is_of_cpu(&self) -> bool {
        (**self).is_of_cpu()
    }
    fn weight(&self) -> f64 {
        (**self).weight()
    }
    fn period(&self) -> Duration {
        (**self).period()
    }
    fn trouble(&self) -> Option<String> {
        (**self).trouble()
    }
}

/// A signal that asks `read`: the length of a queue, connections of a pool in use.
pub fn from_fn<F>(name: impl Into<String>, target: f64, read: F) -> FromFn<F>
where
    F: FnMut(Timestamp) -> Option<f64> + Send,
{
    FromFn { name: name.into(), target, read, found: None }
}

/// Requests that were let in and are not done. `count` asks the gate that lets them in. Right where
/// the number that a service can hold is known, and all requests are about the same.
pub fn in_flight<F>(
    target: f64,
    mut count: F,
) -> FromFn<impl FnMut(Timestamp) -> Option<f64> + Send>
where
    F: FnMut() -> u64 + Send,
{
    from_fn("in_flight", target, move |_| Some(count() as f64))
}

/// Made by [`from_fn`].
#[derive(Debug)]
pub struct FromFn<F> {
    name: String,
    target: f64,
    read: F,
    /// What was found instead of a utilization.
    found: Option<f64>,
}

impl<F> Signal for FromFn<F>
where
    F: FnMut(Timestamp) -> Option<f64> + Send,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn target(&self) -> f64 {
        self.target
    }

    fn sample(&mut self, now: Timestamp) -> Option<Utilization> {
        let value = (self.read)(now)?;
        let utilization = Utilization::new(value).ok();
        self.found = utilization.is_none().then_some(value);
        utilization
    }

    fn trouble(&self) -> Option<String> {
        let found = self.found?;
        Some(format!("it should be zero or more, and finite, but it is {found}"))
    }
}
