use super::fake::Fake;
use super::*;
use crate::election::Change;
use crate::{Candidate, Config, Server};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidegate::clock::Clock;
use tokio::net::TcpListener;

const PATIENCE: Duration = Duration::from_secs(5);

/// An etcd on loopback.
async fn etcd() -> (Fake, SocketAddr) {
    let fake = Fake::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = fake.routes().into_axum_router().into_make_service();
    tokio::spawn(async move { tidegate::serve(listener, router).await.unwrap() });
    tokio::spawn(fake.clone().expire());
    (fake, address)
}

/// Takes connections and never says a word.
async fn silent() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
        }
    });
    address
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let mut patience = 6_000;
    while !holds() {
        patience -= 1;
        assert!(patience > 0, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_gone_or_silent_are_passed_over() {
    let (_fake, address) = etcd().await;
    // Nobody listens at the first.
    let etcd = Etcd::new(["http://127.0.0.1:1".to_owned(), format!("http://{address}")]).unwrap();
    etcd.put("/a", "1", PATIENCE).await.unwrap();
    assert_eq!(etcd.get("/a", PATIENCE).await.unwrap().unwrap().value, b"1");
    assert_eq!(etcd.get("/b", PATIENCE).await.unwrap(), None);

    // One that says nothing costs the patience of one call, and no more.
    let endpoints = [silent().await, address].map(|address| format!("http://{address}"));
    let etcd = Etcd::new(endpoints).unwrap();
    let late = etcd.get("/a", Duration::from_millis(50)).await.unwrap_err();
    assert!(late.to_string().contains("nothing came within 50ms"), "{late}");
    assert!(etcd.get("/a", PATIENCE).await.unwrap().is_some());

    for (endpoints, text) in [(vec![], "no endpoints"), (vec!["not an address"], "http://etcd-1")] {
        let error = Etcd::new(endpoints).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_renewed_until_they_end_and_keys_go_with_them() {
    let (fake, address) = etcd().await;
    let etcd = Etcd::new([format!("http://{address}")]).unwrap();
    let woken = Arc::new(AtomicUsize::new(0));
    let (watching, count) = (etcd.clone(), Arc::clone(&woken));
    let watch = tokio::spawn(async move {
        let wake = || _ = count.fetch_add(1, Ordering::Relaxed);
        watching.watch("/x/", Duration::from_millis(50), wake).await;
    });
    until("the watch begins", || woken.load(Ordering::Relaxed) == 1).await;
    let lease = etcd.grant(60, PATIENCE).await.unwrap();
    assert!(etcd.keep_alive(lease, PATIENCE).await.unwrap());
    let put = wire::PutRequest { key: "/x/a".into(), value: "1".into(), lease };
    let put = wire::RequestOp { request: Some(wire::request_op::Request::RequestPut(put)) };
    let txn = wire::TxnRequest { success: vec![put], ..wire::TxnRequest::default() };
    assert!(etcd.txn(txn, PATIENCE).await.unwrap().succeeded);
    etcd.put("/y", "1", PATIENCE).await.unwrap();
    until("it is woken", || woken.load(Ordering::Relaxed) == 2).await;
    etcd.revoke(lease, PATIENCE).await.unwrap();
    until("it is woken again", || woken.load(Ordering::Relaxed) == 3).await;
    assert_eq!(fake.value("/x/a"), None);
    assert!(!etcd.keep_alive(lease, PATIENCE).await.unwrap());
    let error = etcd.revoke(lease, PATIENCE).await.unwrap_err();
    assert!(matches!(error, EtcdError::Refused { code: Code::NotFound, .. }), "{error}");
    watch.abort();
}

fn config(etcd: SocketAddr, name: &str, services: &str) -> Config {
    let text = format!(
        "quota:\n  advertise: {name}\n  election: {{ etcd: ['http://{etcd}'], prefix: /q }}\n\
         {services}"
    );
    Config::parse("test.yaml", &text).unwrap()
}

fn stand(config: &Config) -> (Server, Candidate, Arc<Mutex<Vec<Change>>>) {
    let server = Server::stand(config, Clock::monotonic()).unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    let election = config.election.as_ref().unwrap();
    let say = move |change| heard.lock().unwrap().push(change);
    let candidate = Candidate::start(&server, config, election, say).unwrap();
    (server, candidate, said)
}

const SERVICES: &str = "  services: { search: { default: 1 } }\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_leads_the_other_follows_and_takes_over_with_a_later_epoch() {
    let (fake, address) = etcd().await;
    let (a, first, _) = stand(&config(address, "a:1", SERVICES));
    until("the first leads", || a.epoch() > 0).await;
    assert_eq!(fake.value("/q/leader").as_deref(), Some("a:1"));
    let status = a.status().await;
    assert!(status.leads && status.trouble.is_empty(), "{status:?}");
    assert!(!status.services[0].learning, "nobody has led before");
    assert_eq!(fake.value("/q/led").as_deref(), Some("search"));

    let (b, second, said) = stand(&config(address, "b:1", SERVICES));
    until("the second knows", || !said.lock().unwrap().is_empty()).await;
    let told = said.lock().unwrap().remove(0);
    assert!(matches!(&told, Change::Follows { leader: Some(by) } if by == "a:1"), "{told:?}");
    let status = b.status().await;
    assert_eq!((status.leads, status.leader.as_str(), status.services.len()), (false, "a:1", 0));

    let before = a.epoch();
    first.resign().await;
    assert_eq!(a.epoch(), 0, "who has resigned does not lead");
    until("the second leads", || b.epoch() > 0).await;
    assert!(b.epoch() > before);
    let base: u64 = fake.value("/q/base").unwrap().parse().unwrap();
    assert!((base..base + 1_000).contains(&before) && b.epoch() < base + 1_000);
    assert!(b.status().await.services[0].learning, "tasks may hold something of the first");
    drop(second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_from_etcd_are_followed_and_bad_ones_are_not() {
    let (fake, address) = etcd().await;
    let etcd = Etcd::new([format!("http://{address}")]).unwrap();
    let (server, _candidate, said) = stand(&config(address, "a:1", ""));
    until("it says what is missing", || {
        server.refused().is_some_and(|what| what.contains("etcd:/q/config: there is no such key"))
    })
    .await;
    assert_eq!(fake.value("/q/leader"), None, "it has nothing to lead");
    let limits = "quota:\n  services: { search: { default: 1, customers: { a: 2 } } }\n";
    etcd.put("/q/config", limits, PATIENCE).await.unwrap();
    until("it leads", || server.epoch() > 0).await;
    let names = async || {
        let status = server.status().await;
        status.services.iter().map(|service| service.service.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["search"]);
    assert_eq!(server.refused(), None);
    for (bad, text) in [
        (limits.replace("default: 1", "default: -1"), "etcd:/q/config:2:34: -1 is no number"),
        (limits.replace("quota:\n", "quota:\n  listen: 0.0.0.0:1\n"), "`listen` is of one server"),
        ("quota:\n  doorman: [\n".to_owned(), "etcd:/q/config:"),
    ] {
        etcd.put("/q/config", &bad, PATIENCE).await.unwrap();
        until(text, || server.refused().is_some_and(|what| what.contains(text))).await;
        assert_eq!(names().await, ["search"], "what held before holds");
    }
    let more = limits.replace("services: {", "services: { ads: { default: 1 }, ");
    etcd.put("/q/config", &more, PATIENCE).await.unwrap();
    until("it is well again", || server.refused().is_none()).await;
    assert_eq!(names().await, ["ads", "search"]);
    assert_eq!(fake.value("/q/led").as_deref(), Some("ads\nsearch"));
    let leads = |change: &Change| matches!(change, Change::Leads { .. });
    assert_eq!(said.lock().unwrap().iter().filter(|change| leads(change)).count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trouble_with_etcd_is_said_and_in_the_status() {
    // Nobody listens there.
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let (server, _candidate, said) = stand(&config(nowhere, "a:1", SERVICES));
    let trouble = || {
        said.lock().unwrap().iter().find_map(|change| match change {
            Change::Trouble(what) => Some(what.clone()),
            _ => None,
        })
    };
    until("it is said", || trouble().is_some()).await;
    let found = trouble().unwrap();
    assert!(found.contains("etcd at http://127.0.0.1:1/ does not answer"), "{found}");
    assert_eq!(server.status().await.trouble, found);
}
