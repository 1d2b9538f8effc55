use super::*;
use crate::balance::WeightedLane;
use crate::units::Ratio;
use proptest::prelude::*;

fn secs(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn report(rps: f64, eps: f64, utilization: f64) -> LoadReport {
    LoadReport { rps, eps, application_utilization: utilization, cpu_utilization: 0.0 }
}

/// Warm backends; those with a report have sent it since the epoch, every second until 10 s.
fn reported(config: WeightedConfig, reports: &[Option<LoadReport>]) -> Weighted {
    let mut policy = Weighted::new(config).unwrap();
    for (id, report) in reports.iter().enumerate() {
        let id = BackendId(id as u32);
        policy.add(id, Join::Warm, Timestamp::ZERO);
        for s in 0..=10 {
            if let Some(report) = report {
                assert_eq!(policy.on_report(id, report, secs(s)), ReportFate::Taken);
            }
        }
    }
    policy
}

fn picks(policy: &mut Weighted, n: usize, now: Timestamp) -> Vec<u32> {
    let mut counts = vec![0; 16];
    for _ in 0..n {
        counts[policy.pick(now).unwrap().backend.0 as usize] += 1;
    }
    counts
}

fn found(policy: &mut Weighted, now: Timestamp) -> Vec<f64> {
    policy.update(now);
    policy.weights().iter().map(|&(_, weight)| weight).collect()
}

#[test]
fn weights_and_means_by_hand() {
    let half = |rps| Some(report(rps, 0.0, 0.5));
    // 100 rps at 0.5 with a tenth failing: 100/(0.5 + 0.1).
    let failing = Some(report(100.0, 10.0, 0.5));
    for (reports, weights, reason) in [
        (vec![half(100.0), half(50.0)], vec![200.0, 100.0], PickReason::Weighted),
        (vec![half(100.0), half(50.0), None], vec![200.0, 100.0, 150.0], PickReason::Weighted),
        (vec![half(100.0), failing], vec![200.0, 100.0 / 0.6], PickReason::Weighted),
        (vec![half(100.0), None, None], vec![1.0, 1.0, 1.0], PickReason::TooFewWeights),
        // Lower median 20, so nobody counts for more than 200, or less than 2.
        (
            vec![half(1e9), half(10.0), half(10.0), half(1e-3)],
            vec![200.0, 20.0, 20.0, 2.0],
            PickReason::Weighted,
        ),
        (vec![half(1e9), half(10.0)], vec![200.0, 20.0], PickReason::Weighted),
    ] {
        let mut policy = reported(WeightedConfig::default(), &reports);
        for (found, weight) in found(&mut policy, secs(10)).into_iter().zip(weights) {
            assert!((found - weight).abs() < 1e-9, "{found} {weight}");
        }
        assert_eq!(policy.pick(secs(10)).unwrap().reason, reason);
    }
}

#[test]
fn shares_follow_weights() {
    let reports = [400.0, 200.0, 100.0, 100.0].map(|rps| Some(report(rps, 0.0, 0.5)));
    let mut policy = reported(WeightedConfig::default(), &reports);
    // One round is 256 picks; half of them are a half, exactly.
    assert_eq!(picks(&mut policy, 2_560, secs(10))[..4], [1_280, 640, 320, 320]);
}

#[test]
fn the_blackout_and_the_expiry_are_obeyed() {
    let mut policy = Weighted::new(WeightedConfig::default()).unwrap();
    for id in 0..2 {
        policy.add(BackendId(id), Join::Warm, Timestamp::ZERO);
        policy.on_report(BackendId(id), &report(100.0 * f64::from(id + 1), 0.0, 0.5), secs(5));
    }
    for (at, reason) in [
        (5, PickReason::TooFewWeights),
        (14, PickReason::TooFewWeights),
        (15, PickReason::Weighted),
        (184, PickReason::Weighted),
        (185, PickReason::TooFewWeights),
    ] {
        assert_eq!(policy.pick(secs(at)).unwrap().reason, reason, "at {at} s");
    }
    // One that left and came back has to report for as long again.
    for at in 200..=210 {
        policy.on_report(BackendId(0), &report(100.0, 0.0, 0.5), secs(at));
        policy.on_report(BackendId(1), &report(200.0, 0.0, 0.5), secs(at));
    }
    assert_eq!(policy.pick(secs(210)).unwrap().reason, PickReason::Weighted);
    policy.lame_duck(BackendId(1), secs(211));
    policy.add(BackendId(1), Join::Warm, secs(212));
    policy.on_report(BackendId(1), &report(200.0, 0.0, 0.5), secs(212));
    assert_eq!(policy.pick(secs(221)).unwrap().reason, PickReason::TooFewWeights);
    assert_eq!(policy.pick(secs(222)).unwrap().reason, PickReason::Weighted);
}

#[test]
fn nonsense_is_dropped_and_counted() {
    let mut policy = reported(WeightedConfig::default(), &[Some(report(1.0, 0.0, 0.5)); 2]);
    let before = found(&mut policy, secs(10));
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        let fate = policy.on_report(BackendId(0), &report(bad, 0.0, 0.5), secs(10));
        assert_eq!(fate, ReportFate::Invalid);
    }
    assert_eq!(policy.reports_dropped(), 3);
    assert_eq!(found(&mut policy, secs(10)), before);
    let stranger = policy.on_report(BackendId(9), &report(1.0, 0.0, 0.5), secs(10));
    assert_eq!(stranger, ReportFate::Unused);
    let config = WeightedConfig { error_penalty: f64::NAN, ..WeightedConfig::default() };
    assert!(Weighted::new(config).is_err());
}

#[test]
fn a_new_order_for_every_pick_is_refused() {
    for (micros, allowed) in [(0, false), (999, false), (1_000, true)] {
        let update_period = Duration::from_micros(micros);
        let config = WeightedConfig { update_period, ..WeightedConfig::default() };
        assert_eq!(Weighted::new(config).is_ok(), allowed, "{micros} us");
    }
}

#[test]
fn a_cold_backend_gets_its_ramp_of_the_mean_and_then_of_its_weight() {
    let mut policy = reported(WeightedConfig::default(), &[Some(report(100.0, 0.0, 0.5)); 3]);
    policy.add(BackendId(2), Join::Cold, secs(10));
    for s in 10..=50 {
        for id in 0..3 {
            policy.on_report(BackendId(id), &report(100.0, 0.0, 0.5), secs(s));
        }
        let weights = found(&mut policy, secs(s));
        let share = SlowStart::default().share(Duration::from_secs(s - 10));
        assert!((weights[2] - 200.0 * share.get()).abs() < 1e-6, "{weights:?} at {s} s");
    }
    assert_eq!(SlowStart::default().share(Duration::from_secs(40)), Ratio::ONE);
}

#[test]
fn a_ramp_ends_at_what_the_backend_says_it_can_do() {
    // Seconds since it came back, and its weight where warm ones have 200. It reports from the
    // start, which counts after ten seconds; until then it has its ramp of the mean.
    for (own, expected) in [
        (80.0, [(0, 20.0), (5, 50.0), (10, 80.0), (15, 80.0), (30, 80.0)]),
        (150.0, [(0, 20.0), (5, 50.0), (10, 80.0), (20, 140.0), (30, 150.0)]),
        (400.0, [(0, 20.0), (5, 50.0), (10, 160.0), (20, 280.0), (30, 400.0)]),
    ] {
        let mut policy = reported(WeightedConfig::default(), &[Some(report(100.0, 0.0, 0.5)); 3]);
        policy.add(BackendId(2), Join::Cold, secs(10));
        for s in 0..=30 {
            policy.on_report(BackendId(2), &report(own / 2.0, 0.0, 0.5), secs(10 + s));
            let weight = found(&mut policy, secs(10 + s))[2];
            if let Some((_, expected)) = expected.iter().find(|(at, _)| *at == s) {
                assert!((weight - expected).abs() < 1e-6, "{weight} of {own} after {s} s");
            }
        }
    }
    // A whole service that comes back: nobody gains by being slow.
    let mut policy = Weighted::new(WeightedConfig::default()).unwrap();
    for id in 0..2 {
        policy.add(BackendId(id), Join::Cold, secs(0));
    }
    for s in 0..=20 {
        for id in 0..2 {
            let rps = [100.0, 25.0][id as usize];
            policy.on_report(BackendId(id), &report(rps, 0.0, 0.5), secs(s));
        }
    }
    let weights = found(&mut policy, secs(20));
    assert!((weights[0] / weights[1] - 4.0).abs() < 1e-9, "{weights:?}");
}

#[test]
fn gone_at_once_at_the_gate_too() {
    let mut policy = reported(WeightedConfig::default(), &[Some(report(100.0, 0.0, 0.5)); 4]);
    let gate = policy.gate();
    policy.on_deadline(secs(10));
    policy.on_start(BackendId(1));
    policy.lame_duck(BackendId(1), secs(10));
    policy.remove(BackendId(2), secs(10));
    for _ in 0..1_000 {
        assert!([0, 3].contains(&gate.pick().unwrap().backend.0));
    }
    assert_eq!(policy.active(BackendId(1)), 1);
    policy.lame_duck(BackendId(0), secs(10));
    policy.lame_duck(BackendId(3), secs(10));
    assert_eq!(gate.pick().unwrap().reason, PickReason::AllLameDuck);
    for id in 0..4 {
        policy.remove(BackendId(id), secs(10));
    }
    assert_eq!(gate.pick(), None);
}

fn outcome(n: u8) -> Outcome {
    [Outcome::Served, Outcome::Failed, Outcome::Abandoned][n as usize % 3]
}

/// What four threads count, an owner would have counted.
#[test]
fn lanes_add_up_to_what_a_single_owner_sees() {
    let reports = [Some(report(100.0, 0.0, 0.5)); 5];
    let mut owner = reported(WeightedConfig::default(), &reports);
    let mut policy = reported(WeightedConfig::default(), &reports);
    let seen = |n: u32| (BackendId(n * 7 % 5), outcome((n % 11 % 3) as u8));
    for n in 0..4_000 {
        let (id, outcome) = seen(n);
        owner.on_start(id);
        owner.on_complete(id, outcome, secs(10));
    }
    let lanes = policy.lanes();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let lanes = &lanes;
            scope.spawn(move || {
                let mut lane = lanes.lane();
                for n in 1_000 * thread..1_000 * (thread + 1) {
                    assert!(lane.pick().is_none_or(|pick| pick.backend.0 < 5));
                    let (id, outcome) = seen(n);
                    lane.on_start(id);
                    lane.on_complete(id, outcome);
                }
            });
        }
    });
    assert_eq!(found(&mut policy, secs(10)), found(&mut owner, secs(10)));
    assert!(policy.weights().iter().all(|&(_, weight)| weight < 190.0), "failures count");
    // Each is taken in once.
    assert_eq!(found(&mut policy, secs(11)), found(&mut owner, secs(11)));
    assert_eq!(found(&mut policy, secs(20)), [200.0; 5]);
}

/// Until the deadline the controller knows nothing; then it knows all that is under way, wherever
/// it began and ended.
#[test]
fn active_attempts_are_counted_across_lanes() {
    let mut policy = reported(WeightedConfig::default(), &[None, None]);
    let (id, lanes) = (BackendId(1), policy.lanes());
    let (mut a, mut b) = (lanes.lane(), lanes.lane());
    policy.on_start(id);
    a.on_start(id);
    a.on_start(id);
    assert_eq!(policy.active(id), 1);
    policy.on_deadline(secs(10));
    assert_eq!(policy.active(id), 3);
    assert_eq!(policy.active(BackendId(0)), 0);
    b.on_complete(id, Outcome::Served);
    b.on_complete(id, Outcome::Abandoned);
    // An end whose start is not seen yet is made up for when it is.
    b.on_complete(id, Outcome::Served);
    policy.on_deadline(secs(11));
    assert_eq!(policy.active(id), 1);
    a.on_start(id);
    drop((a, b));
    policy.on_deadline(secs(12));
    assert_eq!(policy.active(id), 1);
    policy.on_complete(id, Outcome::Served, secs(12));
    assert_eq!(policy.active(id), 0);
}

#[test]
fn what_lanes_counted_of_a_task_that_is_gone_goes_with_it() {
    for restart in [false, true] {
        let mut policy = reported(WeightedConfig::default(), &[None, None]);
        policy.on_deadline(secs(10));
        let mut lane = policy.lanes().lane();
        let mut fail = || (0..100).for_each(|_| lane.on_complete(BackendId(0), Outcome::Failed));
        fail();
        if restart {
            policy.add(BackendId(0), Join::Cold, secs(10));
        } else {
            policy.remove(BackendId(0), secs(10));
            fail();
            policy.add(BackendId(0), Join::Warm, secs(10));
        }
        let floor = SlowStart::default().floor.get();
        let mut weights = found(&mut policy, secs(10));
        weights.sort_by(f64::total_cmp);
        assert_eq!(weights, if restart { [floor, 1.0] } else { [1.0, 1.0] });
    }
}

#[test]
fn numbers_beyond_what_lanes_can_count_are_refused() {
    let config = WeightedConfig { backends_max: 3, ..WeightedConfig::default() };
    let mut policy = Weighted::new(config).unwrap();
    let added = [2, 3, u32::MAX].map(|id| policy.add(BackendId(id), Join::Warm, secs(1)));
    assert_eq!(added, [true, false, false]);
    let mut lane = policy.lanes().lane();
    for id in [2, 3, u32::MAX] {
        lane.on_start(BackendId(id));
        lane.on_complete(BackendId(id), Outcome::Failed);
        lane.on_start(BackendId(id));
    }
    policy.on_deadline(secs(1));
    assert_eq!([2, 3, u32::MAX].map(|id| policy.active(BackendId(id))), [1, 0, 0]);
}

/// A backend says that it is a lame duck with every response.
#[test]
fn old_news_costs_nothing() {
    let mut policy = reported(WeightedConfig::default(), &[Some(report(100.0, 0.0, 0.5)); 4]);
    policy.on_deadline(secs(10));
    policy.lame_duck(BackendId(1), secs(10));
    policy.remove(BackendId(2), secs(10));
    let published = policy.orders_published();
    assert_eq!(published, 3);
    for _ in 0..1_000 {
        assert!(policy.lame_duck(BackendId(1), secs(10)));
        assert!(!policy.lame_duck(BackendId(9), secs(10)));
        assert!(!policy.remove(BackendId(2), secs(10)));
    }
    assert_eq!(policy.orders_published(), published);
    assert!(policy.remove(BackendId(1), secs(10)));
    assert_eq!(policy.orders_published(), published + 1);
}

/// Requests per second to each backend and what it then reports, second by second.
struct Loop {
    policy: Weighted,
    /// If set, requests go through it and not through the policy.
    lane: Option<WeightedLane>,
    /// What each can do per second.
    speeds: Vec<f64>,
    fails: Vec<bool>,
    /// Requests a second that each gets from others.
    elsewhere: Vec<f64>,
    rps: usize,
    now: u64,
}

impl Loop {
    fn new(config: WeightedConfig, speeds: &[f64], load: f64) -> Self {
        let mut policy = Weighted::new(config).unwrap();
        for id in 0..speeds.len() {
            policy.add(BackendId(id as u32), Join::Warm, Timestamp::ZERO);
        }
        let rps = (speeds.iter().sum::<f64>() * load) as usize;
        let (speeds, fails) = (speeds.to_vec(), vec![false; speeds.len()]);
        let elsewhere = vec![0.0; speeds.len()];
        Self { policy, lane: None, speeds, fails, elsewhere, rps, now: 0 }
    }

    /// One second; the utilizations in it. Failing costs a hundredth of serving.
    fn second(&mut self) -> Vec<f64> {
        let mut counts = vec![0.0; self.speeds.len()];
        for i in 0..self.rps {
            let now = secs(self.now) + Duration::from_secs(1) * i as u32 / self.rps as u32;
            self.policy.on_deadline(now);
            let picked = match &self.lane {
                Some(lane) => lane.pick(),
                None => self.policy.pick(now),
            };
            let id = picked.unwrap().backend;
            counts[id.index()] += 1.0;
            let failed = self.fails[id.index()];
            let outcome = if failed { Outcome::Failed } else { Outcome::Served };
            if let Some(lane) = &mut self.lane {
                lane.on_start(id);
                lane.on_complete(id, outcome);
            } else {
                self.policy.on_start(id);
                self.policy.on_complete(id, outcome, now);
            }
        }
        self.now += 1;
        counts.iter_mut().zip(&self.elsewhere).for_each(|(count, more)| *count += more);
        for (i, &rps) in counts.iter().enumerate() {
            let (eps, cost) = if self.fails[i] { (rps, 0.01) } else { (0.0, 1.0) };
            let report = report(rps, eps, rps * cost / self.speeds[i]);
            self.policy.on_report(BackendId(i as u32), &report, secs(self.now));
        }
        counts.iter().zip(&self.speeds).map(|(rps, speed)| rps / speed).collect()
    }

    fn spread(&mut self, seconds: u64) -> f64 {
        let mut sums = vec![0.0; self.speeds.len()];
        for _ in 0..seconds {
            for (sum, utilization) in sums.iter_mut().zip(self.second()) {
                *sum += utilization;
            }
        }
        sums.iter().fold(0.0, |a: f64, &b| a.max(b)) / sums.iter().fold(f64::MAX, |a, &b| a.min(b))
    }
}

#[test]
fn utilizations_converge_where_speeds_differ() {
    let mut world = Loop::new(WeightedConfig::default(), &[200.0, 400.0, 800.0], 0.5);
    let before = world.spread(9);
    assert!(before > 3.9, "round robin first: {before}");
    world.spread(4);
    let after = world.spread(5);
    assert!(after < 1.05, "{after}");
    // One gets a noisy neighbour and is half as fast: back together within some seconds.
    world.speeds[2] = 400.0;
    world.spread(4);
    let soon = world.spread(5);
    assert!(soon < 1.08, "{soon}");
    // What the corrections took for lasting is forgotten.
    world.spread(20);
    let later = world.spread(5);
    assert!(later < 1.03, "{later}");
}

/// In an overload the formula alone makes a task that fails fast draw requests: 240 a second at no
/// utilization and all failing is a weight of 240, and 240 a second at 1.2 is one of 200. What the
/// client itself sees puts an end to that.
#[test]
fn a_task_that_fails_fast_is_no_sinkhole() {
    for (outcome_memory, lanes, shares) in [
        (Duration::ZERO, false, 0.2..1.0),
        (Duration::from_secs(5), false, 0.0..0.02),
        (Duration::from_secs(5), true, 0.0..0.02),
    ] {
        let config = WeightedConfig { outcome_memory, ..WeightedConfig::default() };
        let mut world = Loop::new(config, &[200.0; 10], 1.2);
        world.lane = lanes.then(|| world.policy.lanes().lane());
        world.spread(15);
        world.fails[3] = true;
        world.spread(10);
        let share = world.second()[3] * 200.0 / world.rps as f64;
        assert!(shares.contains(&share), "{share}");
        if !outcome_memory.is_zero() {
            world.fails[3] = false;
            world.spread(10);
            let spread = world.spread(5);
            assert!(spread < 1.2, "recovered: {spread}");
        }
    }
}

/// One of four that can each do 1,000 a second gets 100 from elsewhere. By weight alone each gets
/// 200 of our 800, as each reports what it can do; levelled, the one gets 125 and the others 225.
#[test]
fn what_comes_in_any_case_is_made_up_for() {
    for (correction_max, spreads) in [(1.0, 1.45..1.55), (2.0, 1.0..1.05)] {
        let config = WeightedConfig { correction_max, ..WeightedConfig::default() };
        let mut world = Loop::new(config, &[1_000.0; 4], 0.5);
        world.elsewhere[0] = 100.0;
        world.rps = 800;
        world.spread(60);
        let spread = world.spread(20);
        assert!(spreads.contains(&spread), "{spread} with {correction_max}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_speeds_converge(
        speeds in proptest::collection::vec(100.0_f64..800.0, 2..12),
        load in 0.3_f64..1.2,
    ) {
        let mut world = Loop::new(WeightedConfig::default(), &speeds, load);
        world.spread(16);
        let spread = world.spread(4);
        prop_assert!(spread < 1.2, "{spread}");
    }
}
