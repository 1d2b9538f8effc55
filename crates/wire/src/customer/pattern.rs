//! Patterns over SPIFFE IDs: which workloads, and which part of the name is the customer.
//!
//! ```text
//! spiffe://prod.example.org/ns/{customer}/sa/*
//! spiffe://prod.example.org/{customer}/**
//! ```
//!
//! A segment is a literal, `*` for any one, `{customer}` for any one that names the customer, or,
//! at the end, `**` for any number of them, none included. The trust domain is always a literal:
//! who vouches for a name is never to be guessed.

use super::spiffe::{InvalidSpiffeId, SpiffeId, is_segment, is_trust_domain};

const SCHEME: &str = "spiffe://";

/// A pattern, and whether a SPIFFE ID fits it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    trust_domain: Box<str>,
    segments: Vec<Segment>,
    rest: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal(Box<str>),
    Any,
    Customer,
}

/// An ID that fits a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fit<'a> {
    /// The customer, if the pattern says which part that is.
    pub(super) customer: Option<&'a str>,
}

impl Pattern {
    pub(super) fn parse(text: &str) -> Result<Self, InvalidSpiffeId> {
        let rest = text.strip_prefix(SCHEME).ok_or(InvalidSpiffeId::Scheme)?;
        let (trust_domain, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !is_trust_domain(trust_domain) {
            return Err(InvalidSpiffeId::TrustDomain);
        }
        let mut pattern = Self { trust_domain: trust_domain.into(), segments: vec![], rest: false };
        if rest.len() == trust_domain.len() {
            return Ok(pattern);
        }
        for segment in path.split('/') {
            // Nothing follows what stands for all the rest.
            if pattern.rest {
                return Err(InvalidSpiffeId::Path);
            }
            match segment {
                "*" => pattern.segments.push(Segment::Any),
                "**" => pattern.rest = true,
                "{customer}" => pattern.segments.push(Segment::Customer),
                _ if is_segment(segment) => pattern.segments.push(Segment::Literal(segment.into())),
                _ => return Err(InvalidSpiffeId::Path),
            }
        }
        Ok(pattern)
    }

    /// Whether it is the name of one workload rather than a pattern for many.
    pub(super) fn is_name(&self) -> bool {
        !self.rest && self.segments.iter().all(|segment| matches!(segment, Segment::Literal(_)))
    }

    pub(super) fn customers(&self) -> usize {
        self.segments.iter().filter(|segment| **segment == Segment::Customer).count()
    }

    /// How `id` fits; not at all if there is nothing.
    pub(super) fn fit<'a>(&self, id: &SpiffeId<'a>) -> Option<Fit<'a>> {
        if *self.trust_domain != *id.trust_domain() {
            return None;
        }
        let mut found = id.segments();
        let mut customer = None;
        for segment in &self.segments {
            let text = found.next()?;
            match segment {
                Segment::Literal(literal) if **literal != *text => return None,
                Segment::Customer => customer = Some(text),
                Segment::Literal(_) | Segment::Any => {}
            }
        }
        (self.rest || found.next().is_none()).then_some(Fit { customer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fits_by_hand() {
        for (pattern, id, fit) in [
            ("spiffe://d/ns/{customer}/sa/*", "spiffe://d/ns/shop/sa/web", Some(Some("shop"))),
            ("spiffe://d/ns/{customer}/sa/*", "spiffe://d/ns/shop/sa", None),
            ("spiffe://d/ns/{customer}/sa/*", "spiffe://d/ns/shop/sa/web/x", None),
            ("spiffe://d/ns/{customer}/sa/*", "spiffe://e/ns/shop/sa/web", None),
            ("spiffe://d/ns/{customer}/sa/*", "spiffe://d/NS/shop/sa/web", None),
            ("spiffe://d/{customer}/**", "spiffe://d/shop", Some(Some("shop"))),
            ("spiffe://d/{customer}/**", "spiffe://d/shop/a/b", Some(Some("shop"))),
            ("spiffe://d/{customer}/**", "spiffe://d", None),
            ("spiffe://d/**", "spiffe://d", Some(None)),
            ("spiffe://d/a", "spiffe://d/a", Some(None)),
            ("spiffe://d", "spiffe://d", Some(None)),
            ("spiffe://d", "spiffe://d/a", None),
        ] {
            let id = SpiffeId::parse(id).unwrap();
            let found = Pattern::parse(pattern).unwrap().fit(&id).map(|fit| fit.customer);
            assert_eq!(found, fit, "{pattern} {id}");
        }
    }

    #[test]
    fn wrong_patterns_are_refused() {
        for (pattern, error) in [
            ("d/a", InvalidSpiffeId::Scheme),
            ("spiffe://*/a", InvalidSpiffeId::TrustDomain),
            ("spiffe://d/", InvalidSpiffeId::Path),
            ("spiffe://d/**/a", InvalidSpiffeId::Path),
            ("spiffe://d/a*", InvalidSpiffeId::Path),
            ("spiffe://d/{other}", InvalidSpiffeId::Path),
        ] {
            assert_eq!(Pattern::parse(pattern), Err(error), "{pattern}");
        }
    }
}
