//! What tasks say of themselves: their name, their weight, what they hold.

use super::*;

fn cpus(n: f64) -> CostRate {
    CostRate::from_cpus(n).unwrap()
}

/// A leader that has learned, and a customer with this limit.
fn fleet(limit: f64) -> (Fleet, CustomerId, Timestamp) {
    let default = Limits::total(cpus(1.0));
    let mut fleet = Fleet::new(FleetConfig::default(), 1, default, Timestamp::ZERO).unwrap();
    let customer = fleet.set_customer("a", Limits::total(cpus(limit))).unwrap();
    (fleet, customer, Timestamp::from_secs(1_000))
}

/// A task that takes in every grant at once.
struct Honest {
    id: TaskId,
    acked: Option<Generation>,
    has: Limits,
}

impl Honest {
    fn join(fleet: &mut Fleet, name: &str, weight: u32, now: Timestamp) -> Self {
        Self { id: fleet.join(name, weight, now).unwrap(), acked: None, has: Limits::ZERO }
    }

    /// Returns whether the lease was renewed.
    fn report(
        &mut self,
        fleet: &mut Fleet,
        customer: CustomerId,
        wants: f64,
        now: Timestamp,
    ) -> bool {
        let rates = [CostRate::ZERO, CostRate::ZERO, cpus(wants), CostRate::ZERO];
        let usage = Usage { customer, used: rates, demand: rates, has: None };
        fleet.report(self.id, self.acked, [usage], now).is_ok_and(|answer| answer.renewed)
    }

    fn take(&mut self, changes: &[Change]) {
        for change in changes.iter().filter(|change| change.task == self.id) {
            (self.acked, self.has) = (Some(change.generation), change.limits);
        }
    }
}

#[test]
fn ids_of_tasks_that_are_gone_are_not_mistaken_for_newer_ones() {
    let (mut fleet, _, now) = fleet(10.0);
    let first = fleet.join("restarting", 1, now).unwrap();
    fleet.leave(first);
    for restart in 1..5_000 {
        let id = fleet.join("restarting", 1, now).unwrap();
        assert_ne!(id, first, "after {restart} restarts");
        fleet.leave(id);
    }
}

#[test]
fn an_id_of_another_leader_is_nobodys() {
    let (mut first, _, now) = fleet(10.0);
    let mut second = Fleet::new(FleetConfig::default(), 2, Limits::ZERO, now).unwrap();
    let stale = first.join("a", 1, now).unwrap();
    let fresh = second.join("b", 1, now).unwrap();
    assert_eq!(second.report(stale, None, NOTHING, now), Err(NotJoined));
    assert_eq!(TaskId::from_parts(fresh.epoch(), fresh.number()), fresh);
    assert_eq!(TaskId::from_parts(1, fresh.number()), stale);
}

/// A restart under the same name, while the old process still drains.
#[test]
fn two_processes_of_one_name_do_not_both_hold_the_grant() {
    let (mut fleet, customer, mut now) = fleet(10.0);
    let mut old = Honest::join(&mut fleet, "task-7", 1, now);
    let mut new: Option<Honest> = None;
    for second in 0..30 {
        now += SECOND;
        if second == 10 {
            new = Some(Honest::join(&mut fleet, "task-7", 1, now));
        }
        let old_is_renewed = old.report(&mut fleet, customer, 9.0, now);
        if let Some(new) = &mut new {
            assert!(new.report(&mut fleet, customer, 9.0, now));
        }
        let mut changes = Vec::new();
        fleet.tick(now, &mut changes);
        if old_is_renewed {
            old.take(&changes);
        }
        if let Some(new) = &mut new {
            new.take(&changes);
            assert!(!old_is_renewed, "both are renewed, {second} s");
            assert!(old.has.whole() + new.has.whole() <= cpus(10.0), "{second} s");
        }
    }
}

#[test]
fn a_process_that_was_replaced_counts_until_its_lease_ends_or_it_leaves() {
    for leaves in [false, true] {
        let (mut fleet, customer, mut now) = fleet(10.0);
        let mut old = Honest::join(&mut fleet, "task-7", 1, now);
        for _ in 0..3 {
            now += SECOND;
            assert!(old.report(&mut fleet, customer, 50.0, now));
            let mut changes = Vec::new();
            fleet.tick(now, &mut changes);
            old.take(&changes);
        }
        let mut new = Honest::join(&mut fleet, "task-7", 1, now);
        assert_eq!(fleet.resume(old.id, now), Err(NotJoined));
        if leaves {
            fleet.leave(old.id);
        }
        // The lease of 116 s began with the last report.
        for second in 1..=118 {
            now += SECOND;
            assert!(new.report(&mut fleet, customer, 50.0, now));
            let mut changes = Vec::new();
            fleet.tick(now, &mut changes);
            new.take(&changes);
            let alone = leaves || second >= 116;
            assert_eq!(new.has.whole() > cpus(9.0), alone, "{second} s: {}", new.has.whole());
        }
    }
}

#[test]
fn a_full_table_refuses_a_successor_and_keeps_the_process() {
    let (_, customer, now) = fleet(10.0);
    let config = FleetConfig { tasks_max: 1, ..FleetConfig::default() };
    let mut fleet = Fleet::new(config, 1, Limits::ZERO, Timestamp::ZERO).unwrap();
    fleet.set_customer("a", Limits::total(cpus(10.0))).unwrap();
    // Who holds nothing makes room.
    fleet.join("a", 1, now).unwrap();
    let mut task = Honest::join(&mut fleet, "a", 1, now);
    assert!(task.report(&mut fleet, customer, 1.0, now));
    fleet.tick(now, &mut Vec::new());
    assert_eq!(fleet.join("a", 1, now), Err(Full { what: "tasks", max: 1 }));
    assert!(task.report(&mut fleet, customer, 1.0, now));
}

/// Long after learning, a task joins, claims to hold everything, and is never heard of again.
#[test]
fn a_claim_after_learning_does_not_freeze_the_customer() {
    let (mut fleet, customer, mut now) = fleet(10.0);
    let mut honest = Honest::join(&mut fleet, "honest", 1, now);
    let mut frozen = 0;
    for second in 0..900 {
        now += SECOND;
        if second == 10 {
            for name in ["liar", "accomplice"] {
                let liar = fleet.join(name, 1, now).unwrap();
                let nothing = [CostRate::ZERO; 4];
                let has = Some(Limits::UNLIMITED);
                let usage = Usage { customer, used: nothing, demand: nothing, has };
                assert!(fleet.report(liar, None, [usage], now).unwrap().renewed);
            }
        }
        let wants = if second < 20 { 1.0 } else { 9.0 };
        honest.report(&mut fleet, customer, wants, now);
        let mut changes = Vec::new();
        fleet.tick(now, &mut changes);
        honest.take(&changes);
        frozen += u32::from(second >= 30 && honest.has.whole() < cpus(4.0));
    }
    assert!(frozen < 10, "the only task with demand was held down for {frozen} s");
}

/// Ten say that they hold everything, and somebody comes who holds nothing.
#[test]
fn claims_count_for_half_of_the_limit_together() {
    let (mut fleet, customer, mut now) = fleet(10.0);
    for i in 0..10 {
        let liar = fleet.join(&format!("liar-{i}"), 1, now).unwrap();
        let nothing = [CostRate::ZERO; 4];
        let usage =
            Usage { customer, used: nothing, demand: nothing, has: Some(Limits::UNLIMITED) };
        assert!(fleet.report(liar, None, [usage], now).unwrap().renewed);
    }
    let mut honest = Honest::join(&mut fleet, "honest", 1, now);
    for second in 1..=120 {
        now += SECOND;
        honest.report(&mut fleet, customer, 9.0, now);
        let mut changes = Vec::new();
        fleet.tick(now, &mut changes);
        honest.take(&changes);
        // Half, less 3 %; then the leases of 116 s end, and floors of the vanished are left.
        let least = if second < 116 { 4.7 } else { 9.0 };
        assert!(honest.has.whole() >= cpus(least), "{second} s: {}", honest.has.whole());
    }
}

#[test]
fn a_weight_that_is_made_up_leaves_others_their_share() {
    let (mut fleet, customer, mut now) = fleet(10.0);
    let mut honest = Honest::join(&mut fleet, "honest", 1, now);
    let mut liar = Honest::join(&mut fleet, "liar", u32::MAX, now);
    for _ in 0..30 {
        now += SECOND;
        honest.report(&mut fleet, customer, 2.0, now);
        liar.report(&mut fleet, customer, 1_000.0, now);
        let mut changes = Vec::new();
        fleet.tick(now, &mut changes);
        honest.take(&changes);
        liar.take(&changes);
    }
    assert!(honest.has.whole() >= cpus(2.0), "{} left of 10 CPU", honest.has.whole());
}

proptest! {
    /// Whatever others say of their weight and demand, a task gets as much as if each of them were
    /// `weight_max` honest ones.
    #[test]
    fn made_up_weights_count_for_so_many_honest_tasks(
        weight_max in 1..20_u32,
        liars in vec((any::<u32>(), 0.0..1e9_f64), 1..5),
    ) {
        let config = FleetConfig { weight_max, ..FleetConfig::default() };
        let mut fleet = Fleet::new(config, 1, Limits::ZERO, Timestamp::ZERO).unwrap();
        let customer = fleet.set_customer("a", Limits::total(cpus(10.0))).unwrap();
        let mut now = Timestamp::from_secs(1_000);
        let mut tasks: Vec<_> = [(1, 50.0)].into_iter().chain(liars.iter().copied()).enumerate()
            .map(|(i, (weight, wants))| {
                (Honest::join(&mut fleet, &format!("task-{i}"), weight, now), wants)
            })
            .collect();
        for _ in 0..4 {
            now += SECOND;
            for (task, wants) in &mut tasks {
                task.report(&mut fleet, customer, *wants, now);
            }
            let mut changes = Vec::new();
            fleet.tick(now, &mut changes);
            for (task, _) in &mut tasks {
                task.take(&changes);
            }
        }
        // All but 3 % for floors and the unseen goes by weight and demand.
        let places = f64::from(weight_max) * liars.len() as f64 + 1.0;
        let (found, least) = (tasks[0].0.has.whole(), 0.97 * 10.0 / places);
        prop_assert!(found.as_cpus() >= least, "{found} of at least {least}");
    }
}

/// Rounds in which the first wants twenty CPUs and the other one.
fn settle(fleet: &mut Fleet, customer: CustomerId, tasks: [&mut Honest; 2], from: Timestamp) {
    let [first, other] = tasks;
    for round in 0..40 {
        let now = from + Duration::from_millis(250 * round);
        if round % 4 == 0 {
            first.report(fleet, customer, 20.0, now);
            other.report(fleet, customer, 1.0, now);
        }
        let mut changes = Vec::new();
        fleet.tick(now, &mut changes);
        first.take(&changes);
        other.take(&changes);
    }
}

/// A certificate of any task of the service, and a number that is larger.
#[test]
fn the_place_of_a_zone_is_for_whoever_had_it_and_for_those_who_are_named() {
    let (mut fleet, _, now) = fleet(10.0);
    let zone = fleet.join("zone", 1, now).unwrap();
    let task = fleet.join("task", 1, now).unwrap();
    let speaker = |reign, who, named| Speaker { reign, identity: Some(who), named };
    fleet.set_speaker(zone, speaker(5, "zone-server", false));
    fleet.set_speaker(task, speaker(0, "server", false));
    let later = Err(Taken::Later { known: 5, found: 4 });
    for (name, speaker, expected) in [
        ("zone", speaker(6, "zone-server", false), Ok(())),
        ("zone", speaker(5, "zone-server", false), Ok(())),
        ("zone", speaker(4, "zone-server", false), later),
        ("zone", speaker(6, "server", false), Err(Taken::Another)),
        ("zone", speaker(u64::MAX, "server", false), Err(Taken::Another)),
        ("zone", speaker(5, "server", false), Err(Taken::Another)),
        ("zone", speaker(0, "server", false), Err(Taken::Another)),
        ("zone", Speaker { reign: 6, ..Speaker::default() }, Err(Taken::Another)),
        ("zone", speaker(6, "another-server", true), Ok(())),
        // The one who has it was not named.
        ("zone", speaker(4, "another-server", true), Ok(())),
        // Tasks are not kept apart, and nobody has to prove anything for a name that is free.
        ("task", speaker(0, "another", false), Ok(())),
        ("free", speaker(1, "another", false), Ok(())),
    ] {
        assert_eq!(fleet.check_name(name, speaker), expected, "{name} {speaker:?}");
    }
    // Who is named takes it, and then it is theirs.
    assert_eq!(fleet.succeed("zone", 6, 1, now), Some(zone));
    fleet.set_speaker(zone, speaker(6, "another-server", true));
    let before = fleet.check_name("zone", speaker(7, "zone-server", false));
    assert_eq!(before, Err(Taken::Another));
    let later = Err(Taken::Later { known: 6, found: 5 });
    assert_eq!(fleet.check_name("zone", speaker(5, "zone-server", true)), later);
}

/// Somebody took the name before it was said whose it is, by a number that no election has.
#[test]
fn whoever_is_named_has_the_name_of_a_zone_from_somebody_who_is_not() {
    let (mut fleet, _, now) = fleet(10.0);
    let squatter = fleet.join("zone", 1, now).unwrap();
    let speaker = |reign, who, named| Speaker { reign, identity: Some(who), named };
    fleet.set_speaker(squatter, speaker(u64::MAX, "task", false));
    let zone = speaker(6, "zone-server", true);
    assert_eq!(fleet.check_name("zone", zone), Ok(()));
    // It has nothing of the zone's that the zone could go on with.
    assert_eq!(fleet.succeed("zone", 6, 1, now), None);
    let id = fleet.join("zone", 1, now).unwrap();
    fleet.set_speaker(id, zone);
    let again = fleet.check_name("zone", speaker(u64::MAX, "task", false));
    assert_eq!(again, Err(Taken::Another));
    let before = fleet.check_name("zone", speaker(5, "another-server", true));
    assert_eq!(before, Err(Taken::Later { known: 6, found: 5 }));
}

#[test]
fn a_later_leader_of_a_zone_takes_the_place_of_the_one_before() {
    // By the election before there is a cut until the lease ends, as for any process.
    for (reign, keeps) in [(6, true), (5, false), (0, false)] {
        let (mut fleet, customer, now) = fleet(10.0);
        let mut zone = Honest::join(&mut fleet, "zone", 1, now);
        let speaker = |reign| Speaker { reign, ..Speaker::default() };
        fleet.set_speaker(zone.id, speaker(5));
        let mut other = Honest::join(&mut fleet, "other", 1, now);
        settle(&mut fleet, customer, [&mut zone, &mut other], now);
        let had = zone.has.whole();
        assert!(had > cpus(8.0), "{had}");
        let now = now + Duration::from_secs(11);
        assert_eq!(fleet.succeed("nobody", 9, 1, now), None);
        assert_eq!(fleet.succeed("other", 9, 1, now), None, "who stands for itself has no place");
        let place = fleet.succeed("zone", reign, 1, now);
        assert_eq!(place, keeps.then_some(zone.id), "{reign}");
        let known = if keeps { 6 } else { 5 };
        let later = Taken::Later { known, found: known - 1 };
        assert_eq!(fleet.check_name("zone", speaker(known - 1)), Err(later));
        assert_eq!(fleet.check_name("zone", speaker(known)), Ok(()));
        let id = place.unwrap_or_else(|| fleet.join("zone", 1, now).unwrap());
        let mut later = Honest { id, acked: None, has: Limits::ZERO };
        let mut changes = Vec::new();
        fleet.tick(now, &mut changes);
        later.take(&changes);
        if keeps {
            assert!(later.has.whole() >= had, "{} of {had}", later.has.whole());
        }
        settle(&mut fleet, customer, [&mut later, &mut other], now);
        assert_eq!(later.has.whole() > cpus(8.0), keeps, "{}", later.has.whole());
        let counted = fleet.status(customer).unwrap().counted[3];
        assert!(counted <= cpus(10.0), "{counted}");
        if keeps {
            let late = fleet.report(zone.id, zone.acked, NOTHING, now + SECOND);
            assert!(late.is_ok(), "whose stream it is only the server of streams can say");
        }
    }
}
