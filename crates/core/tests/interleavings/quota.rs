//! Two threads charge and correct one customer's buckets while its limits change.
//!
//! The limit is one CPU, at which a nanosecond of cost is a nanosecond of depth, and time stands
//! still, so that the depth is what was charged and the leases in hand, up to a nanosecond for each
//! rounding.

use crate::{explore, join};
use Criticality::{CriticalPlus, Sheddable, SheddablePlus};
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::fleet::Limits;
use tidegate_core::quota::{Charge, LEASED, QuotaConfig, QuotaGate, QuotaLane};
use tidegate_core::{Cost, CostRate, Criticality, CustomerId, Timestamp};

const A: CustomerId = CustomerId::DEFAULT;
const NOW: Timestamp = Timestamp::from_secs(1);
/// Long after every debt is paid.
const LATE: Timestamp = Timestamp::from_secs(1_000_000);
const BURST: Duration = Duration::from_millis(1_024);
const DEBT: Duration = Duration::from_millis(2_048);
/// Sixteen lanes share what may be leased, or more.
const LEASE: Duration = Duration::from_millis(1_024 / LEASED / 16);
const ROUNDING: Duration = Duration::from_nanos(10);
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

fn is_about(found: Duration, expected: Duration) -> bool {
    found.abs_diff(expected) <= ROUNDING
}

/// The lane comes back, as what it holds would else go back to the bucket.
fn in_thread(
    mut lane: QuotaLane,
    body: impl FnOnce(&mut QuotaLane) + 'static,
) -> loom::thread::JoinHandle<QuotaLane> {
    loom::thread::spawn(move || {
        body(&mut lane);
        lane
    })
}

fn charge(lane: &mut QuotaLane, millis: u64) -> Charge {
    lane.charge(A, Sheddable, Cost::from_millis(millis), NOW)
}

fn settle(lane: &mut QuotaLane, charge: Charge, actual: u64) {
    lane.settle(A, Sheddable, charge, Cost::from_millis(actual), NOW);
}

#[test]
fn no_charge_is_lost() {
    explore(|| {
        let gate = gate(one_cpu());
        let other = in_thread(gate.lane(), |lane| {
            let _ = charge(lane, 300);
        });
        let mut lane = gate.lane();
        let _ = charge(&mut lane, 400);
        let seen = depth(&gate, NOW);
        let (alone, both) = (ms(400) + LEASE, ms(700) + 2 * LEASE);
        assert!(is_about(seen, alone) || is_about(seen, both), "{seen:?}");
        let _other = join(other);
        assert!(is_about(depth(&gate, NOW), both));
    });
}

/// What is given back is what was not used, also while others take.
#[test]
fn no_correction_is_lost() {
    explore(|| {
        let gate = gate(one_cpu());
        let other = in_thread(gate.lane(), |lane| {
            let charge = charge(lane, 500);
            settle(lane, charge, 400);
        });
        let mut lane = gate.lane();
        let charge = charge(&mut lane, 200);
        settle(&mut lane, charge, 300);
        let seen = depth(&gate, NOW);
        assert!(seen >= ms(300) && seen <= ms(800) + 2 * LEASE + ROUNDING, "{seen:?}");
        let other = join(other);
        // The second took 100 ms more than it had, the first gave back all but a lease.
        assert!(is_about(depth(&gate, NOW), ms(700) + 2 * LEASE));
        drop((lane, other));
        assert!(is_about(depth(&gate, NOW), ms(700)));
    });
}

#[test]
fn debt_for_surprises_is_bounded() {
    explore(|| {
        let gate = gate(one_cpu());
        let (mut one, mut two) = (gate.lane(), gate.lane());
        let charges = [charge(&mut one, 1), charge(&mut two, 1)];
        let other = in_thread(two, move |lane| settle(lane, charges[1], 2_000));
        settle(&mut one, charges[0], 2_000);
        assert!(depth(&gate, NOW) <= BURST + DEBT);
        let _other = join(other);
        assert!(is_about(depth(&gate, NOW), BURST + DEBT));
    });
}

/// Whatever is charged or given back on the way, nothing opens the bucket of a blocked customer.
#[test]
fn a_blocked_customer_stays_blocked() {
    explore(|| {
        let gate = gate(one_cpu());
        let other = in_thread(gate.lane(), |lane| {
            // More than any limit makes up for in a lifetime.
            let charge = charge(lane, 1 << 40);
            settle(lane, charge, 0);
        });
        gate.set_limits(A, Limits::ZERO, NOW);
        assert!(gate.check(A, CriticalPlus, LATE).is_err());
        drop(join(other));
        assert!(gate.check(A, CriticalPlus, LATE).is_err());
    });
}

/// A charge that began under the old limit must not close a bucket that no longer has any, nor the
/// one that it has later.
#[test]
fn a_customer_without_a_limit_is_not_refused() {
    explore(|| {
        let gate = gate(one_cpu());
        let other = in_thread(gate.lane(), |lane| {
            let _ = charge(lane, 2_000);
        });
        gate.set_limits(A, Limits::UNLIMITED, NOW);
        assert_eq!(gate.check(A, Sheddable, NOW), Ok(()));
        let _other = join(other);
        assert_eq!(gate.check(A, Sheddable, NOW), Ok(()));
        gate.set_limits(A, one_cpu(), NOW);
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
        let other = in_thread(gate.lane(), |lane| {
            let _ = charge(lane, 400);
        });
        gate.set_limits(A, Limits::total(two_cpus), NOW);
        let _other = join(other);
        assert_eq!(gate.check(A, Sheddable, NOW), Ok(()));
    });
}

/// A raise shortens what is owed, also for the request that is charged in that moment: two seconds
/// at one CPU are two milliseconds at a thousand.
#[test]
fn a_raised_limit_holds_for_charges_under_way() {
    explore(|| {
        let gate = gate(one_cpu());
        let other = in_thread(gate.lane(), |lane| {
            let _ = charge(lane, 2_000);
        });
        let thousand = CostRate::from_nanos_per_sec(1_000_000_000_000);
        gate.set_limits(A, Limits::total(thousand), NOW);
        let _other = join(other);
        assert_eq!(gate.check(A, Sheddable, NOW), Ok(()));
    });
}

/// What was charged at a thousand CPUs is next to nothing; given back at one it would be a fortune.
#[test]
fn nothing_is_given_back_at_another_limit() {
    let thousand = || Limits::total(CostRate::from_nanos_per_sec(1_000_000_000_000));
    // The limit falls while a request that was charged is settled…
    explore(move || {
        let gate = gate(thousand());
        let mut lane = gate.lane();
        // 600 ms of depth, and 20 ms for twenty seconds of CPU.
        let _ = charge(&mut lane, 600_000);
        let charge = charge(&mut lane, 20_000);
        let other = in_thread(lane, move |lane| settle(lane, charge, 0));
        gate.set_limits(A, one_cpu(), NOW);
        let _other = join(other);
        assert!(depth(&gate, NOW) >= ms(599), "{:?}", depth(&gate, NOW));
    });
    // …or while it is charged.
    explore(move || {
        let gate = gate(thousand());
        let mut lane = gate.lane();
        let _ = charge(&mut lane, 600_000);
        let other = in_thread(lane, |lane| {
            let charge = charge(lane, 20_000);
            settle(lane, charge, 0);
        });
        gate.set_limits(A, one_cpu(), NOW);
        let _other = join(other);
        assert!(depth(&gate, NOW) >= ms(599), "{:?}", depth(&gate, NOW));
    });
}

/// Requests from before the block settle while it ends: the bucket starts empty, and owes at most
/// what they cost.
#[test]
fn an_unblocked_customer_starts_empty() {
    explore(|| {
        let gate = gate(one_cpu());
        let mut lane = gate.lane();
        let charges = [charge(&mut lane, 2), charge(&mut lane, 1)];
        gate.set_limits(A, Limits::ZERO, NOW);
        let other = in_thread(lane, move |lane| {
            settle(lane, charges[0], 1);
            settle(lane, charges[1], 5);
        });
        gate.set_limits(A, one_cpu(), NOW);
        let most = BURST + ms(4) + LEASE + ROUNDING;
        let seen = depth(&gate, NOW);
        assert!(seen >= BURST && seen <= most, "{seen:?}");
        let _other = join(other);
        let after = depth(&gate, NOW);
        assert!(after >= BURST && after <= most, "{after:?}");
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
        if gate.check(A, CriticalPlus, LATE).is_ok() {
            let mut lane = gate.lane();
            let _ = charge(&mut lane, 400);
            // It starts empty if the block came first.
            let seen = depth(&gate, NOW);
            let charged = ms(400) + LEASE;
            assert!(is_about(seen, charged) || is_about(seen, BURST + charged), "{seen:?}");
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
        let other = in_thread(gate.lane(), |lane| {
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
        let _other = join(other);
        // 1,900 ms at two CPUs are 950 ms of depth: only the highest is open.
        let open = Criticality::ALL.map(|level| gate.check(A, level, NOW).is_ok());
        assert_eq!(open, [false, false, false, true]);
    });
}

/// A level with a limit of its own has leases too: what two threads charge and give back there adds
/// up, and what they hold goes back when they end.
#[test]
fn no_charge_below_the_total_is_lost() {
    explore(|| {
        let eight_cpus = CostRate::from_nanos_per_sec(8_000_000_000);
        let limits = Limits::from_entries([Some(ONE_CPU), None, None, Some(eight_cpus)]);
        let gate = gate(limits.expect("nested"));
        let other = in_thread(gate.lane(), |lane| {
            let charge = charge(lane, 500);
            settle(lane, charge, 400);
        });
        let mut lane = gate.lane();
        let _ = charge(&mut lane, 300);
        let seen = depth(&gate, NOW);
        assert!(seen >= ms(300) && seen <= ms(800) + 2 * LEASE + ROUNDING, "{seen:?}");
        let other = join(other);
        assert!(is_about(depth(&gate, NOW), ms(700) + 2 * LEASE));
        drop((lane, other));
        assert!(is_about(depth(&gate, NOW), ms(700)));
    });
}
