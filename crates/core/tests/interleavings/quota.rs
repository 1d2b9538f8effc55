//! Two threads charge and correct one customer's buckets while its limits change.
//!
//! The limit is one CPU, at which a nanosecond of cost is a nanosecond of depth, and time stands
//! still, so that the depth is what was charged and the leases in hand, to the few nanoseconds by
//! which what goes back is rounded down. A thread that ends gives its lease back.

use crate::{explore, join};
use Criticality::{CriticalPlus, Sheddable, SheddablePlus};
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::fleet::Limits;
use tidegate_core::quota::{Charge, QuotaConfig, QuotaGate, QuotaLane};
use tidegate_core::{Cost, CostRate, Criticality, CustomerId, Timestamp};

const A: CustomerId = CustomerId::DEFAULT;
const NOW: Timestamp = Timestamp::from_secs(1);
/// Long after every debt is paid.
const LATE: Timestamp = Timestamp::from_secs(1_000_000);
const BURST: Duration = Duration::from_millis(1_024);
const DEBT: Duration = Duration::from_millis(2_048);
/// An eighth of a burst over sixteen lanes.
const LEASE: Duration = Duration::from_millis(1_024 / 8 / 16);
const ONE_CPU: CostRate = CostRate::from_nanos_per_sec(1_000_000_000);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A gate for one customer.
fn gate(limits: Limits) -> Arc<QuotaGate> {
    let mut config = QuotaConfig::default();
    config.customers_max = 1;
    config.burst = BURST;
    config.debt_max = DEBT;
    let gate = QuotaGate::new(config);
    gate.set_limits(A, limits, Timestamp::ZERO);
    gate
}

fn one_cpu() -> Limits {
    Limits::total(ONE_CPU)
}

/// How deep the bucket is: nothing if no more than the quarter that the lowest level may use.
fn depth(gate: &QuotaGate, now: Timestamp) -> Duration {
    let more = gate.check(A, Sheddable, now).err();
    more.map_or(Duration::ZERO, |wait| BURST / 4 + wait.saturating_sub(Duration::from_nanos(1)))
}

fn in_thread<T: 'static>(
    gate: &Arc<QuotaGate>,
    body: impl FnOnce(&mut QuotaLane) -> T + 'static,
) -> loom::thread::JoinHandle<T> {
    let mut lane = gate.lane();
    loom::thread::spawn(move || body(&mut lane))
}

fn charge(lane: &mut QuotaLane, millis: u64) -> Charge {
    lane.charge(A, Sheddable, Cost::from_millis(millis), NOW)
}

/// A request that is charged and then settled.
fn request(lane: &mut QuotaLane, estimate: u64, actual: u64) {
    let charge = charge(lane, estimate);
    lane.settle(A, Sheddable, charge, Cost::from_millis(actual), NOW);
}

/// The same but for rounding.
fn near(found: Duration, expected: Duration) -> bool {
    found.abs_diff(expected) <= Duration::from_nanos(10)
}

#[test]
fn no_charge_is_lost() {
    explore(|| {
        let gate = gate(one_cpu());
        let other = in_thread(&gate, |lane| request(lane, 300, 300));
        let mut lane = gate.lane();
        request(&mut lane, 400, 400);
        let seen = depth(&gate, NOW);
        let possible = [ms(400) + LEASE, ms(700) + 2 * LEASE, ms(700) + LEASE];
        assert!(possible.into_iter().any(|depth| near(seen, depth)), "{seen:?}");
        join(other);
        assert!(near(depth(&gate, NOW), ms(700) + LEASE), "{:?}", depth(&gate, NOW));
    });
}

/// What is given back is what was not used, also while others take.
#[test]
fn no_correction_is_lost() {
    explore(|| {
        let gate = gate(one_cpu());
        let other = in_thread(&gate, |lane| request(lane, 500, 400));
        let mut lane = gate.lane();
        request(&mut lane, 200, 300);
        let seen = depth(&gate, NOW);
        assert!(seen >= ms(300) && seen <= ms(801) + 2 * LEASE, "{seen:?}");
        join(other);
        assert!(near(depth(&gate, NOW), ms(700) + LEASE), "{:?}", depth(&gate, NOW));
    });
}

#[test]
fn the_debt_of_surprises_is_bounded() {
    explore(|| {
        let gate = gate(one_cpu());
        let other = in_thread(&gate, |lane| request(lane, 1, 9_000));
        request(&mut gate.lane(), 1, 9_000);
        // Estimates are charged in full whatever was forgiven before.
        let most = BURST + DEBT + ms(2) + 2 * LEASE;
        assert!(depth(&gate, NOW) <= most);
        join(other);
        let after = depth(&gate, NOW);
        assert!(after <= most && after + 4 * LEASE >= BURST + DEBT, "{after:?}");
    });
}

/// Whatever is charged or given back on the way, nothing opens the bucket of a blocked customer.
#[test]
fn a_blocked_customer_stays_blocked() {
    explore(|| {
        let gate = gate(one_cpu());
        let other = in_thread(&gate, |lane| request(lane, 300, 0));
        gate.set_limits(A, Limits::ZERO, NOW);
        assert!(gate.check(A, CriticalPlus, LATE).is_err());
        join(other);
        assert!(gate.check(A, CriticalPlus, LATE).is_err());
    });
}

/// A charge that began under the old limit must not close a bucket that no longer has any.
#[test]
fn a_customer_without_a_limit_is_not_refused() {
    explore(|| {
        let gate = gate(one_cpu());
        let other = in_thread(&gate, |lane| request(lane, 2_000, 2_000));
        gate.set_limits(A, Limits::UNLIMITED, NOW);
        assert_eq!(gate.check(A, Sheddable, NOW), Ok(()));
        join(other);
        assert_eq!(gate.check(A, Sheddable, NOW), Ok(()));
    });
}

/// The same for a level that loses its own limit, while its customer keeps one.
#[test]
fn a_level_that_lost_its_own_limit_is_bound_by_those_above() {
    explore(|| {
        let two_cpus = CostRate::from_nanos_per_sec(2_000_000_000);
        let own = Limits::from_entries([Some(ONE_CPU), None, None, Some(two_cpus)]);
        let gate = gate(own.expect("nested"));
        // 400 ms are more than the lowest may use of its own bucket, and not of the total.
        let other = in_thread(&gate, |lane| request(lane, 400, 400));
        gate.set_limits(A, Limits::total(two_cpus), NOW);
        join(other);
        assert_eq!(gate.check(A, Sheddable, NOW), Ok(()));
    });
}

/// Requests come and go while the block ends: the bucket starts empty, and owes at most what they
/// cost and the lease of whoever holds one.
#[test]
fn an_unblocked_customer_starts_empty() {
    explore(|| {
        let gate = gate(Limits::ZERO);
        let other = in_thread(&gate, |lane| request(lane, 2, 5));
        gate.set_limits(A, one_cpu(), NOW);
        let range = BURST.saturating_sub(Duration::from_nanos(10))..=BURST + ms(5) + 2 * LEASE;
        assert!(range.contains(&depth(&gate, NOW)), "{:?}", depth(&gate, NOW));
        join(other);
        assert!(range.contains(&depth(&gate, NOW)), "{:?}", depth(&gate, NOW));
    });
}

/// Limits of two publishers are put in place one after the other, not mixed.
#[test]
fn the_last_limits_hold_as_a_whole() {
    explore(|| {
        let gate = gate(Limits::UNLIMITED);
        let other = {
            let gate = Arc::clone(&gate);
            loom::thread::spawn(move || gate.set_limits(A, Limits::ZERO, NOW))
        };
        gate.set_limits(A, one_cpu(), NOW);
        join(other);
        request(&mut gate.lane(), 400, 400);
        if gate.check(A, CriticalPlus, LATE).is_ok() {
            // It starts empty if the block came first.
            let seen = depth(&gate, NOW);
            assert!(near(seen, ms(400)) || near(seen, BURST + ms(400)), "{seen:?}");
        }
    });
}

/// Every check looks at its own moment, so a thread may well find a level open and a higher one
/// closed a moment later. But while others only take, whoever finds a level closed finds all lower
/// ones closed from then on: the bucket that closed it is one of theirs as well.
#[test]
fn closed_stays_closed_on_the_way_down() {
    explore(|| {
        let two_cpus = CostRate::from_nanos_per_sec(2_000_000_000);
        let limits = Limits::from_entries([None, Some(ONE_CPU), None, Some(two_cpus)]);
        let gate = gate(limits.expect("nested"));
        let other = in_thread(&gate, |lane| {
            for (level, millis) in [(SheddablePlus, 600), (CriticalPlus, 1_300)] {
                let _ = lane.charge(A, level, Cost::from_millis(millis), NOW);
            }
        });
        let mut closed = false;
        for level in Criticality::ALL.into_iter().rev() {
            let refused = gate.check(A, level, NOW).is_err();
            assert!(refused || !closed, "{level} is open");
            closed |= refused;
        }
        join(other);
        // 1,900 ms at two CPUs are 950 ms of depth: only the highest is open.
        let open = Criticality::ALL.map(|level| gate.check(A, level, NOW).is_ok());
        assert_eq!(open, [false, false, false, true]);
    });
}
