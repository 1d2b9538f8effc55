//! Runs a quota server until it is told to end: a single one, or one of several of which etcd has
//! one elected.
//!
//! It says where it listens in one line, follows its file (looking once a second, and at once on
//! SIGHUP) or the limits in etcd, and on SIGTERM ends all streams: tasks go on with what they have,
//! so there is nothing to wait for but that its lease is given back, if it leads.

use super::{REFUSED, page};
use crate::{Ending, Failure, print};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tidegate::clock::Clock;
use tidegate::life::{Life, LifeConfig};
use tidegate::serve::Tls;
use tidegate_core::connection::gate::{ConnectionGate, ConnectionLimits};
use tidegate_quota::config::Exposed;
use tidegate_quota::election::Change;
use tidegate_quota::server::{Reload, follow};
use tidegate_quota::{Candidate, Config, Election, Server};
use tidegate_tls::{News, ServerOptions};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// How often to look at the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Streams have ended by then; whoever asks for the status gets its answer.
const DRAIN_MAX: Duration = Duration::from_secs(1);

pub(super) fn run(
    file: &Path,
    listen: Option<SocketAddr>,
    page: Option<SocketAddr>,
) -> Result<Ending, Failure> {
    let name = file.display().to_string();
    let text = fs::read_to_string(file).map_err(|error| Failure {
        what: format!("could not read {name}"),
        why: error.to_string(),
        next: "give a file that can be read; docs/quota.md shows what belongs into it",
    })?;
    let mut config = match Config::parse(&name, &text) {
        Ok(config) => config,
        Err(refused) => {
            let err = format!("error: {refused}\n");
            return Ok(Ending { err, code: REFUSED, ..Ending::default() });
        }
    };
    if let Some(listen) = listen {
        // Who was not told what others call it is called by where it listens.
        if config.advertise == config.listen.to_string() {
            config.advertise.clear();
        }
        config.listen_at(listen).map_err(|exposed| Failure {
            what: format!("will not listen on {listen}"),
            why: exposed.to_string(),
            next: Exposed::REMEDY,
        })?;
    }
    crate::demo::service::raise_file_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("start", &error))?;
    runtime.block_on(serve(file, text, config, page))
}

async fn serve(
    file: &Path,
    text: String,
    mut config: Config,
    page: Option<SocketAddr>,
) -> Result<Ending, Failure> {
    let clock = Clock::monotonic();
    let tls = config.tls.clone().map(secure).transpose()?;
    let gate = ConnectionGate::new(connections(&config));
    let gate = gate.map_err(|error| failed("take connections", &error))?;
    let listener = TcpListener::bind(config.listen).await;
    let listener =
        listener.map_err(|error| failed(&format!("listen on {}", config.listen), &error))?;
    let address = listener.local_addr().map_err(|error| failed("listen", &error))?;
    if config.advertise.is_empty() {
        config.advertise = address.to_string();
    }
    let server = if config.election.is_some() {
        Server::stand(&config, clock.clone()).map_err(|error| failed("start", &error))?
    } else {
        let election = Election::alone(config.state.as_deref(), SystemTime::now());
        let election = election.map_err(|error| failed("win an election", &error))?;
        let server = Server::start(&config, election, clock.clone());
        server.map_err(|error| failed("start", &error))?
    };
    let mut life = LifeConfig::default();
    (life.drain_delay, life.drain_max) = (Duration::ZERO, DRAIN_MAX);
    let life = Life::new(life, clock.clone());
    life.stop_on_signals().map_err(|error| failed("listen to signals", &error))?;
    let wake = wake_on_hangup().map_err(|error| failed("listen to signals", &error))?;

    let page = match page {
        None => None,
        Some(at) => {
            let (server, runtime) = (server.clone(), Handle::current());
            let open = move || page::open(&server, at, &runtime);
            let opened = tokio::task::spawn_blocking(open).await;
            let opened = opened.map_err(|error| failed("show the page", &error))?;
            Some(opened.map_err(|error| failed("show the page", &error))?)
        }
    };
    let trust = trust(&config);
    let mut hello = match &config.election {
        None => {
            let epoch = server.epoch();
            format!("tidegate quota: listens on {address}, epoch {epoch}; {trust}\n")
        }
        Some(_) => {
            format!("tidegate quota: listens on {address}, as {}; {trust}\n", config.advertise)
        }
    };
    if let Some(page) = &page {
        // Writing to a string cannot fail.
        let _ = writeln!(hello, "tidegate quota: page at http://{}/", page.address());
    }
    for line in config.summary().lines() {
        let _ = writeln!(hello, "tidegate quota: {line}");
    }
    print(&hello)?;
    let from_etcd = config.election.as_ref().is_some_and(|election| election.limits);
    let gate = Arc::new(gate);
    // Of limits in etcd, the file has only what is this server's own.
    let room = Room { gate: Arc::clone(&gate), clock: clock.clone() };
    let heard = {
        let room = room.clone();
        move |reload| said(reload, (!from_etcd).then_some(&room))
    };
    let following =
        tokio::spawn(follow(server.clone(), file.to_owned(), text, LOOK_EVERY, wake, heard));
    let candidate = config.election.as_ref().map(|election| {
        Candidate::start(&server, &config, election, move |change| changed(change, &room))
            .map_err(|error| failed("take part in the election", &error))
    });
    let candidate = candidate.transpose()?;
    let ending = tokio::spawn({
        let (server, life) = (server.clone(), life.clone());
        async move {
            life.draining().await;
            if let Some(candidate) = candidate {
                candidate.resign().await;
            }
            server.stop().await;
        }
    });
    let router = server.router().into_make_service();
    let mut serve = tidegate::serve(listener, router).life(life).connections(gate);
    if let Some(tls) = tls {
        serve = serve.tls(tls);
    }
    let ended = serve.await;
    following.abort();
    if ended.is_ok() {
        // It ends soon after draining began.
        let _ = ending.await;
    }
    ended.map(|()| Ending::default()).map_err(|error| failed("serve", &error))
}

/// Certificates, which are read again when they change.
fn secure(options: ServerOptions) -> Result<Tls, Failure> {
    let wrong = |error: &dyn std::error::Error| failed("use its certificates", error);
    let server = tidegate_tls::Server::new(options).map_err(|error| wrong(&error))?;
    let told = |news: News| {
        let line = match news {
            News::Refused(error) => format!("kept the certificates before: {error}"),
            _ => "new certificates, for new connections".to_owned(),
        };
        say(&line);
    };
    server.watch(tidegate_tls::PERIOD, told).map_err(|error| wrong(&error))?;
    Ok(server.into())
}

/// Room for a connection of every task that there may be, and for those who ask. After a restart
/// all of them come back within seconds; with TLS handshakes take up to half of the CPU.
fn connections(config: &Config) -> ConnectionLimits {
    let mut limits = ConnectionLimits::default();
    let tasks = config.services.values().map(|service| service.fleet.tasks_max as u64);
    // A tenth is kept for those who count as more than anybody may.
    limits.open_max = (tasks.sum::<u64>() + limits.open_max) * 10 / 9;
    if config.tls.is_none() {
        (limits.accepts_per_second, limits.burst) = (4_000, 4_000);
    }
    limits
}

/// Where it is said how many connections there may be.
#[derive(Clone)]
struct Room {
    gate: Arc<ConnectionGate>,
    clock: Clock,
}

impl Room {
    /// Services have come or gone, or were read for the first time.
    fn fit(&self, config: &Config) {
        // They were fit for a start.
        let _ = self.gate.publish(connections(config), self.clock.now());
    }
}

/// Whom it believes, in words.
fn trust(config: &Config) -> &'static str {
    if config.identified() {
        "callers prove who they are by certificates"
    } else if config.listen.ip().is_loopback() {
        "callers prove nothing: only this machine can reach it"
    } else {
        "callers prove nothing: it trusts its network"
    }
}

fn failed(what: &str, error: &dyn std::error::Error) -> Failure {
    let mut why = error.to_string();
    if let Some(source) = error.source() {
        why = format!("{why}: {source}");
    }
    let next = "see `tidegate quota --help`, and docs/quota.md";
    Failure { what: format!("could not {what}"), why, next }
}

fn wake_on_hangup() -> io::Result<Arc<Notify>> {
    let wake = Arc::new(Notify::new());
    let woken = Arc::clone(&wake);
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            woken.notify_one();
        }
    });
    Ok(wake)
}

/// Says what has become of a server that is one of several.
fn changed(change: Change, room: &Room) {
    let line = match change {
        Change::Leads { epoch } => format!("leads, epoch {epoch}"),
        Change::Follows { leader: Some(leader) } => format!("follows {leader}"),
        Change::Follows { leader: None } => "knows of nobody who leads".to_owned(),
        Change::Reload(reload) => return said(reload, Some(room)),
        Change::Trouble(what) => return say(&format!("the election is in trouble: {what}")),
        _ => return,
    };
    let _ = writeln!(io::stderr(), "tidegate quota: {line}");
}

/// Says what came of a file that has changed, and makes room for its services.
fn said(reload: Reload, room: Option<&Room>) {
    if let (Reload::Done(config), Some(room)) = (&reload, room) {
        room.fit(config);
    }
    let line = match reload {
        Reload::Done(config) => format!("reloaded\n{}", config.summary()),
        Reload::Refused(refused) => format!("kept the limits before: {refused}"),
        Reload::Unfit(error) => format!("kept the limits before: {error}"),
        Reload::Unreadable(error) => format!("kept the limits before: {error}"),
        _ => return,
    };
    say(&line);
}

/// If nobody reads it, the status says it too.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "tidegate quota: {}", line.replace('\n', "\ntidegate quota: "));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Timestamp;
    use tidegate_quota::config::Own;

    #[test]
    fn services_from_etcd_have_room_for_the_connections_of_their_tasks() {
        let own = "quota: { election: { etcd: ['http://[::1]:2379'] } }";
        let own = Config::parse("quota.yaml", own).unwrap();
        let gate = Arc::new(ConnectionGate::new(connections(&own)).unwrap());
        let room = Room { gate: Arc::clone(&gate), clock: Clock::manual().0 };
        let mut now = Timestamp::ZERO;
        let mut fill = || {
            let before = gate.open();
            // A thousand a second is no storm.
            while gate.accept(None, now).is_ok() {
                now += Duration::from_millis(1);
            }
            gate.open() - before
        };
        assert!(fill() > 0);
        let limits = "quota: { services: { search: { default: 1, sizes: { tasks: 50000 } } } }";
        let limits = Config::parse_limits("etcd:/q/config", limits, &Own::of(&own)).unwrap();
        changed(Change::Reload(Reload::Done(Box::new(limits))), &room);
        let more = fill();
        assert!((50_000..60_000).contains(&more), "{more}");
        // What is of one server has no services, and takes none away.
        said(Reload::Done(Box::new(own)), None);
        assert_eq!(fill(), 0);
        gate.release();
        assert_eq!(fill(), 1);
    }
}
