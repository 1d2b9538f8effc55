//! What stands between hyper and the service of a connection.
//!
//! Each request gets to know its [`Peer`], and a body that is thrown away if nobody reads it. Each
//! answer of a task that is leaving says so. And requests are counted, so that connections without
//! any can be told from busy ones.

use super::body::RequestBody;
use super::connection::Shared;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use http::header::{CONNECTION, EXPECT};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use std::sync::Arc;
use tidegate_wire::headers::X_ENVOY_IMMEDIATE_HEALTH_CHECK_FAIL;
use tower_service::Service;

/// A connection's service as hyper sees it.
#[derive(Debug, Clone)]
pub(super) struct Front<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> Front<S> {
    pub(super) const fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }
}

impl<S, B> Service<Request<Incoming>> for Front<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
{
    type Response = Response<Counted<B>>;
    type Error = S::Error;
    type Future = Exchange<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let busy = Busy::new(&self.shared);
        let version = request.version();
        let (mut parts, incoming) = request.into_parts();
        parts.extensions.insert(self.shared.peer.clone());
        let discard = (version < Version::HTTP_2).then(|| Arc::clone(&self.shared));
        let held_back = discard.is_some() && is_held_back(&parts.headers);
        let body = RequestBody::new(incoming, discard, held_back);
        let future = self.inner.call(Request::from_parts(parts, body));
        Exchange { future, version, busy: Some(busy) }
    }
}

fn is_held_back(headers: &HeaderMap) -> bool {
    headers
        .get(EXPECT)
        .is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// A request that is being served, as far as the connection is concerned.
#[derive(Debug)]
pub(super) struct Busy(Arc<Shared>);

impl Busy {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.activity.begin();
        Self(Arc::clone(shared))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.activity.end();
    }
}

pin_project! {
    /// From the request to the head of its answer.
    pub(super) struct Exchange<F> {
        #[pin]
        future: F,
        version: Version,
        busy: Option<Busy>,
    }
}

impl<F, B, E> Future for Exchange<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<Counted<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.future.poll(context))?;
        let busy = this.busy.take();
        if let Some(Busy(shared)) = busy.as_ref().filter(|busy| busy.0.life.is_leaving()) {
            say_goodbye(&mut response, *this.version, shared.life.is_replaced());
        }
        Poll::Ready(Ok(response.map(|body| Counted { body, _busy: busy })))
    }
}

#[cold]
fn say_goodbye<B>(response: &mut Response<B>, version: Version, replaced: bool) {
    // Balancers would leave an address alone at which a successor serves.
    if !replaced {
        let yes = HeaderValue::from_static("true");
        response.headers_mut().insert(&X_ENVOY_IMMEDIATE_HEALTH_CHECK_FAIL, yes);
    }
    // A connection that changes its protocol says so in the same header, and is no longer ours.
    if version < Version::HTTP_2 && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

pin_project! {
    /// The body of an answer. The connection is busy for as long as there is one.
    #[derive(Debug)]
    pub(super) struct Counted<B> {
        #[pin]
        body: B,
        _busy: Option<Busy>,
    }
}

impl<B: Body> Body for Counted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodbyes_close_what_can_be_closed() {
        for (status, version, connection) in [
            (200, Version::HTTP_11, Some("close")),
            (503, Version::HTTP_10, Some("close")),
            (101, Version::HTTP_11, Some("upgrade")),
            (200, Version::HTTP_2, None),
        ] {
            let mut response = Response::builder().status(status).body(()).unwrap();
            if status == 101 {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
            }
            say_goodbye(&mut response, version, true);
            let found = response.headers().get(CONNECTION).map(|value| value.to_str().unwrap());
            assert_eq!(found, connection, "{status} {version:?}");
            assert!(!response.headers().contains_key("x-envoy-immediate-health-check-fail"));
            say_goodbye(&mut response, version, false);
            assert_eq!(response.headers()["x-envoy-immediate-health-check-fail"], "true");
        }
    }

    #[test]
    fn whoever_expects_to_be_told_is_known() {
        for (expect, held_back) in [
            (None, false),
            (Some("100-continue"), true),
            (Some("100-Continue"), true),
            (Some("x"), false),
        ] {
            let mut headers = HeaderMap::new();
            headers.extend(expect.map(|expect| (EXPECT, HeaderValue::from_static(expect))));
            assert_eq!(is_held_back(&headers), held_back, "{expect:?}");
        }
    }
}
