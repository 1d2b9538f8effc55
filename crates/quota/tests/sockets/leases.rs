//! The Rust client of Doorman, against the server and against one that is not the master.

use crate::rig::{Served, config, until};
use std::time::SystemTime;
use tidegate::clock::Clock;
use tidegate_quota::doorman::Client;
use tidegate_quota::{Election, Server};
use tidegate_wire::proto::doorman as wire;
use tidegate_wire::proto::doorman::capacity_server::{Capacity, CapacityServer};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

const CONFIG: &str = "\
quota:
  doorman:
    resources:
    - identifier_glob: '*'
      capacity: 1000
      algorithm:
        kind: FAIR_SHARE
        lease_length: 60
        refresh_interval: 1
        learning_mode_duration: -1
";

async fn master() -> (Server, Served) {
    let election = Election::alone(None, SystemTime::now()).unwrap();
    let server = Server::start(&config(CONFIG), election, Clock::monotonic()).unwrap();
    let served = Served::at("127.0.0.1:0", server.router()).await;
    (server, served)
}

/// A server that is not the master, and knows who is.
pub(crate) struct Follower {
    pub(crate) master: String,
}

fn not_here<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not here"))
}

#[tonic::async_trait]
impl Capacity for Follower {
    async fn discovery(
        &self,
        _: Request<wire::DiscoveryRequest>,
    ) -> Result<Response<wire::DiscoveryResponse>, Status> {
        not_here()
    }

    async fn get_capacity(
        &self,
        _: Request<wire::GetCapacityRequest>,
    ) -> Result<Response<wire::GetCapacityResponse>, Status> {
        let mastership = Some(wire::Mastership { master_address: Some(self.master.clone()) });
        Ok(Response::new(wire::GetCapacityResponse { response: Vec::new(), mastership }))
    }

    async fn get_server_capacity(
        &self,
        _: Request<wire::GetServerCapacityRequest>,
    ) -> Result<Response<wire::GetServerCapacityResponse>, Status> {
        let mastership = Some(wire::Mastership { master_address: Some(self.master.clone()) });
        Ok(Response::new(wire::GetServerCapacityResponse { response: Vec::new(), mastership }))
    }

    async fn release_capacity(
        &self,
        _: Request<wire::ReleaseCapacityRequest>,
    ) -> Result<Response<wire::ReleaseCapacityResponse>, Status> {
        not_here()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_share_follow_the_master_and_release_what_they_have() {
    let (_server, served) = master().await;
    let follower = CapacityServer::new(Follower { master: served.address.to_string() });
    let follower = Served::at("127.0.0.1:0", Routes::new(follower).into_axum_router()).await;
    let client = |id: &str, url: String| Client::builder([url]).id(id).start().unwrap();
    let (first, second) = (client("a", follower.url()), client("b", served.url()));
    let mine = first.resource("db", 2_000.0, 1);
    assert!(!mine.try_acquire(), "nothing was said yet");
    until("the first has all of it", || mine.capacity() == 1_000.0).await;
    mine.acquire().await;
    let other = second.resource("db", 300.0, 1);
    until("the second has what it wants", || other.capacity() == 300.0).await;
    until("the first has let go of it", || mine.capacity() == 700.0).await;
    other.set_wants(100.0, 1);
    until("it wants less", || other.capacity() == 100.0 && mine.capacity() == 900.0).await;
    drop(second);
    until("the first has all of it again", || mine.capacity() == 1_000.0).await;
}

#[test]
fn what_is_no_address_is_refused() {
    assert!(Client::builder([""; 0]).start().unwrap_err().to_string().contains("no addresses"));
    let error = Client::builder(["not an address"]).start().unwrap_err();
    assert!(error.to_string().contains("http://quota:7300"), "{error}");
}
