//! The server's page: the dashboard with a part for each service, as far as it knows.
//!
//! Services come and go with the file, or with the limits in etcd, while the parts of a dashboard
//! are what they were when it was opened. So a thread looks once a second which services there are,
//! and opens another page in the place of the one before when they are others. The listener is one
//! all along, so that nobody is turned away in between; whoever looks connects again by itself, and
//! charts begin anew. Until there are services there is a part that says so.

use super::status::{capacity, name, now_ms, over_text};
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate::admin::api::{Customer, Kind, Over, Snapshot};
use tidegate::admin::{Admin, AdminError, Page};
use tidegate_quota::Server;
use tidegate_wire::proto::tidegate::quota::v1::{CustomerStatus, Over as WasOver, ServiceStatus};
use tokio::runtime::Handle;

/// An owner that is busy for longer than that has other worries than the page.
const PATIENCE: Duration = Duration::from_millis(500);
/// As the dashboard shows.
const CUSTOMERS_MAX: usize = 50;
/// The latest times that anyone was over: as many, so that a page of a bad day can still be read.
const OVERS_MAX: usize = 50;

/// How often to look whether there are other services.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What is shown while there are none.
const NOBODY: &str = "quota";

/// Whom the page asks: the server, which runs on a runtime that never waits for the page.
#[derive(Clone)]
struct Asked {
    server: Server,
    runtime: Handle,
}

impl Asked {
    /// What the server answers, if it has time.
    fn ask<F>(&self, question: impl FnOnce(Server) -> F) -> Option<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let (tell, told) = mpsc::channel();
        let asked = question(self.server.clone());
        self.runtime.spawn(async move { tell.send(asked.await) });
        told.recv_timeout(PATIENCE).ok()
    }

    fn services(&self) -> Option<Vec<String>> {
        self.ask(|server| async move { server.services().await })
    }
}

/// The page, for as long as this is kept.
#[derive(Debug)]
pub(super) struct Shown {
    address: SocketAddr,
    /// Whoever has the other end goes on.
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Shown {
    /// Where it is.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell.
            let _ = thread.join();
        }
    }
}

/// Serves it for as long as what is returned is kept. It asks the server at once, which runs on
/// `runtime`: that thread must not wait for this.
pub(super) fn open(server: &Server, at: SocketAddr, runtime: &Handle) -> Result<Shown, AdminError> {
    let asked = Asked { server: server.clone(), runtime: runtime.clone() };
    let listener = TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let mut names = asked.services().unwrap_or_default();
    let mut page = show(&asked, &names, address, &listener)?;
    let (end, ended) = mpsc::channel::<()>();
    let follow = move || {
        while ended.recv_timeout(LOOK_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
            let Some(now) = asked.services() else { continue };
            if now == names {
                continue;
            }
            // If it cannot be, the one before goes on and this is tried again.
            if let Ok(other) = show(&asked, &now, address, &listener) {
                (page, names) = (other, now);
            }
        }
        drop(page);
    };
    let thread = std::thread::Builder::new().name("tidegate-quota-page".to_owned());
    let thread = thread.spawn(follow)?;
    Ok(Shown { address, end: Some(end), thread: Some(thread) })
}

/// A page with these services.
fn show(
    asked: &Asked,
    names: &[String],
    address: SocketAddr,
    listener: &TcpListener,
) -> Result<Page, AdminError> {
    let mut admin = Admin::empty();
    for name in names {
        let (asked, service) = (asked.clone(), name.clone());
        let mut last = Snapshot::default();
        last.service.clone_from(name);
        last.overs = Some(Vec::new());
        admin = admin.source(name.clone(), move || {
            let status = asked.ask(|server| async move { server.status().await });
            let status = status.unwrap_or_default();
            let found = status.services.iter().find(|status| status.service == service);
            last = found.map_or_else(
                || gone(&last),
                |found| snapshot(found, &status.refused, &last, now_ms()),
            );
            last.clone()
        });
    }
    if names.is_empty() {
        let asked = asked.clone();
        admin = admin.source(NOBODY, move || {
            let status = asked.ask(|server| async move { server.status().await });
            nobody(&status.unwrap_or_default().refused, now_ms())
        });
    }
    let listener = listener.try_clone()?;
    admin.spawn_on(address, || -> io::Result<_> { tokio::net::TcpListener::from_std(listener) })
}

/// There are no services yet.
fn nobody(refused: &str, now: u64) -> Snapshot {
    let mut snapshot = Snapshot::default();
    NOBODY.clone_into(&mut snapshot.service);
    snapshot.at_ms = now;
    snapshot.state.kind = Kind::Starting;
    snapshot.state.sentence = match refused {
        "" => "No limits were read yet".to_owned(),
        refused => format!("No limits were read yet: {refused}"),
    };
    snapshot
}

/// It is no longer configured, or too busy to say.
fn gone(last: &Snapshot) -> Snapshot {
    let mut snapshot = last.clone();
    snapshot.state.kind = Kind::Gone;
    "Not led here, or too busy to say".clone_into(&mut snapshot.state.sentence);
    snapshot
}

fn snapshot(status: &ServiceStatus, refused: &str, last: &Snapshot, now: u64) -> Snapshot {
    let mut customers: Vec<Customer> = status.customers.iter().map(row).collect();
    customers.sort_by(|a, b| b.wanted.total_cmp(&a.wanted).then_with(|| a.name.cmp(&b.name)));
    let mut snapshot = Snapshot::default();
    snapshot.service.clone_from(&status.service);
    snapshot.at_ms = now;
    snapshot.customers_left_out = customers.len().saturating_sub(CUSTOMERS_MAX);
    let over: Vec<&str> = status
        .overs
        .iter()
        .filter(|over| over.ended_ms == 0)
        .map(|over| name(&over.customer))
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
    let mut said = vec!["This is the quota server".to_owned()];
    if !refused.is_empty() {
        said = vec![format!("The file is refused, what held before holds: {refused}")];
    }
    said.extend(capacity(status));
    snapshot.quota.sentence = said.join("; ");
    snapshot.overs = Some(status.overs.iter().take(OVERS_MAX).map(|o| entry(o, now)).collect());
    customers.truncate(CUSTOMERS_MAX);
    snapshot.customers = customers;
    snapshot
}

fn cpus(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn entry(status: &WasOver, now: u64) -> Over {
    let mut over = Over::default();
    name(&status.customer).clone_into(&mut over.customer);
    over.began_ms = status.began_ms;
    over.ended_ms = (status.ended_ms > 0).then_some(status.ended_ms);
    over.wanted_max = cpus(status.demand_max);
    over.sentence = over_text(status, now);
    over
}

fn row(status: &CustomerStatus) -> Customer {
    let sum = |rates: &[u64]| rates.iter().map(|rate| cpus(*rate)).sum();
    let limit = status.limits.last().copied().unwrap_or(0);
    let mut row = Customer::default();
    name(&status.name).clone_into(&mut row.name);
    (row.used, row.wanted) = (sum(&status.used), sum(&status.demand));
    row.limit = (limit != u64::MAX).then(|| cpus(limit));
    row.granted = Some(cpus(status.counted.last().copied().unwrap_or(0)));
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    fn was_over(customer: &str, began: u64, ended: u64) -> WasOver {
        let (customer, demand_max) = (customer.to_owned(), 20_000_000_000);
        WasOver { customer, began_ms: began * 1_000, ended_ms: ended * 1_000, demand_max }
    }

    #[test]
    fn the_page_says_who_was_over_and_when() {
        let overs = vec![was_over("gmail", 1, 0), was_over("", 5, 31)];
        let status = ServiceStatus { tasks: 5, overs, ..ServiceStatus::default() };
        let shown = snapshot(&status, "", &Snapshot::default(), 61_000);
        assert_eq!(shown.state.kind, Kind::OutOfQuota);
        assert_eq!(shown.state.sentence, "5 tasks; over: gmail");
        let overs: Vec<_> = shown.overs.as_ref().unwrap().iter().collect();
        let rows = overs.iter().map(|over| {
            (over.customer.as_str(), over.began_ms, over.ended_ms, over.sentence.as_str())
        });
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [
                ("gmail", 1_000, None, "gmail has been over for 60s, asking for up to 20.000"),
                (
                    "(everyone else)",
                    5_000,
                    Some(31_000),
                    "(everyone else) was over 30s ago, for 26s, asking for up to 20.000"
                ),
            ]
        );
        assert_eq!(overs[0].wanted_max, 20.0);
        // A bad day is cut where nobody would read on, and nobody over is said as well.
        let overs = (0..1_000).map(|n| was_over(&n.to_string(), 1, 2)).collect();
        let status = ServiceStatus { overs, ..ServiceStatus::default() };
        let shown = snapshot(&status, "", &shown, 62_000);
        assert_eq!(shown.overs.as_ref().unwrap().len(), OVERS_MAX);
        assert_eq!(shown.state.kind, Kind::Healthy);
        let shown = snapshot(&ServiceStatus::default(), "", &shown, 63_000);
        assert_eq!(shown.overs, Some(Vec::new()));
        assert_eq!(gone(&shown).overs, Some(Vec::new()), "what was known stays");
        assert_eq!(shown.quota.sentence, "This is the quota server");
        let status = ServiceStatus { memory: 4 << 30, ..ServiceStatus::default() };
        let shown = snapshot(&status, "", &shown, 64_000);
        assert_eq!(
            shown.quota.sentence,
            "This is the quota server; 4.00 GiB of memory, of which 0 % are promised (not enforced)"
        );
    }
}
