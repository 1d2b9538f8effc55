//! Who a peer is, by its certificate.
//!
//! ```text
//! one URI that is a SPIFFE ID          spiffe://prod.example.org/ns/shop/sa/web
//! no SPIFFE ID, and a DNS name         dns:web.shop.internal    (the first that is no wildcard)
//! anything else                        nobody
//! ```
//!
//! SPIFFE asks for exactly one URI. A certificate with several of which one claims to be an ID is
//! not in order, and its DNS names are not asked instead: that would be to look for a name until
//! one is found. The subject's common name is never looked at, as no verifier checks it.

use rustls::pki_types::CertificateDer;
use tidegate_wire::customer::SpiffeId;

/// What names of DNS begin with, to tell them from URIs.
const DNS: &str = "dns:";

/// Who this certificate was given to, if it says so in a form that can be compared. Whether it was
/// signed by anybody who is believed is for the handshake.
pub fn identity(certificate: &CertificateDer<'_>) -> Option<Box<str>> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let uris: Vec<&str> = certificate.valid_uri_names().collect();
    if uris.iter().any(|uri| uri.starts_with("spiffe:")) {
        return match uris[..] {
            [uri] if SpiffeId::parse(uri).is_ok() => Some(uri.into()),
            _ => None,
        };
    }
    let name = certificate.valid_dns_names().find(|name| !name.contains('*'))?;
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    Some(format!("{DNS}{name}").into())
}
