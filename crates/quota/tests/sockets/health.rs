//! Who leads, as health checks see it.

use crate::rig::{CONFIG, Served, config, quota, until};
use std::sync::{Arc, Mutex};
use tidegate::clock::Clock;
use tidegate_quota::Server;
use tidegate_wire::proto::grpc::health::v1::HealthCheckRequest;
use tidegate_wire::proto::grpc::health::v1::health_check_response::ServingStatus;
use tidegate_wire::proto::grpc::health::v1::health_client::HealthClient;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

async fn client(url: &str) -> HealthClient<Channel> {
    HealthClient::new(Endpoint::new(url.to_owned()).unwrap().connect().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_serving_where_somebody_leads_and_as_long_as_it_does() {
    let follower = Server::stand(&config(CONFIG), Clock::monotonic()).unwrap();
    let following = Served::at("127.0.0.1:0", follower.router()).await;
    let (leader, leading) = quota(7).await;
    for (url, expected) in
        [(following.url(), ServingStatus::NotServing), (leading.url(), ServingStatus::Serving)]
    {
        let mut health = client(&url).await;
        let found = health.check(HealthCheckRequest::default()).await.unwrap();
        assert_eq!(found.into_inner().status(), expected);
        let request = HealthCheckRequest { service: "made-up".to_owned() };
        assert_eq!(health.check(request).await.unwrap_err().code(), Code::NotFound);
    }
    let mut health = client(&leading.url()).await;
    let watching = health.watch(HealthCheckRequest::default()).await.unwrap();
    let mut watching = watching.into_inner();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok(Some(next)) = watching.message().await {
            all.lock().unwrap().push(next.status());
        }
    });
    until("it is told", || seen.lock().unwrap().len() == 1).await;
    leader.stop().await;
    until("it is told again", || seen.lock().unwrap().len() == 2).await;
    assert_eq!(*seen.lock().unwrap(), [ServingStatus::Serving, ServingStatus::NotServing]);
}
