//! What the user may say, and the draft of a plan that it makes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use tidegate_load::{
    Draft, PlanError, Protocol, Retry, RouteDraft, Spacing, Span, Stage, Switch, Unreadable,
    WeightedList,
};

/// What comes after the options.
pub(crate) const EXAMPLES: &str = "\
Examples:
  # a hundred requests a second for ten seconds
  tidegate load http://127.0.0.1:8080/

  # from 100 to 2000 a second in half a minute; callers wait 250 ms
  tidegate load http://127.0.0.1:8080/ --rate 100..2000 --duration 30s --mix deadline=250ms

  # a calm, a surge and the time after, three quarters of it critical, with a naive retry storm
  tidegate load http://127.0.0.1:8080/ --stage '100 for 10s' --stage '1000 for 10s' \\
    --stage '100 for 10s' --mix criticality=CRITICAL:3,SHEDDABLE:1 --retry naive:3

  # what a server can do: every connection asks again as soon as it is answered
  tidegate load http://127.0.0.1:8080/ --rate max --connections 64

  # gRPC over TLS, with a message from a file, by fifty customers
  tidegate load https://localhost:8443/pkg.Service/Method --protocol grpc --body @message.bin \\
    --cacert ca.pem --mix 'customer=team-{1..50}'

Exit code 0 if something ended well, 1 if nothing did, 2 if the plan was refused and nothing sent.";

/// What the user may choose.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Options {
    /// Whom to ask: scheme, host, port and path. Only this machine, unless --allow-remote
    #[arg(value_name = "URL", required_unless_present = "plan")]
    target: Option<String>,
    /// A YAML file with any of what follows; what the command line says goes over it
    #[arg(long, value_name = "FILE")]
    pub(super) plan: Option<PathBuf>,

    /// Requests a second: 500, 2k, 100..500 (a ramp), `100..500 in 5 steps`, or max [default: 100]
    #[arg(short, long, value_name = "RATE", help_heading = "Load")]
    rate: Option<String>,
    /// How long requests are due [default: 10s]
    #[arg(short, long, value_name = "SPAN", help_heading = "Load")]
    duration: Option<Span>,
    /// A part of the load, such as `100..500 for 30s`; once for each part, instead of --rate
    #[arg(long = "stage", value_name = "STAGE", help_heading = "Load")]
    stages: Vec<Stage>,
    /// poisson, as many independent callers, or even [default: poisson]
    #[arg(long, value_name = "HOW", help_heading = "Load")]
    arrivals: Option<Spacing>,
    /// Names the dice: the same seed and plan send the same requests at the same times
    #[arg(long, value_name = "N", help_heading = "Load")]
    seed: Option<u64>,
    /// Send for so long before anything counts [default: 0s]
    #[arg(long, value_name = "SPAN", help_heading = "Load")]
    warmup: Option<Span>,

    /// http1, h2 or grpc; without TLS, h2 with prior knowledge [default: http1]
    #[arg(short, long, value_name = "NAME", help_heading = "Requests")]
    protocol: Option<Protocol>,
    /// The method [default: GET, or POST with a body]
    #[arg(short = 'X', long, value_name = "METHOD", help_heading = "Requests")]
    method: Option<String>,
    /// A header, `name: value`; any number of them
    #[arg(short = 'H', long = "header", value_name = "HEADER", help_heading = "Requests")]
    headers: Vec<String>,
    /// The body or gRPC message: text, @file or hex=0a05
    #[arg(short, long, value_name = "BODY", help_heading = "Requests")]
    body: Option<String>,
    /// What requests are made of, by weight: criticality, customer, deadline, route or body, such
    /// as criticality=CRITICAL:3,SHEDDABLE:1; any number of them
    #[arg(short, long = "mix", value_name = "WHAT=LIST", help_heading = "Requests")]
    mixes: Vec<String>,

    /// What callers do when an attempt fails: none, naive:3 (attempts, at once) or budgeted
    /// (tidegate's own) [default: none]
    #[arg(long, value_name = "HOW", help_heading = "Callers")]
    retry: Option<Retry>,
    /// Hold back what the server would most likely refuse, as tidegate's clients do: on or off
    /// [default: off]
    #[arg(long, value_name = "SWITCH", help_heading = "Callers")]
    throttle: Option<Switch>,
    /// How long callers wait from the intended start; those with a deadline wait no longer than
    /// that [default: 10s]
    #[arg(short, long, value_name = "SPAN", help_heading = "Callers")]
    timeout: Option<Span>,
    /// How long they wait for a single attempt [default: as for the request]
    #[arg(long, value_name = "SPAN", help_heading = "Callers")]
    attempt_timeout: Option<Span>,
    /// Wait until the timeout even when the deadline has passed
    #[arg(long, help_heading = "Callers")]
    wait_past_deadline: bool,

    /// Connections from the start [default: 64; h2 and gRPC: 4]
    #[arg(short, long, value_name = "N", help_heading = "Connections")]
    connections: Option<u32>,
    /// How many there may be when all are busy [default: 960; h2 and gRPC: 16]
    #[arg(long, value_name = "N", help_heading = "Connections")]
    connections_max: Option<u32>,
    /// Requests at once on a connection of h2 and gRPC [default: 100]
    #[arg(long, value_name = "N", help_heading = "Connections")]
    streams: Option<u32>,
    /// Requests that may wait for a connection; the next one is not sent, and counted as that
    /// [default: 10000]
    #[arg(long, value_name = "N", help_heading = "Connections")]
    backlog: Option<u32>,
    /// Threads that send [default: 1]
    #[arg(long, value_name = "N", help_heading = "Connections")]
    threads: Option<u32>,
    /// Believe the authorities in this PEM file instead of the system's
    #[arg(long, value_name = "FILE", help_heading = "Connections")]
    cacert: Option<PathBuf>,
    /// Believe any certificate
    #[arg(long, help_heading = "Connections")]
    insecure: bool,
    /// Ask a server that is not on this machine. Mind whose it is
    #[arg(long, help_heading = "Connections")]
    pub(super) allow_remote: bool,

    /// Print one JSON object instead of text
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
    /// Write the histogram of latencies: percentiles (.hgrm), or a log of V2 histograms (.hlog)
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) histogram: Option<PathBuf>,
    /// No progress on the terminal
    #[arg(short, long, help_heading = "Output")]
    pub(super) quiet: bool,
}

/// What can be mixed.
const MIXES: &str = "criticality, customer, deadline, route or body, an equals sign and a list, \
                     such as criticality=CRITICAL:3,SHEDDABLE:1";

impl Options {
    /// What the command line says.
    pub(super) fn draft(&self) -> Result<Draft, PlanError> {
        let mut draft = Draft {
            target: self.target.clone(),
            protocol: self.protocol,
            rate: self.rate.clone(),
            duration: self.duration,
            stages: (!self.stages.is_empty()).then(|| self.stages.clone()),
            arrivals: self.arrivals,
            seed: self.seed,
            warmup: self.warmup,
            connections: self.connections,
            connections_max: self.connections_max,
            streams: self.streams,
            threads: self.threads,
            backlog: self.backlog,
            timeout: self.timeout,
            attempt_timeout: self.attempt_timeout,
            wait_past_deadline: self.wait_past_deadline.then_some(Switch(true)),
            retry: self.retry,
            throttle: self.throttle,
            cacert: self.cacert.clone(),
            insecure: self.insecure.then_some(Switch(true)),
            headers: self.headers()?,
            method: self.method.clone(),
            body: self.body.clone().map(WeightedList::only),
            ..Draft::default()
        };
        for mix in &self.mixes {
            let Some((what, list)) = mix.split_once('=') else {
                return Err(Unreadable::new(format!("`{mix}` is no mix"), MIXES).into());
            };
            let list: WeightedList = list.parse()?;
            match what.trim() {
                "criticality" => draft.criticality = Some(list),
                "customer" => draft.customer = Some(list),
                "deadline" => draft.deadline = Some(list),
                "body" => draft.body = Some(list),
                "route" => draft.requests = RouteDraft::list(&list)?,
                _ => {
                    let what = format!("`{what}` cannot be mixed");
                    return Err(Unreadable::new(what, MIXES).into());
                }
            }
        }
        Ok(draft)
    }

    fn headers(&self) -> Result<BTreeMap<String, String>, PlanError> {
        let mut headers = BTreeMap::new();
        for header in &self.headers {
            let Some((name, value)) = header.split_once(':') else {
                let right = "a name, a colon and a value, such as 'accept: text/plain'";
                return Err(Unreadable::new(format!("`{header}` is no header"), right).into());
            };
            headers.insert(name.trim().to_owned(), value.trim().to_owned());
        }
        Ok(headers)
    }
}
