//! A zone's server between its tasks and the global one.

use crate::rig::{CONFIG, Closed, Served, ask, config, cpus, is_limited, task, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate::clock::Clock;
use tidegate_quota::{Client, Election, Server};
use tokio::net::TcpListener;

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
    // Limits of the zone's own file change nothing while there is somebody above; all else does.
    let other = "default: 9, customers: { mine: 9 }, capacity: { cpu: 40, memory: 4KiB }";
    zone.reload(&config(&local.replace("default: 0.01", other))).await.unwrap();
    let search = zone.status().await.services.remove(0);
    assert_eq!((search.capacity, search.memory), (40_000_000_000, 4_096));
    let named = search.customers.iter().map(|customer| customer.name.as_str());
    assert_eq!(named.collect::<Vec<_>>(), ["", "bad", "good"]);
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

/// There is room for one task of each service above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_a_zone_has_no_more_leaves_unless_its_tasks_hold_something() {
    let services = |names: &[&str], more: &str| {
        let service = |name: &&str| {
            format!("    {name}: {{ default: 1, {more}reports: {{ every: 20ms, round: 5ms }} }}\n")
        };
        format!("  services:\n{}", names.iter().map(service).collect::<String>())
    };
    let text = services(&["idle", "used"], "sizes: { tasks: 1 }, ");
    let (_global, above) = serve("global-3", &format!("quota:\n{text}")).await;
    let parent = format!("quota:\n  parent: {{ servers: ['{}'], name: zone-a }}\n", above.url());
    let text = services(&["idle", "other", "used"], "");
    let (zone, served) = serve("zone-3", &format!("{parent}{text}")).await;
    let used = task("used");
    let _client = Client::builder([served.url()]).attach(&used).unwrap();
    loop {
        ask(&used, "somebody", 10);
        let status = zone.status().await.services;
        let counts = |service: &str| {
            let found = status.iter().find(|found| found.service == service).unwrap();
            found.customers.iter().any(|customer| customer.counted.iter().any(|rate| *rate > 0))
        };
        assert!(!counts("idle"));
        if counts("used") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let tasks = ["idle", "used"].map(task);
    let attach = |task| Client::builder([above.url()]).attach(task).unwrap();
    let clients = [attach(&tasks[0]), attach(&tasks[1])];
    let is_full = |client: &Client| {
        client.state().trouble.is_some_and(|trouble| trouble.what.contains("1 tasks already"))
    };
    until("the zone has both places", || clients.iter().all(is_full)).await;
    zone.reload(&config(&format!("{parent}{}", services(&["other"], "")))).await.unwrap();
    until("one is free", || clients[0].state().server.is_some()).await;
    until("the other is not", || is_full(&clients[1])).await;
    zone.stop().await;
}

/// What is led has to be written down first, and the disk is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_of_a_zone_that_fails_changes_nothing_and_is_heard_of_by_nobody_above() {
    let above = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = above.local_addr().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((call, _)) = above.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            kept.push(call);
        }
    });
    let folder = std::env::temp_dir().join(format!("tidegate-whole-{}", std::process::id()));
    let disk = folder.join("disk");
    std::fs::create_dir_all(&disk).unwrap();
    let election = Election::alone(Some(&disk.join("state")), SystemTime::now()).unwrap();
    // Leases are of this server only, so there is nothing to ask above.
    let none = format!(
        "quota:\n  parent: {{ servers: ['http://{address}'] }}\n  doorman:\n    resources:\n    \
         - {{ identifier_glob: '*', capacity: 1, algorithm: {{ kind: STATIC, lease_length: 60, \
         refresh_interval: 5 }} }}\n"
    );
    let server = Server::start(&config(&none), election, Clock::monotonic()).unwrap();
    let some = |name: &str| config(&format!("{none}  services: {{ {name}: {{ default: 1 }} }}\n"));
    let led = async || {
        let services = server.status().await.services;
        services.into_iter().map(|service| service.service).collect::<Vec<_>>()
    };
    std::fs::remove_dir_all(&disk).unwrap();
    for _ in 0..200 {
        let failed = server.reload(&some("search")).await.unwrap_err();
        assert!(failed.to_string().contains("cannot be read and written"), "{failed}");
        assert!(led().await.is_empty());
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    std::fs::create_dir_all(&disk).unwrap();
    server.reload(&some("search")).await.unwrap();
    assert_eq!(led().await, ["search"]);
    until("it calls", || calls.load(Ordering::SeqCst) > 0).await;

    std::fs::remove_dir_all(&disk).unwrap();
    server.reload(&some("ads")).await.unwrap_err();
    assert_eq!(led().await, ["search"], "who was to go is still there");
    std::fs::create_dir_all(&disk).unwrap();
    server.reload(&some("ads")).await.unwrap();
    assert_eq!(led().await, ["ads"]);
    server.stop().await;
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A server of the zone that leads by a later election than any before, and has to learn.
async fn elected(port: Closed, text: &str) -> (Server, Served) {
    let election = Election::alone(None, SystemTime::now()).unwrap();
    let server = Server::start(&config(text), election, Clock::monotonic()).unwrap();
    let served = Served::on(port.open().await, server.router(), None);
    (server, served)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_of_a_zone_takes_the_place_of_the_first() {
    let (global, above) = serve("global-2", CONFIG).await;
    let local = format!(
        "quota:\n  parent: {{ servers: ['{}'], name: zone-a }}\n  services:\n    search: \
         {{ default: 0.01, reports: {{ every: 20ms, round: 5ms }} }}\n",
        above.url()
    );
    let (first, served) = serve("zone-2", &local).await;
    // Where the next one will be; nobody is there yet.
    let next = Closed::new().await;
    let task = task("search");
    let client = Client::builder([served.url(), next.url()]).attach(&task).unwrap();
    until("it has nearly all of a limit", || {
        ask(&task, "bad", 40);
        task.limits("bad").whole() > cpus(1.6) && is_limited(&task, "bad")
    })
    .await;
    // The first is paused rather than ended: nobody takes leave of the global server.
    served.stop().await;
    let (zone, _served) = elected(next, &local).await;
    let epoch = zone.epoch();
    until("the task is with it", || {
        ask(&task, "bad", 40);
        let limit = task.limits("bad").whole();
        assert!(limit > cpus(1.5) && limit <= cpus(2.0), "{limit}");
        client.state().epoch == epoch && client.state().server.is_some()
    })
    .await;
    for _ in 0..50 {
        ask(&task, "bad", 40);
        tokio::time::sleep(Duration::from_millis(10)).await;
        let limit = task.limits("bad").whole();
        assert!(limit > cpus(1.5) && limit <= cpus(2.0), "{limit}");
    }
    let status = global.status().await;
    let search = status.services.iter().find(|service| service.service == "search").unwrap();
    assert_eq!(search.tasks, 1, "the zone is one task");
    drop((client, first));
    zone.stop().await;
}
