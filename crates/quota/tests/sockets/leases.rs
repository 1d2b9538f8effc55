//! The Rust client of Doorman, against the server and against one that is not the master.

use crate::rig::{Served, config, until};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
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

/// A master that answers one question, and hears of what is given back.
#[derive(Clone, Default)]
struct Once {
    questions: Arc<AtomicUsize>,
    released: Arc<Mutex<Vec<String>>>,
}

#[tonic::async_trait]
impl Capacity for Once {
    async fn discovery(
        &self,
        _: Request<wire::DiscoveryRequest>,
    ) -> Result<Response<wire::DiscoveryResponse>, Status> {
        not_here()
    }

    async fn get_capacity(
        &self,
        request: Request<wire::GetCapacityRequest>,
    ) -> Result<Response<wire::GetCapacityResponse>, Status> {
        if self.questions.fetch_add(1, Ordering::SeqCst) > 0 {
            core::future::pending::<()>().await;
        }
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let expiry_time = i64::try_from(wall).unwrap() + 60;
        let answer = |wanted: &wire::ResourceRequest| wire::ResourceResponse {
            resource_id: wanted.resource_id.clone(),
            gets: wire::Lease { expiry_time, refresh_interval: 60, capacity: wanted.wants },
            safe_capacity: None,
        };
        let response = request.get_ref().resource.iter().map(answer).collect();
        Ok(Response::new(wire::GetCapacityResponse { response, mastership: None }))
    }

    async fn get_server_capacity(
        &self,
        _: Request<wire::GetServerCapacityRequest>,
    ) -> Result<Response<wire::GetServerCapacityResponse>, Status> {
        not_here()
    }

    async fn release_capacity(
        &self,
        request: Request<wire::ReleaseCapacityRequest>,
    ) -> Result<Response<wire::ReleaseCapacityResponse>, Status> {
        self.released.lock().unwrap().extend(request.into_inner().resource_id);
        Ok(Response::new(wire::ReleaseCapacityResponse { mastership: None }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_ends_while_it_asks_releases_what_it_has() {
    let once = Once::default();
    let routes = Routes::new(CapacityServer::new(once.clone())).into_axum_router();
    let served = Served::at("127.0.0.1:0", routes).await;
    let client = Client::builder([served.url()]).id("a").start().unwrap();
    let mine = client.resource("db", 20.0, 1);
    until("it has a lease", || mine.capacity() == 20.0).await;
    mine.set_wants(30.0, 1);
    until("it asks again", || once.questions.load(Ordering::SeqCst) == 2).await;
    // It waits until that was heard, or for a moment.
    tokio::task::spawn_blocking(move || drop(client)).await.unwrap();
    until("it was heard", || *once.released.lock().unwrap() == ["db"]).await;
}

#[test]
fn what_is_no_address_is_refused() {
    assert!(Client::builder([""; 0]).start().unwrap_err().to_string().contains("no addresses"));
    let error = Client::builder(["not an address"]).start().unwrap_err();
    assert!(error.to_string().contains("http://quota:7300"), "{error}");
}
