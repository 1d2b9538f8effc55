//! What a client does before a request leaves it and after it comes back.

use super::connections::Link;
use super::envoy::EnvoyThrottle;
use super::spec::{BalanceSpec, RetrySpec, StackSpec};
use core::num::NonZeroU32;
use core::time::Duration;
use std::collections::BTreeSet;
use tidegate_core::balance::{
    BackendId, Join, LeastLoaded, LoadReport, Policy, Prequal, RoundRobin, Weighted,
};
use tidegate_core::decision::Advice;
use tidegate_core::retry::{RetryBudget, RetryDecision, RetryPolicy};
use tidegate_core::rng::{Rng, SeededRng, shuffle};
use tidegate_core::subset::{SubsetPolicy, subset};
use tidegate_core::throttle::Throttle;
use tidegate_core::units::InvalidNumber;
use tidegate_core::{Criticality, Outcome, Timestamp};

/// One client task's access to one service. What every request needs of it is on the first line of
/// memory, the budget on the next, then the throttle's lines: each is waited for.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Stack {
    policy: Policy,
    /// The world's number of each member of the subset.
    pub(crate) members: Box<[u32]>,
    /// The way to each of them; none where connections cost nothing.
    pub(crate) links: Box<[Link]>,
    envoy: Option<Box<EnvoyThrottle>>,
    pub(crate) datacenter: u32,
    /// Whether attempts have a timeout.
    timed: bool,
    budget: Option<RetryBudget>,
    throttle: Option<Throttle>,
    retries: RetrySpec,
    attempt_timeout: Option<Duration>,
    /// Whom it asks.
    pub(crate) service: usize,
    /// The datacenter whose tasks alone it asks, if it is for one.
    pub(crate) place: Option<usize>,
    client: u64,
    subset: Option<(SubsetPolicy, u32)>,
}

/// From whom to whom a stack goes.
#[derive(Debug)]
pub(crate) struct Way {
    /// The client's number.
    pub(crate) client: u64,
    /// Where it is.
    pub(crate) datacenter: usize,
    pub(crate) service: usize,
    /// The datacenter whose tasks alone are asked, if it is for one.
    pub(crate) place: Option<usize>,
    /// The numbers of the tasks to choose from, and how many there can be.
    pub(crate) tasks: Vec<u32>,
    pub(crate) tasks_max: usize,
}

/// The tasks that a client connects to, of those that there are.
fn chosen(rule: Option<(SubsetPolicy, u32)>, client: u64, tasks: &[u32]) -> Vec<u32> {
    let Some((policy, size)) = rule else { return tasks.to_vec() };
    let chosen = subset(policy, client, tasks.len() as u32, size);
    chosen.into_iter().map(|index| tasks[index as usize]).collect()
}

/// How an attempt came out, as far as the client can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    Refused(Advice),
    Failed,
    NoAnswer,
}

/// How a task stands, as its clients hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stand {
    LameDuck,
    Gone,
    /// Just started.
    Back,
}

impl Stack {
    /// By which a client asks as `spec` says.
    pub(crate) fn new(spec: &StackSpec, way: Way) -> Result<Self, InvalidNumber> {
        let Way { client, datacenter, service, place, tasks, tasks_max } = way;
        let mut members = chosen(spec.subset, client, &tasks);
        shuffle(&mut members, &mut SeededRng::new(client));
        let most = spec.subset.map_or(tasks_max, |(_, size)| tasks_max.min(size as usize));
        let count = most.max(1);
        let mut policy: Policy = match &spec.balance {
            BalanceSpec::RoundRobin => RoundRobin::new(count).into(),
            BalanceSpec::LeastLoaded(config) => LeastLoaded::new(*config).into(),
            BalanceSpec::Weighted(config) => {
                let mut config = *config;
                config.backends_max = count;
                Weighted::new(config)?.into()
            }
            BalanceSpec::Prequal(config) => Prequal::new(*config)?.into(),
        };
        for member in 0..members.len() {
            policy.add(BackendId(member as u32), Join::Warm, Timestamp::ZERO);
        }
        Ok(Self {
            policy,
            members: members.into(),
            links: Box::default(),
            envoy: spec.envoy_throttle.map(|spec| Box::new(EnvoyThrottle::new(spec))),
            datacenter: datacenter as u32,
            timed: spec.attempt_timeout.is_some(),
            budget: match spec.retries {
                RetrySpec::Budget(config) => Some(RetryBudget::new(config)),
                _ => None,
            },
            throttle: spec.throttle.map(Throttle::new),
            retries: spec.retries,
            attempt_timeout: spec.attempt_timeout,
            service,
            place,
            client,
            subset: spec.subset,
        })
    }

    /// How long an attempt may take, if it is not as long as the call.
    #[inline]
    pub(crate) fn attempt_timeout(&self) -> Option<Duration> {
        if self.timed { self.attempt_timeout } else { None }
    }

    /// The members that change when these are the tasks to choose from: which of them, and who is
    /// in its place. One that is as large as the number of members is one more.
    pub(crate) fn moves(&self, tasks: &[u32]) -> Vec<(usize, u32)> {
        let wanted = chosen(self.subset, self.client, tasks);
        let stays: BTreeSet<u32> = wanted.iter().copied().collect();
        let known: BTreeSet<u32> = self.members.iter().copied().collect();
        let free = (0..self.members.len()).filter(|&member| !stays.contains(&self.members[member]));
        let new = wanted.into_iter().filter(|number| !known.contains(number));
        free.chain(self.members.len()..).zip(new).collect()
    }

    /// Another task is member number `member`, a new one or one that has long been there.
    pub(crate) fn replace(&mut self, member: usize, number: u32, is_new: bool, now: Timestamp) {
        let id = BackendId(member as u32);
        match self.members.get_mut(member) {
            Some(slot) => {
                *slot = number;
                self.policy.remove(id, now);
            }
            None => self.members = self.members.iter().copied().chain([number]).collect(),
        }
        self.policy.add(id, if is_new { Join::Cold } else { Join::Warm }, now);
    }

    /// A task of the world stands otherwise than before.
    pub(crate) fn stand(&mut self, number: u32, stand: Stand, now: Timestamp) {
        let Some(member) = self.members.iter().position(|&m| m == number) else { return };
        let member = BackendId(member as u32);
        match stand {
            Stand::LameDuck => self.policy.lame_duck(member, now),
            Stand::Gone => self.policy.remove(member, now),
            Stand::Back => self.policy.add(member, Join::Cold, now),
        };
    }

    /// Reads what a request of this stack needs first.
    #[inline]
    pub(crate) fn touch(&self, criticality: Criticality) -> u64 {
        let throttle = self.throttle.as_ref().map_or(0, |throttle| throttle.touch(criticality));
        let budget = self.budget.as_ref().map_or(0, RetryBudget::touch);
        throttle ^ budget ^ u64::from(self.datacenter)
    }

    /// Reads what a pick needs.
    #[inline]
    pub(crate) fn touch_pick(&self) -> u64 {
        self.policy.peek().map_or(0, |member| member.0.into())
    }

    /// Reads what is needed of whom it will pick.
    #[inline]
    pub(crate) fn touch_picked(&self) -> u64 {
        let Some(member) = self.policy.peek() else { return 0 };
        let number = self.members.get(member.0 as usize).map_or(0, |&number| number.into());
        number ^ self.policy.touch_start(member)
    }

    /// Reads what the end of an attempt needs.
    #[inline]
    pub(crate) fn touch_end(&self, member: BackendId, criticality: Criticality) -> u64 {
        let throttle = self.throttle.as_ref().map_or(0, |throttle| throttle.touch(criticality));
        throttle ^ self.policy.touch_end(member)
    }

    /// Reads what everything begins with.
    #[inline]
    pub(crate) fn touch_first(&self) -> u64 {
        self.datacenter.into()
    }

    /// A request (not a retry) wants to be sent.
    pub(crate) fn on_request(&mut self, now: Timestamp) {
        if let Some(budget) = &mut self.budget {
            budget.deposit(now);
        }
    }

    /// Whether the throttle lets an attempt out.
    pub(crate) fn allows(
        &mut self,
        criticality: Criticality,
        now: Timestamp,
        rng: &mut impl Rng,
    ) -> bool {
        self.throttle.as_mut().is_none_or(|t| t.decide(criticality, now, rng).is_ok())
            && self.envoy.as_mut().is_none_or(|t| t.allows(now, rng))
    }

    /// Chooses a task: the member and its number in the world.
    pub(crate) fn pick(&mut self, now: Timestamp, rng: &mut impl Rng) -> Option<(BackendId, u32)> {
        if self.policy.next_deadline().is_some_and(|at| at <= now) {
            self.policy.on_deadline(now);
        }
        let member = self.policy.pick(now, rng)?.backend;
        self.policy.on_start(member, now);
        if let Some(link) = self.links.get_mut(member.0 as usize) {
            link.on_start(now);
        }
        Some((member, self.members[member.0 as usize]))
    }

    /// The backends to probe, by number in the world.
    pub(crate) fn probes(&mut self, rng: &mut impl Rng) -> Vec<(BackendId, u32)> {
        let Some(probes) = self.policy.probes_wanted(rng) else { return Vec::new() };
        probes.as_slice().iter().map(|&m| (m, self.members[m.0 as usize])).collect()
    }

    pub(crate) fn on_probe(
        &mut self,
        member: BackendId,
        inflight: u32,
        latency: Duration,
        now: Timestamp,
    ) {
        self.policy.on_probe(member, inflight, latency, now);
    }

    /// An attempt came back.
    pub(crate) fn on_fate(
        &mut self,
        member: BackendId,
        criticality: Criticality,
        fate: Fate,
        report: Option<&LoadReport>,
        now: Timestamp,
    ) {
        let outcome = match fate {
            Fate::Answered => Outcome::Served,
            Fate::Refused(advice) => Outcome::Refused(advice),
            Fate::Failed => Outcome::Failed,
            Fate::NoAnswer => Outcome::NoAnswer,
        };
        if let Some(throttle) = &mut self.throttle {
            throttle.on_response(criticality, outcome, now);
        }
        if let Some(throttle) = &mut self.envoy {
            throttle.on_response(fate == Fate::Answered, now);
        }
        self.policy.on_complete(member, outcome, now);
        if let Some(link) = self.links.get_mut(member.0 as usize) {
            link.on_end(now);
        }
        if let Some(report) = report {
            self.policy.on_report(member, report, now);
        }
    }

    /// Whether to try again after attempt number `attempt`, and after how long.
    pub(crate) fn retry(
        &mut self,
        attempt: u8,
        fate: Fate,
        remaining: Duration,
        now: Timestamp,
    ) -> Option<Duration> {
        let advice = match fate {
            Fate::Answered => return None,
            Fate::Refused(advice) => advice,
            Fate::Failed | Fate::NoAnswer => Advice::RetryElsewhere,
        };
        let (attempts, advice) = match self.retries {
            RetrySpec::Never => return None,
            RetrySpec::Naive { attempts } => (attempts, Advice::RetryElsewhere),
            RetrySpec::Advised { attempts } => (attempts, advice),
            RetrySpec::Budget(_) => (3, advice),
        };
        let mut policy = RetryPolicy::default();
        policy.attempts_max = NonZeroU32::new(attempts).unwrap_or(NonZeroU32::MIN);
        let budget = &mut self.budget;
        let withdraw = || budget.as_mut().is_none_or(|b| b.withdraw(now));
        match policy.decide(u32::from(attempt), advice, remaining, withdraw) {
            RetryDecision::Retry { after } => Some(after),
            RetryDecision::GiveUp(_) => None,
        }
    }
}
