//! Which identities a rule is about: a pattern of SPIFFE IDs, or one name of DNS.
//!
//! A name of DNS stands for itself. There is no pattern for many: whoever may have a certificate
//! for one name below a domain may often have one for any.

use super::InvalidRule;
use super::pattern::{Fit, Pattern};
use super::spiffe::SpiffeId;

/// What names of DNS begin with.
const DNS: &str = "dns:";

/// A name of DNS is no longer than this.
const DNS_MAX: usize = 253;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rule {
    Spiffe(Pattern),
    Dns(Box<str>),
}

/// Somebody who has proved who they are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Who<'a> {
    Spiffe(SpiffeId<'a>),
    Dns(&'a str),
}

impl<'a> Who<'a> {
    /// Whoever is called `identity`; nobody if that is neither a SPIFFE ID nor a name of DNS.
    pub(super) fn parse(identity: &'a str) -> Option<Self> {
        match identity.strip_prefix(DNS) {
            Some(name) => is_dns(name).then_some(Self::Dns(name)),
            None => SpiffeId::parse(identity).ok().map(Self::Spiffe),
        }
    }
}

impl Rule {
    pub(super) fn parse(text: &str) -> Result<Self, InvalidRule> {
        let Some(name) = text.strip_prefix(DNS) else {
            let pattern = Pattern::parse(text);
            return pattern
                .map(Self::Spiffe)
                .map_err(|why| InvalidRule::Pattern { pattern: text.to_owned(), why });
        };
        if is_dns(name) {
            return Ok(Self::Dns(name.to_ascii_lowercase().into()));
        }
        Err(InvalidRule::Dns { name: text.to_owned() })
    }

    /// Whether it is about one and no more.
    pub(super) fn is_name(&self) -> bool {
        match self {
            Self::Spiffe(pattern) => pattern.is_name(),
            Self::Dns(_) => true,
        }
    }

    /// In how many places it says who the customer is.
    pub(super) fn customers(&self) -> usize {
        match self {
            Self::Spiffe(pattern) => pattern.customers(),
            Self::Dns(_) => 0,
        }
    }

    /// How `who` fits; not at all if there is nothing.
    pub(super) fn fit<'a>(&self, who: &Who<'a>) -> Option<Fit<'a>> {
        match (self, who) {
            (Self::Spiffe(pattern), Who::Spiffe(id)) => pattern.fit(id),
            (Self::Dns(name), Who::Dns(found)) if name.eq_ignore_ascii_case(found) => {
                Some(Fit { customer: None })
            }
            _ => None,
        }
    }
}

/// Labels of letters, digits, `-` and `_`, each of 1 to 63.
fn is_dns(name: &str) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
    let label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(plain);
    name.len() <= DNS_MAX && name.split('.').all(label)
}
