//! Endpoints that come and go.

use crate::support::{Running, client, outbound, program, service, text};
use bytes::Bytes;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tidegate_proxy::outbound::{Check, Endpoints, HealthConfig, Resolver, Voice};
use tokio::sync::mpsc;

/// Short, so that the tests are.
const PERIOD: Duration = Duration::from_millis(5);

/// A server that says its name.
async fn named(name: &'static str) -> SocketAddr {
    program(move |_| async move { Response::new(Full::new(Bytes::from_static(name.as_bytes()))) })
        .await
}

async fn ask(client: &mut SendRequest<Full<Bytes>>) -> String {
    client.ready().await.unwrap();
    let request = Request::get("/").header("host", "shop").body(Full::default()).unwrap();
    text(client.send_request(request).await.unwrap()).await
}

/// A voice, and what it says.
fn voice() -> (Voice, mpsc::UnboundedReceiver<String>) {
    let (said, heard) = mpsc::unbounded_channel();
    (Voice::new(move |line| _ = said.send(line.to_owned())), heard)
}

/// A file that goes with its test.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("tidegate-{}-{name}", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        file.write(text);
        file
    }

    /// In one step, as whoever reads it should find all or nothing.
    fn write(&self, text: &str) {
        let new = self.0.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &self.0).unwrap();
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn a_file_is_followed_and_a_bad_one_is_not() {
    let (one, two) = (named("one").await, named("two").await);
    let file = TempFile::new("followed", &format!("# ours\n{one}\n"));
    let mut service = service(&[]);
    service.endpoints = Endpoints::File { path: file.0.clone(), period: PERIOD };
    let mut config = outbound(service);
    let (voice, mut heard) = voice();
    config.voice = voice;
    let proxy = Running::start(config);
    let mut client = client(proxy.address()).await;
    assert_eq!(ask(&mut client).await, "one");

    file.write(&two.to_string());
    assert_eq!(heard.recv().await.unwrap(), "endpoints of shop: 1 in its file");
    while ask(&mut client).await != "two" {}

    file.write(&format!("{one}\nnowhere\n"));
    let said = heard.recv().await.unwrap();
    assert!(said.starts_with("endpoints of shop: ") && said.contains(":2: `nowhere`"), "{said}");
    assert!(said.ends_with("; what was known stays"), "{said}");
    std::fs::remove_file(&file.0).unwrap();
    let said = heard.recv().await.unwrap();
    assert!(said.contains("No such file") && said.contains("stays"), "{said}");
    for _ in 0..20 {
        assert_eq!(ask(&mut client).await, "two");
    }

    file.write(&one.to_string());
    assert_eq!(heard.recv().await.unwrap(), "endpoints of shop: 1 in its file");
    while ask(&mut client).await != "one" {}
}

#[tokio::test]
async fn what_a_name_means_is_followed() {
    let (one, two) = (named("one").await, named("two").await);
    let found = Arc::new(Mutex::new(Ok(vec![one])));
    let asked = Arc::clone(&found);
    let resolver = Resolver::new(move || {
        let found: Result<Vec<SocketAddr>, String> = asked.lock().unwrap().clone();
        async move { found.map_err(io::Error::other) }
    });
    let mut service = service(&[]);
    service.endpoints = Endpoints::Resolver { resolver, period: PERIOD };
    let mut config = outbound(service);
    let (voice, mut heard) = voice();
    config.voice = voice;
    let proxy = Running::start(config);
    let mut client = client(proxy.address()).await;
    assert_eq!(ask(&mut client).await, "one");

    *found.lock().unwrap() = Ok(vec![two]);
    while ask(&mut client).await != "two" {}

    *found.lock().unwrap() = Err("the name server is away".to_owned());
    let said = heard.recv().await.unwrap();
    assert_eq!(said, "endpoints of shop: the name server is away; what was known stays");
    assert_eq!(ask(&mut client).await, "two");
    *found.lock().unwrap() = Ok(vec![one]);
    assert_eq!(heard.recv().await.unwrap(), "endpoints of shop: found again");
    while ask(&mut client).await != "one" {}
}

#[tokio::test]
async fn a_real_name_is_looked_up() {
    let port = named("one").await.port();
    let mut service = service(&[]);
    service.endpoints = Endpoints::Dns { name: format!("localhost:{port}"), period: PERIOD };
    let proxy = Running::start(outbound(service));
    let mut client = client(proxy.address()).await;
    // It may mean an address at which nobody is as well.
    while ask(&mut client).await != "one" {}
}

#[tokio::test]
async fn the_nearest_datacenter_serves_and_what_does_not_fit_goes_on() {
    use tidegate_core::CostRate;
    use tidegate_core::spillover::Resources;
    use tidegate_proxy::outbound::DatacenterConfig;
    let (near, far) = (named("near").await, named("far").await);
    let file = TempFile::new("places", &format!("{near} near\n{far} far\n"));
    let mut service = service(&[]);
    service.endpoints = Endpoints::File { path: file.0.clone(), period: PERIOD };
    let place = |name: &str, millis, cpus| DatacenterConfig {
        name: name.to_owned(),
        round_trip: Duration::from_millis(millis),
        capacity: Resources::cpu(CostRate::from_cpus(cpus).unwrap()),
    };
    // At a millisecond a call, the near one has room for one a second.
    service.datacenters = vec![place("near", 1, 0.001), place("far", 50, 1e6)];
    let proxy = Running::start(outbound(service));
    let mut client = client(proxy.address()).await;
    assert_eq!(ask(&mut client).await, "near");
    while ask(&mut client).await != "far" {}
}

#[tokio::test]
async fn who_says_that_it_is_not_well_gets_nothing() {
    let well = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&well);
    let one = program(move |request: Request<Incoming>| {
        let sick = request.uri().path() == "/health" && !asked.load(Ordering::SeqCst);
        let response = Response::builder().status(if sick { 503 } else { 200 });
        async { response.body(Full::new(Bytes::from_static(b"one"))).unwrap() }
    })
    .await;
    let mut service = service(&[one, named("two").await]);
    let mut health = HealthConfig::new(Check::Http("/health".parse().unwrap()));
    health.interval = PERIOD;
    service.health = Some(health);
    let mut config = outbound(service);
    let (voice, mut heard) = voice();
    config.voice = voice;
    let proxy = Running::start(config);
    let mut client = client(proxy.address()).await;
    while ask(&mut client).await != "one" {}

    well.store(false, Ordering::SeqCst);
    let about = format!("endpoints of shop: {one}");
    let said = tokio::select! {
        said = heard.recv() => said.unwrap(),
        () = keep_asking(proxy.address()) => unreachable!(),
    };
    assert_eq!(said, format!("{about} fails its health checks"));
    for _ in 0..20 {
        assert_eq!(ask(&mut client).await, "two");
    }
    well.store(true, Ordering::SeqCst);
    assert_eq!(heard.recv().await.unwrap(), format!("{about} is well again"));
    while ask(&mut client).await != "one" {}
}

async fn keep_asking(address: SocketAddr) {
    let mut client = client(address).await;
    loop {
        ask(&mut client).await;
    }
}
