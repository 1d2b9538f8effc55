//! Zones with tasks of their own, and a global server above them.

use super::world::{STEP, STEPS_PER_REPORT, STEPS_PER_ROUND, World, refused, served, service};
use crate::client::member::{Member, Next};
use crate::client::zone::Zone;
use crate::server::book::{Book, StreamId};
use crate::server::grpc::read;
use tidegate::clock::{Clock, Hand};
use tidegate_core::Criticality::Critical;
use tidegate_wire::proto::tidegate::quota::v1::{ServerMessage, TaskMessage};
use tokio::sync::mpsc;
use tonic::Status;

/// What the fleet may use; zones stand for some tasks each.
const GLOBAL: &str = "{ default: 1, customers: { good: 3, bad: 2 }, sizes: { weight: 10 } }";
/// What a zone may use before it has heard of the global server.
const LOCAL: &str = "{ default: 0.1 }";

struct Half {
    world: World,
    zone: Zone,
    member: Member,
    stream: Option<(StreamId, mpsc::Receiver<Result<ServerMessage, Status>>)>,
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
            let zone = Zone::new("search", world.service.clone(), clock.clone()).unwrap();
            let member = Member::for_others(zone.task().clone(), format!("zone-{n}"), tasks as u32);
            Half { world, zone, member, stream: None }
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
                    Next::Say(words) => self.say(n, words),
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
        if let Some(service) = half.zone.service(&half.member)
            && service != half.world.service
        {
            half.world.service = service.clone();
            half.world.book.reload(service);
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
