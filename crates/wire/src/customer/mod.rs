//! Who sent a request, for whom, and how much that one may claim.
//!
//! A customer pays for what is done in its name, and a criticality decides who is served when not
//! everybody can be. Both would be worth nothing if a header could claim them. So they rest on the
//! identity that the connection has proved: the SPIFFE ID of the peer's certificate, or else its
//! name of DNS, written `dns:…`.
//!
//! - **Customer.** The first pattern that the peer's identity fits names it, or was given its name.
//!   A header `x-customer` is believed only from peers that were named as *delegators* (a gateway
//!   that calls for many); from anyone else it is ignored and counted
//!   ([`Fault::CustomerByStranger`]).
//! - **Ceiling.** The first ceiling that the peer's identity fits limits what it may claim; a claim
//!   above is lowered and counted ([`Fault::AboveCeiling`]). Without one, and without an identity,
//!   it is `CRITICAL`, which is what a request without a claim counts as anyway. `CRITICAL_PLUS` is
//!   granted to single workloads by name: a pattern that does so is refused.
//!
//! [`Identities`] is the configuration. It makes a [`Peer`] once per connection, which answers for
//! each request without looking anything up.
//!
//! ```
//! use tidegate_core::Criticality;
//! use tidegate_wire::customer::Identities;
//!
//! let identities = Identities::default()
//!     .customer("spiffe://prod.example.org/ns/{customer}/sa/*")?
//!     .delegator("spiffe://prod.example.org/ns/edge/sa/gateway")?
//!     .ceiling("spiffe://prod.example.org/ns/shop/sa/checkout", Criticality::CriticalPlus)?
//!     .ceiling("spiffe://prod.example.org/ns/batch/**", Criticality::Sheddable)?;
//!
//! let peer = identities.peer(Some("spiffe://prod.example.org/ns/batch/sa/nightly"));
//! assert_eq!(peer.name(), Some("batch"));
//! let claim = peer.criticality(Some(Criticality::CriticalPlus), Criticality::Critical);
//! assert_eq!(claim.criticality, Criticality::Sheddable);
//! assert!(claim.lowered);
//!
//! let grant = identities.ceiling("spiffe://prod.example.org/**", Criticality::CriticalPlus);
//! assert!(grant.is_err());
//! # Ok::<(), tidegate_wire::customer::InvalidRule>(())
//! ```

mod pattern;
mod rule;
mod spiffe;

pub use spiffe::{InvalidSpiffeId, SpiffeId};

use crate::faults::{Fault, Faults};
use crate::headers::X_CUSTOMER;
use crate::text::trim;
use http::HeaderMap;
use rule::{Rule, Who};
use tidegate_core::Criticality;
use tidegate_core::criticality::Clamped;

/// Names of customers in headers are no longer than this. A segment of a SPIFFE ID could be longer;
/// nobody's is, and every name ends up in metrics and on dashboards.
pub const NAME_MAX: usize = 128;

/// What a peer without a ceiling of its own may claim: what a request counts as without a claim.
const CEILING_DEFAULT: Criticality = Criticality::Critical;

/// A rule that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRule {
    /// No pattern.
    #[error("`{pattern}` is no pattern of SPIFFE IDs: {why}")]
    Pattern {
        /// What was given.
        pattern: String,
        /// What is wrong with it.
        why: InvalidSpiffeId,
    },
    /// No name of DNS.
    #[error("`{name}` is no name of DNS: one in full and without *, such as dns:shop.internal")]
    Dns {
        /// What was given.
        name: String,
    },
    /// It says which part is the customer, where the customer is named.
    #[error("`{pattern}` is for one customer and cannot have {{customer}} in it: * fits any part")]
    Named {
        /// What was given.
        pattern: String,
    },
    /// It does not say which part is the customer, or says it twice.
    #[error("`{pattern}` has to have {{customer}} in one place, such as /ns/{{customer}}/**")]
    Customer {
        /// What was given.
        pattern: String,
    },
    /// It stands for many where one has to be named.
    #[error(
        "`{pattern}` stands for many workloads: {what} goes to single ones, each named in full"
    )]
    NotAName {
        /// What was given.
        pattern: String,
        /// What would have been granted.
        what: &'static str,
    },
}

fn parse_name(text: &str, what: &'static str) -> Result<Rule, InvalidRule> {
    let pattern = Rule::parse(text)?;
    let error = || InvalidRule::NotAName { pattern: text.to_owned(), what };
    pattern.is_name().then_some(pattern).ok_or_else(error)
}

/// Which identities there are, and what each may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identities {
    /// With a name, where it is not a part of the identity.
    customers: Vec<(Rule, Option<Box<str>>)>,
    delegators: Vec<Rule>,
    ceilings: Vec<(Rule, Criticality)>,
    unidentified: Criticality,
}

impl Default for Identities {
    /// No customers, no delegators, nobody above `CRITICAL`.
    fn default() -> Self {
        Self {
            customers: Vec::new(),
            delegators: Vec::new(),
            ceilings: Vec::new(),
            unidentified: CEILING_DEFAULT,
        }
    }
}

impl Identities {
    /// Workloads whose ID fits `pattern` belong to the customer that it names. The first pattern
    /// that fits counts.
    pub fn customer(mut self, pattern: &str) -> Result<Self, InvalidRule> {
        let parsed = Rule::parse(pattern)?;
        if parsed.customers() != 1 {
            return Err(InvalidRule::Customer { pattern: pattern.to_owned() });
        }
        self.customers.push((parsed, None));
        Ok(self)
    }

    /// Workloads whose identity fits `pattern`, or is the name of DNS `dns:…`, belong to the
    /// customer `name`. The first pattern that fits counts, of these and of
    /// [`Identities::customer`].
    pub fn belongs(mut self, pattern: &str, name: &str) -> Result<Self, InvalidRule> {
        let parsed = Rule::parse(pattern)?;
        if parsed.customers() != 0 {
            return Err(InvalidRule::Named { pattern: pattern.to_owned() });
        }
        self.customers.push((parsed, Some(name.into())));
        Ok(self)
    }

    /// The workload with this ID may say in `x-customer` for whom it calls. It is also told the
    /// grounds of a refusal.
    pub fn delegator(mut self, name: &str) -> Result<Self, InvalidRule> {
        self.delegators.push(parse_name(name, "speaking for other customers")?);
        Ok(self)
    }

    /// Workloads whose ID fits `pattern` may claim up to `ceiling`. The first pattern that fits
    /// counts. `CRITICAL_PLUS` goes to single workloads only.
    pub fn ceiling(mut self, pattern: &str, ceiling: Criticality) -> Result<Self, InvalidRule> {
        let parsed = match ceiling {
            Criticality::CriticalPlus => parse_name(pattern, "CRITICAL_PLUS")?,
            _ => Rule::parse(pattern)?,
        };
        self.ceilings.push((parsed, ceiling));
        Ok(self)
    }

    /// Peers that prove no identity may claim up to `ceiling`.
    ///
    /// Above `CRITICAL` this believes whoever can connect: for networks in which identity is
    /// somebody else's business, such as behind a sidecar.
    #[must_use]
    pub const fn unidentified(mut self, ceiling: Criticality) -> Self {
        self.unidentified = ceiling;
        self
    }

    /// The peer whose certificate says that it is `identity` (`spiffe://…` or `dns:…`), or that has
    /// none. What is neither proves nothing.
    ///
    /// Once per connection: goes through all rules, and allocates.
    pub fn peer(&self, identity: Option<&str>) -> Peer {
        let Some(id) = identity.and_then(Who::parse) else {
            return Peer { customer: None, delegator: false, ceiling: self.unidentified };
        };
        let customer = self.customers.iter().find_map(|(rule, name)| {
            let fit = rule.fit(&id)?;
            Some(name.as_deref().or(fit.customer))
        });
        let customer = customer.flatten();
        let ceiling = self.ceilings.iter().find(|(pattern, _)| pattern.fit(&id).is_some());
        Peer {
            customer: customer.filter(|name| name.len() <= NAME_MAX).map(Into::into),
            delegator: self.delegators.iter().any(|pattern| pattern.fit(&id).is_some()),
            ceiling: ceiling.map_or(CEILING_DEFAULT, |&(_, ceiling)| ceiling),
        }
    }
}

/// Which identities a rule is about: a pattern of SPIFFE IDs, or one name of DNS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityPattern(Rule);

impl IdentityPattern {
    /// As in [`Identities::belongs`].
    pub fn parse(pattern: &str) -> Result<Self, InvalidRule> {
        let rule = Rule::parse(pattern)?;
        if rule.customers() != 0 {
            return Err(InvalidRule::Named { pattern: pattern.to_owned() });
        }
        Ok(Self(rule))
    }

    /// Whether it is about one identity and no more.
    pub fn is_name(&self) -> bool {
        self.0.is_name()
    }

    /// Whether whoever is called `identity` is meant.
    pub fn fits(&self, identity: &str) -> bool {
        Who::parse(identity).is_some_and(|who| self.0.fit(&who).is_some())
    }
}

/// Whoever is at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    customer: Option<Box<str>>,
    delegator: bool,
    ceiling: Criticality,
}

impl Default for Peer {
    /// Somebody who has proved nothing.
    fn default() -> Self {
        Self { customer: None, delegator: false, ceiling: CEILING_DEFAULT }
    }
}

impl Peer {
    /// The customer that it is, if it is one. To be turned into a number once per connection.
    pub fn name(&self) -> Option<&str> {
        self.customer.as_deref()
    }

    /// Whether it may speak for others, and so is shown the grounds of refusals.
    pub const fn is_delegator(&self) -> bool {
        self.delegator
    }

    /// The most that it may claim.
    pub const fn ceiling(&self) -> Criticality {
        self.ceiling
    }

    /// What a request counts as that claims `claimed`; without a claim, that is `default`, which is
    /// the route's and so not held against the ceiling.
    pub fn criticality(&self, claimed: Option<Criticality>, default: Criticality) -> Clamped {
        match claimed {
            Some(claimed) => claimed.clamp_to(self.ceiling),
            None => Clamped { criticality: default, lowered: false },
        }
    }

    /// The customer whom `headers` name on this peer's authority, and what made no sense.
    ///
    /// None means that the peer itself is charged ([`Peer::name`]). For the request path: one
    /// look-up, nothing else if the header is not there.
    pub fn delegated<'a>(&self, headers: &'a HeaderMap) -> (Option<&'a str>, Faults) {
        let mut values = headers.get_all(&X_CUSTOMER).iter();
        let Some(first) = values.next() else { return (None, Faults::NONE) };
        if !self.delegator {
            return (None, Fault::CustomerByStranger.into());
        }
        if values.any(|other| other != first) {
            return (None, Fault::Contradictory.into());
        }
        match parse_customer(first.as_bytes()) {
            Some(name) => (Some(name), Faults::NONE),
            None => (None, Fault::BadCustomer.into()),
        }
    }
}

/// Reads an `x-customer`: printable, without blanks inside, not too long.
pub fn parse_customer(value: &[u8]) -> Option<&str> {
    let name = trim(value);
    let fits = (1..=NAME_MAX).contains(&name.len()) && name.iter().all(u8::is_ascii_graphic);
    core::str::from_utf8(name).ok().filter(|_| fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Criticality::{Critical, CriticalPlus, Sheddable, SheddablePlus};

    fn identities() -> Identities {
        Identities::default()
            .customer("spiffe://d/ns/{customer}/sa/*")
            .unwrap()
            .customer("spiffe://d/team/{customer}/**")
            .unwrap()
            .delegator("spiffe://d/ns/edge/sa/gateway")
            .unwrap()
            .ceiling("spiffe://d/ns/shop/sa/checkout", CriticalPlus)
            .unwrap()
            .ceiling("spiffe://d/ns/shop/**", SheddablePlus)
            .unwrap()
    }

    #[test]
    fn peers_by_hand() {
        for (uri, customer, delegator, ceiling) in [
            (None, None, false, Critical),
            (Some("spiffe://d/ns/shop/sa/checkout"), Some("shop"), false, CriticalPlus),
            (Some("spiffe://d/ns/shop/sa/web"), Some("shop"), false, SheddablePlus),
            (Some("spiffe://d/team/maps"), Some("maps"), false, Critical),
            (Some("spiffe://d/ns/edge/sa/gateway"), Some("edge"), true, Critical),
            (Some("spiffe://d/other"), None, false, Critical),
            // The right path of somebody else's trust domain, and no SPIFFE ID at all.
            (Some("spiffe://evil/ns/shop/sa/checkout"), None, false, Critical),
            (Some("spiffe://d/ns/shop/sa/checkout/"), None, false, Critical),
            (Some("https://d/ns/edge/sa/gateway"), None, false, Critical),
        ] {
            let peer = identities().peer(uri);
            let found = (peer.name(), peer.is_delegator(), peer.ceiling());
            assert_eq!(found, (customer, delegator, ceiling), "{uri:?}");
        }
        let open = identities().unidentified(Sheddable);
        assert_eq!(open.peer(None).ceiling(), Sheddable);
        assert_eq!(open.peer(Some("nonsense")).ceiling(), Sheddable);
        assert_eq!(open.peer(Some("spiffe://d/other")).ceiling(), Critical);
    }

    #[test]
    fn customers_that_are_named() {
        let identities = Identities::default()
            .belongs("spiffe://d/ns/shop/**", "shop")
            .unwrap()
            .belongs("dns:Till.shop.internal", "shop")
            .unwrap()
            .customer("spiffe://d/ns/{customer}/**")
            .unwrap()
            .delegator("dns:gateway.internal")
            .unwrap()
            .ceiling("dns:till.shop.internal", CriticalPlus)
            .unwrap();
        for (identity, customer, delegator, ceiling) in [
            ("spiffe://d/ns/shop/sa/web", Some("shop"), false, Critical),
            ("spiffe://d/ns/maps/sa/web", Some("maps"), false, Critical),
            ("dns:till.shop.internal", Some("shop"), false, CriticalPlus),
            ("dns:TILL.shop.internal", Some("shop"), false, CriticalPlus),
            ("dns:gateway.internal", None, true, Critical),
            ("dns:other.till.shop.internal", None, false, Critical),
            ("till.shop.internal", None, false, Critical),
            ("dns:", None, false, Critical),
        ] {
            let peer = identities.peer(Some(identity));
            let found = (peer.name(), peer.is_delegator(), peer.ceiling());
            assert_eq!(found, (customer, delegator, ceiling), "{identity}");
        }
    }

    #[test]
    fn only_delegators_speak_for_others() {
        let gateway = identities().peer(Some("spiffe://d/ns/edge/sa/gateway"));
        let stranger = identities().peer(Some("spiffe://d/ns/shop/sa/web"));
        let long = "x".repeat(NAME_MAX + 1);
        for (values, believed, fault) in [
            (&[][..], None, None),
            (&["maps"], Some("maps"), None),
            (&[" maps "], Some("maps"), None),
            (&["maps", "maps"], Some("maps"), None),
            (&["maps", "mail"], None, Some(Fault::Contradictory)),
            (&[""], None, Some(Fault::BadCustomer)),
            (&["two words"], None, Some(Fault::BadCustomer)),
            (&[long.as_str()], None, Some(Fault::BadCustomer)),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(&X_CUSTOMER, value.parse().unwrap());
            }
            let faults = fault.map_or(Faults::NONE, Faults::from);
            assert_eq!(gateway.delegated(&headers), (believed, faults), "{values:?}");
            let claimed = !values.is_empty();
            let faults = if claimed { Fault::CustomerByStranger.into() } else { Faults::NONE };
            assert_eq!(stranger.delegated(&headers), (None, faults), "{values:?}");
        }
    }

    #[test]
    fn a_claim_is_held_against_the_ceiling_and_a_default_is_not() {
        let peer = identities().peer(Some("spiffe://d/ns/shop/sa/web"));
        for (claimed, default, criticality, lowered) in [
            (None, Critical, Critical, false),
            (Some(Critical), Critical, SheddablePlus, true),
            (Some(SheddablePlus), Critical, SheddablePlus, false),
            (Some(Sheddable), CriticalPlus, Sheddable, false),
        ] {
            let found = peer.criticality(claimed, default);
            assert_eq!(found, Clamped { criticality, lowered });
        }
    }

    #[test]
    fn wrong_rules_are_refused_with_what_would_be_right() {
        let none = Identities::default;
        for (error, text) in [
            (none().customer("spiffe://d/ns/*"), "{customer} in one place"),
            (none().customer("spiffe://d/{customer}/{customer}"), "{customer} in one place"),
            (none().customer("prod/{customer}"), "begins with spiffe://"),
            (none().belongs("spiffe://d/{customer}", "shop"), "cannot have {customer}"),
            (none().belongs("dns:*.shop.internal", "shop"), "dns:shop.internal"),
            (none().delegator("dns:"), "is no name of DNS"),
            (none().delegator("spiffe://d/ns/*"), "each named in full"),
            (none().ceiling("spiffe://d/**", CriticalPlus), "CRITICAL_PLUS goes to single ones"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
