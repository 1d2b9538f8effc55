//! Bytes to and from a server, plain or encrypted, and counted.

use crate::plan::Protocol;
use crate::target::Target;
use crate::tls::Tls;
use crate::verdict::{ErrorKind, Failed};
use core::cell::Cell;
use core::pin::Pin;
use core::task::{Context, Poll};
use rustls::AlertDescription;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// What has gone over the connections of one thread: bytes as the application sees them.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) received: Cell<u64>,
    pub(crate) sent: Cell<u64>,
    /// Connections that were made.
    pub(crate) connections: Cell<u64>,
}

fn add(cell: &Cell<u64>, more: usize) {
    cell.set(cell.get() + more as u64);
}

/// How to get to the server.
#[derive(Debug)]
pub(crate) struct Dial {
    addresses: Vec<SocketAddr>,
    tls: Option<Tls>,
    protocol: Protocol,
    pub(crate) traffic: Rc<Traffic>,
    /// The address that worked last. `localhost` has two, and servers often listen at one.
    preferred: Cell<usize>,
}

impl Dial {
    pub(crate) fn new(target: &Target, tls: Option<Tls>, protocol: Protocol) -> Self {
        Self {
            addresses: target.addresses.clone(),
            tls,
            protocol,
            traffic: Rc::default(),
            preferred: Cell::new(0),
        }
    }

    pub(crate) async fn connect(&self) -> Result<Transport, Failed> {
        let stream = self.connect_tcp().await;
        let stream = stream.map_err(|error| Failed::unsent(ErrorKind::of(&error)))?;
        add(&self.traffic.connections, 1);
        let traffic = Rc::clone(&self.traffic);
        let Some(tls) = &self.tls else {
            return Ok(Transport { io: Io::Plain(stream), traffic });
        };
        let connector = TlsConnector::from(std::sync::Arc::clone(&tls.config));
        let stream = connector.connect(tls.name.clone(), stream).await;
        let stream = stream.map_err(|error| Failed::unsent(tls_kind(&error)))?;
        let chosen = stream.get_ref().1.alpn_protocol();
        let right = match chosen {
            Some(chosen) => chosen == self.protocol.alpn(),
            // A server that knows nothing of ALPN speaks HTTP/1.1.
            None => self.protocol == Protocol::Http1,
        };
        if !right {
            return Err(Failed::unsent(ErrorKind::Alpn));
        }
        Ok(Transport { io: Io::Encrypted(Box::new(stream)), traffic })
    }

    async fn connect_tcp(&self) -> io::Result<TcpStream> {
        let mut result = Err(io::ErrorKind::AddrNotAvailable.into());
        for turn in 0..self.addresses.len() {
            let place = (self.preferred.get() + turn) % self.addresses.len();
            result = TcpStream::connect(self.addresses[place]).await;
            if let Ok(stream) = &result {
                self.preferred.set(place);
                stream.set_nodelay(true)?;
                break;
            }
        }
        result
    }
}

fn tls_kind(error: &io::Error) -> ErrorKind {
    let none_of_ours = AlertDescription::NoApplicationProtocol;
    match error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) if *alert == none_of_ours => ErrorKind::Alpn,
        Some(_) => ErrorKind::Tls,
        None => ErrorKind::of(error),
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Transport {
    io: Io,
    traffic: Rc<Traffic>,
}

#[derive(Debug)]
enum Io {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Transport {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Io::Encrypted(stream) => Pin::new(stream).poll_read(cx, buffer),
        };
        add(&self.traffic.received, buffer.filled().len() - before);
        result
    }
}

impl AsyncWrite for Transport {
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Io::Encrypted(stream) => Pin::new(stream).poll_write(cx, bytes),
        };
        if let Poll::Ready(Ok(written)) = &result {
            add(&self.traffic.sent, *written);
        }
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Io::Encrypted(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        };
        if let Poll::Ready(Ok(written)) = &result {
            add(&self.traffic.sent, *written);
        }
        result
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(stream) => stream.is_write_vectored(),
            Io::Encrypted(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Io::Encrypted(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Encrypted(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
