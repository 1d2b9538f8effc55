//! The report as a page with plots, for whoever wants to look again or show somebody.

use super::report::{Figures, PhaseReport, Point, Report, SideReport};
use super::script::{PHASES, WORST};
use super::service::Side;
use crate::html::head;
use crate::plot::{Plot, Scale, escaped};
use core::ops::Range;
use core::time::Duration;
use std::fmt::Write as _;

/// Vermillion and blue: far apart for everyone.
const COLOURS: [usize; 2] = [5, 0];
/// Grey, for what is there to compare with.
const GREY: usize = 6;
/// Points of a level line, which goes from the middle of the first stretch to that of the last.
const LEVEL: usize = 200;

/// The page of a run.
pub(super) fn html(report: &Report) -> String {
    let mut page = head("tidegate demo");
    page.push_str("<h1>The same surge, bare and behind tidegate</h1>\n");
    summary(&mut page, report);
    page.push_str("<div class=\"plots\">\n");
    plots(&mut page, report);
    page.push_str("</div>\n<h2>By phase</h2>\n");
    table(&mut page, report);
    conditions(&mut page, report);
    page.push_str("</body>\n</html>\n");
    page
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

fn summary(page: &mut String, report: &Report) {
    if report.interrupted {
        page.push_str("<p class=\"fail\">Ended before its time.</p>\n");
    }
    page.push_str(
        "<table>\n<tr><th><th class=\"number\">goodput at 10x<th class=\"number\">CRITICAL_PLUS \
         at 10x<th>well again</tr>\n",
    );
    for side in Side::ALL {
        let worst = report.side(side).phase(WORST);
        let goodput = worst.map(|worst| worst.all.goodput_rps / report.capacity_rps);
        let plus = worst.and_then(|worst| worst.all.success.critical_plus);
        let recovery = match (report.recovery(side), report.recovery_watched(side)) {
            (Some(seconds), _) => format!("after {seconds:.1} s"),
            (None, Some(watched)) => format!("not in the {watched:.1} s that it was watched"),
            (None, None) => "-".to_owned(),
        };
        let _ = writeln!(
            page,
            "<tr><td>{}<td class=\"number\">{} of capacity<td class=\"number\">{}<td>{recovery}",
            side.name(),
            percent(goodput),
            percent(plus)
        );
    }
    page.push_str("</table>\n");
}

/// How long the longer side was, and where its phases are.
fn stretch(report: &Report) -> (Duration, Vec<(String, Range<Duration>)>) {
    let [bare, protected] = [&report.bare, &report.protected];
    let longer = if bare.phases.len() >= protected.phases.len() { bare } else { protected };
    let span = |phase: &PhaseReport| {
        let begin = Duration::from_secs_f64(phase.begins);
        (phase.name.to_owned(), begin..begin + Duration::from_secs_f64(phase.seconds))
    };
    let windows: Vec<_> = longer.phases.iter().map(span).collect();
    let lasts = windows.last().map_or(Duration::from_secs(1), |(_, span)| span.end);
    (lasts, windows)
}

/// Points of the curve that are one in the plot: half a second, as a quarter has few requests of
/// the highest criticality.
const JOINED: usize = 2;

/// A value of each half a second within `lasts`; what comes after are last answers.
fn curve(
    side: &SideReport,
    lasts: Duration,
    of: impl Fn(&Point) -> Option<f64>,
) -> Vec<Option<f64>> {
    let bin = side.curve.first().map_or(1.0, |point| point.at);
    let count = (lasts.as_secs_f64() / bin).ceil() as usize;
    let mean = |points: &[usize]| {
        let values: Vec<f64> =
            points.iter().filter_map(|&i| side.curve.get(i).and_then(&of)).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    (0..count).collect::<Vec<_>>().chunks(JOINED).map(mean).collect()
}

fn plots(page: &mut String, report: &Report) {
    let (lasts, windows) = stretch(report);
    let highest = |of: &dyn Fn(&Point) -> Option<f64>| {
        let points = [&report.bare, &report.protected].into_iter().flat_map(|side| &side.curve);
        points.filter_map(of).fold(0.0, f64::max)
    };
    let both = |plot: &mut Plot, of: &dyn Fn(&Point) -> Option<f64>| {
        for side in Side::ALL {
            let colour = COLOURS[side.index()];
            plot.line(&curve(report.side(side), lasts, of), colour, "");
            plot.name(colour, side.name());
        }
    };
    let goodput = |point: &Point| Some(point.goodput_rps);
    let top = highest(&goodput).max(report.capacity_rps);
    let mut plot = Plot::new("Goodput", lasts, &windows, Scale::up_to(top), "per_second");
    plot.line(&[Some(report.capacity_rps); LEVEL], GREY, "dashed");
    both(&mut plot, &goodput);
    plot.name(GREY, "capacity");
    page.push_str(&plot.finish());

    let offered = |point: &Point| Some(point.offered_rps);
    let scale = Scale::up_to(highest(&offered));
    let mut plot = Plot::new("Offered, without retries", lasts, &windows, scale, "per_second");
    both(&mut plot, &offered);
    page.push_str(&plot.finish());

    let p99 = |point: &Point| point.p99_ms.map(|ms| ms / 1e3);
    let scale = Scale::over(5e-3, highest(&p99).max(0.1));
    let mut plot = Plot::new("p99 of OK answers", lasts, &windows, scale, "seconds");
    both(&mut plot, &p99);
    page.push_str(&plot.finish());

    let plus = |point: &Point| point.critical_plus;
    let title = "CRITICAL_PLUS answered in time";
    let mut plot = Plot::new(title, lasts, &windows, Scale::Linear(1.0), "share");
    both(&mut plot, &plus);
    page.push_str(&plot.finish());

    let attempts = |point: &Point| Some(point.attempts_rps);
    let scale = Scale::up_to(highest(&attempts));
    let mut plot = Plot::new("Attempts, with retries", lasts, &windows, scale, "per_second");
    both(&mut plot, &attempts);
    page.push_str(&plot.finish());
}

fn table(page: &mut String, report: &Report) {
    page.push_str(
        "<table>\n<tr><th>phase<th>side<th class=\"number\">offered/s<th class=\"number\">goodput/s\
         <th class=\"number\">p50 ms<th class=\"number\">p99 ms<th class=\"number\">C+\
         <th class=\"number\">C<th class=\"number\">S+<th class=\"number\">S\
         <th class=\"number\">attempts a request<th class=\"number\">refused</tr>\n",
    );
    for phase in &PHASES {
        for side in Side::ALL {
            let phases = &report.side(side).phases;
            let Some(found) = phases.iter().find(|found| found.name == phase.name) else {
                continue;
            };
            row(page, found.name, side.name(), &found.all);
            for (who, figures) in [("others", &found.others), ("bad one", &found.bad_customer)] {
                if let Some(figures) = figures {
                    row(page, "", &format!("{}, {who}", side.name()), figures);
                }
            }
        }
    }
    page.push_str("</table>\n");
}

fn row(page: &mut String, phase: &str, side: &str, figures: &Figures) {
    let millis = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.0}"));
    let _ = write!(page, "<tr><td>{}<td>{}", escaped(phase), escaped(side));
    let mut cells = vec![
        format!("{:.0}", figures.offered_rps),
        format!("{:.0}", figures.goodput_rps),
        millis(figures.p50_ms),
        millis(figures.p99_ms),
    ];
    cells.extend(figures.success.descending().map(percent));
    cells.push(format!("{:.2}", figures.amplification));
    cells.push(figures.refused.to_string());
    for cell in cells {
        let _ = write!(page, "<td class=\"number\">{cell}");
    }
    page.push_str("</tr>\n");
}

fn conditions(page: &mut String, report: &Report) {
    page.push_str("<h2>How it was measured</h2>\n<ul>\n");
    let late = |side: &SideReport| {
        side.generator_late_p99_ms.map_or("-".to_owned(), |ms| format!("{ms:.1} ms"))
    };
    let mut facts = vec![
        report.places.clone(),
        format!(
            "{} ms of CPU a request; asked without a pause the bare service answered {:.0} a \
             second, and that is the capacity",
            report.work_ms, report.capacity_rps
        ),
        format!(
            "callers come at random by seed {}, the same for both sides, and give up after {} ms",
            report.seed, report.deadline_ms
        ),
        "figures of a phase are of the requests that were due in it; curves are of what happened \
         in each quarter of a second"
            .to_owned(),
        format!(
            "99 of 100 requests left within {} (bare) and {} (protected) of when they were due",
            late(&report.bare),
            late(&report.protected)
        ),
    ];
    facts.extend(report.notices.iter().cloned());
    for fact in facts {
        let _ = writeln!(page, "<li>{}</li>", escaped(&fact));
    }
    page.push_str("</ul>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_all_and_needs_nothing() {
        let page = html(&Report::example());
        for words in ["protected, bad one", "after 0.0 s", "Goodput", "port 8080 is taken"] {
            assert!(page.contains(words), "{words}");
        }
        for word in ["<script", "http:", "https:", "NaN", "inf"] {
            assert!(!page.contains(word), "{word}");
        }
        assert_eq!(page.matches("<svg").count(), 5);
    }

    #[test]
    fn a_side_that_never_began_leaves_no_line_and_no_panic() {
        let mut report = Report::example();
        report.protected.phases.clear();
        report.protected.curve.clear();
        report.interrupted = true;
        let page = html(&report);
        assert!(page.contains("Ended before its time") && !page.contains("NaN"));
    }
}
