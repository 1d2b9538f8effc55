//! One who signs certificates, and files to keep them in.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use tidegate_tls::{Client, ClientOptions, Identity, Pem, Roots, Server, ServerOptions};

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

    /// A certificate and its key.
    pub(crate) fn sign(&self, names: Vec<SanType>) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    pub(crate) fn localhost(&self) -> ServerOptions {
        let (certificate, key) = self.sign(dns(&["localhost"]));
        ServerOptions::new(Pem::text(certificate), Pem::text(key))
    }

    pub(crate) fn server(&self) -> Server {
        Server::new(self.localhost()).unwrap()
    }

    /// A client that believes this authority, and may show something.
    pub(crate) fn client(&self, shows: Option<(String, String)>) -> Client {
        let mut options = ClientOptions::default();
        options.roots = Roots::Given(Pem::text(&self.root));
        options.identity =
            shows.map(|(certificate, key)| Identity::new(Pem::text(certificate), Pem::text(key)));
        Client::new(options).unwrap()
    }
}

pub(crate) fn dns(names: &[&str]) -> Vec<SanType> {
    names.iter().map(|&name| SanType::DnsName(name.try_into().unwrap())).collect()
}

pub(crate) fn uris(uris: &[&str]) -> Vec<SanType> {
    uris.iter().map(|&uri| SanType::URI(uri.try_into().unwrap())).collect()
}

/// A directory that goes with its test.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("tidegate-tls-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Writes a file as one should: whole, by a rename.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let (draft, path) = (self.0.join(format!("{name}.new")), self.path(name));
        std::fs::write(&draft, text).unwrap();
        std::fs::rename(draft, &path).unwrap();
        path
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
