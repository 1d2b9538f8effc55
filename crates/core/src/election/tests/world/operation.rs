//! What may happen to servers, tasks and lines.

use super::{LIMIT, Millis, SERVERS, TASKS};
use proptest::prelude::*;

#[derive(Debug, Clone)]
pub(super) enum Operation {
    Pause(usize, bool),
    Cut(usize, bool),
    CutTask(usize, usize, bool),
    Slow(bool),
    Kill(usize),
    Start(usize),
    Resign(usize),
    Want(usize, u64),
    Wait(Millis),
}

pub(super) fn operation() -> impl Strategy<Value = Operation> {
    let (server, task) = (0..SERVERS, 0..TASKS);
    prop_oneof![
        2 => (server.clone(), any::<bool>()).prop_map(|(n, on)| Operation::Pause(n, on)),
        2 => (server.clone(), any::<bool>()).prop_map(|(n, on)| Operation::Cut(n, on)),
        1 => (task.clone(), server.clone(), any::<bool>())
            .prop_map(|(task, n, on)| Operation::CutTask(task, n, on)),
        1 => any::<bool>().prop_map(Operation::Slow),
        1 => server.clone().prop_map(Operation::Kill),
        2 => server.clone().prop_map(Operation::Start),
        1 => server.prop_map(Operation::Resign),
        3 => (task, 0..3 * LIMIT).prop_map(|(task, wants)| Operation::Want(task, wants)),
        4 => (20..6_000_u64).prop_map(Operation::Wait),
    ]
}
