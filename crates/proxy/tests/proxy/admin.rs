//! What an operator sees of a proxy.

use crate::support::{ANY, Running, client, config, echo, outbound, program, service, text};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tidegate_proxy::outbound::QueueConfig;
use tidegate_proxy::{Config, EdgeConfig, OutboundConfig, Role, SignalConfig, Source, StaleConfig};

async fn read(proxy: &Running, path: &str) -> String {
    let page = proxy.get().page().unwrap().address();
    let mut client = client(page).await;
    let asked = Request::get(path).header("host", page.to_string());
    let asked = asked.body(Full::<Bytes>::default()).unwrap();
    text(client.send_request(asked).await.unwrap()).await
}

/// With all that counts by itself.
async fn full() -> Config {
    let mut config = config(program(echo).await);
    config.admin = Some(ANY.parse().unwrap());
    config.edge = Some(EdgeConfig::default());
    config.stale = Some(StaleConfig::default());
    config.health_udp = Some(ANY.parse().unwrap());
    config
}

/// The value of a metric with these labels.
fn value(metrics: &str, row: &str) -> Option<f64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(row)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

#[tokio::test]
async fn edges_copies_and_datagrams_are_counted() {
    let proxy = Running::start(full().await);
    let mut client = client(proxy.address()).await;
    let request = Request::get("/").header("host", "x").header("x-criticality", "CRITICAL_PLUS");
    text(client.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap()).await;
    let socket = std::net::UdpSocket::bind(ANY).unwrap();
    let (address, datagrams) = proxy.get().datagrams().unwrap();
    socket.send_to(b"how are you?", address).unwrap();
    while datagrams.garbage.load(core::sync::atomic::Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let metrics = read(&proxy, "/metrics").await;
    for (row, expected) in [
        ("tidegate_edge_events_total{event=\"stripped_header\"}", 1.0),
        ("tidegate_edge_events_total{event=\"client_limit\"}", 0.0),
        ("tidegate_stale_copies", 0.0),
        ("tidegate_stale_bytes", 0.0),
        ("tidegate_stale_events_total{event=\"kept\"}", 0.0),
        ("tidegate_stale_events_total{event=\"spared\"}", 0.0),
        ("tidegate_health_datagrams_total{event=\"garbage\"}", 1.0),
        ("tidegate_health_datagrams_total{event=\"answered\"}", 0.0),
    ] {
        assert_eq!(value(&metrics, row), Some(expected), "{row} in\n{metrics}");
    }
}

#[tokio::test]
async fn queues_are_counted() {
    let mut service = service(&[program(echo).await]);
    service.queue = Some(QueueConfig::default());
    let mut config = OutboundConfig::batch(vec![service]);
    config.admin = Some(ANY.parse().unwrap());
    let proxy = Running::start(Role::Batch(Box::new(config)));
    let mut client = client(proxy.address()).await;
    let request = Request::get("/").header("host", "x").body(Full::<Bytes>::default());
    text(client.send_request(request.unwrap()).await.unwrap()).await;
    let metrics = read(&proxy, "/metrics").await;
    for (row, expected) in [
        ("tidegate_batch_queued_requests{service=\"shop\"}", Some(0.0)),
        ("tidegate_batch_requests_total{service=\"shop\",fate=\"sent\"}", Some(1.0)),
        ("tidegate_batch_requests_total{service=\"shop\",fate=\"full\"}", Some(0.0)),
    ] {
        assert_eq!(value(&metrics, row), expected, "{row} in\n{metrics}");
    }
    for name in ["queued_bytes", "outstanding_requests", "window_requests", "pace"] {
        let row = format!("tidegate_batch_{name}{{service=\"shop\"}}");
        assert!(value(&metrics, &row).is_some(), "{row} in\n{metrics}");
    }
}

#[tokio::test]
async fn what_it_runs_by_is_there_without_secrets_and_up_to_date() {
    let mut config = full().await;
    let source =
        Source::Url { authority: "127.0.0.1:1".to_owned(), path: "/lag?token=secret".to_owned() };
    config.signals.push(SignalConfig::new("lag".to_owned(), source, 7.0));
    let mut proxy = Running::start(config.clone());
    let told = read(&proxy, "/api/config").await;
    for part in ["dark: false", "open_max: 10000", "deadline_max", "copy_max", "/lag?…"] {
        assert!(told.contains(part), "{part} in\n{told}");
    }
    assert!(!told.contains("secret"), "{told}");
    config.dark = true;
    assert!(proxy.get_mut().reload(config).is_empty());
    assert!(read(&proxy, "/api/config").await.contains("dark: true"));

    let mut config = outbound(service(&[program(echo).await]));
    config.admin = Some(ANY.parse().unwrap());
    let proxy = Running::start(config);
    let told = read(&proxy, "/api/config").await;
    assert!(told.contains("\"shop\""), "{told}");
}
