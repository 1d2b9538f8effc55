//! The server above a zone's, as the file names it.

use super::fault::Fault;
use super::raw;
use super::units::size;
use crate::link::Link;
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

pub(super) fn resolve(raw: raw::Parent) -> Result<Parent, Fault> {
    if raw.servers.value.is_empty() {
        let right = "at least one, such as `servers: [https://quota.example.org:7300]`";
        return Err(Fault::at(&raw.servers, "there are no servers above", right));
    }
    let link = Link::scheme(raw.tls.is_some());
    let mut servers = Vec::new();
    for server in raw.servers.value {
        if let Err(wrong) = link.endpoint(&server.value) {
            let right = "https://HOST:PORT, or without `tls` http://HOST:PORT";
            return Err(Fault::at(&server, wrong.to_string(), right));
        }
        servers.push(server.value);
    }
    let name = match raw.name {
        Some(name) if !crate::name::is_name(&name.value) => {
            let what = format!("`{}` cannot be the name of a task", name.value);
            return Err(Fault::at(&name, what, "printable ASCII characters without blanks"));
        }
        name => name.map(|name| name.value),
    };
    let weight = raw.weight.map_or(Ok(1), |weight| size(&weight, TaskId::COUNT_MAX))?;
    let tls = raw.tls.map(tls).transpose()?;
    // The size has 20 bits.
    Ok(Parent { servers, name, weight: weight as u32, tls })
}

fn tls(raw: serde_saphyr::Spanned<raw::ParentTls>) -> Result<ClientOptions, Fault> {
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
