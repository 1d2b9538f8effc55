//! A task's end of its stream, without the stream: what to say, and what to make of the answers.
//!
//! Each customer has a [`FailStatic`], which knows what to enforce whatever becomes of the server.
//! This feeds it and tells the task's gate what has changed. It is driven by `now`, like everything
//! that decides.
//!
//! Customers are known by name here and by number on a stream: another leader may number them in
//! another way, so the first message of a stream names them all. Limits that a task was built with
//! stay for customers of which the server knows nothing, and for all until it is heard of.

use crate::message::{limits, task_id, write_generation, write_rates, write_task_id};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use tidegate::Task;
use tidegate::task::QuotaSource;
use tidegate_core::fleet::{FailStatic, Generation, Limits, Silence, Standing, TaskId};
use tidegate_core::quota::{Usage, UsageMeter};
use tidegate_core::{CostRate, Criticality, CustomerId, Timestamp};
use tidegate_wire::proto::tidegate::quota::v1::{self as wire, ServerMessage, TaskMessage};

/// Reports of which the time is remembered until they are answered. An answer to one that is older
/// is as good as none: the task has reported some hundred times since.
const SENT_MAX: usize = 256;

/// Who everyone else is by name.
const EVERYONE_ELSE: &str = "";

/// What is wrong with what a server said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Nonsense {
    /// It was replaced, and has not noticed.
    #[error("the server leads by epoch {found}, and one of epoch {known} has led since")]
    OldLeader {
        /// Its epoch.
        found: u64,
        /// The latest that is known.
        known: u64,
    },
    /// It did not say welcome.
    #[error("the first message of the server is no welcome")]
    NoWelcome,
    /// Rates are four or none.
    #[error("the server said a limit that has not four rates")]
    Rates,
}

/// What to do after a message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Next {
    /// Say this, if anything, and go on.
    Say(Option<TaskMessage>),
    /// Open a new stream: the grants have ended, and the server has to tell them again.
    Resume,
    /// Open a stream there, or anywhere.
    Go(Option<String>),
}

/// One customer.
#[derive(Debug)]
struct Held {
    grant: FailStatic,
    silence: Silence,
    unseen: Limits,
    /// What the gate has been told.
    enforced: Option<Limits>,
    /// Its number at the task; nothing if there is no room for it.
    local: Option<CustomerId>,
    /// The server counts nothing for it.
    revoked: bool,
    /// The server knows what the task holds: it has told it since the task joined.
    told: bool,
}

/// A task's end of its stream.
#[derive(Debug)]
pub(crate) struct Member {
    task: Task,
    name: String,
    weight: u32,
    meter: UsageMeter,
    ticked: Option<Timestamp>,
    held: BTreeMap<String, Held>,
    /// Names by the numbers of this stream.
    numbers: BTreeMap<u32, String>,
    id: Option<TaskId>,
    acked: Option<Generation>,
    /// The latest leader that was heard of.
    epoch: u64,
    silence: Silence,
    learning: bool,
    /// Reports of this stream: number and when it was sent.
    sent: VecDeque<(u64, Timestamp)>,
    number: u64,
    /// When the last report was sent that was answered.
    answered: Timestamp,
    welcomed: bool,
    /// There was no grant on this stream yet.
    untold: bool,
    /// Grants that have arrived, of which those who enforce them may not know yet; nothing of a
    /// task, which enforces them itself.
    pending: Option<VecDeque<Pending>>,
}

/// A grant that is not acknowledged.
#[derive(Debug)]
struct Pending {
    generation: Generation,
    customer: String,
    limits: Limits,
    since: Timestamp,
    /// After which round of whom it stands for they were told.
    told: Option<u64>,
}

impl Member {
    pub(crate) fn new(task: Task, name: String, weight: u32) -> Self {
        let now = task.clock().now();
        Self {
            meter: UsageMeter::new(task.gate().quota(), now),
            task,
            name,
            weight,
            ticked: None,
            held: BTreeMap::new(),
            numbers: BTreeMap::new(),
            id: None,
            acked: None,
            epoch: 0,
            silence: Silence::default(),
            learning: false,
            sent: VecDeque::new(),
            number: 0,
            answered: now,
            welcomed: false,
            untold: true,
            pending: None,
        }
    }

    /// The same for whoever stands for others: grants are acknowledged by [`Member::settle`].
    pub(crate) fn for_others(task: Task, name: String, weight: u32) -> Self {
        Self { pending: Some(VecDeque::new()), ..Self::new(task, name, weight) }
    }

    /// The first message of a new stream.
    pub(crate) fn hello(&mut self) -> TaskMessage {
        (self.welcomed, self.untold, self.number) = (false, true, 0);
        self.sent.clear();
        // They are told again.
        self.pending.iter_mut().for_each(VecDeque::clear);
        TaskMessage {
            hello: Some(wire::Hello {
                service: self.task.service().to_owned(),
                task: self.name.clone(),
                resumes: self.id.map(write_task_id),
                weight: self.weight,
                epoch_seen: self.epoch,
            }),
            ..TaskMessage::default()
        }
    }

    /// An interval has passed: enforces what is now right. Returns the report, for whoever has a
    /// stream. None if no time has passed since the last, as there is no rate over no time; and
    /// none before the server said welcome, as only then is it known what to tell it: a leader that
    /// learns takes a customer of which the task says no word for one of which it has nothing.
    pub(crate) fn tick(&mut self) -> Option<TaskMessage> {
        let now = self.task.clock().now();
        if self.ticked.replace(now) == Some(now) {
            return None;
        }
        let mut usages: BTreeMap<u32, wire::Usage> = BTreeMap::new();
        let locals: BTreeMap<CustomerId, u32> = self.locals().collect();
        self.meter.collect(self.task.gate().quota(), now, |customer, usage| {
            if let Some(&number) = locals.get(&customer) {
                usages.insert(number, write_usage(number, usage));
            }
        });
        for (&number, name) in &self.numbers {
            let Some(held) = self.held.get(name) else { continue };
            if held.told || held.revoked || held.grant.generation().is_none() {
                continue;
            }
            let line =
                usages.entry(number).or_insert_with(|| write_usage(number, Usage::default()));
            // All four, also zeros: nothing would be nothing to say.
            line.has = held.grant.holds(now).as_array().map(CostRate::as_nanos_per_sec).into();
        }
        self.enforce(now);
        if !self.welcomed {
            return None;
        }
        self.number += 1;
        if self.sent.len() >= SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((self.number, now));
        let report = wire::Usages { number: self.number, usages: usages.into_values().collect() };
        Some(TaskMessage {
            report: Some(report),
            acked: self.acked.map(write_generation),
            ..TaskMessage::default()
        })
    }

    /// The server said something.
    pub(crate) fn hear(&mut self, message: &ServerMessage) -> Result<Next, Nonsense> {
        if let Some(redirect) = &message.redirect {
            return Ok(Next::Go((!redirect.leader.is_empty()).then(|| redirect.leader.clone())));
        }
        let now = self.task.clock().now();
        if !self.welcomed {
            self.welcome(message)?;
        }
        self.learning = message.learning;
        self.renew(message.answers, now);
        for number in &message.gone {
            if let Some(name) = self.numbers.remove(number) {
                self.forget(&name);
            }
        }
        self.learn(&message.customers)?;
        for grant in &message.grants {
            self.take(grant, now)?;
        }
        self.enforce(now);
        let lapsed = |held: &Held| !held.revoked && held.grant.standing(now) == Standing::Lapsed;
        if !self.untold && self.held.values().any(lapsed) {
            return Ok(Next::Resume);
        }
        let acked = self.acked.filter(|_| self.pending.is_none() && !message.grants.is_empty());
        Ok(Next::Say(acked.map(|acked| TaskMessage {
            acked: Some(write_generation(acked)),
            ..TaskMessage::default()
        })))
    }

    /// How often to report, if the server has said so.
    pub(crate) fn report_every(message: &ServerMessage) -> Option<Duration> {
        let millis = message.welcome.as_ref()?.report_every_ms;
        // A server that asks for more would have the task do nothing else.
        Some(Duration::from_millis(u64::from(millis.clamp(10, 60_000))))
    }

    /// Which leader was heard last, and whether it still learns.
    pub(crate) const fn leader(&self) -> (u64, bool) {
        (self.epoch, self.learning)
    }

    /// How the task stands with the server: the worst of all customers.
    pub(crate) fn standing(&self) -> Option<Standing> {
        let now = self.task.clock().now();
        let held = self.held.values().filter(|held| !held.revoked);
        let worst =
            held.map(|held| held.grant.standing(now)).max_by_key(|standing| match standing {
                Standing::Held => 0,
                Standing::Fading => 1,
                Standing::Lapsed => 2,
            });
        worst.or_else(|| (self.epoch != 0).then_some(Standing::Held))
    }

    /// Says on the task's page where its limits come from.
    pub(crate) fn show(&self, server: Option<&str>) {
        let age = self.task.clock().now().since(self.answered);
        let sentence = match (server, self.standing()) {
            (_, None) => "No quota server was heard of yet: local limits".to_owned(),
            (Some(server), _) if self.learning => {
                format!("{server} leads anew and learns: limits stay as they are")
            }
            (Some(server), Some(Standing::Held)) => format!("Limits by {server}"),
            (None, Some(Standing::Held)) => {
                format!("No quota server for {} s: limits hold", age.as_secs())
            }
            (_, Some(Standing::Fading)) => {
                format!("No quota server for {} s: limits fade to the safe share", age.as_secs())
            }
            (_, Some(Standing::Lapsed)) => {
                format!("No quota server for {} s: the safe share", age.as_secs())
            }
        };
        let server = server.map(str::to_owned);
        let stale = server.is_none().then_some(age).filter(|_| self.epoch != 0);
        self.task.set_quota_source(QuotaSource { server, stale, sentence });
    }

    fn locals(&self) -> impl Iterator<Item = (CustomerId, u32)> {
        self.numbers
            .iter()
            .filter_map(|(&number, name)| Some((self.held.get(name)?.local?, number)))
    }

    fn welcome(&mut self, message: &ServerMessage) -> Result<(), Nonsense> {
        let welcome = message.welcome.as_ref().ok_or(Nonsense::NoWelcome)?;
        let id = task_id(welcome.task.ok_or(Nonsense::NoWelcome)?);
        if id.epoch() < self.epoch {
            return Err(Nonsense::OldLeader { found: id.epoch(), known: self.epoch });
        }
        let span = |millis: u32| Duration::from_millis(u64::from(millis));
        self.silence = Silence { hold: span(welcome.hold_ms), tau: span(welcome.tau_ms) };
        (self.id, self.epoch, self.welcomed) = (Some(id), id.epoch(), true);
        if welcome.joined {
            self.acked = None;
            for held in self.held.values_mut() {
                held.grant.rejoin(id.epoch());
                held.told = false;
            }
        }
        self.numbers.clear();
        let named = |name: &str| message.customers.iter().any(|customer| customer.name == name);
        let gone = self.held.keys().filter(|name| !named(name)).cloned().collect::<Vec<_>>();
        for name in gone {
            self.forget(&name);
        }
        Ok(())
    }

    /// A report was answered, and all before it.
    fn renew(&mut self, answers: u64, now: Timestamp) {
        while let Some(&(number, sent)) = self.sent.front()
            && number <= answers
        {
            self.sent.pop_front();
            if number == answers {
                self.answered = self.answered.max(sent);
                for held in self.held.values_mut() {
                    held.grant.renew(sent, now);
                }
            }
        }
    }

    fn learn(&mut self, customers: &[wire::Customer]) -> Result<(), Nonsense> {
        for customer in customers {
            let unseen = limits(&customer.unseen).ok_or(Nonsense::Rates)?;
            self.numbers.insert(customer.number, customer.name.clone());
            let silence = self.silence;
            let held = self.held.entry(customer.name.clone()).or_insert_with(|| Held {
                grant: FailStatic::new(silence, unseen),
                silence,
                unseen,
                enforced: None,
                local: (customer.name == EVERYONE_ELSE).then_some(CustomerId::DEFAULT),
                revoked: true,
                told: false,
            });
            held.unseen = unseen;
            held.grant.set_unseen(unseen);
        }
        Ok(())
    }

    fn take(&mut self, grant: &wire::Grant, now: Timestamp) -> Result<(), Nonsense> {
        let generation = Generation { epoch: self.epoch, number: grant.number };
        let granted = limits(&grant.limits).ok_or(Nonsense::Rates)?;
        let safe = limits(&grant.safe).ok_or(Nonsense::Rates)?;
        let name = self.numbers.get(&grant.customer);
        if let Some(held) = name.and_then(|name| self.held.get_mut(name)) {
            // Leaders may have other leases than those before.
            if held.silence != self.silence && held.grant.generation() < Some(generation) {
                held.silence = self.silence;
                held.grant = FailStatic::new(self.silence, held.unseen);
            }
            if held.grant.grant(generation, granted, safe, self.answered, now) {
                (held.revoked, held.told) = (grant.revoked, true);
                if grant.revoked {
                    held.unseen = granted;
                    held.grant = FailStatic::new(self.silence, granted);
                }
            }
        }
        self.untold = false;
        match (&mut self.pending, name) {
            (Some(pending), Some(name)) => pending.push_back(Pending {
                generation,
                customer: name.clone(),
                limits: granted,
                since: now,
                told: None,
            }),
            _ => self.acked = self.acked.max(Some(generation)),
        }
        Ok(())
    }

    /// Acknowledges grants, in their order, that are at least what `counted` says the most is that
    /// may be used, as of the last of `rounds`, or that are older than `patience`. What was counted
    /// before a grant was passed on says nothing of what was handed out in that same round. Returns
    /// what to say, if anything.
    pub(crate) fn settle(
        &mut self,
        counted: impl Fn(&str) -> Limits,
        rounds: u64,
        patience: Duration,
    ) -> Option<TaskMessage> {
        let now = self.task.clock().now();
        let pending = self.pending.as_mut()?;
        let before = self.acked;
        for grant in pending.iter_mut() {
            grant.told = grant.told.or(Some(rounds));
        }
        while let Some(next) = pending.front() {
            let counted = counted(&next.customer);
            let within = next.told.is_some_and(|told| rounds > told)
                && Criticality::ALL.into_iter().all(|l| counted[l] <= next.limits[l]);
            if !within && now.since(next.since) < patience {
                break;
            }
            self.acked = self.acked.max(Some(next.generation));
            pending.pop_front();
        }
        let acked = self.acked.filter(|acked| Some(*acked) != before && self.welcomed)?;
        Some(TaskMessage { acked: Some(write_generation(acked)), ..TaskMessage::default() })
    }

    /// What is enforced of each customer of the server; everyone else has no name.
    pub(crate) fn enforced(&self) -> impl Iterator<Item = (String, Limits)> {
        self.held.iter().filter_map(|(name, held)| Some((name.clone(), held.enforced?)))
    }

    /// The customer is one of everyone else. Connections that still carry its number may use what
    /// everyone else may without a grant.
    fn forget(&mut self, name: &str) {
        if name != EVERYONE_ELSE && self.held.remove(name).is_some() {
            let everyone_else = self.held.get(EVERYONE_ELSE);
            let unseen = everyone_else.map_or(Limits::ZERO, |held| held.unseen);
            self.task.remove_customer(name, unseen);
        }
    }

    /// Tells the gate what has changed.
    fn enforce(&mut self, now: Timestamp) {
        let mut changed = Vec::new();
        for (name, held) in &mut self.held {
            let limits = held.grant.enforced(now);
            if held.enforced != Some(limits) {
                held.enforced = Some(limits);
                changed.push((name.as_str(), limits));
            }
        }
        // Everyone else has no name, and so comes first.
        if let Some(&(EVERYONE_ELSE, limits)) = changed.first() {
            self.task.set_default_limits(limits);
            changed.remove(0);
        }
        if changed.is_empty() {
            return;
        }
        let ids = self.task.set_limits_of(&changed);
        let names: Vec<String> = changed.iter().map(|(name, _)| (*name).to_owned()).collect();
        for (name, id) in names.iter().zip(ids) {
            if let Some(held) = self.held.get_mut(name) {
                held.local = id;
            }
        }
    }
}

fn write_usage(customer: u32, usage: Usage) -> wire::Usage {
    wire::Usage {
        customer,
        used: write_rates(usage.used),
        demand: write_rates(usage.wanted),
        has: Vec::new(),
    }
}
