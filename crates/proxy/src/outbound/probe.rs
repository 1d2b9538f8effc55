//! Questions of our own to an endpoint: how much it has to do, for Prequal.

use super::at::{At, Sent};
use crate::hop;
use crate::pool::Protocol;
use core::task::{Context, Poll};
use futures_util::future::BoxFuture;
use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Uri};
use tidegate::client::{BoxError, Endpoint, HttpProber, Prober};
use tidegate_core::balance::ProbeAnswer;
use tower_service::Service;

/// Asks for a path.
#[derive(Debug)]
pub(super) struct Probe {
    http: HttpProber<Sent>,
    protocol: Protocol,
}

impl Probe {
    pub(super) fn new(path: PathAndQuery, protocol: Protocol) -> Self {
        Self { http: HttpProber::new(Uri::from(path)), protocol }
    }
}

impl Prober<At> for Probe {
    fn probe(&self, endpoint: &Endpoint, at: At) -> BoxFuture<'static, Option<ProbeAnswer>> {
        let addressed = Addressed::new(at, endpoint, self.protocol == Protocol::Http2);
        self.http.probe(endpoint, addressed)
    }
}

/// Makes what we ask ourselves a request that an endpoint takes.
#[derive(Debug)]
pub(super) struct Addressed {
    at: At,
    host: HeaderValue,
    http2: bool,
}

impl Addressed {
    pub(super) fn new(at: At, endpoint: &Endpoint, http2: bool) -> Self {
        // A socket in the file system is at no host.
        let host = HeaderValue::from_str(endpoint.address()).ok();
        let host = host.filter(|_| !endpoint.address().starts_with("unix:"));
        let host = host.unwrap_or(HeaderValue::from_static("localhost"));
        Self { at, host, http2 }
    }
}

impl Service<Request<Sent>> for Addressed {
    type Response = <At as Service<Request<Sent>>>::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.at.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Sent>) -> Self::Future {
        request.headers_mut().insert(HOST, self.host.clone());
        match hop::outgoing(&mut request, self.http2, false) {
            Ok(()) => self.at.call(request),
            Err(error) => Box::pin(core::future::ready(Err(error.into()))),
        }
    }
}
