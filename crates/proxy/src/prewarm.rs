//! Requests before the first.
//!
//! A program that has just started is slow: code is not compiled, caches are empty, connections to
//! others are not made. Its first callers would wait, and the gate would learn from them that the
//! program can do little. So the proxy asks for a few paths itself before it takes anybody, and
//! waits until the program answers at all.
//!
//! Connections of callers wait in the queues of the listening sockets meanwhile, or are taken by
//! the predecessor if there is one. A path that is not answered (5xx, or nobody there) is asked
//! again until the time is over; then the proxy serves all the same, and says so: a program that is
//! half warm is better than none.

use crate::hop;
use crate::pool::Pool;
use bytes::Bytes;
use core::num::NonZeroU32;
use core::time::Duration;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt as _, Full};
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// How long to wait before a path is asked for again.
const PAUSE: Duration = Duration::from_millis(100);

/// What is asked before the first caller.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrewarmConfig {
    /// In this order.
    pub paths: Vec<PathAndQuery>,
    /// How often each of them.
    pub times: NonZeroU32,
    /// How long all of it may take.
    pub limit: Duration,
}

impl PrewarmConfig {
    /// Each once, within half a minute.
    pub const fn new(paths: Vec<PathAndQuery>) -> Self {
        Self { paths, times: NonZeroU32::MIN, limit: Duration::from_secs(30) }
    }
}

/// Asks the program behind `pool`, and returns what came of it, in words.
pub(crate) fn warm(
    config: PrewarmConfig,
    pool: impl FnOnce() -> Arc<Pool<Full<Bytes>>> + Send + 'static,
    host: HeaderValue,
) -> io::Result<String> {
    // The caller may be within a runtime of its own.
    let asking =
        std::thread::Builder::new().name("tidegate-prewarm".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(runtime.block_on(ask_all(&config, &pool(), &host)))
        })?;
    asking.join().unwrap_or_else(|_| Err(io::Error::other("prewarming panicked")))
}

async fn ask_all(
    config: &PrewarmConfig,
    pool: &Arc<Pool<Full<Bytes>>>,
    host: &HeaderValue,
) -> String {
    let began = Instant::now();
    let mut answered = 0;
    let mut open = None;
    let all = async {
        for _ in 0..config.times.get() {
            for path in &config.paths {
                open = Some(path);
                while !ask(pool, path, host).await {
                    tokio::time::sleep(PAUSE).await;
                }
                answered += 1;
            }
        }
    };
    let in_time = tokio::time::timeout(config.limit, all).await.is_ok();
    let took = began.elapsed();
    match open {
        Some(path) if !in_time => {
            format!("not warm after {took:.1?}: {path} is not answered; it serves all the same")
        }
        _ => format!("warm: {answered} requests answered in {took:.1?}"),
    }
}

/// Whether the program has answered, be it that it does not know the path.
async fn ask(pool: &Arc<Pool<Full<Bytes>>>, path: &PathAndQuery, host: &HeaderValue) -> bool {
    let http2 = match pool.is_http2(false, false) {
        Some(known) => known,
        None => match pool.ask().await {
            Ok(http2) => http2,
            Err(_) => return false,
        },
    };
    let mut request = Request::new(Full::default());
    *request.uri_mut() = Uri::from(path.clone());
    request.headers_mut().insert(header::HOST, host.clone());
    if hop::outgoing(&mut request, http2, false).is_err() {
        return false;
    }
    let Ok(answer) = pool.send(request, http2).await else { return false };
    let good = !answer.status().is_server_error();
    good && answer.into_body().collect().await.is_ok()
}
