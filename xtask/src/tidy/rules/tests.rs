use super::*;

/// What is said about a file.
fn said(path: &str, text: &str) -> Vec<String> {
    let source = Source::new(path, text);
    let findings = RULES.iter().flat_map(|rule| rule.check(&source));
    findings.map(|finding| finding.to_string()).collect()
}

#[test]
fn each_rule_catches_what_breaks_it() {
    let long = format!("fn f() {{}}\n// {}\n", "word ".repeat(20));
    let endless = "// line\n".repeat(701);
    let fix_me = format!("fn f() {{}} // {}: later\n", concat!("FIX", "ME"));
    let marked = format!("\n/* {} */\n", concat!("X", "XX"));
    let work = format!("see {}main\n", concat!("/wo", "rk/"));
    let home = format!("path = \"{}.cargo\"\n", concat!("/ro", "ot/"));
    let own_lints = "[package]\nname = \"a\"\n\n[lints.rust]\nunsafe_code = \"deny\"\n";
    let bare = "[package]\nname = \"a\"\n\n[lints.rust]\nworkspace = true\n";
    let cases = [
        ("src/a.rs", long.as_str(), "src/a.rs:2: more than 100 columns"),
        ("src/a.rs", &endless, "src/a.rs:701: more than 700 lines"),
        ("src/a.rs", "fn f() {\n\tg();\n}\n", "src/a.rs:2: a tab"),
        ("docs/a.md", "a\tb\n", "docs/a.md:1: a tab"),
        ("src/a.rs", &fix_me, "src/a.rs:1: unfinished"),
        ("src/a.rs", &marked, "src/a.rs:2: unfinished"),
        ("src/a.rs", "fn f() {\n    todo!()\n}\n", "src/a.rs:2: unfinished"),
        ("src/a.rs", "core::unimplemented!(\"b\")\n", "src/a.rs:1: unfinished"),
        ("src/a.rs", "#[test]\n#[ignore]\nfn f() {}\n", "src/a.rs:2: a test"),
        ("src/a.rs", "#[ignore = \"slow\"]\n", "src/a.rs:1: a test"),
        ("src/a.rs", "#[cfg_attr(miri, ignore)]\n", "src/a.rs:1: a test"),
        ("src/a.rs", "let a = unsafe { b() };\n", "src/a.rs:1: unsafe code"),
        (
            "crates/core/src/a.rs",
            "use core::sync::atomic::AtomicU8;\n",
            "crates/core/src/a.rs:1: gates",
        ),
        ("crates/core/src/a.rs", "use std::sync::{Arc, Mutex};\n", "crates/core/src/a.rs:1: gates"),
        (
            "crates/core/src/a/b.rs",
            "\nloom::thread::yield_now()\n",
            "crates/core/src/a/b.rs:2: gates",
        ),
        ("crates/a/Cargo.toml", bare, "crates/a/Cargo.toml:1: a manifest"),
        ("crates/a/Cargo.toml", own_lints, "crates/a/Cargo.toml:1: a manifest"),
        ("crates/meter/Cargo.toml", bare, "crates/meter/Cargo.toml:1: a manifest"),
        ("crates/meter/src/a.rs", "unsafe { b() }\n", "crates/meter/src/a.rs:1: unsafe code"),
        ("notes.txt", &work, "notes.txt:1: a path"),
        ("a.toml", &home, "a.toml:1: a path"),
    ];
    for (path, text, expected) in cases {
        let said = said(path, text);
        assert_eq!(said.len(), 1, "{path} {text:?}: {said:?}");
        assert!(said[0].starts_with(expected), "{expected}: {said:?}");
    }
}

#[test]
fn no_rule_catches_what_only_looks_like_it() {
    let link = format!("//! See <https://example.com/{}>.\n", "a".repeat(100));
    let numbers = format!("    {}\n", "0x1f, ".repeat(30));
    let row = format!("/// | {} |\n", "cell | ".repeat(20));
    let accents = format!("// {}\n", "é".repeat(97));
    let full = "// line\n".repeat(700);
    let longer = "// line\n".repeat(701);
    let url = format!("https://example.com{}a\n", concat!("/wo", "rk/"));
    let lints = "[package]\nname = \"a\"\n\n[lints]\n# All.\nworkspace = true\n";
    let cases = [
        ("src/a.rs", link.as_str()),
        ("src/a.rs", &numbers),
        ("src/a.rs", &row),
        ("src/a.rs", &accents),
        ("src/a.rs", &full),
        ("src/a/tests.rs", &longer),
        ("src/generated/a.rs", &longer),
        ("src/a.rs", "// Not todo!(), nor #[ignore], nor unsafe.\n"),
        ("src/a.rs", "let a = \"todo!() #[ignore] unsafe\";\n"),
        ("src/a.rs", "#![forbid(unsafe_code)]\n"),
        ("src/a.rs", "let todo = !ignore; my_todo!();\n"),
        ("src/a.rs", concat!("// X", "XXL is a size.\n")),
        ("crates/core/src/sync.rs", "use core::sync::atomic::AtomicU8;\n"),
        ("crates/core/src/a.rs", "use crate::sync::{AtomicU8, Mutex};\nuse std::sync::Arc;\n"),
        ("crates/core/tests/a.rs", "use std::sync::atomic::AtomicU8;\n"),
        ("Makefile", "all:\n\tcargo build\n"),
        ("crates/a/Cargo.toml", lints),
        ("crates/meter/Cargo.toml", "[package]\n[lints.rust]\nunsafe_code = \"deny\"\n"),
        ("crates/meter/src/sys/tsc.rs", "unsafe { b() }\n"),
        ("Cargo.toml", "[workspace]\nmembers = []\n"),
        ("notes.txt", &url),
    ];
    for (path, text) in cases {
        assert_eq!(said(path, text), [""; 0], "{path} {text:?}");
    }
}
