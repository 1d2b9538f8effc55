use super::CriticalityFrom as From;
use super::CustomerFrom as Customer;
use super::*;
use crate::Task;
use crate::clock::{Clock, Hand};
use core::time::Duration;
use http::{Request, Response};
use http_body_util::Full;
use tidegate_core::Utilization;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::admission::{Controller, Seen};
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::decision::{SignalId, Thousandths};
use tidegate_core::fleet::Limits;
use tidegate_core::levels::Levels;
use tidegate_core::quota::QuotaConfig;
use tidegate_core::signal::{Reading, Role};
use tidegate_wire::customer::Identities;
use tower::{Layer, ServiceExt, service_fn};

const CRITICAL: Criticality = Criticality::Critical;
const SLOT: Duration = Duration::from_nanos(1 << SLOT_BITS);

fn task() -> (Task, Hand) {
    let (clock, hand) = Clock::manual();
    let identities = Identities::default()
        .customer("spiffe://d/ns/{customer}/sa/*")
        .and_then(|identities| identities.delegator("spiffe://d/ns/edge/sa/gateway"))
        .expect("patterns");
    let task = Task::builder("test")
        .clock(clock)
        .identities(identities)
        .customer("shop", Limits::UNLIMITED)
        .customer("blocked", Limits::ZERO)
        .route("POST", Criticality::SheddablePlus)
        .build();
    (task.expect("a task"), hand)
}

/// Asks as whoever has this certificate, and returns the head of the answer.
async fn ask(task: &Task, uri: Option<&str>, headers: &[(&str, &str)]) -> Response<()> {
    let handler = service_fn(|_: Request<()>| async {
        Ok::<_, core::convert::Infallible>(Response::new(Full::<bytes::Bytes>::default()))
    });
    let post = headers.contains(&("method", "POST"));
    let mut request = Request::builder().method(if post { "POST" } else { "GET" });
    for (name, value) in headers.iter().filter(|(name, _)| *name != "method") {
        request = request.header(*name, *value);
    }
    let request = request.extension(task.peer(uri)).body(()).expect("a request");
    let answer = task.layer().layer(handler).oneshot(request).await;
    answer.unwrap_or_else(|never| match never {}).map(drop)
}

fn refusals(task: &Task) -> Vec<Refusal> {
    let events = task.events().into_iter();
    let refusals = events.filter_map(|event| match event.what {
        What::Refused(refusal) => Some(refusal),
        _ => None,
    });
    refusals.collect()
}

#[tokio::test]
async fn of_many_refusals_of_a_kind_the_first_of_each_slot_is_kept() {
    let (task, hand) = task();
    task.gate().set_levels(Levels::CLOSED);
    for round in 1..=3 {
        for _ in 0..50 {
            ask(&task, None, &[]).await;
            ask(&task, None, &[("x-criticality", "SHEDDABLE")]).await;
            ask(&task, None, &[("grpc-timeout", "0m")]).await;
        }
        assert_eq!(refusals(&task).len(), 3 * round);
        hand.advance(SLOT);
    }
    assert!(task.events().is_sorted_by_key(|event| event.at));
    task.gate().set_levels(Levels::OPEN);
    hand.advance(SLOT);
    ask(&task, None, &[]).await;
    assert_eq!(refusals(&task).len(), 9, "a request that is served is no event");
}

#[tokio::test]
async fn a_refusal_says_what_led_to_it() {
    let (task, hand) = task();
    task.gate().set_levels(Levels::CLOSED);
    let gateway = Some("spiffe://d/ns/edge/sa/gateway");
    let shop = Some("spiffe://d/ns/shop/sa/web");
    for (uri, headers, criticality, from, lowered, customer, by) in [
        (None, &[][..], Criticality::Critical, From::Task, false, None, Customer::Nobody),
        (
            None,
            &[("baggage", "a=b,criticality=SHEDDABLE"), ("x-criticality", "SHEDDABLE")],
            Criticality::Sheddable,
            From::Baggage,
            false,
            None,
            Customer::Nobody,
        ),
        (
            shop,
            &[("x-criticality", "CRITICAL_PLUS"), ("x-customer", "blocked")],
            Criticality::Critical,
            From::XCriticality,
            true,
            Some("shop"),
            Customer::Certificate,
        ),
        (
            gateway,
            &[("method", "POST"), ("x-customer", "shop")],
            Criticality::SheddablePlus,
            From::Route,
            false,
            Some("shop"),
            Customer::XCustomer,
        ),
        (
            gateway,
            &[("baggage", "criticality=nonsense"), ("x-request-criticality", "sheddable")],
            Criticality::Sheddable,
            From::XRequestCriticality,
            false,
            None,
            // It has a name of its own, which no customer has.
            Customer::Certificate,
        ),
    ] {
        hand.advance(SLOT);
        let answer = ask(&task, uri, headers).await;
        let refusal = refusals(&task).pop().expect("a refusal");
        assert_eq!(refusal.id.to_string(), answer.headers()["x-tidegate-decision"]);
        assert_eq!(refusal.criticality, criticality, "{refusal}");
        assert_eq!((refusal.criticality_from, refusal.lowered), (from, lowered), "{refusal}");
        assert_eq!(
            (refusal.customer.as_deref(), refusal.customer_from),
            (customer, by),
            "{refusal}"
        );
        let told = refusal.answer.expect("an answer");
        assert_eq!((told.status.as_u16(), told.code), (503, None));
        assert!(matches!(refusal.grounds, Some(Grounds::Signal { .. })), "{refusal}");
    }
    let blocked = Some("spiffe://d/ns/blocked/sa/web");
    ask(&task, blocked, &[("content-type", "application/grpc"), ("x-envoy-attempt-count", "3")])
        .await;
    let refusal = refusals(&task).into_iter().find(|refusal| refusal.attempt == 3);
    let refusal = refusal.expect("a refusal");
    assert_eq!(refusal.reason, Reason::OutOfQuota);
    let told = refusal.answer.expect("an answer");
    assert_eq!((told.code, told.advice), (Some(Code::ResourceExhausted), Advice::DontRetry));
    let text = refusal.to_string();
    for part in [
        "refused, out_of_quota (CRITICAL by default, blocked by certificate, attempt 3)",
        "quota opens in",
        "answered ResourceExhausted, don't retry",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

#[tokio::test]
async fn dark_mode_keeps_what_it_would_have_refused() {
    let (task, hand) = task();
    task.gate().set_levels(Levels::CLOSED);
    task.set_dark(true);
    for _ in 0..5 {
        assert_eq!(ask(&task, None, &[]).await.status(), 200);
    }
    let all = task.events();
    // Both at the same time; the change was looked for when it was asked for.
    let [change, refusal] = &all[..] else { panic!("{all:?}") };
    let (change, What::Refused(refusal)) = (&change.what, &refusal.what) else { panic!("{all:?}") };
    assert_eq!(change, &What::Dark(true));
    assert_eq!((refusal.reason, refusal.answer), (Reason::Overloaded, None));
    hand.advance(SLOT);
    task.set_dark(false);
    task.set_lame_duck(true);
    let switches: Vec<String> = task.events().iter().skip(2).map(ToString::to_string).collect();
    assert_eq!(switches, ["takes no new requests", "is dark no more"]);
}

fn ended(task: &Task) -> Vec<Ended> {
    let events = task.events().into_iter();
    let ended = events.filter_map(|event| match event.what {
        What::Ended(ended) => Some(ended),
        _ => None,
    });
    ended.collect()
}

#[tokio::test]
async fn a_failure_for_a_dependency_is_told_by_the_number_in_its_answer() {
    let (task, hand) = task();
    let handler = service_fn(|_: Request<()>| async {
        crate::context::overloaded_below();
        let mut answer = Response::new(Full::<bytes::Bytes>::default());
        *answer.status_mut() = StatusCode::BAD_GATEWAY;
        Ok::<_, core::convert::Infallible>(answer)
    });
    for round in 1..=2 {
        let mut ids = Vec::new();
        for _ in 0..20 {
            let request = Request::builder().header("x-envoy-attempt-count", "2");
            let request = request.extension(task.peer(Some("spiffe://d/ns/shop/sa/web")));
            let request = request.body(()).expect("a request");
            let answer = task.layer().layer(handler).oneshot(request).await;
            let answer = answer.unwrap_or_else(|never| match never {});
            assert_eq!(answer.status(), 503);
            ids.push(answer.headers()["x-tidegate-decision"].clone());
        }
        let told = ended(&task);
        assert_eq!(told.len(), round, "the first of each slot");
        let last = told.last().expect("one");
        assert_eq!(last.id.to_string(), ids[0]);
        assert_eq!((last.how, last.attempt), (Ending::OverloadedBelow, 2));
        assert_eq!((last.customer.as_deref(), last.criticality), (Some("shop"), CRITICAL));
        let text = last.to_string();
        assert!(text.ends_with("(CRITICAL, shop, attempt 2); answered 503, don't retry"), "{text}");
        hand.advance(SLOT);
    }
    assert_eq!(refusals(&task), [], "it was let in");
}

#[tokio::test]
async fn a_request_that_was_cancelled_at_its_deadline_is_told() {
    let (task, hand) = task();
    task.inner.set_busy(true);
    let mut late = Box::pin(ask(&task, None, &[("x-envoy-expected-rq-timeout-ms", "50")]));
    assert!(futures_util::poll!(&mut late).is_pending(), "it waits for its turn");
    hand.advance(Duration::from_millis(51));
    let answer = late.await;
    assert_eq!(answer.status(), 504);
    let told = ended(&task);
    let [one] = &told[..] else { panic!("{told:?}") };
    assert_eq!((one.how, one.customer.as_deref()), (Ending::Cancelled, None));
    assert_eq!(one.id.to_string(), answer.headers()["x-tidegate-decision"]);
    assert!(one.to_string().contains("cancelled at its deadline (CRITICAL, other, attempt 1)"));
}

#[test]
fn what_is_remembered_is_bounded() {
    let events = Events::new();
    let sources = Sources::of(
        &HeaderMap::new(),
        tidegate_wire::protocol::Protocol::Http,
        &task().0.peer(None),
        None,
        None,
    );
    for n in 0..2_000 {
        let at = Timestamp::from_millis(n);
        events.refused(&Sample {
            at,
            id: DecisionId(n),
            reason: Reason::Overloaded,
            criticality: Criticality::Critical,
            customer: CustomerId::DEFAULT,
            sources,
            attempt: 1,
            cause: None,
            answer: None,
        });
        events.lock().changes.push(at, Changed::Dark(n % 2 == 0));
        events.ended(&EndedSample {
            at: at + SLOT * n as u32,
            id: DecisionId(n),
            how: Ending::Cancelled,
            criticality: CRITICAL,
            customer: CustomerId::DEFAULT,
            attempt: 1,
            answer: Answer::new(StatusCode::OK, &HeaderMap::new(), Advice::DontRetry),
        });
    }
    let kept = events.lock();
    assert_eq!((kept.ended.items.len(), kept.ended.items.capacity()), (ENDED_MAX, 128));
    assert_eq!(
        (kept.refusals.items.len(), kept.changes.ring.items.len()),
        (REFUSALS_MAX, CHANGES_MAX)
    );
    assert_eq!(kept.refusals.items.back().map(|sample| sample.id), Some(DecisionId(1_999)));
    assert_eq!((kept.refusals.items.capacity(), kept.changes.ring.items.capacity()), (512, 256));
}

/// A plan that sheds up to `cut`, on the grounds of signal 0.
fn plan(cut: Option<Criticality>, degrade: bool) -> Plan {
    let gate = AdmissionGate::new(QuotaConfig::default());
    let (shed, attempts) = (ShedConfig::default(), AttemptsConfig::default());
    let mut controller = Controller::new(shed, attempts, &gate, Timestamp::ZERO);
    let plan = controller.tick(&gate, Seen::new(Reading::IDLE), Timestamp::from_millis(10));
    let utilization = |n| Utilization::new(n).expect("a utilization");
    let high = Reading { utilization: utilization(0.5), signal: SignalId(0), ..Reading::IDLE };
    Plan {
        cut,
        degrade: [degrade, false, false, false],
        reading: high,
        peak: utilization(2.875),
        set_point: utilization(1.875),
        ..plan
    }
}

fn signals() -> Vec<Health> {
    let health = Health {
        name: "executor_load".to_owned(),
        id: SignalId(0),
        target: 0.8,
        role: Role::Leading,
        last: None,
        known: 0,
        unknown: 0,
        trouble: None,
        dead: false,
    };
    vec![health]
}

#[test]
fn a_rise_is_told_at_once_and_a_fall_when_it_has_held() {
    let mut watch = Watch::default();
    let mut told = Vec::new();
    let mut at = 0;
    let mut tick = |cut: Option<Criticality>, ticks: u64| {
        for _ in 0..ticks {
            at += 10;
            let now = Timestamp::from_millis(at);
            watch.plan(&plan(cut, false), now, |change| {
                told.push(change.named(&signals()).to_string());
            });
        }
        core::mem::take(&mut told)
    };
    assert!(tick(None, 3).is_empty());
    let began = tick(Some(Criticality::Sheddable), 5);
    assert_eq!(began, ["began to shed SHEDDABLE: executor_load at 2.300, over 1.500"]);
    // To and fro, for a second and a half.
    for _ in 0..50 {
        assert!(tick(None, 2).is_empty());
        assert!(tick(Some(Criticality::Sheddable), 1).is_empty());
    }
    let rose = tick(Some(Criticality::Critical), 1);
    assert_eq!(rose, ["sheds CRITICAL as well: executor_load at 2.300, over 1.500"]);
    // Less for a second, in which it was SHEDDABLE_PLUS at the most.
    tick(Some(Criticality::Sheddable), 50);
    tick(Some(Criticality::SheddablePlus), 1);
    let fell = tick(None, 50);
    assert_eq!(fell, ["sheds no more than SHEDDABLE_PLUS"]);
    assert_eq!(tick(None, 101), ["sheds nothing any more"]);
}

#[test]
fn ticks_tell_of_degraded_answers_and_switches() {
    let (task, _hand) = task();
    let (events, gate) = (&task.inner.events, task.gate());
    let tick = |degrade, millis| {
        events.tick(gate, &plan(None, degrade), Timestamp::from_millis(millis));
    };
    tick(true, 10);
    tick(true, 20);
    gate.set_lame_duck(true);
    tick(false, 30);
    let told: Vec<String> = task.events().iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "asks SHEDDABLE for degraded answers: signal 0 at 0.500",
            "asks SHEDDABLE for whole answers",
            "takes no new requests",
        ]
    );
}

#[test]
fn grounds_are_in_the_unit_of_their_signal() {
    let signal = |id| Cause::Signal {
        signal: id,
        utilization: Thousandths(2_000),
        threshold: Thousandths(850),
    };
    for (id, text) in [
        (SignalId(0), "executor_load at 1.600, over 0.680"),
        (SignalId(9), "signal 9 at 2.000, over 0.850"),
        (SignalId::QUEUE, "queue at 2.000, over 0.850"),
        (SignalId::COMBINED, "combined at 2.000, over 0.850"),
    ] {
        assert_eq!(Grounds::of(signal(id), &signals()).to_string(), text);
    }
}

/// However many changes of another kind came since.
#[test]
fn the_last_change_of_each_kind_is_never_forgotten() {
    let (task, _hand) = task();
    let (events, at) = (&task.inner.events, Timestamp::from_secs);
    events.lock().changes.push(at(1), Changed::DontRetry(true));
    for n in 0..1_000 {
        events.lock().changes.push(at(2 + n), Changed::LameDuck(n % 2 == 1));
    }
    let standing: Vec<_> = task.standing().into_iter().map(|e| (e.at, e.what)).collect();
    assert_eq!(standing, [(at(1), What::DontRetry(true)), (at(1_001), What::LameDuck(true))]);
}
