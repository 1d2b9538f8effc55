//! The gate that every request passes, and the controller that sets it.

use super::shed::{Facts, Plan, ShedConfig, Shedder};
use super::{Decision, Permit, Request};
use crate::attempts::{AttemptHistogram, AttemptsConfig};
use crate::counters::{Counters, LINE, Writer};
use crate::criticality::Criticality;
use crate::decision::{Advice, Cause, Reason, Rejection, SignalId, Thousandths};
use crate::levels::{LevelGate, Levels};
use crate::quota::{QuotaConfig, QuotaGate, QuotaLane};
use crate::rng::Rng;
use crate::signal::Reading;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{Cost, Timestamp};
use std::sync::Arc;

const LEVELS: usize = Criticality::COUNT;

/// The cells of the gate's counters, each group of four by criticality.
mod cell {
    use super::LEVELS;

    pub(super) const ADMITTED: usize = 0;
    pub(super) const ADMITTED_COST: usize = ADMITTED + LEVELS;
    pub(super) const SHED_COST: usize = ADMITTED_COST + LEVELS;
    pub(super) const COMPLETED: usize = SHED_COST + LEVELS;
    pub(super) const COMPLETED_COST: usize = COMPLETED + 1;
    pub(super) const WORKED: usize = COMPLETED_COST + 1;
    /// First, second, third and later attempts.
    pub(super) const ATTEMPTS: usize = WORKED + 1;
    /// By reason, then by criticality.
    pub(super) const REJECTED: usize = ATTEMPTS + 3;
    pub(super) const DARK: usize = REJECTED + super::REASONS.len() * LEVELS;
    /// Lines that hold all of them.
    pub(super) const LINES: usize = COUNT.div_ceil(crate::counters::LINE);
    pub(super) const COUNT: usize = DARK + super::REASONS.len() * LEVELS;
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

#[inline]
fn attempt_cell(request: &Request) -> usize {
    cell::ATTEMPTS + usize::from(request.attempt.clamp(1, 3) - 1)
}

/// Bits of the gate's state word.
mod flag {
    pub(super) const LAME_DUCK: u64 = 1;
    pub(super) const DARK: u64 = 1 << 1;
    pub(super) const DONT_RETRY: u64 = 1 << 2;
    /// Four bits, lowest criticality first.
    pub(super) const DEGRADE: u32 = 8;
}

/// What requests meet: read by every thread, written by the controller.
#[derive(Debug)]
pub struct AdmissionGate {
    levels: LevelGate,
    flags: AtomicU64,
    /// The signal in the upper half, its utilization in thousandths in the lower.
    cause: AtomicU64,
    thresholds: [Thousandths; LEVELS],
    quota: Arc<QuotaGate>,
    counters: Arc<Counters>,
}

impl AdmissionGate {
    /// A gate that refuses nobody until its controller or a quota says so.
    pub fn new(shed: &ShedConfig, quota: QuotaConfig) -> Arc<Self> {
        Arc::new(Self {
            levels: LevelGate::new(),
            flags: AtomicU64::new(0),
            cause: AtomicU64::new(u64::from(SignalId::COMBINED.0) << 32),
            thresholds: Criticality::ALL.map(|c| shed.threshold(c).into()),
            quota: QuotaGate::new(quota),
            counters: Counters::new(cell::COUNT),
        })
    }

    /// A thread's own access to this gate. Takes a lock; once per thread.
    pub fn lane(self: &Arc<Self>) -> Lane {
        Lane { counts: self.counters.writer(), quota: self.quota.lane(), gate: Arc::clone(self) }
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
        let mut totals = [0; cell::COUNT];
        self.counters.read(&mut totals);
        Counts { totals }
    }

    fn set_flag(&self, flag: u64, on: bool) {
        if on {
            self.flags.fetch_or(flag, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!flag, Ordering::Relaxed);
        }
    }

    fn publish(&self, plan: &Plan, advice: Advice) {
        self.set_levels(plan.levels);
        let Thousandths(utilization) = plan.reading.utilization.into();
        let cause = u64::from(plan.reading.signal.0) << 32 | u64::from(utilization);
        self.cause.store(cause, Ordering::Relaxed);
        self.set_flag(flag::DONT_RETRY, advice == Advice::DontRetry);
        for (level, degrade) in plan.degrade.into_iter().enumerate() {
            self.set_flag(1 << (flag::DEGRADE + level as u32), degrade);
        }
    }

    fn cause(&self, criticality: Criticality) -> Cause {
        let word = self.cause.load(Ordering::Relaxed);
        Cause::Signal {
            signal: SignalId((word >> 32) as u8),
            utilization: Thousandths(word as u32),
            threshold: self.thresholds[criticality.index()],
        }
    }
}

/// One thread's access to an [`AdmissionGate`].
#[derive(Debug)]
pub struct Lane {
    gate: Arc<AdmissionGate>,
    counts: Writer,
    quota: QuotaLane,
}

impl Lane {
    /// The gate that this lane belongs to.
    pub fn gate(&self) -> &Arc<AdmissionGate> {
        &self.gate
    }

    /// May this request in? No lock, no allocation, no waiting.
    #[inline]
    pub fn admit(&mut self, request: &Request, now: Timestamp, rng: &mut impl Rng) -> Decision {
        let flags = self.gate.flags.load(Ordering::Relaxed);
        match self.check(flags, request, now, rng) {
            Ok(()) => Decision::Admit(self.enter(flags, request, None, now)),
            Err(reason) => self.refuse(flags, request, reason, now),
        }
    }

    /// The request is done and has cost `actual`.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "a permit can be given back only once")]
    pub fn complete(&mut self, permit: Permit, actual: Cost, now: Timestamp) {
        let Permit { customer, criticality, charged, .. } = permit;
        self.count([
            (cell::COMPLETED, 1),
            (cell::COMPLETED_COST, charged.as_nanos()),
            (cell::WORKED, actual.as_nanos()),
        ]);
        self.quota.settle(customer, criticality, charged, actual, now);
    }

    #[inline]
    fn count<const N: usize>(&mut self, amounts: [(usize, u64); N]) {
        if let Some(lines) = self.counts.lines::<{ cell::LINES }>() {
            for (cell, amount) in amounts {
                lines[cell / LINE].add(cell, amount);
            }
        }
    }

    #[inline]
    fn check(
        &self,
        flags: u64,
        request: &Request,
        now: Timestamp,
        rng: &mut impl Rng,
    ) -> Result<(), Reason> {
        if flags & flag::LAME_DUCK != 0 {
            return Err(Reason::LameDuck);
        }
        if request.deadline <= now {
            return Err(Reason::DeadlinePassed);
        }
        if self.gate.quota.check(request.customer, request.criticality, now).is_err() {
            return Err(Reason::OutOfQuota);
        }
        if !self.gate.levels.levels().admits(request.criticality, rng) {
            return Err(Reason::Overloaded);
        }
        Ok(())
    }

    #[inline]
    fn enter(
        &mut self,
        flags: u64,
        request: &Request,
        dark: Option<Reason>,
        now: Timestamp,
    ) -> Permit {
        let Request { customer, criticality, cost, .. } = *request;
        let level = criticality.index();
        self.count([
            (attempt_cell(request), 1),
            (cell::ADMITTED + level, 1),
            (cell::ADMITTED_COST + level, cost.as_nanos()),
        ]);
        self.quota.charge(customer, criticality, cost, now);
        let degrade = flags >> flag::DEGRADE >> level & 1 == 1;
        Permit { customer, criticality, charged: cost, degrade, dark }
    }

    #[inline]
    fn refuse(
        &mut self,
        flags: u64,
        request: &Request,
        reason: Reason,
        now: Timestamp,
    ) -> Decision {
        let level = request.criticality.index();
        let by_reason = index(reason) * LEVELS + level;
        let (advice, cause) = match reason {
            Reason::LameDuck => (Advice::RetryElsewhere, None),
            Reason::Overloaded => {
                let dont_retry = flags & flag::DONT_RETRY != 0;
                let advice = if dont_retry { Advice::DontRetry } else { Advice::RetryElsewhere };
                (advice, Some(self.gate.cause(request.criticality)))
            }
            Reason::OutOfQuota => {
                self.quota.refuse(request.customer, request.criticality, request.cost);
                let opens = self.gate.quota.check(request.customer, request.criticality, now);
                let opens_in = opens.err().unwrap_or_default();
                (Advice::DontRetry, Some(Cause::Quota { opens_in }))
            }
            _ => (Advice::DontRetry, None),
        };
        if flags & flag::DARK != 0 && reason != Reason::LameDuck {
            self.count([(cell::DARK + by_reason, 1)]);
            return Decision::Admit(self.enter(flags, request, Some(reason), now));
        }
        let shed = if reason == Reason::Overloaded { request.cost.as_nanos() } else { 0 };
        self.count([
            (attempt_cell(request), 1),
            (cell::REJECTED + by_reason, 1),
            (cell::SHED_COST + level, shed),
        ]);
        Decision::Reject(Rejection { reason, advice, criticality: request.criticality, cause })
    }
}

/// What a gate has counted since it was made. Counts wrap; work with differences.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    totals: [u64; cell::COUNT],
}

impl Counts {
    /// Requests admitted.
    pub fn admitted(&self, criticality: Criticality) -> u64 {
        self.totals[cell::ADMITTED + criticality.index()]
    }

    /// Requests refused for `reason`; none for reasons that this gate does not give.
    pub fn rejected(&self, reason: Reason, criticality: Criticality) -> u64 {
        self.by_reason(cell::REJECTED, reason, criticality)
    }

    /// Requests that dark mode let in, and that would have been refused for `reason`.
    pub fn dark(&self, reason: Reason, criticality: Criticality) -> u64 {
        self.by_reason(cell::DARK, reason, criticality)
    }

    /// Requests admitted and not yet done.
    pub fn inflight(&self) -> u64 {
        let admitted =
            Criticality::ALL.into_iter().fold(0, |sum: u64, c| sum.wrapping_add(self.admitted(c)));
        difference(admitted, self.totals[cell::COMPLETED])
    }

    fn by_reason(&self, group: usize, reason: Reason, criticality: Criticality) -> u64 {
        REASONS
            .iter()
            .position(|&r| r == reason)
            .map_or(0, |i| self.totals[group + i * LEVELS + criticality.index()])
    }

    fn inflight_cost(&self) -> Cost {
        let admitted = (0..LEVELS)
            .fold(0, |sum: u64, level| sum.wrapping_add(self.totals[cell::ADMITTED_COST + level]));
        Cost::from_nanos(difference(admitted, self.totals[cell::COMPLETED_COST]))
    }
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
    last: Counts,
}

impl Controller {
    /// For `gate`, from now on.
    pub fn new(
        shed: ShedConfig,
        attempts: AttemptsConfig,
        gate: &AdmissionGate,
        now: Timestamp,
    ) -> Self {
        Self {
            shedder: Shedder::new(shed, now),
            attempts: AttemptHistogram::new(attempts),
            last: gate.counts(),
        }
    }

    /// Looks at the counts and the signals and tells the gate what to do. Call it every few
    /// milliseconds, off the request path.
    pub fn tick(&mut self, gate: &AdmissionGate, reading: Reading, now: Timestamp) -> Plan {
        let counts = gate.counts();
        let last = core::mem::replace(&mut self.last, counts);
        let since = |cell: usize| difference(counts.totals[cell], last.totals[cell]);
        let facts = Facts {
            reading,
            offered: core::array::from_fn(|level| {
                let admitted = Cost::from_nanos(since(cell::ADMITTED_COST + level));
                admitted + Cost::from_nanos(since(cell::SHED_COST + level))
            }),
            completed: Cost::from_nanos(since(cell::COMPLETED_COST)),
            worked: Cost::from_nanos(since(cell::WORKED)),
            inflight: counts.inflight_cost(),
        };
        self.attempts.record_counts(core::array::from_fn(|i| since(cell::ATTEMPTS + i)), now);
        let plan = self.shedder.tick(&facts, now);
        gate.publish(&plan, self.attempts.advice(now));
        plan
    }
}
