//! Workers by the thousand before a few connections.

use crate::support::{ANY, Running, client, read_answer, service, text};
use bytes::Bytes;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use core::time::Duration;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Arc, Mutex};
use tidegate_proxy::outbound::QueueConfig;
use tidegate_proxy::{OutboundConfig, Role, ServiceConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// A backend that counts, and answers what its test lets it answer.
#[derive(Clone)]
struct Backend {
    address: SocketAddr,
    /// Connections that were made, and requests that came, in their order.
    connections: Arc<AtomicUsize>,
    came: Arc<Mutex<Vec<(String, HeaderMap)>>>,
    /// Batch requests that are in it, and the most that ever were.
    inside: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    /// One is taken for each batch request that is answered.
    go: Arc<Semaphore>,
    /// How many it refuses first.
    refuses: Arc<AtomicUsize>,
}

impl Backend {
    async fn new() -> Self {
        let listener = TcpListener::bind(ANY).await.unwrap();
        let backend = Self {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            came: Arc::default(),
            inside: Arc::default(),
            most: Arc::default(),
            go: Arc::new(Semaphore::new(0)),
            refuses: Arc::default(),
        };
        let serving = backend.clone();
        tokio::spawn(async move {
            while let Ok((io, _)) = listener.accept().await {
                serving.connections.fetch_add(1, SeqCst);
                let serving = serving.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let serving = serving.clone();
                        async move { Ok::<_, Infallible>(serving.serve(request).await) }
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(io), service).await;
                });
            }
        });
        backend
    }

    async fn serve(&self, request: Request<hyper::body::Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        if head.uri.path() == "/interactive" {
            return Response::new(Full::from("at once"));
        }
        let path = head.uri.path().to_owned();
        self.came.lock().unwrap().push((path.clone(), head.headers));
        let inside = self.inside.fetch_add(1, SeqCst) + 1;
        self.most.fetch_max(inside, SeqCst);
        self.go.acquire().await.unwrap().forget();
        self.inside.fetch_sub(1, SeqCst);
        let refuse = self.refuses.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        let status = if refuse.is_ok() { 503 } else { 200 };
        let answer = format!("{path} {}", String::from_utf8_lossy(&body));
        Response::builder().status(status).body(Full::from(answer)).unwrap()
    }

    fn paths(&self) -> Vec<String> {
        self.came.lock().unwrap().iter().map(|(path, _)| path.clone()).collect()
    }

    async fn has(&self, count: usize) {
        while self.came.lock().unwrap().len() < count {
            tokio::task::yield_now().await;
        }
    }
}

/// A queue before these, of one connection each.
fn queue(endpoints: &[SocketAddr], change: impl FnOnce(&mut QueueConfig)) -> ServiceConfig {
    let mut service = service(endpoints);
    let mut queue = QueueConfig::default();
    queue.connections_max = NonZeroUsize::MIN;
    change(&mut queue);
    service.queue = Some(queue);
    service
}

fn batch(service: ServiceConfig) -> Role {
    let mut config = OutboundConfig::batch(vec![service]);
    config.workers = NonZeroUsize::new(2);
    Role::Batch(Box::new(config))
}

fn request(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: shop\r\n{headers}\r\n")
}

async fn send(proxy: &Running, path: &str, headers: &str) -> TcpStream {
    let mut io = TcpStream::connect(proxy.address()).await.unwrap();
    io.write_all(request(path, headers).as_bytes()).await.unwrap();
    io
}

/// Waits until so many are queued, as the proxy itself says.
async fn queued(proxy: &Running, count: f64) {
    while metric(proxy, "tidegate_batch_queued_requests").await != count {
        tokio::task::yield_now().await;
    }
}

async fn metric(proxy: &Running, name: &str) -> f64 {
    let page = proxy.get().page().unwrap().address();
    let mut client = client(page).await;
    let asked = Request::get("/metrics").header("host", page.to_string());
    let answer = client.send_request(asked.body(Full::default()).unwrap()).await.unwrap();
    let all = text(answer).await;
    let line = all.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{all}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn shown(role: Role) -> Role {
    let Role::Batch(mut config) = role else { panic!("{role:?}") };
    config.admin = Some(ANY.parse().unwrap());
    Role::Batch(config)
}

#[tokio::test]
async fn work_goes_on_by_criticality_then_deadline() {
    let backend = Backend::new().await;
    let proxy = Running::start(shown(batch(queue(&[backend.address], |_| {}))));
    // The first goes at once, and all others wait until it has come back.
    let mut first = send(&proxy, "/first", "").await;
    backend.has(1).await;
    let mut waiting = Vec::new();
    for (path, headers) in [
        ("/plain", ""),
        ("/late", "x-envoy-expected-rq-timeout-ms: 900000\r\n"),
        ("/soon", "x-envoy-expected-rq-timeout-ms: 600000\r\n"),
        // No more than it may be.
        ("/claims", "x-criticality: CRITICAL_PLUS\r\n"),
        ("/plus", "x-criticality: SHEDDABLE_PLUS\r\nx-envoy-expected-rq-timeout-ms: 900000\r\n"),
    ] {
        waiting.push(send(&proxy, path, headers).await);
        queued(&proxy, waiting.len() as f64).await;
    }
    backend.go.add_permits(6);
    assert!(read_answer(&mut first).await.ends_with("/first "));
    for io in &mut waiting {
        assert!(read_answer(io).await.starts_with("HTTP/1.1 200 "));
    }
    let expected = ["/first", "/plus", "/claims", "/soon", "/late", "/plain"];
    assert_eq!(backend.paths(), expected);
    assert_eq!(backend.connections.load(SeqCst), 1);
    assert_eq!(backend.most.load(SeqCst), 1);
    let came = backend.came.lock().unwrap().clone();
    let level = |n: usize| came[n].1["x-criticality"].to_str().unwrap().to_owned();
    assert_eq!(
        (level(0), level(1), level(2)),
        ("SHEDDABLE".into(), "SHEDDABLE_PLUS".into(), "SHEDDABLE_PLUS".into())
    );
    assert_eq!(came[2].1["baggage"], "criticality=SHEDDABLE_PLUS");
}

#[tokio::test]
async fn a_full_queue_says_so_at_once_and_to_the_least_critical() {
    let backend = Backend::new().await;
    let queue = queue(&[backend.address], |queue| queue.batch.queue_max = 2);
    let proxy = Running::start(shown(batch(queue)));
    let _first = send(&proxy, "/first", "").await;
    backend.has(1).await;
    let mut old = send(&proxy, "/old", "").await;
    queued(&proxy, 1.0).await;
    let mut new = send(&proxy, "/new", "").await;
    queued(&proxy, 2.0).await;
    let mut refused = send(&proxy, "/refused", "").await;
    let answer = read_answer(&mut refused).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("x-tidegate-reason: queue_full"), "{answer}");
    assert!(answer.contains("retry-after: "), "{answer}");
    // One that matters more takes the place of the newest that does not.
    let mut better = send(&proxy, "/better", "x-criticality: SHEDDABLE_PLUS\r\n").await;
    let answer = read_answer(&mut new).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    backend.go.add_permits(3);
    for io in [&mut old, &mut better] {
        assert!(read_answer(io).await.starts_with("HTTP/1.1 200 "));
    }
    assert_eq!(backend.paths(), ["/first", "/better", "/old"]);
    // The connection that was refused is as good as new.
    refused.write_all(request("/again", "").as_bytes()).await.unwrap();
    backend.go.add_permits(1);
    assert!(read_answer(&mut refused).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn who_waits_in_vain_is_never_sent() {
    let backend = Backend::new().await;
    let proxy = Running::start(shown(batch(queue(&[backend.address], |_| {}))));
    let mut first = send(&proxy, "/first", "").await;
    backend.has(1).await;
    let mut late = send(&proxy, "/late", "x-envoy-expected-rq-timeout-ms: 300\r\n").await;
    let answer = read_answer(&mut late).await;
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("x-tidegate-reason: deadline_passed"), "{answer}");
    let left = send(&proxy, "/left", "").await;
    queued(&proxy, 1.0).await;
    drop(left);
    queued(&proxy, 0.0).await;
    let mut last = send(&proxy, "/last", "").await;
    queued(&proxy, 1.0).await;
    backend.go.add_permits(2);
    assert!(read_answer(&mut first).await.starts_with("HTTP/1.1 200 "));
    assert!(read_answer(&mut last).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(backend.paths(), ["/first", "/last"]);
}

/// What was sent may be refused and wait again, and is kept for that: it counts for as long.
#[tokio::test]
async fn what_may_have_to_wait_again_keeps_its_room() {
    let backend = Backend::new().await;
    // Room for one of them, and not for two.
    let one = |queue: &mut QueueConfig| queue.bytes_max = 2_000;
    let proxy = Running::start(shown(batch(queue(&[backend.address], one))));
    let mut first = send(&proxy, "/first", "").await;
    backend.has(1).await;
    assert_eq!(metric(&proxy, "tidegate_batch_queued_requests").await, 0.0);
    assert!(metric(&proxy, "tidegate_batch_queued_bytes").await > 1_000.0);
    let mut second = send(&proxy, "/second", "").await;
    let answer = read_answer(&mut second).await;
    assert!(answer.contains("x-tidegate-reason: queue_full"), "{answer}");
    backend.go.add_permits(1);
    assert!(read_answer(&mut first).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(metric(&proxy, "tidegate_batch_queued_bytes").await, 0.0);
    second.write_all(request("/again", "").as_bytes()).await.unwrap();
    backend.go.add_permits(1);
    assert!(read_answer(&mut second).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn what_backends_refuse_waits_again() {
    let backend = Backend::new().await;
    backend.refuses.store(2, SeqCst);
    backend.go.add_permits(100);
    let fast = |queue: &mut QueueConfig| {
        queue.batch.pace.probe_interval = Duration::from_millis(1);
    };
    let proxy = Running::start(batch(queue(&[backend.address], fast)));
    let mut io = TcpStream::connect(proxy.address()).await.unwrap();
    io.write_all(b"POST /work HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody").await.unwrap();
    let answer = read_answer(&mut io).await;
    assert!(answer.ends_with("/work body"), "{answer}");
    let came = backend.came.lock().unwrap().clone();
    let attempts: Vec<&str> = came
        .iter()
        .map(|(_, headers)| headers["x-envoy-attempt-count"].to_str().unwrap())
        .collect();
    assert_eq!(attempts, ["1", "2", "3"]);
    // Three times and no more; then it is the worker's to try.
    backend.refuses.store(5, SeqCst);
    io.write_all(request("/more", "").as_bytes()).await.unwrap();
    let answer = read_answer(&mut io).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert_eq!(backend.paths().len(), 6);
    // A long body is sent once, and arrives whole.
    backend.refuses.store(0, SeqCst);
    let body = "x".repeat(200_000);
    let long =
        format!("POST /long HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let (mut reads, mut writes) = io.split();
    let (_, answer) = tokio::join!(writes.write_all(long.as_bytes()), async {
        let mut answer = vec![0; body.len() + 6];
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(reads.read_u8().await.unwrap());
        }
        reads.read_exact(&mut answer).await.unwrap();
        answer
    });
    assert_eq!(answer, format!("/long {body}").into_bytes());
}

#[tokio::test]
async fn nothing_is_lost_at_the_end() {
    let backend = Backend::new().await;
    let Role::Batch(mut config) = shown(batch(queue(&[backend.address], |_| {}))) else {
        panic!("another role")
    };
    // Half of it is what those have who still wait.
    config.life.drain_delay = Duration::ZERO;
    config.life.drain_max = Duration::from_secs(2);
    let mut proxy = Running::start(Role::Batch(config));
    let mut all = vec![send(&proxy, "/0", "").await];
    backend.has(1).await;
    for n in 1..=5 {
        all.push(send(&proxy, &format!("/{n}"), "").await);
        queued(&proxy, f64::from(n)).await;
    }
    proxy.get_mut().life().stop();
    // Two of them come to their turn while it drains; the rest has an answer all the same.
    backend.go.add_permits(2);
    backend.has(3).await;
    let mut statuses = Vec::new();
    for (n, io) in all.iter_mut().enumerate() {
        if n == 2 {
            continue;
        }
        let answer = read_answer(io).await;
        statuses.push(answer[9..12].to_owned());
    }
    assert_eq!(statuses, ["200", "200", "503", "503", "503"]);
    backend.go.add_permits(1);
    assert!(read_answer(&mut all[2]).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(backend.paths(), ["/0", "/1", "/2"]);
}

/// As many workers as the descriptors allow: each takes one here and one in the proxy.
#[tokio::test]
async fn thousands_start_at_once_and_backends_see_a_few_connections() {
    let limit = rlimit();
    let workers = 4_000.min(limit.saturating_sub(200) / 2);
    println!("{workers} workers");
    let backends = [Backend::new().await, Backend::new().await];
    for backend in &backends {
        backend.go.add_permits(1_000_000);
    }
    let addresses: Vec<SocketAddr> = backends.iter().map(|backend| backend.address).collect();
    let mut config = OutboundConfig::batch(vec![queue(&addresses, |queue| {
        queue.connections_max = NonZeroUsize::new(4).unwrap();
        queue.attempts_max = NonZeroU32::MIN;
    })]);
    config.workers = NonZeroUsize::new(2);
    config.connections.accepts_per_second = u32::MAX;
    config.connections.burst = u32::MAX;
    let proxy = Running::start(Role::Batch(Box::new(config)));
    let mut all = Vec::with_capacity(workers);
    for _ in 0..workers {
        all.push(TcpStream::connect(proxy.address()).await.unwrap());
    }
    // Interactive callers go to the backends themselves, beside it.
    let mut interactive = Vec::new();
    for address in &addresses {
        interactive.push(client(*address).await);
    }
    let done = Arc::new(AtomicUsize::new(0));
    for (n, io) in all.into_iter().enumerate() {
        let done = Arc::clone(&done);
        tokio::spawn(async move {
            let mut io = io;
            io.write_all(request(&format!("/{n}"), "").as_bytes()).await.unwrap();
            let answer = read_answer(&mut io).await;
            assert!(answer.ends_with(&format!("/{n} ")), "{answer}");
            done.fetch_add(1, SeqCst);
        });
    }
    let mut served = 0;
    while done.load(SeqCst) < workers {
        for caller in &mut interactive {
            caller.ready().await.unwrap();
            let asked = Request::get("/interactive").header("host", "x").body(Full::default());
            let answer = caller.send_request(asked.unwrap()).await.unwrap();
            assert_eq!(text(answer).await, "at once");
            served += 1;
        }
    }
    assert!(served > 0);
    let came: usize = backends.iter().map(|backend| backend.paths().len()).sum();
    assert_eq!(came, workers, "each came once");
    for backend in &backends {
        let most = backend.most.load(SeqCst);
        assert!((1..=4).contains(&most), "{most} at once");
        // Idle ones are closed after some seconds, and may be made again.
        let connections = backend.connections.load(SeqCst);
        assert!(connections <= 1 + 2 * 4, "{connections} connections");
    }
}

fn rlimit() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().nth(3).unwrap().parse().unwrap_or(100_000)
}

/// Many more than may come at once, by a file that says nothing but how fast.
#[tokio::test]
async fn a_crowd_waits_for_its_turn_and_nobody_is_turned_away() {
    const CROWD: usize = 200;
    let backend = Backend::new().await;
    let service = format!("{{ name: a, listen: '{ANY}', endpoints: ['{}'] }}", backend.address);
    let parse = |rest: &str| {
        let text = format!("role: batch\nworkers: 1\n{rest}\nservices: [{service}]\n");
        Role::parse("batch.yaml", &text).unwrap()
    };
    let Role::Batch(plain) = parse("") else { panic!("another role") };
    let unknown = plain.connections.room[plain.connections.unknown.index()];
    assert!(unknown.share_of(plain.connections.open_max) > 10_000, "ten thousand workers fit");
    let proxy = Running::start(parse("connections: { accepts_per_second: 500, burst: 10 }"));
    backend.go.add_permits(CROWD);
    let crowd = (0..CROWD).map(|_| {
        let address = proxy.address();
        tokio::spawn(async move {
            let mut client = client(address).await;
            let request = Request::get("/work").header("host", "x").body(Full::<Bytes>::default());
            client.send_request(request.unwrap()).await.unwrap().status()
        })
    });
    for worker in crowd.collect::<Vec<_>>() {
        assert_eq!(worker.await.unwrap(), 200);
    }
}
