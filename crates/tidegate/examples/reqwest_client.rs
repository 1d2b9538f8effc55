//! A reqwest client in front of a backend that takes only ten requests a second.
//!
//! ```sh
//! cargo run -p tidegate --example reqwest_client
//! ```
//!
//! It asks a hundred times a second for three seconds. At first everything is sent and most of it
//! refused; then the client notices, and holds back what would be refused anyway.
#![allow(clippy::print_stdout)]

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate::client::{BoxError, Layer, Throttled, reqwest::Client};
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let backend = backend().await?;
    let url = format!("http://{backend}/");

    // These two lines are all that it takes.
    let layer = Layer::new("backend");
    let client = Client::with_layer(&layer, reqwest::Client::new());

    let http = reqwest::Client::new();
    let mut ticks = interval(Duration::from_millis(10));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    println!("second  served  refused  held back");
    for second in 1..=3 {
        let (mut served, mut refused, mut held_back) = (0, 0, 0);
        for _ in 0..100 {
            ticks.tick().await;
            match client.send(http.get(&url)).await {
                Ok(answer) if answer.status().is_success() => served += 1,
                Ok(_) => refused += 1,
                Err(error) if Throttled::find(&*error).is_some() => held_back += 1,
                Err(error) => return Err(error),
            }
        }
        println!("{second:>6}  {served:>6}  {refused:>7}  {held_back:>9}");
    }
    let retries = layer.counts().retries;
    println!("{} sent, and {} of them once more", retries.requests, retries.retries);
    Ok(())
}

/// A server that knows nothing of tidegate: ten requests a second, 503 for the rest.
async fn backend() -> Result<SocketAddr, BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (began, taken) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let taken = Arc::clone(&taken);
            let service = service_fn(move |_: Request<Incoming>| {
                let room = began.elapsed().as_millis() as u64 / 100;
                let status = if taken.load(Ordering::Relaxed) <= room {
                    taken.fetch_add(1, Ordering::Relaxed);
                    200
                } else {
                    503
                };
                let mut answer = Response::new(Full::new(Bytes::new()));
                *answer.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
                async move { Ok::<_, Infallible>(answer) }
            });
            tokio::spawn(async move {
                let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Ok(address)
}
