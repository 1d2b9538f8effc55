//! Encrypted connections, and who a peer is.
//!
//! rustls with aws-lc-rs, TLS 1.2 and 1.3, HTTP/2 offered before HTTP/1.1. A handshake takes up to
//! a millisecond of CPU, so it comes after the connection gate, and a peer that does not finish it
//! in time is cut off.
//!
//! A certificate of the client tells who it is: its one name of the form `spiffe://…`, if it has
//! exactly one URI among its alternative names, as SPIFFE asks for. A certificate that was not
//! signed by a root we were given fails the handshake; one without such a name is served as nobody
//! in particular. What a name counts as can be asked once more ([`Tls::classify`]), now that it is
//! known, and a connection may have to go after all.
//!
//! Certificates are renewed while the server runs: [`Tls::reload`].

use super::Peer;
use core::fmt;
use core::time::Duration;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::sync::{Arc, PoisonError, RwLock};
use thiserror::Error;
use tidegate_core::Criticality;
use tidegate_core::connection::gate::ConnectionGate;
use tidegate_wire::customer::SpiffeId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A handshake takes two round trips and a millisecond of CPU. Ten seconds is what slow networks
/// and busy clients need, and what nginx's neighbours grant.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Whether clients show certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientCertificates<'a> {
    /// They are not asked for any.
    Ignored,
    /// They may show one, signed by one of these roots (PEM).
    Optional(&'a [u8]),
    /// They have to.
    Required(&'a [u8]),
}

/// What is wrong with certificates and keys.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InvalidTls {
    /// Something is not PEM, or not there.
    #[error("{what} cannot be read; it should be PEM with at least one such block")]
    Unreadable {
        /// What it should have been.
        what: &'static str,
        /// What is wrong with it.
        #[source]
        source: Option<rustls::pki_types::pem::Error>,
    },
    /// Key, certificate and roots were read, and do not fit.
    #[error("the key, the certificates or the roots are not in order")]
    Unusable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

type Classify = Arc<dyn Fn(&str) -> Option<Criticality> + Send + Sync>;

/// How connections are encrypted. Cheap to clone; all clones have the same certificates.
#[derive(Clone)]
pub struct Tls {
    config: Arc<RwLock<Arc<ServerConfig>>>,
    handshake_max: Duration,
    classify: Option<Classify>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("handshake_max", &self.handshake_max).finish_non_exhaustive()
    }
}

impl Tls {
    /// Certificates (the server's own first) and key as PEM.
    pub fn from_pem(
        certificates: &[u8],
        key: &[u8],
        clients: ClientCertificates<'_>,
    ) -> Result<Self, InvalidTls> {
        Ok(Self::from_config(Arc::new(config(certificates, key, clients)?)))
    }

    /// Whatever rustls can do. Set its ALPN protocols, or there will be no HTTP/2.
    pub fn from_config(config: Arc<ServerConfig>) -> Self {
        Self { config: Arc::new(RwLock::new(config)), handshake_max: HANDSHAKE_MAX, classify: None }
    }

    /// How long a handshake may take; 10 s if not said.
    #[must_use]
    pub const fn handshake_max(mut self, handshake_max: Duration) -> Self {
        self.handshake_max = handshake_max;
        self
    }

    /// What a peer of this name counts as, if anything.
    #[must_use]
    pub fn classify(
        mut self,
        class: impl Fn(&str) -> Option<Criticality> + Send + Sync + 'static,
    ) -> Self {
        self.classify = Some(Arc::new(class));
        self
    }

    /// New certificates, for handshakes from now on. If they are not in order, the old ones stay.
    pub fn reload(
        &self,
        certificates: &[u8],
        key: &[u8],
        clients: ClientCertificates<'_>,
    ) -> Result<(), InvalidTls> {
        let config = Arc::new(config(certificates, key, clients)?);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// The handshake.
    pub(super) async fn accept<I>(
        &self,
        io: I,
        peer: Peer,
        gate: &ConnectionGate,
    ) -> Result<(TlsStream<I>, Peer), Unsecured>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner));
        let handshake = TlsAcceptor::from(config).accept(io);
        let Ok(Ok(stream)) = tokio::time::timeout(self.handshake_max, handshake).await else {
            return Err(Unsecured::Failed);
        };
        let certificates = stream.get_ref().1.peer_certificates();
        let identity = certificates.and_then(<[_]>::first).and_then(identity);
        let class = match (&self.classify, &identity) {
            (Some(classify), Some(identity)) => classify(identity),
            _ => None,
        };
        if class.is_some_and(|class| gate.confirm(class).is_err()) {
            return Err(Unsecured::Refused);
        }
        Ok((stream, peer.secured(identity, class)))
    }
}

/// Why a connection ends with its handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsecured {
    /// There was none, or not in time.
    Failed,
    /// Whoever it is, there is no room for it.
    Refused,
}

/// The SPIFFE ID in a certificate.
fn identity(certificate: &CertificateDer<'_>) -> Option<Box<str>> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut uris = certificate.valid_uri_names();
    let uri = uris.next()?;
    if uris.next().is_some() {
        return None;
    }
    SpiffeId::parse(uri).ok()?;
    Some(uri.into())
}

fn config(
    certificates: &[u8],
    key: &[u8],
    clients: ClientCertificates<'_>,
) -> Result<ServerConfig, InvalidTls> {
    let unusable = |error: rustls::Error| InvalidTls::Unusable(error.into());
    // Not the process's default: that may be set by others, or by nobody.
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let verifier = |roots: &[u8]| {
        let mut store = RootCertStore::empty();
        for root in read_certificates(roots, "the roots of clients")? {
            store.add(root).map_err(unusable)?;
        }
        Ok(WebPkiClientVerifier::builder_with_provider(Arc::new(store), Arc::clone(&provider)))
    };
    let wrong = |error: rustls::server::VerifierBuilderError| InvalidTls::Unusable(error.into());
    let builder = match clients {
        ClientCertificates::Ignored => builder.with_no_client_auth(),
        ClientCertificates::Optional(roots) => {
            let verifier = verifier(roots)?.allow_unauthenticated().build().map_err(wrong)?;
            builder.with_client_cert_verifier(verifier)
        }
        ClientCertificates::Required(roots) => {
            builder.with_client_cert_verifier(verifier(roots)?.build().map_err(wrong)?)
        }
    };
    let certificates = read_certificates(certificates, "the certificates")?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| InvalidTls::Unreadable { what: "the key", source: Some(error) })?;
    let mut config = builder.with_single_cert(certificates, key).map_err(unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn read_certificates(
    pem: &[u8],
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, InvalidTls> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(certificates) if certificates.is_empty() => {
            Err(InvalidTls::Unreadable { what, source: None })
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(InvalidTls::Unreadable { what, source: Some(error) }),
    }
}
