use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use tidegate::admin::api::{Explanation, Update};

/// A task in a surge, as a server tells of it.
fn update() -> Update {
    let json = r#"{
        "snapshot": {
            "service": "checkout", "part": "checkout", "parts": ["checkout"], "version": "0.1.0",
            "at_ms": 1000090000, "began_ms": 1000000000,
            "state": {"kind": "shedding", "since_ms": 1000015000, "dont_retry": true,
                "sentence": "Shedding SHEDDABLE because queue was 2.3 over 0.85"},
            "work": {"offered": 2530, "admitted": 369, "good": 360, "rejected": 2161,
                "capacity": 368, "inflight": 3},
            "latency": {"p99_ms": 34.2},
            "levels": [
                {"criticality": "CRITICAL_PLUS", "admitted": 149, "rejected": 0, "good": 149},
                {"criticality": "SHEDDABLE", "admitted": 64, "rejected": 968, "good": 63}],
            "signals": [
                {"name": "queue", "value": 0.9, "target": 1, "ratio": 0.9, "decides": true}],
            "thresholds": [{"criticality": "SHEDDABLE", "ratio": 0.85}],
            "rejections": [
                {"reason": "overloaded", "place": "at the gate", "rate": 2161, "total": 9}],
            "customers": [{"name": "shop", "used": 0.2, "wanted": 0.3, "limit": 0.6}],
            "quota": {"sentence": "No quota server"}
        },
        "series": {"columns": ["offered", "good", "capacity", "p99"], "rows": [
            [1000089000, [200, 200, 368, 8.1]], [1000090000, [2530, 360, 368, null]]]},
        "events": [
            {"id": "change-1", "at_ms": 1000015000, "change": true, "text": "Began to shed"},
            {"id": "00000000000000ab", "at_ms": 1000089500,
             "text": "Refused SHEDDABLE, overloaded"}]
    }"#;
    serde_json::from_str(json).unwrap()
}

fn drawn(view: &View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn everything_that_matters_is_on_a_screen() {
    let mut view = View::default();
    view.take(update());
    let screen = drawn(&view, 140, 45);
    for words in [
        "checkout  tidegate 0.1.0, up 1 min 30 s",
        "Shedding SHEDDABLE because queue was 2.3 over 0.85",
        "for 1 min 15 s, tells callers not to retry",
        "offered 2530/s",
        "goodput 360/s",
        "p99 34.2 ms",
        "requests a second",
        "CRITICAL_PLUS",
        "queue",
        "shop",
        "last decisions",
        "Refused SHEDDABLE, overloaded",
        "q leave",
    ] {
        assert!(screen.contains(words), "no {words} in\n{screen}");
    }
    // The highest of what was offered, with a little room.
    assert!(screen.contains("2656"), "{screen}");
}

#[test]
fn small_screens_have_the_sentence_and_the_decisions() {
    let mut view = View::default();
    view.take(update());
    for (width, height) in [(80, 24), (60, 14), (20, 6), (1, 1)] {
        let screen = drawn(&view, width, height);
        if height >= 14 {
            assert!(screen.contains("Shedding SHEDDABLE"), "{screen}");
            assert!(screen.contains("Refused SHEDDABLE"), "{screen}");
        }
    }
    drawn(&View::default(), 100, 40);
}

#[test]
fn keys_choose_explain_pause_and_leave() {
    let mut view = View::default();
    view.take(update());
    let explain = |id: &str| {
        let mut explained = Explanation::default();
        explained.title = format!("because of {id}");
        (id != "change-1").then_some(explained)
    };
    assert!(view.press(KeyCode::Enter, explain));
    assert!(drawn(&view, 100, 40).contains("because of 00000000000000ab"));
    // Any key closes it.
    assert!(view.press(KeyCode::Char('x'), explain));
    assert!(view.explained.is_none());
    view.press(KeyCode::Down, explain);
    view.press(KeyCode::Enter, explain);
    assert!(drawn(&view, 100, 40).contains("no more is remembered"));
    view.press(KeyCode::Esc, explain);
    // What is chosen stays so while others come.
    let mut more = update();
    more.events[0].id = "change-2".to_owned();
    view.take(more);
    assert_eq!(view.events[view.chosen].id, "change-1");
    view.press(KeyCode::Char(' '), explain);
    assert!(drawn(&view, 100, 40).contains("paused"));
    let before = view.offered.0.len();
    view.take(update());
    assert_eq!(view.offered.0.len(), before);
    assert!(!view.press(KeyCode::Char('q'), explain));
}

#[test]
fn a_history_that_comes_twice_is_there_once() {
    let mut view = View::default();
    view.take(update());
    view.take(update());
    assert_eq!((view.offered.0.len(), view.events.len()), (2, 2));
    assert_eq!(view.events[0].id, "00000000000000ab", "newest first");
    view.away = true;
    assert!(drawn(&view, 100, 40).contains("does not answer"));
}

#[test]
fn without_a_terminal_it_is_the_same_as_text() {
    let mut view = View::default();
    view.take(update());
    let text = crate::top::text::text(&view);
    for line in [
        "checkout: Shedding SHEDDABLE because queue was 2.3 over 0.85",
        "since 13:46:55.000 UTC, 1 min 15 s; tells callers not to retry",
        "  goodput         360/s",
        "SHEDDABLE             64.0       968      63.0",
        "queue                       0.90      1.00      0.90  decides",
        "shed by ratio: SHEDDABLE from 0.85",
        "overloaded            at the gate                 2161      9.00",
        "shop                        0.20      0.30      0.60",
        "quota: No quota server",
        "  13:48:09.500 UTC  00000000000000ab  Refused SHEDDABLE, overloaded",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
}
