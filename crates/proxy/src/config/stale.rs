//! Copies of answers, as people write it.
//!
//! ```yaml
//! stale: { memory: 67108864, copy_max: 262144, if_error: 60s }
//! ```

use super::text::Span;
use crate::stale::StaleConfig;
use core::num::NonZeroUsize;
use serde::Deserialize;

/// It is there if copies are to be kept, be it empty.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stale {
    memory: Option<NonZeroUsize>,
    copy_max: Option<NonZeroUsize>,
    if_error: Option<Span>,
}

impl From<Stale> for StaleConfig {
    fn from(raw: Stale) -> Self {
        let mut config = Self::default();
        config.memory = raw.memory.map_or(config.memory, NonZeroUsize::get);
        config.copy_max = raw.copy_max.map_or(config.copy_max, NonZeroUsize::get);
        config.if_error = raw.if_error.map_or(config.if_error, |span| span.0);
        config
    }
}
