//! Beside the real OpenTelemetry SDK: metrics as it collects them, baggage as it writes it.

#![allow(clippy::unwrap_used, reason = "all of this is tests, also what is not marked as such")]

mod baggage;
mod metrics;
