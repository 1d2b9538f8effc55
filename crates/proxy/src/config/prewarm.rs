//! Requests before the first, as people write it.
//!
//! ```yaml
//! prewarm: { paths: [/, /search?q=a], times: 3, limit: 20s }
//! ```

use super::Wrong;
use super::text::Span;
use crate::prewarm::PrewarmConfig;
use core::num::NonZeroU32;
use http::uri::PathAndQuery;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prewarm {
    paths: Vec<String>,
    times: Option<NonZeroU32>,
    limit: Option<Span>,
}

impl Prewarm {
    pub(super) fn resolve(self) -> Result<PrewarmConfig, Wrong> {
        let path = |text: String| {
            let path = text.parse::<PathAndQuery>().ok().filter(|_| text.starts_with('/'));
            path.ok_or_else(|| (format!("prewarm: `{text}` is no path"), "such as /search".into()))
        };
        let paths = self.paths.into_iter().map(path).collect::<Result<Vec<_>, _>>()?;
        if paths.is_empty() {
            let what = "prewarm.paths is empty: there is nothing to ask for".to_owned();
            return Err((what, "paths: [/], or no prewarm".to_owned()));
        }
        let mut config = PrewarmConfig::new(paths);
        config.times = self.times.unwrap_or(config.times);
        config.limit = self.limit.map_or(config.limit, |limit| limit.0);
        Ok(config)
    }
}
