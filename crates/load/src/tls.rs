//! Encrypted connections to servers under test.
//!
//! Servers under test often sign their own certificates: their root can be given, or the check be
//! left out. Otherwise the system's roots are asked. The one protocol that is to be spoken is
//! offered by ALPN, so that a server which cannot speak it says so in the handshake.

use crate::plan::Protocol;
use core::fmt;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whom to believe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trust {
    /// The roots of the system: `SSL_CERT_FILE`, or where systems keep them.
    #[default]
    System,
    /// The roots in this PEM file.
    File(PathBuf),
    /// The roots in this PEM.
    Pem(Vec<u8>),
    /// Anybody. For servers under test on one's own machine.
    Anybody,
}

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// There are no roots.
    #[error("no certificates of authorities in {place}: {why}")]
    NoRoots {
        /// Where they were looked for.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// The host has no name that a certificate could have.
    #[error("`{0}` is no name that a certificate can have")]
    Name(String),
    /// The library refuses.
    #[error(transparent)]
    Refused(#[from] rustls::Error),
}

/// Where systems keep their roots: Debian and Arch, Fedora, Alpine and macOS, openSUSE.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// What a handshake needs.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Tls {
    pub(crate) fn new(trust: &Trust, host: &str, protocol: Protocol) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let mut config = match trust {
            Trust::Anybody => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
                .with_no_client_auth(),
            _ => builder.with_root_certificates(roots(trust)?).with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.alpn().to_vec()];
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name =
            ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name(host.to_owned()))?;
        Ok(Self { config: Arc::new(config), name })
    }
}

fn roots(trust: &Trust) -> Result<RootCertStore, TlsError> {
    let from_env = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let (place, pem) = match trust {
        Trust::Pem(pem) => ("the given PEM".to_owned(), Ok(pem.clone())),
        Trust::File(path) => (path.display().to_string(), std::fs::read(path)),
        Trust::System | Trust::Anybody => {
            let found = SYSTEM.iter().map(Path::new).find(|path| path.exists());
            let path = from_env.as_deref().or(found).unwrap_or(Path::new(SYSTEM[0]));
            (path.display().to_string(), std::fs::read(path))
        }
    };
    let no_roots = |why: String| TlsError::NoRoots { place: place.clone(), why };
    let pem = pem.map_err(|error| no_roots(error.to_string()))?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| no_roots(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    // A bundle may have one that this library finds odd; what counts is that some are left.
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 { Err(no_roots("it has none".to_owned())) } else { Ok(roots) }
}

/// Takes any certificate. Signatures are still checked, as a broken handshake is a fault to see.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
