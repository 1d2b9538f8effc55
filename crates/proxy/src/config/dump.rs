//! What a proxy runs by, for people to read: every key with its value, also those that nobody has
//! set, and nothing that only some may know.
//!
//! A configuration names keys and certificates by their files and never has them inside. What may
//! be secret in it are the queries of URLs (`?token=…`) that signals, checks and warming up ask
//! for, so whatever follows a question mark is left out: in a text to its end, elsewhere to the end
//! of its line, as paths are shown without quotation marks.

use core::fmt::Debug;

/// A configuration as text.
pub(crate) fn dump(config: &impl Debug) -> String {
    without_queries(&format!("{config:#?}\n"))
}

/// Cuts values off at their first question mark.
fn without_queries(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut quoted, mut hidden, mut escaped) = (false, false, false);
    for c in text.chars() {
        if hidden && !quoted {
            // Each value has a line of its own; whatever else is there may be part of a query.
            if c != '\n' {
                continue;
            }
            hidden = false;
        }
        let ends = c == '"' && !escaped;
        escaped = quoted && c == '\\' && !escaped;
        if ends {
            (quoted, hidden) = (!quoted, false);
        }
        if hidden {
            continue;
        }
        out.push(c);
        if c == '?' {
            hidden = true;
            out.push('…');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, PrewarmConfig, SignalConfig, Source, Upstream};

    #[test]
    fn what_follows_a_question_mark_is_nobodys_business() {
        for (text, left) in [
            ("a: /b?token=1,2)\nc: 1", "a: /b?…\nc: 1"),
            ("a: /b?x=\"token\"y\nc: 1", "a: /b?…\nc: 1"),
            (r#"a: "b", c: "d""#, r#"a: "b", c: "d""#),
            (r#"a: "/b?token=1", c: "d""#, r#"a: "/b?…", c: "d""#),
            (r#"a: "/b?\"x", c: "?""#, r#"a: "/b?…", c: "?…""#),
            (r#"a: "\\", c: "?x""#, r#"a: "\\", c: "?…""#),
        ] {
            assert_eq!(without_queries(text), left);
        }
    }

    #[test]
    fn every_key_is_there_and_no_secret() {
        let upstream = Upstream::Name("app:80".to_owned());
        let mut config = Config::new("127.0.0.1:1".parse().unwrap(), upstream);
        let source = Source::Url {
            authority: "queue:80".to_owned(),
            path: "/lag?token=very-secret".to_owned(),
        };
        config.signals.push(SignalConfig::new("lag".to_owned(), source, 7.0));
        let warm = "/warm?token=very-secret".parse().unwrap();
        config.prewarm = Some(PrewarmConfig::new(vec![warm]));
        let text = dump(&config);
        for part in
            ["app:80", "dark: true", "answer_timeout", "/lag?…", "/warm?…", "open_max: 10000"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("very-secret"), "{text}");
    }
}
