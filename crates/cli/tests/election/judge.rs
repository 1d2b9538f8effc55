//! What has to hold, whatever happened.

use crate::fleet::{BAD, GOOD, Step};
use crate::servers::Told;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(10);
/// Of its limit, what a customer may use over a window.
const MOST: f64 = 1.1;

/// Nobody was over, nobody was without limits and nobody was refused who kept to its limit, from
/// `since` on.
pub(crate) fn judge(steps: &[Step], since: Instant) {
    let steps: Vec<&Step> = steps.iter().filter(|step| step.at >= since).collect();
    assert!(steps.len() > 100, "nothing was asked for");
    let mut window: VecDeque<&Step> = VecDeque::new();
    let (mut sum, mut most) = (0.0, 0.0_f64);
    for step in &steps {
        let at = step.at.duration_since(since);
        assert_eq!(step.refused[0], 0.0, "{} is refused at {at:?}", GOOD.0);
        let enforced = step.enforced.expect("a task is without limits");
        let limit = BAD.1;
        assert!(enforced <= MOST * limit, "{enforced} of {limit} are enforced at {at:?}");
        window.push_back(step);
        sum += step.served[1];
        while step.at.duration_since(window[0].at) > WINDOW {
            sum -= window[0].served[1];
            window.pop_front();
        }
        most = most.max(sum);
    }
    let limit = BAD.1 * WINDOW.as_secs_f64();
    assert!(most <= MOST * limit, "{} has used {most} of {limit} within {WINDOW:?}", BAD.0);
    let whole = steps.last().unwrap().at.duration_since(since).as_secs_f64();
    let used: f64 = steps.iter().map(|step| step.served[1]).sum();
    // It is held to its limit, not cut off.
    assert!(used > 0.7 * BAD.1 * whole, "{} could use only {used} in {whole} s", BAD.0);
}

/// No two led at once: who says that it leads, asked after somebody else has said so, leads by a
/// later election.
pub(crate) fn judge_leaders(told: &[Told]) {
    let mut leads: Vec<&Told> = told.iter().filter(|told| told.status.leads).collect();
    leads.sort_by_key(|told| told.answered);
    for (n, earlier) in leads.iter().enumerate() {
        for later in leads[n + 1..].iter().filter(|later| later.asked > earlier.answered) {
            let (before, after) = (earlier.status.epoch, later.status.epoch);
            assert!(
                after > before || (after == before && earlier.server == later.server),
                "{} leads by {before}, and then {} by {after}",
                earlier.server,
                later.server
            );
        }
    }
    assert!(!leads.is_empty(), "nobody ever led");
}
