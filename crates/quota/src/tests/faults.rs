//! Servers that vanish, leaders that change, tasks that come back, and messages that make no sense.

use super::world::{World, refused, served};
use tidegate_core::Criticality::Critical;
use tidegate_core::fleet::Standing;
use tidegate_wire::proto::tidegate::quota::v1::{self as wire, ServerMessage};

const FLEET: &str = "{ default: 1, customers: { good: 3, bad: 2 } }";

fn fleet() -> World {
    let mut world = World::new(FLEET, 3);
    for n in 0..3 {
        world.demand(n, &[("good", Critical, 0.4), ("bad", Critical, 4.0)]);
    }
    world.run(10.0);
    world
}

fn near(found: f64, wanted: f64) -> bool {
    (0.93 * wanted..=1.05 * wanted).contains(&found)
}

#[test]
fn without_a_server_limits_hold_then_fade_to_the_safe_share_and_never_to_nothing() {
    let mut world = fleet();
    world.down = true;
    let held = world.run(55.0);
    assert_eq!(refused(&held, "good"), 0.0);
    assert!(near(served(&held, "bad", 55.0), 2.0));
    world.run(90.0);
    assert_eq!(world.peers[0].member.standing(), Some(Standing::Lapsed));
    let safe = world.run(100.0);
    assert!(near(served(&safe, "bad", 100.0), 1.0), "half of it: {safe:?}");
    assert!(world.enforced("bad") > 0.9 && world.enforced("good") > 1.4);
    // It comes back, the same that it was.
    world.down = false;
    for peer in &mut world.peers {
        peer.stream = None;
    }
    world.run(5.0);
    let back = world.run(5.0);
    assert_eq!(refused(&back, "good"), 0.0);
    assert!(near(served(&back, "bad", 5.0), 2.0), "{back:?}");
    assert_eq!(world.peers[0].member.standing(), Some(Standing::Held));
}

#[test]
fn a_stall_that_outlasts_the_lease_on_a_living_stream_ends_with_a_resume() {
    let mut world = fleet();
    // Nothing travels, and nobody notices.
    world.down = true;
    world.run(130.0);
    world.down = false;
    world.run(6.0);
    let back = world.run(5.0);
    assert!(near(served(&back, "bad", 5.0), 2.0), "{back:?}");
    for peer in &world.peers {
        assert_eq!(peer.member.standing(), Some(Standing::Held));
    }
}

#[test]
fn a_new_leader_cuts_nobody_off_and_lets_nobody_have_more() {
    let mut world = fleet();
    world.elect(2);
    let learning = world.run(60.0);
    assert_eq!(refused(&learning, "good"), 0.0);
    assert!(near(served(&learning, "bad", 60.0), 2.0), "{learning:?}");
    assert!(world.book.status("search").learning);
    assert_eq!(world.peers[0].member.leader(), (2, true));
    world.run(70.0);
    let learned = world.run(5.0);
    assert!(!world.book.status("search").learning);
    assert_eq!(refused(&learned, "good"), 0.0);
    assert!(near(served(&learned, "bad", 5.0), 2.0), "{learned:?}");
}

#[test]
fn nothing_is_reported_before_the_server_said_welcome() {
    let mut world = fleet();
    world.elect(2);
    let member = &mut world.peers[0].member;
    let _ = member.hello();
    assert_eq!(member.tick(), None, "the leader would take what is held for nothing");
    world.run(1.0);
    assert!(world.enforced("bad") > 1.9);
}

#[test]
fn an_old_leader_is_refused_by_tasks_and_refuses_them() {
    let mut world = fleet();
    world.elect(5);
    world.run(3.0);
    // The one before has not noticed.
    world.elect(4);
    world.run(3.0);
    for peer in &world.peers {
        assert!(peer.stream.is_none());
        assert!(peer.trouble.as_ref().unwrap().contains("epoch 5"), "{:?}", peer.trouble);
        assert_eq!(peer.member.leader().0, 5);
    }
    // One that does not ask is not listened to, either.
    let welcome = wire::Welcome {
        task: Some(wire::TaskId { epoch: 4, number: 1 }),
        ..wire::Welcome::default()
    };
    let message = ServerMessage { welcome: Some(welcome), ..ServerMessage::default() };
    let member = &mut world.peers[0].member;
    let _ = member.hello();
    let nonsense = member.hear(&message).unwrap_err();
    assert_eq!(
        nonsense.to_string(),
        "the server leads by epoch 4, and one of epoch 5 has led since"
    );
}

#[test]
fn a_task_that_ends_makes_room_and_one_that_starts_finds_some() {
    let mut world = fleet();
    world.demand(2, &[]);
    world.peers.remove(2);
    world.start("task-2");
    world.demand(2, &[("good", Critical, 0.4), ("bad", Critical, 4.0)]);
    // Its predecessor counts until its lease ends, and what it held is not lost after that.
    world.run(130.0);
    let tally = world.run(5.0);
    assert!(near(served(&tally, "bad", 5.0), 2.0), "{tally:?}");
    assert_eq!(refused(&tally, "good"), 0.0);
    assert_eq!(world.book.status("search").tasks, 3);
}

#[test]
fn two_processes_of_one_name_are_told_so() {
    let mut world = fleet();
    world.start("task-0");
    world.run(1.5);
    let trouble = world.peers[0].trouble.as_ref().unwrap();
    assert!(trouble.contains("two tasks have one name"), "{trouble}");
}

#[test]
fn together_tasks_never_enforce_more_than_the_limit() {
    let mut world = fleet();
    for round in 0..40 {
        let busy = round % 3;
        for n in 0..3 {
            let bad = if n == busy { 6.0 } else { 0.01 };
            world.demand(n, &[("good", Critical, 0.4), ("bad", Critical, bad)]);
        }
        world.run(0.7);
        // What is set aside for each task comes on top where a grant is less than that.
        let enforced = world.enforced("bad");
        assert!(enforced <= 2.0 + 1e-6, "{enforced} at {:?}", world.now());
    }
}
