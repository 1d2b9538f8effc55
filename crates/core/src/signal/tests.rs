use super::*;
use proptest::prelude::*;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn utilization(signals: &Signals, ms: u64) -> f64 {
    signals.reading(at(ms)).utilization.get()
}

#[test]
fn the_highest_decides_and_is_named() {
    let mut signals = Signals::new(Combine::Highest);
    let load = signals.register(Signal::new("load", 4.0).unwrap()).unwrap();
    let memory = signals.register(Signal::new("memory", 0.8).unwrap()).unwrap();
    assert_eq!(signals.reading(at(0)), Reading::IDLE);
    signals.record(load, 2.0, at(1));
    signals.record(memory, 0.6, at(1));
    assert_eq!(signals.reading(at(1)).signal, memory);
    assert!((utilization(&signals, 1) - 0.75).abs() < 1e-12);
    signals.record(load, 10.0, at(2));
    assert_eq!(signals.reading(at(2)).signal, load);
    assert!((utilization(&signals, 2) - 2.5).abs() < 1e-12);
    assert_eq!(signals.get(load).map(Signal::name), Some("load"));
}

#[test]
fn a_weighted_sum_by_the_table() {
    let mut signals = Signals::new(Combine::WeightedSum);
    let a = signals.register(Signal::new("a", 2.0).unwrap().weight(3.0).unwrap()).unwrap();
    let b = signals.register(Signal::new("b", 10.0).unwrap()).unwrap();
    for (va, vb, sum) in [(2.0, 10.0, 1.0), (4.0, 0.0, 1.5), (0.0, 40.0, 1.0), (1.0, 5.0, 0.5)] {
        signals.record(a, va, at(0));
        signals.record(b, vb, at(0));
        assert!((utilization(&signals, 0) - sum).abs() < 1e-12);
    }
    assert_eq!(signals.reading(at(0)).signal, SignalId::COMBINED);
}

#[test]
fn no_weights_make_a_calm_task_look_busy() {
    for weight in [f64::MAX, 1e308, 1e10, -1.0, f64::NAN, f64::INFINITY] {
        assert!(Signal::new("a", 1.0).unwrap().weight(weight).is_err(), "{weight}");
    }
    let mut signals = Signals::new(Combine::WeightedSum);
    for name in ["a", "b", "c"] {
        let signal = Signal::new(name, 1.0).unwrap().weight(1e9).unwrap();
        let id = signals.register(signal).unwrap();
        signals.record(id, 0.5, at(0));
    }
    assert!((utilization(&signals, 0) - 0.5).abs() < 1e-12);
}

#[test]
fn cpu_percent_alone_never_declares_overload() {
    let mut signals = Signals::new(Combine::Highest);
    let load = signals.register(Signal::new("load", 4.0).unwrap()).unwrap();
    let cpu = Signal::new("cpu", 0.8).unwrap().role(Role::Confirming);
    let cpu = signals.register(cpu).unwrap();
    signals.record(cpu, 1.0, at(0));
    assert_eq!(signals.reading(at(0)), Reading::IDLE);
    signals.record(load, 1.0, at(0));
    assert_eq!(utilization(&signals, 0), 0.25);
    signals.record(load, 3.3, at(0));
    assert_eq!(signals.reading(at(0)).signal, load);
    signals.record(load, 3.5, at(0));
    assert_eq!(signals.reading(at(0)).signal, cpu);
    assert_eq!(utilization(&signals, 0), 1.25);
}

#[test]
fn a_dead_source_is_left_out() {
    let mut signals = Signals::new(Combine::Highest);
    let load = signals.register(Signal::new("load", 1.0).unwrap()).unwrap();
    signals.record(load, 9.0, at(0));
    assert_eq!(utilization(&signals, 5_000), 9.0);
    assert_eq!(utilization(&signals, 5_001), 0.0);
    signals.record(load, 0.5, at(6_000));
    assert_eq!(utilization(&signals, 6_000), 0.5);
}

#[test]
fn nonsense_is_not_taken() {
    let mut signals = Signals::new(Combine::Highest);
    let load = signals.register(Signal::new("load", 1.0).unwrap()).unwrap();
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        assert!(!signals.record(load, bad, at(0)));
        assert!(Signal::new("x", bad).is_err());
        assert!(LoadAverage::new(Duration::ZERO, bad, at(0)).is_err());
        assert!(Slope::new(Duration::ZERO, bad).is_err());
    }
    assert!(!signals.record(SignalId(7), 1.0, at(0)));
    assert!(Signal::new("x", 0.0).is_err());
    for _ in 1..Signals::COUNT_MAX {
        assert!(signals.register(Signal::new("more", 1.0).unwrap()).is_some());
    }
    assert!(signals.register(Signal::new("too many", 1.0).unwrap()).is_none());
}

#[test]
fn a_fan_out_is_swallowed_and_an_overload_is_not() {
    let tau = LoadAverage::TAU_DEFAULT;
    let mut load = LoadAverage::new(tau, 2.0, at(0)).unwrap();
    // Two CPUs, two tasks running; then 64 short operations that are gone 2 ms later.
    for ms in 1..=500 {
        load.record(2, at(ms));
    }
    let spike = (501..=502).map(|ms| load.record(66, at(ms))).fold(0.0, f64::max);
    assert!(spike < 2.0, "{spike}");
    assert!((503..=900).map(|ms| load.record(2, at(ms))).last().unwrap() < 1.02);
    // A rise to five times the CPUs that stays.
    let lasting = (901..=1_200).map(|ms| load.record(10, at(ms))).last().unwrap();
    assert!(lasting > 4.7, "{lasting}");
}

#[test]
fn fractional_cpus_divide() {
    let mut load = LoadAverage::new(Duration::ZERO, 1.5, at(0)).unwrap();
    assert_eq!(load.record(3, at(1)), 2.0);
}

#[test]
fn a_slope_is_used_over_reserved() {
    let mut cpu = Slope::new(Duration::ZERO, 2.0).unwrap();
    assert_eq!(cpu.record(Duration::from_secs(100), at(0)), None);
    assert_eq!(cpu.record(Duration::from_millis(100_500), at(1_000)), Some(0.25));
    assert_eq!(cpu.record(Duration::from_millis(102_500), at(2_000)), Some(1.0));
    // The watched process was replaced: its counter starts over, the value is kept.
    assert_eq!(cpu.record(Duration::ZERO, at(3_000)), Some(1.0));
    assert_eq!(cpu.record(Duration::from_millis(200), at(4_000)), Some(0.1));
    // No time has passed: nothing to divide by.
    assert_eq!(cpu.record(Duration::from_millis(900), at(4_000)), Some(0.1));
}

proptest! {
    #[test]
    fn no_samples_yield_a_nan(
        samples in proptest::collection::vec((0_u8..4, any::<f64>(), any::<u64>()), 0..60),
        weighted: bool,
    ) {
        let combine = if weighted { Combine::WeightedSum } else { Combine::Highest };
        let mut signals = Signals::new(combine);
        for target in [1e-300, 1.0, 1e300] {
            signals.register(Signal::new("s", target).unwrap());
        }
        for (id, value, ns) in samples {
            let now = Timestamp::from_nanos(ns);
            signals.record(SignalId(id), value, now);
            let reading = signals.reading(now);
            prop_assert!(reading.utilization.get().is_finite());
            prop_assert!(reading.instant.get().is_finite());
        }
    }
}
