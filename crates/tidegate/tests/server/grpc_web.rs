//! gRPC for browsers, whose trailers are the last part of the body.

use crate::support::{Client, VERSIONS, idle, serve};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use std::convert::Infallible;
use tidegate::Task;

/// A message, and trailers with this status.
fn whole(status: &str) -> Vec<u8> {
    let trailers = format!("grpc-status:{status}\r\ngrpc-message:so\r\n");
    let mut bytes = b"\0\0\0\0\x05hello\x80\0\0\0".to_vec();
    bytes.push(u8::try_from(trailers.len()).unwrap());
    bytes.extend(trailers.bytes());
    bytes
}

/// In pieces of three bytes, which are no piece of anything.
fn body(bytes: &[u8]) -> Body {
    let pieces: Vec<_> = bytes.chunks(3).map(Bytes::copy_from_slice).collect();
    Body::from_stream(futures_util::stream::iter(pieces.into_iter().map(Ok::<_, Infallible>)))
}

#[tokio::test]
async fn the_status_in_the_body_tells_how_a_call_ended() {
    const BINARY: &str = "application/grpc-web+proto";
    const TEXT: &str = "application/grpc-web-text";
    let cut = || whole("0")[..12].to_vec();
    for (content_type, bytes, good, failed) in [
        (BINARY, whole("0"), 1, 0),
        (BINARY, whole("13"), 0, 1),
        // What the request is to blame for is an answer.
        (BINARY, whole("5"), 1, 0),
        (BINARY, cut(), 0, 0),
        (TEXT, STANDARD.encode(whole("0")).into_bytes(), 1, 0),
        (TEXT, STANDARD.encode(whole("14")).into_bytes(), 0, 1),
        (TEXT, STANDARD.encode(cut()).into_bytes(), 0, 0),
    ] {
        for version in VERSIONS {
            let task = Task::builder("test").build().unwrap();
            let answer = bytes.clone();
            let call =
                get(move || async move { ([("content-type", content_type)], body(&answer)) });
            let router = Router::new().route("/a.B/C", call).layer(task.layer());
            let mut client = Client::connect(serve(router).await, version).await;
            let request = http::Request::get("http://localhost/a.B/C").header("host", "localhost");
            let answer = client.send(request.header("content-type", content_type)).await;
            assert_eq!(answer.status(), 200);
            answer.into_body().collect().await.unwrap();
            idle(&task).await;
            let snapshot = task.snapshot();
            let found = (snapshot.good.iter().sum::<u64>(), snapshot.failed);
            assert_eq!(found, (good, failed), "{content_type} {version:?} {bytes:?}");
        }
    }
}
