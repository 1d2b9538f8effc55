//! The leader's book: who joined, who reports, who has what, and which limits apply.
//!
//! Reports and changes of limits only take notes. [`Fleet::tick`] then ends the leases of silent
//! tasks and has the limits of every customer of whom something changed divided anew; what that may
//! push is explained in `round`.
//!
//! **What an answer has seen.** Customers wait for their turn in one line, in which each stands
//! once: whoever is marked while it stands there has what marked it seen by the same look. So a
//! report has been seen whole when all have had their turn that stood there when it came, and
//! neither before nor only at the end of a round: that is what [`Fleet::divided`] counts, and
//! [`Answer::due`] names.
//!
//! **Learning.** A new leader knows nothing. Until every grant of the old one was reported or has
//! ended, tasks keep what they say they have; nobody is cut, and nobody gets more than its floor.
//! Who comes later with something from before can only have the safe share of a grant that has
//! ended. All that is said to be held then counts up to the safe share of the limit together, and
//! until the task acknowledged a grant or its lease ends.
//!
//! **What can go wrong.** A task that lies about demand gets at most what the other tasks' demand
//! and floors leave; one that lies about its weight, as much as `weight_max` tasks which do. Those
//! that lie about what they hold keep at most the safe share of a limit from the others; while the
//! leader learns, all of it. One that does not acknowledge is not answered, so its lease ends. One
//! that was silent for so long that it was forgotten may still use its safe share; nobody can know.
//! A process that another one of its name replaced is forgotten with its lease: whoever starts its
//! successor has given it up.
//!
//! A number of an election proves nothing by itself, and whoever takes a zone's place has all that
//! its tasks may use. So the place of one who stands for others is only for the same identity, or
//! for those who are named as such; anybody else waits until it is forgotten. Whoever took a name
//! without being named as one who may, by whatever number, makes way for those who are: by an
//! election that is not later these join anew, as they have no part in what that one held.

use super::allocate::Levels;
use super::config::{FleetConfig, FleetConfigError};
use super::ledger::{Customer, Ledger, State, add, limits, nanos, part};
use super::limits::Limits;
use super::message::{Answer, Change, CustomerStatus, Full, Generation};
use super::message::{NotJoined, Round, Speaker, Taken, TaskId, Usage};
use super::round::CustomerDivider;
use crate::criticality::Criticality;
use crate::customer::CustomerId;
use crate::units::{CostRate, Timestamp};
use core::borrow::Borrow;
use core::time::Duration;

const LEVELS: usize = Criticality::COUNT;

/// The quotas of a fleet, as its leader keeps them.
#[derive(Debug, Clone)]
pub struct Fleet {
    config: FleetConfig,
    learning_until: Timestamp,
    learned: bool,
    ledger: Ledger,
    /// Where the search for idle entries goes on.
    sweep: usize,
    /// How many of those who wait this round has to look at.
    due: usize,
    /// How many were looked at so far, in all rounds.
    divided: u64,
    /// By how much the leader is behind.
    lag: Duration,
    divider: CustomerDivider,
}

impl Fleet {
    /// The fleet of a leader that was elected at `now`, in election `epoch`. `default` is for all
    /// customers without limits of their own, together.
    pub fn new(
        config: FleetConfig,
        epoch: u64,
        default: Limits,
        now: Timestamp,
    ) -> Result<Self, FleetConfigError> {
        config.check()?;
        let default = Customer { limits: nanos(default.as_array()), ..Customer::default() };
        Ok(Self {
            learning_until: now + config.learning,
            learned: false,
            ledger: Ledger::new(epoch, config.tasks_max, default),
            config,
            sweep: 0,
            due: 0,
            divided: 0,
            lag: Duration::ZERO,
            divider: CustomerDivider::new(epoch),
        })
    }

    /// Whether tasks still keep what they say they have.
    pub fn is_learning(&self, now: Timestamp) -> bool {
        now < self.learning_until
    }

    /// Configures the customer called `name`, or changes its limits.
    pub fn set_customer(&mut self, name: &str, limits: Limits) -> Result<CustomerId, Full> {
        let max = self.config.customers_max;
        let index = self.ledger.customer_named(name);
        let index = index.or_else(|| self.ledger.add_customer(name, max));
        let id = CustomerId::new(index.ok_or(Full { what: "customers", max })?);
        self.set_limits(id, limits);
        Ok(id)
    }

    /// Changes the limits of the customers that are not configured.
    pub fn set_default(&mut self, limits: Limits) {
        self.set_limits(CustomerId::DEFAULT, limits);
    }

    /// The customer called `name` is no longer configured and falls under the default.
    pub fn remove_customer(&mut self, name: &str) {
        if let Some(index) = self.ledger.retire_customer(name) {
            self.set_limits(CustomerId::new(index), Limits::ZERO);
        }
    }

    /// The customer called `name`; whoever is not configured is [`CustomerId::DEFAULT`].
    pub fn customer(&self, name: &str) -> CustomerId {
        self.ledger.customer_named(name).map_or(CustomerId::DEFAULT, CustomerId::new)
    }

    /// What a task may admit of a customer for which it has no grant. It has to be told that when
    /// it joins, when the customer's limits change and when [`Round::unseen`] says so.
    pub fn unseen(&self, customer: CustomerId) -> Limits {
        let customer = self.ledger.customers.get(customer.index());
        let places = self.ledger.places.count();
        customer.map_or(Limits::ZERO, |customer| self.config.unseen_of(customer.limits, places))
    }

    /// What is set aside of a customer's limits for tasks without a grant. Of that each may use the
    /// part that [`unseen_part`](super::unseen_part) says, by [`Fleet::places`].
    pub fn aside(&self, customer: CustomerId) -> Limits {
        let customer = self.ledger.customers.get(customer.index());
        customer.map_or(Limits::ZERO, |customer| self.config.aside(customer.limits))
    }

    /// By what to divide that which is set aside. Tasks have to be told when [`Round::unseen`] says
    /// so.
    pub const fn places(&self) -> u64 {
        self.ledger.places.count()
    }

    /// The sum of all limits over the capacity: above 1, not everyone can have its limit at once.
    /// Who has no limit counts with the whole capacity.
    pub fn oversubscription(&self) -> f64 {
        let capacity = self.config.capacity.as_nanos_per_sec();
        let promised: u128 = self
            .ledger
            .customers
            .iter()
            .map(|customer| customer.limits[LEVELS - 1])
            .map(|limit| u128::from(if limit == u64::MAX { capacity } else { limit }))
            .sum();
        promised as f64 / capacity.max(1) as f64
    }

    /// One customer across the fleet, as of the last round.
    pub fn status(&self, customer: CustomerId) -> Option<CustomerStatus> {
        let customer = self.ledger.customers.get(customer.index())?;
        let rates = |levels: Levels| levels.map(CostRate::from_nanos_per_sec);
        Some(CustomerStatus {
            limits: limits(customer.limits),
            used: rates(customer.used),
            demand: rates(customer.demand),
            counted: rates(customer.counted),
            tasks: customer.entries.len(),
        })
    }

    /// A process opened its first stream at this leader. `weight` is how many tasks it stands for:
    /// 1, or up to [`FleetConfig::weight_max`] for a zone's server. If there is one of that name,
    /// it is another and has to make way: its reports are no longer taken, and what it holds counts
    /// until its lease ends.
    pub fn join(&mut self, name: &str, weight: u32, now: Timestamp) -> Result<TaskId, Full> {
        let other = self.ledger.slot_named(name);
        let makes_room = other.is_some_and(|slot| !self.ledger.is_using(slot));
        if self.ledger.tasks() >= self.config.tasks_max && !makes_room {
            return Err(Full { what: "tasks", max: self.config.tasks_max });
        }
        if let Some(slot) = other {
            self.ledger.replace(slot);
        }
        let slot = self.ledger.enter(name);
        let task = &mut self.ledger.tasks[slot];
        task.deadline = now + self.config.silence.lease();
        task.weight = weight.clamp(1, self.config.weight_max);
        Ok(task.id)
    }

    /// A process stands for others who have elected it by `reign`. If there is one of its name that
    /// stands for them by an earlier one, it was that one's turn: this one takes its place, and
    /// goes on with what the other has, of which it is told all grants. So a zone that has another
    /// leader is still one task. Returns the place, unless there is none to take.
    pub fn succeed(
        &mut self,
        name: &str,
        reign: u64,
        weight: u32,
        now: Timestamp,
    ) -> Option<TaskId> {
        let slot = self.ledger.slot_named(name)?;
        let task = &mut self.ledger.tasks[slot];
        if task.reign == 0 || task.reign >= reign {
            return None;
        }
        let (id, weight) = (task.id, weight.clamp(1, self.config.weight_max));
        self.resume(id, now).ok()?;
        let task = &mut self.ledger.tasks[slot];
        (task.reign, task.weight) = (reign, weight);
        Some(id)
    }

    /// Whether `speaker` may speak by this name: not if somebody else stands for others by it, or
    /// has been elected since, unless `speaker` is named as one who may and that one is not.
    pub fn check_name(&self, name: &str, speaker: Speaker<'_>) -> Result<(), Taken> {
        let Some(slot) = self.ledger.slot_named(name) else { return Ok(()) };
        let task = &self.ledger.tasks[slot];
        if task.reign == 0 {
            return Ok(());
        }
        if !speaker.named && task.identity.as_deref() != speaker.identity {
            return Err(Taken::Another);
        }
        if speaker.named && !task.named {
            return Ok(());
        }
        if task.reign > speaker.reign {
            return Err(Taken::Later { known: task.reign, found: speaker.reign });
        }
        Ok(())
    }

    /// Whether that is the task which has joined by `name` last.
    pub fn is_named(&self, task: TaskId, name: &str) -> bool {
        self.ledger.slot(task).is_some_and(|slot| self.ledger.slot_named(name) == Some(slot))
    }

    /// `task` is this one, who may stand for others.
    pub fn set_speaker(&mut self, task: TaskId, speaker: Speaker<'_>) {
        if let Some(slot) = self.ledger.slot(task) {
            let task = &mut self.ledger.tasks[slot];
            task.reign = speaker.reign;
            // Of those who stand for themselves nobody asks.
            let stands = speaker.identity.filter(|_| speaker.reign > 0);
            task.identity = stands.map(Box::from);
            task.named = speaker.named;
        }
    }

    /// `task` stands for so many from now on, up to [`FleetConfig::weight_max`].
    pub fn set_weight(&mut self, task: TaskId, weight: u32) {
        if let Some(slot) = self.ledger.slot(task) {
            let weight = weight.clamp(1, self.config.weight_max);
            if core::mem::replace(&mut self.ledger.tasks[slot].weight, weight) != weight {
                self.ledger.mark_customers_of(slot);
            }
        }
    }

    /// The process that joined as `task` lost its stream and opened another: it goes on with what
    /// it has and is told all its grants again. One that is not known has to join.
    pub fn resume(&mut self, task: TaskId, now: Timestamp) -> Result<(), NotJoined> {
        let slot = self.ledger.slot(task).ok_or(NotJoined)?;
        let task = &mut self.ledger.tasks[slot];
        match task.state {
            State::Live if task.pushed > 0 => {}
            State::Live | State::Lost => task.deadline = now + self.config.silence.lease(),
            State::Vacant | State::Replaced => return Err(NotJoined),
        }
        task.state = State::Live;
        task.waiting_since = None;
        self.ledger.untell(slot);
        Ok(())
    }

    /// A task has ended and admits nothing any more.
    pub fn leave(&mut self, task: TaskId) {
        if let Some(slot) = self.ledger.slot(task) {
            self.ledger.strike(slot);
        }
    }

    /// The leader is behind by so much: what tasks say has waited for as long before it was read,
    /// and what they are told before it is sent. They have so much more time to acknowledge.
    pub const fn set_lag(&mut self, lag: Duration) {
        self.lag = lag;
    }

    /// A task says which grant arrived there last, between two reports: what it has let go of can
    /// go to others a report sooner. Renews nothing.
    pub fn acknowledge(
        &mut self,
        task: TaskId,
        acked: Generation,
        now: Timestamp,
    ) -> Result<(), NotJoined> {
        let slot = self.ledger.slot(task).ok_or(NotJoined)?;
        let task = &mut self.ledger.tasks[slot];
        if task.state != State::Live {
            return Err(NotJoined);
        }
        if task.acknowledge(Some(acked), self.divider.epoch(), now) {
            self.ledger.mark_customers_of(slot);
        }
        Ok(())
    }

    /// A task reports. `acked` is the last grant that arrived there.
    pub fn report(
        &mut self,
        task: TaskId,
        acked: Option<Generation>,
        usages: impl IntoIterator<Item: Borrow<Usage>>,
        now: Timestamp,
    ) -> Result<Answer, NotJoined> {
        let slot = self.ledger.slot(task).ok_or(NotJoined)?;
        let reporter = &mut self.ledger.tasks[slot];
        if reporter.state != State::Live {
            return Err(NotJoined);
        }
        reporter.acknowledge(acked, self.divider.epoch(), now);
        let patience = self.config.ack_timeout.saturating_add(self.lag);
        let renewed = reporter.waiting_since.is_none_or(|since| now.since(since) <= patience);
        if renewed {
            let lease = now + self.config.silence.lease();
            reporter.deadline = reporter.deadline.max(lease);
        }
        reporter.stamp = reporter.stamp.wrapping_add(1);
        let (stamp, acked) = (reporter.stamp, reporter.acked);

        let learning = self.is_learning(now);
        let (mut cursor, mut named, mut dropped) = (0, 0, 0);
        for usage in usages {
            let usage = usage.borrow();
            let customer = match self.ledger.customers.get(usage.customer.index()) {
                Some(customer) if !customer.retired => usage.customer,
                _ => CustomerId::DEFAULT,
            };
            let place = match self.ledger.find(slot, customer, &mut cursor) {
                Ok(place) => place,
                Err(_) if is_nothing(usage) => continue,
                Err(position) => {
                    if self.ledger.tasks[slot].entries.len() >= self.config.customers_per_task_max {
                        dropped += 1;
                        continue;
                    }
                    self.ledger.insert(slot, customer, position, now)
                }
            };
            let of = &mut self.ledger.customers[customer.index()];
            if let Some(has) = usage.has {
                let has = nanos(has.as_array());
                let has = core::array::from_fn(|l| has[l].min(of.limits[l]));
                if learning {
                    of.entries[place].learn(has, acked);
                } else {
                    let safe = part(self.config.safe, of.limits);
                    let room = core::array::from_fn(|l| safe[l].saturating_sub(of.claimed[l]));
                    let more = of.claim(place, has, acked, room);
                    add(&mut of.claimed, more);
                }
            }
            let entry = &mut of.entries[place];
            let (mut used, mut demand) = (nanos(usage.used), nanos(usage.demand));
            if entry.stamp() == stamp {
                add(&mut used, entry.used());
                add(&mut demand, entry.demand());
            } else {
                named += 1;
                entry.set_stamp(stamp);
            }
            if entry.note(used, demand, now) || entry.number() == 0 {
                self.ledger.mark(customer.index());
            }
        }
        if named < self.ledger.tasks[slot].entries.len() {
            self.ledger.rest_unmentioned(slot);
        }
        let due = self.divided + self.ledger.dirty.len() as u64;
        Ok(Answer { renewed, dropped, due })
    }

    /// One round: ends leases, and divides the limits of every customer of whom something has
    /// changed. New grants are appended to `changes`, in the order in which each task has to get
    /// its own.
    pub fn tick(&mut self, now: Timestamp, changes: &mut Vec<Change>) -> Round {
        let round = self.begin(now);
        while self.step(now, usize::MAX, changes) {}
        round
    }

    /// Begins a round that is done step by step, by [`Fleet::step`]: in a large fleet a round takes
    /// long, and there is other work. Whatever of the last one is not done goes on in this.
    pub fn begin(&mut self, now: Timestamp) -> Round {
        let mut round = Round::default();
        self.end_leases(now, &mut round);
        round.unseen = self.ledger.places.settle(self.ledger.tasks());
        if !self.learned && !self.is_learning(now) {
            self.learned = true;
            self.ledger.mark_all();
        }
        // Nobody reports what does not happen: look through a part of the customers for entries
        // without demand, so that each is looked at once in 64 rounds.
        let count = self.ledger.customers.len();
        for _ in 0..count.div_ceil(64) {
            self.sweep = (self.sweep + 1) % count;
            self.ledger.mark(self.sweep);
        }
        self.due = self.ledger.dirty.len();
        round.customers = self.due;
        let pairs = |&customer: &u32| self.ledger.customers[customer as usize].entries.len();
        round.pairs = self.ledger.dirty.iter().map(pairs).sum();
        round
    }

    /// Goes on with a round, until some `pairs` of task and customer were looked at: one customer
    /// at least, and each of them whole. Returns whether there is more to do.
    pub fn step(&mut self, now: Timestamp, pairs: usize, changes: &mut Vec<Change>) -> bool {
        let learning = self.is_learning(now);
        let mut left = pairs;
        while self.due > 0
            && let Some(customer) = self.ledger.dirty.pop_front()
        {
            let index = customer as usize;
            self.due -= 1;
            self.divided += 1;
            let count = self.ledger.customers[index].entries.len();
            let more =
                self.divider.divide(&mut self.ledger, &self.config, index, learning, now, changes);
            self.ledger.customers[index].dirty = false;
            if more {
                self.ledger.mark(index);
            }
            left = left.saturating_sub(count.max(1));
            if left == 0 {
                break;
            }
        }
        self.due > 0
    }

    /// How many times a customer's limits were divided so far. A report has been taken into account
    /// when that is as many as its [`Answer::due`].
    pub const fn divided(&self) -> u64 {
        self.divided
    }

    fn set_limits(&mut self, customer: CustomerId, limits: Limits) {
        self.ledger.customers[customer.index()].limits = nanos(limits.as_array());
        self.ledger.mark(customer.index());
    }

    fn end_leases(&mut self, now: Timestamp, round: &mut Round) {
        for slot in 0..self.ledger.tasks.len() {
            let task = &mut self.ledger.tasks[slot];
            if now < task.deadline {
                continue;
            }
            match task.state {
                State::Vacant => {}
                State::Live => {
                    task.state = State::Lost;
                    task.deadline = now + self.config.forget;
                    self.ledger.lapse(slot, self.config.safe);
                    round.lost += 1;
                }
                State::Lost | State::Replaced => {
                    self.ledger.strike(slot);
                    round.forgotten += 1;
                }
            }
        }
    }
}

/// A line that needs no entry.
fn is_nothing(usage: &Usage) -> bool {
    let nothing = [CostRate::ZERO; LEVELS];
    usage.used == nothing && usage.demand == nothing && usage.has.is_none()
}

#[cfg(test)]
mod tests;
