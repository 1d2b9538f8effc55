//! `tidegate proxy`: the same protection for services in any language.

mod notify;
mod reign;

use crate::{Ending, Failure};
use clap::Args;
use core::num::NonZeroUsize;
use core::time::Duration;
use reign::Reign;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tidegate::Criticality;
use tidegate::life::Phase;
use tidegate_core::decision::Reason;
use tidegate_proxy::config::LISTEN;
use tidegate_proxy::config::Role;
use tidegate_proxy::handover::{self, HandoverError, Heirs, Predecessor};
use tidegate_proxy::{Config, Protocol, Proxy, ProxyError, Target, UpstreamTls, Watch};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How often it says what it would have refused, or has.
const SAY_EVERY: Duration = Duration::from_secs(10);

#[derive(Args)]
pub(crate) struct Options {
    /// Where the program is: `127.0.0.1:8080`, `app:8080`, `https://app:8443`, or `unix:/PATH`
    #[arg(long, value_name = "PLACE", required_unless_present = "config")]
    upstream: Option<Target>,
    /// A file in YAML that says how to run; read again when it changes, and on SIGHUP
    ///
    /// What the command line says goes over it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to listen; 127.0.0.1:8000 if nobody says
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Refuse what is too much; without this, only say what would have been
    #[arg(long)]
    enforce: bool,
    /// What the program speaks: auto is gRPC by HTTP/2, all else by HTTP/1.1
    #[arg(long, value_enum)]
    protocol: Option<Speaks>,
    /// What to look at of the program: `auto`, `nothing`, `pid:NUMBER` or `cgroup:/NAME`
    #[arg(long, value_name = "WHOM")]
    watch: Option<Watch>,
    /// How many CPUs the program may use, if it is not what the system says
    #[arg(long, value_name = "NUMBER")]
    cpus: Option<f64>,
    /// Threads that serve; as many as there are CPUs if not said
    #[arg(long, value_name = "NUMBER")]
    workers: Option<NonZeroUsize>,
    /// Where the dashboard, /metrics and health are; `off` for nowhere
    ///
    /// 127.0.0.1:8001 if nobody says, and the file neither.
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<Admin>,
    /// What the service is called
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// A socket in the file system by which one process takes over from another
    ///
    /// If a proxy runs that was told the same, this one serves at its very sockets, and that one
    /// finishes what it has and ends: no connection is refused or reset. If none does, this is the
    /// first.
    #[arg(long, value_name = "PATH")]
    handover: Option<PathBuf>,
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

/// Where the page is if nobody says.
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);
/// How often to look whether the file is another.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Options {
    /// What stands in the file, if it can be read.
    fn text(&self) -> Option<Vec<u8>> {
        self.config.as_deref().map(std::fs::read).and_then(Result::ok)
    }

    /// What the file says, and over it what the command line does, which knows the inbound role
    /// only.
    fn resolve(&self) -> Result<Role, Failure> {
        let mut config = if let Some(file) = &self.config {
            match read(file)? {
                Role::Inbound(config) => *config,
                other => return Ok(other),
            }
        } else {
            // Clap has seen to it that there is one of both.
            let target = self.upstream.clone().ok_or_else(|| refused("no upstream".into()))?;
            let listen = LISTEN.parse().map_err(|_| refused(LISTEN.into()))?;
            let mut config = Config::new(listen, target.upstream);
            config.admin = Some(ADMIN);
            config
        };
        if let Some(Target { upstream, tls }) = &self.upstream {
            if config.service == config.upstream.to_string() {
                config.service = upstream.to_string();
            }
            config.upstream = upstream.clone();
            // What the file says of it is good for any place that wants TLS.
            let said = config.upstream_tls.take();
            config.upstream_tls = tls.then(|| said.unwrap_or_else(UpstreamTls::default));
        }
        config.listen = self.listen.unwrap_or(config.listen);
        config.dark &= !self.enforce;
        if let Some(speaks) = self.protocol {
            config.pool.protocol = match speaks {
                Speaks::Auto => Protocol::Auto,
                Speaks::H1 => Protocol::Http1,
                Speaks::H2 => Protocol::Http2,
            };
        }
        if let Some(watch) = &self.watch {
            config.watch = watch.clone();
        }
        config.cpus = self.cpus.or(config.cpus);
        config.workers = self.workers.or(config.workers);
        if let Some(Admin(admin)) = self.admin {
            config.admin = admin;
        }
        if let Some(service) = &self.service {
            config.service.clone_from(service);
        }
        if self.trust_callers {
            config.ceiling = Criticality::CriticalPlus;
        }
        Ok(config.into())
    }
}

fn read(file: &Path) -> Result<Role, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| Failure {
        what: format!("{} cannot be read", file.display()),
        why: error.to_string(),
        next: "give the path of a file in YAML; docs/proxy.md has its keys",
    })?;
    Role::parse(&file.display().to_string(), &text).map_err(|error| refused(error.to_string()))
}

fn refused(why: String) -> Failure {
    let what = "the configuration is refused".to_owned();
    Failure { what, why, next: "mend it; docs/proxy.md has every key" }
}

pub(crate) fn run(options: &Options) -> Result<Ending, Failure> {
    // Before it is made sense of: what is written from now on is another file.
    let text = options.text();
    let role = options.resolve()?;
    // Each connection takes one, and what most systems give at first is for a tenth of those that
    // there may be.
    crate::demo::service::raise_file_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failure(&error.into()))?;
    let asked = options.handover.as_deref().map(handover::ask).transpose();
    let (predecessor, legacy) = asked.map_err(|error| not_handed(&error))?.flatten().unzip();
    let proxy = Proxy::succeed(role.clone(), legacy.unwrap_or_default());
    let proxy = proxy.map_err(|error| failure(&error))?;
    let signals = {
        // Before anybody is told that it is there: a signal that nobody waits for would end it.
        let _entered = runtime.enter();
        end_on_signals(&proxy);
        Signals::new()
    };
    announce(&proxy, &role);
    let mut reign = Reign::new(proxy);
    runtime.block_on(async {
        // One that ends as soon as it is there takes nobody's place.
        let serves = reign.proxy().life().reached(Phase::Serving).await == Phase::Serving;
        let declined = take_over(&reign, predecessor.filter(|_| serves));
        if serves && declined.is_none() {
            if let Some(path) = &options.handover {
                wait_for_heirs(&reign, path);
            }
            notify::serving();
        }
        watch_over(&mut reign, options, signals, text).await;
        reign.over().await;
        declined.map_or(Ok(()), |error| Err(not_handed(&error)))
    })?;
    let (admitted, unfinished) = reign.join().map_err(|error| failure(&error))?;
    say(&format!("{admitted} requests handed on, {unfinished} of them not finished"));
    Ok(Ending::default())
}

/// Tells the predecessor to end. One that does not, ends us.
fn take_over(reign: &Reign, predecessor: Option<Predecessor>) -> Option<HandoverError> {
    match predecessor?.replaced(reign.proxy().taken()) {
        Ok(()) => say("taken over: the one before finishes what it has"),
        Err(error @ HandoverError::Declined(_)) => {
            reign.proxy().life().replaced();
            return Some(error);
        }
        Err(error) => say(&format!("the one before went without a word: {error}")),
    }
    None
}

/// Whoever is started with the same socket may take over from now on.
fn wait_for_heirs(reign: &Reign, path: &Path) {
    match Heirs::at(path) {
        Ok(heirs) => {
            let told = |error| say(&format!("nobody has taken over: {error}"));
            let handed = heirs.hand_over(reign.incumbent(), told);
            drop(tokio::spawn(async {
                handed.await;
                say("a successor has taken over");
            }));
        }
        Err(error) => say(&format!("nobody can take over: {error}")),
    }
}

/// Until it is to end: says what is refused, and reads the file again when it is another.
/// What was read first is `text`.
async fn watch_over(
    reign: &mut Reign,
    options: &Options,
    mut signals: Signals,
    mut text: Option<Vec<u8>>,
) {
    let mut last = counts(reign.proxy());
    let mut say_due = Instant::now() + SAY_EVERY;
    let mut leaving = Box::pin(reign.proxy().life().reached(Phase::LameDuck));
    let mut again = Again::default();
    loop {
        let asked = tokio::select! {
            _ = &mut leaving => break,
            () = next(&mut signals.successor) => {
                start_successor(options);
                false
            }
            () = next(&mut signals.reload) => true,
            () = tokio::time::sleep(LOOK_EVERY) => false,
        };
        let now = options.text();
        let changed = now.is_some() && now != text;
        if asked || changed || again.is_due(Instant::now()) {
            // What could not run counts as changed until it can, or is something else.
            let changed = changed || again.is_waited_for();
            text = now.or(text);
            let outcome = reload(reign, options, changed).await;
            again.after(outcome, Instant::now());
            if outcome == Reloaded::Succeeded {
                leaving = Box::pin(reign.proxy().life().reached(Phase::LameDuck));
                last = counts(reign.proxy());
            }
        }
        reign.forget_those_that_are_over();
        if Instant::now() >= say_due {
            say_due += SAY_EVERY;
            let now = counts(reign.proxy());
            tell(reign.proxy(), &last, &now);
            last = now;
        }
    }
    say("leaving: no new connections soon, what is in flight is finished");
    if !reign.proxy().life().is_replaced() {
        notify::stopping();
    }
}

/// What it may be told while it runs.
struct Signals {
    reload: Option<Signal>,
    successor: Option<Signal>,
}

impl Signals {
    fn new() -> Self {
        let of = |kind| signal(kind).ok();
        Self { reload: of(SignalKind::hangup()), successor: of(SignalKind::user_defined2()) }
    }
}

/// Returns when it is told; never if nobody can.
async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => core::future::pending().await,
    }
}

/// Runs the binary that is there now as we were run: it will ask us for our sockets.
fn start_successor(options: &Options) {
    if options.handover.is_none() {
        return say("no successor: it could not take over without --handover");
    }
    let mut words = std::env::args_os();
    let Some(program) = words.next() else { return };
    match std::process::Command::new(program).args(words).spawn() {
        Ok(mut child) => {
            say(&format!("a successor starts: process {}", child.id()));
            // If it cannot run, somebody has to take notice.
            drop(std::thread::spawn(move || child.wait()));
        }
        Err(error) => say(&format!("no successor: {error}")),
    }
}

fn end_on_signals(proxy: &Proxy) {
    if let Err(error) = proxy.life().stop_on_signals() {
        say(&format!("it can only be killed, as signals cannot be listened to: {error}"));
    }
}

/// What became of a file that was read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reloaded {
    /// The proxy goes on: with what the file says, or because that makes no sense.
    Settled,
    /// Another has taken over.
    Succeeded,
    /// What the file says cannot run now, and may later: a port is taken, a certificate is not
    /// there yet.
    Unable,
}

/// When a file is to be tried again that could not run.
#[derive(Debug, Default)]
struct Again {
    next: Option<(Instant, Duration)>,
}

impl Again {
    /// The first wait, which doubles up to the last: what is missing is mostly there in a moment,
    /// and each attempt says why it failed.
    const FIRST: Duration = Duration::from_secs(2);
    const LAST: Duration = Duration::from_secs(60);

    fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|(at, _)| at <= now)
    }

    const fn is_waited_for(&self) -> bool {
        self.next.is_some()
    }

    fn after(&mut self, outcome: Reloaded, now: Instant) {
        self.next = (outcome == Reloaded::Unable).then(|| {
            let wait = self.next.map_or(Self::FIRST, |(_, wait)| (wait * 2).min(Self::LAST));
            (now + wait, wait)
        });
    }
}

/// A bad file changes nothing. What cannot be changed while a proxy runs is changed by another that
/// takes over.
async fn reload(reign: &mut Reign, options: &Options, changed: bool) -> Reloaded {
    let role = match options.resolve() {
        Ok(role) => role,
        Err(Failure { what, why, .. }) => {
            say(&format!("{what}, it goes on as before: {why}"));
            return Reloaded::Settled;
        }
    };
    let anew = match (&role, changed) {
        // It cannot tell what differs, and nothing does.
        (other, false) if !matches!(other, Role::Inbound(_)) => Vec::new(),
        _ => reign.reload(role.clone()),
    };
    if anew.is_empty() {
        say(&format!("read anew: {}", mode(reign.proxy().task().gate().is_dark())));
        return Reloaded::Settled;
    }
    match reign.succeed(role.clone()).await {
        Ok(true) => {
            say(&format!("read anew, and started anew for: {}", anew.join(", ")));
            announce(reign.proxy(), &role);
            Reloaded::Succeeded
        }
        // It is to end: what the file says now is for whoever is started next.
        Ok(false) => Reloaded::Settled,
        Err(error) => {
            say(&format!("the configuration cannot run, it goes on as before: {error}"));
            Reloaded::Unable
        }
    }
}

const fn mode(dark: bool) -> &'static str {
    if dark {
        "dark: nothing is refused, it only says what would be (--enforce does it)"
    } else {
        "what is too much is refused"
    }
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

fn announce(proxy: &Proxy, role: &Role) {
    if let Role::Inbound(config) = role {
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        say(&format!("listening at {scheme}://{} for {}", proxy.address(), config.upstream));
        say(&format!("mode: {}", mode(config.dark)));
        say(&format!("watching {}", proxy.watched()));
    } else {
        let (scheme, what) = match role {
            Role::Batch(_) => ("http", "batch work for"),
            Role::Outbound(config) if config.tls.is_some() => ("https", "calls to"),
            _ => ("http", "calls to"),
        };
        for (service, address) in proxy.services() {
            say(&format!("listening at {scheme}://{address} for {what} {service}"));
        }
    }
    if let Some(page) = proxy.page() {
        say(&format!("dashboard at http://{}", page.address()));
    }
}

/// One line about the last seconds, if there was anything to refuse.
fn tell(proxy: &Proxy, last: &Counts, now: &Counts) {
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
    let verb = if proxy.task().gate().is_dark() { "would have refused" } else { "refused" };
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

fn not_handed(error: &HandoverError) -> Failure {
    Failure {
        what: "the proxy that runs does not hand over".to_owned(),
        why: error.to_string(),
        next: "it goes on as before; try again, or stop it first",
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_run_is_tried_again_less_and_less_often() {
        let (mut again, mut now) = (Again::default(), Instant::now());
        assert!(!again.is_due(now) && !again.is_waited_for());
        for wait in [2, 4, 8, 16, 32, 60, 60] {
            again.after(Reloaded::Unable, now);
            assert!(again.is_waited_for());
            assert!(!again.is_due(now + Duration::from_millis(wait * 1_000 - 1)));
            now += Duration::from_secs(wait);
            assert!(again.is_due(now));
        }
        for settled in [Reloaded::Settled, Reloaded::Succeeded] {
            again.after(Reloaded::Unable, now);
            again.after(settled, now);
            assert!(!again.is_due(now + Again::LAST) && !again.is_waited_for());
        }
    }
}
