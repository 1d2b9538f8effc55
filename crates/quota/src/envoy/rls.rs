//! RLS: Envoy asks about each request, and may tell afterwards what it has cost.
//!
//! | of a request | is |
//! |---|---|
//! | `domain` | the service |
//! | entry `customer` of a descriptor | whom to charge; without it, everyone else |
//! | entry `criticality` | one of the four names; without it, or with another, `CRITICAL` |
//! | `hits_addend` of the request | how many requests this question is about; 0 is one |
//! | `hits_addend` of a descriptor | the cost of an answer, in microseconds of CPU time |
//! | entry `by` with the value `rlqs` | RLQS has counted the request: its cost is not charged again |
//!
//! So a route asks by one `rate_limits` entry, and by a second one with `apply_on_stream_done` and
//! `hits_addend` it tells the cost. Answers to the second are thrown away by Envoy, and always OK.
//! Envoy sends `hits_addend` only from a `RateLimitPerRoute` (seen on 1.40); in the route's own
//! `rate_limits` it passes over it.
//!
//! Envoy waits 20 ms for an answer and lets the request pass without: a server that is gone, or a
//! domain that nobody has configured, refuses nobody.

use super::desk::Desk;
use crate::access::{Caller, Voice};
use crate::server::Inner;
use core::time::Duration;
use std::sync::Arc;
use tidegate_core::{Cost, Criticality};
use tidegate_wire::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_wire::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus,
};
use tidegate_wire::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use tidegate_wire::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::{Request, Response, Status};

/// Some descriptors of some entries each.
const MESSAGE_MAX: usize = 64 << 10;

/// Answers Envoys.
#[derive(Debug, Clone)]
pub(crate) struct Answers {
    inner: Arc<Inner>,
}

pub(crate) fn service(inner: &Arc<Inner>) -> RateLimitServiceServer<Answers> {
    let answers = Answers { inner: Arc::clone(inner) };
    RateLimitServiceServer::new(answers).max_decoding_message_size(MESSAGE_MAX)
}

#[tonic::async_trait]
impl RateLimitService for Answers {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let voice = self.inner.access.load().speak(&caller, &request.domain)?;
        for descriptor in &request.descriptors {
            voice.speaks_for(entry(descriptor, "customer"))?;
        }
        // What its own requests cost a customer does not decide: it would say next to nothing.
        let trusted = voice == Voice::Everyone;
        let costs = self.inner.owner(&request.domain)?.costs;
        let hits = u64::from(request.hits_addend.max(1));
        let mut statuses = Vec::with_capacity(request.descriptors.len());
        for descriptor in &request.descriptors {
            statuses.push(match descriptor.hits_addend {
                // Nobody decides anything, so there is no need for a desk.
                Some(micros) if entry(descriptor, "by") == "rlqs" => {
                    if trusted {
                        costs.told(entry(descriptor, "customer"), micros_of_cpu(micros));
                    }
                    DescriptorStatus { code: Code::Ok as i32, ..DescriptorStatus::default() }
                }
                _ => decide(&self.inner.desk(&request.domain)?, descriptor, hits, trusted),
            });
        }
        let over = statuses.iter().any(|status| status.code == Code::OverLimit as i32);
        let overall_code = if over { Code::OverLimit } else { Code::Ok } as i32;
        Ok(Response::new(RateLimitResponse {
            overall_code,
            statuses,
            ..RateLimitResponse::default()
        }))
    }
}

/// What the descriptor says about something, or nothing.
fn entry<'a>(descriptor: &'a RateLimitDescriptor, key: &str) -> &'a str {
    let found = descriptor.entries.iter().find(|entry| entry.key == key);
    found.map_or("", |entry| entry.value.as_str())
}

const fn micros_of_cpu(micros: u64) -> Cost {
    Cost::from_nanos(micros.saturating_mul(1_000))
}

fn decide(
    desk: &Desk,
    descriptor: &RateLimitDescriptor,
    hits: u64,
    trusted: bool,
) -> DescriptorStatus {
    let customer = entry(descriptor, "customer");
    let criticality = entry(descriptor, "criticality").parse().unwrap_or(Criticality::Critical);
    let answer = match descriptor.hits_addend {
        // What was charged is not given back: it was never charged in advance.
        Some(_) if descriptor.is_negative_hits => Ok(()),
        Some(micros) => {
            desk.used(customer, criticality, micros_of_cpu(micros), trusted);
            Ok(())
        }
        None => desk.ask(customer, criticality, hits),
    };
    let code = if answer.is_ok() { Code::Ok } else { Code::OverLimit } as i32;
    let until_reset = |span: Duration| prost_types::Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: span.subsec_nanos().try_into().unwrap_or(0),
    };
    DescriptorStatus {
        code,
        duration_until_reset: answer.err().map(until_reset),
        ..DescriptorStatus::default()
    }
}
