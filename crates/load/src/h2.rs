//! Streams of HTTP/2 connections, for HTTP and for gRPC.
//!
//! Several streams share a connection. If it breaks, the first one that notices makes a new one and
//! the others take that: each connection has a number, and who asks for one says which number has
//! failed it.

use crate::plan::Protocol;
use crate::request::{Ask, Requests};
use crate::transport::Dial;
use crate::verdict::{ErrorKind, Failed, Verdict};
use bytes::Bytes;
use core::future::poll_fn;
use h2::client::{Builder, SendRequest};
use http::HeaderMap;
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::Mutex;

/// What the server may send before we say go on, for a stream and for a connection: more than any
/// answer under test has, so that it is the server that is measured and not our windows.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;

/// A connection that streams share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    current: Mutex<Current>,
}

#[derive(Debug, Default)]
struct Current {
    sender: Option<SendRequest<Bytes>>,
    number: u64,
}

impl Shared {
    /// The current connection, or a new one if the current one is number `failed`.
    async fn sender(&self, dial: &Dial, failed: u64) -> Result<(SendRequest<Bytes>, u64), Failed> {
        let mut current = self.current.lock().await;
        if let Some(sender) = &current.sender
            && current.number != failed
        {
            return Ok((sender.clone(), current.number));
        }
        current.sender = None;
        let transport = dial.connect().await?;
        let handshake = Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false)
            .handshake(transport)
            .await;
        let (sender, connection) = handshake.map_err(|error| Failed::unsent(kind_of(&error)))?;
        tokio::task::spawn_local(async {
            // Whoever asks on it is told.
            let _ = connection.await;
        });
        current.number += 1;
        current.sender = Some(sender.clone());
        Ok((sender, current.number))
    }
}

/// A place for a request at a time.
#[derive(Debug)]
pub(crate) struct Stream {
    shared: Rc<Shared>,
    sender: Option<SendRequest<Bytes>>,
    number: u64,
    protocol: Protocol,
}

impl Stream {
    pub(crate) const fn new(shared: Rc<Shared>, protocol: Protocol) -> Self {
        Self { shared, sender: None, number: 0, protocol }
    }

    /// Connects, unless there is a connection.
    pub(crate) async fn connect(&mut self, dial: &Dial) -> Result<(), Failed> {
        if self.sender.is_none() {
            let (sender, number) = self.shared.sender(dial, self.number).await?;
            (self.sender, self.number) = (Some(sender), number);
        }
        Ok(())
    }

    /// A connection that takes a request, however often it has to be made anew: twice.
    async fn ready(&mut self, dial: &Dial) -> Result<&mut SendRequest<Bytes>, Failed> {
        self.connect(dial).await?;
        if let Some(sender) = &mut self.sender
            && poll_fn(|cx| sender.poll_ready(cx)).await.is_err()
        {
            self.sender = None;
            self.connect(dial).await?;
        }
        self.sender.as_mut().ok_or(Failed::unsent(ErrorKind::ConnectionClosed))
    }

    /// Asks, and waits for the whole answer. `sent` is when it was handed to the connection.
    pub(crate) async fn attempt(
        &mut self,
        dial: &Dial,
        requests: &Requests,
        ask: &Ask,
        sent: &mut Option<Instant>,
    ) -> Result<Verdict, Failed> {
        let protocol = self.protocol;
        let sender = self.ready(dial).await?;
        let (request, body) = requests.build(ask);
        *sent = Some(Instant::now());
        let result = exchange(sender, request, body, protocol).await;
        if result.as_ref().is_err_and(|failed| failed.kind != ErrorKind::StreamReset) {
            self.sender = None;
        }
        result
    }
}

async fn exchange(
    sender: &mut SendRequest<Bytes>,
    request: http::Request<()>,
    body: Bytes,
    protocol: Protocol,
) -> Result<Verdict, Failed> {
    let (response, mut stream) =
        sender.send_request(request, body.is_empty()).map_err(|error| failed(&error))?;
    if !body.is_empty() {
        stream.send_data(body, true).map_err(|error| failed(&error))?;
    }
    let (parts, mut body) = response.await.map_err(|error| failed(&error))?.into_parts();
    while let Some(data) = body.data().await {
        let data = match data {
            Ok(data) => data,
            // A server that has answered and needs no more of the request says so like this.
            Err(error) if error.reason() == Some(h2::Reason::NO_ERROR) => break,
            Err(error) => return Err(failed(&error)),
        };
        // A closed stream needs no room.
        let _ = body.flow_control().release_capacity(data.len());
    }
    let trailers = match protocol {
        Protocol::Grpc => body.trailers().await.map_err(|error| failed(&error))?,
        _ => None,
    };
    Ok(verdict(parts.status, &parts.headers, trailers.as_ref(), protocol))
}

fn verdict(
    status: http::StatusCode,
    headers: &HeaderMap,
    trailers: Option<&HeaderMap>,
    protocol: Protocol,
) -> Verdict {
    match protocol {
        Protocol::Grpc => Verdict::of_grpc(status, headers, trailers),
        _ => Verdict::of_http(status.as_u16(), headers),
    }
}

fn failed(error: &h2::Error) -> Failed {
    // The server says that it has not looked at it.
    let unseen = error.reason() == Some(h2::Reason::REFUSED_STREAM) && error.is_remote();
    Failed { kind: kind_of(error), sent: !unseen }
}

fn kind_of(error: &h2::Error) -> ErrorKind {
    if let Some(io) = error.get_io() {
        ErrorKind::of(io)
    } else if error.is_go_away() {
        ErrorKind::ConnectionClosed
    } else if error.is_reset() && error.is_remote() {
        ErrorKind::StreamReset
    } else {
        ErrorKind::Malformed
    }
}
