//! The machines on which contenders meet.

use super::Trial;
use crate::world::cpu::Sharing;
use crate::world::spec::WorkSpec;
use core::time::Duration;

/// Machines of many kinds, each with surges of many sizes.
///
/// A caller waits a second, or as long as the dearest request may take. Controllers look every
/// 10 ms, and every 2 ms where requests are much shorter; refusing costs 20 us, and 2 us there.
pub fn trials(seed: u64) -> Vec<Trial> {
    let (ms, us) = (Duration::from_millis, Duration::from_micros);
    let base = base(seed);
    let shared = Trial { sharing: Sharing::Shared, ..base.clone() };
    let exponential = |name, cores, mean: Duration| Trial {
        name,
        cores,
        work: WorkSpec::Exponential(mean),
        ..base.clone()
    };
    let rare = |usual, rare, share| WorkSpec::Rare { usual, rare, share };
    let machines = vec![
        base.clone(),
        exponential("1 core, 5 ms, exponential", 1, ms(5)),
        Trial { sharing: Sharing::Shared, ..exponential("1 core shared, 5 ms, exp.", 1, ms(5)) },
        Trial {
            name: "1 core, 2.5 or 27.5 ms",
            work: rare(us(2_500), us(27_500), 0.1),
            ..base.clone()
        },
        exponential("1 core, 1 ms, exponential", 1, ms(1)),
        Trial {
            name: "1 core, 0.2 ms, constant",
            work: WorkSpec::Constant(us(200)),
            reject_cost: us(2),
            tick: ms(2),
            lasts: Duration::from_secs(5),
            ..base.clone()
        },
        exponential("8 cores, 5 ms, exponential", 8, ms(5)),
        Trial { name: "8 cores shared, 5 ms, const.", cores: 8, ..shared.clone() },
        Trial { patience: ms(3_000), ..exponential("4 cores, 50 ms, exponential", 4, ms(50)) },
        Trial {
            name: "4 cores shared, 20 ms, log-n.",
            cores: 4,
            work: WorkSpec::LogNormal { mean: ms(20), sigma: 1.0 },
            patience: ms(10_000),
            ..shared.clone()
        },
        Trial {
            name: "8 cores shared, 15 ms or 10 s",
            cores: 8,
            work: rare(ms(15), ms(10_000), 0.001),
            patience: ms(200_000),
            lasts: Duration::from_secs(20),
            ..shared
        },
        Trial { name: "1 core, 5 ms, waits 100 ms", waits: ms(100), ..base.clone() },
        Trial { waits: ms(300), ..exponential("4 cores, 5 ms, waits 300 ms", 4, ms(5)) },
    ];
    surging(machines, [1.2, 1.5, 1.8, 2.0, 5.0, 9.0, 10.0])
}

/// Machines and surges on which no constant of ours was ever chosen.
pub fn held_out(seed: u64) -> Vec<Trial> {
    let ms = Duration::from_millis;
    let base = base(seed);
    let shared = Trial { sharing: Sharing::Shared, ..base.clone() };
    let log_normal = |mean, sigma| WorkSpec::LogNormal { mean, sigma };
    let machines = vec![
        Trial {
            name: "2 cores, 3 ms, exponential",
            cores: 2,
            work: WorkSpec::Exponential(ms(3)),
            ..base.clone()
        },
        Trial {
            name: "16 cores shared, 8 ms, log-n.",
            cores: 16,
            work: log_normal(ms(8), 0.7),
            ..shared.clone()
        },
        Trial {
            name: "1 core, 40 ms, constant",
            work: WorkSpec::Constant(ms(40)),
            patience: ms(2_000),
            lasts: Duration::from_secs(30),
            ..base.clone()
        },
        Trial {
            name: "2 cores shared, 2 or 62 ms",
            cores: 2,
            work: WorkSpec::Rare { usual: ms(2), rare: ms(62), share: 0.05 },
            ..shared.clone()
        },
        Trial {
            name: "3 cores, 10 ms, waits 40 ms",
            cores: 3,
            work: log_normal(ms(10), 0.5),
            waits: ms(40),
            ..base
        },
        Trial {
            name: "32 cores shared, 2 ms, const.",
            cores: 32,
            work: WorkSpec::Constant(ms(2)),
            lasts: Duration::from_secs(5),
            ..shared
        },
    ];
    surging(machines, [1.4, 3.0, 7.0, 15.0])
}

/// One core, 5 ms a request, callers that wait for a second.
fn base(seed: u64) -> Trial {
    let (ms, us) = (Duration::from_millis, Duration::from_micros);
    Trial {
        name: "1 core, 5 ms, constant",
        cores: 1,
        sharing: Sharing::Fifo,
        work: WorkSpec::Constant(ms(5)),
        waits: Duration::ZERO,
        patience: Duration::from_secs(1),
        tick: ms(10),
        reject_cost: us(20),
        surge: 2.0,
        lasts: Duration::from_secs(10),
        seed,
    }
}

fn surging<const N: usize>(machines: Vec<Trial>, surges: [f64; N]) -> Vec<Trial> {
    let each = |machine: Trial| surges.map(|surge| Trial { surge, ..machine.clone() });
    machines.into_iter().flat_map(each).collect()
}
