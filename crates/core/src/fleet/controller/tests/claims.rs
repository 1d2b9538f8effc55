//! What tasks say of themselves: their name, their weight, what they hold.

use super::*;

fn cpus(n: f64) -> CostRate {
    CostRate::from_cpus(n).unwrap()
}

/// A leader that has learned, and a customer with this limit.
fn fleet(limit: f64) -> (Fleet, CustomerId, Timestamp) {
    let default = Limits::total(cpus(1.0));
    let mut fleet = Fleet::new(FleetConfig::default(), 1, default, Timestamp::ZERO).unwrap();
    let customer = fleet.set_customer("a", Limits::total(cpus(limit))).unwrap();
    (fleet, customer, Timestamp::from_secs(1_000))
}

#[test]
fn ids_of_tasks_that_are_gone_are_not_mistaken_for_newer_ones() {
    let (mut fleet, _, now) = fleet(10.0);
    let first = fleet.join("restarting", 1, now).unwrap();
    fleet.leave(first);
    for restart in 1..5_000 {
        let id = fleet.join("restarting", 1, now).unwrap();
        assert_ne!(id, first, "after {restart} restarts");
        fleet.leave(id);
    }
}

#[test]
fn an_id_of_another_leader_is_nobodys() {
    let (mut first, _, now) = fleet(10.0);
    let mut second = Fleet::new(FleetConfig::default(), 2, Limits::ZERO, now).unwrap();
    let stale = first.join("a", 1, now).unwrap();
    let fresh = second.join("b", 1, now).unwrap();
    assert_eq!(second.report(stale, None, &[], now), Err(NotJoined));
    assert_eq!(TaskId::from_parts(fresh.epoch(), fresh.number()), fresh);
    assert_eq!(TaskId::from_parts(1, fresh.number()), stale);
}
