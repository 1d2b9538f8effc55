//! Start and end.

use crate::support::{ANY, Running, client, config, echo, program, text};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use std::sync::Arc;
use tidegate::life::Phase;
use tidegate_proxy::{Config, Proxy, ProxyError};
use tokio::sync::Semaphore;

fn get() -> Request<Full<Bytes>> {
    Request::builder().uri("/").header("host", "x").body(Full::default()).unwrap()
}

#[tokio::test]
async fn what_is_in_flight_at_the_end_is_finished() {
    let (begun, release) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (started, held) = (Arc::clone(&begun), Arc::clone(&release));
    let address = program(move |_| {
        let (started, held) = (Arc::clone(&started), Arc::clone(&held));
        async move {
            started.add_permits(1);
            held.acquire().await.unwrap().forget();
            Response::new(Full::new(Bytes::from_static(b"done")))
        }
    })
    .await;
    let proxy = Running::start(config(address));
    let mut clients = Vec::new();
    for _ in 0..10 {
        let mut client = client(proxy.address()).await;
        clients.push(tokio::spawn(
            async move { text(client.send_request(get()).await.unwrap()).await },
        ));
    }
    begun.acquire_many(10).await.unwrap().forget();
    proxy.get().life().stop();
    // The drain delay is over: nobody is taken any more.
    proxy.get().life().hasten();
    assert_eq!(proxy.get().life().phase(), Phase::Draining);
    release.add_permits(10);
    for client in clients {
        assert_eq!(client.await.unwrap(), "done");
    }
}

#[tokio::test]
async fn a_place_that_is_taken_is_said_to_be() {
    let listener = std::net::TcpListener::bind(ANY).unwrap();
    let mut config = config("127.0.0.1:1".parse().unwrap());
    config.listen = listener.local_addr().unwrap();
    match Proxy::start(config) {
        Err(error @ ProxyError::Listen { .. }) => {
            assert!(error.to_string().contains("cannot listen at 127.0.0.1:"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn its_page_tells_of_it() {
    let mut config = config(program(echo).await);
    config.service = "shop".to_owned();
    config.admin = Some(ANY.parse().unwrap());
    let proxy = Running::start(config);
    let mut client_of_page = client(proxy.get().page().unwrap().address()).await;
    let host = proxy.get().page().unwrap().address().to_string();
    let request = Request::builder().uri("/metrics").header("host", host).body(Full::default());
    let metrics = text(client_of_page.send_request(request.unwrap()).await.unwrap()).await;
    assert!(metrics.contains("tidegate_requests_total"), "{metrics}");
}

#[tokio::test]
async fn limits_and_mode_change_while_it_runs_and_the_rest_is_named() {
    let address = program(echo).await;
    let file = |rest: &str| {
        let text = format!("upstream: {address}\nlisten: {ANY}\nworkers: 1\n{rest}");
        Config::parse("proxy.yaml", &text).unwrap()
    };
    let mut proxy = Running::start(file("mode: enforce\n"));
    let mut client = client(proxy.address()).await;
    let mut status = async || {
        client.ready().await.unwrap();
        let response = client.send_request(get()).await.unwrap();
        let status = response.status().as_u16();
        text(response).await;
        status
    };
    assert_eq!(status().await, 200);
    let changed = proxy.get_mut().reload(file("mode: enforce\neveryone_else: 0\n"));
    assert_eq!((changed, status().await), (vec![], 429));
    // Where something needs a restart nothing is in effect before there is one: if that fails, it
    // goes on as before.
    let changed = proxy.get_mut().reload(file("cpus: 2\n"));
    assert_eq!((changed, status().await), (vec!["cpus"], 429));
    assert!(!proxy.get().task().gate().is_dark());
    let changed = proxy.get_mut().reload(file("cpus: 2\n"));
    assert_eq!(changed, ["cpus"]);
    // And it needs none if it is taken back.
    let changed = proxy.get_mut().reload(file("everyone_else: 0\n"));
    assert_eq!((changed, status().await), (vec![], 200));
    assert!(proxy.get().task().gate().is_dark());
}
