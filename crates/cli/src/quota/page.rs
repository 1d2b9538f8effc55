//! The server's page: the dashboard with a part for each service, as far as it knows.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;
use tidegate::admin::api::{Customer, Kind, Snapshot};
use tidegate::admin::{Admin, AdminError, Page};
use tidegate_quota::{Config, Server};
use tidegate_wire::proto::tidegate::quota::v1::{CustomerStatus, ServiceStatus};
use tokio::runtime::Handle;

/// An owner that is busy for longer than that has other worries than the page.
const PATIENCE: Duration = Duration::from_millis(500);
/// As the dashboard shows.
const CUSTOMERS_MAX: usize = 50;
/// What everyone else is called there.
const OTHER: &str = "(everyone else)";

/// Serves it for as long as what is returned is kept. It asks the server at once, which runs on
/// `runtime`: that thread must not wait for this.
pub(super) fn open(
    server: &Server,
    config: &Config,
    at: SocketAddr,
    runtime: &Handle,
) -> Result<Page, AdminError> {
    let mut admin = Admin::empty();
    for name in config.services.keys() {
        let (server, runtime, service) = (server.clone(), runtime.clone(), name.clone());
        let mut last = Snapshot::default();
        last.service.clone_from(name);
        admin = admin.source(name.clone(), move || {
            // The page's thread may wait; the server's may not, and answers when it has time.
            let (tell, told) = mpsc::channel();
            let server = server.clone();
            runtime.spawn(async move { tell.send(server.status().await) });
            let status = told.recv_timeout(PATIENCE).unwrap_or_default();
            let found = status.services.iter().find(|status| status.service == service);
            last =
                found.map_or_else(|| gone(&last), |found| snapshot(found, &status.refused, &last));
            last.clone()
        });
    }
    admin.spawn(at)
}

/// It is no longer configured, or too busy to say.
fn gone(last: &Snapshot) -> Snapshot {
    let mut snapshot = last.clone();
    snapshot.state.kind = Kind::Gone;
    "Not led here, or too busy to say".clone_into(&mut snapshot.state.sentence);
    snapshot
}

fn snapshot(status: &ServiceStatus, refused: &str, last: &Snapshot) -> Snapshot {
    let mut customers: Vec<Customer> = status.customers.iter().map(row).collect();
    customers.sort_by(|a, b| b.wanted.total_cmp(&a.wanted).then_with(|| a.name.cmp(&b.name)));
    let mut snapshot = Snapshot::default();
    snapshot.service.clone_from(&status.service);
    snapshot.at_ms = super::status::now_ms();
    snapshot.customers_left_out = customers.len().saturating_sub(CUSTOMERS_MAX);
    let over: Vec<&str> = status
        .overs
        .iter()
        .filter(|over| over.ended_ms == 0)
        .map(|over| if over.customer.is_empty() { OTHER } else { over.customer.as_str() })
        .collect();
    let (kind, sentence) = if status.learning {
        (Kind::Starting, "Leads anew and learns what tasks hold: limits stay".to_owned())
    } else if over.is_empty() {
        (Kind::Healthy, format!("{} tasks, everyone within limits", status.tasks))
    } else {
        (Kind::OutOfQuota, format!("{} tasks; over: {}", status.tasks, over.join(", ")))
    };
    snapshot.state.kind = kind;
    snapshot.state.sentence = sentence;
    let same = last.state.kind == kind && last.state.since_ms > 0;
    snapshot.state.since_ms = if same { last.state.since_ms } else { snapshot.at_ms };
    snapshot.work.usable_cpus = (status.capacity > 0).then(|| cpus(status.capacity));
    snapshot.quota.sentence = if refused.is_empty() {
        "This is the quota server".to_owned()
    } else {
        format!("The file is refused, what held before holds: {refused}")
    };
    customers.truncate(CUSTOMERS_MAX);
    snapshot.customers = customers;
    snapshot
}

fn cpus(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn row(status: &CustomerStatus) -> Customer {
    let sum = |rates: &[u64]| rates.iter().map(|rate| cpus(*rate)).sum();
    let limit = status.limits.last().copied().unwrap_or(0);
    let mut row = Customer::default();
    row.name = if status.name.is_empty() { OTHER.to_owned() } else { status.name.clone() };
    (row.used, row.wanted) = (sum(&status.used), sum(&status.demand));
    row.limit = (limit != u64::MAX).then(|| cpus(limit));
    row.granted = Some(cpus(status.counted.last().copied().unwrap_or(0)));
    row
}
