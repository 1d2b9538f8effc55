//! From a request's headers to a decision.

use super::PeerIdentity;
use super::serving::Serving;
use super::trace;
use super::turns::WORTH_A_TURN;
use crate::context::Context;
use crate::events::{Answer, Sample, Sources};
use crate::metrics::fault_cells;
use crate::task::{Explain, Task};
use bytes::Bytes;
use http::{Method, Request, Response};
use tidegate_core::admission::{self, Decision};
use tidegate_core::decision::Rejection;
use tidegate_core::{Criticality, CustomerId};
use tidegate_wire::incoming::Incoming;
use tidegate_wire::protocol::Protocol;
use tidegate_wire::reject::{DecisionId, Reject};

/// What becomes of a request.
pub(super) enum Verdict {
    Serve(Serving),
    Reject(Response<Bytes>),
}

/// Decides about `request`, which counts as `default` if it does not say and its method has no
/// default of its own.
#[inline]
pub(super) fn decide<B>(
    task: &Task,
    request: &Request<B>,
    default: Option<Criticality>,
) -> Verdict {
    let (inner, headers) = (&task.inner, request.headers());
    let now = inner.clock.now();
    let mut incoming = Incoming::of(headers);
    let protocol = incoming.protocol;
    let known = request.extensions().get::<PeerIdentity>();
    #[cfg(feature = "hyper")]
    let known = known.or_else(|| {
        let peer = request.extensions().get::<crate::serve::Peer>()?;
        peer.remember(|| task.peer(peer.identity()))
    });
    let peer = known.unwrap_or(&inner.stranger);
    let mut customer = peer.customer();
    if incoming.names_customer {
        let (name, faults) = peer.peer().delegated(headers);
        incoming.faults = incoming.faults.union(faults);
        customer = name.map_or(customer, |name| inner.customer(name));
    }
    let name = method_name(request, protocol);
    let deadline = incoming.deadline.map(|left| now + left);
    let (decision, id, cost, method, criticality) = inner.with_lane(|lane| {
        let method = lane.method(name);
        let default = method.criticality.or(default).unwrap_or(inner.policy.criticality);
        let criticality = incoming.criticality_from(peer.peer(), default);
        for cell in fault_cells(incoming.faults) {
            lane.count(cell);
        }
        let cost = lane.estimate(customer, method.id);
        let mut about = admission::Request::new(criticality, cost)
            .customer(customer)
            .attempt(u8::try_from(incoming.attempt).unwrap_or(u8::MAX));
        if let Some(deadline) = deadline {
            about = about.deadline(deadline);
        }
        (lane.admit(&about, now), lane.decision(), cost, method, criticality)
    });
    let sample = |reason, cause, answer| Sample {
        at: now,
        id,
        reason,
        criticality,
        customer,
        sources: Sources::of(headers, protocol, peer, method.criticality, default),
        attempt: incoming.attempt,
        cause,
        answer,
    };
    match decision {
        Decision::Reject(rejection) => {
            trace::rejected(&rejection, id);
            let why = Why { task, peer, customer };
            let response = why.reject(&rejection, id, protocol, request.version());
            let Rejection { reason, advice, cause, .. } = rejection;
            if inner.events.wants(reason, criticality, now) {
                let answer = Answer::new(response.status(), response.headers(), advice);
                inner.events.refused(&sample(reason, cause, Some(answer)));
            }
            Verdict::Reject(response)
        }
        Decision::Admit(permit) => {
            if let Some(reason) = permit.would_reject()
                && inner.events.wants(reason, criticality, now)
            {
                inner.events.refused(&sample(reason, None, None));
            }
            let mut context = Context::new(task.clone(), criticality, customer);
            context.peer = known.cloned();
            context.method = method.id;
            context.deadline = deadline;
            context.attempt = incoming.attempt;
            context.degrade = permit.degrade();
            let mut serving = Serving::new(permit, context, id, protocol);
            serving.dear = cost >= WORTH_A_TURN;
            serving.version = request.version();
            serving.bodiless = matches!(*request.method(), Method::HEAD | Method::CONNECT);
            serving.began = now;
            serving.wanted = inner.policy.reports.wanted(protocol, incoming.load_format);
            serving.unknown = method.is_new.then(|| name.into());
            Verdict::Serve(serving)
        }
    }
}

/// Who is told why.
pub(super) struct Why<'a> {
    pub(super) task: &'a Task,
    pub(super) peer: &'a PeerIdentity,
    pub(super) customer: CustomerId,
}

impl Why<'_> {
    pub(super) fn reject(
        &self,
        rejection: &Rejection,
        id: DecisionId,
        protocol: Protocol,
        version: http::Version,
    ) -> Response<Bytes> {
        let inner = &self.task.inner;
        let reject = Reject::new(rejection, id);
        let trusted = match inner.policy.explain {
            Explain::Nobody => false,
            Explain::Delegators => self.peer.peer().is_delegator(),
            Explain::Everyone => true,
        };
        if !trusted {
            return reject.respond(protocol, version);
        }
        let name = inner.customer_name(self.customer);
        reject.trusted(name.as_deref()).respond(protocol, version)
    }
}

/// What the cost model tells requests apart by.
#[inline]
fn method_name<B>(request: &Request<B>, protocol: Protocol) -> &str {
    if protocol == Protocol::Grpc {
        return request.uri().path();
    }
    #[cfg(feature = "axum")]
    if let Some(route) = request.extensions().get::<axum::extract::MatchedPath>() {
        return route.as_str();
    }
    request.method().as_str()
}
