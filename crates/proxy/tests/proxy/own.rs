//! Numbers of the user's own, and requests before the first.

use crate::support::{Running, client, config, echo, exchange, program, text};
use bytes::Bytes;
use core::time::Duration;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use tidegate_proxy::{PrewarmConfig, SignalConfig, Source};

fn get() -> Request<Full<Bytes>> {
    let request =
        Request::builder().uri("/").header("host", "x").header("x-criticality", "SHEDDABLE");
    request.body(Full::default()).unwrap()
}

struct Number(PathBuf);

impl Number {
    fn new(name: &str) -> Self {
        let name = format!("tidegate-signal-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn write(&self, text: &str) {
        let new = self.0.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &self.0).unwrap();
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Asks until the answer has this status.
async fn until(proxy: &Running, status: StatusCode) {
    let mut client = client(proxy.address()).await;
    loop {
        client.ready().await.unwrap();
        let answer = client.send_request(get()).await.unwrap();
        let found = answer.status();
        text(answer).await;
        if found == status {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_number_in_a_file_sheds_and_stops_to() {
    let number = Number::new("file");
    number.write("1");
    let mut config = config(program(echo).await);
    let source = Source::File(number.0.clone());
    let mut signal = SignalConfig::new("queue".to_owned(), source, 100.0);
    signal.period = Duration::from_millis(10);
    config.signals = vec![signal];
    let proxy = Running::start(config);
    until(&proxy, StatusCode::OK).await;
    number.write("5000\n");
    until(&proxy, StatusCode::SERVICE_UNAVAILABLE).await;
    number.write("3");
    until(&proxy, StatusCode::OK).await;
}

#[tokio::test]
async fn a_number_behind_a_url_sheds_and_one_that_is_none_does_not() {
    let value = Arc::new(AtomicU64::new(9_000));
    let said = Arc::clone(&value);
    let source = program(move |_| {
        let number = said.load(SeqCst);
        let body = if number == 0 { "none".to_owned() } else { number.to_string() };
        async move { Response::new(Full::<Bytes>::from(body)) }
    })
    .await;
    let mut config = config(program(echo).await);
    let source = Source::Url { authority: source.to_string(), path: "/lag".to_owned() };
    let mut signal = SignalConfig::new("lag".to_owned(), source, 100.0);
    (signal.period, signal.stale_after) = (Duration::from_millis(10), Duration::from_millis(200));
    config.signals = vec![signal];
    let proxy = Running::start(config);
    until(&proxy, StatusCode::SERVICE_UNAVAILABLE).await;
    // It says nothing of use any more, and after a while nothing is refused for what it has said.
    value.store(0, SeqCst);
    until(&proxy, StatusCode::OK).await;
}

#[tokio::test]
async fn nobody_is_taken_before_the_program_is_warm() {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    let address = program(move |request| {
        // It fails at first, as programs do that have just started.
        let failed = counted.fetch_add(1, SeqCst) < 3;
        let path = request.uri().path().to_owned();
        async move {
            let status = if failed { 503 } else { 200 };
            Response::builder().status(status).body(Full::<Bytes>::from(path)).unwrap()
        }
    })
    .await;
    let mut config = config(address);
    let paths = ["/a", "/b"].map(|path| path.parse().unwrap());
    config.prewarm = Some(PrewarmConfig::new(paths.into()));
    let proxy = tokio::task::spawn_blocking(|| Running::start(config)).await.unwrap();
    assert_eq!(asked.load(SeqCst), 5);
    let answer =
        exchange(proxy.address(), b"GET /c HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert!(answer.await.ends_with("/c"));
}

#[tokio::test]
async fn a_program_that_does_not_get_warm_is_served_all_the_same() {
    let mut config = config("127.0.0.1:1".parse().unwrap());
    let mut prewarm = PrewarmConfig::new(vec!["/a".parse().unwrap()]);
    prewarm.limit = Duration::from_millis(20);
    config.prewarm = Some(prewarm);
    let proxy = tokio::task::spawn_blocking(|| Running::start(config)).await.unwrap();
    let answer =
        exchange(proxy.address(), b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert!(answer.await.starts_with("HTTP/1.1 502"));
}
