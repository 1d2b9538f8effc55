//! `tidegate top`, `explain` and `dashboards` as a user runs them, against a service in here.

#![allow(clippy::unwrap_used)]

use http::{Request, Response};
use http_body_util::Full;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tidegate::Task;
use tidegate::admin::api::Snapshot;
use tidegate::admin::{Admin, Page};
use tidegate::client::{Balance, Balancer, Discovery, Endpoint, Layer};
use tidegate_core::balance::WeightedConfig;
use tidegate_core::levels::Levels;
use tower::{Layer as _, ServiceExt as _, service_fn};

fn tidegate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).env_remove("TIDEGATE_TOKEN").stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A service that has refused somebody; the number of that decision, and its page.
fn refused(admin: impl FnOnce(Admin) -> Admin) -> (Task, String, Page) {
    let task = Task::builder("checkout").start().unwrap();
    task.gate().set_levels(Levels::CLOSED);
    let handler = service_fn(|_: Request<()>| async {
        Ok::<_, std::convert::Infallible>(Response::new(Full::<bytes::Bytes>::default()))
    });
    let request = Request::get("/").header("x-criticality", "SHEDDABLE").body(()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // A tick may have opened the gate again by then.
    let decision = loop {
        task.gate().set_levels(Levels::CLOSED);
        let asked = task.layer().layer(handler).oneshot(request.clone());
        let answer = runtime.block_on(asked).unwrap();
        if let Some(decision) = answer.headers().get("x-tidegate-decision") {
            break decision.to_str().unwrap().to_owned();
        }
    };
    let page = admin(Admin::new(&task)).spawn("127.0.0.1:0").unwrap();
    (task, decision, page)
}

#[test]
fn top_prints_how_things_stand_when_there_is_no_terminal() {
    let elsewhere = || {
        let mut snapshot = Snapshot::default();
        snapshot.service = "elsewhere".to_owned();
        snapshot
    };
    let (_task, decision, page) =
        refused(|admin| admin.source("seen from outside, 2/3", elsewhere));
    let url = format!("http://{}/", page.address());
    let output = tidegate(&["top", &url]);
    assert_eq!(text(&output.stderr), "");
    assert!(output.status.success());
    let out = text(&output.stdout);
    assert!(out.starts_with("checkout (checkout): "), "{out}");
    for words in ["since ", "goodput", "SHEDDABLE", "executor_load", "quota: No quota server"] {
        assert!(out.contains(words), "no {words} in\n{out}");
    }
    assert!(out.contains(&decision), "{out}");
    assert_eq!(tidegate(&["top", &url, "--part", "checkout", "--once"]).status.code(), Some(0));
    let odd = tidegate(&["top", &url, "--part", "seen from outside, 2/3"]);
    assert!(text(&odd.stdout).starts_with("elsewhere (seen from outside, 2/3): "));
    let none = tidegate(&["top", &url, "--part", "nobody"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("There are: checkout"), "{}", text(&none.stderr));
}

#[test]
fn explain_tells_why_by_the_number_in_the_answer() {
    let (_task, decision, page) = refused(|admin| admin);
    let url = format!("http://{}", page.address());
    let output = tidegate(&["explain", &decision, &url]);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    for words in [
        "Refused SHEDDABLE, overloaded",
        &decision,
        "came in      attempt 1 of a request, for everyone else",
        "criticality  SHEDDABLE, by its header x-criticality",
        "customer     nobody was named: one of everyone else",
        "answered     503, reason overloaded",
        "What would change it",
        "a higher criticality: SHEDDABLE_PLUS is shed later",
    ] {
        assert!(out.contains(words), "no {words} in\n{out}");
    }
    let json = tidegate(&["explain", &decision, &url, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["id"], decision);
    let unknown = tidegate(&["explain", "0000000000000000", &url]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stderr).contains("not remembered"));
    assert_eq!(tidegate(&["explain", "../metrics", &url]).status.code(), Some(2));
}

#[test]
fn a_token_is_told_by_option_environment_or_address() {
    let (_task, decision, page) = refused(|admin| admin.token("0123456789abcdef").unwrap());
    let url = format!("http://{}", page.address());
    let address = format!("{url}/?token=0123456789abcdef");
    for command in [&["top"][..], &["explain", &decision]] {
        let run = |more: &[&str]| tidegate(&[command, more].concat());
        // Who sits here needs it, too.
        for wrong in [&[&url[..]][..], &[&url, "--token", "0123456789abcdee"]] {
            let output = run(wrong);
            assert_eq!(output.status.code(), Some(1), "{command:?} {wrong:?}");
            let complaint = text(&output.stderr);
            assert!(complaint.contains("token") && complaint.contains("401"), "{complaint}");
        }
        for right in [&[&url[..], "--token", "0123456789abcdef"][..], &[&address]] {
            let output = run(right);
            assert!(output.status.success(), "{command:?} {right:?}: {}", text(&output.stderr));
        }
        let mut by_environment = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        by_environment.args(command).arg(&url).env("TIDEGATE_TOKEN", "0123456789abcdef");
        assert!(by_environment.stdin(Stdio::null()).output().unwrap().status.success());
    }
}

#[test]
fn nobody_there_is_told_with_what_to_do() {
    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for command in [&["top"][..], &["explain", "00ff"]] {
        let url = format!("http://{free}");
        let output = tidegate(&[command, &[&url]].concat());
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(complaint.contains("could not ask") && complaint.contains("next:"), "{complaint}");
    }
    let output = tidegate(&["top", "https://localhost"]);
    assert!(text(&output.stderr).contains("tunnel"), "{}", text(&output.stderr));
}

/// A process that ends when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut io = TcpStream::connect(address).ok()?;
    write!(io, "GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    io.read_to_string(&mut answer).ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

/// What Prometheus says to a query.
fn ask(prometheus: SocketAddr, query: &str) -> Option<serde_json::Value> {
    let written = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    let query: String = query.bytes().map(written).collect();
    serde_json::from_str(&get(prometheus, &format!("/api/v1/query?query={query}"))?).ok()
}

/// Asks until there is an answer, but not for ever.
fn soon<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = std::time::Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it never happens");
        std::thread::sleep(Duration::from_millis(50));
    }
}

type Backend = tower::util::BoxCloneSyncService<
    Request<Full<bytes::Bytes>>,
    Response<Full<bytes::Bytes>>,
    std::convert::Infallible,
>;

/// Two endpoints without a network that say how full they are.
fn balancer() -> Balancer<Backend> {
    let make = |_: &Endpoint| {
        let backend = service_fn(|_: Request<Full<bytes::Bytes>>| async {
            let report = "TEXT application_utilization=0.4,rps_fractional=100";
            let answer = Response::builder().header("endpoint-load-metrics", report);
            Ok::<_, std::convert::Infallible>(answer.body(Full::default()).unwrap())
        });
        Ok::<_, std::convert::Infallible>(Backend::new(backend))
    };
    let policy = Balance::Weighted(WeightedConfig::default());
    let discovery = Discovery::list(["10.0.0.1:80", "10.0.0.2:80"]);
    Balancer::builder(discovery, make).balance(policy).build().unwrap()
}

/// Goes on for as long as the test.
fn ask_others(inventory: &Layer, balancer: Balancer<Backend>) {
    let client = inventory.layer(balancer);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            loop {
                let answer = client.clone().oneshot(Request::new(Full::default())).await;
                drop(answer);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    });
}

/// A query as Prometheus sees it once Grafana has filled in what was chosen.
fn filled(target: &serde_json::Value) -> String {
    let query = target["expr"].as_str().unwrap();
    let query = query.replace("$job", ".*").replace("$instance", ".*");
    query.replace("$__rate_interval", "1m")
}

/// Has Prometheus's own tool parse every query, each as a rule.
fn check_by_promtool(folder: &Path, dashboard: &serde_json::Value) {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let rules = targets.enumerate().map(
        |(n, target)| serde_json::json!({ "record": format!("query:{n}"), "expr": filled(target) }),
    );
    let rules: Vec<_> = rules.collect();
    let count = rules.len();
    // Every JSON is YAML.
    let groups = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    let file = folder.join("rules.yml");
    std::fs::write(&file, groups.to_string()).unwrap();
    let mut promtool = Command::new("promtool");
    let checked = promtool.args(["check", "rules"]).arg(&file).output().unwrap();
    let said = text(&checked.stdout) + &text(&checked.stderr);
    assert!(checked.status.success(), "{said}");
    assert!(said.contains(&format!("{count} rules found")), "{said}");
}

/// The alerts that come with us are rules, and ask for what there is.
fn check_alerts(prometheus: SocketAddr) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus-alerts.yaml");
    let mut promtool = Command::new("promtool");
    let checked = promtool.args(["check", "rules"]).arg(&file).output().unwrap();
    assert!(checked.status.success(), "{}", text(&checked.stdout) + &text(&checked.stderr));
    let alerts = std::fs::read_to_string(&file).unwrap();
    let known: Vec<String> = tidegate::metrics::names().into_iter().map(|name| name.name).collect();
    let word = |c: char| !(c.is_ascii_lowercase() || c == '_');
    let mut asked = 0;
    for name in alerts.split(word).filter(|word| word.starts_with("tidegate_")) {
        assert!(known.iter().any(|known| known == name), "there is no metric {name}");
        let answer = ask(prometheus, name).unwrap();
        assert_eq!(answer["status"], "success", "{name}: {answer}");
        asked += 1;
    }
    assert!(asked >= 10, "only {asked}");
    let documented = include_str!("../../../docs/operations.md");
    for line in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(documented.contains(&format!("`{line}`")), "docs/operations.md lacks {line}");
    }
}

/// A real Prometheus scrapes us, and every query of the dashboard for Grafana is one that it runs.
#[test]
fn prometheus_scrapes_us_and_runs_every_query_of_the_dashboard() {
    if std::env::var_os("TIDEGATE_PEERS").is_none() {
        eprintln!("left out: `cargo xtask test` installs Prometheus for it");
        return;
    }
    let inventory = Layer::new("inventory");
    let balancer = balancer();
    let (task, _, page) =
        refused(|admin| admin.client(&inventory).balancer("inventory", &balancer));
    ask_others(&inventory, balancer);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("prometheus");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let config = format!(
        "global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}\n\
         scrape_configs:\n  - job_name: checkout\n    static_configs:\n      - targets: ['{}']\n",
        page.address()
    );
    std::fs::write(folder.join("prometheus.yml"), config).unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", folder.join("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
    command.arg(format!("--web.listen-address={free}")).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let running = command.spawn();
    let _prometheus =
        Running(running.expect("prometheus is there: `cargo xtask test --only install`"));
    soon(|| {
        let up = ask(free, "up{job=\"checkout\"}")?;
        (up["data"]["result"][0]["value"][1] == "1").then_some(())
    });
    // Rates want two looks, and customers a second.
    soon(|| {
        let ticks = ask(free, "rate(tidegate_sampler_ticks_total[1m]) > 0")?;
        ticks["data"]["result"].get(0).map(|_| ())
    });

    let exported = tidegate(&["dashboards", "export"]);
    let dashboard: serde_json::Value = serde_json::from_slice(&exported.stdout).unwrap();
    check_by_promtool(&folder, &dashboard);
    check_alerts(free);
    // What is chosen from is there.
    for (label, value) in [("job", "checkout"), ("instance", &page.address().to_string())] {
        let path = format!("/api/v1/label/{label}/values?match[]=tidegate_inflight_requests");
        let found: serde_json::Value = serde_json::from_str(&get(free, &path).unwrap()).unwrap();
        assert_eq!(found["data"], serde_json::json!([value]));
    }
    let mut answered = 0;
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = filled(target);
            let answer = ask(free, &query).unwrap();
            assert_eq!(answer["status"], "success", "{query}: {answer}");
            queries += 1;
            let has_answer = answer["data"]["result"].get(0).is_some();
            answered += usize::from(has_answer);
            // Clients and balancers have been at work; nobody among them is lame.
            let asks = ["tidegate_client_", "tidegate_backend"].iter().any(|n| query.contains(n));
            assert!(has_answer || !asks || query.contains("== 0"), "{query}: {answer}");
        }
    }
    // What is about customers, degraded answers and dark mode may have nothing to say yet.
    assert!(queries >= 20 && answered * 2 > queries, "{answered} of {queries}");
    drop(task);
}
