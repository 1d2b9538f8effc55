//! The page of scenarios: what each is to show, whether it did, and curves over time.

use super::jobs::Told;
use crate::html::head;
use crate::plot::{Plot, Scale, escaped, thinned};
use std::fmt::Write as _;
use tidegate_sim::scenario::{ClientSeries, Counts, Scenario, Series, ServiceSeries, written};

/// As lines, more tasks than this are a tangle.
const LINES_MAX: usize = 12;
/// More rows than this are thinner than a pixel: tasks are then joined.
const ROWS_MAX: usize = 80;

/// The page of all scenarios.
pub(super) fn html(told: &[Told<'_>]) -> String {
    let mut page = head("tidegate sim");
    page.push_str("<h1>tidegate sim</h1>\n");
    if told.len() > 1 {
        contents(&mut page, told);
    }
    for (index, told) in told.iter().enumerate() {
        scenario(&mut page, told, index);
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn word(passed: bool) -> &'static str {
    if passed { "<span class=\"pass\">PASS</span>" } else { "<span class=\"fail\">FAIL</span>" }
}

fn contents(page: &mut String, told: &[Told<'_>]) {
    page.push_str("<table>\n");
    for (index, told) in told.iter().enumerate() {
        let (word, name) = (word(told.passed()), escaped(&told.scenario.name));
        let _ = writeln!(page, "<tr><td>{word}<td><a href=\"#s{index}\">{name}</a></tr>");
    }
    page.push_str("</table>\n");
}

fn scenario(page: &mut String, told: &Told<'_>, index: usize) {
    let scenario = told.scenario;
    let (name, story) = (escaped(&scenario.name), escaped(&scenario.story));
    let (file, lasts) = (escaped(told.file), scenario.lasts.as_secs());
    let _ = writeln!(
        page,
        "<h2 id=\"s{index}\">{name} {}</h2>\n<p class=\"story\">{story}</p>\n\
         <p class=\"faint\">{file}, seed {}, {lasts} s of virtual time</p>",
        word(told.passed()),
        told.seed
    );
    checks(page, told);
    let top = most_offered(told);
    for (variant, series) in scenario.variants.iter().zip(&told.series) {
        let _ = writeln!(page, "<h3>{}</h3>\n<div class=\"plots\">", escaped(&variant.name));
        page.push_str(&rates(scenario, series, top));
        page.push_str(&goodput(scenario, series));
        page.push_str(&latencies(scenario, &series.clients));
        for service in &series.services {
            page.push_str(&utilization(scenario, service));
            let title = format!("Refused by {}, by criticality", service.name);
            let step = series.step_seconds;
            page.push_str(&stack(scenario, &title, &service.refused_by_criticality, step));
            let title = format!("Refused by {}, by reason", service.name);
            page.push_str(&stack(scenario, &title, &service.refused_by_reason, step));
        }
        page.push_str("</div>\n");
    }
}

fn checks(page: &mut String, told: &Told<'_>) {
    let many = told.verdicts.len() > 1;
    page.push_str("<table>\n<tr><th><th>check<th class=\"number\">measured<th>bound");
    page.push_str(if many { "<th>seeds passed<th>from, median, to</tr>\n" } else { "</tr>\n" });
    for (index, judged) in told.checks().iter().enumerate() {
        let spread = told.spread(index);
        let _ = write!(
            page,
            "<tr><td>{}<td>{}<td class=\"number\">{}<td class=\"whole\">{}",
            word(spread.failed_seeds.is_empty()),
            escaped(&judged.what),
            escaped(&judged.measured_text()),
            escaped(&judged.bounds())
        );
        if many {
            let passed = spread.seeds - spread.failed_seeds.len();
            let value =
                |value: Option<f64>| value.map_or("-".to_owned(), |v| written(v, judged.unit));
            let [min, median, max] = [spread.min, spread.median, spread.max].map(value);
            let _ = write!(
                page,
                "<td class=\"whole\">{passed} of {}<td class=\"whole\">{min}, {median}, {max}",
                spread.seeds
            );
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

/// Counts by step as a rate.
fn per_second(counts: &[u32], step: f64) -> Vec<Option<f64>> {
    thinned(&counts.iter().map(|&count| f64::from(count) / step).collect::<Vec<_>>())
}

fn highest(values: &[Option<f64>]) -> f64 {
    values.iter().flatten().copied().fold(0.0, f64::max)
}

/// The same scale for all variants: the highest rate of any of them.
fn most_offered(told: &Told<'_>) -> f64 {
    let all = told.series.iter().flat_map(|series| {
        let step = series.step_seconds;
        let clients = series.clients.iter();
        clients.flat_map(move |c| [&c.offered, &c.goodput].map(|of| highest(&per_second(of, step))))
    });
    all.fold(0.0, f64::max)
}

fn rates(scenario: &Scenario, series: &Series, top: f64) -> String {
    let (lasts, windows) = (scenario.lasts, &scenario.windows);
    let title = "Offered (dashed) and goodput";
    let mut plot = Plot::new(title, lasts, windows, Scale::up_to(top), "per_second");
    for (colour, client) in series.clients.iter().enumerate() {
        let step = series.step_seconds;
        plot.line(&per_second(&client.offered, step), colour, "dashed");
        plot.line(&per_second(&client.goodput, step), colour, "");
        plot.name(colour, &client.name);
    }
    plot.finish()
}

/// Beside ten times of it offered, what gets done would be a line at the bottom.
fn goodput(scenario: &Scenario, series: &Series) -> String {
    let rates = |client: &ClientSeries| per_second(&client.goodput, series.step_seconds);
    let top = series.clients.iter().map(|client| highest(&rates(client))).fold(0.0, f64::max);
    let (lasts, windows) = (scenario.lasts, &scenario.windows);
    let mut plot = Plot::new("Goodput", lasts, windows, Scale::up_to(top), "per_second");
    for (colour, client) in series.clients.iter().enumerate() {
        plot.line(&rates(client), colour, "");
        plot.name(colour, &client.name);
    }
    plot.finish()
}

fn latencies(scenario: &Scenario, clients: &[ClientSeries]) -> String {
    let all = clients.iter().flat_map(|c| c.p50.iter().chain(&c.p99)).flatten().copied();
    let least = all.clone().fold(f64::INFINITY, f64::min);
    let most = all.fold(0.0, f64::max);
    let least = if least.is_finite() { least } else { 1e-3 };
    let (lasts, windows) = (scenario.lasts, &scenario.windows);
    let title = "Latency of answers: p50 (dashed) and p99";
    let mut plot = Plot::new(title, lasts, windows, Scale::over(least, most), "seconds");
    for (colour, client) in clients.iter().enumerate() {
        plot.line(&client.p50, colour, "dashed");
        plot.line(&client.p99, colour, "");
        plot.name(colour, &client.name);
    }
    plot.finish()
}

/// Lines and the band that they fill; a heat map if there are many.
fn utilization(scenario: &Scenario, service: &ServiceSeries) -> String {
    let (lasts, tasks) = (scenario.lasts, &service.utilization);
    let title = format!("Utilization of {} by task ({} tasks)", service.name, tasks.len());
    if tasks.len() > LINES_MAX {
        let title = format!("{title}: the fuller, the bluer");
        let mut plot = Plot::new(&title, lasts, &[], Scale::Linear(tasks.len() as f64), "count");
        plot.heat(&joined(tasks));
        return plot.finish();
    }
    let mut plot = Plot::new(&title, lasts, &scenario.windows, Scale::Linear(1.0), "share");
    let seconds = tasks.iter().map(Vec::len).min().unwrap_or_default();
    let at = |second: usize| tasks.iter().map(move |task| task[second]);
    let low: Vec<f64> = (0..seconds).map(|s| at(s).fold(1.0, f64::min)).collect();
    let high: Vec<f64> = (0..seconds).map(|s| at(s).fold(0.0, f64::max)).collect();
    plot.band(&low, &high, 4, "band");
    for task in tasks {
        let values: Vec<Option<f64>> = task.iter().copied().map(Some).collect();
        plot.line(&values, 0, "thin");
    }
    plot.finish()
}

/// At most [`ROWS_MAX`] rows: the means of neighbours.
fn joined(tasks: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let rows = tasks.len().min(ROWS_MAX);
    let row = |i: usize| {
        let part = &tasks[i * tasks.len() / rows..(i + 1) * tasks.len() / rows];
        let seconds = part.iter().map(Vec::len).min().unwrap_or_default();
        let mean = |s: usize| part.iter().map(|task| task[s]).sum::<f64>() / part.len() as f64;
        (0..seconds).map(mean).collect()
    };
    (0..rows).map(row).collect()
}

/// Counts on top of each other; nothing at all if there are none.
fn stack(scenario: &Scenario, title: &str, kinds: &[Counts], step: f64) -> String {
    let rates = |kind: &Counts| -> Vec<f64> {
        per_second(&kind.counts, step).into_iter().flatten().collect()
    };
    let layers: Vec<Vec<f64>> = kinds.iter().map(rates).collect();
    let points = layers.first().map_or(0, Vec::len);
    let total = |i: usize| layers.iter().map(|layer| layer[i]).sum::<f64>();
    let top = (0..points).map(total).fold(0.0, f64::max);
    if top == 0.0 {
        return String::new();
    }
    let (lasts, windows) = (scenario.lasts, &scenario.windows);
    let mut plot = Plot::new(title, lasts, windows, Scale::up_to(top), "per_second");
    let mut low = vec![0.0; points];
    for (colour, (kind, layer)) in kinds.iter().zip(&layers).enumerate() {
        if layer.iter().all(|rate| *rate == 0.0) {
            continue;
        }
        let high: Vec<f64> = low.iter().zip(layer).map(|(low, rate)| low + rate).collect();
        plot.band(&low, &high, colour, "stack");
        plot.name(colour, kind.name);
        low = high;
    }
    plot.finish()
}
