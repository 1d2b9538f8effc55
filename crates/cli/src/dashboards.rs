//! `tidegate dashboards export`: a dashboard for Grafana, over what Prometheus scrapes.
//!
//! For fleets and for last week, where the page of a task shows that task and the last quarter of
//! an hour. Panels are in the order of the page. Each query is a template in the table below; a
//! test holds every name and label in it against the list of metrics, another has a real
//! Prometheus run them all.

use crate::Failure;
use serde_json::{Value, json};

/// Colour-blind safe, as on the page: from the highest criticality to the lowest.
const LEVELS: [(&str, &str); 4] = [
    ("CRITICAL_PLUS", "#0072b2"),
    ("CRITICAL", "#009e73"),
    ("SHEDDABLE_PLUS", "#e69f00"),
    ("SHEDDABLE", "#d55e00"),
];

/// What the user may choose.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print a dashboard for Grafana, to be imported there, over the metrics of Prometheus
    Export,
}

/// One chart.
struct Panel {
    title: &'static str,
    about: &'static str,
    unit: &'static str,
    queries: &'static [(&'static str, &'static str)],
}

/// `$s` stands for the tasks that were chosen, `$r` for the time that a rate is over.
#[rustfmt::skip]
const PANELS: &[Panel] = &[
    Panel { title: "Offered, admitted, goodput", unit: "reqps",
        about: "What comes, what is let in, and what is answered well and in time.",
        queries: &[
            ("sum(rate(tidegate_requests_total{$s}[$r]))", "offered"),
            ("sum(rate(tidegate_requests_total{$s,decision!=\"reject\"}[$r]))", "admitted"),
            ("sum(rate(tidegate_good_requests_total{$s}[$r]))", "goodput"),
        ] },
    Panel { title: "Offered and capacity", unit: "none",
        about: "In CPUs: what comes would take, what tasks are capable of, what they may use.",
        queries: &[
            ("sum(tidegate_offered_cpus{$s})", "offered"),
            ("sum(tidegate_capacity_cpus{$s})", "capacity"),
            ("sum(tidegate_usable_cpus{$s})", "usable"),
        ] },
    Panel { title: "Admitted by criticality", unit: "reqps", about: "",
        queries: &[
            ("sum by (criticality) (rate(tidegate_requests_total{$s,decision!=\"reject\"}[$r]))",
             "{{criticality}}"),
        ] },
    Panel { title: "Rejected by criticality", unit: "reqps", about: "",
        queries: &[
            ("sum by (criticality) (rate(tidegate_requests_total{$s,decision=\"reject\"}[$r]))",
             "{{criticality}}"),
        ] },
    Panel { title: "Latency of admitted", unit: "s",
        about: "From the decision to the end of the answer, as the tasks see it.",
        queries: &[
            ("histogram_quantile(0.99, \
              sum by (le) (rate(tidegate_latency_seconds_bucket{$s}[$r])))",
             "p99"),
            ("histogram_quantile(0.9, sum by (le) (rate(tidegate_latency_seconds_bucket{$s}[$r])))",
             "p90"),
            ("histogram_quantile(0.5, sum by (le) (rate(tidegate_latency_seconds_bucket{$s}[$r])))",
             "p50"),
        ] },
    Panel { title: "Utilization signals", unit: "none",
        about: "The highest of all tasks, over the target of each. Shedding begins at 0.85.",
        queries: &[("max by (signal) (tidegate_utilization_ratio{$s})", "{{signal}}")] },
    Panel { title: "Rejections by reason", unit: "reqps", about: "",
        queries: &[
            ("sum by (reason) (rate(tidegate_requests_total{$s,decision=\"reject\"}[$r]))",
             "{{reason}}"),
            ("sum by (reason) (rate(tidegate_requests_total{$s,decision=\"dark\"}[$r]))",
             "{{reason}}, let in by dark mode"),
        ] },
    Panel { title: "Customers: used", unit: "none", about: "CPU-seconds per second.",
        queries: &[("sum by (customer) (tidegate_customer_used_cpus{$s})", "{{customer}}")] },
    Panel { title: "Customers: wanted and not had", unit: "none",
        about: "CPU-seconds per second that were refused for want of quota.",
        queries: &[
            ("sum by (customer) (tidegate_customer_wanted_cpus{$s} - \
              tidegate_customer_used_cpus{$s})", "{{customer}}"),
        ] },
    Panel { title: "Retries", unit: "none", about: "Attempts for each first one.",
        queries: &[
            ("sum(rate(tidegate_attempts_total{$s}[$r])) / \
              sum(rate(tidegate_attempts_total{$s,attempt=\"1\"}[$r]))", "amplification"),
        ] },
    Panel { title: "Client throttle", unit: "percentunit",
        about: "How likely a request to another service is to be held back; the worst of all \
                tasks.",
        queries: &[
            ("max by (service, criticality) (tidegate_client_throttle_ratio{$s})",
             "{{service}}, {{criticality}}"),
        ] },
    Panel { title: "Attempts at other services", unit: "reqps",
        about: "By what became of them. Those that were throttled were never sent.",
        queries: &[
            ("sum by (service, fate) (rate(tidegate_client_attempts_total{$s}[$r]))",
             "{{service}}, {{fate}}"),
        ] },
    Panel { title: "Retries at other services", unit: "none",
        about: "Attempts for each request, and requests a second that were given up, by reason.",
        queries: &[
            ("1 + sum by (service) (rate(tidegate_client_retries_total{$s}[$r])) / \
              sum by (service) (rate(tidegate_client_requests_total{$s}[$r]))",
             "{{service}}, amplification"),
            ("sum by (service, reason) (rate(tidegate_client_given_up_requests_total{$s}[$r]))",
             "{{service}}, {{reason}}"),
        ] },
    Panel { title: "Retry budget left", unit: "none",
        about: "Retries that the client with the fewest has left.",
        queries: &[("min by (service) (tidegate_client_budget_retries{$s})", "{{service}}")] },
    Panel { title: "Backends: state", unit: "none",
        about: "Endpoints that a task knows, by state: the mean of all tasks.",
        queries: &[
            ("avg by (service, state) (tidegate_backends{$s})", "{{service}}, {{state}}"),
            ("count by (service) (min by (service, backend) (tidegate_backend_serving{$s}) == 0)",
             "{{service}}, lame for some task"),
        ] },
    Panel { title: "Backends: weight", unit: "percentunit",
        about: "The share of the picks that each has, the mean of all tasks. 32 a balancer have \
                a line, the rest is other.",
        queries: &[
            ("avg by (service, backend) (tidegate_backend_weight_ratio{$s})",
             "{{service}}, {{backend}}"),
        ] },
    Panel { title: "Backends: load", unit: "percentunit", about: "How full each says that it is.",
        queries: &[
            ("max by (service, backend) (tidegate_backend_utilization_ratio{$s})",
             "{{service}}, {{backend}}"),
        ] },
    Panel { title: "Backends: active requests", unit: "none",
        about: "Attempts that have begun and not ended, of all tasks.",
        queries: &[
            ("sum by (service, backend) (tidegate_backend_active_requests{$s})",
             "{{service}}, {{backend}}"),
        ] },
    Panel { title: "Cost of a request", unit: "s", about: "CPU time, of the reference machine.",
        queries: &[
            ("sum(rate(tidegate_request_cost_seconds_sum{$s}[$r])) / \
              sum(rate(tidegate_request_cost_seconds_count{$s}[$r]))", "mean"),
            ("histogram_quantile(0.99, \
              sum by (le) (rate(tidegate_request_cost_seconds_bucket{$s}[$r])))", "p99"),
        ] },
    Panel { title: "In flight, failed, degraded", unit: "none", about: "",
        queries: &[
            ("sum(tidegate_inflight_requests{$s})", "in flight"),
            ("sum(rate(tidegate_failed_requests_total{$s}[$r]))", "failed a second"),
            ("max by (criticality) (tidegate_degraded{$s})", "{{criticality}} degraded"),
        ] },
    Panel { title: "How well it is measured", unit: "percentunit",
        about: "CPU time that no request explains, and looks at the signals that came late.",
        queries: &[
            ("max(tidegate_unattributed_cpu_ratio{$s})", "unattributed"),
            ("sum(rate(tidegate_sampler_late_ticks_total{$s}[$r])) / \
              sum(rate(tidegate_sampler_ticks_total{$s}[$r]))", "late looks"),
        ] },
];

/// Which tasks are shown: Grafana fills in what was chosen.
const CHOSEN: &str = "job=~\"$job\",instance=~\"$instance\"";

pub(crate) fn run(options: &Options) -> Result<String, Failure> {
    let Command::Export = options.command;
    let text = serde_json::to_string_pretty(&dashboard()).map_err(|error| Failure {
        what: "could not write the dashboard as JSON".to_owned(),
        why: error.to_string(),
        next: "this is a fault of tidegate: please report it",
    })?;
    Ok(text + "\n")
}

fn dashboard() -> Value {
    let panels = PANELS.iter().enumerate().map(|(n, panel)| written(n, panel));
    json!({
        "uid": "tidegate",
        "title": "tidegate",
        "tags": ["tidegate"],
        "schemaVersion": 39,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": [
            { "name": "datasource", "type": "datasource", "query": "prometheus" },
            variable("job", "label_values(tidegate_inflight_requests, job)"),
            variable(
                "instance",
                "label_values(tidegate_inflight_requests{job=~\"$job\"}, instance)",
            ),
        ] },
        "panels": panels.collect::<Vec<_>>(),
    })
}

fn variable(name: &str, query: &str) -> Value {
    json!({
        "name": name, "type": "query", "query": query, "datasource": source(),
        "includeAll": true, "multi": true, "refresh": 2, "allValue": ".*",
        "current": { "text": "All", "value": "$__all" },
    })
}

fn source() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

/// Two to a row.
fn written(n: usize, panel: &Panel) -> Value {
    let targets = panel.queries.iter().zip('A'..).map(|((query, legend), letter)| {
        let query = query.replace("$s", CHOSEN).replace("$r", "$__rate_interval");
        json!({ "refId": letter.to_string(), "expr": query, "legendFormat": legend,
                "datasource": source() })
    });
    let colours = LEVELS.iter().map(|(name, colour)| {
        json!({
            "matcher": { "id": "byName", "options": name },
            "properties": [{ "id": "color", "value": { "mode": "fixed", "fixedColor": colour } }],
        })
    });
    json!({
        "id": n + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": source(),
        "gridPos": { "x": n % 2 * 12, "y": n / 2 * 8, "w": 12, "h": 8 },
        "fieldConfig": {
            "defaults": { "unit": panel.unit, "min": 0,
                          "custom": { "lineWidth": 2, "fillOpacity": 8, "showPoints": "never" } },
            "overrides": colours.collect::<Vec<_>>(),
        },
        "options": { "tooltip": { "mode": "multi" }, "legend": { "displayMode": "table",
                     "placement": "bottom", "calcs": ["lastNotNull", "max"] } },
        "targets": targets.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use tidegate::metrics::names;

    /// The metrics that a query asks for, each with the labels in its braces.
    fn metrics(query: &str) -> Vec<(String, Vec<String>)> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut found = Vec::new();
        for (at, _) in query.match_indices("tidegate_") {
            let rest = &query[at..];
            let name = rest.split(|c| !is_name(c)).next().unwrap();
            let inside = rest[name.len()..].strip_prefix('{').and_then(|r| r.split_once('}'));
            let labels = inside.map_or("", |(labels, _)| labels).split(',');
            let labels = labels.map(|label| label.split(['=', '!']).next().unwrap().trim());
            let labels = labels.filter(|label| !label.is_empty()).map(str::to_owned);
            found.push((name.to_owned(), labels.collect()));
        }
        found
    }

    /// The labels of `by (…)`.
    fn grouped(query: &str) -> Vec<&str> {
        let by = query.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
        by.flat_map(|labels| labels.split(',')).map(str::trim).collect()
    }

    #[test]
    fn every_query_asks_for_metrics_and_labels_that_there_are() {
        let known = names();
        let labels = |name: &str| {
            let found = known.iter().find(|metric| metric.name == name);
            found.unwrap_or_else(|| panic!("there is no metric {name}")).labels.clone()
        };
        let mut asked = BTreeSet::new();
        for panel in dashboard()["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let query = target["expr"].as_str().unwrap();
                let found = metrics(query);
                assert!(!found.is_empty(), "{query}");
                for (name, used) in found {
                    let has = labels(&name);
                    // What Prometheus adds itself.
                    let own = ["job", "instance"];
                    let wrong = used
                        .iter()
                        .find(|l| !own.contains(&l.as_str()) && !has.contains(&l.as_str()));
                    assert_eq!(wrong, None, "{name} in {query}");
                    assert!(grouped(query).iter().all(|label| has.contains(label)), "{query}");
                    asked.insert(name);
                }
                let legend = target["legendFormat"].as_str().unwrap();
                let shown = legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
                for label in shown {
                    assert!(grouped(query).contains(&label), "{legend} of {query}");
                }
            }
        }
        for variable in dashboard()["templating"]["list"].as_array().unwrap() {
            for (name, _) in metrics(variable["query"].as_str().unwrap_or_default()) {
                labels(&name);
            }
        }
        // The essential ones are on it.
        assert!(asked.len() >= 28, "{asked:?}");
    }

    /// The corners of a panel: left, top, right, bottom.
    fn corners(panel: &Value) -> [u64; 4] {
        let of = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        let (x, y) = (of("x"), of("y"));
        [x, y, x + of("w"), y + of("h")]
    }

    /// Grafana lays panels out on 24 columns, moves those that overlap, and gives new ids to those
    /// whose id is taken.
    #[test]
    fn panels_do_not_overlap_and_ids_are_distinct() {
        let dashboard = dashboard();
        let panels = dashboard["panels"].as_array().unwrap();
        let ids: BTreeSet<_> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
        assert_eq!((panels.len(), ids.len()), (PANELS.len(), PANELS.len()));
        assert!(!ids.contains(&0), "Grafana takes 0 for none");
        for (n, panel) in panels.iter().enumerate() {
            let [left, top, right, bottom] = corners(panel);
            assert!(left < right && right <= 24 && top < bottom, "{}", panel["gridPos"]);
            for other in &panels[n + 1..] {
                let [l, t, r, b] = corners(other);
                let apart = right <= l || r <= left || bottom <= t || b <= top;
                assert!(apart, "{} and {}", panel["title"], other["title"]);
            }
        }
    }

    /// All values under this name, wherever they are.
    fn all<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a Value>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get(name));
                map.values().for_each(|value| all(value, name, found));
            }
            Value::Array(list) => list.iter().for_each(|value| all(value, name, found)),
            _ => {}
        }
    }

    /// What Grafana wants of a dashboard that is imported: see the JSON model in its manual.
    #[test]
    fn an_import_finds_all_that_it_refers_to() {
        let dashboard = dashboard();
        // Data sources are objects since 33; Grafana brings what is older than itself up to date.
        assert_eq!(dashboard["schemaVersion"], 39);
        let uid = dashboard["uid"].as_str().unwrap();
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        assert!(uid.len() <= 40 && uid.chars().all(fits), "{uid}");
        // An id is of one Grafana; with one, an import would overwrite what has it there.
        assert!(dashboard["id"].is_null());
        let variables = dashboard["templating"]["list"].as_array().unwrap();
        let name = |variable: &Value| variable["name"].as_str().unwrap().to_owned();
        let names: Vec<String> = variables.iter().map(name).collect();
        assert_eq!(names, ["datasource", "job", "instance"]);
        assert_eq!(
            (&variables[0]["type"], &variables[0]["query"]),
            (&json!("datasource"), &json!("prometheus"),)
        );
        // Every query goes to the data source that was chosen.
        let mut sources = Vec::new();
        all(&dashboard, "datasource", &mut sources);
        let queries = PANELS.iter().map(|panel| panel.queries.len()).sum::<usize>();
        assert_eq!(sources.len(), PANELS.len() + queries + 2);
        assert!(sources.iter().all(|found| **found == source()));
        // No text refers to a variable that there is not.
        let text = dashboard.to_string();
        let used = text.split('$').skip(1).map(|rest| {
            let rest = rest.trim_start_matches('{');
            rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap()
        });
        for used in used {
            let own = ["__all", "__rate_interval"].contains(&used);
            assert!(own || names.iter().any(|name| name == used), "${used}");
        }
        let mut titles = BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            assert_eq!(panel["type"], "timeseries");
            assert!(titles.insert(panel["title"].as_str().unwrap()), "{}", panel["title"]);
            let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap();
            assert!(["none", "reqps", "s", "percentunit"].contains(&unit), "{unit}");
            let letters = panel["targets"].as_array().unwrap().iter().map(|t| t["refId"].as_str());
            let letters: Vec<_> = letters.collect();
            let distinct: BTreeSet<_> = letters.iter().collect();
            assert_eq!(distinct.len(), letters.len(), "{}", panel["title"]);
        }
    }
}
