//! What happens while a run goes on, in one line of a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;
use tidegate_load::Interval;
use tidegate_load::report::Spans;

/// A bar that fills as time passes, or nothing where nobody looks.
pub(super) struct Bar {
    bar: ProgressBar,
    warmup: Duration,
}

impl Bar {
    pub(super) fn new(shown: bool, total: Duration, warmup: Duration) -> Self {
        let bar =
            if shown { ProgressBar::new(total.as_millis() as u64) } else { ProgressBar::hidden() };
        let template = "{bar:24} {percent:>3}%  {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        bar.set_message("connecting, warming up");
        Self { bar, warmup }
    }

    pub(super) fn show(&self, interval: &Interval<'_>) {
        let stats = interval.stats;
        let rate = |count: u64| count as f64 / interval.length.as_secs_f64();
        let offered = rate(stats.sum(|level| level.offered));
        let good = rate(stats.sum(|level| level.good));
        let p99 = Spans::of(&stats.latency()).map_or("-".to_owned(), |s| super::summary::ms(s.p99));
        let lost = stats.sum(|level| level.failed + level.throttled + level.not_sent());
        let lost = match rate(lost) {
            0.0 => String::new(),
            lost => format!("  not OK {lost:.0}/s"),
        };
        self.bar.set_position((self.warmup + interval.end).as_millis() as u64);
        self.bar.set_message(format!("offered {offered:.0}/s  good {good:.0}/s  p99 {p99}{lost}"));
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
