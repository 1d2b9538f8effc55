//! Whom to believe.

use crate::error::InvalidTls;
use crate::pem::{Part, Pem, certificates};
use rustls::RootCertStore;
use std::path::{Path, PathBuf};

/// Where systems keep their roots: Debian and Arch, Fedora, Alpine and macOS, openSUSE.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// Whose signatures make a server's certificate good.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Roots {
    /// Those of the system: `SSL_CERT_FILE`, or where systems keep them.
    #[default]
    System,
    /// These, and nobody else.
    Given(Pem),
}

impl Roots {
    pub(crate) fn pem(&self) -> Pem {
        match self {
            Self::Given(pem) => pem.clone(),
            Self::System => {
                let said = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
                let found = || SYSTEM.iter().map(Path::new).find(|path| path.exists());
                let path = said.or_else(|| found().map(Path::to_owned));
                path.unwrap_or_else(|| SYSTEM[0].into()).into()
            }
        }
    }

    /// Whether each of them has to be in order. A system's bundle may have one that we find odd;
    /// what counts is that some are left.
    pub(crate) const fn strict(&self) -> bool {
        matches!(self, Self::Given(_))
    }
}

/// The roots in `pem`.
pub(crate) fn store(pem: &[u8], place: &str, strict: bool) -> Result<RootCertStore, InvalidTls> {
    let found = certificates(pem, place, Part::Roots)?;
    let mut store = RootCertStore::empty();
    if !strict {
        let (added, _) = store.add_parsable_certificates(found);
        if added > 0 {
            return Ok(store);
        }
        return Err(InvalidTls::new(place, "none of the roots can be used", Part::Roots.right()));
    }
    for (number, root) in found.into_iter().enumerate() {
        store.add(root).map_err(|error| {
            let what = format!("certificate {} is no root: {error}", number + 1);
            InvalidTls::new(place, what, Part::Roots.right()).because(error)
        })?;
    }
    Ok(store)
}
