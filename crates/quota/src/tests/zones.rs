//! Zones with tasks of their own, and a global server above them.

use super::world::{STEP, STEPS_PER_REPORT, STEPS_PER_ROUND, World, refused, served, service};
use crate::client::member::{Member, Next};
use crate::client::zone::Zone;
use crate::server::book::{Book, Provided, Rounds};
use crate::server::grpc::read;
use crate::server::stream::{StreamId, Words};
use prost::Message as _;
use tidegate::clock::{Clock, Hand};
use tidegate_core::Criticality::Critical;
use tidegate_core::fleet::Limits;
use tidegate_wire::proto::tidegate::quota::v1::{self as wire, ServerMessage, TaskMessage};
use tokio::sync::mpsc;

/// What the fleet may use; zones stand for some tasks each.
const GLOBAL: &str = "{ default: 1, customers: { good: 3, bad: 2 }, sizes: { weight: 10 } }";
/// What a zone may use before it has heard of the global server.
const LOCAL: &str = "{ default: 0.1 }";

struct Half {
    world: World,
    zone: Zone,
    member: Member,
    told: Option<Provided>,
    stream: Option<(StreamId, mpsc::Receiver<Words>)>,
}

struct Zones {
    clock: Clock,
    hand: Hand,
    global: Book,
    halves: Vec<Half>,
    steps: u64,
    /// The global server cannot be reached.
    down: bool,
    /// The most that all tasks of all zones were seen to enforce of the bad one, in CPUs.
    bad_max: f64,
}

impl Zones {
    fn new(tasks: [usize; 2]) -> Self {
        let (clock, hand) = Clock::manual();
        let global = Book::new(service(GLOBAL), 1, false, clock.now()).unwrap();
        let halves = tasks.into_iter().enumerate().map(|(n, tasks)| {
            let world = World::on((clock.clone(), hand.clone()), LOCAL, tasks);
            let zone = Zone::new("search", &world.service, clock.clone()).unwrap();
            let member =
                Member::for_others(zone.task().clone(), format!("zone-{n}"), tasks as u32, 1);
            Half { world, zone, member, told: None, stream: None }
        });
        let halves = halves.collect();
        Self { clock, hand, global, halves, steps: 0, down: false, bad_max: 0.0 }
    }

    fn step(&mut self) {
        self.hand.advance(STEP);
        self.steps += 1;
        for n in 0..self.halves.len() {
            self.halves[n].world.act();
            if (self.steps + 31 * n as u64).is_multiple_of(STEPS_PER_REPORT) {
                self.report(n);
            }
        }
        if !self.down && self.steps.is_multiple_of(STEPS_PER_ROUND) {
            self.global.tick(self.clock.now(), 0);
            for n in 0..self.halves.len() {
                self.listen(n);
            }
        }
        let bad = self.halves.iter().map(|half| half.world.enforced("bad")).sum();
        self.bad_max = f64::max(self.bad_max, bad);
    }

    fn report(&mut self, n: usize) {
        let half = &mut self.halves[n];
        if !self.down && half.stream.is_none() {
            let hello = half.member.hello().hello.unwrap();
            let (out, inbox) = mpsc::channel(8);
            let opened = self.global.open(&hello, out, self.clock.now());
            half.stream = opened.ok().map(|id| (id, inbox));
        }
        half.zone.count(&half.world.book.status("search"));
        let report = half.member.tick();
        self.say(n, report);
        self.obey(n);
    }

    /// Another server leads a zone, and knows nothing but its file. Tasks are let in when it has
    /// heard from the global server. Returns who was the zone at that one.
    fn elect(&mut self, n: usize, reign: u64) -> Member {
        let half = &mut self.halves[n];
        half.world.elect(reign);
        (half.world.down, half.told, half.stream) = (true, None, None);
        half.zone = Zone::new("search", &service(LOCAL), self.clock.clone()).unwrap();
        let task = half.zone.task().clone();
        let weight = half.world.peers.len() as u32;
        let member = Member::for_others(task, format!("zone-{n}"), weight, reign);
        core::mem::replace(&mut half.member, member)
    }

    fn say(&mut self, n: usize, words: Option<TaskMessage>) {
        let (Some(words), Some((id, _))) = (words, &self.halves[n].stream) else { return };
        if !self.down {
            self.global.hear(*id, &read(words).unwrap(), self.clock.now());
        }
    }

    fn listen(&mut self, n: usize) {
        while let Some((_, inbox)) = &mut self.halves[n].stream {
            match inbox.try_recv() {
                Ok(Ok(message)) => match self.halves[n].member.hear(&message).unwrap() {
                    Next::Say(words) => self.say(n, words.map(|words| *words)),
                    Next::Resume | Next::Go(_) => self.halves[n].stream = None,
                },
                Err(mpsc::error::TryRecvError::Empty) => break,
                Ok(Err(_)) | Err(_) => self.halves[n].stream = None,
            }
        }
        self.obey(n);
    }

    /// The zone's book has what the zone may, and cuts that have arrived are said.
    fn obey(&mut self, n: usize) {
        let half = &mut self.halves[n];
        if let Some(provided) = half.zone.provided(&half.member)
            && half.told.as_ref() != Some(&provided)
        {
            half.told = Some(provided.clone());
            half.world.book.provide(provided);
            half.world.down = false;
        }
        let status = half.world.book.status("search");
        let rounds = half.world.book.rounds();
        let words = Zone::settle(&mut half.member, &status, rounds);
        self.say(n, words);
    }

    /// So many seconds pass. Returns what was served of a customer a second, by zone, and refused.
    fn run(&mut self, seconds: f64, customer: &'static str) -> (Vec<f64>, f64) {
        self.halves.iter_mut().for_each(|half| half.world.tally.clear());
        for _ in 0..(seconds / STEP.as_secs_f64()).round() as u64 {
            self.step();
        }
        let rates = self.halves.iter().map(|half| served(&half.world.tally, customer, seconds));
        let refusals = self.halves.iter().map(|half| refused(&half.world.tally, customer)).sum();
        (rates.collect(), refusals)
    }
}

#[test]
fn a_limit_holds_across_zones_and_demand_that_moves_is_followed() {
    let mut zones = Zones::new([3, 2]);
    for half in &mut zones.halves {
        half.world.demand(0, &[("good", Critical, 0.5)]);
    }
    zones.run(10.0, "good");
    // Before that they had not heard of anybody, and no limits.
    zones.bad_max = 0.0;
    // The bad one wants five times its limit in the first zone.
    for n in 0..2 {
        zones.halves[0].world.demand(n, &[("good", Critical, 0.5), ("bad", Critical, 5.0)]);
    }
    zones.run(6.0, "bad");
    let (rates, _) = zones.run(5.0, "bad");
    assert!((1.8..=2.05).contains(&rates[0]), "{rates:?}");
    // And then in the other.
    for n in 0..2 {
        zones.halves[0].world.demand(n, &[("good", Critical, 0.5)]);
        zones.halves[1].world.demand(n, &[("good", Critical, 0.5), ("bad", Critical, 5.0)]);
    }
    zones.run(6.0, "bad");
    let (rates, _) = zones.run(5.0, "bad");
    assert!((1.8..=2.05).contains(&rates[1]), "{rates:?}");
    assert!(zones.bad_max <= 2.0 + 1e-6, "{} of 2 CPUs at some moment", zones.bad_max);
    let (_, refusals) = zones.run(5.0, "good");
    assert_eq!(refusals, 0.0, "nobody else is refused");
}

#[test]
fn without_the_global_server_zones_go_on_with_what_they_have_and_then_with_less() {
    let mut zones = Zones::new([2, 2]);
    for half in &mut zones.halves {
        half.world.demand(0, &[("bad", Critical, 4.0)]);
    }
    zones.run(10.0, "bad");
    zones.bad_max = 0.0;
    zones.down = true;
    let (rates, _) = zones.run(30.0, "bad");
    let both: f64 = rates.iter().sum();
    assert!((1.8..=2.05).contains(&both), "{both}: limits hold");
    // After hold and lease it is the safe share: half.
    zones.run(120.0, "bad");
    let (rates, _) = zones.run(10.0, "bad");
    let both: f64 = rates.iter().sum();
    assert!((0.8..=1.1).contains(&both), "{both}: never nothing, never unlimited");
    zones.down = false;
    zones.run(30.0, "bad");
    let (rates, _) = zones.run(5.0, "bad");
    let both: f64 = rates.iter().sum();
    assert!((1.7..=2.05).contains(&both), "{both}: it is back");
    assert!(zones.bad_max <= 2.0 + 1e-6, "{} of 2 CPUs at some moment", zones.bad_max);
}

#[test]
fn a_zone_with_another_leader_is_still_the_same_to_the_global_server() {
    let mut zones = Zones::new([3, 2]);
    for half in &mut zones.halves {
        half.world.demand(0, &[("good", Critical, 0.5)]);
    }
    for n in 0..2 {
        zones.halves[0].world.demand(n, &[("good", Critical, 0.5), ("bad", Critical, 5.0)]);
    }
    zones.run(20.0, "bad");
    zones.bad_max = 0.0;
    let mut before = zones.elect(0, 2);
    for second in 0..60 {
        let (rates, _) = zones.run(1.0, "bad");
        assert!((1.7..=2.1).contains(&rates[0]), "{rates:?} in second {second}");
        for (n, half) in zones.halves.iter().enumerate() {
            let refusals = refused(&half.world.tally, "good");
            assert_eq!(refusals, 0.0, "nobody else is refused: zone {n} in second {second}");
        }
    }
    assert_eq!(zones.global.status("search").tasks, 2);
    // Who led before is not listened to.
    let hello = before.hello().hello.unwrap();
    let (out, _inbox) = mpsc::channel(8);
    let refused = zones.global.open(&hello, out, zones.clock.now()).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains("another leader by now"), "{refused}");
    // When it has learned it follows demand again.
    zones.run(100.0, "bad");
    for n in 0..2 {
        zones.halves[0].world.demand(n, &[("good", Critical, 0.5)]);
        zones.halves[1].world.demand(n, &[("good", Critical, 0.5), ("bad", Critical, 5.0)]);
    }
    // It was idle in the second for so long that tasks there have to ask for it anew.
    zones.run(15.0, "bad");
    let (rates, _) = zones.run(5.0, "bad");
    assert!((1.8..=2.05).contains(&rates[1]), "{rates:?}");
    assert!(zones.bad_max <= 2.0 + 1e-6, "{} of 2 CPUs at some moment", zones.bad_max);
}

#[test]
fn a_cut_of_a_zone_that_learns_is_obeyed() {
    let mut zones = Zones::new([3, 2]);
    // It is wanted a little in the second, so that tasks there need not ask for it anew.
    zones.halves[1].world.demand(0, &[("bad", Critical, 0.05)]);
    for n in 0..2 {
        zones.halves[0].world.demand(n, &[("bad", Critical, 5.0)]);
    }
    zones.run(20.0, "bad");
    zones.bad_max = 0.0;
    zones.elect(0, 2);
    zones.run(10.0, "bad");
    // Those of the first want less now, and have as much as before if nobody takes it from them.
    for n in 0..2 {
        zones.halves[0].world.demand(n, &[("bad", Critical, 0.1)]);
        zones.halves[1].world.demand(n, &[("bad", Critical, 5.0)]);
    }
    zones.run(100.0, "bad");
    assert!(zones.bad_max <= 2.0 + 1e-6, "{} of 2 CPUs at some moment", zones.bad_max);
    let (rates, _) = zones.run(5.0, "bad");
    assert!(rates[1] >= 1.5, "{rates:?}: what one zone gave up the other has");
}

#[test]
fn a_grant_of_nobody_who_is_known_is_acknowledged_too() {
    let (clock, _hand) = Clock::manual();
    let zone = Zone::new("search", &service(LOCAL), clock).unwrap();
    let mut member = Member::for_others(zone.task().clone(), "zone".to_owned(), 1, 1);
    let _ = member.hello();
    let customer = |number, name: &str| wire::Customer {
        number,
        name: name.to_owned(),
        ..wire::Customer::default()
    };
    let directory = wire::Directory { customers: vec![customer(0, ""), customer(5, "a")] };
    let welcome = wire::Welcome {
        task: Some(wire::TaskId { epoch: 1, number: 1 }),
        joined: true,
        ..wire::Welcome::default()
    };
    let message = ServerMessage {
        welcome: Some(welcome),
        directory: directory.encode_to_vec().into(),
        ..ServerMessage::default()
    };
    member.hear(&message).unwrap();
    // The customer is taken out, and its grant with it.
    let grants = wire::Grants { number: 7, revoked: vec![5], ..wire::Grants::default() };
    let message = ServerMessage { gone: vec![5], grants: Some(grants), ..ServerMessage::default() };
    member.hear(&message).unwrap();
    let mut settle = |begun, ended| {
        let patience = core::time::Duration::from_secs(1_000);
        member.settle(|_| Limits::ZERO, Rounds { begun, ended }, patience)
    };
    assert_eq!(settle(1, 0), None, "those of the zone were not told yet");
    let acked = settle(2, 2).unwrap().acked.unwrap();
    assert_eq!((acked.epoch, acked.number), (1, 7));
}

/// The global server waits for ten reports: whatever their interval, half of that is left.
#[test]
fn a_zone_waits_for_those_it_cannot_reach_for_five_reports_of_the_global_server() {
    for every in [100_u32, 1_000, 10_000] {
        let (clock, hand) = Clock::manual();
        let zone = Zone::new("search", &service(LOCAL), clock).unwrap();
        let mut member = Member::for_others(zone.task().clone(), "zone".to_owned(), 1, 1);
        let _ = member.hello();
        let customers = vec![wire::Customer::default()];
        let welcome = wire::Welcome {
            task: Some(wire::TaskId { epoch: 1, number: 1 }),
            joined: true,
            report_every_ms: every,
            ..wire::Welcome::default()
        };
        let grants = wire::Grants {
            number: 7,
            customers: vec![0],
            limits: vec![1_000, 0, 0, 0],
            ..wire::Grants::default()
        };
        let message = ServerMessage {
            welcome: Some(welcome),
            directory: wire::Directory { customers }.encode_to_vec().into(),
            grants: Some(grants),
            ..ServerMessage::default()
        };
        member.hear(&message).unwrap();
        // One of its tasks is away and may use twice as much.
        let counted = wire::CustomerStatus { counted: vec![2_000; 4], ..Default::default() };
        let status = wire::ServiceStatus { customers: vec![counted], ..Default::default() };
        let mut settle = || Zone::settle(&mut member, &status, Rounds { begun: 9, ended: 9 });
        assert_eq!(settle(), None);
        hand.advance(core::time::Duration::from_millis(u64::from(every) * 5 - 1));
        assert_eq!(settle(), None, "every {every} ms: there is time");
        hand.advance(core::time::Duration::from_millis(1));
        assert_eq!(settle().unwrap().acked.unwrap().number, 7, "every {every} ms");
    }
}
