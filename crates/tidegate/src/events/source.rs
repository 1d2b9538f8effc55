//! Where criticality and customer of a request came from.
//!
//! Worked out anew for the few refusals that are kept, so that no other request pays for it.

use crate::server::PeerIdentity;
use http::{HeaderMap, HeaderName};
use tidegate_core::Criticality;
use tidegate_wire::headers::{BAGGAGE, CRITICALITY, X_CRITICALITY, X_REQUEST_CRITICALITY};
use tidegate_wire::incoming::Incoming;
use tidegate_wire::protocol::Protocol;

/// What said how much a request matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CriticalityFrom {
    /// The member `criticality` of its baggage.
    Baggage,
    /// Its header `x-criticality`.
    XCriticality,
    /// Its header `x-request-criticality`.
    XRequestCriticality,
    /// Its gRPC metadata `criticality`.
    Metadata,
    /// The default of its method.
    Route,
    /// The default of the layer around some routes.
    Layer,
    /// The default of the task.
    Task,
}

impl CriticalityFrom {
    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baggage => "baggage",
            Self::XCriticality => "x-criticality",
            Self::XRequestCriticality => "x-request-criticality",
            Self::Metadata => "metadata",
            Self::Route => "route",
            Self::Layer => "layer",
            Self::Task => "default",
        }
    }
}

/// What said whom a request is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CustomerFrom {
    /// The certificate of its connection.
    Certificate,
    /// Its header `x-customer`, from one who may speak for others.
    XCustomer,
    /// Nothing: it is one of everyone else.
    Nobody,
}

impl CustomerFrom {
    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::XCustomer => "x-customer",
            Self::Nobody => "nobody",
        }
    }
}

/// Where both came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sources {
    pub(super) criticality: CriticalityFrom,
    /// Whether more was claimed than the peer may.
    pub(super) lowered: bool,
    pub(super) customer: CustomerFrom,
}

impl Sources {
    /// Of a request with these headers, of a method and a layer with these defaults.
    #[cold]
    pub(crate) fn of(
        headers: &HeaderMap,
        protocol: Protocol,
        peer: &PeerIdentity,
        method: Option<Criticality>,
        layer: Option<Criticality>,
    ) -> Self {
        let said = [
            (&BAGGAGE, CriticalityFrom::Baggage),
            (&X_CRITICALITY, CriticalityFrom::XCriticality),
            (&X_REQUEST_CRITICALITY, CriticalityFrom::XRequestCriticality),
            (&CRITICALITY, CriticalityFrom::Metadata),
        ];
        let claim = said.into_iter().find_map(|(name, source)| {
            let claim = Incoming::read(&only(headers, name), protocol).criticality?;
            Some((source, claim))
        });
        let default = match (method, layer) {
            (Some(_), _) => CriticalityFrom::Route,
            (None, Some(_)) => CriticalityFrom::Layer,
            (None, None) => CriticalityFrom::Task,
        };
        let lowered =
            claim.is_some_and(|(_, claim)| peer.peer().criticality(Some(claim), claim).lowered);
        let customer = if peer.peer().delegated(headers).0.is_some() {
            CustomerFrom::XCustomer
        } else if peer.peer().name().is_some() {
            CustomerFrom::Certificate
        } else {
            CustomerFrom::Nobody
        };
        Self { criticality: claim.map_or(default, |(source, _)| source), lowered, customer }
    }
}

/// The headers of this name.
fn only(headers: &HeaderMap, name: &HeaderName) -> HeaderMap {
    headers.get_all(name).iter().map(|value| (name.clone(), value.clone())).collect()
}
