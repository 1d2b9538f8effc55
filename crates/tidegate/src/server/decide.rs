//! From a request's headers to a decision.

use super::PeerIdentity;
use super::serving::Serving;
use super::trace;
use super::turns::WORTH_A_TURN;
use crate::context::Context;
use crate::events::{Answer, Sample, Sources};
use crate::metrics::fault_cells;
use crate::report::Wanted;
use crate::task::{Explain, Method, Task};
use bytes::Bytes;
use http::{Request, Response};
use tidegate_core::admission::{self, Decision, Permit};
use tidegate_core::decision::Rejection;
use tidegate_core::{Cost, Criticality, CustomerId, Timestamp};
use tidegate_wire::incoming::Incoming;
use tidegate_wire::protocol::Protocol;
use tidegate_wire::reject::{DecisionId, Reject};

/// What becomes of a request.
pub(super) enum Verdict<T> {
    Serve(T),
    Reject(Response<Bytes>),
}

/// A request that was admitted, and what is known about it.
pub(super) struct Admitted<'a> {
    pub(super) permit: Permit,
    pub(super) id: DecisionId,
    pub(super) criticality: Criticality,
    pub(super) customer: CustomerId,
    /// Whoever the connection says it is.
    pub(super) known: Option<&'a PeerIdentity>,
    pub(super) protocol: Protocol,
    pub(super) grpc_web: bool,
    pub(super) method: Method,
    /// What the method is called.
    pub(super) name: &'a str,
    pub(super) cost: Cost,
    pub(super) deadline: Option<Timestamp>,
    pub(super) attempt: u32,
    pub(super) wanted: Option<Wanted>,
    pub(super) now: Timestamp,
}

/// Decides about `request`, which counts as `default` if it does not say and its method has no
/// default of its own.
#[inline]
pub(super) fn decide<B>(
    task: &Task,
    request: &Request<B>,
    default: Option<Criticality>,
) -> Verdict<Serving> {
    judge(task, request, default, None, None, |admitted| {
        let Admitted { permit, criticality, customer, protocol, wanted, .. } = admitted;
        let mut context = Context::new(task.clone(), criticality, customer);
        context.peer = admitted.known.cloned();
        context.method = admitted.method.id;
        context.deadline = admitted.deadline;
        context.attempt = admitted.attempt;
        context.degrade = permit.degrade();
        context.id = admitted.id;
        context.began = admitted.now;
        context.unknown = admitted.method.is_new.then(|| admitted.name.into());
        context.grpc_web = admitted.grpc_web;
        context.bodiless = matches!(*request.method(), http::Method::HEAD | http::Method::CONNECT);
        let dear = admitted.cost >= WORTH_A_TURN;
        Serving::new(permit, context, protocol, wanted, request.version(), dear)
    })
}

/// Decides, and makes what serves those who are admitted. The method is called `name`, or what the
/// request says; it comes from `peer`, or from whom its extensions say.
#[inline]
pub(super) fn judge<'a, B, T>(
    task: &'a Task,
    request: &'a Request<B>,
    default: Option<Criticality>,
    name: Option<&'a str>,
    peer: Option<&'a PeerIdentity>,
    serve: impl FnOnce(Admitted<'a>) -> T,
) -> Verdict<T> {
    let (inner, headers) = (&task.inner, request.headers());
    let now = inner.clock.now();
    let mut incoming = Incoming::of(headers);
    let protocol = incoming.protocol;
    let known = peer.or_else(|| request.extensions().get::<PeerIdentity>());
    #[cfg(feature = "hyper")]
    let known =
        known.or_else(|| Some(request.extensions().get::<crate::serve::Peer>()?.known_to(task)));
    let peer = known.unwrap_or(&inner.stranger);
    let mut customer = peer.customer();
    if incoming.names_customer {
        let (name, faults) = peer.peer().delegated(headers);
        incoming.faults = incoming.faults.union(faults);
        customer = name.map_or(customer, |name| inner.customer(name));
    }
    let name = name.unwrap_or_else(|| method_name(request, protocol));
    let deadline = incoming.deadline.map(|left| now + left);
    let (decision, id, cost, method, criticality) = inner.with_lane(|lane| {
        let method = lane.method(name);
        let default = method.criticality.or(default).unwrap_or(inner.policy.criticality);
        let criticality = incoming.criticality_from(peer.peer(), default);
        if !incoming.faults.is_empty() {
            fault_cells(incoming.faults).for_each(|cell| lane.count(cell));
        }
        let cost = lane.estimate(customer, method.id, criticality);
        lane.pace(&inner.pacer, cost);
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
        Decision::Reject(refusal) => {
            let rejection = refusal.rejection();
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
            let wanted = inner.policy.reports.wanted(protocol, incoming.load_format);
            let attempt = incoming.attempt;
            Verdict::Serve(serve(Admitted {
                permit,
                id,
                criticality,
                customer,
                known,
                protocol,
                grpc_web: incoming.grpc_web,
                method,
                name,
                cost,
                deadline,
                attempt,
                wanted,
                now,
            }))
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
