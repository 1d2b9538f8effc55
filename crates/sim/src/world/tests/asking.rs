//! Who asks when, for what, and how often: against plain arithmetic.

use super::*;

#[test]
fn bursts_come_at_even_intervals() {
    let mut spec = world(vec![service(1, false)], 0.0, StackSpec::default(), 20);
    let client = &mut spec.clients[0];
    (client.rate, client.burst, client.arrivals) = (25.0, 50, Arrivals::Even);
    let record = run(spec);
    let bins: Vec<u32> = record.clients[0].iter().map(|b| b.offered.iter().sum()).collect();
    // Fifty at once, every two seconds.
    let places: Vec<usize> = (0..bins.len()).filter(|&bin| bins[bin] > 0).collect();
    assert!(places.iter().all(|&bin| bins[bin] == 50), "{bins:?}");
    assert!(places.windows(2).all(|pair| (19..=21).contains(&(pair[1] - pair[0]))), "{places:?}");
    assert_eq!(places.len(), 10);
    let bursts = |spec: &mut WorldSpec| {
        (spec.clients[0].rate, spec.clients[0].burst) = (1_000.0, 10);
    };
    let mut spec = world(vec![service(1, false)], 0.0, StackSpec::default(), 100);
    bursts(&mut spec);
    spec.services[0].work = WorkSpec::Constant(Duration::from_micros(10));
    let asked = offered(&run(spec));
    // 10,000 bursts in all, with a standard error of one in a hundred.
    assert!((asked / 100_000.0 - 1.0).abs() < 0.03, "{asked}");
}

#[test]
fn a_group_s_requests_may_be_dearer() {
    let mut spec = world(vec![service(4, false)], 0.1, StackSpec::default(), 60);
    let mut dear = spec.clients[0].clone();
    (dear.rate, dear.work) = (10.0, Some(WorkSpec::Constant(Duration::from_millis(80))));
    spec.clients.push(dear);
    let record = run(spec);
    let busy: f64 = record.busy[0].iter().flatten().map(|&b| f64::from(b)).sum::<f64>() / 60.0;
    // 80 a second of 5 ms, 10 of 80 ms.
    assert!((busy - 1.2).abs() < 0.08, "{busy}");
}

#[test]
fn a_fan_out_asks_many_and_waits_for_the_last() {
    let latency = |fanout| {
        let mut front = service(2, false);
        front.work = WorkSpec::Constant(Duration::from_micros(100));
        front.calls = vec![CallSpec { service: 1, fanout, ..CallSpec::default() }];
        let mut back = service(40, false);
        back.work = WorkSpec::Exponential(Duration::from_millis(10));
        let mut spec = world(vec![front, back], 0.01, StackSpec::default(), 200);
        spec.seed = 9;
        let record = run(spec);
        let count = |service: usize| -> f64 {
            record.services[service].iter().map(|b| f64::from(b.admitted)).sum()
        };
        // Those under way at the end are in one count and not in the other.
        assert!((count(1) / count(0) / f64::from(fanout) - 1.0).abs() < 0.02);
        let all = record.latencies(0, Timestamp::ZERO, Timestamp::from_secs(200));
        all.quantile(0.5).unwrap().as_secs_f64()
    };
    // The median of one exponential of 10 ms is 6.9 ms; of the largest of 16,
    // -10 ms x ln(1 - 0.5^(1/16)) = 31.6 ms. Queues are almost empty.
    let (one, sixteen) = (latency(1), latency(16));
    assert!((0.0065..0.0095).contains(&one), "{one}");
    assert!((0.031..0.040).contains(&sixteen), "{sixteen}");
}

#[test]
fn one_part_of_a_fan_out_that_fails_fails_all_or_degrades() {
    for (degraded, good) in [(None, 0.0), (Some(0.5), 1.0)] {
        let mut front = service(1, false);
        front.degraded = degraded;
        front.work = WorkSpec::Constant(Duration::from_millis(1));
        front.calls = vec![CallSpec { service: 1, fanout: 4, ..CallSpec::default() }];
        let mut spec = world(vec![front, service(4, false)], 0.1, StackSpec::default(), 20);
        let fail = Change::FailFast { service: 1, tasks: 0..1, fails: true };
        spec.changes = vec![(Timestamp::ZERO, fail)];
        let record = run(spec);
        // Round robin gives every request one of the four that fails.
        let share = sum(&record, |bin| bin.answers) / offered(&record);
        assert!((share - good).abs() < 0.02, "{degraded:?}: {share}");
        assert_eq!(sum(&record, |bin| bin.degraded), sum(&record, |bin| bin.answers));
    }
}

#[test]
fn a_limit_on_what_is_active_refuses_what_is_over_at_once() {
    let mut spec = world(vec![service(1, false)], 0.2, StackSpec::default(), 20);
    spec.services[0].work = WorkSpec::Constant(WORK);
    spec.services[0].active_limit = Some(3);
    spec.clients[0].burst = 4;
    spec.clients[0].arrivals = Arrivals::Even;
    let record = run(spec);
    // Four at once on an idle task: three get in, and are done before the next four come.
    let share = sum(&record, |bin| bin.answers) / offered(&record);
    assert!((share - 0.75).abs() < 1e-9, "{share}");
}

#[test]
fn many_clients_that_ask_rarely_are_served() {
    let mut spec = world(vec![service(4, true)], 0.2, StackSpec::default(), 60);
    spec.clients[0].tasks = 5_000;
    spec.clients[0].stack.throttle = Some(ThrottleConfig::default());
    let record = run(spec);
    assert!(sum(&record, |bin| bin.answers) / offered(&record) > 0.998);
    assert_eq!(sum(&record, |bin| bin.throttled), 0.0);
}

#[test]
fn a_throttle_that_forgets_what_it_refused_sends_the_root_of_the_load() {
    let sent = |load: f64| {
        let envoy = EnvoyThrottleSpec { rejection_max: 1.0, ..EnvoyThrottleSpec::default() };
        let stack = StackSpec { envoy_throttle: Some(envoy), ..StackSpec::default() };
        let mut spec = world(vec![service(4, true)], load, stack, 120);
        spec.clients[0].mix = [0.0, 0.0, 1.0, 0.0];
        let record = run(spec);
        let late = |what: fn(&record::ServiceBin) -> u32| -> f64 {
            record.services[0][600..1_200].iter().map(|bin| f64::from(what(bin))).sum::<f64>()
                / 60.0
        };
        (late(|bin| bin.arrived), late(|bin| bin.admitted))
    };
    for load in [5.0, 20.0] {
        let (arrived, admitted) = sent(load);
        let wanted = load * 4.0 / WORK.as_secs_f64();
        let theory = (wanted * admitted / 0.95).sqrt();
        assert!((arrived / theory - 1.0).abs() < 0.05, "{load}: {arrived} {theory}");
    }
}
