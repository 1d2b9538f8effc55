//! One request after the other on a line, each with all of its attempts.

use super::feed::Job;
use super::line::Line;
use super::{Delayed, Worker};
use crate::plan::Retry;
use crate::request::Ask;
use crate::stats::NotSent;
use crate::verdict::{ErrorKind, Failed, Verdict};
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::Poll;
use core::time::Duration;
use std::rc::Rc;
use std::time::Instant;
use tidegate_core::Outcome;
use tidegate_core::decision::{Advice, Reason};
use tidegate_core::retry::{RetryDecision, RetryPolicy};
use tokio::time::Sleep;

/// What follows an attempt.
enum Next {
    /// It ended well.
    Good,
    /// It did not, and that stands.
    Bad,
    Retry(Duration),
}

/// How an attempt ended, and when it was sent.
struct Attempted {
    result: Result<Verdict, Failed>,
    sent: Option<Instant>,
}

/// The task of a line.
pub(super) async fn serve_all(
    worker: Rc<Worker>,
    number: u32,
    mut line: Line,
    mut first: Option<Job>,
) {
    // One timer for all requests of a line: setting it to a later time costs next to nothing.
    let mut alarm = pin!(tokio::time::sleep(Duration::ZERO));
    loop {
        let job = match first.take() {
            Some(job) => Some(job),
            None => poll_fn(|cx| worker.poll_job(number, cx)).await,
        };
        let Some(job) = job else { return };
        worker.serve(&mut line, alarm.as_mut(), job).await;
    }
}

/// What `future` comes to, if that is before `end`.
async fn before<F: Future>(
    mut alarm: Pin<&mut Sleep>,
    end: Instant,
    future: F,
) -> Option<F::Output> {
    alarm.as_mut().reset(end.into());
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => alarm.as_mut().poll(cx).map(|()| None),
    })
    .await
}

impl Worker {
    async fn serve(&self, line: &mut Line, mut alarm: Pin<&mut Sleep>, mut job: Job) {
        loop {
            let now = Instant::now();
            let end = job.attempt_ends(now);
            if now >= end {
                return self.not_sent(&job, NotSent::NoConnection);
            }
            if !self.may_send(&job) {
                return self.throttled(&job);
            }
            let remaining = job
                .choice
                .deadline
                .map(|deadline| (job.intended + deadline).saturating_duration_since(now));
            let ask = Ask { choice: job.choice, attempt: job.attempt, remaining };
            let mut sent = None;
            let attempt = line.attempt(&self.dial, &job.act.requests, &ask, &mut sent);
            let result = before(alarm.as_mut(), end, attempt).await.unwrap_or_else(|| {
                line.abandon();
                Err(Failed { kind: ErrorKind::Timeout, sent: sent.is_some() })
            });
            let attempted = Attempted { result, sent };
            let now = Instant::now();
            match self.judge(&job, &attempted, now) {
                Next::Good | Next::Bad => return self.finish(&job, &attempted, now),
                Next::Retry(Duration::ZERO) => job.attempt += 1,
                Next::Retry(after) => {
                    job.attempt += 1;
                    self.delayed.borrow_mut().push(Delayed { at: now + after, job });
                    // The pacer has to look at its clock again.
                    self.shared.heard[self.index].notify_one();
                    return;
                }
            }
        }
    }

    /// Whether the client's own throttle lets it through.
    fn may_send(&self, job: &Job) -> bool {
        let lanes = &mut *self.lanes.borrow_mut();
        let course = &job.act.course;
        if course.throttle {
            let decision = lanes.throttle.decide(job.choice.criticality, &mut lanes.rng);
            if decision.is_err() {
                return false;
            }
        }
        if course.retry == Retry::Budgeted && job.attempt == 1 {
            lanes.budget.deposit();
        }
        true
    }

    fn throttled(&self, job: &Job) {
        if job.measured {
            let mut stats = self.stats(job);
            let level = stats.level(job.choice.criticality);
            // What was tried before has failed; it is the retry that was held back.
            if job.attempt == 1 { level.throttled += 1 } else { level.failed += 1 }
        }
        self.settle(job);
    }

    /// Counts an attempt and says what follows.
    fn judge(&self, job: &Job, attempted: &Attempted, now: Instant) -> Next {
        let outcome = match &attempted.result {
            Ok(verdict) => verdict.outcome,
            Err(_) => Outcome::NoAnswer,
        };
        let course = &job.act.course;
        if course.throttle {
            self.lanes.borrow_mut().throttle.on_response(job.choice.criticality, outcome);
        }
        if job.measured {
            self.count_attempt(job, attempted);
        }
        if attempted.result.as_ref().is_ok_and(|verdict| verdict.ok) {
            return Next::Good;
        }
        if outcome.is_failure() != Some(true) {
            return Next::Bad;
        }
        match course.retry {
            Retry::Naive(attempts) if job.attempt < attempts.get() => Next::Retry(Duration::ZERO),
            Retry::None | Retry::Naive(_) => Next::Bad,
            Retry::Budgeted => self.ask_budget(job, attempted, now),
        }
    }

    fn ask_budget(&self, job: &Job, attempted: &Attempted, now: Instant) -> Next {
        let advised = match &attempted.result {
            Ok(verdict) => verdict.advice,
            Err(_) => None,
        };
        let unseen = attempted.result.as_ref().is_err_and(|failed| !failed.sent);
        let repeatable = unseen || job.act.requests.method(&job.choice).is_idempotent();
        let default = if repeatable { Advice::RetryElsewhere } else { Advice::DontRetry };
        let remaining = job.gives_up().saturating_duration_since(now);
        let withdraw = || self.lanes.borrow_mut().budget.withdraw();
        let policy = RetryPolicy::default();
        match policy.decide(job.attempt, advised.unwrap_or(default), remaining, withdraw) {
            RetryDecision::Retry { after } => Next::Retry(after),
            RetryDecision::GiveUp(reason) => {
                if job.measured {
                    self.stats(job).given_up[reason as usize] += 1;
                }
                Next::Bad
            }
        }
    }

    fn count_attempt(&self, job: &Job, attempted: &Attempted) {
        let mut stats = self.stats(job);
        let level = stats.level(job.choice.criticality);
        level.attempts += 1;
        level.sent += u64::from(job.attempt == 1);
        match &attempted.result {
            Ok(verdict) => {
                level.codes.add(verdict.code, 1);
                if let Some(reason) = verdict.reason
                    && let Some(place) = Reason::ALL.iter().position(|other| *other == reason)
                {
                    level.reasons[place] += 1;
                }
            }
            Err(failed) => {
                let place = ErrorKind::ALL.iter().position(|kind| *kind == failed.kind);
                level.errors[place.unwrap_or(ErrorKind::ALL.len() - 1)] += 1;
            }
        }
    }

    fn finish(&self, job: &Job, attempted: &Attempted, now: Instant) {
        if job.measured {
            let mut stats = self.stats(job);
            let level = job.choice.criticality;
            let latency = now.saturating_duration_since(job.intended);
            if attempted.result.as_ref().is_ok_and(|verdict| verdict.ok) {
                let sent = attempted.sent.unwrap_or(now);
                let service = now.saturating_duration_since(sent);
                stats.record_ok(level, latency, service, job.choice.deadline);
            } else {
                stats.record_unhappy(level, latency);
            }
        }
        self.settle(job);
    }
}
