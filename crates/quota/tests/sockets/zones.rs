//! A zone's server between its tasks and the global one.

use crate::rig::{CONFIG, Served, ask, config, cpus, is_limited, task, until};
use std::time::{Duration, UNIX_EPOCH};
use tidegate::clock::Clock;
use tidegate_quota::{Client, Election, Server};

/// A server that has nothing to learn.
async fn serve(name: &str, text: &str) -> (Server, Served) {
    let state = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&state);
    let election = Election::alone(Some(&state), UNIX_EPOCH + Duration::from_millis(1)).unwrap();
    let server = Server::start(&config(text), election, Clock::monotonic()).unwrap();
    let _ = std::fs::remove_file(&state);
    let served = Served::at("127.0.0.1:0", server.router()).await;
    (server, served)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_a_zone_are_told_what_the_global_server_leaves_them() {
    let (global, above) = serve("global", CONFIG).await;
    // Of its own a zone has next to nothing, and knows no customer.
    let local = format!(
        "quota:\n  parent: {{ servers: ['{}'], name: zone-a }}\n  services:\n    search: \
         {{ default: 0.01, reports: {{ every: 20ms, round: 5ms }} }}\n",
        above.url()
    );
    let (zone, served) = serve("zone", &local).await;
    let task = task("search");
    let client = Client::builder([served.url()]).attach(&task).unwrap();
    until("it knows the customers of the global server", || is_limited(&task, "good")).await;
    until("it has nearly all of a limit", || {
        ask(&task, "bad", 40);
        let limit = task.limits("bad").whole();
        limit > cpus(1.6) && limit <= cpus(2.0)
    })
    .await;
    let status = global.status().await;
    let search = status.services.iter().find(|service| service.service == "search").unwrap();
    assert_eq!(search.tasks, 1, "the zone is one task");
    let bad = search.customers.iter().find(|customer| customer.name == "bad").unwrap();
    assert!(bad.demand[2] > 0, "{bad:?}");
    // Limits of the zone's own file change nothing while there is somebody above.
    let other = local.replace("default: 0.01", "default: 9, customers: { mine: 9 }");
    zone.reload(&config(&other)).await.unwrap();
    let refused = zone.reload(&config(&local.replace("zone-a", "zone-b"))).await;
    assert!(refused.unwrap_err().to_string().contains("restart"));
    // When the global server is gone, limits hold.
    above.stop().await;
    drop(global);
    for _ in 0..10 {
        ask(&task, "bad", 40);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let held = task.limits("bad").whole();
        assert!(held > cpus(1.6) && held <= cpus(2.0), "{held}");
    }
    client.leave();
    zone.stop().await;
}
