//! The server above a zone's, or above one of Doorman's tree, as the file names it.

use super::fault::Fault;
use super::raw;
use super::units::size;
use crate::link::Link;
use serde_saphyr::Spanned;
use std::path::PathBuf;
use tidegate_core::fleet::TaskId;
use tidegate_tls::{ClientOptions, Identity, Roots};

/// The global server, and what this one is there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parent {
    /// Its addresses, which are tried in turn.
    pub servers: Vec<String>,
    /// What this server is called there; host and process if not said.
    pub name: Option<String>,
    /// For how many tasks it stands.
    pub weight: u32,
    /// What to show there, and whom to believe.
    pub tls: Option<ClientOptions>,
}

/// The server of Doorman that this one asks for its clients, and what this one is there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DoormanParent {
    /// Its addresses, which are tried in turn.
    pub servers: Vec<String>,
    /// What this server is called there; host and process if not said.
    pub name: Option<String>,
    /// What to show there, and whom to believe.
    pub tls: Option<ClientOptions>,
}

pub(super) fn above(raw: raw::Above) -> Result<DoormanParent, Fault> {
    let servers = servers(raw.servers, raw.tls.is_some())?;
    let name = raw.name.map(|name| named(name, "server")).transpose()?;
    let tls = raw.tls.map(tls).transpose()?;
    Ok(DoormanParent { servers, name, tls })
}

pub(super) fn resolve(raw: raw::Parent) -> Result<Parent, Fault> {
    let servers = servers(raw.servers, raw.tls.is_some())?;
    let name = raw.name.map(|name| named(name, "task")).transpose()?;
    let weight = raw.weight.map_or(Ok(1), |weight| size(&weight, TaskId::COUNT_MAX))?;
    let tls = raw.tls.map(tls).transpose()?;
    // The size has 20 bits.
    Ok(Parent { servers, name, weight: weight as u32, tls })
}

fn servers(raw: Spanned<Vec<Spanned<String>>>, secure: bool) -> Result<Vec<String>, Fault> {
    if raw.value.is_empty() {
        let right = "at least one, such as `servers: [https://quota.example.org:7300]`";
        return Err(Fault::at(&raw, "there are no servers above", right));
    }
    let link = Link::scheme(secure);
    let mut servers = Vec::new();
    for server in raw.value {
        if let Err(wrong) = link.endpoint(&server.value) {
            let right = "https://HOST:PORT, or without `tls` http://HOST:PORT";
            return Err(Fault::at(&server, wrong.to_string(), right));
        }
        servers.push(server.value);
    }
    Ok(servers)
}

fn named(name: Spanned<String>, kind: &str) -> Result<String, Fault> {
    if crate::name::is_name(&name.value) {
        return Ok(name.value);
    }
    let what = format!("`{}` cannot be the name of a {kind}", name.value);
    Err(Fault::at(&name, what, "printable ASCII characters without blanks"))
}

/// What to show to a server, and whom to believe.
pub(super) fn tls(raw: Spanned<raw::ParentTls>) -> Result<ClientOptions, Fault> {
    let at = raw.referenced;
    let raw::ParentTls { ca, cert, key } = raw.value;
    let mut options = ClientOptions::default();
    if let Some(roots) = ca {
        options.roots = Roots::Given(PathBuf::from(roots).into());
    }
    options.identity = match (cert, key) {
        (Some(cert), Some(key)) => Some(Identity::new(PathBuf::from(cert), PathBuf::from(key))),
        (None, None) => None,
        _ => return Err(Fault::new(at, "one of `cert` and `key`", "both, or neither")),
    };
    Ok(options)
}
