//! From a client's certificate to whom its requests are charged to, and what they may claim.

use crate::common::{Server, soon};
use crate::tls::{Authority, client_config, server_tls, uris};
use axum::Router;
use axum::routing::get;
use rustls::pki_types::ServerName;
use tidegate::{Criticality, Task, context};
use tidegate_core::fleet::Limits;
use tidegate_wire::customer::Identities;
use tidegate_wire::faults::Fault;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const SHOP: &str = "spiffe://d.example/ns/shop/sa/web";
const BLOCKED: &str = "spiffe://d.example/ns/blocked/sa/web";
const GATEWAY: &str = "spiffe://d.example/ns/edge/sa/gateway";
const BATCH: &str = "spiffe://d.example/ns/batch/sa/nightly";

fn task() -> Task {
    let identities = Identities::default()
        .customer("spiffe://d.example/ns/{customer}/sa/*")
        .unwrap()
        .delegator(GATEWAY)
        .unwrap()
        .ceiling(GATEWAY, Criticality::CriticalPlus)
        .unwrap()
        .ceiling(BATCH, Criticality::Sheddable)
        .unwrap();
    Task::builder("test")
        .identities(identities)
        .customer("shop", Limits::UNLIMITED)
        .customer("blocked", Limits::ZERO)
        .build()
        .unwrap()
}

/// Says whom a request is charged to, what it counts as, and whether its sender speaks for others.
fn router(task: &Task) -> Router {
    let answer = get(|| async {
        let customer = context::customer_name();
        let delegates = context::peer().is_some_and(|peer| peer.peer().is_delegator());
        let (customer, criticality) = (customer.as_deref().unwrap_or("-"), context::criticality());
        format!("{customer} {criticality} {delegates}")
    });
    Router::new().route("/", answer).layer(task.layer())
}

/// An encrypted connection that stays open.
struct Connection(BufReader<TlsStream<TcpStream>>);

impl Connection {
    async fn open(server: &Server, servers: &Authority, clients: &Authority, uri: &str) -> Self {
        let certificate = (!uri.is_empty()).then(|| clients.sign(uris(&[uri])));
        let io = soon(TcpStream::connect(server.address)).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let tls = TlsConnector::from(client_config(servers, certificate));
        Self(BufReader::new(soon(tls.connect(name, io)).await.unwrap()))
    }

    /// The status and the body.
    async fn ask(&mut self, headers: &[(&str, &str)]) -> (u16, String) {
        self.ask_for("/", headers).await
    }

    async fn ask_for(&mut self, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let mut text = format!("GET {path} HTTP/1.1\r\nhost: a\r\n");
        for (name, value) in headers {
            text.extend([name, ": ", value, "\r\n"]);
        }
        text += "\r\n";
        self.0.write_all(text.as_bytes()).await.unwrap();
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            soon(self.0.read_line(&mut line)).await.unwrap();
            let line = line.trim_end().to_lowercase();
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some(rest) = line.strip_prefix("content-length: ") {
                length = rest.parse().unwrap();
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        soon(self.0.read_exact(&mut body)).await.unwrap();
        (status, String::from_utf8(body).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_decides_who_pays_and_who_may_claim_what() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let task = task();
    let tls = server_tls(&servers, &clients, false);
    let server = Server::with(router(&task), |serve| serve.tls(tls)).await;
    let plus = ("x-criticality", "CRITICAL_PLUS");
    let for_shop = ("x-customer", "shop");
    for (uri, headers, expected) in [
        (SHOP, &[][..], "shop CRITICAL false"),
        // Nobody has granted it more, and it may not speak for others.
        (SHOP, &[plus, ("x-customer", "blocked")], "shop CRITICAL false"),
        (GATEWAY, &[plus], "- CRITICAL_PLUS true"),
        (GATEWAY, &[plus, for_shop], "shop CRITICAL_PLUS true"),
        (GATEWAY, &[("x-customer", "nobody")], "- CRITICAL true"),
        (BATCH, &[plus, for_shop], "- SHEDDABLE false"),
        // Without a certificate it is a stranger.
        ("", &[plus, for_shop], "- CRITICAL false"),
    ] {
        let mut connection = Connection::open(&server, &servers, &clients, uri).await;
        let (status, body) = connection.ask(headers).await;
        assert_eq!((status, body.as_str()), (200, expected), "{uri} {headers:?}");
    }
    let snapshot = task.snapshot();
    assert_eq!(snapshot.fault(Fault::CustomerByStranger), 3);
    assert_eq!(snapshot.fault(Fault::AboveCeiling), 3);
}

/// What a connection has proved is looked up once; what its requests say is read every time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_one_connection_are_charged_one_by_one() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let task = task();
    let tls = server_tls(&servers, &clients, true);
    let server = Server::with(router(&task), |serve| serve.tls(tls)).await;
    let mut blocked = Connection::open(&server, &servers, &clients, BLOCKED).await;
    let mut gateway = Connection::open(&server, &servers, &clients, GATEWAY).await;
    assert_eq!(blocked.ask(&[]).await.0, 429);
    // It cannot pass for somebody who has quota left.
    assert_eq!(blocked.ask(&[("x-customer", "shop")]).await.0, 429);
    assert_eq!(gateway.ask(&[("x-customer", "blocked")]).await.0, 429);
    assert_eq!(gateway.ask(&[("x-customer", "shop")]).await.0, 200);
    assert_eq!(gateway.ask(&[]).await, (200, "- CRITICAL true".to_owned()));
    task.set_limits("blocked", Limits::UNLIMITED).unwrap();
    assert_eq!(blocked.ask(&[]).await, (200, "blocked CRITICAL false".to_owned()));
}

/// Two tasks behind one listener have numbers, customers and ceilings of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_task_knows_its_peers_by_itself() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let first = task();
    let identities = Identities::default()
        .customer("spiffe://d.example/ns/{customer}/sa/*")
        .unwrap()
        .ceiling(SHOP, Criticality::Sheddable)
        .unwrap();
    let second = Task::builder("other")
        .identities(identities)
        .customer("other", Limits::UNLIMITED)
        .customer("shop", Limits::UNLIMITED)
        .build()
        .unwrap();
    let tls = server_tls(&servers, &clients, true);
    let both = router(&first).nest("/second", router(&second));
    let server = Server::with(both, |serve| serve.tls(tls)).await;
    let mut shop = Connection::open(&server, &servers, &clients, SHOP).await;
    for _ in 0..2 {
        let plus = [("x-criticality", "CRITICAL_PLUS")];
        assert_eq!(shop.ask(&plus).await, (200, "shop CRITICAL false".to_owned()));
        let (status, body) = shop.ask_for("/second", &plus).await;
        assert_eq!((status, body.as_str()), (200, "shop SHEDDABLE false"));
    }
}
