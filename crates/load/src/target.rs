//! Where the load goes, and where it must not.
//!
//! A load generator is a weapon when it is pointed at the wrong address. So a name is resolved
//! once, before anything starts, and every address of it has to be of this machine's own loopback,
//! unless the user has said that remote is meant. Connections are made to those very addresses: a
//! name that means another machine a minute later changes nothing.

use crate::text::Unreadable;
use http::Uri;
use http::uri::Scheme;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

/// A server to ask.
#[derive(Debug, Clone)]
pub struct Target {
    /// `host:port` as it was written, for the `host` header.
    pub(crate) authority: String,
    /// The host alone, for TLS.
    pub(crate) host: String,
    /// Path and query of the URL, for requests that name none.
    pub(crate) path: String,
    pub(crate) tls: bool,
    /// At least one.
    pub(crate) addresses: Vec<SocketAddr>,
}

/// Why a target is not asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// It is no URL.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// Its name means nothing.
    #[error("`{host}` cannot be resolved: {source}")]
    Unresolved {
        /// The name.
        host: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// It is not on this machine.
    #[error("{authority} is {address}, which is not a loopback address of this machine")]
    Remote {
        /// As it was written.
        authority: String,
        /// The address that is not.
        address: IpAddr,
    },
}

impl Target {
    /// Reads a URL such as `http://127.0.0.1:8080/path` and looks its host up.
    pub fn resolve(url: &str, allow_remote: bool) -> Result<Self, TargetError> {
        let mut target = Self::parse(url)?;
        let unresolved = |source| TargetError::Unresolved { host: target.host.clone(), source };
        let port = port_of(&target.authority).unwrap_or(if target.tls { 443 } else { 80 });
        let host = target.host.trim_start_matches('[').trim_end_matches(']');
        let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(unresolved)?.collect();
        if addresses.is_empty() {
            let none = std::io::Error::other("it has no address");
            return Err(TargetError::Unresolved { host: target.host, source: none });
        }
        if !allow_remote
            && let Some(address) = addresses.iter().find(|address| !is_loopback(address.ip()))
        {
            let authority = target.authority;
            return Err(TargetError::Remote { authority, address: address.ip() });
        }
        target.addresses = addresses;
        Ok(target)
    }

    /// A loopback server at this address, without TLS.
    pub fn loopback(address: SocketAddr) -> Self {
        Self {
            authority: address.to_string(),
            host: address.ip().to_string(),
            path: "/".to_owned(),
            tls: false,
            addresses: vec![address],
        }
    }

    fn parse(url: &str) -> Result<Self, Unreadable> {
        let wrong = |why: &str| {
            let right = "scheme, host, port and path, such as http://127.0.0.1:8080/";
            Unreadable::new(format!("`{url}` is no URL to ask: {why}"), right)
        };
        let with_scheme =
            if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = with_scheme.parse().map_err(|error| wrong(&format!("{error}")))?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(wrong("only http and https are spoken")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it has a user name; use --header 'authorization: …'"));
        }
        Ok(Self {
            authority: authority.to_string(),
            host: authority.host().to_owned(),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            tls,
            addresses: Vec::new(),
        })
    }

    /// The URL, for people.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.path)
    }
}

fn port_of(authority: &str) -> Option<u16> {
    authority.parse::<http::uri::Authority>().ok()?.port_u16()
}

/// Also the IPv6 spelling of an IPv4 loopback address, and nothing of a network.
fn is_loopback(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => {
            address.is_loopback() || address.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_asked_unless_told() {
        for url in [
            "http://127.0.0.1:8080/",
            "127.0.0.1:80",
            "http://[::1]:9/x?y=1",
            "https://127.3.2.1",
            "http://[::ffff:127.0.0.1]:1",
            "http://localhost:80",
        ] {
            let target = Target::resolve(url, false).unwrap();
            assert!(!target.addresses.is_empty(), "{url}");
        }
        for url in
            ["http://192.0.2.1/", "http://[2001:db8::1]:80/", "10.0.0.1:80", "http://0.0.0.0"]
        {
            let error = Target::resolve(url, false).unwrap_err();
            assert!(matches!(error, TargetError::Remote { .. }), "{url}: {error}");
            assert_eq!(Target::resolve(url, true).unwrap().addresses.len(), 1);
        }
    }

    #[test]
    fn what_is_no_url_says_so() {
        for url in ["", "ftp://127.0.0.1", "http://", "http://a b", "http://me@127.0.0.1/"] {
            let error = Target::resolve(url, true).unwrap_err();
            assert!(matches!(error, TargetError::Unreadable(_)), "{url}: {error}");
        }
        let target = Target::resolve("127.0.0.1:81/a?b", false).unwrap();
        assert_eq!(target.url(), "http://127.0.0.1:81/a?b");
        assert_eq!(target.addresses[0].port(), 81);
    }
}
