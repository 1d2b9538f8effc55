//! The server's side over real sockets: axum, tonic and plain hyper.
#![cfg(not(feature = "loom"))]

mod axum_http;
mod support;
