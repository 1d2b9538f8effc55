//! The gate that every request passes, and the controller that sets it.

use super::level::{Level, Refusal};
use super::room::{Lease, Rank, Room};
use super::seen::Seen;
use super::shed::{Done, Facts, Plan, ShedConfig, Shedder};
use super::{Charged, Decision, Permit, Request};
use crate::attempts::{AttemptHistogram, AttemptsConfig};
use crate::counters::{Counters, LINE, Line, Lines};
use crate::criticality::Criticality;
use crate::customer::CustomerId;
use crate::decision::{Advice, Reason, SignalId, Thousandths};
use crate::levels::Levels;
use crate::quota::{ChargedAt, Keeps, QuotaConfig, QuotaGate, QuotaLane};
use crate::rng::Rng;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::units::{Cost, Timestamp, Utilization, nanos};
use core::time::Duration;
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

/// Plans are numbered in steps, so that there is room below for what leases add.
const PLAN: u64 = 1 << 31;

/// What requests meet: read by every thread, written by the controller. What all of them read is on
/// the first cache line, and `room` on the next two.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct AdmissionGate {
    /// A [`Level`] for each criticality.
    levels: [AtomicU64; LEVELS],
    /// The number of the plan that holds.
    plan: AtomicU64,
    quota: Arc<QuotaGate>,
    counters: Arc<Counters>,
    room: Room,
    /// Held by whoever writes levels, so that what two of them write is not mixed.
    setting: Mutex<()>,
    /// For permits that come back without a lane, once there was one.
    spare: Mutex<Option<Returns>>,
}

impl AdmissionGate {
    /// A gate that refuses nobody until its controller or a quota says so.
    pub fn new(quota: QuotaConfig) -> Arc<Self> {
        let quota = QuotaGate::new(quota);
        let counters = Counters::new(cell::COUNT);
        let config = ShedConfig::default();
        let causes = Causes::new(&config, Utilization::ZERO, SignalId::QUEUE);
        let level = |criticality| AtomicU64::new(causes.of(criticality, Level::OPEN).bits());
        Arc::new(Self {
            levels: Criticality::ALL.map(level),
            plan: AtomicU64::new(0),
            quota,
            counters,
            room: Room::new(),
            setting: Mutex::new(()),
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
        self.set(|_, level| level.with_lame_duck(lame_duck));
    }

    /// Decides and counts, but refuses nobody; or refuses again.
    pub fn set_dark(&self, dark: bool) {
        self.set(|_, level| level.with_dark(dark));
    }

    /// Whether it takes no new requests.
    pub fn is_lame_duck(&self) -> bool {
        self.level(Criticality::Sheddable).is_lame_duck()
    }

    /// Whether it refuses nobody, and only counts.
    pub fn is_dark(&self) -> bool {
        self.level(Criticality::Sheddable).is_dark()
    }

    /// Whether refusals for overload say "don't retry".
    pub fn says_dont_retry(&self) -> bool {
        self.level(Criticality::Sheddable).advice() == Advice::DontRetry
    }

    /// How much of each criticality is to get in from now on, for a controller of one's own. The
    /// next tick of a [`Controller`] sets it anew.
    pub fn set_levels(&self, levels: Levels) {
        self.set(|criticality, level| level.with_share(levels, criticality));
    }

    /// How much of each criticality gets in.
    pub fn levels(&self) -> Levels {
        Levels::from_bits(Criticality::ALL.map(|criticality| self.level(criticality).share_bits()))
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

    /// The number of the plan that holds. Whoever sees it sees the plan's limits.
    #[inline]
    fn plan(&self) -> u64 {
        self.plan.load(Ordering::Acquire)
    }

    #[inline]
    fn level(&self, criticality: Criticality) -> Level {
        Level::from_bits(self.levels[criticality.index()].load(Ordering::Acquire))
    }

    /// Makes of each level what `change` says. Takes a lock; off the request path.
    ///
    /// Levels that let in less are written from the lowest up, then those that let in more from the
    /// highest down, so that at no moment a level is refused and a lower one not.
    fn set(&self, change: impl Fn(Criticality, Level) -> Level) {
        let _setting = lock(&self.setting);
        let of = |criticality: Criticality| {
            let word = &self.levels[criticality.index()];
            let level = Level::from_bits(word.load(Ordering::Relaxed));
            (word, level, change(criticality, level))
        };
        let levels = Criticality::ALL.map(of);
        for (word, level, new) in levels {
            if new.lets_in() <= level.lets_in() {
                word.store(new.bits(), Ordering::Release);
            }
        }
        for (word, level, new) in levels.into_iter().rev() {
            if new.lets_in() > level.lets_in() {
                word.store(new.bits(), Ordering::Release);
            }
        }
    }

    fn publish(&self, plan: &Plan, advice: Advice, config: &ShedConfig, now: Timestamp) {
        self.room.publish(&plan.limit, &plan.limit_over, plan.inflight, now);
        let causes = Causes::new(config, plan.peak, plan.reading.signal);
        self.set(|criticality, level| {
            let degrade = plan.degrade[criticality.index()];
            let level = level.with_share(plan.levels, criticality).with_degrade(degrade);
            causes.of(criticality, level.with_advice(advice))
        });
        // Last: whoever sees the new number takes a new lease.
        self.plan.fetch_add(PLAN, Ordering::Release);
    }

    fn set_causes(&self, causes: &Causes<'_>) {
        self.set(|criticality, level| causes.of(criticality, level));
    }
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
        let word = gate.plan.load(Ordering::Relaxed) ^ gate.room.touch(criticality);
        let lines = self.returns.counts.touch([criticality.index()]);
        word ^ lines ^ self.returns.quota.touch(customer)
    }

    /// As [`Lane::touch`], for the end of such a request.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn touch_end(&self, customer: CustomerId) -> u64 {
        let word = self.gate.plan.load(Ordering::Relaxed);
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
        let gate = self.gate.plan.load(Ordering::Relaxed) ^ self.gate.room.touch_all();
        gate ^ self.returns.counts.touch(lines) ^ self.returns.counts.touch_counters()
    }

    /// Whether a request of `criticality` would be asked for a degraded answer now: what it will
    /// cost depends on it.
    #[inline]
    pub fn degrades(&self, criticality: Criticality) -> bool {
        self.gate.level(criticality).degrade() != 0
    }

    /// May this request in? No lock, no allocation, no waiting.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a third of a request's cost is passing values around"
    )]
    pub fn admit(&mut self, request: &Request, now: Timestamp, rng: &mut impl Rng) -> Decision {
        let Request { customer, criticality, cost, deadline, .. } = *request;
        let level = self.gate.level(criticality);
        // Nearly everybody is so.
        let plainly = self.returns.quota.plainly_within(customer, now);
        let (keeps, total) = match plainly {
            // First, as it is what happens to most in an overload.
            Some(_) if deadline > now && level.is_closed() => {
                return Decision::Reject(self.shed(level, request));
            }
            Some(total) if deadline > now => (Keeps::Within, total),
            _ => match self.look_closely(level, request.charged(), deadline, now) {
                Ok(keeps) => (keeps, self.returns.quota.total(customer)),
                Err(reason) => return self.turn_away(level, request.charged(), reason, now),
            },
        };
        if !level.is_open() {
            if level.is_lame_duck() {
                return self.turn_away(level, request.charged(), Reason::LameDuck, now);
            }
            if !level.admits(rng) {
                return self.shed_unless_dark(level, request, now);
            }
        }
        let at = total.charged_at();
        let rank = Rank::new(criticality, keeps);
        if !self.lease.take(&self.gate.room, self.gate.plan(), rank, cost, now) {
            return self.shed_unless_dark(level, request, now);
        }
        Decision::Admit(self.enter(level, at, request, None, now))
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

    /// Lame duck, deadline and quota, in this order.
    ///
    /// This and other functions off the common path take what they need of a request by value:
    /// passed by reference, every request would have to be in memory for it.
    #[cold]
    fn look_closely(
        &mut self,
        level: Level,
        request: Charged,
        deadline: Timestamp,
        now: Timestamp,
    ) -> Result<Keeps, Reason> {
        if level.is_lame_duck() {
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
        level: Level,
        at: ChargedAt,
        request: &Request,
        dark: Option<Reason>,
        now: Timestamp,
    ) -> Permit {
        let Request { customer, criticality, cost, .. } = *request;
        let lines = self.returns.counts.all();
        count_retry(lines, request);
        let line = &lines[criticality.index()];
        line.add(cell::ADMITTED, 1);
        line.add(cell::ADMITTED_COST, cost.as_nanos());
        let charge = self.returns.quota.charge_at(at, customer, criticality, cost, now);
        Permit::new(customer, criticality, charge, level.degrade(), dark)
    }

    /// What happens to most requests in an overload, and has to be cheapest.
    #[inline]
    fn shed(&mut self, level: Level, request: &Request) -> Refusal {
        let criticality = request.criticality;
        let lines = self.returns.counts.all();
        let line = &lines[criticality.index()];
        line.add(cell::REJECTED + index(Reason::Overloaded), 1);
        line.add(cell::SHED_COST, request.cost.as_nanos());
        count_retry(lines, request);
        Refusal::overloaded(level, criticality)
    }

    #[inline]
    fn shed_unless_dark(&mut self, level: Level, request: &Request, now: Timestamp) -> Decision {
        if level.is_dark() {
            let reason = Reason::Overloaded;
            return Decision::Admit(self.enter_in_dark(level, request.charged(), reason, now));
        }
        Decision::Reject(self.shed(level, request))
    }

    /// For any reason but overload. Two functions that give what fits in registers: one that gives
    /// a decision would have every other decision go through memory as well.
    #[inline]
    fn turn_away(
        &mut self,
        level: Level,
        request: Charged,
        reason: Reason,
        now: Timestamp,
    ) -> Decision {
        if level.is_dark() && reason != Reason::LameDuck {
            return Decision::Admit(self.enter_in_dark(level, request, reason, now));
        }
        Decision::Reject(self.refuse(request, reason, now))
    }

    /// What would be refused if this were not dark mode.
    #[cold]
    fn enter_in_dark(
        &mut self,
        level: Level,
        request: Charged,
        reason: Reason,
        now: Timestamp,
    ) -> Permit {
        let line = cell::DARK + request.criticality.index();
        self.returns.counts.all()[line].add(index(reason), 1);
        let at = self.returns.quota.total(request.customer).charged_at();
        self.enter(level, at, &request.into(), Some(reason), now)
    }

    #[cold]
    fn refuse(&mut self, request: Charged, reason: Reason, now: Timestamp) -> Refusal {
        let Charged { criticality, customer, cost, .. } = request;
        let lines = self.returns.counts.all();
        count_retry(lines, &request.into());
        lines[criticality.index()].add(cell::REJECTED + index(reason), 1);
        let mut opens_in = Duration::ZERO;
        if reason == Reason::OutOfQuota {
            self.returns.quota.refuse(customer, criticality, cost);
            let opens = self.gate.quota.check(customer, criticality, now);
            opens_in = opens.err().unwrap_or_default();
        }
        Refusal::other(reason, criticality, nanos(opens_in))
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
        gate.set_causes(&Causes::new(&shed, Utilization::ZERO, SignalId::QUEUE));
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
            dark: gate.is_dark(),
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

/// What to tell those who are refused.
struct Causes<'a> {
    config: &'a ShedConfig,
    peak: Thousandths,
    signal: SignalId,
}

impl<'a> Causes<'a> {
    fn new(config: &'a ShedConfig, peak: Utilization, signal: SignalId) -> Self {
        Self { config, peak: peak.into(), signal }
    }

    fn of(&self, criticality: Criticality, level: Level) -> Level {
        let threshold = self.config.threshold(criticality).into();
        // Between two looks there was no more room: the queue has reached the threshold.
        let no_room = (SignalId::QUEUE, threshold);
        let over = (self.signal, self.peak);
        let (signal, utilization) = if self.peak < threshold { no_room } else { over };
        level.with_cause(signal, utilization, threshold)
    }
}
