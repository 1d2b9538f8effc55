//! Tasks that join, by what `tidegate_core::subset` says.

use super::*;
use std::collections::BTreeSet;
use tidegate_core::subset::{SubsetPolicy, subset};

const CLIENTS: u32 = 30;

/// Clients of twenty tasks, five of them each, and from 10 s on of twenty-one.
fn joining(policy: SubsetPolicy) -> WorldSpec {
    let stack = StackSpec { subset: Some((policy, 5)), ..StackSpec::default() };
    let mut spec = world(vec![service(21, true)], 0.4, stack, 60);
    spec.clients[0].tasks = CLIENTS;
    spec.services[0].connections =
        Some(ConnectionSpec { idle: None, health: None, eager: true, ..ConnectionSpec::default() });
    spec.changes =
        vec![(Timestamp::from_millis(9_999), Change::Join { service: 0, tasks: 20..21 })];
    spec
}

fn connections(policy: SubsetPolicy, backends: u32) -> Vec<u32> {
    let mut open = vec![0; 21];
    for client in 0..CLIENTS {
        for backend in subset(policy, client.into(), backends, 5) {
            open[backend as usize] += 1;
        }
    }
    open
}

#[test]
fn connections_move_as_subsets_do() {
    for policy in [SubsetPolicy::Rocksteadier, SubsetPolicy::Deterministic] {
        let record = run(joining(policy));
        assert_eq!(record.connected[0][8], connections(policy, 20), "{policy:?}");
        assert_eq!(record.connected[0][59], connections(policy, 21), "{policy:?}");
        let opened: usize = (0..u64::from(CLIENTS))
            .map(|client| {
                let before: BTreeSet<u32> = subset(policy, client, 20, 5).into_iter().collect();
                subset(policy, client, 21, 5).iter().filter(|b| !before.contains(b)).count()
            })
            .sum();
        let connects: u32 = record.connections[0][9..60].iter().map(|s| s.connects).sum();
        assert_eq!(connects as usize, opened, "{policy:?}");
        // Nobody loses an answer by it.
        assert!(sum(&record, |bin| bin.answers) / offered(&record) > 0.999, "{policy:?}");
    }
}

#[test]
fn a_newcomer_has_nothing_before_and_its_part_after() {
    for (name, balance) in policies() {
        let mut spec = joining(SubsetPolicy::Rocksteadier);
        // Without subsets, so that all have the same part in the end.
        spec.clients[0].stack = StackSpec { balance, ..StackSpec::default() };
        let record = run(spec);
        let busy = |task: usize, from: usize, to: usize| {
            let busy = &record.busy[0][task][from..to];
            busy.iter().map(|&b| f64::from(b)).sum::<f64>() / busy.len() as f64
        };
        assert_eq!(busy(20, 0, 9), 0.0, "{name}");
        let (new, old) = (busy(20, 45, 60), busy(3, 45, 60));
        assert!((new / old - 1.0).abs() < 0.35 && old > 0.3, "{name}: {new} {old}");
    }
}
