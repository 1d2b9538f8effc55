//! Tasks that restart.

use super::*;

fn restart(lame_duck: u64, balance: BalanceSpec) -> WorldSpec {
    let retries = RetrySpec::Advised { attempts: 3 };
    let stack = StackSpec { balance, retries, ..StackSpec::default() };
    let mut spec = world(vec![service(10, true)], 0.4, stack, 60);
    spec.changes = vec![(
        Timestamp::from_secs(10),
        Change::Restart {
            service: 0,
            tasks: 0..1,
            lame_duck: Duration::from_secs(lame_duck),
            down_for: Duration::from_secs(5),
            cold_for: Duration::from_secs(20),
            cold_speed: 0.2,
        },
    )];
    spec
}

/// Busy core-seconds a second of the task that restarts.
fn busy(record: &Record, from: usize, to: usize) -> f64 {
    let busy = &record.busy[0][0][from..to];
    busy.iter().map(|&b| f64::from(b)).sum::<f64>() / busy.len() as f64
}

#[test]
fn a_lame_duck_is_left_alone_and_loses_nothing() {
    for (name, balance) in policies() {
        let record = run(restart(3, balance));
        let share = sum(&record, |bin| bin.answers) / offered(&record);
        // What is under way at the end of the run is not answered: a few of 48,000.
        assert!(share > 0.999, "{name}: {share}");
        // Before, lame and gone, back.
        let [before, gone, after] = [(2, 10), (12, 18), (50, 60)].map(|(a, b)| busy(&record, a, b));
        assert!((before - 0.4).abs() < 0.1, "{name}: {before}");
        assert!(gone < 0.001, "{name}: {gone}");
        assert!((after - 0.4).abs() < 0.1, "{name}: {after}");
    }
}

#[test]
fn a_task_that_comes_back_cold_gets_a_little_first() {
    let record = run(restart(0, BalanceSpec::RoundRobin));
    // Back at 15 s with a fifth of its speed. Slow start gives it a tenth of its share, then more
    // in a straight line over 30 s: in the first three seconds 10 to 19 % of 80 requests a second
    // of 5 ms, at 20 to 32 % of the speed.
    let first = busy(&record, 15, 18);
    assert!((0.1..0.35).contains(&first), "{first}");
    let arrived: u32 =
        record.services[0][150..].iter().map(|bin| bin.rejected.iter().sum::<u32>()).sum();
    assert_eq!(arrived, 0, "no task is overloaded by a cold one's work");
}

#[test]
fn what_a_task_has_is_lost_when_it_just_goes() {
    let mut spec = restart(0, BalanceSpec::RoundRobin);
    spec.clients[0].stack.retries = RetrySpec::Never;
    let record = run(spec);
    let lost = offered(&record) - sum(&record, |bin| bin.answers);
    // M/M/1-PS at 0.4 holds 0.4 / 0.6 requests on average, and some are on their way.
    assert!(lost <= 12.0, "{lost}");
}
