use super::*;
use crate::clock::Clock;
use crate::executor::Executor;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use tidegate_core::admission::pace::Pace;
use tidegate_core::decision::SignalId;
use tidegate_core::signal::Signals;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// What a signal says at each tick, in the end for ever.
#[derive(Debug)]
struct Scripted {
    name: &'static str,
    values: Vec<Option<f64>>,
    asked: Arc<AtomicU64>,
    period: Duration,
}

fn scripted(name: &'static str, values: &[Option<f64>]) -> Scripted {
    Scripted { name, values: values.to_vec(), asked: Arc::default(), period: Duration::ZERO }
}

impl Signal for Scripted {
    fn name(&self) -> &str {
        self.name
    }
    fn target(&self) -> f64 {
        2.0
    }
    fn period(&self) -> Duration {
        self.period
    }
    fn sample(&mut self, _: Timestamp) -> Option<Utilization> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) as usize;
        let value = self.values[asked.min(self.values.len() - 1)];
        assert_ne!(value, Some(666.0), "scripted");
        value.map(|value| Utilization::new(value).expect("a utilization"))
    }
    fn trouble(&self) -> Option<String> {
        Some("the cable is out".to_owned())
    }
}

fn sampler() -> Sampler {
    Sampler::new(Clock::manual().0).cpus(2.0)
}

#[test]
fn the_furthest_over_its_target_decides() {
    let mut sampling = sampler()
        .signal(scripted("low", &[Some(1.0)]))
        .signal(scripted("high", &[Some(3.0), Some(0.5)]))
        .build()
        .unwrap();
    let tick = sampling.tick(at(0));
    assert_eq!(tick.seen.reading.utilization.get(), 1.5);
    assert_eq!(tick.seen.reading.signal, SignalId(1));
    assert_eq!((tick.seen.load, tick.seen.load_least, tick.delay), (None, None, None));
    let tick = sampling.tick(at(10));
    assert_eq!((tick.seen.reading.utilization.get(), tick.seen.reading.signal), (0.5, SignalId(0)));
}

#[test]
fn what_is_not_known_is_counted_and_forgotten_in_time() {
    let mut sampling = sampler().signal(scripted("flaky", &[Some(4.0), None])).build().unwrap();
    let utilization =
        |sampling: &mut Sampling, millis| sampling.tick(at(millis)).seen.reading.utilization.get();
    assert_eq!(utilization(&mut sampling, 0), 2.0);
    assert_eq!(utilization(&mut sampling, 10), 2.0, "the last value holds");
    let health = &sampling.health()[0];
    assert_eq!((health.known, health.unknown, health.last), (1, 1, Some((4.0, at(0)))));
    assert_eq!(health.trouble.as_deref(), Some("the cable is out"));
    let stale = Signals::STALE_AFTER.as_millis() as u64 + 1;
    assert_eq!(utilization(&mut sampling, stale), 0.0);
}

#[test]
fn a_signal_that_panics_is_not_asked_again_and_the_others_are() {
    let broken = scripted("broken", &[Some(2.0), Some(666.0)]);
    let (asked, good) = (Arc::clone(&broken.asked), scripted("good", &[Some(1.0)]));
    let still = Arc::clone(&good.asked);
    let mut sampling = sampler().signal(broken).signal(good).build().unwrap();
    for tick in 0..5 {
        sampling.tick(at(10 * tick));
    }
    assert_eq!((asked.load(Ordering::Relaxed), still.load(Ordering::Relaxed)), (2, 5));
    let health = sampling.health();
    assert_eq!((health[0].dead, health[0].known, health[0].unknown), (true, 1, 1));
    assert_eq!((health[1].dead, health[1].known), (false, 5));
    // Once its last value is too old it does not count.
    let tick = sampling.tick(at(6_000));
    assert_eq!(tick.seen.reading.signal, SignalId(1));
}

#[test]
fn slow_signals_are_read_when_they_are_due() {
    let mut slow = scripted("slow", &[Some(1.0)]);
    slow.period = Duration::from_millis(100);
    let asked = Arc::clone(&slow.asked);
    let mut sampling = sampler().signal(slow).build().unwrap();
    for tick in 0..=100 {
        sampling.tick(at(10 * tick));
    }
    assert_eq!(asked.load(Ordering::Relaxed), 11);
    // What was missed is not made up for.
    sampling.tick(at(5_000));
    sampling.tick(at(5_010));
    assert_eq!(asked.load(Ordering::Relaxed), 12);
}

#[test]
fn the_load_is_per_cpu_smoothed_and_of_the_instant() {
    let (clock, hand) = Clock::manual();
    let executor = Executor::builder(clock.clone()).timed_one_in(1).build();
    let mut sampling = Sampler::new(clock).cpus(1.5).executor(&executor).build().unwrap();
    let calm = sampling.tick(at(0));
    assert_eq!((calm.seen.load, calm.seen.load_least), (Some(0.0), Some(0.0)));
    assert_eq!(calm.delay, Some(Duration::ZERO));
    let waiting: Vec<_> = (0..48).map(|_| executor.track(core::future::pending::<()>())).collect();
    // All of them wait, for ten time constants of the average.
    let mut last = calm;
    for tick in 1..=100 {
        hand.set(at(10 * tick));
        last = sampling.tick(at(10 * tick));
        let reading = last.seen.reading;
        assert_eq!(last.seen.load, Some(32.0));
        assert_eq!(last.delay, Some(Duration::from_millis(10 * tick)), "they still wait");
        assert!(reading.utilization <= reading.instant);
    }
    assert_eq!(last.seen.load_least, Some(32.0));
    let health = sampling.health();
    let (load, delay) = (health[0].last.unwrap().0, health[1].last.unwrap().0);
    // 32 per CPU less what is left of zero after ten time constants: 32 x (1 - exp(-10)).
    assert!((load - 31.9985).abs() < 1e-4, "{load}");
    // A delay that grows by the clock is seen late by a time constant, 0.1 s.
    assert!((delay - 0.9).abs() < 0.01, "{delay}");
    // Of 50 ms, and not smoothed: twenty times.
    assert_eq!(last.seen.reading.signal, SignalId(1));
    assert!((last.seen.reading.instant.get() - 20.0).abs() < 1e-9);
    drop(waiting);
    let tick = sampling.tick(at(1_010));
    assert_eq!((tick.seen.load, tick.seen.load_least), (Some(0.0), Some(0.0)));
}

#[test]
fn executors_of_several_cores_are_one_task() {
    let (clock, _) = Clock::manual();
    let [a, b] = [(); 2].map(|()| Executor::single_threaded(clock.clone()));
    let mut sampling = Sampler::new(clock).cpus(2.0).executor(&a).executor(&b).build().unwrap();
    let _busy: Vec<_> = (0..3).map(|_| a.track(core::future::pending::<()>())).collect();
    let one = b.track(core::future::pending::<()>());
    sampling.tick(at(0));
    let seen = sampling.tick(at(10)).seen;
    assert_eq!((seen.load, seen.load_least), (Some(2.0), Some(1.0)));
    drop(one);
    let seen = sampling.tick(at(20)).seen;
    assert_eq!((seen.load, seen.load_least), (Some(1.5), Some(0.0)), "one of them idles");
}

#[test]
fn in_flight_and_numbers_of_ones_own() {
    let count = Arc::new(AtomicU64::new(30));
    let seen = Arc::clone(&count);
    let values = Mutex::new(vec![Some(f64::NAN), Some(-1.0), None, Some(8.0)]);
    let own = from_fn("pool", 4.0, move |_| values.lock().unwrap().pop().unwrap());
    let mut sampling = sampler()
        .signal(in_flight(20.0, move || seen.load(Ordering::Relaxed)))
        .signal(own)
        .build()
        .unwrap();
    assert_eq!(sampling.tick(at(0)).seen.reading.utilization.get(), 2.0);
    count.store(50, Ordering::Relaxed);
    let reading = sampling.tick(at(10)).seen.reading;
    assert_eq!((reading.utilization.get(), reading.signal), (2.5, SignalId(0)));
    assert_eq!(sampling.health()[1].trouble, None);
    sampling.tick(at(20));
    sampling.tick(at(30));
    let health = sampling.health();
    assert_eq!((health[1].known, health[1].unknown), (1, 3));
    assert!(health[1].trouble.as_ref().is_some_and(|why| why.contains("NaN")));
}

#[test]
fn a_set_up_that_makes_no_sense_is_refused() {
    let refused = |sampler: Sampler| sampler.build().unwrap_err().to_string();
    assert!(refused(Sampler::new(Clock::monotonic()).cpus(0.0)).contains("CPUs"));
    let bad = from_fn("bad", f64::NAN, |_| None);
    assert!(refused(sampler().signal(bad)).contains("target"));
    let many = (0..=Signals::COUNT_MAX)
        .fold(sampler(), |sampler, _| sampler.signal(scripted("one more", &[None])));
    assert!(refused(many).contains("leave `one more` out"));
    let error = sampler().tick(Duration::ZERO).start(|_| {}).unwrap_err();
    assert!(error.to_string().contains("1 ms"), "{error}");
}

/// A sampler that reports to a channel, and panics after its first report if `panics`.
fn started(panics: bool) -> (Handle, Receiver<Tick>) {
    let (sender, ticks) = channel();
    let mut panics = panics;
    let handle = Sampler::new(Clock::monotonic())
        .tick(Duration::from_millis(1))
        .cpus(1.0)
        .signal(scripted("steady", &[Some(1.0)]))
        .start(move |tick| {
            let _ = sender.send(tick);
            assert!(!core::mem::take(&mut panics), "scripted");
        });
    (handle.expect("a thread"), ticks)
}

#[test]
fn the_thread_ticks_until_its_handle_is_dropped() {
    let (handle, ticks) = started(false);
    let first = ticks.recv().unwrap();
    let second = ticks.recv().unwrap();
    assert!(first.now <= second.now);
    assert_eq!(second.seen.reading.utilization.get(), 0.5);
    assert!(handle.health()[0].known >= 2);
    assert_eq!(handle.panics(), 0);
    drop(handle);
    // The thread has ended, and the sender with it; otherwise this would go on for ever.
    while ticks.recv().is_ok() {}
}

#[test]
fn the_thread_survives_a_panic_of_whom_it_tells() {
    let (handle, ticks) = started(true);
    ticks.recv().unwrap();
    ticks.recv().unwrap();
    assert_eq!(handle.panics(), 1);
    assert!(handle.ticks() >= 1);
}

#[test]
fn a_handle_may_be_dropped_by_the_one_who_is_told() {
    let slot: Arc<Mutex<Option<Handle>>> = Arc::default();
    let (sender, dropped) = channel();
    let inside = Arc::clone(&slot);
    let handle = Sampler::new(Clock::monotonic())
        .tick(Duration::from_millis(1))
        .start(move |_| {
            if let Some(handle) = inside.lock().unwrap().take() {
                drop(handle);
                let _ = sender.send(());
            }
        })
        .unwrap();
    *slot.lock().unwrap() = Some(handle);
    dropped.recv().unwrap();
    // The thread ends, and with it the sender.
    assert!(dropped.recv().is_err());
}

#[test]
fn a_sampler_that_rests_looks_when_it_is_asked() {
    let pacer = Arc::new(Pacer::new(Pace::new(Duration::from_millis(1))));
    let (tell, looks) = channel();
    let resting = Arc::clone(&pacer);
    let sampler = Sampler::new(Clock::monotonic()).tick(Duration::from_millis(1));
    let sampler = sampler.paced(Arc::clone(&pacer)).start(move |_| {
        resting.set_rest(Duration::from_secs(3_600));
        // Whoever listens may have gone.
        let _ = tell.send(());
    });
    let sampler = sampler.expect("a sampler");
    for number in 1..=3 {
        looks.recv_timeout(Duration::from_secs(60)).expect("a look");
        assert_eq!(pacer.looks(), number);
        pacer.ask();
    }
    drop(sampler);
}

#[test]
fn a_signal_is_read_as_often_as_it_asks_for() {
    let pacer = Arc::new(Pacer::new(Pace::new(Duration::from_millis(1))));
    let (tell, looks) = channel();
    let resting = Arc::clone(&pacer);
    let sampler = Sampler::new(Clock::monotonic()).tick(Duration::from_millis(1));
    let sampler = sampler.signal(from_fn("mine", 1.0, |_| Some(0.0))).paced(pacer);
    let sampler = sampler.start(move |_| {
        resting.set_rest(Duration::from_secs(3_600));
        // Whoever listens may have gone.
        let _ = tell.send(());
    });
    let sampler = sampler.expect("a sampler");
    for _ in 0..3 {
        looks.recv_timeout(Duration::from_secs(60)).expect("a look");
    }
    drop(sampler);
}
