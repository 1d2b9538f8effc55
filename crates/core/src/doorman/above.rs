//! What a server of the tree has from the one above it, and how it makes do with that.
//!
//! Only the root has templates. A server below it asks for what its clients want, added up by
//! priority, and is a client itself: it gets a lease of so much, with the algorithm by which to
//! share that out. So resources need no configuration but at the root, and a fleet of clients
//! outgrows one server.
//!
//! ```text
//! clients ──wants, has──► server ──bands, has──► server above
//!         ◄─── gets ─────        ◄─ gets, algorithm, safe capacity ─┘
//! ```
//!
//! **What is handed out** is never more than what came from above, and for no longer: a client's
//! lease ends when that of its server does, at the latest. When there is less than before, clients
//! hear of it as they ask; what they still have is said to the server above as part of what the
//! server has, so that nobody else gets it meanwhile.
//!
//! **When the server above is lost** the lease ends, and with it those of all clients. From then on
//! there is the safe capacity: as much for each client as the server above said, for as many as it
//! was last told of. If that is anything (-1) the server keeps to what it had last, as it cannot
//! hand out anything; if nothing was said, to half of it.
//!
//! **A server that starts** has to learn what its clients have. Before the one above was heard of,
//! it confirms their leases as they are. The first who comes with one shows that there was a server
//! before: what all clients want is known when each has asked again, and to ask for less would
//! make those above take the rest for free. So the first request upwards waits for so long.
//!
//! **What was rejected.** To hand the safe capacity of the server above to clients as the server's
//! own, and to divide it: old servers mean it for each client, and hand it on as it is.

use super::config::{Algorithm, SafeCapacity};
use super::resource::{Band, Lease};
use crate::share::amount;
use crate::units::Timestamp;
use core::time::Duration;

/// What is left of what a server had last, if the one above is lost and never said what is safe:
/// as much as tasks of a fleet fall back to.
const UNSAID: f64 = 0.5;
/// The server above is not asked more often, whatever it says.
const ASK_MIN: Duration = Duration::from_secs(1);
/// For how long a server that was started anew gathers what its clients want, at most: clients that
/// ask more rarely have leases that are long enough to wait for.
const GATHER_MAX: Duration = Duration::from_secs(30);

/// What to ask the server above.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// What is in use, or may be.
    pub has: Option<Lease>,
    /// What all clients want, highest priority first.
    pub bands: Vec<Band>,
}

/// What the server above has answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Provision {
    /// What there is, until when, and after how long to ask again.
    pub lease: Lease,
    /// How to share it out.
    pub algorithm: Algorithm,
    /// What each client may use without a server; -1 for anything.
    pub safe: Option<f64>,
}

impl Provision {
    /// What to tell clients of it.
    pub(super) fn safe_capacity(&self) -> SafeCapacity {
        match self.safe {
            Some(-1.0) => SafeCapacity::Unlimited,
            Some(safe) if safe.is_finite() && safe >= 0.0 => SafeCapacity::Fixed(amount(safe)),
            _ => SafeCapacity::EqualPart,
        }
    }
}

/// What came from above.
#[derive(Debug, Clone, Copy)]
struct Heard {
    expiry: Timestamp,
    safe: SafeCapacity,
    /// What the lease ended with was replaced by the safe capacity.
    lapsed: bool,
    /// For how many clients was asked.
    clients: u64,
}

/// How one resource stands with the server above.
#[derive(Debug, Clone)]
pub(super) struct Above {
    since: Timestamp,
    heard: Option<Heard>,
    /// The last that was more than nothing.
    usual: f64,
    /// For how many clients was asked last.
    clients: u64,
    due: Timestamp,
    /// A client came with a lease of a server before.
    gathers: bool,
}

impl Above {
    /// Of a server that began at `since`.
    pub(super) const fn new(since: Timestamp) -> Self {
        Self { since, heard: None, usual: 0.0, clients: 0, due: since, gathers: false }
    }

    pub(super) const fn since(&self) -> Timestamp {
        self.since
    }

    pub(super) const fn is_heard(&self) -> bool {
        self.heard.is_some()
    }

    /// When to ask.
    pub(super) const fn due(&self) -> Timestamp {
        self.due
    }

    /// A client has a lease of which the server above may know, and asks again when that says so.
    pub(super) fn gathers(&mut self, has: Lease, now: Timestamp) {
        if self.heard.is_some() || self.gathers {
            return;
        }
        self.gathers = true;
        let before_it_ends = has.expiry.since(now) / 2;
        self.due = now + has.refresh_interval.min(before_it_ends).min(GATHER_MAX);
    }

    /// It is asked for so many. Who gets no answer asks again.
    pub(super) fn asks(&mut self, clients: u64, now: Timestamp) {
        self.clients = clients;
        self.due = now + ASK_MIN;
    }

    /// What to say one has, where `capacity` may be handed out, and `out` is, until `last`.
    pub(super) fn has(
        &self,
        capacity: f64,
        out: f64,
        last: Timestamp,
        now: Timestamp,
    ) -> Option<Lease> {
        let live = self.heard.filter(|heard| !heard.lapsed);
        let (capacity, expiry) = match live {
            Some(heard) => (capacity.max(out), heard.expiry),
            None => (out, last),
        };
        let refresh_interval = Duration::ZERO;
        (expiry > now && (live.is_some() || out > 0.0)).then_some(Lease {
            expiry,
            refresh_interval,
            capacity,
        })
    }

    pub(super) fn hear(&mut self, provision: &Provision, now: Timestamp) {
        let Lease { expiry, refresh_interval, capacity } = provision.lease;
        let safe = provision.safe_capacity();
        self.heard = Some(Heard { expiry, safe, lapsed: false, clients: self.clients });
        if amount(capacity) > 0.0 {
            self.usual = amount(capacity);
        }
        let half = expiry.since(now) / 2;
        self.due = now + refresh_interval.min(half).max(ASK_MIN);
    }

    /// When leases have to end that are handed out of what came from above. What is safe has no
    /// end.
    pub(super) fn lease_end(&self) -> Timestamp {
        match self.heard {
            Some(heard) if !heard.lapsed => heard.expiry,
            _ => Timestamp::MAX,
        }
    }

    /// Returns what is safe if what came from above has just ended.
    pub(super) fn lapse(&mut self, now: Timestamp) -> Option<f64> {
        let heard = self.heard.as_mut().filter(|heard| !heard.lapsed && heard.expiry <= now)?;
        heard.lapsed = true;
        Some(match heard.safe {
            SafeCapacity::Fixed(each) => each * heard.clients.max(1) as f64,
            SafeCapacity::Unlimited => self.usual,
            SafeCapacity::EqualPart => self.usual * UNSAID,
        })
    }
}

#[cfg(test)]
mod tests;
