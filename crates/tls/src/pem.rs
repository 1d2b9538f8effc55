//! PEM: where it is, and what is in it.

use crate::error::InvalidTls;
use core::fmt;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// More than this is no certificate, key or bundle of roots: the largest in use have 300 KiB.
const SIZE_MAX: usize = 4 * 1024 * 1024;

/// PEM in a file, which is read again and again, or in memory.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// In this file.
    File(PathBuf),
    /// As it stands.
    Text(Arc<[u8]>),
}

impl Pem {
    /// As it stands.
    pub fn text(text: impl AsRef<[u8]>) -> Self {
        Self::Text(text.as_ref().into())
    }

    pub(crate) fn read(&self, part: Part) -> Result<Vec<u8>, InvalidTls> {
        let path = match self {
            Self::Text(text) => return Ok(text.to_vec()),
            Self::File(path) => path,
        };
        let place = path.display().to_string();
        let wrong = |error: std::io::Error| {
            let what = format!("{} cannot be read: {error}", part.name());
            InvalidTls::new(&place, what, "a file in PEM that this process may read").because(error)
        };
        let size = std::fs::metadata(path).map_err(wrong)?.len();
        if size > SIZE_MAX as u64 {
            let what = format!("{} has {size} bytes", part.name());
            return Err(InvalidTls::new(&place, what, part.right()));
        }
        std::fs::read(path).map_err(wrong)
    }

    /// What to call it.
    pub(crate) fn place(&self, part: Part) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Text(_) => part.name().to_owned(),
        }
    }
}

impl From<PathBuf> for Pem {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl From<&Path> for Pem {
    fn from(path: &Path) -> Self {
        Self::File(path.to_owned())
    }
}

/// Keys are nothing to be printed.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.fmt(f),
            Self::Text(_) => f.write_str("Text"),
        }
    }
}

/// What a piece of PEM is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Certificates,
    Key,
    Roots,
}

impl Part {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Certificates => "the certificates",
            Self::Key => "the key",
            Self::Roots => "the roots",
        }
    }

    pub(crate) const fn right(self) -> &'static str {
        match self {
            Self::Certificates => {
                "PEM with `-----BEGIN CERTIFICATE-----` blocks: its own first, then those that \
                 lead to a root"
            }
            Self::Key => {
                "PEM with one block `PRIVATE KEY`, `EC PRIVATE KEY` or `RSA PRIVATE KEY`, without \
                 a password"
            }
            Self::Roots => "PEM with `-----BEGIN CERTIFICATE-----` blocks of authorities",
        }
    }
}

/// All certificates in it; one at least.
pub(crate) fn certificates(
    pem: &[u8],
    place: &str,
    part: Part,
) -> Result<Vec<CertificateDer<'static>>, InvalidTls> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = read.map_err(|error| unreadable(place, part, error))?;
    if found.is_empty() {
        return Err(unreadable(place, part, Error::NoItemsFound));
    }
    Ok(found)
}

/// The first key in it.
pub(crate) fn key(pem: &[u8], place: &str) -> Result<PrivateKeyDer<'static>, InvalidTls> {
    let encrypted = pem.windows(17).any(|words| words == b"BEGIN ENCRYPTED P");
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        Error::NoItemsFound if encrypted => {
            InvalidTls::new(place, "the key is encrypted by a password", Part::Key.right())
        }
        error => unreadable(place, Part::Key, error),
    })
}

fn unreadable(place: &str, part: Part, error: Error) -> InvalidTls {
    let what = match &error {
        Error::NoItemsFound => format!("{} are not in it", part.name()),
        Error::MissingSectionEnd { .. } => "a block of PEM has no end".to_owned(),
        error => format!("it is not PEM: {error}"),
    };
    let what = if part == Part::Key { what.replace(" are not", " is not") } else { what };
    InvalidTls::new(place, what, part.right()).because(error)
}
