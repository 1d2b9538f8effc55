use super::*;
use tidegate_core::Ratio;

fn cpus(n: f64) -> CostRate {
    CostRate::from_cpus(n).unwrap()
}

fn parse(text: &str) -> Result<Config, Refused> {
    Config::parse("quota.yaml", text)
}

const WHOLE: &str = "\
quota:
  listen: 0.0.0.0:7301
  trust_network: true
  state: /var/lib/tidegate/epoch
  services:
    search:
      capacity: { cpu: 100, memory: 8GiB }
      default: { cpu: 10, memory: 2GiB }
      hit: 2ms
      customers:
        gmail: { cpu: 60, memory: 10GiB }
        crawler: { cpu: 80, sheddable_plus: 50, sheddable: 20.5 }
        blocked: 0
        own: unlimited
      reports: { every: 500ms, round: 100ms }
      silence: { hold: 30s, fade: 4s, forget: 5m, learning: 2m }
      shares: { floor: 4%, unseen: 0.02, safe: 25% }
      sizes: { tasks: 50, customers: 10, customers_per_task: 5, weight: 8 }
    ads:
      default: unlimited
";

#[test]
fn every_key_is_read() {
    let config = parse(WHOLE).unwrap();
    assert_eq!(config.listen, "0.0.0.0:7301".parse().unwrap());
    assert!(config.trust_network && !config.identified());
    assert_eq!(config.state, Some(PathBuf::from("/var/lib/tidegate/epoch")));
    let search = &config.services["search"];
    assert_eq!(search.default, Limits::total(cpus(10.0)));
    assert_eq!(search.customers["gmail"], Limits::total(cpus(60.0)));
    let crawler = search.customers["crawler"].as_array();
    assert_eq!(crawler, [cpus(20.5), cpus(50.0), cpus(80.0), cpus(80.0)]);
    assert_eq!(search.customers["blocked"], Limits::ZERO);
    assert_eq!(search.customers["own"], Limits::UNLIMITED);
    // 10 + 60 + 80 + 0 + all of 100.
    assert_eq!(search.oversubscription(), Some(2.5));
    assert_eq!((search.memory.capacity, search.memory.default), (Some(8 << 30), Some(2 << 30)));
    assert_eq!(search.memory.customers, BTreeMap::from([("gmail".to_owned(), 10 << 30)]));
    // Of memory only what is said is promised: 2 + 10 of 8.
    assert_eq!(search.memory_oversubscription(), Some(1.5));
    assert!(search.memory.is_said() && !config.services["ads"].memory.is_said());
    assert_eq!(config.services["ads"].memory_oversubscription(), None);
    assert_eq!(search.hit, Some(Cost::from_millis(2)));
    assert_eq!(search.report_every, Duration::from_millis(500));
    assert_eq!(search.round_every, Duration::from_millis(100));
    let fleet = &search.fleet;
    assert_eq!(fleet.silence.hold, Duration::from_secs(30));
    assert_eq!(fleet.silence.tau, Duration::from_secs(4));
    assert_eq!(fleet.forget, Duration::from_secs(300));
    assert_eq!(fleet.learning, Duration::from_secs(120));
    assert_eq!(fleet.ack_timeout, Duration::from_secs(5));
    let shares = [fleet.floor, fleet.unseen, fleet.safe];
    assert_eq!(shares, [Ratio::percent(4), Ratio::percent(2), Ratio::percent(25)]);
    assert_eq!((fleet.tasks_max, fleet.customers_max), (50, 10));
    assert_eq!((fleet.customers_per_task_max, fleet.weight_max), (5, 8));
    assert_eq!(
        config.summary(),
        "ads: 0 customers, no capacity said\nsearch: 4 customers, 250 % of the capacity promised, \
         150 % of the memory"
    );
}

#[test]
fn memory_of_which_nothing_is_promised_is_said_as_such() {
    let text = "quota: { services: { search: { capacity: { memory: 1GiB }, default: 1 } } }";
    let config = parse(text).unwrap();
    let said = "search: 0 customers, no capacity said, 0 % of the memory";
    assert_eq!(config.summary(), said);
}

#[test]
fn what_is_not_said_has_a_default() {
    let config = parse("quota:\n  services:\n    search: { default: 1 }\n").unwrap();
    assert_eq!(config.listen, "127.0.0.1:7300".parse().unwrap());
    let search = &config.services["search"];
    assert_eq!(search.fleet, FleetConfig::default());
    assert_eq!(search.report_every, Duration::from_secs(1));
    assert_eq!(search.round_every, Duration::from_millis(250));
}

/// A service with these lines.
fn service(lines: &str) -> String {
    let lines = lines.replace('\n', "\n      ");
    format!("quota:\n  services:\n    search:\n      {lines}\n")
}

#[test]
fn what_is_wrong_is_refused_with_its_place_and_what_would_be_right() {
    let mut missed = Vec::new();
    for (text, place, what, right) in [
        ("", "1:1", "", ""),
        ("proxy: {}\n", "1:1", "unknown field `proxy`", "quota"),
        ("quota: [1]\n", "1:", "", ""),
        ("quota: { services: {} }\n", "1:20", "there are no services", "at least one"),
        ("quota:\n  listen: here\n  services: { a: { default: 1 } }\n", "2:11", "`here`", "7300"),
        (&service("customers: {}"), "3:5", "`search` needs `default`", "add `default: 10`"),
        (&service("default: 1\ncustmers: {}"), "5:7", "unknown field `custmers`", "customers"),
        (&service("default: -1"), "4:16", "-1 is no number of CPUs", "from 0"),
        (&service("default: .nan"), "4:16", "non-finite float `.nan`", "finite"),
        (
            &service("capacity: { memory: lots }\ndefault: 1"),
            "4:27",
            "`lots` is no amount of memory",
            "such as 1.5GiB",
        ),
        (&service("default: { memory: 5GB }"), "4:26", "`5GB` is no amount", "GiB"),
        (&service("default: lots"), "4:", "lots", "a number of CPUs"),
        (
            &service("default: 1\ncustomers:\n  a: { cpu: 2, critical: 3 }"),
            "6:32",
            "3 CPU for CRITICAL and below is more than the 2 CPU of CRITICAL_PLUS and below",
            "at most 2 CPU",
        ),
        (&service("default: 1\ncustomers:\n  a: { cpus: 2 }"), "6:", "`cpus`", "cpu"),
        (&service("default: 1\ncustomers:\n  a b: 2"), "6:9", "`a b` cannot be", "printable"),
        (&service("default: 1\ncustomers: { a: 1, a: 2 }"), "5:", "duplicate", "once"),
        (&service("default: 1\nreports: { every: 2 }"), "5:25", "`2` does not belong", "unit"),
        (&service("default: 1\nreports: { every: 30s }"), "5:25", "a late report", "a third"),
        (&service("default: 1\nsilence: { hold: 2s }"), "5:24", "a late report", "a third"),
        (&service("default: 1\nsilence: { learning: 5s }"), "5:28", "`5s`", "from 116s"),
        (&service("default: 1\nshares: { safe: 0% }"), "4:7", "safe must be more than 0", ""),
        (&service("default: 1\nshares: { floor: 60% }"), "4:7", "at most half", ""),
        (&service("default: 1\nshares: { floor: 200% }"), "5:24", "`200%`", "0% to 100%"),
        (&service("default: 1\nsizes: { tasks: 0 }"), "5:23", "`0`", "from 1 to 1048576"),
        (&service("default: 1\ncapacity: { cpu: 0 }"), "5:24", "no CPU", "more than 0"),
        (
            &service("default: 1\ncustomers: { a: 1, b: 2 }\nsizes: { customers: 2 }"),
            "3:5",
            "2 customers do not fit",
            "`sizes: { customers: 3 }`",
        ),
    ] {
        let refused = parse(text).expect_err(text);
        let said = refused.to_string();
        let placed = said.starts_with(&format!("quota.yaml:{place}"));
        let helps = refused.right.contains(right) && !refused.right.is_empty();
        if !(placed && refused.what.contains(what) && helps) {
            missed.push(format!("{said}\n{text}wanted: {place} {what} / {right}\n"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn limits_and_capacity_change_while_it_runs_and_the_rest_does_not() {
    let before = &parse(WHOLE).unwrap().services["search"];
    for (from, to, fits) in [
        ("gmail: { cpu: 60", "gmail: { cpu: 61", true),
        ("        gmail: { cpu: 60, memory: 10GiB }\n", "", true),
        ("cpu: 100", "cpu: 200", true),
        ("memory: 8GiB", "memory: 9GiB", true),
        ("memory: 10GiB", "memory: 11GiB", true),
        ("hold: 30s", "hold: 31s", false),
        ("every: 500ms", "every: 501ms", false),
        ("tasks: 50", "tasks: 51", false),
    ] {
        let text = WHOLE.replace(from, to);
        assert_ne!(text, WHOLE);
        let after = &parse(&text).unwrap().services["search"];
        assert_eq!(after.fits(before), fits, "{from} -> {to}");
    }
}

const DOORMAN: &str = "\
quota:
  advertise: quota.example.org:7300
  doorman:
    resources:
    - identifier_glob: db*
      capacity: 100
      safe_capacity: -1
      description: connections
      algorithm:
        kind: PROPORTIONAL_SHARE
        lease_length: 60
        refresh_interval: 5
        learning_mode_duration: 30
        parameters: [ { name: variant, value: x } ]
    - identifier_glob: '*'
      capacity: 10
      algorithm: { kind: FAIR_SHARE, lease_length: 30, refresh_interval: 10 }
";

#[test]
fn doormans_own_format_is_read() {
    let config = parse(DOORMAN).unwrap();
    assert_eq!(config.advertise, "quota.example.org:7300");
    let templates = config.doorman.unwrap();
    let (db, rest) = (templates.find("db1"), templates.find("other"));
    assert_eq!((db.capacity(), rest.capacity()), (100.0, 10.0));
    assert_eq!(db.algorithm().learning_duration(), Duration::from_secs(30));
    for (from, to, place, what) in [
        ("kind: FAIR_SHARE", "kind: FAIR", "17:26", "`FAIR` is no algorithm"),
        ("'*'", "other", "5:", "an entry for * is missing"),
        ("lease_length: 60", "lease_length: 4", "5:", "lease_length must be at least"),
        ("safe_capacity: -1", "safe_capacity: -2", "5:", "safe_capacity must be -1"),
        ("capacity: 10\n", "capacities: 10\n", "16:", "capacities"),
    ] {
        let refused = parse(&DOORMAN.replace(from, to)).unwrap_err();
        let said = refused.to_string();
        assert!(said.starts_with(&format!("quota.yaml:{place}")), "{said}");
        assert!(refused.what.contains(what), "{said}");
    }
}

const IDENTIFIED: &str = "\
quota:
  listen: 0.0.0.0:7300
  tls: { cert: c.pem, key: k.pem, client_ca: ca.pem }
  operators: ['spiffe://prod/ns/ops/**']
  services:
    search:
      tasks: ['spiffe://prod/ns/search/**', dns:search.example.org]
      envoys: [dns:edge.example.org]
      default: 1
      customers:
        gmail: { cpu: 60, identities: [spiffe://prod/ns/gmail/sa/web] }
        crawler: 5
  doorman:
    clients: ['spiffe://prod/ns/*/sa/crawler']
    resources:
    - { identifier_glob: own, capacity: 1, clients: [dns:own.example.org] }
    - identifier_glob: '*'
      capacity: 10
      algorithm: { kind: STATIC, lease_length: 30, refresh_interval: 10 }
";

#[test]
fn who_may_do_what_is_read() {
    let config = parse(IDENTIFIED).unwrap();
    assert!(config.identified());
    let tls = config.tls.as_ref().unwrap();
    assert_eq!(tls.certificates, PathBuf::from("c.pem").into());
    assert_eq!(tls.clients, tidegate_tls::Clients::Required(PathBuf::from("ca.pem").into()));
    let search = &config.services["search"];
    assert_eq!(search.customers["gmail"], Limits::total(cpus(60.0)));
    let access = &search.access;
    assert_eq!((access.tasks.len(), access.envoys.len()), (2, 1));
    assert!(access.tasks[0].fits("spiffe://prod/ns/search/sa/x"));
    let [(gmail, name)] = &access.customers[..] else { panic!("{access:?}") };
    assert!(gmail.fits("spiffe://prod/ns/gmail/sa/web") && name == "gmail");
    assert_eq!(config.operators.len(), 1);
    let doorman = config.doorman_access.unwrap();
    assert!(doorman.clients["own"][0].fits("dns:own.example.org"));
    assert!(doorman.clients["*"][0].fits("spiffe://prod/ns/a/sa/crawler"));
}

#[test]
fn the_server_above_is_read_or_refused() {
    let lines = |parent: &str| {
        format!("quota:\n  parent: {parent}\n  services: {{ a: {{ default: 1 }} }}\n")
    };
    let whole = "{ servers: ['https://q:7300', q2:7300], name: z, weight: 9, \
                 tls: { ca: ca.pem, cert: c.pem, key: k.pem } }";
    let parent = parse(&lines(whole)).unwrap().parent.unwrap();
    assert_eq!((parent.servers.len(), parent.name.as_deref(), parent.weight), (2, Some("z"), 9));
    assert!(parent.tls.unwrap().identity.is_some());
    for (parent, what) in [
        ("{ servers: [] }", "no servers above"),
        ("{ servers: ['a b'] }", "is no address"),
        ("{ servers: ['http://q:1'], tls: {} }", "in the clear"),
        ("{ servers: [q:1], name: a b }", "`a b` cannot be"),
        ("{ servers: [q:1], weight: 0 }", "`0`"),
        ("{ servers: [q:1], tls: { cert: c } }", "one of `cert` and `key`"),
        ("{ name: z }", "servers"),
    ] {
        let refused = parse(&lines(parent)).unwrap_err();
        assert!(refused.line == 2 && refused.what.contains(what), "{refused}");
    }
}

#[test]
fn the_server_above_in_doormans_tree_is_read_or_refused() {
    let lines = |doorman: &str| format!("quota:\n  doorman: {doorman}\n");
    let whole = "{ parent: { servers: ['https://q:7300'], name: z, tls: { ca: ca.pem } } }";
    let config = parse(&lines(whole)).unwrap();
    let parent = config.doorman_parent.unwrap();
    assert_eq!((parent.servers.len(), parent.name.as_deref()), (1, Some("z")));
    assert!(parent.tls.is_some() && config.doorman.is_none());
    for (doorman, what) in [
        ("{ parent: { servers: [] } }", "no servers above"),
        ("{ parent: { servers: [q:1], name: a b } }", "`a b` cannot be the name of a server"),
        ("{ parent: { servers: [q:1], weight: 1 } }", "weight"),
        ("{ parent: { servers: [q:1] }, resources: [] }", "the server above says"),
        ("{ }", "there are no resources"),
    ] {
        let refused = parse(&lines(doorman)).unwrap_err();
        assert!(refused.line == 2 && refused.what.contains(what), "{refused}");
    }
    // Who may ask is said here.
    let mutual = "quota:\n  listen: 0.0.0.0:1\n  tls: { cert: c, key: k, client_ca: ca }\n  \
                  doorman: { clients: [dns:a], parent: { servers: ['https://q:1'] } }\n";
    let access = parse(mutual).unwrap().doorman_access.unwrap();
    assert!(access.clients["*"][0].fits("dns:a"));
    let closed = parse(&mutual.replace("clients: [dns:a], ", "")).unwrap_err();
    assert!(closed.what.contains("nobody may ask for `*`"), "{closed}");
    let shared = Config::parse_limits("limits.yaml", &lines(whole), &Own::default()).unwrap_err();
    assert!(shared.what.contains("`doorman.parent` is of one server"), "{shared}");
}

#[test]
fn nothing_is_open_by_an_omission() {
    let mut missed = Vec::new();
    let clear = "quota: { listen: '0.0.0.0:1', services: { a: { default: 1 } } }\n";
    let half = "quota:\n  listen: 0.0.0.0:1\n  tls: { cert: c, key: k }\n  \
                services: { a: { default: 1 } }\n";
    let tasks = "      tasks: ['spiffe://prod/ns/search/**', dns:search.example.org]\n";
    let envoys = "      envoys: [dns:edge.example.org]\n";
    let nobody = IDENTIFIED.replace(tasks, "").replace(envoys, "");
    for (text, place, what, right) in [
        (clear.to_owned(), "1:18", "0.0.0.0:1 can be reached by other machines", "client_ca"),
        (half.to_owned(), "2:11", "nobody proves who they are", "trust_network: true"),
        (
            IDENTIFIED.replace(", client_ca: ca.pem", "").replace("0.0.0.0", "127.0.0.1"),
            "4:14",
            "not asked for any",
            "client_ca",
        ),
        (
            IDENTIFIED.replace("  operators", "  trust_network: true\n  operators"),
            "4:18",
            "everyone proves who they are",
            "one of the two",
        ),
        (
            nobody.replace(", identities: [spiffe://prod/ns/gmail/sa/web]", ""),
            "6:5",
            "nobody may report for service `search`",
            "`tasks: [...]`",
        ),
        (
            IDENTIFIED.replace("    clients: ['spiffe://prod/ns/*/sa/crawler']\n", ""),
            "16:7",
            "nobody may ask for `*`",
            "`clients: [...]`",
        ),
        (IDENTIFIED.replace("dns:edge", "dns:*"), "8:16", "is no name of DNS", "dns:NAME"),
        (IDENTIFIED.replace("[dns:edge", "[edge"), "8:16", "is no pattern", "spiffe://DOMAIN"),
        (
            IDENTIFIED.replace("default: 1", "default: { cpu: 1, identities: [dns:a] }"),
            "9:16",
            "not named",
            "",
        ),
        (IDENTIFIED.replace("key: k.pem, ", ""), "3:", "key", ""),
    ] {
        let refused = parse(&text).expect_err(&text);
        let said = refused.to_string();
        let placed = said.starts_with(&format!("quota.yaml:{place}"));
        if !(placed && refused.what.contains(what) && refused.right.contains(right)) {
            missed.push(format!("{said}\n{text}wanted: {place} {what} / {right}\n"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    // Loopback is for those who can log in, and whoever wants more has to say so.
    let mut config = parse("quota: { services: { a: { default: 1 } } }\n").unwrap();
    let anywhere = "0.0.0.0:1".parse().unwrap();
    assert_eq!(config.listen_at(anywhere), Err(Exposed(anywhere)));
    assert!(config.listen_at("[::1]:1".parse().unwrap()).is_ok());
    assert!(parse(IDENTIFIED).unwrap().listen_at(anywhere).is_ok());
}

const ELECTED: &str = "\
quota:
  advertise: quota-1:7300
  election: { etcd: ['http://etcd-1:2379', 'http://etcd-2:2379'], prefix: /fleet/, ttl: 5s }
  services: { search: { default: 1 } }
";

#[test]
fn an_election_is_read_and_what_cannot_be_is_refused() {
    let election = parse(ELECTED).unwrap().election.unwrap();
    assert_eq!(election.endpoints, ["http://etcd-1:2379", "http://etcd-2:2379"]);
    assert_eq!((election.prefix.as_str(), election.ttl), ("/fleet", Duration::from_secs(5)));
    assert!(!election.limits);
    let short = parse("quota: { election: { etcd: ['http://[::1]:2379'] } }").unwrap();
    let election = short.election.as_ref().unwrap();
    assert_eq!(election.ttl, Duration::from_secs(3));
    assert_eq!(election.prefix, "/tidegate/quota");
    assert!(election.limits && short.services.is_empty());
    let secret = ELECTED.replace("http://", "https://").replace(
        "ttl: 5s",
        "tls: { ca: a.pem, cert: c.pem, key: k.pem }, user: quota, password_file: /run/p",
    );
    let secret = parse(&secret).unwrap().election.unwrap();
    assert_eq!(secret.endpoints[0], "https://etcd-1:2379");
    assert!(secret.tls.unwrap().identity.is_some());
    assert_eq!(secret.user, Some(crate::etcd::EtcdUser::new("quota", "/run/p")));
    let summary = "one of several, elected by etcd with 1 endpoint, limits from \
                   /tidegate/quota/config";
    assert_eq!(short.summary(), summary);
    for (from, to, what) in [
        ("http://etcd-2:2379", "ftp://etcd-2:2379", "`ftp://etcd-2:2379` is no endpoint"),
        ("ttl: 5s", "tls: { ca: a.pem }", "`http://etcd-1:2379` is no endpoint"),
        ("ttl: 5s", "user: root", "one of `user` and `password_file`"),
        ("ttl: 5s", "user: root, password_file: p", "sent in the clear"),
        ("http://etcd-2:2379", "etcd-2:2379", "is no endpoint of etcd"),
        ("http://etcd-2:2379", "http://etcd-2", "is no endpoint of etcd"),
        ("['http://etcd-1:2379', 'http://etcd-2:2379']", "[]", "there is no endpoint"),
        ("/fleet/", "'a b'", "cannot be what keys begin with"),
        ("/fleet/", "'/'", "cannot be what keys begin with"),
        ("5s", "1s", "`1s` does not belong here"),
        ("5s", "2500ms", "is not in whole seconds"),
        (
            "advertise: quota-1:7300",
            "listen: 0.0.0.0:7300\n  trust_network: true",
            "nobody can be sent to 0.0.0.0:7300",
        ),
        ("quota-1:7300", "quota-1", "nobody can be sent to `quota-1`"),
        ("quota-1:7300", "'http://quota-1:7300'", "nobody can be sent to"),
        ("quota-1:7300", "quota-1:0", "nobody can be sent to"),
        ("quota-1:7300", "a@quota-1:7300", "nobody can be sent to"),
        ("quota-1:7300", "'quota 1:7300'", "nobody can be sent to"),
        ("advertise: quota-1:7300", "state: /x", "remembers in etcd"),
        ("advertise: quota-1:7300", "parent: { servers: ['http://q:1'] }", "have no name there"),
        ("ttl: 5s", "tll: 5s", "tll"),
    ] {
        let refused = parse(&ELECTED.replace(from, to)).unwrap_err();
        assert!(refused.what.contains(what), "{to}: {refused}");
    }
}

#[test]
fn limits_for_all_servers_have_nothing_of_one() {
    let limits = |text: &str| Config::parse_limits("etcd:/q/config", text, &Own::default());
    let config = limits("quota: { services: { search: { default: 1 } } }").unwrap();
    assert_eq!(config.services.len(), 1);
    for key in [
        "listen: 0.0.0.0:1",
        "state: /x",
        "advertise: a:1",
        "election: { etcd: [] }",
        "operators: []",
    ] {
        let text = format!("quota:\n  {key}\n  services: {{ search: {{ default: 1 }} }}\n");
        let refused = limits(&text).unwrap_err();
        let name = key.split(':').next().unwrap();
        assert!(refused.what.contains(&format!("`{name}` is of one server")), "{refused}");
        assert_eq!(refused.line, 2);
    }
    assert!(limits("quota: {}").unwrap_err().what.contains("no services"));
    // Who may do what is for servers that ask for certificates.
    let listed = "quota: { services: { search: { default: 1, tasks: [dns:a] } } }";
    assert!(limits(listed).unwrap_err().what.contains("not asked for any"));
    let own = Own::of(&parse(IDENTIFIED).unwrap());
    assert!(Config::parse_limits("limits.yaml", listed, &own).is_ok());
}
