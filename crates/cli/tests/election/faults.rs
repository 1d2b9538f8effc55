//! Leaders that are killed, ended, paused and cut off, and members of etcd that die.

use crate::etcd::Etcd;
use crate::fleet::{Fleet, SERVICES};
use crate::judge::{judge, judge_leaders};
use crate::servers::{Servers, status};
use crate::{asked, until};
use core::time::Duration;
use rustix::process::Signal;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tidegate_wire::proto::tidegate::quota::v1::quota_client::QuotaClient;
use tidegate_wire::proto::tidegate::quota::v1::{Hello, ServerMessage, TaskMessage, Usages};

/// Within so long a new leader is there.
const SOON: Duration = Duration::from_secs(5);
/// Thirty reports of each task: whatever a leader makes of them has been enforced by then.
const REPORTS: Duration = Duration::from_secs(3);
/// Longer than a leader's lease of three seconds: one that could not renew it has stopped by then,
/// and another could lead.
const LEASE: Duration = Duration::from_secs(5);
/// Within so long a leader stops that cannot renew its lease.
const STOPS: Duration = Duration::from_secs(4);

struct World {
    etcd: Etcd,
    servers: Servers,
    fleet: Fleet,
    /// From when on everything has to be right.
    calm: Instant,
    leader: usize,
    epoch: u64,
}

impl World {
    /// A fleet that has settled with its first leader.
    fn start(name: &str, services: &str) -> Self {
        let etcd = Etcd::start(name);
        let servers = Servers::start(name, &etcd, services);
        let (leader, epoch, _) = servers.leader(0, None);
        let fleet = Fleet::start(&servers.urls());
        until("all tasks are with the leader", || fleet.is_with(epoch));
        until("nobody is refused", || fleet.is_calm());
        Self { etcd, servers, fleet, calm: Instant::now(), leader, epoch }
    }

    /// Waits for another leader, and for all tasks to be with it. Returns how long it took until
    /// it led.
    fn another(&mut self) -> Duration {
        let (leader, epoch, took) = self.servers.leader(self.epoch, Some(self.leader));
        (self.leader, self.epoch) = (leader, epoch);
        until("all tasks are with the new leader", || self.fleet.is_with(epoch));
        took
    }

    /// Waits until the leader has learned.
    fn learned(&self) {
        let since = Instant::now();
        until("it has learned", || {
            let status = self.servers.latest(self.leader, since);
            status.is_some_and(|status| status.leads && !status.services[0].learning)
        });
    }

    /// Goes on for so long. What is judged is what the fleet has done over some time, so that time
    /// has to pass, and the fleet has to have done something until its end.
    fn watch(&self, span: Duration) {
        let since = Instant::now();
        until("the fleet goes on", || {
            self.fleet.steps().last().is_some_and(|step| step.at > since + span)
        });
    }

    fn judge(&self) {
        judge(&self.fleet.steps(), self.calm);
        judge_leaders(&self.servers.told());
    }
}

#[test]
fn a_leader_that_is_killed_or_ended_is_replaced() {
    if !asked() {
        return;
    }
    let mut world = World::start("killed", SERVICES);
    let first = world.leader;
    assert!(!world.servers.status(first).services[0].learning, "nobody has led before");
    world.servers.kill(first);
    let took = world.another();
    assert!(took < SOON, "{took:?}");
    let status = world.servers.status(world.leader);
    assert!(status.services[0].learning, "tasks hold what the first has granted");
    // It is back, and follows.
    world.servers.run(first);
    let since = Instant::now();
    until("it follows", || {
        let status = world.servers.latest(first, since);
        let leader = world.servers.addresses[world.leader].to_string();
        status.is_some_and(|status| !status.leads && status.leader == leader)
    });
    world.learned();
    world.watch(REPORTS);
    world.judge();

    // One that is told to end gives its lease back, so the next need not wait for its end.
    world.servers.signal(world.leader, Signal::TERM);
    let took = world.another();
    assert!(took < Duration::from_millis(2_500), "{took:?}");
    world.watch(REPORTS);
    world.judge();
}

/// A zone's servers have a global one above them, which is a process of its own.
#[test]
fn a_zone_whose_leader_is_paused_keeps_its_place_at_the_global_server() {
    if !asked() {
        return;
    }
    let [address] = crate::etcd::ports();
    let file = crate::scratch("election-zone-global.yaml");
    let state = crate::scratch("election-zone-global.state");
    let _ = std::fs::remove_file(&state);
    let text = format!("quota:\n  listen: {address}\n  state: {}\n{SERVICES}", state.display());
    std::fs::write(&file, text).unwrap();
    let _global = Servers::process(file.to_str().unwrap());
    // Of its own the zone has next to nothing, and knows no customer.
    let customers = "      default: 1\n      customers: { good: 3, bad: 2 }\n";
    let services = SERVICES.replace(customers, "      default: 0.01\n");
    let above = format!("  parent: {{ servers: ['http://{address}'], name: zone }}\n{services}");
    // Tasks notice after ten seconds that nobody is at the other end.
    let mut world = World::start("zone", &above.replace("hold: 12s", "hold: 20s"));
    let paused = world.leader;
    world.servers.signal(paused, Signal::STOP);
    let took = world.another();
    assert!(took < SOON, "{took:?}");
    // It finds its place taken, and changes nothing.
    let resumed = Instant::now();
    world.servers.signal(paused, Signal::CONT);
    let leader = world.servers.addresses[world.leader].to_string();
    until("it follows", || {
        let status = world.servers.latest(paused, resumed);
        status.is_some_and(|status| !status.leads && status.leader == leader)
    });
    let follows = Instant::now();
    until("the zone is one task, and was for a while", || {
        let status = status(&format!("http://{address}"));
        assert!(status.is_none_or(|status| status.services[0].tasks <= 1));
        world.fleet.steps().last().is_some_and(|step| step.at > follows + REPORTS)
    });
    assert!(world.fleet.is_with(world.epoch));
    world.judge();
}

/// What a server says on a stream, and when.
type Heard = Arc<Mutex<Vec<(Instant, ServerMessage)>>>;

/// A task that reports ten times a second, whoever leads, and never goes elsewhere.
fn stubborn(url: String) -> Heard {
    let heard = Heard::default();
    let tell = Arc::clone(&heard);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let channel = tonic::transport::Endpoint::from_shared(url).unwrap();
            let channel = channel.connect().await.unwrap();
            let (say, said) = tokio::sync::mpsc::channel(1_000);
            let hello = Hello { service: "search".into(), task: "raw".into(), ..Hello::default() };
            let _ = say.try_send(TaskMessage { hello: Some(hello), ..TaskMessage::default() });
            tokio::spawn(async move {
                for number in 1.. {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    let report = Some(Usages { number, ..Usages::default() });
                    if say.send(TaskMessage { report, ..TaskMessage::default() }).await.is_err() {
                        return;
                    }
                }
            });
            let said = tokio_stream::wrappers::ReceiverStream::new(said);
            let mut stream = QuotaClient::new(channel).report(said).await.unwrap().into_inner();
            while let Ok(Some(message)) = stream.message().await {
                tell.lock().unwrap().push((Instant::now(), message));
            }
            tell.lock().unwrap().push((Instant::now(), ServerMessage::default()));
        });
    });
    heard
}

#[test]
fn a_leader_that_was_paused_says_nothing_more_as_such() {
    if !asked() {
        return;
    }
    // Tasks notice after ten seconds that nobody is at the other end.
    let mut world = World::start("paused", &SERVICES.replace("hold: 12s", "hold: 20s"));
    let old = world.leader;
    let heard = stubborn(world.servers.urls()[old].clone());
    until("it is answered", || heard.lock().unwrap().len() > 5);
    world.servers.signal(old, Signal::STOP);
    let took = world.another();
    assert!(took < SOON, "{took:?}");
    let before = heard.lock().unwrap().len();
    let resumed = Instant::now();
    world.servers.signal(old, Signal::CONT);
    let leader = world.servers.addresses[world.leader].to_string();
    until("it follows", || {
        let status = world.servers.latest(old, resumed);
        status.is_some_and(|status| !status.leads && status.leader == leader)
    });
    until("its stream has ended", || {
        let heard = heard.lock().unwrap();
        heard.last().is_some_and(|(_, last)| *last == ServerMessage::default())
    });
    let after = heard.lock().unwrap()[before..].to_vec();
    for (_, message) in &after {
        let ServerMessage { welcome, answers, directory, grants, .. } = message;
        let silent = welcome.is_none() && directory.is_empty() && grants.is_none();
        assert!(silent && *answers == 0, "{after:?}");
    }
    assert!(after[0].1.redirect.is_some(), "{after:?}");
    world.judge();
}

#[test]
fn a_leader_that_is_cut_off_from_etcd_stops_before_another_leads() {
    if !asked() {
        return;
    }
    let mut world = World::start("cut", SERVICES);
    let old = world.leader;
    world.servers.cut(old, true);
    let took = world.another();
    assert!(took < SOON, "{took:?}");
    let since = Instant::now();
    until("it knows that something is wrong", || {
        let status = world.servers.latest(old, since);
        status.is_some_and(|status| !status.leads && status.trouble.contains("does not answer"))
    });
    world.watch(REPORTS);
    // What it has sent arrives late, and changes nothing.
    world.servers.cut(old, false);
    let since = Instant::now();
    let leader = world.servers.addresses[world.leader].to_string();
    until("it follows", || {
        let status = world.servers.latest(old, since);
        status.is_some_and(|status| status.leader == leader && status.trouble.is_empty())
    });
    world.learned();
    world.watch(REPORTS);
    assert!(world.fleet.is_with(world.epoch));
    world.judge();
}

#[test]
fn an_etcd_that_loses_members_is_borne_and_without_it_limits_hold() {
    if !asked() {
        return;
    }
    let mut world = World::start("members", SERVICES);
    // One at a time: whichever of them leads the others, quotas go on.
    for n in 0..2 {
        world.etcd.kill(n);
        world.watch(LEASE);
        let since = Instant::now();
        let (leader, epoch, _) = world.servers.leader(world.epoch - 1, None);
        until("somebody leads", || {
            let status = world.servers.latest(leader, since);
            status.is_some_and(|status| status.leads && status.epoch == epoch)
        });
        world.etcd.run(n);
        until("the member is back", || world.etcd.is_healthy(n));
    }
    // Two are gone: nobody can lead.
    world.etcd.kill(0);
    world.etcd.kill(1);
    let since = Instant::now();
    let took = until("nobody leads", || {
        (0..3).all(|n| world.servers.latest(n, since).is_some_and(|status| !status.leads))
    });
    assert!(took < STOPS, "{took:?}");
    world.watch(REPORTS);
    for n in 0..3 {
        assert!(!world.servers.status(n).leads, "server {n} leads by nobody's leave");
    }
    world.etcd.run(0);
    world.etcd.run(1);
    let since = Instant::now();
    until("somebody leads again", || {
        let leads = |n| world.servers.latest(n, since).is_some_and(|status| status.leads);
        (0..3).any(leads)
    });
    world.watch(REPORTS);
    world.judge();
}
