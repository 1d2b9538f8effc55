//! How a client asks: the keys that clients and calls of services share.

use super::fault::{Fault, choices, suggestion};
use super::keys;
use super::read::{Fields, Keys};
use super::tree::{Node, Value};
use crate::world::spec::{BalanceSpec, RetrySpec, StackSpec};
use tidegate_core::balance::{
    LeastLoadedConfig, Prequal, PrequalConfig, SlowStart, Weighted, WeightedConfig,
};
use tidegate_core::retry::BudgetConfig;
use tidegate_core::subset::SubsetPolicy;
use tidegate_core::throttle::{Multiplier, ThrottleConfig};
use tidegate_core::units::{InvalidNumber, Ratio};

const BALANCE: [(&str, &Keys); 4] = [
    ("round_robin", &keys::ROUND_ROBIN),
    ("least_loaded", &keys::LEAST_LOADED),
    ("weighted", &keys::WEIGHTED),
    ("prequal", &keys::PREQUAL),
];

const SUBSET: [(&str, SubsetPolicy); 3] = [
    ("rocksteadier", SubsetPolicy::Rocksteadier),
    ("deterministic", SubsetPolicy::Deterministic),
    ("random", SubsetPolicy::Random),
];

const RETRIES: [(&str, &Keys); 4] = [
    ("never", &keys::RETRIES),
    ("naive", &keys::RETRIES),
    ("budget", &keys::RETRIES),
    ("advised", &keys::RETRIES),
];

/// A retry that has not helped twice will not help; the book's number.
const ATTEMPTS: u32 = 3;

/// What `fields` say about how to ask.
pub(super) fn stack(fields: &Fields<'_>) -> Result<StackSpec, Fault> {
    let mut spec = StackSpec::default();
    fields.set("balance", &mut spec.balance, balance)?;
    fields.set("subset", &mut spec.subset, |node| subset(node).map(Some))?;
    fields.set("throttle", &mut spec.throttle, throttle)?;
    fields.set("envoy_throttle", &mut spec.envoy_throttle, super::extras::envoy_throttle)?;
    fields.set("retries", &mut spec.retries, retries)?;
    fields.set("attempt_timeout", &mut spec.attempt_timeout, |node| node.some_time().map(Some))?;
    Ok(spec)
}

/// The name of a policy alone, or a map of its knobs with its name under `policy`.
fn policy<'a>(
    node: &'a Node,
    policies: &[(&'static str, &'static Keys)],
) -> Result<(&'static str, Option<Fields<'a>>), Fault> {
    let names: Vec<&str> = policies.iter().map(|(name, _)| *name).collect();
    let wanted = format!("one of {}, or a map with it as `policy`", choices(&names));
    let named = match &node.value {
        Value::Map(_) => match node.entry("policy") {
            Some(entry) => &entry.node,
            None => return Err(node.wrong("there is no `policy` here", wanted)),
        },
        _ => node,
    };
    let name = named.text(&wanted).map_err(|_| named.not(&wanted))?;
    let Some((name, keys)) = policies.iter().find(|(known, _)| *known == name) else {
        let what = format!("there is no policy `{name}`");
        return Err(named.wrong(what, suggestion(name, &names)));
    };
    let fields = matches!(node.value, Value::Map(_)).then(|| node.fields(keys)).transpose()?;
    Ok((name, fields))
}

fn balance(node: &Node) -> Result<BalanceSpec, Fault> {
    let (name, fields) = policy(node, &BALANCE)?;
    let refused = |error: InvalidNumber| node.wrong(error.to_string(), error.wanted);
    Ok(match name {
        "least_loaded" => {
            let mut config = LeastLoadedConfig::default();
            if let Some(fields) = fields {
                fields.set("error_memory", &mut config.error_memory, Node::duration)?;
                fields.set("slow_start", &mut config.slow_start, slow_start)?;
            }
            BalanceSpec::LeastLoaded(config)
        }
        "weighted" => {
            let config = fields.map_or(Ok(WeightedConfig::default()), |f| weighted(&f))?;
            Weighted::new(config).map_err(refused)?;
            BalanceSpec::Weighted(config)
        }
        "prequal" => {
            let config = fields.map_or(Ok(PrequalConfig::default()), |f| prequal(&f))?;
            Prequal::new(config).map_err(refused)?;
            BalanceSpec::Prequal(config)
        }
        _ => BalanceSpec::RoundRobin,
    })
}

fn weighted(fields: &Fields<'_>) -> Result<WeightedConfig, Fault> {
    let mut config = WeightedConfig::default();
    fields.set("blackout", &mut config.blackout, Node::duration)?;
    fields.set("expiry", &mut config.expiry, Node::some_time)?;
    fields.set("update_period", &mut config.update_period, Node::some_time)?;
    fields.set("error_penalty", &mut config.error_penalty, Node::number)?;
    fields.set("ratio_max", &mut config.ratio_max, Node::number)?;
    fields.set("correction_max", &mut config.correction_max, Node::number)?;
    fields.set("outcome_memory", &mut config.outcome_memory, Node::duration)?;
    fields.set("slow_start", &mut config.slow_start, slow_start)?;
    Ok(config)
}

fn prequal(fields: &Fields<'_>) -> Result<PrequalConfig, Fault> {
    let mut config = PrequalConfig::default();
    let size = |node: &Node| node.whole(1, 1_000).map(|size| size as usize);
    fields.set("pool_size", &mut config.pool_size, size)?;
    fields.set("probes_per_request", &mut config.probes_per_request, Node::number)?;
    fields.set("removals_per_request", &mut config.removals_per_request, Node::number)?;
    fields.set("probe_age_max", &mut config.probe_age_max, Node::some_time)?;
    let flag = |node: &Node| node.switch().ok_or_else(|| node.not("on or off"));
    fields.set("idle_probes", &mut config.idle_probes, flag)?;
    fields.set("reuse_slack", &mut config.reuse_slack, Node::number)?;
    fields.set("hot_quantile", &mut config.hot_quantile, ratio)?;
    fields.set("error_memory", &mut config.error_memory, Node::duration)?;
    fields.set("slow_start", &mut config.slow_start, slow_start)?;
    Ok(config)
}

/// `off`, or how long it takes to reach the full share.
fn slow_start(node: &Node) -> Result<SlowStart, Fault> {
    match node.switch() {
        Some(false) => Ok(SlowStart::OFF),
        Some(true) => Ok(SlowStart::default()),
        None => {
            let mut slow_start = SlowStart::default();
            slow_start.window = node.duration()?;
            Ok(slow_start)
        }
    }
}

pub(super) fn ratio(node: &Node) -> Result<Ratio, Fault> {
    Ratio::new(node.share()?).map_err(|_| node.not("a share from 0% to 100%"))
}

/// A size, or a size and a policy.
fn subset(node: &Node) -> Result<(SubsetPolicy, u32), Fault> {
    let size = |node: &Node| node.whole(1, 100_000).map(|size| size as u32);
    if !matches!(node.value, Value::Map(_)) {
        return Ok((SubsetPolicy::default(), size(node)?));
    }
    let fields = node.fields(&keys::SUBSET)?;
    let names = SUBSET.map(|(name, _)| name);
    let by_name = |node: &Node| Ok(SUBSET[node.one_of("policy", &names)?].1);
    let policy = fields.or("policy", SubsetPolicy::default(), by_name)?;
    Ok((policy, size(fields.need("size", "30")?)?))
}

fn throttle(node: &Node) -> Result<Option<ThrottleConfig>, Fault> {
    let mut config = ThrottleConfig::default();
    if let Some(on) = node.switch() {
        return Ok(on.then_some(config));
    }
    if !matches!(node.value, Value::Map(_)) {
        return Err(node.not("on, off or a map such as { k: 2 }"));
    }
    let fields = node.fields(&keys::THROTTLE)?;
    fields.set("k", &mut config.multiplier, |node| {
        Multiplier::new(node.number()?).map_err(|_| node.not("a number from 1 on"))
    })?;
    fields.set("window", &mut config.window, Node::some_time)?;
    fields.set("requests_min", &mut config.requests_min, |node| node.whole(0, 1_000_000))?;
    fields.set("recovery_window", &mut config.recovery_window, Node::duration)?;
    Ok(Some(config))
}

fn retries(node: &Node) -> Result<RetrySpec, Fault> {
    let (name, fields) = policy(node, &RETRIES)?;
    let of = |wrong: &[&str]| match fields
        .and_then(|f| wrong.iter().find_map(|key| f.node.entry(key)))
    {
        Some(entry) => Err(Fault::new(
            entry.at,
            format!("`{}` is no key of retries by the policy `{name}`", entry.key),
            "attempts goes with naive and advised; ratio, window and retries_min_per_second with \
             budget",
        )),
        None => Ok(()),
    };
    let attempts = || match fields {
        Some(fields) => {
            fields.or("attempts", ATTEMPTS, |node| node.whole(1, 100).map(|n| n as u32))
        }
        None => Ok(ATTEMPTS),
    };
    let budget = ["ratio", "window", "retries_min_per_second"];
    match name {
        "never" => {
            of(&["attempts"])?;
            of(&budget)?;
            Ok(RetrySpec::Never)
        }
        "budget" => {
            of(&["attempts"])?;
            let mut config = BudgetConfig::default();
            if let Some(fields) = fields {
                fields.set("ratio", &mut config.ratio, ratio)?;
                fields.set("window", &mut config.window, Node::some_time)?;
                fields.set("retries_min_per_second", &mut config.retries_min_per_second, |n| {
                    n.whole(0, 1_000_000).map(|n| n as u32)
                })?;
            }
            Ok(RetrySpec::Budget(config))
        }
        _ => {
            of(&budget)?;
            let attempts = attempts()?;
            let naive = name == "naive";
            Ok(if naive { RetrySpec::Naive { attempts } } else { RetrySpec::Advised { attempts } })
        }
    }
}
