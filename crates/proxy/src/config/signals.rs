//! Signals of the user's own, as people write them.
//!
//! ```yaml
//! signals:
//!   queue: { file: /run/app/queue, target: 100 }
//!   lag: { url: "http://127.0.0.1:9000/lag", target: 1.5, period: 2s, when_stale: hold }
//! ```

use super::Wrong;
use super::text::Span;
use crate::own::{SignalConfig, Source, WhenStale};
use core::time::Duration;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// More often than this nobody can act on it: load is judged over tens of milliseconds.
const PERIOD_MIN: Duration = Duration::from_millis(10);

/// Where a number comes from, and what it should not exceed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    file: Option<PathBuf>,
    url: Option<String>,
    target: f64,
    period: Option<Span>,
    stale_after: Option<Span>,
    when_stale: Option<When>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum When {
    Ignore,
    Hold,
}

pub(super) fn resolve(all: BTreeMap<String, Raw>) -> Result<Vec<SignalConfig>, Wrong> {
    all.into_iter().map(|(name, raw)| raw.resolve(&name)).collect()
}

impl Raw {
    fn resolve(self, name: &str) -> Result<SignalConfig, Wrong> {
        let of = format!("signals.{name}");
        let wrong = |what: &str, right: &str| Err((format!("{of}{what}"), right.to_owned()));
        let source = match (self.file, &self.url) {
            (Some(file), None) => Source::File(file),
            (None, Some(url)) => match parts(url) {
                Some((authority, path)) => Source::Url { authority, path },
                None => return wrong(".url is no place", "http://HOST:PORT/PATH"),
            },
            _ => return wrong(" has neither file nor url, or both", "file: PATH, or url: URL"),
        };
        if !(self.target.is_finite() && self.target > 0.0) {
            return wrong(".target is no target", "a number above zero, such as 100");
        }
        let mut config = SignalConfig::new(name.to_owned(), source, self.target);
        if let Some(period) = self.period {
            config.period = period.0;
        }
        if config.period < PERIOD_MIN {
            return wrong(".period is too short", "10ms or more");
        }
        if let Some(stale_after) = self.stale_after {
            config.stale_after = stale_after.0;
        }
        if config.stale_after < config.period {
            return wrong(".stale_after is shorter than its period", "some periods");
        }
        if let Some(when) = self.when_stale {
            config.when_stale = match when {
                When::Ignore => WhenStale::Ignore,
                When::Hold => WhenStale::Hold,
            };
        }
        Ok(config)
    }
}

/// Host and port, and the path. Names and passwords would be shown in messages: they are refused.
fn parts(url: &str) -> Option<(String, String)> {
    let uri: http::Uri = url.parse().ok()?;
    let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"))?;
    authority.port_u16().filter(|_| !authority.as_str().contains('@'))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    Some((authority.to_string(), path.to_owned()))
}
