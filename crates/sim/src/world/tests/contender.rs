use super::*;
use crate::contest::contenders::Queue;
use crate::world::log::{Attempt, Ending, Log};

/// One task whose requests take 10 ms, and a caller without distance.
fn alone(client: ClientSpec) -> WorldSpec {
    WorldSpec {
        lasts: Duration::from_secs(1),
        distance: vec![vec![Duration::ZERO]],
        services: vec![ServiceSpec {
            sharing: Sharing::Fifo,
            work: WorkSpec::Constant(Duration::from_millis(10)),
            ..ServiceSpec::default()
        }],
        clients: vec![client],
        log: true,
        ..WorldSpec::default()
    }
}

fn took(attempt: &Attempt) -> u128 {
    (attempt.ended.since(attempt.asked) + Duration::from_micros(1)).as_millis()
}

#[test]
fn a_request_waits_for_others_before_it_needs_the_cpu() {
    // Ten a second, 100 ms apart, of 310 ms each: they wait side by side, and run one by one.
    let even = ClientSpec { rate: 10.0, arrivals: Arrivals::Even, ..ClientSpec::default() };
    let mut spec = alone(even);
    spec.services[0].waits = Duration::from_millis(300);
    let record = run(spec);
    let Log { attempts, .. } = *record.log.unwrap();
    assert!((6..=7).contains(&attempts.len()), "{}", attempts.len());
    assert!(attempts.iter().all(|attempt| took(attempt) == 310), "{attempts:?}");
    assert_eq!(record.inflight_max, 4);
    let busy: f32 = record.busy[0][0].iter().sum();
    assert!((0.059..0.072).contains(&busy), "{busy}");
}

#[test]
fn a_contender_holds_requests_and_refuses_some_after_all() {
    // Five at once, one core. Two are let to the CPU, two have a place in the queue; of the three
    // that would want one, the first goes.
    let burst =
        ClientSpec { rate: 5.0, burst: 5, arrivals: Arrivals::Even, ..ClientSpec::default() };
    let queue = Box::new(Queue::new(1, 2));
    let record = World::new(alone(burst)).unwrap().with_contender(0, 0, queue).run();
    let attempts = record.log.unwrap().attempts;
    let ends = attempts.iter().map(|a| (took(a), matches!(a.ending, Ending::Done { .. })));
    let ends: Vec<_> = ends.collect();
    assert_eq!(ends, [(0, false), (10, true), (20, true), (30, true), (40, true)]);
    let rejected: u32 = record.services[0].iter().flat_map(|bin| bin.rejected).sum();
    assert_eq!(rejected, 1);
}
