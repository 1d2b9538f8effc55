//! Who gets what while everyone can talk to everyone.

use super::world::{World, refused, served, service};
use tidegate_core::Criticality::{self, Critical, CriticalPlus, Sheddable, SheddablePlus};
use tidegate_core::CustomerId;
use tidegate_core::fleet::Limits;

const FLEET: &str = "{ default: 1, customers: { good: 3, fair: 3, bad: 2 } }";

/// Five tasks that serve three customers, each as much as it may but one, which asks for ten times
/// that.
fn fleet() -> World {
    let mut world = World::new(FLEET, 5);
    for n in 0..5 {
        world
            .demand(n, &[("good", Critical, 0.4), ("fair", Critical, 0.4), ("bad", Critical, 0.3)]);
    }
    world.run(10.0);
    world
}

#[test]
fn only_the_one_who_is_over_is_refused_and_held_to_its_limit_within_three_seconds() {
    let mut world = fleet();
    assert_eq!(refused(&world.run(5.0), "bad"), 0.0);
    for n in 0..5 {
        world
            .demand(n, &[("good", Critical, 0.4), ("fair", Critical, 0.4), ("bad", Critical, 4.0)]);
    }
    let first = world.run(3.0);
    let later = world.run(5.0);
    for tally in [&first, &later] {
        assert_eq!((refused(tally, "good"), refused(tally, "fair")), (0.0, 0.0));
    }
    let bad = served(&later, "bad", 5.0);
    assert!((1.9..=2.1).contains(&bad), "{bad}");
    assert!(refused(&later, "bad") > 80.0);
}

#[test]
fn demand_that_moves_to_other_tasks_is_followed_within_three_seconds() {
    let mut world = World::new(FLEET, 5);
    world.demand(0, &[("bad", Critical, 4.0)]);
    world.demand(1, &[("bad", Critical, 4.0)]);
    world.run(5.0);
    world.demand(0, &[]);
    world.demand(1, &[]);
    world.demand(4, &[("bad", Critical, 4.0)]);
    world.run(3.0);
    let later = world.run(3.0);
    let bad = served(&later, "bad", 3.0);
    assert!((1.9..=2.1).contains(&bad), "{bad}");
}

#[test]
fn lower_criticalities_of_the_one_who_is_over_go_first_across_tasks() {
    let mut world = World::new(FLEET, 4);
    let levels = [CriticalPlus, Critical, SheddablePlus, Sheddable];
    for (n, level) in levels.into_iter().enumerate() {
        world.demand(n, &[("bad", level, 0.8)]);
    }
    world.run(5.0);
    let tally = world.run(10.0);
    let share = |level: Criticality| {
        let tally = tally[&("bad", level)];
        tally.served / (tally.served + tally.refused)
    };
    // 2 CPUs: both criticals whole, half of the next, and the floor of the last.
    assert!(share(CriticalPlus) > 0.98 && share(Critical) > 0.98, "{tally:?}");
    assert!((0.35..0.6).contains(&share(SheddablePlus)), "{tally:?}");
    assert!(share(Sheddable) < 0.05, "{tally:?}");
}

#[test]
fn everyone_else_shares_the_default() {
    let mut world = World::new(FLEET, 2);
    world.demand(0, &[("who", Critical, 2.0)]);
    world.demand(1, &[("ever", Critical, 2.0)]);
    world.run(5.0);
    let tally = world.run(5.0);
    let both = served(&tally, "who", 5.0) + served(&tally, "ever", 5.0);
    assert!((0.93..=1.05).contains(&both), "{both}");
}

#[test]
fn limits_customers_and_default_change_while_it_runs() {
    let mut world = fleet();
    let next = "{ default: 1, customers: { good: 3, bad: 0.5, new: 1 } }";
    world.service = service(next);
    world.book.reload(world.service.clone());
    for n in 0..5 {
        world
            .demand(n, &[("good", Critical, 0.4), ("fair", Critical, 0.4), ("bad", Critical, 4.0)]);
    }
    world.demand(0, &[("good", Critical, 0.4), ("new", Critical, 4.0)]);
    world.run(5.0);
    let task = &world.peers[0].task;
    assert_eq!(task.customer("fair"), CustomerId::DEFAULT);
    assert_ne!(task.customer("new"), CustomerId::DEFAULT);
    let tally = world.run(5.0);
    assert_eq!(refused(&tally, "good"), 0.0);
    for (customer, limit) in [("bad", 0.5), ("new", 1.0), ("fair", 1.0)] {
        let rate = served(&tally, customer, 5.0);
        assert!((0.93 * limit..=1.05 * limit).contains(&rate), "{customer} {rate}");
    }
    // And back: it has another number now, and is itself again.
    world.service = service(FLEET);
    world.book.reload(world.service.clone());
    world.run(5.0);
    let rate = served(&world.run(5.0), "fair", 5.0);
    assert!((1.5..=1.65).contains(&rate), "four tasks ask for 0.4 each: {rate}");
    let status = world.book.status("search");
    assert!(!status.learning && status.tasks == 5);
    let names: Vec<&str> = status.customers.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["", "bad", "fair", "good"]);
    let over: Vec<&str> = status.overs.iter().map(|over| over.customer.as_str()).collect();
    assert_eq!(over[..2], ["", "bad"], "{over:?}");
}

#[test]
fn customers_without_room_at_a_task_are_everyone_else_there() {
    let many: Vec<String> = (0..1_100).map(|n| format!("c{n}: 1")).collect();
    let mut world =
        World::new(&format!("{{ default: 1, customers: {{ {} }} }}", many.join(", ")), 1);
    world.run(2.0);
    let task = &world.peers[0].task;
    let known = (0..1_100).filter(|n| task.customer(&format!("c{n}")) != CustomerId::DEFAULT);
    assert_eq!(known.count(), 1_023);
    assert!(task.limits("c1").whole() < Limits::UNLIMITED.whole());
}
