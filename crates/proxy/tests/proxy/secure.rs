//! TLS in front of the proxy and behind it.

use crate::authority::{self, Authority, connect};
use crate::support::{self, Running, config, echo, outbound, program, service, text};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use std::path::PathBuf;
use tidegate_core::CostRate;
use tidegate_core::Criticality;
use tidegate_core::fleet::Limits;
use tidegate_proxy::EdgeConfig;
use tidegate_proxy::edge::Rule;
use tidegate_tls::{Clients, Offer, Pem, ServerOptions};
use tidegate_wire::customer::{Identities, IdentityPattern};

fn get() -> Request<Full<Bytes>> {
    let request = Request::builder().uri("/a?b").header("host", "shop.example");
    request.body(Full::default()).unwrap()
}

#[tokio::test]
async fn callers_speak_what_they_have_agreed_on() {
    let authority = Authority::new();
    let mut config = config(program(echo).await);
    config.tls = Some(authority.server(&["localhost"]));
    let proxy = Running::start(config);
    let options = authority.client(None);
    let mut client = authority::client(proxy.address(), &options).await;
    let answer = text(client.send_request(get()).await.unwrap()).await;
    assert!(answer.contains("via: 1.1 tidegate"), "{answer}");
    let mut client = authority::client_h2(proxy.address(), &options).await;
    let request = Request::builder().uri("https://shop.example/a?b").body(Full::default()).unwrap();
    let answer = text(client.send_request(request).await.unwrap()).await;
    assert!(answer.starts_with("GET /a?b HTTP/1.1\n"), "{answer}");
    assert!(answer.contains("via: 2.0 tidegate"), "{answer}");
    assert!(answer.contains("host: shop.example"), "{answer}");
    // Who does not know us, and who does not encrypt.
    let stranger = Authority::new().client(None);
    assert!(connect(proxy.address(), &stranger, Offer::Either).await.is_err());
    let plain = support::exchange(proxy.address(), b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(!plain.contains("200 OK"), "{plain}");
}

#[tokio::test]
async fn customers_are_charged_by_their_certificates() {
    let authority = Authority::new();
    // Each request costs a quarter of a second of CPU, and says so.
    let upstream = program(|_| async {
        let cost = r#"JSON {"requestCost":{"cpu":0.25}}"#;
        let response = Response::builder().header("endpoint-load-metrics", cost);
        response.body(Full::<Bytes>::default()).unwrap()
    })
    .await;
    let mut config = config(upstream);
    let mut tls = authority.server(&["localhost"]);
    tls.clients = Clients::Optional(Pem::text(&authority.root));
    config.tls = Some(tls);
    let small = Limits::total(CostRate::from_cpus(0.001).unwrap());
    config.customers = vec![("shop".to_owned(), small), ("maps".to_owned(), Limits::UNLIMITED)];
    config.identities = Identities::default()
        .belongs("spiffe://d.example/shop/**", "shop")
        .unwrap()
        .belongs("dns:maps.internal", "maps")
        .unwrap();
    let proxy = Running::start(config);
    let statuses = async |shows| {
        let options = authority.client(shows);
        let mut client = authority::client(proxy.address(), &options).await;
        let mut statuses = Vec::new();
        for _ in 0..5 {
            client.ready().await.unwrap();
            let response = client.send_request(get()).await.unwrap();
            statuses.push(response.status());
            text(response).await;
        }
        statuses
    };
    // The first is let in; what it has cost is more than there will be for minutes.
    let shop = statuses(Some("spiffe://d.example/shop/web")).await;
    assert_eq!(shop[0], StatusCode::OK);
    assert_eq!(shop[4], StatusCode::TOO_MANY_REQUESTS, "{shop:?}");
    // On another connection and by another workload it is the same customer.
    let again = statuses(Some("spiffe://d.example/shop/till")).await;
    assert_eq!(again, [StatusCode::TOO_MANY_REQUESTS; 5]);
    assert_eq!(statuses(Some("maps.internal")).await, [StatusCode::OK; 5]);
    assert_eq!(statuses(None).await, [StatusCode::OK; 5]);
    // Signed by somebody else: TLS 1.3 tells the client with its first answer.
    let options = Authority::new().client(Some("spiffe://d.example/maps"));
    let mut forged = authority.client(None);
    forged.identity = options.identity;
    let io = connect(proxy.address(), &forged, Offer::Http1).await;
    if let Ok(mut io) = io {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let _ = io.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(io.read_u8().await.is_err());
    }
}

/// Strangers claim in vain, partners up to their ceilings.
#[tokio::test]
async fn an_edge_knows_partners_by_their_certificates() {
    let authority = Authority::new();
    let rule = |identity: &str, ceiling| {
        let mut rule = Rule::new();
        rule.identity = Some(IdentityPattern::parse(identity).unwrap());
        rule.ceiling = Some(ceiling);
        rule
    };
    let mut edge = EdgeConfig::default();
    edge.criticality = Criticality::SheddablePlus;
    edge.rules = vec![
        rule("spiffe://partner.example/till", Criticality::CriticalPlus),
        rule("spiffe://partner.example/**", Criticality::Critical),
    ];
    let mut config = outbound(service(&[program(echo).await]));
    config.edge = Some(edge);
    let mut tls = authority.server(&["localhost"]);
    tls.clients = Clients::Optional(Pem::text(&authority.root));
    config.tls = Some(tls);
    let proxy = Running::start(config);
    for (shows, level) in [
        (None, "SHEDDABLE_PLUS"),
        (Some("spiffe://other.example/till"), "SHEDDABLE_PLUS"),
        (Some("spiffe://partner.example/web"), "CRITICAL"),
        (Some("spiffe://partner.example/till"), "CRITICAL_PLUS"),
    ] {
        let mut client = authority::client(proxy.address(), &authority.client(shows)).await;
        let mut request = get();
        request.headers_mut().insert("x-criticality", "CRITICAL_PLUS".parse().unwrap());
        let answer = text(client.send_request(request).await.unwrap()).await;
        assert!(answer.contains(&format!("\nx-criticality: {level}\n")), "{shows:?}: {answer}");
        assert!(answer.contains("\nx-forwarded-for: 127.0.0.1\n"), "{answer}");
        assert!(answer.contains("\nx-forwarded-proto: https\n"), "{answer}");
    }
}

/// A directory that goes with its test.
struct Directory(PathBuf);

impl Directory {
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let (draft, path) = (self.0.join("draft"), self.0.join(name));
        std::fs::write(&draft, text).unwrap();
        std::fs::rename(draft, &path).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn new_certificates_cost_nobody_a_connection() {
    let (before, after) = (Authority::new(), Authority::new());
    let directory = std::env::temp_dir().join(format!("tidegate-secure-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let directory = Directory(directory);
    let write = |authority: &Authority| {
        let (certificate, key) = authority.sign(&["localhost"]);
        let certificate = directory.write("cert.pem", &certificate);
        ServerOptions::new(certificate, directory.write("key.pem", &key))
    };
    let mut config = config(program(echo).await);
    config.tls = Some(write(&before));
    let proxy = Running::start(config);
    let mut old = authority::client(proxy.address(), &before.client(None)).await;
    text(old.send_request(get()).await.unwrap()).await;
    write(&after);
    let options = after.client(None);
    while connect(proxy.address(), &options, Offer::Http1).await.is_err() {
        tokio::task::yield_now().await;
    }
    let mut new = authority::client(proxy.address(), &options).await;
    assert_eq!(new.send_request(get()).await.unwrap().status(), StatusCode::OK);
    old.ready().await.unwrap();
    assert_eq!(old.send_request(get()).await.unwrap().status(), StatusCode::OK);
}

/// A proxy in front of a program behind TLS that speaks this.
async fn in_front(ours: &Authority, theirs: &Authority, speaks: &[&[u8]]) -> Running {
    let mut options = theirs.server(&["localhost"]);
    options.clients = Clients::Required(Pem::text(&ours.root));
    let mut config = config(authority::program(options, speaks, echo).await);
    let mut tls = theirs.upstream(None);
    tls.options.identity = ours.client(Some("spiffe://d.example/proxy")).identity;
    config.upstream_tls = Some(tls);
    Running::start(config)
}

#[tokio::test]
async fn programs_behind_tls_are_spoken_to_as_they_like() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    for (speaks, line) in [
        (&[&b"h2"[..], b"http/1.1"][..], "GET https://shop.example/a?b HTTP/2.0\n"),
        (&[b"h2"], "GET https://shop.example/a?b HTTP/2.0\n"),
        (&[b"http/1.1"], "GET /a?b HTTP/1.1\n"),
        // It knows nothing of ALPN.
        (&[], "GET /a?b HTTP/1.1\n"),
    ] {
        let proxy = in_front(&ours, &theirs, speaks).await;
        let mut client = support::client(proxy.address()).await;
        for _ in 0..3 {
            client.ready().await.unwrap();
            let answer = text(client.send_request(get()).await.unwrap()).await;
            assert!(answer.starts_with(line), "{speaks:?}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_program_that_is_not_who_it_should_be_gets_nothing() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let address = authority::program(theirs.server(&["localhost"]), &[], echo).await;
    let mut other = theirs.upstream(None);
    other.name = Some("other.internal".to_owned());
    // Signed by somebody else, and with another name than it should have.
    for tls in [ours.upstream(None), other] {
        let mut config = config(address);
        config.upstream_tls = Some(tls);
        let proxy = Running::start(config);
        let mut client = support::client(proxy.address()).await;
        let response = client.send_request(get()).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
        assert_eq!(response.headers()["x-tidegate-reason"], "upstream_unreachable");
    }
}

#[tokio::test]
async fn calls_go_out_encrypted() {
    let authority = Authority::new();
    for (speaks, line) in [
        (&[&b"h2"[..], b"http/1.1"][..], "GET https://shop.example/a?b HTTP/2.0\n"),
        (&[b"http/1.1"], "GET /a?b HTTP/1.1\n"),
    ] {
        let options = authority.server(&["localhost"]);
        let address = authority::program(options, speaks, echo).await;
        let mut service = service(&[address]);
        service.tls = Some(authority.upstream(None));
        let proxy = Running::start(outbound(service));
        let mut client = support::client(proxy.address()).await;
        for _ in 0..2 {
            client.ready().await.unwrap();
            let answer = text(client.send_request(get()).await.unwrap()).await;
            assert!(answer.starts_with(line), "{answer}");
        }
        let mut service = support::service(&[address]);
        service.tls = Some(Authority::new().upstream(None));
        let proxy = Running::start(outbound(service));
        let mut client = support::client(proxy.address()).await;
        let response = client.send_request(get()).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    }
}

#[test]
fn wrong_files_are_an_error_at_the_start() {
    let mut config = config("127.0.0.1:1".parse().unwrap());
    config.tls = Some(ServerOptions::new(PathBuf::from("/nowhere/cert.pem"), Pem::text("")));
    let error = tidegate_proxy::Proxy::start(config).unwrap_err().to_string();
    assert!(error.contains("/nowhere/cert.pem") && error.contains("right: "), "{error}");
}
