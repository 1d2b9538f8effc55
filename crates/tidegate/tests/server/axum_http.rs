//! axum, over HTTP/1.1 and h2c.

use crate::support::{Client, VERSIONS, Version, hello, idle, serve};
use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use std::sync::Arc;
use tidegate::report::{LoadReports, When};
use tidegate::{Criticality, Task, context};
use tidegate_core::admission::Controller;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::levels::Levels;
use tidegate_core::signal::Reading;
use tidegate_core::{Cost, Utilization};
use tidegate_wire::customer::Identities;
use tidegate_wire::faults::Fault;
use tidegate_wire::orca;

#[tokio::test]
async fn hello_is_served_until_the_gate_is_shut() {
    for version in VERSIONS {
        let task = Task::builder("hello").build().unwrap();
        let mut client = Client::connect(serve(hello(&task)).await, version).await;
        let answer = client.get("/", &[]).await;
        assert_eq!((answer.status().as_u16(), answer.body().as_str()), (200, "hello"));

        task.gate().set_levels(Levels::CLOSED);
        assert_eq!(client.get("/", &[]).await.status(), 503, "{version:?}");
        idle(&task).await;
        assert_eq!(task.gate().counts().completed(), 1);
    }
}

/// What a handler sees of its request, and what its children do.
async fn seen() -> String {
    let line = || {
        let left = context::remaining().is_some();
        format!("{} {} {left}", context::criticality(), context::attempt())
    };
    let here = line();
    let child = tidegate::spawn(async move {
        let grandchild = tidegate::spawn(async move { line() }).await.unwrap();
        format!("{} / {grandchild}", line())
    });
    let child = child.await.unwrap();
    let blocking = tidegate::spawn_blocking(line).await.unwrap();
    let stray = tokio::spawn(async move { line() }).await.unwrap();
    let lower = context::with_criticality(Criticality::Sheddable, async {
        let child = tidegate::spawn(async { context::criticality() }).await.unwrap();
        let blocking = tidegate::spawn_blocking(context::criticality).await.unwrap();
        (context::criticality(), child, blocking)
    });
    let lower = lower.await;
    assert_eq!(lower, (Criticality::Sheddable, Criticality::Sheddable, Criticality::Sheddable));
    assert!(context::set_criticality(Criticality::CriticalPlus));
    let after = context::criticality();
    assert_eq!(after, Criticality::CriticalPlus);
    assert!(context::cost_so_far() > Cost::from_nanos(0));
    format!("{here} / {child} / {blocking} / {stray}")
}

#[tokio::test]
async fn handlers_and_their_children_know_the_request() {
    let task = Task::builder("test").build().unwrap();
    let router = Router::new().route("/", get(seen)).layer(task.layer());
    let mut client = Client::connect(serve(router).await, Version::Http1).await;
    let headers = [
        ("baggage", "criticality=SHEDDABLE_PLUS"),
        ("x-envoy-attempt-count", "2"),
        ("x-envoy-expected-rq-timeout-ms", "60000"),
    ];
    let answer = client.get("/", &headers).await;
    let known = "SHEDDABLE_PLUS 2 true";
    // The last is a task of plain tokio: nobody's.
    let expected = format!("{known} / {known} / {known} / {known} / CRITICAL 1 false");
    assert_eq!(answer.body(), &expected);
    assert!(!context::is_request());
    assert!(!context::set_criticality(Criticality::Sheddable));
}

#[tokio::test]
async fn what_makes_no_sense_is_counted_and_served() {
    let task = Task::builder("test").build().unwrap();
    let mut client = Client::connect(serve(hello(&task)).await, Version::Http1).await;
    let headers = [
        ("x-criticality", "VERY"),
        ("x-envoy-attempt-count", "-7"),
        ("grpc-timeout", "soon"),
        ("x-customer", "somebody"),
    ];
    assert_eq!(client.get("/", &headers).await.status(), 200);
    idle(&task).await;
    let snapshot = task.snapshot();
    for fault in
        [Fault::BadCriticality, Fault::BadAttempt, Fault::BadDeadline, Fault::CustomerByStranger]
    {
        assert_eq!(snapshot.fault(fault), 1, "{fault}");
    }
    assert_eq!(snapshot.requests.attempts(), [1, 0, 0]);
}

#[tokio::test]
async fn routes_have_defaults() {
    let answers = || get(|| async { context::criticality().to_string() });
    let task = Task::builder("test")
        .default_criticality(Criticality::SheddablePlus)
        .route("/batch/{job}", Criticality::Sheddable)
        .identities(Identities::default().unidentified(Criticality::CriticalPlus))
        .build()
        .unwrap();
    let pay = task.layer().default_criticality(Criticality::CriticalPlus);
    let router = Router::new()
        .route("/", answers())
        .route("/batch/{job}", answers())
        .layer(task.layer())
        .merge(Router::new().route("/pay", answers()).layer(pay));
    let mut client = Client::connect(serve(router).await, Version::Http1).await;
    for (path, default) in
        [("/", "SHEDDABLE_PLUS"), ("/batch/17", "SHEDDABLE"), ("/pay", "CRITICAL_PLUS")]
    {
        assert_eq!(client.get(path, &[]).await.body(), default, "{path}");
        let said = client.get(path, &[("x-criticality", "CRITICAL")]).await;
        assert_eq!(said.body(), "CRITICAL", "{path}");
    }
}

#[tokio::test]
async fn a_layer_within_a_layer_is_the_same_request() {
    let task = Task::builder("test").build().unwrap();
    let router = hello(&task).layer(task.layer());
    let mut client = Client::connect(serve(router).await, Version::Http1).await;
    assert_eq!(client.get("/", &[]).await.body(), "hello");
    idle(&task).await;
    assert_eq!(task.gate().counts().completed(), 1);
}

#[tokio::test]
async fn handlers_are_asked_for_degraded_answers_before_anything_is_shed() {
    let task = Task::builder("test").build().unwrap();
    let handler = || async { if context::degrade() { "short" } else { "long" } };
    let router = Router::new().route("/", get(handler)).layer(task.layer());
    let mut client = Client::connect(serve(router).await, Version::Http1).await;
    let (gate, clock) = (task.gate(), task.clock());
    let (shed, attempts) = (ShedConfig::default(), AttemptsConfig::default());
    let mut controller = Controller::new(shed, attempts, gate, clock.now());
    for (utilization, answer) in [(0.5, "long"), (0.72, "short")] {
        let utilization = Utilization::new(utilization).unwrap();
        // CRITICAL is asked from 0.70 on, and shed from 0.95 on.
        let reading = Reading { utilization, instant: utilization, ..Reading::IDLE };
        controller.tick(gate, reading, clock.now());
        assert_eq!(client.get("/", &[]).await.body(), answer, "{utilization:?}");
    }
}

#[tokio::test]
async fn an_overload_below_becomes_dont_retry_unless_the_handler_makes_do() {
    let task = Task::builder("test").build().unwrap();
    let answer = |status: u16, below: bool| {
        get(move || async move {
            if below {
                // As a client layer does, wherever in the request it is.
                tidegate::spawn(async { context::overloaded_below() }).await.unwrap();
                assert!(context::is_overloaded_below());
            }
            (StatusCode::from_u16(status).unwrap(), "as I said").into_response()
        })
    };
    let router = Router::new()
        .route("/fails", answer(500, true))
        .route("/makes-do", answer(200, true))
        .route("/not-found", answer(404, true))
        .route("/own-fault", answer(500, false))
        .layer(task.layer());
    let mut client = Client::connect(serve(router).await, Version::Http1).await;
    for (path, status, dont_retry) in [
        ("/fails", 503, true),
        ("/makes-do", 200, false),
        ("/not-found", 404, false),
        ("/own-fault", 500, false),
    ] {
        let answer = client.get(path, &[]).await;
        assert_eq!(answer.status(), status, "{path}");
        assert_eq!(answer.headers().contains_key("x-envoy-ratelimited"), dont_retry, "{path}");
        assert_eq!(answer.body(), "as I said");
    }
    idle(&task).await;
    let snapshot = task.snapshot();
    assert_eq!((snapshot.overloaded_below, snapshot.failed), (1, 1));
}

#[tokio::test]
async fn reports_go_to_those_who_ask() {
    let task = Task::builder("test").build().unwrap();
    let mut client = Client::connect(serve(hello(&task)).await, Version::Http1).await;
    let silent = client.get("/", &[]).await;
    assert_eq!(orca::read(silent.headers()).unwrap(), None);
    for format in ["bin", "json", "TEXT"] {
        let headers = [("endpoint-load-metrics-format", format)];
        let answer = client.get("/", &headers).await;
        let report = orca::read(answer.headers()).unwrap().expect("a report");
        assert_eq!(report.request_cost.contains_key("cpu"), format != "TEXT", "{format}");
        assert!(report.request_cost.values().all(|&cost| cost > 0.0 && cost < 1.0));
    }

    let always = LoadReports::default().http(When::Always).cost(When::Never);
    let task = Task::builder("test").load_reports(always).build().unwrap();
    let mut client = Client::connect(serve(hello(&task)).await, Version::H2c).await;
    let answer = client.get("/", &[]).await;
    assert!(answer.headers().contains_key("endpoint-load-metrics-bin"));
    assert!(orca::read(answer.headers()).unwrap().unwrap().request_cost.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_task_at_work_reports_how_it_is() {
    let task = Task::builder("test").cpus(2.0).start().unwrap();
    let mut client = Client::connect(serve(hello(&task)).await, Version::Http1).await;
    loop {
        assert_eq!(client.get("/", &[]).await.status(), 200);
        let report = task.load_report();
        if report.rps_fractional > 0.0 && report.cpu_utilization > 0.0 {
            break;
        }
    }
    assert_eq!(task.load_report().eps, 0.0);
    let snapshot = task.snapshot();
    assert_eq!(snapshot.cpus, 2.0);
    assert!(snapshot.plan.is_some() && snapshot.ticks > 0);
    assert!(snapshot.signals.iter().any(|signal| signal.name == "executor_load"));
}

#[tokio::test]
async fn the_thread_of_a_task_ends_with_it() {
    let task = Task::builder("test").start().unwrap();
    let gate = Arc::downgrade(task.gate());
    let router = hello(&task);
    drop(task);
    assert!(gate.upgrade().is_some(), "the router has it");
    drop(router);
    // The sampler may be in the middle of a tick, and then is the last to let go.
    while gate.upgrade().is_some() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_handler_is_dropped_at_its_deadline_if_so_configured() {
    let task = Task::builder("test").cancel_at_deadline(true).build().unwrap();
    let forever = get(|| async { std::future::pending::<&str>().await });
    let router = Router::new().route("/", forever).layer(task.layer());
    let mut client = Client::connect(serve(router).await, Version::Http1).await;
    let answer = client.get("/", &[("x-envoy-expected-rq-timeout-ms", "5")]).await;
    assert_eq!(answer.status(), 504);
    assert_eq!(answer.headers()["x-tidegate-reason"], "deadline_passed");
    idle(&task).await;
    assert_eq!(task.snapshot().cancelled, 1);
}
