//! Small runs, tick by tick, as text. A change of any decision shows here as a changed line; run
//! with `UPDATE_GOLDEN=1` to accept it, and read the difference before it is committed.
#![cfg(not(feature = "loom"))]
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;
use tidegate_core::attempts::{AttemptHistogram, AttemptsConfig};
use tidegate_core::balance::{BackendId, Join, LoadReport, Weighted, WeightedConfig};
use tidegate_core::balance::{
    LeastLoaded, LeastLoadedConfig, Policy, Prequal, PrequalConfig, Probes,
};
use tidegate_core::batch::{BatchConfig, BatchProxy, Offer, Release};
use tidegate_core::connection::idle::{HealthAnswer, HealthPacer, HealthPacerConfig};
use tidegate_core::cost::{CostTable, MethodId};
use tidegate_core::decision::Advice;
use tidegate_core::doorman::{AlgorithmDraft, Draft, Kind, Repository, Request, Resource};
use tidegate_core::fleet::{FailStatic, Fleet, FleetConfig, Limits, Usage};
use tidegate_core::quota::{Charge, QuotaConfig, QuotaGate};
use tidegate_core::retry::{BudgetConfig, RetryBudget};
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::spillover::{Datacenter, DatacenterId, Demand, LocationId};
use tidegate_core::spillover::{Resources, Spillover, SpilloverConfig};
use tidegate_core::throttle::{Throttle, ThrottleConfig};
use tidegate_core::{Cost, CostRate, Criticality, CustomerId, Outcome, Timestamp};

/// Compares what `run` writes with the file of that name.
fn golden(name: &str, seed: u64, run: impl Fn(&mut SeededRng, &mut String)) {
    let trace = || {
        let mut text = format!("seed {seed}\n");
        run(&mut SeededRng::new(seed), &mut text);
        text
    };
    let found = trace();
    assert_eq!(found, trace(), "the same seed, another run");
    let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    for (number, (found, expected)) in (1..).zip(found.lines().zip(expected.lines())) {
        assert_eq!(found, expected, "line {number} of {path}");
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{path}");
}

fn cpus(cpus: f64) -> CostRate {
    CostRate::from_cpus(cpus).unwrap()
}

/// Fifty requests a second to a backend that takes all, then ten of them, then all again.
#[test]
fn throttle() {
    golden("throttle", 1, |rng, text| {
        writeln!(text, "second sent accepted throttled probability").unwrap();
        let mut throttle = Throttle::new(ThrottleConfig::default());
        let level = Criticality::Critical;
        let (mut sent, mut accepted, mut throttled) = (0, 0, 0);
        for second in 0..260_u64 {
            let room = if (30..230).contains(&second) { 10 } else { 50 };
            let mut taken = 0;
            for i in 0..50 {
                let now = Timestamp::from_millis(second * 1_000 + i * 20);
                if throttle.decide(level, now, rng).is_err() {
                    throttled += 1;
                    continue;
                }
                sent += 1;
                let outcome = if taken < room {
                    Outcome::Served
                } else {
                    Outcome::Refused(Advice::RetryElsewhere)
                };
                taken += u64::from(outcome == Outcome::Served);
                throttle.on_response(level, outcome, now);
            }
            accepted += taken;
            if second % 5 == 4 {
                let now = Timestamp::from_secs(second + 1);
                let probability = throttle.probability(level, now);
                let second = second + 1;
                writeln!(text, "{second} {sent} {accepted} {throttled} {probability:.3}").unwrap();
                (sent, accepted, throttled) = (0, 0, 0);
            }
        }
    });
}

/// Twenty requests a second of which some fail, then all, then none.
#[test]
fn retry_budget() {
    golden("retry_budget", 2, |rng, text| {
        writeln!(text, "second requests failed retried left").unwrap();
        let mut budget = RetryBudget::new(BudgetConfig::default());
        for second in 0..60_u64 {
            let (requests, percent) = match second {
                0..20 => (20, 5),
                20..35 => (20, 100),
                35..45 => (0, 0),
                _ => (20, 30),
            };
            let (mut failed, mut retried) = (0, 0);
            for i in 0..requests {
                let now = Timestamp::from_millis(second * 1_000 + i * 50);
                budget.deposit(now);
                if rng.below(100) < percent {
                    failed += 1;
                    retried += u32::from(budget.withdraw(now));
                }
            }
            let left = budget.available(Timestamp::from_secs(second + 1));
            writeln!(text, "{} {requests} {failed} {retried} {left}", second + 1).unwrap();
        }
    });
}

/// A share of the fleet fills up and recovers; a hundred first attempts a second.
#[test]
fn attempts() {
    golden("attempts", 3, |rng, text| {
        writeln!(text, "second full first second third estimate advice").unwrap();
        let mut attempts = AttemptHistogram::new(AttemptsConfig::default());
        for second in 0..80_u64 {
            let full = match second {
                0..15 => 2,
                15..30 => 12,
                30..45 => 60,
                45..60 => 7,
                _ => 1,
            };
            let mut refused =
                |attempts: u64| (0..attempts).filter(|_| rng.below(100) < full).count();
            let seconds = refused(100) as u64;
            let thirds = refused(seconds) as u64;
            let now = Timestamp::from_secs(second);
            attempts.record_counts([100, seconds, thirds], now);
            let advice = match attempts.advice(now) {
                Advice::DontRetry => "dont_retry",
                _ => "retry",
            };
            let estimate = attempts.estimate(now).share.get();
            writeln!(text, "{second} {full}% 100 {seconds} {thirds} {estimate:.3} {advice}")
                .unwrap();
        }
    });
}

/// A customer of one CPU asks for a half of it, for three of them and for a half again, through
/// two lanes; requests cost half to one and a half times their estimate.
#[test]
fn quota() {
    golden("quota", 4, |rng, text| {
        writeln!(text, "millis offered admitted-by-level opens-in-ms-by-level").unwrap();
        let mut config = QuotaConfig::default();
        config.customers_max = 1;
        let gate = QuotaGate::new(config);
        let customer = CustomerId::DEFAULT;
        gate.set_limits(customer, Limits::total(cpus(1.0)), Timestamp::ZERO);
        let mut lanes = [gate.lane(), gate.lane()];
        let mut running: VecDeque<(u64, Criticality, Charge, Cost)> = VecDeque::new();
        let mut admitted = [0; 4];
        let mut offered = 0;
        for millis in 1..=12_000_u64 {
            let now = Timestamp::from_millis(millis);
            while running.front().is_some_and(|&(done, ..)| done <= millis) {
                let (_, level, charge, actual) = running.pop_front().unwrap();
                let lane = &mut lanes[rng.below(2) as usize];
                lane.settle(customer, level, charge, actual, now);
            }
            // 10 ms every 20 ms are half a CPU.
            let every = if (3_000..8_000).contains(&millis) { 10 } else { 60 };
            if millis % every == 0 {
                for _ in 0..3 {
                    offered += 1;
                    let level = Criticality::ALL[rng.below(4) as usize];
                    let lane = &mut lanes[rng.below(2) as usize];
                    if gate.check(customer, level, now).is_ok() {
                        let charge = lane.charge(customer, level, Cost::from_millis(10), now);
                        let actual = Cost::from_micros(5_000 + rng.below(10_000));
                        running.push_back((millis + 30, level, charge, actual));
                        admitted[level.index()] += 1;
                    } else {
                        lane.refuse(customer, level, Cost::from_millis(10));
                    }
                }
            }
            if millis % 200 == 0 {
                let opens = Criticality::ALL.map(|level| {
                    gate.check(customer, level, now).err().map_or(0, |wait| wait.as_millis())
                });
                writeln!(text, "{millis} {offered} {admitted:?} {opens:?}").unwrap();
                (offered, admitted) = (0, [0; 4]);
            }
        }
    });
}

/// Four backends, of one, one, two and four CPUs, and a client that sends them 400 requests of
/// 10 ms a second. The last restarts on the way.
#[test]
fn weighted() {
    golden("weighted", 5, |rng, text| {
        writeln!(text, "second reason picks share-by-backend utilization-by-backend").unwrap();
        let capacity = [1.0, 1.0, 2.0, 4.0];
        let mut policy = Weighted::new(WeightedConfig::default()).unwrap();
        for id in 0..4 {
            policy.add(BackendId(id), Join::Warm, Timestamp::ZERO);
        }
        for second in 0..90_u64 {
            let now = Timestamp::from_secs(second);
            if second == 40 {
                policy.add(BackendId(3), Join::Cold, now);
            }
            let mut picks = [0_u64; 4];
            let mut reason = None;
            for i in 0..400 {
                let pick = policy.pick(now + Duration::from_micros(i * 2_500)).unwrap();
                picks[pick.backend.0 as usize] += 1;
                reason = Some(pick.reason);
            }
            let total: f64 = policy.weights().iter().map(|(_, weight)| weight).sum();
            let mut shares = [0.0; 4];
            for &(id, weight) in policy.weights() {
                shares[id.0 as usize] = weight / total;
            }
            let mut used = [0.0; 4];
            for (id, (&rps, cpus)) in (0..).zip(picks.iter().zip(capacity)) {
                let noise = 0.95 + 0.1 * rng.unit();
                used[id] = rps as f64 * 0.01 / cpus * noise;
                let report = LoadReport {
                    rps: rps as f64,
                    cpu_utilization: used[id],
                    ..LoadReport::default()
                };
                let _ = policy.on_report(BackendId(id as u32), &report, now);
            }
            if second % 2 == 0 || (8..14).contains(&second) {
                let reason = reason.unwrap();
                writeln!(text, "{second} {reason} {picks:?} {shares:.3?} {used:.3?}").unwrap();
            }
        }
    });
}

/// Three tasks share ten CPUs of a customer. One vanishes, and comes back after it was forgotten.
#[test]
fn fleet() {
    golden("fleet", 6, |rng, text| {
        writeln!(text, "second demand-by-task enforced-by-task counted (CPUs)").unwrap();
        let mut config = FleetConfig::default();
        config.silence.hold = Duration::from_secs(5);
        config.silence.tau = Duration::from_secs(1);
        config.learning = config.silence.lease();
        config.forget = Duration::from_secs(20);
        let silence = config.silence;
        let mut fleet = Fleet::new(config, 1, Limits::UNLIMITED, Timestamp::ZERO).unwrap();
        let customer = fleet.set_customer("video", Limits::total(cpus(10.0))).unwrap();
        let unseen = fleet.unseen(customer);
        let names = ["a", "b", "c"];
        let mut tasks = names.map(|name| fleet.join(name, 1, Timestamp::ZERO).unwrap());
        let mut limits = [FailStatic::new(silence, unseen); 3];
        let mut changes = Vec::new();
        for second in 0..90_u64 {
            let now = Timestamp::from_secs(second);
            let away = (30..75).contains(&second);
            if second == 75 {
                tasks[2] = fleet.join("c", 1, now).unwrap();
            }
            let wanted = [2.0 + rng.unit(), 3.0 + rng.unit(), if second < 20 { 1.0 } else { 8.0 }];
            for i in 0..3 {
                if i == 2 && away {
                    continue;
                }
                let demand = [CostRate::ZERO, CostRate::ZERO, cpus(wanted[i]), CostRate::ZERO];
                let used = demand.map(|rate| rate.min(limits[i].enforced(now).whole()));
                let has = Some(limits[i].holds(now));
                let acked = limits[i].generation();
                let usage = Usage { customer, used, demand, has };
                if fleet.report(tasks[i], acked, [usage], now).is_ok_and(|a| a.renewed) {
                    limits[i].renew(now, now);
                }
            }
            changes.clear();
            let _ = fleet.tick(now, &mut changes);
            for change in &changes {
                let i = tasks.iter().position(|&task| task == change.task).unwrap();
                if i < 2 || !away {
                    limits[i].grant(change.generation, change.limits, change.safe, now, now);
                }
            }
            let enforced = limits.map(|limits| limits.enforced(now).whole().as_cpus());
            let counted = fleet.status(customer).unwrap().counted[3].as_cpus();
            writeln!(text, "{second} {wanted:.3?} {enforced:.3?} {counted:.3}").unwrap();
        }
    });
}

/// A batch job without end against a backend that runs eight of its requests at a time, then two,
/// then none, pushing back, and then eight again.
#[test]
fn batch() {
    golden("batch", 7, |rng, text| {
        writeln!(text, "millis window spacing-us outstanding accepted refused").unwrap();
        let mut proxy = BatchProxy::new(BatchConfig::default()).unwrap();
        let mut running: Vec<(u64, u64, Outcome)> = Vec::new();
        let (mut accepted, mut refused) = (0, 0);
        for millis in 0..20_000_u64 {
            let now = Timestamp::from_millis(millis);
            let room = match millis {
                6_000..10_000 => 2,
                10_000..13_000 => 0,
                _ => 8,
            };
            let done = |&mut (_, done, _): &mut _| done <= millis;
            for (sent, _, outcome) in running.extract_if(.., done) {
                match outcome {
                    Outcome::Served => accepted += 1,
                    _ => refused += 1,
                }
                proxy.on_result(outcome, Duration::from_millis(millis - sent), now);
            }
            if proxy.queued() < 10 {
                let offer = proxy.offer((), Criticality::Sheddable, None, now);
                assert!(matches!(offer, Offer::Queued(_)), "{offer:?}");
            }
            while let Some(Release::Send { .. }) = proxy.release(now) {
                let serving = running.iter().filter(|r| r.2 == Outcome::Served).count();
                let (takes, outcome) = if serving < room {
                    (15 + rng.below(10), Outcome::Served)
                } else if room == 0 {
                    let wait = Duration::from_millis(500);
                    (1, Outcome::Refused(Advice::RetryAfter(wait)))
                } else {
                    (1, Outcome::Refused(Advice::RetryElsewhere))
                };
                running.push((millis, millis + takes, outcome));
            }
            if millis % 200 == 199 {
                let pace = proxy.pace();
                let (window, spacing) = (pace.window(), pace.spacing().as_micros());
                let outstanding = pace.outstanding();
                writeln!(
                    text,
                    "{} {window:.3} {spacing} {outstanding} {accepted} {refused}",
                    millis + 1
                )
                .unwrap();
                (accepted, refused) = (0, 0);
            }
        }
    });
}

/// Requests of about 2 ms, of which one in two hundred costs two seconds; then a release makes them
/// five times as dear.
#[test]
fn cost() {
    golden("cost", 8, |rng, text| {
        writeln!(text, "requests dear estimate-us of-a-stranger-us").unwrap();
        let table = CostTable::new(64, Cost::from_millis(1));
        let mut lane = table.lane();
        let (customer, method) = (CustomerId(1), MethodId(1));
        let mut dear = 0;
        for i in 1..=1_200_u64 {
            let usual = 1_500_000 + rng.below(1_000_000);
            let usual = if i > 600 { 5 * usual } else { usual };
            let rare = rng.below(200) == 0;
            dear += u64::from(rare);
            let cost = if rare { 2_000_000_000 } else { usual };
            lane.record(customer, method, Cost::from_nanos(cost));
            if i % 25 == 0 || i < 10 {
                let known = lane.estimate(customer, method).as_nanos() / 1_000;
                let stranger = lane.estimate(CustomerId(2), method).as_nanos() / 1_000;
                writeln!(text, "{i} {dear} {known} {stranger}").unwrap();
            }
        }
    });
}

/// Five backends, the third four times as slow as the others, and the last fails at once from the
/// sixth second to the twelfth: picks of each second by `policy`. Probes are answered at once.
fn picks(mut policy: Policy, rng: &mut SeededRng, text: &mut String) {
    writeln!(text, "second picks-by-backend active-by-backend").unwrap();
    for id in 0..5 {
        policy.add(BackendId(id), Join::Warm, Timestamp::ZERO);
    }
    let mut under_way: Vec<(u64, BackendId, Outcome)> = Vec::new();
    let mut counts = [0_u64; 5];
    for milli in 0..24_000_u64 {
        let now = Timestamp::from_millis(milli);
        under_way.retain(|&(until, id, outcome)| {
            if until <= milli {
                policy.on_complete(id, outcome, now);
            }
            until > milli
        });
        let probes = policy.probes_wanted(rng);
        for &id in probes.as_ref().map_or(&[][..], Probes::as_slice) {
            let active = policy.active(id);
            let latency = if id == BackendId(2) { 80 } else { 20 };
            policy.on_probe(id, active, Duration::from_millis(latency), now);
        }
        let id = policy.pick(now, rng).unwrap().backend;
        policy.on_start(id, now);
        counts[id.0 as usize] += 1;
        let fails = id == BackendId(4) && (6_000..12_000).contains(&milli);
        let (latency, outcome) = match id.0 {
            _ if fails => (1, Outcome::Failed),
            2 => (60 + rng.below(40), Outcome::Served),
            _ => (15 + rng.below(10), Outcome::Served),
        };
        under_way.push((milli + latency, id, outcome));
        if milli % 1_000 == 999 {
            let active: Vec<_> = (0..5).map(|id| policy.active(BackendId(id))).collect();
            writeln!(text, "{} {counts:?} {active:?}", milli / 1_000 + 1).unwrap();
            counts = [0; 5];
        }
    }
}

#[test]
fn least_loaded() {
    golden("least_loaded", 9, |rng, text| {
        picks(LeastLoaded::new(LeastLoadedConfig::default()).into(), rng, text);
    });
}

#[test]
fn prequal() {
    golden("prequal", 10, |rng, text| {
        picks(Prequal::new(PrequalConfig::default()).unwrap().into(), rng, text);
    });
}

/// Two locations and three datacenters. The first asks for more and more; then the datacenter
/// nearest to it is lost, and comes back.
#[test]
fn spillover() {
    golden("spillover", 11, |rng, text| {
        writeln!(text, "second asked placed-by-location unplaced (CPUs)").unwrap();
        let mut spillover = Spillover::new(SpilloverConfig::default());
        let near = |ms: [u64; 3]| {
            let distances = (0..).map(DatacenterId).zip(ms.map(Duration::from_millis));
            distances.collect::<Vec<_>>()
        };
        for second in 0..90_u64 {
            let now = Timestamp::from_secs(second);
            let first = if second < 30 { 4.0 * second as f64 } else { 80.0 };
            let asked = [first + 5.0 * rng.unit(), 60.0 + 5.0 * rng.unit()];
            let lost = (40..55).contains(&second);
            let capacity = [if lost { 0.0 } else { 100.0 }, 80.0, 40.0];
            let demands = [near([1, 20, 50]), near([20, 1, 30])];
            let demands = (0..).zip(demands).zip(asked).map(|((location, distances), asked)| {
                Demand::new(LocationId(location), Resources::cpu(cpus(asked)), distances)
            });
            let datacenters = (0..).zip(capacity).map(|(id, capacity)| {
                Datacenter::new(DatacenterId(id), Resources::cpu(cpus(capacity)))
            });
            let demands: Vec<_> = demands.collect();
            let datacenters: Vec<_> = datacenters.collect();
            let plan = spillover.plan(&demands, &datacenters, now);
            if second % 3 == 0 || (38..45).contains(&second) {
                let placed: Vec<Vec<_>> = plan
                    .iter()
                    .map(|to| to.placed.iter().map(|(id, at)| (id.0, at.as_cpus())).collect())
                    .collect();
                let unplaced: Vec<_> = plan.iter().map(|to| to.unplaced.as_cpus()).collect();
                writeln!(text, "{second} {asked:.1?} {placed:.1?} {unplaced:.1?}").unwrap();
            }
        }
    });
}

/// A hundred idle clients ask how a task is, then twenty thousand do, then a hundred again.
#[test]
fn health_pacer() {
    golden("health_pacer", 12, |rng, text| {
        writeln!(text, "second clients checks dropped interval-ms estimated-clients").unwrap();
        let mut pacer = HealthPacer::new(HealthPacerConfig::default(), Timestamp::ZERO).unwrap();
        // When each client asks, and how long it has waited since it asked last.
        let mut asks: Vec<(u64, Option<Duration>)> = Vec::new();
        let (mut checks, mut dropped) = (0, 0);
        for second in 0..240_u64 {
            let clients = if (30..120).contains(&second) { 20_000 } else { 100 };
            asks.truncate(clients);
            while asks.len() < clients {
                asks.push((second * 1_000 + rng.below(5_000), None));
            }
            for (at, waited) in &mut asks {
                if *at / 1_000 > second {
                    continue;
                }
                checks += 1;
                let now = Timestamp::from_millis((*at).max(second * 1_000));
                let wait = match pacer.on_check(*waited, now, rng) {
                    HealthAnswer::AskAgainAfter(wait) => wait,
                    HealthAnswer::Drop => {
                        dropped += 1;
                        Duration::from_secs(5)
                    }
                };
                (*at, *waited) = (*at + wait.as_millis() as u64, Some(wait));
            }
            if second % 5 == 4 {
                let now = Timestamp::from_secs(second + 1);
                let (interval, known) = (pacer.interval(now).as_millis(), pacer.clients(now));
                let second = second + 1;
                writeln!(text, "{second} {clients} {checks} {dropped} {interval} {known:.0}")
                    .unwrap();
                (checks, dropped) = (0, 0);
            }
        }
    });
}

/// Three clients of a resource of a hundred, by fair share, from a new master's learning on; the
/// second goes away, and the third wants more than is left.
#[test]
fn doorman() {
    golden("doorman", 13, |rng, text| {
        writeln!(text, "second learning wants-by-client has-by-client").unwrap();
        let fair = AlgorithmDraft::new(Kind::FairShare, 20, 5);
        let drafts = [Draft::new("*", 100.0).with_algorithm(fair)];
        let repository = Repository::new(&drafts).unwrap();
        let template = repository.find("disks").clone();
        let mut resource = Resource::new(template, Timestamp::ZERO, 10);
        let mut leases = [None; 3];
        for second in (0..120_u64).step_by(5) {
            let now = Timestamp::from_secs(second);
            let third = if second < 60 { 30.0 } else { 90.0 };
            let wants = [20.0 + 10.0 * rng.unit(), 60.0, third].map(f64::round);
            for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
                if i == 1 && second >= 80 {
                    leases[1] = None;
                    continue;
                }
                let request = Request::client(wants[i], 1).with_has(leases[i]);
                leases[i] = Some(resource.decide(name, &request, now).unwrap());
            }
            let has = leases.map(|lease| lease.map_or(0.0, |lease| lease.capacity));
            let learning = resource.is_learning(now);
            writeln!(text, "{second} {learning} {wants:?} {has:.1?}").unwrap();
        }
    });
}
