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
//! **Over.** A bucket that is deeper than all leases together could make it belongs to a customer
//! who has used more than its limit lately and lives on what it had saved. It may, but in an
//! overload others come first: [`QuotaGate::look`] tells, and admission sheds by it.
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
//! thread, and surprises that were forgiven. Each bucket of a limit by criticality has leases of
//! its own, and the same holds for it.
//!
//! **When limits change** under requests that are on their way, none of these is charged more than
//! if it had come just before or just after. The pace is read after the bucket, and new limits
//! always change the bucket, so an exchange that rests on the old ones fails and looks again.
//! Otherwise a charge by the old limit could close a bucket for minutes that has been given a
//! thousand times as much. (One that is first to read the new limit is scaled down with the bucket.
//! That is in the customer's favour, and at most one request for each thread.)
//!
//! Unknown customers share the limit of [`CustomerId::DEFAULT`]. The number of customers is fixed
//! when the gate is made, and so is its memory: 64 bytes a customer, and 128 more per thread.
//!
//! **By memory.** With thousands of customers a request waits for memory more than for anything
//! else. So what every request needs of its customer lies apart from what few do: 16 bytes of the
//! bucket, 16 of the lease, and a count. Customers that share a cache line do not disturb each
//! other: shared ones are written once per lease.

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
use crate::units::{Cost, Timestamp, nanos};
use bucket::Pace;
use core::time::Duration;
use std::sync::Arc;

const LEVELS: usize = Criticality::COUNT;
/// The bucket that everything a customer does counts towards.
const TOTAL: usize = LEVELS - 1;
/// Stands in the place of a time at which a bucket is full: never.
const BLOCKED: u64 = u64::MAX;
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

/// Whether a customer has kept within its limit lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Keeps {
    /// It has used more, and lives on what it had saved.
    Over,
    /// It has, or it has no limit.
    Within,
}

/// The buckets of all customers. What every request reads is on the first cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct QuotaGate {
    /// What everything that a customer does counts towards.
    totals: Box<[Bucket]>,
    /// How deep each criticality may find a bucket.
    open_below: [u64; LEVELS],
    /// How deep a bucket may be by leases alone.
    leased: u64,
    /// Whether any customer has limits by criticality. As long as nobody has, there is only one
    /// bucket to look at.
    by_level: AtomicU8,
    /// Threads that hold leases.
    lanes: AtomicU64,
    burst: u64,
    depth_max: u64,
    /// For the levels below that have a limit of their own.
    own: Box<[[Bucket; TOTAL]]>,
    /// What was served, by customer and criticality.
    used: Arc<Counters>,
    /// What was refused for want of quota.
    refused: Arc<Counters>,
    /// Held by whoever sets limits, so that those of two publishers are not mixed.
    publishing: Mutex<()>,
}

/// One limit of one customer.
#[derive(Debug)]
#[repr(align(16))]
struct Bucket {
    full_at: AtomicU64,
    /// [`Pace`] of the limit.
    pace: AtomicU64,
}

impl Bucket {
    fn new() -> Self {
        Self { full_at: AtomicU64::new(0), pace: AtomicU64::new(Pace::UNLIMITED.bits()) }
    }

    #[inline]
    fn depth(&self, now: Timestamp) -> u64 {
        self.full_at.load(Ordering::Relaxed).saturating_sub(now.as_nanos())
    }

    #[inline]
    fn pace(&self) -> Pace {
        Pace::from_bits(self.pace.load(Ordering::Relaxed))
    }

    /// Moves the time at which a bucket is full to what `change` makes of it, knowing the pace of
    /// the limit that it stands for. Returns whether it did: buckets without a limit and blocked
    /// ones do not move.
    fn change(&self, mut change: impl FnMut(u64, Pace) -> Option<u64>) -> bool {
        // Pairs with the release in `set_limits`: whoever reads what that wrote reads its pace.
        let changed = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Acquire, |at| {
            let pace = self.pace();
            let moves = at != BLOCKED && pace != Pace::UNLIMITED;
            if moves { change(at, pace) } else { None }
        });
        changed.is_ok()
    }

    /// Makes a bucket deeper by the `time` that it takes at its pace, but not deeper than
    /// `depth_max` by it. Returns whether there was anything to take from.
    fn deepen(&self, mut time: impl FnMut(Pace) -> u64, depth_max: u64, now: Timestamp) -> bool {
        let now = now.as_nanos();
        let deepest = now.saturating_add(depth_max).min(BLOCKED - 1);
        self.change(|at, pace| Some(at.max(now).saturating_add(time(pace)).min(deepest).max(at)))
    }

    /// Gives back the time for `cost`, rounded down: a nanosecond less than what was taken for it.
    /// Nothing if it was taken at a pace with another `tag`.
    fn lift(&self, cost: u64, tag: u16) {
        self.change(|at, pace| {
            let time = pace.time_for(cost).saturating_sub(1);
            (pace.tag() == tag).then(|| at.saturating_sub(time))
        });
    }
}

impl QuotaGate {
    /// A gate in which nobody is limited until [`QuotaGate::set_limits`] says so.
    pub fn new(config: QuotaConfig) -> Arc<Self> {
        let customers_max = config.customers_max.max(1);
        let burst = nanos(config.burst).max(LEASED * LANES_MIN);
        let own = |_| core::array::from_fn(|_| Bucket::new());
        Arc::new(Self {
            totals: (0..customers_max).map(|_| Bucket::new()).collect(),
            own: (0..customers_max).map(own).collect(),
            used: Counters::new(customers_max * LEVELS),
            refused: Counters::new(customers_max * LEVELS),
            by_level: AtomicU8::new(0),
            lanes: AtomicU64::new(0),
            burst,
            depth_max: burst.saturating_add(nanos(config.debt_max)),
            open_below: core::array::from_fn(|level| {
                (burst / LEVELS as u64).saturating_mul(level as u64 + 1)
            }),
            leased: burst / LEASED,
            publishing: Mutex::new(()),
        })
    }

    /// How many customers are told apart.
    pub fn customers_max(&self) -> usize {
        self.totals.len()
    }

    /// What `customer` may use from now on. A bucket is never deeper for it: under a higher limit
    /// what was used takes less time to make up for, under a lower one it takes no more. One whose
    /// customer was blocked starts empty. Takes a lock; off the request path.
    pub fn set_limits(&self, customer: CustomerId, limits: Limits, now: Timestamp) {
        let _publishing = lock(&self.publishing);
        let customer = self.known(customer);
        let limits = limits.as_array();
        for level in 0..LEVELS {
            let limit = limits[level];
            let bound_by_above = limits.get(level + 1).is_some_and(|&above| above == limit);
            let pace = if bound_by_above { Pace::UNLIMITED } else { Pace::of(limit) };
            if level < TOTAL && pace != Pace::UNLIMITED {
                self.by_level.store(1, Ordering::Relaxed);
            }
            let bucket = self.bucket(customer, level);
            let before = Pace::from_bits(bucket.pace.swap(pace.bits(), Ordering::Relaxed));
            let blocked = pace != Pace::UNLIMITED && limit.as_nanos_per_sec() == 0;
            let now = now.as_nanos();
            let _ = bucket.full_at.fetch_update(Ordering::Release, Ordering::Relaxed, |at| {
                if pace == before && blocked == (at == BLOCKED) {
                    return None;
                }
                let new = match at {
                    _ if blocked => BLOCKED,
                    _ if pace == Pace::UNLIMITED => 0,
                    BLOCKED => now.saturating_add(self.burst).min(BLOCKED - 1),
                    at => {
                        let depth = pace.rescale(at.saturating_sub(now), before);
                        now.saturating_add(depth).min(BLOCKED - 1)
                    }
                };
                // Always another value, so that charges under way look again; a nanosecond sooner
                // is the least that can be given away.
                Some(if new == at { at.checked_sub(1).unwrap_or(1) } else { new })
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
        self.look(customer, criticality, now).map(|_| ())
    }

    /// The same, and whether `customer` has kept within its limit lately.
    #[inline]
    pub fn look(
        &self,
        customer: CustomerId,
        criticality: Criticality,
        now: Timestamp,
    ) -> Result<Keeps, Duration> {
        let customer = self.known(customer);
        let mut depth = self.totals[customer].depth(now);
        if self.by_level() {
            depth = depth.max(self.depth_by_level(customer, criticality, now));
        }
        let open_below = self.open_below[criticality.index()];
        if depth >= open_below {
            return Err(Duration::from_nanos(depth - open_below + 1));
        }
        Ok(if depth > self.leased { Keeps::Over } else { Keeps::Within })
    }

    #[cold]
    fn depth_by_level(&self, customer: usize, criticality: Criticality, now: Timestamp) -> u64 {
        let own = &self.own[customer][criticality.index().min(TOTAL)..];
        own.iter().fold(0, |deepest, bucket| deepest.max(bucket.depth(now)))
    }

    /// A thread's own access to this gate. Takes a lock; once per thread.
    pub fn lane(self: &Arc<Self>) -> QuotaLane {
        self.lanes.fetch_add(1, Ordering::Relaxed);
        QuotaLane {
            used: self.used.writer(),
            refused: self.refused.writer(),
            leases: vec![Lease::default(); self.totals.len()].into_boxed_slice(),
            own: vec![[Lease::default(); TOTAL]; self.totals.len()].into_boxed_slice(),
            gate: Arc::clone(self),
        }
    }

    /// The time that a lease is taken for.
    fn lease_time(&self) -> u64 {
        self.burst / LEASED / self.lanes.load(Ordering::Relaxed).max(LANES_MIN)
    }

    /// What a customer is charged at, level by level.
    fn paces(&self, customer: usize) -> Paces {
        Paces(core::array::from_fn(|level| self.bucket(customer, level).pace()))
    }

    #[inline]
    fn by_level(&self) -> bool {
        self.by_level.load(Ordering::Relaxed) != 0
    }

    /// Where the customer is; there is always the default one.
    #[inline]
    fn known(&self, customer: CustomerId) -> usize {
        if customer.index() < self.totals.len() { customer.index() } else { 0 }
    }

    #[inline]
    fn bucket(&self, customer: usize, level: usize) -> &Bucket {
        if level < TOTAL { &self.own[customer][level] } else { &self.totals[customer] }
    }
}

/// Where a customer's use at a criticality is counted.
#[inline]
const fn cell(customer: usize, criticality: Criticality) -> usize {
    customer * LEVELS + criticality.index()
}

/// The pace of every level.
#[derive(Debug, Clone, Copy)]
struct Paces([Pace; LEVELS]);

impl Paces {
    /// By which to recognise them; where only the total has one, that is its own tag.
    fn tag(self) -> u16 {
        self.0.into_iter().fold(0_u16, |tag, pace| tag.rotate_left(3) ^ pace.tag())
    }
}

/// What one thread has taken out of a customer's bucket and not yet charged for.
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
    used: Writer,
    refused: Writer,
    /// Of the total buckets.
    leases: Box<[Lease]>,
    /// Of the buckets below; apart, as most customers have none.
    own: Box<[[Lease; TOTAL]]>,
}

impl QuotaLane {
    /// The gate that this lane belongs to.
    pub fn gate(&self) -> &Arc<QuotaGate> {
        &self.gate
    }

    /// Reads what a charge will read.
    #[inline]
    pub(crate) fn touch(&self, customer: CustomerId) -> u64 {
        let customer = self.known(customer);
        let bucket = self.gate.totals[customer].full_at.load(Ordering::Relaxed);
        bucket ^ self.used.touch([customer * LEVELS / LINE])
    }

    /// Charges the estimated `cost` of an admitted request.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a third of a request's cost is passing values around"
    )]
    pub fn charge(
        &mut self,
        customer: CustomerId,
        criticality: Criticality,
        cost: Cost,
        now: Timestamp,
    ) -> Charge {
        let customer = self.known(customer);
        self.used.add(cell(customer, criticality), cost.as_nanos());
        if self.gate.by_level() {
            return self.charge_by_level(customer, criticality, cost, now);
        }
        let pace = self.gate.totals[customer].pace();
        if pace != Pace::UNLIMITED {
            self.take_total(customer, cost, pace, u64::MAX, now);
        }
        Charge { cost, tag: pace.tag() }
    }

    #[cold]
    fn charge_by_level(
        &mut self,
        customer: usize,
        criticality: Criticality,
        cost: Cost,
        now: Timestamp,
    ) -> Charge {
        // Before it is charged: if limits change in between, it is recognised as another's, and
        // nothing of it is given back.
        let tag = self.gate.paces(customer).tag();
        self.take(customer, criticality, cost, u64::MAX, now);
        Charge { cost, tag }
    }

    /// Corrects a charge to the `actual` cost. What was charged too much is given back, unless the
    /// customer's limits have changed since: at another limit it would be worth something else.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a third of a request's cost is passing values around"
    )]
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
        self.used.add(cell(customer, criticality), correction);
        if self.gate.by_level() {
            return self.settle_by_level(customer, criticality, charge, actual, now);
        }
        let pace = self.gate.totals[customer].pace();
        if pace == Pace::UNLIMITED {
            return;
        }
        if actual >= charge.cost {
            self.take_total(customer, actual - charge.cost, pace, self.gate.depth_max, now);
        } else if charge.tag == pace.tag() {
            self.give_back_level(customer, TOTAL, (charge.cost - actual).as_nanos(), pace);
        }
    }

    #[cold]
    fn settle_by_level(
        &mut self,
        customer: usize,
        criticality: Criticality,
        charge: Charge,
        actual: Cost,
        now: Timestamp,
    ) {
        if actual >= charge.cost {
            let surprise = actual - charge.cost;
            self.take(customer, criticality, surprise, self.gate.depth_max, now);
            return;
        }
        let paces = self.gate.paces(customer);
        if charge.tag == paces.tag() {
            self.give_back(customer, criticality, charge.cost - actual, paces);
        }
    }

    /// Counts the estimated `cost` of a request that was refused for want of quota, so that demand
    /// is known and not only use.
    #[inline]
    pub fn refuse(&mut self, customer: CustomerId, criticality: Criticality, cost: Cost) {
        let customer = self.known(customer);
        self.refused.add(cell(customer, criticality), cost.as_nanos());
    }

    #[inline]
    fn known(&self, customer: CustomerId) -> usize {
        if customer.index() < self.leases.len() { customer.index() } else { 0 }
    }

    /// Takes from every bucket at or above the level.
    fn take(
        &mut self,
        customer: usize,
        criticality: Criticality,
        cost: Cost,
        depth_max: u64,
        now: Timestamp,
    ) {
        for level in criticality.index()..LEVELS {
            let pace = self.gate.bucket(customer, level).pace();
            self.take_level(customer, level, cost.as_nanos(), pace, depth_max, now);
        }
    }

    /// Takes from the only bucket that there is as long as nobody has limits by criticality.
    #[inline]
    fn take_total(
        &mut self,
        customer: usize,
        cost: Cost,
        pace: Pace,
        depth_max: u64,
        now: Timestamp,
    ) {
        self.take_level(customer, TOTAL, cost.as_nanos(), pace, depth_max, now);
    }

    #[inline]
    fn take_level(
        &mut self,
        customer: usize,
        level: usize,
        cost: u64,
        pace: Pace,
        depth_max: u64,
        now: Timestamp,
    ) {
        let lease = self.lease(customer, level);
        if lease.tag() == pace.tag() && lease.left >= cost {
            lease.left -= cost;
        } else if pace != Pace::UNLIMITED {
            self.take_lease(customer, level, cost, depth_max, now);
        }
    }

    #[inline]
    fn lease(&mut self, customer: usize, level: usize) -> &mut Lease {
        let total = &mut self.leases[customer];
        if level == TOTAL { total } else { &mut self.own[customer][level] }
    }

    /// Takes what is missing out of the shared bucket, and a new lease with it.
    #[cold]
    fn take_lease(
        &mut self,
        customer: usize,
        level: usize,
        cost: u64,
        depth_max: u64,
        now: Timestamp,
    ) {
        let lease = *self.lease(customer, level);
        let time = self.gate.lease_time();
        let mut taken = Lease::default();
        let was_taken = self.gate.bucket(customer, level).deepen(
            |pace| {
                // A lease that was taken at another limit is not what it was: let it go.
                let left = if lease.tag() == pace.tag() { lease.left } else { 0 };
                let whole = pace.cost_over(time);
                taken =
                    Lease::new(left.saturating_sub(cost).saturating_add(whole), whole, pace.tag());
                pace.time_for(cost.saturating_sub(left)).saturating_add(time)
            },
            depth_max,
            now,
        );
        // What could not be taken is no lease.
        *self.lease(customer, level) = if was_taken { taken } else { Lease::default() };
    }

    /// Gives back what was taken at `paces`, as far as these still hold.
    fn give_back(&mut self, customer: usize, criticality: Criticality, cost: Cost, paces: Paces) {
        for level in criticality.index()..LEVELS {
            self.give_back_level(customer, level, cost.as_nanos(), paces.0[level]);
        }
    }

    #[inline]
    fn give_back_level(&mut self, customer: usize, level: usize, cost: u64, pace: Pace) {
        if pace == Pace::UNLIMITED {
            return;
        }
        let lease = self.lease(customer, level);
        if lease.tag() == pace.tag() {
            lease.left = lease.left.saturating_add(cost);
        } else {
            *lease = Lease::new(cost, 0, pace.tag());
        }
        // Two leases in hand are one too many.
        if lease.left > lease.whole().saturating_mul(2) {
            self.give_back_lease(customer, level);
        }
    }

    #[cold]
    fn give_back_lease(&mut self, customer: usize, level: usize) {
        let lease = *self.lease(customer, level);
        let whole = lease.whole().min(lease.left);
        self.gate.bucket(customer, level).lift(lease.left - whole, lease.tag());
        *self.lease(customer, level) = Lease::new(whole, lease.whole(), lease.tag());
    }
}

impl Drop for QuotaLane {
    /// What was leased and not used goes back to the customers.
    fn drop(&mut self) {
        let leases = self.own.iter().zip(&self.leases).enumerate();
        for (customer, (own, total)) in leases {
            for (level, lease) in own.iter().chain([total]).enumerate() {
                if lease.left > 0 {
                    self.gate.bucket(customer, level).lift(lease.left, lease.tag());
                }
            }
        }
        self.gate.lanes.fetch_sub(1, Ordering::Relaxed);
    }
}
