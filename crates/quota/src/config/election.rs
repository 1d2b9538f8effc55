//! How several servers elect one.

use super::fault::Fault;
use super::units::duration;
use super::{parent, raw};
use crate::etcd::EtcdUser;
use core::time::Duration;
use serde_saphyr::Spanned;
use tidegate_tls::ClientOptions;

/// Where everything is in etcd, unless it is said.
const PREFIX: &str = "/tidegate/quota";
/// A leader that died is replaced within this and half a second more, in which etcd looks for
/// leases that have ended; an etcd that elects its own leader anew takes up to two seconds, in
/// which nobody can renew a lease.
const TTL: Duration = Duration::from_secs(3);
/// etcd makes shorter ones as long as this.
const TTL_MIN: Duration = Duration::from_secs(2);
const TTL_MAX: Duration = Duration::from_secs(60);
/// The longest prefix; etcd bears more, people do not.
const PREFIX_MAX: usize = 256;

/// An election through etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdElection {
    /// Where the members of etcd are, as `http://host:port` or `https://host:port`.
    pub endpoints: Vec<String>,
    /// What to show there, and whom to believe.
    pub tls: Option<ClientOptions>,
    /// As whom to ask, if etcd wants to know.
    pub user: Option<EtcdUser>,
    /// What all keys begin with, without a slash at the end.
    pub prefix: String,
    /// How long a lease is; whole seconds.
    pub ttl: Duration,
    /// Services and Doorman's templates come from `PREFIX/config`, not from the file.
    pub limits: bool,
}

impl EtcdElection {
    pub(super) fn summary(&self) -> String {
        let count = self.endpoints.len();
        let endpoints = if count == 1 { "endpoint" } else { "endpoints" };
        let limits = if self.limits {
            format!(", limits from {}/config", self.prefix)
        } else {
            String::new()
        };
        format!("one of several, elected by etcd with {count} {endpoints}{limits}")
    }
}

pub(super) fn resolve(raw: Spanned<raw::Election>, limits: bool) -> Result<EtcdElection, Fault> {
    let raw = raw.value;
    let mut endpoints = Vec::new();
    for endpoint in &raw.etcd.value {
        let parsed = endpoint.value.parse::<http::Uri>().ok();
        let fits = parsed.is_some_and(|uri| {
            let port = uri.authority().is_some_and(|authority| authority.port().is_some());
            let scheme = uri.scheme_str();
            let spoken = scheme == Some("https") || (scheme == Some("http") && raw.tls.is_none());
            spoken && port && uri.path() == "/"
        });
        if !fits {
            let what = format!("`{}` is no endpoint of etcd", endpoint.value);
            let right = if raw.tls.is_some() {
                "scheme, host and port, such as https://etcd-1:2379, as there is `tls`"
            } else {
                "scheme, host and port, such as http://etcd-1:2379"
            };
            return Err(Fault::at(endpoint, what, right));
        }
        endpoints.push(endpoint.value.clone());
    }
    if endpoints.is_empty() {
        let right = "at least one, such as [http://etcd-1:2379]";
        return Err(Fault::at(&raw.etcd, "there is no endpoint of etcd", right));
    }
    let prefix = match &raw.prefix {
        None => PREFIX.to_owned(),
        Some(text) => {
            let prefix = text.value.trim_end_matches('/');
            let graphic = prefix.bytes().all(|byte| byte.is_ascii_graphic());
            if !graphic || !(1..=PREFIX_MAX).contains(&prefix.len()) {
                let what = format!("`{}` cannot be what keys begin with", text.value);
                let right = format!("1 to {PREFIX_MAX} printable characters, such as {PREFIX}");
                return Err(Fault::at(text, what, right));
            }
            prefix.to_owned()
        }
    };
    let ttl = raw.ttl.as_ref().map_or(Ok(TTL), |text| duration(text, TTL_MIN, TTL_MAX))?;
    if let Some(text) = raw.ttl.as_ref().filter(|_| ttl.subsec_nanos() > 0) {
        let what = format!("`{}` is not in whole seconds", text.value);
        return Err(Fault::at(text, what, "whole seconds, as etcd counts them, such as 3s"));
    }
    let tls = raw.tls.map(parent::tls).transpose()?;
    let user = match (raw.user, raw.password_file) {
        (None, None) => None,
        (Some(user), Some(file)) => {
            let secret = endpoints.iter().all(|endpoint| endpoint.starts_with("https://"));
            if !secret {
                let what = "a password would be sent in the clear";
                return Err(Fault::at(&user, what, "endpoints with https://"));
            }
            Some(EtcdUser::new(user.value, file.value))
        }
        (Some(one), None) | (None, Some(one)) => {
            let what = "one of `user` and `password_file`";
            return Err(Fault::at(&one, what, "both, or neither"));
        }
    };
    Ok(EtcdElection { endpoints, tls, user, prefix, ttl, limits })
}
