//! What came of a run, for people at a terminal.
//!
//! The first lines say what was asked and what of it was good, then come latencies, then what went
//! wrong, by criticality; at the end whether the generator itself can be believed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use tidegate_load::report::{Fates, Spans};
use tidegate_load::{Load, Plan, Report};

/// Writes to a `String` do not fail.
macro_rules! line {
    ($out:expr, $($arguments:tt)*) => { _ = writeln!($out, $($arguments)*) };
}

pub(super) fn text(plan: &Plan, report: &Report, colours: bool) -> String {
    let (bold, plain) = if colours { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    let mut out = String::new();
    let seconds = report.seconds;
    line!(out, "{bold}{}{plain}", report.target);
    let early = if report.ended_early { ", ended early" } else { "" };
    line!(
        out,
        "  {}, {}, {seconds:.1} s{early}, retry {}, throttle {}",
        report.protocol,
        match report.arrivals {
            "closed" => "closed loop".to_owned(),
            spacing => format!("{spacing} arrivals"),
        },
        report.retry,
        if report.throttle { "on" } else { "off" },
    );
    rates(&mut out, report, bold, plain);
    latencies(&mut out, report, bold, plain);
    levels(&mut out, report, bold, plain);
    if report.amplification > 1.0 || !report.given_up.is_empty() {
        line!(out, "\n{bold}retries{plain}");
        line!(out, "  amplification  {:.3} attempts a request", report.amplification);
        if !report.given_up.is_empty() {
            line!(out, "  not made       {}", list(&report.given_up));
        }
    }
    if !report.total.errors.is_empty() {
        line!(out, "\n{bold}no answer{plain}");
        for (kind, count) in &report.total.errors {
            line!(out, "  {count:>9}  {kind}{}", hint(kind));
        }
    }
    generator(&mut out, plan, report, bold, plain);
    out
}

fn rates(out: &mut String, report: &Report, bold: &str, plain: &str) {
    let total = &report.total;
    line!(out, "\n{bold}requests           count      /s       %{plain}");
    let mut row = |name: &str, count: u64, rate: f64| {
        let share =
            if total.offered == 0 { 0.0 } else { 100.0 * count as f64 / total.offered as f64 };
        line!(out, "  {name:<12} {count:>10} {rate:>8.1} {share:>6.2}");
    };
    let rate = |count: u64| if report.seconds > 0.0 { count as f64 / report.seconds } else { 0.0 };
    row("offered", total.offered, report.offered_rps);
    row("sent", total.sent, rate(total.sent));
    row("ok", total.ok, report.ok_rps);
    row("goodput", total.good, report.goodput_rps);
    for (name, count) in [
        ("failed", total.failed),
        ("throttled", total.throttled),
        ("not sent", total.not_sent.values().sum()),
        ("unfinished", total.unfinished),
    ] {
        if count > 0 {
            row(name, count, rate(count));
        }
    }
    if !total.not_sent.is_empty() {
        line!(out, "  not sent because: {}", why_not_sent(&total.not_sent));
    }
    line!(
        out,
        "  received {}, sent {} in {} new connections",
        bytes(report.bytes_received),
        bytes(report.bytes_sent),
        report.connections_made,
    );
}

fn latencies(out: &mut String, report: &Report, bold: &str, plain: &str) {
    line!(
        out,
        "\n{bold}latency, ms         mean     p50     p90     p95     p99   p99.9     max{plain}"
    );
    let mut row = |name: &str, spans: Option<Spans>| {
        let Some(s) = spans else { return };
        line!(
            out,
            "  {name:<14} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}",
            number(s.mean),
            number(s.p50),
            number(s.p90),
            number(s.p95),
            number(s.p99),
            number(s.p999),
            number(s.max),
        );
    };
    let closed = report.arrivals == "closed";
    row(if closed { "ok" } else { "ok, as due" }, report.latency_ms);
    if !closed {
        row("ok, as sent", report.service_ms);
    }
    row("not ok", report.unhappy_ms);
}

fn levels(out: &mut String, report: &Report, bold: &str, plain: &str) {
    line!(
        out,
        "\n{bold}criticality        offered      good   good %     p50     p99   answers{plain}"
    );
    for name in ["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"] {
        let Some(fates) = report.criticality.get(name) else { continue };
        let Fates { offered, good, success, latency_ms, .. } = fates;
        let (p50, p99) = latency_ms.map_or(("-".to_owned(), "-".to_owned()), |spans| {
            (number(spans.p50), number(spans.p99))
        });
        let answers: Vec<String> = [&fates.statuses, &fates.reasons, &fates.errors]
            .into_iter()
            .filter(|counts| !counts.is_empty())
            .map(list)
            .collect();
        let answers = answers.join("; ");
        let success = 100.0 * success;
        line!(
            out,
            "  {name:<14} {offered:>9} {good:>9} {success:>8.2} {p50:>7} {p99:>7}   {answers}"
        );
    }
}

fn generator(out: &mut String, plan: &Plan, report: &Report, bold: &str, plain: &str) {
    let generator = &report.generator;
    line!(out, "\n{bold}generator{plain}");
    let each = generator.cpu_us_per_attempt.map_or("-".to_owned(), |us| format!("{us:.1} µs"));
    line!(
        out,
        "  CPU {:.2} s, {each} an attempt; the busiest thread at {:.0} %",
        generator.cpu_seconds,
        100.0 * generator.busiest,
    );
    if let Some(late) = generator.late_ms {
        let kept = if generator.kept_schedule { "kept" } else { "NOT kept" };
        line!(
            out,
            "  schedule {kept}: late by p50 {}, p99 {}, max {}; {} waited for a connection",
            ms(late.p50),
            ms(late.p99),
            ms(late.max),
            generator.queued,
        );
    } else {
        line!(
            out,
            "  closed loop: what slow answers kept from being asked is not in these figures"
        );
    }
    let open = !matches!(plan.course.load, Load::Closed { .. });
    if open && generator.busiest > 0.9 {
        line!(out, "  a thread was busy most of the time: give it more --threads, or less to do");
    } else if open && !generator.kept_schedule && report.total.not_sent.is_empty() {
        line!(out, "  it had little to do and was late: something else has this machine's CPUs");
    }
    line!(out, "  seed {}: the same again with --seed {}", report.seed, report.seed);
}

fn list(counts: &BTreeMap<String, u64>) -> String {
    let list: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    list.join(", ")
}

fn why_not_sent(counts: &BTreeMap<String, u64>) -> String {
    let list: Vec<String> = counts
        .iter()
        .map(|(code, count)| match code.as_str() {
            "no_connection" => format!(
                "{count} found no free connection before their callers gave up \
                 (--connections-max, --streams)"
            ),
            "backlog_full" => format!("{count} came while the backlog was full (--backlog)"),
            _ => format!("{count} waited when the run was ended"),
        })
        .collect();
    list.join("; ")
}

/// What to do about errors that are often our own machine's.
fn hint(kind: &str) -> &'static str {
    match kind {
        "connection_refused" => ": does the server listen there?",
        "out_of_files" => ": raise `ulimit -n`, or lower --connections-max",
        "out_of_ports" => ": use fewer connections, and let them be kept open",
        "alpn" => ": the server does not offer this --protocol over TLS",
        "tls" => ": --cacert names its authority, --insecure does without",
        "malformed" => ": is that the right --protocol?",
        _ => "",
    }
}

/// Milliseconds to three digits.
fn number(ms: f64) -> String {
    match ms {
        ms if ms < 9.995 => format!("{ms:.2}"),
        ms if ms < 99.95 => format!("{ms:.1}"),
        ms => format!("{ms:.0}"),
    }
}

/// The same, with its unit.
pub(super) fn ms(ms: f64) -> String {
    if ms < 0.0995 { format!("{:.0} µs", ms * 1e3) } else { format!("{} ms", number(ms)) }
}

fn bytes(count: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let (mut number, mut unit) = (count as f64, 0);
    while number >= 999.5 && unit + 1 < units.len() {
        number /= 1_000.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{number:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!([0.5, 9.999, 12.34, 1_234.5].map(number), ["0.50", "10.0", "12.3", "1234"]);
        assert_eq!([0.05, 0.5].map(ms), ["50 µs", "0.50 ms"]);
        assert_eq!([0, 999, 1_000, 1_500_000].map(bytes), ["0 B", "999 B", "1.0 kB", "1.5 MB"]);
    }
}
