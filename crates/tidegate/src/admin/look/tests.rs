use super::*;
use crate::admin::api::Kind;
use crate::clock::{Clock, Hand};
use crate::metrics::cell;
use http::{Request, Response};
use http_body_util::Full;
use tidegate_core::fleet::Limits;
use tidegate_core::levels::Levels;
use tower::{Layer as _, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);

fn task() -> (Task, Hand) {
    let (clock, hand) = Clock::manual();
    hand.advance(10 * SECOND);
    let half = Limits::total(CostRate::from_cpus(0.5).expect("a rate"));
    let task = Task::builder("shop").clock(clock).customer("a", half).build();
    (task.expect("a task"), hand)
}

/// Asks, with a handler that takes `took` by the task's clock and then answers with `status`.
async fn ask(
    task: &Task,
    hand: &Hand,
    took: Duration,
    status: u16,
    headers: &[(&str, &str)],
) -> u16 {
    let hand = hand.clone();
    let handler = service_fn(move |_: Request<()>| {
        hand.advance(took);
        let answer = Response::builder().status(status).body(Full::<bytes::Bytes>::default());
        async { answer }
    });
    let mut request = Request::get("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(()).expect("a request");
    let answer = task.layer().layer(handler).oneshot(request).await.expect("an answer");
    answer.status().as_u16()
}

#[tokio::test]
async fn rates_are_of_the_time_since_the_last_look() {
    let (task, hand) = task();
    let mut look = Look::new(&task, Calls::default());
    let (first, _) = look.look();
    assert_eq!((first.service.as_str(), first.work.offered), ("shop", 0.0));
    assert_eq!(first.state.kind, Kind::Starting);
    let millis = Duration::from_millis(8);
    for n in 0..30 {
        let again = if n < 10 { "2" } else { "1" };
        ask(&task, &hand, millis, 200, &[("x-envoy-attempt-count", again)]).await;
    }
    // Three failures, and two that are good but late.
    for _ in 0..3 {
        ask(&task, &hand, millis, 500, &[]).await;
    }
    for _ in 0..2 {
        ask(&task, &hand, millis, 200, &[("x-envoy-expected-rq-timeout-ms", "5")]).await;
    }
    task.gate().set_levels(Levels::CLOSED);
    for _ in 0..5 {
        assert_eq!(ask(&task, &hand, millis, 200, &[("x-criticality", "SHEDDABLE")]).await, 503);
    }
    // 35 times 8 ms have passed.
    hand.advance(Duration::from_millis(2_000 - 35 * 8));
    let (shown, events) = look.look();
    let work = &shown.work;
    assert_eq!((work.offered, work.admitted, work.rejected), (20.0, 17.5, 2.5));
    assert_eq!((work.good, work.failed, work.inflight), (15.0, 1.5, 0));
    let [critical_plus, critical, _, sheddable] = &shown.levels[..] else {
        panic!("{:?}", shown.levels)
    };
    assert_eq!(
        (critical_plus.criticality.as_str(), critical_plus.admitted),
        ("CRITICAL_PLUS", 0.0)
    );
    assert_eq!((critical.admitted, critical.good, critical.rejected), (17.5, 15.0, 0.0));
    assert_eq!((sheddable.admitted, sheddable.rejected), (0.0, 2.5));
    assert_eq!(shown.retries.attempts, [15.0, 5.0, 0.0]);
    assert_eq!(shown.retries.amplification, Some(20.0 / 15.0));
    let p50 = shown.latency.p50_ms.expect("some were done");
    assert!((7.0..9.0).contains(&p50), "{p50}");
    let overloaded = &shown.rejections[0];
    assert_eq!((overloaded.reason.as_str(), overloaded.rate), ("overloaded", 2.5));
    assert_eq!((overloaded.place.as_str(), overloaded.total), ("at the gate", 5));
    assert_eq!(
        shown.thresholds.iter().map(|t| t.ratio).collect::<Vec<_>>(),
        [1.0, 0.95, 0.9, 0.85]
    );
    let limits: Vec<_> = shown.customers.iter().map(|c| (c.name.as_str(), c.limit)).collect();
    assert_eq!(limits, [("a", Some(0.5)), ("everyone else", None)]);
    // Of refusals that come at once one is kept.
    let [refused] = &events[..] else { panic!("{events:?}") };
    assert_eq!(refused.reason.as_deref(), Some("overloaded"));
    assert!(!refused.change);
    let explained = look.explain(&refused.id).expect("it is remembered");
    assert_eq!(explained.facts[1].text, "SHEDDABLE, by its header x-criticality");
    assert_eq!(look.explain("0000000000000000"), None);
    hand.advance(SECOND);
    let (calm, events) = look.look();
    assert_eq!((calm.work.offered, calm.latency.p50_ms, events.len()), (0.0, None, 0));
    // What a request costs is that of the last ten looks.
    assert!(calm.work.cost_ms.is_some());
}

#[test]
fn changes_are_told_once_and_the_state_knows_since_when() {
    let (task, hand) = task();
    let mut look = Look::new(&task, Calls::default());
    look.look();
    task.set_dark(true);
    let (shown, events) = look.look();
    let at_ms = shown.at_ms;
    assert_eq!(shown.state.kind, Kind::Dark);
    let [dark] = &events[..] else { panic!("{events:?}") };
    assert!(dark.change && dark.id.starts_with("change-"), "{dark:?}");
    assert_eq!(look.explain(&dark.id).map(|e| e.title), Some(dark.text.clone()));
    hand.advance(Duration::from_millis(500));
    let (shown, events) = look.look();
    assert!(events.is_empty(), "{events:?}");
    // Half a second by the task's clock, which here is not that of the wall.
    assert_eq!(shown.at_ms - shown.state.since_ms, 500);
    assert!(shown.at_ms >= at_ms);
    task.set_dark(false);
    task.set_lame_duck(true);
    let (shown, events) = look.look();
    assert_eq!((shown.state.kind, events.len()), (Kind::LameDuck, 2));
    drop(task);
    assert_eq!(look.look().0.state.kind, Kind::Gone);
}

#[test]
fn customers_are_those_who_want_most() {
    let (task, _hand) = task();
    for n in 0..30 {
        task.set_limits(&format!("c{n:02}"), Limits::UNLIMITED);
    }
    let mut snapshot = task.snapshot();
    let mut usage = Usage::default();
    usage.wanted[0] = CostRate::from_cpus(2.0).expect("a rate");
    usage.used[3] = CostRate::from_cpus(1.0).expect("a rate");
    snapshot.customers = vec![(Some("c17".into()), usage)];
    let (rows, left_out) = customers(&task, &snapshot);
    assert_eq!((rows.len(), left_out), (20, 12));
    assert_eq!((rows[0].name.as_str(), rows[0].wanted, rows[0].used), ("c17", 2.0, 1.0));
    assert_eq!((rows[1].name.as_str(), rows[1].limit), ("a", Some(0.5)));
    assert_eq!((task.limits("c17"), task.limits("nobody")), (Limits::UNLIMITED, Limits::UNLIMITED));
    task.set_default_limits(Limits::ZERO);
    assert_eq!(task.limits("nobody"), Limits::ZERO);
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_of_others_is_shown_too() {
    let (task, _hand) = task();
    let layer = client::Layer::new("inventory");
    let discovery = client::Discovery::list(["10.0.0.1:80", "10.0.0.2:80"]);
    let make = |_: &client::Endpoint| {
        Ok::<_, core::convert::Infallible>(service_fn(|_: Request<Full<bytes::Bytes>>| async {
            Ok::<_, core::convert::Infallible>(Response::new(Full::<bytes::Bytes>::default()))
        }))
    };
    let balancer = client::Balancer::builder(discovery, make).build().expect("a balancer");
    let service = layer.layer(balancer.clone());
    let calls = Calls::default().client(&layer).expect("a client");
    let calls = calls.balancer("inventory", &balancer).expect("a balancer");
    let mut look = Look::new(&task, calls);
    for _ in 0..10 {
        let request = Request::new(Full::<bytes::Bytes>::default());
        service.clone().oneshot(request).await.expect("an answer");
    }
    let (shown, _) = look.look();
    let [asked] = &shown.clients[..] else { panic!("{:?}", shown.clients) };
    assert_eq!((asked.service.as_str(), asked.throttle.len()), ("inventory", 4));
    assert!(asked.throttle.iter().all(|throttle| throttle.probability == 0.0));
    let mut endpoints: Vec<_> = shown.backends.iter().map(|b| b.endpoint.as_str()).collect();
    endpoints.sort_unstable();
    assert_eq!(endpoints, ["10.0.0.1:80", "10.0.0.2:80"]);
    assert!(shown.backends.iter().all(|b| b.state == "serving" && b.active == 0));
    let throttled = shown.rejections.last().expect("a row");
    assert_eq!(
        (throttled.reason.as_str(), throttled.place.as_str()),
        ("throttled", "before inventory")
    );
}

#[test]
fn counts_of_several_threads_do_not_fall_below_zero() {
    let (task, _hand) = task();
    let (mut earlier, now) = (task.snapshot(), task.snapshot());
    task.inner.with_lane(|lane| lane.count(cell::FAILED));
    earlier.failed = 7;
    let rates = Rates { now: &now, earlier: Some(&earlier), seconds: 1.0 };
    assert_eq!(rates.work().failed, 0.0);
}
