//! Every key that a scenario knows. `docs/scenarios.md` has a row for each.

use super::events::ACTIONS;
use super::read::Keys;

pub(super) const SCENARIO: Keys = Keys {
    of: "a scenario",
    names: &[
        "name",
        "story",
        "seed",
        "lasts",
        "network",
        "datacenters",
        "distances",
        "services",
        "clients",
        "customers",
        "quota_server",
        "doormen",
        "events",
        "windows",
        "variants",
        "checks",
    ],
};

pub(super) const VARIANT: Keys = Keys {
    of: "a variant",
    names: &[
        "network",
        "datacenters",
        "distances",
        "services",
        "clients",
        "customers",
        "quota_server",
        "doormen",
        "events",
    ],
};

pub(super) const NETWORK: Keys = Keys { of: "the network", names: &["latency", "jitter", "loss"] };

pub(super) const SERVICE: Keys = Keys {
    of: "a service",
    names: &[
        "tasks",
        "cores",
        "speed",
        "datacenter",
        "sharing",
        "work",
        "waits",
        "reject_cost",
        "protection",
        "degraded",
        "calls",
        "request_limits",
        "active_limit",
        "connections",
        "spillover",
    ],
};

pub(super) const TASKS: Keys =
    Keys { of: "a group of tasks", names: &["count", "cores", "speed", "datacenter"] };

pub(super) const WORK: Keys =
    Keys { of: "work", names: &["mean", "spread", "sigma", "usual", "rare", "share"] };

pub(super) const PROTECTION: Keys = Keys {
    of: "protection",
    names: &[
        "load_target",
        "load_tau",
        "thresholds",
        "degrade_from",
        "offered_tau",
        "offered_tau_lately",
        "queue_per_task",
        "queue_per_cpu",
        "slack",
        "capacity_tau",
        "bias_tau",
        "horizon",
        "floor",
    ],
};

pub(super) const CALL: Keys = Keys {
    of: "a call",
    names: &[
        "service",
        "fanout",
        "balance",
        "subset",
        "throttle",
        "envoy_throttle",
        "retries",
        "attempt_timeout",
    ],
};

pub(super) const CLIENT: Keys = Keys {
    of: "a client",
    names: &[
        "service",
        "tasks",
        "datacenter",
        "load",
        "rate",
        "capacity_of",
        "mix",
        "customers",
        "deadline",
        "balance",
        "subset",
        "throttle",
        "envoy_throttle",
        "retries",
        "attempt_timeout",
        "work",
        "arrivals",
        "burst",
        "batch",
        "doorman",
    ],
};

pub(super) const ROUND_ROBIN: Keys = Keys { of: "round robin", names: &["policy"] };

pub(super) const LEAST_LOADED: Keys =
    Keys { of: "least-loaded balancing", names: &["policy", "error_memory", "slow_start"] };

pub(super) const WEIGHTED: Keys = Keys {
    of: "weighted balancing",
    names: &[
        "policy",
        "blackout",
        "expiry",
        "update_period",
        "error_penalty",
        "ratio_max",
        "correction_max",
        "outcome_memory",
        "slow_start",
    ],
};

pub(super) const PREQUAL: Keys = Keys {
    of: "balancing by probes",
    names: &[
        "policy",
        "pool_size",
        "probes_per_request",
        "removals_per_request",
        "probe_age_max",
        "idle_probes",
        "reuse_slack",
        "hot_quantile",
        "error_memory",
        "slow_start",
    ],
};

pub(super) const SUBSET: Keys = Keys { of: "a subset", names: &["size", "policy"] };

pub(super) const THROTTLE: Keys =
    Keys { of: "a throttle", names: &["k", "window", "requests_min", "recovery_window"] };

pub(super) const RETRIES: Keys = Keys {
    of: "retries",
    names: &["policy", "attempts", "ratio", "window", "retries_min_per_second"],
};

pub(super) const CUSTOMER: Keys = Keys { of: "a customer", names: &["limit"] };

/// When an event happens, and the details of some actions.
const EVENT_DETAILS: [&str; 7] =
    ["at", "for", "tasks", "lame_duck", "down_for", "cold_for", "cold_speed"];

pub(super) const EVENT: Keys = Keys { of: "an event", names: &EVENT_KEYS };

/// The details, then all that an event can do.
const EVENT_KEYS: [&str; EVENT_DETAILS.len() + ACTIONS.len()] = {
    let mut keys = [""; EVENT_DETAILS.len() + ACTIONS.len()];
    let mut i = 0;
    while i < keys.len() {
        keys[i] = if i < EVENT_DETAILS.len() {
            EVENT_DETAILS[i]
        } else {
            ACTIONS[i - EVENT_DETAILS.len()].0
        };
        i += 1;
    }
    keys
};

pub(super) const QUOTA_SERVER: Keys = Keys {
    of: "a quota server",
    names: &["report_every", "round_every", "latency", "hold", "tau", "learning", "safe", "floor"],
};

pub(super) const DOORMAN: Keys = Keys {
    of: "a doorman",
    names: &["capacity", "algorithm", "lease", "refresh", "learning", "safe", "latency"],
};

pub(super) const CONNECTIONS: Keys = Keys {
    of: "connections",
    names: &[
        "connect_cost",
        "idle",
        "health",
        "health_cost",
        "health_budget",
        "open_max",
        "accepts_per_second",
        "burst",
        "eager",
    ],
};

pub(super) const SPILLOVER: Keys =
    Keys { of: "spillover", names: &["every", "fill", "measured_use", "return_per_second"] };

pub(super) const BATCH: Keys =
    Keys { of: "a batch job", names: &["start", "requests", "pause", "proxy"] };

pub(super) const PROXY: Keys = Keys {
    of: "a batch proxy",
    names: &[
        "tasks",
        "queue_max",
        "window_max",
        "growth",
        "backoff",
        "utilization_target",
        "probe_interval",
    ],
};

pub(super) const ENVOY_THROTTLE: Keys = Keys {
    of: "Envoy's throttle",
    names: &["window", "success_threshold", "aggression", "rejection_max"],
};

/// Beside the measures, of which a check has one.
pub(super) const CHECK: Keys = Keys {
    of: "a check",
    names: &[
        "at_least",
        "at_most",
        "during",
        "variant",
        "criticality",
        "customer",
        "reason",
        "tasks",
        "per",
        "after",
        "until",
        "holding",
        "order",
        "times",
    ],
};

pub(super) const TIMES: Keys = Keys {
    of: "what a check compares with",
    names: &["of", "during", "variant", "criticality", "customer"],
};

/// All of them, for the reference.
pub const ALL: &[&Keys] = &[
    &SCENARIO,
    &VARIANT,
    &NETWORK,
    &SERVICE,
    &TASKS,
    &WORK,
    &PROTECTION,
    &CALL,
    &CLIENT,
    &ROUND_ROBIN,
    &LEAST_LOADED,
    &WEIGHTED,
    &PREQUAL,
    &SUBSET,
    &THROTTLE,
    &RETRIES,
    &CUSTOMER,
    &QUOTA_SERVER,
    &DOORMAN,
    &CONNECTIONS,
    &SPILLOVER,
    &BATCH,
    &PROXY,
    &ENVOY_THROTTLE,
    &EVENT,
    &CHECK,
    &TIMES,
];
