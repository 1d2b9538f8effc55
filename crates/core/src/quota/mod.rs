//! Quota at one task: only the customer who is over its limit is refused, least important first.
//!
//! Each customer has effective limits in CPU-seconds per second ([`Limits`], pushed by the fleet's
//! quota server or set locally). The estimated cost of a request is charged when it is admitted
//! and corrected when it is done and its cost is known.
//!
//! **Least important first.** A bucket holds [`QuotaConfig::burst`] worth of the limit. Higher
//! criticalities may go deeper into it: `SHEDDABLE` a quarter, `SHEDDABLE_PLUS` a half, `CRITICAL`
//! three quarters, `CRITICAL_PLUS` the whole:
//!
//! ```text
//! open(level)  <=>  depth < burst x (level + 1) / 4
//! ```
//!
//! so whenever a level is refused, every lower one is, at every moment. A customer who asks for
//! more than its limit settles at the depth where one level is open part of the time, the levels
//! above it always, the levels below never. No dice, no histogram.
//!
//! **Debt.** A request is admitted if its level is open at all and is then charged in full, even
//! below empty; the debt is paid before the next one. Asking for room first would shut out for
//! ever the request that costs more than a whole burst.
//!
//! **Limits by criticality** are nested (see [`Limits`]): each level that has one has a bucket of
//! its own, which it shares with all levels below, and a request has to find every bucket at or
//! above its level open.
//!
//! **Without contention.** A thread takes a lease of [`LEASES`] parts of a burst at a time out of
//! the shared bucket and charges requests against its lease. Whether a level is open is still read
//! from the shared bucket, so leases do not upset the order. They can delay what is known by one
//! lease per thread: over any span `T` a customer uses at most `limit x (T + burst)` plus one
//! lease per thread plus the last request that went into debt.
//!
//! **When limits change** under requests that are on their way, these are charged by the old limit
//! or by the new. A charge by the old one may still deepen a bucket that has just lost its limit,
//! so such a bucket is never in anyone's way, however deep. Buckets change by read-modify-write
//! only: no charge is lost between two threads, and nothing opens a bucket that is closed for good.
//!
//! Unknown customers share the limit of [`CustomerId::DEFAULT`]. The number of customers is fixed
//! when the gate is made, and so is its memory: 64 bytes a customer, and 72 more per thread.

mod bucket;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
mod usage;

pub use usage::{Usage, UsageMeter};

use crate::counters::{Counters, LINE, Writer};
use crate::criticality::Criticality;
use crate::customer::CustomerId;
use crate::fleet::Limits;
use crate::sync::{AtomicU8, AtomicU64, Mutex, Ordering, lock};
use crate::units::{Cost, CostRate, Timestamp, nanos};
use bucket::Pace;
use core::time::Duration;
use std::sync::Arc;

const LEVELS: usize = Criticality::COUNT;
/// The bucket that everything a customer does counts towards.
const TOTAL: usize = LEVELS - 1;
/// A lease is this fraction of a burst: at one second and one CPU it holds eight milliseconds of
/// CPU, some requests' worth, and thirty threads together hold less than the quarter of a burst
/// that separates two criticalities.
pub const LEASES: u64 = 128;

/// The moment at which the bucket of a blocked customer will be full. No other bucket gets there:
/// it would be taken for blocked, and never move again.
const NEVER: u64 = u64::MAX;

/// The sizes of a [`QuotaGate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaConfig {
    /// How many customers are told apart, the default one included. Default 1,024.
    pub customers_max: usize,
    /// How much of the limit may be used at once after a time of rest. Too short, and traffic that
    /// comes in bunches is refused below its limit; too long, and a customer may use that much
    /// more than its limit before it is noticed. Default 1 s: about a report interval of the fleet.
    pub burst: Duration,
    /// How far below empty a bucket may go. Bounds how long a customer pays for a request that
    /// cost a thousand times its estimate. Default 60 s.
    pub debt_max: Duration,
}

impl Default for QuotaConfig {
    fn default() -> Self {
        Self {
            customers_max: 1_024,
            burst: Duration::from_secs(1),
            debt_max: Duration::from_secs(60),
        }
    }
}

/// The buckets of all customers.
#[derive(Debug)]
pub struct QuotaGate {
    customers: Box<[Buckets]>,
    usage: Arc<Counters>,
    /// Whether any customer has limits by criticality. As long as nobody has, there is only one
    /// bucket to look at.
    by_level: AtomicU8,
    burst: u64,
    depth_max: u64,
    /// How deep each criticality may find a bucket.
    open_below: [u64; LEVELS],
    /// Held by whoever sets limits, so that those of two publishers are not mixed.
    publishing: Mutex<()>,
}

/// One customer's buckets, a cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Buckets {
    full_at: [AtomicU64; LEVELS],
    /// [`Pace`] of each level that has a limit of its own. None for a blocked one: what does not
    /// open does not count, so a charge that is late cannot be taken for one after the block.
    pace: [AtomicU64; LEVELS],
}

impl Buckets {
    #[inline]
    fn depth(&self, level: usize, now: Timestamp) -> u64 {
        self.full_at[level].load(Ordering::Relaxed).saturating_sub(now.as_nanos())
    }

    #[inline]
    fn pace(&self, level: usize) -> Pace {
        Pace::from_bits(self.pace[level].load(Ordering::Relaxed))
    }

    /// How deep the bucket is, if it has a limit.
    fn depth_if_limited(&self, level: usize, now: Timestamp) -> Option<u64> {
        let full_at = self.full_at[level].load(Ordering::Relaxed);
        let limited = full_at == NEVER || self.pace(level) != Pace::NONE;
        limited.then(|| full_at.saturating_sub(now.as_nanos()))
    }
}

impl QuotaGate {
    /// A gate in which nobody is limited until [`QuotaGate::set_limits`] says so.
    pub fn new(config: QuotaConfig) -> Arc<Self> {
        let customers_max = config.customers_max.max(1);
        let burst = nanos(config.burst).max(LEASES);
        let buckets = || Buckets {
            full_at: core::array::from_fn(|_| AtomicU64::new(0)),
            pace: core::array::from_fn(|_| AtomicU64::new(Pace::NONE.bits())),
        };
        Arc::new(Self {
            customers: (0..customers_max).map(|_| buckets()).collect(),
            usage: Counters::new(customers_max * LINE),
            by_level: AtomicU8::new(0),
            burst,
            depth_max: burst.saturating_add(nanos(config.debt_max)),
            open_below: core::array::from_fn(|level| {
                (burst / LEVELS as u64).saturating_mul(level as u64 + 1)
            }),
            publishing: Mutex::new(()),
        })
    }

    /// How many customers are told apart.
    pub fn customers_max(&self) -> usize {
        self.customers.len()
    }

    /// What `customer` may use from now on. Buckets keep their depth; one whose customer was
    /// blocked starts empty. Takes a lock; off the request path.
    pub fn set_limits(&self, customer: CustomerId, limits: Limits, now: Timestamp) {
        let _publishing = lock(&self.publishing);
        let buckets = self.buckets(customer);
        let limits = limits.as_array();
        for level in 0..LEVELS {
            let limit = limits[level];
            let bound_by_above = limits.get(level + 1).is_some_and(|&above| above == limit);
            let blocked = !bound_by_above && limit == CostRate::ZERO;
            let pace = if bound_by_above || blocked { Pace::NONE } else { Pace::of(limit) };
            if level < TOTAL && (blocked || pace != Pace::NONE) {
                self.by_level.store(1, Ordering::Relaxed);
            }
            buckets.pace[level].store(pace.bits(), Ordering::Relaxed);
            let empty = now.as_nanos().saturating_add(self.burst).min(NEVER - 1);
            let full_at = &buckets.full_at[level];
            let _ = full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
                if blocked { Some(NEVER) } else { (at == NEVER).then_some(empty) }
            });
        }
    }

    /// Whether `customer` has anything left for this criticality; if not, in how long it will if
    /// it asks for nothing meanwhile. Loads only.
    #[inline]
    pub fn check(
        &self,
        customer: CustomerId,
        criticality: Criticality,
        now: Timestamp,
    ) -> Result<(), Duration> {
        let buckets = self.buckets(customer);
        let mut depth = buckets.depth(TOTAL, now);
        if self.by_level() {
            let own = criticality.index()..TOTAL;
            depth = own.fold(depth, |deepest, level| deepest.max(buckets.depth(level, now)));
        }
        let open_below = self.open_below[criticality.index()];
        if depth < open_below { Ok(()) } else { self.check_limited(buckets, criticality, now) }
    }

    /// The same, when some bucket is too deep: that counts only if it has a limit.
    #[cold]
    fn check_limited(
        &self,
        buckets: &Buckets,
        criticality: Criticality,
        now: Timestamp,
    ) -> Result<(), Duration> {
        let lowest = if self.by_level() { criticality.index() } else { TOTAL };
        let depths = (lowest..LEVELS).filter_map(|level| buckets.depth_if_limited(level, now));
        let depth = depths.max().unwrap_or(0);
        let open_below = self.open_below[criticality.index()];
        if depth < open_below { Ok(()) } else { Err(Duration::from_nanos(depth - open_below + 1)) }
    }

    /// A thread's own access to this gate. Takes a lock; once per thread.
    pub fn lane(self: &Arc<Self>) -> QuotaLane {
        QuotaLane {
            usage: self.usage.writer(),
            leases: vec![0; self.customers.len()].into_boxed_slice(),
            lease: self.burst / LEASES,
            gate: Arc::clone(self),
        }
    }

    #[inline]
    fn by_level(&self) -> bool {
        self.by_level.load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn buckets(&self, customer: CustomerId) -> &Buckets {
        // There is always the default customer.
        self.customers.get(customer.index()).unwrap_or(&self.customers[0])
    }

    /// Makes the bucket deeper by `time`, but no deeper than the most debt there may be.
    fn deepen(&self, full_at: &AtomicU64, time: u64, now: Timestamp) {
        let now = now.as_nanos();
        let deepest = now.saturating_add(self.depth_max).min(NEVER - 1);
        let _ = full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
            (at != NEVER).then(|| at.max(now).saturating_add(time).min(deepest.max(at)))
        });
    }

    /// Gives `time` back.
    fn lift(full_at: &AtomicU64, time: u64) {
        let _ = full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
            (at != NEVER).then(|| at.saturating_sub(time))
        });
    }
}

/// One thread's access to a [`QuotaGate`]: its leases, and its count of what was used.
#[derive(Debug)]
pub struct QuotaLane {
    gate: Arc<QuotaGate>,
    usage: Writer,
    /// Time taken out of each customer's total bucket and not yet charged for.
    leases: Box<[u64]>,
    lease: u64,
}

impl QuotaLane {
    /// The gate that this lane belongs to.
    pub fn gate(&self) -> &Arc<QuotaGate> {
        &self.gate
    }

    /// Charges the estimated `cost` of an admitted request.
    #[inline]
    pub fn charge(
        &mut self,
        customer: CustomerId,
        criticality: Criticality,
        cost: Cost,
        now: Timestamp,
    ) {
        let customer = self.known(customer);
        self.count(customer, criticality.index(), cost.as_nanos());
        self.take(customer, criticality, cost, now);
    }

    /// Corrects a charge of `charged` to the `actual` cost.
    #[inline]
    pub fn settle(
        &mut self,
        customer: CustomerId,
        criticality: Criticality,
        charged: Cost,
        actual: Cost,
        now: Timestamp,
    ) {
        let customer = self.known(customer);
        // Wraps when the actual cost is lower; so do the sums that readers take.
        let correction = actual.as_nanos().wrapping_sub(charged.as_nanos());
        self.count(customer, criticality.index(), correction);
        if actual >= charged {
            self.take(customer, criticality, actual - charged, now);
        } else {
            self.give_back(customer, criticality, charged - actual);
        }
    }

    /// Counts the estimated `cost` of a request that was refused for want of quota, so that demand
    /// is known and not only use.
    #[inline]
    pub fn refuse(&mut self, customer: CustomerId, criticality: Criticality, cost: Cost) {
        let customer = self.known(customer);
        self.count(customer, LEVELS + criticality.index(), cost.as_nanos());
    }

    #[inline]
    fn known(&self, customer: CustomerId) -> usize {
        if customer.index() < self.leases.len() { customer.index() } else { 0 }
    }

    #[inline]
    fn count(&mut self, customer: usize, cell: usize, nanos: u64) {
        if let Some(line) = self.usage.line(customer) {
            line.add(cell, nanos);
        }
    }

    #[inline]
    fn take(&mut self, customer: usize, criticality: Criticality, cost: Cost, now: Timestamp) {
        let time = self.gate.customers[customer].pace(TOTAL).time_for(cost);
        match self.leases[customer].checked_sub(time) {
            Some(left) => self.leases[customer] = left,
            None => self.take_lease(customer, time, now),
        }
        if self.gate.by_level() {
            self.take_own(customer, criticality, cost, now);
        }
    }

    /// Takes what is missing out of the shared bucket, and a new lease with it.
    #[cold]
    fn take_lease(&mut self, customer: usize, time: u64, now: Timestamp) {
        let missing = time.saturating_sub(self.leases[customer]);
        let full_at = &self.gate.customers[customer].full_at[TOTAL];
        self.gate.deepen(full_at, missing.saturating_add(self.lease), now);
        self.leases[customer] = self.lease;
    }

    /// Takes out of the buckets below the total one.
    fn take_own(&mut self, customer: usize, criticality: Criticality, cost: Cost, now: Timestamp) {
        let buckets = &self.gate.customers[customer];
        for level in criticality.index()..TOTAL {
            let pace = buckets.pace(level);
            if pace != Pace::NONE {
                self.gate.deepen(&buckets.full_at[level], pace.time_for(cost), now);
            }
        }
    }

    #[inline]
    fn give_back(&mut self, customer: usize, criticality: Criticality, cost: Cost) {
        let time = self.gate.customers[customer].pace(TOTAL).time_for(cost);
        let lease = self.leases[customer].saturating_add(time);
        self.leases[customer] = lease;
        // Two leases in hand are one too many.
        if lease >= self.lease.saturating_mul(2) {
            self.give_back_lease(customer);
        }
        if self.gate.by_level() {
            self.give_back_own(customer, criticality, cost);
        }
    }

    #[cold]
    fn give_back_lease(&mut self, customer: usize) {
        let surplus = self.leases[customer].saturating_sub(self.lease);
        QuotaGate::lift(&self.gate.customers[customer].full_at[TOTAL], surplus);
        self.leases[customer] = self.lease;
    }

    /// Gives back to the buckets below the total one.
    fn give_back_own(&mut self, customer: usize, criticality: Criticality, cost: Cost) {
        let buckets = &self.gate.customers[customer];
        for level in criticality.index()..TOTAL {
            let pace = buckets.pace(level);
            if pace != Pace::NONE {
                QuotaGate::lift(&buckets.full_at[level], pace.time_for(cost));
            }
        }
    }
}
