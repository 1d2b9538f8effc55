//! Three tasks with real gates, and customers that ask them: one within its limit, one far over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate::Task;
use tidegate_core::fleet::Limits;
use tidegate_core::quota::QuotaLane;
use tidegate_core::{Cost, Criticality};
use tidegate_quota::Client;

pub(crate) const TASKS: usize = 3;
/// CPUs that customers may use, by name, and what they ask each task for.
pub(crate) const GOOD: (&str, f64, f64) = ("good", 3.0, 0.6);
pub(crate) const BAD: (&str, f64, f64) = ("bad", 2.0, 3.0);

/// What servers are told of them; a lease has 15.5 seconds.
pub(crate) const SERVICES: &str = "  services:
    search:
      default: 1
      customers: { good: 3, bad: 2 }
      reports: { every: 100ms, round: 25ms }
      silence: { hold: 12s, fade: 500ms }
";

/// A request costs so much.
const COST: Cost = Cost::from_millis(1);
const STEP: Duration = Duration::from_millis(5);
/// Whoever drives the customers may be held up itself: it does not make up for more than this.
const STEP_MAX: Duration = Duration::from_millis(50);

/// What happened in one step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) at: Instant,
    /// CPU seconds that were served and refused, good and bad.
    pub(crate) served: [f64; 2],
    pub(crate) refused: [f64; 2],
    /// What all tasks may admit of the bad one together, in CPUs; none if one is unlimited.
    pub(crate) enforced: Option<f64>,
}

pub(crate) struct Fleet {
    clients: Vec<Client>,
    steps: Arc<Mutex<Vec<Step>>>,
    ended: Arc<AtomicBool>,
    driver: Option<JoinHandle<()>>,
}

struct Driver {
    tasks: Vec<(Task, QuotaLane)>,
    due: [f64; 2],
}

impl Driver {
    fn step(&mut self, elapsed: Duration) -> Step {
        let mut step =
            Step { at: Instant::now(), served: [0.0; 2], refused: [0.0; 2], enforced: Some(0.0) };
        for (n, (name, _, cpus)) in [GOOD, BAD].into_iter().enumerate() {
            self.due[n] += cpus * elapsed.as_secs_f64() / COST.as_secs_f64();
            while self.due[n] >= 1.0 {
                self.due[n] -= 1.0;
                for (task, lane) in &mut self.tasks {
                    let (customer, now) = (task.customer(name), task.clock().now());
                    if lane.gate().check(customer, Criticality::Critical, now).is_ok() {
                        let _ = lane.charge(customer, Criticality::Critical, COST, now);
                        step.served[n] += COST.as_secs_f64();
                    } else {
                        lane.refuse(customer, Criticality::Critical, COST);
                        step.refused[n] += COST.as_secs_f64();
                    }
                }
            }
        }
        for (task, _) in &self.tasks {
            let limits = task.limits(BAD.0);
            let limited = limits != Limits::UNLIMITED;
            step.enforced = step.enforced.filter(|_| limited);
            step.enforced = step.enforced.map(|sum| sum + limits.whole().as_cpus());
        }
        step
    }
}

impl Fleet {
    pub(crate) fn start(servers: &[String]) -> Self {
        let mut tasks = Vec::new();
        let mut clients = Vec::new();
        for n in 0..TASKS {
            let task = Task::builder("search").build().unwrap();
            let client = Client::builder(servers).name(format!("task-{n}"));
            clients.push(client.attach(&task).unwrap());
            let lane = task.gate().quota().lane();
            tasks.push((task, lane));
        }
        let (steps, ended) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let mut driver = Driver { tasks, due: [0.0; 2] };
        let (tell, stop) = (Arc::clone(&steps), Arc::clone(&ended));
        let driver = std::thread::spawn(move || {
            let mut last = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(STEP);
                let elapsed = last.elapsed().min(STEP_MAX);
                last = Instant::now();
                tell.lock().unwrap().push(driver.step(elapsed));
            }
        });
        Self { clients, steps, ended, driver: Some(driver) }
    }

    /// Whether all tasks have a stream to the leader of this epoch.
    pub(crate) fn is_with(&self, epoch: u64) -> bool {
        let states = self.clients.iter().map(Client::state);
        states.into_iter().all(|state| state.epoch == epoch && state.server.is_some())
    }

    /// Whether nobody is refused who should not be, for a second.
    pub(crate) fn is_calm(&self) -> bool {
        let steps = self.steps.lock().unwrap();
        let Some(last) = steps.last() else { return false };
        let since = |step: &Step| last.at.duration_since(step.at) < Duration::from_secs(1);
        let recent: Vec<&Step> = steps.iter().rev().take_while(|step| since(step)).collect();
        let refused: f64 = recent.iter().map(|step| step.refused[0]).sum();
        let served: f64 = recent.iter().map(|step| step.served[1]).sum();
        recent.len() < steps.len() && refused == 0.0 && served > 0.8 * BAD.1
    }

    pub(crate) fn steps(&self) -> Vec<Step> {
        self.steps.lock().unwrap().clone()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(driver) = self.driver.take() {
            let _ = driver.join();
        }
    }
}
