//! What happens in the demo: one backend task, and callers who do not care how it is doing.
//!
//! Arrivals are random and independent of the answers (an open loop): a caller who gives up is
//! followed by the next one all the same. Both sides see the same requests at the same moments.
//!
//! Behind the four phases the calm goes on unseen, until the bare backend should have worked off
//! what piled up. With phases of `s` seconds it lacks `(2 - 1) s + (10 - 1) s` of work, and gets
//! round to 30 % of that in each second of calm at 0.7x: `33 s`, give or take the luck of arrivals.

use super::report::{Machine, Mix, Report, Side, Sides};
use std::time::Duration;
use tidegate_core::units::InvalidNumber;
use tidegate_sim::story::{Outcome, Phase, Spread, Story};
use tidegate_sim::task::TaskConfig;

/// The phases that are shown: a name, and offered load as a multiple of capacity.
const PHASES: [(&str, f64); 4] = [("calm", 0.7), ("surge", 2.0), ("surge", 10.0), ("after", 0.7)];
/// The phase in which the surge is at its worst.
pub(super) const WORST: usize = 2;
/// The phase after the surge.
pub(super) const AFTER: usize = 3;
/// How many phases' lengths the calm goes on unseen: 33, and a fifth for bad luck.
const UNSEEN: u64 = 40;

/// Mean CPU time of a request, a usual one for a service that does some work of its own.
const WORK: Duration = Duration::from_millis(5);
/// How long a caller waits.
const PATIENCE: Duration = Duration::from_secs(1);
/// Share of each criticality, lowest first.
const MIX: [f64; 4] = [0.2, 0.3, 0.4, 0.1];

/// Runs both sides.
pub(super) fn run(seed: u64, seconds: u64) -> Result<Report, InvalidNumber> {
    let tidegate = story(seed, seconds, TaskConfig::default());
    let bare = story(seed, seconds, TaskConfig { shed: None, ..TaskConfig::default() });
    Ok(Report {
        virtual_time: true,
        seed,
        seconds,
        machine: Machine {
            cores: tidegate.task.cores,
            work_ms: WORK.as_millis() as u64,
            capacity_per_second: tidegate.capacity(),
            patience_ms: PATIENCE.as_millis() as u64,
            refusal_us: tidegate.task.reject_cost.as_micros() as u64,
        },
        mix: Mix::new(MIX),
        sides: Sides { bare: side(&bare)?, tidegate: side(&tidegate)? },
    })
}

fn story(seed: u64, seconds: u64, task: TaskConfig) -> Story {
    let lasts = Duration::from_secs(seconds);
    let shown = PHASES.into_iter().map(|(name, load)| Phase { name, load, lasts });
    let unseen = Phase { name: "later", load: PHASES[AFTER].1, lasts: lasts * UNSEEN as u32 };
    Story {
        seed,
        task,
        work: WORK,
        spread: Spread::Constant,
        mix: MIX,
        patience: PATIENCE,
        phases: shown.chain([unseen]).collect(),
    }
}

fn side(story: &Story) -> Result<Side, InvalidNumber> {
    let outcomes: Vec<Outcome> = story.run()?;
    Ok(Side::new(&story.phases[..PHASES.len()], &outcomes))
}
