//! What one decision costs.
//!
//! The unit is one relaxed atomic add in the same round: alone for what one thread does, by two
//! threads on the same cache line for what two do. Ours take `now` as an argument, as in the
//! shells, where one reading of the clock serves a whole request; the peers read their own clocks,
//! which is how they come.

use crate::admission::{self, at, many};
use crate::measure::{Contender, Cpus, Tally, interleave};
use clap::Args;
use futures_util::task::noop_waker_ref;
use governor::{Quota, RateLimiter};
use serde_json::json;
use std::future::{Future, Ready, ready};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use tidegate_core::balance::{BackendId, Join, LoadReport, RoundRobin, Weighted, WeightedConfig};
use tidegate_core::decision::Advice;
use tidegate_core::retry::{BudgetConfig, BudgetController};
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::throttle::{ThrottleConfig, ThrottleController};
use tidegate_core::{Criticality, Outcome, Timestamp};
use tower::limit::ConcurrencyLimit;
use tower::load_shed::LoadShed;
use tower::{Service, ServiceBuilder, service_fn};

const BACKENDS: u32 = 1_000;

#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Rounds to take medians over.
    #[arg(long, default_value_t = 101)]
    rounds: u32,
    /// Operations in each measurement, and as many before it to warm up. So few that a measurement
    /// takes a millisecond or two: two threads that are not interrupted run at the same time.
    #[arg(long, default_value_t = 50_000)]
    operations: u64,
}

#[repr(align(128))]
struct Line(AtomicU64);

fn add(line: &Line) -> impl FnMut(u64) + Send + '_ {
    |operations| {
        for _ in 0..operations {
            line.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Every add is there to be seen.
fn counted(line: &Line) -> impl Fn() -> Tally + '_ {
    || {
        let adds = line.0.load(Ordering::Relaxed);
        Tally { admitted: adds, decided: adds }
    }
}

type Work = fn(()) -> Ready<Result<(), std::convert::Infallible>>;
type Stack = LoadShed<ConcurrencyLimit<tower::util::ServiceFn<Work>>>;

fn tower_stack() -> Stack {
    let work: Work = |()| ready(Ok(()));
    ServiceBuilder::new().load_shed().concurrency_limit(1_024).service(service_fn(work))
}

fn tower_call(stack: &mut Stack) {
    let mut context = Context::from_waker(noop_waker_ref());
    if let Poll::Ready(Ok(())) = stack.poll_ready(&mut context) {
        let mut response = pin!(stack.call(()));
        let _ = black_box(response.as_mut().poll(&mut context));
    }
}

fn peers<'a>(line: &'a Line, shared: &'a Line) -> Vec<Contender<'a>> {
    let rate = NonZeroU32::MAX;
    let direct = Arc::new(RateLimiter::direct(Quota::per_second(rate)));
    let keyed = Arc::new(RateLimiter::hashmap(Quota::per_second(rate)));
    let customers = many();
    let (one, two) = (Arc::clone(&direct), Arc::clone(&direct));
    let governor = |limiter: Arc<governor::DefaultDirectRateLimiter>| {
        move |operations| {
            for _ in 0..operations {
                let _ = black_box(limiter.check());
            }
        }
    };
    let mut stack = tower_stack();
    let cloned = tower_stack();
    vec![
        Contender::alone(ADD, add(line)).checked(1.0, counted(line)),
        Contender::contended(ADD_CONTENDED, add(shared), add(shared)).checked(1.0, counted(shared)),
        Contender::alone("governor check", governor(direct)),
        Contender::contended("governor check, two threads", governor(one), governor(two)),
        Contender::alone("governor keyed check, 10,000 keys", move |operations| {
            for i in 0..operations {
                let customer = at(&customers, i);
                let _ = black_box(keyed.check_key(&customer.0));
            }
        }),
        Contender::alone("tower load shed + concurrency limit", move |operations| {
            for _ in 0..operations {
                tower_call(&mut stack);
            }
        }),
        Contender::alone("the same, cloned for each request", move |operations| {
            for _ in 0..operations {
                tower_call(&mut cloned.clone());
            }
        }),
    ]
}

fn client_side<'a>() -> Vec<Contender<'a>> {
    let mut controller = ThrottleController::new(ThrottleConfig::default());
    let mut throttle = controller.gate().lane();
    // Three quarters of what is sent are refused, so about half of it is to be throttled: every
    // decision needs the dice.
    for _ in 0..1_000 {
        for outcome in [
            Outcome::Served,
            Outcome::Refused(Advice::RetryElsewhere),
            Outcome::Refused(Advice::RetryElsewhere),
            Outcome::Refused(Advice::RetryElsewhere),
        ] {
            throttle.on_response(Criticality::Critical, outcome);
        }
    }
    controller.tick(Timestamp::from_millis(100));
    let mut rng = SeededRng::new(3);
    let budget = BudgetController::new(BudgetConfig::default());
    let mut deposits = budget.gate().lane();
    let (round_robin, weighted) = picks();
    vec![
        Contender::alone("throttle decision", move |operations| {
            for _ in 0..operations {
                let decision = throttle.decide(Criticality::Critical, &mut rng);
                let _ = black_box(decision);
            }
        }),
        Contender::alone("retry budget deposit", move |operations| {
            for _ in 0..operations {
                black_box(&mut deposits).deposit();
            }
        }),
        Contender::alone("round-robin pick, 1,000 backends", move |operations| {
            for _ in 0..operations {
                black_box(round_robin.pick());
            }
        }),
        Contender::alone("weighted pick, 1,000 backends", move |operations| {
            for _ in 0..operations {
                black_box(weighted.pick());
            }
        }),
    ]
}

type Gate = Arc<tidegate_core::balance::PickGate>;

fn picks() -> (Gate, Gate) {
    let mut round_robin = RoundRobin::new(BACKENDS as usize);
    let mut config = WeightedConfig::default();
    config.backends_max = BACKENDS as usize;
    let Ok(mut weighted) = Weighted::new(config) else { unreachable!("the defaults are valid") };
    let mut rng = SeededRng::new(4);
    for id in 0..BACKENDS {
        round_robin.add(BackendId(id), Join::Warm, Timestamp::ZERO);
        weighted.add(BackendId(id), Join::Warm, Timestamp::ZERO);
    }
    for secs in 0..30 {
        let now = Timestamp::from_secs(secs);
        for id in 0..BACKENDS {
            let report = LoadReport {
                rps: 100.0 + 900.0 * rng.unit(),
                cpu_utilization: 0.5,
                ..LoadReport::default()
            };
            weighted.on_report(BackendId(id), &report, now);
        }
        weighted.on_deadline(now);
    }
    (round_robin.gate(), weighted.gate())
}

/// A ratio, and what it may be at most.
struct Bar {
    key: &'static str,
    /// Places among the contenders.
    of: usize,
    to: usize,
    most: Option<f64>,
}

impl Bar {
    /// None where two threads would have been needed, and there was only one CPU.
    fn ratio(&self, contenders: &[Contender<'_>], cpus: &Cpus) -> Option<f64> {
        let (of, to) = (&contenders[self.of], &contenders[self.to]);
        (cpus.are_two() || !of.is_contended()).then(|| of.ratio_to(to))
    }
}

/// Resolved before anything is measured: a bar on something that nobody measures is no bar.
fn bars(contenders: &[Contender<'_>]) -> Vec<Bar> {
    let place = |name: &str| {
        let found = contenders.iter().position(|contender| contender.name == name);
        found.unwrap_or_else(|| panic!("nothing that is measured is called {name:?}"))
    };
    BARS.iter()
        .map(|&(key, of, to, most)| Bar { key, of: place(of), to: place(to), most })
        .collect()
}

const ADD: &str = "atomic add";
const ADD_CONTENDED: &str = "atomic add, two threads";

const BARS: [(&str, &str, &str, Option<f64>); 8] = [
    ("admit_release_per_add", "admit + release, 10,000 customers", ADD, Some(6.0)),
    // The bar is on the decision; that of many customers has their cache misses on top.
    ("reject_per_add", "reject by criticality, one customer", ADD, Some(1.0)),
    ("reject_many_per_add", "reject by criticality, 10,000 customers", ADD, None),
    ("reject_at_limit_per_add", "reject at the limit, one customer", ADD, None),
    (
        "contended_limit_per_contended_add",
        "admit + release, two threads, below a limit",
        ADD_CONTENDED,
        None,
    ),
    (
        "contended_admit_per_contended_add",
        "admit + release, two threads, one customer",
        ADD_CONTENDED,
        Some(1.0),
    ),
    ("throttle_per_governor_check", "throttle decision", "governor check", Some(1.0)),
    (
        "weighted_pick_per_round_robin",
        "weighted pick, 1,000 backends",
        "round-robin pick, 1,000 backends",
        Some(3.0),
    ),
];

pub(crate) fn run(options: &Options) {
    let (line, shared) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let mut contenders = peers(&line, &shared);
    contenders.extend(admission::contenders());
    contenders.extend(admission::estimates());
    contenders.extend(client_side());
    let bars = bars(&contenders);
    let mut cpus = Cpus::new();
    interleave(&mut contenders, options.rounds, options.operations, &mut cpus);
    if options.json {
        println!("{}", as_json(&contenders, &bars, &cpus));
    } else {
        print(&contenders, &bars, &cpus);
        println!(
            "\nMedians of {} interleaved rounds of {} operations each thread, {}.",
            options.rounds,
            options.operations,
            cpus.describe()
        );
    }
}

fn as_json(contenders: &[Contender<'_>], bars: &[Bar], cpus: &Cpus) -> serde_json::Value {
    let mut object = serde_json::Map::new();
    for bar in bars {
        object.insert(bar.key.to_owned(), json!(bar.ratio(contenders, cpus).map(round)));
    }
    let by_name = |value: &dyn Fn(&Contender<'_>) -> Option<f64>| {
        contenders
            .iter()
            .filter_map(|c| Some((c.name.to_owned(), json!(round(value(c)?)))))
            .collect::<serde_json::Map<_, _>>()
    };
    object.insert("nanoseconds".to_owned(), by_name(&|c| Some(c.median_nanos())).into());
    object.insert("admitted".to_owned(), by_name(&|c| c.admitted()).into());
    object.insert("two_cpus".to_owned(), cpus.are_two().into());
    object.insert("pinned".to_owned(), cpus.are_pinned().into());
    object.into()
}

fn print(contenders: &[Contender<'_>], bars: &[Bar], cpus: &Cpus) {
    println!("{:45} {:>8} {:>10} {:>10}", "", "ns", "per add", "admitted");
    for contender in contenders {
        let (nanos, ratio) = (contender.median_nanos(), contender.ratio_to(&contenders[0]));
        let admitted = contender
            .admitted()
            .map_or_else(String::new, |share| format!("{:.1} %", share * 100.0));
        print!("{:45} {nanos:8.2} {ratio:10.2} {admitted:>10}", contender.name);
        match contender.strayed_from() {
            Some(share) => println!("  but should be {:.1} %", share * 100.0),
            None => println!(),
        }
    }
    println!("\n{:45} {:>8} {:>10}  of", "bar", "found", "at most");
    for bar in bars {
        let found = bar.ratio(contenders, cpus);
        let verdict = match (found, bar.most) {
            (None, _) => ": one CPU is not enough to tell",
            (Some(found), Some(most)) if found > most => ": missed",
            _ => "",
        };
        let most = bar.most.map_or_else(|| "-".to_owned(), |most| format!("{most:.1}"));
        let found = found.map_or_else(|| "-".to_owned(), |found| format!("{found:.3}"));
        println!("{:45} {found:>8} {most:>10}  {}{verdict}", bar.key, contenders[bar.of].name);
    }
}

fn round(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}
