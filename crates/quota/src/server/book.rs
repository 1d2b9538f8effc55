//! One service: the leader's book and the streams of its tasks.
//!
//! `tidegate_core::fleet` decides; this hands it what tasks say, and hands tasks what it decides.
//! Everything a task is told waits until the next round and goes out as one message: the answer
//! that renews its lease, limits that changed, and customers that are new or gone. So a fleet of
//! any size is told at most once a round each, whatever happens.
//!
//! **Bounds.** A task that does not read fills its channel, loses its stream, and comes back; one
//! that reads but does not acknowledge is not renewed. Names of customers come from the
//! configuration alone, and a number that nobody was told counts as everyone else, so a task cannot
//! make anything grow but its own lines, which are counted.

use super::history::History;
use crate::config::Service;
use crate::message::{task_id, write_limits, write_rates, write_task_id};
use core::time::Duration;
use std::collections::BTreeMap;
use tidegate_core::fleet::{Change, Fleet, FleetConfigError, Full, Generation, TaskId, Usage};
use tidegate_core::{CostRate, CustomerId, Timestamp};
use tidegate_wire::proto::tidegate::quota::v1::{self as wire, ServerMessage};
use tokio::sync::mpsc;
use tonic::Status;

/// Messages for one task that were not sent yet: a second's worth. Who is further behind than that
/// is better off with a new stream.
pub(crate) const BACKLOG: usize = 8;

/// Lines about customers that are written in a round, when all tasks have to be told of all of them
/// again: some 20 ms of CPU time, and 20 MB until they are sent. Ten thousand tasks with a thousand
/// customers are told within half a minute; while they are not, newcomers find no more than some
/// hundredths of a limit too much.
const LINES_PER_ROUND: usize = 100_000;

/// How often to look who is over.
const HISTORY_EVERY: Duration = Duration::from_secs(1);

pub(crate) type Out = mpsc::Sender<Result<ServerMessage, Status>>;

/// Which stream of which task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamId {
    task: TaskId,
    serial: u64,
}

#[derive(Debug)]
struct Stream {
    serial: u64,
    out: Out,
    /// The last report, and whether it has to be answered.
    number: u64,
    answers: u64,
    due: bool,
    /// It has to be told of all customers again.
    behind: bool,
    /// What to say in the next round.
    next: ServerMessage,
}

/// One service.
#[derive(Debug)]
pub(crate) struct Book {
    service: Service,
    epoch: u64,
    fleet: Fleet,
    /// By how much the time of the fleet is ahead: a leader that has nothing to learn began to
    /// learn so long ago.
    ahead: Duration,
    /// Who is configured, by name.
    customers: BTreeMap<String, CustomerId>,
    streams: BTreeMap<TaskId, Stream>,
    serials: u64,
    /// How many of them may have to be told of all customers again.
    behind: usize,
    learning: bool,
    history: History,
    history_due: Timestamp,
    changes: Vec<Change>,
}

impl Book {
    /// The book of the leader of `epoch`, which `learns` if there was one before.
    pub(crate) fn new(
        service: Service,
        epoch: u64,
        learns: bool,
        now: Timestamp,
    ) -> Result<Self, FleetConfigError> {
        let ahead = if learns { Duration::ZERO } else { service.fleet.learning };
        let mut fleet = Fleet::new(service.fleet.clone(), epoch, service.default, now)?;
        let mut customers = BTreeMap::new();
        for (name, limits) in &service.customers {
            // There is room for all: a configuration with more is refused.
            if let Ok(id) = fleet.set_customer(name, *limits) {
                customers.insert(name.clone(), id);
            }
        }
        Ok(Self {
            service,
            epoch,
            fleet,
            ahead,
            customers,
            streams: BTreeMap::new(),
            serials: 0,
            behind: 0,
            learning: learns,
            history: History::default(),
            history_due: now + ahead + HISTORY_EVERY,
            changes: Vec::new(),
        })
    }

    /// A task opened a stream.
    pub(crate) fn open(
        &mut self,
        hello: &wire::Hello,
        out: Out,
        now: Timestamp,
    ) -> Result<StreamId, Status> {
        let now = now + self.ahead;
        if hello.epoch_seen > self.epoch {
            return Err(Status::failed_precondition(format!(
                "the task has seen a leader of epoch {}, and this server has epoch {}: it was \
                 replaced, or its clock was set back. Set the clock right, or name a file `state` \
                 in which it can remember, and start it again",
                hello.epoch_seen, self.epoch
            )));
        }
        let resumed = hello.resumes.map(task_id).filter(|id| self.fleet.resume(*id, now).is_ok());
        let task = match resumed {
            Some(task) => task,
            None => self.fleet.join(&hello.task, hello.weight.max(1), now).map_err(full)?,
        };
        self.serials += 1;
        let millis = |span: Duration| u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
        let silence = self.service.fleet.silence;
        let next = ServerMessage {
            welcome: Some(wire::Welcome {
                task: Some(write_task_id(task)),
                joined: resumed.is_none(),
                report_every_ms: millis(self.service.report_every),
                hold_ms: millis(silence.hold),
                tau_ms: millis(silence.tau),
            }),
            customers: self.announcement(),
            ..ServerMessage::default()
        };
        let serial = self.serials;
        let mut stream =
            Stream { serial, out, number: 0, answers: 0, due: true, behind: false, next };
        // The channel is new and so has room.
        if stream.tell(self.learning) {
            self.streams.insert(task, stream);
        }
        Ok(StreamId { task, serial })
    }

    /// A task said something. What makes no sense ends its stream, with what is wrong.
    pub(crate) fn hear(&mut self, of: StreamId, said: &Said, now: Timestamp) {
        // One that was replaced by a newer stream of the same task has nothing more to say.
        let stream = self.streams.get_mut(&of.task);
        let Some(stream) = stream.filter(|stream| stream.serial == of.serial) else { return };
        let taken = stream.take(&mut self.fleet, of.task, said, now + self.ahead);
        if let Err(status) = &taken {
            let _ = stream.out.try_send(Err(status.clone()));
        }
        if said.leaves {
            self.fleet.leave(of.task);
        }
        if taken.is_err() || said.leaves {
            self.streams.remove(&of.task);
        }
    }

    /// A stream ended. Its task may come back; until its lease ends it counts.
    pub(crate) fn close(&mut self, of: StreamId) {
        if self.streams.get(&of.task).is_some_and(|stream| stream.serial == of.serial) {
            self.streams.remove(&of.task);
        }
    }

    /// The leader's time is up: nobody is told anything any more.
    pub(crate) fn end_streams(&mut self) {
        self.streams.clear();
    }

    /// One round; `wall` is the time in milliseconds since 1970.
    pub(crate) fn tick(&mut self, now: Timestamp, wall: u64) {
        let now = now + self.ahead;
        if self.customers.len() < self.service.customers.len() {
            self.enrol_late();
        }
        let round = self.fleet.tick(now, &mut self.changes);
        self.learning = self.fleet.is_learning(now);
        for change in self.changes.drain(..) {
            let Some(stream) = self.streams.get_mut(&change.task) else { continue };
            stream.next.grants.push(wire::Grant {
                customer: change.customer.0,
                number: change.generation.number,
                limits: write_limits(change.limits),
                safe: write_limits(change.safe),
                revoked: change.revoked,
            });
        }
        if round.unseen {
            self.behind = self.streams.len();
            self.streams.values_mut().for_each(|stream| stream.behind = true);
        }
        if self.behind > 0 {
            self.catch_up();
        }
        let learning = self.learning;
        self.streams.retain(|_, stream| stream.tell(learning));
        if now >= self.history_due {
            self.history_due = now + HISTORY_EVERY;
            let everyone_else = ("", CustomerId::DEFAULT);
            let named = self.customers.iter().map(|(name, id)| (name.as_str(), *id));
            for (name, id) in named.chain([everyone_else]) {
                if let Some(status) = self.fleet.status(id) {
                    self.history.note(name, &status, wall);
                }
            }
        }
    }

    /// Tells some of those of all customers again who have to be told.
    fn catch_up(&mut self) {
        let everyone = self.announcement();
        let some = (LINES_PER_ROUND / everyone.len()).max(1);
        for stream in self.streams.values_mut().filter(|stream| stream.behind).take(some) {
            stream.behind = false;
            stream.next.customers.clone_from(&everyone);
        }
        self.behind = self.behind.saturating_sub(some);
    }

    /// Other limits from now on.
    pub(crate) fn reload(&mut self, service: Service) {
        let mut gone = Vec::new();
        let mut changed = Vec::new();
        self.customers.retain(|name, id| {
            let stays = service.customers.contains_key(name);
            if !stays {
                self.fleet.remove_customer(name);
                self.history.end(name);
                gone.push(id.0);
            }
            stays
        });
        for (name, limits) in &service.customers {
            if self.service.customers.get(name) == Some(limits) {
                continue;
            }
            // Who finds no room has to wait until others are taken back, and is one of everyone
            // else until then.
            if let Ok(id) = self.fleet.set_customer(name, *limits) {
                self.customers.insert(name.clone(), id);
                changed.push((name.as_str(), id));
            }
        }
        if self.service.default != service.default {
            self.fleet.set_default(service.default);
            changed.push(("", CustomerId::DEFAULT));
        }
        let changed: Vec<_> = changed.iter().map(|(name, id)| self.announce(name, *id)).collect();
        for stream in self.streams.values_mut() {
            stream.next.gone.extend(&gone);
            stream.next.customers.extend(changed.iter().cloned());
        }
        self.service = service;
    }

    /// Gives those a place who found none when the file was read.
    fn enrol_late(&mut self) {
        let mut late = Vec::new();
        for (name, limits) in &self.service.customers {
            if self.customers.contains_key(name) {
                continue;
            }
            let Ok(id) = self.fleet.set_customer(name, *limits) else { break };
            self.customers.insert(name.clone(), id);
            late.push(self.announce(name, id));
        }
        for stream in self.streams.values_mut() {
            stream.next.customers.extend(late.iter().cloned());
        }
    }

    /// How things stand.
    pub(crate) fn status(&self, name: &str) -> wire::ServiceStatus {
        let everyone_else = [("", CustomerId::DEFAULT)];
        let named = self.customers.iter().map(|(name, id)| (name.as_str(), *id));
        let customers = everyone_else.into_iter().chain(named).filter_map(|(name, id)| {
            let status = self.fleet.status(id)?;
            Some(wire::CustomerStatus {
                name: name.to_owned(),
                limits: write_limits(status.limits),
                used: write_rates(status.used),
                demand: write_rates(status.demand),
                counted: write_rates(status.counted),
                tasks: u32::try_from(status.tasks).unwrap_or(u32::MAX),
            })
        });
        let overs = self.history.latest().map(|over| wire::Over {
            customer: over.customer.clone(),
            began_ms: over.began,
            ended_ms: if over.ended { over.last } else { 0 },
            demand_max: over.demand_max.as_nanos_per_sec(),
        });
        wire::ServiceStatus {
            service: name.to_owned(),
            learning: self.learning,
            tasks: u32::try_from(self.streams.len()).unwrap_or(u32::MAX),
            capacity: self.service.capacity.map_or(0, CostRate::as_nanos_per_sec),
            customers: customers.collect(),
            overs: overs.collect(),
        }
    }

    /// All customers.
    fn announcement(&self) -> Vec<wire::Customer> {
        let named = self.customers.iter().map(|(name, id)| self.announce(name, *id));
        named.chain([self.announce("", CustomerId::DEFAULT)]).collect()
    }

    fn announce(&self, name: &str, id: CustomerId) -> wire::Customer {
        let unseen = write_limits(self.fleet.unseen(id));
        wire::Customer { number: id.0, name: name.to_owned(), unseen }
    }
}

/// What a task said, as far as it makes sense by itself.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// The number of a report, and what is in it.
    pub(crate) report: Option<(u64, Vec<Usage>)>,
    pub(crate) acked: Option<Generation>,
    pub(crate) leaves: bool,
}

impl Stream {
    /// Takes in what the task said.
    fn take(
        &mut self,
        fleet: &mut Fleet,
        task: TaskId,
        said: &Said,
        now: Timestamp,
    ) -> Result<(), Status> {
        let not_joined = |_| {
            Status::aborted(
                "the task is not known any more, or another process has joined by its name: open \
                 a new stream; if this happens again and again, two tasks have one name",
            )
        };
        if let Some((number, usages)) = &said.report {
            if *number <= self.number {
                return Err(Status::invalid_argument(format!(
                    "report {number} came after report {}: numbers have to rise",
                    self.number
                )));
            }
            self.number = *number;
            let answer = fleet.report(task, said.acked, usages, now).map_err(not_joined)?;
            if !answer.renewed {
                return Err(Status::deadline_exceeded(
                    "grants were not acknowledged for too long: open a new stream",
                ));
            }
            (self.answers, self.due) = (*number, true);
        } else if let Some(acked) = said.acked {
            fleet.acknowledge(task, acked, now).map_err(not_joined)?;
        }
        Ok(())
    }

    /// Sends what there is to say, if anything. Returns whether the task still listens.
    fn tell(&mut self, learning: bool) -> bool {
        let next = &self.next;
        let news = self.due
            || !(next.grants.is_empty() && next.customers.is_empty() && next.gone.is_empty());
        if !news {
            return !self.out.is_closed();
        }
        self.due = false;
        let mut message = core::mem::take(&mut self.next);
        (message.answers, message.learning) = (self.answers, learning);
        self.out.try_send(Ok(message)).is_ok()
    }
}

fn full(full: Full) -> Status {
    Status::resource_exhausted(full.to_string())
}

#[cfg(test)]
mod tests;
