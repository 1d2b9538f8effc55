//! Servers, their etcd and tasks as they are, on a network that fails by a seed, in virtual time.
//!
//! Three servers with their routes and their part in the election, an etcd of one member that
//! never fails, and three tasks with real gates are hosts of turmoil. Chance decides which lines
//! are cut, which are held up so that everything arrives late, and which servers crash. At every
//! moment at most one server leads, tasks together enforce no more than 1.1 times a limit, none is
//! without limits, and nobody who keeps to its limit is refused.

use crate::client::member::{Member, Next};
use crate::etcd::Etcd;
use crate::etcd::fake::Fake;
use crate::{Candidate, Config, Server};
use core::time::Duration;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use std::sync::{Arc, Mutex};
use tidegate::Task;
use tidegate::clock::{Clock, Hand};
use tidegate_core::fleet::Limits;
use tidegate_core::quota::QuotaLane;
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::{Cost, Criticality};
use tidegate_wire::proto::tidegate::quota::v1::quota_client::QuotaClient;
use tokio::sync::mpsc;
use tokio::time::{interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Uri};
use turmoil::net::{TcpListener, TcpStream};

const SERVERS: [&str; 3] = ["s0", "s1", "s2"];
const TASKS: usize = 3;
const TICK: Duration = Duration::from_millis(5);
const COST: Cost = Cost::from_millis(1);
/// What each may use, and what each asks each task for, in CPUs.
const GOOD: (&str, f64) = ("good", 0.6);
const BAD: (&str, f64) = ("bad", 3.0);
const BAD_LIMIT: f64 = 2.0;

const CONFIG: &str = "\
quota:
  advertise: NAME:80
  election: { etcd: ['http://etcd:80'] }
  services:
    search:
      default: 1
      customers: { good: 3, bad: 2 }
      reports: { every: 200ms, round: 50ms }
      silence: { hold: 12s, fade: 500ms }
";

/// A connection over turmoil's network.
fn dial(endpoint: &Endpoint) -> Channel {
    endpoint.connect_with_connector_lazy(tower::service_fn(async |uri: Uri| {
        let host = uri.host().unwrap_or_default().to_owned();
        Ok::<_, std::io::Error>(TokioIo::new(TcpStream::connect((host, 80)).await?))
    }))
}

async fn serve(router: axum::Router) -> turmoil::Result {
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// The servers that run now.
type Registry = Arc<Mutex<[Option<Server>; 3]>>;

async fn quota(n: usize, clock: Clock, registry: Registry) -> turmoil::Result {
    let text = CONFIG.replace("NAME", SERVERS[n]);
    let config = Config::parse("test.yaml", &text).unwrap();
    let server = Server::stand(&config, clock).unwrap();
    registry.lock().unwrap()[n] = Some(server.clone());
    let etcd = Etcd::dialling(["http://etcd:80"], Arc::new(dial)).unwrap();
    let election = config.election.as_ref().unwrap();
    let _candidate = Candidate::with(&etcd, &server, &config, election, Arc::new(|_| ()));
    serve(server.router()).await
}

/// What a task does for as long as it runs: `client::run` without its thread.
async fn take_part(task: Task, n: usize, seed: u64) -> turmoil::Result {
    let mut member = Member::new(task, format!("task-{n}"), 1);
    let mut dice = SeededRng::new(seed);
    let mut leader: Option<String> = None;
    let mut ticks = interval(Duration::from_millis(200));
    loop {
        let host = leader.take().unwrap_or_else(|| SERVERS[dice.below(3) as usize].to_owned());
        let (say, said) = mpsc::channel(8);
        let _ = say.try_send(member.hello());
        let endpoint = Endpoint::from_shared(format!("http://{host}")).unwrap();
        let mut client = QuotaClient::new(dial(&endpoint));
        let opened = timeout(Duration::from_secs(2), client.report(ReceiverStream::new(said)));
        let Ok(Ok(opened)) = opened.await else {
            let _ = member.tick();
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let mut heard = opened.into_inner();
        // A line that leads nowhere is noticed by pings; here, by silence.
        let mut silent = 0;
        loop {
            let message = tokio::select! {
                message = heard.message() => message,
                _ = ticks.tick() => {
                    silent += 1;
                    let report = member.tick();
                    let full = report.is_some_and(|report| say.try_send(report).is_err());
                    if full || silent > 20 {
                        break;
                    }
                    continue;
                }
            };
            silent = 0;
            let Ok(Some(message)) = message else { break };
            match member.hear(&message) {
                Ok(Next::Say(words)) => {
                    if let Some(words) = words {
                        let _ = say.try_send(*words);
                    }
                }
                Ok(Next::Resume) => {
                    leader = Some(host.clone());
                    break;
                }
                Ok(Next::Go(to)) => {
                    leader = to.and_then(|to| Some(to.split_once(':')?.0.to_owned()));
                    break;
                }
                Err(_) => break,
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Who asks the tasks, and what came of it.
struct Callers {
    tasks: Vec<(Task, QuotaLane)>,
    due: [f64; 2],
}

impl Callers {
    /// Customers ask for a tick; CPU seconds of the good one that were refused, and of the bad one
    /// that were served.
    fn ask(&mut self) -> (f64, f64) {
        let (mut refused, mut used) = (0.0, 0.0);
        for (n, (name, cpus)) in [GOOD, BAD].into_iter().enumerate() {
            self.due[n] += cpus * TICK.as_secs_f64() / COST.as_secs_f64();
            while self.due[n] >= 1.0 {
                self.due[n] -= 1.0;
                for (task, lane) in &mut self.tasks {
                    let (customer, now) = (task.customer(name), task.clock().now());
                    let open = lane.gate().check(customer, Criticality::Critical, now).is_ok();
                    if open {
                        let _ = lane.charge(customer, Criticality::Critical, COST, now);
                    } else {
                        lane.refuse(customer, Criticality::Critical, COST);
                    }
                    refused += if n == 0 && !open { COST.as_secs_f64() } else { 0.0 };
                    used += if n == 1 && open { COST.as_secs_f64() } else { 0.0 };
                }
            }
        }
        (refused, used)
    }

    /// What may be used of the bad one in all; nothing if a task is without limits.
    fn enforced(&self) -> Option<f64> {
        let mut sum = 0.0;
        for (task, _) in &self.tasks {
            let limits = task.limits(BAD.0);
            if limits == Limits::UNLIMITED {
                return None;
            }
            sum += limits.whole().as_cpus();
        }
        Some(sum)
    }
}

struct World {
    sim: turmoil::Sim<'static>,
    hand: Hand,
    callers: Callers,
    registry: Registry,
    seed: u64,
    dice: SeededRng,
    ticks: u64,
    /// What the bad one used in each of the last ticks.
    used: Vec<f64>,
    latest: u64,
    down: [bool; 3],
}

impl World {
    fn new(seed: u64) -> Self {
        let mut sim = turmoil::Builder::new()
            .simulation_duration(Duration::from_secs(100_000))
            .tick_duration(TICK)
            .rng_seed(seed)
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(20))
            .build();
        let (clock, hand) = Clock::manual();
        let registry = Registry::default();
        let fake = Fake::new();
        sim.host("etcd", move || {
            let fake = fake.clone();
            async move {
                tokio::spawn(fake.clone().expire());
                serve(fake.routes().into_axum_router()).await
            }
        });
        for (n, name) in SERVERS.into_iter().enumerate() {
            let (clock, registry) = (clock.clone(), Arc::clone(&registry));
            sim.host(name, move || quota(n, clock.clone(), Arc::clone(&registry)));
        }
        let mut tasks = Vec::new();
        for n in 0..TASKS {
            let task = Task::builder("search").clock(clock.clone()).build().unwrap();
            tasks.push((task.clone(), task.gate().quota().lane()));
            let seed = seed ^ n as u64;
            sim.host(format!("t{n}"), move || take_part(task.clone(), n, seed));
        }
        let callers = Callers { tasks, due: [0.0; 2] };
        let (dice, used, down) = (SeededRng::new(seed), Vec::new(), [false; 3]);
        let (ticks, latest) = (0, 0);
        Self { sim, hand, callers, registry, seed, dice, ticks, used, latest, down }
    }

    fn leaders(&self) -> Vec<(usize, u64)> {
        let servers = self.registry.lock().unwrap();
        let running = servers.iter().enumerate().filter(|(n, _)| !self.down[*n]);
        let epochs = running.filter_map(|(n, server)| Some((n, server.as_ref()?.epoch())));
        epochs.filter(|(_, epoch)| *epoch > 0).collect()
    }

    fn tick(&mut self) -> f64 {
        self.sim.step().unwrap();
        self.hand.advance(TICK);
        self.ticks += 1;
        let (refused, used) = self.callers.ask();
        self.used.push(used);
        refused
    }

    /// So many seconds pass, in which everything has to be right.
    fn run(&mut self, seconds: f64) {
        for _ in 0..(seconds / TICK.as_secs_f64()) as u64 {
            let refused = self.tick();
            let at = format!("at {:?} with seed {}", TICK * self.ticks as u32, self.seed);
            assert_eq!(refused, 0.0, "{} is refused {at}", GOOD.0);
            let enforced = self.callers.enforced().expect("a task is without limits");
            assert!(enforced <= 1.1 * BAD_LIMIT, "{enforced} are enforced {at}");
            let window = 10 * 1_000 / TICK.as_millis() as usize;
            let used: f64 = self.used[self.used.len().saturating_sub(window)..].iter().sum();
            assert!(used <= 1.1 * BAD_LIMIT * 10.0, "{used} were used within 10 s {at}");
            let leaders = self.leaders();
            assert!(leaders.len() <= 1, "{leaders:?} lead {at}");
            if let [(_, epoch)] = leaders[..] {
                assert!(epoch >= self.latest, "{epoch} leads after {} {at}", self.latest);
                self.latest = epoch;
            }
        }
    }

    /// Breaks something, or mends it.
    fn strike(&mut self) {
        let server = self.dice.below(3) as usize;
        let task = format!("t{}", self.dice.below(TASKS as u64));
        let name = SERVERS[server];
        match self.dice.below(8) {
            0 => self.sim.partition(name, "etcd"),
            1 => self.sim.hold(name, "etcd"),
            2 => self.sim.partition(name, task),
            3 if !self.down[server] => {
                self.sim.crash(name);
                self.down[server] = true;
            }
            4 | 5 => self.mend(),
            _ => {}
        }
    }

    fn mend(&mut self) {
        for (n, name) in SERVERS.into_iter().enumerate() {
            self.sim.repair(name, "etcd");
            self.sim.release(name, "etcd");
            for task in 0..TASKS {
                self.sim.repair(name, format!("t{task}"));
            }
            if core::mem::take(&mut self.down[n]) {
                self.sim.bounce(name);
            }
        }
    }
}

fn play(seed: u64) {
    let mut world = World::new(seed);
    // Until everyone has found the first leader and customers were heard of.
    let mut calm = 0;
    while calm < 400 {
        let refused = world.tick();
        let whole = world.callers.enforced().is_some_and(|sum| sum > 0.9 * BAD_LIMIT);
        calm = if refused == 0.0 && whole { calm + 1 } else { 0 };
        assert!(world.ticks < 20_000, "the fleet never settles, with seed {seed}");
    }
    world.used.clear();
    for _ in 0..12 {
        world.strike();
        let seconds = 0.5 + 4.0 * world.dice.unit();
        world.run(seconds);
        // Nobody is without a server for as long as limits hold.
        world.mend();
        let seconds = 5.0 + 4.0 * world.dice.unit();
        world.run(seconds);
    }
    // A lease, in which the last leader learns.
    world.run(20.0);
    assert_eq!(world.leaders().len(), 1, "with seed {seed}");
}

#[test]
fn elections_on_a_network_that_fails_by_seed_1() {
    play(1);
}

#[test]
fn elections_on_a_network_that_fails_by_seed_2() {
    play(2);
}

#[test]
fn elections_on_a_network_that_fails_by_seed_3() {
    play(3);
}
