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
//! That is in the customer's favour, and at most one request for each thread.) So is what a request
//! turns out to have cost beyond its estimate if its thread has charged nothing to the new limits
//! yet: it is taken from a lease that counts no more, as far as that goes.
//!
//! Unknown customers share the limit of [`CustomerId::DEFAULT`]. The number of customers is fixed
//! when the gate is made, and so is its memory: 64 bytes a customer, and 168 more per thread.
//!
//! **By memory.** With thousands of customers a request waits for memory more than for anything
//! else. So what every request needs of its customer lies apart from what few do: 16 bytes of the
//! bucket, and a cache line of the thread's own with the lease and the count. Customers whose
//! buckets share a cache line do not disturb each other: buckets are written once per lease.

mod bucket;
mod lease;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
mod usage;

pub use usage::{Usage, UsageMeter};

use crate::counters::{Counters, LINE, Writer};
use crate::criticality::Criticality;
use crate::customer::CustomerId;
use crate::fleet::Limits;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::units::{Cost, Timestamp, nanos};
use bucket::{BLOCKED, BY_LEVEL, CLOSELY, LATEST, Pace};
pub(crate) use bucket::{Bucket, ChargedAt};
use core::time::Duration;
use lease::{Account, Lease};
use std::sync::Arc;

const LEVELS: usize = Criticality::COUNT;
/// The bucket that everything a customer does counts towards.
const TOTAL: usize = LEVELS - 1;
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
    totals: Arc<[Bucket]>,
    /// How deep each criticality may find a bucket.
    open_below: [u64; LEVELS],
    /// How deep a bucket may be by leases alone: less than closes any level.
    leased: u64,
    /// Threads that hold leases.
    lanes: AtomicU64,
    burst: u64,
    depth_max: u64,
    /// For the levels below that have a limit of their own.
    own: Box<[[Bucket; TOTAL]]>,
    /// Each thread's [`Account`] with each customer: what was served, by criticality.
    accounts: Arc<Counters>,
    /// What was refused for want of quota.
    refused: Arc<Counters>,
    /// Held by whoever sets limits, so that those of two publishers are not mixed.
    publishing: Mutex<()>,
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
            accounts: Counters::new(customers_max * LINE),
            refused: Counters::new(customers_max * LEVELS),
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
        let mut by_level = 0;
        for level in 0..LEVELS {
            let limit = limits[level];
            let bound_by_above = limits.get(level + 1).is_some_and(|&above| above == limit);
            let pace = if bound_by_above { Pace::UNLIMITED } else { Pace::of(limit) };
            let bucket = self.bucket(customer, level);
            // The total comes last: whoever is sent to the others finds them.
            let word = if level == TOTAL { pace.bits() | by_level } else { pace.bits() };
            let before = bucket.pace.swap(word, Ordering::Relaxed) & !BY_LEVEL;
            let before = Pace::from_bits(before);
            if pace != Pace::UNLIMITED {
                by_level = BY_LEVEL;
            }
            let blocked = pace != Pace::UNLIMITED && limit.as_nanos_per_sec() == 0;
            let closely = if word & BY_LEVEL == 0 { 0 } else { CLOSELY };
            let now = now.as_nanos();
            let _ = bucket.full_at.fetch_update(Ordering::Release, Ordering::Relaxed, |at| {
                let is_same = blocked == (at == BLOCKED) && (blocked || closely == at & CLOSELY);
                if pace == before && is_same {
                    return None;
                }
                let new = match at {
                    _ if blocked => return Some(BLOCKED),
                    _ if pace == Pace::UNLIMITED => 0,
                    BLOCKED => now.saturating_add(self.burst).min(LATEST),
                    at => {
                        let depth = (at & !CLOSELY).saturating_sub(now);
                        now.saturating_add(pace.rescale(depth, before)).min(LATEST)
                    }
                };
                // Always another value, so that charges under way look again; a nanosecond sooner
                // is the least that can be given away.
                let is_other = new | closely != at;
                Some(if is_other { new } else { new.checked_sub(1).unwrap_or(1) } | closely)
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
        let total = &self.totals[customer];
        let mut depth = total.depth(now);
        if total.is_by_level() {
            depth = depth.max(self.depth_by_level(customer, criticality, now));
        }
        let open_below = self.open_below[criticality.index()];
        if depth >= open_below {
            return Err(Duration::from_nanos(depth - open_below + 1));
        }
        Ok(if depth > self.leased { Keeps::Over } else { Keeps::Within })
    }

    fn depth_by_level(&self, customer: usize, criticality: Criticality, now: Timestamp) -> u64 {
        let own = &self.own[customer][criticality.index().min(TOTAL)..];
        own.iter().fold(0, |deepest, bucket| deepest.max(bucket.depth(now)))
    }

    /// A thread's own access to this gate. Takes a lock; once per thread.
    pub fn lane(self: &Arc<Self>) -> QuotaLane {
        self.lanes.fetch_add(1, Ordering::Relaxed);
        QuotaLane {
            accounts: self.accounts.writer(),
            refused: self.refused.writer(),
            own: vec![[Lease::NONE; TOTAL]; self.totals.len()].into_boxed_slice(),
            totals: Arc::clone(&self.totals),
            leased: self.leased,
            gate: Arc::clone(self),
        }
    }

    /// The time that a lease is taken for.
    fn lease_time(&self) -> u64 {
        self.burst / LEASED / self.lanes.load(Ordering::Relaxed).max(LANES_MIN)
    }

    /// What a customer is charged at, level by level.
    #[inline]
    fn paces(&self, customer: usize) -> Paces {
        let total = &self.totals[customer];
        let mut paces = [Pace::UNLIMITED; LEVELS];
        paces[TOTAL] = total.pace();
        if total.is_by_level() {
            for (pace, bucket) in paces.iter_mut().zip(&self.own[customer]) {
                *pace = bucket.pace();
            }
        }
        Paces(paces)
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

/// The pace of every level.
#[derive(Debug, Clone, Copy)]
struct Paces([Pace; LEVELS]);

impl Paces {
    /// By which to recognise them; where only the total has one, that is its own tag.
    fn tag(self) -> u16 {
        self.0.into_iter().fold(0_u16, |tag, pace| tag.rotate_left(3) ^ pace.tag())
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
    /// The gate's, so that the common path is a step shorter.
    totals: Arc<[Bucket]>,
    leased: u64,
    /// An [`Account`] for each customer, with the lease of its total bucket.
    accounts: Writer,
    refused: Writer,
    /// Leases of the buckets below; apart, as most customers have none.
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
        let customer = self.gate.known(customer);
        let bucket = self.gate.totals[customer].full_at.load(Ordering::Relaxed);
        bucket ^ self.accounts.touch(customer)
    }

    /// The total of `customer` if [`QuotaGate::look`] is sure to find that it keeps within its
    /// limit, as nearly everybody does: the bucket is no deeper than leases make it, and there is
    /// no other.
    #[inline]
    pub(crate) fn plainly_within(&self, customer: CustomerId, now: Timestamp) -> Option<&Bucket> {
        let total = self.totals.get(customer.index())?;
        total.is_plainly_within(self.leased, now).then_some(total)
    }

    /// What everything that `customer` does counts towards.
    #[inline]
    pub(crate) fn total(&self, customer: CustomerId) -> &Bucket {
        &self.gate.totals[self.gate.known(customer)]
    }

    /// Charges the estimated `cost` of an admitted request.
    pub fn charge(
        &mut self,
        customer: CustomerId,
        criticality: Criticality,
        cost: Cost,
        now: Timestamp,
    ) -> Charge {
        let at = self.total(customer).charged_at();
        self.charge_at(at, customer, criticality, cost, now)
    }

    /// The same for whoever has looked.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a third of a request's cost is passing values around"
    )]
    pub(crate) fn charge_at(
        &mut self,
        at: ChargedAt,
        customer: CustomerId,
        criticality: Criticality,
        cost: Cost,
        now: Timestamp,
    ) -> Charge {
        if let Some(account) = self.accounts.line(customer.index()).map(Account)
            && let lease = account.lease()
            && at.is_all(lease.pace)
            && let Some(left) = lease.less(cost.as_nanos())
        {
            account.count(criticality, cost.as_nanos());
            account.set_left(left);
            return Charge { cost, tag: lease.tag() };
        }
        self.charge_anew(customer, criticality, cost, now)
    }

    /// As [`QuotaLane::charge`], where the lease does not do.
    #[cold]
    fn charge_anew(
        &mut self,
        customer: CustomerId,
        criticality: Criticality,
        cost: Cost,
        now: Timestamp,
    ) -> Charge {
        let customer = self.gate.known(customer);
        self.count(customer, criticality, cost.as_nanos());
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
        let (charged, used) = (charge.cost.as_nanos(), actual.as_nanos());
        // If limits have changed since, the lease is let go with the next charge.
        if let Some(account) = self.accounts.line(customer.index()).map(Account)
            && let lease = account.lease_of_any_pace()
            && lease.tag() == charge.tag
            && let Some(left) = lease.corrected(charged, used)
        {
            // Wraps when the actual cost is lower; so do the sums that readers take.
            account.count(criticality, used.wrapping_sub(charged));
            account.set_left(left);
            return;
        }
        self.settle_anew(customer, criticality, charge, actual, now);
    }

    /// As [`QuotaLane::settle`], where the lease does not do.
    #[cold]
    fn settle_anew(
        &mut self,
        customer: CustomerId,
        criticality: Criticality,
        charge: Charge,
        actual: Cost,
        now: Timestamp,
    ) {
        let customer = self.gate.known(customer);
        self.count(customer, criticality, actual.as_nanos().wrapping_sub(charge.cost.as_nanos()));
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
        let cell = self.gate.known(customer) * LEVELS + criticality.index();
        self.refused.add(cell, cost.as_nanos());
    }

    /// Counts use; a negative one wraps, and so do the sums that readers take.
    fn count(&mut self, customer: usize, criticality: Criticality, cost: u64) {
        if let Some(line) = self.accounts.line(customer) {
            Account(line).count(criticality, cost);
        }
    }

    /// Takes from every bucket at or above the level; where there is only one, others would be
    /// read from memory for nothing.
    fn take(
        &mut self,
        customer: usize,
        criticality: Criticality,
        cost: Cost,
        depth_max: u64,
        now: Timestamp,
    ) {
        let by_level = self.gate.totals[customer].is_by_level();
        let lowest = if by_level { criticality.index() } else { TOTAL };
        for level in lowest..LEVELS {
            self.take_level(customer, level, cost.as_nanos(), depth_max, now);
        }
    }

    fn take_level(
        &mut self,
        customer: usize,
        level: usize,
        cost: u64,
        depth_max: u64,
        now: Timestamp,
    ) {
        let pace = self.gate.bucket(customer, level).pace();
        if level < TOTAL && pace == Pace::UNLIMITED {
            return;
        }
        let mut lease = self.lease(customer, level);
        match lease.less(cost) {
            Some(left) if lease.pace == pace => {
                lease.left = left;
                self.set_lease(customer, level, lease);
            }
            _ if pace == Pace::UNLIMITED => self.set_lease(customer, level, Lease::ENDLESS),
            _ => self.take_lease(customer, level, cost, depth_max, now),
        }
    }

    fn lease(&mut self, customer: usize, level: usize) -> Lease {
        if level < TOTAL {
            return self.own[customer][level];
        }
        self.accounts.line(customer).map_or(Lease::NONE, |line| Account(line).lease())
    }

    fn set_lease(&mut self, customer: usize, level: usize, lease: Lease) {
        if level < TOTAL {
            self.own[customer][level] = lease;
        } else if let Some(line) = self.accounts.line(customer) {
            Account(line).set(lease);
        }
    }

    /// Takes what is missing out of the shared bucket, and a new lease with it.
    fn take_lease(
        &mut self,
        customer: usize,
        level: usize,
        cost: u64,
        depth_max: u64,
        now: Timestamp,
    ) {
        let lease = self.lease(customer, level);
        let time = self.gate.lease_time();
        let mut taken = Lease::NONE;
        let was_taken = self.gate.bucket(customer, level).deepen(
            |pace| {
                // A lease that was taken at another limit is not what it was: let it go.
                let left = if lease.pace == pace { lease.left } else { 0 };
                let whole = pace.cost_over(time);
                taken = Lease::new(left.saturating_sub(cost).saturating_add(whole), whole, pace);
                pace.time_for(cost.saturating_sub(left)).saturating_add(time)
            },
            depth_max,
            now,
        );
        // What could not be taken is no lease.
        self.set_lease(customer, level, if was_taken { taken } else { Lease::NONE });
    }

    /// Gives back what was taken at `paces`, as far as these still hold.
    fn give_back(&mut self, customer: usize, criticality: Criticality, cost: Cost, paces: Paces) {
        for level in criticality.index()..LEVELS {
            self.give_back_level(customer, level, cost.as_nanos(), paces.0[level]);
        }
    }

    fn give_back_level(&mut self, customer: usize, level: usize, cost: u64, pace: Pace) {
        if pace == Pace::UNLIMITED {
            return;
        }
        let mut lease = self.lease(customer, level);
        if lease.pace == pace {
            lease.left = lease.left.saturating_add(cost);
        } else {
            lease = Lease::new(cost, 0, pace);
        }
        if lease.left > lease.most() {
            let whole = lease.whole().min(lease.left);
            self.gate.bucket(customer, level).lift(lease.left - whole, pace);
            lease.left = whole;
        }
        self.set_lease(customer, level, lease);
    }
}

impl Drop for QuotaLane {
    /// What was leased and not used goes back to the customers.
    fn drop(&mut self) {
        for customer in 0..self.own.len() {
            for level in 0..LEVELS {
                let lease = self.lease(customer, level);
                self.set_lease(customer, level, Lease::NONE);
                if lease.left > 0 {
                    self.gate.bucket(customer, level).lift(lease.left, lease.pace);
                }
            }
        }
        self.gate.lanes.fetch_sub(1, Ordering::Relaxed);
    }
}
