//! From the tree to a world: network, services, clients and customers.

use super::extras;
use super::fault::{At, Fault};
use super::keys;
use super::read::{Fields, place};
use super::stack::{ratio, stack};
use super::tree::{Entry, Node, Value};
use crate::world::cpu::Sharing;
use crate::world::spec::{
    AdmissionSpec, Arrivals, CallSpec, ClientSpec, ServiceSpec, TaskSpec, WorkSpec, WorldSpec,
};
use core::time::Duration;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::fleet::Limits;
use tidegate_core::units::InvalidNumber;
use tidegate_core::{CostRate, Criticality};

/// Latency between two tasks of a datacenter.
const LATENCY: Duration = Duration::from_micros(250);
/// CPU time of a refusal.
const REJECT_COST: Duration = Duration::from_micros(50);
/// Client tasks in a group.
const CLIENT_TASKS: u64 = 10;
const DEADLINE: Duration = Duration::from_secs(1);
/// More than any story needs, and still set up at once.
const TASKS_MAX: u64 = 100_000;
/// Customers without a name of their own.
pub(super) const OTHERS: &str = "others";

/// What a world is called by in events and checks.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    pub(super) datacenters: Vec<String>,
    pub(super) services: Vec<String>,
    pub(super) clients: Vec<String>,
    pub(super) customers: Vec<String>,
    pub(super) doormen: Vec<String>,
}

/// A world as a file tells it, and its names.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    pub(super) names: Names,
    pub(super) world: WorldSpec,
    /// For each client, the service whose capacity its load and goodput are measured by.
    pub(super) capacity_of: Vec<usize>,
}

impl Parts {
    /// Requests a second that a service can do: `sum(cores * speed) / mean work`.
    pub(super) fn capacity(&self, service: usize) -> f64 {
        capacity(&self.world.services[service])
    }
}

fn capacity(service: &ServiceSpec) -> f64 {
    service.tasks.iter().map(|task| task.cores * task.speed).sum::<f64>() / service.work.mean()
}

/// Builds the world of a scenario, without what changes in it.
pub(super) fn parts(fields: &Fields<'_>, lasts: Duration) -> Result<Parts, Fault> {
    let datacenters = match fields.get("datacenters") {
        Some(node) => datacenters(node)?,
        None => vec!["here".to_owned()],
    };
    let services = fields.need("services", "{ api: { tasks: 4, work: 5ms } }")?;
    let services = named(services, "a service")?;
    let clients = fields.need("clients", "{ web: { service: api, load: 0.7 } }")?;
    let clients = named(clients, "a client")?;
    for client in clients {
        if services.iter().any(|service| service.key == client.key) {
            let what = format!("`{}` is the name of a service, too", client.key);
            return Err(Fault::new(client.at, what, "another name: checks go by names"));
        }
    }
    let customers = fields.get("customers").map_or(Ok(&[][..]), |n| named(n, "a customer"))?;
    let key = |entry: &Entry| entry.key.clone();
    let mut names = Names {
        datacenters,
        services: services.iter().map(key).collect(),
        clients: clients.iter().map(key).collect(),
        customers: vec![OTHERS.to_owned()],
        doormen: Vec::new(),
    };
    names.customers.extend(customers.iter().map(key).filter(|name| name != OTHERS));
    let mut limits = vec![Limits::UNLIMITED; names.customers.len()];
    for entry in customers {
        limits[place(&entry.key, entry.at, "customer", &names.customers)?] = customer(&entry.node)?;
    }

    let mut world = WorldSpec { seed: 1, lasts, customers: limits, ..WorldSpec::default() };
    names.doormen = extras::doormen(fields, &mut world)?;
    world.quota_server = fields.or("quota_server", None, extras::quota_server)?;
    network(fields, &names, &mut world)?;
    for entry in services {
        world.services.push(service(entry, &names)?);
    }
    acyclic(services, &world.services)?;
    let mut capacity_of = Vec::new();
    for entry in clients {
        let (client, measured_by) = client(entry, &names, &world.services)?;
        world.clients.push(client);
        capacity_of.push(measured_by);
    }
    Ok(Parts { names, world, capacity_of })
}

/// A map by name that is not empty.
fn named<'a>(node: &'a Node, what: &str) -> Result<&'a [Entry], Fault> {
    let entries = node.entries(format_args!("{what} or more, each under its name"))?;
    if entries.is_empty() {
        return Err(node.wrong("there is nothing here", format!("{what} or more, by name")));
    }
    Ok(entries)
}

fn datacenters(node: &Node) -> Result<Vec<String>, Fault> {
    let list = node.list("a list of names, such as [east, west]")?;
    let names: Result<Vec<_>, _> = list.iter().map(|node| node.name("a name")).collect();
    let names = names?;
    for (i, name) in names.iter().enumerate() {
        if names[..i].contains(name) {
            return Err(list[i].wrong(format!("`{name}` is there twice"), "each name once"));
        }
    }
    if names.is_empty() { Err(node.not("at least one name")) } else { Ok(names) }
}

fn network(fields: &Fields<'_>, names: &Names, world: &mut WorldSpec) -> Result<(), Fault> {
    let mut latency = LATENCY;
    if let Some(node) = fields.get("network") {
        let network = node.fields(&keys::NETWORK)?;
        network.set("latency", &mut latency, Node::duration)?;
        network.set("jitter", &mut world.jitter, Node::portion)?;
        network.set("loss", &mut world.loss, Node::share)?;
    }
    let places = &names.datacenters;
    let mut distance = vec![vec![None; places.len()]; places.len()];
    for (i, row) in distance.iter_mut().enumerate() {
        row[i] = Some(latency);
    }
    let node = fields.get("distances");
    for entry in node.map_or(Ok(&[][..]), |node| node.entries("a map such as { a-b: 30ms }"))? {
        let wanted = format!("two datacenters with a dash between, of {}", places.join(", "));
        // A name may have a dash of its own: any split will do that gives two names.
        let find = |name: &str| places.iter().position(|known| known == name);
        let pair = entry
            .key
            .match_indices('-')
            .find_map(|(dash, _)| Some((find(&entry.key[..dash])?, find(&entry.key[dash + 1..])?)));
        let Some((from, to)) = pair else {
            let what = format!("`{}` is no pair of datacenters", entry.key);
            return Err(Fault::new(entry.at, what, wanted));
        };
        let far = entry.node.duration()?;
        (distance[from][to], distance[to][from]) = (Some(far), Some(far));
    }
    for (i, row) in distance.iter().enumerate() {
        if let Some(j) = row.iter().position(Option::is_none) {
            let pair = format!("{}-{}", places[i], places[j]);
            let at = node.or(fields.get("datacenters")).map_or(At::START, |node| node.at);
            let what = format!("there is no distance for {pair}");
            return Err(Fault::new(at, what, format!("distances: {{ {pair}: 30ms }}")));
        }
    }
    world.distance = distance.into_iter().map(|row| row.into_iter().flatten().collect()).collect();
    Ok(())
}

fn customer(node: &Node) -> Result<Limits, Fault> {
    let fields = node.fields(&keys::CUSTOMER)?;
    fields.get("limit").map_or(Ok(Limits::UNLIMITED), limits)
}

/// CPUs in all, or by criticality.
pub(super) fn limits(limit: &Node) -> Result<Limits, Fault> {
    let cpus =
        |node: &Node| CostRate::from_cpus(node.number()?).map_err(|error| node.not(error.wanted));
    if !matches!(limit.value, Value::Map(_)) {
        return Ok(Limits::total(cpus(limit)?));
    }
    let mut entries = [None; Criticality::COUNT];
    for entry in limit.entries("CPUs by criticality")? {
        entries[criticality(&entry.key, entry.at)?.index()] = Some(cpus(&entry.node)?);
    }
    Limits::from_entries(entries)
        .map_err(|error| limit.wrong(error.to_string(), "limits that do not fall"))
}

/// The criticality of that name.
pub(super) fn criticality(name: &str, at: At) -> Result<Criticality, Fault> {
    let names: Vec<&str> = Criticality::ALL.iter().rev().map(|c| c.name()).collect();
    let place = place(name, at, "criticality", &names)?;
    Ok(Criticality::ALL[Criticality::COUNT - 1 - place])
}

fn datacenter(node: &Node, names: &Names) -> Result<usize, Fault> {
    node.one_of("datacenter", &names.datacenters)
}

fn service(entry: &Entry, names: &Names) -> Result<ServiceSpec, Fault> {
    let fields = entry.node.fields(&keys::SERVICE)?;
    let usual = TaskSpec {
        datacenter: fields.or("datacenter", 0, |node| datacenter(node, names))?,
        cores: fields.or("cores", 1.0, Node::positive)?,
        speed: fields.or("speed", 1.0, Node::speed)?,
    };
    let sharing = |node: &Node| {
        let place = node.one_of("sharing", &["shared", "fifo"])?;
        Ok([Sharing::Shared, Sharing::Fifo][place])
    };
    let mut calls = Vec::new();
    if let Some(node) = fields.get("calls") {
        for node in node.one_or_more() {
            calls.push(call(node, names)?);
        }
    }
    Ok(ServiceSpec {
        name: entry.key.clone(),
        tasks: tasks(&fields, usual, names)?,
        sharing: fields.or("sharing", Sharing::Shared, sharing)?,
        work: work(fields.need("work", "5ms")?)?,
        waits: fields.or("waits", Duration::ZERO, Node::duration)?,
        reject_cost: fields.or("reject_cost", REJECT_COST, Node::duration)?,
        admission: fields.or("protection", Some(AdmissionSpec::default()), protection)?,
        degraded: fields.or("degraded", None, |node| node.share().map(Some))?,
        calls,
        look_every: ServiceSpec::default().look_every,
        qps_limits: extras::request_limits(&fields, names)?,
        active_limit: fields.or("active_limit", None, |node| {
            node.whole(1, u32::MAX.into()).map(|most| Some(most as u32))
        })?,
        connections: fields.or("connections", None, extras::connections)?,
        spillover: fields.or("spillover", None, extras::spillover)?,
    })
}

/// A number of tasks that are all the same, or groups of them.
fn tasks(fields: &Fields<'_>, usual: TaskSpec, names: &Names) -> Result<Vec<TaskSpec>, Fault> {
    let node = fields.need("tasks", "4")?;
    let Value::List(groups) = &node.value else {
        return Ok(vec![usual; node.whole(1, TASKS_MAX)? as usize]);
    };
    let mut tasks = Vec::new();
    for group in groups {
        let fields = group.fields(&keys::TASKS)?;
        let count = fields.or("count", 1, |node| node.whole(1, TASKS_MAX))?;
        let task = TaskSpec {
            datacenter: fields.or("datacenter", usual.datacenter, |n| datacenter(n, names))?,
            cores: fields.or("cores", usual.cores, Node::positive)?,
            speed: fields.or("speed", usual.speed, Node::speed)?,
        };
        tasks.extend(std::iter::repeat_n(task, count as usize));
    }
    if tasks.is_empty() { Err(node.not("at least one group of tasks")) } else { Ok(tasks) }
}

fn work(node: &Node) -> Result<WorkSpec, Fault> {
    if !matches!(node.value, Value::Map(_)) {
        return node.some_time().map(WorkSpec::Constant);
    }
    let fields = node.fields(&keys::WORK)?;
    if let Some(usual) = fields.get("usual") {
        return Ok(WorkSpec::Rare {
            usual: usual.some_time()?,
            rare: fields.need("rare", "10s")?.some_time()?,
            share: fields.need("share", "0.1%")?.share()?,
        });
    }
    let mean = fields.need("mean", "5ms")?.some_time()?;
    let spread = |node: &Node| node.one_of("spread", &["none", "exponential", "log_normal"]);
    match fields.or("spread", 1, spread)? {
        0 => Ok(WorkSpec::Constant(mean)),
        1 => Ok(WorkSpec::Exponential(mean)),
        // The spread of real services' requests; see `WorkSpec`.
        _ => Ok(WorkSpec::LogNormal { mean, sigma: fields.or("sigma", 1.0, sigma)? }),
    }
}

/// Beyond 4, a mean says nothing: one request in thousands is most of the work.
fn sigma(node: &Node) -> Result<f64, Fault> {
    let sigma = node.number()?;
    if sigma <= 4.0 { Ok(sigma) } else { Err(node.not("a number from 0 to 4")) }
}

type Setter = fn(ShedConfig, Duration) -> Result<ShedConfig, InvalidNumber>;

fn protection(node: &Node) -> Result<Option<AdmissionSpec>, Fault> {
    let mut spec = AdmissionSpec::default();
    if let Some(on) = node.switch() {
        return Ok(on.then_some(spec));
    }
    if !matches!(node.value, Value::Map(_)) {
        return Err(node.not("on, off or a map such as { queue_per_task: 4 }"));
    }
    let fields = node.fields(&keys::PROTECTION)?;
    fields.set("load_target", &mut spec.load_target, Node::positive)?;
    fields.set("load_tau", &mut spec.load_tau, Node::some_time)?;
    let mut shed = spec.shed;
    if let Some(node) = fields.get("degrade_from") {
        shed = accepted(node, shed.degrade_from(levels(node)?))?;
    }
    if let Some(node) = fields.get("thresholds") {
        shed = accepted(node, shed.thresholds(levels(node)?))?;
    }
    let spans: [(&str, Setter); 5] = [
        ("offered_tau", ShedConfig::offered_tau),
        ("offered_tau_lately", ShedConfig::offered_tau_lately),
        ("capacity_tau", ShedConfig::capacity_tau),
        ("bias_tau", ShedConfig::bias_tau),
        ("horizon", ShedConfig::horizon),
    ];
    for (key, set) in spans {
        if let Some(node) = fields.get(key) {
            shed = accepted(node, set(shed, node.duration()?))?;
        }
    }
    if let Some(node) = fields.get("queue_per_task") {
        shed = accepted(node, shed.queue_per_task(node.number()?))?;
    }
    if let Some(node) = fields.get("queue_per_cpu") {
        shed = accepted(node, shed.queue_per_cpu(node.number()?))?;
    }
    if let Some(node) = fields.get("slack") {
        shed = accepted(node, shed.slack(ratio(node)?))?;
    }
    if let Some(node) = fields.get("floor") {
        shed = accepted(node, shed.floor(ratio(node)?))?;
    }
    spec.shed = shed;
    Ok(Some(spec))
}

/// What a configuration of the core says to a value from `node`.
fn accepted<T>(node: &Node, result: Result<T, InvalidNumber>) -> Result<T, Fault> {
    result.map_err(|error| node.wrong(error.to_string(), error.wanted))
}

/// A number for each criticality, lowest first.
fn levels(node: &Node) -> Result<[f64; Criticality::COUNT], Fault> {
    let wanted = "four numbers, the lowest criticality first, such as [0.85, 0.9, 0.95, 1]";
    let numbers: Result<Vec<f64>, Fault> = node.list(wanted)?.iter().map(Node::number).collect();
    numbers?.try_into().map_err(|_| node.not(wanted))
}

fn call(node: &Node, names: &Names) -> Result<CallSpec, Fault> {
    if !matches!(node.value, Value::Map(_)) {
        let service = node.one_of("service", &names.services)?;
        return Ok(CallSpec { service, ..CallSpec::default() });
    }
    let fields = node.fields(&keys::CALL)?;
    let service = fields.need("service", "db")?.one_of("service", &names.services)?;
    let fanout = fields.or("fanout", 1, |node| node.whole(1, 10_000))? as u32;
    Ok(CallSpec { service, stack: stack(&fields)?, fanout })
}

/// A service that waits for itself, however far down, would wait for ever.
fn acyclic(entries: &[Entry], services: &[ServiceSpec]) -> Result<(), Fault> {
    // A service is fine when all that it calls are; what never becomes fine is in a circle or
    // above one.
    let mut fine = vec![false; services.len()];
    for _ in services {
        for (i, service) in services.iter().enumerate() {
            fine[i] = service.calls.iter().all(|call| fine[call.service]);
        }
    }
    match fine.iter().position(|fine| !fine) {
        Some(i) => {
            let what =
                format!("the calls of `{}` come back to where they came from", entries[i].key);
            Err(Fault::new(entries[i].at, what, "services that call only those below them"))
        }
        None => Ok(()),
    }
}

fn client(
    entry: &Entry,
    names: &Names,
    services: &[ServiceSpec],
) -> Result<(ClientSpec, usize), Fault> {
    let fields = entry.node.fields(&keys::CLIENT)?;
    let by_name = |node: &Node| node.one_of("service", &names.services);
    let service = by_name(fields.need("service", &names.services[0])?)?;
    let measured_by = fields.or("capacity_of", service, by_name)?;
    let rate = match (fields.get("load"), fields.get("rate")) {
        (Some(load), None) => load.portion()? * capacity(&services[measured_by]),
        (None, Some(rate)) => rate.per_second()?,
        (Some(_), Some(rate)) => {
            return Err(rate.wrong("both `load` and `rate` are given", "one of them"));
        }
        (None, None) if fields.get("batch").is_some() => 0.0,
        (None, None) => {
            let right = "add `load: 0.7`, a multiple of capacity, or `rate: 100/s`";
            return Err(entry.node.wrong("a client needs `load` or `rate`", right));
        }
    };
    let mut mix = [0.0; Criticality::COUNT];
    match fields.get("mix") {
        Some(node) => {
            for entry in node.entries("shares by criticality, such as { CRITICAL: 100% }")? {
                mix[criticality(&entry.key, entry.at)?.index()] = entry.node.portion()?;
            }
            some_share(node, &mix)?;
        }
        None => mix[Criticality::default().index()] = 1.0,
    }
    let mut customers = vec![0.0; names.customers.len()];
    match fields.get("customers") {
        Some(node) => {
            for entry in node.entries("shares by customer, such as { good: 50%, bad: 50% }")? {
                let customer = place(&entry.key, entry.at, "customer", &names.customers)?;
                customers[customer] = entry.node.portion()?;
            }
            some_share(node, &customers)?;
        }
        None => customers[0] = 1.0,
    }
    let client = ClientSpec {
        name: entry.key.clone(),
        datacenter: fields.or("datacenter", 0, |node| datacenter(node, names))?,
        tasks: fields.or("tasks", CLIENT_TASKS, |node| node.whole(1, TASKS_MAX))? as u32,
        service,
        rate,
        mix,
        customers,
        deadline: fields.or("deadline", DEADLINE, Node::some_time)?,
        stack: stack(&fields)?,
        work: fields.or("work", None, |node| work(node).map(Some))?,
        arrivals: fields.or("arrivals", Arrivals::Poisson, extras::arrivals)?,
        burst: fields.or("burst", 1, |node| node.whole(1, TASKS_MAX))? as u32,
        batch: fields.or("batch", None, extras::batch)?,
        doorman: fields.or("doorman", None, |n| n.one_of("doorman", &names.doormen).map(Some))?,
    };
    Ok((client, measured_by))
}

fn some_share(node: &Node, shares: &[f64]) -> Result<(), Fault> {
    if shares.iter().sum::<f64>() > 0.0 {
        Ok(())
    } else {
        Err(node.wrong("all shares are 0", "at least one above 0; they need not add up to 100%"))
    }
}
