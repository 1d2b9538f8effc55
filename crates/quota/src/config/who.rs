//! Who may do what, as the file says it.
//!
//! Identities are proved by certificates, so lists of them need `tls.client_ca`; and where everyone
//! proves who they are, each service has to say whom it listens to. Nothing is open by an omission.
//! Where nobody proves anything, whoever can reach the port is believed: that is for loopback, or
//! for those who say that they want it.

use super::fault::Fault;
use super::raw;
use crate::access::{DoormanAccess, ServiceAccess};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use tidegate_core::doorman::Repository;
use tidegate_tls::{Clients, ServerOptions};
use tidegate_wire::customer::IdentityPattern;

const RIGHT: &str = "spiffe://DOMAIN/PATH, where * fits one part and ** the rest, or dns:NAME";

/// An address that other machines can reach, while callers prove nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} can be reached by other machines, and nobody proves who they are")]
pub struct Exposed(pub SocketAddr);

impl Exposed {
    /// What would be right.
    pub const REMEDY: &str = "`tls` with `cert`, `key` and `client_ca`, an address of loopback, or \
                              `trust_network: true` if everyone who can reach it may be believed";

    pub(super) fn check(listen: SocketAddr, identified: bool, trusted: bool) -> Result<(), Self> {
        if identified || trusted || listen.ip().is_loopback() { Ok(()) } else { Err(Self(listen)) }
    }
}

/// Reads lists of identities.
pub(super) struct Reader {
    /// Callers show certificates.
    pub(super) identified: bool,
}

impl Reader {
    pub(super) fn list(&self, who: Option<raw::Who>) -> Result<Vec<IdentityPattern>, Fault> {
        let Some(who) = who else { return Ok(Vec::new()) };
        if !self.identified {
            let what = "callers are told by their certificates, and are not asked for any";
            return Err(Fault::at(&who, what, "`tls` with `cert`, `key` and `client_ca`"));
        }
        let parse = |text: serde_saphyr::Spanned<String>| {
            IdentityPattern::parse(&text.value)
                .map_err(|rule| Fault::at(&text, rule.to_string(), RIGHT))
        };
        who.value.into_iter().map(parse).collect()
    }

    /// Whom a service listens to.
    pub(super) fn service(
        &self,
        name: &serde_saphyr::Spanned<String>,
        [tasks, zones, envoys]: [Option<raw::Who>; 3],
        customers: Vec<(IdentityPattern, String)>,
    ) -> Result<ServiceAccess, Fault> {
        let (tasks, zones, envoys) = (self.list(tasks)?, self.list(zones)?, self.list(envoys)?);
        let access = ServiceAccess { tasks, zones, envoys, customers };
        if self.identified && access.is_closed() {
            let what = format!("nobody may report for service `{}`", name.value);
            return Err(Fault::at(
                name,
                what,
                format!("`tasks: [...]` or `envoys: [...]`: {RIGHT}"),
            ));
        }
        Ok(access)
    }

    /// Who may ask for Doorman's resources; `own` are those of each template.
    pub(super) fn doorman(
        &self,
        clients: Option<raw::Who>,
        servers: Option<raw::Who>,
        own: Vec<(String, serde_saphyr::Location, Option<raw::Who>)>,
        templates: Option<Repository>,
    ) -> Result<DoormanAccess, Fault> {
        let (everywhere, servers) = (self.list(clients)?, self.list(servers)?);
        let mut clients = BTreeMap::new();
        for (glob, at, who) in own {
            let list = if who.is_some() { self.list(who)? } else { everywhere.clone() };
            if self.identified && list.is_empty() && servers.is_empty() {
                let what = format!("nobody may ask for `{glob}`");
                return Err(Fault::new(at, what, format!("`clients: [...]`: {RIGHT}")));
            }
            // The first of two that are the same counts, as it does for everything else.
            clients.entry(glob).or_insert(list);
        }
        Ok(DoormanAccess { templates, clients, servers })
    }
}

pub(super) fn tls(raw: raw::Tls) -> ServerOptions {
    let mut options = ServerOptions::new(PathBuf::from(raw.cert), PathBuf::from(raw.key));
    if let Some(roots) = raw.client_ca {
        options.clients = Clients::Required(PathBuf::from(roots).into());
    }
    options
}
