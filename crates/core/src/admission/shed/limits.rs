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
//! Levels that fit may find more, so that bad luck refuses nobody of them. Where some below are
//! cut, what is let in of those may stand in the queue at first, up to the room of the highest of
//! them, and what comes at random of each level that fits needs room of its own on top. A queue
//! that takes `a` of the capacity is longer than `n` requests with probability `a^n`, and
//! `n = 7 (1 + a)/(1 - a)` makes that one in a million or less (`ln 10^6` is 14, and `-ln a` at
//! least `2 (1 - a)/(1 + a)`); those that wait for others elsewhere vary by the
//! root of their number. As only the level and those above can use that room, and they ask for
//! little, it makes nobody wait.
//!
//! When demand is misjudged, limits are somewhat too high or too low. The order of levels, and that
//! what is in flight is bounded, do not depend on it.

use super::LEVELS;

/// At the very most so much may wait in calm, as a multiple of what should, by criticality. Calm
/// traffic of exponential work on one CPU at 0.7 finds the lowest limit reached four times in ten
/// thousand (0.7^22), the highest once in a hundred thousand; a surge reaches them in no time.
pub(super) const ROOM: [f64; LEVELS] = [4.0, 4.5, 5.0, 6.0];
/// …and while something is shed, for levels of which it is not plain that they fit.
const ROOM_SURGE: [f64; LEVELS] = [3.0, 3.5, 4.0, 5.0];
/// Where it is plain they have room of their own above those below: so many requests where next to
/// nothing is asked for, and more by the formula above…
const RESERVE: f64 = 7.0;
/// …so many standard deviations of those who wait elsewhere…
const RESERVE_ELSEWHERE: f64 = 4.0;
/// …but no more queues than this: levels that ask for more than half of the capacity would have a
/// surge of theirs stand in it.
const RESERVE_MAX: f64 = 3.0;
/// It is plain of levels that ask for no more of the capacity than this by any average, with those
/// above.
const PLAIN: f64 = 0.6;

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

/// What is known of requests, over what may wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unit {
    /// What one costs.
    pub(super) one: f64,
    /// What waits for others elsewhere while all CPUs are busy.
    pub(super) elsewhere: f64,
}

/// The queue that each level above `cut` may find, as all of them fit. `asked` is what each asks
/// for over the capacity, `most` the most by any average, `settled` whether it has fitted for long
/// enough to know.
pub(super) fn rooms(
    asked: [f64; LEVELS],
    most: [f64; LEVELS],
    unit: Unit,
    cut: usize,
    settled: [bool; LEVELS],
) -> [f64; LEVELS] {
    let mut rooms = ROOM_SURGE;
    let mut room = ROOM[cut];
    for level in cut + 1..LEVELS {
        let above = |of: &[f64; LEVELS]| of[level..].iter().sum::<f64>();
        // Not a number where nothing is known.
        let a = above(&asked).clamp(0.0, 1.0);
        let varies = (a * unit.elsewhere * unit.one).sqrt();
        let own = RESERVE * (1.0 + a) / (1.0 - a) * unit.one + RESERVE_ELSEWHERE * varies;
        let least = ROOM[level] - ROOM[level - 1];
        room += if own > least { own.min(RESERVE_MAX) } else { least };
        if settled[level] || above(&most) <= PLAIN {
            rooms[level] = room;
        }
    }
    rooms
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
    fn what_fits_has_room_for_its_own_luck_above_those_below() {
        // One CPU: 5.25 requests are a queue, and none waits elsewhere.
        let unit = Unit { one: 1.0 / 5.25, elsewhere: 0.0 };
        let (few, long) = ([false; LEVELS], [true; LEVELS]);
        let mixed = [0.81, 0.28, 0.1, 0.06];
        let table = [
            // 0.44 and more of the capacity: 18 requests and more, so three queues; then 0.16 and
            // 0.06: 9.67 and 7.89 requests.
            (mixed, 0, few, [3.0, 7.0, 7.0 + 9.667 / 5.25, 7.0 + 17.560 / 5.25]),
            // Levels that are cut stand in the queue, and have no room that others would add to.
            (mixed, 1, few, [3.0, 3.5, 4.5 + 9.667 / 5.25, 4.5 + 17.560 / 5.25]),
            (mixed, 2, few, [3.0, 3.5, 4.0, 5.0 + 7.894 / 5.25]),
            (mixed, 3, few, ROOM_SURGE),
            // Not plain, and so as before; or known of the highest alone.
            ([4.0, 3.0, 2.0, 1.0], 0, few, ROOM_SURGE),
            ([4.0, 3.0, 2.0, 0.7], 2, [false, false, false, true], [3.0, 3.5, 4.0, 8.0]),
            // A level that asks for all there is has the most that there is.
            ([4.0, 3.0, 0.7, 0.3], 0, long, [3.0, 7.0, 10.0, 12.476]),
            ([4.0, 3.0, 0.7, 0.3], 2, long, [3.0, 3.5, 4.0, 7.476]),
        ];
        for (asked, cut, settled, expected) in table {
            let got = rooms(asked, asked, unit, cut, settled);
            let close =
                got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 0.01);
            assert!(close, "{asked:?}, {cut} cut: {got:?}, not {expected:?}");
        }
        // A hundred that wait elsewhere vary by ten: by 6.6 where 0.44 of the capacity is used.
        let waits = Unit { one: 1.0 / 30.25, elsewhere: 100.0 / 30.25 };
        let got = rooms(mixed, [0.0; LEVELS], waits, 0, few);
        assert!((got[1] - 4.0 - (18.0 + 4.0 * 6.633) / 30.25).abs() < 0.01, "{got:?}");
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
            for one in [0.0, 1e-300, f64::INFINITY, f64::NAN] {
                for cut in 0..LEVELS {
                    let unit = Unit { one, elsewhere: one };
                    let got = rooms(asked, asked, unit, cut, [true; LEVELS]);
                    assert!(got.is_sorted() && got[LEVELS - 1] <= 13.0, "{got:?}");
                }
            }
        }
    }
}
