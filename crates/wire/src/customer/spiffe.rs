//! SPIFFE IDs: `spiffe://trust.domain/path/of/a/workload`.
//!
//! The rules are those of the SPIFFE standard, all of them: whoever issued the certificate is
//! trusted, but two readers who disagree on what an odd ID means are how one workload passes for
//! another. So nothing is normalised, and what is not exactly right is refused.

/// The standard's limit on the whole ID, in bytes.
const BYTES_MAX: usize = 2_048;

/// The standard's limit on the trust domain, in bytes.
const TRUST_DOMAIN_MAX: usize = 255;

const SCHEME: &str = "spiffe://";

/// The name of a workload, as its certificate carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpiffeId<'a> {
    trust_domain: &'a str,
    path: &'a str,
}

/// Why a text is no SPIFFE ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSpiffeId {
    /// It does not begin as one.
    #[error("a SPIFFE ID begins with spiffe://")]
    Scheme,
    /// It is too long.
    #[error("a SPIFFE ID has at most 2048 bytes, of these 255 in its trust domain")]
    TooLong,
    /// Its trust domain is empty or has a character that none has.
    #[error("a trust domain is made of a-z, 0-9, `.`, `-` and `_`, without user or port")]
    TrustDomain,
    /// Its path has an empty segment, dots for a segment, or a character that none has.
    #[error(
        "a path is made of segments of a-z, A-Z, 0-9, `.`, `-` and `_`, none empty, `.` or `..`"
    )]
    Path,
}

impl<'a> SpiffeId<'a> {
    /// Reads a SPIFFE ID.
    pub fn parse(text: &'a str) -> Result<Self, InvalidSpiffeId> {
        if text.len() > BYTES_MAX {
            return Err(InvalidSpiffeId::TooLong);
        }
        let rest = text.strip_prefix(SCHEME).ok_or(InvalidSpiffeId::Scheme)?;
        let (trust_domain, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if trust_domain.len() > TRUST_DOMAIN_MAX {
            return Err(InvalidSpiffeId::TooLong);
        }
        if !is_trust_domain(trust_domain) {
            return Err(InvalidSpiffeId::TrustDomain);
        }
        if !path.is_empty() && !path[1..].split('/').all(is_segment) {
            return Err(InvalidSpiffeId::Path);
        }
        Ok(Self { trust_domain, path })
    }

    /// Who vouches for it.
    pub const fn trust_domain(&self) -> &'a str {
        self.trust_domain
    }

    /// The path, with its leading slash; empty for the trust domain itself.
    pub const fn path(&self) -> &'a str {
        self.path
    }

    /// The segments of the path.
    pub fn segments(&self) -> impl Iterator<Item = &'a str> {
        self.path.split('/').skip(1)
    }
}

impl core::fmt::Display for SpiffeId<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{SCHEME}{}{}", self.trust_domain, self.path)
    }
}

pub(super) fn is_trust_domain(text: &str) -> bool {
    let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_');
    !text.is_empty() && text.len() <= TRUST_DOMAIN_MAX && text.bytes().all(allowed)
}

pub(super) fn is_segment(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    !matches!(text, "" | "." | "..") && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_by_the_standard() {
        for (text, domain, path) in [
            ("spiffe://example.org", "example.org", ""),
            ("spiffe://example.org/ns/shop/sa/web", "example.org", "/ns/shop/sa/web"),
            ("spiffe://a-b_c.1/X.y-z_0/...", "a-b_c.1", "/X.y-z_0/..."),
        ] {
            let id = SpiffeId::parse(text).unwrap();
            assert_eq!((id.trust_domain(), id.path()), (domain, path));
            assert_eq!(id.to_string(), text);
        }
        let domain = |n: usize| format!("spiffe://{}/x", "d".repeat(n));
        let whole = |n: usize| format!("spiffe://d/{}", "x".repeat(n - 11));
        assert!(SpiffeId::parse(&domain(255)).is_ok() && SpiffeId::parse(&whole(2_048)).is_ok());
        for (text, error) in [
            ("", InvalidSpiffeId::Scheme),
            ("https://example.org/a", InvalidSpiffeId::Scheme),
            ("SPIFFE://example.org/a", InvalidSpiffeId::Scheme),
            ("spiffe://", InvalidSpiffeId::TrustDomain),
            ("spiffe:///a", InvalidSpiffeId::TrustDomain),
            ("spiffe://Example.org/a", InvalidSpiffeId::TrustDomain),
            ("spiffe://example.org:443/a", InvalidSpiffeId::TrustDomain),
            ("spiffe://me@example.org/a", InvalidSpiffeId::TrustDomain),
            ("spiffe://example.org?a", InvalidSpiffeId::TrustDomain),
            ("spiffe://example.org/", InvalidSpiffeId::Path),
            ("spiffe://example.org/a/", InvalidSpiffeId::Path),
            ("spiffe://example.org//a", InvalidSpiffeId::Path),
            ("spiffe://example.org/a/../b", InvalidSpiffeId::Path),
            ("spiffe://example.org/a/./b", InvalidSpiffeId::Path),
            ("spiffe://example.org/a%2Fb", InvalidSpiffeId::Path),
            ("spiffe://example.org/a?b", InvalidSpiffeId::Path),
            ("spiffe://example.org/a#b", InvalidSpiffeId::Path),
            ("spiffe://example.org/ä", InvalidSpiffeId::Path),
            (&domain(256), InvalidSpiffeId::TooLong),
            (&whole(2_049), InvalidSpiffeId::TooLong),
        ] {
            assert_eq!(SpiffeId::parse(text), Err(error), "{text:?}");
        }
    }
}
