//! One who signs certificates, programs that have them, and clients that believe them.

use crate::support::ANY;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate_proxy::UpstreamTls;
use tidegate_tls::rustls::ServerConfig;
use tidegate_tls::tokio_rustls::TlsAcceptor;
use tidegate_tls::tokio_rustls::client::TlsStream;
use tidegate_tls::{
    Client, ClientOptions, ConnectError, HANDSHAKE_MAX, Identity, Offer, Pem, Roots, Server,
    ServerOptions,
};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) root: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), root }
    }

    /// A certificate with these names and its key: `spiffe://…`, or names of DNS.
    pub(crate) fn sign(&self, names: &[&str]) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = names
            .iter()
            .map(|&name| {
                if name.contains("://") {
                    SanType::URI(name.try_into().unwrap())
                } else {
                    SanType::DnsName(name.try_into().unwrap())
                }
            })
            .collect();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    pub(crate) fn server(&self, names: &[&str]) -> ServerOptions {
        let (certificate, key) = self.sign(names);
        ServerOptions::new(Pem::text(certificate), Pem::text(key))
    }

    /// Believes this authority, and shows a certificate with this name.
    pub(crate) fn client(&self, shows: Option<&str>) -> ClientOptions {
        let mut options = ClientOptions::default();
        options.roots = Roots::Given(Pem::text(&self.root));
        options.identity = shows.map(|name| {
            let (certificate, key) = self.sign(&[name]);
            Identity::new(Pem::text(certificate), Pem::text(key))
        });
        options
    }

    /// The same for a proxy.
    pub(crate) fn upstream(&self, shows: Option<&str>) -> UpstreamTls {
        let mut tls = UpstreamTls::default();
        tls.options = self.client(shows);
        tls.name = Some("localhost".to_owned());
        tls
    }
}

/// An encrypted connection to `localhost` at `address`.
pub(crate) async fn connect(
    address: SocketAddr,
    options: &ClientOptions,
    offer: Offer,
) -> Result<TlsStream<TcpStream>, ConnectError> {
    let io = TcpStream::connect(address).await.unwrap();
    let (client, name) =
        (Client::new(options.clone()).unwrap(), Client::name("localhost").unwrap());
    client.connect(io, name, offer, HANDSHAKE_MAX).await
}

/// A client of HTTP/1 over TLS.
pub(crate) async fn client(
    address: SocketAddr,
    options: &ClientOptions,
) -> hyper::client::conn::http1::SendRequest<Full<Bytes>> {
    let io = TokioIo::new(connect(address, options, Offer::Http1).await.unwrap());
    let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    sender
}

/// A client of HTTP/2 over TLS.
pub(crate) async fn client_h2(
    address: SocketAddr,
    options: &ClientOptions,
) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let stream = connect(address, options, Offer::Either).await.unwrap();
    assert!(Client::speaks_http2(&stream));
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A server behind TLS that speaks what `speaks` says, in that order.
pub(crate) async fn program<F, R>(options: ServerOptions, speaks: &[&[u8]], serve: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let listener = TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut config: ServerConfig = (*Server::new(options).unwrap().config()).clone();
    config.alpn_protocols = speaks.iter().map(|name| name.to_vec()).collect();
    let config = Arc::new(config);
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            let (serve, acceptor) = (serve.clone(), TlsAcceptor::from(Arc::clone(&config)));
            tokio::spawn(async move {
                let Ok(io) = acceptor.accept(io).await else { return };
                let service = service_fn(move |request| {
                    let answer = serve(request);
                    async move { Ok::<_, Infallible>(answer.await) }
                });
                let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = http.serve_connection_with_upgrades(TokioIo::new(io), service).await;
            });
        }
    });
    address
}
