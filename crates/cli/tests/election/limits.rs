//! Limits in a real etcd.

use crate::etcd::Etcd;
use crate::servers::Servers;
use crate::{asked, until};
use core::time::Duration;
use std::time::Instant;

const PATIENCE: Duration = Duration::from_secs(5);
const LIMITS: &str = "quota: { services: { search: { default: 1, customers: { a: 2 } } } }";

#[test]
fn limits_in_etcd_are_those_of_all_servers() {
    if !asked() {
        return;
    }
    let etcd = Etcd::start("limits");
    let servers = Servers::start("limits", &etcd, "");
    let client = tidegate_quota::etcd::Etcd::new(etcd.urls()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let put = |text: &str| {
        runtime.block_on(client.put("/limits/config", text, PATIENCE)).unwrap();
        Instant::now()
    };
    let all = |since, holds: &dyn Fn(&str) -> bool| {
        (0..3).all(|n| servers.latest(n, since).is_some_and(|status| holds(&status.refused)))
    };
    let since = Instant::now();
    until("all say what is missing", || all(since, &|said| said.contains("there is no such key")));
    put(LIMITS);
    let (leader, epoch, _) = servers.leader(0, None);
    let since = put(&LIMITS.replace("a: 2", "a: -2"));
    until("all refuse it", || all(since, &|said| said.contains("-2 is no number of CPUs")));
    let customers = |since| {
        let status = servers.latest(leader, since)?;
        let search = status.services.first()?;
        Some(search.customers.iter().map(|customer| customer.name.clone()).collect::<Vec<_>>())
    };
    assert_eq!(customers(since).unwrap(), ["", "a"], "what held before holds");
    let since = put(&LIMITS.replace("a: 2", "a: 2, b: 3"));
    until("all take it", || all(since, &str::is_empty));
    until("there is another customer", || customers(since).is_some_and(|all| all.len() == 3));
    assert_eq!(servers.latest(leader, since).unwrap().epoch, epoch, "it goes on to lead");
}
