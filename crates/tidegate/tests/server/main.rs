//! The server's side over real sockets: axum, tonic and plain hyper.
#![cfg(not(feature = "loom"))]

mod attribution;
mod axum_http;
mod endings;
mod metrics;
mod overload;
mod reasons;
mod service;
mod support;
mod tonic_grpc;
mod trust;
