//! The client on a network that fails: partitions, crashes, silence, under turmoil's virtual time.

use super::generous_builder;
use bytes::Bytes;
use core::convert::Infallible;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use futures_util::future::BoxFuture;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::io;
use tidegate::client::{Balancer, BoxError, Discovery, Endpoint, Layer};
use tidegate_core::Criticality;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep};
use tower::ServiceExt;
use tower_layer::Layer as _;
use turmoil::net::{TcpListener, TcpStream};

struct Stream(TcpStream);

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

#[derive(Clone)]
struct Connector;

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<TokioIo<Stream>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(async move {
            let stream = TcpStream::connect((uri.host().unwrap_or_default(), 80)).await?;
            Ok(TokioIo::new(Stream(stream)))
        })
    }
}

/// Answers with its name.
async fn serve(name: &'static str) -> turmoil::Result {
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let service = service_fn(move |_: Request<Incoming>| async move {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(name)))
        });
        tokio::spawn(async move {
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(Stream(stream)), service)
                .await;
        });
    }
}

/// Sends a `GET` to whoever is picked; the name of who answered.
struct Asker {
    layer: Layer,
    ask: Box<dyn Fn() -> BoxFuture<'static, Result<String, BoxError>>>,
}

fn asker() -> Asker {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build(Connector);
    let make = move |endpoint: &Endpoint| {
        let uri: Uri = format!("http://{endpoint}/").parse()?;
        let address = move |mut request: Request<Full<Bytes>>| {
            *request.uri_mut() = uri.clone();
            request
        };
        Ok::<_, BoxError>(client.clone().map_request(address))
    };
    let balancer = Balancer::builder(Discovery::list(["a", "b"]), make).seed(1).build().unwrap();
    let layer = generous_builder("names").attempt_timeout(Duration::from_millis(500)).build();
    let service = layer.layer(balancer);
    let ask = move || -> BoxFuture<'static, Result<String, BoxError>> {
        let service = service.clone();
        Box::pin(async move {
            let response = service.oneshot(Request::new(Full::from(""))).await?;
            let body = response.into_body().collect().await?.to_bytes();
            Ok(String::from_utf8(body.to_vec())?)
        })
    };
    Asker { layer, ask: Box::new(ask) }
}

impl Asker {
    /// A request every 50 ms for so long: how many each of the two answered, how many nobody did,
    /// and the longest wait.
    async fn ask_for(&self, span: Duration) -> ([u32; 2], u32, Duration) {
        let (mut answered, mut failed, mut longest) = ([0, 0], 0, Duration::ZERO);
        let end = Instant::now() + span;
        while Instant::now() < end {
            let began = Instant::now();
            match (self.ask)().await.as_deref() {
                Ok("a") => answered[0] += 1,
                Ok("b") => answered[1] += 1,
                _ => failed += 1,
            }
            longest = longest.max(began.elapsed());
            sleep(Duration::from_millis(50)).await;
        }
        (answered, failed, longest)
    }
}

fn world() -> turmoil::Sim<'static> {
    let mut world = turmoil::Builder::new()
        .simulation_duration(Duration::from_secs(120))
        .rng_seed(7)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(5))
        .build();
    world.host("a", || serve("a"));
    world.host("b", || serve("b"));
    world
}

/// An endpoint behind a partition says nothing at all. Requests that were on their way there go to
/// the other after half a second, nothing fails, and hardly any go there for as long as errors are
/// remembered; when the network is whole again, so is the balance.
#[test]
fn a_partition_costs_time_and_no_request() {
    let mut world = world();
    world.client("client", async {
        let asker = asker();
        asker.ask_for(Duration::from_secs(2)).await;
        let ([a, b], failed, _) = asker.ask_for(Duration::from_secs(5)).await;
        assert!(a >= 20 && b >= 20 && failed == 0, "{a} {b} {failed}");

        turmoil::partition("client", "a");
        let ([a, b], failed, longest) = asker.ask_for(Duration::from_secs(20)).await;
        assert!(a == 0 && b >= 200 && failed == 0, "{a} {b} {failed}");
        // One attempt in vain, and one that is answered.
        assert!(longest <= Duration::from_millis(600), "{longest:?}");
        let unanswered = asker.layer.counts().attempts[Criticality::Critical.index()].unanswered;
        // It is tried again when the last error is five seconds old.
        assert!((1..=8).contains(&unanswered), "{unanswered}");

        turmoil::repair("client", "a");
        asker.ask_for(Duration::from_secs(10)).await;
        let ([a, b], failed, _) = asker.ask_for(Duration::from_secs(5)).await;
        assert!(a >= 20 && b >= 20 && failed == 0, "{a} {b} {failed}");
        Ok(())
    });
    world.run().unwrap();
}

/// A task that crashes takes its connections with it, and nobody listens until it is back.
#[test]
fn a_crash_is_passed_over() {
    let mut world = world();
    let (tell, hear) = std::sync::mpsc::channel();
    world.client("client", async move {
        let asker = asker();
        asker.ask_for(Duration::from_secs(2)).await;
        tell.send("crash").unwrap();
        sleep(Duration::from_millis(100)).await;
        let ([a, b], failed, _) = asker.ask_for(Duration::from_secs(20)).await;
        assert!(a == 0 && b >= 200 && failed == 0, "{a} {b} {failed}");
        tell.send("bounce").unwrap();
        asker.ask_for(Duration::from_secs(10)).await;
        let ([a, b], failed, _) = asker.ask_for(Duration::from_secs(5)).await;
        assert!(a >= 20 && b >= 20 && failed == 0, "{a} {b} {failed}");
        Ok(())
    });
    while !world.step().unwrap() {
        match hear.try_recv() {
            Ok("crash") => world.crash("a"),
            Ok(_) => world.bounce("a"),
            Err(_) => {}
        }
    }
}
