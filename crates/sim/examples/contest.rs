#![allow(clippy::all, clippy::pedantic, missing_docs)]
use std::time::Duration;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_sim::contest::contenders::*;
use tidegate_sim::contest::*;
use tidegate_sim::world::cpu::Sharing;
use tidegate_sim::world::spec::WorkSpec;

fn main() {
    let which = std::env::args().nth(1).unwrap_or("tidegate".into());
    let seeds: u64 = std::env::args().nth(2).map_or(5, |s| s.parse().unwrap());
    let target: f64 = std::env::args().nth(3).map_or(8.0, |s| s.parse().unwrap());
    let detail = std::env::args().nth(4).as_deref() == Some("y");
    let only = std::env::var("ONLY").ok();
    let ms = Duration::from_millis;
    let us = Duration::from_micros;
    let base = Trial {
        name: "",
        cores: 1,
        sharing: Sharing::Fifo,
        work: WorkSpec::Constant(ms(5)),
        patience: Duration::from_secs(1),
        tick: TICK,
        reject_cost: REJECT_COST,
        waits: Duration::ZERO,
        surge: 2.0,
        lasts: Duration::from_secs(10),
        seed: 1,
    };
    let machines = vec![
        Trial { name: "1c const 5ms", ..base.clone() },
        Trial { name: "1c exp 5ms", work: WorkSpec::Exponential(ms(5)), ..base.clone() },
        Trial {
            name: "1c exp 5ms PS",
            work: WorkSpec::Exponential(ms(5)),
            sharing: Sharing::Shared,
            ..base.clone()
        },
        Trial {
            name: "1c bimodal",
            work: WorkSpec::Rare { usual: us(2500), rare: us(27500), share: 0.1 },
            ..base.clone()
        },
        Trial { name: "1c exp 1ms", work: WorkSpec::Exponential(ms(1)), ..base.clone() },
        Trial {
            name: "1c const .2ms",
            work: WorkSpec::Constant(us(200)),
            reject_cost: us(2),
            tick: ms(2),
            lasts: Duration::from_secs(5),
            ..base.clone()
        },
        Trial { name: "8c exp 5ms", cores: 8, work: WorkSpec::Exponential(ms(5)), ..base.clone() },
        Trial { name: "8c const 5ms PS", cores: 8, sharing: Sharing::Shared, ..base.clone() },
        Trial {
            name: "4c exp 50ms",
            cores: 4,
            patience: ms(3000),
            work: WorkSpec::Exponential(ms(50)),
            ..base.clone()
        },
        Trial {
            name: "4c logn 20ms PS",
            cores: 4,
            sharing: Sharing::Shared,
            work: WorkSpec::LogNormal { mean: ms(20), sigma: 1.0 },
            patience: ms(10000),
            ..base.clone()
        },
        Trial {
            name: "8c 15ms/10s PS",
            cores: 8,
            sharing: Sharing::Shared,
            work: WorkSpec::Rare { usual: ms(15), rare: ms(10000), share: 0.001 },
            patience: ms(200_000),
            lasts: Duration::from_secs(20),
            ..base.clone()
        },
        Trial { name: "1c const 5ms w100", waits: ms(100), ..base.clone() },
        Trial {
            name: "4c exp 5ms w300",
            cores: 4,
            work: WorkSpec::Exponential(ms(5)),
            waits: ms(300),
            ..base.clone()
        },
    ];
    println!("{which} target {target} seeds {seeds}");
    println!(
        "{:18} {:>5} | {:>6} {:>6} | {:>6} {:>6} | {:>9} | {:>7} {:>6} | {:>6} | {:>6}",
        "machine",
        "surge",
        "good",
        "worst",
        "p99x",
        "max",
        "calm ref",
        "fitlost",
        "plus",
        "recov",
        "load"
    );
    for machine in machines {
        if only.as_deref().is_some_and(|o| !machine.name.contains(o)) {
            continue;
        }
        for surge in [1.2, 2.0, 5.0, 10.0] {
            let mut all = Vec::new();
            for seed in 1..=seeds {
                let trial = Trial { surge, seed, ..machine.clone() };
                let mean = trial.work.mean();
                let c = trial.cores;
                let mut contender: Box<dyn Contender> = match which.as_str() {
                    "bare" => Box::new(Bare),
                    "tidegate" => Box::new(Tidegate::new(c, mean, target, ShedConfig::default())),
                    "proto" => {
                        let mut k = proto::Knobs::default();
                        for arg in std::env::args().skip(5) {
                            let (n, v) = arg.split_once('=').unwrap();
                            let v: f64 = v.parse().unwrap_or(0.0);
                            match n {
                                "a" => k.a = v,
                                "b" => k.b = v,
                                "over" => k.over = v,
                                "hz" => k.horizon_ticks = v,
                                "room" => k.room = v,
                                "tau" => k.tau_ms = v as u64,
                                "arm" => k.arm_tau_ms = v as u64,
                                "again" => k.again = v,
                                "long" => k.long = v,
                                "slope" => k.slope = v,
                                "mm" => k.margin_max = v,
                                "c" => k.c = v,
                                "slow" => k.slow_ms = v as u64,
                                "ev" => k.evident = v,
                                "ah" => k.armed_hard = [v, v, v, v * 1.25],
                                "hard" => k.hard = [v, v * 1.2, v * 1.4, v * 1.6],
                                _ => {}
                            }
                        }
                        let mut p = proto::Proto::new(c, k);
                        p.trace = std::env::var("TRACE").is_ok();
                        Box::new(p)
                    }
                    "thresholds" => {
                        Box::new(Thresholds::new(c, [0.85, 0.9, 0.95, 1.0].map(|t| t * target)))
                    }
                    "pi" => Box::new(Pi::new(c, target)),
                    "codel" => Box::new(CoDel::new(c)),
                    "gradient" => Box::new(Gradient::new(c)),
                    "queue" => Box::new(Queue::new(c, target as usize)),
                    other => panic!("{other}"),
                };
                let v = run(&trial, contender.as_mut());
                if detail {
                    println!("   {v:?}");
                }
                all.push(v);
            }
            let mean = |f: &dyn Fn(&Verdict) -> f64| {
                all.iter().map(|v| f(v)).sum::<f64>() / all.len() as f64
            };
            let max =
                |f: &dyn Fn(&Verdict) -> f64| all.iter().map(|v| f(v)).fold(f64::MIN, f64::max);
            let min =
                |f: &dyn Fn(&Verdict) -> f64| all.iter().map(|v| f(v)).fold(f64::MAX, f64::min);
            let mut ratios: Vec<f64> = all.iter().map(|v| v.p99_ratio).collect();
            ratios.sort_by(f64::total_cmp);
            println!(
                "{:18} {:>5} | {:>6.3} {:>6.3} | {:>6.2} {:>6.2} | {:>9} | {:>7.4} {:>6.3} | {:>6.2} | {:>6.1}",
                machine.name,
                surge,
                mean(&|v| v.goodput),
                min(&|v| v.worst_second),
                ratios[ratios.len() / 2],
                max(&|v| v.p99_ratio),
                format!(
                    "{}/{}",
                    all.iter().map(|v| v.calm_refused.0).sum::<u32>(),
                    all.iter().map(|v| v.calm_refused.1).sum::<u32>()
                ),
                max(&|v| v.fitting_lost),
                mean(&|v| v.plus),
                max(&|v| v.recovery),
                mean(&|v| v.load)
            );
        }
    }
}
