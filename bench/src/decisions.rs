//! What one decision costs.
//!
//! The unit is one relaxed atomic add in the same round: alone for what one thread does, by two
//! threads on the same cache line for what two do. Ours take `now` as an argument, as in the
//! shells, where one reading of the clock serves a whole request; the peers read their own clocks,
//! which is how they come.

use crate::measure::{Contender, interleave};
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
use std::time::Duration;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::admission::{AdmissionGate, Decision, Lane, Request};
use tidegate_core::balance::{BackendId, Join, LoadReport, RoundRobin, Weighted, WeightedConfig};
use tidegate_core::cost::{CostTable, MethodId};
use tidegate_core::customer::CustomerId;
use tidegate_core::fleet::Limits;
use tidegate_core::levels::Levels;
use tidegate_core::quota::QuotaConfig;
use tidegate_core::retry::{BudgetConfig, BudgetController};
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::throttle::{Outcome, ThrottleConfig, ThrottleController};
use tidegate_core::{Cost, CostRate, Criticality, Timestamp};
use tower::limit::ConcurrencyLimit;
use tower::load_shed::LoadShed;
use tower::{Service, ServiceBuilder, service_fn};

const CUSTOMERS: u32 = 10_000;
const BACKENDS: u32 = 1_000;

#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Rounds to take medians over.
    #[arg(long, default_value_t = 31)]
    rounds: u32,
    /// Operations in each measurement.
    #[arg(long, default_value_t = 200_000)]
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

/// A gate that sheds part of `SHEDDABLE`, with a quota for each of the customers.
fn gate() -> Arc<AdmissionGate> {
    let mut quota = QuotaConfig::default();
    quota.customers_max = CUSTOMERS as usize + 1;
    let gate = AdmissionGate::new(&ShedConfig::default(), quota);
    let limit = CostRate::from_cpus(1_000.0).unwrap_or(CostRate::MAX);
    for customer in 0..=CUSTOMERS {
        gate.quota().set_limits(CustomerId(customer), Limits::total(limit), Timestamp::ZERO);
    }
    gate.set_levels(Levels::from_shares([0.0, 0.5, 1.0, 1.0]));
    gate
}

/// The customers of 65,536 requests, drawn evenly.
fn customers() -> Arc<[CustomerId]> {
    let mut rng = SeededRng::new(1);
    (0..1 << 16).map(|_| CustomerId(1 + rng.below(u64::from(CUSTOMERS)) as u32)).collect()
}

/// The customer of request `i`. The lists are powers of two long, as a division would cost as much
/// as what is measured.
#[inline]
fn at(customers: &[CustomerId], i: u64) -> CustomerId {
    customers[i as usize & (customers.len() - 1)]
}

/// Admits and releases, charging 10 µs in advance and 9 µs in the end; 100 ns pass in between.
fn admit_release(
    mut lane: Lane,
    customers: Arc<[CustomerId]>,
    criticality: Criticality,
) -> impl FnMut(u64) + Send {
    let mut rng = SeededRng::new(2);
    let (estimate, actual) = (Cost::from_micros(10), Cost::from_micros(9));
    let request = Request::new(criticality, estimate);
    let mut clock = Timestamp::ZERO;
    move |operations| {
        // On the stack, where no other thread's state is near.
        let (mut now, mut rng) = (clock, rng.fork());
        for i in 0..operations {
            now += Duration::from_nanos(100);
            let customer = at(&customers, i);
            match lane.admit(&request.customer(customer), now, &mut rng) {
                Decision::Admit(permit) => lane.complete(black_box(permit), actual, now),
                Decision::Reject(ref rejection) => {
                    black_box(rejection);
                }
            }
        }
        clock = now;
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
    let customers = customers();
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
        Contender::alone("atomic add", add(line)),
        Contender::contended("atomic add, two threads", add(shared), add(shared)),
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

fn admissions<'a>() -> Vec<Contender<'a>> {
    let many = customers();
    let single: Arc<[CustomerId]> = [CustomerId(1)].into();
    let gate = gate();
    let critical = Criticality::Critical;
    vec![
        Contender::alone(
            "admit + release, 10,000 customers",
            admit_release(gate.lane(), Arc::clone(&many), critical),
        ),
        Contender::alone(
            "admit + release, one customer",
            admit_release(gate.lane(), Arc::clone(&single), critical),
        ),
        Contender::contended(
            "admit + release, two threads, one customer",
            admit_release(gate.lane(), Arc::clone(&single), critical),
            admit_release(gate.lane(), Arc::clone(&single), critical),
        ),
        Contender::alone(
            "reject by criticality, one customer",
            admit_release(gate.lane(), single, Criticality::Sheddable),
        ),
        Contender::alone(
            "reject by criticality, 10,000 customers",
            admit_release(gate.lane(), Arc::clone(&many), Criticality::Sheddable),
        ),
        Contender::alone("estimate a cost, 10,000 customers", {
            let table = CostTable::new(2 * CUSTOMERS as usize, Cost::from_millis(1));
            let mut lane = table.lane();
            for _ in 0..20 {
                for customer in 0..=CUSTOMERS {
                    lane.record(CustomerId(customer), MethodId(1), Cost::from_millis(2));
                }
            }
            move |operations| {
                for i in 0..operations {
                    let customer = at(&many, i);
                    black_box(lane.estimate(customer, MethodId(1)));
                }
            }
        }),
    ]
}

fn client_side<'a>() -> Vec<Contender<'a>> {
    let mut controller = ThrottleController::new(ThrottleConfig::default());
    let mut throttle = controller.gate().lane();
    // Half of what is sent is refused, over and over: every decision needs the dice.
    for _ in 0..1_000 {
        for outcome in [Outcome::Accepted, Outcome::Refused, Outcome::Refused, Outcome::Refused] {
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
                deposits.deposit();
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

pub(crate) fn run(options: &Options) {
    let (line, shared) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let mut contenders = peers(&line, &shared);
    contenders.extend(admissions());
    contenders.extend(client_side());
    interleave(&mut contenders, options.rounds, options.operations);

    let find = |name: &str| contenders.iter().find(|c| c.name == name).unwrap_or(&contenders[0]);
    let ratio = |of: &str, to: &str| find(of).ratio_to(find(to));
    let bars = [
        ("admit_release_per_add", ratio("admit + release, 10,000 customers", "atomic add"), 6.0),
        ("reject_per_add", ratio("reject by criticality, one customer", "atomic add"), 1.0),
        (
            "contended_admit_per_contended_add",
            ratio("admit + release, two threads, one customer", "atomic add, two threads"),
            1.0,
        ),
        ("throttle_per_governor_check", ratio("throttle decision", "governor check"), 1.0),
        (
            "weighted_pick_per_round_robin",
            ratio("weighted pick, 1,000 backends", "round-robin pick, 1,000 backends"),
            3.0,
        ),
    ];
    if options.json {
        let mut object = serde_json::Map::new();
        for (key, value, _) in bars {
            object.insert(key.to_owned(), json!(round(value)));
        }
        let nanos: serde_json::Map<_, _> = contenders
            .iter()
            .map(|c| (c.name.to_owned(), json!(round(c.median_nanos()))))
            .collect();
        object.insert("nanoseconds".to_owned(), nanos.into());
        println!("{}", serde_json::Value::from(object));
        return;
    }
    println!("{:45} {:>8} {:>10}", "", "ns", "per add");
    for contender in &contenders {
        let (nanos, ratio) = (contender.median_nanos(), contender.ratio_to(&contenders[0]));
        println!("{:45} {nanos:8.2} {ratio:10.2}", contender.name);
    }
    println!("\n{:45} {:>8} {:>10}", "bar", "found", "at most");
    for (key, value, bar) in bars {
        let verdict = if value <= bar { "" } else { "  missed" };
        println!("{key:45} {value:8.2} {bar:10.1}{verdict}");
    }
    println!(
        "\nMedians of {} interleaved rounds of {} operations, threads pinned.",
        options.rounds, options.operations
    );
}

fn round(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}
