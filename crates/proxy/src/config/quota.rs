//! Where limits come from, as people write it.
//!
//! ```yaml
//! service: search
//! quota: { servers: ["https://quota:7300"], tls: { ca: ca.pem, cert: cert.pem, key: key.pem } }
//! ```

use super::{ConfigError, tls};
use crate::quota::QuotaConfig;
use serde::Deserialize;
use serde_saphyr::Spanned;
use std::path::PathBuf;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Quota {
    servers: Vec<String>,
    service: Option<String>,
    name: Option<String>,
    tls: Option<Shown>,
}

/// What to show to a server, and whom to believe.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shown {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// What else a file says that has to go with it.
pub(super) struct Beside<'a> {
    /// The service has a name of its own.
    pub(super) named: bool,
    pub(super) everyone_else: bool,
    pub(super) customers: &'a tls::Customers,
}

/// Reads it, or says what is wrong there.
pub(super) fn resolve(
    file: &str,
    raw: Spanned<Quota>,
    beside: &Beside<'_>,
) -> Result<QuotaConfig, ConfigError> {
    let at = Some((raw.referenced.line().max(1), raw.referenced.column().max(1)));
    let wrong = |what: String, right: &str| {
        let (file, right) = (file.to_owned(), right.to_owned());
        Err(ConfigError { file, at, what, right })
    };
    let both = |key: &str| {
        wrong(
            format!("quota has a server that tells limits, and {key} says some as well"),
            "one of both: the server's file has limits for all proxies, this one for itself alone",
        )
    };
    if beside.everyone_else {
        return both("everyone_else");
    }
    if let Some(name) = tls::limited(beside.customers) {
        return both(&format!("customers.{name}.quota"));
    }
    let Quota { servers, service, name, tls } = raw.value;
    if service.is_none() && !beside.named {
        return wrong(
            "quota without the name of the service, which is how the server knows it".to_owned(),
            "service: NAME at the top of the file, or in quota, as in the server's file",
        );
    }
    let mut config = QuotaConfig { servers, service, name, tls: None };
    if let Some(Shown { ca, cert, key }) = tls {
        match tls::options(ca, cert, key, "quota.tls") {
            Ok(options) => config.tls = Some(options),
            Err((what, right)) => return wrong(what, &right),
        }
    }
    match config.check() {
        Ok(()) => Ok(config),
        Err(error) => wrong(
            format!("quota: {error}"),
            "servers: [https://HOST:PORT], or without tls http://HOST:PORT; names without blanks",
        ),
    }
}
