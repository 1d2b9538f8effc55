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
    let base = Trial {
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
    };
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
    let surges = [1.2, 1.5, 1.8, 2.0, 5.0, 9.0, 10.0];
    let each = |machine: Trial| surges.map(|surge| Trial { surge, ..machine.clone() });
    machines.into_iter().flat_map(each).collect()
}
