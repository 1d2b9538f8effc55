use super::super::PickReason;
use super::super::prequal_pool::{REUSE_MAX, RIFS};
use super::*;
use crate::rng::SeededRng;
use proptest::prelude::*;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Warm backends. Nothing is dropped unless a test asks for it.
fn policy(backends: u32, config: PrequalConfig) -> Prequal {
    let mut policy = Prequal::new(config).unwrap();
    for id in 0..backends {
        policy.add(BackendId(id), Join::Warm, Timestamp::ZERO);
    }
    policy
}

fn keeping() -> PrequalConfig {
    PrequalConfig { removals_per_request: 0.0, ..PrequalConfig::default() }
}

fn pick(policy: &mut Prequal, now: Timestamp) -> (u32, PickReason) {
    let pick = policy.pick(now, &mut SeededRng::new(1)).unwrap();
    (pick.backend.0, pick.reason)
}

#[test]
fn hot_and_cold_by_the_table() {
    // Ten answers; the 84th percentile of their RIFs is the ninth smallest.
    let answers = [
        (0, 9, 50),
        (1, 1, 20),
        (2, 2, 5),
        (3, 30, 1),
        (4, 3, 9),
        (5, 1, 8),
        (6, 2, 30),
        (7, 4, 7),
    ];
    let mut policy = policy(8, keeping());
    for (id, rif, latency) in answers {
        assert!(policy.on_probe(BackendId(id), rif, ms(latency), Timestamp::ZERO));
    }
    // Of eight, the seventh smallest: 1 1 2 2 3 4 9 30. So only t3 is hot, fast as it is.
    assert_eq!(policy.pool.rif_limit(), 9);
    assert_eq!(pick(&mut policy, Timestamp::ZERO), (2, PickReason::LowestLatency));
    // Its own request counts there from now on; at ten it is hot too.
    for rif in 4..=10 {
        assert_eq!(pick(&mut policy, Timestamp::ZERO).0, 2, "at {rif}");
    }
    assert_eq!(pick(&mut policy, Timestamp::ZERO), (7, PickReason::LowestLatency));
}

#[test]
fn if_all_are_hot_the_fewest_in_flight() {
    let mut policy = policy(3, keeping());
    // Many low RIFs seen lately, by probes whose answers have gone stale.
    for _ in 0..RIFS {
        policy.on_probe(BackendId(0), 1, ms(1), Timestamp::ZERO);
    }
    let now = Timestamp::from_millis(1_500);
    policy.on_probe(BackendId(1), 8, ms(1), now);
    policy.on_probe(BackendId(2), 6, ms(90), now);
    assert_eq!(pick(&mut policy, now), (2, PickReason::FewestInFlight));
    assert_eq!(pick(&mut policy, now), (2, PickReason::FewestInFlight));
    // Now eight each, and the latency decides.
    assert_eq!(pick(&mut policy, now), (1, PickReason::FewestInFlight));
}

#[test]
fn answers_grow_old_and_then_chance_decides() {
    let mut policy = policy(4, keeping());
    policy.on_probe(BackendId(0), 1, ms(1), Timestamp::ZERO);
    assert_eq!(pick(&mut policy, Timestamp::ZERO).1, PickReason::TooFewProbes);
    policy.on_probe(BackendId(1), 1, ms(2), Timestamp::from_millis(500));
    assert_eq!(pick(&mut policy, Timestamp::from_secs(1)), (0, PickReason::LowestLatency));
    assert_eq!(pick(&mut policy, Timestamp::from_millis(1_001)).1, PickReason::TooFewProbes);
    assert_eq!(policy.pool_len(), 1);
    // By chance means everyone.
    let mut rng = SeededRng::new(1);
    let mut seen = [0; 4];
    for _ in 0..4_000 {
        seen[policy.pick(Timestamp::from_secs(9), &mut rng).unwrap().backend.index()] += 1;
    }
    assert!(seen.iter().all(|n| (900..1_100).contains(n)), "{seen:?}");
}

#[test]
fn reuse_by_the_table() {
    for (backends, probes, removals, reuse) in [
        // 2 / (0.84 x 3 - 1)
        (100, 3.0, 1.0, 2.0 / 1.52),
        (1_000, 3.0, 1.0, 2.0 / 1.952),
        (100, 2.0, 1.0, 2.0 / 0.68),
        (100, 8.0, 0.0, 1.0),
        (16, 3.0, 1.0, REUSE_MAX),
        (3, 3.0, 1.0, REUSE_MAX),
        (100, 0.5, 1.0, REUSE_MAX),
        (100, 1.2, 1.0, REUSE_MAX),
    ] {
        let config = PrequalConfig {
            probes_per_request: probes,
            removals_per_request: removals,
            ..PrequalConfig::default()
        };
        let found = {
            let policy = policy(backends, config);
            policy.pool.reuse(policy.backends.serving())
        };
        assert!((found - reuse).abs() < 1e-9, "{backends} {probes} {removals}: {found}");
    }
}

#[test]
fn fractions_of_uses_add_up() {
    let mut policy =
        policy(100, PrequalConfig { probes_per_request: 2.0, ..PrequalConfig::default() });
    let mut uses = 0;
    for i in 0..1_000 {
        policy.on_probe(BackendId(i % 100), 1, ms(1), Timestamp::ZERO);
        uses += policy.pool.answers.last().unwrap().uses_left;
    }
    // 1000 x 2/0.68
    assert_eq!(uses, 2_941);
}

#[test]
fn the_oldest_and_the_worst_go_in_turn() {
    let mut policy = policy(100, PrequalConfig::default());
    for (id, rif, latency) in
        [(0, 1, 30), (1, 1, 10), (2, 9, 5), (3, 1, 40), (4, 1, 20), (5, 1, 25)]
    {
        policy.on_probe(BackendId(id), rif, ms(latency), Timestamp::ZERO);
        policy.pool.answers.last_mut().unwrap().uses_left = 9;
    }
    let left = |policy: &mut Prequal| -> Vec<u32> {
        pick(policy, Timestamp::ZERO);
        policy.pool.answers.iter().map(|answer| answer.backend.0).collect()
    };
    // t0 is the oldest. t2 has the highest RIF: hot, once the others are the norm.
    for _ in 0..30 {
        policy.pool.learn_rif(1);
    }
    assert_eq!(left(&mut policy), [1, 2, 3, 4, 5]);
    assert_eq!(left(&mut policy), [1, 3, 4, 5]);
    assert_eq!(left(&mut policy), [3, 4, 5]);
    // t4 and t5 have been used, and are hot by that; t3 is cold.
    assert_eq!(left(&mut policy).len(), 2);
    assert_eq!(left(&mut policy).len(), 2);
}

#[test]
fn a_new_answer_replaces_the_old_and_the_pool_is_bounded() {
    let mut policy = policy(40, PrequalConfig::default());
    for round in 0..3 {
        for id in 0..40 {
            policy.on_probe(BackendId(id), round, ms(1), Timestamp::ZERO);
            assert!(policy.pool_len() <= 16);
        }
    }
    policy.on_probe(BackendId(39), 7, ms(1), Timestamp::ZERO);
    assert_eq!(policy.pool_len(), 16);
    assert_eq!(policy.pool.answers.iter().filter(|a| a.backend == BackendId(39)).count(), 1);
    policy.lame_duck(BackendId(39));
    assert!(!policy.on_probe(BackendId(39), 0, ms(0), Timestamp::ZERO));
    assert!(policy.pool.answers.iter().all(|a| a.backend != BackendId(39)));
}

#[test]
fn errors_count_as_requests_in_flight() {
    let mut policy = policy(2, keeping());
    let refresh = |policy: &mut Prequal, now| {
        policy.on_probe(BackendId(0), 0, ms(1), now);
        policy.on_probe(BackendId(1), 3, ms(20), now);
    };
    refresh(&mut policy, Timestamp::ZERO);
    assert_eq!(pick(&mut policy, Timestamp::ZERO).0, 0);
    for _ in 0..5 {
        policy.on_complete(BackendId(0), Outcome::Failed, Timestamp::ZERO);
    }
    refresh(&mut policy, Timestamp::ZERO);
    assert_eq!(pick(&mut policy, Timestamp::ZERO).0, 1);
    let later = Timestamp::from_secs(6);
    refresh(&mut policy, later);
    assert_eq!(pick(&mut policy, later).0, 0);
}

/// Another task has the number, or the same one has been restarted: neither errors nor answers of
/// the one before count for it.
#[test]
fn errors_and_answers_end_with_the_task_they_were_of() {
    let slow_start = SlowStart::OFF;
    let failed = || {
        let mut policy = policy(3, PrequalConfig { slow_start, ..keeping() });
        policy.on_probe(BackendId(0), 0, ms(1), Timestamp::ZERO);
        for _ in 0..5 {
            policy.on_complete(BackendId(0), Outcome::Failed, Timestamp::ZERO);
        }
        policy
    };
    let mut gone = failed();
    gone.remove(BackendId(0));
    gone.add(BackendId(0), Join::Warm, Timestamp::ZERO);
    let mut restarted = failed();
    restarted.add(BackendId(0), Join::Cold, Timestamp::ZERO);
    for policy in [&mut gone, &mut restarted] {
        assert_eq!(policy.pool_len(), 0);
        policy.on_probe(BackendId(0), 1, ms(1), Timestamp::ZERO);
        policy.on_probe(BackendId(1), 1, ms(2), Timestamp::ZERO);
        assert_eq!(pick(policy, Timestamp::ZERO), (0, PickReason::LowestLatency));
    }
}

#[test]
fn a_cold_backend_is_not_rushed() {
    let mut policy = policy(1, keeping());
    policy.add(BackendId(1), Join::Cold, Timestamp::ZERO);
    let refresh = |policy: &mut Prequal, now| {
        policy.on_probe(BackendId(0), 3, ms(20), now);
        policy.on_probe(BackendId(1), 0, Duration::ZERO, now);
    };
    // Idle, it looks as if it had seven in flight: (0 + 1) x 16/2 - 1.
    refresh(&mut policy, Timestamp::ZERO);
    assert_eq!(pick(&mut policy, Timestamp::ZERO).0, 0);
    let later = Timestamp::from_secs(30);
    refresh(&mut policy, later);
    assert_eq!(pick(&mut policy, later).0, 1);
}

/// Sends a request every `gap` for a hundred times, and does what is due in between; how many picks
/// were by chance, and how many probes were sent in all.
fn sporadic(policy: &mut Prequal, gap: Duration) -> (u32, usize) {
    let mut rng = SeededRng::new(1);
    let (mut chance, mut sent) = (0, 0);
    let mut now = Timestamp::from_secs(1_000);
    for _ in 0..100 {
        now += gap;
        while let Some(due) = policy.next_deadline().filter(|&due| due <= now) {
            // Timers do not go off in the past.
            let due = due.max(now - gap);
            policy.on_deadline(due);
            sent += probe(policy, due, &mut rng);
        }
        let pick = policy.pick(now, &mut rng).unwrap();
        chance += u32::from(pick.reason == PickReason::TooFewProbes);
        sent += probe(policy, now, &mut rng);
    }
    (chance, sent)
}

/// Answers whatever is asked after five milliseconds.
fn probe(policy: &mut Prequal, now: Timestamp, rng: &mut SeededRng) -> usize {
    let probes = policy.probes_wanted(rng);
    for &id in probes.as_slice() {
        policy.on_probe(id, 0, ms(1), now + ms(5));
    }
    probes.as_slice().len()
}

#[test]
fn a_sporadic_client_has_something_to_choose_from() {
    let good = PrequalConfig::default();
    for (backends, config, gap, chance, probes) in [
        // Three with each request, and three after each half second without one: at 0.5, 1 and
        // 1.5 s (at 2 s, a request comes first). Once more at the start.
        (10, good, ms(1_999), 0, 300 + 3 * 300 + 3),
        (500, good, ms(1_999), 0, 300 + 3 * 300 + 3),
        // Busy enough to need none.
        (10, good, ms(499), 0, 300 + 3),
        // A pool of less than two is none: at least two are asked when idle.
        (10, PrequalConfig { probes_per_request: 0.0, ..good }, ms(1_999), 0, 2 * 301),
        (10, PrequalConfig { idle_probes: false, ..good }, ms(1_999), 100, 300),
        // One is no choice.
        (1, good, ms(1_999), 100, 100),
    ] {
        let mut policy = policy(backends, config);
        let (by_chance, sent) = sporadic(&mut policy, gap);
        assert_eq!((by_chance, sent), (chance, probes), "{backends} {gap:?}: {config:?}");
    }
}

#[test]
fn idle_probes_follow_the_set() {
    let mut policy = policy(2, PrequalConfig::default());
    // Never asked: at once.
    assert_eq!(policy.next_deadline(), Some(Timestamp::ZERO));
    policy.on_deadline(Timestamp::from_secs(7));
    assert_eq!(policy.next_deadline(), Some(Timestamp::from_millis(7_500)));
    // Early calls change nothing.
    policy.on_deadline(Timestamp::from_millis(7_400));
    assert_eq!(policy.next_deadline(), Some(Timestamp::from_millis(7_500)));
    pick(&mut policy, Timestamp::from_millis(7_450));
    assert_eq!(policy.next_deadline(), Some(Timestamp::from_millis(7_950)));
    policy.lame_duck(BackendId(0));
    assert_eq!(policy.next_deadline(), None);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let good = PrequalConfig::default();
    for bad in [
        PrequalConfig { pool_size: 1, ..good },
        PrequalConfig { probes_per_request: f64::NAN, ..good },
        PrequalConfig { probes_per_request: 9.0, ..good },
        PrequalConfig { removals_per_request: -1.0, ..good },
        PrequalConfig { reuse_slack: f64::INFINITY, ..good },
        PrequalConfig { probe_age_max: Duration::ZERO, ..good },
    ] {
        assert!(Prequal::new(bad).is_err(), "{bad:?}");
    }
}

proptest! {
    /// Probes per request add up exactly, each set has no one twice, and all are drawn alike.
    #[test]
    fn probes_are_drawn_fairly(backends in 1_u32..30, hundredths in 0_u32..=800, seed: u64) {
        let config = PrequalConfig {
            probes_per_request: f64::from(hundredths) / 100.0,
            ..PrequalConfig::default()
        };
        let mut policy = policy(backends, config);
        let mut rng = SeededRng::new(seed);
        let mut drawn = vec![0_u32; backends as usize];
        let mut wanted = 0;
        for _ in 0..1_000 {
            let probes = policy.probes_wanted(&mut rng);
            let mut ids = probes.as_slice().to_vec();
            ids.sort_unstable();
            ids.dedup();
            prop_assert_eq!(ids.len(), probes.as_slice().len());
            wanted += ids.len() as u32;
            for id in ids {
                drawn[id.index()] += 1;
            }
        }
        if backends >= 8 {
            prop_assert_eq!(wanted, hundredths * 10);
        }
        let mean = f64::from(wanted) / f64::from(backends);
        // Six standard deviations.
        let slack = 6.0 * mean.sqrt() + 1.0;
        prop_assert!(drawn.iter().all(|&n| (f64::from(n) - mean).abs() < slack), "{:?}", drawn);
    }
}
