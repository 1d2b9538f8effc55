use super::*;
use crate::outbound::{Check, Endpoints, OutboundConfig, QueueConfig};
use tidegate::Cost;
use tidegate::client::{Balance, Repeat};
use tidegate_core::spillover::DatacenterId;
use tidegate_core::subset::SubsetPolicy;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse("proxy.yaml", text).map_err(|error| error.to_string())
}

#[test]
fn one_line_is_enough() {
    let config = parse("upstream: 127.0.0.1:8080").unwrap();
    assert_eq!(config.listen.to_string(), LISTEN);
    assert!(config.dark);
    assert_eq!(config.watch, Watch::Auto);
    assert_eq!(config.admin, None);
}

#[test]
fn every_key_has_its_effect() {
    let config = parse(
        "
upstream: unix:/run/app.sock
listen: 0.0.0.0:80
service: shop
protocol: h2
mode: enforce
watch: cgroup:/app
cpus: 1.5
workers: 3
admin: 127.0.0.1:9
default_criticality: SHEDDABLE
ceiling: CRITICAL_PLUS
timeouts: { connect: 2s, answer: 0s, read: 9s, idle: 500ms, header: 5s, stall: 1m }
connections: { open_max: 7, accepts_per_second: 8, burst: 9, streams_max: 10 }
drain: { delay: 3s, limit: 4s }
everyone_else: { total: 4, SHEDDABLE: 1 }
",
    )
    .unwrap();
    assert_eq!(config.upstream, Upstream::Unix("/run/app.sock".into()));
    assert_eq!((config.service.as_str(), config.dark), ("shop", false));
    assert_eq!(config.pool.protocol, Protocol::Http2);
    assert_eq!(config.watch, Watch::Cgroup("/app".into()));
    assert_eq!((config.cpus, config.workers), (Some(1.5), NonZeroUsize::new(3)));
    assert_eq!(config.admin.unwrap().port(), 9);
    assert_eq!(config.criticality, Criticality::Sheddable);
    assert_eq!(config.pool.connect_timeout, Duration::from_secs(2));
    assert_eq!(config.answer_timeout, None);
    assert_eq!(config.pool.read_timeout, Some(Duration::from_secs(9)));
    assert_eq!(config.pool.idle_max, Duration::from_millis(500));
    assert_eq!(config.limits.header_timeout, Duration::from_secs(5));
    assert_eq!(config.limits.stall_max, Some(Duration::from_secs(60)));
    let limits = config.connections;
    assert_eq!((limits.open_max, limits.accepts_per_second, limits.burst), (7, 8, 9));
    assert_eq!(config.limits.h2_streams_max, 10);
    assert_eq!(config.life.drain_delay, Duration::from_secs(3));
    assert_eq!(config.life.drain_max, Duration::from_secs(4));
    let cpus = |cpus| CostRate::from_cpus(cpus).unwrap();
    assert_eq!(config.everyone_else.as_array(), [1.0, 4.0, 4.0, 4.0].map(cpus));
}

#[test]
fn what_is_wrong_is_refused_with_what_would_be_right() {
    for (text, at, what, right) in [
        ("listen: 127.0.0.1:1", "1:", "upstream", ""),
        ("upstream: nowhere", "1:11:", "`nowhere` is no place", "127.0.0.1:8080"),
        ("upstream: a:1\nmode: on", "2:", "on", "enforce"),
        ("upstream: a:1\nmood: dark", "2:", "mood", "mode"),
        ("upstream: a:1\ncpus: -1", "2:7:", "`-1` is no number of CPUs", "2.5"),
        ("upstream: a:1\ncpus: .nan", "2:7:", "non-finite", ""),
        ("upstream: a:1\nadmin: here", "2:8:", "`here` is no address", "127.0.0.1:8001"),
        ("upstream: a:1\nwatch: me", "2:8:", "`me` is nobody to watch", "pid:NUMBER"),
        ("upstream: a:1\ntimeouts: { answer: 5 }", "2:", "`5` is no span of time", "250ms"),
        ("upstream: a:1\ntimeouts: { connect: 0s }", "", "timeouts.connect", "more than zero"),
        (
            "upstream: a:1\ndefault_criticality: HIGH",
            "2:22:",
            "`HIGH` is no criticality",
            "SHEDDABLE",
        ),
        ("upstream: a:1\neveryone_else: { HIGH: 1 }", "", "`HIGH` in everyone_else", "SHEDDABLE"),
        ("upstream: a:1\neveryone_else: { SHEDDABLE: 2, total: 1 }", "", "everyone_else", "lower"),
        ("upstream: a:1\ncustomers: { a: {} }", "", "not asked for any", "everyone_else"),
        ("upstream: a:1\ntls: { cert: a }", "2:", "key", ""),
        (
            "upstream: a:1\nservice: s\neveryone_else: 1\nquota: { servers: ['http://q:1'] }",
            "4:8:",
            "everyone_else says some as well",
            "one of both",
        ),
        (
            "upstream: a:1\nquota: { servers: ['http://q:1'] }",
            "2:8:",
            "without the name of the service",
            "service: NAME",
        ),
        ("upstream: a:1\nservice: s\nquota: { servers: [] }", "3:8:", "no addresses", "https://"),
        (
            "upstream: a:1\nservice: s\nquota: { servers: ['http://q:1'], tls: { ca: /a } }",
            "3:8:",
            "in the clear",
            "https://",
        ),
        (
            "upstream: a:1\nservice: s\nquota: { servers: ['http://q:1'], name: 'a b' }",
            "3:8:",
            "cannot be the name of a task",
            "without blanks",
        ),
        ("upstream: a:1\ntls: { cert: a, key: b, client: optional }", "", "client_ca", "roots"),
        ("upstream: a:1\nupstream_tls: { ca: a }", "", "without TLS", "https://"),
        ("upstream: https://a:1\nupstream_tls: { cert: a }", "", "one of `cert`", "both"),
        ("upstream: https://a:1\nupstream_tls: { name: 'a b' }", "", "upstream_tls.name", "app."),
        ("upstream: a:1\nupstream: b:1", "2:", "upstream", ""),
        ("upstream: [", "", "", ""),
        ("", "", "", ""),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.starts_with(&format!("proxy.yaml:{at}")), "{text:?}: {error}");
        assert!(error.contains(what) && error.contains(right), "{text:?}: {error}");
        assert!(error.contains("\n  right: "), "{text:?}: {error}");
    }
}

/// With certificates of callers.
fn parse_secure(text: &str) -> Result<Config, String> {
    let tls = "{ cert: /c, key: /k, client_ca: /r }";
    parse(&format!("upstream: https://app:8443\ntls: {tls}\n{text}"))
}

#[test]
fn a_quota_server_is_named_once_and_no_limits_beside_it() {
    let servers = "servers: ['https://q:1', 'https://r:1']";
    let config = parse_secure(&format!(
        "quota: {{ {servers}, service: search, name: edge-1, tls: {{ ca: /a }} }}
customers: {{ shop: {{ identities: [dns:shop] }} }}"
    ));
    let quota = config.as_ref().unwrap().quota.as_ref().unwrap();
    assert_eq!(quota.servers, ["https://q:1", "https://r:1"]);
    assert_eq!((quota.service.as_deref(), quota.name.as_deref()), (Some("search"), Some("edge-1")));
    assert!(quota.tls.is_some());
    let limits = "customers: { shop: { quota: 2, identities: [dns:shop] } }";
    let wrong = parse_secure(&format!("service: search\n{limits}\nquota: {{ {servers} }}"));
    let wrong = wrong.unwrap_err();
    assert!(wrong.starts_with("proxy.yaml:5:8: ") && wrong.contains("customers.shop.quota"));
    // It is part of everything in it.
    let before = parse_secure(&format!("service: s\nquota: {{ {servers} }}")).unwrap();
    let after = parse_secure("service: s\nquota: { servers: ['https://q:1'] }").unwrap();
    assert_eq!(before.differences(&after), ["quota"]);
    assert_eq!(before.differences(&parse_secure("service: s").unwrap()), ["quota"]);
}

#[test]
fn customers_are_told_by_their_certificates() {
    let config = parse_secure(
        "
upstream_tls: { ca: /a, cert: /b, key: /d, name: app.internal }
delegators: [spiffe://d/edge]
customers:
  shop: { quota: { total: 2, SHEDDABLE: 1 }, identities: [spiffe://d/shop/**, dns:shop.internal] }
  till: { identities: [spiffe://d/till], ceiling: CRITICAL_PLUS }
",
    )
    .unwrap();
    let peer = |identity| config.identities.peer(Some(identity));
    assert_eq!(peer("spiffe://d/shop/web").name(), Some("shop"));
    assert_eq!(peer("dns:shop.internal").name(), Some("shop"));
    assert_eq!(peer("spiffe://d/till").ceiling(), Criticality::CriticalPlus);
    assert!(peer("spiffe://d/edge").is_delegator());
    let names: Vec<&str> = config.customers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["shop", "till"]);
    assert_eq!(config.customers[1].1, fleet::Limits::UNLIMITED);
    let upstream = config.upstream_tls.unwrap();
    assert_eq!(upstream.name.as_deref(), Some("app.internal"));
    assert!(upstream.options.identity.is_some());
    assert!(matches!(config.tls.unwrap().clients, Clients::Required(_)));
    assert_eq!(config.connections.accepts_per_second, 500);
    for (text, what, right) in [
        ("customers: { a: {} }", "nobody could be it", "spiffe://"),
        ("customers: { a: { identities: [shop] } }", "customers.a.identities", "dns:NAME"),
        (
            "customers: { a: { identities: ['spiffe://d/**'], ceiling: CRITICAL_PLUS } }",
            "CRITICAL_PLUS goes to single ones",
            "spiffe://",
        ),
        (
            "customers: { a: { quota: { HIGH: 1 }, identities: [dns:a] } }",
            "customers.a.quota",
            "total",
        ),
        ("delegators: ['spiffe://d/*']", "each named in full", "spiffe://"),
    ] {
        let error = parse_secure(text).unwrap_err();
        assert!(error.contains(what) && error.contains(right), "{text:?}: {error}");
    }
}

fn parse_outbound(text: &str) -> Result<OutboundConfig, String> {
    let text = format!("role: outbound\n{text}");
    match Role::parse("proxy.yaml", &text).map_err(|error| error.to_string())? {
        Role::Outbound(config) => Ok(*config),
        Role::Inbound(_) | Role::Batch(_) => panic!("another role"),
    }
}

const SERVICE: &str = "name: shop, listen: '127.0.0.1:7001', dns: 'a:1'";

fn parse_role(role: &str, service: &str, rest: &str) -> Result<OutboundConfig, String> {
    let text = format!("role: {role}\nservices: [{{ {SERVICE}{service} }}]\n{rest}");
    match Role::parse("proxy.yaml", &text).map_err(|error| error.to_string())? {
        Role::Outbound(config) | Role::Batch(config) => Ok(*config),
        Role::Inbound(_) => panic!("another role"),
    }
}

#[test]
fn every_key_of_the_edge_has_its_effect() {
    let text = "
tls: { cert: c.pem, key: k.pem, client_ca: ca.pem, client: optional }
edge:
  default_criticality: SHEDDABLE_PLUS
  deadline_max: 10s
  forwarded: off
  rules:
    - { path: /checkout/**, methods: [POST, PUT], host: Shop.example, criticality: CRITICAL_PLUS }
    - { identity: 'spiffe://partner/till', ceiling: CRITICAL_PLUS }
    - { header: x-plan = gold, criticality: CRITICAL }
    - { header: x-batch, criticality: SHEDDABLE, ceiling: SHEDDABLE_PLUS }
  client: { connections: 10, connects_per_second: 5, requests: 20, rate: 30, burst: 40 }
  connection: { rate: 50, burst: 60 }
  body: { max: 70, rate_min: 0, stall: 5s }
  headers: { bytes: 16384, count: 50 }
";
    let config = parse_role("edge", "", text).unwrap();
    let edge = config.edge.unwrap();
    assert!(config.tls.is_some());
    assert_eq!((edge.criticality, edge.forwarded), (Criticality::SheddablePlus, false));
    assert_eq!(edge.deadline_max, Some(Duration::from_secs(10)));
    assert_eq!(edge.rules.len(), 4);
    assert_eq!(edge.rules[0].methods, [http::Method::POST, http::Method::PUT]);
    assert_eq!(edge.rules[0].host.as_deref(), Some("shop.example"));
    assert_eq!(edge.rules[2].header.as_ref().unwrap().1.as_ref().unwrap(), "gold");
    assert_eq!(edge.rules[3].ceiling, Some(Criticality::SheddablePlus));
    assert_eq!((edge.connections.at_once, edge.connections.per_second), (Some(10), Some(5)));
    let of = |allowance: crate::edge::Allowance| {
        (allowance.at_once, allowance.per_second, allowance.burst)
    };
    assert_eq!(of(edge.requests), (Some(20), Some(30), Some(40)));
    assert_eq!(of(edge.each_connection), (None, Some(50), Some(60)));
    assert_eq!((edge.body.bytes_max, edge.body.rate_min), (Some(70), None));
    assert_eq!(edge.body.stall_max, Some(Duration::from_secs(5)));
    assert_eq!((config.limits.h1_buffer_max, config.limits.h2_header_list_max), (16_384, 16_384));
    assert_eq!(config.limits.h1_headers_max, Some(50));
    // Before the inbound role it is the same key.
    let config = parse("upstream: 127.0.0.1:80\nedge: { client: { requests: 0 } }").unwrap();
    let edge = config.edge.unwrap();
    assert_eq!((edge.requests.at_once, edge.criticality), (None, Criticality::Critical));
    assert!(parse_role("edge", "", "").unwrap().edge.is_some());
}

#[test]
fn what_is_wrong_with_an_edge_is_refused_with_its_line() {
    for (rule, what, right) in [
        ("{ path: /a }", "changes nothing", "criticality, ceiling"),
        ("{ path: a, criticality: CRITICAL }", "`a` is no path", "/checkout/**"),
        ("{ methods: [get], criticality: CRITICAL }", "`get` is no method", "GET or POST"),
        ("{ header: x-criticality, criticality: CRITICAL }", "never believed", "ceiling"),
        ("{ header: 'a b', criticality: CRITICAL }", "is no header", "NAME=VALUE"),
        ("{ header: x, criticality: CRITICAL_PLUS }", "whoever sends a header", "identity"),
        ("{ ceiling: CRITICAL_PLUS }", "claim CRITICAL_PLUS", "named in full"),
        ("{ identity: shop, ceiling: CRITICAL }", "spiffe", "dns:NAME"),
        ("{ path: /a, level: CRITICAL }", "level", ""),
    ] {
        let text = format!("edge:\n  rules:\n    - {rule}\n");
        let error = parse_role("edge", "", &text).unwrap_err();
        assert!(error.starts_with("proxy.yaml:5:"), "{rule}: {error}");
        assert!(error.contains(what) && error.contains(right), "{rule}: {error}");
    }
    for (role, service, rest, what, right) in [
        ("outbound", "", "edge: {}", "for strangers", "role: edge"),
        ("outbound", ", queue: {}", "", "nothing waits", "role: batch"),
        ("edge", ", pace: {}", "", "nothing waits", "role: batch"),
        ("batch", ", retries: {}", "", "its pace does both", "queue and pace"),
        ("batch", "", "edge: {}", "for strangers", "role: edge"),
        ("batch", ", pace: { backoff: 2 }", "", "backoff", "docs/proxy-batch.md"),
        ("batch", ", queue: { items: 0 }", "", "", ""),
        ("edge", "", "edge: { client: { burst: 3 } }", "burst without", "edge.client.rate"),
        ("edge", "", "edge: { headers: { bytes: 100 } }", "h1_buffer_max", "8 KiB"),
        (
            "edge",
            "",
            "edge: { rules: [{ identity: 'dns:a', ceiling: CRITICAL }] }",
            "not asked for certificates",
            "client_ca",
        ),
    ] {
        let error = parse_role(role, service, rest).unwrap_err();
        assert!(error.contains(what) && error.contains(right), "{role} {service} {rest}: {error}");
    }
}

#[test]
fn every_key_of_the_batch_role_has_its_effect() {
    let plain = parse_role("batch", "", "").unwrap();
    assert_eq!((plain.name.as_str(), plain.criticality), ("batch", Criticality::Sheddable));
    assert_eq!(plain.identities.peer(None).ceiling(), Criticality::SheddablePlus);
    assert_eq!(plain.services[0].queue, Some(QueueConfig::default()));
    assert!(plain.patient && !parse_role("outbound", "", "").unwrap().patient);
    assert_eq!(plain.connections.open_max, 30_000);
    let service = ", queue: { items: 5, bytes: 6, body: 7, attempts: 2 }, pace: { connections: 3, \
                   window: 9, utilization: 0.5, growth: 0.02, backoff: 0.7, probe: 2s, \
                   pushback_max: 1m }";
    let granted = "ceiling: CRITICAL\ndefault_criticality: SHEDDABLE_PLUS";
    let config = parse_role("batch", service, granted).unwrap();
    assert_eq!(config.identities.peer(None).ceiling(), Criticality::Critical);
    assert_eq!(config.criticality, Criticality::SheddablePlus);
    let queue = config.services[0].queue.unwrap();
    assert_eq!((queue.batch.queue_max, queue.bytes_max, queue.body_max), (5, 6, 7));
    assert_eq!((queue.attempts_max.get(), queue.connections_max.get()), (2, 3));
    let pace = queue.batch.pace;
    assert_eq!((pace.window_max, pace.utilization_target), (9, 0.5));
    assert_eq!((pace.growth, pace.backoff), (0.02, 0.7));
    assert_eq!(pace.probe_interval, Duration::from_secs(2));
    assert_eq!(pace.pushback_max, Duration::from_secs(60));
}

#[test]
fn a_file_says_its_role() {
    let inbound = "upstream: 127.0.0.1:8080";
    for text in [inbound.to_owned(), format!("role: inbound\n{inbound}")] {
        assert!(matches!(Role::parse("proxy.yaml", &text), Ok(Role::Inbound(_))), "{text}");
    }
    let error = Role::parse("proxy.yaml", "role: sideways").unwrap_err().to_string();
    assert!(error.contains("sideways") && error.contains("outbound"), "{error}");
    let error = parse(&format!("role: outbound\n{inbound}")).unwrap_err();
    assert!(error.contains("role: inbound"), "{error}");
}

#[test]
fn a_service_needs_little() {
    let text = "services: [{ name: shop, listen: '127.0.0.1:7001', dns: 'shop:80' }]";
    let config = parse_outbound(text).unwrap();
    let service = &config.services[0];
    assert!(matches!(&service.endpoints, Endpoints::Dns { name, period }
        if name == "shop:80" && *period == Duration::from_secs(30)));
    assert!(matches!(service.balance, Balance::LeastLoaded(_)));
    assert_eq!(service.retries.attempts_max.get(), 3);
    assert_eq!(service.budget.ratio.get(), 0.1);
    assert!(service.propagate);
}

#[test]
fn every_key_of_the_outbound_role_has_its_effect() {
    let config = parse_outbound(
        "
name: checkout
workers: 2
admin: 127.0.0.1:9
default_criticality: SHEDDABLE
ceiling: CRITICAL
timeouts: { header: 5s, stall: 0s }
connections: { open_max: 7, accepts_per_second: 8, burst: 9, streams_max: 10 }
drain: { delay: 3s, limit: 4s }
services:
  - name: shop
    listen: 127.0.0.1:7001
    endpoints: ['10.0.0.1:80 eu', 'app:80']
    protocol: h2
    host: shop.internal
    policy: prequal
    slow_start: 5s
    probe: /load
    subset: { client: 3, size: 20, method: deterministic }
    datacenters: [{ name: us, round_trip: 90ms, cpus: 4 }, { name: eu, round_trip: 1ms, cpus: 2 }]
    cost: 5ms
    lame_duck_wait: 7s
    health: { grpc: shop.Shop, interval: 2s, timeout: 500ms, fall: 4, rise: 1 }
    throttle: { multiplier: 1.1, window: 1m, requests_min: 5 }
    retries: { attempts: 2, budget_percent: 20, min_per_second: 1, repeat: all, body_max: 9 }
    timeouts: { connect: 2s, answer: 3s, attempt: 1s, read: 0s, idle: 6s }
    default_criticality: SHEDDABLE_PLUS
    propagate: off
  - { name: stock, listen: '127.0.0.1:7002', file: /etc/stock, period: 2s, policy: weighted }
",
    )
    .unwrap();
    assert_eq!((config.name.as_str(), config.workers), ("checkout", NonZeroUsize::new(2)));
    assert_eq!((config.admin.unwrap().port(), config.criticality), (9, Criticality::Sheddable));
    assert_eq!(config.limits.header_timeout, Duration::from_secs(5));
    assert_eq!((config.limits.stall_max, config.limits.h2_streams_max), (None, 10));
    assert_eq!((config.connections.open_max, config.connections.burst), (7, 9));
    assert_eq!(config.life.drain_max, Duration::from_secs(4));
    let shop = &config.services[0];
    let Endpoints::List(list) = &shop.endpoints else { panic!("{:?}", shop.endpoints) };
    assert_eq!((list[0].address(), list[0].datacenter()), ("10.0.0.1:80", Some(DatacenterId(1))));
    assert_eq!((list[1].address(), list[1].datacenter()), ("app:80", None));
    assert_eq!((shop.pool.protocol, shop.pool.read_timeout), (Protocol::Http2, None));
    assert!(shop.host.is_some());
    let Balance::Prequal(prequal) = shop.balance else { panic!("{:?}", shop.balance) };
    assert_eq!(prequal.slow_start.window, Duration::from_secs(5));
    assert_eq!(shop.probe, "/load");
    let subset = shop.subset.unwrap();
    assert_eq!((subset.policy, subset.client), (SubsetPolicy::Deterministic, 3));
    assert_eq!(subset.size, 20);
    assert_eq!(shop.datacenters[1].round_trip, Duration::from_millis(1));
    assert_eq!((shop.cost, shop.lame_duck_wait), (Cost::from_millis(5), Duration::from_secs(7)));
    let health = shop.health.as_ref().unwrap();
    assert_eq!(health.check, Check::Grpc("shop.Shop".to_owned()));
    assert_eq!(health.interval, Duration::from_secs(2));
    assert_eq!(health.timeout, Duration::from_millis(500));
    assert_eq!((health.fall.get(), health.rise.get()), (4, 1));
    assert_eq!((shop.throttle.multiplier.get(), shop.throttle.requests_min), (1.1, 5));
    assert_eq!(shop.throttle.window, Duration::from_secs(60));
    assert_eq!((shop.retries.attempts_max.get(), shop.budget.ratio.get()), (2, 0.2));
    assert_eq!((shop.budget.retries_min_per_second, shop.repeat), (1, Repeat::All));
    assert_eq!((shop.body_max, shop.pool.connect_timeout), (9, Duration::from_secs(2)));
    assert_eq!(shop.answer_timeout, Duration::from_secs(3));
    assert_eq!(shop.attempt_timeout, Some(Duration::from_secs(1)));
    assert_eq!(shop.pool.idle_max, Duration::from_secs(6));
    assert_eq!((shop.criticality, shop.propagate), (Some(Criticality::SheddablePlus), false));
    let stock = &config.services[1];
    assert!(matches!(&stock.endpoints, Endpoints::File { period, .. }
        if *period == Duration::from_secs(2)));
    assert!(matches!(stock.balance, Balance::Weighted(_)));
}

#[test]
fn what_is_wrong_with_a_service_is_refused_with_what_would_be_right() {
    for (rest, what, right) in [
        ("", "not said who serves", "one of endpoints, dns and file"),
        ("endpoints: []", "not said who serves", "one of"),
        ("dns: 'a:1', file: /x", "not said who serves", "one of"),
        ("endpoints: [here]", "`here` is no place", "127.0.0.1:8080"),
        ("endpoints: ['a:1 eu']", "`eu` is no datacenter", "datacenters"),
        ("endpoints: ['a:1'], period: 1s", "has no period", "dns or file"),
        ("dns: '10.0.0.1:80'", "is no name", "inventory:8080"),
        ("dns: 'a:1', period: 0s", "period of `shop` is no time", "more than zero"),
        ("dns: 'a:1', policy: best", "best", "least_loaded"),
        ("dns: 'a:1', probe: load", "`load` is no path", "/readyz"),
        ("dns: 'a:1', host: 'a b'", "`a b` is no host", "inventory.internal:80"),
        ("dns: 'a:1', throttle: { multiplier: 0.5 }", "`0.5` is no multiplier", "1 or more"),
        ("dns: 'a:1', retries: { budget_percent: 101 }", "`101`", "0 to 100"),
        ("dns: 'a:1', retries: { attempts: 0 }", "", ""),
        ("dns: 'a:1', timeouts: { answer: 0s }", "timeouts.answer", "more than zero"),
        ("dns: 'a:1', health: {}", "neither path nor grpc nor udp", "path: /readyz"),
        ("dns: 'a:1', health: { path: x }", "`x` is no path", "/readyz"),
        ("dns: 'a:1', health: { path: /x, interval: 0s }", "health.interval", "more than zero"),
        ("dns: 'a:1', upstream: 'a:1'", "upstream", ""),
    ] {
        let text = format!("services: [{{ name: shop, listen: '127.0.0.1:7001', {rest} }}]");
        let error = parse_outbound(&text).unwrap_err();
        assert!(error.starts_with("proxy.yaml:"), "{rest:?}: {error}");
        assert!(error.contains(what) && error.contains(right), "{rest:?}: {error}");
        assert!(error.contains("\n  right: "), "{rest:?}: {error}");
    }
    assert!(parse_outbound("services: []").unwrap_err().contains("there are no services"));
    let twice = "{ name: shop, listen: '127.0.0.1:7001', dns: 'a:1' }";
    let error = parse_outbound(&format!("services: [{twice}, {twice}]")).unwrap_err();
    assert!(error.contains("two services `shop`"), "{error}");
}
