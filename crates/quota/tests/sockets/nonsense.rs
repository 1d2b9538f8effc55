//! What peers that make no sense are told.

use crate::rig::{config, quota};
use bytes::{Buf as _, BufMut as _};
use std::time::SystemTime;
use tidegate::clock::Clock;
use tidegate_quota::{Election, Server};
use tidegate_wire::proto::tidegate::quota::v1::quota_client::QuotaClient;
use tidegate_wire::proto::tidegate::quota::v1::{
    Hello, Holding, ServerMessage, StatusRequest, TaskMessage, Usages,
};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

async fn client(url: String) -> QuotaClient<Channel> {
    QuotaClient::new(Endpoint::from_shared(url).unwrap().connect().await.unwrap())
}

fn hello(service: &str, task: &str) -> TaskMessage {
    let hello = Hello { service: service.into(), task: task.into(), ..Hello::default() };
    TaskMessage { hello: Some(hello), ..TaskMessage::default() }
}

fn report(number: u64, usages: Usages) -> TaskMessage {
    let report = Some(Usages { number, ..usages });
    TaskMessage { report, ..TaskMessage::default() }
}

/// Says all this, and listens until the end.
async fn say(
    client: &mut QuotaClient<Channel>,
    words: Vec<TaskMessage>,
) -> Result<Vec<ServerMessage>, Status> {
    // It does not close its side: the server has to.
    let words = futures_util::stream::iter(words);
    let words = futures_util::StreamExt::chain(words, futures_util::stream::pending());
    let mut heard = client.report(words).await?.into_inner();
    let mut messages = Vec::new();
    while let Some(message) = heard.message().await? {
        messages.push(message);
    }
    Ok(messages)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_nonsense_ends_its_stream_with_the_reason_and_nobody_elses() {
    let (server, served) = quota(1).await;
    let mut client = client(served.url()).await;
    let good = || hello("search", "t");
    let usages = |customers: &[u32], levels: &[u8], rates: &[u64]| Usages {
        customers: customers.to_vec(),
        levels: levels.to_vec(),
        rates: rates.to_vec(),
        ..Usages::default()
    };
    let nothing = Usages::default;
    let holds = vec![Holding { customer: 1, limits: vec![1, 2, 3] }];
    let holds = Usages { holds, ..Usages::default() };
    let seen = Hello {
        service: "search".into(),
        task: "t".into(),
        epoch_seen: u64::MAX,
        ..Hello::default()
    };
    let seen = TaskMessage { hello: Some(seen), ..TaskMessage::default() };
    let flood = (1..200).map(|n| report(n, nothing())).collect::<Vec<_>>();
    for (words, code, text) in [
        (vec![report(1, nothing())], Code::InvalidArgument, "needs hello"),
        (vec![hello("search", "")], Code::InvalidArgument, "name of a task"),
        (vec![hello("search", &"x".repeat(129))], Code::InvalidArgument, "1 to 128"),
        (vec![hello("no such", "t")], Code::InvalidArgument, "name of a service"),
        (vec![hello("mail", "t")], Code::NotFound, "there are: ads, search"),
        (vec![seen], Code::FailedPrecondition, "clock was set back"),
        (vec![good(), good()], Code::InvalidArgument, "first message only"),
        (
            vec![good(), report(1, usages(&[1, 1], &[3], &[5, 5]))],
            Code::InvalidArgument,
            "1 bytes for 2 customers",
        ),
        (
            vec![good(), report(1, usages(&[1], &[0x31], &[5, 5]))],
            Code::InvalidArgument,
            "2 rates, and `levels` has 3 bits",
        ),
        (
            vec![good(), report(1, usages(&[u32::MAX, 1], &[1, 1], &[5, 5]))],
            Code::InvalidArgument,
            "more than 32 bits",
        ),
        (vec![good(), report(1, holds)], Code::InvalidArgument, "customer 1 has 3 rates"),
        (
            vec![good(), report(2, nothing()), report(1, nothing())],
            Code::InvalidArgument,
            "have to rise",
        ),
        ([vec![good()], flood].concat(), Code::ResourceExhausted, "more than 16 messages"),
    ] {
        let status = say(&mut client, words).await.unwrap_err();
        assert_eq!(status.code(), code, "{text}: {status}");
        assert!(status.message().contains(text), "{text}: {status}");
    }
    // The same connection goes on, and somebody else's stream was never touched.
    let leaves = TaskMessage { leaves: true, ..TaskMessage::default() };
    let heard = say(&mut client, vec![hello("search", "u"), leaves]).await.unwrap();
    assert!(heard[0].welcome.as_ref().unwrap().joined);
    // In the next round at the latest.
    while server.status().await.services.iter().any(|service| service.tasks > 0) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_too_large_is_refused() {
    let (_server, served) = quota(1).await;
    let mut client = client(served.url()).await;
    let report = Some(Usages {
        number: 1,
        customers: vec![1; 100_000],
        levels: vec![1; 100_000],
        rates: vec![u64::MAX; 100_000],
        ..Usages::default()
    });
    let large = TaskMessage { report, ..TaskMessage::default() };
    let status = say(&mut client, vec![hello("search", "t"), large]).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_is_told_of_one_service_or_all() {
    let (_server, served) = quota(3).await;
    let mut client = client(served.url()).await;
    let mut ask = async |service: &str| {
        let answer = client.status(StatusRequest { service: service.into() }).await;
        answer.map(tonic::Response::into_inner)
    };
    let all = ask("").await.unwrap();
    assert_eq!((all.epoch, all.services.len(), all.refused.as_str()), (3, 2, ""));
    let one = ask("ads").await.unwrap();
    assert_eq!(one.services.len(), 1);
    assert_eq!(ask("mail").await.unwrap_err().code(), Code::NotFound);
}

/// Sends bytes as they are.
#[derive(Debug, Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_messages_are_refused_by_every_method() {
    let text = crate::rig::CONFIG.replace("default: 1\n", "default: 1\n      hit: 1ms\n");
    let text = format!(
        "{text}  doorman:\n    resources:\n    - identifier_glob: '*'\n      capacity: 10\n      \
         algorithm: {{ kind: FAIR_SHARE, lease_length: 60, refresh_interval: 1 }}\n"
    );
    let election = Election::alone(None, SystemTime::now()).unwrap();
    let server = Server::start(&config(&text), election, Clock::monotonic()).unwrap();
    let served = crate::rig::Served::at("127.0.0.1:0", server.router()).await;
    let channel = Endpoint::from_shared(served.url()).unwrap().connect().await.unwrap();
    let nonsense: [&[u8]; 6] = [
        // No field has the number 0; a length beyond the end; a varint without an end; a group that
        // nobody closes; text; a field that has another type.
        &[0x00, 0x01],
        &[0x0a, 0xff, 0xff, 0xff, 0x7f, 0x01],
        &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[0x0b, 0x0b, 0x0b],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0x0d, 0xff, 0xff, 0xff, 0x7f],
    ];
    for path in [
        "/tidegate.quota.v1.Quota/Report",
        "/tidegate.quota.v1.Quota/Status",
        "/doorman.Capacity/GetCapacity",
        "/doorman.Capacity/GetServerCapacity",
        "/doorman.Capacity/ReleaseCapacity",
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas",
    ] {
        for bytes in nonsense {
            let mut client = tonic::client::Grpc::new(channel.clone());
            client.ready().await.unwrap();
            let words = futures_util::stream::iter([bytes.to_vec()]);
            let path = http::uri::PathAndQuery::from_static(path);
            let answer = client.streaming(tonic::Request::new(words), path.clone(), Raw).await;
            let told = match answer {
                Ok(answer) => answer.into_inner().message().await,
                Err(status) => Err(status),
            };
            assert!(!matches!(told, Ok(Some(_))), "{path} {bytes:?}: {told:?}");
        }
    }
    // And it goes on.
    let mut client = QuotaClient::new(channel);
    let leaves = TaskMessage { leaves: true, ..TaskMessage::default() };
    let heard = say(&mut client, vec![hello("search", "u"), leaves]).await.unwrap();
    assert!(heard[0].welcome.is_some());
}
