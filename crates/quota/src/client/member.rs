//! A task's end of its stream, without the stream: what to say, and what to make of the answers.
//!
//! Each customer has a [`FailStatic`], which knows what to enforce whatever becomes of the server.
//! This feeds it and tells the task's gate what has changed. It is driven by `now`, like everything
//! that decides.
//!
//! Customers are known by name here and by number on a stream: another leader may number them in
//! another way, so the first message of a stream names them all. Limits that a task was built with
//! stay for customers of which the server knows nothing, and for all until it is heard of.

use crate::message::{grants, limits, task_id, write_generation, write_task_id, write_usages};
use crate::server::book::Rounds;
use core::time::Duration;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidegate::Task;
use tidegate::task::QuotaSource;
use tidegate_core::fleet::unseen_part;
use tidegate_core::fleet::{FailStatic, Generation, Limits, Silence, Standing, TaskId, Usage};
use tidegate_core::quota::UsageMeter;
use tidegate_core::{CostRate, Criticality, CustomerId, Ratio, Timestamp};
use tidegate_wire::proto::tidegate::quota::v1::{self as wire, ServerMessage, TaskMessage};

/// Reports of which the time is remembered until they are answered. An answer to one that is older
/// is as good as none: the task has reported some hundred times since.
const SENT_MAX: usize = 256;
/// How often to report, before the server has said so.
pub(crate) const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Who has taken another's place waits for so many reports until it was told what that one had, as
/// it would have nothing to say before. Grants come with the next round, of which there are several
/// in the time of a report; a place without any has nothing to wait for.
const SUCCESSION: u32 = 3;
/// But not for less than this, however often it reports: a fleet that is too much for the server's
/// machine makes rounds last longer than they should, and the first may have begun already.
const SUCCESSION_MIN: Duration = Duration::from_secs(2);

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
    /// It cannot be read.
    #[error("the server's directory of customers cannot be read")]
    Directory,
}

/// What to do after a message.
#[derive(Debug, Clone, PartialEq)]
// It is taken apart where it is made; a box would be an allocation for each message.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Next {
    /// Say this, if anything, and go on.
    Say(Option<Box<TaskMessage>>),
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
    /// What is set aside for all tasks without a grant, and this one's part of it.
    aside: Limits,
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
    service: String,
    name: String,
    weight: u32,
    /// By which election it stands for others; 0 for itself.
    reign: u64,
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
    /// How often the server wants reports.
    report_every: Duration,
    /// What is left of limits in silence.
    safe: Ratio,
    /// By what to divide that which is set aside.
    places: u64,
    learning: bool,
    /// Reports of this stream: number and when it was sent.
    sent: VecDeque<(u64, Timestamp)>,
    number: u64,
    /// When the last report was sent that was answered.
    answered: Timestamp,
    welcomed: bool,
    /// There was no grant on this stream yet.
    untold: bool,
    /// For how many reports to wait for grants of whoever had the place before.
    patience: u32,
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
            service: task.service().to_owned(),
            task,
            name,
            weight,
            reign: 0,
            ticked: None,
            held: BTreeMap::new(),
            numbers: BTreeMap::new(),
            id: None,
            acked: None,
            epoch: 0,
            silence: Silence::default(),
            report_every: REPORT_EVERY,
            safe: Ratio::ZERO,
            places: 1,
            learning: false,
            sent: VecDeque::new(),
            number: 0,
            answered: now,
            welcomed: false,
            untold: true,
            patience: 0,
            pending: None,
        }
    }

    /// The same for a service that the server knows by another name.
    pub(crate) fn of(mut self, service: &str) -> Self {
        service.clone_into(&mut self.service);
        self
    }

    /// The same for whoever stands for others, by the election `reign` of theirs: grants are
    /// acknowledged by [`Member::settle`].
    pub(crate) fn for_others(task: Task, name: String, weight: u32, reign: u64) -> Self {
        Self { reign, pending: Some(VecDeque::new()), ..Self::new(task, name, weight) }
    }

    /// Whether it has taken another's place, and has yet to be told what that one had.
    pub(crate) const fn awaits(&self) -> bool {
        self.untold && self.patience > 0
    }

    /// The first message of a new stream.
    pub(crate) fn hello(&mut self) -> TaskMessage {
        (self.welcomed, self.untold, self.number) = (false, true, 0);
        self.sent.clear();
        // They are told again.
        self.pending.iter_mut().for_each(VecDeque::clear);
        TaskMessage {
            hello: Some(wire::Hello {
                service: self.service.clone(),
                task: self.name.clone(),
                resumes: self.id.map(write_task_id),
                weight: self.weight,
                epoch_seen: self.epoch,
                reign: self.reign,
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
        let mut usages: BTreeMap<u32, Usage> = BTreeMap::new();
        let locals: BTreeMap<CustomerId, u32> = self.locals().collect();
        self.meter.collect(self.task.gate().quota(), now, |customer, usage| {
            if let Some(&number) = locals.get(&customer) {
                let (used, demand) = (usage.used, usage.wanted);
                let customer = CustomerId(number);
                usages.insert(number, Usage { customer, used, demand, has: None });
            }
        });
        for (&number, name) in &self.numbers {
            let Some(held) = self.held.get(name) else { continue };
            if held.told || held.revoked || held.grant.generation().is_none() {
                continue;
            }
            let nothing = [CostRate::ZERO; 4];
            let customer = CustomerId(number);
            let line = Usage { customer, used: nothing, demand: nothing, has: None };
            usages.entry(number).or_insert(line).has = Some(held.grant.holds(now));
        }
        self.enforce(now);
        if !self.welcomed {
            return None;
        }
        if self.awaits() {
            self.patience -= 1;
            return None;
        }
        self.number += 1;
        if self.sent.len() >= SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((self.number, now));
        Some(TaskMessage {
            report: Some(write_usages(self.number, usages.into_values())),
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
        let directory = wire::Directory::decode(message.directory.clone());
        let directory = directory.map_err(|_| Nonsense::Directory)?;
        if !self.welcomed {
            self.welcome(message, &directory)?;
        }
        self.learning = message.learning;
        self.renew(message.answers, now);
        for number in &message.gone {
            if let Some(name) = self.numbers.remove(number) {
                self.forget(&name);
            }
        }
        if message.places > 0 && message.places != self.places {
            self.places = message.places;
            for held in self.held.values_mut() {
                held.unseen = unseen_part(held.aside, self.places);
                held.grant.set_unseen(held.unseen);
            }
        }
        self.learn(&directory.customers)?;
        if let Some(grants) = &message.grants {
            self.take(grants, now)?;
        }
        self.enforce(now);
        let lapsed = |held: &Held| !held.revoked && held.grant.standing(now) == Standing::Lapsed;
        if !self.untold && self.held.values().any(lapsed) {
            return Ok(Next::Resume);
        }
        let now = message.acknowledge && message.grants.is_some() && self.pending.is_none();
        let acked = self.acked.filter(|_| now);
        Ok(Next::Say(acked.map(|acked| {
            let acked = Some(write_generation(acked));
            Box::new(TaskMessage { acked, ..TaskMessage::default() })
        })))
    }

    /// The time, as it goes by.
    pub(crate) fn now(&self) -> Timestamp {
        self.task.clock().now()
    }

    /// How often to report, if the server has said so.
    pub(crate) fn report_every(message: &ServerMessage) -> Option<Duration> {
        let millis = message.welcome.as_ref()?.report_every_ms;
        // A server that asks for more would have the task do nothing else.
        Some(Duration::from_millis(u64::from(millis.clamp(10, 60_000))))
    }

    /// How often the server wants reports, as far as it has said.
    pub(crate) const fn interval(&self) -> Duration {
        self.report_every
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

    fn welcome(
        &mut self,
        message: &ServerMessage,
        directory: &wire::Directory,
    ) -> Result<(), Nonsense> {
        let welcome = message.welcome.as_ref().ok_or(Nonsense::NoWelcome)?;
        let id = task_id(welcome.task.ok_or(Nonsense::NoWelcome)?);
        if id.epoch() < self.epoch {
            return Err(Nonsense::OldLeader { found: id.epoch(), known: self.epoch });
        }
        let span = |millis: u32| Duration::from_millis(u64::from(millis));
        self.silence = Silence { hold: span(welcome.hold_ms), tau: span(welcome.tau_ms) };
        self.report_every = Self::report_every(message).unwrap_or(REPORT_EVERY);
        self.safe = Ratio::of(u64::from(welcome.safe), u64::from(Ratio::WHOLE));
        (self.id, self.epoch, self.welcomed) = (Some(id), id.epoch(), true);
        if !welcome.joined && self.held.is_empty() {
            let reports = SUCCESSION_MIN.as_millis().div_ceil(self.report_every.as_millis().max(1));
            self.patience = SUCCESSION.max(u32::try_from(reports).unwrap_or(SUCCESSION));
        }
        if welcome.joined {
            self.acked = None;
            for held in self.held.values_mut() {
                held.grant.rejoin(id.epoch());
                held.told = false;
            }
        }
        self.numbers.clear();
        let named: BTreeSet<&str> = directory.customers.iter().map(|c| c.name.as_str()).collect();
        let gone = self.held.keys().filter(|name| !named.contains(name.as_str()));
        let gone = gone.cloned().collect::<Vec<_>>();
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
            let aside = limits(&customer.aside).ok_or(Nonsense::Rates)?;
            let unseen = unseen_part(aside, self.places);
            self.numbers.insert(customer.number, customer.name.clone());
            let silence = self.silence;
            let held = self.held.entry(customer.name.clone()).or_insert_with(|| Held {
                grant: FailStatic::new(silence, unseen),
                silence,
                aside,
                unseen,
                enforced: None,
                local: (customer.name == EVERYONE_ELSE).then_some(CustomerId::DEFAULT),
                revoked: true,
                told: false,
            });
            (held.aside, held.unseen) = (aside, unseen);
            held.grant.set_unseen(unseen);
        }
        Ok(())
    }

    fn take(&mut self, granted: &wire::Grants, now: Timestamp) -> Result<(), Nonsense> {
        let generation = Generation { epoch: self.epoch, number: granted.number };
        for (number, limits) in grants(granted).ok_or(Nonsense::Rates)? {
            self.take_one(generation, number, Some(limits), now);
        }
        for &number in &granted.revoked {
            self.take_one(generation, number, None, now);
        }
        (self.untold, self.patience) = (false, 0);
        match &mut self.pending {
            None => self.acked = self.acked.max(Some(generation)),
            // Who stands for others says so when all these have arrived there, also if none of them
            // is of a customer that is still known.
            Some(pending) if pending.back().is_none_or(|last| last.generation < generation) => {
                let (customer, limits) = (EVERYONE_ELSE.to_owned(), Limits::UNLIMITED);
                pending.push_back(Pending { generation, customer, limits, since: now, told: None });
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// What a customer may use from now on; nothing if the task can forget it.
    fn take_one(
        &mut self,
        generation: Generation,
        number: u32,
        granted: Option<Limits>,
        now: Timestamp,
    ) {
        let Some(name) = self.numbers.get(&number) else { return };
        let Some(held) = self.held.get_mut(name) else { return };
        let limits = granted.unwrap_or(held.unseen);
        let safe = limits.as_array().map(CostRate::as_nanos_per_sec);
        let safe = safe.map(|rate| CostRate::from_nanos_per_sec(self.safe.share_of(rate)));
        // Leaders may have other leases than those before.
        if held.silence != self.silence && held.grant.generation() < Some(generation) {
            held.silence = self.silence;
            held.grant = FailStatic::new(self.silence, held.unseen);
        }
        if held.grant.grant(generation, limits, Limits::clamped(safe), self.answered, now) {
            (held.revoked, held.told) = (granted.is_none(), true);
            if granted.is_none() {
                held.grant = FailStatic::new(self.silence, held.unseen);
            }
        }
        if let Some(pending) = &mut self.pending {
            let (customer, since) = (name.clone(), now);
            pending.push_back(Pending { generation, customer, limits, since, told: None });
        }
    }

    /// Acknowledges grants, in their order, that are at least what `counted` says the most is that
    /// may be used, as of the last of `rounds`, or that are older than `patience`. What was counted
    /// before a grant was passed on says nothing of what was handed out in that same round. Returns
    /// what to say, if anything.
    pub(crate) fn settle(
        &mut self,
        counted: impl Fn(&str) -> Limits,
        rounds: Rounds,
        patience: Duration,
    ) -> Option<TaskMessage> {
        let now = self.task.clock().now();
        let pending = self.pending.as_mut()?;
        let before = self.acked;
        for grant in pending.iter_mut() {
            grant.told = grant.told.or(Some(rounds.begun));
        }
        while let Some(next) = pending.front() {
            let counted = counted(&next.customer);
            let within = next.told.is_some_and(|told| rounds.ended > told)
                && Criticality::ALL.into_iter().all(|l| counted[l] <= next.limits[l]);
            if !within && now.since(next.since) < patience {
                break;
            }
            let generation = next.generation;
            pending.pop_front();
            // Those of one message arrive together.
            if pending.front().is_none_or(|after| after.generation > generation) {
                self.acked = self.acked.max(Some(generation));
            }
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
