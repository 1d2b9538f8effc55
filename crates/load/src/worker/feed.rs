//! What is due at one thread.
//!
//! All threads walk the same schedule and each takes every n-th start, so that what is asked and
//! when does not depend on how many threads there are.

use super::ActRef;
use crate::mix::{Choice, choose};
use crate::plan::Load;
use crate::schedule::{Arrivals, Stage, dice_of};
use crate::text::Rate;
use core::time::Duration;
use std::rc::Rc;
use std::time::Instant;

/// A request that is due, with all that is known about it.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) act: ActRef,
    pub(super) choice: Choice,
    /// When it should have started.
    pub(super) intended: Instant,
    /// The next attempt, from 1.
    pub(super) attempt: u32,
    /// Whether it counts.
    pub(super) measured: bool,
}

impl Job {
    /// How long its caller waits.
    fn patience(&self) -> Duration {
        let course = &self.act.course;
        match self.choice.deadline {
            Some(deadline) if !course.wait_past_deadline => deadline.min(course.timeout),
            _ => course.timeout,
        }
    }

    /// When its caller gives up on the request as a whole.
    pub(super) fn gives_up(&self) -> Instant {
        self.intended + self.patience()
    }

    /// When its caller gives up on an attempt that starts `now`. Naive callers wait for each
    /// attempt as long as for the first.
    pub(super) fn attempt_ends(&self, now: Instant) -> Instant {
        let naive = matches!(self.act.course.retry, crate::plan::Retry::Naive(_));
        let end = if naive && self.attempt > 1 { now + self.patience() } else { self.gives_up() };
        self.act.course.attempt_timeout.map_or(end, |timeout| end.min(now + timeout))
    }
}

/// Starts of this thread, one at a time.
pub(super) struct Feed {
    act: ActRef,
    arrivals: Option<Arrivals>,
    stride: u64,
    offset: u64,
    /// The next start that is ours.
    next: Option<(Instant, u64)>,
    /// Closed loop: how many were asked.
    asked: u64,
}

impl Feed {
    pub(super) fn new(act: ActRef, stride: u64, offset: u64) -> Self {
        let arrivals = match &act.course.load {
            Load::Closed { .. } => None,
            Load::Open { stages, spacing } => {
                let stages = with_warmup(stages, act.warmup);
                Some(Arrivals::new(&stages, *spacing, act.course.seed))
            }
        };
        let mut feed = Self { act, arrivals, stride, offset, next: None, asked: 0 };
        feed.advance();
        feed
    }

    fn advance(&mut self) {
        let (begin, stride, offset) = (self.act.begin, self.stride, self.offset);
        let arrivals = self.arrivals.as_mut();
        let next = arrivals.and_then(|all| all.find(|one| one.number % stride == offset));
        self.next = next.map(|arrival| (begin + arrival.at, arrival.number));
    }

    /// When the next one is due.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.next.map(|(at, _)| at)
    }

    /// Nothing more is due.
    pub(super) fn stop(&mut self) {
        self.next = None;
        self.arrivals = None;
        self.asked = u64::MAX;
    }

    /// The next one, if it is due.
    #[inline]
    pub(super) fn take(&mut self, now: Instant) -> Option<Job> {
        let (intended, number) = self.next.filter(|(at, _)| *at <= now)?;
        self.advance();
        Some(self.job(intended, number))
    }

    /// In a closed loop: the next one, for somebody who is free.
    #[inline]
    pub(super) fn take_closed(&mut self, now: Instant) -> Option<Job> {
        let closed = matches!(self.act.course.load, Load::Closed { .. });
        if !closed || self.asked == u64::MAX || now >= self.act.end || now < self.act.begin {
            return None;
        }
        let number = self.asked * self.stride + self.offset;
        self.asked += 1;
        Some(self.job(now, number))
    }

    fn job(&self, intended: Instant, number: u64) -> Job {
        let choice = choose(&self.act.course.routes, &mut dice_of(self.act.course.seed, number));
        let measured = intended >= self.act.begin + self.act.warmup;
        Job { act: Rc::clone(&self.act), choice, intended, attempt: 1, measured }
    }
}

/// The stages, after a warm-up at the rate of their beginning.
fn with_warmup(stages: &[Stage], warmup: Duration) -> Vec<Stage> {
    let first = stages.first().map_or(0.0, Stage::rate_first);
    let mut all = Vec::with_capacity(stages.len() + 1);
    if !warmup.is_zero() {
        all.push(Stage::constant(Rate(first), warmup));
    }
    all.extend_from_slice(stages);
    all
}
