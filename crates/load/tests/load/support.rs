//! Servers that do as they are told, and write down what they are asked.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_load::{Plan, Report, Run, Stage, Target};
use tidegate_wire::incoming::Incoming as Said;
use tidegate_wire::protocol::Protocol;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What a server answers.
#[derive(Clone, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) body: Bytes,
    /// It never comes.
    pub(crate) never: bool,
}

pub(crate) fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

impl Reply {
    pub(crate) fn ok() -> Self {
        Self { status: 200, body: Bytes::from_static(b"tide"), ..Self::default() }
    }

    pub(crate) fn status(status: u16, pairs: &[(&'static str, &str)]) -> Self {
        Self { status, headers: headers(pairs), ..Self::default() }
    }

    pub(crate) fn grpc(code: &str, pairs: &[(&'static str, &str)]) -> Self {
        let mut trailers = headers(pairs);
        trailers.insert("grpc-status", code.parse().unwrap());
        let content = headers(&[("content-type", "application/grpc")]);
        let body = Bytes::from_static(&[0, 0, 0, 0, 0]);
        Self { status: 200, headers: content, trailers: Some(trailers), body, never: false }
    }
}

/// What a server was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) version: http::Version,
}

impl Asked {
    pub(crate) fn said(&self) -> Said {
        Said::read(&self.headers, Protocol::of(&self.headers))
    }
}

/// A server in a thread of its own.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Server {
    pub(crate) fn start(answer: impl Fn(usize, &Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with(answer, None)
    }

    pub(crate) fn start_with(
        answer: impl Fn(usize, &Asked) -> Reply + Send + Sync + 'static,
        tls: Option<TlsAcceptor>,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (answer, list) = (Arc::new(answer), Arc::clone(&asked));
        runtime.spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let (answer, list, tls) = (Arc::clone(&answer), Arc::clone(&list), tls.clone());
                let serve = move |request: Request<Incoming>| {
                    let (answer, list) = (Arc::clone(&answer), Arc::clone(&list));
                    async move { reply(request, &*answer, &list).await }
                };
                tokio::spawn(async move {
                    let builder = Builder::new(TokioExecutor::new());
                    // Clients may go away as they like.
                    match tls {
                        None => {
                            let io = TokioIo::new(stream);
                            let _ = builder.serve_connection(io, service_fn(serve)).await;
                        }
                        Some(tls) => {
                            let Ok(stream) = tls.accept(stream).await else { return };
                            let io = TokioIo::new(stream);
                            let _ = builder.serve_connection(io, service_fn(serve)).await;
                        }
                    }
                });
            }
        });
        Self { address, asked, _runtime: runtime }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// A plan of these stages against it, with connections to spare.
    pub(crate) fn plan(&self, stages: &[&str]) -> Plan {
        plan(self.address, stages)
    }
}

pub(crate) fn plan(address: SocketAddr, stages: &[&str]) -> Plan {
    let stages = stages.iter().map(|stage| stage.parse::<Stage>().unwrap()).collect();
    let mut plan = Plan::new(Target::loopback(address), stages, 7);
    plan.connections = 4;
    plan.course.timeout = Duration::from_secs(20);
    plan
}

type Body = http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>;

async fn reply(
    request: Request<Incoming>,
    answer: &(dyn Fn(usize, &Asked) -> Reply + Send + Sync),
    asked: &Mutex<Vec<Asked>>,
) -> Result<Response<Body>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let one = Asked {
        method: parts.method.to_string(),
        path: parts.uri.path_and_query().unwrap().to_string(),
        headers: parts.headers,
        body,
        version: parts.version,
    };
    let number = {
        let mut asked = asked.lock().unwrap();
        asked.push(one.clone());
        asked.len() - 1
    };
    let reply = answer(number, &one);
    if reply.never {
        std::future::pending::<()>().await;
    }
    let trailers = std::future::ready(reply.trailers.map(Ok));
    let mut response = Response::new(Full::new(reply.body).with_trailers(trailers).boxed());
    *response.status_mut() = http::StatusCode::from_u16(reply.status).unwrap();
    *response.headers_mut() = reply.headers;
    Ok(response)
}

/// Runs a plan and checks that every request has one fate.
pub(crate) fn run(plan: Plan) -> Report {
    let mut shown = 0;
    let report = Run::start(plan)
        .unwrap()
        .finish(|interval| shown += interval.stats.sum(|level| level.offered))
        .unwrap();
    assert_adds_up(&report);
    assert_eq!(shown, report.total.offered, "intervals are parts of the whole");
    report
}

pub(crate) fn assert_adds_up(report: &Report) {
    for (name, fates) in &report.criticality {
        let not_sent: u64 = fates.not_sent.values().sum();
        let fated = fates.ok + fates.failed + fates.throttled + not_sent + fates.unfinished;
        assert_eq!(fates.offered, fated, "{name}: {fates:?}");
        let answered: u64 = fates.statuses.values().sum();
        let unanswered: u64 = fates.errors.values().sum();
        if fates.unfinished == 0 {
            assert_eq!(fates.attempts, answered + unanswered, "{name}: {fates:?}");
        }
    }
}
