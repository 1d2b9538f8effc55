//! A task that lies: what it can take from others, and what it cannot.

use super::world::{World, refused, served};
use crate::message::{grants, write_usages};
use crate::server::grpc::read;
use crate::server::stream::{StreamId, Words};
use tidegate_core::Criticality::Critical;
use tidegate_core::fleet::{Limits, Usage};
use tidegate_core::{CostRate, CustomerId};
use tidegate_wire::proto::tidegate::quota::v1 as wire;
use tokio::sync::mpsc;
use tonic::Status;

const FLEET: &str = "{ default: 1, customers: { good: 3, fair: 3 } }";
const GOOD: u32 = 2;

/// A stream on which anything may be said.
struct Liar {
    id: StreamId,
    inbox: mpsc::Receiver<Words>,
    number: u64,
    /// The last grant, in nanoseconds of `good`.
    granted: u64,
    ended: Option<Status>,
}

impl Liar {
    fn open(world: &mut World, weight: u32) -> Self {
        let (out, inbox) = mpsc::channel(8);
        let hello = wire::Hello {
            service: "search".into(),
            task: "liar".into(),
            weight,
            ..wire::Hello::default()
        };
        let id = world.book.open(&hello, out, world.now()).unwrap();
        Self { id, inbox, number: 0, granted: 0, ended: None }
    }

    /// Says so much of `good`, and acknowledges what it was told if `acks`.
    fn say(&mut self, world: &mut World, used: u64, demand: u64, has: u64, acks: bool) {
        let mut acked = None;
        while let Ok(message) = self.inbox.try_recv() {
            let message = match message {
                Ok(message) => message,
                Err(status) => {
                    self.ended = Some(status);
                    return;
                }
            };
            let Some(granted) = &message.grants else { continue };
            acked = Some(wire::Generation { epoch: 1, number: granted.number });
            for (customer, limits) in grants(granted).unwrap() {
                if customer == GOOD {
                    self.granted = limits.whole().as_nanos_per_sec();
                }
            }
        }
        self.number += 1;
        let rates = |critical| [0, 0, critical, 0].map(CostRate::from_nanos_per_sec);
        let usage = Usage {
            customer: CustomerId(GOOD),
            used: rates(used),
            demand: rates(demand),
            has: (has > 0).then(|| Limits::total(CostRate::from_nanos_per_sec(has))),
        };
        let report = Some(write_usages(self.number, [usage]));
        let acked = acked.filter(|_| acks);
        let said = wire::TaskMessage { report, acked, ..wire::TaskMessage::default() };
        world.book.hear(self.id, &read(said).unwrap(), world.now());
    }
}

#[test]
fn demand_that_is_a_lie_takes_what_others_leave_and_nothing_of_other_customers() {
    for (weight, acks) in [(1, true), (u32::MAX, true), (1, false)] {
        let mut world = World::new(FLEET, 2);
        assert_eq!(world.peers[0].task.service(), "search");
        for n in 0..2 {
            world.demand(n, &[("good", Critical, 0.9), ("fair", Critical, 1.4)]);
        }
        world.run(5.0);
        let mut liar = Liar::open(&mut world, weight);
        let mut refusals = [0.0; 2];
        for second in 0..30 {
            liar.say(&mut world, u64::MAX, u64::MAX, u64::MAX, acks);
            let tally = world.run(1.0);
            // A third of it is more than each wants, so nobody is cut by max-min.
            if second >= 3 {
                refusals[0] += refused(&tally, "good");
                refusals[1] += refused(&tally, "fair");
            }
            let both = world.enforced("good") + liar.granted as f64 / 1e9;
            assert!(both <= 3.0 + 1e-6, "{weight} {acks}: {both} of 3");
        }
        assert_eq!(refusals, [0.0; 2], "{weight} {acks}");
        assert!(liar.granted <= 3_000_000_000, "{}", liar.granted);
        if !acks {
            let ended = liar.ended.map(|status| status.message().to_owned());
            assert!(ended.is_some_and(|why| why.contains("not acknowledged")), "{acks}");
        }
    }
}

#[test]
fn a_task_that_uses_more_than_it_says_is_held_by_its_own_gate_and_hurts_its_customer_alone() {
    let mut world = World::new(FLEET, 2);
    world.demand(0, &[("good", Critical, 2.0), ("fair", Critical, 1.0)]);
    world.run(5.0);
    // It says that nobody wants anything, and so gets a floor and its room to grow.
    let mut liar = Liar::open(&mut world, 1);
    for _ in 0..20 {
        liar.say(&mut world, 0, 1, 0, true);
        let tally = world.run(1.0);
        assert_eq!(refused(&tally, "fair"), 0.0);
    }
    let tally = world.run(5.0);
    let good = served(&tally, "good", 5.0);
    assert!(good > 1.9, "{good}: who asks honestly has what it wants");
    assert!(world.enforced("good") + liar.granted as f64 / 1e9 <= 3.0 + 1e-6);
}
