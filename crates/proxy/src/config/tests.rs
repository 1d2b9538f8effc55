use super::*;

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
timeouts: { connect: 2s, answer: 0s, idle: 500ms, header: 5s, stall: 1m }
connections: { open_max: 7, accepts_per_second: 8, burst: 9, streams_max: 10 }
drain: { delay: 3s, limit: 4s }
customers:
  shop: 2.5
  reports: { total: 4, SHEDDABLE: 1 }
everyone_else: 0.5
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
    assert_eq!(config.pool.idle_max, Duration::from_millis(500));
    assert_eq!(config.limits.header_timeout, Duration::from_secs(5));
    assert_eq!(config.limits.stall_max, Some(Duration::from_secs(60)));
    let limits = config.connections;
    assert_eq!((limits.open_max, limits.accepts_per_second, limits.burst), (7, 8, 9));
    assert_eq!(config.limits.h2_streams_max, 10);
    assert_eq!(config.life.drain_delay, Duration::from_secs(3));
    assert_eq!(config.life.drain_max, Duration::from_secs(4));
    let cpus = |cpus| CostRate::from_cpus(cpus).unwrap();
    let (name, limits) = &config.customers[0];
    assert_eq!((name.as_str(), limits.as_array()), ("reports", [1.0, 4.0, 4.0, 4.0].map(cpus)));
    assert_eq!(config.customers[1].1, fleet::Limits::total(cpus(2.5)));
    assert_eq!(config.everyone_else, fleet::Limits::total(cpus(0.5)));
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
        ("upstream: a:1\ncustomers: { a: { HIGH: 1 } }", "", "`HIGH` in customers.a", "SHEDDABLE"),
        ("upstream: a:1\ncustomers: { a: { SHEDDABLE: 2, total: 1 } }", "", "customers.a", "lower"),
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
