//! Who gets how much, and how much they should.
//!
//! A weight is `rps / utilization` (gRFC A58). The utilization of our tasks here is `rps x cost`,
//! as it is of tasks that work: so the weight of each is `1 / cost`, wherever the traffic goes, and
//! shares are as `1 / cost`. Tasks with a utilization that does not follow the traffic would show
//! nothing: whoever has a little less would soon get all.

use crate::backend::Backend;
use crate::peer::until;
use std::time::Instant;

/// What requests take, in microseconds. Evenly spread, 200 a second make the last of them half
/// full: far from shedding, far from nothing.
pub(crate) const COSTS: [u64; 3] = [2_000, 4_000, 8_000];
/// 1/2 : 1/4 : 1/8.
pub(crate) const SHARES: [f64; 3] = [4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0];
pub(crate) const PER_SECOND: u32 = 200;

/// How far a share may be off. The two numbers of a report are a tick apart. At the 29 requests a
/// second that the last task gets, one request is a thirtieth of its rate, and moves its weight by
/// as much: that is 0.005 of the whole. Where the count begins and ends, some of every task are
/// under way: 0.01 of 210. Pauses of a busy machine add to both. Even shares are three times the
/// tolerance away from the first and the last, so nothing else is taken for what is expected.
const TOLERANCE: f64 = 0.06;
/// Over so many requests shares are judged: a multiple of 7 and of 3.
const REQUESTS: u64 = 210;

/// The shares of the next requests.
pub(crate) async fn of_the_next(requests: u64, backends: &[Backend]) -> Vec<f64> {
    let count = || backends.iter().map(Backend::served).collect::<Vec<_>>();
    let before = count();
    let served = until(|| {
        let served: Vec<_> =
            count().iter().zip(&before).map(|(now, before)| now - before).collect();
        (served.iter().sum::<u64>() >= requests).then_some(served)
    });
    let served = served.await;
    let sum = served.iter().sum::<u64>() as f64;
    served.iter().map(|&count| count as f64 / sum).collect()
}

fn are(found: &[f64], expected: &[f64]) -> bool {
    found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() <= TOLERANCE)
}

/// Waits until the shares are as expected, and looks whether they stay so.
pub(crate) async fn settle(expected: &[f64], backends: &[Backend]) {
    let begin = Instant::now();
    let mut tries = Vec::new();
    loop {
        let found = of_the_next(REQUESTS / 3, backends).await;
        let there = are(&found, expected);
        tries.push(found);
        if there {
            break;
        }
        assert!(tries.len() < 60, "{expected:.3?} never come: {tries:.3?}");
    }
    let found = of_the_next(REQUESTS, backends).await;
    eprintln!("{found:.3?} of {expected:.3?}, there after {:.1?}", begin.elapsed());
    assert!(are(&found, expected), "{expected:.3?} came, but do not stay: {found:.3?}");
}
