//! What travels with a request that we send.

use crate::protocol::Protocol;
use crate::{attempt, criticality, deadline};
use core::time::Duration;
use http::HeaderMap;
use tidegate_core::Criticality;

/// What a request of ours says about itself.
///
/// ```
/// use http::HeaderMap;
/// use std::time::Duration;
/// use tidegate_core::Criticality;
/// use tidegate_wire::incoming::Incoming;
/// use tidegate_wire::outgoing::Outgoing;
/// use tidegate_wire::protocol::Protocol;
///
/// let mut headers = HeaderMap::new();
/// Outgoing::new(Criticality::Sheddable)
///     .attempt(2)
///     .deadline(Some(Duration::from_millis(250)))
///     .write(&mut headers, Protocol::Grpc);
/// assert_eq!(headers["grpc-timeout"], "250000u");
///
/// let arrives = Incoming::read(&headers, Protocol::Grpc);
/// assert_eq!(arrives.criticality, Some(Criticality::Sheddable));
/// assert_eq!(arrives.attempt, 2);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Outgoing {
    criticality: Criticality,
    attempt: u32,
    deadline: Option<Duration>,
}

impl Outgoing {
    /// A first attempt without a deadline.
    pub const fn new(criticality: Criticality) -> Self {
        Self { criticality, attempt: 1, deadline: None }
    }

    /// Which try it is, from 1.
    pub const fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// How long we wait for it.
    pub const fn deadline(mut self, remaining: Option<Duration>) -> Self {
        self.deadline = remaining;
        self
    }

    /// Writes it all, over whatever `headers` said. Without a deadline of ours, one that the caller
    /// has set stays.
    ///
    /// For the request path; allocates for a deadline, and where there is other baggage.
    pub fn write(self, headers: &mut HeaderMap, protocol: Protocol) {
        criticality::write(headers, self.criticality);
        attempt::write(headers, protocol, self.attempt);
        if let Some(remaining) = self.deadline {
            deadline::write(headers, protocol, remaining);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Faults;
    use crate::incoming::Incoming;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_leaves_arrives(
            level in 0..4_usize,
            attempt in 1..1_000_u32,
            millis in prop::option::of(1..10_000_u64),
            grpc: bool,
        ) {
            let criticality = Criticality::ALL[level];
            let deadline = millis.map(Duration::from_millis);
            let protocol = if grpc { Protocol::Grpc } else { Protocol::Http };
            let mut headers = HeaderMap::new();
            headers.insert("baggage", "a=b, criticality=SHEDDABLE".parse().unwrap());
            Outgoing::new(criticality).attempt(attempt).deadline(deadline)
                .write(&mut headers, protocol);
            let found = Incoming::read(&headers, protocol);
            prop_assert_eq!(found.criticality, Some(criticality));
            prop_assert_eq!(found.attempt, attempt);
            prop_assert_eq!(found.deadline, deadline);
            prop_assert_eq!(found.faults, Faults::NONE);
            prop_assert!(headers["baggage"].to_str().unwrap().ends_with(",a=b"));
        }
    }
}
