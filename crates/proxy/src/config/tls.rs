//! TLS and customers, as people write them.
//!
//! ```yaml
//! tls: { cert: cert.pem, key: key.pem, client_ca: ca.pem, client: required }
//! upstream: https://app:8443
//! upstream_tls: { ca: ca.pem, name: app.internal }
//! customers:
//!   shop: { quota: 2, identities: [spiffe://prod/ns/shop/**], ceiling: CRITICAL }
//! ```

use super::text::Level;
use super::{Quota, Wrong};
use crate::tls::UpstreamTls;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tidegate_core::fleet;
use tidegate_tls::{Client, ClientOptions, Clients, Identity, Pem, Roots, ServerOptions};
use tidegate_wire::customer::{Identities, InvalidRule};

/// What we show to callers, and they to us.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    client: Option<Shown>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Shown {
    Required,
    Optional,
}

impl Tls {
    pub(super) fn resolve(self) -> Result<ServerOptions, Wrong> {
        let mut options = ServerOptions::new(self.cert, self.key);
        options.clients = match (self.client_ca.map(Pem::from), self.client) {
            (Some(roots), Some(Shown::Optional)) => Clients::Optional(roots),
            (Some(roots), _) => Clients::Required(roots),
            (None, None) => Clients::Ignored,
            (None, Some(_)) => {
                let what =
                    "tls.client without tls.client_ca: nobody's certificate could be checked";
                return Err((what.to_owned(), "client_ca: FILE with the roots of callers".into()));
            }
        };
        Ok(options)
    }
}

/// What programs behind us show, and we to them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Upstream {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    name: Option<String>,
}

impl Upstream {
    pub(super) fn resolve(self, key: &str) -> Result<UpstreamTls, Wrong> {
        let options = options(self.ca, self.cert, self.key, key)?;
        if let Some(name) = &self.name {
            Client::name(name).map_err(|wrong| {
                (format!("{key}.name: {}: {}", wrong.place, wrong.what), wrong.right.into())
            })?;
        }
        Ok(UpstreamTls { options, name: self.name })
    }
}

/// Whom to believe, and what to show, as `of` says.
pub(super) fn options(
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    of: &str,
) -> Result<ClientOptions, Wrong> {
    let mut options = ClientOptions::default();
    if let Some(roots) = ca {
        options.roots = Roots::Given(roots.into());
    }
    options.identity = match (cert, key) {
        (Some(cert), Some(key)) => Some(Identity::new(cert, key)),
        (None, None) => None,
        _ => {
            let what = format!("{of} has one of `cert` and `key`");
            return Err((what, "both, or neither".to_owned()));
        }
    };
    Ok(options)
}

/// One who is charged for what it uses.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Customer {
    quota: Option<Quota>,
    #[serde(default)]
    identities: Vec<String>,
    ceiling: Option<Level>,
}

pub(super) type Customers = BTreeMap<String, Customer>;

/// The first that has a limit of its own.
pub(super) fn limited(customers: &Customers) -> Option<&str> {
    let mut limited = customers.iter().filter(|(_, customer)| customer.quota.is_some());
    limited.next().map(|(name, _)| name.as_str())
}

/// Who is who, and what each customer may use. `shown` says whether callers show certificates.
pub(super) fn customers(
    customers: Customers,
    delegators: &[String],
    shown: bool,
    mut identities: Identities,
) -> Result<(Vec<(String, fleet::Limits)>, Identities), Wrong> {
    if !shown && (!customers.is_empty() || !delegators.is_empty()) {
        let what = "customers are told by their certificates, and callers are not asked for any";
        let right = "tls with client_ca, or everyone_else instead, which is for all";
        return Err((what.to_owned(), right.to_owned()));
    }
    let right = "spiffe://DOMAIN/PATH, where * fits one part and ** the rest, or dns:NAME";
    let wrong = |key: String, rule: InvalidRule| (format!("{key}: {rule}"), right.to_owned());
    for name in delegators {
        identities =
            identities.delegator(name).map_err(|rule| wrong("delegators".to_owned(), rule))?;
    }
    let mut limits = Vec::with_capacity(customers.len());
    for (name, customer) in customers {
        if customer.identities.is_empty() && delegators.is_empty() {
            let what = format!("customers.{name} has no identities: nobody could be it");
            return Err((what, format!("identities: [{right}]")));
        }
        let key = || format!("customers.{name}.identities");
        for identity in &customer.identities {
            identities = identities.belongs(identity, &name).map_err(|rule| wrong(key(), rule))?;
            if let Some(ceiling) = customer.ceiling {
                identities =
                    identities.ceiling(identity, ceiling.0).map_err(|rule| wrong(key(), rule))?;
            }
        }
        let quota = match customer.quota {
            Some(quota) => quota.limits(&format!("customers.{name}.quota"))?,
            None => fleet::Limits::UNLIMITED,
        };
        limits.push((name, quota));
    }
    Ok((limits, identities))
}
