//! Encrypted connections, and who is at the other end.

use crate::common::{Server, soon, until};
use axum::Router;
use axum::extract::Extension;
use axum::routing::get;
use core::time::Duration;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tidegate::serve::{ClientCertificates, Peer, Tls};
use tidegate_core::Criticality;
use tidegate_core::connection::gate::{ConnectionGate, ConnectionLimits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// One who signs certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: rcgen::Certificate,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), root }
    }

    pub(crate) fn sign(&self, names: Vec<SanType>) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }
}

pub(crate) fn uris(uris: &[&str]) -> Vec<SanType> {
    uris.iter().map(|&uri| SanType::URI(uri.try_into().unwrap())).collect()
}

pub(crate) fn server_tls(servers: &Authority, clients: &Authority, required: bool) -> Tls {
    let (certificate, key) = servers.sign(vec![SanType::DnsName("localhost".try_into().unwrap())]);
    let roots = clients.root.pem();
    let clients = if required {
        ClientCertificates::Required(roots.as_bytes())
    } else {
        ClientCertificates::Optional(roots.as_bytes())
    };
    Tls::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes(), clients).unwrap()
}

pub(crate) fn client_config(
    servers: &Authority,
    identity: Option<(rcgen::Certificate, KeyPair)>,
) -> Arc<ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(servers.root.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match identity {
        Some((certificate, key)) => {
            let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
        None => builder.with_no_client_auth(),
    })
}

/// What the server says to this client; an error if it does not even get there.
async fn ask(server: &Server, config: Arc<ClientConfig>) -> std::io::Result<String> {
    let io = TcpStream::connect(server.address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut io = TlsConnector::from(config).connect(name, io).await?;
    io.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await?;
    let mut text = Vec::new();
    io.read_to_end(&mut text).await?;
    let text = String::from_utf8(text).unwrap();
    Ok(text.split_once("\r\n\r\n").map_or(text.clone(), |(_, body)| body.to_owned()))
}

/// Tells clients who they are.
fn who() -> Router {
    let who = |Extension(peer): Extension<Peer>| async move {
        let class = peer.criticality().map_or_else(|| "-".to_owned(), |class| class.to_string());
        format!("{} {class} {}", peer.identity().unwrap_or("nobody"), peer.is_secure())
    };
    Router::new().route("/", get(who))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_tells_who_a_client_is() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let tls = server_tls(&servers, &clients, false)
        .classify(|identity| identity.ends_with("/monitor").then_some(Criticality::CriticalPlus));
    let server = Server::with(who(), |serve| serve.tls(tls)).await;
    let ask = async |identity| soon(ask(&server, client_config(&servers, identity))).await;
    for (names, told) in [
        (uris(&["spiffe://a.example/shop/front"]), "spiffe://a.example/shop/front - true"),
        (uris(&["spiffe://a.example/monitor"]), "spiffe://a.example/monitor CRITICAL_PLUS true"),
        // SPIFFE wants exactly one.
        (uris(&["spiffe://a.example/x", "spiffe://a.example/y"]), "nobody - true"),
        (uris(&["https://a.example/x"]), "nobody - true"),
        (vec![SanType::DnsName("a.example".try_into().unwrap())], "dns:a.example - true"),
    ] {
        assert_eq!(ask(Some(clients.sign(names))).await.unwrap(), told);
    }
    assert_eq!(ask(None).await.unwrap(), "nobody - true");
    // Signed by somebody else.
    let stranger = servers.sign(uris(&["spiffe://a.example/monitor"]));
    assert!(ask(Some(stranger)).await.is_err());
    until(|| server.counters.handshakes_failed.load(Relaxed) == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_can_be_required_and_renewed() {
    let (servers, clients, later) = (Authority::new(), Authority::new(), Authority::new());
    let tls = server_tls(&servers, &clients, true);
    let server = Server::with(who(), |serve| serve.tls(tls.clone())).await;
    let identity = || clients.sign(uris(&["spiffe://a.example/x"]));
    assert!(soon(ask(&server, client_config(&servers, None))).await.is_err());
    let told = soon(ask(&server, client_config(&servers, Some(identity())))).await.unwrap();
    assert_eq!(told, "spiffe://a.example/x - true");

    let nonsense = tls.reload(b"nonsense", b"nonsense", ClientCertificates::Ignored);
    assert_eq!(nonsense.unwrap_err().place, "the certificates");
    assert!(soon(ask(&server, client_config(&servers, Some(identity())))).await.is_ok());
    let (certificate, key) = later.sign(vec![SanType::DnsName("localhost".try_into().unwrap())]);
    let (certificate, key) = (certificate.pem(), key.serialize_pem());
    tls.reload(certificate.as_bytes(), key.as_bytes(), ClientCertificates::Ignored).unwrap();
    assert!(soon(ask(&server, client_config(&servers, None))).await.is_err());
    let told = soon(ask(&server, client_config(&later, None))).await.unwrap();
    assert_eq!(told, "nobody - true");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_was_overrated_has_to_go() {
    let (servers, clients) = (Authority::new(), Authority::new());
    // Strangers count as critical, and have room for nine; batch is sheddable, and has for none.
    let mut limits = ConnectionLimits::default();
    limits.open_max = 10;
    limits.room[Criticality::Sheddable.index()] = tidegate_core::Ratio::ZERO;
    let gate = Arc::new(ConnectionGate::new(limits).unwrap());
    let tls = server_tls(&servers, &clients, false)
        .classify(|identity| identity.ends_with("/batch").then_some(Criticality::Sheddable));
    let open = Arc::clone(&gate);
    let server = Server::with(who(), |serve| serve.tls(tls).connections(gate)).await;
    let batch = clients.sign(uris(&["spiffe://a.example/batch"]));
    assert!(
        !soon(ask(&server, client_config(&servers, Some(batch))))
            .await
            .is_ok_and(|told| { told.contains("batch") })
    );
    until(|| server.counters.refused_open.load(Relaxed) == 1 && open.open() == 0).await;
    assert_eq!(server.counters.handshakes_failed.load(Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_come_before_the_handshake_and_handshakes_do_not_last() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let tls = server_tls(&servers, &clients, false).handshake_max(Duration::from_millis(50));
    let server = Server::with(who(), |serve| serve.tls(tls)).await;
    // Says nothing.
    server.connect().await.closed().await;
    until(|| server.counters.handshakes_failed.load(Relaxed) == 1).await;

    let mut limits = ConnectionLimits::default();
    limits.open_max = 0;
    let gate = Arc::new(ConnectionGate::new(limits).unwrap());
    let tls = server_tls(&servers, &clients, false);
    let server = Server::with(who(), |serve| serve.tls(tls).connections(gate)).await;
    assert!(soon(ask(&server, client_config(&servers, None))).await.is_err());
    until(|| server.counters.refused_open.load(Relaxed) == 1).await;
    assert_eq!(server.counters.handshakes_failed.load(Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_does_not_hold_up_the_end() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let tls = server_tls(&servers, &clients, false).handshake_max(Duration::from_secs(3_600));
    let server = Server::with(who(), |serve| serve.tls(tls)).await;
    let _silent = server.connect().await;
    until(|| server.counters.accepted.load(Relaxed) == 1).await;
    server.life.stop();
    server.life.hasten();
    server.ended().await.unwrap();
}
