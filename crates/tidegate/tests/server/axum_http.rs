//! axum, over HTTP/1.1 and h2c.

use crate::support::{Client, VERSIONS, idle, serve};
use axum::Router;
use axum::routing::get;
use tidegate::Task;
use tidegate_core::levels::Levels;

#[tokio::test]
async fn hello_is_served_until_the_gate_is_shut() {
    for version in VERSIONS {
        let task = Task::builder("hello").build().unwrap();
        let router = Router::new().route("/", get(|| async { "hello" })).layer(task.layer());
        let mut client = Client::connect(serve(router).await, version).await;
        let answer = client.get("/", &[]).await;
        assert_eq!((answer.status().as_u16(), answer.body().as_str()), (200, "hello"));

        task.gate().set_levels(Levels::CLOSED);
        let answer = client.get("/", &[]).await;
        assert_eq!(answer.status(), 503, "{version:?}");
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        assert_eq!(answer.headers()["x-tidegate-reason"], "overloaded");
        idle(&task).await;
        let counts = task.gate().counts();
        assert_eq!(counts.completed(), 1);
    }
}
