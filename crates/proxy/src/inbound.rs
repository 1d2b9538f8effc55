//! The role beside a program: lets in what it can do.

use crate::exchange::{ProxyBody, forward};
use crate::pool::Pool;
use core::convert::Infallible;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use http::{Request, Response};
use std::sync::Arc;
use tidegate::Task;
use tidegate::serve::RequestBody;
use tidegate::server::Admission;
use tidegate_wire::protocol::Protocol;
use tower_service::Service;

/// Decides about each request of a connection, and hands it on.
#[derive(Debug, Clone)]
pub(crate) struct Inbound {
    task: Task,
    pool: Arc<Pool<RequestBody>>,
    answer_timeout: Option<Duration>,
}

impl Inbound {
    pub(crate) const fn new(
        task: Task,
        pool: Arc<Pool<RequestBody>>,
        answer_timeout: Option<Duration>,
    ) -> Self {
        Self { task, pool, answer_timeout }
    }
}

impl Service<Request<RequestBody>> for Inbound {
    type Response = Response<ProxyBody>;
    type Error = Infallible;
    type Future = Exchange;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Exchange {
        match self.task.admit(&request, Some(method_name(&request)), None) {
            Admission::Rejected(response) => {
                Exchange::Answered(Some(response.map(ProxyBody::ours)))
            }
            Admission::Admitted(ticket) => {
                let pool = Arc::clone(&self.pool);
                let forwarded = forward(pool, self.answer_timeout, request, ticket);
                Exchange::Forwarded(Box::pin(forwarded))
            }
        }
    }
}

/// From a request to the head of its answer. A refusal takes no memory of its own.
#[expect(clippy::large_enum_variant, reason = "to box an answer is what a refusal is to spare")]
pub(crate) enum Exchange {
    Answered(Option<Response<ProxyBody>>),
    Forwarded(Pin<Box<dyn Future<Output = Response<ProxyBody>> + Send>>),
}

impl Future for Exchange {
    type Output = Result<Response<ProxyBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Forwarded(forwarded) => forwarded.as_mut().poll(context).map(Ok),
            Self::Answered(response) => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                None => panic!("polled after it was ready"),
            },
        }
    }
}

/// What requests are told apart by: the path of a gRPC call, or the first part of any other.
fn method_name<B>(request: &Request<B>) -> &str {
    let path = request.uri().path();
    if Protocol::of(request.headers()) == Protocol::Grpc {
        return path;
    }
    let first = path.get(1..).and_then(|rest| rest.find('/')).map_or(path.len(), |end| end + 1);
    &path[..first]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_the_first_part_of_a_path() {
        for (path, name) in [
            ("/", "/"),
            ("/search", "/search"),
            ("/search/", "/search"),
            ("/users/7/orders", "/users"),
            ("//a", "/"),
        ] {
            let request = Request::builder().uri(path).body(()).unwrap();
            assert_eq!(method_name(&request), name, "{path}");
        }
        let call = Request::builder().uri("/a.B/C").header("content-type", "application/grpc");
        assert_eq!(method_name(&call.body(()).unwrap()), "/a.B/C");
    }
}
