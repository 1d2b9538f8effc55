//! The life of a task: start, serve, lame duck, drain, exit.
//!
//! A task that is killed while it serves fails what it has in flight, and what is on its way to it.
//! So a task that has to go says so first, goes on serving until all have heard it, finishes what
//! it has, and only then ends. A task that has just started says that it is ready only when it is
//! warm: caches filled, connections made, code paged in.
//!
//! | phase | health | new requests | connections |
//! |---|---|---|---|
//! | [`Phase::Starting`] | not serving | refused as from a lame duck | taken |
//! | [`Phase::Serving`] | serving | served | taken |
//! | [`Phase::LameDuck`] | not serving | served, answers say that it is leaving | taken; those that are open are asked to end |
//! | [`Phase::Draining`] | not serving | refused as from a lame duck | none taken, all asked to end |
//! | [`Phase::Gone`] | | | cut |
//!
//! [`Life`] is the handle that everything looks at: the admission gate, health, the server, streams
//! that have to end by themselves. What comes when is decided by [`Course`], without a clock. There
//! is no task in the background that moves it: whoever waits on a [`Life`] also waits for its next
//! deadline, and whoever asks looks at the clock.
//!
//! # With other servers
//!
//! `tidegate::serve` does all of this. `axum::serve` and tonic's server cannot be asked to tell
//! their connections to leave before they stop accepting, so for them the drain delay passes
//! first:
//!
//! ```no_run
//! # #[cfg(feature = "axum")]
//! # async fn run(listener: tokio::net::TcpListener, router: axum::Router) -> std::io::Result<()> {
//! use tidegate::life::Life;
//!
//! let life = Life::default();
//! life.stop_on_signals()?;
//! life.prewarm(async { /* fill caches */ }).await;
//! let server = axum::serve(listener, router).with_graceful_shutdown(life.draining());
//! // Waits for what is in flight, but no longer than the limit.
//! if let Some(result) = life.bound(async { server.await }).await {
//!     result?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! and likewise `Server::builder().add_service(…).serve_with_shutdown(address, life.draining())`.
//!
//! When it is wrong: if the delay is shorter than the time in which balancers look, they send to a
//! closed door, which clients see as refused connections and retry elsewhere.

mod course;

pub use course::{Course, LifeConfig, Phase};

use crate::clock::Clock;
use std::io;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_core::Timestamp;
use tidegate_core::admission::AdmissionGate;
use tokio::sync::watch;

/// A handle to the life of this task. Cheap to clone; all clones are one life.
#[derive(Debug, Clone)]
pub struct Life {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    course: Mutex<Course>,
    /// The phase again, for the request path.
    phase: AtomicU8,
    changed: watch::Sender<Phase>,
    gate: Option<Arc<AdmissionGate>>,
    /// How many have something in flight, or may yet have.
    holds: AtomicUsize,
    /// Whether somebody else serves at its address.
    replaced: AtomicBool,
}

impl Default for Life {
    fn default() -> Self {
        Self::new(LifeConfig::default(), Clock::default())
    }
}

impl Life {
    /// A task that starts.
    pub fn new(config: LifeConfig, clock: Clock) -> Self {
        Self::make(config, clock, None)
    }

    /// A task that starts, and whose gate refuses requests while it starts and while it drains.
    pub fn with_gate(config: LifeConfig, clock: Clock, gate: Arc<AdmissionGate>) -> Self {
        gate.set_lame_duck(true);
        Self::make(config, clock, Some(gate))
    }

    fn make(config: LifeConfig, clock: Clock, gate: Option<Arc<AdmissionGate>>) -> Self {
        let course = Course::new(config);
        let phase = course.phase();
        let shared = Shared {
            clock,
            course: Mutex::new(course),
            phase: AtomicU8::new(phase as u8),
            changed: watch::Sender::new(phase),
            gate,
            holds: AtomicUsize::new(0),
            replaced: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The phase at this moment.
    pub fn phase(&self) -> Phase {
        self.turn(Course::on_deadline).0
    }

    /// Whether the task is on its way out, as last seen by anybody.
    ///
    /// For the request path: one load.
    #[inline]
    pub fn is_leaving(&self) -> bool {
        self.shared.phase.load(Relaxed) >= Phase::LameDuck as u8
    }

    /// It is warm: requests may come.
    pub fn ready(&self) -> Phase {
        self.turn(|course, _| course.ready()).0
    }

    /// It is to end: lame duck first. Changes nothing if it is on its way out.
    pub fn stop(&self) -> Phase {
        self.turn(Course::stop).0
    }

    /// It is to end, and a successor serves at its address. It ends as by [`Life::stop`], but does
    /// not ask to be left alone, which would be taken for the successor's word: answers close
    /// their connections and say no more, and what still comes is served to the end.
    pub fn replaced(&self) -> Phase {
        self.shared.replaced.store(true, Relaxed);
        self.stop()
    }

    /// Whether a successor serves at its address.
    pub fn is_replaced(&self) -> bool {
        self.shared.replaced.load(Relaxed)
    }

    /// It is to end sooner than planned: the present phase of the end is over.
    pub fn hasten(&self) -> Phase {
        self.turn(Course::hasten).0
    }

    /// While this is held, something is in flight. A task that drains is gone when the last hold is
    /// dropped, or at its limit. Servers have one for as long as they run; whoever has work to
    /// finish besides requests takes another.
    pub fn hold(&self) -> Hold {
        self.shared.holds.fetch_add(1, Relaxed);
        Hold { life: self.clone() }
    }

    /// Runs `warm_up`, and is ready when it is done. Where that can fail, use
    /// [`Life::try_prewarm`].
    pub async fn prewarm<F: Future>(&self, warm_up: F) -> F::Output {
        let output = warm_up.await;
        self.ready();
        output
    }

    /// Runs `warm_up`, and is ready if it went well.
    pub async fn try_prewarm<T, E>(
        &self,
        warm_up: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let output = warm_up.await?;
        self.ready();
        Ok(output)
    }

    /// Returns when the phase is `phase` or a later one.
    pub fn reached(&self, phase: Phase) -> impl Future<Output = Phase> + Send + use<> {
        let life = self.clone();
        async move {
            let mut changes = life.shared.changed.subscribe();
            loop {
                let (found, due) = life.turn(Course::on_deadline);
                if found >= phase {
                    return found;
                }
                let now = life.shared.clock.now();
                tokio::select! {
                    // The sender lives as long as `life`.
                    _ = changes.changed() => {}
                    () = wait(due, now) => {}
                }
            }
        }
    }

    /// Returns when the phase is another than `phase`, with what it is then.
    pub fn left(&self, phase: Phase) -> impl Future<Output = Phase> + Send + use<> {
        let life = self.clone();
        async move {
            // Phases only go forward, so another one is the next or one after it.
            match life.phase() {
                found if found != phase => found,
                Phase::Starting => life.reached(Phase::Serving).await,
                Phase::Serving => life.reached(Phase::LameDuck).await,
                Phase::LameDuck => life.reached(Phase::Draining).await,
                Phase::Draining => life.reached(Phase::Gone).await,
                Phase::Gone => std::future::pending().await,
            }
        }
    }

    /// Returns when the drain delay is over: what axum's `with_graceful_shutdown` and tonic's
    /// `serve_with_shutdown` want to be given.
    pub fn draining(&self) -> impl Future<Output = ()> + Send + use<> {
        let draining = self.reached(Phase::Draining);
        async move {
            draining.await;
        }
    }

    /// Runs a server to its end, or until the limit of draining is over; then it is dropped, and
    /// there is no output.
    pub async fn bound<F: Future>(&self, server: F) -> Option<F::Output> {
        let _hold = self.hold();
        tokio::select! {
            output = server => Some(output),
            _ = self.reached(Phase::Gone) => None,
        }
    }

    /// SIGTERM and SIGINT (ctrl-c) begin the end, from now on. A second ctrl-c hastens it: a person
    /// is waiting. A second SIGTERM does not, as process managers repeat themselves.
    ///
    /// Must be called within a runtime.
    pub fn stop_on_signals(&self) -> io::Result<()> {
        let mut terminate = Signal::terminate()?;
        let mut interrupt = Signal::interrupt()?;
        let life = self.clone();
        tokio::spawn(async move {
            let gone = life.reached(Phase::Gone);
            tokio::pin!(gone);
            loop {
                tokio::select! {
                    () = terminate.recv() => { life.stop(); }
                    () = interrupt.recv() => { life.hasten(); }
                    _ = &mut gone => return,
                }
            }
        });
        Ok(())
    }

    /// Lets something happen, and tells everybody what came of it.
    fn turn(
        &self,
        event: impl FnOnce(&mut Course, Timestamp) -> Phase,
    ) -> (Phase, Option<Timestamp>) {
        let shared = &self.shared;
        let now = shared.clock.now();
        // Nothing in here panics; and a phase is right whoever set it.
        let mut course = shared.course.lock().unwrap_or_else(PoisonError::into_inner);
        let before = course.phase();
        // What was due before comes before.
        course.on_deadline(now);
        let phase = event(&mut course, now);
        if phase != before {
            // Under the lock, so that the last to write is the last to have changed it.
            shared.phase.store(phase as u8, Relaxed);
            if let Some(gate) = &shared.gate {
                let served = phase.takes_requests() || phase.is_leaving() && self.is_replaced();
                gate.set_lame_duck(!served);
            }
            shared.changed.send_replace(phase);
        }
        (phase, course.next_deadline())
    }
}

/// Keeps a task that drains from being gone. Made by [`Life::hold`].
#[derive(Debug)]
#[must_use = "it holds only until it is dropped"]
pub struct Hold {
    life: Life,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.life.shared.holds.fetch_sub(1, AcqRel) == 1 {
            self.life.turn(|course, _| course.idle());
        }
    }
}

/// Until `due`, by the clock that says `now`; for ever if nothing is due.
async fn wait(due: Option<Timestamp>, now: Timestamp) {
    match due {
        // Timers count milliseconds, and one that is early would make its waiter spin.
        Some(due) => tokio::time::sleep(due.since(now) + MILLISECOND).await,
        None => std::future::pending().await,
    }
}

const MILLISECOND: core::time::Duration = core::time::Duration::from_millis(1);

#[cfg(unix)]
struct Signal(tokio::signal::unix::Signal);

#[cfg(unix)]
impl Signal {
    fn terminate() -> io::Result<Self> {
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).map(Self)
    }

    fn interrupt() -> io::Result<Self> {
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt()).map(Self)
    }

    async fn recv(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(windows)]
enum Signal {
    Shutdown(tokio::signal::windows::CtrlShutdown),
    CtrlC(tokio::signal::windows::CtrlC),
}

#[cfg(windows)]
impl Signal {
    fn terminate() -> io::Result<Self> {
        tokio::signal::windows::ctrl_shutdown().map(Self::Shutdown)
    }

    fn interrupt() -> io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Self::CtrlC)
    }

    async fn recv(&mut self) {
        let received = match self {
            Self::Shutdown(signal) => signal.recv().await,
            Self::CtrlC(signal) => signal.recv().await,
        };
        if received.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests;
