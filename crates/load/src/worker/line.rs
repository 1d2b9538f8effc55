//! What carries one request at a time.

use crate::plan::Protocol;
use crate::request::{Ask, Requests};
use crate::transport::Dial;
use crate::verdict::{Failed, Verdict};
use crate::{h1, h2};
use std::rc::Rc;
use std::time::Instant;

/// A connection of HTTP/1.1, or a stream of HTTP/2.
#[derive(Debug)]
pub(super) enum Line {
    Http1(Box<h1::Connection>),
    H2(h2::Stream),
}

impl Line {
    pub(super) fn http1() -> Self {
        Self::Http1(Box::new(h1::Connection::new()))
    }

    pub(super) fn h2(shared: Rc<h2::Shared>, protocol: Protocol) -> Self {
        Self::H2(h2::Stream::new(shared, protocol))
    }

    pub(super) async fn connect(&mut self, dial: &Dial) -> Result<(), Failed> {
        match self {
            Self::Http1(connection) => connection.connect(dial).await,
            Self::H2(stream) => stream.connect(dial).await,
        }
    }

    pub(super) async fn attempt(
        &mut self,
        dial: &Dial,
        requests: &Requests,
        ask: &Ask,
        sent: &mut Option<Instant>,
    ) -> Result<Verdict, Failed> {
        match self {
            Self::Http1(connection) => connection.attempt(dial, requests, ask, sent).await,
            Self::H2(stream) => stream.attempt(dial, requests, ask, sent).await,
        }
    }

    /// An attempt was given up on. Dropping it has reset its stream; a connection of HTTP/1.1 can
    /// only be closed.
    pub(super) fn abandon(&mut self) {
        if let Self::Http1(connection) = self {
            connection.close();
        }
    }
}
