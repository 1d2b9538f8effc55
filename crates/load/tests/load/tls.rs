//! Encrypted connections.

use crate::support::{Reply, Server, run};
use rcgen::{CertificateParams, KeyPair, SanType};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use std::sync::Arc;
use tidegate_load::{Plan, Protocol, Stage, Target, Trust};
use tokio_rustls::TlsAcceptor;

/// A server for `localhost` with a certificate that it has signed itself, and that certificate.
fn server(alpn: &[&[u8]], answer: Reply) -> (Server, Vec<u8>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::DnsName("localhost".try_into().unwrap())];
    let certificate = params.self_signed(&key).unwrap();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let tls = TlsAcceptor::from(Arc::new(config));
    let server = Server::start_with(move |_, _| answer.clone(), Some(tls));
    (server, certificate.pem().into_bytes())
}

fn plan(server: &Server, protocol: Protocol, trust: Trust) -> Plan {
    let url = format!("https://localhost:{}/x", server.address.port());
    let target = Target::resolve(&url, false).unwrap();
    let stages = vec!["100 for 300ms".parse::<Stage>().unwrap()];
    let mut plan = Plan::new(target, stages, 3);
    (plan.protocol, plan.trust, plan.connections) = (protocol, trust, 2);
    plan
}

#[test]
fn each_protocol_is_chosen_by_alpn() {
    for (protocol, answer, version) in [
        (Protocol::Http1, Reply::ok(), http::Version::HTTP_11),
        (Protocol::H2, Reply::ok(), http::Version::HTTP_2),
        (Protocol::Grpc, Reply::grpc("0", &[]), http::Version::HTTP_2),
    ] {
        let (server, pem) = server(&[b"h2", b"http/1.1"], answer);
        for trust in [Trust::Pem(pem), Trust::Anybody] {
            let report = run(plan(&server, protocol, trust));
            assert!(report.total.offered > 0);
            assert_eq!(report.total.ok, report.total.offered, "{report:?}");
        }
        assert!(server.asked().iter().all(|asked| asked.version == version));
    }
}

#[test]
fn who_is_not_believed_is_not_asked() {
    let (server, _) = server(&[b"h2", b"http/1.1"], Reply::ok());
    let (_, other) = self::server(&[], Reply::ok());
    for protocol in [Protocol::Http1, Protocol::H2] {
        let report = run(plan(&server, protocol, Trust::Pem(other.clone())));
        assert_eq!(report.total.errors.get("tls"), Some(&report.total.offered), "{report:?}");
    }
    assert!(server.asked().is_empty());
}

#[test]
fn a_server_of_another_protocol_says_so() {
    let (server, pem) = server(&[b"http/1.1"], Reply::ok());
    let report = run(plan(&server, Protocol::H2, Trust::Pem(pem)));
    assert_eq!(report.total.errors.get("alpn"), Some(&report.total.offered), "{report:?}");
    assert!(server.asked().is_empty());
}
