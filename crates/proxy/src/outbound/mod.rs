//! The role beside a client: its calls go out throttled, balanced, and again where that helps.
//!
//! A program in any language calls `127.0.0.1:PORT` instead of a service. What the library's client
//! layer does for programs of Rust is done for it here:
//!
//! ```text
//! program --> [ listener of a service | throttle | retries | balancer ] --> pools --> endpoints
//!                                          ^                    ^             |
//!                                          +-- refusals --------+-- outcomes, load reports
//! ```
//!
//! Throttle, retry budget and balancer of a service are one for the whole process, as what one
//! worker has learnt is worth as much to the others; they count on lanes of their own and share no
//! lock. Connections are each worker's own (`at`).
//!
//! **When it is wrong.** The proxy does not know what a call means. It sends again what was
//! refused, what never left, and what its method says can be done twice; a program that retries by
//! itself as well multiplies that, within both budgets. A caller that hangs up takes its call with
//! it: over HTTP/1 the connection is closed, and the backend may work on for nobody.
//!
//! docs/proxy-outbound.md has every key with its unit, default and effect.

mod answer;
mod asking;
mod at;
mod call;
mod config;
mod discovery;
mod endpoints;
mod health;
mod probe;

pub(crate) use answer::{Whole, refused};
pub(crate) use at::{At, Content, Roomed, Sent};
pub(crate) use call::About;
pub use config::QueueConfig;
pub use config::{
    DNS_PERIOD, DatacenterConfig, Endpoints, FILE_PERIOD, Host, InvalidHost, OutboundConfig,
    Resolver, ServiceConfig, Voice,
};
pub use endpoints::InvalidEndpoints;
pub(crate) use endpoints::parse as parse_endpoint;
pub use health::{Check, HealthConfig};

use crate::config::dump;
use crate::edge::Edge;
use crate::run::{self, Proxy, ProxyError, Setting};
use crate::sockets::Sockets;
use crate::tls;
use at::Says;
use call::Outbound;
use core::time::Duration;
use health::Checker;
use probe::Probe;
use std::sync::{Arc, Mutex};
use tidegate::Task;
use tidegate::admin::Admin;
use tidegate::client::{Balance, Balancer, BoxError, Endpoint, Layer};
use tidegate::clock::Clock;
use tidegate::executor::Executor;
use tidegate::life::Life;
use tidegate::report::LoadReports;
use tidegate::serve::{Peer, Tls};
use tidegate_core::connection::gate::ConnectionGate;
use tower_layer::Layer as _;

/// Starts a proxy in this role.
pub(crate) fn start(config: OutboundConfig, mut sockets: Sockets) -> Result<Proxy, ProxyError> {
    if config.services.is_empty() {
        let right = "one service at least, with a name, where to listen and endpoints";
        return Err(InvalidEndpoints::new("there is no service to call", right).into());
    }
    let text = Arc::new(Mutex::new(dump(&config)));
    let tls = config.tls.map(|options| tls::server(options, &config.voice)).transpose()?;
    let count = run::worker_count(config.workers);
    // Nobody ticks it: it counts, and refuses only what is too late. Load that is too much for the
    // backends is the throttles' matter, and there is no other proxy to send the rest to.
    let task = Task::builder(config.name.as_str())
        .executor(Executor::new(Clock::default()))
        .identities(config.identities)
        .default_criticality(config.criticality)
        .load_reports(LoadReports::NEVER)
        .system_signals(false)
        .build()?;
    // Without the gate, for the same reason: a program that shuts down still has calls to make.
    let life = Life::new(config.life, task.clock().clone());
    let (mut admin, mut services) = (Admin::new(&task), Vec::new());
    let edge = config.edge.map(|edge| Edge::new(edge, task.clock().clone())).transpose()?;
    let mut doors: Vec<run::Doors<Outbound>> = (0..count).map(|_| Vec::new()).collect();
    for service in &config.services {
        let (listeners, address) = sockets.listen(service.listen, count)?;
        let layer = layer(service);
        let balancer = balancer(service, count, &config.voice)?;
        admin = admin.client(&layer).balancer(service.name.as_str(), &balancer);
        let outbound = Outbound {
            identity: task.peer(None),
            peer: Peer::default(),
            task: task.clone(),
            client: layer.layer(balancer),
            about: About::new(service, edge.is_some()),
        };
        for (doors, listener) in doors.iter_mut().zip(listeners) {
            doors.push((listener, outbound.clone()));
        }
        services.push((service.name.clone(), address));
    }
    let page = run::page(
        config.admin,
        &life,
        run::told(run::shown(admin, edge.as_ref()), &text),
        &mut sockets,
    )?;
    let gate = Arc::new(ConnectionGate::new(config.connections)?);
    let setting = Setting {
        clock: task.clock().clone(),
        life: life.clone(),
        gate,
        limits: config.limits,
        patient: config.patient,
        tls: tls.map(Tls::from),
        edge,
    };
    let workers = run::spawn_behind(&setting, doors.into_iter())?;
    let watched = "nobody: what it calls is elsewhere".to_owned();
    let (config, responder, quota) = (None, None, None);
    Ok(Proxy { task, life, services, watched, workers, page, config, sockets, responder, quota })
}

fn layer(service: &ServiceConfig) -> Layer {
    Layer::builder(&service.name)
        .timeout(service.answer_timeout)
        .attempt_timeout(service.attempt_timeout.unwrap_or(Duration::MAX))
        .throttle(service.throttle)
        .retries(service.retries)
        .budget(service.budget)
        .repeat(service.repeat)
        .kept_bytes_max(service.body_max)
        .propagate(service.propagate)
        .build()
}

/// A balancer over the endpoints of `service`, with connections for each of so many workers.
pub(crate) fn balancer(
    service: &ServiceConfig,
    workers: usize,
    voice: &Voice,
) -> Result<Balancer<At>, ProxyError> {
    let discovery = discovery::discovery(service, voice)?;
    let pool = service.pool;
    let secure = service.secured().map(|tls| {
        let client = tls.client(&format!("tls of {}", service.name), voice)?;
        Ok::<_, ProxyError>((tls, client))
    });
    let secure = secure.transpose()?;
    // The pace of a queue goes by load reports as well.
    let weighs = matches!(service.balance, Balance::Weighted(_) | Balance::Prequal(_));
    let connections_max = service.queue.as_ref().map(|queue| queue.connections_max.get());
    let says = Says { asks: weighs || service.queue.is_some(), propagate: service.propagate };
    let make = move |endpoint: &Endpoint| {
        let place = config::upstream(endpoint)?;
        let secure = match &secure {
            Some((tls, client)) => tls.to(client, &place)?,
            None => None,
        };
        let at = At::new(&place, pool, secure.as_ref(), workers, says);
        Ok::<_, BoxError>(at.at_most(connections_max))
    };
    let mut builder = Balancer::builder(discovery, make)
        .balance(service.balance)
        .lame_duck_wait(service.lame_duck_wait);
    if matches!(service.balance, Balance::Prequal(_)) {
        builder = builder.prober(Probe::new(service.probe.clone(), pool.protocol));
    }
    if let Some(health) = &service.health {
        builder = builder.reporter(Checker {
            config: health.clone(),
            protocol: pool.protocol,
            about: format!("endpoints of {}", service.name),
            voice: voice.clone(),
        });
    }
    if let Some(subset) = service.subset {
        builder = builder.subset(subset);
    }
    if let Some(spill) = service.spill() {
        builder = builder.spill(spill);
    }
    Ok(builder.build()?)
}
