//! Who speaks with whom, and by which protocol.

use crate::authority::{Authority, uris};
use std::time::Duration;
use tidegate_tls::tokio_rustls::client::TlsStream;
use tidegate_tls::{AcceptError, Client, Clients, ConnectError, HANDSHAKE_MAX, Offer, Pem, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A connection from `client`: what it has of it, and who the server thinks it is.
pub(crate) async fn meet(
    server: &Server,
    client: &Client,
    offer: Offer,
) -> (Result<TlsStream<TcpStream>, ConnectError>, Result<Option<Box<str>>, AcceptError>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = async {
        let (io, _) = listener.accept().await.unwrap();
        let (mut stream, who) = server.accept(io, HANDSHAKE_MAX).await?;
        // A client of TLS 1.3 thinks that it is through before its certificate was looked at.
        stream.write_all(b"!").await.unwrap();
        tokio::spawn(async move {
            let mut more = Vec::new();
            let _ = stream.read_to_end(&mut more).await;
        });
        Ok(who)
    };
    let connected = async {
        let io = TcpStream::connect(address).await.unwrap();
        let name = Client::name("localhost").unwrap();
        let mut stream = client.connect(io, name, offer, HANDSHAKE_MAX).await?;
        match stream.read_u8().await {
            Ok(_) => Ok(stream),
            Err(error) => Err(ConnectError::Failed(error)),
        }
    };
    tokio::join!(connected, accepted)
}

#[tokio::test]
async fn protocols_are_agreed_on() {
    let authority = Authority::new();
    let (server, client) = (authority.server(), authority.client(None));
    for (offer, http2) in [(Offer::Either, true), (Offer::Http2, true), (Offer::Http1, false)] {
        let (stream, who) = meet(&server, &client, offer).await;
        assert_eq!(Client::speaks_http2(&stream.unwrap()), http2, "{offer:?}");
        assert_eq!(who.unwrap(), None);
    }
}

#[tokio::test]
async fn strangers_are_refused_on_both_sides() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let mut options = ours.localhost();
    options.clients = Clients::Required(Pem::text(&ours.root));
    let required = Server::new(options.clone()).unwrap();
    options.clients = Clients::Optional(Pem::text(&ours.root));
    let optional = Server::new(options).unwrap();
    let shop = || uris(&["spiffe://d.example/shop"]);
    let named = Some("spiffe://d.example/shop");
    for (server, client, expected) in [
        (&required, ours.client(Some(ours.sign(shop()))), Ok(named)),
        (&required, ours.client(None), Err(())),
        (&required, ours.client(Some(theirs.sign(shop()))), Err(())),
        (&optional, ours.client(Some(ours.sign(shop()))), Ok(named)),
        (&optional, ours.client(None), Ok(None)),
        (&optional, ours.client(Some(theirs.sign(shop()))), Err(())),
        // The client does not know who has signed for the server.
        (&optional, theirs.client(None), Err(())),
    ] {
        let (stream, who) = meet(server, &client, Offer::Either).await;
        assert_eq!(stream.is_ok(), expected.is_ok(), "{stream:?}");
        assert_eq!(who.as_ref().map(Option::as_deref).map_err(|_| ()), expected, "{who:?}");
    }
}

#[tokio::test]
async fn a_server_has_to_have_the_name_that_it_was_called_by() {
    let authority = Authority::new();
    let server = Server::new({
        let (certificate, key) = authority.sign(crate::authority::dns(&["app.internal"]));
        tidegate_tls::ServerOptions::new(Pem::text(certificate), Pem::text(key))
    });
    let (stream, _) = meet(&server.unwrap(), &authority.client(None), Offer::Either).await;
    let error = stream.unwrap_err().to_string();
    assert!(error.contains("certificate not valid for name"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_handshake_does_not_last() {
    let authority = Authority::new();
    let silent = || tokio::io::duplex(64);
    let (io, _peer) = silent();
    let accepted = authority.server().accept(io, Duration::from_secs(5)).await;
    assert!(matches!(accepted, Err(AcceptError::TimedOut)));
    let (io, _peer) = silent();
    let name = Client::name("localhost").unwrap();
    let client = authority.client(None);
    let connected = client.connect(io, name, Offer::Http1, Duration::from_secs(5)).await;
    assert!(matches!(connected, Err(ConnectError::TimedOut)));
}
