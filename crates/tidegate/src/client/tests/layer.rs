use super::support::{Backend, answer, earn, grpc, protected, request, send};
use crate::client::{Layer, Throttled, TimedOut};
use crate::clock::Clock;
use crate::context::{Context, is_overloaded_below};
use crate::task::Task;
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidegate_core::decision::{Advice, Reason};
use tidegate_core::{Criticality, CustomerId};
use tidegate_meter::Account;
use tokio::time::{Instant, sleep};
use tower_layer::Layer as _;

/// A request that is being served.
fn served() -> Context {
    let task = Task::builder("test").build().unwrap();
    Context::new(task, Criticality::Critical, CustomerId::DEFAULT)
}

/// The throttle's promise: whatever is demanded, the backend sees K times what it takes.
#[tokio::test(start_paused = true)]
async fn an_overloaded_backend_sees_twice_what_it_takes() {
    // Takes ten a second, of a hundred that are wanted.
    let taken = Arc::new(AtomicUsize::new(0));
    let (began, counted) = (Instant::now(), Arc::clone(&taken));
    let backend = Backend::new(move |seen, _| {
        let allowed = (seen.at - began).as_millis() as usize / 100 + 1;
        if counted.load(Ordering::Relaxed) < allowed {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(answer(200, &[]))
        } else {
            Ok(answer(503, &[("x-envoy-ratelimited", "true")]))
        }
    });
    let (layer, service) = protected(backend.clone());
    let minute = |service| async move {
        for _ in 0..6_000 {
            let _ = send(&service, request()).await;
            sleep(Duration::from_millis(10)).await;
        }
    };
    // After two windows the start is forgotten.
    for _ in 0..4 {
        minute(service.clone()).await;
    }
    let (sent, accepted) = (backend.count(), taken.load(Ordering::Relaxed));
    minute(service.clone()).await;
    let sent = backend.count() - sent;
    let accepted = taken.load(Ordering::Relaxed) - accepted;
    assert!((598..=602).contains(&accepted), "{accepted}");
    // Of 6,000, with p = 0.8: the standard deviation is 31, and the recovery rule adds a little.
    assert!((1_100..=1_350).contains(&sent), "{sent}");
    let counts = layer.counts().attempts[Criticality::Critical.index()];
    assert_eq!(counts.requests(), 30_000);
    assert_eq!(counts.throttled + backend.count() as u64, 30_000);
}

#[tokio::test(start_paused = true)]
async fn what_is_held_back_says_so_and_tells_the_caller() {
    let (_, service) = protected(Backend::script(vec![answer(503, &[])]));
    for _ in 0..50 {
        let _ = send(&service, request()).await;
        sleep(Duration::from_secs(1)).await;
    }
    let account = Account::with_context(served());
    let error = loop {
        if let Err(error) = account.meter(send(&service, request())).await {
            break error;
        }
    };
    let throttled = Throttled::find(&*error).unwrap();
    assert_eq!((throttled.reason(), throttled.advice()), (Reason::Throttled, Advice::DontRetry));
    assert_eq!(throttled.rejection().criticality, Criticality::Critical);
    assert!(account.run(is_overloaded_below));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_retried_at_once_and_says_which_try_it_is() {
    for (grpc_call, refusal, header, values) in [
        (false, answer(503, &[]), "x-envoy-attempt-count", [Some("1"), Some("2"), Some("3")]),
        (
            true,
            answer(200, &[("grpc-status", "14")]),
            "grpc-previous-rpc-attempts",
            [None, Some("1"), Some("2")],
        ),
    ] {
        let fine = if grpc_call { answer(200, &[("grpc-status", "0")]) } else { answer(200, &[]) };
        let refused = refusal.clone();
        let backend = Backend::new(move |_, n| {
            Ok(if (20..22).contains(&n) { refused.clone() } else { fine.clone() })
        });
        let (layer, service) = protected(backend.clone());
        earn(&service, 2).await;
        let began = Instant::now();
        let request = if grpc_call { grpc() } else { request() };
        let response = send(&service, request).await.unwrap();
        assert_eq!(response.status(), 200);
        let seen = backend.attempts().split_off(20);
        assert_eq!(seen.len(), 3);
        for (seen, value) in seen.iter().zip(values) {
            assert_eq!(seen.at, began);
            assert_eq!(seen.headers.get(header).map(|v| v.to_str().unwrap()), value);
            assert_eq!(seen.headers["x-criticality"], "CRITICAL");
        }
        let retries = layer.counts().retries;
        assert_eq!((retries.requests, retries.retries), (21, 2));
    }
}

/// Three attempts, and then the refusal as it came.
#[tokio::test(start_paused = true)]
async fn the_third_refusal_is_the_answer() {
    let backend = Backend::new(|_, n| Ok(answer(if n < 40 { 200 } else { 503 }, &[])));
    let (layer, service) = protected(backend.clone());
    earn(&service, 4).await;
    let account = Account::with_context(served());
    let response = account.meter(send(&service, request())).await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(backend.count(), 43);
    assert_eq!(layer.counts().given_up, [0, 1, 0, 0]);
    assert!(account.run(is_overloaded_below));
}

#[tokio::test(start_paused = true)]
async fn advice_is_obeyed_to_the_millisecond() {
    for (grpc_call, headers, status, waits) in [
        (false, vec![("retry-after", "2")], 503, Some(2_000)),
        (false, vec![("retry-after", "1")], 429, Some(1_000)),
        (false, vec![], 429, None),
        (false, vec![("x-envoy-ratelimited", "true"), ("retry-after", "2")], 503, None),
        // A minute is longer than anybody waits for the answer.
        (false, vec![("retry-after", "60")], 503, None),
        (true, vec![("grpc-status", "14"), ("grpc-retry-pushback-ms", "137")], 200, Some(137)),
        (true, vec![("grpc-status", "8"), ("grpc-retry-pushback-ms", "0")], 200, Some(0)),
        (true, vec![("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")], 200, None),
        (true, vec![("grpc-status", "14"), ("grpc-retry-pushback-ms", "soon")], 200, None),
        (true, vec![("grpc-status", "8")], 200, None),
    ] {
        let refusal = answer(status, &headers);
        let backend = Backend::new(move |_, n| {
            Ok(if n == 20 { refusal.clone() } else { answer(200, &[("grpc-status", "0")]) })
        });
        let (_, service) = protected(backend.clone());
        earn(&service, 2).await;
        send(&service, if grpc_call { grpc() } else { request() }).await.unwrap();
        let seen = backend.attempts().split_off(20);
        let waited = seen.get(1).map(|second| (second.at - seen[0].at).as_millis());
        assert_eq!(waited, waits, "{headers:?}");
    }
}

/// A tenth of the requests, however many fail: 1.1 times, not three times.
#[tokio::test(start_paused = true)]
async fn retries_stay_within_a_tenth() {
    // Takes half, so that nothing is throttled.
    let backend = Backend::new(|_, n| Ok(answer(if n % 2 == 0 { 200 } else { 503 }, &[])));
    let (layer, service) = protected(backend.clone());
    for _ in 0..5_000 {
        send(&service, request()).await.unwrap();
        sleep(Duration::from_millis(10)).await;
    }
    let counts = layer.counts();
    assert_eq!(counts.retries.requests, 5_000);
    assert!((490..=500).contains(&counts.retries.retries), "{counts:?}");
    assert_eq!(backend.count() as u64, 5_000 + counts.retries.retries);
}

#[tokio::test(start_paused = true)]
async fn a_request_takes_over_what_its_caller_knows() {
    let backend = Backend::script(vec![answer(200, &[])]);
    let (_, service) = protected(backend.clone());
    let (clock, hand) = Clock::manual();
    let task = Task::builder("test").clock(clock.clone()).build().unwrap();
    let mut context = Context::new(task, Criticality::Sheddable, CustomerId::DEFAULT);
    context.deadline = Some(clock.now() + Duration::from_millis(250));
    let account = Account::with_context(context);
    account.meter(send(&service, request())).await.unwrap();
    // What the code says goes before what is inherited, and that before headers.
    let mut named = request();
    named.extensions_mut().insert(Criticality::CriticalPlus);
    account.meter(send(&service, named)).await.unwrap();
    let mut header = request();
    header.headers_mut().insert("x-criticality", "CRITICAL_PLUS".parse().unwrap());
    account.meter(send(&service, header)).await.unwrap();
    let found: Vec<_> = backend.attempts().iter().map(|seen| seen.headers.clone()).collect();
    for (headers, criticality) in found.iter().zip(["SHEDDABLE", "CRITICAL_PLUS", "SHEDDABLE"]) {
        assert_eq!(headers["x-criticality"], criticality);
        assert_eq!(headers["baggage"], format!("criticality={criticality}"));
        assert_eq!(headers["x-envoy-expected-rq-timeout-ms"], "250");
    }
    hand.advance(Duration::from_millis(250));
    let error = account.meter(send(&service, request())).await.unwrap_err();
    assert_eq!(Throttled::find(&*error).unwrap().reason(), Reason::DeadlinePassed);
    assert_eq!(backend.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_ever() {
    let silent = tower::service_fn(|_: http::Request<http_body_util::Full<bytes::Bytes>>| {
        core::future::pending::<Result<super::support::Answer, crate::client::BoxError>>()
    });
    let layer = Layer::builder("silent").timeout(Duration::from_secs(3)).build();
    let service = layer.layer(silent);
    let began = Instant::now();
    let error = send(&service, request()).await.unwrap_err();
    assert_eq!(TimedOut::find(&*error).unwrap().waited(), Duration::from_secs(3));
    assert_eq!(began.elapsed(), Duration::from_secs(3));
    assert_eq!(layer.counts().attempts[Criticality::Critical.index()].unanswered, 1);
}

/// One attempt in two is never answered. What may be sent twice is, after its second; what may not
/// fails then.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_not_answered_is_made_again_where_it_may() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let flaky = tower::service_fn(move |_: http::Request<http_body_util::Full<bytes::Bytes>>| {
        let silent = counted.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        async move {
            if silent {
                core::future::pending::<()>().await;
            }
            Ok::<_, crate::client::BoxError>(answer(200, &[]))
        }
    });
    let layer = Layer::builder("flaky").attempt_timeout(Duration::from_secs(1)).seed(1).build();
    let earner = layer.layer(Backend::script(vec![answer(200, &[])]));
    earn(&earner, 3).await;
    let service = layer.layer(flaky);
    let began = Instant::now();
    assert_eq!(send(&service, request()).await.unwrap().status(), 200);
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    let mut post = request();
    *post.method_mut() = http::Method::POST;
    let error = send(&service, post).await.unwrap_err();
    assert_eq!(TimedOut::find(&*error).unwrap().waited(), Duration::from_secs(1));
    assert_eq!(count.load(Ordering::Relaxed), 3);
    assert_eq!(layer.counts().attempts[Criticality::Critical.index()].unanswered, 2);
}
