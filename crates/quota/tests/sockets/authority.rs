//! One who signs certificates, and channels that show them.

use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use std::net::SocketAddr;
use tidegate_tls::{Client, ClientOptions, HANDSHAKE_MAX, Identity, Offer, Pem, Roots, Server};
use tidegate_tls::{Clients, ServerOptions};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), root }
    }

    /// A certificate with this name and its key: `spiffe://…`, an address, or a name of DNS.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let name = match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) if name.contains("://") => SanType::URI(name.try_into().unwrap()),
            Err(_) => SanType::DnsName(name.try_into().unwrap()),
        };
        params.subject_alt_names = vec![name];
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// The files of a server by this name: `ca.pem`, `cert.pem` and `key.pem`.
    #[allow(dead_code, reason = "not every test has a server that is another program")]
    pub(crate) fn write(&self, folder: &std::path::Path, name: &str) {
        let (certificate, key) = self.sign(name);
        let files = [("ca.pem", &self.root), ("cert.pem", &certificate), ("key.pem", &key)];
        for (file, text) in files {
            std::fs::write(folder.join(file), text).unwrap();
        }
    }

    /// A server on loopback whose callers show certificates of this authority.
    #[allow(dead_code, reason = "not every test has one")]
    pub(crate) fn server(&self) -> Server {
        let (certificate, key) = self.sign("127.0.0.1");
        let mut options = ServerOptions::new(Pem::text(certificate), Pem::text(key));
        options.clients = Clients::Required(Pem::text(&self.root));
        Server::new(options).unwrap()
    }

    /// Believes this authority, and shows a certificate with this name, if any.
    pub(crate) fn client(&self, shows: &str) -> ClientOptions {
        let mut options = ClientOptions::default();
        options.roots = Roots::Given(Pem::text(&self.root));
        if !shows.is_empty() {
            let (certificate, key) = self.sign(shows);
            options.identity = Some(Identity::new(Pem::text(certificate), Pem::text(key)));
        }
        options
    }

    /// A channel to a server on loopback by whoever is called that.
    pub(crate) async fn channel(&self, address: SocketAddr, shows: &str) -> Channel {
        let client = Client::new(self.client(shows)).unwrap();
        let connector = tower::service_fn(move |_| {
            let client = client.clone();
            async move {
                let io = TcpStream::connect(address).await?;
                let name = Client::name("127.0.0.1").unwrap();
                let stream = client.connect(io, name, Offer::Http2, HANDSHAKE_MAX).await;
                stream.map(TokioIo::new).map_err(std::io::Error::other)
            }
        });
        let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
        endpoint.connect_with_connector(connector).await.unwrap()
    }
}
