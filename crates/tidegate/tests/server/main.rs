//! The server's side over real sockets: axum, tonic and plain hyper.
#![cfg(not(feature = "loom"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod attribution;
mod axum_http;
mod endings;
mod grpc_web;
mod metrics;
mod overload;
mod reasons;
mod service;
mod support;
mod tonic_grpc;
mod tracing_spans;
mod trust;
