//! The page in a real Chromium: it shows, it asks nobody else, and it comes back.

use crate::chromium::Browser;
use crate::stage::{CALM, SURGE, Stage};
use base64::Engine as _;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const PANELS: [&str; 12] = [
    "state",
    "work",
    "levels",
    "latency",
    "signals",
    "rejections",
    "customers",
    "retries",
    "throttle",
    "backends",
    "quota",
    "decisions",
];

/// What stands in a panel.
fn text(browser: &mut Browser, panel: &str) -> String {
    let asked = format!("document.querySelector('[data-panel={panel}]').innerText");
    browser.ask(&asked).as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_page_shows_everything_and_asks_nobody_else() {
    let Some(mut browser) = Browser::start(1280, 900) else { return };
    let stage = Stage::begin();
    let page = stage.page(0);
    let origin = format!("http://{}/", page.address());
    browser.open(&origin);
    browser.until("document.querySelectorAll('[data-filled=true]').length === 11");
    // One a second: three of them are three seconds.
    let updates = browser.ask("Number(document.body.dataset.updates)");
    assert!(updates.as_u64().is_some_and(|updates| updates <= 3), "{updates}");
    let order = browser.ask("[...document.querySelectorAll('.panel')].map((p) => p.dataset.panel)");
    assert_eq!(order, Value::from(PANELS.to_vec()));
    // What the canvas shows is there as text.
    browser.until("document.querySelector('[data-panel=work] tbody td').innerText !== '0'");
    for (panel, words) in [
        ("state", &["since ", "Offered", "Goodput", "Capacity", "p99"][..]),
        ("work", &["offered", "admitted", "goodput", "capacity", "lowest", "highest"]),
        ("levels", &["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"]),
        ("latency", &["p99", "p90", "p50"]),
        ("signals", &["executor_load", "target", "CRIT+", "SHED+"]),
        ("rejections", &["overloaded", "at the gate", "throttled", "before inventory"]),
        ("customers", &["shop", "partner", "everyone else", "limit", "granted"]),
        ("retries", &["first attempt", "second attempt", "budget left for inventory"]),
        ("throttle", &["inventory", "%"]),
        ("backends", &["10.0.0.1:80", "10.0.0.3:80", "serving"]),
        ("quota", &["No quota server"]),
    ] {
        let found = text(&mut browser, panel);
        for word in words {
            assert!(found.contains(word), "no {word} in {panel}:\n{found}");
        }
    }
    let drawn = browser.ask("document.querySelectorAll('.chart:not([hidden]) canvas').length");
    assert_eq!(drawn, 8);

    stage.callers(SURGE);
    browser.until("document.querySelector('.state').dataset.kind === 'shedding'");
    let said = text(&mut browser, "state");
    assert!(said.contains("Shedding ") && said.contains(" because "), "{said}");
    browser.until("document.querySelectorAll('.decisions button').length > 3");
    // Changes are marked, so there is one.
    browser.until("document.querySelector('.decisions .change') !== null");

    keyboard(&mut browser);

    assert_eq!(browser.complaints(), [""; 0]);
    let requests = browser.requests();
    assert!(requests.iter().any(|url| url.ends_with("/api/stream?parts=all")), "{requests:?}");
    let foreign = |url: &&String| !url.starts_with(&origin) && !url.starts_with("data:");
    assert_eq!(requests.iter().find(foreign), None);

    comes_back(&mut browser, &stage, page);
    // Nobody comes, so that it is well however busy the machine is with others.
    stage.callers(0);
    browser.until("document.querySelector('.state').dataset.kind === 'healthy'");
}

/// Everything is reached without a mouse.
fn keyboard(browser: &mut Browser) {
    let focused = "document.activeElement.closest('[data-panel]')?.dataset.panel";
    browser.press("Tab");
    assert_eq!(browser.ask("document.activeElement.className"), "skip");
    browser.press("j");
    assert_eq!(browser.ask(focused), "state");
    browser.press("j");
    assert_eq!(browser.ask(focused), "work");
    browser.press("k");
    assert_eq!(browser.ask(focused), "state");
    browser.press("1");
    assert_eq!(browser.ask("document.querySelector('[data-span=\"60\"]').ariaPressed"), "true");
    browser.press("d");
    assert_eq!(browser.ask(focused), "decisions");
    browser.press("ArrowDown");
    browser.press("Enter");
    browser.until("document.querySelectorAll('#explanation[open] dd').length > 0");
    browser.until("document.querySelectorAll('#explanation[open] li').length > 0");
    browser.press("Escape");
    browser.until("document.querySelector('dialog[open]') === null");
    // Whoever closes it is where they were.
    assert_eq!(browser.ask(focused), "decisions");
    browser.press("?");
    browser.until("document.querySelector('#keys[open]') !== null");
    browser.press("Escape");
    browser.until("document.querySelector('dialog[open]') === null");
    let theme = "document.documentElement.dataset.theme";
    let page = "getComputedStyle(document.documentElement).backgroundColor";
    // As the system has it, at once and when that changes, until somebody chooses.
    for (scheme, colour) in [("dark", "rgb(14, 21, 27)"), ("light", "rgb(244, 246, 248)")] {
        browser.prefer(scheme);
        browser.until(&format!("{theme} === '{scheme}'"));
        assert_eq!(browser.ask(page), colour);
    }
    browser.press("t");
    assert_eq!(browser.ask(page), "rgb(14, 21, 27)");
    browser.press("t");
    assert_eq!(browser.ask(theme), "light");
}

/// The server goes and comes again, and what was seen before is still there.
fn comes_back(browser: &mut Browser, stage: &Stage, page: tidegate::admin::Page) {
    let port = page.address().port();
    let before = browser.ask("views[0].series.times[0]");
    drop(page);
    browser.until("!document.querySelector('#away').hidden");
    // Long enough for a gap that can be seen.
    browser.until("Date.now() - views[0].heard > 3500");
    let updates = browser.ask("Number(document.body.dataset.updates)").as_u64().unwrap();
    let page = stage.page(port);
    browser.until("document.querySelector('#away').hidden");
    browser.until(&format!("Number(document.body.dataset.updates) > {}", updates + 2));
    assert_eq!(browser.ask("views[0].series.times[0]"), before);
    let gap = "views[0].series.column('offered').includes(null)";
    assert_eq!(browser.ask(gap), true);
    assert!(text(browser, "decisions").contains("The server was started anew"));
    // It is served until the test has seen it.
    std::mem::forget(page);
}

#[test]
fn parts_stand_side_by_side_and_a_phone_shows_one_column() {
    let Some(mut browser) = Browser::start(1280, 900) else { return };
    let stage = Stage::begin();
    let bare = || {
        let mut snapshot = tidegate::admin::api::Snapshot::default();
        snapshot.service = "checkout".to_owned();
        snapshot.state.sentence = "Nobody looks after it".to_owned();
        snapshot
    };
    let admin = tidegate::admin::Admin::empty().part("protected", &stage.task);
    let page = admin.source("bare", bare).spawn("127.0.0.1:0").unwrap();
    browser.open(&format!("http://{}/", page.address()));
    browser.until("document.querySelectorAll('.part').length === 2");
    browser.until("document.querySelectorAll('.part')[1].innerText.includes('Nobody looks')");
    // Six connections are all that a browser has for a host: one stream is for all parts.
    let updates = "Number(document.body.dataset.updates) >= 6";
    browser.until(updates);
    let streams = browser.requests().into_iter().filter(|url| url.contains("/api/stream"));
    assert_eq!(streams.count(), 1);
    let tops = "[...document.querySelectorAll('.part')].map((p) => p.getBoundingClientRect().top)";
    let tops = browser.ask(tops);
    assert_eq!(tops[0], tops[1], "side by side");
    browser.open(&format!("http://{}/?part=protected", page.address()));
    browser.until("document.querySelectorAll('[data-filled=true]').length === 11");
    assert_eq!(browser.ask("document.querySelectorAll('.part').length"), 1);
    browser.resize(360, 740);
    browser.until("document.documentElement.clientWidth === 360");
    // Nothing sticks out to the side.
    browser.until("document.documentElement.scrollWidth <= 360");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// A quota server's page has a panel that tasks have not.
#[test]
fn who_was_over_is_there_as_text_and_reached_by_keys() {
    let Some(mut browser) = Browser::start(1280, 900) else { return };
    let stage = Stage::begin();
    let was_over = |customer: &str, ended_ms| {
        let mut over = tidegate::admin::api::Over::default();
        customer.clone_into(&mut over.customer);
        (over.began_ms, over.ended_ms, over.wanted_max) = (1_000, ended_ms, 20.0);
        over.sentence = format!("{customer} asked for <b>more</b>");
        over
    };
    let quota = move || {
        let mut snapshot = tidegate::admin::api::Snapshot::default();
        snapshot.overs = Some(vec![was_over("gmail", None), was_over("<i>crawler</i>", Some(9))]);
        snapshot
    };
    let admin = tidegate::admin::Admin::empty().source("search", quota);
    let page = admin.part("task", &stage.task).spawn("127.0.0.1:0").unwrap();
    browser.open(&format!("http://{}/", page.address()));
    browser.until("document.querySelectorAll('[data-panel=overs][data-filled=true]').length === 1");
    browser.until("document.querySelectorAll('.part').length === 2");
    let found = text(&mut browser, "overs");
    for word in ["1 over now", "gmail", "goes on", "<i>crawler</i>", "asked for <b>more</b>"] {
        assert!(found.contains(word), "no {word} in:\n{found}");
    }
    // Between customers and retries, and only where somebody knows.
    let order = "[...document.querySelectorAll('.part')].map((part) => \
                 [...part.querySelectorAll('.panel')].map((p) => p.dataset.panel).join())";
    let with = PANELS.join(",").replace("customers,", "customers,overs,");
    assert_eq!(browser.ask(order), serde_json::json!([with, PANELS.join(",")]));
    browser.press("Tab");
    for _ in 0..=PANELS.iter().position(|panel| *panel == "customers").unwrap() + 1 {
        browser.press("j");
    }
    let focused = "document.activeElement.closest('[data-panel]')?.dataset.panel";
    assert_eq!(browser.ask(focused), "overs");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// `UPDATE_SCREENSHOTS=1` takes the pictures of the documentation anew, from a run of a minute.
#[test]
fn the_documentation_has_its_pictures() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let pictures = [
        ("dashboard-light.png", "light", 1280, 900),
        ("dashboard-dark.png", "dark", 1280, 900),
        ("dashboard-phone.png", "light", 360, 1400),
    ];
    if std::env::var_os("UPDATE_SCREENSHOTS").is_some() {
        let mut browser = Browser::start(1280, 900).expect("TIDEGATE_PEERS is set");
        let stage = Stage::begin();
        let page = stage.page(0);
        browser.open(&format!("http://{}/", page.address()));
        for (callers, seconds) in [(CALM, 25), (SURGE, 22), (CALM, 8), (SURGE, 8)] {
            stage.callers(callers);
            std::thread::sleep(Duration::from_secs(seconds));
        }
        browser.press("1");
        for (name, scheme, width, height) in pictures {
            browser.prefer(scheme);
            browser.resize(width, height.min(900));
            std::thread::sleep(Duration::from_secs(2));
            let picture = browser.picture(width, height);
            let bytes = base64::engine::general_purpose::STANDARD.decode(picture).unwrap();
            std::fs::write(docs.join(name), bytes).unwrap();
        }
    }
    for (name, ..) in pictures {
        let bytes = std::fs::read(docs.join(name)).unwrap_or_default();
        assert!(bytes.starts_with(b"\x89PNG"), "no {name}");
        assert!(bytes.len() < 400_000, "{name} has {} bytes", bytes.len());
    }
}
