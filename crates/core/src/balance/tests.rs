//! What holds for every policy, and what a fleet sees of each.

use super::*;
use crate::outcome::Outcome;
use crate::rng::{Rng, SeededRng};
use crate::units::Timestamp;
use core::time::Duration;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn policies() -> [Policy; 4] {
    [
        RoundRobin::new(64).into(),
        LeastLoaded::new(LeastLoadedConfig::default()).into(),
        Weighted::new(WeightedConfig { backends_max: 64, ..Default::default() }).unwrap().into(),
        Prequal::new(PrequalConfig::default()).unwrap().into(),
    ]
}

const BACKENDS: u32 = 12;

#[derive(Debug, Clone)]
enum Operation {
    Add(u32, bool),
    LameDuck(u32),
    Remove(u32),
    /// Picks, and starts what was picked.
    Send,
    /// Starts or ends something that nobody picked.
    Start(u32),
    Complete(u32, u8),
    Report(u32, [u64; 4]),
    SaneReport(u32, [u16; 4]),
    Probe(u32, u32, u64),
    Deadline,
    Wait(u64),
    StepBack(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let id = || prop_oneof![20 => 0..BACKENDS, 1 => Just(BackendId::LIMIT), 1 => Just(u32::MAX)];
    prop_oneof![
        4 => (id(), any::<bool>()).prop_map(|(id, cold)| Operation::Add(id, cold)),
        2 => id().prop_map(Operation::LameDuck),
        1 => id().prop_map(Operation::Remove),
        12 => Just(Operation::Send),
        1 => id().prop_map(Operation::Start),
        8 => (id(), 0_u8..3).prop_map(|(id, outcome)| Operation::Complete(id, outcome)),
        2 => (id(), any::<[u64; 4]>()).prop_map(|(id, bits)| Operation::Report(id, bits)),
        3 => (id(), any::<[u16; 4]>()).prop_map(|(id, n)| Operation::SaneReport(id, n)),
        4 => (id(), any::<u32>(), any::<u64>())
            .prop_map(|(id, rif, latency)| Operation::Probe(id, rif, latency)),
        2 => Just(Operation::Deadline),
        4 => (0_u64..3_000).prop_map(Operation::Wait),
        1 => prop_oneof![Just(u64::MAX), 0_u64..100_000].prop_map(Operation::Wait),
        1 => (0_u64..10_000).prop_map(Operation::StepBack),
    ]
}

/// The set as a plain map: standing and active requests.
#[derive(Default)]
struct Model {
    backends: BTreeMap<u32, (Standing, u32)>,
    /// One past the highest number that has ever been in: what begins beyond is not counted.
    numbers: u32,
}

impl Model {
    fn standing(&self, id: u32) -> Standing {
        self.backends.get(&id).map_or(Standing::Absent, |b| b.0)
    }

    fn any(&self, standing: Standing) -> bool {
        self.backends.values().any(|b| b.0 == standing)
    }

    fn stand(&mut self, id: u32, standing: Standing) {
        self.backends.entry(id).or_insert((standing, 0)).0 = standing;
        self.numbers = self.numbers.max(id + 1);
    }

    fn start(&mut self, id: u32) {
        if id < self.numbers {
            self.backends.entry(id).or_insert((Standing::Absent, 0)).1 += 1;
        }
    }
}

fn outcome(n: u8) -> Outcome {
    [Outcome::Served, Outcome::Failed, Outcome::Abandoned][n as usize % 3]
}

fn apply(policy: &mut Policy, operations: &[Operation]) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    let mut rng = SeededRng::new(5);
    let mut now = Timestamp::ZERO;
    for operation in operations {
        match *operation {
            Operation::Add(id, cold) => {
                let join = if cold { Join::Cold } else { Join::Warm };
                let fits = id < BackendId::LIMIT;
                prop_assert_eq!(policy.add(BackendId(id), join, now), fits);
                if fits {
                    model.stand(id, Standing::Serving);
                }
            }
            Operation::LameDuck(id) => {
                let known = model.standing(id) != Standing::Absent;
                prop_assert_eq!(policy.lame_duck(BackendId(id), now), known);
                if known {
                    model.stand(id, Standing::LameDuck);
                }
            }
            Operation::Remove(id) => {
                let known = model.standing(id) != Standing::Absent;
                prop_assert_eq!(policy.remove(BackendId(id), now), known);
                if known {
                    model.stand(id, Standing::Absent);
                }
            }
            Operation::Send => {
                policy.probes_wanted(&mut rng);
                let Some(pick) = policy.pick(now, &mut rng) else {
                    prop_assert!(!model.any(Standing::Serving) && !model.any(Standing::LameDuck));
                    continue;
                };
                let wanted = if model.any(Standing::Serving) {
                    Standing::Serving
                } else {
                    Standing::LameDuck
                };
                prop_assert_eq!(model.standing(pick.backend.0), wanted);
                let lame = pick.reason == PickReason::AllLameDuck;
                prop_assert_eq!(lame, wanted == Standing::LameDuck);
                policy.on_start(pick.backend, now);
                model.start(pick.backend.0);
            }
            Operation::Start(id) => {
                policy.on_start(BackendId(id), now);
                model.start(id);
            }
            Operation::Complete(id, n) => {
                policy.on_complete(BackendId(id), outcome(n), now);
                model.backends.entry(id).and_modify(|b| b.1 = b.1.saturating_sub(1));
            }
            Operation::Report(id, bits) => {
                let [rps, eps, application_utilization, cpu_utilization] = bits.map(f64::from_bits);
                let report = LoadReport { rps, eps, application_utilization, cpu_utilization };
                policy.on_report(BackendId(id), &report, now);
            }
            Operation::SaneReport(id, n) => {
                let [rps, eps, application_utilization, cpu_utilization] =
                    n.map(|n| f64::from(n) / 256.0);
                let report = LoadReport { rps, eps, application_utilization, cpu_utilization };
                policy.on_report(BackendId(id), &report, now);
            }
            Operation::Probe(id, rif, latency) => {
                policy.on_probe(BackendId(id), rif, Duration::from_nanos(latency), now);
            }
            Operation::Deadline => {
                policy.on_deadline(now);
                let due = policy.next_deadline().is_some_and(|at| at <= now);
                prop_assert!(!due || now == Timestamp::MAX, "still due at {:?}", now);
                policy.probes_wanted(&mut rng);
            }
            Operation::Wait(ms) => now += Duration::from_millis(ms),
            Operation::StepBack(ms) => now = now - Duration::from_millis(ms),
        }
        for (&id, &(standing, active)) in &model.backends {
            prop_assert_eq!(policy.standing(BackendId(id)), standing);
            prop_assert_eq!(policy.active(BackendId(id)), active);
        }
        if let Policy::Weighted(weighted) = &policy {
            let weights = weighted.weights();
            prop_assert!(weights.iter().all(|&(_, w)| w.is_finite() && w >= 0.0), "{:?}", weights);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_history_keeps_to_the_set(
        operations in proptest::collection::vec(operation(), 1..150),
        which in 0_usize..4,
    ) {
        let [a, b, c, d] = policies();
        let mut policy = [a, b, c, d].into_iter().nth(which).unwrap();
        apply(&mut policy, &operations)?;
    }

    /// Against brute force: the pick has the fewest active requests and recent errors of all that
    /// serve, and among those it is the one that was picked longest ago.
    #[test]
    fn least_loaded_picks_a_minimum(
        steps in proptest::collection::vec((0_u8..5, 0_u32..8, 0_u64..400), 1..300),
    ) {
        let mut policy = LeastLoaded::new(LeastLoadedConfig::default());
        for id in 0..8 {
            policy.add(BackendId(id), Join::Warm, Timestamp::ZERO);
        }
        let mut active = [0_u32; 8];
        let mut serving = [true; 8];
        let mut turns: [i64; 8] = core::array::from_fn(|i| i as i64 - 8);
        // Errors count until their eighth of five seconds is eight eighths old.
        let tick = 5_000_000_000 / 8;
        let mut errors: Vec<(u64, u32)> = Vec::new();
        let mut now = Timestamp::ZERO;
        for (turn, (kind, id, ms)) in steps.into_iter().enumerate() {
            now += Duration::from_millis(ms);
            let (i, at) = (id as usize, now.as_nanos() / tick);
            let load = |i: usize| {
                let recent = errors.iter().filter(|(t, e)| t + 8 > at && *e as usize == i);
                active[i] as usize + recent.count()
            };
            match kind {
                0 | 1 => {
                    let best = (0..8).filter(|&i| serving[i]).min_by_key(|&i| (load(i), turns[i]));
                    let picked = policy.pick(now).map(|p| p.backend.index());
                    if let Some(best) = best {
                        prop_assert_eq!(picked, Some(best));
                        policy.on_start(BackendId(best as u32), now);
                        active[best] += 1;
                        turns[best] = turn as i64;
                    }
                }
                2 | 3 => {
                    let outcome = if kind == 2 { Outcome::Served } else { Outcome::Failed };
                    policy.on_complete(BackendId(id), outcome, now);
                    active[i] = active[i].saturating_sub(1);
                    if kind == 3 {
                        errors.push((at, id));
                    }
                }
                _ if serving[i] => {
                    policy.lame_duck(BackendId(id));
                    serving[i] = false;
                }
                _ => {
                    policy.add(BackendId(id), Join::Warm, now);
                    serving[i] = true;
                    turns[i] = turn as i64;
                }
            }
        }
    }

    /// Through any changes of the set, while it lasts every pick's turn is fair to within one.
    #[test]
    fn round_robin_is_fair_between_changes(
        changes in proptest::collection::vec((0_u32..10, any::<bool>(), 1_usize..60), 1..30),
    ) {
        let mut policy = RoundRobin::new(10);
        for (id, add, picks) in changes {
            if add {
                policy.add(BackendId(id), Join::Warm, Timestamp::ZERO);
            } else {
                policy.remove(BackendId(id));
            }
            let mut counts = BTreeMap::new();
            for _ in 0..picks {
                if let Some(pick) = policy.pick(Timestamp::ZERO) {
                    *counts.entry(pick.backend.0).or_insert(0_usize) += 1;
                }
            }
            let serving =
                (0..10).filter(|&i| policy.standing(BackendId(i)) == Standing::Serving).count();
            let (low, high) = (picks / serving.max(1), picks.div_ceil(serving.max(1)));
            prop_assert!(counts.values().all(|n| (low..=high).contains(n)), "{:?}", counts);
        }
    }

    /// Over many seconds of picks, each backend's share is that of its weight.
    #[test]
    fn weighted_shares_are_right_in_the_long_run(
        rates in proptest::collection::vec(20.0_f64..150.0, 2..10),
    ) {
        let mut policy = Weighted::new(WeightedConfig::default()).unwrap();
        for id in 0..rates.len() as u32 {
            policy.add(BackendId(id), Join::Warm, Timestamp::ZERO);
        }
        let mut counts = vec![0_u32; rates.len()];
        let picks = 40 * 700;
        for i in 0..10 * 700 + picks {
            let now = Timestamp::from_millis(i * 1_000 / 700);
            if i % 700 == 0 {
                for (id, &rps) in rates.iter().enumerate() {
                    let report = LoadReport { rps, cpu_utilization: 0.5, ..Default::default() };
                    policy.on_report(BackendId(id as u32), &report, now);
                }
            }
            let pick = policy.pick(now).unwrap();
            if i >= 10 * 700 {
                counts[pick.backend.index()] += 1;
            }
        }
        let total: f64 = rates.iter().sum();
        for (count, rate) in counts.into_iter().zip(rates) {
            let exact = picks as f64 * rate / total;
            prop_assert!((f64::from(count) / exact - 1.0).abs() < 0.02, "{count} {exact}");
        }
    }
}

/// A client that sends a request a millisecond, and tasks that take their time or fail at once.
struct World {
    policy: Policy,
    latencies: Vec<Duration>,
    failing: Option<usize>,
    under_way: BTreeMap<(Timestamp, u64), (BackendId, Outcome)>,
    rng: SeededRng,
    sent: u64,
}

impl World {
    fn new(policy: Policy, latencies: &[u64]) -> Self {
        let mut world = Self {
            policy,
            latencies: latencies.iter().map(|&ms| Duration::from_millis(ms)).collect(),
            failing: None,
            under_way: BTreeMap::new(),
            rng: SeededRng::new(3),
            sent: 0,
        };
        for id in 0..latencies.len() as u32 {
            world.policy.add(BackendId(id), Join::Warm, Timestamp::ZERO);
        }
        world
    }

    /// How many requests each task gets in the next `millis` milliseconds.
    fn run(&mut self, millis: u64) -> Vec<u64> {
        let mut counts = vec![0; self.latencies.len()];
        for _ in 0..millis {
            let now = Timestamp::from_millis(self.sent);
            self.sent += 1;
            while let Some(first) = self.under_way.first_entry()
                && first.key().0 <= now
            {
                let ((at, _), (id, outcome)) = first.remove_entry();
                self.policy.on_complete(id, outcome, at);
            }
            let probes = self.policy.probes_wanted(&mut self.rng);
            for &id in probes.as_ref().map_or(&[][..], Probes::as_slice) {
                let latency = self.latency(id);
                self.policy.on_probe(id, self.policy.active(id), latency, now);
            }
            let id = self.policy.pick(now, &mut self.rng).unwrap().backend;
            counts[id.index()] += 1;
            self.policy.on_start(id, now);
            let failed = self.failing == Some(id.index());
            let outcome = if failed { Outcome::Failed } else { Outcome::Served };
            // Half again as long, or half as long, by chance.
            let latency = self.latency(id).mul_f64(0.5 + self.rng.unit());
            self.under_way.insert((now + latency, self.sent), (id, outcome));
        }
        counts
    }

    fn latency(&self, id: BackendId) -> Duration {
        if self.failing == Some(id.index()) {
            Duration::from_micros(100)
        } else {
            self.latencies[id.index()]
        }
    }
}

fn least_loaded(error_memory: Duration) -> Policy {
    LeastLoaded::new(LeastLoadedConfig { error_memory, ..Default::default() }).into()
}

fn prequal(error_memory: Duration) -> Policy {
    Prequal::new(PrequalConfig { error_memory, ..Default::default() }).unwrap().into()
}

/// Ten tasks, one fails at once. Its fair share is a tenth. If errors do not count it draws most
/// of the traffic; if they do, it gets next to nothing, and is back when it has recovered.
#[test]
fn a_task_that_fails_fast_is_no_sinkhole() {
    for make in [least_loaded, prequal] {
        let mut without = World::new(make(Duration::ZERO), &[50; 10]);
        without.run(2_000);
        without.failing = Some(4);
        let drawn = without.run(10_000)[4];
        assert!(drawn > 5_000, "{drawn} of 10000 to the failing task, and errors do not count");

        let mut with = World::new(make(Duration::from_secs(5)), &[50; 10]);
        with.run(2_000);
        with.failing = Some(4);
        let drawn = with.run(10_000)[4];
        assert!((1..300).contains(&drawn), "{drawn} of 10000 to the failing task");
        with.failing = None;
        with.run(6_000);
        let back = with.run(10_000)[4];
        assert!((700..1_300).contains(&back), "{back} of 10000 to the task that has recovered");
    }
}

/// Three tasks are four times slower: who looks, sends them less. Round robin does not look.
#[test]
fn slow_tasks_get_less() {
    let latencies = [20, 20, 20, 20, 20, 20, 20, 80, 80, 80];
    for (policy, slow_share) in [
        (RoundRobin::new(10).into(), 2_999..3_001),
        // Equal numbers under way: a quarter of the others' requests each, 0.75/7.75 in all.
        (least_loaded(Duration::from_secs(5)), 800..1_800),
        (prequal(Duration::from_secs(5)), 0..1_000),
    ] {
        let mut world = World::new(policy, &latencies);
        world.run(1_000);
        let counts = world.run(10_000);
        let slow: u64 = counts[7..].iter().sum();
        assert!(slow_share.contains(&slow), "{slow} of 10000: {counts:?}");
    }
}
