//! What is decided, in spans of `tracing`.
//!
//! With the feature `tracing` an admitted request has a span `tidegate.request` around its handler
//! and its body, at the level of debugging, with the fields `decision` (`admit`, or `dark` for one
//! that would have been refused), `reason`, `criticality`, `id` and, when it is done, `cost` in
//! seconds. A refusal is an event with the same fields. Without the feature there is nothing.

use tidegate_core::admission::Permit;
use tidegate_core::decision::Rejection;
use tidegate_wire::reject::DecisionId;

/// The span of a request.
#[derive(Debug)]
pub(super) struct Trace {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

#[cfg(feature = "tracing")]
impl Trace {
    pub(super) fn of(permit: &Permit, id: DecisionId) -> Self {
        let dark = permit.would_reject();
        let span = tracing::debug_span!(
            target: "tidegate",
            "tidegate.request",
            decision = if dark.is_some() { "dark" } else { "admit" },
            reason = dark.map(tidegate_core::decision::Reason::code),
            criticality = permit.criticality().name(),
            id = %id,
            cost = tracing::field::Empty,
        );
        Self { span }
    }

    pub(super) fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        self.span.in_scope(work)
    }

    pub(super) fn done(&self, cost: tidegate_core::Cost) {
        self.span.record("cost", cost.as_secs_f64());
    }
}

#[cfg(feature = "tracing")]
pub(super) fn rejected(rejection: &Rejection, id: DecisionId) {
    tracing::debug!(
        target: "tidegate",
        decision = "reject",
        reason = rejection.reason.code(),
        criticality = rejection.criticality.name(),
        id = %id,
        "{rejection}",
    );
}

#[cfg(not(feature = "tracing"))]
#[expect(clippy::unused_self, reason = "the same signatures with and without the feature")]
impl Trace {
    #[inline]
    pub(super) const fn of(_: &Permit, _: DecisionId) -> Self {
        Self {}
    }

    #[inline]
    pub(super) fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }

    #[inline]
    pub(super) const fn done(&self, _: tidegate_core::Cost) {}
}

#[cfg(not(feature = "tracing"))]
#[inline]
pub(super) const fn rejected(_: &Rejection, _: DecisionId) {}
