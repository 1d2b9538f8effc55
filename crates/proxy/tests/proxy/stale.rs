//! Copies of answers, where there is none.

use crate::support::{Running, client, client_h2, config, program, text};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::SeqCst};
use tidegate_core::CostRate;
use tidegate_core::fleet::Limits;
use tidegate_core::levels::Levels;
use tidegate_proxy::{Config, StaleConfig};

/// What the program answers with, and how often it was asked.
#[derive(Clone, Default)]
struct Program {
    status: Arc<AtomicU16>,
    asked: Arc<AtomicU64>,
}

impl Program {
    /// Answers `N`, the number of the request, with status 200 until told otherwise.
    async fn start(&self, fields: &'static [(&'static str, &'static str)]) -> Config {
        let this = self.clone();
        let address = program(move |_: Request<Incoming>| {
            let number = this.asked.fetch_add(1, SeqCst);
            let status = this.status.load(SeqCst).max(200);
            async move {
                let mut answer = Response::builder().status(status);
                for (name, value) in fields {
                    answer = answer.header(*name, *value);
                }
                answer.body(Full::from(number.to_string())).unwrap()
            }
        })
        .await;
        let mut config = config(address);
        config.stale = Some(StaleConfig::default());
        config
    }

    fn fails(&self) {
        self.status.store(503, SeqCst);
    }
}

fn request(method: Method, path: &str, fields: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", "x");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Full::default()).unwrap()
}

fn get(path: &str) -> Request<Full<Bytes>> {
    request(Method::GET, path, &[])
}

/// Status, why it is degraded, and the body.
async fn ask(proxy: &Running, request: Request<Full<Bytes>>) -> (u16, Option<String>, String) {
    let mut client = client(proxy.address()).await;
    let answer = client.send_request(request).await.unwrap();
    let why = answer.headers().get("x-tidegate-degraded");
    let why = why.map(|value| value.to_str().unwrap().to_owned());
    if why.is_some() {
        assert!(answer.headers().contains_key("age"), "{answer:?}");
    }
    (answer.status().as_u16(), why, text(answer).await)
}

fn copy(why: &str, body: &str) -> (u16, Option<String>, String) {
    (200, Some(why.to_owned()), body.to_owned())
}

const ALLOWED: &[(&str, &str)] = &[("cache-control", "max-age=0, stale-if-error=3600")];

#[tokio::test]
async fn a_program_that_fails_is_stood_in_for() {
    let program = Program::default();
    let proxy = Running::start(program.start(ALLOWED).await);
    assert_eq!(ask(&proxy, get("/a")).await, (200, None, "0".to_owned()));
    assert_eq!(ask(&proxy, get("/a")).await, (200, None, "1".to_owned()), "it is no cache");
    program.fails();
    assert_eq!(ask(&proxy, get("/a")).await, copy("upstream_error", "1"));
    assert_eq!(ask(&proxy, get("/b")).await.0, 503, "of this there is no copy");
    assert_eq!(ask(&proxy, request(Method::POST, "/a", &[])).await.0, 503);
    assert_eq!(ask(&proxy, get("/a")).await, copy("upstream_error", "1"), "nothing was changed");
    let head = ask(&proxy, request(Method::HEAD, "/a", &[])).await;
    assert_eq!(head, copy("upstream_error", ""));
    let picky = request(Method::GET, "/a", &[("cache-control", "no-cache")]);
    assert_eq!(ask(&proxy, picky).await.0, 503);
    // Over HTTP/2 it is the same target.
    let mut client = client_h2(proxy.address()).await;
    let answer = client.send_request(get("http://x/a")).await.unwrap();
    assert_eq!(answer.headers()["x-tidegate-degraded"], "upstream_error");
    assert_eq!(text(answer).await, "1");
}

#[tokio::test]
async fn a_program_that_is_gone_is_stood_in_for() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = config(listener.local_addr().unwrap());
    config.stale = Some(StaleConfig::default());
    let proxy = Running::start(config);
    let answer = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut io, _) = listener.accept().await.unwrap();
        assert!(io.read(&mut [0; 4096]).await.unwrap() > 0);
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\netag: \"7\"\r\n\
                      cache-control: max-age=0, stale-if-error=99\r\n\r\n\
                      2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
        io.write_all(answer.as_bytes()).await.unwrap();
    });
    assert_eq!(ask(&proxy, get("/")).await, (200, None, "abc".to_owned()));
    answer.await.unwrap();
    assert_eq!(ask(&proxy, get("/")).await, copy("upstream_unreachable", "abc"));
    let known = request(Method::GET, "/", &[("if-none-match", "\"6\", W/\"7\"")]);
    assert_eq!(ask(&proxy, known).await.0, 304);
    let other = request(Method::GET, "/", &[("if-none-match", "\"6\"")]);
    assert_eq!(ask(&proxy, other).await, copy("upstream_unreachable", "abc"));
}

#[tokio::test]
async fn what_is_refused_for_overload_gets_a_copy_and_what_is_for_other_reasons_does_not() {
    let program = Program::default();
    let proxy = Running::start(program.start(ALLOWED).await);
    let sheddable = |method| request(method, "/", &[("x-criticality", "SHEDDABLE")]);
    assert_eq!(ask(&proxy, get("/")).await.1, None);
    loop {
        // The controller sets it anew every ten milliseconds.
        proxy.get().task().gate().set_levels(Levels::from_shares([0.0, 1.0, 1.0, 1.0]));
        let answer = ask(&proxy, sheddable(Method::GET)).await;
        if let Some(why) = answer.1 {
            assert_eq!(why, "overloaded");
            break;
        }
    }
    proxy.get().task().set_default_limits(Limits::total(CostRate::ZERO));
    assert_eq!(ask(&proxy, get("/")).await.0, 429);
    proxy.get().task().set_default_limits(Limits::UNLIMITED);
    proxy.get().task().set_lame_duck(true);
    assert_eq!(ask(&proxy, get("/")).await.0, 503);
}

#[tokio::test]
async fn what_changes_a_target_forgets_its_copy() {
    let program = Program::default();
    let proxy = Running::start(program.start(ALLOWED).await);
    for path in ["/a", "/b"] {
        assert_eq!(ask(&proxy, get(path)).await.0, 200);
    }
    assert_eq!(ask(&proxy, request(Method::DELETE, "/a", &[])).await.0, 200);
    program.fails();
    assert_eq!(ask(&proxy, get("/a")).await.0, 503);
    assert_eq!(ask(&proxy, get("/b")).await, copy("upstream_error", "1"));
}

#[tokio::test]
async fn nothing_is_kept_that_nobody_allowed_or_that_is_too_large() {
    for (fields, tweak) in [
        (&[("cache-control", "max-age=0")][..], None),
        (&[("cache-control", "private, max-age=0, stale-if-error=99")][..], None),
        (ALLOWED, Some((1_usize << 20, 0_usize))),
        (ALLOWED, Some((100, 1 << 20))),
    ] {
        let program = Program::default();
        let mut config = program.start(fields).await;
        if let (Some((memory, copy_max)), Some(stale)) = (tweak, &mut config.stale) {
            (stale.memory, stale.copy_max) = (memory, copy_max);
        }
        let proxy = Running::start(config);
        assert_eq!(ask(&proxy, get("/")).await.0, 200);
        program.fails();
        assert_eq!(ask(&proxy, get("/")).await.0, 503, "{fields:?} {tweak:?}");
    }
    // And none at all unless that is said.
    let program = Program::default();
    let mut config = program.start(ALLOWED).await;
    config.stale = None;
    let proxy = Running::start(config);
    assert_eq!(ask(&proxy, get("/")).await.0, 200);
    program.fails();
    assert_eq!(ask(&proxy, get("/")).await.0, 503);
}

#[tokio::test]
async fn an_answer_that_is_cut_short_is_no_copy() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = config(listener.local_addr().unwrap());
    config.stale = Some(StaleConfig::default());
    let proxy = Running::start(config);
    let program = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut io, _) = listener.accept().await.unwrap();
        assert!(io.read(&mut [0; 4096]).await.unwrap() > 0);
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\
                      cache-control: max-age=0, stale-if-error=99\r\n\r\nhalf";
        io.write_all(answer.as_bytes()).await.unwrap();
    });
    let mut one = client(proxy.address()).await;
    let answer = one.send_request(get("/")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(http_body_util::BodyExt::collect(answer.into_body()).await.is_err());
    program.await.unwrap();
    assert_eq!(ask(&proxy, get("/")).await.0, 502);
}
