//! Who is believed: customers and ceilings come from the connection's identity.

use crate::support::{Client, Version, idle, serve};
use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use tidegate::{Criticality, Task, context};
use tidegate_core::fleet::Limits;
use tidegate_core::levels::Levels;
use tidegate_wire::customer::Identities;
use tidegate_wire::faults::Fault;

fn task() -> Task {
    let identities = Identities::default()
        .customer("spiffe://d/ns/{customer}/sa/*")
        .unwrap()
        .delegator("spiffe://d/ns/edge/sa/gateway")
        .unwrap()
        .ceiling("spiffe://d/ns/edge/sa/gateway", Criticality::CriticalPlus)
        .unwrap()
        .ceiling("spiffe://d/ns/batch/**", Criticality::Sheddable)
        .unwrap();
    Task::builder("test")
        .identities(identities)
        .customer("shop", Limits::UNLIMITED)
        .customer("blocked", Limits::ZERO)
        .build()
        .unwrap()
}

/// A server whose connections have all proved to be `uri`, as an acceptor of TLS would say.
async fn connect(task: &Task, uri: Option<&str>) -> Client {
    let peer = uri.map(|uri| task.peer(Some(uri)));
    let answers = get(|| async {
        let name = context::customer_name();
        format!("{} {}", name.as_deref().unwrap_or("-"), context::criticality())
    });
    let router = Router::new().route("/", answers).layer(task.layer()).layer(
        axum::middleware::map_request(move |mut request: Request| {
            let peer = peer.clone();
            async move {
                peer.map(|peer| request.extensions_mut().insert(peer));
                request
            }
        }),
    );
    Client::connect(serve(router).await, Version::Http1).await
}

#[tokio::test]
async fn claims_are_held_against_the_identity() {
    let plus = ("x-criticality", "CRITICAL_PLUS");
    let shop = ("x-customer", "shop");
    let gateway = Some("spiffe://d/ns/edge/sa/gateway");
    let batch = Some("spiffe://d/ns/batch/sa/nightly");
    for (uri, headers, expected) in [
        (None, &[][..], "- CRITICAL"),
        (None, &[plus, shop], "- CRITICAL"),
        (Some("spiffe://d/ns/shop/sa/web"), &[plus], "shop CRITICAL"),
        (gateway, &[plus], "- CRITICAL_PLUS"),
        (gateway, &[plus, shop], "shop CRITICAL_PLUS"),
        (gateway, &[("x-customer", "nobody")], "- CRITICAL"),
        (batch, &[plus, shop], "- SHEDDABLE"),
    ] {
        let task = task();
        let answer = connect(&task, uri).await.get("/", headers).await;
        assert_eq!(answer.body(), expected, "{uri:?} {headers:?}");
    }
}

#[tokio::test]
async fn only_the_customer_who_is_over_is_refused() {
    let task = task();
    let blocked = Some("spiffe://d/ns/blocked/sa/web");
    assert_eq!(connect(&task, blocked).await.get("/", &[]).await.status(), 429);
    let shop = Some("spiffe://d/ns/shop/sa/web");
    assert_eq!(connect(&task, shop).await.get("/", &[]).await.status(), 200);
    // By the gateway's word, too, which is also told the grounds.
    let mut gateway = connect(&task, Some("spiffe://d/ns/edge/sa/gateway")).await;
    let answer = gateway.get("/", &[("x-customer", "blocked")]).await;
    assert_eq!(answer.status(), 429);
    assert!(answer.headers().contains_key("x-tidegate-cause"));
    task.set_limits("blocked", Limits::UNLIMITED).unwrap();
    assert_eq!(gateway.get("/", &[("x-customer", "blocked")]).await.status(), 200);
    task.gate().set_levels(Levels::CLOSED);
    let stranger = connect(&task, None).await.get("/", &[("x-customer", "shop")]).await;
    assert!(!stranger.headers().contains_key("x-tidegate-cause"));
    idle(&task).await;
    assert_eq!(task.snapshot().fault(Fault::CustomerByStranger), 1);
}
