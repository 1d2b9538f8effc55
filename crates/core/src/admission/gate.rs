//! The gate that every request passes, and the controller that sets it.

use super::room::{Lease, Rank, Room};
use super::seen::Seen;
use super::shed::{Done, Facts, Plan, ShedConfig, Shedder};
use super::{Charged, Decision, Permit, Request};
use crate::attempts::{AttemptHistogram, AttemptsConfig};
use crate::counters::{Counters, LINE, Line, Lines};
use crate::criticality::Criticality;
use crate::customer::CustomerId;
use crate::decision::{Advice, Cause, Reason, Rejection, SignalId, Thousandths};
use crate::levels::{LevelGate, Levels};
use crate::quota::{Keeps, QuotaConfig, QuotaGate, QuotaLane};
use crate::rng::Rng;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::units::{Cost, Timestamp, Utilization};
use std::sync::Arc;

const LEVELS: usize = Criticality::COUNT;

/// Where the gate counts. Each criticality has a line of its own, so that a request finds its cells
/// by one multiplication; lines are [`LINE`] cells long.
mod cell {
    use super::{LEVELS, LINE};

    // In the line of each criticality.
    pub(super) const ADMITTED: usize = 0;
    pub(super) const ADMITTED_COST: usize = 1;
    pub(super) const SHED_COST: usize = 2;
    /// By reason.
    pub(super) const REJECTED: usize = 3;
    /// What customers asked for who were over, let in or not.
    pub(super) const OVER_COST: usize = 7;

    // In the line that they share.
    pub(super) const SHARED: usize = LEVELS;
    pub(super) const COMPLETED: usize = 0;
    pub(super) const COMPLETED_COST: usize = 1;
    pub(super) const WORKED: usize = 2;
    /// Second attempts, then third and later ones. First attempts are all the others: what most
    /// requests are is not counted one by one.
    pub(super) const RETRIES: usize = 3;
    /// Of what was completed, the part with degraded answers: as in the first three.
    pub(super) const DEGRADED: usize = 5;

    /// Lines of what dark mode let in: by criticality, then by reason.
    pub(super) const DARK: usize = SHARED + 1;

    /// The lines before are all that decisions are made by.
    pub(super) const DECIDING: usize = DARK * LINE;

    pub(super) const LINES: usize = DARK + LEVELS;
    pub(super) const COUNT: usize = LINES * LINE;
}

/// The reasons this gate gives, in the order of its checks.
const REASONS: [Reason; 4] =
    [Reason::LameDuck, Reason::DeadlinePassed, Reason::OutOfQuota, Reason::Overloaded];

/// Where `reason` stands among [`REASONS`].
const fn index(reason: Reason) -> usize {
    match reason {
        Reason::LameDuck => 0,
        Reason::DeadlinePassed => 1,
        Reason::OutOfQuota => 2,
        _ => 3,
    }
}

/// Bits of the gate's state word. The upper half, and a bit more so that the mask is short, counts
/// the plans that were published.
mod flag {
    pub(super) const PLAN: u64 = 1 << 31;
    pub(super) const PLANS: u64 = !(PLAN - 1);
    pub(super) const LAME_DUCK: u64 = 1;
    pub(super) const DARK: u64 = 1 << 1;
    pub(super) const DONT_RETRY: u64 = 1 << 2;
    /// Four bits, lowest criticality first: moved by its criticality, that of a request is where
    /// permits have it.
    pub(super) const DEGRADE: u64 = super::super::DEGRADE;
    /// What plans set; the rest is set by whoever runs the task.
    pub(super) const OF_PLAN: u64 = DONT_RETRY | (0xF * DEGRADE);
}

/// What requests meet: read by every thread, written by the controller. What all of them read is on
/// the first cache line, and `room` on the next two.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct AdmissionGate {
    flags: AtomicU64,
    levels: LevelGate,
    /// What to tell those who are refused, by level: the signal in the upper 16 bits, the threshold
    /// in the next, the utilization in the lower half, both in thousandths.
    causes: [AtomicU64; LEVELS],
    quota: Arc<QuotaGate>,
    counters: Arc<Counters>,
    room: Room,
    /// For permits that come back without a lane, once there was one.
    spare: Mutex<Option<Returns>>,
}

impl AdmissionGate {
    /// A gate that refuses nobody until its controller or a quota says so.
    pub fn new(quota: QuotaConfig) -> Arc<Self> {
        let quota = QuotaGate::new(quota);
        let counters = Counters::new(cell::COUNT);
        Arc::new(Self {
            flags: AtomicU64::new(0),
            levels: LevelGate::new(),
            causes: causes(&ShedConfig::default(), Utilization::ZERO, SignalId::QUEUE)
                .map(AtomicU64::new),
            quota,
            counters,
            room: Room::new(),
            spare: Mutex::new(None),
        })
    }

    /// A thread's own access to this gate. Takes a lock; once per thread.
    pub fn lane(self: &Arc<Self>) -> Lane {
        Lane { returns: self.returns(), lease: self.room.lease(), gate: Arc::clone(self) }
    }

    fn returns(&self) -> Returns {
        Returns { counts: self.counters.lines(), quota: self.quota.lane() }
    }

    /// The request is done and has cost `actual`: for whoever has no lane at hand, such as a future
    /// that is dropped where no request is served. Takes a lock; with a lane, use
    /// [`Lane::complete`].
    pub fn complete(&self, permit: Permit, actual: Cost, now: Timestamp) {
        self.room.give_back(permit.charge().cost);
        lock(&self.spare).get_or_insert_with(|| self.returns()).take(permit, actual, now);
    }

    /// The customers' quotas.
    pub fn quota(&self) -> &Arc<QuotaGate> {
        &self.quota
    }

    /// Takes no new requests from now on, or takes them again.
    pub fn set_lame_duck(&self, lame_duck: bool) {
        self.set_flag(flag::LAME_DUCK, lame_duck);
    }

    /// Decides and counts, but refuses nobody; or refuses again.
    pub fn set_dark(&self, dark: bool) {
        self.set_flag(flag::DARK, dark);
    }

    /// Whether it takes no new requests.
    pub fn is_lame_duck(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & flag::LAME_DUCK != 0
    }

    /// Whether it refuses nobody, and only counts.
    pub fn is_dark(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & flag::DARK != 0
    }

    /// Whether refusals for overload say "don't retry".
    pub fn says_dont_retry(&self) -> bool {
        advice(self.flags.load(Ordering::Relaxed)) == Advice::DontRetry
    }

    /// How much of each criticality is to get in from now on, for a controller of one's own. The
    /// next tick of a [`Controller`] sets it anew.
    pub fn set_levels(&self, levels: Levels) {
        self.levels.publish(levels);
    }

    /// How much of each criticality gets in.
    pub fn levels(&self) -> Levels {
        self.levels.levels()
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        Counts { totals: self.totals() }
    }

    fn totals<const CELLS: usize>(&self) -> Totals<CELLS> {
        let mut totals = [0; CELLS];
        self.counters.read(&mut totals);
        Totals(totals)
    }

    /// The number of the plan that holds.
    #[inline]
    fn plan(&self) -> u64 {
        self.flags.load(Ordering::Acquire) & flag::PLANS
    }

    fn set_flag(&self, flag: u64, on: bool) {
        if on {
            self.flags.fetch_or(flag, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!flag, Ordering::Relaxed);
        }
    }

    fn publish(&self, plan: &Plan, advice: Advice, config: &ShedConfig, now: Timestamp) {
        self.set_causes(causes(config, plan.peak, plan.reading.signal));
        self.room.publish(&plan.limit, &plan.limit_over, plan.inflight, now);
        self.set_levels(plan.levels);
        let mut set = if advice == Advice::DontRetry { flag::DONT_RETRY } else { 0 };
        for (level, degrade) in plan.degrade.into_iter().enumerate() {
            set |= if degrade { flag::DEGRADE << level } else { 0 };
        }
        // Last: whoever sees the new number takes a new lease. In one write, as each of this kind
        // waits for all that was written before.
        let mut flags = self.flags.load(Ordering::Relaxed);
        loop {
            let next = (flags & !flag::OF_PLAN | set).wrapping_add(flag::PLAN);
            let (done, or_else) = (Ordering::Release, Ordering::Relaxed);
            match self.flags.compare_exchange_weak(flags, next, done, or_else) {
                Ok(_) => break,
                Err(other) => flags = other,
            }
        }
    }

    fn set_causes(&self, causes: [u64; LEVELS]) {
        for (cause, word) in self.causes.iter().zip(causes) {
            cause.store(word, Ordering::Relaxed);
        }
    }

    #[inline]
    fn cause(&self, criticality: Criticality) -> Cause {
        let word = self.causes[criticality.index()].load(Ordering::Relaxed);
        Cause::Signal {
            signal: SignalId((word >> 48) as u8),
            threshold: Thousandths((word >> 32) as u32 & 0xffff),
            utilization: Thousandths(word as u32),
        }
    }
}

/// [`flag::DEGRADE`] if degraded answers are asked for.
#[inline]
const fn degrade(flags: u64, criticality: Criticality) -> u64 {
    flags >> criticality as u64 & flag::DEGRADE
}

/// Where permits go back to.
#[derive(Debug)]
struct Returns {
    counts: Lines<{ cell::LINES }>,
    quota: QuotaLane,
}

impl Returns {
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a third of a request's cost is passing values around"
    )]
    #[expect(clippy::needless_pass_by_value, reason = "a permit can be given back only once")]
    fn take(&mut self, permit: Permit, actual: Cost, now: Timestamp) {
        let (customer, criticality, charge) =
            (permit.customer(), permit.criticality(), permit.charge());
        let shared = &self.counts.all()[cell::SHARED];
        shared.add(cell::COMPLETED, 1);
        shared.add(cell::COMPLETED_COST, charge.cost.as_nanos());
        shared.add(cell::WORKED, actual.as_nanos());
        if permit.degrade() {
            shared.add(cell::DEGRADED + cell::COMPLETED, 1);
            shared.add(cell::DEGRADED + cell::COMPLETED_COST, charge.cost.as_nanos());
            shared.add(cell::DEGRADED + cell::WORKED, actual.as_nanos());
        }
        self.quota.settle(customer, criticality, charge, actual, now);
    }
}

/// One thread's access to an [`AdmissionGate`].
#[derive(Debug)]
pub struct Lane {
    gate: Arc<AdmissionGate>,
    returns: Returns,
    lease: Lease,
}

impl Lane {
    /// The gate that this lane belongs to.
    pub fn gate(&self) -> &Arc<AdmissionGate> {
        &self.gate
    }

    /// Reads what a decision on such a request will read, and what its end will: for a shell that
    /// knows who comes next, so that many such reads wait for memory together and none of the
    /// decisions does. Changes nothing; the number is for the compiler, which must not think that
    /// nobody wants it.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn touch(&self, customer: CustomerId, criticality: Criticality) -> u64 {
        let gate = &self.gate;
        let word = gate.flags.load(Ordering::Relaxed) ^ gate.room.touch(criticality);
        let lines = self.returns.counts.touch([criticality.index()]);
        word ^ lines ^ self.returns.quota.touch(customer)
    }

    /// As [`Lane::touch`], for the end of such a request.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn touch_end(&self, customer: CustomerId) -> u64 {
        let word = self.gate.flags.load(Ordering::Relaxed);
        word ^ self.returns.counts.touch([cell::SHARED]) ^ self.returns.quota.touch(customer)
    }

    /// As [`Lane::touch`], for what is in the lane itself.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub const fn touch_lane(&self) -> u64 {
        self.lease.touch()
    }

    /// As [`Lane::touch`], for the next tick of the controller.
    #[doc(hidden)]
    #[must_use]
    pub fn touch_all(&self) -> u64 {
        let lines = core::array::from_fn::<usize, { cell::DARK }, _>(|line| line);
        let gate = self.gate.flags.load(Ordering::Relaxed) ^ self.gate.room.touch_all();
        gate ^ self.returns.counts.touch(lines) ^ self.returns.counts.touch_counters()
    }

    /// Whether a request of `criticality` would be asked for a degraded answer now: what it will
    /// cost depends on it.
    #[inline]
    pub fn degrades(&self, criticality: Criticality) -> bool {
        degrade(self.gate.flags.load(Ordering::Relaxed), criticality) != 0
    }

    /// May this request in? No lock, no allocation, no waiting.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a third of a request's cost is passing values around"
    )]
    pub fn admit(&mut self, request: &Request, now: Timestamp, rng: &mut impl Rng) -> Decision {
        // Whoever sees the number of a plan sees its limits.
        let flags = self.gate.flags.load(Ordering::Acquire);
        let Err(reason) = self.check(flags, request, now, rng) else {
            return Decision::Admit(self.enter(flags, request, None, now));
        };
        if flags & flag::DARK != 0 && reason != Reason::LameDuck {
            return Decision::Admit(self.enter_in_dark(flags, request.charged(), reason, now));
        }
        if reason == Reason::Overloaded {
            return Decision::Reject(self.shed(flags, request));
        }
        self.refuse(request.charged(), reason, now)
    }

    /// The request is done and has cost `actual`.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a third of a request's cost is passing values around"
    )]
    pub fn complete(&mut self, permit: Permit, actual: Cost, now: Timestamp) {
        self.lease.give_back(&self.gate.room, self.gate.plan(), permit.charge().cost);
        self.returns.take(permit, actual, now);
    }

    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a third of a request's cost is passing values around"
    )]
    fn check(
        &mut self,
        flags: u64,
        request: &Request,
        now: Timestamp,
        rng: &mut impl Rng,
    ) -> Result<(), Reason> {
        let Request { customer, criticality, cost, deadline, .. } = *request;
        let mut keeps = Keeps::Within;
        // Nearly nobody fails any of the first three checks.
        if flags & flag::LAME_DUCK != 0
            || deadline <= now
            || !self.returns.quota.is_plainly_within(customer, now)
        {
            keeps = self.check_closely(flags, request.charged(), deadline, now)?;
        }
        if !self.gate.levels.levels().admits(criticality, rng) {
            return Err(Reason::Overloaded);
        }
        let rank = Rank::new(criticality, keeps);
        if !self.lease.take(&self.gate.room, flags & flag::PLANS, rank, cost, now) {
            return Err(Reason::Overloaded);
        }
        Ok(())
    }

    /// Lame duck, deadline and quota, in this order.
    ///
    /// This and other functions off the common path take what they need of a request by value:
    /// passed by reference, every request would have to be in memory for it.
    #[cold]
    fn check_closely(
        &mut self,
        flags: u64,
        request: Charged,
        deadline: Timestamp,
        now: Timestamp,
    ) -> Result<Keeps, Reason> {
        if flags & flag::LAME_DUCK != 0 {
            return Err(Reason::LameDuck);
        }
        if deadline <= now {
            return Err(Reason::DeadlinePassed);
        }
        let Charged { customer, criticality, cost, .. } = request;
        let Ok(keeps) = self.returns.quota.gate().look(customer, criticality, now) else {
            return Err(Reason::OutOfQuota);
        };
        if keeps == Keeps::Over {
            let line = &self.returns.counts.all()[criticality.index()];
            line.add(cell::OVER_COST, cost.as_nanos());
        }
        Ok(keeps)
    }

    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a third of a request's cost is passing values around"
    )]
    fn enter(
        &mut self,
        flags: u64,
        request: &Request,
        dark: Option<Reason>,
        now: Timestamp,
    ) -> Permit {
        let Request { customer, criticality, cost, .. } = *request;
        let level = criticality.index();
        let lines = self.returns.counts.all();
        count_retry(lines, request);
        lines[level].add(cell::ADMITTED, 1);
        lines[level].add(cell::ADMITTED_COST, cost.as_nanos());
        let charge = self.returns.quota.charge(customer, criticality, cost, now);
        Permit::new(customer, criticality, charge, degrade(flags, criticality), dark)
    }

    /// What happens to most requests in an overload, and has to be cheapest.
    #[inline]
    fn shed(&mut self, flags: u64, request: &Request) -> Rejection {
        let criticality = request.criticality;
        let lines = self.returns.counts.all();
        let line = &lines[criticality.index()];
        line.add(cell::REJECTED + index(Reason::Overloaded), 1);
        line.add(cell::SHED_COST, request.cost.as_nanos());
        count_retry(lines, request);
        Rejection {
            reason: Reason::Overloaded,
            advice: advice(flags),
            criticality,
            cause: Some(self.gate.cause(criticality)),
        }
    }

    /// What would be refused if this were not dark mode.
    #[cold]
    fn enter_in_dark(
        &mut self,
        flags: u64,
        request: Charged,
        reason: Reason,
        now: Timestamp,
    ) -> Permit {
        let level = request.criticality.index();
        self.returns.counts.all()[cell::DARK + level].add(index(reason), 1);
        self.enter(flags, &request.into(), Some(reason), now)
    }

    /// Any other refusal.
    #[cold]
    fn refuse(&mut self, request: Charged, reason: Reason, now: Timestamp) -> Decision {
        let Charged { criticality, customer, cost, .. } = request;
        let lines = self.returns.counts.all();
        count_retry(lines, &request.into());
        lines[criticality.index()].add(cell::REJECTED + index(reason), 1);
        let (advice, cause) = match reason {
            Reason::LameDuck => (Advice::RetryElsewhere, None),
            Reason::OutOfQuota => {
                self.returns.quota.refuse(customer, criticality, cost);
                let opens = self.gate.quota.check(customer, criticality, now);
                let opens_in = opens.err().unwrap_or_default();
                (Advice::DontRetry, Some(Cause::Quota { opens_in }))
            }
            _ => (Advice::DontRetry, None),
        };
        Decision::Reject(Rejection { reason, advice, criticality, cause })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.gate.room.lane_gone(&self.lease, self.gate.plan());
    }
}

#[inline]
fn count_retry(lines: &[Line; cell::LINES], request: &Request) {
    if let Some(retry) = request.tries().checked_sub(1) {
        lines[cell::SHARED].add(cell::RETRIES + retry, 1);
    }
}

/// What to tell those who are refused for overload.
#[inline]
const fn advice(flags: u64) -> Advice {
    if flags & flag::DONT_RETRY != 0 { Advice::DontRetry } else { Advice::RetryElsewhere }
}

/// What a gate has counted since it was made. Counts wrap; work with differences.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    totals: Totals<{ cell::COUNT }>,
}

impl Counts {
    /// Requests admitted.
    pub fn admitted(&self, criticality: Criticality) -> u64 {
        self.totals.at(criticality.index(), cell::ADMITTED)
    }

    /// Requests refused for `reason`; none for reasons that this gate does not give.
    pub fn rejected(&self, reason: Reason, criticality: Criticality) -> u64 {
        by_reason(reason, |i| self.totals.at(criticality.index(), cell::REJECTED + i))
    }

    /// Requests that dark mode let in, and that would have been refused for `reason`.
    pub fn dark(&self, reason: Reason, criticality: Criticality) -> u64 {
        by_reason(reason, |i| self.totals.at(cell::DARK + criticality.index(), i))
    }

    /// Requests that were done, however they ended.
    pub fn completed(&self) -> u64 {
        self.totals.at(cell::SHARED, cell::COMPLETED)
    }

    /// What they cost.
    pub fn worked(&self) -> Cost {
        Cost::from_nanos(self.totals.at(cell::SHARED, cell::WORKED))
    }

    /// Requests by attempt: first, second, and third or later.
    pub fn attempts(&self) -> [u64; 3] {
        let [second, later] = [0, 1].map(|i| self.totals.at(cell::SHARED, cell::RETRIES + i));
        [difference(self.totals.arrived(), second.wrapping_add(later)), second, later]
    }

    /// Requests admitted and not yet done.
    pub fn inflight(&self) -> u64 {
        let admitted = self.totals.over_levels(cell::ADMITTED);
        difference(admitted, self.completed())
    }
}

/// The first cells of a gate, all threads together.
#[derive(Debug, Clone, Copy)]
struct Totals<const CELLS: usize>([u64; CELLS]);

impl<const CELLS: usize> Totals<CELLS> {
    fn inflight_cost(&self) -> Cost {
        let completed = self.at(cell::SHARED, cell::COMPLETED_COST);
        Cost::from_nanos(difference(self.over_levels(cell::ADMITTED_COST), completed))
    }

    fn at(&self, line: usize, cell: usize) -> u64 {
        self.0[line * LINE + cell]
    }

    /// Requests that came, whatever became of them.
    fn arrived(&self) -> u64 {
        let rejected = (0..REASONS.len()).map(|i| self.over_levels(cell::REJECTED + i));
        rejected.fold(self.over_levels(cell::ADMITTED), u64::wrapping_add)
    }

    fn over_levels(&self, cell: usize) -> u64 {
        (0..LEVELS).fold(0, |sum, level| sum.wrapping_add(self.at(level, cell)))
    }
}

/// The count of `reason`, for the reasons that this gate gives.
fn by_reason(reason: Reason, count: impl Fn(usize) -> u64) -> u64 {
    REASONS.iter().position(|&r| r == reason).map_or(0, count)
}

/// `a - b` of two counters that wrap and were not read at the same instant: what is below zero is
/// the reading's doing.
fn difference(a: u64, b: u64) -> u64 {
    u64::try_from(a.wrapping_sub(b) as i64).unwrap_or(0)
}

/// Sets an [`AdmissionGate`] by what happened since the last tick.
#[derive(Debug)]
pub struct Controller {
    shedder: Shedder,
    attempts: AttemptHistogram,
    last: Totals<{ cell::DECIDING }>,
}

impl Controller {
    /// For `gate`, from now on.
    pub fn new(
        shed: ShedConfig,
        attempts: AttemptsConfig,
        gate: &AdmissionGate,
        now: Timestamp,
    ) -> Self {
        gate.set_causes(causes(&shed, Utilization::ZERO, SignalId::QUEUE));
        Self {
            shedder: Shedder::new(shed, now),
            attempts: AttemptHistogram::new(attempts),
            last: gate.totals(),
        }
    }

    /// Goes on with other parameters. What was learnt is kept, as far as it is still of use.
    pub fn reconfigure(&mut self, shed: ShedConfig) {
        self.shedder.reconfigure(shed);
    }

    /// As [`Lane::touch`], for the next tick.
    #[doc(hidden)]
    #[must_use]
    pub fn touch(&self) -> u64 {
        let last = self.last.0.iter().step_by(LINE).fold(0, |word, cell| word ^ cell);
        last ^ self.shedder.touch() ^ self.attempts.touch()
    }

    /// Looks at the counts and at what was seen, and tells the gate what to do. Call it every few
    /// milliseconds, off the request path.
    pub fn tick(&mut self, gate: &AdmissionGate, seen: impl Into<Seen>, now: Timestamp) -> Plan {
        let Seen { reading, beyond_cpu, load, load_least, used } = seen.into();
        let counts = gate.totals();
        let last = core::mem::replace(&mut self.last, counts);
        let since = |line, cell| difference(counts.at(line, cell), last.at(line, cell));
        let cost_since = |line, cell| Cost::from_nanos(since(line, cell));
        let facts = Facts {
            reading,
            beyond_cpu,
            load,
            load_least,
            used,
            offered: core::array::from_fn(|level| {
                cost_since(level, cell::ADMITTED_COST) + cost_since(level, cell::SHED_COST)
            }),
            over: core::array::from_fn(|level| cost_since(level, cell::OVER_COST)),
            admitted: (0..LEVELS).map(|level| cost_since(level, cell::ADMITTED_COST)).sum(),
            done: since(cell::SHARED, cell::COMPLETED),
            completed: cost_since(cell::SHARED, cell::COMPLETED_COST),
            worked: cost_since(cell::SHARED, cell::WORKED),
            degraded: Done {
                requests: since(cell::SHARED, cell::DEGRADED + cell::COMPLETED),
                estimated: cost_since(cell::SHARED, cell::DEGRADED + cell::COMPLETED_COST),
                worked: cost_since(cell::SHARED, cell::DEGRADED + cell::WORKED),
            },
            inflight: counts.inflight_cost(),
            dark: gate.flags.load(Ordering::Relaxed) & flag::DARK != 0,
        };
        let retries = [0, 1].map(|i| since(cell::SHARED, cell::RETRIES + i));
        let arrived = difference(counts.arrived(), last.arrived());
        let first = arrived.saturating_sub(retries[0].saturating_add(retries[1]));
        self.attempts.record_counts([first, retries[0], retries[1]], now);
        let plan = self.shedder.tick(&facts, now);
        gate.publish(&plan, self.attempts.advice(now), self.shedder.config(), now);
        plan
    }
}

/// What to tell those who are refused: see [`AdmissionGate::causes`].
fn causes(config: &ShedConfig, peak: Utilization, signal: SignalId) -> [u64; LEVELS] {
    let Thousandths(peak) = peak.into();
    Criticality::ALL.map(|criticality| {
        let Thousandths(threshold) = config.threshold(criticality).into();
        let threshold = threshold.min(0xffff);
        // Between two looks there was no more room: the queue has reached the threshold.
        let no_room = (SignalId::QUEUE, threshold);
        let (signal, utilization) = if peak < threshold { no_room } else { (signal, peak) };
        u64::from(signal.0) << 48 | u64::from(threshold) << 32 | u64::from(utilization)
    })
}
