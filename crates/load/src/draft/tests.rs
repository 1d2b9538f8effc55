use super::*;
use tidegate_core::Criticality;

const PLAN: &str = "\
target: http://127.0.0.1:8080/
protocol: h2
stages:
  - 100 for 10s
  - 100..1000 for 30s
  - 200..1000 in 5 steps for 10s
arrivals: even
seed: 7
warmup: 2s
connections: 8
timeout: 5s
retry: naive:3
throttle: on
headers:
  accept: text/plain
criticality: { CRITICAL: 3, SHEDDABLE: 1 }
customer: { 'team-{1..3}': 1, bob: 7 }
deadline: 250ms
requests:
  - route: GET /search?q=tide
    weight: 3
  - route: POST /order
    body: { hex=0a05: 1, empty: 2 }
    headers: { x-a: b }
    criticality: CRITICAL_PLUS
    deadline: none
";

#[test]
fn a_file_says_it_all() {
    let plan = Draft::parse("plan.yaml", PLAN).unwrap().resolve(false, 1).unwrap();
    assert_eq!((plan.protocol, plan.connections, plan.course.seed), (Protocol::H2, 8, 7));
    assert_eq!(plan.course.load.duration(), Duration::from_secs(50));
    assert!(matches!(plan.course.load, Load::Open { spacing: Spacing::Even, .. }));
    assert!(plan.course.throttle && plan.warmup == Duration::from_secs(2));
    assert_eq!(plan.course.retry.to_string(), "naive:3");
    let [search, order] = plan.course.routes.items() else { panic!() };
    assert_eq!((search.method.as_str(), search.path.as_str()), ("GET", "/search?q=tide"));
    assert_eq!(search.mix.criticality.items(), [Criticality::Critical, Criticality::Sheddable]);
    assert_eq!(search.mix.customer.items().len(), 4);
    assert_eq!(search.mix.deadline.items(), [Some(Duration::from_millis(250))]);
    assert_eq!(search.bodies.items(), [""]);
    assert_eq!(order.mix.criticality.items(), [Criticality::CriticalPlus]);
    assert_eq!(order.mix.deadline.items(), [None]);
    assert_eq!(order.bodies.items(), [&b"\x0a\x05"[..], b""]);
    assert_eq!(
        (&order.headers["accept"], &order.headers["x-a"]),
        (&"text/plain".parse().unwrap(), &"b".parse().unwrap())
    );
}

#[test]
fn the_command_line_goes_over_the_file() {
    let file = Draft::parse("plan.yaml", PLAN).unwrap();
    let line = Draft {
        rate: Some("max".to_owned()),
        duration: Some(Span(Duration::from_secs(3))),
        seed: Some(9),
        ..Draft::default()
    };
    let mut both = line.over(file);
    both.arrivals = None;
    let plan = both.resolve(false, 1).unwrap();
    assert_eq!(plan.course.load, Load::Closed { duration: Duration::from_secs(3) });
    assert_eq!((plan.course.seed, plan.course.routes.items().len()), (9, 2));
}

#[test]
fn little_is_enough() {
    let draft = Draft { target: Some("127.0.0.1:80/x".to_owned()), ..Draft::default() };
    let plan = draft.resolve(false, 5).unwrap();
    assert_eq!(plan.course.load.duration(), DURATION);
    assert_eq!((plan.course.seed, plan.threads), (5, 1));
    let route = &plan.course.routes.items()[0];
    assert_eq!((route.method.as_str(), route.path.as_str()), ("GET", "/x"));
    let posts = Draft { body: Some("hi".parse().unwrap()), ..draft.clone() };
    assert_eq!(posts.resolve(false, 5).unwrap().course.routes.items()[0].method, Method::POST);
    let calls = Draft { protocol: Some(Protocol::Grpc), ..draft };
    assert_eq!(calls.resolve(false, 5).unwrap().course.routes.items()[0].method, Method::POST);
}

/// Line, column, what, and what would be right.
#[test]
fn a_slip_is_shown_where_it_stands() {
    for (text, line, column, what, right) in [
        ("target: x\nratee: 5\n", 2, 1, "unknown field `ratee`", "rate, "),
        ("protocol: http3\n", 1, 11, "`http3` is no protocol", "http1, h2 or grpc"),
        (
            "stages:\n  - 5 for 1s\n  - fast\n",
            3,
            5,
            "`fast` does not say for how long",
            "500 for 10s",
        ),
        ("duration: 5\n", 1, 11, "`5` is no span of time", "250ms"),
        ("retry: always\n", 1, 8, "`always` is no retry behaviour", "budgeted"),
        ("throttle: maybe\n", 1, 11, "`maybe` is no switch", "on or off"),
        ("connections: many\n", 1, 14, "", ""),
        ("requests:\n  - route: search\n", 2, 12, "`search` is no route", "begins with /"),
        ("requests:\n  - weight: 2\n", 2, 5, "missing field `route`", ""),
        ("seed: 1\nseed: 2\n", 2, 1, "duplicate", ""),
        ("criticality: { CRITICAL: 0 }\n", 1, 1, "`0` is no weight", "a whole number"),
        ("seed: 1\nstages: [\n", 0, 1, "", ""),
    ] {
        let error = Draft::parse("plan.yaml", text).unwrap_err();
        let (file, at_line, at_column) = error.place.clone().unwrap();
        assert_eq!(file, "plan.yaml");
        // What never ends may be reported where it began, or where the file ends.
        assert!(at_line == line || line == 0 && at_line >= 2, "{text}{error}");
        assert!(at_column == column || column == 1, "{text}{error}");
        assert!(error.what.contains(what), "{text}{error}");
        assert!(error.right.contains(right) && !error.right.is_empty(), "{text}{error}");
        assert!(!error.to_string().contains(" at line "), "{error}");
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let base = || Draft { target: Some("127.0.0.1:80".to_owned()), ..Draft::default() };
    for (draft, what) in [
        (Draft::default(), "no target"),
        (Draft { target: Some("http://192.0.2.7/".to_owned()), ..base() }, "not a loopback"),
        (Draft { rate: Some("fast".to_owned()), ..base() }, "`fast` is no rate"),
        (Draft { rate: Some("5".to_owned()), stages: Some(Vec::new()), ..base() }, "both"),
        (Draft { stages: Some(Vec::new()), ..base() }, "no stages"),
        (Draft { duration: Some(Span(Duration::ZERO)), ..base() }, "duration is nothing"),
        (Draft { connections: Some(0), ..base() }, "connections is 0"),
        (
            Draft { connections: Some(9), connections_max: Some(5), ..base() },
            "connections_max is 5",
        ),
        (Draft { threads: Some(999), ..base() }, "threads is 999"),
        (
            Draft { criticality: Some("HIGH".parse().unwrap()), ..base() },
            "`HIGH` is no criticality",
        ),
        (Draft { body: Some("@/no/such/file".parse().unwrap()), ..base() }, "cannot be read"),
        (Draft { body: Some("hex=050".parse().unwrap()), ..base() }, "is not hexadecimal"),
        (Draft { method: Some("get".to_owned()), ..base() }, "`get` is no method"),
        (
            Draft { rate: Some("max".to_owned()), arrivals: Some(Spacing::Even), ..base() },
            "`max` has no arrivals",
        ),
        (
            Draft { headers: [("Content-Length".to_owned(), "5".to_owned())].into(), ..base() },
            "not for you to set",
        ),
    ] {
        let error = draft.resolve(false, 1).unwrap_err();
        assert!(error.what.contains(what), "{error}");
        assert!(!error.right.is_empty(), "{error}");
    }
    let remote = Draft { target: Some("http://192.0.2.7/".to_owned()), ..base() };
    assert!(remote.resolve(false, 1).unwrap_err().right.contains("--allow-remote"));
    assert!(remote.resolve(true, 1).is_ok());
}
