//! Whose work was it, in a program that nobody can see into?
//!
//! A proxy knows which requests were in a program and when, and the system says how much CPU the
//! program has used; nobody says which request used it. But mixes vary by chance from moment to
//! moment, and the CPU varies with them:
//!
//! ```text
//! used(window) = sum over classes of  n(class, window) * cost(class)  + noise
//! ```
//!
//! A class is a customer and a method. What each costs is what explains the use best, by least
//! squares over the last minute or so, none below zero:
//!
//! ```text
//! minimise  sum over windows of (used - sum n cost)^2
//!           + RIDGE sum over classes of n (cost - mean)^2
//! ```
//!
//! `n` is the mean of what came in and what got done, as a request that is in the program at either
//! end of a window has done a part of its work in it. That part is the noise, and it is the same
//! for a short window as for a long one. So windows of several lengths are looked at together: each
//! length tells as much as all others do.
//!
//! Dividing the CPU by the time that requests were in the program would be simpler, and wrong by
//! factors: a cheap request that waits behind a dear one is in there as long.
//!
//! **What can go wrong.** Classes that always come in the same proportion cannot be told apart; the
//! second term gives each of them the mean then. A class that is less than a fifth of the work is
//! known less well, and one that came once is as good as unknown.
//! Where there are more classes than [`CLASSES`], the rest share one. The sum is right in any case:
//! what is charged over all classes is what was used, as the mean of all requests explains most of
//! it.

mod fit;

use crate::cost::MethodId;
use crate::customer::CustomerId;
use crate::rng::mix;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{Cost, Timestamp};
use core::time::Duration;
use fit::Fit;
use std::sync::Arc;

/// Classes that are told apart, the one for the rest included. Beyond some dozens there is not
/// enough traffic in a minute to tell them apart by.
pub const CLASSES: usize = 128;
/// Places in which a class may stand.
const WAYS: usize = 8;
/// Everyone who finds no place.
const REST: usize = 0;

/// A window is at least this long. Work that is half done at its ends blurs the counts, and draws
/// the costs of all classes together; here by a few per cent, if requests take some ten
/// milliseconds.
const WINDOW: Duration = Duration::from_secs(1);

/// A customer and a method, as an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClassId(u16);

impl ClassId {
    /// The index, below [`CLASSES`].
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a request of each class costs: the gate.
#[derive(Debug)]
pub struct Classes {
    /// One more than the customer and method; zero where nobody stands.
    keys: [AtomicU64; CLASSES],
    /// Nanoseconds; zero while nothing is known.
    costs: [AtomicU64; CLASSES],
}

impl Classes {
    /// Nobody yet.
    pub fn new() -> Arc<Self> {
        let zeros = || core::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(Self { keys: zeros(), costs: zeros() })
    }

    /// The class of a request.
    #[inline]
    pub fn class(&self, customer: CustomerId, method: MethodId) -> ClassId {
        let key = (u64::from(customer.0) << 32 | u64::from(method.0)).wrapping_add(1);
        let start = mix(key) as usize;
        for way in 0..WAYS {
            let index = 1 + start.wrapping_add(way) % (CLASSES - 1);
            let found = self.keys[index].load(Ordering::Relaxed);
            if found == key || found == 0 && self.claim(index, key) {
                return ClassId(index as u16);
            }
        }
        ClassId(REST as u16)
    }

    #[cold]
    fn claim(&self, index: usize, key: u64) -> bool {
        let claimed =
            self.keys[index].compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed);
        match claimed {
            Ok(_) => true,
            Err(found) => found == key,
        }
    }

    /// What a request of `class` costs, if anything is known.
    #[inline]
    pub fn cost(&self, class: ClassId) -> Option<Cost> {
        let nanos = self.costs[class.index()].load(Ordering::Relaxed);
        (nanos > 0).then(|| Cost::from_nanos(nanos))
    }
}

/// Finds out what requests cost.
#[derive(Debug, Clone)]
pub struct Attribution {
    fit: Box<Fit>,
    /// What has come to the last window so far.
    requests: Vec<f64>,
    used: f64,
    due: Timestamp,
}

impl Attribution {
    /// Knows nothing yet.
    pub fn new(now: Timestamp) -> Self {
        Self { fit: Box::default(), requests: vec![0.0; CLASSES], used: 0.0, due: now + WINDOW }
    }

    /// Since the last look, `came` requests of each class came in, `done` were done, and the
    /// program used `used` of the CPU. Publishes to `classes` when a window is over.
    pub fn observe(
        &mut self,
        classes: &Classes,
        came: &[u64; CLASSES],
        done: &[u64; CLASSES],
        used: Cost,
        now: Timestamp,
    ) {
        for ((sum, came), done) in self.requests.iter_mut().zip(came).zip(done) {
            *sum += f64::midpoint(*came as f64, *done as f64);
        }
        self.used += used.as_nanos() as f64;
        if now < self.due {
            return;
        }
        self.due = now + WINDOW;
        self.fit.add(&self.requests, self.used);
        self.requests.fill(0.0);
        self.used = 0.0;
        for index in self.fit.forgotten() {
            classes.costs[index].store(0, Ordering::Relaxed);
            classes.keys[index].store(0, Ordering::Relaxed);
        }
        for (index, cost) in self.fit.solve() {
            // A nanosecond is known to be nothing; zero is not known.
            classes.costs[index].store((cost as u64).max(1), Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
