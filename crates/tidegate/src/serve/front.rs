//! What stands between hyper and the service of a connection.
//!
//! Each request gets to know its [`Peer`], and a body that is thrown away if nobody reads it. Each
//! answer of a task that is leaving says so. And requests are counted, so that connections without
//! any can be told from busy ones.

use super::BoxError;
use super::answer::{Busy, Counted};
use super::body::RequestBody;
use super::connection::Shared;
use super::stream;
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use http::header::{CONNECTION, EXPECT};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body;
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

impl<S, B> hyper::service::Service<Request<Incoming>> for Front<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
{
    type Response = Response<Counted<B>>;
    type Error = BoxError;
    type Future = Exchange<S, Request<RequestBody>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let busy = Busy::new(&self.shared);
        let version = request.version();
        let (mut parts, incoming) = request.into_parts();
        if self.shared.introduces {
            parts.extensions.insert(self.shared.peer.clone());
        }
        // Of a body that is over there is nothing to throw away.
        let discards = version < Version::HTTP_2 && !incoming.is_end_stream();
        let discard = discards.then(|| Busy::new(&self.shared));
        let held_back = discards && is_held_back(&parts.headers);
        let body = RequestBody::new(incoming, discard, held_back);
        let (service, request) = (self.inner.clone(), Request::from_parts(parts, body));
        // This is the task of the connection, and one of HTTP/2 has other requests to serve.
        let call = if version < Version::HTTP_2 {
            Call::new(service, request)
        } else {
            Call::later(service, request)
        };
        Exchange { call, version, busy: Some(busy) }
    }
}

fn is_held_back(headers: &HeaderMap) -> bool {
    headers
        .get(EXPECT)
        .is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

pin_project! {
    /// A call of a service. Most are ready when they are asked, and then called at once: a request
    /// that waits for it is one more copy of it.
    #[project = CallProjection]
    enum Call<S: Service<R>, R> {
        Waiting { service: S, request: Option<R> },
        Called { #[pin] future: S::Future },
        Failed { error: Option<BoxError> },
    }
}

impl<S: Service<R>, R> Call<S, R>
where
    S::Error: Into<BoxError>,
{
    /// Called at once if it is ready.
    #[inline]
    fn new(mut service: S, request: R) -> Self {
        match service.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => Self::Called { future: service.call(request) },
            Poll::Ready(Err(error)) => Self::Failed { error: Some(error.into()) },
            // It is asked again, by one who can be woken.
            Poll::Pending => Self::later(service, request),
        }
    }

    /// Called by whoever polls it.
    #[inline]
    fn later(service: S, request: R) -> Self {
        Self::Waiting { service, request: Some(request) }
    }
}

impl<S: Service<R>, R> Future for Call<S, R>
where
    S::Error: Into<BoxError>,
{
    type Output = Result<S::Response, BoxError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match self.as_mut().project() {
                CallProjection::Called { future } => {
                    return future.poll(context).map_err(Into::into);
                }
                CallProjection::Waiting { service, request } => {
                    ready!(service.poll_ready(context)).map_err(Into::into)?;
                    let Some(request) = request.take() else { panic!("polled after it failed") };
                    let future = service.call(request);
                    self.set(Self::Called { future });
                }
                CallProjection::Failed { error } => {
                    let Some(error) = error.take() else { panic!("polled after it failed") };
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

pin_project! {
    /// From the request to the head of its answer.
    pub(super) struct Exchange<S: Service<R>, R> {
        #[pin]
        call: Call<S, R>,
        version: Version,
        busy: Option<Busy>,
    }
}

impl<S, R, B> Future for Exchange<S, R>
where
    S: Service<R, Response = Response<B>>,
    S::Error: Into<BoxError>,
{
    type Output = Result<Response<Counted<B>>, BoxError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.call.poll(context))?;
        let busy = this.busy.take();
        if let Some(busy) = busy.as_ref().filter(|busy| busy.life.is_leaving()) {
            say_goodbye(&mut response, *this.version, busy.life.is_replaced());
        }
        let http2 = *this.version == Version::HTTP_2;
        if http2 {
            stream::is_the_peers(None);
        }
        Poll::Ready(Ok(response.map(|body| Counted::new(body, busy, http2))))
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

    /// Fails, and may not be asked again.
    struct Broken(bool);

    impl Service<()> for Broken {
        type Response = ();
        type Error = &'static str;
        type Future = core::future::Pending<Result<(), &'static str>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
            assert!(!core::mem::replace(&mut self.0, true), "it was asked again");
            Poll::Ready(Err("broken"))
        }

        fn call(&mut self, (): ()) -> Self::Future {
            unreachable!("it is not ready")
        }
    }

    #[test]
    fn a_service_that_has_failed_is_not_asked_again() {
        for call in [Call::new(Broken(false), ()), Call::later(Broken(false), ())] {
            let call = core::pin::pin!(call);
            let Poll::Ready(Err(error)) = call.poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("it has failed");
            };
            assert_eq!(error.to_string(), "broken");
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
