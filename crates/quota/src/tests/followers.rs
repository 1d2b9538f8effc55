//! Servers that do not lead, or no longer, over real sockets.

use crate::election::fence::Fence;
use crate::{Config, Election, Server};
use core::time::Duration;
use std::time::SystemTime;
use tidegate::clock::{Clock, Hand};
use tidegate_wire::proto::doorman;
use tidegate_wire::proto::doorman::capacity_client::CapacityClient;
use tidegate_wire::proto::envoy::service::ratelimit::v3 as rls;
use tidegate_wire::proto::tidegate::quota::v1::quota_client::QuotaClient;
use tidegate_wire::proto::tidegate::quota::v1::{Hello, ServerMessage, TaskMessage, Usages};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Streaming};

const CONFIG: &str = "\
quota:
  advertise: a:1
  election: { etcd: ['http://127.0.0.1:1'] }
  services: { search: { default: 1, reports: { every: 20ms, round: 5ms } } }
  doorman:
    resources:
    - identifier_glob: '*'
      capacity: 10
      algorithm: { kind: STATIC, lease_length: 60, refresh_interval: 5 }
";

/// A server that stands for election, by a clock that is set by hand.
async fn server() -> (Server, Hand, Channel) {
    let (clock, hand) = Clock::manual();
    let server = Server::stand(&Config::parse("test.yaml", CONFIG).unwrap(), clock).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = server.router().into_make_service();
    tokio::spawn(async move { tidegate::serve(listener, router).await.unwrap() });
    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    (server, hand, channel)
}

async fn lead(server: &Server, until: Duration) -> Fence {
    let fence = Fence::until(tidegate_core::Timestamp::ZERO + until);
    let election = Election::alone(None, SystemTime::now()).unwrap();
    server.lead(election, fence.clone()).await.unwrap();
    fence
}

type Said = mpsc::Sender<TaskMessage>;

async fn report(channel: &Channel) -> (Said, Streaming<ServerMessage>) {
    let (say, said) = mpsc::channel(8);
    let hello = Hello { service: "search".into(), task: "t".into(), ..Hello::default() };
    say.try_send(TaskMessage { hello: Some(hello), ..TaskMessage::default() }).unwrap();
    let heard = QuotaClient::new(channel.clone()).report(ReceiverStream::new(said)).await.unwrap();
    (say, heard.into_inner())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_lead_says_who_does() {
    let (server, _hand, channel) = server().await;
    for leader in [None, Some("b:1".to_owned())] {
        server.follow(leader.clone()).await;
        let (_say, mut heard) = report(&channel).await;
        let told = heard.message().await.unwrap().unwrap();
        assert_eq!(told.redirect.unwrap().leader, leader.clone().unwrap_or_default());
        assert_eq!(heard.message().await.unwrap(), None);

        let mastership = Some(doorman::Mastership { master_address: leader.clone() });
        let mut client = CapacityClient::new(channel.clone());
        let found = client.discovery(doorman::DiscoveryRequest {}).await.unwrap().into_inner();
        assert_eq!((found.is_master, Some(found.mastership)), (false, mastership.clone()));
        let get = doorman::GetCapacityRequest { client_id: "c".into(), resource: Vec::new() };
        let got = client.get_capacity(get).await.unwrap().into_inner();
        assert_eq!(got.mastership, mastership);
        let get = doorman::GetServerCapacityRequest { server_id: "s".into(), resource: Vec::new() };
        let got = client.get_server_capacity(get).await.unwrap().into_inner();
        assert_eq!(got.mastership, mastership);
        let release =
            doorman::ReleaseCapacityRequest { client_id: "c".into(), resource_id: Vec::new() };
        let released = client.release_capacity(release).await.unwrap().into_inner();
        assert_eq!(released.mastership, mastership);

        let mut envoy =
            rls::rate_limit_service_client::RateLimitServiceClient::new(channel.clone());
        let ask = rls::RateLimitRequest { domain: "search".into(), ..Default::default() };
        let status = envoy.should_rate_limit(ask).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
    lead(&server, Duration::from_secs(1)).await;
    let mut client = CapacityClient::new(channel.clone());
    let found = client.discovery(doorman::DiscoveryRequest {}).await.unwrap().into_inner();
    assert!(found.is_master && found.mastership.master_address.as_deref() == Some("a:1"));
    let (_say, mut heard) = report(&channel).await;
    assert!(heard.message().await.unwrap().unwrap().welcome.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_time_is_up_answers_nobody_and_may_go_on_later() {
    let (server, hand, channel) = server().await;
    let fence = lead(&server, Duration::from_secs(1)).await;
    let epoch = server.epoch();
    let (say, mut heard) = report(&channel).await;
    let id = heard.message().await.unwrap().unwrap().welcome.unwrap().task.unwrap();
    // Nobody has told the server anything; it is only later.
    hand.advance(Duration::from_secs(2));
    let usages = Some(Usages { number: 1, ..Usages::default() });
    say.try_send(TaskMessage { report: usages, ..TaskMessage::default() }).unwrap();
    while let Some(told) = heard.message().await.unwrap() {
        // What it said in time may still be on its way; the report is not answered.
        assert!(told.answers == 0 && told.grants.is_none(), "{told:?}");
    }
    let status = server.status().await;
    assert!(!status.leads && status.leader.is_empty(), "{status:?}");

    // Its lease never ended: it goes on, and knows its task.
    fence.move_to(tidegate_core::Timestamp::from_secs(10));
    assert_eq!(server.epoch(), epoch);
    let hello =
        Hello { service: "search".into(), task: "t".into(), resumes: Some(id), ..Hello::default() };
    let hello = TaskMessage { hello: Some(hello), ..TaskMessage::default() };
    let said = futures_util::stream::iter([hello]);
    let said = futures_util::StreamExt::chain(said, futures_util::stream::pending());
    let mut client = QuotaClient::new(channel);
    let mut heard = client.report(said).await.unwrap().into_inner();
    assert!(!heard.message().await.unwrap().unwrap().welcome.unwrap().joined);
}
