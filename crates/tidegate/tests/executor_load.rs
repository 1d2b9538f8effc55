//! Real runtimes: what is counted when they have little to do, and when they have too much.
#![allow(clippy::unwrap_used)]

use core::time::Duration;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use tidegate::clock::Clock;
use tidegate::executor::{Executor, Load};
use tidegate::signals::{Sampler, Tick};
use tokio::sync::mpsc::unbounded_channel;

/// Some CPU time, in pieces, with other tasks in between.
async fn request() {
    for _ in 0..20 {
        for i in 0..20_000_u64 {
            black_box(i);
        }
        tokio::task::yield_now().await;
    }
}

/// One request to a tick, then 400 at any time: the load, its delay and its least have to tell the
/// two apart by far.
#[test]
fn an_overload_shows_in_a_runtime_of_one_thread() {
    const CALM: usize = 30;
    const OVERLOAD: usize = 60;
    const MANY: u64 = 400;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let executor = Executor::single_threaded(Clock::monotonic());
    let (sender, mut ticks) = unbounded_channel();
    let sampler = Sampler::new(Clock::monotonic())
        .tick(Duration::from_millis(1))
        .cpus(1.0)
        .executor(&executor)
        .start(move |tick| {
            let _ = sender.send(tick);
        })
        .unwrap();
    let (calm, overload) = runtime.block_on(async {
        let mut calm: Vec<Tick> = Vec::new();
        while calm.len() < CALM {
            let tick = ticks.recv().await.unwrap();
            executor.spawn(request()).await.unwrap();
            calm.push(tick);
        }
        let outstanding = Arc::new(AtomicU64::new(0));
        let mut overload: Vec<Tick> = Vec::new();
        while overload.len() < OVERLOAD {
            while outstanding.load(Ordering::Relaxed) < MANY {
                outstanding.fetch_add(1, Ordering::Relaxed);
                let outstanding = Arc::clone(&outstanding);
                executor.spawn(async move {
                    request().await;
                    outstanding.fetch_sub(1, Ordering::Relaxed);
                });
            }
            while let Ok(tick) = ticks.try_recv() {
                overload.push(tick);
            }
            tokio::task::yield_now().await;
        }
        (calm, overload)
    });
    drop(sampler);
    let most = |ticks: &[Tick], of: fn(&Tick) -> f64| ticks.iter().map(of).fold(0.0, f64::max);
    let load = |tick: &Tick| tick.seen.load.unwrap();
    let least = |tick: &Tick| tick.seen.load_least.unwrap();
    let smoothed = |tick: &Tick| tick.seen.reading.utilization.get();
    let median_delay = |ticks: &[Tick]| {
        let mut delays: Vec<_> = ticks.iter().filter_map(|tick| tick.delay).collect();
        delays.sort_unstable();
        delays[delays.len() / 2]
    };
    // There is never more than one request in the calm, and it is gone between ticks.
    assert!(most(&calm, load) <= 1.0, "{}", most(&calm, load));
    assert!(calm.iter().any(|tick| least(tick) == 0.0));
    // And rarely fewer than `MANY` in the overload, as each that is done is made up for.
    let settled = &overload[OVERLOAD / 2..];
    let (calm_load, load) = (most(&calm, load), settled.iter().map(load).fold(f64::MAX, f64::min));
    assert!(load > 100.0 * calm_load, "{load} after {calm_load}");
    assert!(settled.iter().all(|tick| least(tick) >= 1.0), "it never idles");
    assert!(most(settled, smoothed) > 10.0 * most(&calm, smoothed));
    assert!(median_delay(settled) > median_delay(&calm), "with 400 ahead each waits longer");
    // The runtime is dropped with requests in it.
    drop(runtime);
    assert_eq!(executor.active(), 0);
}

/// A task that keeps its thread until it is let go.
fn block(started: &mpsc::Sender<()>, go: &Arc<AtomicBool>) -> impl Future<Output = ()> + use<> {
    let (started, go) = (started.clone(), Arc::clone(go));
    async move {
        started.send(()).unwrap();
        while !go.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn workers_that_never_park_tell_that_nothing_idled() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let clock = Clock::monotonic();
    let executor = Executor::for_runtime(clock.clone(), runtime.handle());
    let _context = runtime.enter();
    let (sender, started) = mpsc::channel();
    let go = Arc::new(AtomicBool::new(false));
    let mut watch = executor.watch().runtime(runtime.handle());
    for _ in 0..2 {
        executor.spawn(block(&sender, &go));
        started.recv().unwrap();
    }
    for _ in 0..5 {
        executor.spawn(async {});
    }
    let Load { active, .. } = watch.read(clock.now());
    assert_eq!(active, 7);
    // Both workers are held: none can park.
    assert_eq!(watch.read(clock.now()).least, Some(7));
    go.store(true, Ordering::Release);
    // When all is done workers park, and one that parked leaves work for at most one.
    while watch.read(clock.now()).least > Some(1) || executor.active() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(executor.active(), 0);
}

#[test]
fn what_nobody_tracks_shows_in_the_queue_of_the_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let clock = Clock::monotonic();
    let executor = Executor::for_runtime(clock.clone(), runtime.handle());
    let (plain, mut knowing) = (executor.watch(), executor.watch().runtime(runtime.handle()));
    let mut plain = plain;
    for _ in 0..9 {
        runtime.handle().spawn(async {});
    }
    assert_eq!(plain.read(clock.now()).active, 0);
    assert_eq!(knowing.read(clock.now()).active, 9);
}

#[cfg(feature = "hyper")]
#[test]
fn what_hyper_spawns_is_counted() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let executor = Executor::single_threaded(Clock::monotonic());
    runtime.block_on(async {
        hyper::rt::Executor::execute(&executor, core::future::ready(7));
        hyper::rt::Executor::execute(&executor, core::future::pending::<()>());
        assert_eq!(executor.active(), 2);
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert_eq!(executor.active(), 0, "one is done, one waits");
    });
}
