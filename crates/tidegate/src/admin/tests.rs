use super::*;
use crate::clock::Clock;
use crate::serve::Peer;
use ::http::{Request, Response, StatusCode};
use axum::body::Body;
use axum::extract::ConnectInfo;
use futures_util::StreamExt;
use http_body_util::BodyExt;
use std::net::SocketAddr;
use tower::ServiceExt;

const HERE: &str = "127.0.0.1:1234";

fn task() -> Task {
    Task::builder("shop").clock(Clock::manual().0).build().expect("a task")
}

async fn ask(router: &Router, path: &str) -> Response<Body> {
    let request = Request::get(path).header("host", "localhost");
    let here: SocketAddr = HERE.parse().expect("an address");
    let request = request.extension(ConnectInfo(here)).body(Body::empty()).expect("a request");
    router.clone().oneshot(request).await.expect("an answer")
}

async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[tokio::test]
async fn every_path_answers_with_its_kind_and_strict_headers() {
    let task = task();
    let life = Life::default();
    let router = Admin::new(&task).life(life.clone()).router().expect("a router");
    for (path, status, kind) in [
        ("/", 200, "text/html; charset=utf-8"),
        ("/app.js", 200, "text/javascript; charset=utf-8"),
        ("/theme.js", 200, "text/javascript; charset=utf-8"),
        ("/style.css", 200, "text/css; charset=utf-8"),
        ("/uplot.js", 200, "text/javascript; charset=utf-8"),
        ("/uplot.css", 200, "text/css; charset=utf-8"),
        ("/api/snapshot", 200, "application/json"),
        ("/api/snapshot?part=shop", 200, "application/json"),
        ("/api/snapshot?part=none", 404, "text/plain; charset=utf-8"),
        ("/api/events", 200, "application/json"),
        ("/api/stream", 200, "text/event-stream"),
        ("/api/stream?parts=all", 200, "text/event-stream"),
        ("/api/stream?parts=some", 400, "text/plain; charset=utf-8"),
        ("/api/stream?part=none", 404, "text/plain; charset=utf-8"),
        ("/api/explain/0123", 404, "text/plain; charset=utf-8"),
        ("/metrics", 200, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        ("/livez", 200, "text/plain"),
        ("/readyz", 503, "text/plain"),
        ("/nothing", 404, ""),
    ] {
        let answer = ask(&router, path).await;
        assert_eq!(answer.status().as_u16(), status, "{path}");
        let header = |name: &str| {
            let value = answer.headers().get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        assert_eq!(header("content-type"), kind, "{path}");
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{path}: {policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{path}: {policy}");
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        let file = path == "/" || path.contains(".js") || path.contains(".css");
        let stream = kind == "text/event-stream";
        let cached = if stream || file { "no-cache" } else { "no-store" };
        assert_eq!(header("cache-control"), cached, "{path}");
    }
    life.ready();
    assert_eq!(ask(&router, "/readyz").await.status(), StatusCode::OK);
    let metrics = text(ask(&router, "/metrics").await).await;
    assert!(metrics.contains("tidegate_inflight_requests 0"), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"));
}

#[tokio::test]
async fn a_router_that_does_not_know_who_asks_serves_nobody() {
    let task = task();
    let router = Admin::new(&task).router().expect("a router");
    let request = || Request::get("/api/snapshot").header("host", "localhost");
    let unknown = request().body(Body::empty()).expect("a request");
    let answer = router.clone().oneshot(unknown).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    assert!(text(answer).await.contains("Admin::token"));
    // One that came over a socket without an address is one of these.
    let nowhere = request().extension(Peer::default()).body(Body::empty()).expect("a request");
    let answer = router.clone().oneshot(nowhere).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    let post = Request::post("/api/snapshot").body(Body::empty()).expect("a request");
    let answer = router.oneshot(post).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_token_in_the_address_becomes_a_cookie() {
    let task = task();
    let admin = Admin::new(&task).token("0123456789abcdef").expect("a token");
    let router = admin.router().expect("a router");
    let ask = |path: &str, cookie: Option<String>| {
        let mut request = Request::get(path).header("host", "dash.example");
        if let Some(cookie) = cookie {
            request = request.header("cookie", cookie);
        }
        router.clone().oneshot(request.body(Body::empty()).expect("a request"))
    };
    let wanted = ask("/", None).await.expect("an answer");
    assert_eq!(wanted.status(), StatusCode::UNAUTHORIZED);
    let answer = ask("/?token=0123456789abcdef", None).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::SEE_OTHER);
    assert_eq!(answer.headers()["location"], "?");
    let cookie = answer.headers()["set-cookie"].to_str().expect("text");
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().map(str::to_owned);
    let answer = ask("/", cookie).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(Admin::new(&task).token("short").is_err());
}

#[tokio::test]
async fn nested_the_page_is_where_it_was_put_and_asks_below_that() {
    let task = task();
    let admin = Admin::new(&task).token("0123456789abcdef").expect("a token");
    let outer = Router::new().nest("/ops/tidegate", admin.router().expect("a router"));
    let bearer = |path: &str| {
        let request = Request::get(path).header("authorization", "Bearer 0123456789abcdef");
        outer.clone().oneshot(request.body(Body::empty()).expect("a request"))
    };
    let request = Request::get("/ops/tidegate?part=shop&token=0123456789abcdef");
    let request = request.header("host", "dash.example").body(Body::empty()).expect("a request");
    let answer = outer.clone().oneshot(request).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::SEE_OTHER);
    // From there, so that what was before it stays.
    assert_eq!(answer.headers()["location"], "?part=shop");
    let page = text(bearer("/ops/tidegate?part=shop").await.expect("an answer")).await;
    let asked = page.split("\"./").skip(1).filter_map(|rest| rest.split('"').next());
    let asked: Vec<String> = asked.map(|path| format!("/ops/{path}")).collect();
    assert!(asked.contains(&"/ops/tidegate/app.js".to_owned()), "{asked:?}");
    for path in asked.iter().map(String::as_str).chain(["/ops/tidegate/api/stream"]) {
        assert_eq!(bearer(path).await.expect("an answer").status(), StatusCode::OK, "{path}");
    }
    // Health is for everyone there, too.
    let request = Request::get("/ops/tidegate/livez").body(Body::empty()).expect("a request");
    let answer = outer.clone().oneshot(request).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK);
    // At the root it is beside the page, and nothing else gets into it.
    let router = Admin::new(&task).router().expect("a router");
    assert!(text(ask(&router, "/").await).await.contains("src=\"./app.js\""));
}

#[tokio::test]
async fn without_a_life_readiness_says_that_it_knows_nothing() {
    let task = task();
    let router = Admin::new(&task).router().expect("a router");
    let answer = ask(&router, "/readyz").await;
    assert_eq!(answer.status(), StatusCode::OK);
    let said = text(answer).await;
    assert!(said.starts_with("no life attached: nothing is known of"), "{said}");
    assert_eq!(text(ask(&router, "/livez").await).await, "alive\n");
}

/// The next message of a stream.
async fn next(stream: &mut axum::body::BodyDataStream) -> api::Update {
    let mut text = String::new();
    while !text.ends_with("\n\n") {
        let bytes = stream.next().await.expect("more").expect("bytes");
        text.push_str(core::str::from_utf8(&bytes).expect("text"));
    }
    let data = text.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
    serde_json::from_str(data).expect("an update")
}

#[tokio::test]
async fn a_stream_begins_with_all_that_is_remembered() {
    let task = task();
    let parts: Vec<(String, Box<dyn Source>)> =
        vec![("shop".to_owned(), Box::new(Look::new(&task, Calls::default())))];
    let hub = Arc::new(Hub::new(parts));
    for _ in 0..3 {
        hub.look();
    }
    let router = http::router(Arc::new(http::Shared {
        hub: Arc::clone(&hub),
        registry: Registry::default(),
        token: None,
        lives: Vec::new(),
        health: None,
        config: None,
        streams: AtomicUsize::new(0),
    }));
    let mut stream = ask(&router, "/api/stream").await.into_body().into_data_stream();
    let first = next(&mut stream).await;
    assert_eq!((first.series.rows.len(), first.events.len()), (3, 0));
    assert_eq!(first.series.columns[0], "offered");
    assert_eq!(
        (first.snapshot.part.as_str(), &first.snapshot.parts[..]),
        ("shop", &["shop".to_owned()][..])
    );
    task.set_dark(true);
    hub.look();
    hub.look();
    // Nothing is lost by who reads late.
    let second = next(&mut stream).await;
    assert_eq!((second.series.rows.len(), second.events.len()), (2, 1));
    assert!(second.events[0].change);
    assert!(second.series.rows[0].0 > first.snapshot.at_ms);
    hub.look();
    let third = next(&mut stream).await;
    assert_eq!((third.series.rows.len(), third.events.len()), (1, 0));
    // There is a limit to viewers, and who goes makes room.
    drop(stream);
    let mut viewers = Vec::new();
    for _ in 0..64 {
        viewers.push(ask(&router, "/api/stream").await);
    }
    let status = ask(&router, "/api/stream").await.status();
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    viewers.pop();
    assert_eq!(ask(&router, "/api/stream").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn one_stream_carries_every_part() {
    let source = |name: &str| {
        let service = name.to_owned();
        let look = move || api::Snapshot { service: service.clone(), ..api::Snapshot::default() };
        (name.to_owned(), Box::new(look) as Box<dyn Source>)
    };
    let hub = Arc::new(Hub::new(vec![source("a"), source("b c")]));
    hub.look();
    let router = http::router(Arc::new(http::Shared {
        hub: Arc::clone(&hub),
        registry: Registry::default(),
        token: None,
        lives: Vec::new(),
        health: None,
        config: None,
        streams: AtomicUsize::new(0),
    }));
    let mut all = ask(&router, "/api/stream?parts=all").await.into_body().into_data_stream();
    let mut one = ask(&router, "/api/stream?part=b%20c").await.into_body().into_data_stream();
    for _ in 0..3 {
        for part in ["a", "b c"] {
            let update = next(&mut all).await;
            assert_eq!((update.snapshot.part.as_str(), update.series.rows.len()), (part, 1));
        }
        assert_eq!(next(&mut one).await.snapshot.part, "b c");
        hub.look();
    }
}

#[tokio::test]
async fn parts_are_shown_by_name_and_may_be_anything_that_can_be_looked_at() {
    let task = task();
    let bare =
        || api::Snapshot { service: "seen from outside".to_owned(), ..api::Snapshot::default() };
    let admin = Admin::empty().part("protected", &task).source("bare", bare);
    let router = admin.part("twin", &task).router().expect("a router");
    let shown = text(ask(&router, "/api/snapshot?part=bare").await).await;
    let shown: api::Snapshot = serde_json::from_str(&shown).expect("a snapshot");
    assert_eq!((shown.service.as_str(), shown.part.as_str()), ("seen from outside", "bare"));
    assert_eq!(shown.parts, ["protected", "bare", "twin"]);
    let metrics = text(ask(&router, "/metrics").await).await;
    assert!(metrics.contains("tidegate_inflight_requests{part=\"twin\"} 0"), "{metrics}");
}

/// Panics at every second look.
struct Shaky(u32);

impl Source for Shaky {
    fn look(&mut self) -> (api::Snapshot, Vec<api::Event>) {
        self.0 += 1;
        assert!(self.0 % 2 == 1, "look {} is one too many", self.0);
        let mut snapshot = api::Snapshot { service: "shaky".to_owned(), ..Default::default() };
        snapshot.work.offered = 7.0;
        (snapshot, Vec::new())
    }
}

#[test]
fn a_source_that_panics_is_shown_as_failed_and_asked_again() {
    let steady = || api::Snapshot { service: "steady".to_owned(), ..api::Snapshot::default() };
    let parts: Vec<(String, Box<dyn Source>)> =
        vec![("shaky".to_owned(), Box::new(Shaky(0))), ("steady".to_owned(), Box::new(steady))];
    let hub = Hub::new(parts);
    hub.look();
    assert_eq!(hub.snapshot(0).work.offered, 7.0);
    let before = hub.snapshot(1).at_ms;
    hub.look();
    let failed = hub.snapshot(0);
    assert_eq!((failed.state.kind, failed.service.as_str()), (api::Kind::Failed, "shaky"));
    assert_eq!(failed.state.sentence, "Looking at it panicked: look 2 is one too many");
    assert_eq!((failed.part.as_str(), failed.work.offered), ("shaky", 0.0));
    // The others are looked at all the same, and so is this one, the next time.
    assert!(hub.snapshot(1).at_ms > before);
    hub.look();
    assert_eq!(hub.snapshot(0).work.offered, 7.0);
    hub.look();
    let again = hub.snapshot(0).state.sentence;
    assert_eq!(again, "Looking at it panicked, 2 times so far: look 4 is one too many");
    assert_eq!(hub.panics(), [("shaky".to_owned(), 2), ("steady".to_owned(), 0)]);
    // Charts have a gap and no zeroes.
    assert_eq!(hub.update(0, 0).series.rows.len(), 2);
}

#[tokio::test]
async fn panics_are_counted_in_the_metrics() {
    let admin = Admin::empty().source("shaky", Shaky(1));
    let router = admin.router().expect("a router");
    let metrics = text(ask(&router, "/metrics").await).await;
    let count =
        metrics.lines().find_map(|l| l.strip_prefix("tidegate_page_panics_total{part=\"shaky\"} "));
    assert!(count.and_then(|count| count.parse::<u64>().ok()) >= Some(1), "{metrics}");
}

#[test]
fn what_is_newer_or_older_is_read_all_the_same() {
    let json = r#"{"service":"a","new":1,"state":{"kind":"on fire"}}"#;
    let snapshot: api::Snapshot = serde_json::from_str(json).expect("a snapshot");
    assert_eq!((snapshot.service.as_str(), snapshot.state.kind), ("a", api::Kind::Unknown));
}

fn digit(n: u8) -> char {
    char::from_digit(n.into(), 16).unwrap_or_default()
}

/// By the SHA-256 of the TLS that tests have anyway.
fn sha256(bytes: &[u8]) -> String {
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let hash = suite.tls13().expect("a suite of TLS 1.3").common.hash_provider.hash(bytes);
    hash.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit).collect()
}

#[test]
fn what_is_vendored_is_what_its_page_says() {
    let page = include_str!("../../dashboard/vendor/README.md");
    for (name, bytes) in [
        ("uPlot.iife.min.js", &include_bytes!("../../dashboard/vendor/uPlot.iife.min.js")[..]),
        ("uPlot.min.css", include_bytes!("../../dashboard/vendor/uPlot.min.css")),
        ("LICENSE", include_bytes!("../../dashboard/vendor/LICENSE")),
    ] {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}`")));
        let row = row.unwrap_or_else(|| panic!("no row for {name}"));
        assert!(row.contains(&sha256(bytes)), "{name} is {}", sha256(bytes));
    }
    let text = core::str::from_utf8(include_bytes!("../../dashboard/vendor/uPlot.iife.min.js"));
    assert!(text.expect("text").contains("(v1.6.32)") && page.contains("1.6.32"));
}

#[test]
fn each_colour_stands_once_for_light_and_once_for_dark() {
    let style = include_str!("../../dashboard/style.css");
    for name in ["--page", "--ink", "--bad", "--c1", "--l4"] {
        let set = style.lines().filter(|line| line.trim_start().starts_with(&format!("{name}:")));
        assert_eq!(set.count(), 2, "{name}");
    }
    assert!(!style.contains("prefers-color-scheme"));
}

#[test]
fn the_page_asks_nobody_else() {
    for (path, bytes) in Admin::assets() {
        let text = core::str::from_utf8(bytes).expect("text");
        for word in ["src=\"http", "href=\"http", "@import", "url(http", "fetch(\"http"] {
            assert!(!text.contains(word), "{path} has {word}");
        }
        // The policy forbids both.
        assert!(!text.contains("<style") && !text.contains(" style=\""), "{path}");
        assert!(path != "/" || !text.contains("<script>"), "{path}");
    }
}
