//! gRPC through a proxy beside the client.

use crate::support::{ANY, Running, outbound, service};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tidegate_core::throttle::ThrottleConfig;
use tidegate_proxy::OutboundConfig;
use tidegate_wire::proto::grpc::health::v1::health_check_response::ServingStatus;
use tidegate_wire::proto::grpc::health::v1::health_client::HealthClient;
use tidegate_wire::proto::grpc::health::v1::health_server::{Health, HealthServer};
use tidegate_wire::proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

/// Answers as it is told, and notes what came.
#[derive(Clone, Default)]
struct Backend {
    refuses: Option<Code>,
    came: Arc<Mutex<Vec<MetadataMap>>>,
}

#[tonic::async_trait]
impl Health for Backend {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if request.get_ref().service == "sick" {
            let status = ServingStatus::NotServing.into();
            return Ok(Response::new(HealthCheckResponse { status }));
        }
        self.came.lock().unwrap().push(request.metadata().clone());
        assert_eq!(request.into_inner().service, "stock");
        match self.refuses {
            Some(code) => Err(Status::new(code, "no")),
            None => {
                Ok(Response::new(HealthCheckResponse { status: ServingStatus::Serving.into() }))
            }
        }
    }

    type WatchStream = tokio_stream::Iter<std::vec::IntoIter<Result<HealthCheckResponse, Status>>>;

    async fn watch(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let answer = HealthCheckResponse { status: ServingStatus::Serving.into() };
        let mut answers = vec![Ok(answer); 50];
        answers.push(Err(Status::aborted("enough")));
        Ok(Response::new(tokio_stream::iter(answers)))
    }
}

impl Backend {
    async fn start(refuses: Option<Code>) -> (Self, SocketAddr) {
        let backend = Self { refuses, ..Self::default() };
        let listener = tokio::net::TcpListener::bind(ANY).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server =
            tonic::transport::Server::builder().add_service(HealthServer::new(backend.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        (backend, address)
    }

    fn count(&self) -> usize {
        self.came.lock().unwrap().len()
    }
}

async fn connect(config: OutboundConfig) -> (Running, HealthClient<Channel>) {
    let proxy = Running::start(config);
    let channel = Channel::from_shared(format!("http://{}", proxy.address())).unwrap();
    (proxy, HealthClient::new(channel.connect().await.unwrap()))
}

fn question() -> Request<HealthCheckRequest> {
    Request::new(HealthCheckRequest { service: "stock".to_owned() })
}

#[tokio::test]
async fn what_one_refuses_another_takes() {
    let (full, a) = Backend::start(Some(Code::Unavailable)).await;
    let (free, b) = Backend::start(None).await;
    let (proxy, mut client) = connect(outbound(service(&[a, b]))).await;
    let retried = || {
        let came = free.came.lock().unwrap();
        came.iter().any(|came| came.contains_key("grpc-previous-rpc-attempts"))
    };
    while !retried() {
        let mut question = question();
        question.set_timeout(std::time::Duration::from_secs(30));
        question.metadata_mut().insert("x-criticality", "SHEDDABLE_PLUS".parse().unwrap());
        if let Ok(answer) = client.check(question).await {
            assert_eq!(answer.into_inner().status(), ServingStatus::Serving);
        }
    }
    for came in free.came.lock().unwrap().iter().chain(full.came.lock().unwrap().iter()) {
        assert_eq!(came.get("baggage").unwrap(), "criticality=SHEDDABLE_PLUS");
        assert!(came.contains_key("grpc-timeout"), "{came:?}");
    }
    assert_eq!(proxy.get().task().gate().counts().inflight(), 0);
}

#[tokio::test]
async fn exhausted_means_dont_retry() {
    let (one, a) = Backend::start(Some(Code::ResourceExhausted)).await;
    let (two, b) = Backend::start(Some(Code::ResourceExhausted)).await;
    let (_proxy, mut client) = connect(outbound(service(&[a, b]))).await;
    for _ in 0..100 {
        let status = client.check(question()).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "no"));
    }
    assert_eq!(one.count() + two.count(), 100);
}

#[tokio::test]
async fn streams_pass_to_their_last_word() {
    let (_, address) = Backend::start(None).await;
    let (proxy, mut client) = connect(outbound(service(&[address]))).await;
    let mut stream = client.watch(question()).await.unwrap().into_inner();
    let mut count = 0;
    let status = loop {
        match stream.message().await {
            Ok(Some(_)) => count += 1,
            Ok(None) => panic!("it ends with a status"),
            Err(status) => break status,
        }
    };
    assert_eq!((count, status.code(), status.message()), (50, Code::Aborted, "enough"));
    let snapshot = proxy.get().task().snapshot();
    assert_eq!((snapshot.requests.completed(), snapshot.failed), (1, 0));
}

#[tokio::test]
async fn what_is_held_back_is_unavailable_and_says_why() {
    let (backend, address) = Backend::start(Some(Code::ResourceExhausted)).await;
    let mut service = service(&[address]);
    service.throttle = ThrottleConfig::default();
    let (_proxy, mut client) = connect(outbound(service)).await;
    let mut sent = 0;
    let status = loop {
        let status = client.check(question()).await.unwrap_err();
        if status.metadata().get("x-tidegate-reason").is_some() {
            break status;
        }
        sent += 1;
    };
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.metadata().get("x-tidegate-reason").unwrap(), "throttled");
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "-1");
    assert_eq!(backend.count(), sent);
}

#[tokio::test]
async fn nobody_at_home_is_unavailable() {
    let nobody = tokio::net::TcpListener::bind(ANY).await.unwrap().local_addr().unwrap();
    let (_proxy, mut client) = connect(outbound(service(&[nobody]))).await;
    let status = client.check(question()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.metadata().get("x-tidegate-reason").unwrap(), "upstream_unreachable");
}

#[tokio::test]
async fn health_is_asked_for_by_name() {
    use tidegate_proxy::outbound::{Check, HealthConfig, Voice};
    let (_, address) = Backend::start(None).await;
    for (name, well) in [("stock", true), ("sick", false)] {
        let (backend, address) =
            if well { Backend::start(None).await } else { (Backend::default(), address) };
        let mut service = service(&[address]);
        let mut health = HealthConfig::new(Check::Grpc(name.to_owned()));
        health.interval = std::time::Duration::from_millis(5);
        service.health = Some(health);
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let mut config = outbound(service);
        config.voice = Voice::new(move |line| _ = said.send(line.to_owned()));
        let (_proxy, mut client) = connect(config).await;
        // The only one there is gets calls whatever its health.
        client.check(question()).await.unwrap();
        if well {
            // One is the call; the others, which asked the same, are checks.
            while backend.count() < 5 {
                tokio::task::yield_now().await;
            }
            assert!(heard.try_recv().is_err());
        } else {
            assert!(heard.recv().await.unwrap().ends_with("fails its health checks"));
            client.check(question()).await.unwrap();
        }
    }
}
