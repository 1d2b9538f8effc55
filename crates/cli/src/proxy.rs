//! `tidegate proxy`: the same protection for services in any language.

use crate::{Ending, Failure};
use clap::Args;
use core::num::NonZeroUsize;
use core::time::Duration;
use std::io::Write as _;
use std::net::SocketAddr;
use tidegate::Criticality;
use tidegate_core::decision::Reason;
use tidegate_proxy::{Config, Protocol, Proxy, ProxyError, Upstream, Watch};
use tidegate_wire::customer::Identities;

/// How often it says what it would have refused, or has.
const SAY_EVERY: Duration = Duration::from_secs(10);

#[derive(Args)]
pub(crate) struct Options {
    /// Where the program is: `127.0.0.1:8080`, `app:8080`, or `unix:/PATH`
    #[arg(long, value_name = "PLACE")]
    upstream: Upstream,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// Refuse what is too much; without this, only say what would have been
    #[arg(long)]
    enforce: bool,
    /// What the program speaks: auto is gRPC by HTTP/2, all else by HTTP/1.1
    #[arg(long, value_enum, default_value = "auto")]
    protocol: Speaks,
    /// What to look at of the program: `auto`, `nothing`, `pid:NUMBER` or `cgroup:/NAME`
    #[arg(long, value_name = "WHOM", default_value = "auto")]
    watch: Watch,
    /// How many CPUs the program may use, if it is not what the system says
    #[arg(long, value_name = "NUMBER")]
    cpus: Option<f64>,
    /// Threads that serve; as many as there are CPUs if not said
    #[arg(long, value_name = "NUMBER")]
    workers: Option<NonZeroUsize>,
    /// Where the dashboard, /metrics and health are; `off` for nowhere
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8001")]
    admin: Admin,
    /// What the service is called
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Believe every caller that says `CRITICAL_PLUS`: for networks without strangers
    #[arg(long)]
    trust_callers: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Speaks {
    Auto,
    H1,
    H2,
}

#[derive(Debug, Clone, Copy)]
struct Admin(Option<SocketAddr>);

impl core::str::FromStr for Admin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        let wrong = |_| "an address such as 127.0.0.1:8001, or `off`".to_owned();
        text.parse().map(|address| Self(Some(address))).map_err(wrong)
    }
}

pub(crate) fn run(options: &Options) -> Result<Ending, Failure> {
    let mut config = Config::new(options.listen, options.upstream.clone());
    config.dark = !options.enforce;
    config.pool.protocol = match options.protocol {
        Speaks::Auto => Protocol::Auto,
        Speaks::H1 => Protocol::Http1,
        Speaks::H2 => Protocol::Http2,
    };
    config.watch = options.watch.clone();
    (config.cpus, config.workers, config.admin) = (options.cpus, options.workers, options.admin.0);
    if let Some(service) = &options.service {
        config.service.clone_from(service);
    }
    if options.trust_callers {
        config.identities = Identities::default().unidentified(Criticality::CriticalPlus);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failure(&error.into()))?;
    let proxy = Proxy::start(config).map_err(|error| failure(&error))?;
    announce(&proxy, options);
    runtime.block_on(async {
        if let Err(error) = proxy.life().stop_on_signals() {
            say(&format!("it can only be killed, as signals cannot be listened to: {error}"));
        }
        let mut last = counts(&proxy);
        let mut leaving = core::pin::pin!(proxy.life().reached(tidegate::life::Phase::LameDuck));
        loop {
            tokio::select! {
                _ = &mut leaving => break,
                () = tokio::time::sleep(SAY_EVERY) => {
                    let now = counts(&proxy);
                    tell(&proxy, &last, &now, options.enforce);
                    last = now;
                }
            }
        }
        say("leaving: no new connections soon, what is in flight is finished");
    });
    let task = proxy.task().clone();
    proxy.join().map_err(|error| failure(&error))?;
    let requests = task.snapshot().requests;
    let admitted: u64 = Criticality::ALL.into_iter().map(|c| requests.admitted(c)).sum();
    say(&format!("{admitted} requests handed on, {} of them not finished", requests.inflight()));
    Ok(Ending::default())
}

/// What has been refused so far, or would have been, by criticality; and all that came.
struct Counts {
    refused: [u64; Criticality::COUNT],
    came: u64,
}

fn counts(proxy: &Proxy) -> Counts {
    let requests = proxy.task().snapshot().requests;
    let refused = Criticality::ALL.map(|criticality| {
        let count =
            |reason| requests.dark(reason, criticality) + requests.rejected(reason, criticality);
        Reason::ALL.into_iter().map(count).sum()
    });
    let admitted = |criticality| requests.admitted(criticality);
    let rejected = |criticality| Reason::ALL.into_iter().map(move |reason| (reason, criticality));
    let came = Criticality::ALL.into_iter().map(|criticality| {
        let refused = rejected(criticality).map(|(reason, c)| requests.rejected(reason, c));
        admitted(criticality) + refused.sum::<u64>()
    });
    Counts { came: came.sum(), refused }
}

fn announce(proxy: &Proxy, options: &Options) {
    let mode = if options.enforce {
        "what is too much is refused"
    } else {
        "dark: nothing is refused, it only says what would be (--enforce does it)"
    };
    say(&format!("listening at http://{} for {}", proxy.address(), options.upstream));
    say(&format!("mode: {mode}"));
    say(&format!("watching {}", proxy.watched()));
    if let Some(page) = proxy.page() {
        say(&format!("dashboard at http://{}", page.address()));
    }
}

/// One line about the last seconds, if there was anything to refuse.
fn tell(proxy: &Proxy, last: &Counts, now: &Counts, enforce: bool) {
    let refused: Vec<(Criticality, u64)> = Criticality::ALL
        .into_iter()
        .zip(now.refused.iter().zip(last.refused))
        .map(|(criticality, (now, last))| (criticality, now - last))
        .filter(|(_, count)| *count > 0)
        .collect();
    if refused.is_empty() {
        return;
    }
    let sum: u64 = refused.iter().map(|(_, count)| count).sum();
    let each: Vec<String> =
        refused.iter().map(|(criticality, count)| format!("{criticality} {count}")).collect();
    let verb = if enforce { "refused" } else { "would have refused" };
    let plan = proxy.task().snapshot().plan;
    let because = plan.map_or_else(String::new, |plan| {
        format!("; offered {:.2} CPU, can do {:.2}", plan.offered, plan.capacity)
    });
    say(&format!(
        "{verb} {sum} of {} requests in {} s: {}{because}",
        now.came - last.came,
        SAY_EVERY.as_secs(),
        each.join(", "),
    ));
}

/// To whoever watches, at once. If nobody does, that is no reason to stop.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "tidegate: {line}");
}

fn failure(error: &ProxyError) -> Failure {
    Failure {
        what: "the proxy cannot run".to_owned(),
        why: error.to_string(),
        next: match error {
            ProxyError::Listen { .. } => "give it another place by --listen, or stop who is there",
            ProxyError::Admin { .. } => "give the page another place by --admin, or `--admin off`",
            _ => "see `tidegate proxy --help`",
        },
    }
}
