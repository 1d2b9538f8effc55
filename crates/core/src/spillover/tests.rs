use super::*;
use crate::rng::SeededRng;
use proptest::prelude::*;

const A: DatacenterId = DatacenterId(0);
const B: DatacenterId = DatacenterId(1);
const C: DatacenterId = DatacenterId(2);

fn cpus(n: f64) -> CostRate {
    CostRate::from_cpus(n).unwrap()
}

fn dc(id: DatacenterId, n: f64) -> Datacenter {
    Datacenter::new(id, Resources::cpu(cpus(n)))
}

fn from(location: u32, n: f64, distances: &[(DatacenterId, u64)]) -> Demand {
    let distances = distances.iter().map(|(id, ms)| (*id, Duration::from_millis(*ms))).collect();
    Demand::new(LocationId(location), Resources::cpu(cpus(n)), distances)
}

#[test]
fn the_books_datacenter_takes_fifty_thousand_and_the_rest_spills() {
    // 100 tasks of 500 requests a second, at 2 ms each: 100 CPUs. 60,000 are 120 CPUs.
    let plan = assign(&[from(0, 120.0, &[(B, 30), (A, 5)])], &[dc(A, 100.0), dc(B, 100.0)]);
    assert_eq!(plan[0].placed, [(A, cpus(100.0)), (B, cpus(20.0))]);
    let requests = |rate: CostRate| rate.as_cpus() / 0.002;
    assert_eq!(requests(plan[0].placed[0].1), 50_000.0);
    assert_eq!(requests(plan[0].placed[1].1), 10_000.0);
    assert_eq!(plan[0].unplaced, CostRate::ZERO);
}

#[test]
fn plans_by_the_table() {
    let near_a = |n| from(0, n, &[(A, 5), (B, 30), (C, 80)]);
    let near_b = |n| from(1, n, &[(B, 6), (A, 30), (C, 90)]);
    for (name, demands, datacenters, wanted) in [
        (
            "each at home",
            vec![near_a(50.0), near_b(60.0)],
            vec![dc(A, 100.0), dc(B, 100.0)],
            vec![(vec![(A, 50.0)], 0.0), (vec![(B, 60.0)], 0.0)],
        ),
        (
            "one spills, the other is nearer to where it spills",
            vec![near_a(150.0), near_b(80.0)],
            vec![dc(A, 100.0), dc(B, 100.0), dc(C, 100.0)],
            vec![(vec![(A, 100.0), (B, 20.0), (C, 30.0)], 0.0), (vec![(B, 80.0)], 0.0)],
        ),
        (
            "a datacenter is lost",
            vec![near_a(50.0), near_b(60.0)],
            vec![dc(A, 0.0), dc(B, 100.0), dc(C, 100.0)],
            vec![(vec![(B, 40.0), (C, 10.0)], 0.0), (vec![(B, 60.0)], 0.0)],
        ),
        (
            "connections take most of it",
            vec![near_a(50.0)],
            vec![dc(A, 100.0).with_load(Resources::cpu(cpus(70.0))), dc(B, 100.0)],
            vec![(vec![(A, 30.0), (B, 20.0)], 0.0)],
        ),
        (
            "more than there is",
            vec![near_a(250.0), near_b(100.0)],
            vec![dc(A, 100.0), dc(B, 100.0)],
            vec![(vec![(A, 100.0)], 150.0), (vec![(B, 100.0)], 0.0)],
        ),
        ("nowhere to go", vec![from(0, 1.0, &[])], vec![dc(A, 100.0)], vec![(vec![], 1.0)]),
        (
            "unknown datacenter",
            vec![from(0, 1.0, &[(C, 1)])],
            vec![dc(A, 9.0)],
            vec![(vec![], 1.0)],
        ),
        (
            "named twice",
            vec![from(0, 1.0, &[(A, 1)]), from(0, 8.0, &[(A, 1), (A, 2)])],
            vec![dc(A, 100.0), dc(A, 5.0)],
            vec![(vec![], 0.0), (vec![(A, 5.0)], 3.0)],
        ),
    ] {
        let plan = assign(&demands, &datacenters);
        let found: Vec<_> = plan
            .iter()
            .map(|a| {
                let placed: Vec<_> = a.placed.iter().map(|(id, r)| (*id, r.as_cpus())).collect();
                (placed, a.unplaced.as_cpus())
            })
            .collect();
        assert_eq!(found, wanted, "{name}");
    }
}

#[test]
fn the_resource_that_runs_out_first_decides() {
    // Each CPU of demand holds 2 GiB: 60 GiB of room are 30 CPUs.
    let gib = |n: u64| n << 30;
    let mut demand = from(0, 50.0, &[(A, 5), (B, 30)]);
    demand.needs = demand.needs.with_memory(gib(100));
    let small = Datacenter::new(A, Resources::cpu(cpus(100.0)).with_memory(gib(64)))
        .with_load(Resources::ZERO.with_memory(gib(4)));
    let big = Datacenter::new(B, Resources::cpu(cpus(100.0)).with_memory(gib(1_000)));
    let plan = assign(&[demand], &[small, big]);
    assert_eq!(plan[0].placed, [(A, cpus(30.0)), (B, cpus(20.0))]);
    assert_eq!(plan[0].share(A), Ratio::percent(60));
    assert_eq!(plan[0].share(C), Ratio::ZERO);
}

#[test]
fn load_from_elsewhere_is_what_the_plan_does_not_explain() {
    let all = Resources::cpu(cpus(70.0));
    let planned = Resources::cpu(cpus(50.0));
    assert_eq!(dc(A, 100.0).with_measured_use(all, planned).load.cpu, cpus(20.0));
    assert_eq!(dc(A, 100.0).with_measured_use(planned, all).load, Resources::ZERO);
}

/// At A in each second, when A is lost at 10 s and comes back at 20 s.
#[test]
fn away_at_once_and_back_slowly() {
    let mut spillover = Spillover::default();
    let demand = [from(0, 80.0, &[(A, 5), (B, 30)])];
    let mut at_a = Vec::new();
    for second in 0..=45 {
        let capacity = if (10..20).contains(&second) { 0.0 } else { 100.0 };
        let plan =
            spillover.plan(&demand, &[dc(A, capacity), dc(B, 100.0)], Timestamp::from_secs(second));
        assert_eq!(plan[0].unplaced, CostRate::ZERO);
        at_a.push(plan[0].share(A).billionths() / 10_000_000);
    }
    assert_eq!(at_a[..10], [100; 10]);
    assert_eq!(at_a[10..20], [0; 10]);
    assert_eq!(at_a[20..25], [5, 10, 15, 20, 25]);
    assert_eq!(at_a[38..], [95, 100, 100, 100, 100, 100, 100, 100]);
}

#[test]
fn a_full_neighbour_that_wavers_is_not_thrown_at() {
    // What else runs in A takes 20 and 40 CPUs by turns, ten times a second. Without damping 20
    // CPUs would go back and forth each time; 5 % of 80 CPUs a second are 0.4 in 100 ms.
    let demand = [from(0, 80.0, &[(A, 5), (B, 30)])];
    let (mut damped, mut moved, mut moved_undamped) = (Spillover::default(), 0.0, 0.0);
    let (mut last, mut last_undamped) = (60.0, 60.0);
    for step in 0..100 {
        let load = if step % 2 == 0 { 40.0 } else { 20.0 };
        let datacenters = [dc(A, 100.0).with_load(Resources::cpu(cpus(load))), dc(B, 100.0)];
        let now = Timestamp::from_millis(100 * step);
        let at_a = damped.plan(&demand, &datacenters, now)[0].placed[0].1.as_cpus();
        moved += f64::abs(at_a - last);
        last = at_a;
        let at_a = assign(&demand, &datacenters)[0].placed[0].1.as_cpus();
        moved_undamped += f64::abs(at_a - last_undamped);
        last_undamped = at_a;
    }
    assert!((moved - 99.0 * 0.4).abs() < 1.0, "{moved}");
    assert!(moved_undamped > 1_900.0, "{moved_undamped}");
}

#[test]
fn demand_that_doubles_stays_near() {
    let mut spillover = Spillover::default();
    let datacenters = [dc(A, 300.0), dc(B, 100.0)];
    for (ms, demand) in [(0, 100.0), (10, 200.0), (20, 0.0), (30, 250.0)] {
        let plan = spillover.plan(
            &[from(0, demand, &[(A, 5), (B, 30)])],
            &datacenters,
            Timestamp::from_millis(ms),
        );
        assert_eq!(plan[0].share(B), Ratio::ZERO, "{demand} CPUs");
        assert_eq!(plan[0].unplaced, CostRate::ZERO);
    }
}

/// A report that is missing, or says that nobody asks for anything, is no reason to throw all of a
/// location's demand back at a datacenter that has just recovered.
#[test]
fn a_missing_report_does_not_bring_everything_back_at_once() {
    let demand = |n| from(0, n, &[(A, 5), (B, 30)]);
    for gap in [vec![], vec![demand(0.0)]] {
        let mut spillover = Spillover::default();
        let mut at_a = Vec::new();
        for second in 100..=125 {
            let seen = match second {
                101..105 | 110..113 => gap.clone(),
                _ => vec![demand(80.0)],
            };
            let near = if second == 100 { 0.0 } else { 100.0 };
            let world = [dc(A, near), dc(B, 100.0)];
            let plan = spillover.plan(&seen, &world, Timestamp::from_secs(second));
            let shown = plan.first().filter(|_| seen != gap);
            at_a.extend(shown.map(|a| a.share(A).billionths() / 10_000_000));
        }
        // As if reports had come all the time: 5 % a second, gaps included.
        let seconds = [0, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25];
        assert_eq!(at_a, seconds.map(|s| (5 * s).min(100)), "{gap:?}");
    }
}

#[test]
fn picks_come_in_the_planned_shares() {
    let plan = assign(&[from(0, 200.0, &[(A, 5), (B, 30)])], &[dc(A, 100.0), dc(B, 60.0)]);
    let table = plan[0].table();
    let mut rng = SeededRng::new(3);
    let mut count = [0_u32; 3];
    for _ in 0..100_000 {
        count[table.pick(&mut rng).map_or(2, |id| id.0 as usize)] += 1;
    }
    for (found, wanted) in count.into_iter().zip([50_000, 30_000, 20_000]) {
        assert!(found.abs_diff(wanted) < 600, "{count:?}");
    }
    assert_eq!(PickTable::default().pick(&mut rng), None);
}

#[test]
fn an_idle_location_has_a_datacenter_for_its_first_request() {
    let mut rng = SeededRng::new(1);
    let idle = || from(0, 0.0, &[(A, 5), (B, 30)]);
    let busy = || from(1, 10.0, &[(A, 5)]);
    for (name, demands, datacenters, wanted) in [
        ("the nearest", vec![idle()], vec![dc(A, 100.0), dc(B, 100.0)], Some(A)),
        ("the next nearest", vec![idle()], vec![dc(A, 0.0), dc(B, 100.0)], Some(B)),
        ("filled by others", vec![idle(), busy()], vec![dc(A, 10.0), dc(B, 100.0)], Some(B)),
        ("all are full", vec![idle(), busy()], vec![dc(A, 10.0)], None),
        ("named twice", vec![idle(), idle()], vec![dc(A, 10.0)], Some(A)),
        ("nothing in reach", vec![from(0, 0.0, &[])], vec![dc(A, 10.0)], None),
    ] {
        let at = demands.iter().rposition(|d| d.location == LocationId(0)).unwrap();
        let plans = [
            assign(&demands, &datacenters),
            Spillover::default().plan(&demands, &datacenters, Timestamp::from_millis(1)),
        ];
        for plan in plans {
            assert_eq!(plan[at].table().pick(&mut rng), wanted, "{name}");
            assert_eq!((plan[at].placed.len(), plan[at].unplaced), (0, CostRate::ZERO));
        }
    }
}

/// A location whose demand was 0 in one report goes on as before, less what is full.
#[test]
fn an_idle_location_keeps_the_shares_it_had() {
    let mut spillover = Spillover::default();
    let demand = |n| from(0, n, &[(A, 5), (B, 30), (C, 80)]);
    let full = [dc(A, 0.0), dc(B, 25.0), dc(C, 100.0)];
    let plan = spillover.plan(&[demand(100.0)], &full, Timestamp::from_secs(100));
    assert_eq!(plan[0].placed, [(B, cpus(25.0)), (C, cpus(75.0))]);
    let all = [dc(A, 100.0), dc(B, 100.0), dc(C, 100.0)];
    for (second, datacenters, wanted) in [
        (101, &all[..], [0, 2_500, 7_500]),
        (102, &[dc(A, 100.0), dc(B, 0.0), dc(C, 100.0)][..], [0, 0, 10_000]),
        (103, &[dc(A, 100.0)][..], [10_000, 0, 0]),
        (119, &all[..], [0, 2_500, 7_500]),
        // By now everything could be back.
        (120, &all[..], [10_000, 0, 0]),
    ] {
        let plan = spillover.plan(&[demand(0.0)], datacenters, Timestamp::from_secs(second));
        let table = plan[0].table();
        let mut rng = SeededRng::new(3);
        let mut count = [0_u32; 3];
        for _ in 0..10_000 {
            count[table.pick(&mut rng).unwrap().0 as usize] += 1;
        }
        for (found, wanted) in count.into_iter().zip(wanted) {
            assert!(found.abs_diff(wanted) < 200, "{count:?} at {second} s");
        }
    }
}

/// Locations that are never heard of again are forgotten once they could be back in full.
#[test]
fn locations_that_are_gone_are_forgotten() {
    let mut spillover = Spillover::default();
    for second in 0..1_000 {
        let demand = from(second, 1.0, &[(A, 5)]);
        spillover.plan(&[demand], &[dc(A, 100.0)], Timestamp::from_secs(second.into()));
        assert!(spillover.last.len() <= 21, "{} after {second} s", spillover.last.len());
    }
}

/// A world of a few locations and datacenters, with numbers of every size.
fn world() -> impl Strategy<Value = (Vec<Demand>, Vec<Datacenter>)> {
    let amount = || prop_oneof![Just(0), 1_u64..1_000, any::<u64>()];
    let resources = move || {
        (amount(), amount()).prop_map(|(cpu, memory)| {
            Resources::cpu(CostRate::from_nanos_per_sec(cpu)).with_memory(memory)
        })
    };
    let datacenters = proptest::collection::vec((resources(), resources()), 1..5);
    let demands =
        proptest::collection::vec((resources(), proptest::collection::vec(0_u64..4, 4)), 0..5);
    (demands, datacenters).prop_map(|(demands, datacenters)| {
        let demands = (0..).zip(demands).map(|(i, (needs, rtts))| {
            let distances = (0..).zip(rtts).filter(|(_, ms)| *ms > 0);
            let distances = distances.map(|(d, ms)| (DatacenterId(d), Duration::from_millis(ms)));
            Demand::new(LocationId(i), needs, distances.collect())
        });
        let datacenters = (0..).zip(datacenters).map(|(i, (capacity, load))| {
            Datacenter::new(DatacenterId(i), capacity).with_load(load)
        });
        (demands.collect(), datacenters.collect())
    })
}

/// Checks a plan against capacity and demand, and returns each datacenter's room afterwards.
fn check_sums(
    demands: &[Demand],
    datacenters: &[Datacenter],
    plan: &[Assignment],
) -> Result<BTreeMap<DatacenterId, Resources>, TestCaseError> {
    let mut used: BTreeMap<DatacenterId, (u128, u128)> = BTreeMap::new();
    for (demand, assignment) in demands.iter().zip(plan) {
        let placed = assignment.placed.iter().map(|(_, r)| u128::from(r.as_nanos_per_sec()));
        let unplaced = u128::from(assignment.unplaced.as_nanos_per_sec());
        prop_assert_eq!(placed.sum::<u128>() + unplaced, u128::from(demand.cpu()));
        for (id, rate) in &assignment.placed {
            prop_assert!(*rate > CostRate::ZERO);
            let taken = demand.taken_by(rate.as_nanos_per_sec());
            let sum = used.entry(*id).or_default();
            sum.0 += u128::from(taken.cpu.as_nanos_per_sec());
            sum.1 += u128::from(taken.memory);
        }
    }
    let mut room = BTreeMap::new();
    for d in datacenters {
        let (cpu, memory) = used.get(&d.id).copied().unwrap_or_default();
        let free = d.capacity.minus(d.load);
        prop_assert!(cpu <= u128::from(free.cpu.as_nanos_per_sec()));
        prop_assert!(memory <= u128::from(free.memory));
        let taken = Resources::cpu(CostRate::from_nanos_per_sec(cpu as u64));
        room.insert(d.id, free.minus(taken.with_memory(memory as u64)));
    }
    Ok(room)
}

proptest! {
    #[test]
    fn capacity_holds_and_nothing_goes_past_a_nearer_one_with_room(
        (demands, datacenters) in world(),
    ) {
        let plan = assign(&demands, &datacenters);
        let room = check_sums(&demands, &datacenters, &plan)?;
        for (demand, assignment) in demands.iter().zip(&plan) {
            let rtt = |id| demand.distances.iter().find(|(d, _)| *d == id).map(|(_, rtt)| *rtt);
            let furthest = if assignment.unplaced > CostRate::ZERO {
                Some(Duration::MAX)
            } else {
                assignment.placed.last().and_then(|(id, _)| rtt(*id))
            };
            for (id, free) in &room {
                if rtt(*id) < furthest && rtt(*id).is_some() {
                    prop_assert_eq!(demand.fitting(*free), 0, "{:?} of {:?}", id, plan);
                }
            }
        }
    }

    /// Whatever changes from plan to plan: capacity holds, and nothing is refused that would fit.
    #[test]
    fn a_damped_plan_keeps_its_promises(
        worlds in proptest::collection::vec((world(), 0_u64..3_000), 1..6),
    ) {
        let mut spillover = Spillover::default();
        let mut now = Timestamp::ZERO;
        for ((demands, datacenters), step) in worlds {
            now += Duration::from_millis(step);
            let plan = spillover.plan(&demands, &datacenters, now);
            let room = check_sums(&demands, &datacenters, &plan)?;
            for (demand, assignment) in demands.iter().zip(&plan) {
                for (id, _) in &demand.distances {
                    let fits = room.get(id).map_or(0, |free| demand.fitting(*free));
                    prop_assert!(assignment.unplaced == CostRate::ZERO || fits == 0);
                }
            }
        }
    }

    #[test]
    fn a_damped_plan_ends_where_the_undamped_one_is(
        before in world(), (demands, datacenters) in world(),
    ) {
        let mut spillover = Spillover::default();
        spillover.plan(&before.0, &before.1, Timestamp::ZERO);
        let wanted = assign(&demands, &datacenters);
        // Twenty seconds for each datacenter that stands before another in somebody's list.
        let mut plan = Vec::new();
        for second in (0..200).step_by(4) {
            plan = spillover.plan(&demands, &datacenters, Timestamp::from_secs(second));
        }
        prop_assert_eq!(plan, wanted);
    }
}
