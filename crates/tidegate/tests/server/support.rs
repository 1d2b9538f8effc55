//! Servers on real sockets, and clients that show all that is on the wire.

use axum::Router;
use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use tidegate::Task;
use tokio::net::{TcpListener, TcpStream};

/// Serves `router` on a port of its own, over HTTP/1.1 and h2c, until the runtime ends.
pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// How to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    H2c,
}

pub(crate) const VERSIONS: [Version; 2] = [Version::Http1, Version::H2c];

/// A connection.
pub(crate) enum Client {
    Http1(hyper::client::conn::http1::SendRequest<Full<Bytes>>),
    H2c(hyper::client::conn::http2::SendRequest<Full<Bytes>>),
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr, version: Version) -> Self {
        let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
        match version {
            Version::Http1 => {
                let (sender, connection) =
                    hyper::client::conn::http1::handshake(io).await.unwrap();
                tokio::spawn(connection);
                Self::Http1(sender)
            }
            Version::H2c => {
                let executor = TokioExecutor::new();
                let (sender, connection) =
                    hyper::client::conn::http2::handshake(executor, io).await.unwrap();
                tokio::spawn(connection);
                Self::H2c(sender)
            }
        }
    }

    /// Sends a request and returns the head of the answer, with the body still to come.
    pub(crate) async fn send(
        &mut self,
        request: http::request::Builder,
    ) -> http::Response<hyper::body::Incoming> {
        let request = request.body(Full::new(Bytes::new())).unwrap();
        match self {
            Self::Http1(sender) => sender.send_request(request).await.unwrap(),
            Self::H2c(sender) => sender.send_request(request).await.unwrap(),
        }
    }

    /// The whole answer to a request for `path` with these headers.
    pub(crate) async fn get(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> http::Response<String> {
        let authority = match self {
            Self::Http1(_) => path.to_owned(),
            Self::H2c(_) => format!("http://localhost{path}"),
        };
        let mut request = http::Request::get(authority).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, body) = self.send(request).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        http::Response::from_parts(head, String::from_utf8(body.to_vec()).unwrap())
    }
}

/// Waits until nothing is in flight any more. A test that waits in vain is ended by its runner.
pub(crate) async fn idle(task: &Task) {
    while task.gate().counts().inflight() > 0 {
        tokio::task::yield_now().await;
    }
}
