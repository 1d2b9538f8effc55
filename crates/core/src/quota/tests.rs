#![allow(clippy::unwrap_used)]

use super::*;
use crate::customer::Customers;
use crate::units::CostRate;
use Criticality::{Critical, CriticalPlus, Sheddable, SheddablePlus};
use proptest::prelude::*;

const A: CustomerId = CustomerId(1);
const B: CustomerId = CustomerId(2);

fn cpus(cpus: f64) -> CostRate {
    CostRate::from_cpus(cpus).unwrap()
}

fn gate() -> Arc<QuotaGate> {
    QuotaGate::new(QuotaConfig { customers_max: 4, ..QuotaConfig::default() })
}

/// Admits if the level is open, and charges.
fn admit(
    lane: &mut QuotaLane,
    customer: CustomerId,
    criticality: Criticality,
    cost: Cost,
    now: Timestamp,
) -> Option<Charge> {
    if lane.gate().check(customer, criticality, now).is_ok() {
        return Some(lane.charge(customer, criticality, cost, now));
    }
    lane.refuse(customer, criticality, cost);
    None
}

/// As [`admit`], for those who do not correct their charges.
fn request(
    lane: &mut QuotaLane,
    customer: CustomerId,
    criticality: Criticality,
    cost: Cost,
    now: Timestamp,
) -> bool {
    admit(lane, customer, criticality, cost, now).is_some()
}

/// Every level offers `offered` CPUs in requests of `cost` for `secs` seconds. Returns the CPUs
/// served to each level over the last half.
fn serve(limits: Limits, offered: [f64; 4], cost: Cost, secs: u64) -> [f64; 4] {
    let gate = gate();
    gate.set_limits(A, limits, Timestamp::ZERO);
    let mut lane = gate.lane();
    let mut served = [0.0; 4];
    let mut due = [0.0; 4];
    for ms in 0..secs * 1_000 {
        let now = Timestamp::from_millis(ms);
        for level in Criticality::ALL {
            due[level.index()] += offered[level.index()] * 0.001;
            while due[level.index()] >= cost.as_secs_f64() {
                due[level.index()] -= cost.as_secs_f64();
                if request(&mut lane, A, level, cost, now) && ms >= secs * 500 {
                    served[level.index()] += cost.as_secs_f64();
                }
            }
        }
    }
    served.map(|s| s / (secs as f64 / 2.0))
}

fn assert_close(found: [f64; 4], expected: [f64; 4]) {
    for (f, e) in found.into_iter().zip(expected) {
        assert!((f - e).abs() <= 0.02 * e.max(0.5), "{found:?} is not {expected:?}");
    }
}

#[test]
fn the_least_important_goes_first() {
    let limits = Limits::total(cpus(2.0));
    let cost = Cost::from_millis(1);
    for (offered, served) in [
        ([0.5, 0.5, 0.5, 0.4], [0.5, 0.5, 0.5, 0.4]),
        ([1.0, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]),
        ([5.0, 1.0, 1.0, 0.5], [0.0, 0.5, 1.0, 0.5]),
        ([5.0, 5.0, 5.0, 0.5], [0.0, 0.0, 1.5, 0.5]),
        ([5.0, 5.0, 5.0, 9.0], [0.0, 0.0, 0.0, 2.0]),
        ([9.0, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]),
    ] {
        assert_close(serve(limits, offered, cost, 20), served);
    }
}

#[test]
fn a_level_with_a_limit_of_its_own_shares_it_with_those_below() {
    let limits = Limits::from_entries([None, Some(cpus(1.0)), None, Some(cpus(2.0))]).unwrap();
    let cost = Cost::from_millis(1);
    for (offered, served) in [
        ([3.0, 0.6, 0.5, 0.2], [0.4, 0.6, 0.5, 0.2]),
        ([3.0, 3.0, 0.5, 0.2], [0.0, 1.0, 0.5, 0.2]),
        ([3.0, 3.0, 3.0, 0.2], [0.0, 0.0, 1.8, 0.2]),
    ] {
        assert_close(serve(limits, offered, cost, 20), served);
    }
}

#[test]
fn a_request_dearer_than_a_burst_is_served_and_paid_for() {
    // 0.1 CPU, 2 s a request: one every 20 s.
    let served =
        serve(Limits::total(cpus(0.1)), [0.0, 0.0, 0.0, 5.0], Cost::from_millis(2_000), 800);
    assert!((served[3] - 0.1).abs() < 0.01, "{served:?}");
}

#[test]
fn others_do_not_pay_for_a_bad_customer() {
    let gate = gate();
    for customer in [A, B] {
        gate.set_limits(customer, Limits::total(cpus(1.0)), Timestamp::ZERO);
    }
    let mut lane = gate.lane();
    let cost = Cost::from_millis(1);
    for ms in 0..5_000 {
        let now = Timestamp::from_millis(ms);
        for _ in 0..10 {
            request(&mut lane, A, Critical, cost, now);
        }
        if ms % 2 == 0 {
            assert!(request(&mut lane, B, Sheddable, cost, now), "refused at {ms} ms");
        }
    }
}

#[test]
fn estimates_are_corrected() {
    let gate = gate();
    gate.set_limits(A, Limits::total(cpus(1.0)), Timestamp::ZERO);
    let mut lane = gate.lane();
    let (estimate, actual) = (Cost::from_millis(1), Cost::from_millis(4));
    let mut used = 0;
    for ms in 0..20_000 {
        let now = Timestamp::from_millis(ms);
        if let Some(charge) = admit(&mut lane, A, CriticalPlus, estimate, now) {
            lane.settle(A, CriticalPlus, charge, actual, now);
            used += 4;
        }
    }
    assert!((20_000..=21_100).contains(&used), "{used} ms of 20 s");
    // And the other way: estimates four times too high do not cost the customer anything.
    let gate = self::gate();
    gate.set_limits(A, Limits::total(cpus(1.0)), Timestamp::ZERO);
    let mut lane = gate.lane();
    for ms in 0..20_000 {
        let now = Timestamp::from_millis(ms);
        let charge = admit(&mut lane, A, Sheddable, actual, now);
        let charge = charge.unwrap_or_else(|| panic!("refused at {ms} ms"));
        lane.settle(A, Sheddable, charge, Cost::from_micros(900), now);
    }
}

#[test]
fn a_refusal_knows_when_to_come_back() {
    let gate = gate();
    gate.set_limits(A, Limits::total(cpus(0.5)), Timestamp::ZERO);
    let mut lane = gate.lane();
    let now = Timestamp::from_secs(10);
    let _ = lane.charge(A, Critical, Cost::from_millis(1_000), now);
    // 1 s at half a CPU is 2 s of depth, and a lease more.
    for (criticality, opens_at) in
        [(Sheddable, 1_758), (SheddablePlus, 1_508), (Critical, 1_258), (CriticalPlus, 1_008)]
    {
        let wait = gate.check(A, criticality, now).unwrap_err();
        assert_eq!(wait.as_millis() + 1, opens_at, "{criticality}");
        assert!(gate.check(A, criticality, now + wait).is_ok());
        assert!(gate.check(A, criticality, now + wait - Duration::from_nanos(2)).is_err());
    }
}

#[test]
fn who_has_used_more_than_its_limit_lately_is_over() {
    let gate = gate();
    let now = Timestamp::from_secs(10);
    let mut lane = gate.lane();
    // Nobody is without a limit.
    let _ = lane.charge(A, Critical, Cost::from_millis(10_000), now);
    assert_eq!(gate.look(A, Critical, now), Ok(Keeps::Within));
    gate.set_limits(A, Limits::total(cpus(0.5)), now);
    // A lease is 1/128 s of time; at half a CPU, 58 ms of cost and a lease are just below 1/8 s.
    for (millis, keeps) in [(0, Keeps::Within), (58, Keeps::Within), (10, Keeps::Over)] {
        let _ = lane.charge(A, Critical, Cost::from_millis(millis), now);
        assert_eq!(gate.look(A, Critical, now), Ok(keeps), "{millis} ms more");
    }
    // Soon over no more; and never sooner than a lower criticality.
    assert_eq!(gate.look(A, Critical, now + Duration::from_millis(30)), Ok(Keeps::Within));
    let _ = lane.charge(A, Critical, Cost::from_millis(100), now);
    assert_eq!(gate.look(A, Critical, now), Ok(Keeps::Over));
    assert!(gate.look(A, Sheddable, now).is_err());
}

#[test]
fn blocked_and_unblocked() {
    let gate = gate();
    gate.set_limits(A, Limits::ZERO, Timestamp::ZERO);
    let mut lane = gate.lane();
    let late = Timestamp::from_secs(1_000_000);
    assert!(gate.check(A, CriticalPlus, late).is_err());
    let charge = lane.charge(A, CriticalPlus, Cost::MAX, late);
    lane.settle(A, CriticalPlus, charge, Cost::ZERO, late);
    assert!(gate.check(A, CriticalPlus, late).is_err());
    gate.set_limits(A, Limits::total(cpus(1.0)), late);
    assert!(gate.check(A, CriticalPlus, late).is_err());
    assert!(gate.check(A, CriticalPlus, late + Duration::from_millis(1)).is_ok());
    gate.set_limits(A, Limits::UNLIMITED, late);
    assert!(gate.check(A, Sheddable, late).is_ok());
}

#[test]
fn a_raised_limit_shortens_the_debt_and_a_lowered_one_does_not_lengthen_it() {
    let gate = gate();
    let now = Timestamp::from_secs(5);
    gate.set_limits(A, Limits::total(cpus(0.001)), now);
    let mut lane = gate.lane();
    // 5 ms at a thousandth of a CPU: five seconds deep.
    let _ = lane.charge(A, Critical, Cost::from_millis(5), now);
    assert!(gate.check(A, CriticalPlus, now).unwrap_err() > Duration::from_secs(3));
    gate.set_limits(A, Limits::total(cpus(50.0)), now);
    assert!(gate.check(A, Sheddable, now).is_ok());

    gate.set_limits(B, Limits::total(cpus(50.0)), now);
    let _ = lane.charge(B, Critical, Cost::from_millis(20_000), now);
    assert!(gate.check(B, Critical, now).is_ok());
    gate.set_limits(B, Limits::total(cpus(1.0)), now);
    assert!(gate.check(B, Critical, now).is_ok());
}

/// A second of CPU per request at a thousandth of a CPU: one every 1,000 s, whatever it was
/// estimated to cost.
#[test]
fn a_small_limit_holds_for_requests_that_are_dear_beside_it() {
    for (estimate, actual) in [(1_000, 1_000), (1_000, 900), (100, 100)] {
        let gate = gate();
        gate.set_limits(A, Limits::total(cpus(0.001)), Timestamp::ZERO);
        let mut lane = gate.lane();
        let (estimate, actual) = (Cost::from_millis(estimate), Cost::from_millis(actual));
        let mut used = 0.0;
        for s in 0..10_000 {
            let now = Timestamp::from_secs(s);
            if let Some(charge) = admit(&mut lane, A, CriticalPlus, estimate, now) {
                lane.settle(A, CriticalPlus, charge, actual, now);
                used += actual.as_secs_f64();
            }
        }
        assert!((9.0..=11.1).contains(&used), "{used} CPU-seconds of 10");
    }
}

/// Threads come and go (blocking pools do); what they leased and did not use does not go with them.
#[test]
fn what_comes_back_is_told_by_the_limits_of_its_own_customer() {
    let now = Timestamp::from_secs(10);
    let by_level = Limits::from_entries([None, Some(cpus(0.5)), None, Some(cpus(1.0))]).unwrap();
    // Who gets limits by criticality while a request of half a second is on its way that costs
    // nothing in the end, and how deep that leaves the bucket of the one who has sent it.
    for (who, depth_ms) in [(B, 0), (A, 500)] {
        let gate = gate();
        gate.set_limits(A, Limits::total(cpus(1.0)), now);
        let mut lane = gate.lane();
        let charge = lane.charge(A, Critical, Cost::from_millis(500), now);
        gate.set_limits(who, by_level, now);
        lane.settle(A, Critical, charge, Cost::ZERO, now);
        drop(lane);
        let depth = gate.bucket(A.index(), TOTAL).depth(now) / 1_000_000;
        assert_eq!(depth, depth_ms, "{who:?}");
    }
}

#[test]
fn leases_outlive_their_threads_and_do_not_close_a_level() {
    let gate = gate();
    gate.set_limits(A, Limits::total(cpus(1.0)), Timestamp::ZERO);
    let now = Timestamp::from_secs(1);
    for i in 0..1_000 {
        let mut lane = gate.lane();
        assert!(request(&mut lane, A, CriticalPlus, Cost::from_micros(1), now), "thread {i}");
    }
    assert!(gate.bucket(A.index(), TOTAL).depth(now) < 1_100_000);
    let mut lanes: Vec<_> = (0..300).map(|_| gate.lane()).collect();
    for (i, lane) in lanes.iter_mut().enumerate() {
        assert!(request(lane, A, Sheddable, Cost::from_micros(1), now), "thread {i}");
    }
}

/// The same for the buckets of limits by criticality; and most requests do not touch them.
#[test]
fn buckets_below_the_total_are_leased_too() {
    let gate = gate();
    let limits = Limits::from_entries([Some(cpus(1.0)), None, None, Some(cpus(8.0))]).unwrap();
    gate.set_limits(A, limits, Timestamp::ZERO);
    let now = Timestamp::from_secs(1);
    let mut lane = gate.lane();
    let mut moved = 0;
    for _ in 0..1_000 {
        let before = gate.bucket(A.index(), 0).depth(now);
        let charge = lane.charge(A, Sheddable, Cost::from_micros(10), now);
        lane.settle(A, Sheddable, charge, Cost::from_micros(9), now);
        moved += u32::from(gate.bucket(A.index(), 0).depth(now) != before);
    }
    // A lease is 1 s / 8 / 16 of a CPU, 7.8 ms; 9 ms were used.
    assert_eq!(moved, 2);
    drop(lane);
    let depth = gate.bucket(A.index(), 0).depth(now);
    assert!((9_000_000..9_000_010).contains(&depth), "{depth}");
    let mut lanes: Vec<_> = (0..300).map(|_| gate.lane()).collect();
    for (i, lane) in lanes.iter_mut().enumerate() {
        assert!(request(lane, A, Sheddable, Cost::from_micros(1), now), "thread {i}");
    }
}

#[test]
fn a_small_cost_at_a_large_limit_is_charged() {
    let gate = QuotaGate::new(QuotaConfig {
        customers_max: 2,
        burst: Duration::from_nanos(128),
        ..QuotaConfig::default()
    });
    gate.set_limits(A, Limits::total(cpus(100.0)), Timestamp::ZERO);
    let mut lane = gate.lane();
    let now = Timestamp::from_secs(1);
    // 128 ns of 100 CPUs are 12.8 us.
    let served = (0..10_000)
        .take_while(|_| request(&mut lane, A, CriticalPlus, Cost::from_nanos(99), now))
        .count();
    assert!((120..150).contains(&served), "{served} x 99 ns");
}

#[test]
fn what_was_charged_at_one_limit_is_not_given_back_at_another() {
    let gate = gate();
    let now = Timestamp::from_secs(1);
    gate.set_limits(A, Limits::total(cpus(1_000.0)), now);
    let mut lane = gate.lane();
    let charges: Vec<_> =
        (0..100).map(|_| lane.charge(A, Critical, Cost::from_millis(10), now)).collect();
    gate.set_limits(A, Limits::total(cpus(1.0)), now);
    let before = gate.bucket(A.index(), TOTAL).depth(now);
    for charge in charges {
        lane.settle(A, Critical, charge, Cost::from_millis(9), now);
    }
    assert_eq!(gate.bucket(A.index(), TOTAL).depth(now), before);
}

#[test]
fn a_surprise_is_paid_for_but_not_for_ever() {
    let gate = gate();
    gate.set_limits(A, Limits::total(cpus(0.01)), Timestamp::ZERO);
    let mut lane = gate.lane();
    let now = Timestamp::from_secs(1);
    let charge = lane.charge(A, Critical, Cost::from_millis(1), now);
    lane.settle(A, Critical, charge, Cost::from_millis(10_000), now);
    // 1,000 s at a hundredth of a CPU, but 60 below empty at the most.
    let wait = gate.check(A, CriticalPlus, now).unwrap_err();
    assert_eq!(wait.as_secs(), 60);
}

/// What a customer has used of its limit in all, in nanoseconds, after a request was charged 1 ms,
/// its limit was doubled and it has cost `actual`; `knows` if its thread has charged something in
/// between.
fn used_under_new_limits(knows: bool, actual: Cost) -> i64 {
    let now = Timestamp::from_secs(1);
    let gate = gate();
    gate.set_limits(A, Limits::total(cpus(1.0)), now);
    let mut lane = gate.lane();
    let charge = lane.charge(A, Critical, Cost::from_millis(1), now);
    gate.set_limits(A, Limits::total(cpus(2.0)), now);
    if knows {
        let _ = lane.charge(A, Critical, Cost::ZERO, now);
    }
    lane.settle(A, Critical, charge, actual, now);
    let _ = lane.charge(A, Critical, Cost::ZERO, now);
    let total = &gate.totals[A.index()];
    total.pace().cost_over(total.depth(now)) as i64 - lane.lease(A.index(), TOTAL).left as i64
}

/// A lease is 1/128 s of the limit.
#[test]
fn a_surprise_from_before_new_limits_is_forgiven_as_far_as_a_lease_that_nobody_has_let_go() {
    for (knows, actual_ms, surprise_ms) in
        [(false, 5, 0), (true, 5, 4), (false, 50, 49), (true, 50, 49)]
    {
        let as_thought = used_under_new_limits(knows, Cost::from_millis(1));
        let found = used_under_new_limits(knows, Cost::from_millis(actual_ms)) - as_thought;
        let expected = surprise_ms * 1_000_000;
        assert!((found - expected).abs() < 10, "{knows}, {actual_ms} ms: {found}");
    }
}

#[test]
fn a_report_after_no_time_waits_for_some() {
    let gate = gate();
    let mut meter = UsageMeter::new(&gate, Timestamp::ZERO);
    let _ = gate.lane().charge(A, Critical, Cost::from_millis(500), Timestamp::ZERO);
    meter.collect(&gate, Timestamp::ZERO, |_, usage| panic!("{usage:?}"));
    let mut used = CostRate::ZERO;
    meter.collect(&gate, Timestamp::from_secs(1), |_, usage| used = usage.used[Critical.index()]);
    assert_eq!(used, cpus(0.5));
}

#[test]
fn a_bucket_without_a_limit_is_open_and_owes_nothing() {
    let gate = gate();
    let own = Limits::from_entries([Some(cpus(0.5)), None, None, Some(cpus(1.0))]).unwrap();
    gate.set_limits(A, own, Timestamp::ZERO);
    let mut lane = gate.lane();
    let _ = lane.charge(A, Sheddable, Cost::from_millis(20_000), Timestamp::ZERO);
    let open_at = |level, secs| gate.check(A, level, Timestamp::from_secs(secs)).is_ok();
    // 20 s of depth in all, 40 s in its own bucket.
    assert!(!open_at(CriticalPlus, 18) && open_at(CriticalPlus, 20));
    assert!(!open_at(Sheddable, 39) && open_at(Sheddable, 41));
    gate.set_limits(A, Limits::total(cpus(1.0)), Timestamp::ZERO);
    assert!(!open_at(Sheddable, 19) && open_at(Sheddable, 21));
    gate.set_limits(A, Limits::UNLIMITED, Timestamp::ZERO);
    assert!(Criticality::ALL.into_iter().all(|level| open_at(level, 0)));
    gate.set_limits(A, own, Timestamp::ZERO);
    assert!(Criticality::ALL.into_iter().all(|level| open_at(level, 0)));
}

#[test]
fn limits_next_to_zero_are_not_a_block() {
    let gate = gate();
    let (now, tiny) = (Timestamp::from_secs(1), CostRate::from_nanos_per_sec(1));
    for (limit, open) in [(CostRate::ZERO, false), (tiny, true), (CostRate::ZERO, false)] {
        gate.set_limits(A, Limits::total(limit), now);
        assert_eq!(gate.check(A, CriticalPlus, Timestamp::from_secs(3)).is_ok(), open);
    }
}

#[test]
fn no_debt_is_taken_for_a_block() {
    let debt_max = Duration::MAX;
    let gate = QuotaGate::new(QuotaConfig { customers_max: 1, debt_max, ..QuotaConfig::default() });
    let (now, nobody) = (Timestamp::from_secs(1), CustomerId::DEFAULT);
    gate.set_limits(nobody, Limits::total(cpus(1.0)), now);
    let mut lane = gate.lane();
    let charge = lane.charge(nobody, Critical, Cost::MAX, now);
    assert!(gate.check(nobody, CriticalPlus, now).is_err());
    lane.settle(nobody, Critical, charge, Cost::ZERO, now);
    assert_eq!(gate.check(nobody, Sheddable, now), Ok(()));
}

#[test]
fn strangers_share_the_default() {
    let gate = gate();
    gate.set_limits(CustomerId::DEFAULT, Limits::total(cpus(0.001)), Timestamp::ZERO);
    let mut lane = gate.lane();
    let strange = CustomerId(4_000_000_000);
    assert!(request(&mut lane, strange, Sheddable, Cost::from_millis(500), Timestamp::ZERO));
    assert!(!request(&mut lane, CustomerId(77), Sheddable, Cost::from_millis(1), Timestamp::ZERO));
    assert!(request(&mut lane, A, Sheddable, Cost::from_millis(1), Timestamp::ZERO));

    let mut names = Customers::new(3);
    assert_eq!(names.register("gmail"), Some(A));
    assert_eq!(names.register("calendar"), Some(B));
    assert_eq!(names.register("android"), None);
    assert_eq!(names.register("gmail"), Some(A));
    assert_eq!(names.lookup("calendar"), B);
    assert_eq!(names.lookup("nobody"), CustomerId::DEFAULT);
    assert_eq!(names.iter().count(), 2);
}

#[test]
fn reports_tell_use_and_demand() {
    let gate = gate();
    gate.set_limits(A, Limits::total(cpus(1.0)), Timestamp::ZERO);
    let mut meter = UsageMeter::new(&gate, Timestamp::ZERO);
    let mut lane = gate.lane();
    let cost = Cost::from_millis(10);
    for i in 0..300_u64 {
        request(&mut lane, A, Critical, cost, Timestamp::from_millis(i * 10));
        request(&mut lane, A, Sheddable, cost, Timestamp::from_millis(i * 10));
    }
    let mut reports = Vec::new();
    meter
        .collect(&gate, Timestamp::from_secs(3), |customer, usage| reports.push((customer, usage)));
    let [(customer, usage)] = reports[..] else { panic!("{reports:?}") };
    assert_eq!(customer, A);
    assert_eq!(usage.used[Critical.index()], cpus(1.0));
    assert_eq!(usage.wanted[Critical.index()], cpus(1.0));
    assert_eq!(usage.wanted[Sheddable.index()], cpus(1.0));
    assert!(usage.used[Sheddable.index()] < cpus(0.12));
    // Corrections that come after a report are taken out of the next ones.
    let charge = Charge { cost, tag: gate.paces(A.index()).tag() };
    lane.settle(A, Critical, charge, Cost::ZERO, Timestamp::from_secs(3));
    let _ = lane.charge(A, Critical, Cost::from_millis(15), Timestamp::from_secs(3));
    let mut reports = Vec::new();
    meter.collect(&gate, Timestamp::from_secs(4), |_, usage| reports.push(usage));
    assert_eq!(reports[0].used[Critical.index()], cpus(0.005));
    meter.collect(&gate, Timestamp::from_secs(5), |_, _| panic!("nothing happened"));
}

#[derive(Debug, Clone)]
enum Operation {
    Request { lane: usize, customer: u32, level: usize, cost: u64 },
    Settle { lane: usize, actual: u64 },
    Pass { nanos: u64 },
    Limit { customer: u32, rates: [u64; 4] },
}

fn operation() -> impl Strategy<Value = Operation> {
    let cost = prop_oneof![0_u64..20_000_000, 0_u64..5_000_000_000, Just(u64::MAX)];
    prop_oneof![
        8 => (0_usize..3, 0_u32..6, 0_usize..4, cost.clone())
            .prop_map(|(lane, customer, level, cost)| Operation::Request {
                lane,
                customer,
                level,
                cost,
            }),
        4 => (0_usize..3, cost).prop_map(|(lane, actual)| Operation::Settle { lane, actual }),
        4 => prop_oneof![0_u64..50_000_000, Just(u64::MAX / 3)]
            .prop_map(|nanos| Operation::Pass { nanos }),
        1 => (0_u32..6, any::<[u64; 4]>())
            .prop_map(|(customer, rates)| Operation::Limit { customer, rates }),
    ]
}

proptest! {
    /// Whatever happens: a level that is closed has every lower one closed, and nothing panics.
    #[test]
    fn no_level_is_refused_while_a_lower_one_is_open(
        operations in proptest::collection::vec(operation(), 0..200),
    ) {
        let gate = gate();
        let mut lanes = [gate.lane(), gate.lane(), gate.lane()];
        let mut now = Timestamp::ZERO;
        let mut running = Vec::new();
        for operation in operations {
            match operation {
                Operation::Request { lane, customer, level, cost } => {
                    let (customer, cost) = (CustomerId(customer), Cost::from_nanos(cost));
                    let criticality = Criticality::ALL[level];
                    if let Some(charge) = admit(&mut lanes[lane], customer, criticality, cost, now)
                    {
                        running.push((customer, criticality, charge));
                    }
                }
                Operation::Settle { lane, actual } => {
                    if let Some((customer, criticality, charge)) = running.pop() {
                        let actual = Cost::from_nanos(actual);
                        lanes[lane].settle(customer, criticality, charge, actual, now);
                    }
                }
                Operation::Pass { nanos } => now += Duration::from_nanos(nanos),
                Operation::Limit { customer, rates } => {
                    let rates = rates.map(CostRate::from_nanos_per_sec);
                    gate.set_limits(CustomerId(customer), Limits::clamped(rates), now);
                }
            }
            for customer in 0..6 {
                let open = Criticality::ALL
                    .map(|level| gate.check(CustomerId(customer), level, now).is_ok());
                prop_assert!(open.is_sorted(), "{open:?}");
            }
        }
    }

    /// Over any run a customer uses no more than its limit over the time, a burst, a lease per
    /// thread, and the last request of each thread; and so does each level with all below it.
    #[test]
    fn nobody_uses_more_than_its_limit(
        rates in proptest::array::uniform4(1_000_000_u64..4_000_000_000),
        steps in proptest::collection::vec(
            (0_usize..3, 0_usize..4, 1_u64..30_000_000, 0_u64..10_000_000),
            1..500,
        ),
    ) {
        let gate = gate();
        let limits = Limits::clamped(rates.map(CostRate::from_nanos_per_sec));
        gate.set_limits(A, limits, Timestamp::ZERO);
        let mut lanes = [gate.lane(), gate.lane(), gate.lane()];
        let (mut now, mut used, mut largest) = (Timestamp::ZERO, [0; 4], 0);
        for (lane, level, cost, pass) in steps {
            now += Duration::from_nanos(pass);
            if request(&mut lanes[lane], A, Criticality::ALL[level], Cost::from_nanos(cost), now) {
                for used in &mut used[level..] {
                    *used += cost;
                }
                largest = cost.max(largest);
            }
        }
        let span = now.since(Timestamp::ZERO) + Duration::from_secs(1);
        for (used, limit) in used.into_iter().zip(limits.as_array()) {
            let allowed = limit.over(span + Duration::from_secs(1) / LEASED as u32).as_nanos();
            prop_assert!(used <= allowed + largest + 1, "{used} of {allowed}");
        }
    }
}
