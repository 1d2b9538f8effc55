//! The phases of a task, as a pure state machine.
//!
//! ```text
//!             ready             stop                 delay is over          idle, or limit
//! Starting ──────────► Serving ──────► LameDuck ───────────────────► Draining ────────► Gone
//!     └───────────────────────────── stop ──────────────────────────────►┘
//! ```
//!
//! A task that is stopped before it was ready has not been announced to anybody, so there is nobody
//! to wait for and it skips the lame duck. Asking for the same thing twice changes nothing: process
//! managers send SIGTERM more than once. Somebody who cannot wait says so by [`Course::hasten`].
//!
//! Time only moves it forward. A clock that steps back makes a phase longer, never shorter.

use core::time::Duration;
use tidegate_core::Timestamp;

/// How a task is at the moment. Later phases are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Phase {
    /// Warming up: not to be sent anything yet.
    Starting = 0,
    /// Takes requests.
    Serving = 1,
    /// Takes requests, and asks not to be sent any.
    LameDuck = 2,
    /// Finishes what it has, and takes nothing more.
    Draining = 3,
    /// Done.
    Gone = 4,
}

impl Phase {
    /// Whether somebody who can choose should choose this task.
    pub const fn is_ready(self) -> bool {
        matches!(self, Self::Serving)
    }

    /// Whether a request that comes nevertheless is served.
    pub const fn takes_requests(self) -> bool {
        matches!(self, Self::Serving | Self::LameDuck)
    }

    /// Whether there is no way back to serving.
    pub const fn is_leaving(self) -> bool {
        matches!(self, Self::LameDuck | Self::Draining | Self::Gone)
    }

    /// One word for logs and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::LameDuck => "lame duck",
            Self::Draining => "draining",
            Self::Gone => "gone",
        }
    }
}

/// How long the end takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LifeConfig {
    /// How long a lame duck goes on serving, so that all who send to it have time to hear of it.
    /// Health checks are made every five to ten seconds, and balancers want to see two of them. Too
    /// short, and requests meet a closed door; too long, and every roll-out takes that much longer.
    pub drain_delay: Duration,
    /// How long requests may take to finish after that. With the delay it has to fit into what the
    /// process manager grants before it kills: 30 s in Kubernetes, so this and the delay are 25.
    pub drain_max: Duration,
}

impl Default for LifeConfig {
    fn default() -> Self {
        Self { drain_delay: Duration::from_secs(10), drain_max: Duration::from_secs(15) }
    }
}

/// The state machine.
#[derive(Debug, Clone)]
pub struct Course {
    config: LifeConfig,
    phase: Phase,
    /// When the phase ends by itself; only lame ducks and draining tasks have that.
    deadline: Option<Timestamp>,
}

impl Course {
    /// A task that starts.
    pub const fn new(config: LifeConfig) -> Self {
        Self { config, phase: Phase::Starting, deadline: None }
    }

    /// The phase as of the last event.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// When to call [`Course::on_deadline`] next, if nothing else happens.
    pub const fn next_deadline(&self) -> Option<Timestamp> {
        self.deadline
    }

    /// It is warm. Changes nothing if it was already, or is on its way out.
    pub fn ready(&mut self) -> Phase {
        if self.phase == Phase::Starting {
            self.phase = Phase::Serving;
        }
        self.phase
    }

    /// It is to end. Changes nothing if it is on its way out.
    pub fn stop(&mut self, now: Timestamp) -> Phase {
        match self.phase {
            Phase::Starting => self.drain(now),
            Phase::Serving => {
                self.phase = Phase::LameDuck;
                self.deadline = Some(now + self.config.drain_delay);
            }
            Phase::LameDuck | Phase::Draining | Phase::Gone => {}
        }
        self.on_deadline(now)
    }

    /// It is to end sooner: whatever phase of the end it is in is over.
    pub fn hasten(&mut self, now: Timestamp) -> Phase {
        match self.phase {
            Phase::Starting | Phase::Serving => self.stop(now),
            Phase::LameDuck => {
                self.drain(now);
                self.on_deadline(now)
            }
            Phase::Draining | Phase::Gone => self.end(),
        }
    }

    /// Nothing is in flight any more. Only a draining task cares.
    pub fn idle(&mut self) -> Phase {
        match self.phase {
            Phase::Draining => self.end(),
            phase => phase,
        }
    }

    /// Time has passed.
    pub fn on_deadline(&mut self, now: Timestamp) -> Phase {
        while let Some(due) = self.deadline.filter(|&due| due <= now) {
            match self.phase {
                // From when it was due, not from when somebody looked.
                Phase::LameDuck => self.drain(due),
                _ => _ = self.end(),
            }
        }
        self.phase
    }

    fn drain(&mut self, from: Timestamp) {
        self.phase = Phase::Draining;
        self.deadline = Some(from + self.config.drain_max);
    }

    fn end(&mut self) -> Phase {
        self.phase = Phase::Gone;
        self.deadline = None;
        self.phase
    }
}

#[cfg(test)]
mod tests {
    use super::Phase::{Draining, Gone, LameDuck, Serving, Starting};
    use super::*;
    use proptest::prelude::*;

    const CONFIG: LifeConfig =
        LifeConfig { drain_delay: Duration::from_secs(10), drain_max: Duration::from_secs(15) };

    #[derive(Debug, Clone, Copy)]
    enum Event {
        Ready,
        Stop,
        Hasten,
        Idle,
        Time,
    }
    use Event::{Hasten, Idle, Ready, Stop, Time};

    fn apply(course: &mut Course, event: Event, now: Timestamp) -> Phase {
        match event {
            Ready => course.ready(),
            Stop => course.stop(now),
            Hasten => course.hasten(now),
            Idle => course.idle(),
            Time => course.on_deadline(now),
        }
    }

    /// At a second, what happens, the phase after it, and the second at which that is over.
    type Row = (u64, Event, Phase, Option<u64>);

    fn check(config: LifeConfig, story: &[Row]) {
        let mut course = Course::new(config);
        for &(second, event, phase, deadline) in story {
            let at = format!("{event:?} at {second}");
            assert_eq!(apply(&mut course, event, Timestamp::from_secs(second)), phase, "{at}");
            assert_eq!(course.phase(), phase, "{at}");
            assert_eq!(course.next_deadline(), deadline.map(Timestamp::from_secs), "{at}");
        }
    }

    #[test]
    fn a_whole_life() {
        check(
            CONFIG,
            &[
                (0, Time, Starting, None),
                (1, Idle, Starting, None),
                (3, Ready, Serving, None),
                (4, Ready, Serving, None),
                (4, Idle, Serving, None),
                (100, Stop, LameDuck, Some(110)),
                (105, Stop, LameDuck, Some(110)),
                (105, Ready, LameDuck, Some(110)),
                (106, Idle, LameDuck, Some(110)),
                (109, Time, LameDuck, Some(110)),
                (110, Time, Draining, Some(125)),
                (111, Stop, Draining, Some(125)),
                (112, Ready, Draining, Some(125)),
                (113, Idle, Gone, None),
                (114, Ready, Gone, None),
                (114, Stop, Gone, None),
                (114, Hasten, Gone, None),
            ],
        );
    }

    #[test]
    fn requests_that_do_not_end_are_cut_off() {
        check(
            CONFIG,
            &[
                (0, Ready, Serving, None),
                (100, Stop, LameDuck, Some(110)),
                // Nobody looked for a while: draining has begun at 110 all the same.
                (112, Time, Draining, Some(125)),
                (124, Time, Draining, Some(125)),
                (125, Time, Gone, None),
            ],
        );
    }

    #[test]
    fn somebody_in_a_hurry_skips_a_phase_each_time() {
        check(
            CONFIG,
            &[
                (0, Ready, Serving, None),
                (100, Hasten, LameDuck, Some(110)),
                (101, Hasten, Draining, Some(116)),
                (102, Hasten, Gone, None),
            ],
        );
    }

    #[test]
    fn one_that_was_never_ready_has_nobody_to_tell() {
        check(CONFIG, &[(5, Stop, Draining, Some(20)), (6, Ready, Draining, Some(20))]);
        check(CONFIG, &[(5, Hasten, Draining, Some(20)), (6, Idle, Gone, None)]);
    }

    #[test]
    fn a_clock_that_steps_back_ends_nothing_early() {
        check(
            CONFIG,
            &[
                (0, Ready, Serving, None),
                (100, Stop, LameDuck, Some(110)),
                (50, Time, LameDuck, Some(110)),
                (110, Time, Draining, Some(125)),
            ],
        );
    }

    #[test]
    fn without_delay_and_limit_it_ends_at_once() {
        let zero = LifeConfig { drain_delay: Duration::ZERO, drain_max: Duration::ZERO };
        check(zero, &[(0, Ready, Serving, None), (7, Stop, Gone, None)]);
        let endless = LifeConfig { drain_delay: Duration::MAX, drain_max: Duration::MAX };
        let mut course = Course::new(endless);
        course.ready();
        assert_eq!(course.stop(Timestamp::from_secs(9)), LameDuck);
        assert_eq!(course.next_deadline(), Some(Timestamp::MAX));
        assert_eq!(course.hasten(Timestamp::from_secs(9)), Draining);
    }

    proptest! {
        /// Whatever happens, phases only go forward, and every phase that ends by itself says when.
        #[test]
        fn there_is_no_way_back(
            events in proptest::collection::vec((0_u64..100, 0_usize..5), 0..50),
        ) {
            let mut course = Course::new(CONFIG);
            let mut before = course.phase();
            for (second, event) in events {
                let event = [Ready, Stop, Hasten, Idle, Time][event];
                let phase = apply(&mut course, event, Timestamp::from_secs(second));
                prop_assert!(phase >= before, "{before:?} then {phase:?}");
                let ends = matches!(phase, LameDuck | Draining);
                prop_assert_eq!(course.next_deadline().is_some(), ends);
                before = phase;
            }
        }
    }
}
