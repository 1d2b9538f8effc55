//! What requests from outside count as.
//!
//! Rules are looked at in order, and the first that fits counts. One fits if all that it names
//! fits: host, path, method, a header, the identity of the caller's certificate. It gives a
//! criticality; or it lets the caller claim one by `x-criticality` or baggage, up to a ceiling.
//! Where no rule fits, or none says, the default counts, and claims do not. Whatever comes of it,
//! RFC 9218's `priority` may lower it.
//!
//! ```text
//! counts as = min(claim, ceiling)    if the rule has a ceiling, and there is a claim
//!             the rule's criticality, or the default    otherwise
//! ```
//!
//! **Paths in disguise.** `/checkout/../report` begins with `/checkout/`, and most programs take it
//! for `/report`. What a program makes of a path is its own business, so a path that can be read in
//! two ways (`.` and `..`, empty segments, `\`, letters, digits, dots and slashes that are
//! percent-encoded) fits no rule that names a path. It counts as the least that the rules give to
//! anybody: to hide gains nothing.
//!
//! **When it is wrong.** A header is the caller's word: whoever sends `x-plan: gold` is gold. So no
//! rule that goes by a header alone gives `CRITICAL_PLUS`, and claims of it are for callers that
//! are named in full.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tidegate_core::Criticality;
use tidegate_wire::customer::IdentityPattern;
use tidegate_wire::incoming::Incoming;
use tidegate_wire::priority;

/// Which requests a rule is about, and what they count as. Made by [`Rule::new`]; what is not said
/// fits everything.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// The host that is asked for, in lower case and without a port.
    pub host: Option<String>,
    /// The path.
    pub path: Option<PathPattern>,
    /// One of these methods.
    pub methods: Vec<Method>,
    /// A header that is there, with this value if there is one.
    pub header: Option<(HeaderName, Option<HeaderValue>)>,
    /// Who the caller's certificate says it is.
    pub identity: Option<IdentityPattern>,
    /// What it counts as; the default if not said.
    pub criticality: Option<Criticality>,
    /// The most that the caller may claim; if not said, it may claim nothing.
    pub ceiling: Option<Criticality>,
}

impl Rule {
    /// One that fits everything, and changes nothing.
    pub const fn new() -> Self {
        Self {
            host: None,
            path: None,
            methods: Vec::new(),
            header: None,
            identity: None,
            criticality: None,
            ceiling: None,
        }
    }

    /// Why it is not to be, if so: what is wrong with it, and what would be right.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        const TOP: Option<Criticality> = Some(Criticality::CriticalPlus);
        if self.criticality.is_none() && self.ceiling.is_none() {
            return Some(("changes nothing", "criticality, ceiling, or both"));
        }
        let named = self.identity.as_ref().is_some_and(IdentityPattern::is_name);
        if self.ceiling == TOP && !named {
            return Some((
                "lets whoever fits claim CRITICAL_PLUS",
                "identity of one caller, named in full; or a lower ceiling",
            ));
        }
        let by_header = self.header.is_some() && self.path.is_none() && self.identity.is_none();
        if self.criticality == TOP && by_header {
            return Some((
                "gives CRITICAL_PLUS to whoever sends a header",
                "path or identity beside the header; or a lower criticality",
            ));
        }
        None
    }

    fn fits(&self, about: &About<'_>, known: bool) -> bool {
        let host =
            |host: &String| about.host.is_some_and(|named| bare(named).eq_ignore_ascii_case(host));
        let header = |(name, value): &(HeaderName, Option<HeaderValue>)| {
            let mut found = about.headers.get_all(name).iter();
            found.any(|found| value.as_ref().is_none_or(|value| value == found))
        };
        (self.identity.is_none() || known)
            && (self.methods.is_empty() || self.methods.contains(about.method))
            && self.path.as_ref().is_none_or(|path| path.fits(about.path))
            && self.host.as_ref().is_none_or(host)
            && self.header.as_ref().is_none_or(header)
    }
}

impl Default for Rule {
    fn default() -> Self {
        Self::new()
    }
}

/// A host without its port.
fn bare(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

/// One path, or one with all that are below it: `/a/b`, `/a/**`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPattern {
    path: String,
    below: bool,
}

impl core::str::FromStr for PathPattern {
    type Err = InvalidPath;

    fn from_str(text: &str) -> Result<Self, InvalidPath> {
        let below = text.strip_suffix("/**");
        let path = below.unwrap_or(text);
        let wrong = || InvalidPath(text.to_owned());
        let plain = path.is_empty() && below.is_some() || path.starts_with('/');
        let odd = |c: char| c == '*' || c == '?' || c == '#' || c.is_whitespace();
        if !plain || path.contains(odd) || (path.len() > 1 && in_disguise(path)) {
            return Err(wrong());
        }
        Ok(Self { path: path.to_owned(), below: below.is_some() })
    }
}

/// What is no pattern of paths.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no path; right: such as /checkout, or /checkout/** for it and all below")]
pub struct InvalidPath(String);

impl PathPattern {
    pub(super) fn fits(&self, path: &str) -> bool {
        match path.strip_prefix(self.path.as_str()) {
            Some("") => true,
            Some(rest) => self.below && rest.starts_with('/'),
            None => false,
        }
    }
}

/// Whether programs may differ about which path this is.
pub(super) fn in_disguise(path: &str) -> bool {
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        // An empty one at the end is a slash there.
        // Some programs take what follows `;` off first.
        let parameters = segment.contains(';');
        if parameters
            || matches!(segment, "." | "..")
            || segment.is_empty() && segments.peek().is_some()
        {
            return true;
        }
    }
    let bytes = path.as_bytes();
    let hidden = |at: usize| match (hex(bytes.get(at + 1)), hex(bytes.get(at + 2))) {
        (Some(high), Some(low)) => {
            let byte = high << 4 | low;
            byte.is_ascii_alphanumeric() || byte < b' ' || b"./\\%_-~".contains(&byte)
        }
        _ => true,
    };
    bytes.iter().enumerate().any(|(at, &b)| b == b'\\' || b == b'%' && hidden(at))
}

fn hex(digit: Option<&u8>) -> Option<u8> {
    digit.and_then(|digit| char::from(*digit).to_digit(16)).map(|value| value as u8)
}

/// What of a request rules look at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) method: &'a Method,
    /// With or without a port.
    pub(crate) host: Option<&'a str>,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a HeaderMap,
    /// Which rules fit the caller's identity.
    pub(crate) known: &'a Known,
}

/// Which rules fit an identity, found out once for each connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known(Vec<bool>);

/// All rules, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rules {
    list: Vec<Rule>,
    default: Criticality,
    /// What those count as who hide where they go.
    least: Criticality,
    by_path: bool,
}

impl Rules {
    pub(crate) fn new(list: Vec<Rule>, default: Criticality) -> Self {
        let given = list.iter().filter_map(|rule| rule.criticality);
        let least = given.min().map_or(default, |least| least.min(default));
        let by_path = list.iter().any(|rule| rule.path.is_some());
        Self { list, default, least, by_path }
    }

    /// Which rules fit a caller whose certificate says that it is `identity`.
    pub(crate) fn known(&self, identity: Option<&str>) -> Known {
        let Some(identity) = identity else { return Known::default() };
        let fits = |rule: &Rule| rule.identity.as_ref().is_some_and(|who| who.fits(identity));
        Known(self.list.iter().map(fits).collect())
    }

    /// What a request counts as.
    pub(crate) fn judge(&self, about: &About<'_>, said: &Incoming) -> Criticality {
        let hidden = self.by_path && in_disguise(about.path);
        let fitting = self.list.iter().enumerate().find(|(n, rule)| {
            let known = about.known.0.get(*n).copied().unwrap_or(false);
            !(hidden && rule.path.is_some()) && rule.fits(about, known)
        });
        let rule = fitting.map(|(_, rule)| rule);
        let given = rule.and_then(|rule| rule.criticality).unwrap_or(self.default);
        let ceiling = rule.and_then(|rule| rule.ceiling);
        let level = match (ceiling, said.criticality) {
            (Some(ceiling), Some(claim)) => claim.min(ceiling),
            _ => given,
        };
        let level = if hidden { level.min(self.least) } else { level };
        priority::lower(level, said.urgency).criticality
    }
}

#[cfg(test)]
mod tests;
