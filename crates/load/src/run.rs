//! A run: threads that send, and one that adds up.
//!
//! The caller's thread ticks the client's controllers, adds up what threads hand over, and shows it
//! interval by interval. It takes part in no request.

use crate::plan::{Course, Plan};
use crate::report::Report;
use crate::request::{RequestError, Requests};
use crate::stats::Stats;
use crate::tls::{Tls, TlsError};
use crate::worker::{self, Act, Told};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use tidegate_core::Timestamp;
use tidegate_core::retry::{BudgetConfig, BudgetController, BudgetGate};
use tidegate_core::throttle::{ThrottleConfig, ThrottleController, ThrottleGate};
use tokio::sync::Notify;

/// Why a run cannot begin, or did not come to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There can be no TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A request cannot be written.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A thread could not be started, or not wake up on time.
    #[error("a sending thread failed: {0}")]
    Thread(#[from] std::io::Error),
    /// A thread panicked.
    #[error("a sending thread panicked: this is a fault of tidegate")]
    Panicked,
}

/// What is said to all threads.
#[derive(Debug, Clone)]
pub(crate) struct Command {
    pub(crate) version: u64,
    /// A new course, if there is one that was not heard of.
    pub(crate) act: Option<Arc<Act>>,
    pub(crate) stop: bool,
}

/// What threads share: nothing that a request touches, but for the client's gates.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    pub(crate) tls: Option<Tls>,
    pub(crate) throttle: Arc<ThrottleGate>,
    pub(crate) budget: Arc<BudgetGate>,
    /// One for each thread: it has something to hear.
    pub(crate) heard: Vec<Notify>,
    version: AtomicU64,
    command: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    act: Option<(u64, Arc<Act>)>,
    /// Courses that were begun.
    acts: u64,
    stop: Option<(u64, Instant)>,
}

impl Shared {
    /// What was said after `version`.
    pub(crate) fn command_after(&self, version: u64) -> Option<Command> {
        let now = self.version.load(Ordering::Acquire);
        if now == version {
            return None;
        }
        let said = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        let act = said.act.as_ref().filter(|(number, _)| *number > version);
        let act = act.map(|(_, act)| Arc::clone(act));
        Some(Command { version: now, act, stop: said.stop.is_some() })
    }

    fn say(&self, what: impl FnOnce(&mut Said, u64)) {
        {
            let mut said = self.command.lock().unwrap_or_else(PoisonError::into_inner);
            let version = self.version.load(Ordering::Relaxed) + 1;
            what(&mut said, version);
            self.version.store(version, Ordering::Release);
        }
        for heard in &self.heard {
            heard.notify_one();
        }
    }

    /// The number of the course, and when counting begins.
    fn begin(&self, course: Course, warmup: Duration) -> Result<(u64, Instant), RequestError> {
        let requests = Requests::new(&course, &self.plan.target, self.plan.protocol)?;
        // Threads have to hear of it first.
        let begin = Instant::now() + Duration::from_millis(2);
        let end = begin + warmup + course.load.duration();
        let mut number = 0;
        self.say(|said, version| {
            number = said.acts;
            said.acts += 1;
            let act = Act { number, course, requests, begin, end, warmup };
            said.act = Some((version, Arc::new(act)));
        });
        Ok((number, begin + warmup))
    }
}

/// A way to change a run from outside, from any thread.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Shared>);

impl Handle {
    /// Ends the run: nothing more is sent, answers are waited for up to a second, and what was
    /// counted is reported.
    pub fn stop(&self) {
        self.0.say(|said, version| _ = said.stop.get_or_insert((version, Instant::now())));
    }

    /// From now on callers do this, from its beginning. Connections stay, and so do requests on
    /// their way, which count for the course that has asked them. Returns the number of the new
    /// one, as [`Interval::course`] has it.
    pub fn switch(&self, course: Course) -> Result<u64, RequestError> {
        self.0.begin(course, Duration::ZERO).map(|(number, _)| number)
    }
}

/// What has become in one interval of the requests of one course, of all threads.
#[derive(Debug)]
#[non_exhaustive]
pub struct Interval<'a> {
    /// From 0. Where requests of several courses were under way, it is shown for each of them.
    pub number: u64,
    /// Which course has asked: 0 is the plan's own, and each [`Handle::switch`] makes the next.
    pub course: u64,
    /// When it ended, from when counting began.
    pub end: Duration,
    /// How long it was meant to be; the last one takes in what came after the end.
    pub length: Duration,
    /// What has happened.
    pub stats: &'a Stats,
}

/// A run that has begun.
#[derive(Debug)]
pub struct Run {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<std::io::Result<()>>>,
    told: Receiver<Told>,
    controllers: Controllers,
    began: Instant,
}

#[derive(Debug)]
struct Controllers {
    throttle: ThrottleController,
    budget: BudgetController,
    made: Instant,
    ticked: Instant,
}

/// How often the client's controllers tick: as in tidegate's own clients.
const TICK: Duration = Duration::from_millis(100);

impl Controllers {
    fn tick(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.ticked) >= TICK {
            self.ticked = now;
            let time = Timestamp::ZERO + now.duration_since(self.made);
            self.throttle.tick(time);
            self.budget.tick(time);
        }
    }
}

impl Run {
    /// Connects, then begins to send.
    pub fn start(plan: Plan) -> Result<Self, RunError> {
        let tls = if plan.target.tls {
            Some(Tls::new(&plan.trust, &plan.target.host, plan.protocol)?)
        } else {
            None
        };
        // What cannot be written is found before anything is connected.
        Requests::new(&plan.course, &plan.target, plan.protocol)?;
        let now = Instant::now();
        let controllers = Controllers {
            throttle: ThrottleController::new(ThrottleConfig::default()),
            budget: BudgetController::new(BudgetConfig::default()),
            made: now,
            ticked: now,
        };
        let threads = plan.threads.max(1) as usize;
        let plan = Plan { threads: threads as u32, ..plan };
        let shared = Arc::new(Shared {
            tls,
            throttle: Arc::clone(controllers.throttle.gate()),
            budget: Arc::clone(controllers.budget.gate()),
            heard: (0..threads).map(|_| Notify::new()).collect(),
            version: AtomicU64::new(0),
            command: Mutex::default(),
            plan,
        });
        let (tell, told) = channel();
        let threads = (0..threads).map(|index| {
            let (shared, tell) = (Arc::clone(&shared), tell.clone());
            std::thread::Builder::new()
                .name(format!("load-{index}"))
                .spawn(move || worker::run(&shared, index, &tell))
        });
        let threads = threads.collect::<std::io::Result<Vec<_>>>()?;
        // Only threads are left to tell, so that their end is heard.
        drop(tell);
        let run = Self { shared, threads, told, controllers, began: now };
        run.begin()
    }

    /// Waits until all threads are connected, and has them begin at the same time.
    fn begin(mut self) -> Result<Self, RunError> {
        for _ in 0..self.threads.len() {
            if !matches!(self.told.recv(), Ok(Told::Ready)) {
                self.join()?;
                return Err(RunError::Panicked);
            }
        }
        let course = self.shared.plan.course.clone();
        (_, self.began) = self.shared.begin(course, self.shared.plan.warmup)?;
        Ok(self)
    }

    /// A way to change the run while [`Run::finish`] waits for it.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared))
    }

    /// Waits for the end, and shows each interval when it is over.
    pub fn finish(mut self, mut show: impl FnMut(&Interval<'_>)) -> Result<Report, RunError> {
        let length = self.shared.plan.interval;
        let mut sum = Sum::new(self.threads.len());
        loop {
            match self.told.recv_timeout(TICK) {
                Ok(Told::Interval { worker, number, stats, last }) => {
                    sum.take(worker, number, &stats, last);
                    sum.show(|(number, course), stats| {
                        let end = length * u32::try_from(number + 1).unwrap_or(u32::MAX);
                        show(&Interval { number, course, end, length, stats });
                    });
                }
                Ok(Told::Ready) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.controllers.tick();
        }
        self.join()?;
        let said = self.shared.command.lock().unwrap_or_else(PoisonError::into_inner);
        let end = said.act.as_ref().map(|(_, act)| act.end);
        let stopped = said.stop.map(|(_, at)| at).filter(|at| end.is_none_or(|end| *at < end));
        let end = stopped.or(end).unwrap_or(self.began);
        let stats = sum.total();
        let measured = end.saturating_duration_since(self.began);
        Ok(Report::new(&self.shared.plan, stats, measured, stopped.is_some()))
    }

    fn join(&mut self) -> Result<(), RunError> {
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| RunError::Panicked)??;
        }
        Ok(())
    }
}

impl Drop for Run {
    /// Threads of a run that nobody waits for end as well.
    fn drop(&mut self) {
        self.handle().stop();
    }
}

/// Adds up by interval and course, and shows those that all threads have told of.
struct Sum {
    open: BTreeMap<(u64, u64), Stats>,
    /// For each thread, how many intervals it has told, and whether that is all.
    told: Vec<(u64, bool)>,
    cpu: Vec<Duration>,
    total: Stats,
}

impl Sum {
    fn new(threads: usize) -> Self {
        Self {
            open: BTreeMap::new(),
            told: vec![(0, false); threads],
            cpu: vec![Duration::ZERO; threads],
            total: Stats::default(),
        }
    }

    fn take(&mut self, worker: usize, number: u64, courses: &[(u64, Box<Stats>)], last: bool) {
        for (course, stats) in courses {
            let open = self.open.entry((number, *course)).or_default();
            open.add(stats);
            open.cpu_busiest = open.cpu_busiest.max(stats.cpu);
            self.total.add(stats);
            self.cpu[worker] += stats.cpu;
        }
        self.told[worker] = (number + 1, last);
    }

    fn show(&mut self, mut show: impl FnMut((u64, u64), &Stats)) {
        while let Some((&(number, course), _)) = self.open.first_key_value() {
            if self.told.iter().any(|&(told, last)| !last && told <= number) {
                return;
            }
            if let Some(stats) = self.open.remove(&(number, course)) {
                show((number, course), &stats);
            }
        }
    }

    fn total(mut self) -> Stats {
        self.total.cpu_busiest = self.cpu.iter().copied().max().unwrap_or_default();
        self.total
    }
}
