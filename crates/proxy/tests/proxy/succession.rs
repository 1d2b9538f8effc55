//! One proxy after the other, at the same sockets.

use crate::support::{
    ANY, Running, client, client_h2, config, echo, outbound, program, service, text,
};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use tidegate::life::Phase;
use tidegate_proxy::{Proxy, Role};

fn get(host: &str) -> Request<Full<Bytes>> {
    Request::builder()
        .uri(format!("http://{host}/"))
        .header("host", host)
        .body(Full::default())
        .unwrap()
}

/// Starts a successor, and lets the first go once it serves.
async fn succeed(before: &Running, role: impl Into<Role>) -> Running {
    let incumbent = before.get().incumbent();
    let next = Running::of(Proxy::succeed(role, incumbent.legacy().unwrap()).unwrap());
    next.get().life().reached(Phase::Serving).await;
    incumbent.replaced(next.get().taken());
    next
}

#[tokio::test]
async fn who_waits_in_a_queue_is_taken_by_the_successor() {
    let address = program(echo).await;
    let mut first = config(address);
    first.workers = NonZeroUsize::new(3);
    first.admin = Some(ANY.parse().unwrap());
    let mut second = first.clone();
    let first = Running::start(first);
    let incumbent = first.get().incumbent();
    let legacy = incumbent.legacy().unwrap();
    // Nobody takes anything any more, but the sockets are there.
    incumbent.replaced(&BTreeSet::from([0, 1]));
    let waiting: Vec<_> = (0..30)
        .map(|_| {
            let place = first.address();
            tokio::spawn(async move {
                let mut client = client(place).await;
                client.send_request(get("a")).await.unwrap().status()
            })
        })
        .collect();
    // One worker hears at three sockets then.
    second.workers = NonZeroUsize::new(1);
    let next = Running::of(Proxy::succeed(second, legacy).unwrap());
    assert_eq!(next.address(), first.address());
    assert_eq!(next.get().page().unwrap().address(), first.get().page().unwrap().address());
    assert_eq!(next.get().taken(), &BTreeSet::from([0, 1]));
    for client in waiting {
        assert_eq!(client.await.unwrap(), StatusCode::OK);
    }
}

#[tokio::test]
async fn calls_over_http2_go_on_through_many_successors() {
    let address = program(echo).await;
    let mut config = config(address);
    let mut proxy = Running::start(config.clone());
    let place = proxy.address();
    let mut old = Vec::new();
    let (mut sender, mut connections) = (client_h2(place).await, 1);
    for round in 1..=5 {
        for _ in 0..50 {
            if sender.ready().await.is_err() {
                sender = client_h2(place).await;
                sender.ready().await.unwrap();
                connections += 1;
            }
            let answer = match sender.try_send_request(get("a")).await {
                Ok(answer) => answer,
                // It was told to go elsewhere in that very moment. What comes back was never sent.
                Err(mut failed) => {
                    assert!(failed.take_message().is_some(), "lost: {:?}", failed.error());
                    continue;
                }
            };
            assert_eq!(answer.status(), StatusCode::OK);
            assert!(!answer.headers().contains_key("x-envoy-immediate-health-check-fail"));
            text(answer).await;
        }
        config.workers = NonZeroUsize::new(1 + round % 3);
        let next = succeed(&proxy, config.clone()).await;
        assert_eq!(next.address(), place);
        assert_eq!(proxy.get().life().phase(), Phase::LameDuck);
        old.push(std::mem::replace(&mut proxy, next));
    }
    // Each told its callers to go elsewhere, which was the next.
    assert!(connections >= 5, "{connections}");
}

#[tokio::test]
async fn one_that_is_replaced_serves_what_still_comes_on_its_connections() {
    let address = program(echo).await;
    let first = Running::start(config(address));
    let mut kept = client(first.address()).await;
    text(kept.send_request(get("a")).await.unwrap()).await;
    let _next = succeed(&first, config(address)).await;
    kept.ready().await.unwrap();
    let answer = kept.send_request(get("a")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["connection"], "close");
    assert!(!answer.headers().contains_key("x-envoy-immediate-health-check-fail"));
}

#[tokio::test]
async fn services_of_the_other_role_keep_their_places() {
    let address = program(echo).await;
    let (mut shop, mut stock) = (service(&[address]), service(&[address]));
    (shop.name, stock.name) = ("shop".to_owned(), "stock".to_owned());
    let mut config = outbound(shop);
    config.services.push(stock);
    let first = Running::start(config.clone());
    let places: Vec<_> = first.get().services().to_vec();
    let next = succeed(&first, config).await;
    assert_eq!(next.get().services(), places);
    for (_, place) in places {
        let mut client = client(place).await;
        assert_eq!(client.send_request(get("a")).await.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn one_that_listens_elsewhere_leaves_the_old_place_to_the_old_one() {
    let address = program(echo).await;
    let first = Running::start(config(address));
    let mut other = config(address);
    other.listen = "127.0.0.2:0".parse().unwrap();
    let next = succeed(&first, other).await;
    assert!(next.get().taken().is_empty());
    // Until its drain delay is over.
    let mut late = client(first.address()).await;
    assert_eq!(late.send_request(get("a")).await.unwrap().status(), StatusCode::OK);
    let mut new = client(next.address()).await;
    assert_eq!(new.send_request(get("a")).await.unwrap().status(), StatusCode::OK);
}
