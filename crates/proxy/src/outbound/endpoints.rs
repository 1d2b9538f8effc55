//! Endpoints as people write them.
//!
//! ```text
//! 10.1.2.3:8080            # an address,
//! inventory-7:8080  eu     # or a name; and the datacenter that it is in
//! unix:/run/app.sock
//! ```
//!
//! One a line, in a file or in a list. Anything after `#` is for people. A text with anything wrong
//! in it is refused as a whole: half of a fleet is worse than the fleet of a minute ago.

use super::config::upstream;
use core::fmt;
use tidegate::client::Endpoint;
use tidegate_core::spillover::DatacenterId;

/// Endpoints that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct InvalidEndpoints {
    /// Where they stand; empty where that is known.
    pub place: String,
    /// The line, from 1, where it is one.
    pub line: Option<usize>,
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub right: String,
}

impl InvalidEndpoints {
    pub(crate) fn new(what: impl Into<String>, right: impl Into<String>) -> Self {
        Self { place: String::new(), line: None, what: what.into(), right: right.into() }
    }

    pub(super) fn at(self, place: impl fmt::Display) -> Self {
        Self { place: place.to_string(), ..self }
    }
}

impl fmt::Display for InvalidEndpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}:", self.place)?;
            if let Some(line) = self.line {
                write!(f, "{line}:")?;
            }
            f.write_str(" ")?;
        }
        write!(f, "{}; right: {}", self.what, self.right)
    }
}

/// Reads a whole file. `datacenters` are the names of those that there are.
pub(super) fn parse_all(
    text: &str,
    datacenters: &[String],
) -> Result<Vec<Endpoint>, InvalidEndpoints> {
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let on_line = |error| InvalidEndpoints { line: Some(number), ..error };
        let endpoint = parse(line, datacenters).map_err(on_line)?;
        if endpoints.iter().any(|known| known.address() == endpoint.address()) {
            let what = format!("`{endpoint}` stands there twice");
            return Err(on_line(InvalidEndpoints::new(what, "each endpoint once")));
        }
        endpoints.push(endpoint);
    }
    if endpoints.is_empty() {
        return Err(InvalidEndpoints::new("there is no endpoint in it", "one a line"));
    }
    Ok(endpoints)
}

/// Reads one endpoint, with its datacenter if it says one.
pub(crate) fn parse(text: &str, datacenters: &[String]) -> Result<Endpoint, InvalidEndpoints> {
    let right = "ADDRESS:PORT, NAME:PORT or unix:/PATH, and a datacenter if there are any";
    let mut words = text.split_whitespace();
    let endpoint = Endpoint::new(words.next().unwrap_or(""));
    if upstream(&endpoint).is_err() {
        return Err(InvalidEndpoints::new(format!("`{endpoint}` is no place"), right));
    }
    let datacenter = words.next();
    if let Some(word) = words.next() {
        return Err(InvalidEndpoints::new(format!("`{word}` is one word too many"), right));
    }
    let Some(name) = datacenter else { return Ok(endpoint) };
    match (0..).zip(datacenters).find(|(_, known)| *known == name) {
        Some((number, _)) => Ok(endpoint.in_datacenter(DatacenterId(number))),
        None if datacenters.is_empty() => {
            let what = format!("`{name}` is no datacenter, as there are none");
            Err(InvalidEndpoints::new(what, "no second word, or `datacenters` of the service"))
        }
        None => {
            let what = format!("`{name}` is no datacenter of the service");
            Err(InvalidEndpoints::new(what, datacenters.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        vec!["eu".to_owned(), "us".to_owned()]
    }

    #[test]
    fn what_people_write() {
        let text = "# all of them\n10.0.0.1:80\n\n  app-2:80 us  # new\nunix:/run/a.sock\teu\n";
        let all = parse_all(text, &names()).unwrap();
        let found: Vec<_> = all.iter().map(|e| (e.address(), e.datacenter())).collect();
        let (eu, us) = (DatacenterId(0), DatacenterId(1));
        assert_eq!(
            found,
            [("10.0.0.1:80", None), ("app-2:80", Some(us)), ("unix:/run/a.sock", Some(eu))]
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, line, what) in [
            ("", None, "no endpoint"),
            ("# none\n", None, "no endpoint"),
            ("a:1\nb", Some(2), "`b` is no place"),
            ("a:1 mars", Some(1), "`mars` is no datacenter"),
            ("a:1 eu now", Some(1), "`now` is one word too many"),
            ("a:1\n\na:1 eu", Some(3), "`a:1` stands there twice"),
        ] {
            let error = parse_all(text, &names()).unwrap_err();
            assert_eq!(error.line, line, "{text:?}");
            assert!(error.what.contains(what), "{text:?}: {error}");
            let said = error.at("hosts.txt").to_string();
            assert!(said.starts_with("hosts.txt:") && said.contains("; right: "), "{said}");
        }
        assert!(parse("a:1 eu", &[]).unwrap_err().right.contains("datacenters"));
    }
}
