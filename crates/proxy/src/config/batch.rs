//! The queue before a service, as people write it.
//!
//! ```yaml
//! role: batch
//! services:
//!   - name: inventory
//!     listen: 0.0.0.0:7001
//!     dns: inventory.internal:8080
//!     queue: { items: 10000, bytes: 268435456 }
//!     pace: { connections: 16, utilization: 0.8 }
//! ```

use super::Wrong;
use super::text::Span;
use crate::outbound::QueueConfig;
use core::num::{NonZeroU32, NonZeroUsize};
use serde::Deserialize;
use tidegate_core::batch::BatchProxy;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Queue {
    items: Option<NonZeroUsize>,
    bytes: Option<u64>,
    body: Option<usize>,
    attempts: Option<NonZeroU32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pace {
    connections: Option<NonZeroUsize>,
    window: Option<NonZeroU32>,
    utilization: Option<f64>,
    growth: Option<f64>,
    backoff: Option<f64>,
    probe: Option<Span>,
    pushback_max: Option<Span>,
}

/// Both together, of a service.
pub(super) fn resolve(queue: &Queue, pace: &Pace, of: &str) -> Result<QueueConfig, Wrong> {
    let mut config = QueueConfig::default();
    if let Some(items) = queue.items {
        config.batch.queue_max = items.get();
    }
    config.bytes_max = queue.bytes.unwrap_or(config.bytes_max);
    config.body_max = queue.body.unwrap_or(config.body_max);
    config.attempts_max = queue.attempts.unwrap_or(config.attempts_max);
    config.connections_max = pace.connections.unwrap_or(config.connections_max);
    let inner = &mut config.batch.pace;
    if let Some(window) = pace.window {
        inner.window_max = window.get();
    }
    inner.utilization_target = pace.utilization.unwrap_or(inner.utilization_target);
    inner.growth = pace.growth.unwrap_or(inner.growth);
    inner.backoff = pace.backoff.unwrap_or(inner.backoff);
    if let Some(probe) = pace.probe {
        inner.probe_interval = probe.0;
    }
    if let Some(max) = pace.pushback_max {
        inner.pushback_max = max.0;
    }
    // Whether it makes sense is core's to say.
    match BatchProxy::<()>::new(config.batch) {
        Ok(_) => Ok(config),
        Err(wrong) => Err((format!("pace {of}: {wrong}"), "as in docs/proxy-batch.md".to_owned())),
    }
}
