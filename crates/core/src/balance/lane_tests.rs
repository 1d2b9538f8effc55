//! Lanes against the controllers they stand for.

use super::*;
use crate::outcome::Outcome;
use crate::rng::{Rng, SeededRng};
use crate::units::Timestamp;
use core::time::Duration;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn least_loaded(backends: u32) -> LeastLoaded {
    let mut policy = LeastLoaded::new(LeastLoadedConfig::default());
    for id in 0..backends {
        policy.add(BackendId(id), Join::Warm, Timestamp::ZERO);
    }
    policy
}

fn prequal(backends: u32) -> Prequal {
    let mut policy = Prequal::new(PrequalConfig::default()).unwrap();
    for id in 0..backends {
        policy.add(BackendId(id), Join::Warm, Timestamp::ZERO);
    }
    policy
}

fn policies() -> [Policy; 4] {
    [
        RoundRobin::new(64).into(),
        LeastLoaded::new(LeastLoadedConfig::default()).into(),
        Weighted::new(WeightedConfig { backends_max: 64, ..Default::default() }).unwrap().into(),
        Prequal::new(PrequalConfig::default()).unwrap().into(),
    ]
}

fn outcome(n: u8) -> Outcome {
    [Outcome::Served, Outcome::Failed, Outcome::NoAnswer, Outcome::Abandoned][n as usize % 4]
}

proptest! {
    /// Of four or fewer a lane looks at all, so it takes one of the least, errors included; and it
    /// counts what the controller counts.
    #[test]
    fn few_backends_are_all_looked_at(
        steps in vec((0_u8..5, 0_u32..4, 0_u8..4, 0_u64..2_000), 1..200),
    ) {
        let mut shared = least_loaded(4);
        let mut exact = least_loaded(4);
        let mut lane = shared.lanes().lane(0);
        let mut rng = SeededRng::new(1);
        let mut now = Timestamp::ZERO;
        let mut serving = [true; 4];
        for (kind, id, n, ms) in steps {
            let id = BackendId(id);
            match kind {
                0 | 1 => {
                    let picked = lane.pick(&mut rng).unwrap();
                    let load = |i| exact.active(BackendId(i)) + exact.recent_errors(BackendId(i));
                    let least = (0..4).filter(|&i| serving[i as usize]).map(load).min();
                    if let Some(least) = least {
                        prop_assert_eq!(load(picked.backend.0), least);
                    } else {
                        prop_assert_eq!(picked.reason, PickReason::AllLameDuck);
                    }
                    lane.on_start(picked.backend);
                    exact.on_start(picked.backend, now);
                }
                2 if exact.active(id) > 0 => {
                    lane.on_complete(id, outcome(n));
                    exact.on_complete(id, outcome(n), now);
                }
                3 if serving[id.index()] => {
                    shared.lame_duck(id);
                    exact.lame_duck(id);
                    serving[id.index()] = false;
                }
                3 => {
                    shared.add(id, Join::Warm, now);
                    exact.add(id, Join::Warm, now);
                    serving[id.index()] = true;
                }
                _ => {
                    // All of it is forgotten by both, or none: only one of them is late.
                    now += if ms < 100 { Duration::from_secs(7) } else { Duration::ZERO };
                    shared.on_deadline(now);
                    if ms < 100 {
                        now += Duration::from_secs(7);
                        shared.on_deadline(now);
                    }
                    exact.pick(now);
                }
            }
            for i in 0..4 {
                let id = BackendId(i);
                prop_assert_eq!(shared.active(id), exact.active(id));
                prop_assert_eq!(shared.recent_errors(id), exact.recent_errors(id));
            }
        }
    }

    /// A lane that is fed what the controller is fed picks and probes what the controller does.
    #[test]
    fn a_lane_of_prequal_does_what_the_controller_does(
        steps in vec((0_u8..8, 0_u32..20, 0_u32..50, 1_u64..300), 1..300),
        seed: u64,
    ) {
        let (mut shared, mut exact) = (prequal(20), prequal(20));
        let mut lane = shared.lanes().lane(0);
        let mut rngs = [SeededRng::new(seed), SeededRng::new(seed)];
        let mut now = Timestamp::from_secs(1);
        for (kind, id, rif, ms) in steps {
            let id = BackendId(id);
            match kind {
                0..=2 => {
                    let picks = [lane.pick(now, &mut rngs[0]), exact.pick(now, &mut rngs[1])];
                    let all_lame = picks[0].is_some_and(|p| p.reason == PickReason::AllLameDuck);
                    prop_assert!(picks[0] == picks[1] || all_lame);
                    prop_assert_eq!(lane.pool_len(), exact.pool_len());
                }
                3 => {
                    let probes =
                        [lane.probes_wanted(&mut rngs[0]), exact.probes_wanted(&mut rngs[1])];
                    prop_assert_eq!(probes[0].as_slice(), probes[1].as_slice());
                }
                4 | 5 => {
                    let latency = Duration::from_millis(ms);
                    let kept = lane.on_probe(id, rif, latency, now);
                    prop_assert_eq!(kept, exact.on_probe(id, rif, latency, now));
                }
                6 => {
                    lane.on_start(id);
                    exact.on_start(id);
                    lane.on_complete(id, Outcome::Failed);
                    exact.on_complete(id, Outcome::Failed, now);
                }
                _ if exact.standing(id) == Standing::LameDuck => {
                    for policy in [&mut shared, &mut exact] {
                        policy.add(id, Join::Cold, now);
                    }
                }
                _ => {
                    for policy in [&mut shared, &mut exact] {
                        policy.lame_duck(id);
                    }
                }
            }
            // Less than a step of the ramp, and than the memory of errors.
            now += Duration::from_nanos(ms);
        }
    }

    /// Through any changes of the set, whatever the policy, no lane picks who does not serve as
    /// long as somebody does.
    #[test]
    fn any_lane_keeps_to_the_set(
        steps in vec((0_u8..8, 0_u32..12, 0_u8..4, 0_u64..1_000), 1..200),
        which in 0_usize..4,
    ) {
        let mut policy = policies().into_iter().nth(which).unwrap();
        let lanes = policy.lanes();
        let mut rng = SeededRng::new(9);
        let mut pair = [lanes.lane(&mut rng), lanes.lane(&mut rng)];
        let mut now = Timestamp::ZERO;
        let mut open = Vec::new();
        for (kind, id, n, ms) in steps {
            now += Duration::from_millis(ms);
            let lane = &mut pair[n as usize % 2];
            let id = BackendId(id);
            match kind {
                0 => { policy.add(id, if n == 0 { Join::Cold } else { Join::Warm }, now); }
                1 => { policy.lame_duck(id, now); }
                2 => { policy.remove(id, now); }
                3 => {
                    if let Some(id) = open.pop() {
                        lane.on_complete(id, outcome(n));
                    }
                }
                4 => { lane.on_probe(id, u32::from(n), Duration::from_millis(ms), now); }
                _ => {
                    // Weighted takes newcomers in when it is due.
                    policy.on_deadline(now);
                    lane.on_deadline(now);
                    let serves = |i| policy.standing(BackendId(i)) == Standing::Serving;
                    let lame = |i| policy.standing(BackendId(i)) == Standing::LameDuck;
                    let (any, any_lame) = ((0..12).any(serves), (0..12).any(lame));
                    if let Some(probes) = lane.probes_wanted(&mut rng) {
                        prop_assert!(probes.as_slice().iter().all(|id| serves(id.0)));
                    }
                    match lane.pick(now, &mut rng) {
                        Some(pick) => {
                            let all_lame = pick.reason == PickReason::AllLameDuck;
                            prop_assert_eq!(all_lame, !any);
                            let id = pick.backend.0;
                            let fits = if any { serves(id) } else { lame(id) };
                            prop_assert!(fits);
                            lane.on_start(pick.backend);
                            open.push(pick.backend);
                        }
                        None => prop_assert!(!any && !any_lame),
                    }
                }
            }
        }
    }
}

/// An error counts for five seconds and up to an eighth more.
#[test]
fn errors_of_lanes_are_forgotten_on_deadlines() {
    let mut policy = least_loaded(2);
    let mut lane = policy.lanes().lane(0);
    lane.on_start(BackendId(0));
    lane.on_complete(BackendId(0), Outcome::NoAnswer);
    let mut ms = 0;
    while let Some(at) = policy.next_deadline().filter(|_| policy.recent_errors(BackendId(0)) > 0) {
        ms = at.as_nanos() / 1_000_000;
        policy.on_deadline(at);
    }
    assert!((5_000..=5_625).contains(&ms), "{ms} ms");
    // And at once when another task has the number.
    lane.on_start(BackendId(1));
    lane.on_complete(BackendId(1), Outcome::Failed);
    assert_eq!(policy.recent_errors(BackendId(1)), 1);
    policy.add(BackendId(1), Join::Cold, Timestamp::from_secs(9));
    assert_eq!(policy.recent_errors(BackendId(1)), 0);
}

/// Nine warm backends and a cold one, picked by an idle and by a busy client.
#[test]
fn lanes_let_a_cold_backend_ramp_up() {
    let mut policy = least_loaded(9);
    policy.add(BackendId(9), Join::Cold, Timestamp::ZERO);
    let mut lane = policy.lanes().lane(0);
    let mut rng = SeededRng::new(4);
    for (secs, step) in [(0, 2), (15, 9), (31, 16)] {
        policy.on_deadline(Timestamp::from_secs(secs));
        let idle = (0..1_600).filter(|_| lane.pick(&mut rng).unwrap().backend.0 == 9).count();
        // A full share is 160.
        assert!(idle.abs_diff(10 * step) <= 15, "{idle} at {secs} s");
    }
    policy.add(BackendId(9), Join::Cold, Timestamp::from_secs(40));
    for _ in 0..9 * 40 {
        let id = lane.pick(&mut rng).unwrap().backend;
        lane.on_start(id);
    }
    let cold = policy.active(BackendId(9));
    assert!((3..=6).contains(&cold), "{cold} where a warm one holds 40");
}

/// What a client with a single owner, or one with four threads, sends to each of its backends:
/// requests by chance, which take their time.
struct Fleet {
    policy: LeastLoaded,
    lanes: Option<Vec<LeastLoadedLane>>,
    rng: SeededRng,
}

impl Fleet {
    fn new(backends: u32, threads: u32) -> Self {
        let mut policy = least_loaded(backends);
        let lanes = (threads > 0).then(|| {
            let lanes = policy.lanes();
            (0..threads).map(|start| lanes.lane(start * 7)).collect()
        });
        Self { policy, lanes, rng: SeededRng::new(11) }
    }

    /// How far the fullest backend is above the mean, on average over time, and what each got.
    fn run(&mut self, latencies: &[f64], per_milli: u64, millis: u64) -> (f64, Vec<u64>) {
        let mut under_way: BTreeMap<(u64, u64), BackendId> = BTreeMap::new();
        let mut counts = vec![0; latencies.len()];
        let (mut above, mut looks, mut sent) = (0.0, 0.0, 0);
        for milli in 0..millis {
            let now = Timestamp::from_millis(milli);
            while let Some(first) = under_way.first_entry()
                && first.key().0 <= milli
            {
                let id = first.remove();
                match &mut self.lanes {
                    Some(lanes) => lanes[sent % 4].on_complete(id, Outcome::Served),
                    None => self.policy.on_complete(id, Outcome::Served, now),
                }
            }
            for _ in 0..per_milli {
                sent += 1;
                let id = if let Some(lanes) = &mut self.lanes {
                    let lane = &mut lanes[self.rng.below(4) as usize];
                    let id = lane.pick(&mut self.rng).unwrap().backend;
                    lane.on_start(id);
                    id
                } else {
                    let id = self.policy.pick(now).unwrap().backend;
                    self.policy.on_start(id, now);
                    id
                };
                counts[id.index()] += 1;
                let latency = latencies[id.index()] * (0.5 + self.rng.unit());
                under_way.insert((milli + latency as u64, sent as u64), id);
            }
            if milli >= millis / 2 {
                let active = |i| f64::from(self.policy.active(BackendId(i as u32)));
                let most = (0..latencies.len()).map(active).fold(0.0, f64::max);
                above += most - under_way.len() as f64 / latencies.len() as f64;
                looks += 1.0;
            }
        }
        (above / looks, counts)
    }
}

/// A hundred backends with ten requests each: the exact minimum keeps the fullest half a request
/// above the mean, four looks by four threads one and a half. By chance alone it would be about
/// eight (the largest of a hundred counts of mean ten).
#[test]
fn four_looks_spread_nearly_as_well_as_all() {
    let latencies = [100.0; 100];
    let (exact, _) = Fleet::new(100, 0).run(&latencies, 10, 2_000);
    let (looks, counts) = Fleet::new(100, 4).run(&latencies, 10, 2_000);
    assert!(exact < 0.6, "{exact} above the mean, exactly");
    assert!(looks < 1.8, "{looks} above the mean, by looks");
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(most * 100 < least * 120, "{least} to {most} requests");
}

/// Thirty of a hundred are four times slower: equal numbers under way give them a quarter of the
/// others' requests each, 7.5 of 77.5 in all.
#[test]
fn four_looks_see_the_slow_as_well_as_all_do() {
    let latencies: Vec<f64> = (0..100).map(|i| if i < 30 { 400.0 } else { 100.0 }).collect();
    let share = |threads| {
        let (_, counts) = Fleet::new(100, threads).run(&latencies, 10, 4_000);
        counts[..30].iter().sum::<u64>() as f64 / counts.iter().sum::<u64>() as f64
    };
    let (exact, looks) = (share(0), share(4));
    assert!((0.09..0.13).contains(&exact) && (0.09..0.14).contains(&looks), "{exact} {looks}");
}

/// What two lanes of `policy` send in ten seconds to the one of ten that fails everything at once.
fn drawn_by_failing(mut policy: Policy) -> u32 {
    let lanes = policy.lanes();
    let mut rng = SeededRng::new(2);
    let mut pair = [lanes.lane(&mut rng), lanes.lane(&mut rng)];
    let mut under_way = BTreeMap::new();
    let mut drawn = 0;
    for milli in 0..10_000_u64 {
        let now = Timestamp::from_millis(milli);
        if policy.next_deadline().is_some_and(|due| due <= now) {
            policy.on_deadline(now);
        }
        let lane = &mut pair[milli as usize % 2];
        while let Some(first) = under_way.first_entry()
            && *first.key() <= (milli, u64::MAX)
        {
            let ((_, _), id) = first.remove_entry();
            let failed = id == BackendId(4);
            lane.on_complete(id, if failed { Outcome::Failed } else { Outcome::Served });
        }
        let probes = lane.probes_wanted(&mut rng);
        for &id in probes.as_ref().map_or(&[][..], Probes::as_slice) {
            let latency = if id == BackendId(4) { 0 } else { 50 };
            lane.on_probe(id, policy.active(id), Duration::from_millis(latency), now);
        }
        let id = lane.pick(now, &mut rng).unwrap().backend;
        lane.on_start(id);
        drawn += u32::from(id == BackendId(4));
        let latency = if id == BackendId(4) { 0 } else { 25 + rng.below(50) };
        under_way.insert((milli + latency, milli), id);
    }
    drawn
}

/// Errors that all threads see keep a task that fails at once from drawing traffic.
#[test]
fn a_task_that_fails_fast_is_no_sinkhole_to_lanes() {
    for policy in [Policy::from(least_loaded(10)), Policy::from(prequal(10))] {
        let drawn = drawn_by_failing(policy);
        assert!((1..300).contains(&drawn), "{drawn} of 10000 to the failing task");
    }
}

/// No memory is none, and not a memory for ever.
#[test]
fn lanes_without_a_memory_count_no_errors() {
    let error_memory = Duration::ZERO;
    let least_loaded = LeastLoaded::new(LeastLoadedConfig { error_memory, ..Default::default() });
    let prequal = Prequal::new(PrequalConfig { error_memory, ..Default::default() }).unwrap();
    for mut policy in [Policy::from(least_loaded), Policy::from(prequal)] {
        for id in 0..10 {
            policy.add(BackendId(id), Join::Warm, Timestamp::ZERO);
        }
        let drawn = drawn_by_failing(policy);
        // Of two or more that are looked at, the idle one is taken.
        assert!(drawn > 1_900, "{drawn} of 10000 to the failing task, and errors do not count");
    }
}
