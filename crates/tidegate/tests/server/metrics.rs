//! Metrics as they are scraped.

use crate::support::{Client, Version, hello, idle, serve};
use prometheus_client::registry::Registry;
use tidegate::Task;
use tidegate::metrics::{Calls, Collector, Copies, Queue};
use tidegate_core::fleet::Limits;
use tidegate_core::levels::Levels;

fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
}

#[tokio::test]
async fn what_was_decided_is_counted_by_its_names() {
    let task = Task::builder("test").build().unwrap();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Collector::new(&task)));
    let mut client = Client::connect(serve(hello(&task)).await, Version::Http1).await;
    for _ in 0..3 {
        client.get("/", &[("x-criticality", "SHEDDABLE"), ("x-envoy-attempt-count", "2")]).await;
    }
    client.get("/", &[("grpc-timeout", "0m")]).await;
    task.gate().set_levels(Levels::CLOSED);
    client.get("/", &[("x-criticality", "x")]).await;
    task.set_dark(true);
    client.get("/", &[]).await;
    task.set_default_limits(Limits::ZERO);
    task.set_dark(false);
    client.get("/", &[]).await;
    idle(&task).await;
    let text = scrape(&registry);
    let requests = |criticality, decision, reason, count: u64| {
        has(
            &text,
            &format!(
                "tidegate_requests_total{{criticality=\"{criticality}\",decision=\"{decision}\",\
                 reason=\"{reason}\"}} {count}"
            ),
        );
    };
    requests("SHEDDABLE", "admit", "", 3);
    requests("CRITICAL", "admit", "", 0);
    requests("CRITICAL", "dark", "overloaded", 1);
    requests("CRITICAL", "reject", "overloaded", 1);
    requests("CRITICAL", "reject", "deadline_passed", 1);
    requests("CRITICAL", "reject", "out_of_quota", 1);
    has(&text, "tidegate_attempts_total{attempt=\"2\"} 3");
    has(&text, "tidegate_attempts_total{attempt=\"1\"} 4");
    has(&text, "tidegate_header_faults_total{fault=\"bad_criticality\"} 1");
    has(&text, "tidegate_inflight_requests 0");
    has(&text, "tidegate_request_cost_seconds_count 4");
    has(&text, "tidegate_request_cost_seconds_bucket{le=\"+Inf\"} 4");
    has(&text, "# UNIT tidegate_request_cost_seconds seconds");
    drop((task, client));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_task_at_work_tells_where_it_stands() {
    let task = Task::builder("test").customer("shop", Limits::UNLIMITED).start().unwrap();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Collector::new(&task)));
    let mut client = Client::connect(serve(hello(&task)).await, Version::Http1).await;
    // What is looked at every second is there after one.
    while task.snapshot().unattributed.is_none() || task.snapshot().customers.is_empty() {
        client.get("/", &[]).await;
    }
    let text = scrape(&registry);
    for name in [
        "tidegate_utilization_ratio{signal=\"executor_load\"} ",
        "tidegate_utilization_ratio{signal=\"cpu\"} ",
        "tidegate_admitted_ratio{criticality=\"SHEDDABLE\"} ",
        "tidegate_unattributed_cpu_ratio ",
        "tidegate_capacity_cpus ",
        "tidegate_usable_cpus ",
        "tidegate_customer_used_cpus{customer=\"other\",criticality=\"CRITICAL\"} ",
        "tidegate_sampler_ticks_total ",
    ] {
        assert!(text.lines().any(|line| line.starts_with(name)), "no {name} in\n{text}");
    }
}

/// What is scraped is among the names that there are, with their labels.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_metric_is_called_what_its_name_says() {
    let task = Task::builder("test").start().unwrap();
    let mut registry = Registry::default();
    let copies = || {
        let mut copies = Copies::default();
        copies.events = vec![("kept", 1)];
        copies
    };
    let doors = Calls::default()
        .queue("shop", Queue::default)
        .unwrap()
        .edge(|| vec![("stripped_header", 1)])
        .copies(copies)
        .datagrams(|| vec![("answered", 1)]);
    registry.register_collector(Box::new(Collector::new(&task).calls(doors)));
    let mut client = Client::connect(serve(hello(&task)).await, Version::Http1).await;
    let unknown = |s: &tidegate::metrics::Snapshot| {
        s.unattributed.is_none() || s.customers.is_empty() || s.wake_delay.is_none()
    };
    while unknown(&task.snapshot()) {
        client.get("/", &[]).await;
    }
    let text = scrape(&registry);
    let names = tidegate::metrics::names();
    let mut seen = std::collections::BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
        let known = names.iter().find(|known| known.name == name);
        let known = known.unwrap_or_else(|| panic!("{name} has no name"));
        let labels = rest.rsplit_once('}').map_or("", |(labels, _)| labels);
        let labels = labels.trim_start_matches('{').split(',').filter(|l| !l.is_empty());
        let labels: Vec<_> = labels.filter_map(|l| l.split_once('=')).map(|(l, _)| l).collect();
        assert_eq!(labels, known.labels, "{line}");
        seen.insert(name.to_owned());
    }
    // Those of calls and pages are scraped where there are some.
    let others = ["tidegate_client_", "tidegate_backend", "tidegate_page_"];
    let mut here = names.iter().filter(|known| !others.iter().any(|o| known.name.starts_with(o)));
    let missing = here.find(|known| !seen.contains(&known.name));
    assert_eq!(missing, None);
}

#[test]
fn a_registry_does_not_keep_a_task_at_work() {
    let task = Task::builder("test").start().unwrap();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Collector::new(&task)));
    let gate = std::sync::Arc::downgrade(task.gate());
    drop(task);
    while gate.upgrade().is_some() {
        std::thread::yield_now();
    }
    assert!(!scrape(&registry).contains("tidegate"));
}
