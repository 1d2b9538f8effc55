//! What a probe finds.

use super::*;

/// The latency that a probe of the only task tells, in microseconds.
fn probed(world: &mut World) -> u32 {
    world.queue = EventQueue::new();
    world.probe(0, 0, 0);
    match world.queue.pop().map(|(_, number)| world.queue.event(number)) {
        Some(Event::Probed { micros, .. }) => micros,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_probe_tells_what_a_request_would_take_now() {
    let spec = world(vec![service(1, false)], 0.5, StackSpec::default(), 1);
    let mut world = World::new(spec).unwrap();
    // 5 ms of work on an idle core.
    assert_eq!(probed(&mut world), 5_000);
    // An antagonist takes half of it, and a cold start half of that.
    world.factors[0].machine = 0.5;
    world.set_speed(0);
    assert_eq!(probed(&mut world), 10_000);
    world.factors[0].warmth = 0.5;
    world.set_speed(0);
    assert_eq!(probed(&mut world), 20_000);
    // Requests that cost three times as much.
    world.cost_factor[0] = 3.0;
    assert_eq!(probed(&mut world), 60_000);
}
