//! reqwest: one line around a client.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let http = reqwest::Client::new();
//! let inventory = tidegate::client::reqwest::Client::new("inventory", http.clone());
//! let answer = inventory.send(http.get("http://inventory/items")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! reqwest's own layers (`connector_layer`) are about connections and see no requests, so this goes
//! around the client instead. Redirects and timeouts of reqwest happen inside of an attempt.

use super::error::BoxError;
use super::layer::Layer;
use super::replay::{Recording, RequestBody, record};
use super::service::Service;
use ::reqwest::{Body, Request, RequestBuilder, Response, ResponseBuilderExt};
use bytes::Bytes;
use core::task::{Context, Poll};
use futures_util::future::BoxFuture;
use tower_layer::Layer as _;
use tower_service::Service as _;

/// A client of reqwest with throttle, retries and propagation. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Client {
    service: Service<Sender>,
}

impl Client {
    /// Around `client`, for the backend service of this name.
    pub fn new(service: &str, client: ::reqwest::Client) -> Self {
        Self::with_layer(&Layer::new(service), client)
    }

    /// Around `client`, by a layer that was set up.
    pub fn with_layer(layer: &Layer, client: ::reqwest::Client) -> Self {
        Self { service: layer.layer(Sender(client)) }
    }

    /// Builds the request and sends it. What client `request` came from does not matter.
    pub async fn send(&self, request: RequestBuilder) -> Result<Response, BoxError> {
        self.execute(request.build()?).await
    }

    /// Sends the request. Errors are those of [`client`](super), or a `reqwest::Error`.
    pub async fn execute(&self, request: Request) -> Result<Response, BoxError> {
        let request = http::Request::<Body>::try_from(request)?;
        // A client of reqwest is always ready.
        let response = self.service.clone().call(request).await?;
        Ok(response.map(Body::wrap).into())
    }
}

/// A client of reqwest as a service over the types of `http`, to be put under a
/// [`Layer`] or into a [`Balancer`](super::Balancer).
#[derive(Debug, Clone)]
pub struct Sender(pub ::reqwest::Client);

impl tower_service::Service<http::Request<Body>> for Sender {
    type Response = http::Response<Body>;
    type Error = ::reqwest::Error;
    type Future = BoxFuture<'static, Result<http::Response<Body>, ::reqwest::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ::reqwest::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let client = self.0.clone();
        Box::pin(async move {
            let response = client.execute(Request::try_from(request)?).await?;
            let url = http::Response::builder().url(response.url().clone()).body(());
            let mut response = http::Response::from(response);
            if let Ok(url) = url {
                // reqwest finds it there when this becomes a response of its own again.
                response.extensions_mut().extend(url.into_parts().0.extensions);
            }
            Ok(response)
        })
    }
}

/// What is kept of a body.
#[derive(Debug)]
pub enum Kept {
    /// It was in memory anyway.
    Bytes(Bytes),
    /// It is recorded while it is sent.
    Recording(Recording<Body>),
    /// Nothing: it is in memory, and longer than what is kept.
    Nothing,
}

impl RequestBody for Body {
    type Kept = Kept;

    fn keep(self, limit: usize) -> (Self, Kept) {
        match self.as_bytes().map(|bytes| bytes.len() <= limit) {
            // As bytes it goes out with its length, and can follow redirects.
            Some(true) => {
                let bytes = Bytes::copy_from_slice(self.as_bytes().unwrap_or_default());
                (Self::from(bytes.clone()), Kept::Bytes(bytes))
            }
            Some(false) => (self, Kept::Nothing),
            None => {
                let (body, recording) = record(self, limit);
                (Self::wrap(body), Kept::Recording(recording))
            }
        }
    }

    fn is_lost(kept: &mut Kept) -> bool {
        match kept {
            Kept::Bytes(_) => false,
            Kept::Recording(recording) => recording.is_lost(),
            Kept::Nothing => true,
        }
    }

    async fn again(kept: Kept) -> Option<(Self, Kept)> {
        match kept {
            Kept::Bytes(bytes) => Some((Self::from(bytes.clone()), Kept::Bytes(bytes))),
            Kept::Recording(recording) => {
                let (body, recording) = recording.again().await?;
                Some((Self::wrap(body), Kept::Recording(recording)))
            }
            Kept::Nothing => None,
        }
    }
}
