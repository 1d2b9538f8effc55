//! Adaptive throttling: a client that is mostly refused stops asking.
//!
//! A refusal costs the backend less than an answer, but not nothing. A backend that is offered a
//! hundred times what it can do may spend all of itself on saying no. So each client watches how
//! its own requests fare, and refuses what would most likely be refused anyway before it reaches
//! the network. It needs nobody's help for that: no coordination, no extra round trip.
//!
//! There is one throttle per backend service, and it keeps separate numbers for each criticality: a
//! backend that sheds the lowest criticality serves the others, and they must not suffer for it.
//! Over the last two minutes it counts
//!
//! - **requests**: what the application wanted to send, locally refused or not;
//! - **accepts**: what the backend took on.
//!
//! and a request is refused locally with probability
//!
//! ```text
//! p = max(0, (requests - sendable) / (requests + 1))     sendable = max(K x accepts, requests_min)
//! ```
//!
//! In the long run `requests x (1 - p)` are sent, which is `K x accepts`: however large the demand,
//! the backend sees `K` times what it takes and refuses `K - 1` requests for each one it serves.
//! Locally refused requests have to count as requests for this to hold. If they did not, more
//! demand would not raise `p`, and the backend would see ever more.
//!
//! `requests_min` is the floor under all of this. A client with fewer requests than that in its
//! window cannot tell overload from bad luck, and is not throttled. A busier client whose backend
//! took nothing for two minutes still sends that many per window: without them it would never hear
//! that the backend is back. With `requests_min` 0 the formula is the one of the book, and a client
//! that saw a full window of refusals sends one request per window.
//!
//! # What counts, and when
//!
//! A request counts once its fate is known: a throttled one at once, a sent one when its outcome is
//! reported. Were it counted when sent, a client that starts with a hundred requests at once would
//! see a hundred requests and no accept, and throttle a healthy backend while the answers are on
//! their way. It follows that every attempt needs an end: one that waits for ever is never counted,
//! so attempts have deadlines. An attempt that the caller itself gives up on before its deadline
//! says nothing about the backend and does not count.
//!
//! No answer is no accept, as a backend that drowns too deep to refuse looks like that. With `K` 2
//! half of all attempts may end so before anything is throttled, so one dead task of many, or now
//! and then a deadline that was too short, throttles nothing.
//!
//! Every attempt goes through the throttle, retries included: to the backend they are all alike.
//!
//! # Coming back
//!
//! Alone, two minutes of history make a slow return: a client that wanted ten times too much and
//! then calms down would refuse most of its modest traffic for three minutes more, with a backend
//! that would take it all. So where the last ten seconds prove that the backend takes more, they
//! prevail:
//!
//! ```text
//! lately = max(0, 1 - K x (accepts - sqrt(accepts)) / requests)       over the last 10 s
//! p      = min(p, lately)
//! ```
//!
//! Accepts are lowered by their standard error, so that in a lasting overload chance hardly ever
//! opens the gate: the long window decides, and the backend sees what it would see without this
//! rule. Once the backend takes everything it is sent, accepts grow by a factor of `e` in about
//! `10 s / (K - 1)`. The rule only ever lets more through; a bad moment takes as long as ever to
//! make a client throttle.
//!
//! # When it is wrong
//!
//! - It reacts to what its own client saw. A client that sends a request a minute learns nothing in
//!   time; ten thousand of them together are not throttled at all. Put a proxy in front of those.
//! - It sets in late. After calm minutes a surge of `L` times what the backend takes is sent in
//!   full for `window x (K - 1) / (L - 1)`, 13 s for a tenfold one. Until then, and for every
//!   client that does not throttle, the backend has to protect itself.
//! - A smaller `K` wastes less of the backend and learns of better times more slowly.

mod gate;
#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests;

pub use gate::{ThrottleController, ThrottleGate, ThrottleLane};

use crate::criticality::Criticality;
use crate::decision::{Advice, Cause, Reason, Rejection, Thousandths};
use crate::levels::Levels;
use crate::outcome::Outcome;
use crate::rng::Rng;
use crate::units::{InvalidNumber, Timestamp};
use crate::window::Window;
use core::time::Duration;

/// Steps in which the window forgets: two seconds each of the default two minutes. A step takes out
/// at most a sixtieth of a steady history, which nobody feels, and the ring is less than 1 KiB.
const BUCKETS: usize = 60;

/// The shortest window: a client of a few dozen requests a second reaches the floor of 20 in it.
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// Steps in which the last ten seconds are forgotten: a second each, so that a calm moment is not
/// judged by a surge that is over.
const BUCKETS_LATELY: usize = 10;

/// `K`: how many requests a client sends for each one that the backend takes.
///
/// At least 1: with less, a backend that takes everything would still be throttled.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Multiplier(f64);

impl Multiplier {
    /// A backend may have to refuse `value - 1` requests for each one that it takes.
    pub fn new(value: f64) -> Result<Self, InvalidNumber> {
        if value.is_finite() && value >= 1.0 {
            Ok(Self(value))
        } else {
            Err(InvalidNumber::new("a throttle's multiplier", "1 or more, and finite", value))
        }
    }

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl Default for Multiplier {
    /// 2: the backend refuses about one request for each one it serves. That is a waste of its
    /// work, and buys that clients soon notice when it takes more again.
    fn default() -> Self {
        Self(2.0)
    }
}

/// How a client throttles itself. Start from [`ThrottleConfig::default`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ThrottleConfig {
    /// `K`. Lower it towards 1 where a refusal costs the backend nearly as much as an answer.
    pub multiplier: Multiplier,
    /// How far back requests and accepts are remembered: two minutes. Shorter reacts and recovers
    /// faster, and takes a short dip for a state. Less than a second counts as a second: a window
    /// that is shorter than answers take forgets requests before it has counted enough of them.
    pub window: Duration,
    /// How many requests of each criticality may be sent per window whatever happened before: 20.
    ///
    /// Of 20 requests to a backend that takes 7 in 10 and needs no throttling, more than half are
    /// refused by chance in one window of sixty; of 10, in one of twenty. And 20 in two minutes is
    /// a request every six seconds: too few to hurt, enough to notice that a backend is back.
    pub requests_min: u64,
    /// How far back a client looks for proof that the backend takes more than it used to: ten
    /// seconds. Long enough for a client of a few requests a second to see a dozen answers, and
    /// an order of magnitude quicker than the window. Zero looks at nothing: the book's throttle.
    pub recovery_window: Duration,
}

impl Default for ThrottleConfig {
    fn default() -> Self {
        Self {
            multiplier: Multiplier::default(),
            window: Duration::from_secs(120),
            requests_min: 20,
            recovery_window: Duration::from_secs(10),
        }
    }
}

impl ThrottleConfig {
    /// The probability, from 0 to below 1, with which the next request is refused locally after
    /// this many requests and accepts in the window.
    ///
    /// Costs a division. Used by the controller, alone or behind a gate.
    pub fn probability(&self, requests: u64, accepts: u64) -> f64 {
        let sendable = (self.multiplier.0 * accepts as f64).max(self.requests_min as f64);
        let requests = requests as f64;
        ((requests - sendable) / (requests + 1.0)).max(0.0)
    }

    /// The probability that the last seconds call for, with accepts lowered by their standard
    /// error. Nothing seen proves nothing: 1.
    fn probability_lately(&self, requests: u64, accepts: u64) -> f64 {
        if requests == 0 {
            return 1.0;
        }
        let accepts = accepts as f64;
        (1.0 - self.multiplier.0 * (accepts - accepts.sqrt()) / requests as f64).max(0.0)
    }
}

/// How many attempts had which fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ThrottleCounts {
    /// Sent, and taken on by the backend.
    pub accepted: u64,
    /// Sent, and refused by the backend.
    pub refused: u64,
    /// Sent, without an answer.
    pub unanswered: u64,
    /// Refused locally.
    pub throttled: u64,
}

impl ThrottleCounts {
    /// One attempt with this outcome; none if it says nothing.
    pub fn one(outcome: Outcome) -> Self {
        let mut counts = Self::default();
        match outcome {
            Outcome::Served | Outcome::Failed => counts.accepted = 1,
            Outcome::Refused(_) => counts.refused = 1,
            Outcome::NoAnswer => counts.unanswered = 1,
            Outcome::Abandoned => {}
        }
        counts
    }

    /// Everything the application wanted to send.
    pub fn requests(&self) -> u64 {
        [self.refused, self.unanswered, self.throttled]
            .into_iter()
            .fold(self.accepted, u64::saturating_add)
    }
}

/// The throttle of one client for one backend service.
///
/// This is the controller. A single owner (a simulator, a task with its own loop) asks it directly;
/// where many threads send, a [`ThrottleController`] keeps one and publishes what it says.
///
/// ```
/// use tidegate_core::rng::SeededRng;
/// use tidegate_core::decision::Advice;
/// use tidegate_core::throttle::{Throttle, ThrottleConfig};
/// use tidegate_core::{Criticality, Outcome, Timestamp};
///
/// let mut throttle = Throttle::new(ThrottleConfig::default());
/// let (now, mut rng) = (Timestamp::from_secs(1), SeededRng::new(7));
/// for _ in 0..1_000 {
///     if throttle.decide(Criticality::Critical, now, &mut rng).is_ok() {
///         let refused = Outcome::Refused(Advice::RetryElsewhere);
///         throttle.on_response(Criticality::Critical, refused, now);
///     }
/// }
/// assert!(throttle.probability(Criticality::Critical, now) > 0.9);
/// assert_eq!(throttle.probability(Criticality::CriticalPlus, now), 0.0);
/// ```
#[derive(Debug, Clone)]
pub struct Throttle {
    config: ThrottleConfig,
    histories: [History; Criticality::COUNT],
}

/// Requests and accepts of one criticality, on one cache line: where there are many throttles, a
/// request waits for each line. A count goes up to four billion, which are 36 million requests a
/// second.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
struct History {
    recent: Window<[u32; 2]>,
    lately: Window<[u32; 2]>,
}

impl Throttle {
    /// A throttle that has seen nothing and so refuses nothing.
    pub fn new(config: ThrottleConfig) -> Self {
        let histories = core::array::from_fn(|_| History {
            recent: Window::new(config.window.max(WINDOW_MIN), BUCKETS),
            lately: Window::new(config.recovery_window, BUCKETS_LATELY),
        });
        Self { config, histories }
    }

    /// As [`Lane::touch`](crate::admission::Lane::touch).
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn touch(&self, criticality: Criticality) -> u64 {
        let history = &self.histories[criticality.index()];
        history.recent.touch() ^ self.config.requests_min
    }

    /// Whether the next attempt may be sent. A refusal is counted here; an attempt that is sent
    /// counts when [`Throttle::on_response`] hears of it.
    ///
    /// Costs some thirty nanoseconds. For a single owner; threads ask a [`ThrottleLane`].
    pub fn decide(
        &mut self,
        criticality: Criticality,
        now: Timestamp,
        rng: &mut impl Rng,
    ) -> Result<(), Rejection> {
        let probability = self.probability(criticality, now);
        if probability > 0.0 && rng.unit() < probability {
            let throttled = ThrottleCounts { throttled: 1, ..ThrottleCounts::default() };
            self.record(criticality, throttled, now);
            return Err(throttled_locally(criticality, probability));
        }
        Ok(())
    }

    /// An attempt that was sent came out like this. Once per attempt; O(1).
    pub fn on_response(&mut self, criticality: Criticality, outcome: Outcome, now: Timestamp) {
        self.record(criticality, ThrottleCounts::one(outcome), now);
    }

    /// Many attempts at once, as a controller reads them from its threads' counters. O(1).
    pub fn record(&mut self, criticality: Criticality, counts: ThrottleCounts, now: Timestamp) {
        let history = &mut self.histories[criticality.index()];
        let amount =
            [counts.requests(), counts.accepted].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        history.recent.add(amount, now);
        history.lately.add(amount, now);
    }

    /// The probability with which a request is refused locally.
    ///
    /// Costs a division, and a walk over the window after a long silence. For the controller.
    pub fn probability(&mut self, criticality: Criticality, now: Timestamp) -> f64 {
        let history = &mut self.histories[criticality.index()];
        let [requests, accepts] = history.recent.total(now);
        let probability = self.config.probability(requests.into(), accepts.into());
        if probability == 0.0 || self.config.recovery_window.is_zero() {
            return probability;
        }
        let [requests, accepts] = history.lately.total(now);
        probability.min(self.config.probability_lately(requests.into(), accepts.into()))
    }

    /// The shares that get through, for a gate. For the controller's tick.
    ///
    /// A share is never published as none: a gate that is shut would never learn that the backend
    /// is back.
    pub fn levels(&mut self, now: Timestamp) -> Levels {
        const SHARE_MIN: f64 = 1.0 / 65_536.0;
        Levels::from_shares(
            Criticality::ALL
                .map(|criticality| (1.0 - self.probability(criticality, now)).max(SHARE_MIN)),
        )
    }
}

/// The refusal of a throttle.
///
/// Its advice is not to retry. A retry at this layer would roll the same dice again, and three
/// throws let through what one was meant to hold back.
fn throttled_locally(criticality: Criticality, probability: f64) -> Rejection {
    let probability = Thousandths((probability * 1_000.0).round() as u32);
    Rejection {
        reason: Reason::Throttled,
        advice: Advice::DontRetry,
        criticality,
        cause: Some(Cause::Throttle { probability }),
    }
}
