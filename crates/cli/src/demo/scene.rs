//! What happens in the demo: one backend task, and callers who do not care how it is doing.
//!
//! It is a world like any other, with nothing between the callers and the task. Arrivals are random
//! and independent of the answers (an open loop): a caller who gives up is followed by the next one
//! all the same. Both sides see the same requests at the same moments.
//!
//! Behind the four phases the calm goes on unseen, until the bare backend should have worked off
//! what piled up. With phases of `s` seconds it lacks `(2 - 1) s + (10 - 1) s` of work, and gets
//! round to 30 % of that in each second of calm at 0.7x: `33 s`, give or take the luck of arrivals.

use super::report::{Machine, Mix, Report, Side, Sides};
use std::time::Duration;
use tidegate_core::Timestamp;
use tidegate_sim::world::World;
use tidegate_sim::world::cpu::Sharing;
use tidegate_sim::world::record::Record;
use tidegate_sim::world::spec::{
    AdmissionSpec, Change, ClientSpec, ServiceSpec, TaskSpec, WorkSpec, WorldError, WorldSpec,
};

/// A stretch of time with the same offered load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Phase {
    pub(super) name: &'static str,
    /// Offered load, as a multiple of what the machine can do.
    pub(super) load: f64,
}

/// The phases that are shown.
pub(super) const PHASES: [Phase; 4] = [
    Phase { name: "calm", load: 0.7 },
    Phase { name: "surge", load: 2.0 },
    Phase { name: "surge", load: 10.0 },
    Phase { name: "after", load: 0.7 },
];
/// The phase in which the surge is at its worst.
pub(super) const WORST: usize = 2;
/// The phase after the surge.
pub(super) const AFTER: usize = 3;
/// How many phases' lengths the calm goes on unseen: 33, and a fifth for bad luck.
const UNSEEN: u64 = 40;

const CORES: u32 = 1;
/// CPU time of a request, a usual one for a service that does some work of its own.
const WORK: Duration = Duration::from_millis(5);
/// CPU time of a refusal: headers are read and written, and little else.
const REFUSAL: Duration = Duration::from_micros(20);
/// How long a caller waits.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// Share of each criticality, lowest first.
const MIX: [f64; 4] = [0.2, 0.3, 0.4, 0.1];

/// Requests a second that the machine can do.
pub(super) fn capacity() -> f64 {
    f64::from(CORES) / WORK.as_secs_f64()
}

/// Runs both sides.
pub(super) fn run(seed: u64, seconds: u64) -> Result<Report, WorldError> {
    let side = |admission| {
        let record: Record = World::new(world(seed, seconds, admission))?.run();
        Ok::<_, WorldError>(Side::new(&record, seconds, (PHASES.len() as u64 + UNSEEN) * seconds))
    };
    Ok(Report {
        virtual_time: true,
        seed,
        seconds,
        machine: Machine {
            cores: CORES,
            work_ms: WORK.as_millis() as u64,
            capacity_per_second: capacity(),
            patience_ms: PATIENCE.as_millis() as u64,
            refusal_us: REFUSAL.as_micros() as u64,
        },
        mix: Mix::new(MIX),
        sides: Sides { bare: side(None)?, tidegate: side(Some(AdmissionSpec::default()))? },
    })
}

fn world(seed: u64, seconds: u64, admission: Option<AdmissionSpec>) -> WorldSpec {
    let rate = |phase: &Phase| phase.load * capacity();
    let change = |(i, phase): (usize, &Phase)| {
        let at = Timestamp::from_secs(i as u64 * seconds);
        (at, Change::Rate { client: 0, rate: rate(phase) })
    };
    let watched = Duration::from_secs((PHASES.len() as u64 + UNSEEN) * seconds);
    WorldSpec {
        seed,
        // The last to ask have their answers, too.
        lasts: watched + PATIENCE,
        distance: vec![vec![Duration::ZERO]],
        services: vec![ServiceSpec {
            tasks: vec![TaskSpec { cores: CORES.into(), ..TaskSpec::default() }],
            sharing: Sharing::Fifo,
            work: WorkSpec::Constant(WORK),
            reject_cost: REFUSAL,
            admission,
            ..ServiceSpec::default()
        }],
        clients: vec![ClientSpec {
            rate: rate(&PHASES[0]),
            mix: MIX,
            deadline: PATIENCE,
            ..ClientSpec::default()
        }],
        changes: PHASES.iter().enumerate().skip(1).map(change).collect(),
        ..WorldSpec::default()
    }
}
