//! The admission controller in loops that are harder than a queue in front of a CPU: requests that
//! wait for others first, requests that are long or rarely very dear, signals that only confirm,
//! dark mode.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Story, Told, least, mean};
use std::time::Duration;
use tidegate_core::decision::Cause;
use tidegate_sim::world::log::Ending;
use tidegate_sim::world::spec::{AdmissionSpec, WorkSpec};

/// One load for `secs` seconds.
fn story(load: f64, secs: usize) -> Story {
    Story { loads: vec![load], secs, ..Story::default() }
}

/// Busy share of the cores after `settle` seconds: the mean, and the worst second.
fn busy(told: &Told, settle: usize) -> (f64, f64) {
    let busy = &told.busy(0)[settle..];
    (mean(busy), least(busy))
}

/// Running or ready per core, in the mean after `settle` seconds.
fn load(told: &Told, settle: u64) -> f64 {
    mean(&told.looks(0, settle).map(|look| look.load).collect::<Vec<_>>())
}

#[test]
fn long_requests_keep_the_queue_at_what_it_should_be() {
    for offered in [2.0, 10.0] {
        let work = WorkSpec::Constant(Duration::from_millis(500));
        let told = Story { cores: 4, work, ..story(offered, 120) }.run();
        let load = load(&told, 5);
        // One running, a quarter and a quarter of 5 waiting: 2.5 at the threshold of the highest,
        // 2.3 at that of the lowest. At 10x the highest asks for all that there is, and its queue
        // wanders up to 2.5 times as long.
        assert!((2.0..4.5).contains(&load), "{offered}x: load {load}");
        assert!(busy(&told, 5).1 > 0.9, "{offered}x: {:?}", busy(&told, 5));
    }
}

#[test]
fn rare_dear_requests_do_not_make_the_task_refuse_the_cheap() {
    for (cores, offered) in [(4, 2.0), (8, 2.0), (8, 10.0), (32, 2.0)] {
        // 15 ms usually, 10 s one time in a thousand: 25 ms in the mean.
        let (usual, rare) = (Duration::from_millis(15), Duration::from_secs(10));
        let work = WorkSpec::Rare { usual, rare, share: 0.001 };
        let told = Story { cores, work, ..story(offered, 120) }.run();
        let (mean, worst) = busy(&told, 5);
        assert!(mean > 0.95 && worst > 0.8, "{cores} cores at {offered}x: busy {mean}, {worst}");
    }
}

/// Utilization shows what was admitted only after the wait. However long that is, the cores stay
/// busy, and no second goes by in which they are idle for more than a third.
#[test]
fn requests_that_wait_for_others_first_do_not_make_it_swing() {
    for wait_ms in [0, 100, 300, 1_000] {
        for offered in [1.5, 2.0, 10.0] {
            let waits = Duration::from_millis(wait_ms);
            let told = Story { waits, ..story(offered, 120) }.run();
            let (mean, worst) = busy(&told, 30);
            let what = format!("{wait_ms} ms of waiting at {offered}x: busy {mean}, {worst}");
            assert!(mean > 0.95 && worst > 0.67, "{what}");
            if wait_ms == 0 {
                let load = load(&told, 30);
                // One running and 5.25 waiting, times the threshold.
                assert!((4.5..7.5).contains(&load), "{what}, load {load}");
            }
        }
    }
}

/// Busy cores are above their target again and again in calm traffic. Whoever is refused then is
/// refused without that signal, too: by bad luck that made a queue.
#[test]
fn a_confirming_signal_refuses_nobody_by_itself() {
    for load in [0.5, 0.7] {
        let admission = Some(AdmissionSpec { cpu_target: Some(0.8), ..AdmissionSpec::default() });
        let confirmed = Story { admission, ..story(load, 30) }.run();
        let alone = story(load, 30).run();
        assert!(confirmed.refused(0).eq(alone.refused(0)), "{load}x");
        let refused = alone.refused(0).count() as f64;
        let offered = f64::from(alone.offered(0).iter().sum::<u32>());
        assert!(refused <= 0.005 * offered, "{load}x: {refused} of {offered}");
    }
}

/// At 2x half would be refused. What dark mode says must be near that, or it is of no use.
#[test]
fn dark_mode_tells_what_would_be_refused() {
    let admission = Some(AdmissionSpec { dark: true, ..AdmissionSpec::default() });
    let told = Story { admission, ..story(2.0, 20) }.run();
    assert_eq!(told.refused(0).count(), 0);
    let would = told.log.would_refuse as f64 / f64::from(told.offered(0).iter().sum::<u32>());
    assert!((0.4..0.6).contains(&would), "{would}");
}

#[test]
fn a_rejection_cites_a_threshold_that_was_passed() {
    let told = story(2.0, 30).run();
    let cites = told.refused(0).filter_map(|attempt| match attempt.ending {
        Ending::Refused { cause: Some(Cause::Signal { utilization, threshold, .. }) } => {
            Some((utilization, threshold))
        }
        _ => None,
    });
    let cites: Vec<_> = cites.collect();
    assert!(cites.len() > 1_000, "{}", cites.len());
    assert_eq!(cites.iter().find(|(utilization, threshold)| utilization < threshold), None);
}
