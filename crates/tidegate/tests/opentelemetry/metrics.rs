//! Metrics as an OpenTelemetry SDK collects them.

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics,
};
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider, Temporality};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate::Task;
use tidegate::client::{Balance, Balancer, Discovery, Endpoint, Layer};
use tidegate::metrics::{Calls, Collector, Copies, Queue, names, observe, observe_calls};
use tidegate_core::balance::WeightedConfig;
use tidegate_core::decision::Reason;
use tidegate_core::fleet::Limits;
use tidegate_core::levels::Levels;
use tidegate_core::{Cost, Criticality};
use tower::{Layer as _, ServiceExt, service_fn};

/// By name and attributes, as `tidegate_attempts_total{attempt="1"}`.
type Samples = BTreeMap<String, f64>;

/// Keeps what the last collection has found, under the names that Prometheus has for it.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Samples>>);

impl PushMetricExporter for Kept {
    async fn export(&self, all: &ResourceMetrics) -> OTelSdkResult {
        let mut kept = self.0.lock().unwrap();
        kept.clear();
        for metric in all.scope_metrics().flat_map(ScopeMetrics::metrics) {
            assert!(!metric.description().is_empty(), "{}", metric.name());
            let mut keep = |monotonic: bool, labels: Vec<(String, String)>, value: f64| {
                let name = name(metric.name(), metric.unit(), monotonic);
                kept.insert(format!("{name}{}", written(labels)), value);
            };
            match metric.data() {
                AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                    for point in sum.data_points() {
                        keep(sum.is_monotonic(), labels(point.attributes()), point.value() as f64);
                    }
                }
                AggregatedMetrics::F64(MetricData::Sum(sum)) => {
                    for point in sum.data_points() {
                        keep(sum.is_monotonic(), labels(point.attributes()), point.value());
                    }
                }
                AggregatedMetrics::U64(MetricData::Gauge(gauge)) => {
                    for point in gauge.data_points() {
                        keep(false, labels(point.attributes()), point.value() as f64);
                    }
                }
                AggregatedMetrics::F64(MetricData::Gauge(gauge)) => {
                    for point in gauge.data_points() {
                        keep(false, labels(point.attributes()), point.value());
                    }
                }
                other => panic!("{} is {other:?}", metric.name()),
            }
        }
        Ok(())
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        Temporality::Cumulative
    }
}

/// The name that exporters to Prometheus make of it, with the units in braces that they drop.
fn name(name: &str, unit: &str, monotonic: bool) -> String {
    let unit = match unit {
        "" | "{backend}" => "",
        "s" => "_seconds",
        "1" => "_ratio",
        "{cpu}" => "_cpus",
        "{request}" if !monotonic => "_requests",
        "{retry}" if !monotonic => "_retries",
        events if events.starts_with('{') && monotonic => "",
        other => panic!("{name} in {other}"),
    };
    format!("{}{unit}{}", name.replace('.', "_"), if monotonic { "_total" } else { "" })
}

fn labels<'a>(
    attributes: impl Iterator<Item = &'a opentelemetry::KeyValue>,
) -> Vec<(String, String)> {
    attributes.map(|pair| (pair.key.to_string(), pair.value.to_string())).collect()
}

fn written(mut labels: Vec<(String, String)>) -> String {
    if labels.is_empty() {
        return String::new();
    }
    labels.sort();
    let labels: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
    format!("{{{}}}", labels.join(","))
}

/// An SDK that collects when it is told to.
struct Sdk {
    provider: SdkMeterProvider,
    kept: Kept,
}

impl Sdk {
    fn new(task: &Task) -> Self {
        Self::with(|meter| observe(task, meter))
    }

    fn with(observe: impl FnOnce(&Meter)) -> Self {
        let kept = Kept::default();
        let long = Duration::from_secs(3_600);
        let reader = PeriodicReader::builder(kept.clone()).with_interval(long).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        observe(&provider.meter("test"));
        Self { provider, kept }
    }

    fn collect(&self) -> Samples {
        self.kept.0.lock().unwrap().clear();
        self.provider.force_flush().unwrap();
        self.kept.0.lock().unwrap().clone()
    }
}

/// What Prometheus scrapes.
fn scrape(task: &Task) -> Samples {
    scrape_of(Collector::new(task))
}

fn scrape_of(collector: Collector) -> Samples {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collector));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let samples = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let (name, pairs) =
            name.strip_suffix('}').unwrap_or(name).split_once('{').unwrap_or((name, ""));
        let pairs = pairs.split(',').filter_map(|pair| pair.split_once('='));
        let labels = pairs.map(|(k, v)| (k.to_owned(), v.trim_matches('"').to_owned())).collect();
        (format!("{name}{}", written(labels)), value.parse().unwrap())
    });
    samples.collect()
}

fn router(task: &Task) -> Router {
    Router::new().route("/", axum::routing::get(|| async { "hello" })).layer(task.layer())
}

async fn ask(router: &Router, headers: &[(&str, &str)]) {
    let mut request = Request::get("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
}

/// Histograms are spelled otherwise.
fn is_spread(name: &str) -> bool {
    ["tidegate_request_cost", "tidegate_latency"].iter().any(|start| name.starts_with(start))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_collected_is_what_was_counted() {
    let task = Task::builder("test").build().unwrap();
    let (sdk, router) = (Sdk::new(&task), router(&task));
    for _ in 0..3 {
        let headers = [("x-criticality", "SHEDDABLE"), ("x-envoy-attempt-count", "2")];
        ask(&router, &headers).await;
    }
    ask(&router, &[("grpc-timeout", "0m"), ("x-criticality", "x")]).await;
    task.gate().set_levels(Levels::CLOSED);
    ask(&router, &[]).await;
    task.set_dark(true);
    ask(&router, &[]).await;

    let (found, snapshot) = (sdk.collect(), task.snapshot());
    let counts = &snapshot.requests;
    let of = |name: &str| *found.get(name).unwrap_or_else(|| panic!("no {name} in {found:#?}"));
    let requests = |criticality: Criticality, decision: &str, reason: &str| {
        of(&format!(
            "tidegate_requests_total{{criticality=\"{criticality}\",decision=\"{decision}\",\
             reason=\"{reason}\"}}"
        )) as u64
    };
    let (sheddable, critical) = (Criticality::Sheddable, Criticality::Critical);
    assert_eq!((requests(sheddable, "admit", ""), counts.admitted(sheddable)), (3, 3));
    let rejected = counts.rejected(Reason::Overloaded, critical);
    assert_eq!((requests(critical, "reject", "overloaded"), rejected), (1, 1));
    let dark = counts.dark(Reason::Overloaded, critical);
    assert_eq!((requests(critical, "dark", "overloaded"), dark), (1, 1));
    assert_eq!(of("tidegate_attempts_total{attempt=\"2\"}"), 3.0);
    assert_eq!(of("tidegate_header_faults_total{fault=\"bad_criticality\"}"), 1.0);
    assert_eq!(of("tidegate_inflight_requests"), 0.0);
    assert_eq!(of("tidegate_request_cost_seconds_total"), snapshot.costs.sum.as_secs_f64());
    assert!(snapshot.costs.sum > Cost::from_nanos(0));
    assert_eq!(of("tidegate_request_cost_bucket_total{le=\"+Inf\"}"), 4.0);
    let first = snapshot.costs.buckets[0];
    let bucket = format!("tidegate_request_cost_bucket_total{{le=\"{}\"}}", first.0);
    assert_eq!(of(&bucket), first.1 as f64);

    assert_eq!(of("tidegate_latency_seconds_total"), snapshot.latencies.sum.as_secs_f64());
    assert_eq!(of("tidegate_latency_bucket_total{le=\"+Inf\"}"), 4.0);
    assert_eq!(of("tidegate_good_requests_total{criticality=\"SHEDDABLE\"}"), 3.0);

    // And all else is what Prometheus sees, by the same names.
    let (scraped, same) = (scrape(&task), |of: &Samples| {
        of.iter()
            .filter(|(name, _)| !is_spread(name))
            .map(|(k, v)| (k.clone(), *v))
            .collect::<Samples>()
    });
    assert_eq!(same(&found), same(&scraped));

    // The next collection is of its own time.
    task.set_dark(false);
    ask(&router, &[]).await;
    let name = "tidegate_requests_total{criticality=\"CRITICAL\",decision=\"reject\",\
                reason=\"overloaded\"}";
    assert_eq!(sdk.collect()[name], 2.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_task_at_work_tells_where_it_stands_and_customers_are_few() {
    let task = Task::builder("test").customer("shop", Limits::UNLIMITED).start().unwrap();
    let (sdk, router) = (Sdk::new(&task), router(&task));
    let mut n = 0;
    // What is looked at every second is there after one.
    while task.snapshot().unattributed.is_none() || task.snapshot().customers.is_empty() {
        n += 1;
        ask(&router, &[("x-customer", &format!("made-up-{n}"))]).await;
    }
    let (found, scraped) = (sdk.collect(), scrape(&task));
    let names = |of: &Samples| {
        let names = of.keys().filter(|name| !is_spread(name));
        names.cloned().collect::<Vec<_>>()
    };
    assert_eq!(names(&found), names(&scraped));
    for name in [
        "tidegate_utilization_ratio{signal=\"executor_load\"}",
        "tidegate_admitted_ratio{criticality=\"SHEDDABLE\"}",
        "tidegate_degraded{criticality=\"SHEDDABLE\"}",
        "tidegate_capacity_cpus",
        "tidegate_unattributed_cpu_ratio",
        "tidegate_sampler_ticks_total",
    ] {
        assert!(found.contains_key(name), "no {name} in {found:#?}");
    }
    let customers = found.keys().filter(|name| name.starts_with("tidegate_customer_used"));
    assert!(customers.clone().count() > 0);
    for name in customers {
        assert!(["\"other\"", "\"shop\""].iter().any(|known| name.contains(known)), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_meter_does_not_keep_a_task() {
    let task = Task::builder("test").build().unwrap();
    let sdk = Sdk::new(&task);
    assert!(sdk.collect().contains_key("tidegate_inflight_requests"));
    let gate = Arc::downgrade(task.gate());
    drop(task);
    assert!(gate.upgrade().is_none());
    assert_eq!(sdk.collect(), Samples::new());
}

/// A service of which one endpoint of two refuses everything.
fn calls() -> (Calls, impl AsyncFn(&str)) {
    let layer = Layer::builder("inventory").seed(7).build();
    let make = |endpoint: &Endpoint| {
        let status = if endpoint.address() == "10.0.0.2:80" { 503 } else { 200 };
        let backend = service_fn(move |_: Request<Full<Bytes>>| async move {
            let answer = http::Response::builder().status(status);
            let report = "TEXT application_utilization=0.4,rps_fractional=100";
            let answer = answer.header("endpoint-load-metrics", report);
            Ok::<_, std::convert::Infallible>(answer.body(Full::<Bytes>::default()).unwrap())
        });
        Ok::<_, std::convert::Infallible>(backend)
    };
    let discovery = Discovery::list(["10.0.0.1:80", "10.0.0.2:80"]);
    let policy = Balance::Weighted(WeightedConfig::default());
    let balancer = Balancer::builder(discovery, make).balance(policy).build().unwrap();
    let calls = Calls::default().client(&layer).unwrap();
    let calls = calls.balancer("inventory", &balancer).unwrap();
    let copies = || {
        let mut copies = Copies::default();
        (copies.count, copies.bytes) = (3, 4_000);
        copies.events = vec![("kept", 5)];
        copies
    };
    let calls = calls
        .queue("inventory", Queue::default)
        .unwrap()
        .edge(|| vec![("stripped_header", 6)])
        .copies(copies)
        .datagrams(|| vec![("answered", 7)]);
    let client = layer.layer(balancer);
    let call = async move |criticality: &str| {
        let request = Request::get("/").header("x-criticality", criticality);
        let answer = client.clone().oneshot(request.body(Full::default()).unwrap()).await;
        if let Ok(answer) = answer {
            answer.into_body().collect().await.unwrap();
        }
    };
    (calls, call)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_of_others_is_collected_and_scraped_by_the_same_names() {
    let (calls, call) = calls();
    let sdk = Sdk::with(|meter| observe_calls(calls.clone(), meter));
    for _ in 0..20 {
        call("SHEDDABLE").await;
    }
    let found = sdk.collect();
    let of = |name: &str| *found.get(name).unwrap_or_else(|| panic!("no {name} in {found:#?}"));
    let fate = |fate: &str| {
        of(&format!(
            "tidegate_client_attempts_total{{criticality=\"SHEDDABLE\",fate=\"{fate}\",\
             service=\"inventory\"}}"
        ))
    };
    assert_eq!(of("tidegate_client_requests_total{service=\"inventory\"}"), 20.0);
    let retries = of("tidegate_client_retries_total{service=\"inventory\"}");
    let attempts = fate("accepted") + fate("refused") + fate("throttled");
    assert_eq!((attempts, fate("unanswered")), (20.0 + retries, 0.0));
    assert!(fate("accepted") > 0.0 && fate("refused") > 0.0, "{found:#?}");
    assert_eq!(of("tidegate_backends{service=\"inventory\",state=\"serving\"}"), 2.0);
    assert_eq!(of("tidegate_backends{service=\"inventory\",state=\"lame_duck\"}"), 0.0);
    for n in [1, 2] {
        let backend = format!("{{backend=\"10.0.0.{n}:80\",service=\"inventory\"}}");
        assert_eq!(of(&format!("tidegate_backend_serving{backend}")), 1.0);
        assert_eq!(of(&format!("tidegate_backend_active_requests{backend}")), 0.0);
        assert_eq!(of(&format!("tidegate_backend_utilization_ratio{backend}")), 0.4);
    }
    let throttle = "tidegate_client_throttle_ratio{criticality=\"CRITICAL\",service=\"inventory\"}";
    assert_eq!(of(throttle), 0.0);
    assert!(of("tidegate_client_budget_retries{service=\"inventory\"}") >= 0.0);
    for (row, value) in [
        ("tidegate_edge_events_total{event=\"stripped_header\"}", 6.0),
        ("tidegate_stale_copies", 3.0),
        ("tidegate_stale_bytes", 4_000.0),
        ("tidegate_stale_events_total{event=\"kept\"}", 5.0),
        ("tidegate_health_datagrams_total{event=\"answered\"}", 7.0),
    ] {
        assert_eq!(of(row), value, "{row}");
    }
    assert_eq!(found, scrape_of(Collector::of_calls(calls.clone())));

    // Each is one of the names that there are; with a task's, all are there.
    let task = Task::builder("test").build().unwrap();
    let both = scrape_of(Collector::new(&task).calls(calls));
    let names = names();
    let labelled = |label: &&str| ["service", "event"].contains(label);
    for known in names.iter().filter(|known| known.labels.iter().any(labelled)) {
        let mut labels = known.labels.clone();
        labels.sort_unstable();
        let found = both.keys().find_map(|name| name.strip_prefix(&format!("{}{{", known.name)));
        let found = found.unwrap_or_else(|| panic!("no {} in {both:#?}", known.name));
        let shown: Vec<_> = found.split(',').filter_map(|pair| pair.split('=').next()).collect();
        assert_eq!(shown, labels);
    }
    assert!(both.contains_key("tidegate_inflight_requests"));
}
