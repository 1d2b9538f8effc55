use super::*;
use crate::world::spec::{
    AdmissionSpec, Change, QuotaServerSpec, ServiceSpec, TaskSpec, WorldSpec,
};

/// Every task uses without a grant what its leader says, and all of them no more than that.
fn is_told(world: &World, places: u64) -> bool {
    let server = world.quota.as_ref().unwrap();
    let set_aside = server.limits[1].whole().as_nanos_per_sec() / 100;
    server.members.iter().flatten().all(|member| {
        let told = Limits::total(CostRate::from_nanos_per_sec(set_aside / places));
        let mut grant = member.held[1].grant;
        grant.set_unseen(told);
        grant == member.held[1].grant
    })
}

fn run_until(world: &mut World, seconds: u64) {
    while let Some((at, number)) = world.queue.pop() {
        world.now = at;
        world.happen(world.queue.event(number));
        if at >= Timestamp::from_secs(seconds) {
            break;
        }
    }
}

#[test]
fn tasks_are_told_what_they_may_use_without_a_grant() {
    // Of 6.4 CPU, 64 ms a second are set aside: for 40 tasks, among 128 places.
    let cpus = |cpus| Limits::total(CostRate::from_cpus(cpus).unwrap());
    let mut spec = WorldSpec { lasts: Duration::from_secs(60), ..WorldSpec::default() };
    let tasks = vec![TaskSpec::default(); 40];
    let admission = Some(AdmissionSpec::default());
    spec.services.push(ServiceSpec { tasks, admission, ..ServiceSpec::default() });
    spec.customers = vec![Limits::UNLIMITED, cpus(6.4)];
    spec.quota_server = Some(QuotaServerSpec::default());
    spec.changes = vec![
        (Timestamp::from_secs(5), Change::Limits { customer: 1, limits: cpus(12.8) }),
        (Timestamp::from_secs(10), Change::QuotaServer { lost: true }),
        (Timestamp::from_secs(15), Change::Limits { customer: 1, limits: cpus(3.2) }),
        (Timestamp::from_secs(20), Change::QuotaServer { lost: false }),
        (Timestamp::from_secs(30), Change::QuotaElection),
    ];
    let mut world = World::new(spec).unwrap();
    assert!(is_told(&world, 128), "at the start");
    for (second, told) in [(7, true), (19, false), (23, true), (35, true)] {
        run_until(&mut world, second);
        assert_eq!(is_told(&world, 128), told, "after {second} s");
    }
}
