//! hyper-util: one line for a balanced client.
//!
//! ```no_run
//! use bytes::Bytes;
//! use http_body_util::Full;
//! use tidegate::client::{Discovery, Layer, hyper};
//! use tower_layer::Layer as _;
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let balancer = hyper::balancer::<Full<Bytes>>(Discovery::dns("inventory:80")).build()?;
//! let inventory = Layer::new("inventory").layer(balancer);
//! # Ok(())
//! # }
//! ```
//!
//! A single client needs no help: `Layer::new("inventory").layer(client)`.

use super::balancer::{BalancerBuilder, Discovery, Endpoint};
use super::error::BoxError;
use ::hyper::body::Incoming;
use core::task::{Context, Poll};
use http::header::HOST;
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Request, Response, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::TokioExecutor;

/// A client that sends everything to one endpoint, whatever host a request names. That goes into
/// the `host` header.
#[derive(Debug)]
pub struct At<B> {
    client: Client<HttpConnector, B>,
    authority: Authority,
}

impl<B> Clone for At<B> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), authority: self.authority.clone() }
    }
}

/// A balancer over plain HTTP connections to whatever `discovery` finds. All share one pool.
pub fn balancer<B>(discovery: Discovery) -> BalancerBuilder<At<B>>
where
    B: http_body::Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let client = Client::builder(TokioExecutor::new()).build_http();
    balancer_with(discovery, client)
}

/// The same through a client of yours.
pub fn balancer_with<B>(
    discovery: Discovery,
    client: Client<HttpConnector, B>,
) -> BalancerBuilder<At<B>>
where
    B: Send + 'static,
{
    super::Balancer::builder(discovery, move |endpoint: &Endpoint| {
        let authority = endpoint.address().parse()?;
        Ok::<_, http::uri::InvalidUri>(At { client: client.clone(), authority })
    })
}

impl<B> tower_service::Service<Request<B>> for At<B>
where
    B: http_body::Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Response = Response<Incoming>;
    type Error = hyper_util::client::legacy::Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> ResponseFuture {
        let mut parts = request.uri().clone().into_parts();
        if let Some(named) = parts.authority.replace(self.authority.clone())
            && !request.headers().contains_key(HOST)
            && let Ok(host) = HeaderValue::from_str(named.as_str())
        {
            request.headers_mut().insert(HOST, host);
        }
        parts.scheme.get_or_insert(Scheme::HTTP);
        parts.path_and_query.get_or_insert_with(|| http::uri::PathAndQuery::from_static("/"));
        // With all three parts there it is a URI.
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
        self.client.request(request)
    }
}
