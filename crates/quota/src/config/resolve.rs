//! From the file to what it means.

use super::doorman::Doorman;
use super::election;
use super::fault::Fault;
use super::raw::{self, Limit, Named};
use super::units::{bytes, cpus, duration, share, size};
use super::who::{self, Exposed, Reader};
use super::{Config, Fixed, Memory, Own, PORT, Service};
use crate::access;
use core::time::Duration;
use serde_saphyr::{Location, Spanned};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use tidegate_core::fleet::{FleetConfig, Limits, TaskId};
use tidegate_core::{Cost, CostRate};
use tidegate_wire::customer::{IdentityPattern, NAME_MAX};

/// Rates over less would be mostly chance, and ten thousand tasks would do nothing but report.
const REPORT_MIN: Duration = Duration::from_millis(10);
/// Limits that are a minute late follow no demand.
const REPORT_MAX: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

pub(super) fn file(file: raw::File) -> Result<Config, Fault> {
    resolve(file, None)
}

/// What the file says, but for what somebody has already.
fn resolve(file: raw::File, own: Option<&Own>) -> Result<Config, Fault> {
    let at = file.quota.referenced;
    let quota = file.quota.value;
    let listen_at = quota.listen.as_ref().map_or(at, |text| text.referenced);
    let listen = match quota.listen {
        None => SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)),
        Some(text) => text.value.parse().map_err(|_| {
            let what = format!("`{}` is no address", text.value);
            Fault::at(&text, what, "address and port, such as 0.0.0.0:7300 or [::]:7300")
        })?,
    };
    let tls = own.map_or_else(|| quota.tls.map(who::tls), |own| own.tls.clone());
    let identified = tls.as_ref().is_some_and(|tls| access::proves(&tls.clients));
    let trust_network = trust(quota.trust_network.as_ref(), identified)?;
    Exposed::check(listen, identified, trust_network)
        .map_err(|exposed| Fault::new(listen_at, exposed.to_string(), Exposed::REMEDY))?;
    let reader = Reader { identified };
    let told = quota.operators;
    let operators = own.map_or_else(|| reader.list(told), |own| Ok(own.operators.clone()))?;
    let parent_at = quota.parent.as_ref().map_or(at, |parent| parent.referenced);
    let parent = quota.parent.map(|parent| super::parent::resolve(parent.value)).transpose()?;
    let parent = own.map_or(parent, |own| own.parent.clone());
    let doorman = quota.doorman.map(|raw| super::doorman::resolve(raw, &reader)).transpose()?;
    let (doorman, doorman_parent, doorman_access) = match doorman {
        Some(Doorman { templates, parent, access }) => (templates, parent, Some(access)),
        None => (None, None, None),
    };
    let found = quota.services.as_ref().is_some_and(|services| !services.value.0.is_empty());
    let elsewhere = quota.services.is_none() && doorman_access.is_none();
    let election = quota.election.map(|raw| election::resolve(raw, elsewhere)).transpose()?;
    if !found
        && doorman_access.is_none()
        && !election.as_ref().is_some_and(|election| election.limits)
    {
        let at = quota.services.map_or(at, |services| services.referenced);
        let right = "at least one, such as `services: { search: { default: 10 } }`";
        return Err(Fault::new(at, "there are no services", right));
    }
    let services = quota.services.map(|services| services.value).unwrap_or_default();
    let services = named(services, "service", |name, raw| service(name, raw, &reader))?;
    let unnamed = parent.as_ref().is_some_and(|parent| parent.name.is_none())
        || doorman_parent.as_ref().is_some_and(|parent| parent.name.is_none());
    if unnamed && election.is_some() {
        let what = "servers that are elected take each other's place above, and have no name there";
        return Err(Fault::new(parent_at, what, "`name` in `parent`, the same for all of them"));
    }
    if let (Some(state), Some(_)) = (&quota.state, &election) {
        let what = "a server that is elected remembers in etcd";
        return Err(Fault::at(state, what, "leave `state` out, or `election`"));
    }
    let state = quota.state.map(|path| PathBuf::from(path.value));
    let fixed = Fixed {
        listen: Some(listen),
        advertise: quota.advertise.as_ref().map(|text| text.value.clone()),
        state: state.clone(),
        trust_network,
    };
    let fixed = own.map_or(fixed, |own| own.fixed.clone());
    let advertise = match quota.advertise {
        Some(text) => {
            let parsed = text.value.parse::<http::uri::Authority>().ok();
            let named = parsed.is_some_and(|at| {
                at.port_u16().is_some_and(|port| port > 0)
                    && !at.host().is_empty()
                    && !at.as_str().contains('@')
            });
            if !named {
                let what = format!("nobody can be sent to `{}`", text.value);
                return Err(Fault::at(&text, what, "host and port, such as quota-1:7300"));
            }
            text.value
        }
        None if election.is_some() && listen.ip().is_unspecified() => {
            let what = format!("nobody can be sent to {listen}");
            let right = "add `advertise: HOST:PORT`, where others reach this server";
            return Err(Fault::new(at, what, right));
        }
        None => listen.to_string(),
    };
    Ok(Config {
        listen,
        advertise,
        state,
        election,
        services,
        doorman,
        doorman_parent,
        tls,
        trust_network,
        operators,
        parent,
        doorman_access,
        fixed,
    })
}

fn trust(told: Option<&Spanned<bool>>, identified: bool) -> Result<bool, Fault> {
    match told {
        Some(told) if told.value && identified => {
            let what = "everyone proves who they are by `tls.client_ca` and cannot be believed \
                        without it as well";
            Err(Fault::at(told, what, "one of the two"))
        }
        told => Ok(told.is_some_and(|told| told.value)),
    }
}

/// The same where keys that are of one server have no place.
pub(super) fn limits_only(file: raw::File, own: &Own) -> Result<Config, Fault> {
    let (all, quota) = (file.quota.referenced, &file.quota.value);
    let texts =
        [("listen", &quota.listen), ("state", &quota.state), ("advertise", &quota.advertise)];
    let found = texts.into_iter().filter_map(|(key, text)| Some((key, text.as_ref()?.referenced)));
    let others = [
        ("election", quota.election.as_ref().map(|election| election.referenced)),
        ("trust_network", quota.trust_network.as_ref().map(|trust| trust.referenced)),
        ("operators", quota.operators.as_ref().map(|operators| operators.referenced)),
        ("tls", quota.tls.as_ref().map(|_| all)),
        ("parent", quota.parent.as_ref().map(|parent| parent.referenced)),
        ("doorman.parent", quota.doorman.as_ref().and_then(above)),
    ];
    let others = others.into_iter().filter_map(|(key, at)| Some((key, at?)));
    if let Some((key, at)) = found.chain(others).next() {
        let what = format!("`{key}` is of one server, and this is for all");
        return Err(Fault::new(
            at,
            what,
            "`services` and `doorman` only; the rest in its own file",
        ));
    }
    resolve(file, Some(own))
}

fn above(doorman: &Spanned<raw::Doorman>) -> Option<Location> {
    doorman.value.parent.as_ref().map(|parent| parent.referenced)
}

/// Names that people and metrics can bear, each once.
fn named<T, R>(
    named: Named<T>,
    kind: &str,
    read: impl Fn(&Spanned<String>, Spanned<T>) -> Result<R, Fault>,
) -> Result<BTreeMap<String, R>, Fault> {
    let mut found = BTreeMap::new();
    for (name, value) in named.0 {
        if !crate::name::is_name(&name.value) {
            let what = format!("`{}` cannot be the name of a {kind}", name.value);
            let right = format!("1 to {NAME_MAX} printable ASCII characters without blanks");
            return Err(Fault::at(&name, what, right));
        }
        let read = read(&name, value)?;
        if found.insert(name.value.clone(), read).is_some() {
            let what = format!("there are two of {kind} `{}`", name.value);
            return Err(Fault::at(&name, what, "each name once"));
        }
    }
    Ok(found)
}

fn service(
    name: &Spanned<String>,
    raw: Spanned<raw::Service>,
    reader: &Reader,
) -> Result<Service, Fault> {
    let at = raw.referenced;
    let raw = raw.value;
    let Some(default) = raw.default else {
        let what =
            format!("service `{}` needs `default`, for everyone who is not named", name.value);
        return Err(Fault::at(name, what, "add `default: 10`, in CPUs"));
    };
    let mut memory = Memory::default();
    let mut capacity = None;
    if let Some(raw) = raw.capacity {
        capacity = raw.cpu.as_ref().map(some_cpus).transpose()?;
        memory.capacity = raw.memory.as_ref().map(bytes).transpose()?;
    }
    let default_at = default.referenced;
    let Allowed { limits: default, memory: held, identities: strangers } = limits(default, reader)?;
    memory.default = held;
    if !strangers.is_empty() {
        let what = "everyone who is not named has no identities of their own";
        return Err(Fault::new(default_at, what, "`identities` of a customer"));
    }
    let customers = named(raw.customers, "customer", |_, limit| limits(limit, reader))?;
    let belong = customers.iter().flat_map(|(name, allowed)| {
        allowed.identities.iter().map(|identity| (identity.clone(), name.clone()))
    });
    let lists = [raw.tasks, raw.zones, raw.envoys];
    let access = reader.service(name, lists, belong.collect())?;
    let held = customers.iter().filter_map(|(name, allowed)| Some((name.clone(), allowed.memory?)));
    memory.customers = held.collect();
    let customers: BTreeMap<_, _> =
        customers.into_iter().map(|(name, allowed)| (name, allowed.limits)).collect();
    let mut fleet = FleetConfig::default();
    silence(&raw.silence, &mut fleet)?;
    let span = |text: &Option<_>, default, from, to| {
        text.as_ref().map_or(Ok(default), |text| duration(text, from, to))
    };
    let second = Duration::from_secs(1);
    let report_every = span(&raw.reports.every, second, REPORT_MIN, REPORT_MAX)?;
    let quarter = report_every / 4;
    let round_every = span(&raw.reports.round, quarter, Duration::from_millis(1), report_every)?;
    for (text, place) in [
        (&raw.shares.floor, &mut fleet.floor),
        (&raw.shares.unseen, &mut fleet.unseen),
        (&raw.shares.safe, &mut fleet.safe),
    ] {
        if let Some(text) = text {
            *place = share(text)?;
        }
    }
    sizes(&raw.sizes, &mut fleet)?;
    // Ten reports, as by default.
    fleet.ack_timeout = report_every * 10;
    if report_every * 3 > fleet.silence.hold {
        let at = raw.reports.every.as_ref().or(raw.silence.hold.as_ref());
        let what = "tasks would take a late report for a lost server";
        let right = "`reports.every` of at most a third of `silence.hold`";
        return Err(Fault::new(at.map_or(name.referenced, |text| text.referenced), what, right));
    }
    fleet.check().map_err(|error| {
        Fault::new(at, error.to_string(), "see docs/quota.md for what each key means")
    })?;
    if customers.len() >= fleet.customers_max {
        let what = format!("{} customers do not fit, with everyone else", customers.len());
        let right = format!("`sizes: {{ customers: {} }}` or more", customers.len() + 1);
        return Err(Fault::at(name, what, right));
    }
    let hit = raw.hit.as_ref().map(|text| duration(text, Duration::from_micros(1), second * 60));
    let hit = hit.transpose()?.map(|cost| Cost::from_nanos(cost.as_nanos() as u64));
    Ok(Service {
        capacity,
        memory,
        default,
        customers,
        hit,
        access,
        report_every,
        round_every,
        fleet,
    })
}

fn some_cpus(found: &Spanned<f64>) -> Result<CostRate, Fault> {
    match cpus(found)? {
        CostRate::ZERO => Err(Fault::at(found, "no CPU at all", "more than 0")),
        rate => Ok(rate),
    }
}

fn silence(raw: &raw::Silence, fleet: &mut FleetConfig) -> Result<(), Fault> {
    let millis = Duration::from_millis(1);
    for (text, place) in [
        (&raw.hold, &mut fleet.silence.hold),
        (&raw.fade, &mut fleet.silence.tau),
        (&raw.forget, &mut fleet.forget),
    ] {
        if let Some(text) = text {
            *place = duration(text, millis, DAY)?;
        }
    }
    let lease = fleet.silence.lease();
    fleet.learning = match &raw.learning {
        Some(text) => duration(text, lease, DAY.max(lease))?,
        None => lease,
    };
    Ok(())
}

fn sizes(raw: &raw::Sizes, fleet: &mut FleetConfig) -> Result<(), Fault> {
    const TABLE_MAX: usize = 1 << 24;
    for (found, place, to) in [
        (&raw.tasks, &mut fleet.tasks_max, TaskId::COUNT_MAX),
        (&raw.customers, &mut fleet.customers_max, TABLE_MAX),
        (&raw.customers_per_task, &mut fleet.customers_per_task_max, TABLE_MAX),
    ] {
        if let Some(found) = found {
            *place = size(found, to)?;
        }
    }
    if let Some(found) = &raw.weight {
        // The size has 20 bits.
        fleet.weight_max = size(found, TaskId::COUNT_MAX)? as u32;
    }
    Ok(())
}

/// What may be used and held, and by whom, where that is said.
struct Allowed {
    limits: Limits,
    memory: Option<u64>,
    identities: Vec<IdentityPattern>,
}

impl Allowed {
    const fn cpu(limits: Limits) -> Self {
        Self { limits, memory: None, identities: Vec::new() }
    }
}

fn limits(limit: Spanned<Limit>, reader: &Reader) -> Result<Allowed, Fault> {
    let Spanned { value, referenced, defined } = limit;
    match value {
        Limit::Unlimited => Ok(Allowed::cpu(Limits::UNLIMITED)),
        Limit::Cpus(number) => {
            let total = cpus(&Spanned::new(number, referenced, defined))?;
            Ok(Allowed::cpu(Limits::total(total)))
        }
        Limit::Levels(levels) => {
            let raw::Levels { cpu, critical, sheddable_plus, sheddable, memory, identities } =
                *levels;
            let mut entries = [None; 4];
            let levels = [&sheddable, &sheddable_plus, &critical, &cpu];
            for (entry, level) in entries.iter_mut().zip(levels) {
                *entry = level.as_ref().map(cpus).transpose()?;
            }
            let identities = reader.list(identities)?;
            let memory = memory.as_ref().map(bytes).transpose()?;
            let limits = Limits::from_entries(entries).map_err(|wrong| {
                let found = levels[wrong.level.index()].as_ref();
                let at = found.map_or(referenced, |level| level.referenced);
                let what = format!(
                    "{} for {} and below is more than the {} of {} and below",
                    wrong.found, wrong.level, wrong.at_most, wrong.above
                );
                Fault::new(at, what, format!("at most {}", wrong.at_most))
            })?;
            Ok(Allowed { limits, memory, identities })
        }
    }
}
