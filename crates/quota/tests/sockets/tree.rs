//! Servers of Doorman below another one.

use crate::leases::Follower;
use crate::rig::{Closed, Served, config, until};
use core::time::Duration;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate::clock::Clock;
use tidegate_quota::doorman::{Client, Limiter};
use tidegate_quota::{Election, Server};
use tidegate_wire::proto::doorman as wire;
use tidegate_wire::proto::doorman::capacity_client::CapacityClient;
use tidegate_wire::proto::doorman::capacity_server::CapacityServer;
use tonic::Code;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint};

/// Leases of three seconds.
const ROOT: &str = "\
quota:
  doorman:
    resources:
    - identifier_glob: small*
      capacity: 5
    - identifier_glob: '*'
      capacity: 900
      safe_capacity: 10
      algorithm:
        kind: FAIR_SHARE
        lease_length: 3
        refresh_interval: 1
        learning_mode_duration: -1
";

async fn serve(address: &str, text: &str) -> (Server, Served) {
    let election = Election::alone(None, SystemTime::now()).unwrap();
    let server = Server::start(&config(text), election, Clock::monotonic()).unwrap();
    let served = Served::at(address, server.router()).await;
    (server, served)
}

/// A server below that at `url`.
async fn below(url: &str, name: &str) -> (Server, Served) {
    let parent = format!("{{ servers: ['{url}'], name: {name} }}");
    serve("127.0.0.1:0", &format!("quota:\n  doorman: {{ parent: {parent} }}\n")).await
}

/// What they have together. They cannot be looked at all at once, and what one has let go of may be
/// with the next when that is looked at: so each counts for the less of two looks.
fn sum(limiters: &[Limiter]) -> f64 {
    let first: Vec<f64> = limiters.iter().map(Limiter::capacity).collect();
    limiters.iter().zip(first).map(|(limiter, first)| limiter.capacity().min(first)).sum()
}

/// Waits until limiters have this, while they never have more than 900 together.
async fn have(what: &str, limiters: &[Limiter], expected: [f64; 3]) {
    until(what, || {
        let sum = sum(limiters);
        assert!(sum <= 900.0 + 1e-6, "{what}: {sum} of 900");
        limiters
            .iter()
            .zip(expected)
            .all(|(limiter, expected)| (limiter.capacity() - expected).abs() < 1e-6)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_servers_share_what_there_is_and_follow_demand_and_lose_the_one_above() {
    let (root, above) = serve("127.0.0.1:0", ROOT).await;
    let address = above.address;
    // One finds the root by one that is not the master.
    let follower = CapacityServer::new(Follower { master: address.to_string() });
    let follower = Served::at("127.0.0.1:0", Routes::new(follower).into_axum_router()).await;
    let mut servers = Vec::new();
    for (name, url) in [("a", above.url()), ("b", above.url()), ("c", follower.url())] {
        servers.push(below(&url, name).await);
    }
    let mut clients: Vec<Client> = servers
        .iter()
        .map(|(_, served)| Client::builder([served.url()]).id("client").start().unwrap())
        .collect();
    let limiters: Vec<Limiter> =
        clients.iter().map(|client| client.resource("db", 100.0, 1)).collect();
    have("what fits is had", &limiters, [100.0, 100.0, 100.0]).await;
    limiters[0].set_wants(2_000.0, 1);
    have("one has what the others leave", &limiters, [700.0, 100.0, 100.0]).await;
    limiters[0].set_wants(100.0, 1);
    limiters[2].set_wants(2_000.0, 1);
    have("demand has moved", &limiters, [100.0, 100.0, 700.0]).await;
    limiters[1].set_wants(800.0, 2);
    have("what matters more is served first", &limiters, [50.0, 800.0, 50.0]).await;

    // The root is gone. Leases end, and each has what is safe.
    above.stop().await;
    drop(root);
    have("what is safe", &limiters, [10.0, 10.0, 10.0]).await;
    let told = servers[0].0.status().await.trouble;
    assert!(told.starts_with("doorman: http://"), "{told}");
    // It comes back, and learns.
    let learns = ROOT.replace("        learning_mode_duration: -1\n", "");
    let (_root, _above) = serve(&address.to_string(), &learns).await;
    have("as before", &limiters, [50.0, 800.0, 50.0]).await;
    assert_eq!(servers[0].0.status().await.trouble, "");
    // Who wants nothing any more leaves everything to the others.
    drop(clients.remove(0));
    until("the others have it", || limiters[2].capacity() == 100.0).await;
}

/// In containers all of them may be the first process of a host that is called the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_were_given_no_name_are_not_one() {
    let (_root, above) = serve("127.0.0.1:0", ROOT).await;
    let text = format!("quota:\n  doorman: {{ parent: {{ servers: ['{}'] }} }}\n", above.url());
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(serve("127.0.0.1:0", &text).await);
    }
    let clients: Vec<Client> = servers
        .iter()
        .map(|(_, served)| Client::builder([served.url()]).id("client").start().unwrap())
        .collect();
    let limiters: Vec<Limiter> =
        clients.iter().map(|client| client.resource("db", 400.0, 1)).collect();
    have("each has a third", &limiters, [300.0, 300.0, 300.0]).await;
}

async fn connect(served: &Served) -> CapacityClient<Channel> {
    let endpoint = Endpoint::from_shared(served.url()).unwrap();
    CapacityClient::new(endpoint.connect().await.unwrap())
}

async fn get(
    client: &mut CapacityClient<Channel>,
    resource: &str,
    has: Option<wire::Lease>,
) -> Result<wire::ResourceResponse, tonic::Status> {
    let resource =
        wire::ResourceRequest { resource_id: resource.to_owned(), priority: 1, has, wants: 20.0 };
    let request =
        wire::GetCapacityRequest { client_id: "client".to_owned(), resource: vec![resource] };
    Ok(client.get_capacity(request).await?.into_inner().response.remove(0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_above_decides_what_is_not_known_and_nobody_gets_a_lease_of_nothing() {
    let (_root, above) = serve("127.0.0.1:0", ROOT).await;
    let (_server, served) = below(&above.url(), "a").await;
    let mut client = connect(&served).await;
    // By the templates of the root, at the first question.
    for (resource, expected, safe) in [("small/x", 20.0, 10.0), ("small", 5.0, 5.0)] {
        // On a busy machine it may not have been heard of in time: then it says so.
        let found = loop {
            match get(&mut client, resource, None).await {
                Err(status) if status.code() == Code::Unavailable => {}
                found => break found.unwrap(),
            }
        };
        assert_eq!(
            (found.gets.capacity, found.safe_capacity),
            (expected, Some(safe)),
            "{resource}"
        );
    }
    // There is nobody above.
    let nobody = Closed::new().await;
    let (_server, served) = below(&nobody.url(), "b").await;
    let mut client = connect(&served).await;
    let refused = get(&mut client, "db", None).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("the server above"), "{refused}");
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(30);
    let expiry_time = i64::try_from(wall.as_secs()).unwrap();
    let has = wire::Lease { expiry_time, refresh_interval: 5, capacity: 7.0 };
    let kept = get(&mut client, "db", Some(has)).await.unwrap().gets;
    assert_eq!(kept.capacity, 7.0);
    assert!((expiry_time - 1..=expiry_time).contains(&kept.expiry_time), "{kept:?}");
}
