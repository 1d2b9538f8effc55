//! The router: what is at which path, and with which headers.

use super::Admin;
use super::api::{Event, Snapshot};
use super::guard::{self, Token, Verdict, parameter};
use super::hub::Hub;
use super::text::decoded;
use crate::health::{Health, LIVEZ, READYZ};
use crate::life::{Life, Phase};
use axum::Router;
use axum::body::Body;
use axum::extract::{OriginalUri, Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::sse::{Event as Message, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use core::convert::Infallible;
use core::ops::Range;
use core::time::Duration;
use futures_util::stream::{self, Stream};
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY,
    SET_COOKIE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderName, HeaderValue, StatusCode, Uri};
use prometheus_client::registry::Registry;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;

/// The page runs its own script and nothing else, and speaks to nobody else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";
const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Ready, as whoever takes a service out of rotation for not knowing makes an outage of a line that
/// is missing.
const NO_LIFE: &str = "no life attached: nothing is known of starting and draining \
                       (Admin::life gives it one)\n";
/// More viewers than look at one task, and few enough that their connections are no burden.
const STREAMS_MAX: usize = 64;
/// How soon a page asks again when its stream has ended.
const RETRY: Duration = Duration::from_secs(1);

/// A file of the page.
struct Asset {
    path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! asset {
    ($path:literal, $file:literal, $kind:literal) => {
        Asset {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!("../../dashboard/", $file)),
        }
    };
}

/// The page. What it asks for stands there as `./NAME`.
const PAGE: &str = include_str!("../../dashboard/index.html");

/// Everything else that it is made of.
const ASSETS: &[Asset] = &[
    asset!("/app.js", "app.js", "text/javascript; charset=utf-8"),
    asset!("/theme.js", "theme.js", "text/javascript; charset=utf-8"),
    asset!("/charts.js", "charts.js", "text/javascript; charset=utf-8"),
    asset!("/style.css", "style.css", "text/css; charset=utf-8"),
    asset!("/icon.svg", "icon.svg", "image/svg+xml"),
    asset!("/uplot.js", "vendor/uPlot.iife.min.js", "text/javascript; charset=utf-8"),
    asset!("/uplot.css", "vendor/uPlot.min.css", "text/css; charset=utf-8"),
];

/// What all handlers share.
pub(super) struct Shared {
    pub(super) hub: Arc<Hub>,
    pub(super) registry: Registry,
    pub(super) token: Option<Token>,
    pub(super) health: Option<Health>,
    pub(super) config: Option<super::Config>,
    /// Those that streams end with.
    pub(super) lives: Vec<Life>,
    pub(super) streams: AtomicUsize,
}

pub(super) fn router(shared: Arc<Shared>) -> Router {
    let mut router = Router::new().route("/", get(page));
    for asset in ASSETS {
        let serve = || async {
            let headers = [(CONTENT_TYPE, asset.kind), (CACHE_CONTROL, "no-cache")];
            (headers, Bytes::from_static(asset.bytes))
        };
        router = router.route(asset.path, get(serve));
    }
    router
        .route("/api/snapshot", get(snapshot))
        .route("/api/events", get(events))
        .route("/api/stream", get(updates))
        .route("/api/explain/{decision}", get(explain))
        .route("/api/config", get(config))
        .route("/metrics", get(metrics))
        .route(LIVEZ, get(health))
        .route(READYZ, get(health))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), guarded))
        .with_state(shared)
}

/// What it runs by.
async fn config(State(shared): State<Arc<Shared>>) -> Response {
    match &shared.config {
        Some(read) => {
            let headers =
                [(CONTENT_TYPE, "text/plain; charset=utf-8"), (CACHE_CONTROL, "no-store")];
            (headers, read()).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// The page, at whatever path: nested at `/x` it is `/x`, and what it asks for is below that.
async fn page(OriginalUri(uri): OriginalUri) -> Response {
    let headers = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
    let last = uri.path().rsplit('/').next().unwrap_or_default();
    // What else may stand in a path is not put into markup.
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~%".contains(c);
    if last.is_empty() || !last.chars().all(plain) {
        return (headers, PAGE).into_response();
    }
    (headers, PAGE.replace("\"./", &format!("\"./{last}/"))).into_response()
}

/// Lets in who may look, and tells browsers what they may do with the answer.
async fn guarded(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    // Those who check health come from elsewhere, and learn no more than whether it is up.
    let verdict = match parts.uri.path() {
        LIVEZ | READYZ => Verdict::Serve,
        _ => guard::check(shared.token.as_ref(), guard::peer(&parts), &parts),
    };
    let mut response = match verdict {
        Verdict::Serve => next.run(Request::from_parts(parts, body)).await,
        Verdict::Remember { cookie, location } => {
            let headers = [(SET_COOKIE, cookie), (LOCATION, location)];
            (StatusCode::SEE_OTHER, headers).into_response()
        }
        Verdict::MethodNotAllowed => {
            let text = "This only shows: configuration lives in files.\n";
            (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET, HEAD")], text).into_response()
        }
        Verdict::Unauthorized => {
            let text = "A token is wanted, also from this machine: \
                        `authorization: Bearer TOKEN` or `?token=TOKEN`.\n";
            let headers = [(WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, headers, text).into_response()
        }
        Verdict::Forbidden(text) => (StatusCode::FORBIDDEN, text).into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (CROSS_ORIGIN_RESOURCE_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // What is not a file of ours is of the moment.
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Shows the part that is asked for, or names those that there are.
fn of_part(hub: &Hub, uri: &Uri, show: impl FnOnce(usize) -> Response) -> Response {
    let name = parameter(uri, "part").map(decoded);
    if let Some(part) = hub.part(name.as_deref()) {
        return show(part);
    }
    let text = format!("There is no such part. There are: {}\n", hub.names().join(", "));
    (StatusCode::NOT_FOUND, text).into_response()
}

fn json<T: Serialize>(value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn snapshot(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    of_part(&shared.hub, &uri, |part| json::<Snapshot>(&shared.hub.snapshot(part)))
}

async fn events(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    of_part(&shared.hub, &uri, |part| json::<Vec<Event>>(&shared.hub.events(part)))
}

async fn explain(State(shared): State<Arc<Shared>>, Path(decision): Path<String>) -> Response {
    // A source may have to ask another process.
    let asked = tokio::task::spawn_blocking(move || shared.hub.explain(decision.trim()));
    if let Ok(Some(explanation)) = asked.await {
        return json(&explanation);
    }
    let text = "This decision is not remembered. Of refusals a sample is kept, for some minutes; \
                it may also have been made by another task, or by this one before it was started \
                anew.\n";
    (StatusCode::NOT_FOUND, text).into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &shared.registry) {
        Ok(()) => ([(CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn health(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    let known = shared.health.as_ref().and_then(|health| health.answer(uri.path()));
    match known {
        Some(answer) => answer.map(Body::from),
        None if uri.path() == READYZ => NO_LIFE.into_response(),
        None => "alive\n".into_response(),
    }
}

/// One of the viewers.
struct Viewer {
    shared: Arc<Shared>,
}

impl Viewer {
    /// Nothing if there are too many.
    fn new(shared: &Arc<Shared>) -> Option<Self> {
        let before = shared.streams.fetch_add(1, Ordering::Relaxed);
        // Made in any case, so that it is counted off again.
        let viewer = Self { shared: Arc::clone(shared) };
        (before < STREAMS_MAX).then_some(viewer)
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.shared.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One part, or all of them in one stream: browsers allow six connections to a host, whichever
/// pages they are for.
async fn updates(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    match parameter(&uri, "parts") {
        None => of_part(&shared.hub, &uri, |part| watch(&shared, part..part + 1)),
        Some("all") => watch(&shared, 0..shared.hub.names().len()),
        Some(_) => {
            let text = "`parts` is `all`; for one of them it is `part` and its name.\n";
            (StatusCode::BAD_REQUEST, text).into_response()
        }
    }
}

fn watch(shared: &Arc<Shared>, parts: Range<usize>) -> Response {
    let Some(viewer) = Viewer::new(shared) else {
        let text = format!("{STREAMS_MAX} are looking already. Try when one has gone.\n");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    Sse::new(messages(viewer, parts)).into_response()
}

/// Where a stream is.
struct Reading {
    viewer: Viewer,
    looks: watch::Receiver<u64>,
    /// The time of what was last sent of each part.
    sent: Vec<u64>,
    /// Which of them is next.
    next: usize,
}

/// All that is remembered of each part, then what is new, once a second: a message for each.
fn messages(
    viewer: Viewer,
    parts: Range<usize>,
) -> impl Stream<Item = Result<Message, Infallible>> {
    let mut looks = viewer.shared.hub.looks();
    looks.mark_unchanged();
    let begin = Reading { viewer, looks, sent: vec![0; parts.len()], next: 0 };
    stream::unfold(begin, move |mut reading| {
        let first = parts.start;
        async move {
            if reading.next == reading.sent.len() {
                // Fails when the hub is gone; that takes this stream, too.
                reading.looks.changed().await.ok()?;
                reading.next = 0;
            }
            let shared = &reading.viewer.shared;
            // Whoever waits for connections to end would wait for ever.
            if shared.lives.iter().any(|life| life.phase() >= Phase::Draining) {
                return None;
            }
            let sent = reading.sent.get_mut(reading.next)?;
            let update = shared.hub.update(first + reading.next, *sent);
            *sent = update.snapshot.at_ms;
            reading.next += 1;
            let message = Message::default().retry(RETRY);
            // It is made of numbers and texts.
            let message = message.data(serde_json::to_string(&update).unwrap_or_default());
            Some((Ok(message), reading))
        }
    })
}

impl Admin {
    /// The paths of all files of the page.
    #[cfg(all(test, not(feature = "loom")))]
    pub(super) fn assets() -> impl Iterator<Item = (&'static str, &'static [u8])> {
        let page = ("/", PAGE.as_bytes());
        core::iter::once(page).chain(ASSETS.iter().map(|asset| (asset.path, asset.bytes)))
    }
}
