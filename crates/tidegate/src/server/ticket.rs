//! A request that another program serves.
//!
//! A proxy asks the same gate, for the same reasons, as a service that protects itself; but the
//! work is not done in its process. So there is nothing to meter: what the request has cost is what
//! the program says with its answer (ORCA's `request_cost`), or what its class was found to cost
//! ([`attribution`](tidegate_core::attribution)), or what was thought beforehand.
//!
//! **Full answers.** No program hears that a degraded answer would help: if it was asked at all,
//! its answer is a full one, whatever the gate has wished for, and is remembered as such. What was
//! answered without it ([`Ticket::spared`]) says nothing of what answers cost: all estimates are of
//! full answers. It counts as what was thought beforehand, with its customer and in what the gate
//! takes for done: counted as nothing, a program whose callers get copies would seem to do more
//! than it can, by as much as there are copies.
//!
//! What never came to the program and was not answered either ([`Ticket::unserved`]) costs nobody
//! anything, and says nothing of what requests cost.
//!
//! [`Task::admit`] gives a [`Ticket`], which is in flight until it is dropped, however the request
//! ends.

use super::PeerIdentity;
use super::decide::{Admitted, Verdict, judge};
use super::serving::is_known;
use super::trace::Trace;
use crate::metrics::cell;
use crate::report::{COST_NAME, Wanted};
use crate::task::Task;
use bytes::Bytes;
use core::time::Duration;
use http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use tidegate_core::admission::Permit;
use tidegate_core::attribution::ClassId;
use tidegate_core::cost::MethodId;
use tidegate_core::{Cost, Criticality, CustomerId, Timestamp};
use tidegate_wire::headers::ENDPOINT_LOAD_METRICS;
use tidegate_wire::protocol::Protocol;
use tidegate_wire::reject::DecisionId;
use tidegate_wire::{answer, orca};

/// The answer of [`Task::admit`].
#[derive(Debug)]
#[must_use]
pub enum Admission {
    /// Hand it on, and keep the ticket until its answer has ended.
    Admitted(Ticket),
    /// Answer this.
    Rejected(Response<Bytes>),
}

/// A request that was let in and is not done.
#[derive(Debug)]
#[must_use = "the request counts as done when its ticket is dropped"]
#[expect(clippy::struct_excessive_bools, reason = "each is found out at a moment of its own")]
pub struct Ticket {
    task: Task,
    /// Gone once it was given back.
    permit: Option<Permit>,
    trace: Trace,
    id: DecisionId,
    protocol: Protocol,
    began: Timestamp,
    deadline: Option<Timestamp>,
    attempt: u32,
    method: MethodId,
    class: Option<ClassId>,
    good: bool,
    /// Whether it was counted as failed: once, however often it is found out.
    failed: bool,
    wanted: Option<Wanted>,
    unknown: Option<Box<str>>,
    /// What the program says that it has cost.
    said: Option<Cost>,
    /// Whether it never came to the program.
    unserved: bool,
    /// Whether that was because it was answered without.
    spared: bool,
}

impl Task {
    /// Decides about a request that another program will serve. Its method is `method`, or what
    /// the request says; it counts as `default` if it does not say and its method has no default.
    #[inline]
    pub fn admit<B>(
        &self,
        request: &Request<B>,
        method: Option<&str>,
        default: Option<Criticality>,
    ) -> Admission {
        self.decide(request, method, default, None)
    }

    /// The same for a request from `peer`, be it said by its extensions or not.
    #[inline]
    pub fn admit_from<B>(
        &self,
        peer: &PeerIdentity,
        request: &Request<B>,
        method: Option<&str>,
        default: Option<Criticality>,
    ) -> Admission {
        self.decide(request, method, default, Some(peer))
    }

    #[inline]
    fn decide<B>(
        &self,
        request: &Request<B>,
        method: Option<&str>,
        default: Option<Criticality>,
        peer: Option<&PeerIdentity>,
    ) -> Admission {
        let verdict = judge(self, request, default, method, peer, |admitted| {
            let Admitted { permit, id, protocol, method, customer, name, .. } = admitted;
            let class = self.inner.remote.as_ref().map(|remote| {
                let class = remote.classes.class(customer, method.id);
                self.inner.with_lane(|lane| lane.came(class));
                class
            });
            Ticket {
                trace: Trace::of(&permit, id),
                task: self.clone(),
                permit: Some(permit),
                id,
                protocol,
                began: admitted.now,
                deadline: admitted.deadline,
                attempt: admitted.attempt,
                method: method.id,
                class,
                good: false,
                failed: false,
                wanted: admitted.wanted,
                unknown: method.is_new.then(|| name.into()),
                said: None,
                unserved: false,
                spared: false,
            }
        });
        match verdict {
            Verdict::Serve(ticket) => Admission::Admitted(ticket),
            Verdict::Reject(response) => Admission::Rejected(response),
        }
    }
}

impl Ticket {
    /// What it counts as.
    pub fn criticality(&self) -> Criticality {
        self.permit.as_ref().map_or(Criticality::Critical, Permit::criticality)
    }

    /// Whom it is charged to.
    pub fn customer(&self) -> CustomerId {
        self.permit.as_ref().map_or(CustomerId::DEFAULT, Permit::customer)
    }

    /// Whether a cheaper answer would help.
    pub fn degrade(&self) -> bool {
        self.permit.as_ref().is_some_and(Permit::degrade)
    }

    /// Which try it is, from 1.
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When its caller stops waiting.
    pub const fn deadline(&self) -> Option<Timestamp> {
        self.deadline
    }

    /// How long its caller still waits, if it has said.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.since(self.task.clock().now()))
    }

    /// The number of the decision to let it in.
    pub const fn decision(&self) -> DecisionId {
        self.id
    }

    /// Whether it is a call of gRPC.
    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The head of its answer has come; `last` if no body comes after it. Takes the program's own
    /// load report out of it, and puts ours in where one is wanted.
    #[inline]
    pub fn answered(&mut self, status: StatusCode, headers: &mut HeaderMap, last: bool) {
        self.read(headers);
        let last = last || answer::is_final(status, headers, self.protocol);
        if last {
            self.ends(status, headers);
        }
        if self.protocol == Protocol::Http || last {
            self.report(headers);
        }
    }

    /// Its trailers have come.
    pub fn trailers(&mut self, trailers: &mut HeaderMap) {
        self.read(trailers);
        if self.protocol == Protocol::Grpc {
            self.ends(StatusCode::OK, trailers);
            self.report(trailers);
        }
    }

    /// It has failed: without an answer, or in the middle of it.
    #[cold]
    pub fn failed(&mut self) {
        self.good = false;
        if !core::mem::replace(&mut self.failed, true) {
            self.task.inner.with_lane(|lane| lane.count(cell::FAILED));
        }
    }

    /// The program never had it: it has failed, and took no time of the program's.
    #[cold]
    pub fn unserved(&mut self) {
        self.unserved = true;
        self.failed();
    }

    /// It was answered without the program, as well as that could be.
    pub const fn spared(&mut self) {
        (self.unserved, self.spared) = (true, true);
    }

    /// Its caller has gone away before the end of the answer.
    pub const fn abandoned(&mut self) {
        self.good = false;
    }

    #[inline]
    fn ends(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.good = !answer::is_failure(status, headers, self.protocol);
        if !self.good {
            self.failed();
        }
        if let Some(name) = self.unknown.take()
            && is_known(status, headers)
        {
            self.task.inner.methods.enter(&name);
        }
    }

    /// What the program says about itself.
    #[inline]
    fn read(&mut self, headers: &mut HeaderMap) {
        // Both names begin so; to look for them would be to hash them, for nothing in most answers.
        let there = |name: &HeaderName| name.as_str().starts_with(ENDPOINT_LOAD_METRICS.as_str());
        if headers.keys().any(there) {
            self.read_report(headers);
        }
    }

    #[cold]
    fn read_report(&mut self, headers: &mut HeaderMap) {
        let report = orca::read(headers);
        orca::strip(headers);
        let inner = &self.task.inner;
        let report = match report {
            Ok(Some(report)) => report,
            Ok(None) => return,
            Err(invalid) => {
                let cells = crate::metrics::fault_cells(invalid.into());
                inner.with_lane(|lane| cells.for_each(|cell| lane.count(cell)));
                return;
            }
        };
        if let Some(&seconds) = report.request_cost.get(COST_NAME)
            && let Ok(local) = Duration::try_from_secs_f64(seconds)
        {
            self.said = Some(inner.factor.cost_of(local));
        }
        if let Some(remote) = &inner.remote {
            remote.says(&report, inner.clock.now());
        }
    }

    fn report(&mut self, headers: &mut HeaderMap) {
        if let Some(wanted) = self.wanted.take() {
            let cost = self.cost();
            self.task.inner.reports.write(headers, wanted, cost);
        }
    }

    /// What it costs, as far as is known.
    fn cost(&self) -> Cost {
        if self.unserved && !self.spared {
            return Cost::ZERO;
        }
        let found = || self.task.inner.remote.as_ref()?.classes.cost(self.class?);
        let thought = || self.permit.as_ref().map_or(Cost::ZERO, Permit::charged);
        self.said.or_else(found).unwrap_or_else(thought)
    }
}

impl Drop for Ticket {
    #[inline]
    fn drop(&mut self) {
        let cost = self.cost();
        let Some(permit) = self.permit.take() else { return };
        self.trace.done(cost);
        let inner = &self.task.inner;
        let now = inner.clock.now();
        let in_time = self.deadline.is_none_or(|deadline| now <= deadline);
        let good = (self.good && in_time).then_some(permit.criticality());
        inner.with_lane(|lane| {
            if let Some(class) = self.class {
                // What the program has not seen explains none of its CPU.
                lane.done(class, if self.unserved { Some(Cost::ZERO) } else { self.said });
            }
            if self.spared {
                lane.spare(permit, now);
            } else if self.unserved {
                lane.release(permit, now);
            } else {
                lane.complete(permit.in_full(), self.method, cost, now);
            }
            if !self.unserved {
                lane.ended(now.since(self.began), good);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workplace::Unseen;
    use http::HeaderValue;
    use tidegate_core::Utilization;
    use tidegate_core::admission::Controller;
    use tidegate_core::admission::shed::ShedConfig;
    use tidegate_core::attempts::AttemptsConfig;
    use tidegate_core::quota::UsageMeter;
    use tidegate_core::signal::Reading;

    /// Asks for degraded answers from the beginning.
    fn degrading(guess: Cost) -> Task {
        let task = Task::builder("test").workplace(Unseen).cost_guess(guess).build().unwrap();
        let (gate, now) = (task.gate(), task.clock().now());
        let (shed, attempts) = (ShedConfig::default(), AttemptsConfig::default());
        let mut controller = Controller::new(shed, attempts, gate, now);
        let utilization = Utilization::new(0.72).unwrap();
        let reading = Reading { utilization, instant: utilization, ..Reading::IDLE };
        controller.tick(gate, reading, now);
        task
    }

    fn ticket(task: &Task) -> Ticket {
        let Admission::Admitted(ticket) = task.admit(&Request::new(()), None, None) else {
            panic!("it is refused");
        };
        assert!(ticket.degrade());
        ticket
    }

    fn estimates(task: &Task) -> [Cost; 2] {
        let of = |degraded| MethodId(0).answering(degraded);
        [false, true].map(|kind| task.inner.costs.estimate(CustomerId::DEFAULT, of(kind)))
    }

    #[test]
    fn what_a_program_answers_is_a_full_answer_whatever_was_wished_for() {
        let [guess, truth] = [10, 20].map(Cost::from_millis);
        let task = degrading(guess);
        let mut answered = ticket(&task);
        let mut headers = HeaderMap::new();
        let report = HeaderValue::from_static("TEXT named_metrics.x=1, request_cost.cpu=0.02");
        headers.insert(&ENDPOINT_LOAD_METRICS, report);
        answered.answered(StatusCode::OK, &mut headers, true);
        drop(answered);
        // Of degraded ones nothing is known, so that full ones stand for them.
        assert_eq!(estimates(&task), [truth, truth]);
        assert_eq!(task.gate().counts().worked(), truth);
    }

    #[test]
    fn what_was_answered_without_the_program_counts_as_thought_and_teaches_nothing() {
        let guess = Cost::from_millis(10);
        let task = degrading(guess);
        ticket(&task).spared();
        assert_eq!(estimates(&task), [guess, guess]);
        let counts = task.gate().counts();
        assert_eq!((counts.worked(), counts.completed(), counts.inflight()), (guess, 1, 0));
    }
    /// Neither its customer nor the estimates know of it.
    #[test]
    fn what_the_program_never_had_costs_nobody_anything_and_teaches_nothing() {
        let guess = Cost::from_millis(10);
        let task = degrading(guess);
        let (quota, begin) = (task.gate().quota(), task.clock().now());
        let mut meter = UsageMeter::new(quota, begin);
        let mut used = |later| {
            let mut cpus = 0.0;
            meter.collect(quota, begin + later, |_, usage| {
                cpus += usage.used.iter().map(|rate| rate.as_cpus()).sum::<f64>();
            });
            cpus
        };
        let mut lost = ticket(&task);
        assert_eq!(lost.cost(), guess);
        lost.unserved();
        assert_eq!(lost.cost(), Cost::ZERO);
        drop(lost);
        assert_eq!(estimates(&task), [guess, guess]);
        let counts = task.gate().counts();
        let counts = (counts.worked(), counts.completed(), counts.inflight());
        assert_eq!(counts, (Cost::ZERO, 1, 0));
        let snapshot = task.snapshot();
        assert_eq!((snapshot.failed, snapshot.costs.sum), (1, Cost::ZERO));
        assert_eq!(used(Duration::from_secs(1)), 0.0);
        drop(ticket(&task));
        assert!((used(Duration::from_secs(2)) - 0.01).abs() < 1e-6);
    }
}
