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
//! ever the request that costs more than a whole burst. Only the surprise, what a request cost
//! beyond its estimate, is forgiven where it would go deeper than [`QuotaConfig::debt_max`].
//!
//! **Limits by criticality** are nested (see [`Limits`]): each level that has one has a bucket of
//! its own, which it shares with all levels below, and a request has to find every bucket at or
//! above its level open.
//!
//! **Without contention.** A thread takes a lease of some requests' worth out of the shared bucket
//! and charges requests against its lease. Whether a level is open is still read from the shared
//! bucket, so leases do not upset the order. All leases together are an eighth of a burst at most,
//! however many threads there are, and what a thread does not use goes back when it ends. So over
//! any span `T` a customer uses at most `limit x (T + burst + burst / 8)`, the last request of each
//! thread, and surprises that were forgiven. Buckets of limits by criticality have no leases: they
//! cost a compare-and-swap for each request that counts towards them.
//!
//! **When limits change** under requests that are on their way, these are charged by the old limit
//! or by the new. A charge by the old one may still deepen a bucket that has just lost its limit,
//! so such a bucket is never in anyone's way, however deep. Buckets change by read-modify-write
//! only: no charge is lost between two threads, and nothing opens a bucket that is closed for good.
//!
//! Unknown customers share the limit of [`CustomerId::DEFAULT`]. The number of customers is fixed
//! when the gate is made, and so is its memory: 64 bytes a customer, and 80 more per thread.

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
/// The moment at which the bucket of a blocked customer will be full. No other bucket gets there:
/// it would be taken for blocked, and never move again.
const NEVER: u64 = u64::MAX;
/// All leases together are a burst over this: half of what separates two criticalities, so that
/// leases alone never close a level.
pub const LEASED: u64 = 8;
/// As many lanes as share that even if there are fewer: an eighth of a burst in one hand would be
/// much to lose sight of.
const LANES_MIN: u64 = 16;

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
    /// How far below empty a request may take a bucket by costing more than its estimate. Bounds
    /// how long a customer pays for a request that cost a thousand times as much. Too short, and
    /// estimates that are always too low let a customer use more than its limit; too long, and one
    /// bad surprise shuts it out. Default 60 s.
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
    /// Threads that hold leases.
    lanes: AtomicU64,
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
        let burst = nanos(config.burst).max(LEASED * LANES_MIN);
        let buckets = || Buckets {
            full_at: core::array::from_fn(|_| AtomicU64::new(0)),
            pace: core::array::from_fn(|_| AtomicU64::new(Pace::NONE.bits())),
        };
        Arc::new(Self {
            customers: (0..customers_max).map(|_| buckets()).collect(),
            usage: Counters::new(customers_max * LINE),
            by_level: AtomicU8::new(0),
            lanes: AtomicU64::new(0),
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

    /// What `customer` may use from now on. A bucket is never deeper for it: under a higher limit
    /// what was used takes less time to make up for, under a lower one it takes no more. One whose
    /// customer was blocked starts empty, one that had no limit starts full. Takes a lock; off the
    /// request path.
    pub fn set_limits(&self, customer: CustomerId, limits: Limits, now: Timestamp) {
        let _publishing = lock(&self.publishing);
        let buckets = self.buckets(customer);
        let limits = limits.as_array();
        let now = now.as_nanos();
        for level in 0..LEVELS {
            let limit = limits[level];
            let bound_by_above = limits.get(level + 1).is_some_and(|&above| above == limit);
            let blocked = !bound_by_above && limit == CostRate::ZERO;
            let pace = if bound_by_above || blocked { Pace::NONE } else { Pace::of(limit) };
            if level < TOTAL && (blocked || pace != Pace::NONE) {
                self.by_level.store(1, Ordering::Relaxed);
            }
            let before = Pace::from_bits(buckets.pace[level].swap(pace.bits(), Ordering::Relaxed));
            let full_at = &buckets.full_at[level];
            let _ = full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
                let depth = match at {
                    _ if blocked => return Some(NEVER),
                    NEVER => self.burst,
                    _ if before == Pace::NONE => 0,
                    at => pace.rescale(at.saturating_sub(now), before),
                };
                Some(now.saturating_add(depth).min(NEVER - 1))
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
        let depth_of = |level| buckets.depth(level, now);
        let mut depth = depth_of(TOTAL);
        if self.by_level() {
            let own = criticality.index()..TOTAL;
            depth = own.fold(depth, |deepest, level| deepest.max(depth_of(level)));
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
        self.lanes.fetch_add(1, Ordering::Relaxed);
        QuotaLane {
            usage: self.usage.writer(),
            leases: vec![Lease::default(); self.customers.len()].into_boxed_slice(),
            gate: Arc::clone(self),
        }
    }

    /// The time that a lease is taken for.
    fn lease_time(&self) -> u64 {
        self.burst / LEASED / self.lanes.load(Ordering::Relaxed).max(LANES_MIN)
    }

    /// By which to recognise what a customer is charged at.
    #[inline]
    fn tag(&self, buckets: &Buckets) -> u16 {
        let total = buckets.pace(TOTAL).tag();
        if !self.by_level() {
            return total;
        }
        (0..TOTAL).fold(total, |tag, level| tag.rotate_left(3) ^ buckets.pace(level).tag())
    }

    #[inline]
    fn by_level(&self) -> bool {
        self.by_level.load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn buckets(&self, customer: CustomerId) -> &Buckets {
        // There is always the default customer.
        self.customers.get(customer.index()).unwrap_or_else(|| &self.customers[0])
    }

    /// Makes the bucket deeper by `time`, but not deeper than `depth_max` by it. Returns whether
    /// there is a bucket to take from: that of a blocked customer stays as it is.
    fn deepen(full_at: &AtomicU64, time: u64, depth_max: u64, now: Timestamp) -> bool {
        let now = now.as_nanos();
        let deepest = now.saturating_add(depth_max);
        let updated = full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
            let deeper = at.max(now).saturating_add(time).min(deepest).min(NEVER - 1);
            (at != NEVER).then(|| deeper.max(at))
        });
        updated.is_ok()
    }

    /// Gives `time` back.
    fn lift(full_at: &AtomicU64, time: u64) {
        let _ = full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
            (at != NEVER).then(|| at.saturating_sub(time))
        });
    }
}

/// What one thread has taken out of a customer's total bucket and not yet charged for.
#[derive(Debug, Clone, Copy, Default)]
struct Lease {
    /// In nanoseconds of cost.
    left: u64,
    /// What a whole lease was when this one was taken, above the [`Pace::tag`] at which it was.
    whole_and_tag: u64,
}

impl Lease {
    const fn new(left: u64, whole: u64, tag: u16) -> Self {
        // 48 bits of nanoseconds are three days of CPU time.
        let whole = if whole >> 48 == 0 { whole } else { (1 << 48) - 1 };
        Self { left, whole_and_tag: whole << 16 | tag as u64 }
    }

    const fn tag(self) -> u16 {
        self.whole_and_tag as u16
    }

    const fn whole(self) -> u64 {
        self.whole_and_tag >> 16
    }
}

/// What was charged for a request in advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Charge {
    /// The estimated cost.
    pub cost: Cost,
    /// By which to recognise the limits at which it was charged.
    pub(crate) tag: u16,
}

/// One thread's access to a [`QuotaGate`]: its leases, and its count of what was used.
#[derive(Debug)]
pub struct QuotaLane {
    gate: Arc<QuotaGate>,
    usage: Writer,
    leases: Box<[Lease]>,
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
    ) -> Charge {
        let customer = self.known(customer);
        self.count(customer, criticality.index(), cost.as_nanos());
        self.take(customer, criticality, cost, u64::MAX, now);
        Charge { cost, tag: self.gate.tag(&self.gate.customers[customer]) }
    }

    /// Corrects a charge to the `actual` cost. What was charged too much is given back, unless the
    /// customer's limits have changed since: at another limit it would be worth something else.
    #[inline]
    pub fn settle(
        &mut self,
        customer: CustomerId,
        criticality: Criticality,
        charge: Charge,
        actual: Cost,
        now: Timestamp,
    ) {
        let customer = self.known(customer);
        // Wraps when the actual cost is lower; so do the sums that readers take.
        let correction = actual.as_nanos().wrapping_sub(charge.cost.as_nanos());
        self.count(customer, criticality.index(), correction);
        if actual >= charge.cost {
            let surprise = actual - charge.cost;
            self.take(customer, criticality, surprise, self.gate.depth_max, now);
        } else if charge.tag == self.gate.tag(&self.gate.customers[customer]) {
            self.give_back(customer, criticality, charge.cost - actual);
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
    fn take(
        &mut self,
        customer: usize,
        criticality: Criticality,
        cost: Cost,
        depth_max: u64,
        now: Timestamp,
    ) {
        let pace = self.gate.customers[customer].pace(TOTAL);
        let lease = &mut self.leases[customer];
        if lease.tag() == pace.tag() && lease.left >= cost.as_nanos() {
            lease.left -= cost.as_nanos();
        } else if pace != Pace::NONE {
            self.take_lease(customer, pace, cost.as_nanos(), depth_max, now);
        }
        if self.gate.by_level() {
            self.take_own(customer, criticality, cost, depth_max, now);
        }
    }

    /// Takes what is missing out of the shared bucket, and a new lease with it.
    #[cold]
    fn take_lease(
        &mut self,
        customer: usize,
        pace: Pace,
        cost: u64,
        depth_max: u64,
        now: Timestamp,
    ) {
        // A lease that was taken at another limit is not what it was: let it go.
        let lease = self.leases[customer];
        let left = if lease.tag() == pace.tag() { lease.left } else { 0 };
        let time = self.gate.lease_time();
        let whole = pace.cost_over(time);
        let missing = pace.time_for(cost.saturating_sub(left));
        let full_at = &self.gate.customers[customer].full_at[TOTAL];
        let taken = QuotaGate::deepen(full_at, missing.saturating_add(time), depth_max, now);
        let lease = if taken { left.saturating_sub(cost).saturating_add(whole) } else { 0 };
        self.leases[customer] = Lease::new(lease, whole, pace.tag());
    }

    /// Takes out of the buckets below the total one.
    fn take_own(
        &mut self,
        customer: usize,
        criticality: Criticality,
        cost: Cost,
        depth_max: u64,
        now: Timestamp,
    ) {
        let buckets = &self.gate.customers[customer];
        for level in criticality.index()..TOTAL {
            let pace = buckets.pace(level);
            if pace != Pace::NONE {
                let time = pace.time_for(cost.as_nanos());
                QuotaGate::deepen(&buckets.full_at[level], time, depth_max, now);
            }
        }
    }

    #[inline]
    fn give_back(&mut self, customer: usize, criticality: Criticality, cost: Cost) {
        let pace = self.gate.customers[customer].pace(TOTAL);
        let lease = &mut self.leases[customer];
        if pace != Pace::NONE {
            if lease.tag() == pace.tag() {
                lease.left = lease.left.saturating_add(cost.as_nanos());
            } else {
                *lease = Lease::new(cost.as_nanos(), 0, pace.tag());
            }
            // Two leases in hand are one too many.
            if lease.left > lease.whole().saturating_mul(2) {
                self.give_back_lease(customer, pace);
            }
        }
        if self.gate.by_level() {
            self.give_back_own(customer, criticality, cost);
        }
    }

    #[cold]
    fn give_back_lease(&mut self, customer: usize, pace: Pace) {
        let lease = self.leases[customer];
        let whole = lease.whole().min(lease.left);
        // Rounded down: a nanosecond of time less than what was taken for it.
        let time = pace.time_for(lease.left - whole).saturating_sub(1);
        QuotaGate::lift(&self.gate.customers[customer].full_at[TOTAL], time);
        self.leases[customer] = Lease::new(whole, lease.whole(), pace.tag());
    }

    /// Gives back to the buckets below the total one.
    fn give_back_own(&mut self, customer: usize, criticality: Criticality, cost: Cost) {
        let buckets = &self.gate.customers[customer];
        for level in criticality.index()..TOTAL {
            let pace = buckets.pace(level);
            if pace != Pace::NONE {
                let time = pace.time_for(cost.as_nanos()).saturating_sub(1);
                QuotaGate::lift(&buckets.full_at[level], time);
            }
        }
    }
}

impl Drop for QuotaLane {
    /// What was leased and not used goes back to the customers.
    fn drop(&mut self) {
        for (buckets, lease) in self.gate.customers.iter().zip(&self.leases) {
            let pace = buckets.pace(TOTAL);
            if lease.left > 0 && lease.tag() == pace.tag() {
                QuotaGate::lift(
                    &buckets.full_at[TOTAL],
                    pace.time_for(lease.left).saturating_sub(1),
                );
            }
        }
        self.gate.lanes.fetch_sub(1, Ordering::Relaxed);
    }
}
