//! `tidegate quota status`: who uses, wants and may use how much, as a table.

use crate::{Ending, Failure};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_core::Criticality;
use tidegate_tls::{ClientOptions, Identity, Roots};
use tidegate_wire::proto::tidegate::quota::v1::{
    CustomerStatus, Over, ServiceStatus, StatusResponse,
};

/// Who was over is told for as many.
const OVERS_MAX: usize = 10;

/// What the user may choose.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Where the server is
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:7300")]
    url: String,
    /// One service only
    #[arg(long, value_name = "NAME", default_value = "")]
    service: String,
    /// PEM file with the roots that the server's certificate has to come from; the system's if not
    /// said
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// PEM file with the certificate to show
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file with its key
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// One object of JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &Options) -> Result<Ending, Failure> {
    let failure = |why: String| Failure {
        what: format!("could not ask {}", options.url),
        why,
        next: "give the address of a quota server, such as http://127.0.0.1:7300",
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failure(error.to_string()))?;
    let asked = tidegate_quota::status(&options.url, &options.service, certificates(options));
    let status = runtime.block_on(asked);
    let status = status.map_err(|error| failure(error.to_string()))?;
    if options.json {
        return Ok(Ending::from(format!("{}\n", as_json(&status))));
    }
    Ok(Ending::from(as_text(&status, now_ms())))
}

/// What to show and whom to believe, where anything was said of it.
fn certificates(options: &Options) -> Option<ClientOptions> {
    let mut certificates = ClientOptions::default();
    if let Some(roots) = &options.ca {
        certificates.roots = Roots::Given(roots.clone().into());
    }
    if let (Some(cert), Some(key)) = (&options.cert, &options.key) {
        certificates.identity = Some(Identity::new(cert.clone(), key.clone()));
    }
    (options.ca.is_some() || options.cert.is_some()).then_some(certificates)
}

pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// What a customer is called, or everyone else.
pub(super) fn name(name: &str) -> &str {
    if name.is_empty() { "(everyone else)" } else { name }
}

/// CPUs with three digits; whole numbers where there are many.
fn cpus(nanos: u64) -> String {
    match nanos as f64 / 1e9 {
        _ if nanos == u64::MAX => "unlimited".to_owned(),
        cpus if cpus >= 100.0 => format!("{cpus:.0}"),
        cpus => format!("{cpus:.3}"),
    }
}

fn sum(rates: &[u64]) -> u64 {
    rates.iter().fold(0, |sum, rate| sum.saturating_add(*rate))
}

fn last(rates: &[u64]) -> u64 {
    rates.last().copied().unwrap_or(0)
}

fn as_text(status: &StatusResponse, now: u64) -> String {
    let mut text = match (status.leads, status.leader.as_str()) {
        (true, _) => format!("leads, epoch {}\n", status.epoch),
        (false, "") => "does not lead, and knows of nobody who does\n".to_owned(),
        (false, leader) => format!("does not lead: ask {leader}\n"),
    };
    if !status.trouble.is_empty() {
        let _ = writeln!(text, "the election is in trouble: {}", status.trouble);
    }
    if !status.refused.is_empty() {
        let _ = writeln!(text, "the file is refused, what held before holds:\n{}", status.refused);
    }
    for service in &status.services {
        text.push('\n');
        text.push_str(&service_text(service, now));
    }
    text
}

/// What a service has of each resource that its file tells of, and how much of it is promised.
pub(super) fn capacity(service: &ServiceStatus) -> Vec<String> {
    let mut said = Vec::new();
    if service.capacity > 0 {
        let promised = service.customers.iter().map(|customer| match last(&customer.limits) {
            u64::MAX => service.capacity as f64,
            limit => limit as f64,
        });
        let share = promised.sum::<f64>() / service.capacity as f64 * 100.0;
        said.push(format!("{} CPU, of which {share:.0} % are promised", cpus(service.capacity)));
    }
    if service.memory > 0 {
        let promised = service.customers.iter().map(|customer| u128::from(customer.memory));
        let share = promised.sum::<u128>() as f64 / service.memory as f64 * 100.0;
        let memory = bytes(service.memory);
        said.push(format!("{memory} of memory, of which {share:.0} % are promised (not enforced)"));
    }
    said
}

/// Bytes with three digits.
fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut scaled = count as f64 / 1_024.0;
    let mut unit = 0;
    while scaled >= 1_000.0 && unit + 1 < units.len() {
        (scaled, unit) = (scaled / 1_024.0, unit + 1);
    }
    let digits = if scaled >= 100.0 {
        0
    } else if scaled >= 10.0 {
        1
    } else {
        2
    };
    format!("{scaled:.digits$} {}", units[unit])
}

fn service_text(service: &ServiceStatus, now: u64) -> String {
    let learning = if service.learning { ", learning: limits stay as they are" } else { "" };
    let tasks = if service.tasks == 1 { "task" } else { "tasks" };
    let mut text = format!("{}: {} {tasks}{learning}", service.service, service.tasks);
    for resource in capacity(service) {
        let _ = write!(text, ", {resource}");
    }
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "\n  {:<24} {:>10} {:>10} {:>10} {:>10} {:>6}",
        "CPU", "used", "wanted", "limit", "handed out", "tasks"
    );
    for customer in &service.customers {
        let over = sum(&customer.demand) > last(&customer.limits);
        let _ = writeln!(
            text,
            "  {:<24} {:>10} {:>10} {:>10} {:>10} {:>6}{}",
            name(&customer.name),
            cpus(sum(&customer.used)),
            cpus(sum(&customer.demand)),
            cpus(last(&customer.limits)),
            cpus(last(&customer.counted)),
            customer.tasks,
            if over { "  over" } else { "" }
        );
    }
    for customer in service.customers.iter().filter(|customer| customer.memory > 0) {
        let (name, memory) = (name(&customer.name), bytes(customer.memory));
        let _ = writeln!(text, "  {name} may hold {memory} of memory (not enforced)");
    }
    for over in service.overs.iter().take(OVERS_MAX) {
        let _ = writeln!(text, "  {}", over_text(over, now));
    }
    text
}

/// When a customer was over, in words.
pub(super) fn over_text(over: &Over, now: u64) -> String {
    let ago = |at: u64| Duration::from_secs(now.saturating_sub(at) / 1_000);
    let (who, most) = (name(&over.customer), cpus(over.demand_max));
    match over.ended_ms {
        0 => format!("{who} has been over for {:?}, asking for up to {most}", ago(over.began_ms)),
        ended => format!(
            "{who} was over {:?} ago, for {:?}, asking for up to {most}",
            ago(ended),
            Duration::from_secs(ended.saturating_sub(over.began_ms) / 1_000)
        ),
    }
}

/// Nothing where nothing was said.
fn some_number(count: u64) -> Option<u64> {
    (count > 0).then_some(count)
}

fn as_json(status: &StatusResponse) -> Value {
    let levels = |rates: &[u64]| -> Value {
        let rate = |level: Criticality| rates.get(level.index()).copied().unwrap_or(0);
        let cpus =
            |nanos: u64| if nanos == u64::MAX { Value::Null } else { (nanos as f64 / 1e9).into() };
        let level = |level: Criticality| (level.name().to_owned(), cpus(rate(level)));
        Value::Object(Criticality::ALL.into_iter().map(level).collect())
    };
    let customer = |customer: &CustomerStatus| {
        json!({
            "name": customer.name,
            "limits": levels(&customer.limits),
            "used": levels(&customer.used),
            "wanted": levels(&customer.demand),
            "handed_out": levels(&customer.counted),
            "tasks": customer.tasks,
            "memory_bytes": some_number(customer.memory),
        })
    };
    let over = |over: &Over| {
        json!({
            "customer": over.customer,
            "began_ms": over.began_ms,
            "ended_ms": if over.ended_ms == 0 { Value::Null } else { over.ended_ms.into() },
            "wanted_max": over.demand_max as f64 / 1e9,
        })
    };
    let service = |service: &ServiceStatus| {
        json!({
            "service": service.service,
            "learning": service.learning,
            "tasks": service.tasks,
            "capacity_cpus": some_number(service.capacity).map(|nanos| nanos as f64 / 1e9),
            "memory_bytes": some_number(service.memory),
            "customers": service.customers.iter().map(customer).collect::<Vec<_>>(),
            "overs": service.overs.iter().map(over).collect::<Vec<_>>(),
        })
    };
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    json!({
        "epoch": status.epoch,
        "leads": status.leads,
        "leader": some(&status.leader),
        "trouble": some(&status.trouble),
        "refused": some(&status.refused),
        "services": status.services.iter().map(service).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits() {
        for (count, text) in [
            (1, "0.00 KiB"),
            (1 << 20, "1.00 MiB"),
            (999 << 20, "999 MiB"),
            (1_000 << 20, "0.98 GiB"),
            (25 << 30, "25.0 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn the_table_says_who_is_over() {
        let rates = |rate: u64| vec![0, 0, rate, 0];
        let customer = |name: &str, used, demand, limit| CustomerStatus {
            name: name.to_owned(),
            limits: vec![limit; 4],
            used: rates(used),
            demand: rates(demand),
            counted: vec![limit; 4],
            tasks: 5,
            memory: if name == "gmail" { 3 << 30 } else { 0 },
        };
        let over = |customer: &str, ended_ms| Over {
            customer: customer.to_owned(),
            began_ms: 1_000,
            ended_ms,
            demand_max: 20_000_000_000,
        };
        let service = ServiceStatus {
            service: "search".to_owned(),
            learning: false,
            tasks: 5,
            capacity: 8_000_000_000,
            customers: vec![
                customer("", 0, 0, 1_000_000_000),
                customer("gmail", 1_990_000_000, 20_000_000_000, 2_000_000_000),
                customer("own", 250_000_000_000, 250_000_000_000, u64::MAX),
            ],
            overs: vec![over("gmail", 0), over("", 31_000)],
            memory: 2 << 30,
        };
        let refused = "quota.yaml:3:1: no".to_owned();
        let services = vec![service];
        let status = StatusResponse {
            epoch: 7,
            services,
            refused,
            leads: true,
            ..StatusResponse::default()
        };
        let text = as_text(&status, 61_000);
        assert_eq!(
            text,
            "leads, epoch 7\n\
             the file is refused, what held before holds:\n\
             quota.yaml:3:1: no\n\
             \n\
             search: 5 tasks, 8.000 CPU, of which 138 % are promised, 2.00 GiB of memory, of which \
             150 % are promised (not enforced)\n  \
             CPU                            used     wanted      limit handed out  tasks\n  \
             (everyone else)               0.000      0.000      1.000      1.000      5\n  \
             gmail                         1.990     20.000      2.000      2.000      5  over\n  \
             own                             250        250  unlimited  unlimited      5\n  \
             gmail may hold 3.00 GiB of memory (not enforced)\n  \
             gmail has been over for 60s, asking for up to 20.000\n  \
             (everyone else) was over 30s ago, for 30s, asking for up to 20.000\n"
        );
        let json = as_json(&status);
        assert_eq!(json["services"][0]["customers"][1]["wanted"]["CRITICAL"], 20.0);
        assert_eq!(json["services"][0]["customers"][1]["memory_bytes"], 3_u64 << 30);
        assert_eq!(json["services"][0]["customers"][2]["memory_bytes"], Value::Null);
        let capacity =
            (&json["services"][0]["capacity_cpus"], &json["services"][0]["memory_bytes"]);
        assert_eq!(capacity, (&json!(8.0), &json!(2_u64 << 30)));
        assert_eq!(json["services"][0]["customers"][2]["limits"]["SHEDDABLE"], Value::Null);
        for (leader, text) in [("", "knows of nobody who does"), ("b:1", "does not lead: ask b:1")]
        {
            let (leader, trouble) = (leader.to_owned(), "etcd is silent".to_owned());
            let status = StatusResponse { leader, trouble, ..StatusResponse::default() };
            let found = as_text(&status, 0);
            assert!(found.contains(text) && found.contains("trouble: etcd is silent"), "{found}");
        }
    }
}
