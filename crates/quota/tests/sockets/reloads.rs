//! Files that change while a server runs.

use crate::rig::{CONFIG, config, cpus, is_limited, quota, task, until};
use core::time::Duration;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use tidegate::clock::Clock;
use tidegate_core::CustomerId;
use tidegate_quota::server::{Reload, follow};
use tidegate_quota::{Client, Election, Server};
use tokio::sync::Notify;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_changes_is_followed_and_a_bad_one_is_not() {
    let (server, served) = quota(1).await;
    let path = std::env::temp_dir().join(format!("tidegate-reload-{}.yaml", std::process::id()));
    std::fs::write(&path, CONFIG).unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    let wake = Arc::new(Notify::new());
    tokio::spawn(follow(
        server.clone(),
        path.clone(),
        CONFIG.to_owned(),
        // Only when it is told to.
        Duration::from_secs(3_600),
        Arc::clone(&wake),
        move |reload| heard.lock().unwrap().push(reload),
    ));
    let change = async |text: Option<&str>| {
        match text {
            Some(text) => std::fs::write(&path, text).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        wake.notify_one();
        until("it was looked at", || !said.lock().unwrap().is_empty()).await;
        said.lock().unwrap().pop().unwrap()
    };
    let (search, ads) = (task("search"), task("ads"));
    let client = |task| Client::builder([served.url()]).attach(task).unwrap();
    let (_searching, advertising) = (client(&search), client(&ads));
    until("it is told", || is_limited(&search, "good")).await;

    let more = CONFIG.replace("good: 3,", "good: 30, new: 7,").replace("    ads:", "    mail:");
    assert!(matches!(change(Some(&more)).await, Reload::Done(_)));
    until("it knows the new one", || search.customer("new") != CustomerId::DEFAULT).await;
    // A hundredth of it over 64 places.
    until("and the higher limit", || search.limits("good").whole() >= cpus(30.0 / 6_400.0)).await;
    until("a service that is gone is told so", || advertising.state().trouble.is_some()).await;
    let names = server.status().await.services.into_iter().map(|service| service.service);
    assert_eq!(names.collect::<Vec<_>>(), ["mail", "search"]);

    for (text, expected) in [
        (Some(CONFIG.replace("bad: 2", "bad: -2")), "is no number of CPUs"),
        (Some(CONFIG.replace("20ms", "30ms")), "restart the server"),
        (None, "cannot be read"),
    ] {
        let reload = change(text.as_deref()).await;
        assert!(!matches!(reload, Reload::Done(_)), "{reload:?}");
        let status = server.status().await;
        assert!(status.refused.contains(expected), "{}", status.refused);
        assert_eq!(status.services.len(), 2, "what held before holds");
        assert_ne!(search.customer("new"), CustomerId::DEFAULT);
    }
    assert!(matches!(change(Some(CONFIG)).await, Reload::Done(_)));
    assert_eq!(server.status().await.refused, "");
    until("who was removed is gone", || search.customer("new") == CustomerId::DEFAULT).await;
    until("who is back is served", || advertising.state().server.is_some()).await;
    std::fs::remove_file(&path).unwrap();
}

/// What is led has to be written down first, and the disk may be full for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_that_fails_for_a_moment_is_tried_again_and_said_once() {
    let folder = std::env::temp_dir().join(format!("tidegate-moment-{}", std::process::id()));
    let (state, path) = (folder.join("away/state"), folder.join("quota.yaml"));
    std::fs::create_dir_all(folder.join("away")).unwrap();
    std::fs::write(&path, CONFIG).unwrap();
    let election = Election::alone(Some(&state), SystemTime::now()).unwrap();
    let server = Server::start(&config(CONFIG), election, Clock::monotonic()).unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    let wake = Arc::new(Notify::new());
    tokio::spawn(follow(
        server.clone(),
        path.clone(),
        CONFIG.to_owned(),
        Duration::from_millis(5),
        wake,
        move |reload| heard.lock().unwrap().push(reload),
    ));
    std::fs::remove_dir_all(folder.join("away")).unwrap();
    std::fs::write(&path, format!("{CONFIG}    mail:\n      default: 1\n")).unwrap();
    until("it fails", || !said.lock().unwrap().is_empty()).await;
    assert!(matches!(said.lock().unwrap()[0], Reload::Unfit(_)), "{said:?}");
    assert!(server.status().await.refused.contains("cannot be read and written"));
    assert_eq!(server.status().await.services.len(), 2, "what held before holds");
    std::fs::create_dir_all(folder.join("away")).unwrap();
    until("it is tried again", || said.lock().unwrap().len() > 1).await;
    assert!(matches!(said.lock().unwrap()[1], Reload::Done(_)), "{said:?}");
    assert_eq!(server.status().await.services.len(), 3);
    assert_eq!(server.status().await.refused, "");
    std::fs::remove_dir_all(&folder).unwrap();
}
