//! How things stand, as text.

use super::view::View;
use crate::explain::utc;
use std::fmt::Write as _;
use tidegate::admin::api::Snapshot;

/// As many decisions as one reads.
const DECISIONS: usize = 10;

/// Three digits, or that nobody knows.
pub(super) fn brief(number: impl Into<Option<f64>>) -> String {
    let Some(number) = number.into().filter(|number| number.is_finite()) else {
        return "-".to_owned();
    };
    match number.abs() {
        size if size >= 1e6 => format!("{:.1}M", number / 1e6),
        size if size >= 1e4 => format!("{:.1}k", number / 1e3),
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        0.0 => "0".to_owned(),
        _ => format!("{number:.2}"),
    }
}

/// For how long, in words.
pub(super) fn span(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
    }
}

/// `goodput 370/s of 2500/s, …`
pub(super) fn figures(snapshot: &Snapshot) -> Vec<(&'static str, String)> {
    let (work, latency) = (&snapshot.work, &snapshot.latency);
    let rate = |rate: Option<f64>| format!("{}/s", brief(rate));
    vec![
        ("offered", rate(Some(work.offered))),
        ("admitted", rate(Some(work.admitted))),
        ("goodput", rate(Some(work.good))),
        ("capacity", rate(work.capacity)),
        ("rejected", rate(Some(work.rejected))),
        ("p99", format!("{} ms", brief(latency.p99_ms))),
        ("in flight", work.inflight.to_string()),
    ]
}

/// One block to a panel of the page.
pub(super) fn text(view: &View) -> String {
    let snapshot = &view.snapshot;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = header(&mut text, snapshot);
    let _ = tables(&mut text, snapshot);
    if !view.events.is_empty() {
        let _ = writeln!(text, "\nlast decisions");
        for event in view.events.iter().take(DECISIONS) {
            let _ = writeln!(text, "  {}  {}  {}", utc(event.at_ms), event.id, event.text);
        }
    }
    text
}

fn header(text: &mut String, snapshot: &Snapshot) -> std::fmt::Result {
    let Snapshot { service, part, state, at_ms, .. } = snapshot;
    let parts = if snapshot.parts.len() > 1 { format!(" ({part})") } else { String::new() };
    writeln!(text, "{service}{parts}: {}", state.sentence)?;
    let retry = if state.dont_retry { "; tells callers not to retry" } else { "" };
    let for_so_long = span(at_ms.saturating_sub(state.since_ms));
    writeln!(text, "since {}, {for_so_long}{retry}\n", utc(state.since_ms))?;
    for (name, figure) in figures(snapshot) {
        writeln!(text, "  {name:<10} {figure:>10}")?;
    }
    Ok(())
}

fn tables(text: &mut String, snapshot: &Snapshot) -> std::fmt::Result {
    writeln!(text, "\n{:<16}{:>10}{:>10}{:>10}", "criticality", "admitted", "rejected", "goodput")?;
    for level in &snapshot.levels {
        let [admitted, rejected, good] = [level.admitted, level.rejected, level.good].map(brief);
        writeln!(text, "{:<16}{admitted:>10}{rejected:>10}{good:>10}", level.criticality)?;
    }
    writeln!(text, "\n{:<22}{:>10}{:>10}{:>10}", "signal", "value", "target", "ratio")?;
    for signal in &snapshot.signals {
        let (value, target, ratio) =
            (brief(signal.value), brief(signal.target), brief(signal.ratio));
        let decides = if signal.decides { "  decides" } else { "" };
        writeln!(text, "{:<22}{value:>10}{target:>10}{ratio:>10}{decides}", signal.name)?;
    }
    let thresholds = snapshot.thresholds.iter();
    let thresholds: Vec<String> =
        thresholds.map(|t| format!("{} from {}", t.criticality, brief(t.ratio))).collect();
    writeln!(text, "shed by ratio: {}", thresholds.join(", "))?;
    writeln!(text, "\n{:<22}{:<22}{:>10}{:>10}", "rejected for", "where", "a second", "in all")?;
    for row in &snapshot.rejections {
        let (rate, total) = (brief(row.rate), brief(row.total as f64));
        writeln!(text, "{:<22}{:<22}{rate:>10}{total:>10}", row.reason, row.place)?;
    }
    writeln!(text, "\n{:<22}{:>10}{:>10}{:>10}", "customer, in CPUs", "used", "wanted", "limit")?;
    for customer in &snapshot.customers {
        let (used, wanted) = (brief(customer.used), brief(customer.wanted));
        let limit = customer.limit.map_or_else(|| "none".to_owned(), brief);
        writeln!(text, "{:<22}{used:>10}{wanted:>10}{limit:>10}", customer.name)?;
    }
    let retries = &snapshot.retries;
    let [first, second, third] = retries.attempts.map(brief);
    writeln!(text, "\nattempts: {first}/s first, {second}/s second, {third}/s later")?;
    for client in &snapshot.clients {
        let held = client.throttle.iter().map(|t| t.probability).fold(0.0, f64::max);
        let (held, left) = (brief(held * 100.0), brief(client.budget_left));
        writeln!(text, "asks {}: up to {held} % held back, budget {left}", client.service)?;
    }
    for backend in &snapshot.backends {
        let share = brief(backend.share.map(|share| share * 100.0));
        let load = brief(backend.load);
        writeln!(
            text,
            "  {:<22} {share:>6} %  load {load:>5}  {}",
            backend.endpoint, backend.state
        )?;
    }
    writeln!(text, "quota: {}", snapshot.quota.sentence)
}
