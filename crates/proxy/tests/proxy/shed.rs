//! What is refused, and how.

use crate::support::{Running, client, config, echo, program, read_answer, text};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use tidegate_core::CostRate;
use tidegate_core::fleet::Limits;
use tidegate_core::levels::Levels;
use tokio::io::AsyncWriteExt;

fn get(criticality: &str) -> Request<Full<Bytes>> {
    let request = Request::builder().uri("/").header("host", "x");
    request.header("x-criticality", criticality).body(Full::default()).unwrap()
}

#[tokio::test]
async fn the_lowest_are_refused_and_the_rest_pass() {
    let proxy = Running::start(config(program(echo).await));
    let mut client = client(proxy.address()).await;
    let shares = Levels::from_shares([0.0, 0.0, 1.0, 1.0]);
    for (criticality, passes) in
        [("SHEDDABLE", false), ("SHEDDABLE_PLUS", false), ("CRITICAL", true)]
    {
        // The controller sets it anew every ten milliseconds.
        let refused = async {
            loop {
                proxy.get().task().gate().set_levels(shares);
                client.ready().await.unwrap();
                let response = client.send_request(get(criticality)).await.unwrap();
                let status = response.status();
                let reason = response.headers().get("x-tidegate-reason").cloned();
                text(response).await;
                if passes || status != StatusCode::OK {
                    return (status, reason);
                }
            }
        };
        let (status, reason) = refused.await;
        if passes {
            assert_eq!(status, StatusCode::OK);
        } else {
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(reason.unwrap(), "overloaded");
        }
    }
}

#[tokio::test]
async fn a_refused_body_is_thrown_away_and_the_connection_goes_on() {
    let mut config = config(program(echo).await);
    config.everyone_else = Limits::total(CostRate::ZERO);
    let proxy = Running::start(config);
    let mut io = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
    for _ in 0..3 {
        let head = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 262144\r\n\r\n";
        io.write_all(head.as_bytes()).await.unwrap();
        // All of it, and no reset in the middle.
        io.write_all(&vec![b'x'; 262_144]).await.unwrap();
        let answer = read_answer(&mut io).await;
        assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
        assert!(answer.contains("x-tidegate-reason: out_of_quota"), "{answer}");
    }
}

#[tokio::test]
async fn in_the_dark_everything_passes_and_is_counted() {
    let mut config = config(program(echo).await);
    config.everyone_else = Limits::total(CostRate::ZERO);
    config.dark = true;
    let proxy = Running::start(config);
    let mut client = client(proxy.address()).await;
    let response = client.send_request(get("CRITICAL")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let requests = proxy.get().task().snapshot().requests;
    let dark =
        requests.dark(tidegate_core::decision::Reason::OutOfQuota, "CRITICAL".parse().unwrap());
    assert_eq!(dark, 1);
}

#[tokio::test]
async fn a_program_that_says_what_a_request_cost_is_believed() {
    let address = program(|_| async {
        let report = r#"JSON {"requestCost":{"cpu":0.25},"applicationUtilization":0.5}"#;
        let response = http::Response::builder().header("endpoint-load-metrics", report);
        response.body(Full::<Bytes>::default()).unwrap()
    })
    .await;
    let proxy = Running::start(config(address));
    let mut client = client(proxy.address()).await;
    let response = client.send_request(get("CRITICAL")).await.unwrap();
    // It is for us, and not for whoever asks.
    assert!(!response.headers().contains_key("endpoint-load-metrics"));
    text(response).await;
    let costs = proxy.get().task().snapshot().costs;
    assert_eq!(costs.sum, tidegate::Cost::from_millis(250));
}
