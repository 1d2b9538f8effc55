use super::support::{Answer, Backend, answer, request};
use crate::client::{
    Balance, Balancer, BoxError, Change, Discovery, Endpoint, HttpProber, Layer, METRIC_RIF,
    NoEndpoint, Prober, Reporter, Reports, Service, Spill, Subset, Throttled,
};
use bytes::Bytes;
use core::time::Duration;
use futures_util::future::BoxFuture;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tidegate_core::balance::{
    LeastLoadedConfig, PickReason, PrequalConfig, ProbeAnswer, SlowStart, WeightedConfig,
};
use tidegate_core::decision::Reason;
use tidegate_core::spillover::{Datacenter, DatacenterId, Resources};
use tidegate_core::subset::{SubsetPolicy, subset};
use tidegate_core::{Cost, CostRate};
use tidegate_wire::orca::{self, Format, OrcaLoadReport};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tower::ServiceExt;
use tower_layer::Layer as _;

type Say = dyn Fn(&str) -> Result<Answer, BoxError> + Send + Sync;

/// A world of endpoints, and who of them has seen how many requests.
#[derive(Clone)]
struct World {
    seen: Arc<Mutex<BTreeMap<String, Backend>>>,
    say: Arc<Say>,
}

impl World {
    fn new(say: impl Fn(&str) -> Result<Answer, BoxError> + Send + Sync + 'static) -> Self {
        Self { seen: Arc::default(), say: Arc::new(say) }
    }

    fn make(&self) -> impl Fn(&Endpoint) -> Result<Backend, BoxError> + Send + Sync + 'static {
        let world = self.clone();
        move |endpoint| {
            let (say, address) = (Arc::clone(&world.say), endpoint.address().to_owned());
            let name = address.clone();
            let make = || Backend::new(move |_, _| say(&name));
            Ok(world.seen.lock().unwrap().entry(address).or_insert_with(make).clone())
        }
    }

    fn balancer(&self, discovery: Discovery, balance: Balance) -> Balancer<Backend> {
        Balancer::builder(discovery, self.make()).balance(balance).seed(3).build().unwrap()
    }

    fn counts(&self) -> Vec<(String, usize)> {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|(name, backend)| (name.clone(), backend.count())).collect()
    }

    fn count(&self, name: &str) -> usize {
        self.seen.lock().unwrap().get(name).map_or(0, Backend::count)
    }
}

const TURNS: Balance = Balance::RoundRobin(SlowStart::OFF);

fn fine() -> Answer {
    answer(200, &[])
}

async fn send(balancer: &Balancer<Backend>) -> Result<http::Response<Bytes>, BoxError> {
    let (parts, body) = balancer.clone().oneshot(request()).await?.into_parts();
    Ok(http::Response::from_parts(parts, body.collect().await.unwrap().to_bytes()))
}

async fn send_many(balancer: &Balancer<Backend>, requests: usize, pause: Duration) {
    for _ in 0..requests {
        let _ = send(balancer).await;
        sleep(pause).await;
    }
}

const TICK: Duration = Duration::from_millis(10);

#[tokio::test(start_paused = true)]
async fn turns_are_even() {
    let world = World::new(|_| Ok(fine()));
    let balancer = world.balancer(Discovery::list(["a", "b", "c"]), TURNS);
    send_many(&balancer, 30, TICK).await;
    assert_eq!(world.counts(), [("a".into(), 10), ("b".into(), 10), ("c".into(), 10)]);
    assert_eq!(balancer.counts().picks[PickReason::RoundRobin as usize], 30);
}

#[tokio::test(start_paused = true)]
async fn nobody_to_send_to_is_an_error_of_its_own() {
    let world = World::new(|_| Ok(fine()));
    let balancer = world.balancer(Discovery::list::<Endpoint>([]), TURNS);
    let error = send(&balancer).await.unwrap_err();
    assert!(error.is::<NoEndpoint>());
}

fn layered(balancer: &Balancer<Backend>) -> (Layer, Service<Balancer<Backend>>) {
    let layer = Layer::builder("world").seed(1).build();
    let service = layer.layer(balancer.clone());
    (layer, service)
}

/// Of three endpoints two refuse. Each retry goes to one that has not been asked, so every request
/// for which there is credit succeeds within three attempts.
#[tokio::test(start_paused = true)]
async fn a_retry_goes_elsewhere() {
    for balance in [TURNS, Balance::default()] {
        let bad = Arc::new(AtomicU32::new(0));
        let refusing = Arc::clone(&bad);
        let world = World::new(move |name| {
            let refuses = refusing.load(Ordering::Relaxed) == 1 && name != "b";
            Ok(answer(if refuses { 503 } else { 200 }, &[]))
        });
        let balancer = world.balancer(Discovery::list(["a", "b", "c"]), balance);
        let (layer, service) = layered(&balancer);
        for _ in 0..200 {
            service.clone().oneshot(request()).await.unwrap();
        }
        sleep(Duration::from_millis(300)).await;
        bad.store(1, Ordering::Relaxed);
        let before = world.count("b");
        for n in 1..=9 {
            let response = service.clone().oneshot(request()).await.unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(world.count("b"), before + n);
        }
        assert!(layer.counts().retries.retries <= 18);
    }
}

/// With one endpoint there is no other: the retry goes there again.
#[tokio::test(start_paused = true)]
async fn a_retry_goes_to_the_same_one_if_that_is_all() {
    let world = World::new(|_| Ok(fine()));
    let refusing = Arc::new(AtomicU32::new(0));
    let world = World {
        say: {
            let refusing = Arc::clone(&refusing);
            Arc::new(move |_| {
                let refuse = refusing
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
                Ok(answer(if refuse.is_ok() { 503 } else { 200 }, &[]))
            })
        },
        ..world
    };
    let balancer = world.balancer(Discovery::list(["a"]), TURNS);
    let (_, service) = layered(&balancer);
    for _ in 0..20 {
        service.clone().oneshot(request()).await.unwrap();
    }
    sleep(Duration::from_millis(300)).await;
    refusing.store(1, Ordering::Relaxed);
    let response = service.clone().oneshot(request()).await.unwrap();
    assert_eq!((response.status().as_u16(), world.count("a")), (200, 22));
}

#[tokio::test(start_paused = true)]
async fn a_lame_duck_is_out_at_once_and_comes_back() {
    let lame = Arc::new(AtomicU32::new(0));
    let says = Arc::clone(&lame);
    let world = World::new(move |name| {
        let hint = [("x-envoy-immediate-health-check-fail", "true")];
        let lame = name == "a" && says.load(Ordering::Relaxed) == 1;
        Ok(answer(200, if lame { &hint } else { &[] }))
    });
    let balancer = world.balancer(Discovery::list(["a", "b"]), TURNS);
    send_many(&balancer, 10, TICK).await;
    lame.store(1, Ordering::Relaxed);
    // It says so in one answer; not even the very next request goes there, before any tick.
    let before = world.count("a");
    for _ in 0..50 {
        send(&balancer).await.unwrap();
    }
    assert_eq!(world.count("a"), before + 1);
    send_many(&balancer, 100, TICK).await;
    assert_eq!(world.count("a"), before + 1);
    lame.store(0, Ordering::Relaxed);
    sleep(Duration::from_secs(30)).await;
    send_many(&balancer, 100, TICK).await;
    assert!(world.count("a") > before + 10, "{:?}", world.counts());
}

/// All of them say that they go: they still get requests, as they still serve.
#[tokio::test(start_paused = true)]
async fn lame_ducks_serve_if_there_is_nobody_else() {
    let hint = [("x-envoy-immediate-health-check-fail", "true")];
    let world = World::new(move |_| Ok(answer(200, &hint)));
    let balancer = world.balancer(Discovery::list(["a", "b"]), TURNS);
    send_many(&balancer, 20, TICK).await;
    let counts = world.counts();
    assert_eq!(counts.iter().map(|(_, n)| n).sum::<usize>(), 20);
    assert!(balancer.counts().picks[PickReason::AllLameDuck as usize] >= 15, "{counts:?}");
}

fn report(rps: f64, utilization: f64) -> Answer {
    let report = OrcaLoadReport {
        rps_fractional: rps,
        application_utilization: utilization,
        ..OrcaLoadReport::default()
    };
    let mut answer = answer(200, &[]);
    orca::write(answer.headers_mut(), &report, Format::Binary).unwrap();
    answer
}

/// Weights 100/0.25 and 100/0.75: three to one. The blackout is ten seconds.
#[tokio::test(start_paused = true)]
async fn reports_give_weights() {
    let world = World::new(|name| Ok(report(100.0, if name == "a" { 0.25 } else { 0.75 })));
    let balance = Balance::Weighted(WeightedConfig::default());
    let balancer = world.balancer(Discovery::list(["a", "b"]), balance);
    send_many(&balancer, 1_300, TICK).await;
    let before = (world.count("a"), world.count("b"));
    send_many(&balancer, 400, TICK).await;
    let (a, b) = (world.count("a") - before.0, world.count("b") - before.1);
    assert!((298..=302).contains(&a), "{a} {b}");
}

#[tokio::test(start_paused = true)]
async fn reports_without_sense_are_dropped_and_counted() {
    for text in [
        "TEXT cpu_utilization=NaN,rps_fractional=100",
        "TEXT cpu_utilization=-1",
        "JSON {\"cpuUtilization\":",
        "cpu_utilization=0.5",
    ] {
        let world = World::new(move |_| Ok(answer(200, &[("endpoint-load-metrics", text)])));
        let balance = Balance::Weighted(WeightedConfig::default());
        let balancer = world.balancer(Discovery::list(["a", "b"]), balance);
        send_many(&balancer, 2_000, TICK).await;
        let counts = balancer.counts();
        assert_eq!(counts.reports_dropped, 2_000, "{text}");
        assert_eq!(counts.picks[PickReason::TooFewWeights as usize], 2_000);
        assert_eq!(world.count("a"), 1_000);
    }
    // Finite, and absurd: the policy drops it, and says so. One report a tick is looked at.
    let world = World::new(|_| Ok(report(1e300, 0.5)));
    let balance = Balance::Weighted(WeightedConfig::default());
    let balancer = world.balancer(Discovery::list(["a"]), balance);
    send_many(&balancer, 100, Duration::from_millis(200)).await;
    assert!((99..=101).contains(&balancer.counts().reports_dropped), "{:?}", balancer.counts());
}

/// In gRPC reports and the word that a task shuts down come in trailers.
#[tokio::test(start_paused = true)]
async fn trailers_are_heard() {
    type Ask = http::Request<Full<Bytes>>;
    let seen: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let counted = Arc::clone(&seen);
    let make = move |endpoint: &Endpoint| {
        let (name, counted) = (endpoint.to_string(), Arc::clone(&counted));
        Ok::<_, BoxError>(tower::service_fn(move |_: Ask| {
            *counted.lock().unwrap().entry(name.clone()).or_default() += 1;
            let lame = name == "lame";
            let utilization = if name == "a" { 0.25 } else { 0.75 };
            let mut trailers = report(100.0, utilization).into_parts().0.headers;
            trailers.insert("grpc-status", if lame { "14" } else { "0" }.parse().unwrap());
            if lame {
                trailers.insert("x-tidegate-reason", "lame_duck".parse().unwrap());
            }
            let frames = [Frame::data(Bytes::from_static(b"x")), Frame::trailers(trailers)];
            let body = StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, BoxError>)));
            async move { Ok::<_, BoxError>(http::Response::new(body)) }
        }))
    };
    let balancer = Balancer::builder(Discovery::list(["a", "b", "lame"]), make)
        .balance(Balance::Weighted(WeightedConfig::default()))
        .lame_duck_wait(Duration::from_secs(1_000))
        .seed(3)
        .build()
        .unwrap();
    let ask = async |requests: usize| {
        for _ in 0..requests {
            let response = balancer.clone().oneshot(super::support::grpc()).await.unwrap();
            response.into_body().collect().await.unwrap();
            sleep(TICK).await;
        }
        let seen = seen.lock().unwrap();
        ["a", "b", "lame"].map(|name| seen.get(name).copied().unwrap_or(0))
    };
    let before = ask(1_300).await;
    let after = ask(400).await;
    assert_eq!((before[2], after[2]), (1, 1));
    // As of headers: three to one.
    assert!((298..=302).contains(&(after[0] - before[0])), "{before:?} {after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_name_server_that_fails_takes_nobody_away() {
    let answers: Arc<Mutex<Vec<io::Result<Vec<_>>>>> = Arc::default();
    let asked = Arc::clone(&answers);
    let resolve = move || -> BoxFuture<'static, io::Result<Vec<std::net::SocketAddr>>> {
        let mut answers = asked.lock().unwrap();
        let answer =
            if answers.is_empty() { Err(io::Error::other("away")) } else { answers.remove(0) };
        Box::pin(async { answer })
    };
    let address = |n: u8| std::net::SocketAddr::from(([10, 0, 0, n], 80));
    answers
        .lock()
        .unwrap()
        .extend([Err(io::Error::other("not yet")), Ok(vec![address(2), address(1), address(2)])]);
    let world = World::new(|_| Ok(fine()));
    let discovery = Discovery::resolver(resolve, Duration::from_secs(5));
    let balancer = world.balancer(discovery, TURNS);
    // The first request waits for the first answer.
    send(&balancer).await.unwrap();
    let addresses = |balancer: &Balancer<Backend>| {
        let mut all: Vec<_> = balancer.endpoints().iter().map(ToString::to_string).collect();
        all.sort();
        all
    };
    assert_eq!(addresses(&balancer), ["10.0.0.1:80", "10.0.0.2:80"]);
    assert_eq!(balancer.counts().discovery_failures, 1);
    // It is away for a minute, and once it knows nobody.
    answers.lock().unwrap().push(Ok(Vec::new()));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(addresses(&balancer), ["10.0.0.1:80", "10.0.0.2:80"]);
    assert!(balancer.counts().discovery_failures > 10);
    send(&balancer).await.unwrap();
    answers.lock().unwrap().push(Ok(vec![address(2), address(3)]));
    sleep(Duration::from_secs(2)).await;
    assert_eq!(addresses(&balancer), ["10.0.0.2:80", "10.0.0.3:80"]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_tells_who_comes_and_goes() {
    let (tell, mut hear) = mpsc::unbounded_channel();
    let changes = futures_util::stream::poll_fn(move |cx| hear.poll_recv(cx));
    let world = World::new(|_| Ok(fine()));
    let balancer = world.balancer(Discovery::stream(changes), TURNS);
    tell.send(Change::Set(vec!["a".into(), "b".into()])).unwrap();
    send_many(&balancer, 10, TICK).await;
    tell.send(Change::Remove("a".into())).unwrap();
    tokio::task::yield_now().await;
    sleep(TICK).await;
    let before = world.count("a");
    send_many(&balancer, 10, TICK).await;
    assert_eq!((before, world.count("a"), world.count("b")), (5, 5, 15));
    tell.send(Change::Add("c".into())).unwrap();
    sleep(TICK).await;
    tell.send(Change::LameDuck("b".into())).unwrap();
    sleep(TICK).await;
    send_many(&balancer, 10, TICK).await;
    assert_eq!((world.count("b"), world.count("c")), (15, 10));
    // Discovery said so, and only discovery takes it back.
    sleep(Duration::from_secs(100)).await;
    send_many(&balancer, 10, TICK).await;
    assert_eq!((world.count("b"), world.count("c")), (15, 20));
    tell.send(Change::Add("b".into())).unwrap();
    sleep(Duration::from_millis(200)).await;
    send_many(&balancer, 10, TICK).await;
    assert_eq!(world.count("b"), 20);
    drop(tell);
    sleep(TICK).await;
    assert_eq!(balancer.counts().endpoints, 2);
}

/// A newcomer ramps up from a tenth to a full share in thirty seconds: it gets about
/// (0.1 + 1) / 2 of a share in these.
#[tokio::test(start_paused = true)]
async fn a_newcomer_starts_slowly() {
    let (tell, mut hear) = mpsc::unbounded_channel();
    let changes = futures_util::stream::poll_fn(move |cx| hear.poll_recv(cx));
    let world = World::new(|_| Ok(fine()));
    let balance = Balance::RoundRobin(SlowStart::default());
    let balancer = world.balancer(Discovery::stream(changes), balance);
    tell.send(Change::Set(vec!["a".into(), "b".into()])).unwrap();
    send_many(&balancer, 1_100, TICK).await;
    assert_eq!(world.count("a"), 550);
    tell.send(Change::Add("c".into())).unwrap();
    send_many(&balancer, 3_000, TICK).await;
    let c = world.count("c");
    // The integral of s / (2 + s) for s from 0.1 to 1, over 30 s of 100 requests: 3000 x 0.207.
    assert!((560..=680).contains(&c), "{c}");
    let before = world.count("c");
    send_many(&balancer, 300, TICK).await;
    assert!((99..=101).contains(&(world.count("c") - before)));
}

#[tokio::test(start_paused = true)]
async fn a_client_connects_to_its_subset() {
    let names: Vec<String> = (0..12).map(|n| format!("task-{n:02}")).collect();
    for policy in [SubsetPolicy::Deterministic, SubsetPolicy::Rocksteadier] {
        let world = World::new(|_| Ok(fine()));
        let endpoints = Discovery::list(names.iter().map(String::as_str));
        let balancer = Balancer::builder(endpoints, world.make())
            .subset(Subset { policy, client: 5, size: 4 })
            .balance(TURNS)
            .build()
            .unwrap();
        send_many(&balancer, 40, TICK).await;
        let mut mine: Vec<_> =
            subset(policy, 5, 12, 4).into_iter().map(|n| (names[n as usize].clone(), 10)).collect();
        mine.sort();
        assert_eq!(world.counts(), mine);
    }
}

/// A connection that fails counts as an error: it does not look like an idle backend.
#[tokio::test(start_paused = true)]
async fn a_dead_endpoint_is_no_sinkhole() {
    let world = World::new(|name| {
        if name == "dead" {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
        }
        Ok(fine())
    });
    let balancer = world.balancer(
        Discovery::list(["a", "dead"]),
        Balance::LeastLoaded(LeastLoadedConfig::default()),
    );
    let (layer, service) = layered(&balancer);
    let mut served = 0;
    for n in 0..3_000 {
        let answer = service.clone().oneshot(request()).await;
        served += u32::from(n >= 100 && answer.is_ok());
        sleep(TICK).await;
    }
    // An error counts for five seconds, so it is tried about once in that time.
    assert!(world.count("dead") <= 12, "{:?}", world.counts());
    // And once there is credit, what failed there is sent elsewhere.
    assert_eq!(served, 2_900, "{:?}", layer.counts());
}

/// An endpoint that says nothing: the layer above it stops waiting, and that counts against it.
#[tokio::test(start_paused = true)]
async fn a_silent_endpoint_is_no_sinkhole() {
    type Ask = http::Request<Full<Bytes>>;
    let asked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked);
    let make = move |endpoint: &Endpoint| {
        let (silent, counted) = (endpoint.address() == "silent", Arc::clone(&counted));
        Ok::<_, BoxError>(tower::service_fn(move |_: Ask| {
            counted.fetch_add(u32::from(silent), Ordering::Relaxed);
            async move {
                if silent {
                    core::future::pending::<()>().await;
                }
                Ok::<_, BoxError>(fine())
            }
        }))
    };
    let balancer = Balancer::builder(Discovery::list(["a", "silent"]), make).seed(3);
    let layer = Layer::builder("world").attempt_timeout(Duration::from_millis(500)).seed(1).build();
    let service = layer.layer(balancer.build().unwrap());
    let began = tokio::time::Instant::now();
    while began.elapsed() < Duration::from_secs(50) {
        let _ = service.clone().oneshot(request()).await;
        sleep(TICK).await;
    }
    // An error counts for five seconds, so it is tried about once in that time.
    let asked = asked.load(Ordering::Relaxed);
    assert!((5..=20).contains(&asked), "{asked}");
}

/// A request is active until the last byte of its answer.
#[tokio::test(start_paused = true)]
async fn an_open_answer_is_a_busy_endpoint() {
    let world = World::new(|_| Ok(fine()));
    let balancer = world.balancer(Discovery::list(["a", "b"]), Balance::default());
    let open = balancer.clone().oneshot(request()).await.unwrap();
    let counts = world.counts();
    let busy = counts.iter().find(|(_, n)| *n == 1).unwrap().0.clone();
    send_many(&balancer, 10, TICK).await;
    assert_eq!(world.count(&busy), 1);
    drop(open);
    send_many(&balancer, 10, TICK).await;
    assert!(world.count(&busy) >= 5, "{:?}", world.counts());
}

struct Loads;

impl Prober<Backend> for Loads {
    fn probe(&self, at: &Endpoint, _: Backend) -> BoxFuture<'static, Option<ProbeAnswer>> {
        // All of them are busy but one.
        let rif = if at.address() == "c" { 1 } else { 50 };
        let latency = Duration::from_millis(u64::from(rif));
        Box::pin(async move { Some(ProbeAnswer { rif, latency }) })
    }
}

#[tokio::test(start_paused = true)]
async fn probes_find_the_idle_one() {
    let world = World::new(|_| Ok(fine()));
    let balancer = Balancer::builder(Discovery::list(["a", "b", "c", "d"]), world.make())
        .balance(Balance::Prequal(PrequalConfig::default()))
        .prober(Loads)
        .seed(5)
        .build()
        .unwrap();
    send_many(&balancer, 200, TICK).await;
    let counts = balancer.counts().picks;
    let probed =
        counts[PickReason::LowestLatency as usize] + counts[PickReason::FewestInFlight as usize];
    assert!(probed >= 190, "{counts:?}");
    assert!(world.count("c") >= 150, "{:?}", world.counts());
}

#[tokio::test(start_paused = true)]
async fn probes_go_over_http() {
    let report = |rif: f64| OrcaLoadReport {
        named_metrics: [(METRIC_RIF.to_owned(), rif)].into(),
        ..OrcaLoadReport::default()
    };
    let world = World::new(move |name| {
        let mut answer = answer(200, &[]);
        let rif = if name == "a" { 30.0 } else { 2.0 };
        orca::write(answer.headers_mut(), &report(rif), Format::Json).unwrap();
        Ok(answer)
    });
    let prober = HttpProber::<Full<Bytes>>::new("/readyz".parse().unwrap());
    let service = world.make()(&"b".into()).unwrap();
    let found = prober.probe(&"b".into(), service).await.unwrap();
    assert_eq!(found, ProbeAnswer { rif: 2, latency: Duration::ZERO });
    let silent = World::new(|_| Ok(fine())).make()(&"b".into()).unwrap();
    assert_eq!(prober.probe(&"b".into(), silent).await, None);
}

/// A request costs 10 ms of CPU, so a datacenter of one CPU takes a hundred a second. Of 200, the
/// nearer gets 100 and the further 100; without the further, a half is refused at the source.
#[tokio::test(start_paused = true)]
async fn what_does_not_fit_spills_over() {
    let (near, far) = (DatacenterId(1), DatacenterId(2));
    let cpus = |n| Resources::cpu(CostRate::from_cpus(n).unwrap());
    for (far_cpus, expected_far, expected_refused) in [(1.0, 750, 0), (0.0, 0, 750)] {
        let world = World::new(|_| Ok(fine()));
        let endpoints = [
            Endpoint::new("n1").in_datacenter(near),
            Endpoint::new("n2").in_datacenter(near),
            Endpoint::new("f1").in_datacenter(far),
        ];
        let spill = Spill::new(Cost::from_millis(10))
            .datacenter(Datacenter::new(near, cpus(1.0)), Duration::from_millis(1))
            .datacenter(Datacenter::new(far, cpus(far_cpus)), Duration::from_millis(50));
        let balancer = Balancer::builder(Discovery::list(endpoints), world.make())
            .balance(TURNS)
            .spill(spill)
            .seed(9)
            .build()
            .unwrap();
        let step = Duration::from_millis(5);
        send_many(&balancer, 1_500, step).await;
        let before = (world.count("n1") + world.count("n2"), world.count("f1"));
        let mut refused = 0;
        for _ in 0..1_500 {
            if let Err(error) = send(&balancer).await {
                let reason = Throttled::find(&*error).unwrap().reason();
                assert_eq!(reason, Reason::Overloaded);
                refused += 1;
            }
            sleep(step).await;
        }
        let near = world.count("n1") + world.count("n2") - before.0;
        let far = world.count("f1") - before.1;
        // Draws by chance: a standard deviation of 19.
        assert!(near.abs_diff(750) <= 75, "{near} {far} {refused}");
        assert!(far.abs_diff(expected_far) <= 75, "{near} {far} {refused}");
        assert!(u32::abs_diff(refused, expected_refused) <= 75, "{near} {far} {refused}");
    }
}

/// Half of the demand fits, and there is no endpoint: a request that finds nobody is picked for
/// again, and may find no room then. That is no reason to try once more.
#[tokio::test(start_paused = true)]
async fn no_room_is_no_room_at_the_second_pick_as_well() {
    let near = DatacenterId(1);
    let one = Resources::cpu(CostRate::from_cpus(1.0).unwrap());
    let spill = Spill::new(Cost::from_millis(10))
        .datacenter(Datacenter::new(near, one), Duration::from_millis(1));
    let (tell, mut hear) = mpsc::unbounded_channel();
    let changes = futures_util::stream::poll_fn(move |cx| hear.poll_recv(cx));
    let world = World::new(|_| Ok(fine()));
    let balancer = Balancer::builder(Discovery::stream(changes), world.make())
        .balance(TURNS)
        .spill(spill)
        .seed(9)
        .build()
        .unwrap();
    tell.send(Change::Set(vec![Endpoint::new("n1").in_datacenter(near)])).unwrap();
    send_many(&balancer, 1_500, Duration::from_millis(5)).await;
    tell.send(Change::Set(Vec::new())).unwrap();
    sleep(TICK).await;
    let before = balancer.counts().no_room;
    let (mut throttled, mut nobody) = (0, 0);
    for _ in 0..100 {
        let error = send(&balancer).await.unwrap_err();
        match Throttled::find(&*error) {
            Some(_) => throttled += 1,
            None => nobody += u32::from(error.is::<NoEndpoint>()),
        }
    }
    assert_eq!(
        (throttled, throttled + u64::from(nobody)),
        (balancer.counts().no_room - before, 100)
    );
    assert!(throttled > 0 && nobody > 0, "{throttled} {nobody}");
}

/// Tells of each endpoint what a test says.
struct Checks(watch::Receiver<bool>);

impl Reporter<Backend> for Checks {
    fn watch(&self, endpoint: &Endpoint, _: Backend, reports: Reports) -> BoxFuture<'static, ()> {
        let (mut well, checked) = (self.0.clone(), endpoint.address() == "a");
        Box::pin(async move {
            while checked && well.changed().await.is_ok() {
                reports.serves(*well.borrow_and_update());
            }
            std::future::pending::<()>().await;
        })
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_not_well_gets_nothing_until_it_is() {
    let world = World::new(|_| Ok(answer(200, &[])));
    let (well, checks) = watch::channel(true);
    let balancer = Balancer::builder(Discovery::list(["a", "b"]), world.make())
        .balance(Balance::RoundRobin(SlowStart::OFF))
        .reporter(Checks(checks))
        .build()
        .unwrap();
    let lame = || balancer.backends().iter().filter(|backend| backend.lame_duck).count();
    let ten = || async {
        let before = world.counts();
        for _ in 0..10 {
            balancer.clone().oneshot(request()).await.unwrap();
        }
        let after = world.counts();
        (
            after[0].1 - before.first().map_or(0, |a| a.1),
            after[1].1 - before.last().map_or(0, |b| b.1),
        )
    };
    assert_eq!(ten().await, (5, 5));
    // Longer than a lame duck is left alone: only checks take it back in.
    for (says, counts, out) in [(false, (0, 10), 1), (true, (5, 5), 0), (false, (0, 10), 1)] {
        well.send(says).unwrap();
        sleep(Duration::from_secs(1)).await;
        assert_eq!((ten().await, lame()), (counts, out), "{says}");
        sleep(Duration::from_secs(100)).await;
        assert_eq!((ten().await, lame()), (counts, out), "{says}, later");
    }
}
