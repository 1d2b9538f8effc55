//! The parts of a world that only some stories have: servers of quotas and leases, connections,
//! datacenters that fill up, batch jobs.
//!
//! Each is `on`, which is its default, or a map of what differs from that.

use super::fault::Fault;
use super::keys;
use super::parts::Names;
use super::read::{Fields, Keys, place};
use super::stack::ratio;
use super::tree::{Node, Value};
use crate::world::spec::{
    Arrivals, BatchProxySpec, BatchSpec, ConnectionSpec, DoormanSpec, EnvoyThrottleSpec,
    HealthSpec, QuotaServerSpec, SpilloverSpec, WorldSpec,
};
use tidegate_core::CostRate;
use tidegate_core::Timestamp;
use tidegate_core::batch::BatchProxy;
use tidegate_core::connection::gate::ConnectionLimits;
use tidegate_core::connection::idle::{HealthPacerConfig, IdlePolicy};
use tidegate_core::doorman::Kind;

/// `on`, `off`, or a map of what differs from the default.
fn part<T: Default>(
    node: &Node,
    keys: &'static Keys,
    read: impl FnOnce(&Fields<'_>, &mut T) -> Result<(), Fault>,
) -> Result<Option<T>, Fault> {
    if let Some(on) = node.switch() {
        return Ok(on.then(T::default));
    }
    if !matches!(node.value, Value::Map(_)) {
        return Err(node.not(format_args!("on, off or a map of what {} is", keys.of)));
    }
    let mut spec = T::default();
    read(&node.fields(keys)?, &mut spec)?;
    Ok(Some(spec))
}

fn flag(node: &Node) -> Result<bool, Fault> {
    node.switch().ok_or_else(|| node.not("on or off"))
}

pub(super) fn quota_server(node: &Node) -> Result<Option<QuotaServerSpec>, Fault> {
    part(node, &keys::QUOTA_SERVER, |fields, spec: &mut QuotaServerSpec| {
        fields.set("report_every", &mut spec.report_every, Node::some_time)?;
        fields.set("round_every", &mut spec.round_every, Node::some_time)?;
        fields.set("latency", &mut spec.latency, Node::duration)?;
        let fleet = &mut spec.fleet;
        fields.set("hold", &mut fleet.silence.hold, Node::duration)?;
        fields.set("tau", &mut fleet.silence.tau, Node::duration)?;
        fleet.learning = fields.or("learning", fleet.silence.lease(), Node::duration)?;
        fields.set("safe", &mut fleet.safe, ratio)?;
        fields.set("floor", &mut fleet.floor, ratio)?;
        let right = "numbers that a fleet can be run with";
        fleet.check().map_err(|error| node.wrong(error.to_string(), right))
    })
}

/// Servers of leases, by name.
pub(super) fn doormen(fields: &Fields<'_>, world: &mut WorldSpec) -> Result<Vec<String>, Fault> {
    let Some(node) = fields.get("doormen") else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in node.entries("doormen by name, such as { rate: { capacity: 100/s } }")? {
        names.push(entry.key.clone());
        world.doormen.push(doorman(&entry.node)?);
    }
    Ok(names)
}

fn doorman(node: &Node) -> Result<DoormanSpec, Fault> {
    let fields = node.fields(&keys::DOORMAN)?;
    let mut spec = DoormanSpec {
        capacity: fields.need("capacity", "100/s")?.per_second()?,
        ..DoormanSpec::default()
    };
    let seconds = |node: &Node| {
        let span = node.duration()?;
        if span.subsec_nanos() == 0 && span.as_secs() >= 1 {
            Ok(span.as_secs() as i64)
        } else {
            Err(node.not("whole seconds, such as 5s"))
        }
    };
    let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
    let kind = |node: &Node| Ok(Kind::ALL[node.one_of("algorithm", &names)?]);
    fields.set("algorithm", &mut spec.kind, kind)?;
    fields.set("lease", &mut spec.lease_length, seconds)?;
    fields.set("refresh", &mut spec.refresh_interval, seconds)?;
    fields.set("learning", &mut spec.learning, |node| seconds(node).map(Some))?;
    fields.set("safe", &mut spec.safe_capacity, |node| node.per_second().map(Some))?;
    fields.set("latency", &mut spec.latency, Node::duration)?;
    if spec.lease_length < spec.refresh_interval {
        let what = "leases would end before they are refreshed";
        return Err(node.wrong(what, "a lease of at least the refresh interval"));
    }
    Ok(spec)
}

/// Requests a second by customer; those that are not named have no such limit.
pub(super) fn request_limits(fields: &Fields<'_>, names: &Names) -> Result<Vec<f64>, Fault> {
    let Some(node) = fields.get("request_limits") else { return Ok(Vec::new()) };
    let mut limits = vec![f64::INFINITY; names.customers.len()];
    for entry in node.entries("rates by customer, such as { good: 100/s }")? {
        let customer = place(&entry.key, entry.at, "customer", &names.customers)?;
        limits[customer] = entry.node.per_second()?;
    }
    Ok(limits)
}

pub(super) fn connections(node: &Node) -> Result<Option<ConnectionSpec>, Fault> {
    part(node, &keys::CONNECTIONS, |fields, spec: &mut ConnectionSpec| {
        fields.set("connect_cost", &mut spec.connect_cost, Node::duration)?;
        fields.set("idle", &mut spec.idle, idle)?;
        fields.set("health_cost", &mut spec.health_cost, Node::duration)?;
        let mut pacer = HealthPacerConfig::default();
        pacer.cost_per_check = tidegate_core::Cost::from_nanos(spec.health_cost.as_nanos() as u64);
        fields.set("health_budget", &mut pacer.budget, |node| {
            let share = node.portion()?;
            CostRate::from_cpus(share)
                .ok()
                .filter(|_| share > 0.0)
                .ok_or_else(|| node.not("a share of a CPU above nothing, such as 0.5%"))
        })?;
        spec.health = Some(HealthSpec::Paced(pacer));
        fields.set("health", &mut spec.health, |node| health(node, pacer))?;
        let mut limits = ConnectionLimits::default();
        let some = ["open_max", "accepts_per_second", "burst"];
        let given = some.iter().any(|key| fields.get(key).is_some());
        fields.set("open_max", &mut limits.open_max, |node| node.whole(0, u64::MAX))?;
        let most = u64::from(u32::MAX);
        let count = |node: &Node| node.whole(0, most).map(|count| count as u32);
        fields.set("accepts_per_second", &mut limits.accepts_per_second, count)?;
        fields.set("burst", &mut limits.burst, count)?;
        spec.limits = given.then_some(limits);
        fields.set("eager", &mut spec.eager, flag)
    })
}

/// `off`, or after how long.
fn idle(node: &Node) -> Result<Option<IdlePolicy>, Fault> {
    let mut policy = IdlePolicy::default();
    if let Some(on) = node.switch() {
        return Ok(on.then_some(policy));
    }
    policy.drop_after = node.some_time()?;
    Ok(Some(policy))
}

/// `off`, `paced`, or a fixed interval.
fn health(node: &Node, pacer: HealthPacerConfig) -> Result<Option<HealthSpec>, Fault> {
    let paced = matches!(&node.value, Value::Text(text) if text == "paced");
    match node.switch() {
        Some(on) => Ok(on.then_some(HealthSpec::Paced(pacer))),
        None if paced => Ok(Some(HealthSpec::Paced(pacer))),
        None => node
            .some_time()
            .map(|interval| Some(HealthSpec::Fixed(interval)))
            .map_err(|_| node.not("paced, off or an interval such as 5s")),
    }
}

pub(super) fn spillover(node: &Node) -> Result<Option<SpilloverSpec>, Fault> {
    part(node, &keys::SPILLOVER, |fields, spec: &mut SpilloverSpec| {
        fields.set("every", &mut spec.every, Node::some_time)?;
        fields.set("fill", &mut spec.fill, Node::portion)?;
        fields.set("measured_use", &mut spec.measured_use, flag)?;
        fields.set("return_per_second", &mut spec.config.return_per_second, ratio)
    })
}

pub(super) fn arrivals(node: &Node) -> Result<Arrivals, Fault> {
    let place = node.one_of("arrivals", &["poisson", "even"])?;
    Ok([Arrivals::Poisson, Arrivals::Even][place])
}

pub(super) fn batch(node: &Node) -> Result<Option<BatchSpec>, Fault> {
    part(node, &keys::BATCH, |fields, spec: &mut BatchSpec| {
        let start = |node: &Node| Ok(Timestamp::ZERO + node.duration()?);
        fields.set("start", &mut spec.start, start)?;
        let requests = |node: &Node| node.whole(1, u64::from(u32::MAX)).map(|n| n as u32);
        fields.set("requests", &mut spec.requests, requests)?;
        fields.set("pause", &mut spec.pause, Node::some_time)?;
        fields.set("proxy", &mut spec.proxy, proxy)
    })
}

fn proxy(node: &Node) -> Result<Option<BatchProxySpec>, Fault> {
    part(node, &keys::PROXY, |fields, spec: &mut BatchProxySpec| {
        fields.set("tasks", &mut spec.tasks, |node| node.whole(1, 10_000).map(|n| n as u32))?;
        let size = |node: &Node| node.whole(1, 1_000_000).map(|size| size as usize);
        fields.set("queue_max", &mut spec.config.queue_max, size)?;
        let pace = &mut spec.config.pace;
        let window = |node: &Node| node.whole(1, 1_000_000).map(|n| n as u32);
        fields.set("window_max", &mut pace.window_max, window)?;
        fields.set("growth", &mut pace.growth, Node::share)?;
        fields.set("backoff", &mut pace.backoff, Node::share)?;
        fields.set("utilization_target", &mut pace.utilization_target, Node::portion)?;
        fields.set("probe_interval", &mut pace.probe_interval, Node::some_time)?;
        BatchProxy::<()>::new(spec.config)
            .map(|_| ())
            .map_err(|error| node.wrong(error.to_string(), error.wanted))
    })
}

pub(super) fn envoy_throttle(node: &Node) -> Result<Option<EnvoyThrottleSpec>, Fault> {
    part(node, &keys::ENVOY_THROTTLE, |fields, spec: &mut EnvoyThrottleSpec| {
        fields.set("window", &mut spec.window, Node::some_time)?;
        let some = |node: &Node| {
            let share = node.share()?;
            if share > 0.0 { Ok(share) } else { Err(node.not("a share above 0%")) }
        };
        fields.set("success_threshold", &mut spec.success_threshold, some)?;
        fields.set("aggression", &mut spec.aggression, |node| {
            let number = node.number()?;
            if number >= 1.0 { Ok(number) } else { Err(node.not("a number from 1 on")) }
        })?;
        fields.set("rejection_max", &mut spec.rejection_max, Node::share)
    })
}

#[cfg(test)]
mod tests {
    use super::super::Scenario;

    /// Every part at once, each with a key or two of its own.
    const STORY: &str = "
name: parts
story: all parts
lasts: 30s
datacenters: [east, west]
distances: { east-west: 10ms }
quota_server: { report_every: 1s, hold: 5s, tau: 1s, safe: 40% }
doormen: { rate: { capacity: 100/s, algorithm: FAIR_SHARE, lease: 10s, refresh: 1s, safe: 0.5/s } }
customers: { good: { limit: 4 }, bad: { limit: 1 } }
services:
  api:
    tasks: [{ count: 4, datacenter: east }, { count: 4, datacenter: west }]
    work: 2ms
    connections: { connect_cost: 1ms, idle: 60s, health: paced, open_max: 10000, eager: on }
    spillover: { every: 1s, fill: 80%, return_per_second: 10% }
    request_limits: { bad: 100/s }
    calls: { service: db, fanout: 3 }
  db: { tasks: 8, work: 1ms }
clients:
  web:
    service: api
    load: 20%
    customers: { good: 80%, bad: 20% }
  dear:
    service: api
    rate: 10/s
    burst: 5
    arrivals: even
    work: 20ms
    envoy_throttle: { window: 10s, aggression: 2 }
  leased: { service: api, rate: 200/s, doorman: rate, tasks: 20 }
  jobs:
    service: api
    tasks: 100
    mix: { SHEDDABLE: 100% }
    deadline: 10s
    batch: { start: 5s, requests: 20, pause: 1s, proxy: { tasks: 2, queue_max: 1000 } }
events:
  - { at: 6s, restart: db, tasks: 0..2, lame_duck: 1s, down_for: 1s, cold_for: 2s, cold_speed: 50% }
  - { at: 8s, quota_server: lost, for: 2s }
  - { at: 12s, quota_server: elect }
  - { at: 13s, limits: { good: 3 } }
  - { at: 14s, for: 2s, lose: west }
  - { at: 18s, for: 2s, datacenter_speed: { east: 80% } }
  - { at: 20s, doorman: { rate: elect } }
  - { at: 21s, doorman_capacity: { rate: 80/s } }
checks:
  - { batch_time: jobs, at_most: 25s }
  - { batch_done: jobs, at_least: 2000 }
  - { leased_least: leased, during: 5s..20s, at_least: 96.6% }
  - { leased_most: leased, during: 5s..20s, at_most: 106% }
  - { unplaced: web, at_most: 1% }
  - { nearest: web, during: 2s..5s, at_least: 99% }
  - { quota_enforced: web, customer: good, during: 5s..12s, at_most: 201% }
  - { connections: api, at_least: 64 }
  - { connects: api, at_most: 2000 }
  - { health_checks: api, during: 5s..14s, at_most: 0 }
  - { connection_cpu: api, during: 10s..14s, at_most: 5% }
  - { success: web, customer: good, during: 2s..5s, at_least: 95% }
";

    #[test]
    fn a_story_may_have_every_part() {
        let scenario = Scenario::parse("parts.yaml", STORY).unwrap_or_else(|e| panic!("{e}"));
        let verdict = scenario.verdict(1);
        let lines: Vec<String> = verdict.iter().map(super::super::Judged::line).collect();
        assert!(verdict.iter().all(|judged| judged.passed), "{}", lines.join("\n"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        for (from, to, what) in [
            ("safe: 40%", "safe: 0%", "safe must be more than 0"),
            ("refresh: 1s", "refresh: 20s", "leases would end before they are refreshed"),
            ("FAIR_SHARE", "FAIR", "there is no algorithm `FAIR`"),
            ("doorman: rate,", "doorman: rats,", "there is no doorman `rats`"),
            ("health: paced", "health: often", "paced, off or an interval"),
            ("lose: west", "lose: north", "there is no datacenter `north`"),
            ("quota_server: elect", "quota_server: gone", "there is no change of a server `gone`"),
            ("aggression: 2", "aggression: 0.5", "a number from 1 on"),
            ("proxy: { tasks: 2", "proxy: { backoff: 2", "a share"),
        ] {
            assert!(STORY.contains(from), "{from}");
            let error = Scenario::parse("parts.yaml", &STORY.replace(from, to)).unwrap_err();
            assert!(error.to_string().contains(what), "{to}: {error}");
        }
    }
}
