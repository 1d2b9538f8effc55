//! Each reason in its wire form over HTTP. The forms are those of the table in
//! `tidegate_wire::reject`.

use crate::support::{Client, VERSIONS, Version, hello, idle, say_dont_retry, serve};
use tidegate::Task;
use tidegate::task::Explain;
use tidegate_core::decision::Reason;
use tidegate_core::fleet::Limits;
use tidegate_core::levels::Levels;
use tidegate_core::{CostRate, Criticality};

async fn refused(
    task: &Task,
    version: Version,
    headers: &[(&str, &str)],
) -> http::Response<String> {
    let mut client = Client::connect(serve(hello(task)).await, version).await;
    let answer = client.get("/", headers).await;
    assert_eq!(answer.headers()["x-tidegate-decision"].len(), 16);
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    assert!(answer.body().starts_with('{'), "{}", answer.body());
    idle(task).await;
    answer
}

#[tokio::test]
async fn overloaded_may_be_retried_elsewhere() {
    for version in VERSIONS {
        let task = Task::builder("test").build().unwrap();
        task.gate().set_levels(Levels::CLOSED);
        let answer = refused(&task, version, &[]).await;
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()["x-tidegate-reason"], "overloaded");
        for absent in ["retry-after", "x-envoy-ratelimited", "x-tidegate-cause"] {
            assert!(!answer.headers().contains_key(absent), "{absent}");
        }
    }
}

#[tokio::test]
async fn many_retries_turn_it_into_dont_retry() {
    let task = Task::builder("test").build().unwrap();
    say_dont_retry(&task);
    let answer = refused(&task, Version::Http1, &[]).await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["x-envoy-ratelimited"], "true");
    assert!(answer.body().contains("don't retry"), "{}", answer.body());
}

#[tokio::test]
async fn out_of_quota_is_a_429_with_a_time() {
    for version in VERSIONS {
        let task = Task::builder("test").everyone_else(Limits::ZERO).build().unwrap();
        let answer = refused(&task, version, &[]).await;
        assert_eq!(answer.status(), 429);
        assert_eq!(answer.headers()["x-tidegate-reason"], "out_of_quota");
        assert_eq!(answer.headers()["x-envoy-ratelimited"], "true");
        assert!(answer.headers().contains_key("retry-after"));
        let counts = task.gate().counts();
        assert_eq!(counts.rejected(Reason::OutOfQuota, Criticality::Critical), 1);
    }
}

#[tokio::test]
async fn a_deadline_that_has_passed_is_a_504() {
    let task = Task::builder("test").build().unwrap();
    let answer = refused(&task, Version::Http1, &[("grpc-timeout", "0m")]).await;
    assert_eq!(answer.status(), 504);
    assert_eq!(answer.headers()["x-tidegate-reason"], "deadline_passed");
}

#[tokio::test]
async fn a_lame_duck_closes_connections_of_http_1() {
    for version in VERSIONS {
        let task = Task::builder("test").build().unwrap();
        task.set_lame_duck(true);
        let answer = refused(&task, version, &[]).await;
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()["x-tidegate-reason"], "lame_duck");
        assert_eq!(answer.headers()["x-envoy-immediate-health-check-fail"], "true");
        assert_eq!(answer.headers().contains_key("connection"), version == Version::Http1);
    }
}

#[tokio::test]
async fn grounds_are_told_where_there_are_no_strangers() {
    for (explain, told) in
        [(Explain::Everyone, true), (Explain::Delegators, false), (Explain::Nobody, false)]
    {
        let task = Task::builder("test").explain(explain).build().unwrap();
        task.gate().set_levels(Levels::CLOSED);
        let answer = refused(&task, Version::Http1, &[]).await;
        assert_eq!(answer.headers().contains_key("x-tidegate-cause"), told, "{explain:?}");
    }
}

#[tokio::test]
async fn in_the_dark_nobody_is_refused_and_everything_is_counted() {
    let little = CostRate::from_cpus(1e-6).unwrap();
    let task =
        Task::builder("test").dark(true).everyone_else(Limits::total(little)).build().unwrap();
    let mut client = Client::connect(serve(hello(&task)).await, Version::Http1).await;
    for _ in 0..10 {
        assert_eq!(client.get("/", &[]).await.status(), 200);
    }
    task.gate().set_levels(Levels::CLOSED);
    assert_eq!(client.get("/", &[]).await.status(), 200);
    idle(&task).await;
    let counts = task.gate().counts();
    assert_eq!(counts.completed(), 11);
    // The first found the bucket full; a microsecond a second is not enough for any other.
    assert_eq!(counts.dark(Reason::OutOfQuota, Criticality::Critical), 10);
    assert_eq!(counts.rejected(Reason::OutOfQuota, Criticality::Critical), 0);
}
