//! How much may be in flight, by criticality.
//!
//! One more request of a level is let in while less than its limit is in flight, of all levels
//! together. The lower a level, the lower its limit: as soon as a higher level keeps the queue
//! longer than that, the lower one is out, without anybody having to guess what will be asked for.
//! What is done makes room at once, so few have to wait for the CPUs to be busy.
//!
//! How long a queue each level may find, as a multiple of what should wait, depends on what is
//! asked for, `a` by the levels above and `d` by these and itself, over the capacity:
//!
//! ```text
//! queue = 1                      above it there is little: its queue harms nobody
//!         NEED / (d - a)         above it there is much (a > 0.6): only as long as it must be
//!         NEAR = 1.5 to 2        it nearly fits (d <= 1): nearly all of it gets in
//! ```
//!
//! and something in between where `a` and `d` are in between. A level that asks for ten times of
//! what is left is there whenever a CPU falls free, so its queue may be short; one that comes
//! seldom needs a longer one. And a level that nearly fits, but for bad luck, may wait longer
//! than one that does not, so that what it cannot use now is not given to others for good.
//!
//! When demand is misjudged, limits are somewhat too high or too low. The order of levels, and that
//! what is in flight is bounded, do not depend on it.

use super::LEVELS;

/// A level with so much of the capacity needs a whole queue to keep the CPUs busy: one that brings
/// a request every five needs five that wait…
const NEED: f64 = 0.2;
/// …but no level goes without: half a request that waits on one CPU.
const NEED_MIN: f64 = 0.1;
/// The levels above a level are little up to the first of these shares of the capacity, and much
/// from the second on.
const ABOVE: (f64, f64) = (0.3, 0.6);
/// The queue of a level that nearly fits, lowest criticality first. Half as long again as the set
/// point, and twice as long for those that matter most: the last of such a queue takes about twice
/// as long as the slowest of a hundred requests do in calm.
const NEAR: [f64; LEVELS] = [1.5, 1.5, 1.75, 2.0];
/// A level nearly fits up to the first of these shares of the capacity, and does not at all from
/// the second on. Demand is not known better than to a tenth.
const FITS: (f64, f64) = (1.0, 1.5);

/// The queue that each level up to `cut` may find; `asked` is what each asks for over the capacity.
pub(super) fn queues(asked: [f64; LEVELS], cut: usize) -> [f64; LEVELS] {
    let mut queues = NEAR;
    let mut above: f64 = asked[cut + 1..].iter().sum();
    for level in (0..=cut).rev() {
        let own = asked[level];
        let need = (NEED / own.max(f64::MIN_POSITIVE)).clamp(NEED_MIN, 1.0);
        let base = 1.0 - (1.0 - need) * ramp(above, ABOVE);
        above += own;
        queues[level] = NEAR[level] - (NEAR[level] - base) * ramp(above, FITS);
    }
    queues
}

/// 0 up to the first, 1 from the second on.
fn ramp(x: f64, (from, to): (f64, f64)) -> f64 {
    ((x - from) / (to - from)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: [f64; LEVELS], b: [f64; LEVELS]) -> bool {
        a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9)
    }

    #[test]
    fn queues_by_what_is_asked_for() {
        // Lowest first: what each level asks for, the highest that does not fit, and the queues.
        let (none, top) = (0.1, 2.0);
        let table = [
            // Alone, and ten times too much: a whole queue.
            ([0.0, 0.0, 10.0, 0.0], 2, [none, none, 1.0, top]),
            // Half of the capacity is asked for from above: two thirds of the way to 0.2 / 2.
            ([0.0, 0.0, 2.0, 0.5], 2, [none, none, 1.0 - 0.9 * 2.0 / 3.0, top]),
            // It nearly fits: a long queue, and next to none for those below.
            ([5.0, 4.0, 0.5, 0.5], 2, [0.1, 0.1, 1.75, top]),
            // It does not, by a quarter of the capacity: halfway between, below much.
            ([0.0, 0.0, 0.65, 0.6], 2, [none, none, 1.75 - (1.75 - 0.2 / 0.65) / 2.0, top]),
        ];
        for (asked, cut, expected) in table {
            let got = queues(asked, cut);
            // Who asks for nothing has no queue to speak of; only those who ask are compared.
            let mut expected = expected;
            for level in 0..LEVELS {
                if asked[level] == 0.0 {
                    expected[level] = got[level];
                }
            }
            assert!(close(got, expected), "{asked:?}: {got:?}, not {expected:?}");
        }
    }

    #[test]
    fn a_level_that_comes_seldom_may_wait_longer_than_a_flood() {
        let seldom = queues([0.0, 0.15, 0.0, 0.9], 1)[1];
        let flood = queues([0.0, 3.0, 0.0, 0.9], 1)[1];
        assert!(seldom > 5.0 * flood, "{seldom} and {flood}");
    }

    #[test]
    fn nonsense_gives_queues_all_the_same() {
        for asked in [[0.0; LEVELS], [f64::INFINITY; LEVELS], [1e300; LEVELS], [1e-300; LEVELS]] {
            for cut in 0..LEVELS {
                let queues = queues(asked, cut);
                assert!(
                    queues.iter().all(|queue| (NEED_MIN..=NEAR[3]).contains(queue)),
                    "{queues:?}"
                );
            }
        }
    }
}
