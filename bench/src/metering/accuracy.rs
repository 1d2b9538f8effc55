//! How near accounts come to the thread clock, request by request.
//!
//! Requests run in a real runtime: several polls each, with bursts of work of 5 to 200 µs, a third
//! of them with a child task, an eighth with blocking work, an eighth with another request inside.
//! In every poll the thread's CPU clock is read as well, four times:
//!
//! ```text
//! a   scope begins   b   work   c   scope ends   d
//!
//! truth  = sum over polls (d - a - what that is for an empty poll), exclusive
//! error  = |account / truth - 1|
//! least  = sum over polls (c - b + what an empty poll is charged), exclusive
//! beyond = how far the account is outside of what lies between least and truth, over truth
//! ```
//!
//! What is taken off and added is half of the system calls themselves, the same for all.
//!
//! The error has a floor, which the meter that is itself the thread clock shows: if the thread is
//! switched out, or interrupted, between `a` and the edge of the scope, what that costs is in one
//! and not in the other, though both are right. That hits by chance one request in dozens where
//! there are thousands of switches a second, and so decides what the hundredth worst is. Which ones
//! it has hit can be told: their least and truth are apart. So the errors that count are
//!
//! ```text
//! settled   the error of requests whose least and truth are within 1 % of each other
//! beyond    of all of them: an exact clock is always between least and truth, so what is beyond
//!           is the meter's own mistake
//! ```

use crate::measure::{Cpus, median, pin};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_meter::{Account, Kind, Meter, Metered, Totals};
use tokio::task::yield_now;

/// So many requests are under way at a time.
const DRIVERS: u32 = 16;

/// The truth of a request is known if its least and its most are within this share of it: a fifth
/// of the error that is looked for.
const KNOWN: f64 = 0.01;

/// Name of the runtime's threads, to count their switches by. The kernel keeps 15 letters.
const WORKER: &str = "metered";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Quiet,
    /// A thread on each CPU that never stops.
    Antagonist,
    /// Threads on each CPU that run for 20 µs, sleep for as long as the kernel makes of 50 µs, and
    /// so on: thousands of switches a second.
    Preempted,
}

impl Condition {
    pub(super) const ALL: [Self; 3] = [Self::Quiet, Self::Antagonist, Self::Preempted];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Antagonist => "antagonist",
            Self::Preempted => "preempted",
        }
    }

    /// Starts what disturbs.
    pub(super) fn begin(self, cpus: &Cpus, speed: Speed) -> Disturbance {
        let stop = Arc::new(AtomicBool::new(false));
        let threads_per_cpu = match self {
            Self::Quiet => 0,
            Self::Antagonist => 1,
            Self::Preempted => 2,
        };
        let cpu_count = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..cpu_count * threads_per_cpu).map(|n| {
            let (stop, cpu) = (Arc::clone(&stop), cpus.nth(n % cpu_count));
            std::thread::spawn(move || {
                pin(cpu);
                while !stop.load(Ordering::Relaxed) {
                    work(speed.steps(20.0));
                    if self == Self::Preempted {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                }
            })
        });
        Disturbance { threads: threads.collect(), stop }
    }
}

pub(super) struct Disturbance {
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Disturbance {
    pub(super) fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            assert!(thread.join().is_ok(), "a disturbing thread panicked");
        }
    }
}

/// Steps of [`work`] in a microsecond.
#[derive(Debug, Clone, Copy)]
pub(super) struct Speed(f64);

impl Speed {
    pub(super) fn measure() -> Self {
        let steps = 1_000_000;
        let times = (0..5).map(|_| {
            let before = thread_nanos();
            work(steps);
            (thread_nanos() - before) as f64
        });
        Self(steps as f64 * 1e3 / median(times))
    }

    fn steps(self, micros: f64) -> u64 {
        (self.0 * micros) as u64
    }

    /// 5 to 200 µs, evenly in the logarithm.
    fn burst(self, rng: &mut SeededRng) -> u64 {
        self.steps(5.0 * 40_f64.powf(rng.unit()))
    }
}

fn work(steps: u64) {
    let mut state = steps | 1;
    for _ in 0..steps {
        state = black_box(state.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23));
    }
}

pub(super) fn thread_nanos() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

thread_local! {
    /// What the scopes inside of the running one have taken, at least and at most.
    static INSIDE: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
    /// What the last work took.
    static WORK: Cell<i64> = const { Cell::new(0) };
}

/// What the readings of an empty poll differ by, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Empty {
    /// Around the scope, less what it is charged.
    outside: i64,
    /// What it is charged, less what is between the readings inside.
    inside: i64,
}

/// The CPU time of one request by the thread clock.
#[derive(Debug, Clone, Default)]
struct Truth {
    least: Arc<AtomicI64>,
    most: Arc<AtomicI64>,
    empty: Empty,
}

impl Truth {
    fn new(empty: Empty) -> Self {
        Self { empty, ..Self::default() }
    }

    /// Around a scope with [`inside`] in it.
    fn outside<R>(&self, scope: impl FnOnce() -> R) -> R {
        let outer = INSIDE.replace((0, 0));
        let before = thread_nanos();
        let result = scope();
        let most = thread_nanos() - before - self.empty.outside;
        let least = WORK.get() + self.empty.inside;
        let (inside_least, inside_most) = INSIDE.get();
        self.least.fetch_add(least - inside_most, Ordering::Relaxed);
        self.most.fetch_add(most - inside_least, Ordering::Relaxed);
        INSIDE.set((outer.0 + least, outer.1 + most));
        result
    }
}

fn inside<R>(work: impl FnOnce() -> R) -> R {
    let before = thread_nanos();
    let result = work();
    WORK.set(thread_nanos() - before);
    result
}

/// A metered future with the thread clock around and inside of each poll.
struct Clocked<F> {
    metered: Metered<Pin<Box<F>>>,
    truth: Truth,
}

impl<F: Future> Future for Clocked<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { metered, truth } = self.get_mut();
        truth.outside(|| Pin::new(metered).poll(context))
    }
}

fn both<F: Future>(
    account: &Account,
    truth: &Truth,
    future: F,
) -> Clocked<impl Future<Output = F::Output> + use<F>> {
    let mut future = Box::pin(future);
    let future = poll_fn(move |context| inside(|| future.as_mut().poll(context)));
    Clocked { metered: account.meter(Box::pin(future)), truth: truth.clone() }
}

/// One request by both clocks, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    metered: f64,
    least: f64,
    truth: f64,
}

impl Sample {
    fn new(account: &Account, truth: &Truth) -> Self {
        Self {
            metered: account.so_far().as_nanos() as f64,
            least: truth.least.load(Ordering::Relaxed) as f64,
            truth: truth.most.load(Ordering::Relaxed) as f64,
        }
    }

    fn error(&self) -> f64 {
        (self.metered / self.truth - 1.0).abs()
    }

    /// Whether nothing happened at the edges of its scopes that the thread clock counts for one
    /// side or the other by chance.
    fn is_settled(&self) -> bool {
        (self.truth - self.least).abs() <= self.truth * KNOWN
    }

    fn beyond(&self) -> f64 {
        // Where nothing happened the two are the same, but for some nanoseconds either way.
        let (least, most) = (self.least.min(self.truth), self.least.max(self.truth));
        (self.metered - self.metered.clamp(least, most)).abs() / self.truth
    }
}

/// One request, and the one inside of it if there was one.
async fn request(mut rng: SeededRng, speed: Speed, empty: Empty) -> Vec<Sample> {
    let (account, truth) = (Account::new(), Truth::new(empty));
    let mut samples = Vec::new();
    let whole = {
        let (account, truth, samples) = (account.clone(), truth.clone(), &mut samples);
        async move {
            let bursts = 3 + (rng.unit() * 4.0) as u32;
            let child = (rng.unit() < 1.0 / 3.0).then(|| {
                let bursts = [speed.burst(&mut rng), speed.burst(&mut rng)];
                tokio::spawn(both(&account, &truth, async move {
                    for burst in bursts {
                        work(burst);
                        yield_now().await;
                    }
                }))
            });
            let blocking = (rng.unit() < 1.0 / 8.0).then(|| {
                let (account, truth) = (account.clone(), truth.clone());
                let burst = speed.burst(&mut rng);
                tokio::task::spawn_blocking(move || {
                    truth.outside(|| account.run(|| inside(|| work(burst))));
                })
            });
            for _ in 0..bursts {
                work(speed.burst(&mut rng));
                yield_now().await;
            }
            if rng.unit() < 1.0 / 8.0 {
                let (inner, inner_truth) = (Account::new(), Truth::new(empty));
                let bursts = [speed.burst(&mut rng), speed.burst(&mut rng)];
                let inside = async {
                    for burst in bursts {
                        work(burst);
                        yield_now().await;
                    }
                };
                both(&inner, &inner_truth, inside).await;
                samples.push(Sample::new(&inner, &inner_truth));
            }
            let joined = match child {
                Some(child) => child.await.is_ok(),
                None => true,
            };
            assert!(joined, "a child panicked");
            let joined = match blocking {
                Some(blocking) => blocking.await.is_ok(),
                None => true,
            };
            assert!(joined, "blocking work panicked");
        }
    };
    both(&account, &truth, whole).await;
    samples.push(Sample::new(&account, &truth));
    samples
}

/// Polls in which nothing happens, on a thread of the runtime with its kind of meter.
fn empty_polls() -> Empty {
    let polls = || {
        (0..1_001).map(|_| {
            let (account, truth) = (Account::new(), Truth::default());
            let mut scope = account.scope();
            truth.outside(|| scope.run(|| inside(|| black_box(()))));
            Sample::new(&account, &truth)
        })
    };
    Empty {
        outside: median(polls().map(|sample| sample.truth - sample.metered)) as i64,
        inside: median(polls().map(|sample| sample.metered - sample.least)) as i64,
    }
}

/// What was found with one kind of meter under one condition.
#[derive(Debug, Default)]
pub(super) struct Findings {
    samples: Vec<Sample>,
    switches: u64,
    seconds: f64,
    /// Of the rounds.
    unattributed: Vec<f64>,
}

impl Findings {
    /// What the accounts add up to over what they should.
    pub(super) fn sum_over_true(&self) -> f64 {
        let sum = |part: fn(&Sample) -> f64| self.samples.iter().map(part).sum::<f64>();
        sum(|sample| sample.metered) / sum(|sample| sample.truth)
    }

    /// The error that the share `share` of the requests does not exceed.
    pub(super) fn error(&self, share: f64) -> f64 {
        quantile(share, self.samples.iter().map(Sample::error))
    }

    /// The same of those whose truth is known.
    pub(super) fn settled(&self, share: f64) -> f64 {
        quantile(share, self.samples.iter().filter(|s| s.is_settled()).map(Sample::error))
    }

    /// Which share of them that are.
    pub(super) fn settled_share(&self) -> f64 {
        let settled = self.samples.iter().filter(|sample| sample.is_settled()).count();
        settled as f64 / self.samples.len() as f64
    }

    /// The same for what is beyond doubt.
    pub(super) fn beyond(&self, share: f64) -> f64 {
        quantile(share, self.samples.iter().map(Sample::beyond))
    }

    /// How often a second the runtime's threads were taken off their CPUs.
    pub(super) fn switches_per_second(&self) -> f64 {
        self.switches as f64 / self.seconds
    }

    pub(super) fn requests(&self) -> usize {
        self.samples.len()
    }

    /// The share of the process's CPU time that was charged to nobody.
    pub(super) fn unattributed(&self) -> f64 {
        median(self.unattributed.iter().copied())
    }
}

fn quantile(share: f64, values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * share).ceil() as usize).copied().unwrap_or(f64::NAN)
}

/// Runs `requests` of them, metered by `kind`, and adds what is found.
pub(super) fn round(kind: Kind, requests: u32, seed: u64, speed: Speed, findings: &mut Findings) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(1, usize::from))
        .thread_name(WORKER)
        .on_thread_start(move || {
            Meter::limit_here(kind);
        })
        .build();
    let Ok(runtime) = runtime else { panic!("the system gives no threads for a runtime") };
    let drivers = async {
        let Ok(empty) = tokio::spawn(async { empty_polls() }).await else {
            panic!("a task panicked")
        };
        let before = (Totals::now(), Instant::now(), involuntary_switches());
        let mut tasks = Vec::new();
        for driver in 0..DRIVERS {
            tasks.push(tokio::spawn(async move {
                let mut samples = Vec::new();
                for n in (driver..requests).step_by(DRIVERS as usize) {
                    let rng = SeededRng::new(seed.wrapping_mul(1_000_003) ^ u64::from(n));
                    samples.extend(request(rng, speed, empty).await);
                }
                samples
            }));
        }
        let mut samples = Vec::new();
        for task in tasks {
            let Ok(some) = task.await else { panic!("a request panicked") };
            samples.extend(some);
        }
        findings.samples.extend(samples);
        findings.switches += involuntary_switches().saturating_sub(before.2);
        findings.seconds += before.1.elapsed().as_secs_f64();
        findings.unattributed.extend(Totals::now().unattributed_since(&before.0));
    };
    runtime.block_on(drivers);
}

/// How often the runtime's threads were taken off their CPUs, as the kernel counts it.
fn involuntary_switches() -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let of = |path: std::path::PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let field = |name| status.lines().find_map(|line: &str| line.strip_prefix(name));
        let is_worker = field("Name:")?.trim() == WORKER;
        let count = field("nonvoluntary_ctxt_switches:")?.trim().parse::<u64>().ok()?;
        is_worker.then_some(count)
    };
    tasks.flatten().filter_map(|task| of(task.path())).sum()
}
