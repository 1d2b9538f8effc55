//! Clients that find their server, lose it, and leave.

use crate::rig::{Served, ask, cpus, is_limited, quota, quota_at, task, until};
use std::pin::Pin;
use tidegate_core::fleet::Standing;
use tidegate_quota::Client;
use tidegate_wire::proto::tidegate::quota::v1::quota_server::{Quota, QuotaServer};
use tidegate_wire::proto::tidegate::quota::v1::{
    Redirect, ServerMessage, StatusRequest, StatusResponse, TaskMessage,
};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_told_limits_and_share_them_by_demand() {
    let (server, served) = quota(1).await;
    let tasks = [task("search"), task("search")];
    let clients: Vec<Client> = (0..2)
        .map(|n| {
            let client = Client::builder([served.url()]).name(format!("task-{n}"));
            client.attach(&tasks[n]).unwrap()
        })
        .collect();
    until("both know the customers", || tasks.iter().all(|task| is_limited(task, "bad"))).await;
    // One of them is asked for more than the fleet may use.
    until("the busy one has nearly all of it", || {
        ask(&tasks[0], "bad", 40);
        ask(&tasks[1], "bad", 0);
        let limit = tasks[0].limits("bad").whole();
        limit > cpus(1.8) && limit <= cpus(2.0)
    })
    .await;
    // And then the other.
    until("it has moved", || {
        ask(&tasks[1], "bad", 40);
        tasks[1].limits("bad").whole() > cpus(1.8)
    })
    .await;
    let both = tasks[0].limits("bad").whole() + tasks[1].limits("bad").whole();
    assert!(both <= cpus(2.0), "{both}");
    let state = clients[0].state();
    assert_eq!((state.epoch, state.learning, state.streams), (1, false, 1));
    assert_eq!((state.standing, state.trouble), (Some(Standing::Held), None));
    assert_eq!(state.server, Some(format!("{}/", served.url())));

    let status = server.status().await;
    let search = status.services.iter().find(|service| service.service == "search").unwrap();
    assert_eq!((search.tasks, search.learning, search.customers.len()), (2, false, 3));
    let bad = search.customers.iter().find(|customer| customer.name == "bad").unwrap();
    assert!(bad.demand[2] > 0 && bad.tasks == 2, "{bad:?}");
    for client in clients {
        client.leave();
    }
    let status = server.status().await;
    assert!(status.services.iter().all(|service| service.tasks == 0), "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_learns_what_tasks_hold() {
    let (server, served) = quota(1).await;
    let task = task("search");
    let address = served.address.to_string();
    let client = Client::builder(["http://127.0.0.1:1".to_owned(), served.url()]);
    let client = client.attach(&task).unwrap();
    until("it has a grant", || {
        ask(&task, "bad", 40);
        is_limited(&task, "bad") && task.limits("bad").whole() > cpus(1.8)
    })
    .await;
    served.stop().await;
    drop(server);
    until("it notices", || client.state().trouble.is_some()).await;
    let held = task.limits("bad").whole();
    assert!(held > cpus(1.8) && held <= cpus(2.0), "limits hold: {held}");
    let (_server, _served) = quota_at(&address, 2, true).await;
    until("it is back", || client.state().server.is_some()).await;
    until("the server learns", || client.state().learning).await;
    assert_eq!(client.state().epoch, 2);
    for _ in 0..10 {
        ask(&task, "bad", 40);
        tokio::time::sleep(core::time::Duration::from_millis(20)).await;
        let limit = task.limits("bad").whole();
        assert!(limit > cpus(1.8), "nobody is cut off by an election: {limit}");
    }
}

/// A server that only knows who leads.
struct Follower {
    leader: String,
}

type Told = Pin<Box<dyn futures_util::Stream<Item = Result<ServerMessage, Status>> + Send>>;

#[tonic::async_trait]
impl Quota for Follower {
    type ReportStream = Told;

    async fn report(&self, _: Request<Streaming<TaskMessage>>) -> Result<Response<Told>, Status> {
        let redirect = Some(Redirect { leader: self.leader.clone() });
        let message = ServerMessage { redirect, ..ServerMessage::default() };
        Ok(Response::new(Box::pin(futures_util::stream::iter([Ok(message)]))))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        Err(Status::unavailable("not the leader"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_is_followed() {
    let (_server, leader) = quota(1).await;
    let follower = QuotaServer::new(Follower { leader: leader.url() });
    let follower = Served::at("127.0.0.1:0", Routes::new(follower).into_axum_router()).await;
    let task = task("search");
    let client = Client::builder([follower.url()]).attach(&task).unwrap();
    until("it is there", || client.state().server == Some(format!("{}/", leader.url()))).await;
    until("it is told", || is_limited(&task, "good")).await;
}

#[test]
fn what_is_no_address_and_no_name_is_refused() {
    let task = task("search");
    for (error, text) in [
        (Client::builder([""; 0]).attach(&task).unwrap_err(), "no addresses"),
        (Client::builder(["not an address"]).attach(&task).unwrap_err(), "http://quota:7300"),
        (
            Client::builder(["http://a:1"]).name("two words").attach(&task).unwrap_err(),
            "`two words`",
        ),
    ] {
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_nobody_has_configured_is_told_what_there_is() {
    let (_server, served) = quota(1).await;
    let task = task("mail");
    let client = Client::builder([served.url()]).attach(&task).unwrap();
    until("it is told", || client.state().trouble.is_some()).await;
    let trouble = client.state().trouble.unwrap().to_string();
    assert!(
        trouble.contains("\"mail\" is not configured here; there are: ads, search"),
        "{trouble}"
    );
    assert!(!is_limited(&task, "good"), "it goes on with what it was built with");
}
