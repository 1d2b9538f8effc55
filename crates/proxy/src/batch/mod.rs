//! The fuse between batch jobs and everyone else.
//!
//! Ten thousand workers that start at once do not mind waiting; those who use the same backends
//! interactively do. So workers call this proxy. It keeps few connections to the backends, lets
//! work wait in a bounded queue, and hands on what the backends take. What it decides is
//! [`tidegate_core::batch`]'s: who waits, who makes room, who goes next, and when.
//!
//! ```text
//! workers --> [ gate: full? | read the body ] --> the queue's thread --> balancer --> endpoints
//!   many            |            (waiting)           |  by criticality,      few connections
//!   connections     +-- 503, at once                 |  then deadline
//!                                                    +<-- refusals, load reports, latencies
//! ```
//!
//! An order needs one owner, so one thread has all queues, and all connections to the backends
//! (`owner`, `send`); the threads that hold workers' connections hand requests over and wait for
//! the answer (`wait`). That costs two wake-ups of another thread a request, which is nothing to
//! work that waits by design.
//!
//! **Who leaves.** A request whose caller hangs up is taken out of the queue, or stopped if it was
//! sent. One whose deadline passes is answered 504 and never sent. What the backends refuse waits
//! again, unless they say not to retry.
//!
//! **The end.** A lame duck goes on handing out what waits. What is left halfway through the limit
//! of draining is refused, so that each worker has an answer before its connection goes.
//!
//! **When it is wrong.** The pace goes by what backends say: refusals, load reports, latency.
//! Backends that say nothing of these until they fall over are pushed until they do.

mod owner;
mod send;
mod wait;

use crate::config::dump;
use crate::outbound::{self, About, InvalidEndpoints, OutboundConfig};
use crate::run::{self, Proxy, ProxyError, Setting};
use crate::sockets::Sockets;
use owner::Owner;
use std::sync::{Arc, Mutex};
use tidegate::Task;
use tidegate::admin::Admin;
use tidegate::clock::Clock;
use tidegate::executor::Executor;
use tidegate::life::Life;
use tidegate::report::LoadReports;
use tidegate_core::connection::gate::ConnectionGate;
use wait::Batch;

/// Starts a proxy in this role.
pub(crate) fn start(config: OutboundConfig, mut sockets: Sockets) -> Result<Proxy, ProxyError> {
    if config.services.is_empty() {
        let right = "one service at least, with a name, where to listen and endpoints";
        return Err(InvalidEndpoints::new("there is no service to call", right).into());
    }
    let text = Arc::new(Mutex::new(dump(&config)));
    let count = run::worker_count(config.workers);
    // Nobody ticks it: it counts, and refuses only what is too late. The queues do the rest.
    let task = Task::builder(config.name.as_str())
        .executor(Executor::new(Clock::default()))
        .identities(config.identities)
        .default_criticality(config.criticality)
        .load_reports(LoadReports::NEVER)
        .system_signals(false)
        .build()?;
    let life = Life::new(config.life, task.clock().clone());
    let (mut admin, mut services, mut owners) = (Admin::new(&task), Vec::new(), Vec::new());
    let mut doors: Vec<run::Doors<Batch>> = (0..count).map(|_| Vec::new()).collect();
    for service in &config.services {
        let queue = service.queue.unwrap_or_default();
        let (listeners, address) = sockets.listen(service.listen, count)?;
        let balancer = outbound::balancer(service, 1, &config.voice)?;
        let about = About::new(service, false);
        let (owner, shared) = Owner::new(service, queue, balancer.clone(), &task)?;
        owners.push(owner);
        let (state, name) = (Arc::clone(&shared), service.name.clone());
        admin = admin
            .balancer(service.name.as_str(), &balancer)
            .queue(service.name.as_str(), move || state.state(&name));
        let batch = Batch::new(task.clone(), about, shared, queue);
        for (doors, listener) in doors.iter_mut().zip(listeners) {
            doors.push((listener, batch.clone()));
        }
        services.push((service.name.clone(), address));
    }
    let page = run::page(config.admin, &life, run::told(admin, &text), &mut sockets)?;
    let setting = Setting {
        clock: task.clock().clone(),
        life: life.clone(),
        gate: Arc::new(ConnectionGate::new(config.connections)?),
        limits: config.limits,
        patient: config.patient,
        tls: None,
        edge: None,
    };
    let mut workers = vec![owner::spawn(owners, &life, config.life.drain_max / 2)?];
    workers.extend(run::spawn_behind(&setting, doors.into_iter())?);
    let watched = "nobody: what it calls is elsewhere".to_owned();
    let (config, responder, quota) = (None, None, None);
    Ok(Proxy { task, life, services, watched, workers, page, config, sockets, responder, quota })
}
